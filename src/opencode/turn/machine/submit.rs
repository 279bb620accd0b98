//! Getting the prompt to the server, once.

use std::time::Duration;

use super::{Action, Delivery, Ended, Goal, Scope, Stage, Stream, Timer, Turn, Waiting};
use crate::opencode::wire::MessageError;

/// The first pause before an unclear or undelivered submission is tried again; doubles each time.
const RESUBMIT_PAUSE: Duration = Duration::from_millis(250);
/// How often an unclear submission is tried again.
pub(super) const MAX_RESUBMITS: u32 = 5;

/// What was sent, and how much of it is known to have arrived.
#[derive(Debug)]
pub(super) struct Submissions {
    delivery: Delivery,
    recorded: Delivery,
    /// Submissions in all; one of an earlier client counts, since it may have been sent.
    pub(super) n_sent: u32,
    n_unanswered: u32,
    /// Submissions because the prompt did not start.
    pub(super) n_kicks: u32,
    /// Submissions that an error was reported after.
    pub(super) n_failed: u32,
}

impl Submissions {
    pub(super) fn new(goal: &Goal) -> Self {
        let from = match goal {
            Goal::Answer { from, .. } => *from,
            Goal::Rest => Delivery::NotSent,
        };
        let n_sent = u32::from(from != Delivery::NotSent);
        Self { delivery: from, recorded: from, n_sent, n_unanswered: 0, n_kicks: 0, n_failed: 0 }
    }

    pub(super) fn delivery(&self) -> Delivery {
        // A request that is under way may arrive.
        if self.n_unanswered > 0 { self.delivery.max(Delivery::Unknown) } else { self.delivery }
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.n_sent == 0
    }
}

/// What the root has said since the prompt last went out.
#[derive(Debug, Default)]
pub(super) struct SinceSubmission {
    /// That it runs, so that an idle after that is not one of the turn before.
    pub(super) ran: bool,
    /// That it is idle, or that something failed: if nothing has started by then, probably nothing will.
    pub(super) stopped: bool,
    /// The first error. What follows are its echoes.
    pub(super) error: Option<MessageError>,
    /// An error while it ran, since when it has made no progress. The idle that follows is the first of two.
    pub(super) failed_running: bool,
    /// The first error while it was idle, since when it has neither run nor made progress: the run died of it.
    pub(super) fatal_error: Option<MessageError>,
}

impl Turn {
    pub(super) fn submit(&mut self) {
        self.submissions.n_sent += 1;
        self.submissions.n_unanswered += 1;
        self.since_submission = SinceSubmission::default();
        self.record(Delivery::Unknown);
        self.step.actions.push(Action::Submit);
    }

    /// Begins, or goes on where an earlier client left off. What became of the prompt since is not known then, so that nothing is
    /// sent before the session has been read.
    pub(super) fn begin(&mut self, now: Duration, from: Delivery) {
        match from {
            Delivery::NotSent => {
                if let Stream::Open { unbroken } = &mut self.stream {
                    *unbroken = true;
                }
                self.stage = Stage::Submitting;
                self.submit();
            }
            Delivery::Rejected => self.finish(Ended::NotDelivered(from)),
            Delivery::Unknown => {
                self.start_resolving(now);
                self.reads.want(Scope::ALL);
            }
            Delivery::Accepted | Delivery::Started => {
                self.stage = Stage::Waiting(Waiting::default());
                self.reads.want(Scope::ALL);
            }
        }
    }

    pub(super) fn submitted(&mut self, now: Duration, delivery: Delivery) {
        self.submissions.n_unanswered = self.submissions.n_unanswered.saturating_sub(1);
        let is_submitting = matches!(self.stage, Stage::Submitting);
        match delivery {
            Delivery::Accepted | Delivery::Started => {
                self.reach(Delivery::Accepted);
                self.limits.restart(now);
                self.restart_silence(now);
                if is_submitting {
                    self.stage = Stage::Waiting(Waiting::default());
                }
            }
            // A kick that may not have arrived does not count, and shows itself: the session stays as it is, and the next
            // one is due in its time.
            _ if !is_submitting => self.submissions.n_kicks = self.submissions.n_kicks.saturating_sub(1),
            Delivery::Rejected => {
                // An earlier submission may have arrived all the same.
                self.reach(delivery);
                self.finish(Ended::NotDelivered(self.submissions.delivery));
            }
            Delivery::NotSent | Delivery::Unknown => {
                self.reach(delivery);
                self.start_resolving(now);
            }
        }
    }

    fn start_resolving(&mut self, now: Duration) {
        // What never left cannot be there; for anything else the session must be read first.
        let is_absent = self.submissions.delivery == Delivery::NotSent;
        let pause = RESUBMIT_PAUSE * 2_u32.saturating_pow(self.submissions.n_sent.saturating_sub(1));
        self.timers.set(Timer::Resubmit, now + pause);
        self.stage = Stage::Resolving { is_absent };
    }

    pub(super) fn resolve(&mut self, is_absent: bool) {
        if !is_absent {
            if !self.reads.is_under_way() {
                self.reads.want(Scope::MESSAGES);
            }
        } else if self.submissions.n_sent > MAX_RESUBMITS {
            self.finish(Ended::NotDelivered(self.submissions.delivery));
        } else if !self.timers.is_set(Timer::Resubmit) {
            self.stage = Stage::Submitting;
            self.submit();
        }
    }

    /// Takes over what the messages say about the prompt's whereabouts.
    pub(super) fn see_delivery(&mut self) {
        if self.goal == Goal::Rest || !self.facts.exists {
            return;
        }
        self.reach(Delivery::Accepted);
        if matches!(self.stage, Stage::Submitting | Stage::Resolving { .. }) {
            self.timers.stop(Timer::Resubmit);
            self.stage = Stage::Waiting(Waiting::default());
        }
        if self.facts.steps > 0 && matches!(self.stage, Stage::Waiting(_)) {
            self.reach(Delivery::Started);
        }
    }

    fn reach(&mut self, delivery: Delivery) {
        self.submissions.delivery = self.submissions.delivery.max(delivery);
        if delivery > Delivery::Unknown {
            self.record(delivery);
        }
    }

    fn record(&mut self, delivery: Delivery) {
        if delivery > self.submissions.recorded {
            self.submissions.recorded = delivery;
            match self.step.actions.last_mut() {
                // Both would be written at once.
                Some(Action::Record(last)) => *last = delivery,
                _ => self.step.actions.push(Action::Record(delivery)),
            }
        }
    }
}
