//! The machine against a model of the server, over many random schedules.
//!
//! The model has a truth (messages, a runner, a status) that only it can see, and shows it as a real server does: by events
//! that arrive late or not at all, by reads that take time or fail, and by answers that get lost. Whatever the machine
//! concludes is held against the truth. A schedule is made from its seed alone; a failure prints it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    time::Duration,
};

use super::*;
use crate::wire::MessageError;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The prompt's own message; the model numbers messages as they are made.
const PROMPT: u32 = 0;

/// How the server will deal with the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Answer,
    ProviderError,
    RetryThenAnswer,
    Silent,
    Endless,
    Compaction,
    Rejected,
    Background,
    UnknownModel,
    UnknownAgent,
    NeverRuns,
    SlowTool,
    Permission,
}

const PLANS: [Plan; 13] = [
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
];

/// One thing that a run does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beat {
    Status(Activity),
    Step,
    Text,
    Tool {
        running: bool,
    },
    Complete,
    Error {
        aborted: bool,
    },
    /// From here on the run is over, but the runner is not: a prompt that arrives is stored and not run.
    Cleanup,
    ExtraPrompt,
    Child(Activity),
    ChildText,
    /// A tool needs permission: nothing goes on before somebody answers.
    Ask,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct Msg {
    id: u32,
    user: bool,
    created: Duration,
    completed: bool,
    tool: Option<bool>,
    /// Answers the prompt itself, and not one that the server put in its place.
    answers: bool,
    /// Sent a subagent to the background.
    background: bool,
    /// Ended in an error.
    failed: bool,
}

/// What travels on the event stream.
#[derive(Debug, Clone, Copy)]
enum Note {
    Status(Activity),
    Message(Msg),
    Delta,
    Error { aborted: bool },
    Child(Activity),
    Asked,
    Gone,
}

#[derive(Debug, Clone)]
enum Happens {
    SubmissionArrives {
        answer: Option<Delivery>,
    },
    Store {
        life: u32,
    },
    Start,
    Beat {
        run: u32,
    },
    Crash,
    Restart,
    Cut,
    Reopen,
    Notes {
        connection: u32,
        note: Note,
    },
    Answered(Delivery),
    ReadStatus {
        read: Read,
    },
    ReadMessages {
        status: Option<TreeStatus>,
    },
    ReadFails,
    AbortArrives,
    AbortDone,
    /// Somebody else aborts the session.
    ForeignAbort,
    /// The server gives up the directory's state: all turns are aborted, the stream ends.
    Dispose,
    Delete,
    HumanAnswers,
    Wake,
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct World {
    rng: fastrand::Rng,
    seed: u64,
    /// Every input and action is printed.
    told: bool,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happens>,
    scheduled: u64,

    // The truth.
    plan: Plan,
    alive: bool,
    /// Counts the restarts.
    life: u32,
    crashed: bool,
    interfered: bool,
    deleted: bool,
    asking: bool,
    messages: Vec<Msg>,
    stored: bool,
    activity: Activity,
    child_busy: bool,
    run: u32,
    beats: VecDeque<(Duration, Beat)>,
    running: bool,
    cleanup_until: Option<Duration>,
    start_pending: bool,
    model_called: bool,
    /// Runs that called the model.
    runs_begun: u32,
    reruns_of_good: u32,
    last_run_failed: bool,
    last_run_good: bool,
    last_progress: Duration,
    settled_at: Option<Duration>,

    // The wire.
    connection: u32,
    stream_open: bool,
    message_events: bool,
    fails: u64,

    // The client.
    turn: Turn,
    view: BTreeMap<u32, Msg>,
    ended: Option<Ended>,
    submissions: u32,
    wake_at: Option<Duration>,
    /// How long the server had made no progress when it was told to abort.
    silence: Option<Duration>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = if rng.u8(..3) == 0 { Plan::Answer } else { PLANS[rng.usize(..PLANS.len())] };
        let mut world = Self {
            seed,
            told: false,
            now: SECOND,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            scheduled: 0,
            plan,
            alive: true,
            life: 0,
            crashed: false,
            interfered: false,
            deleted: false,
            asking: false,
            messages: Vec::new(),
            stored: false,
            activity: Activity::Idle,
            child_busy: false,
            run: 0,
            beats: VecDeque::new(),
            running: false,
            cleanup_until: None,
            start_pending: false,
            model_called: false,
            runs_begun: 0,
            reruns_of_good: 0,
            last_run_failed: false,
            last_run_good: false,
            last_progress: SECOND,
            settled_at: None,
            connection: 0,
            stream_open: false,
            message_events: rng.u8(..8) != 0,
            // Between a perfect network and one that fails three times in ten.
            fails: [0, 0, 10, 30][rng.usize(..4)],
            turn: Turn::new(Goal::Answer, WaitOptions::default(), SECOND),
            view: BTreeMap::new(),
            ended: None,
            submissions: 0,
            wake_at: None,
            silence: None,
            rng,
        };
        world.at(10 * MILLI, Happens::Reopen);
        // The turn before ended in an error: its second idle is still to come, and until then prompts are lost.
        if world.chance(30) {
            let until = world.now + world.between(0, 400);
            world.cleanup_until = Some(until);
            if world.chance(50) {
                let late = world.between(0, 1500);
                world.at(late, Happens::Notes { connection: 1, note: Note::Error { aborted: false } });
            }
        }
        if world.chance(15) {
            let after = world.between(0, 30_000);
            world.at(after, Happens::Crash);
        }
        for _ in 0..world.rng.u8(..4) {
            let after = world.between(0, 20_000);
            world.at(after, Happens::Cut);
        }
        for (percent, happens) in [(5, Happens::ForeignAbort), (5, Happens::Dispose), (2, Happens::Delete)] {
            if world.chance(percent) {
                let after = world.between(0, 20_000);
                world.at(after, happens);
            }
        }
        world
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.u64(..100) < percent
    }

