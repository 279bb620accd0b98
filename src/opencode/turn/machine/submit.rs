//! Getting the prompt to the server, once.

use std::{sync::Arc, time::Duration};

use super::{Action, Delivery, Ended, Goal, Scope, Stage, Stream, Timer, Turn, Waiting};
use crate::{
    ids::MessageId,
    opencode::{
        mirror::SessionTree,
        wire::{Message, MessageError},
    },
    time::Millis,
};

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
    /// How many of them were an earlier client's.
    n_sent_before: u32,
    n_unanswered: u32,
    /// Submissions because the prompt did not start.
    pub(super) n_kicks: u32,
    /// Submissions that an error was reported after.
    pub(super) n_failed: u32,
    /// When the newest prompt was made that the session had before the first submission.
    before: Option<Millis>,
    /// The server has the prompt under an id of its own. To submit it again would make another one.
    pub(super) is_renamed: bool,
}

impl Submissions {
    pub(super) fn new(goal: &Goal) -> Self {
        let from = match goal {
            Goal::Answer { from, .. } => *from,
            Goal::Rest => Delivery::NotSent,
        };
        let n_sent = u32::from(from != Delivery::NotSent);
        Self {
            delivery: from,
            recorded: from,
            n_sent,
            n_sent_before: n_sent,
            n_unanswered: 0,
            n_kicks: 0,
            n_failed: 0,
            before: None,
            is_renamed: false,
        }
    }

    pub(super) fn delivery(&self) -> Delivery {
        // A request that is under way may arrive.
        if self.n_unanswered > 0 { self.delivery.max(Delivery::Unknown) } else { self.delivery }
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.n_sent == 0
    }

    /// Whether only an earlier client has sent the prompt, so that others may have followed it.
    pub(super) fn is_found(&self) -> bool {
        self.n_sent == self.n_sent_before && !self.is_unsent()
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
        if self.submissions.is_unsent() {
            self.submissions.before = self.facts.last_prompt;
        }
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
            Delivery::Accepted | Delivery::Started | Delivery::Rejected => self.limits.in_reach(),
            Delivery::NotSent | Delivery::Unknown => self.lost_contact(now),
        }
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

    /// Takes in what became of a submission, and leaves the end of the turn to what is said next.
    pub(super) fn submission_refused(&mut self, delivery: Delivery) {
        self.submissions.n_unanswered = self.submissions.n_unanswered.saturating_sub(1);
        // An earlier submission may have arrived all the same.
        self.reach(delivery);
    }

    fn start_resolving(&mut self, now: Duration) {
        // What never left cannot be there; for anything else the session must be read first.
        let is_absent = self.submissions.delivery == Delivery::NotSent;
        let pause = RESUBMIT_PAUSE * 2_u32.saturating_pow(self.submissions.n_sent.saturating_sub(1));
        self.timers.set(Timer::Resubmit, now + pause);
        self.stage = Stage::Resolving { is_absent };
    }

    pub(super) fn resolve(&mut self, now: Duration, tree: &SessionTree, is_absent: bool) {
        if !is_absent {
            if !self.reads.is_under_way() {
                self.reads.want(Scope::MESSAGES);
            }
        } else if let Some(other) = self.renamed(tree) {
            self.attach(now, tree, other);
        } else if self.submissions.n_sent > MAX_RESUBMITS {
            self.finish(Ended::NotDelivered(self.submissions.delivery));
        } else if !self.timers.is_set(Timer::Resubmit) {
            self.stage = Stage::Submitting;
            self.submit();
        }
    }

    /// The message that the prompt became on a server, or behind a proxy, that ignores the ids of its clients: one with the same
    /// text that was not there before.
    pub(super) fn renamed(&self, tree: &SessionTree) -> Option<MessageId> {
        let Goal::Answer { prompt, text, from } = &self.goal else { return None };
        if self.facts.exists || self.submissions.is_renamed || self.submissions.is_unsent() {
            return None;
        }
        // What was there before an earlier client's submission is known by the time in the prompt's id at best: only the newest
        // prompt can be it.
        let n_prompts = if *from == Delivery::NotSent { usize::MAX } else { 1 };
        let is_new = |message: &&Arc<Message>| {
            let created = message.info.time().created;
            Some(created) > self.submissions.before && !is_older(created, prompt)
        };
        let prompts = tree.messages(tree.root()).rev().take_while(is_new);
        let texts = prompts.filter_map(|message| Some((message, message.prompt_text()?))).take(n_prompts);
        let mut same = texts.filter(|(_, other)| other == text);
        same.next().map(|(message, _)| message.info.id().clone())
    }

    /// Waits for the prompt under the id that the server gave it. An earlier client's may be an older one with the same text, of which
    /// nothing can be said but that this one must not be sent again.
    pub(super) fn attach(&mut self, now: Duration, tree: &SessionTree, id: MessageId) {
        let Goal::Answer { prompt, from, .. } = &mut self.goal else { return };
        if *from != Delivery::NotSent {
            return self.finish(Ended::Interrupted);
        }
        *prompt = id;
        self.submissions.is_renamed = true;
        self.drop_candidate();
        self.limits.restart(now);
        self.facts_outdated = true;
        self.look(tree);
        self.see_delivery();
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

/// Whether something was created before an id was made. The first 36 bits of an id are milliseconds of the server's clock; an id of
/// another form says nothing.
fn is_older(created: Millis, id: &MessageId) -> bool {
    const MILLIS: i64 = (1 << 36) - 1;
    let digits = id.as_str().strip_prefix("msg_").and_then(|rest| rest.get(..12));
    let Some(value) = digits.and_then(|digits| i64::from_str_radix(digits, 16).ok()) else { return false };
    // They wrap every 795 days, and nothing that is compared is half as old.
    let age = (value >> 12).wrapping_sub(created.get()) & MILLIS;
    age > 0 && age <= MILLIS / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_what_was_there_before_it() {
        let made = 1_794_925_087_564_i64;
        let id = MessageId::from(format!("msg_{:012x}QX6wdvZ6cqWsYl", ((made << 12) | 1) & 0xffff_ffff_ffff));
        for (created, older) in
            [(made - 1, true), (made, false), (made + 1, false), (made - 86_400_000, true)]
        {
            assert_eq!(is_older(Millis::new(created), &id), older, "{created}");
        }
        for id in ["msg_mine", "mine", "msg_123456789abg"] {
            assert!(!is_older(Millis::new(made), &id.into()), "{id}");
        }
    }
}
