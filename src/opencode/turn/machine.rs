//! The machine itself.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Action, Activity, Delivery, Ended, Facts, Goal, Input, Limit, Read, TimeoutAction, TreeStatus,
    WaitOptions,
};
use crate::{
    ids::{RequestId, SessionId},
    wire::MessageError,
};

/// While the event stream is down, the session is read this often. The original's tick.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// While it is down, every so many polls look at the whole tree, for requests that nobody hears of otherwise.
const TREE_POLLS: u32 = 3;
/// While the stream is up but silent, one request this often looks for what it may not carry: some servers send no message
/// events at all.
const SILENCE_INTERVAL: Duration = Duration::from_secs(10);
/// How long to wait for the stream before the prompt is sent without it.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);
/// After an idle or an error without an answer the prompt is probably lost, but a run may also just be starting.
const LOST_GRACE: Duration = Duration::from_millis(500);
/// How long a last look for progress may take once a limit has run out.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// The first pause before an unclear or undelivered submission is tried again; doubles each time.
const RESUBMIT_PAUSE: Duration = Duration::from_millis(250);
/// Text that is streamed during a gap is in no list until it is whole. So after a gap the sliding limit starts anew, but not
/// more often than this without progress: a stream that keeps breaking must not keep a dead turn alive.
const MAX_GAPS: u32 = 3;
/// How often an unclear submission is tried again.
const MAX_RESUBMITS: u32 = 5;

/// The ways in which an idle session can be idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quiet {
    /// Every message after the prompt is complete. Confirmed: done.
    Settled,
    /// One is not. Lasting and confirmed: interrupted.
    Incomplete,
    /// There is none. Lasting and confirmed: submit again, or give up.
    NotStarted,
}

/// A way of being idle, since when, and whether a read that began late enough agrees.
#[derive(Debug, Clone, Copy)]
struct Lull {
    quiet: Quiet,
    /// The session is expected to run again by itself.
    awaited: bool,
    since: Duration,
    confirmed: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// Waits for the stream. Left when it opens, or when patience ends.
    Opening,
    /// A submission is under way. Left when it is answered, or the message is seen.
    Submitting,
    /// A submission failed without a verdict. Left at `retry_at`, once a read has shown that the message is not there.
    Resolving { retry_at: Duration, absent: bool },
    /// The server has the prompt. Left by a conclusion.
    Waiting,
    /// A conclusion was drawn; the abort is under way. Left when it is done.
    Aborting(Ended),
    /// Over.
    Finished,
}

