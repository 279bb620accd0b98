//! The board: one line per task that has begun, and one for all of them.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use opencode_conductor_cli::{
    output::{self, Colours, LiveLines},
    style::{self, Ink, Style, shorten},
};

use super::{
    summary::verdict,
    work::{News, Outcome, Task},
};

/// How wide a task's bar is.
const BAR: usize = 16;
/// How wide the words on how a task is doing may be.
const WORDS: usize = 36;
/// How wide the bar of all tasks is, if there is room.
const TOTAL_BAR: usize = 40;

pub(crate) struct Board {
    style: Style,
    rows: Vec<Row>,
    live: LiveLines,
    frame: usize,
}

struct Row {
    name: String,
    prompt: String,
    state: State,
}

enum State {
    Waiting,
    Running { since: Instant, doing: String, n_tools: usize },
    Ended { ink: Ink, words: String },
}

impl Board {
    pub(crate) fn new(tasks: &[Task], concurrency: usize, server: &str) -> Self {
        let style = Style::of_stdout();
        let row = |task: &Task| Row {
            name: task.id.clone(),
            prompt: style::harmless(task.prompt.lines().next().unwrap_or_default()),
            state: State::Waiting,
        };
        let board =
            Self { style, rows: tasks.iter().map(row).collect(), live: LiveLines::default(), frame: 0 };
        let words = format!("{}, {concurrency} at a time, {server}", style::plural(tasks.len(), "task"));
        write(&format!(
            "{} {}\n",
            style.paint(Ink::Bold, "opencode-conductor"),
            style.paint(Ink::Dim, &words)
        ));
        board
    }

    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    pub(crate) fn note(&mut self, index: usize, news: News) {
        let Some(row) = self.rows.get_mut(index) else { return };
        match (&mut row.state, news) {
            (State::Waiting, _) => {
                row.state =
                    State::Running { since: Instant::now(), doing: "starting".to_owned(), n_tools: 0 };
                if !self.style.live {
                    write(&format!("{} started: {}\n", row.name, row.prompt));
                }
            }
            (State::Running { doing, .. }, News::Doing(now)) => *doing = now,
            (State::Running { n_tools, .. }, News::Tool) => *n_tools += 1,
            (State::Running { .. }, News::Started) | (State::Ended { .. }, _) => {}
        }
    }

    pub(crate) fn ended(&mut self, index: usize, outcome: &Outcome) {
        let Some(row) = self.rows.get_mut(index) else { return };
        let (ink, words) = verdict(outcome);
        if !self.style.live {
            write(&format!("{} ended: {words}, {}\n", row.name, style::duration(outcome.elapsed)));
        }
        row.state = State::Ended { ink, words: format!("{words} · {}", style::duration(outcome.elapsed)) };
    }

    pub(crate) fn draw(&mut self, elapsed: Duration) {
        if !self.style.live {
            return;
        }
        self.frame += 1;
        let columns = Style::columns();
        // What matters most if there is not room for all: what runs, then what has ended last.
        let room = Style::rows().saturating_sub(4);
        let hidden = self.rows.len().saturating_sub(room);
        let is_waiting = |row: &&Row| matches!(row.state, State::Waiting);
        let is_running = |row: &&Row| matches!(row.state, State::Running { .. });
        let mut to_hide = hidden;
        let mut shown: Vec<&Row> = Vec::new();
        for row in self.rows.iter().rev() {
            if to_hide > 0 && is_waiting(&row) {
                to_hide -= 1;
            } else {
                shown.push(row);
            }
        }
        shown.reverse();
        shown.retain(|row| {
            let hide = to_hide > 0 && !is_running(row);
            to_hide -= usize::from(hide);
            !hide
        });
        let mut lines: Vec<String> = shown.into_iter().map(|row| self.line(row, columns)).collect();
        lines.push(self.total(hidden, elapsed, columns));
        self.live.redraw(&[], &lines);
    }

    /// Takes the board away; the summary says it all.
    pub(crate) fn close(&mut self) {
        if self.style.live {
            self.live.redraw(&[], &[]);
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    fn line(&self, row: &Row, columns: usize) -> String {
        let style = self.style;
        let name = style.paint(Ink::Bold, &row.name);
        // Where there is no room for all, how a task is doing matters most.
        let room = columns.checked_sub(row.name.len() + BAR + WORDS + 6);
        let n_words = if room.is_some() { WORDS } else { columns.saturating_sub(row.name.len() + 2) };
        let (bar, words) = match &row.state {
            State::Waiting => (style.paint(Ink::Dim, &"─".repeat(BAR)), style.paint(Ink::Dim, "waiting")),
            State::Running { since, doing, n_tools } => {
                let now = Instant::now().duration_since(*since);
                let words =
                    format!("{} · {} · {doing}", style::duration(now), style::plural(*n_tools, "tool"));
                (self.pulse(), shorten(&words, n_words))
            }
            State::Ended { ink, words } => {
                (style.paint(*ink, &"━".repeat(BAR)), style.paint(*ink, &shorten(words, n_words)))
            }
        };
        let Some(room) = room else { return format!("{name}  {words}") };
        let prompt = shorten(&row.prompt, room);
        let gap = " ".repeat(room.saturating_sub(style::width(&prompt)));
        format!("{name}  {prompt}{gap}  {bar}  {words}")
    }

    /// Something that moves: how far a task is cannot be known.
    fn pulse(&self) -> String {
        let at = self.frame % (2 * BAR - 6);
        let at = at.min(2 * BAR - 6 - at);
        let pulse = format!("{}{}{}", "─".repeat(at), "━".repeat(3), "─".repeat(BAR - 3 - at));
        self.style.paint(Ink::Cyan, &pulse)
    }

    fn total(&self, hidden: usize, elapsed: Duration, columns: usize) -> String {
        let n_ended = self.rows.iter().filter(|row| matches!(row.state, State::Ended { .. })).count();
        let n_running = self.rows.iter().filter(|row| matches!(row.state, State::Running { .. })).count();
        let mut words = format!("{n_ended} of {} ended, {n_running} running", self.rows.len());
        if hidden > 0 {
            // Writing to a string cannot fail.
            let _ = write!(words, ", {hidden} not shown");
        }
        // Writing to a string cannot fail.
        let _ = write!(words, ", {}", style::duration(elapsed));
        let length = columns.saturating_sub(style::width(&words) + 1).min(TOTAL_BAR);
        let filled = length * n_ended / self.rows.len().max(1);
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(length - filled));
        format!("{} {words}", self.style.paint(Ink::Green, &bar)).trim_start().to_owned()
    }
}

fn write(text: &str) {
    // A reader that has seen enough is no reason to stop the tasks.
    let _ = output::print(text, Colours::of_stdout());
}
