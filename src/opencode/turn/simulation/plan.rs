//! What a run of the simulated server does, one beat after the other.

use std::time::Duration;

use super::MILLI;
use crate::opencode::wire::SessionStatus;

/// How the server deals with the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// A few steps with tools.
    Answer,
    /// The provider fails for good: error, first idle, cleanup, completion, second idle.
    ProviderError,
    /// The provider fails a few times first.
    RetryThenAnswer,
    /// A step begins, and nothing more is ever heard.
    Silent,
    /// The model is called without end.
    Endless,
    /// The context overflows: the history is summarised, and a copy of the prompt is answered.
    Compaction,
    /// A permission is rejected, which ends the turn.
    Rejected,
    /// A subagent in the background whose result makes the session run again.
    Background,
    /// The model does not exist: an error before the idle and one after it, and no step.
    UnknownModel,
    /// The agent does not exist: an error, and nothing else.
    UnknownAgent,
    /// The prompt is stored, and that is all.
    NeverRuns,
    /// Tools run for minutes.
    SlowTool,
    /// A tool asks for permission, or the model has a question.
    Permission,
    /// Subagents that the step waits for: one, two, or one below the other. They may fail, and may ask.
    Subagents,
    /// A subagent of which the stream never says that it is idle again.
    StuckSubagent,
    /// The run dies of an error that comes after its idle, and leaves a step that is never completed.
    FailsAfterIdle,
    /// The root or a subagent has a status that is not known, while it runs or when it has come to rest.
    UnknownStatus,
}

/// The plans that a schedule is drawn from.
pub(super) const PLANS: [Plan; 17] = [
    Plan::Answer,
    Plan::ProviderError,
    Plan::RetryThenAnswer,
    Plan::Silent,
    Plan::Endless,
    Plan::Compaction,
    Plan::Rejected,
    Plan::Background,
    Plan::UnknownModel,
    Plan::UnknownAgent,
    Plan::NeverRuns,
    Plan::SlowTool,
    Plan::Permission,
    Plan::Subagents,
    Plan::StuckSubagent,
    Plan::FailsAfterIdle,
    Plan::UnknownStatus,
];

/// What a session says that it is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Idle,
    Busy,
    Retry,
    /// Something that is not known, but does not mean that it runs.
    Finished,
    /// Something that is not known and means that it runs.
    Thinking,
}

impl Doing {
    pub(super) fn is_running(self) -> bool {
        matches!(self, Self::Busy | Self::Retry | Self::Thinking)
    }

    pub(super) fn status(self) -> SessionStatus {
        match self {
            Self::Idle => SessionStatus::Idle,
            Self::Busy => SessionStatus::Busy,
            Self::Retry => SessionStatus::Retry {
                attempt: 1,
                message: String::new(),
                next: crate::time::Millis::default(),
            },
            Self::Finished => unknown("completed"),
            Self::Thinking => unknown("thinking"),
        }
    }
}

fn unknown(kind: &str) -> SessionStatus {
    SessionStatus::Unknown([("type".to_owned(), kind.into())].into_iter().collect())
}

/// The root among the sessions of the model; its descendants follow.
pub(super) const ROOT: usize = 0;

/// One thing that a run does in one session, and how long after the last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beat {
    pub(super) after: Duration,
    pub(super) session: usize,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum What {
    Status(Doing),
    /// As `Status`, but no event says so.
    SilentStatus(Doing),
    Step,
    Text,
    Tool {
        running: bool,
    },
    /// A task call starts this subagent.
    Spawn {
        child: usize,
    },
    /// The task call that started this subagent returns.
    TaskDone {
        child: usize,
        background: bool,
    },
    Complete,
    Error {
        aborted: bool,
    },
    /// From here on the run is over, but the runner is not: a prompt that arrives is stored and not run.
    Cleanup,
    /// The server puts in a prompt of its own.
    ExtraPrompt,
    /// A tool needs permission: nothing goes on before it is answered.
    Ask,
    /// The run is over, and what it left unfinished stays so.
    Die,
    End,
}

/// Beats of the root, each after so long.
pub(super) fn root<const N: usize>(beats: [(Duration, What); N]) -> impl Iterator<Item = Beat> {
    of(ROOT, beats)
}

/// Beats of one session, each after so long.
pub(super) fn of<const N: usize>(session: usize, beats: [(Duration, What); N]) -> impl Iterator<Item = Beat> {
    beats.into_iter().map(move |(after, what)| Beat { after, session, what })
}

/// Makes the beats of a plan.
pub(super) struct Planner<'a> {
    pub(super) rng: &'a mut fastrand::Rng,
    pub(super) beats: Vec<Beat>,
}