#[derive(Debug, Clone, Copy)]
enum Stream {
    Opening,
    Open,
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct ReadUnderWay {
    read: Read,
    began: Duration,
    /// The status of the tree had changed this often when it began: what it brings may be older than what was heard meanwhile.
    heard: u64,
    /// The tree had made progress this often when it began.
    progressed: u64,
}

/// A limit that has run out. A last read looks for progress that was not heard of.
#[derive(Debug, Clone, Copy)]
struct Expiry {
    limit: Limit,
    since: Duration,
    looked: bool,
}

/// The state of one turn; see the module's documentation.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each remembers one thing that was heard")]
pub struct Turn {
    goal: Goal,
    options: WaitOptions,
    phase: Phase,
    stream: Stream,
    facts: Facts,
    delivery: Delivery,
    activity: Activity,
    /// The stream has been open since before the prompt went out, so that the server cannot have died meanwhile.
    unbroken: bool,
    /// The root was heard to be busy since the prompt went out, so that an idle after that cannot be an old one.
    ran: bool,
    /// The root was heard to be idle, or to fail, without having started.
    hinted: bool,
    busy_descendants: BTreeSet<SessionId>,
    /// A descendant outlived the root's run: a background subagent, whose result makes the root run again.
    background: bool,
    lull: Option<Lull>,
    error: Option<MessageError>,
    /// Submissions that an error was reported after.
    failures: u32,
    submissions: u32,
    /// Submissions that were not answered yet.
    unanswered: u32,
    kicks: u32,
    started_at: Duration,
    /// Gaps in the stream since the last progress.
    gaps: u32,
    last_progress: Duration,
    last_heard: Duration,
    retrying_since: Option<Duration>,
    humans: BTreeSet<RequestId>,
    paused_since: Option<Duration>,
    /// How long the clocks have stood still in all.
    paused: Duration,
    read: Option<ReadUnderWay>,
    wanted: Read,
    /// No read begins before this, so that a failing server is not asked in a tight loop.
    read_after: Duration,
    silence_polls: u32,
    /// Polls since the stream was lost.
    blind_polls: u32,
    heard: u64,
    progressed: u64,
    expiry: Option<Expiry>,
}

impl Turn {
    /// A turn that begins `now`.
    pub fn new(goal: Goal, options: WaitOptions, now: Duration) -> Self {
        Self {
            goal,
            options,
            phase: Phase::Opening,
            stream: Stream::Opening,
            facts: Facts::default(),
            delivery: Delivery::NotSent,
            activity: Activity::Idle,
            unbroken: false,
            ran: false,
            hinted: false,
            busy_descendants: BTreeSet::new(),
            background: false,
            lull: None,
            error: None,
            failures: 0,
            submissions: 0,
            unanswered: 0,
            kicks: 0,
            started_at: now,
            gaps: 0,
            last_progress: now,
            last_heard: now,
            retrying_since: None,
            humans: BTreeSet::new(),
            paused_since: None,
            paused: Duration::ZERO,
            read: None,
            wanted: Read::default(),
            read_after: now,
            silence_polls: 0,
            blind_polls: 0,
            heard: 0,
            progressed: 0,
            expiry: None,
        }
    }

    /// How far the prompt is known to have got.
    pub fn delivery(&self) -> Delivery {
        // A request that is under way may arrive.
        if self.unanswered > 0 { self.delivery.max(Delivery::Unknown) } else { self.delivery }
    }

    /// Whether the event stream is open.
    pub fn is_stream_open(&self) -> bool {
        matches!(self.stream, Stream::Open)
    }

    /// How often the prompt was submitted again because it did not start.
    pub fn kicks(&self) -> u32 {
        self.kicks
    }

    /// The last error that the session reported since the prompt last went out.
    pub fn session_error(&self) -> Option<&MessageError> {
        self.error.as_ref()
    }

    /// Whether the server cannot have died since before the prompt went out.
    pub fn is_unbroken(&self) -> bool {
        self.unbroken
    }

    /// Whether the messages of the read under way describe a session at rest, so that they are the last word.
    pub fn read_is_final(&self) -> bool {
        let (Some(read), Some(lull)) = (self.read, self.lull) else { return false };
        let unchanged = read.heard == self.heard && read.progressed == self.progressed;
        unchanged && lull.quiet != Quiet::NotStarted && read.began >= self.due(lull)
    }

    /// Takes in what happened, with what the merged messages say now, and tells what to do.
    ///
    /// `now` is the time since any fixed moment; it must not go back. Ticks too many do no harm.
    pub fn handle(&mut self, now: Duration, input: Input, facts: Facts) -> Vec<Action> {
        self.facts = facts;
        let mut actions = Vec::new();
        if self.phase != Phase::Finished {
            self.take_in(now, input, &mut actions);
            self.conclude(now, &mut actions);
            self.start_read(now, &mut actions);
        }
        actions
    }

