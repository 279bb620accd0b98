//! The machine: what happened goes in, what is to be done comes out.

use std::time::Duration;

use super::{Delivery, Limit, TimeoutAction, WaitOptions};
use crate::{
    ids::MessageId,
    opencode::mirror::{Observed, SessionTree},
};

mod conclude;
mod facts;
mod finish;
mod merge;
mod protocol;
mod reading;
mod reads;
mod requests;
mod sliding;
mod status;
mod submit;
#[cfg(test)]
mod tests;
mod timers;

pub(crate) use protocol::{Action, Ended, Goal, Input, Read, ReadId, Scope, Step, Stop};
pub(crate) use reading::{Messages, Reading};
pub(crate) use requests::Request;

use conclude::Candidate;
use facts::Facts;
use finish::{Leftovers, Overdue};
use merge::Signatures;
use reads::{Mark, Reads};
use requests::Requests;
use sliding::SlidingLimits;
use status::{Activity, Statuses};
use submit::{SinceSubmission, Submissions};
use timers::{Timer, TimerTable};

/// While the event stream is down, and after a read that failed, the session is read this often.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// While the stream is up but silent, one request this often looks for what it may not have carried.
const SILENCE_INTERVAL: Duration = Duration::from_secs(10);
/// How long to wait for the stream before the prompt is sent without it.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);

/// One turn; see the module's documentation.
///
/// The driver says with [`Turn::handle`] what happened, one thing or many, then asks with [`Turn::advance`] what is to be done, and
/// asks again at [`Turn::next_wakeup`] if nothing happens before. `now` is the time since any fixed moment; it must not go back. All
/// calls must get the same tree.
#[derive(Debug)]
pub(crate) struct Turn {
    goal: Goal,
    options: WaitOptions,
    stage: Stage,
    stream: Stream,
    /// Something happened of which the open stream should have told and did not: some servers send no message events at all. Holds
    /// until one comes.
    lacks_message_events: bool,
    timers: TimerTable,
    statuses: Statuses,
    facts: Facts,
    /// Something was merged since the facts were looked up.
    facts_outdated: bool,
    submissions: Submissions,
    since_submission: SinceSubmission,
    limits: SlidingLimits,
    reads: Reads,
    requests: Requests,
    signatures: Signatures,
    /// Why the last call of the provider failed that was tried again, in the words of the server.
    provider_said: Option<String>,
    /// What the next [`Turn::advance`] gives.
    step: Step,
}

#[derive(Debug)]
enum Stage {
    /// Waits for the event stream. Left when that opens or breaks, or at [`Timer::StreamPatience`].
    Opening,
    /// A submission is under way. Left when it is answered, or the prompt's message is seen.
    Submitting,
    /// Nothing tells whether the prompt arrived. Left when its message is seen, or, once a read has shown that it is not there,
    /// after [`Timer::Resubmit`].
    Resolving {
        /// A read has shown that the message is not there.
        is_absent: bool,
    },
    /// The server has the prompt. Left by a conclusion, when a limit runs out, or when the turn is stopped.
    Waiting(Waiting),
    /// The abort is under way. Left when it is done.
    Aborting { ended: Ended },
    /// The last read is under way. Left when it is done or has failed, or at [`Timer::LastRead`].
    Closing { ended: Ended, leftovers: Leftovers, is_read: bool },
    /// Over. Not left.
    Finished,
}

#[derive(Debug, Default)]
struct Waiting {
    /// What will be concluded if it lasts and a read confirms it.
    candidate: Option<Candidate>,
    /// A descendant outlived the root's run: a background subagent, whose result makes the root run again.
    in_background: bool,
    overdue: Option<Overdue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Opening,
    Open {
        /// Since before the prompt went out, so that the server cannot have died meanwhile.
        unbroken: bool,
    },
    Lost,
}

impl Turn {
    /// A turn that begins `now`.
    pub(crate) fn new(goal: Goal, options: WaitOptions, now: Duration) -> Self {
        let mut turn = Self {
            submissions: Submissions::new(&goal),
            goal,
            options,
            stage: Stage::Opening,
            stream: Stream::Opening,
            lacks_message_events: false,
            timers: TimerTable::default(),
            statuses: Statuses::new(),
            facts: Facts::default(),
            facts_outdated: true,
            since_submission: SinceSubmission::default(),
            limits: SlidingLimits::new(now),
            reads: Reads::default(),
            requests: Requests::default(),
            signatures: Signatures::default(),
            provider_said: None,
            step: Step::default(),
        };
        turn.timers.set(Timer::StreamPatience, now + STREAM_PATIENCE);
        turn.check_limit(now);
        turn
    }