const IDLE: What = What::Status(Doing::Idle);
const BUSY: What = What::Status(Doing::Busy);
const ERROR: What = What::Error { aborted: false };

impl Planner<'_> {
    pub(super) fn plan(mut self, plan: Plan) -> Vec<Beat> {
        use What::*;
        let busy = self.between(0, 20);
        self.root(busy, BUSY);
        match plan {
            Plan::UnknownModel => {
                self.add(root([(MILLI, ERROR), (MILLI, IDLE), (MILLI, End)]));
                let late = self.between(0, 100);
                self.root(late, ERROR);
            }
            Plan::Silent => self.quick(Step),
            Plan::Endless => {
                for _ in 0..400 {
                    let after = self.between(1, 700);
                    self.add(root([(after, Step), (MILLI, Complete)]));
                }
            }
            Plan::ProviderError => {
                self.quick(Step);
                self.text(ROOT);
                self.quick(ERROR);
                let cleanup = self.between(1, 3000);
                self.add(root([(MILLI, IDLE), (MILLI, Cleanup), (cleanup, Complete)]));
                self.end();
            }
            Plan::RetryThenAnswer => self.retry_then_answer(),
            Plan::Compaction => {
                self.quick(Step);
                self.quick(ERROR);
                self.root(MILLI, Complete);
                for _ in 0..2 {
                    self.quick(ExtraPrompt);
                    self.quick(Step);
                    self.text(ROOT);
                    self.quick(Complete);
                }
                self.end();
            }
            Plan::Background => self.background(),
            Plan::Answer | Plan::Rejected | Plan::SlowTool => self.steps(plan),
            Plan::Permission => {
                self.quick(Step);
                self.quick(Tool { running: true });
                self.quick(Ask);
                self.quick(Tool { running: false });
                self.quick(Complete);
                self.last_step();
            }
            Plan::Subagents => self.subagents(),
            Plan::StuckSubagent => {
                self.quick(Step);
                self.child(ROOT, 1);
                // Its idle is in the status map, and in no event.
                self.beats.retain(|beat| beat.session == ROOT || beat.what != IDLE);
                let idle = Beat { after: MILLI, session: 1, what: SilentStatus(Doing::Idle) };
                self.beats.push(idle);
                self.quick(TaskDone { child: 1, background: false });
                self.quick(Complete);
                self.last_step();
            }
            Plan::FailsAfterIdle => {
                self.quick(Step);
                self.text(ROOT);
                self.quick(IDLE);
                self.root(MILLI, Die);
                let late = self.between(0, 2000);
                self.root(late, ERROR);
            }
            Plan::UnknownStatus => self.unknown_status(),
            Plan::UnknownAgent | Plan::NeverRuns => {}
        }
        self.beats
    }

    fn between(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from_ms..=to_ms))
    }

    fn add(&mut self, beats: impl Iterator<Item = Beat>) {
        self.beats.extend(beats);
    }

    fn root(&mut self, after: Duration, what: What) {
        self.beats.push(Beat { after, session: ROOT, what });
    }

    fn quick(&mut self, what: What) {
        self.quick_of(ROOT, what);
    }

    fn quick_of(&mut self, session: usize, what: What) {
        let after = self.between(0, 200);
        self.beats.push(Beat { after, session, what });
    }

    fn text(&mut self, session: usize) {
        for _ in 0..self.rng.u8(..6) {
            let longest = if self.rng.u8(..10) < 9 { 300 } else { 35_000 };
            let after = self.between(0, longest);
            self.beats.push(Beat { after, session, what: What::Text });
        }
    }

    fn end(&mut self) {
        self.add(root([(MILLI, IDLE), (MILLI, What::End)]));
    }

    fn last_step(&mut self) {
        self.quick(What::Step);
        self.text(ROOT);
        self.quick(What::Complete);
        self.end();
    }

    fn steps(&mut self, plan: Plan) {
        let n_steps = self.rng.u8(1..=4);
        for step in 0..n_steps {
            let after = self.between(0, 2000);
            self.root(after, What::Step);
            self.text(ROOT);
            if step + 1 < n_steps || plan == Plan::SlowTool {
                let longest = if plan == Plan::SlowTool { 500_000 } else { 20_000 };
                self.quick(What::Tool { running: true });
                let takes = self.between(0, longest);
                self.root(takes, What::Tool { running: false });
            }
            self.quick(What::Complete);
        }
        self.end();
    }

    /// A run in which one session says something that is not known.
    fn unknown_status(&mut self) {
        let swap = |beats: &mut [Beat], session, from, to| {
            for beat in beats.iter_mut().filter(|beat| beat.session == session && beat.what == from) {
                beat.what = What::Status(to);
            }
        };
        match self.rng.u8(..4) {
            0 => {
                self.steps(Plan::Answer);
                swap(&mut self.beats, ROOT, IDLE, Doing::Finished);
            }
            1 => {
                self.steps(Plan::Answer);
                swap(&mut self.beats, ROOT, BUSY, Doing::Thinking);
            }
            2 => {
                self.subagents();
                swap(&mut self.beats, 1, IDLE, Doing::Finished);
            }
            _ => {
                self.background();
                swap(&mut self.beats, 1, BUSY, Doing::Thinking);
            }
        }
    }

    fn retry_then_answer(&mut self) {
        self.quick(What::Step);
        for attempt in 0..self.rng.u32(1..=5) {
            let silence = self.between(0, 20_000);
            self.root(silence, What::Status(Doing::Retry));
            let pause = self.between(2000, 2000 << attempt);
            self.root(pause, BUSY);
        }
        self.text(ROOT);
        self.quick(What::Complete);
        self.end();
    }

    fn background(&mut self) {
        use What::*;
        self.quick(Step);
        self.quick(Spawn { child: 1 });
        self.quick_of(1, BUSY);
        self.quick_of(1, ExtraPrompt);
        self.quick(TaskDone { child: 1, background: true });
        self.quick(Complete);
        if self.rng.bool() {
            self.quick(Step);
            self.quick(Complete);
        }
        self.root(MILLI, IDLE);
        self.quick_of(1, Step);
        for _ in 0..self.rng.u8(..4) {
            let after = self.between(0, 40_000);
            self.beats.push(Beat { after, session: 1, what: Text });
        }
        self.quick_of(1, Complete);
        self.quick_of(1, IDLE);
        let delay = self.between(0, 2000);
        self.root(delay, ExtraPrompt);
        self.root(MILLI, BUSY);
        self.last_step();
    }

    fn subagents(&mut self) {
        use What::*;
        self.quick(Step);
        match self.rng.u8(..3) {
            0 => self.child(ROOT, 1),
            // The second one begins before the first one returns.
            1 => {
                self.child(ROOT, 1);
                self.child(ROOT, 2);
                let middle = self.beats.iter().position(|beat| beat.what == Spawn { child: 2 }).unwrap_or(0);
                let second = self.beats.split_off(middle);
                let first = self.beats.split_off(3);
                let (mut first, mut second) = (first.into_iter(), second.into_iter());
                // The same step starts both, in this order.
                loop {
                    let next = if self.rng.bool() { first.next() } else { None };
                    match next.or_else(|| second.next()).or_else(|| first.next()) {
                        Some(beat) => self.beats.push(beat),
                        None => break,
                    }
                }
            }
            // One below the other.
            _ => {
                self.quick(Spawn { child: 1 });
                self.quick_of(1, BUSY);
                self.quick_of(1, ExtraPrompt);
                self.quick_of(1, Step);
                self.child(1, 2);
                self.quick_of(1, TaskDone { child: 2, background: false });
                self.quick_of(1, Complete);
                self.quick_of(1, IDLE);
            }
        }
        let n_children = if self.beats.iter().any(|beat| beat.what == Spawn { child: 2 }) { 2 } else { 1 };
        for child in 1..=n_children {
            let below_another =
                self.beats.iter().any(|beat| beat.session != ROOT && beat.what == Spawn { child });
            if !below_another {
                self.quick(TaskDone { child, background: false });
            }
        }
        self.quick(Complete);
        self.last_step();
    }

    /// A subagent from its start to its idle.
    fn child(&mut self, parent: usize, child: usize) {
        use What::*;
        self.quick_of(parent, Spawn { child });
        self.quick_of(child, BUSY);
        self.quick_of(child, ExtraPrompt);
        for _ in 0..self.rng.u8(1..=3) {
            self.quick_of(child, Step);
            self.text(child);
            if self.rng.u8(..4) == 0 {
                self.quick_of(child, Tool { running: true });
                self.quick_of(child, Ask);
                self.quick_of(child, Tool { running: false });
            }
            self.quick_of(child, Complete);
        }
        if self.rng.u8(..5) == 0 {
            // A failure of its own is no failure of the turn.
            self.quick_of(child, Step);
            self.quick_of(child, ERROR);
            self.quick_of(child, IDLE);
            self.quick_of(child, Complete);
        }
        self.quick_of(child, IDLE);
    }
}