    /// When to say [`Input::Tick`] if nothing happens before.
    pub fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        let mut wakeups = Vec::with_capacity(4);
        match &self.phase {
            Phase::Finished => return None,
            Phase::Opening => wakeups.push(self.started_at + STREAM_PATIENCE),
            Phase::Resolving { retry_at, absent: true } => wakeups.push(*retry_at),
            Phase::Resolving { absent: false, .. }
            | Phase::Submitting
            | Phase::Waiting
            | Phase::Aborting(_) => {}
        }
        if self.read.is_none() && self.may_read() {
            let wanted = if self.wanted == Read::default() { self.next_poll() } else { now };
            let confirm = self.lull.filter(|lull| !lull.confirmed).map(|lull| self.due(lull));
            wakeups.push(confirm.map_or(wanted, |due| due.min(wanted)).max(self.read_after));
        }
        if self.paused_since.is_none() && !matches!(self.phase, Phase::Aborting(_)) {
            wakeups.push(match self.expiry {
                Some(expiry) => expiry.since + LAST_LOOK,
                None => self.limit().1,
            });
        }
        wakeups.into_iter().min().map(|at| at.max(now))
    }

    fn take_in(&mut self, now: Duration, input: Input, actions: &mut Vec<Action>) {
        match input {
            Input::Tick => {}
            Input::StreamOpened => {
                self.last_heard = now;
                if matches!(self.stream, Stream::Lost) {
                    self.want(Read { messages: true, status: true, tree: true });
                    if self.gaps < MAX_GAPS {
                        self.gaps += 1;
                        self.last_progress = now;
                    }
                }
                self.stream = Stream::Open;
                self.blind_polls = 0;
            }
            Input::Gap => self.stream = Stream::Lost,
            Input::StreamLost => {
                self.stream = Stream::Lost;
                self.unbroken = false;
            }
            Input::Observed { progress } => self.observed(now, progress),
            Input::Status { descendant: None, activity } => {
                self.heard += u64::from(activity != self.activity);
                self.last_heard = now;
                self.set_activity(now, activity);
            }
            Input::Status { descendant: Some(session), activity } => {
                self.last_heard = now;
                let changed = if activity == Activity::Idle {
                    self.busy_descendants.remove(&session)
                } else {
                    self.busy_descendants.insert(session)
                };
                self.heard += u64::from(changed);
            }
            Input::SessionError(error) => {
                self.last_heard = now;
                self.hinted = true;
                self.failures += u32::from(self.error.is_none());
                // The first word says what is wrong; what follows are its echoes.
                self.error.get_or_insert(error);
            }
            Input::SessionGone => self.finish(Ended::SessionGone, actions),
            Input::Submitted(answer) => self.submitted(now, answer, actions),
            Input::ReadDone { status, progress } => self.read_done(now, status, progress),
            Input::DescendantFound => self.want(Read { tree: true, ..Read::default() }),
            Input::ReadFailed => {
                self.read_after = now + POLL_INTERVAL;
                if let Some(read) = self.read.take() {
                    self.looked(read);
                    // What was to be read is still to be read.
                    self.want(read.read);
                }
            }
            Input::HumanAsked(request) => {
                self.humans.insert(request);
                self.paused_since.get_or_insert(now);
            }
            Input::HumanAnswered(request) => {
                self.humans.remove(&request);
                if self.humans.is_empty() {
                    self.resume(now);
                }
            }
            Input::AbortDone => {
                if let Phase::Aborting(ended) = &self.phase {
                    let ended = ended.clone();
                    self.finish(ended, actions);
                }
            }
            Input::Stop(stop) => self.abort(Ended::Stopped(stop), actions),
        }
    }

    fn observed(&mut self, now: Duration, progress: bool) {
        self.last_heard = now;
        if progress {
            self.progressed += 1;
            self.last_progress = now;
            self.gaps = 0;
            self.retrying_since = None;
            self.expiry = None;
            self.silence_polls = 0;
        }
    }

    fn set_activity(&mut self, now: Duration, activity: Activity) {
        self.activity = activity;
        match activity {
            Activity::Idle => self.hinted = true,
            Activity::Busy => self.ran = true,
            Activity::Retry => {
                self.ran = true;
                self.retrying_since.get_or_insert(now);
            }
        }
    }

