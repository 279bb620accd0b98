//! Figures as tables for people, or, with `--json`, as JSON for the page that shows them.

use std::{
    fs,
    hint::black_box,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

const KEEP_MEMORY: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
    ("MALLOC_TRIM_THRESHOLD_", "4294967296"),
    ("MALLOC_TOP_PAD_", "268435456"),
];

/// What the command line asks for.
pub(crate) struct Settings {
    /// One section instead of all.
    only: Option<String>,
    json: bool,
    /// Rougher figures in less time.
    pub(crate) quick: bool,
}

impl Settings {
    /// Nothing if all is done: the first time, the program starts itself again with an allocator that keeps its memory.
    /// Otherwise the kernel hands out fresh pages for everything large, and their cost, which has steps, hides how things
    /// grow.
    pub(crate) fn from_args() -> Option<Self> {
        if std::env::var_os(KEEP_MEMORY[0].0).is_none() {
            let program = std::env::current_exe().expect("a program has a path");
            let arguments = std::env::args().skip(1);
            let status = Command::new(program).args(arguments).envs(KEEP_MEMORY).status().expect("it starts");
            assert!(status.success());
            return None;
        }
        // `cargo bench` adds a flag of its own, which is left alone with all others.
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        Some(Self {
            only: arguments.iter().find(|argument| !argument.starts_with('-')).cloned(),
            json: has("--json"),
            quick: has("--quick"),
        })
    }

    pub(crate) fn wants(&self, section: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == section)
    }

    pub(crate) fn print(&self, tables: &[Table]) {
        if self.json {
            let tables: Vec<Value> = tables.iter().map(Table::json).collect();
            println!("{:#}", Value::from(tables));
        } else {
            tables.iter().for_each(Table::print);
        }
    }
}

/// Rows of figures over a growing size.
pub(crate) struct Table {
    title: &'static str,
    unit: &'static str,
    columns: Vec<String>,
    rows: Vec<(String, Vec<f64>)>,
}

impl Table {
    pub(crate) fn new(title: &'static str, unit: &'static str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title, unit, columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, name: impl Into<String>, figures: impl IntoIterator<Item = f64>) {
        self.rows.push((name.into(), figures.into_iter().collect()));
    }

    fn print(&self) {
        print!("\n{:<46}", format!("{}, {}", self.title, self.unit));
        for column in &self.columns {
            print!(" {column:>12}");
        }
        println!("{}", if self.columns.len() > 1 { "   last to first" } else { "" });
        for (name, figures) in &self.rows {
            print!("  {name:<44}");
            for figure in figures {
                print!(" {:>12}", rounded(*figure));
            }
            match figures[..] {
                [first, .., last] => println!("   {:.2}", last / first),
                _ => println!(),
            }
        }
    }

    fn json(&self) -> Value {
        let rows: Vec<Value> =
            self.rows.iter().map(|(name, figures)| json!({"name": name, "figures": figures})).collect();
        json!({"title": self.title, "unit": self.unit, "columns": self.columns, "rows": rows})
    }
}

/// Three digits are as many as such figures are good for.
fn rounded(figure: f64) -> String {
    match figure {
        f if f >= 100.0 => format!("{f:.0}"),
        f if f >= 10.0 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}

/// Time that this thread really ran, where the system tells (Linux): other work on the machine does not count.
pub(crate) struct Stopwatch {
    cpu: Option<u64>,
    wall: Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { cpu: cpu_nanos(), wall: Instant::now() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        match (self.cpu, cpu_nanos()) {
            (Some(start), Some(end)) => Duration::from_nanos(end - start),
            (_, _) => self.wall.elapsed(),
        }
    }
}

fn cpu_nanos() -> Option<u64> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

/// Seconds per run.
pub(crate) fn seconds(settings: &Settings, run: impl Fn() -> Duration) -> f64 {
    let [seconds] = compared(settings, [&run]);
    seconds
}

/// Seconds per run of each, for figures that are to be compared: the best of several rounds, each long enough for the coarse clock
/// to be exact enough. They take turns, so that a moment in which the machine is slow is not the moment of one of them.
pub(crate) fn compared<const N: usize>(settings: &Settings, runs: [&dyn Fn() -> Duration; N]) -> [f64; N] {
    let (n_rounds, round) = if settings.quick { (1, 60) } else { (9, 100) };
    let patience = Duration::from_secs(5);
    let mut best = [f64::MAX; N];
    let started = Instant::now();
    for n in 0..n_rounds {
        if n > 0 && started.elapsed() > patience {
            break;
        }
        for (best, run) in best.iter_mut().zip(runs) {
            let (mut total, mut n_runs) = (Duration::ZERO, 0.0);
            let wall = Instant::now();
            while total < Duration::from_millis(round) && wall.elapsed() < patience {
                total += run();
                n_runs += 1.0;
            }
            *best = best.min(total.as_secs_f64() / n_runs);
        }
    }
    best
}

/// How long something takes.
pub(crate) fn timed<T>(run: impl FnOnce() -> T) -> Duration {
    let start = Stopwatch::start();
    let made = black_box(run());
    let took = start.elapsed();
    // Taking it down is not a part of it.
    drop(made);
    took
}
