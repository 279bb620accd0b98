//! One session of the manager: its conversation, its readers, its queue of prompts, and the turn that runs in it.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{oneshot, watch};

use super::{
    ended::pass_on,
    policy::{OwnPolicies, Policies},
    queue::{AbortCall, PromptQueue},
    updates::{Update, UpdateSender},
};
use crate::{
    agent::{AbortReport, ConversationSink, OpenSession, Opened},
    conversation::{BlockStatus, ConversationEvent, SessionConversationState},
    directory::Directory,
    ids::{MessageId, SessionId},
    lock::lock,
    session::ConversationSessionMeta,
    store::TurnRecord,
    time::Timestamp,
};

/// A session that the manager looks after.
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) directory: Directory,
    pub(super) queue: Arc<PromptQueue>,
    pub(super) agent: Arc<dyn OpenSession>,
    pub(super) conversation: Arc<Conversation>,
    meta: Mutex<ConversationSessionMeta>,
    policies: Mutex<OwnPolicies>,
    /// A turn that was given up after it was sent. It is over when the next prompt may be sent.
    left_open: Mutex<Option<TurnRecord>>,
}

/// A session's conversation and its readers.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// They change together, under one lock.
    live: Mutex<Live>,
    /// Counts what is worth to be saved.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Live {
    state: SessionConversationState,
    readers: Vec<(ReaderId, UpdateSender)>,
    next_reader: ReaderId,
    title: Option<String>,
    updated_at: Option<Timestamp>,
}

pub(super) type ReaderId = u64;

impl Session {
    pub(super) fn new(opened: Opened, conversation: Arc<Conversation>) -> Self {
        let meta = ConversationSessionMeta::from(opened.description);
        Self {
            id: meta.session_id.clone(),
            directory: meta.directory.clone(),
            queue: Arc::default(),
            agent: opened.session,
            conversation,
            meta: Mutex::new(meta),
            policies: Mutex::default(),
            left_open: Mutex::default(),
        }
    }

    /// What is known of it now.
    pub(super) fn meta(&self) -> ConversationSessionMeta {
        let mut meta = lock(&self.meta).clone();
        let live = self.conversation.live();
        if let Some(title) = &live.title {
            meta.title.clone_from(title);
        }
        meta.updated_at = live.updated_at.map_or(meta.updated_at, |at| at.max(meta.updated_at));
        meta
    }

    /// Changes what is known of it besides what the agent says.
    pub(super) fn change_meta<T>(&self, change: impl FnOnce(&mut ConversationSessionMeta) -> T) -> T {
        change(&mut lock(&self.meta))
    }

    /// The policies of a turn that begins now, unless its prompt has others.
    pub(super) fn policies(&self, manager: &Policies) -> Policies {
        lock(&self.policies).or(manager)
    }

    pub(super) fn change_policies(&self, change: impl FnOnce(&mut OwnPolicies)) {
        change(&mut lock(&self.policies));
    }

    /// What came of a call to abort it, which is given back if no prompt is there to answer it.
    pub(super) async fn aborted(
        &self,
        unanswered: Option<AbortCall>,
        report: oneshot::Receiver<AbortReport>,
    ) -> AbortReport {
        drop(unanswered);
        if let Ok(report) = report.await {
            return report;
        }
        // A prompt that begins before the agent has answered would be hit.
        let permit = match self.queue.try_enter() {
            Some(ticket) => ticket.wait().await,
            None => None,
        };
        let report = self.agent.abort().await;
        if let Some(permit) = permit {
            pass_on(self, permit, Some(&report)).await;
        }
        report
    }

    /// Remembers a turn, if there is one, that is given up while the agent goes on with it.
    pub(super) fn leave_open(&self, record: Option<TurnRecord>) {
        if record.is_some() {
            *lock(&self.left_open) = record;
        }
    }

    /// The turn that was given up, if there is one; it is not remembered any longer.
    pub(super) fn take_left_open(&self) -> Option<TurnRecord> {
        lock(&self.left_open).take()
    }

    /// Forgets that a turn was given up: it goes on.
    pub(super) fn not_left_open(&self, message: &MessageId) {
        lock(&self.left_open).take_if(|turn| turn.prompt.message_id == *message);
    }
}

impl Conversation {
    /// The conversation as it is now; cheap.
    pub(super) fn state(&self) -> SessionConversationState {
        self.live().state.clone()
    }

    /// Adds a reader, which gets every update from now on; returns the state that they continue.
    pub(super) fn add_reader(&self, reader: UpdateSender) -> (ReaderId, SessionConversationState) {
        let mut live = self.live();
        // A session that is at rest tells them nothing, and so would keep those that have gone.
        live.readers.retain(|(_, reader)| !reader.is_gone());
        reader.begin(&live.state);
        let id = live.next_reader;
        live.next_reader += 1;
        live.readers.push((id, reader));
        (id, live.state.clone())
    }

    /// Adds a reader until the result is dropped, however that comes about.
    pub(super) fn read_along(&self, reader: UpdateSender) -> Reading<'_> {
        Reading { conversation: self, reader: self.add_reader(reader).0 }
    }

    /// Hands an update to all readers.
    pub(super) fn tell(&self, update: &Update) {
        let live = self.live();
        for (_, reader) in &live.readers {
            reader.send(update.clone(), &live.state);
        }
    }

    /// Takes over what was saved of it, if nothing is known of it yet.
    pub(super) fn restore(&self, saved: SessionConversationState) {
        let live = &mut *self.live();
        if live.state == SessionConversationState::default() {
            live.state = saved;
            let state = live.state.clone();
            for (_, reader) in &live.readers {
                reader.send(Update::Missed(Box::new(state.clone())), &state);
            }
        }
    }

    /// Says how often something changed that is worth to be saved: a block is complete, or a turn over.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Something changed that is worth to be saved.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.live)
    }
}

/// A reader of one turn.
pub(super) struct Reading<'a> {
    conversation: &'a Conversation,
    reader: ReaderId,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.conversation.live().readers.retain(|(reader, _)| *reader != self.reader);
    }
}

impl ConversationSink for Conversation {
    fn emit(&self, events: Vec<ConversationEvent>) {
        let completes = events.iter().any(completes);
        let live = &mut *self.live();
        live.readers.retain(|(_, reader)| !reader.is_gone());
        for event in events {
            live.state.apply(&event);
            if let Some(((_, last), others)) = live.readers.split_last() {
                for (_, reader) in others {
                    reader.send(Update::Conversation(event.clone()), &live.state);
                }
                last.send(Update::Conversation(event), &live.state);
            }
        }
        if completes {
            self.changed();
        }
    }

    fn describe(&self, title: Option<&str>, updated_at: Option<Timestamp>) {
        let mut live = self.live();
        if let Some(title) = title {
            live.title = Some(title.to_owned());
        }
        live.updated_at = live.updated_at.max(updated_at);
    }
}

/// Whether a block is complete after an event, or gone.
fn completes(event: &ConversationEvent) -> bool {
    match event {
        ConversationEvent::BlockUpsert { block, .. } => block.status != BlockStatus::Pending,
        ConversationEvent::SubagentCompleted(_)
        | ConversationEvent::SessionIdle { .. }
        | ConversationEvent::BlockRemoved { .. } => true,
        ConversationEvent::BlockDelta { .. }
        | ConversationEvent::SubagentSpawned(_)
        | ConversationEvent::MetadataUpdate { .. } => false,
    }
}