    fn submitted(&mut self, now: Duration, delivery: Delivery, actions: &mut Vec<Action>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        match delivery {
            Delivery::Accepted | Delivery::Started => {
                self.delivery = self.delivery.max(Delivery::Accepted);
                self.last_progress = now;
                self.last_heard = now;
                if self.phase == Phase::Submitting {
                    self.phase = Phase::Waiting;
                }
            }
            // A kick that may not have arrived does not count, and shows itself: the session stays as it is, and the next
            // one is due in its time.
            _ if self.phase != Phase::Submitting => self.kicks = self.kicks.saturating_sub(1),
            Delivery::Rejected => {
                // An earlier submission may have arrived all the same.
                self.delivery = self.delivery.max(delivery);
                self.finish(Ended::NotDelivered(self.delivery), actions);
            }
            Delivery::NotSent | Delivery::Unknown => {
                self.delivery = self.delivery.max(delivery);
                // What never left cannot be there; for anything else the session must be read first.
                let absent = self.delivery == Delivery::NotSent;
                if !absent {
                    self.want(Read { messages: true, ..Read::default() });
                }
                let pause = RESUBMIT_PAUSE * 2_u32.saturating_pow(self.submissions - 1);
                self.phase = Phase::Resolving { retry_at: now + pause, absent };
            }
        }
    }

    fn read_done(&mut self, now: Duration, status: Option<TreeStatus>, progress: bool) {
        let Some(read) = self.read.take() else { return };
        if progress {
            self.observed(now, true);
        }
        self.looked(read);
        if matches!(self.stream, Stream::Opening | Stream::Lost) {
            self.read_after = now + POLL_INTERVAL;
        }
        if let Some(status) = status
            && read.heard == self.heard
        {
            let hinted = self.hinted;
            self.set_activity(now, status.root);
            // That nothing runs yet is no hint that nothing will.
            self.hinted = hinted;
            self.busy_descendants = status.busy_descendants;
        }
        if let Phase::Resolving { absent, .. } = &mut self.phase {
            *absent = !self.facts.exists;
        }
        self.update_lull(now);
        if let Some(lull) = self.lull
            && read.began >= self.due(lull)
        {
            self.lull = Some(Lull { confirmed: true, ..lull });
        }
    }

    fn looked(&mut self, read: ReadUnderWay) {
        if let Some(expiry) = &mut self.expiry {
            expiry.looked |= read.began >= expiry.since;
        }
    }

    fn resume(&mut self, now: Duration) {
        if let Some(since) = self.paused_since.take() {
            let pause = now.saturating_sub(since);
            self.paused += pause;
            // Whoever got an answer needs time to act on it.
            self.last_progress = now;
            self.expiry = None;
            self.retrying_since = self.retrying_since.map(|at| at + pause);
        }
    }

    /// Draws the conclusions that can be drawn.
    fn conclude(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.facts.exists && self.goal == Goal::Answer {
            self.delivery = self.delivery.max(Delivery::Accepted);
            if matches!(self.phase, Phase::Submitting | Phase::Resolving { .. }) {
                self.phase = Phase::Waiting;
            }
        }
        if self.facts.steps > 0 && self.phase == Phase::Waiting {
            self.delivery = Delivery::Started;
        }
        match &self.phase {
            Phase::Finished | Phase::Aborting(_) | Phase::Submitting => {}
            Phase::Opening => self.open(now, actions),
            Phase::Resolving { retry_at, absent } => {
                if *absent && self.submissions > MAX_RESUBMITS {
                    self.finish(Ended::NotDelivered(self.delivery), actions);
                } else if *absent && now >= *retry_at {
                    self.submit(Phase::Submitting, actions);
                } else if !*absent && self.read.is_none() {
                    self.wanted.messages = true;
                }
            }
            Phase::Waiting => self.wait(now, actions),
        }
        self.expire(now, actions);
    }

    fn open(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if matches!(self.stream, Stream::Opening) && now < self.started_at + STREAM_PATIENCE {
            return;
        }
        match self.goal {
            Goal::Answer => {
                self.unbroken = matches!(self.stream, Stream::Open);
                self.submit(Phase::Submitting, actions);
            }
            Goal::Rest => {
                self.phase = Phase::Waiting;
                self.update_lull(now);
                self.want(Read { messages: true, status: true, tree: true });
            }
        }
    }

