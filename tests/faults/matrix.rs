//! Rows of promises, cells of outcomes, and the table of both.

use std::{collections::BTreeMap, fmt::Write, sync::Arc, time::Duration};

use opencode_conductor::{Completion, PromptError, PromptExecutionResult};
use tokio::{
    sync::Semaphore,
    task::{Id, JoinSet},
    time::{error::Elapsed, timeout},
};

/// Where a turn is when something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Nothing has been sent.
    BeforeSubmit,
    /// The prompt is sent, and not answered.
    Submitting,
    /// It is answered with 204, and not stored yet.
    Accepted,
    /// The model is called, and has said nothing.
    Started,
    Streaming,
    Tool,
    Subagent,
    Permission,
    /// The first of two idles has been sent; the message has no end yet.
    Settling,
    /// The last read is under way.
    FinalRead,
}

impl Phase {
    pub(crate) const ALL: [Self; 10] = [
        Self::BeforeSubmit,
        Self::Submitting,
        Self::Accepted,
        Self::Started,
        Self::Streaming,
        Self::Tool,
        Self::Subagent,
        Self::Permission,
        Self::Settling,
        Self::FinalRead,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::BeforeSubmit => "before submit",
            Self::Submitting => "submit in flight",
            Self::Accepted => "accepted",
            Self::Started => "started",
            Self::Streaming => "streaming text",
            Self::Tool => "tool running",
            Self::Subagent => "subagent running",
            Self::Permission => "permission pending",
            Self::Settling => "settling",
            Self::FinalRead => "final read",
        }
    }
}

/// How a call ended. One letter each, so that promises can be written as a table: capitals are results, small letters errors.
pub(crate) fn letter(outcome: &Result<PromptExecutionResult, PromptError>) -> char {
    match outcome {
        Ok(result) => match &result.completion {
            Completion::Settled => 'S',
            Completion::Failed(failure) if failure.name == "UnknownError" => 'D',
            Completion::Failed(_) => 'F',
            Completion::Aborted => 'A',
            Completion::Rejected => 'R',
            Completion::Interrupted => 'I',
            Completion::TimedOut { .. } => 'T',
            Completion::SessionGone => 'G',
            _ => '?',
        },
        Err(error) => match error {
            PromptError::NotDelivered { .. } => 'd',
            PromptError::NotStarted { .. } => 'n',
            PromptError::SessionGone { .. } => 'g',
            PromptError::Aborted { .. } => 'a',
            PromptError::TimedOut { .. } => 't',
            _ => '?',
        },
    }
}

const LEGEND: &str = "\
S settled · F the model failed, as scripted · D the run died in the server · A aborted · R rejected · I interrupted · T timed out · G session gone
d not delivered · n not started · g session gone · a aborted before the model was called · t timed out before that";

/// Something that goes wrong, and what is promised in each phase: a letter, several if either may be, or `.` where it cannot
/// happen.
pub(crate) struct Row<Strike> {
    pub(crate) fault: &'static str,
    pub(crate) strike: Strike,
    pub(crate) promise: &'static str,
}

impl<Strike> Row<Strike> {
    pub(crate) fn promises(&self) -> impl Iterator<Item = (Phase, &'static str)> {
        let promises: Vec<&str> = self.promise.split_whitespace().collect();
        assert_eq!(promises.len(), Phase::ALL.len(), "{}: one promise per phase", self.fault);
        Phase::ALL.into_iter().zip(promises).filter(|(_, promise)| *promise != ".")
    }
}

/// What a cell saw, once it has checked all that must hold whatever the outcome.
pub(crate) struct Seen {
    pub(crate) letter: char,
    /// How often the model began to answer the prompt.
    pub(crate) runs: usize,
}

enum End {
    Seen(Seen),
    Hangs,
    Broken,
}

struct Cell {
    fault: &'static str,
    phase: Phase,
    promise: &'static str,
    end: End,
}

impl Cell {
    fn is_lost(&self) -> bool {
        matches!(&self.end, End::Seen(Seen { letter, runs: 0 }) if letter.is_uppercase() && *letter != 'D')
    }

    fn is_doubled(&self) -> bool {
        matches!(&self.end, End::Seen(Seen { runs: 2.., .. }))
    }

    /// The caller was told that the prompt did not run, and it did.
    fn is_denied(&self) -> bool {
        matches!(&self.end, End::Seen(Seen { letter: 'd' | 'n', runs: 1.. }))
    }

    fn is_as_promised(&self) -> bool {
        matches!(&self.end, End::Seen(seen) if self.promise.contains(seen.letter))
    }

