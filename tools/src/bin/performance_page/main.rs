//! Writes `PERFORMANCE.md` and its curves from what the benchmarks and `load` print as JSON.
//!
//! `docs/make-performance` measures and calls this: `performance_page MEASUREMENTS PAGE_DIRECTORY`.

mod chart;
mod compared;
mod measured;

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Parser;
use opencode_conductor_cli::{
    command_line,
    failure::{self, Failure},
};

use crate::{
    chart::{Chart, Line, Scale},
    compared::Compared,
    measured::{Load, Measured, Table, number},
};

/// What a turn cost the TypeScript original, measured when this library was designed: events, requests, bytes.
const ORIGINAL: [(f64, u32, f64); 2] = [(500.0, 56, 14e6), (2000.0, 192, 248e6)];

/// Writes the page of figures, as docs/make-performance has measured them
#[derive(Debug, Parser)]
#[command(name = "performance_page")]
struct Arguments {
    /// Where the measurements are
    from: PathBuf,
    /// Where `PERFORMANCE.md` and `performance.svg` are written
    to: PathBuf,
}

fn main() -> ExitCode {
    match command_line::parse("performance_page") {
        Ok(arguments) => failure::exit("performance_page", run(&arguments)),
        Err(status) => status,
    }
}

fn run(Arguments { from, to }: &Arguments) -> Result<ExitCode, Failure> {
    let measured = Measured::read(from)?;
    let compared = Compared::read(&from.join("compared"))?;
    for (name, content) in
        [("PERFORMANCE.md", page(&measured, compared.as_ref())?), ("performance.svg", curves(&measured)?)]
    {
        let path = to.join(name);
        let failed = |error| Failure::because(format!("cannot write {}", path.display()), &error);
        fs::write(&path, content).map_err(failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(measured: &Measured, compared: Option<&Compared>) -> Result<String, Failure> {
    let compared = compared.map_or(Ok(String::new()), Compared::markdown)?;
    let fold = measured.table("Fold, by blocks there are")?;
    let text = measured.table("Fold into one long text, all states kept")?;
    let logs = measured.table("All recordings, each on its own")?;
    let growth = measured.table("One session, by streamed texts")?;
    let documents = measured.table("Documents, by messages")?;
    let claude = measured.table("Claude Code: decode + merge + fold")?;
    let one = measured.table("One event")?;
    let many = measured.table("Small events in one chunk")?;
    let recording = measured.table("Recording a turn")?;
    let restoring = measured.table("Restoring open turns")?;
    let sessions = measured.table("Saved sessions")?;
    let gain = one.figure("eventsource-stream", 2)? / one.figure("conductor", 2)?;
    let of_floor = measured.loads.iter().map(|load| load.bytes / load.floor_bytes).fold(0.0, f64::max);
    Ok(format!(
        "# What it costs

This page is written by `docs/make-performance`, which measures everything on it in one run, except what the TypeScript original cost: that was measured
once, when this library was designed. Compare figures of one run only: they
come from {cores} cores that the fake server shares, and another machine has others. The counts of requests and bytes are the
same everywhere, and [a test](../tests/it/manager_cost.rs) holds them.

![Curves: bytes per turn, time to the result, decoding one event, folding](performance.svg)

## Turns

`load` runs tasks at once on a fake server in another process: each turn streams so many events, as fast as the fake can, into a
session with so many old messages. The fake has one thread, as the real server has. The floor is what every client needs:
every event once, and every message of the answer once.

{turns}
- **Requests**: a turn sends its prompt and reads its end. The first one of a session also asks which model the server would use,
  and the first of a directory opens the event stream.
- **Bytes**: at most {of_floor:.2} times the floor. The TypeScript original read {original}
  for 500 events over 100 old messages and 2,000 over 500.
- **Time to the result** is from the moment that the server stamped on the last message, to the millisecond, until the caller has
  the result. All turns of a round end at once on two cores, so most of it is other turns' work; some of it is the server's, which
  writes down the end of several turns before it sends the first.
- **Memory** is what the process grew by while all turns of the first round wait for the model, per turn. Of a single turn it is
  mostly what the first turn in a process sets up.

```sh
cargo run --release -p opencode-conductor-tools --bin load -- --tasks 100 --events 500 --history 100
cargo run --release -p opencode-conductor-tools --bin load -- --tasks 10 --events 500 --history 100 --rounds 20
```

## Folding

Nanoseconds of CPU time per event, by the number of blocks that the conversation has. A million events per second are 1,000 ns.

{fold}
An addition to a text of 1 MiB, with every state kept, takes {long:.0} ns.

## Decoding

Events per second, on one core, for all {n_recordings:.0} recordings of real servers. An event has {bytes:.0} bytes on average.

{logs}
Of a generated session of texts that are streamed in twenty pieces each, by the number of texts:

{growth}
Messages per second, for whole lists of messages and whole states:

{documents}
Lines of Claude Code per second: the recordings, and a generated stream by its number of lines:

{claude}
## Server-sent events

Milliseconds. `copy` only copies the bytes and checks that they are UTF-8, which is the least that can be done. `conductor` is the
decoder in use; `eventsource-stream` is what `reqwest-eventsource` decodes with. An event of 8 MiB is decoded {gain:.0} times
faster than by the latter. What grows faster than the size grows so for `copy`, too: large events do not fit into the caches.

{one}
{many}
```sh
cargo bench              # -- --quick for rougher figures in less time, -- reducer for one section
```

## The store

What it costs to write down how far a turn got, before each of its effects; in microseconds per turn. What is in SQLite is on disk.

{recording}
A process that was killed leaves turns open which are over on the server. The next one finds each session, reads it with its subagents, and reads
it again before it believes that it is over. What all turns of a directory want to know is asked for once:

{restoring}
Sessions that are saved, in milliseconds. A transcript is kept in pieces, of which only those are written that changed.

{sessions}
```sh
cargo bench -p opencode-conductor-sqlite
```

{compared}## What limits us now

- Decoding costs about as much as merging and folding. What the server writes in its usual way is read straight into its types, in one
  pass; what it says beside the known fields is kept as text, and read when it is asked for. A quarter of the instructions look for the ends
  of strings, and almost a third of the time goes to allocating and moving memory: an event is moved several times until it is merged.
- A piece of text is copied into the queue of its reader, from there into a string of its own, which becomes the conversation's event, and
  from that into the mirror and into the state: four times. Without the first copy a slow reader would keep the connection's buffers.
- Most events are handed to their reader after a look at their first words. Those that may name a child session, a task's call and what is
  said about a session, are decoded by the task that reads the connection, for all turns of a directory.
- In a burst of text a fifth of the CPU time is the system's, which reads the socket and wakes the tasks of the turns, and a fifth
  goes to allocating memory.
- A caller with `on_message` gets each changed message whole, at most once per batch of events, which copies a long text again and again.
  Its growth alone, as `Update::Conversation` tells it, is not copied.
- A new block touches two maps. With every state kept, each state owns a path through both, which grows with their depth.
- A thousand turns that end in the same moment read a thousand last messages through one client on two cores; the last result waits
  for the work of all others.
",
        cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        turns = measured.turns(),
        original = ORIGINAL
            .map(|(_, requests, bytes)| format!("{:.0} MB in {requests} requests", bytes / 1e6))
            .join(" and "),
        fold = fold.markdown(true),
        long = text.figure("delta", 0)?,
        n_recordings = logs.figure("(recordings)", 0)?,
        bytes = logs.figure("(bytes per event)", 0)?,
        logs = logs.without_notes().markdown(false),
        growth = growth.markdown(true),
        documents = documents.markdown(false),
        claude = claude.markdown(false),
        recording = recording.markdown(false),
        restoring = restoring.markdown(false),
        sessions = sessions.markdown(false),
        one = one.markdown(true),
        many = many.markdown(true),
    ))
}

fn curves(measured: &Measured) -> Result<String, Failure> {
    let single = |figure: fn(&Load) -> f64| {
        let loads = measured.loads.iter().filter(|load| load.tasks == 1);
        loads.map(|load| (load.events.into(), figure(load))).collect()
    };
    let short = measured.loads.iter().filter(|load| load.events == 50);
    let one = measured.table("One event")?;
    let fold = measured.table("Fold, by blocks there are")?;
    let line = |table: &Table, name: &str, label: &str| -> Result<Line, Failure> {
        let row = table.row(name)?;
        let points = table.columns.iter().map(|column| number(column)).zip(row.iter().copied());
        Ok(Line::new(label, points.collect()))
    };
    let charts = [
        Chart {
            title: "Bytes read per turn, by events",
            scale: Scale::Logarithmic,
            unit: |bytes| {
                if bytes < 1e6 { format!("{:.0} kB", bytes / 1e3) } else { format!("{:.0} MB", bytes / 1e6) }
            },
            lines: vec![
                Line::new("opencode-conductor", single(|load| load.bytes)),
                Line::new("the TypeScript original", ORIGINAL.map(|(at, _, bytes)| (at, bytes)).to_vec()),
                Line::new("floor", single(|load| load.floor_bytes)),
            ],
        },
        Chart {
            title: "Idle to result, p99, by turns at once",
            scale: Scale::Logarithmic,
            unit: |ms| format!("{ms:.0} ms"),
            lines: vec![Line::new(
                "opencode-conductor",
                short.map(|load| (load.tasks.into(), load.p99_ms.max(1.0))).collect(),
            )],
        },
        Chart {
            title: "Decoding one event, by its MiB",
            scale: Scale::Logarithmic,
            unit: |ms| if ms < 1e3 { format!("{ms} ms") } else { format!("{} s", ms / 1e3) },
            lines: vec![
                line(one, "conductor", "opencode-conductor")?,
                line(one, "eventsource-stream", "eventsource-stream")?,
                line(one, "copy", "copying the bytes")?,
            ],
        },
        Chart {
            title: "Folding one event, by blocks there are",
            scale: Scale::Linear,
            unit: |ns| format!("{ns:.0} ns"),
            lines: vec![
                line(fold, "delta", "delta")?,
                line(fold, "new block", "new block")?,
                line(fold, "delta, all states kept", "delta, all states kept")?,
                line(fold, "new block, all states kept", "new block, all states kept")?,
            ],
        },
    ];
    Ok(chart::draw(&charts))
}