    fn submit(&mut self, next: Phase, actions: &mut Vec<Action>) {
        self.submissions += 1;
        self.unanswered += 1;
        self.ran = false;
        self.hinted = false;
        self.error = None;
        self.lull = None;
        self.phase = next;
        actions.push(Action::Submit);
    }

    fn wait(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.facts.steps > self.options.max_steps {
            return self.run_out(Limit::Steps, actions);
        }
        self.update_lull(now);
        let Some(lull) = self.lull else { return };
        if !lull.confirmed {
            if now >= self.due(lull) {
                // An idle after a busy of this very run needs no second opinion, unless more is expected.
                let heard = self.ran && matches!(self.stream, Stream::Open);
                let sure = lull.quiet == Quiet::Settled && !lull.awaited && heard;
                let tree = self.facts.descendant_open && lull.quiet != Quiet::NotStarted;
                self.want(Read { messages: true, status: !sure, tree });
            }
            return;
        }
        match (lull.quiet, self.goal) {
            (Quiet::Settled, _) => self.finish(Ended::Settled, actions),
            (Quiet::Incomplete, _) => self.finish(Ended::Interrupted, actions),
            (Quiet::NotStarted, Goal::Rest) => {
                self.finish(Ended::NotStarted { error: self.error.clone() }, actions);
            }
            (Quiet::NotStarted, Goal::Answer) => {
                let aborted = self.error.as_ref().is_some_and(MessageError::is_aborted);
                // One error may be a late word of the turn before; an error after each of two submissions is not.
                let failed_again = self.error.is_some() && self.failures > 1;
                // With a newer prompt in the session, submitting this one again would run it out of order.
                let stale = self.facts.exists && !self.facts.newest;
                let enough = self.kicks >= self.options.max_kicks
                    || self.submissions > self.options.max_kicks.saturating_add(MAX_RESUBMITS);
                let ended = Ended::NotStarted { error: self.error.clone() };
                if aborted || failed_again || stale {
                    self.finish(ended, actions);
                } else if enough {
                    // Nobody said that it will not run, so that somebody must see to it.
                    self.abort(ended, actions);
                } else {
                    self.kicks += 1;
                    self.last_progress = now;
                    self.submit(Phase::Waiting, actions);
                }
            }
        }
    }

    fn update_lull(&mut self, now: Duration) {
        let quiet = self.quiet();
        let awaited = self.background || self.facts.runs_again;
        let is_new = |lull: Lull| awaited && !lull.awaited;
        if quiet != self.lull.map(|lull| lull.quiet) || self.lull.is_some_and(is_new) {
            self.lull = quiet.map(|quiet| Lull { quiet, awaited, since: now, confirmed: false });
        }
    }

    fn quiet(&mut self) -> Option<Quiet> {
        if self.activity != Activity::Idle || self.phase != Phase::Waiting {
            return None;
        }
        if self.facts.incomplete > 0 {
            // A server that lives finishes what it began, for as long as git takes on a large repository; one that died never
            // does.
            return (!self.unbroken).then_some(Quiet::Incomplete);
        }
        let nothing_asked = self.goal == Goal::Rest && !self.facts.exists;
        if self.facts.steps == 0 && !nothing_asked {
            return Some(Quiet::NotStarted);
        }
        if !self.busy_descendants.is_empty() {
            self.background = true;
            return None;
        }
        Some(Quiet::Settled)
    }

    /// When a lull has lasted long enough to be confirmed.
    fn due(&self, lull: Lull) -> Duration {
        let grace = match lull.quiet {
            // The root will run again.
            Quiet::Settled if lull.awaited => self.options.settle_grace,
            Quiet::Settled => Duration::ZERO,
            Quiet::Incomplete => self.options.settle_grace,
            Quiet::NotStarted if self.hinted => {
                self.options.start_timeout.min(LOST_GRACE.saturating_mul(2_u32.saturating_pow(self.kicks)))
            }
            // A busy server may need long to begin; submitting again does not make it faster.
            Quiet::NotStarted => self.options.start_timeout.saturating_mul(1 << self.kicks.min(2)),
        };
        lull.since + grace
    }