    /// Takes for granted that whatever ran before has been stopped: a prompt without an answer is not about to start.
    pub(crate) fn after_an_abort(&mut self) {
        self.since_submission.stopped = true;
    }

    /// How far the prompt is known to have got.
    pub(crate) fn delivery(&self) -> Delivery {
        self.submissions.delivery()
    }

    /// How often the prompt was submitted again because it did not start.
    pub(crate) fn kicks(&self) -> u32 {
        self.submissions.n_kicks
    }

    /// Why the last call of the provider failed that was tried again.
    pub(crate) fn provider_said(&self) -> Option<&str> {
        self.provider_said.as_deref()
    }

    /// How many requests were not passed on, because there were too many.
    pub(crate) fn n_dropped(&self) -> u64 {
        self.requests.n_dropped()
    }

    /// Whether the event stream is open.
    pub(crate) fn is_stream_open(&self) -> bool {
        matches!(self.stream, Stream::Open { .. })
    }

    /// Whether the event stream is down, and not merely about to be opened.
    #[cfg(test)]
    fn is_stream_lost(&self) -> bool {
        self.stream == Stream::Lost
    }

    /// Whether the server cannot have died since before the prompt went out.
    pub(crate) fn is_unbroken(&self) -> bool {
        self.stream == Stream::Open { unbroken: true }
    }

