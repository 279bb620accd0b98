//! Taking in what the server said and what was read.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use super::{
    Action, Activity, Leftovers, Messages, POLL_INTERVAL, ReadId, Reading, Request, Scope, Stage, Timer,
    Turn, Waiting, reads::ReadUnderWay, requests,
};
use crate::{
    ids::{MessageId, RequestId, SessionId},
    opencode::{
        mirror::{Observed, SessionTree, Snapshot, message_signature},
        wire::{EventPayload, Message, MessageError, ServerEvent, SessionStatus},
    },
};

impl Turn {
    pub(super) fn take_event(
        &mut self,
        now: Duration,
        tree: &mut SessionTree,
        event: Cow<'_, ServerEvent>,
    ) -> Observed {
        // More text changes no fact.
        self.facts_outdated |= !matches!(event.payload, EventPayload::PartDelta(_));
        self.lacks_message_events &=
            !matches!(event.payload, EventPayload::MessageUpdated(_) | EventPayload::PartUpdated { .. });
        let is_announced = matches!(event.payload, EventPayload::SessionCreated(_));
        // There may be many requests, and few events end what asks.
        let may_abandon = match &event.payload {
            EventPayload::MessageUpdated(message) => message.time().completed.is_some(),
            EventPayload::SessionDeleted(_) => true,
            _ => false,
        };
        let (observed, event) = match event.payload {
            EventPayload::MessageUpdated(_)
            | EventPayload::PartUpdated { .. }
            | EventPayload::PartDelta(_) => (tree.apply_event(event), None),
            _ => (tree.apply_event(&*event), Some(event)),
        };
        self.ask_what_was_held(now, tree);
        if may_abandon {
            self.close_abandoned(now, tree);
        }
        if observed.progress {
            self.progressed(now, &observed);
            self.since_submission.fatal_error = None;
        }
        if !observed.new_sessions.is_empty() && !is_announced {
            self.found_descendant();
        }
        if let Some(event) = event {
            self.heard(now, tree, &event.payload);
        }
        self.restart_silence(now);
        observed
    }

    /// Takes in what an event says about the run.
    fn heard(&mut self, now: Duration, tree: &SessionTree, event: &EventPayload) {
        match event {
            EventPayload::SessionStatus { session_id, status } => {
                self.status_heard(now, tree, session_id, status);
            }
            EventPayload::SessionIdle { session_id } => {
                self.status_heard(now, tree, session_id, &SessionStatus::Idle);
            }
            EventPayload::SessionError { session_id: Some(session), error: Some(error) }
                if session == tree.root() =>
            {
                self.error_heard(error);
            }
            EventPayload::SessionDeleted(info) if info.id == *tree.root() => self.session_gone(),
            EventPayload::SessionDeleted(_) => self.statuses.forget_deleted(tree),
            EventPayload::PermissionAsked(request) => {
                self.asked(now, tree, Request::Permission(request.clone()));
            }
            EventPayload::QuestionAsked(request) => {
                self.asked(now, tree, Request::Question(request.clone()));
            }
            EventPayload::PermissionReplied { request_id, .. }
            | EventPayload::QuestionClosed { request_id, .. } => self.answered_elsewhere(now, request_id),
            EventPayload::MessageUpdated(_)
            | EventPayload::MessageRemoved { .. }
            | EventPayload::PartUpdated { .. }
            | EventPayload::PartDelta(_)
            | EventPayload::PartRemoved { .. }
            | EventPayload::SessionCreated(_)
            | EventPayload::SessionUpdated(_)
            | EventPayload::SessionError { .. }
            | EventPayload::SessionCompacted { .. }
            | EventPayload::ServerConnected
            | EventPayload::ServerHeartbeat
            | EventPayload::InstanceDisposed { .. }
            | EventPayload::Environment(_)
            | EventPayload::Unknown { .. } => {}
        }
    }

    fn progressed(&mut self, now: Duration, observed: &Observed) {
        self.limits.progressed(now);
        if observed.output {
            self.limits.provider_answered();
        }
        self.reads.progressed();
        self.restart_silence(now);
        self.since_submission.failed_running &= self.statuses.root() == Activity::Idle;
    }

    /// A descendant showed by something else than its own creation: what it asked before was not heard.
    fn found_descendant(&mut self) {
        self.reads.want(Scope::TREE);
    }

