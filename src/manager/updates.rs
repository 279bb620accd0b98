//! What a session tells its readers while it works.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use futures_util::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    agent::{AgentStatus, Ask},
    conversation::{ConversationEvent, SessionConversationState},
    ids::{MessageId, RequestId},
    session::{StreamEvent, reduce_to_stream, stream_between},
};

/// More updates than this wait for a slow reader before some are dropped.
const CAPACITY: usize = 1024;

/// Something that happened in a session.
///
/// Many events may be taken in at once. What they say about the session and its requests is then told before what they add to
/// the conversation. As JSON an update is an object of its `kind` and its `value`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "camelCase")]
#[non_exhaustive]
pub enum Update {
    /// The prompt was sent; also when it is sent again because it did not start.
    Submitted(MessageId),
    /// The conversation changed. Folding these in order, on top of what it was when the reader began, gives the state; see also
    /// [`Update::Missed`].
    Conversation(ConversationEvent),
    /// The root session started, stopped, or waits to call the provider again.
    Status(AgentStatus),
    /// A tool needs permission, or the model has a question; the policy answers.
    Asked(Box<Ask>),
    /// A request needs no answer any more: the policy gave one, another client did, or an "always" for another covers it.
    RequestClosed(RequestId),
    /// The event stream is down; the session is polled meanwhile.
    StreamLost,
    /// The event stream is up again; what was missed is read next.
    StreamRestored,
    /// The reader was too slow and missed some. This is the conversation as it stands, and what follows continues it.
    Missed(Box<SessionConversationState>),
}

/// The updates of a prompt, or of a session that is [watched](super::ConversationManager::watch).
#[derive(Debug)]
pub struct Updates {
    receiver: mpsc::Receiver<Update>,
    began: Arc<OnceLock<SessionConversationState>>,
}

impl Updates {
    /// The next update; nothing when there will be no more.
    ///
    /// # Cancel safety
    /// An update is either returned or still there for the next call.
    pub async fn next(&mut self) -> Option<Update> {
        self.receiver.recv().await
    }
}

/// The updates of a prompt as events of the session's stream.
#[derive(Debug)]
pub(super) struct StreamEvents {
    updates: Updates,
    /// The conversation after the last update.
    state: Option<SessionConversationState>,
    ready: VecDeque<StreamEvent>,
}

impl StreamEvents {
    pub(super) fn new(updates: Updates) -> Self {
        Self { updates, state: None, ready: VecDeque::new() }
    }

    fn take(&mut self, update: Update) {
        let began = || self.updates.began.get().cloned().unwrap_or_default();
        let (next, events) = match update {
            Update::Conversation(event) => reduce_to_stream(&self.state.take().unwrap_or_else(began), &event),
            Update::Missed(now) => {
                let events = stream_between(&self.state.take().unwrap_or_else(began), &now);
                (*now, events)
            }
            Update::Submitted(_)
            | Update::Status(_)
            | Update::Asked(_)
            | Update::RequestClosed(_)
            | Update::StreamLost
            | Update::StreamRestored => return,
        };
        self.state = Some(next);
        self.ready.extend(events);
    }
}

impl Stream for StreamEvents {
    type Item = StreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            match self.updates.receiver.poll_recv(context) {
                Poll::Ready(Some(update)) => self.take(update),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Stream for Updates {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.receiver.poll_recv(context)
    }
}

/// The sending side of [`Updates`]. Never blocks: a reader that is too slow misses updates and gets the state instead.
#[derive(Debug)]
pub(super) struct UpdateSender {
    sender: mpsc::Sender<Update>,
    has_missed: bool,
    began: Arc<OnceLock<SessionConversationState>>,
}

impl UpdateSender {
    pub(super) fn new() -> (Self, Updates) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let began = Arc::default();
        (Self { sender, has_missed: false, began: Arc::clone(&began) }, Updates { receiver, began })
    }

    /// Says which conversation the updates continue.
    pub(super) fn begin(&self, state: &SessionConversationState) {
        self.began.get_or_init(|| state.clone());
    }

    pub(super) fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends an update. `state` is the conversation after it.
    pub(super) fn send(&mut self, update: Update, state: &SessionConversationState) {
        if self.has_missed && self.sender.capacity() > CAPACITY / 2 {
            self.catch_up(state);
            if matches!(update, Update::Conversation(_)) {
                // The state has it already.
                return;
            }
        }
        // The last place is kept for the state that replaces what was missed.
        self.has_missed |= self.sender.capacity() <= 1;
        if !self.has_missed {
            // There is room, so sending fails only if the reader is gone.
            let _ = self.sender.try_send(update);
        }
    }

    /// Replaces what was missed, if anything, by the state.
    pub(super) fn catch_up(&mut self, state: &SessionConversationState) {
        if self.has_missed {
            let sent = self.sender.try_send(Update::Missed(Box::new(state.clone())));
            self.has_missed = sent.is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    fn update(count: usize) -> Update {
        Update::Submitted(format!("msg_{count}").into())
    }

    #[test]
    fn a_reader_that_is_too_slow_gets_the_state_and_goes_on() {
        let (mut sender, mut updates) = UpdateSender::new();
        let state = SessionConversationState::new();
        for count in 0..CAPACITY + 10 {
            sender.send(update(count), &state);
        }
        for count in 0..CAPACITY - 1 {
            assert_eq!(updates.next().now_or_never(), Some(Some(update(count))));
        }
        sender.send(update(1), &state);
        assert_eq!(updates.next().now_or_never(), Some(Some(Update::Missed(Box::new(state.clone())))));
        assert_eq!(StreamExt::next(&mut updates).now_or_never(), Some(Some(update(1))));
        sender.catch_up(&state);
        assert!(updates.next().now_or_never().is_none(), "nothing was missed since");
        drop(sender);
        assert_eq!(updates.next().now_or_never(), Some(None));
    }

    #[test]
    fn what_was_missed_at_the_end_is_replaced_in_the_last_place() {
        let (mut sender, mut updates) = UpdateSender::new();
        let state = SessionConversationState::new();
        for count in 0..2 * CAPACITY {
            sender.send(update(count), &state);
        }
        sender.catch_up(&state);
        drop(sender);
        let mut last = None;
        while let Some(Some(update)) = updates.next().now_or_never() {
            last = Some(update);
        }
        assert_eq!(last, Some(Update::Missed(Box::new(state))));
    }
}