    /// When to call [`Turn::advance`] if nothing happens before.
    pub(crate) fn next_wakeup(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Takes in what happened, and gives what that means for the conversation and which sessions are to be followed.
    pub(crate) fn handle(&mut self, now: Duration, tree: &mut SessionTree, input: Input<'_>) -> Observed {
        match input {
            _ if matches!(self.stage, Stage::Finished) => {}
            Input::Event(event) => return self.take_event(now, tree, event),
            Input::ReadDone(id, reading) => return self.read_done(now, tree, id, reading),
            Input::ReadFailed(id) => self.read_failed(now, id),
            Input::StreamGap if self.is_stream_open() => self.missed_events(now),
            Input::StreamOpened | Input::StreamGap => self.stream_opened(now),
            Input::StreamLost => {
                self.stream = Stream::Lost;
                self.timers.stop(Timer::Silence);
            }
            Input::SessionGone => self.session_gone(),
            Input::Unauthorized => self.unauthorized(),
            Input::Submitted(delivery) => self.submitted(now, delivery),
            Input::SubmissionRefused(delivery) => self.submission_refused(delivery),
            Input::HumanAsked(request) => {
                if !self.requests.is_closed(&request) {
                    self.limits.human_asked(now, request);
                }
            }
            Input::Decided(request) => self.limits.human_answered(now, &request),
            Input::Refused(request) => {
                self.limits.human_answered(now, &request);
                if !self.requests.is_closed(&request) {
                    self.abort(Ended::Stopped(Stop::Refused));
                }
            }
            Input::Stop => self.abort(Ended::Stopped(Stop::Aborted)),
            Input::AbortDone { confirmed } => {
                if let Stage::Aborting { ended } = &self.stage {
                    let ended = ended.clone();
                    self.look(tree);
                    let leftovers = if confirmed { Leftovers::Final } else { Leftovers::MayChange };
                    self.close(now, ended, leftovers);
                }
            }
        }
        Observed::default()
    }

    /// Draws the conclusions that can be drawn by now, and tells what to do.
    pub(crate) fn advance(&mut self, now: Duration, tree: &mut SessionTree) -> Step {
        self.look(tree);
        self.decide(now, tree);
        while let Some(timer) = self.timers.pop_expired(now) {
            self.timer_fired(now, timer);
            self.decide(now, tree);
        }
        self.start_read(now);
        std::mem::take(&mut self.step)
    }

    fn look(&mut self, tree: &SessionTree) {
        if std::mem::take(&mut self.facts_outdated) {
            let active = self.statuses.active_descendants(tree);
            self.facts = Facts::of(tree, self.prompt(), active);
        }
    }

    /// The message that the prompt became.
    pub(crate) fn prompt(&self) -> Option<&MessageId> {
        match &self.goal {
            Goal::Answer { prompt, .. } => Some(prompt),
            Goal::Rest => None,
        }
    }

    fn stream_opened(&mut self, now: Duration) {
        self.limits.in_reach();
        match self.stream {
            Stream::Open { .. } => {}
            Stream::Opening => self.stream = Stream::Open { unbroken: false },
            Stream::Lost => {
                self.stream = Stream::Open { unbroken: false };
                self.missed_events(now);
            }
        }
        self.reads.stream_opened();
        self.restart_silence(now);
    }

    fn missed_events(&mut self, now: Duration) {
        self.reads.want(Scope::ALL);
        self.limits.gap_ended(now);
    }

    fn restart_silence(&mut self, now: Duration) {
        if self.is_stream_open() && !self.is_ending() {
            let interval = if self.lacks_message_events {
                // As if there were no stream, but less and less often while reads bring nothing new either.
                (POLL_INTERVAL * (self.reads.n_silence_polls() + 1)).min(SILENCE_INTERVAL)
            } else {
                SILENCE_INTERVAL
            };
            self.timers.set(Timer::Silence, now + interval);
        }
    }

    fn session_gone(&mut self) {
        match &mut self.stage {
            // The turn has ended otherwise.
            Stage::Closing { is_read, .. } => *is_read = true,
            _ => self.finish(Ended::SessionGone),
        }
    }

    fn unauthorized(&mut self) {
        match &mut self.stage {
            // The turn has ended otherwise.
            Stage::Closing { is_read, .. } => *is_read = true,
            Stage::Aborting { .. } => {}
            _ => self.finish(Ended::Unauthorized),
        }
    }

    fn timer_fired(&mut self, now: Duration, timer: Timer) {
        match timer {
            // Whether these are still set is for the next decision to see.
            Timer::StreamPatience | Timer::Resubmit | Timer::Limit | Timer::ReadPause => {}
            Timer::Confirm => self.candidate_lasted(now),
            Timer::Silence => {
                self.reads.want_for_silence(self.lacks_message_events);
                if self.is_held_by_messages() {
                    self.reads.want(Scope::TREE);
                }
                // A tool that seems to run may wait for the answer to a request whose event was missed.
                if self.facts.tool_running {
                    self.reads.want(Scope::REQUESTS);
                }
                self.restart_silence(now);
            }
            Timer::LastLook => {
                if let Stage::Waiting(Waiting { overdue: Some(overdue), .. }) = &mut self.stage {
                    overdue.has_looked = true;
                }
            }
            Timer::LastRead => {
                if let Stage::Closing { is_read, .. } = &mut self.stage {
                    *is_read = true;
                }
            }
        }
    }

    fn decide(&mut self, now: Duration, tree: &mut SessionTree) {
        if matches!(self.stage, Stage::Finished) {
            return;
        }
        self.see_delivery();
        if matches!(self.stage, Stage::Opening) {
            self.open(now);
        }
        match &self.stage {
            Stage::Opening
            | Stage::Submitting
            | Stage::Aborting { .. }
            | Stage::Closing { is_read: false, .. }
            | Stage::Finished => {}
            Stage::Resolving { is_absent } => self.resolve(now, tree, *is_absent),
            Stage::Waiting(_) => self.wait(now, tree),
            Stage::Closing { ended, leftovers, is_read: true } => {
                let ended = ended.clone();
                if *leftovers == Leftovers::Final {
                    self.settle(tree);
                }
                self.finish(ended);
            }
        }
        self.check_limit(now);
    }

    /// Begins, once the stream is open or was given time enough.
    fn open(&mut self, now: Duration) {
        if self.stream == Stream::Opening && self.timers.is_set(Timer::StreamPatience) {
            return;
        }
        self.timers.stop(Timer::StreamPatience);
        match self.goal {
            Goal::Answer { from, .. } => self.begin(now, from),
            Goal::Rest => {
                self.stage = Stage::Waiting(Waiting::default());
                self.reads.want(Scope::ALL);
            }
        }
    }

    fn start_read(&mut self, now: Duration) {
        let may_read = match self.stage {
            Stage::Waiting(_) | Stage::Resolving { .. } => !self.timers.is_set(Timer::ReadPause),
            Stage::Closing { is_read, .. } => !is_read && !self.timers.is_set(Timer::ReadPause),
            Stage::Opening | Stage::Submitting | Stage::Aborting { .. } | Stage::Finished => false,
        };
        if !may_read || self.reads.is_under_way() {
            return;
        }
        if !self.is_stream_open() && !matches!(self.stage, Stage::Closing { .. }) {
            self.reads.want_while_blind();
        }
        let mark = self.mark();
        let read = self.reads.begin(now, mark, || self.requests.open());
        self.step.actions.extend(read.map(Action::Read));
    }

    fn mark(&self) -> Mark {
        Mark { n_status_changes: self.statuses.n_changes(), n_progress: self.limits.n_progress() }
    }
}