    fn status_heard(
        &mut self,
        now: Duration,
        tree: &SessionTree,
        session: &SessionId,
        status: &SessionStatus,
    ) {
        let activity = Activity::from(status);
        if session == tree.root() {
            let is_new_run = self.statuses.root() == Activity::Idle && activity != Activity::Idle;
            self.since_submission.failed_running &= !is_new_run;
            self.statuses.root_says(activity);
            // A prompt's message comes before its run.
            let is_unheard = |prompt| tree.log(tree.root(), prompt).is_none();
            self.lacks_message_events |= activity.is_running() && self.prompt().is_some_and(is_unheard);
            self.since_submission.stopped |= activity == Activity::Idle;
            self.root_acts();
        } else if tree.contains(session) {
            self.statuses.descendant_says(session, activity);
        }
        if tree.is_confirmed(session) {
            self.session_retries(now, status);
        }
    }

    /// Takes in that a session of the tree waits for its provider, if that is what it does.
    fn session_retries(&mut self, now: Duration, status: &SessionStatus) {
        if let SessionStatus::Retry { message, .. } = status {
            self.limits.provider_retries(now);
            self.provider_said = Some(message.clone());
        }
    }

    /// Takes in what the root is doing now, whichever way that was learnt.
    fn root_acts(&mut self) {
        if self.statuses.root().is_running() {
            self.since_submission.ran = true;
            self.since_submission.fatal_error = None;
            self.drop_candidate();
        }
    }

    fn error_heard(&mut self, error: &MessageError) {
        let since = &mut self.since_submission;
        since.stopped = true;
        self.submissions.n_failed += u32::from(since.error.is_none());
        since.error.get_or_insert_with(|| error.clone());
        if self.statuses.root() != Activity::Idle {
            since.failed_running = true;
        } else if !since.failed_running {
            since.fatal_error.get_or_insert_with(|| error.clone());
        }
    }

    fn asked(&mut self, now: Duration, tree: &SessionTree, request: Request) {
        if self.requests.register(tree, &request) {
            // What asks goes on when it gets an answer.
            self.limits.restart(now);
            self.step.actions.push(Action::Ask(request));
        }
    }

    /// Passes on what sessions asked that are confirmed only now.
    fn ask_what_was_held(&mut self, now: Duration, tree: &SessionTree) {
        for request in self.requests.release(tree) {
            self.asked(now, tree, request);
        }
    }

    /// Closes the requests that nothing waits for any more, as those of a subagent that was aborted by somebody else: the server does not
    /// say that they are over, and a human who was asked would stop the clocks for ever. What the turn itself ends goes with it.
    fn close_abandoned(&mut self, now: Duration, tree: &SessionTree) {
        if self.is_ending() {
            return;
        }
        for request in self.requests.abandoned(tree) {
            self.answered_elsewhere(now, &request);
        }
    }

    fn answered_elsewhere(&mut self, now: Duration, request: &RequestId) {
        self.limits.human_answered(now, request);
        if self.requests.close(request) {
            self.step.actions.push(Action::Closed(request.clone()));
        }
    }

    pub(super) fn read_done(
        &mut self,
        now: Duration,
        tree: &mut SessionTree,
        id: ReadId,
        mut reading: Reading,
    ) -> Observed {
        self.limits.in_reach();
        let read = self.reads.end(id);
        let snapshot = read.as_ref().map_or(Snapshot::Live, |read| self.certainty(read));
        let observed = merge(tree, &mut reading, snapshot, &mut self.signatures);
        self.ask_what_was_held(now, tree);
        self.close_abandoned(now, tree);
        self.facts_outdated = true;
        if observed.progress {
            self.lacks_message_events |= self.is_stream_open() && self.reads.n_silence_polls() > 0;
            self.progressed(now, &observed);
        }
        // A read that was given up still shows what it shows, but nothing waits for it.
        let Some(read) = read else { return observed };
        if let Some(status) = &reading.status
            && read.mark.n_status_changes == self.statuses.n_changes()
        {
            self.statuses.replace(tree, status);
            self.root_acts();
            for session in tree.confirmed() {
                self.session_retries(now, status.get(session));
            }
        }
        if !observed.new_sessions.is_empty() {
            self.found_descendant();
        }
        if reading.lacks_children && tree.has_unconfirmed() {
            // Whose child a session is that a call names is still not known, and it may wait for an answer.
            self.timers.set(Timer::ReadPause, now + POLL_INTERVAL);
            self.reads.want(Scope::TREE);
        }
        self.looked(&read);
        if !self.is_stream_open() {
            self.timers.set(Timer::ReadPause, now + POLL_INTERVAL);
        }
        self.read_ended(tree, &reading);
        for request in requests::unlisted(read.open_requests.clone(), &reading) {
            self.answered_elsewhere(now, &request);
        }
        for request in reading.permissions.into_iter().flatten() {
            self.asked(now, tree, Request::Permission(request));
        }
        for request in reading.questions.into_iter().flatten() {
            self.asked(now, tree, Request::Question(request));
        }
        let before = self.facts;
        self.look(tree);
        let went_on = (before.steps, before.incomplete) != (self.facts.steps, self.facts.incomplete);
        if went_on && before.steps > 0 {
            // The run went on unheard. A list that differs otherwise only corrects what was streamed, and a run that was not known
            // before may have died at once.
            self.since_submission.fatal_error = None;
        }
        self.closing_read(now, read.scope);
        self.confirm(now, tree, &read);
        observed
    }

