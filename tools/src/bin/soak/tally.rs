//! What is counted.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

/// What must not happen; see [`Tally::bad`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bad {
    /// Reported as run, and was not.
    Lost,
    /// Run twice.
    Doubled,
    /// Another end than the script's that no fault explains, another answer, or another conversation than the server's.
    Wrong,
    /// Not over in time.
    Hang,
    /// Something was left open.
    Leak,
    /// Much more memory at the end than at half time, under the same load.
    Growth,
}

/// What memory may grow by in the second half of a run, which also says how evenly it is measured.
const MAX_GROWTH: f64 = 1.5;

impl Bad {
    const ALL: [(Self, &str); 6] = [
        (Self::Lost, "prompts lost"),
        (Self::Doubled, "prompts doubled"),
        (Self::Wrong, "wrong completions"),
        (Self::Hang, "hangs"),
        (Self::Leak, "leaks"),
        (Self::Growth, "memory growth"),
    ];
}

#[derive(Debug, Default)]
struct Counts {
    turns: usize,
    outcomes: BTreeMap<&'static str, usize>,
    faults: BTreeMap<&'static str, usize>,
    bad: BTreeMap<Bad, Vec<String>>,
    memory: Vec<(&'static str, u64)>,
}

/// The counts of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn outcome(&self, name: &'static str) {
        let mut counts = self.lock();
        counts.turns += 1;
        *counts.outcomes.entry(name).or_default() += 1;
    }

    pub(crate) fn fault(&self, name: &'static str) {
        *self.lock().faults.entry(name).or_default() += 1;
    }

    /// Something that must not happen has happened.
    pub(crate) fn bad(&self, bad: Bad, what: impl Into<String>) {
        self.lock().bad.entry(bad).or_default().push(what.into());
    }

    /// Notes how much memory this process has now.
    pub(crate) fn remember(&self, when: &'static str) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        self.lock().memory.push((when, kilobytes.unwrap_or_default() * 1024));
    }

    /// Compares the memory at the end with that at half time.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of sizes need not be exact")]
    pub(crate) fn judge_memory(&self) {
        let [.., (_, before), (_, after)] = self.lock().memory[..] else { return };
        if after as f64 > before as f64 * MAX_GROWTH {
            self.bad(Bad::Growth, format!("{before} bytes at half time became {after}"));
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.lock().bad.is_empty()
    }

    pub(crate) fn json(&self, seed: u64) -> Value {
        let counts = self.lock();
        let bad =
            |(bad, name): (Bad, &str)| (name.to_owned(), json!(counts.bad.get(&bad).map_or(0, Vec::len)));
        json!({
            "seed": seed,
            "turns": counts.turns,
            "outcomes": counts.outcomes,
            "faults": counts.faults,
            "bad": Bad::ALL.into_iter().map(bad).collect::<serde_json::Map<_, _>>(),
            "examples": counts.bad.values().flatten().take(10).collect::<Vec<_>>(),
            "memoryBytes": counts.memory.iter().copied().collect::<BTreeMap<_, _>>(),
        })
    }

    pub(crate) fn table(&self, seed: u64) -> String {
        let counts = self.lock();
        let list = |counted: &BTreeMap<&str, usize>| {
            let counted: Vec<_> = counted.iter().map(|(name, count)| format!("{count} {name}")).collect();
            counted.join(", ")
        };
        let mut rows = vec![
            ("seed", seed.to_string()),
            ("turns", counts.turns.to_string()),
            ("outcomes", list(&counts.outcomes)),
            ("faults injected", counts.faults.values().sum::<usize>().to_string()),
        ];
        rows.extend(counts.faults.iter().map(|(name, count)| ("", format!("{count} × {name}"))));
        let n_bad = |bad: Bad| counts.bad.get(&bad).map_or(0, Vec::len).to_string();
        rows.extend(Bad::ALL.map(|(bad, name)| (name, n_bad(bad))));
        let memory =
            counts.memory.iter().map(|(when, bytes)| format!("{} MiB at {when}", bytes / 1024 / 1024));
        rows.push(("memory", memory.collect::<Vec<_>>().join(", ")));
        let mut table = String::new();
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{name:<20}{value}");
        }
        for what in counts.bad.values().flatten().take(10) {
            let _ = writeln!(table, "bad: {what}");
        }
        table.trim_end().to_owned()
    }
}
