//! What a running prompt tells while it runs.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::Stream;
use tokio::sync::mpsc;

use super::input::OnMessage;
use crate::{
    conversation::ConversationEvent,
    ids::MessageId,
    observe::Observed,
    wire::{Message, PermissionRequest, QuestionRequest, SessionStatus},
};

/// More updates than this wait for a slow reader before some are dropped.
const CAPACITY: usize = 1024;

/// Something that happened while a prompt runs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// The prompt was sent; also when it is sent again because it did not start.
    Submitted(MessageId),
    /// The conversation changed. Folding these in order gives the state.
    Conversation(ConversationEvent),
    /// A message of the root session is new or changed.
    Message(Arc<Message>),
    /// The root session started, stopped, or waits to call the provider again.
    Status(SessionStatus),
    /// A tool needs permission; the policy answers.
    PermissionAsked(PermissionRequest),
    /// The model has a question; the policy answers.
    QuestionAsked(QuestionRequest),
    /// The event stream is down; the session is polled meanwhile.
    StreamLost,
    /// The event stream is up again, and what was missed has been read.
    StreamRestored,
    /// The reader was too slow and missed some: take the whole state from
    /// [`ConversationManager::conversation`](super::ConversationManager::conversation).
    Missed,
}

/// The updates of one prompt; ends with the turn.
#[derive(Debug)]
pub struct Updates(mpsc::Receiver<Update>);

impl Stream for Updates {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.0.poll_recv(context)
    }
}

/// The sending side. Costs nothing once nobody listens.
pub(super) struct Reporter {
    sender: mpsc::Sender<Update>,
    missed: bool,
    on_message: Option<OnMessage>,
}

impl Reporter {
    pub(super) fn new(on_message: Option<OnMessage>) -> (Self, Updates) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self { sender, missed: false, on_message }, Updates(receiver))
    }

    /// For turns that nobody watches.
    pub(super) fn silent() -> Self {
        Self::new(None).0
    }

    pub(super) fn send(&mut self, update: Update) {
        if self.sender.is_closed() {
            return;
        }
        // The last place is for the word that some were missed, so that it comes where they would have come.
        let full = self.sender.capacity() <= 1;
        if !(full && self.missed) {
            self.missed = full;
            let update = if full { Update::Missed } else { update };
            // It has room, or nobody listens any more.
            let _ = self.sender.try_send(update);
        }
    }

    /// Tells of everything that was observed, and of the root's messages that it changed, each with whether it belongs to
    /// the turn.
    pub(super) fn observed(&mut self, observed: Observed, messages: Vec<(Arc<Message>, bool)>) {
        for (message, of_turn) in messages {
            if of_turn && let Some(observer) = &self.on_message {
                observer(&message);
            }
            self.send(Update::Message(message));
        }
        if !self.sender.is_closed() {
            for event in observed.events {
                self.send(Update::Conversation(event));
            }
        }
    }

    /// Whether anybody wants to know of messages.
    pub(super) fn wants_messages(&self) -> bool {
        self.on_message.is_some() || !self.sender.is_closed()
    }
}