    /// How far the messages of a read can be trusted: they are the last word if the session came to rest before it began, and
    /// nothing was heard of since.
    fn certainty(&self, read: &ReadUnderWay) -> Snapshot {
        let is_final = match &self.stage {
            Stage::Closing { leftovers, .. } => *leftovers == Leftovers::Final,
            Stage::Waiting(Waiting { candidate: Some(candidate), .. }) => {
                candidate.is_at_rest() && candidate.was_due(read) && read.mark == self.mark()
            }
            _ => false,
        };
        if is_final { Snapshot::Settled } else { Snapshot::Live }
    }

    /// What a read means for the stages that wait for one.
    fn read_ended(&mut self, tree: &SessionTree, reading: &Reading) {
        let prompt = self.prompt().cloned();
        match &mut self.stage {
            Stage::Resolving { is_absent } => {
                // What is not in a list that could not be decoded in full may be there.
                let is_known = reading.messages.as_ref().is_some_and(|messages| messages.is_sound);
                let exists = prompt.is_some_and(|prompt| tree.log(tree.root(), &prompt).is_some());
                *is_absent = is_known && !exists;
            }
            Stage::Opening
            | Stage::Submitting
            | Stage::Waiting(_)
            | Stage::Aborting { .. }
            | Stage::Closing { .. }
            | Stage::Finished => {}
        }
    }

    pub(super) fn read_failed(&mut self, now: Duration, id: ReadId) {
        let Some(read) = self.reads.end(id) else { return };
        self.lost_contact(now);
        self.looked(&read);
        if let Stage::Closing { is_read, .. } = &mut self.stage {
            *is_read = true;
        }
        // What was to be read is still to be read, but a failing server is not asked in a tight loop.
        self.timers.set(Timer::ReadPause, now + POLL_INTERVAL);
        self.reads.want(read.scope);
    }

    /// Takes in that a request failed, which says little while the stream is open.
    pub(super) fn lost_contact(&mut self, now: Duration) {
        if !self.is_stream_open() {
            self.limits.out_of_reach(now);
        }
    }

    fn looked(&mut self, read: &ReadUnderWay) {
        if let Stage::Waiting(Waiting { overdue: Some(overdue), .. }) = &mut self.stage {
            overdue.has_looked |= read.began >= overdue.since;
        }
    }
}

/// Merges what was read. A session that runs by its own word, or a list that could not be decoded in full, is never the last word.
fn merge(
    tree: &mut SessionTree,
    reading: &mut Reading,
    snapshot: Snapshot,
    signatures: &mut Signatures,
) -> Observed {
    let Reading { status, children, of_children, messages, .. } = reading;
    let mut reduce = |session: &SessionId, messages: &mut Messages| {
        let status = status.as_ref().map(|status| Activity::from(status.get(session)));
        let runs = status.is_some_and(Activity::is_running);
        if messages.is_sound && !runs && snapshot == Snapshot::Settled {
            return Snapshot::Settled;
        }
        messages.messages.retain(|message| signatures.is_news(message));
        Snapshot::Live
    };
    let mut observed = Observed::default();
    for child in &*children {
        observed.append(tree.apply_session(child));
    }
    for (child, messages) in of_children {
        let snapshot = reduce(child, messages);
        observed.append(tree.apply_messages(child, &messages.messages, snapshot));
    }
    if let Some(messages) = messages {
        let root = tree.root().clone();
        let snapshot = reduce(&root, messages);
        observed.append(tree.apply_messages(&root, &messages.messages, snapshot));
    }
    observed
}

/// What was last read of each message. A list that is read while the session works is reduced to what is new in it; the last word
/// stays whole, because it also says what is gone.
#[derive(Debug, Default)]
pub(super) struct Signatures(HashMap<MessageId, u64>);

impl Signatures {
    /// Whether a message is not as it was read last.
    fn is_news(&mut self, message: &Message) -> bool {
        let signature = message_signature(message);
        self.0.insert(message.info.id().clone(), signature) != Some(signature)
    }
}