    fn between(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from_ms..=to_ms))
    }

    fn latency(&mut self) -> Duration {
        if self.chance(95) { self.between(0, 20) } else { self.between(20, 300) }
    }

    fn at(&mut self, after: Duration, happens: Happens) {
        self.scheduled += 1;
        self.queue.push(Reverse((self.now + after, self.scheduled)));
        self.happenings.insert(self.scheduled, happens);
    }

    /// Runs the schedule to its end.
    fn play(mut self) {
        self.input(Input::Tick);
        while self.ended.is_none() {
            let Some(Reverse((at, key))) = self.queue.pop() else {
                panic!("seed {}: nothing will ever happen", self.seed)
            };
            self.now = at;
            let Some(happens) = self.happenings.remove(&key) else { continue };
            self.happen(happens);
            if let Some(settled_at) = self.settled_at {
                // Half a minute of a broken network is the worst that the model has.
                let late = self.now.saturating_sub(settled_at);
                assert!(
                    late < 60 * SECOND || self.ended.is_some(),
                    "seed {}: settled but not noticed",
                    self.seed
                );
            }
            assert!(self.now < 3600 * SECOND, "seed {}: hangs", self.seed);
        }
        self.judge();
    }

    fn happen(&mut self, happens: Happens) {
        match happens {
            Happens::SubmissionArrives { answer } => self.submission_arrives(answer),
            // What a server has not stored dies with it.
            Happens::Store { life } if life == self.life => self.store(),
            Happens::Start => self.start(),
            Happens::Beat { run } if run == self.run => self.beat(),
            Happens::Crash => self.crash(),
            Happens::Restart => self.alive = true,
            Happens::Cut => self.cut(),
            Happens::Reopen => self.reopen(),
            Happens::Notes { connection, note } if connection == self.connection && self.stream_open => {
                self.hear(note);
            }
            Happens::Answered(delivery) => self.input(Input::Submitted(delivery)),
            Happens::ReadStatus { read } => self.read_status(read),
            Happens::ReadMessages { status } => self.read_messages(status),
            Happens::ReadFails => self.input(Input::ReadFailed),
            Happens::AbortArrives => {
                self.abort_run();
                let after = self.between(100, 400);
                self.at(after, Happens::AbortDone);
            }
            Happens::ForeignAbort => self.interfere(),
            Happens::Dispose => {
                self.interfere();
                self.cut();
            }
            Happens::Delete if self.alive && self.settled_at.is_none() => {
                self.run += 1;
                self.deleted = true;
                self.note(Note::Gone);
            }
            Happens::HumanAnswers => {
                self.input(Input::HumanAnswered("per_1".into()));
                if std::mem::take(&mut self.asking) {
                    self.last_progress = self.now;
                    self.next_beat();
                }
            }
            Happens::AbortDone => self.input(Input::AbortDone),
            Happens::Wake => {
                self.wake_at = None;
                self.input(Input::Tick);
            }
            // Of a run or a life that is over, a connection that is closed, or a session that is gone.
            Happens::Store { .. } | Happens::Beat { .. } | Happens::Notes { .. } | Happens::Delete => {}
        }
    }

    // ── The server ────────────────────────────────────────────────────────────────────────────────────────────────

    fn submission_arrives(&mut self, answer: Option<Delivery>) {
        if !self.alive {
            let after = self.latency();
            return self.at(after, Happens::Answered(Delivery::NotSent));
        }
        if self.deleted {
            return self.input(Input::SessionGone);
        }
        let slow = self.between(0, if self.submissions > 1 { 50 } else { 2600 });
        let life = self.life;
        self.at(slow, Happens::Store { life });
        let after = self.latency();
        self.at(after, Happens::Answered(answer.unwrap_or(Delivery::Accepted)));
    }

    fn store(&mut self) {
        if self.plan == Plan::UnknownAgent {
            return self.note(Note::Error { aborted: false });
        }
        self.stored = true;
        self.messages.retain(|message| message.id != PROMPT);
        let prompt = Msg {
            id: PROMPT,
            user: true,
            created: self.now,
            completed: true,
            tool: None,
            answers: false,
            background: false,
            failed: false,
        };
        self.messages.push(prompt);
        self.note(Note::Message(prompt));
        // During the cleanup after an error a prompt is stored and never run.
        let is_lost = self.cleanup_until.is_some_and(|until| self.now < until);
        if !is_lost && !self.running && !self.start_pending && self.plan != Plan::NeverRuns {
            self.start_pending = true;
            let after = self.between(0, 50);
            self.at(after, Happens::Start);
        }
    }

    fn start(&mut self) {
        self.start_pending = false;
        if !self.alive || self.running {
            return;
        }
        self.run += 1;
        self.running = true;
        let answered = self.last_run_good && self.messages.iter().any(|message| !message.user);
        if answered {
            // Nothing is left to do: busy, then idle, and the model is not called.
            self.beats = [
                (MILLI, Beat::Status(Activity::Busy)),
                (MILLI, Beat::Status(Activity::Idle)),
                (MILLI, Beat::End),
            ]
            .into();
        } else {
            self.model_called = false;
            self.settled_at = None;
            self.beats = self.beats_of_plan().into();
        }
        self.next_beat();
    }

    fn beats_of_plan(&mut self) -> Vec<(Duration, Beat)> {
        use Beat::*;
        let mut beats = vec![(self.between(0, 20), Status(Activity::Busy))];
        let idle = Status(Activity::Idle);
        let quick = |world: &mut Self| world.between(0, 200);
        match self.plan {
            Plan::UnknownModel => {
                beats.extend([(MILLI, Error { aborted: false }), (MILLI, idle), (MILLI, End)]);
                let late = self.between(0, 100);
                beats.push((late, Error { aborted: false }));
                return beats;
            }
            Plan::Silent => beats.push((quick(self), Step)),
            Plan::Endless => {
                for _ in 0..400 {
                    beats.extend([(self.between(1, 700), Step), (MILLI, Complete)]);
                }
            }
            Plan::ProviderError => {
                beats.push((quick(self), Step));
                self.text(&mut beats);
                beats.extend([(quick(self), Error { aborted: false }), (MILLI, idle), (MILLI, Cleanup)]);
                beats.extend([(self.between(1, 3000), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::RetryThenAnswer => {
                beats.push((quick(self), Step));
                for attempt in 0..self.rng.u32(1..=5) {
                    beats.push((self.between(0, 20_000), Status(Activity::Retry)));
                    beats.push((self.between(2000, 2000 << attempt), Status(Activity::Busy)));
                }
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::Compaction => {
                beats.extend([
                    (quick(self), Step),
                    (quick(self), Error { aborted: false }),
                    (MILLI, Complete),
                ]);
                beats.extend([(quick(self), ExtraPrompt), (quick(self), Step)]);
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (quick(self), ExtraPrompt), (quick(self), Step)]);
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::Background => {
                beats.extend([
                    (quick(self), Step),
                    (quick(self), Child(Activity::Busy)),
                    (quick(self), Complete),
                ]);
                beats.push((MILLI, idle));
                for _ in 0..self.rng.u8(..4) {
                    beats.push((self.between(0, 40_000), ChildText));
                }
                beats.extend([(quick(self), Child(Activity::Idle)), (self.between(0, 2000), ExtraPrompt)]);
                beats.extend([(MILLI, Status(Activity::Busy)), (quick(self), Step)]);
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::Answer | Plan::Rejected | Plan::SlowTool => {
                let n_steps = self.rng.u8(1..=4);
                for step in 0..n_steps {
                    beats.push((self.between(0, 2000), Step));
                    self.text(&mut beats);
                    if step + 1 < n_steps || self.plan == Plan::SlowTool {
                        let longest = if self.plan == Plan::SlowTool { 500_000 } else { 20_000 };
                        beats.push((quick(self), Tool { running: true }));
                        beats.push((self.between(0, longest), Tool { running: false }));
                    }
                    beats.push((quick(self), Complete));
                }
                beats.extend([(MILLI, idle), (MILLI, End)]);
            }
            Plan::Permission => {
                beats.extend([
                    (quick(self), Step),
                    (quick(self), Tool { running: true }),
                    (quick(self), Ask),
                ]);
                beats.extend([(quick(self), Tool { running: false }), (quick(self), Complete)]);
                beats.extend([(quick(self), Step), (quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::UnknownAgent | Plan::NeverRuns => {}
        }
        beats
    }

    fn text(&mut self, beats: &mut Vec<(Duration, Beat)>) {
        for _ in 0..self.rng.u8(..6) {
            let pause = if self.chance(90) { self.between(0, 300) } else { self.between(0, 35_000) };
            beats.push((pause, Beat::Text));
        }
    }

    fn next_beat(&mut self) {
        if let Some((after, _)) = self.beats.front() {
            let (after, run) = (*after, self.run);
            self.at(after, Happens::Beat { run });
        }
    }

    fn beat(&mut self) {
        let Some((_, beat)) = self.beats.pop_front() else { return };
        self.do_beat(beat);
        if !self.asking {
            self.next_beat();
        }
    }

    fn do_beat(&mut self, beat: Beat) {
        match beat {
            Beat::Status(activity) => {
                self.activity = activity;
                self.note(Note::Status(activity));
            }
            Beat::Step => {
                if !std::mem::replace(&mut self.model_called, true) {
                    self.runs_begun += 1;
                    self.reruns_of_good += u32::from(self.runs_begun > 1 && !self.last_run_failed);
                    self.last_run_failed = false;
                }
                let answers = self
                    .messages
                    .iter()
                    .rev()
                    .find(|message| message.user)
                    .is_some_and(|user| user.id == PROMPT);
                let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX) + 10;
                self.messages.push(Msg {
                    id,
                    user: false,
                    created: self.now,
                    completed: false,
                    tool: None,
                    answers,
                    background: false,
                    failed: false,
                });
                self.change(|_| {});
            }
            Beat::ExtraPrompt => {
                let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX) + 10;
                let extra = Msg {
                    id,
                    user: true,
                    created: self.now,
                    completed: true,
                    tool: None,
                    answers: false,
                    background: false,
                    failed: false,
                };
                self.messages.push(extra);
                self.note(Note::Message(extra));
            }
            Beat::Text | Beat::ChildText => {
                self.last_progress = self.now;
                self.note(Note::Delta);
            }
            Beat::Tool { running } => self.change(|step| step.tool = Some(running)),
            Beat::Complete => {
                let failed = self.last_run_failed;
                self.change(|step| {
                    *step = Msg { completed: true, failed, tool: step.tool.map(|_| false), ..*step };
                });
            }
            Beat::Error { aborted } => {
                self.last_run_failed = true;
                self.note(Note::Error { aborted });
            }
            Beat::Ask => {
                self.asking = true;
                self.note(Note::Asked);
            }
            Beat::Cleanup => self.cleanup_until = Some(Duration::MAX),
            Beat::Child(activity) => {
                self.child_busy = activity != Activity::Idle;
                if self.child_busy {
                    self.change(|step| step.background = true);
                }
                self.note(Note::Child(activity));
            }
            Beat::End => {
                self.running = false;
                self.cleanup_until = None;
                let complete =
                    self.messages.iter().filter(|message| !message.user).all(|message| message.completed);
                let any = self.messages.iter().any(|message| !message.user);
                self.last_run_good = complete && any && !matches!(self.plan, Plan::ProviderError);
                if complete && any {
                    self.settled_at.get_or_insert(self.now);
                }
            }
        }
    }

    /// Changes the newest step and says so.
    fn change(&mut self, change: impl FnOnce(&mut Msg)) {
        self.last_progress = self.now;
        if let Some(step) = self.messages.iter_mut().rev().find(|message| !message.user) {
            change(step);
            let step = *step;
            self.note(Note::Message(step));
        }
    }

    fn crash(&mut self) {
        // A server that dies after the work is done leaves nothing to judge by.
        if self.settled_at.is_some() || !self.alive {
            return;
        }
        self.alive = false;
        self.crashed = true;
        self.life += 1;
        self.run += 1;
        self.running = false;
        self.start_pending = false;
        self.cleanup_until = None;
        self.last_run_failed = true;
        self.activity = Activity::Idle;
        self.child_busy = false;
        self.asking = false;
        let away = self.between(100, 15_000);
        self.at(away, Happens::Restart);
        self.cut();
    }

    fn interfere(&mut self) {
        if self.settled_at.is_none() {
            self.interfered = true;
            self.start_pending = false;
            self.abort_run();
        }
    }

    fn abort_run(&mut self) {
        self.asking = false;
        if self.alive && self.running {
            self.run += 1;
            let incomplete = self.messages.iter().any(|message| !message.user && !message.completed);
            if incomplete {
                self.do_beat(Beat::Error { aborted: true });
                self.do_beat(Beat::Status(Activity::Idle));
                self.do_beat(Beat::Complete);
            }
            self.child_busy = false;
            self.do_beat(Beat::Status(Activity::Idle));
            self.do_beat(Beat::End);
        }
    }

    // ── The wire ──────────────────────────────────────────────────────────────────────────────────────────────────

    fn note(&mut self, note: Note) {
        // Events keep their order: all of one connection take equally long.
        let connection = self.connection;
        self.at(5 * MILLI, Happens::Notes { connection, note });
        if self.chance(2) {
            self.at(5 * MILLI, Happens::Notes { connection, note });
        }
    }

    fn cut(&mut self) {
        if self.stream_open {
            self.stream_open = false;
            self.input(Input::StreamLost);
            let after = self.between(50, 15_000);
            self.at(after, Happens::Reopen);
        }
    }

    fn reopen(&mut self) {
        if !self.alive {
            return self.at(500 * MILLI, Happens::Reopen);
        }
        let is_of_turn_before = |until: &Duration| *until > self.now && *until != Duration::MAX;
        if let Some(until) = self.cleanup_until.filter(is_of_turn_before) {
            // The rest of the turn before: its second idle arrives once its cleanup is over.
            let rest = until.saturating_sub(self.now);
            self.connection += 1;
            self.stream_open = true;
            let connection = self.connection;
            self.at(rest, Happens::Notes { connection, note: Note::Status(Activity::Idle) });
            self.input(Input::StreamOpened);
            return;
        }
        self.connection += 1;
        self.stream_open = true;
        self.input(Input::StreamOpened);
    }

    fn hear(&mut self, note: Note) {
        match note {
            Note::Status(activity) => {
                self.input(Input::Status { descendant: None, activity });
            }
            Note::Message(message) if self.message_events => {
                let progress = self.merge(message) && !message.user;
                self.input(Input::Observed { progress });
            }
            Note::Message(_) => {}
            Note::Delta => self.input(Input::Observed { progress: true }),
            Note::Error { aborted } => {
                let name = if aborted { "MessageAbortedError" } else { "UnknownError" };
                self.input(Input::SessionError(MessageError {
                    name: name.into(),
                    ..MessageError::default()
                }));
            }
            Note::Asked => self.ask(),
            Note::Gone => self.input(Input::SessionGone),
            Note::Child(activity) => {
                self.input(Input::Status { descendant: Some("ses_child".into()), activity });
            }
        }
    }

    /// A human is asked, and takes up to twenty minutes.
    fn ask(&mut self) {
        self.input(Input::HumanAsked("per_1".into()));
        let after = self.between(0, 1_200_000);
        self.at(after, Happens::HumanAnswers);
    }

    /// Merges forward only, as the observer does.
    fn merge(&mut self, new: Msg) -> bool {
        let old = self.view.get(&new.id).copied();
        let Some(old) = old else { return self.view.insert(new.id, new).is_none() };
        let tool = match (old.tool, new.tool) {
            (Some(false), _) => Some(false),
            (old, new) => new.or(old),
        };
        let merged = Msg {
            completed: old.completed || new.completed,
            tool,
            created: old.created.max(new.created),
            background: old.background || new.background,
            failed: old.failed || new.failed,
            ..new
        };
        self.view.insert(new.id, merged);
        merged != old
    }

    fn read_status(&mut self, read: Read) {
        if !self.alive {
            return self.input(Input::ReadFailed);
        }
        if self.deleted {
            return self.input(Input::SessionGone);
        }
        if read.tree && self.asking {
            self.ask();
        }
        let busy = self.child_busy.then(|| "ses_child".into());
        let status = TreeStatus::new(self.activity, BTreeSet::from_iter(busy));
        let status = read.status.then_some(status);
        if read.messages {
            let after = self.latency();
            self.at(after, Happens::ReadMessages { status });
        } else {
            self.input(Input::ReadDone { status, progress: false });
        }
    }

    fn read_messages(&mut self, status: Option<TreeStatus>) {
        if !self.alive {
            return self.input(Input::ReadFailed);
        }
        if self.deleted {
            return self.input(Input::SessionGone);
        }
        let mut progress = false;
        for message in self.messages.clone() {
            progress |= self.merge(message) && !message.user;
        }
        self.input(Input::ReadDone { status, progress });
    }

    // ── The client ────────────────────────────────────────────────────────────────────────────────────────────────

    fn facts(&self) -> Facts {
        let mut facts = Facts { newest: true, ..Facts::default() };
        let Some(prompt) = self.view.get(&PROMPT) else { return facts };
        facts.exists = true;
        let (mut n_prompts, mut n_background) = (0, 0);
        let first = self.view.values().filter(|message| message.answers).map(|step| step.created).min();
        let from = first.map_or(prompt.created, |first| first.min(prompt.created));
        for message in self.view.values().filter(|message| message.created >= from && message.id != PROMPT) {
            if message.user {
                n_prompts += 1;
            } else {
                facts.steps += 1;
                facts.incomplete += usize::from(!message.completed);
                facts.tool_running |= message.tool == Some(true) && !message.completed;
                n_background += usize::from(message.background);
            }
        }
        facts.newest = n_prompts == 0;
        // Stored again behind what failed, it will run again.
        let steps = self.view.values().filter(|message| !message.user);
        let last_step = steps.max_by_key(|step| step.created);
        let moved = last_step.is_some_and(|step| step.failed && step.created < prompt.created);
        let last = self.view.values().max_by_key(|message| message.created);
        let asked = facts.steps > 0 && last.is_some_and(|last| last.user && last.id != PROMPT);
        facts.runs_again = n_background > n_prompts || moved || asked;
        facts
    }

    fn input(&mut self, input: Input) {
        let facts = self.facts();
        self.tell(&input);
        self.tell(&facts);
        for action in self.turn.handle(self.now, input, facts) {
            self.tell(&action);
            match action {
                Action::Submit => self.submit(),
                Action::Read(read) => {
                    let after = self.latency();
                    let fails = self.fails;
                    let happens =
                        if self.chance(fails) { Happens::ReadFails } else { Happens::ReadStatus { read } };
                    self.at(after, happens);
                }
                Action::Abort => {
                    self.silence = Some(self.now.saturating_sub(self.last_progress));
                    let after = self.latency();
                    self.at(after, Happens::AbortArrives);
                }
                Action::Finish(ended) => self.ended = Some(ended),
            }
        }
        if let Some(at) = self.turn.next_wakeup(self.now)
            && self.wake_at.is_none_or(|scheduled| at < scheduled)
        {
            self.wake_at = Some(at);
            self.at(at.saturating_sub(self.now) + Duration::from_nanos(1), Happens::Wake);
        }
    }

    fn tell(&self, what: &impl std::fmt::Debug) {
        if self.told {
            eprintln!("{:>12?} {:?}: {what:?}", self.now, self.activity);
        }
    }

    fn submit(&mut self) {
        self.submissions += 1;
        let after = self.latency();
        let fails = self.fails;
        if !self.chance(fails) {
            return self.at(after, Happens::SubmissionArrives { answer: None });
        }
        match self.rng.u8(..3) {
            0 => self.at(after, Happens::Answered(Delivery::NotSent)),
            // Lost on the way there, or an error without effect: nobody can tell.
            1 => self.at(after, Happens::Answered(Delivery::Unknown)),
            _ => self.at(after, Happens::SubmissionArrives { answer: Some(Delivery::Unknown) }),
        }
    }

    // ── The judge ─────────────────────────────────────────────────────────────────────────────────────────────────

    fn judge(&self) {
        let seed = self.seed;
        let Some(ended) = &self.ended else { return };
        let context = || {
            format!(
                "seed {seed}, {:?} ended {ended:?} at {:?}: {:#?} view {:?}",
                self.plan, self.now, self.messages, self.view
            )
        };
        let prompt = self.messages.iter().find(|message| message.id == PROMPT);
        let steps: Vec<&Msg> = self.messages.iter().filter(|message| !message.user).collect();
        match ended {
            Ended::Settled => {
                // A good run is not repeated: a late submission makes the session busy for a moment, and nothing else.
                assert!(!self.running || self.last_run_good, "still running: {}", context());
                assert!(prompt.is_some() && !steps.is_empty(), "no answer: {}", context());
                assert!(steps.iter().all(|step| step.completed), "incomplete: {}", context());
                assert!(!self.child_busy, "a subagent still works: {}", context());
            }
            Ended::Interrupted => {
                assert!(self.crashed, "nothing interrupted it: {}", context());
                assert!(!self.running, "still running: {}", context());
            }
            Ended::NotStarted { .. } => {
                let never = matches!(self.plan, Plan::UnknownModel | Plan::UnknownAgent | Plan::NeverRuns);
                assert!(never || self.interfered && !self.running, "lost a prompt: {}", context());
            }
            Ended::NotDelivered(_) => {
                assert!(!self.running || self.fails > 0, "gave up a prompt that runs: {}", context());
            }
            Ended::Limit(limit) => {
                let silence = self.silence.unwrap_or_default();
                let live = match limit {
                    Limit::Idle => silence < 44 * SECOND,
                    Limit::Tool => silence < 599 * SECOND,
                    Limit::Retry | Limit::Deadline => true,
                    Limit::Steps => self.plan != Plan::Endless,
                };
                let blind = self.crashed || !self.message_events;
                assert!(!live || blind, "cut off a live turn: {}", context());
                let expected = matches!(self.plan, Plan::Silent | Plan::Endless);
                assert!(expected || blind, "unexpected limit: {}", context());
            }
            Ended::SessionGone => assert!(self.deleted, "it is there: {}", context()),
            Ended::Stopped(_) => panic!("nobody did that: {}", context()),
        }
        assert_eq!(self.reruns_of_good, 0, "ran twice: {}", context());
        assert!(self.submissions <= 10, "{} submissions: {}", self.submissions, context());
    }
}

/// One schedule; for a seed that a failure printed, given as `SIM_SEED`.
#[test]
fn one_schedule() {
    let seed: Option<u64> = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    World { told: seed.is_some(), ..World::new(seed.unwrap_or(0)) }.play();
}

/// Many schedules: `SIM_SCHEDULES` says how many, 200,000 in CI.
#[test]
fn many_schedules() {
    let n_schedules: u64 = std::env::var("SIM_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let n_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for first in (0..n_schedules).take(n_threads) {
            scope.spawn(move || {
                for seed in (first..n_schedules).step_by(n_threads) {
                    World::new(seed).play();
                }
            });
        }
    });
}
