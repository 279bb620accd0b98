//! Another commit beside this one, as `docs/make-performance COMMIT` measured them.

use std::{fmt::Write, fs, path::Path};

use opencode_conductor_cli::failure::Failure;

use crate::measured::{Load, Measured, Table, rounded};

/// The runs of both, which took turns.
pub(crate) struct Compared {
    commit: String,
    before: Vec<Measured>,
    after: Vec<Measured>,
}

impl Compared {
    /// Nothing if there is no such directory.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, Failure> {
        if !directory.exists() {
            return Ok(None);
        }
        let unreadable = |error| Failure::because(format!("cannot read {}", directory.display()), &error);
        let commit = fs::read_to_string(directory.join("commit")).map_err(unreadable)?.trim().to_owned();
        let runs = |tree: &str| -> Result<Vec<Measured>, Failure> {
            let names = (1..).map(|round| format!("{tree}-{round}-"));
            let runs = names.map(|name| Measured::read_named(directory, &name));
            runs.take_while(|run| run.as_ref().is_ok_and(|run| !run.loads.is_empty())).collect()
        };
        Ok(Some(Self { before: runs("before")?, after: runs("after")?, commit }))
    }

    /// A section of the page.
    pub(crate) fn markdown(&self) -> Result<String, Failure> {
        let Self { commit, before, after } = self;
        let mut text = format!(
            "## Before and after

`docs/make-performance {commit}` builds the commit `{commit}` beside this one and lets the two take turns, {} times each. These are the
medians: events per second for the recordings as under \"Decoding\", and `load` with 100 tasks, 500 events and 100 old messages.

| | {commit} | this one | ratio |
|---|--:|--:|--:|
",
            after.len()
        );
        let mut row = |name: &str, figure: &dyn Fn(&Measured) -> Result<f64, Failure>| {
            let (before, after) = (median(before, figure)?, median(after, figure)?);
            // Writing to a string cannot fail.
            let ratio = after / before;
            let _ = writeln!(text, "| {name} | {} | {} | {ratio:.2}× |", rounded(before), rounded(after));
            Ok::<_, Failure>(())
        };
        for name in ["decode + merge + fold", "decode alone", "merge + fold alone"] {
            row(&format!("{name}, events/s"), &|run| logs(run)?.figure(name, 0))?;
        }
        let of_load =
            |figure: fn(&Load) -> f64| move |run: &Measured| Ok(run.loads.first().map_or(f64::NAN, figure));
        row("CPU per event under load, µs", &of_load(|load| load.cpu_micros))?;
        row("idle to result, p50, ms", &of_load(|load| load.p50_ms))?;
        row("idle to result, p99, ms", &of_load(|load| load.p99_ms))?;
        row("memory per waiting turn, KiB", &of_load(|load| load.waiting_bytes / 1024.0))?;
        row("requests per turn", &of_load(|load| load.requests))?;
        row("kB per turn", &of_load(|load| load.bytes / 1e3))?;
        Ok(text + "\n")
    }
}

fn logs(run: &Measured) -> Result<&Table, Failure> {
    run.table("All recordings, each on its own")
}

fn median(runs: &[Measured], figure: &dyn Fn(&Measured) -> Result<f64, Failure>) -> Result<f64, Failure> {
    let mut figures = runs.iter().map(figure).collect::<Result<Vec<f64>, Failure>>()?;
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().ok_or_else(|| Failure::usage("there is nothing to compare"))
}