    /// The limit in force, and when it runs out.
    fn limit(&self) -> (Limit, Duration) {
        let options = &self.options;
        let sliding = match self.retrying_since {
            Some(since) => (Limit::Retry, since + options.retry_budget),
            None if self.facts.tool_running => (Limit::Tool, self.last_progress + options.tool_timeout),
            None => (Limit::Idle, self.last_progress + options.idle_timeout),
        };
        let deadline = options.deadline.map(|limit| (Limit::Deadline, self.started_at + self.paused + limit));
        deadline.filter(|deadline| deadline.1 <= sliding.1).unwrap_or(sliding)
    }

    /// Ends the turn when a limit has run out, but not before a read has looked for progress that was not heard of.
    fn expire(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.paused_since.is_some() || matches!(self.phase, Phase::Finished | Phase::Aborting(_)) {
            return;
        }
        let (limit, at) = self.limit();
        if now < at {
            self.expiry = None;
            return;
        }
        // There is nothing to look for before the server has the prompt, and nothing to hope for after a deadline.
        if self.phase != Phase::Waiting || limit == Limit::Deadline {
            return self.run_out(limit, actions);
        }
        match self.expiry.filter(|expiry| expiry.limit == limit) {
            Some(expiry) if expiry.looked || now >= expiry.since + LAST_LOOK => self.run_out(limit, actions),
            Some(_) => {}
            None => {
                self.expiry = Some(Expiry { limit, since: now, looked: false });
                self.want(Read { messages: true, status: true, tree: true });
            }
        }
    }

    fn run_out(&mut self, limit: Limit, actions: &mut Vec<Action>) {
        let ended = Ended::Limit(limit);
        match self.options.on_limit {
            TimeoutAction::Abort => self.abort(ended, actions),
            TimeoutAction::Leave => self.finish(ended, actions),
        }
    }

    fn abort(&mut self, ended: Ended, actions: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Finished | Phase::Aborting(_)) {
            return;
        }
        if self.goal == Goal::Answer && self.delivery == Delivery::NotSent && self.submissions == 0 {
            return self.finish(ended, actions);
        }
        self.phase = Phase::Aborting(ended);
        actions.push(Action::Abort);
    }

    fn finish(&mut self, ended: Ended, actions: &mut Vec<Action>) {
        if self.phase != Phase::Finished {
            self.phase = Phase::Finished;
            actions.push(Action::Finish(ended));
        }
    }

    fn want(&mut self, read: Read) {
        self.wanted.messages |= read.messages;
        self.wanted.status |= read.status;
        self.wanted.tree |= read.tree;
    }

    fn may_read(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Resolving { .. })
    }

    fn next_poll(&self) -> Duration {
        match self.stream {
            Stream::Open => self.last_heard + SILENCE_INTERVAL,
            Stream::Opening | Stream::Lost => self.read_after,
        }
    }

    fn start_read(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.read.is_some() || !self.may_read() || now < self.read_after {
            return;
        }
        if now >= self.next_poll() {
            let read = match self.stream {
                // One request per interval, looking at either side in turn.
                Stream::Open => {
                    self.last_heard = now;
                    self.silence_polls += 1;
                    let messages = self.silence_polls % 2 == 1;
                    Read { messages, status: !messages, tree: false }
                }
                Stream::Opening | Stream::Lost => {
                    self.blind_polls += 1;
                    let tree = self.blind_polls.is_multiple_of(TREE_POLLS);
                    Read { messages: true, status: true, tree }
                }
            };
            self.want(read);
        }
        if self.wanted != Read::default() {
            let read = std::mem::take(&mut self.wanted);
            self.read =
                Some(ReadUnderWay { read, began: now, heard: self.heard, progressed: self.progressed });
            actions.push(Action::Read(read));
        }
    }
}
