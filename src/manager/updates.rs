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
    conversation::{ConversationEvent, SessionConversationState},
    ids::{MessageId, RequestId},
    observe::Observed,
    wire::{Message, PermissionRequest, QuestionRequest, SessionStatus},
};

/// More updates than this wait for a slow reader before some are dropped.
const CAPACITY: usize = 1024;

/// Something that happened while a prompt runs.
///
/// Many events may be taken in at once. What they say about the session and its requests is then told before what they add to
/// the conversation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// The prompt was sent; also when it is sent again because it did not start.
    Submitted(MessageId),
    /// The conversation changed. Folding these in order, on top of what it was before the prompt, gives the state; see also
    /// [`Update::Missed`].
    Conversation(ConversationEvent),
    /// A message of the root session is new or changed.
    Message(Arc<Message>),
    /// The root session started, stopped, or waits to call the provider again.
    Status(SessionStatus),
    /// A tool needs permission; the policy answers.
    PermissionAsked(PermissionRequest),
    /// The model has a question; the policy answers.
    QuestionAsked(QuestionRequest),
    /// A request needs no answer any more: the policy gave one, somebody else did, or an "always" for another covers it.
    RequestClosed(RequestId),
    /// The event stream is down; the session is polled meanwhile.
    StreamLost,
    /// The event stream is up again; what was missed is read next.
    StreamRestored,
    /// The reader was too slow and missed some. This is the conversation as it stands, and what follows continues it.
    Missed(Box<SessionConversationState>),
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
        // The last place is for the word that some were missed.
        self.missed |= self.sender.capacity() <= 1;
        if !self.missed {
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

    /// Something happened that the reader cannot be told of one by one.
    pub(super) fn miss(&mut self) {
        self.missed = true;
    }

    /// Whether the reader missed something and has room to learn of it.
    pub(super) fn can_catch_up(&self) -> bool {
        self.missed && self.sender.capacity() > CAPACITY / 2
    }

    /// Makes up for what the reader missed, if anything.
    pub(super) fn catch_up(&mut self, conversation: &SessionConversationState) {
        if self.missed {
            let told = self.sender.try_send(Update::Missed(Box::new(conversation.clone())));
            self.missed = told.is_err();
        }
    }

    /// Whether anybody wants to know of messages.
    pub(super) fn wants_messages(&self) -> bool {
        self.on_message.is_some() || !self.sender.is_closed()
    }
}