    fn symbol(&self) -> String {
        match &self.end {
            End::Seen(seen) if self.is_as_promised() => seen.letter.to_string(),
            End::Seen(seen) => format!("{}!={}", seen.letter, self.promise),
            End::Hangs => "HANG".to_owned(),
            End::Broken => "BROKEN".to_owned(),
        }
    }
}

pub(crate) struct Matrix {
    name: &'static str,
    faults: Vec<&'static str>,
    cells: Vec<Cell>,
    playing: JoinSet<Result<Seen, Elapsed>>,
    places: BTreeMap<Id, (&'static str, Phase, &'static str)>,
    room: Arc<Semaphore>,
    hang: Duration,
}

impl Matrix {
    /// A matrix of which so many cells are played at a time. One that takes longer than `hang`, which is much more than all limits inside a cell, hangs.
    pub(crate) fn new(name: &'static str, at_once: usize, hang: Duration) -> Self {
        Self {
            name,
            faults: Vec::new(),
            cells: Vec::new(),
            playing: JoinSet::new(),
            places: BTreeMap::new(),
            room: Arc::new(Semaphore::new(at_once)),
            hang,
        }
    }

    /// Starts the cells of a row.
    pub(crate) fn start<Strike, Playing>(
        &mut self,
        row: &Row<Strike>,
        play: impl Fn(String, Phase) -> Playing,
    ) where
        Playing: Future<Output = Seen> + Send + 'static,
    {
        self.faults.push(row.fault);
        for (phase, promise) in row.promises() {
            let cell = play(format!("{}: {}", row.fault, phase.name()), phase);
            let (room, hang) = (Arc::clone(&self.room), self.hang);
            let task = self.playing.spawn(async move {
                let _place = room.acquire_owned().await;
                timeout(hang, cell).await
            });
            self.places.insert(task.id(), (row.fault, phase, promise));
        }
    }

    /// Waits for all cells that have been started.
    pub(crate) async fn finish(&mut self) {
        while let Some(played) = self.playing.join_next_with_id().await {
            let (id, end) = match played {
                Ok((id, Ok(seen))) => (id, End::Seen(seen)),
                Ok((id, Err(_elapsed))) => (id, End::Hangs),
                // Its message has been printed by then.
                Err(panicked) => (panicked.id(), End::Broken),
            };
            let (fault, phase, promise) = self.places[&id];
            self.cells.push(Cell { fault, phase, promise, end });
        }
    }

    fn count(&self, is: impl Fn(&Cell) -> bool) -> usize {
        self.cells.iter().filter(|cell| is(cell)).count()
    }

    pub(crate) fn print(&self) {
        let mut table = format!("\nFault matrix on {}\n\n", self.name);
        for (index, phase) in Phase::ALL.iter().enumerate() {
            let bars = "│ ".repeat(index);
            writeln!(table, "{:<36}{bars}┌ {}", "", phase.name()).unwrap();
        }
        for fault in &self.faults {
            write!(table, "{fault:<36}").unwrap();
            for phase in Phase::ALL {
                let cell = self.cells.iter().find(|cell| cell.fault == *fault && cell.phase == phase);
                write!(table, "{} ", cell.map_or("·".to_owned(), Cell::symbol)).unwrap();
            }
            table.push('\n');
        }
        let counts = [
            ("cells", self.cells.len()),
            ("as promised", self.count(Cell::is_as_promised)),
            ("lost", self.count(Cell::is_lost)),
            ("doubled", self.count(Cell::is_doubled)),
            ("run though denied", self.count(Cell::is_denied)),
            ("hangs", self.count(|cell| matches!(cell.end, End::Hangs))),
            ("broken", self.count(|cell| matches!(cell.end, End::Broken))),
        ];
        let counts = counts.map(|(name, count)| format!("{name} {count}")).join(" · ");
        println!("{table}\n{LEGEND}\n{}: {counts}", self.name);
    }

    /// Fails unless every cell is as promised.
    pub(crate) fn check(&self, at_least: usize) {
        let bad =
            |cell: &Cell| !cell.is_as_promised() || cell.is_lost() || cell.is_doubled() || cell.is_denied();
        let names = self.cells.iter().filter(|cell| bad(cell));
        let names: Vec<String> =
            names.map(|cell| format!("{} × {}: {}", cell.fault, cell.phase.name(), cell.symbol())).collect();
        assert!(names.is_empty(), "not as promised:\n{}", names.join("\n"));
        assert!(self.cells.len() >= at_least, "cells are missing");
    }
}
