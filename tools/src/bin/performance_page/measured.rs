//! What was measured.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use opencode_conductor_cli::failure::Failure;
use serde::Deserialize;
use serde_json::Value;

/// All measurements of a run.
pub(crate) struct Measured {
    tables: Vec<Table>,
    pub(crate) loads: Vec<Load>,
}

/// A table of a benchmark.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Table {
    title: String,
    pub(crate) columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Deserialize)]
struct Row {
    name: String,
    figures: Vec<f64>,
}

/// A run of `load`.
pub(crate) struct Load {
    pub(crate) tasks: u32,
    pub(crate) events: u32,
    history: u32,
    rounds: u32,
    settled: u32,
    pub(crate) requests: f64,
    pub(crate) bytes: f64,
    pub(crate) floor_bytes: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) cpu_micros: f64,
    pub(crate) waiting_bytes: f64,
    sockets: u32,
}

impl Measured {
    pub(crate) fn read(directory: &Path) -> Result<Self, Failure> {
        Self::read_named(directory, "")
    }

    /// The files whose names begin so.
    pub(crate) fn read_named(directory: &Path, beginning: &str) -> Result<Self, Failure> {
        let unreadable = |error| Failure::because(format!("cannot read {}", directory.display()), &error);
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let is_named = entry.file_name().to_string_lossy().starts_with(beginning);
            if is_named && entry.path().is_file() {
                paths.push(entry.path());
            }
        }
        let mut measured = Self { tables: Vec::new(), loads: Vec::new() };
        for path in paths {
            let malformed =
                |error| Failure::because(format!("{} is not as expected", path.display()), &error);
            let text = fs::read_to_string(&path).map_err(unreadable)?;
            match serde_json::from_str(&text).map_err(malformed)? {
                tables @ Value::Array(_) => {
                    let tables: Vec<Table> = serde_json::from_value(tables).map_err(malformed)?;
                    measured.tables.extend(tables);
                }
                load => measured.loads.push(Load::new(&load)),
            }
        }
        measured.loads.sort_by_key(|load| (load.events, load.tasks));
        Ok(measured)
    }

    pub(crate) fn table(&self, title: &str) -> Result<&Table, Failure> {
        let missing = || Failure::usage(format!("there is no measurement \"{title}\""));
        self.tables.iter().find(|table| table.title == title).ok_or_else(missing)
    }

    /// The runs of `load` as Markdown.
    pub(crate) fn turns(&self) -> String {
        let mut text = "| tasks at once | events | old messages | turns settled | requests per turn | kB per turn | of the floor | idle to result, p50 | p99 | CPU per event | memory per waiting turn | sockets |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n".to_owned();
        for load in &self.loads {
            let Load {
                tasks,
                events,
                history,
                rounds,
                settled,
                requests,
                p50_ms,
                p99_ms,
                cpu_micros,
                sockets,
                ..
            } = load;
            let turns = tasks * rounds;
            let (kilobytes, of_floor) = (load.bytes / 1e3, load.bytes / load.floor_bytes);
            let memory = load.waiting_bytes / 1024.0;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {tasks} | {events} | {history} | {settled} of {turns} | {requests:.2} | {kilobytes:.0} | {of_floor:.2}× | {p50_ms} ms | {p99_ms} ms | {cpu_micros:.1} µs | {memory:.0} KiB | {sockets} |"
            );
        }
        text
    }
}

impl Load {
    fn new(report: &Value) -> Self {
        let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let count = |path: &str| {
            let count = report.pointer(path).and_then(Value::as_u64).unwrap_or_default();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        Self {
            tasks: count("/tasks"),
            events: count("/events"),
            history: count("/history"),
            rounds: count("/rounds"),
            settled: count("/turns/settled"),
            requests: number("/perTurn/requests"),
            bytes: number("/perTurn/bytesRead"),
            floor_bytes: number("/perTurn/floorBytes"),
            p50_ms: number("/idleToResultMs/p50"),
            p99_ms: number("/idleToResultMs/p99"),
            cpu_micros: number("/cpuMicrosPerEvent"),
            waiting_bytes: number("/perTurn/waitingBytes"),
            sockets: count("/sockets"),
        }
    }
}

impl Table {
    pub(crate) fn row(&self, name: &str) -> Result<&[f64], Failure> {
        let missing = || Failure::usage(format!("\"{}\" has no row \"{name}\"", self.title));
        self.rows.iter().find(|row| row.name == name).map(|row| &row.figures[..]).ok_or_else(missing)
    }

    pub(crate) fn figure(&self, name: &str, column: usize) -> Result<f64, Failure> {
        let missing = || Failure::usage(format!("\"{}\" has no column {column}", self.title));
        self.row(name)?.get(column).copied().ok_or_else(missing)
    }

    /// Without what is no measurement.
    pub(crate) fn without_notes(&self) -> Self {
        let mut table = self.clone();
        table.rows.retain(|row| row.name != "(recordings)" && row.name != "(bytes per event)");
        table
    }

    /// As Markdown, with how the last figure compares to the first where that says something.
    pub(crate) fn markdown(&self, growth: bool) -> String {
        // Writing to a string cannot fail.
        let mut text = String::from("| |");
        for column in &self.columns {
            let _ = write!(text, " {column} |");
        }
        text += if growth { " last to first |\n" } else { "\n" };
        let _ = writeln!(text, "|---|{}", "--:|".repeat(self.columns.len() + usize::from(growth)));
        for Row { name, figures } in &self.rows {
            let _ = write!(text, "| {name} |");
            for figure in figures {
                let _ = write!(text, " {} |", rounded(*figure));
            }
            match figures[..] {
                [first, .., last] if growth => {
                    let _ = writeln!(text, " {:.2}× |", last / first);
                }
                _ => text.push('\n'),
            }
        }
        text
    }
}

/// The number that a column's heading begins with.
pub(crate) fn number(heading: &str) -> f64 {
    let digits: String = heading.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(f64::NAN)
}

/// Three digits.
pub(crate) fn rounded(figure: f64) -> String {
    match figure {
        f if f >= 1e6 => format!("{:.2} M", f / 1e6),
        f if f >= 1e4 => format!("{:.0} k", f / 1e3),
        f if f >= 100.0 => format!("{f:.0}"),
        f if f >= 10.0 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}
