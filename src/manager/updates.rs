//! What a session tells its readers while it works.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock},
    task::{Context, Poll},
};

use futures_util::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    agent::{AgentStatus, Ask},
    conversation::{ConversationEvent, SessionConversationState},
    ids::{MessageId, RequestId},
    lock::lock,
    session::{StreamEvent, reduce_to_stream, stream_between},
};

/// How many updates wait for a slow reader. Those that come when there are more are dropped.
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
    /// A request needs no answer any more: the policy gave one, another client did, an "always" for another covers it, or nobody waits
    /// for its turn any longer. One that the agent keeps open is [asked](Update::Asked) again for whoever waits next.
    RequestClosed(RequestId),
    /// The event stream is down; the session is polled meanwhile.
    StreamLost,
    /// The event stream is up again; what was missed is read next.
    StreamRestored,
    /// The reader was too slow and missed updates of all kinds. This is the conversation as it stands, and what follows continues it.
    Missed(Box<SessionConversationState>),
}

/// The updates of a prompt, or of a session that is [watched](super::ConversationManager::watch).
#[derive(Debug)]
pub struct Updates {
    receiver: mpsc::Receiver<Update>,
    missed: Missed,
    began: Arc<OnceLock<SessionConversationState>>,
}

impl Updates {
    /// The next update; nothing when there will be no more.
    ///
    /// # Cancel safety
    /// An update is either returned or still there for the next call.
    pub async fn next(&mut self) -> Option<Update> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
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
            match Pin::new(&mut self.updates).poll_next(context) {
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
        let Self { receiver, missed, .. } = &mut *self;
        // Locked first: nothing may be sent between a look at the queue and a look at what was missed.
        let mut missed = lock(missed);
        match receiver.poll_recv(context) {
            Poll::Ready(Some(update)) => Poll::Ready(Some(update)),
            // A task that has read much without a break is made to yield, although more waits.
            Poll::Pending if !receiver.is_empty() => Poll::Pending,
            nothing => match missed.take() {
                Some(state) => Poll::Ready(Some(Update::Missed(Box::new(state)))),
                None => nothing,
            },
        }
    }
}

/// The conversation after the last update that a reader missed, for as long as the reader has not come so far.
type Missed = Arc<Mutex<Option<SessionConversationState>>>;

/// The sending side of [`Updates`]. Never blocks: a reader that is too slow misses updates and gets the state instead.
#[derive(Debug)]
pub(super) struct UpdateSender {
    sender: mpsc::Sender<Update>,
    missed: Missed,
    began: Arc<OnceLock<SessionConversationState>>,
}

impl UpdateSender {
    pub(super) fn new() -> (Self, Updates) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let (missed, began) = (Missed::default(), Arc::default());
        let updates = Updates { receiver, missed: Arc::clone(&missed), began: Arc::clone(&began) };
        (Self { sender, missed, began }, updates)
    }

    /// Says which conversation the updates continue.
    pub(super) fn begin(&self, state: &SessionConversationState) {
        self.began.get_or_init(|| state.clone());
    }

    pub(super) fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends an update. `state` is the conversation after it.
    pub(super) fn send(&self, update: Update, state: &SessionConversationState) {
        let mut missed = lock(&self.missed);
        if missed.is_some() || self.sender.capacity() == 0 {
            *missed = Some(state.clone());
        } else {
            // There is room, so sending fails only if the reader is gone.
            let _ = self.sender.try_send(update);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;
    use crate::{
        conversation::{BlockBody, BlockOrder, ConversationBlock},
        ids::ConversationId,
        time::Millis,
    };

    fn update(count: usize) -> Update {
        Update::Submitted(format!("msg_{count}").into())
    }

    fn state(title: &str) -> SessionConversationState {
        let order = BlockOrder::message(Millis::new(1), MessageId::new("msg_1"));
        let body = BlockBody::AssistantText { content: title.into(), model: None };
        let block = Arc::new(ConversationBlock::new("msg_1", order, body));
        let event = ConversationEvent::BlockUpsert { conversation_id: ConversationId::main(), block };
        let mut state = SessionConversationState::new();
        state.apply(&event);
        state
    }

    #[test]
    fn a_reader_that_is_too_slow_gets_the_state_and_goes_on() {
        let (sender, mut updates) = UpdateSender::new();
        for count in 0..CAPACITY {
            sender.send(update(count), &state("read"));
        }
        sender.send(update(0), &state("missed"));
        for count in 0..CAPACITY {
            assert_eq!(updates.next().now_or_never(), Some(Some(update(count))));
            sender.send(update(0), &state("missed last"));
        }
        let last = Update::Missed(Box::new(state("missed last")));
        assert_eq!(StreamExt::next(&mut updates).now_or_never(), Some(Some(last)));
        assert!(updates.next().now_or_never().is_none(), "nothing was missed since");
        sender.send(update(1), &state("later"));
        assert_eq!(updates.next().now_or_never(), Some(Some(update(1))));
        drop(sender);
        assert_eq!(updates.next().now_or_never(), Some(None));
    }

    #[test]
    fn what_was_missed_at_the_end_is_replaced_by_the_last_state() {
        let (sender, mut updates) = UpdateSender::new();
        for count in 0..2 * CAPACITY {
            sender.send(update(count), &state("before"));
        }
        sender.send(update(0), &state("last"));
        drop(sender);
        let mut all = Vec::new();
        while let Some(Some(update)) = updates.next().now_or_never() {
            all.push(update);
        }
        assert_eq!(all.len(), CAPACITY + 1);
        assert_eq!(all.last(), Some(&Update::Missed(Box::new(state("last")))));
        assert_eq!(updates.next().now_or_never(), Some(None));
    }

    /// A reader and a sender on threads of their own: whatever the reader misses, it ends with the last state.
    #[test]
    fn a_reader_on_another_thread_ends_with_the_last_state() {
        let (sender, mut updates) = UpdateSender::new();
        let states: Vec<_> = (0..20_000).map(|n| state(&n.to_string())).collect();
        let reader = std::thread::spawn(move || {
            let mut last = 0;
            loop {
                match updates.next().now_or_never() {
                    Some(Some(Update::Submitted(id))) => {
                        let number = id.as_str()[4..].parse().unwrap();
                        assert!(number >= last, "{number} after {last}");
                        last = number;
                    }
                    Some(Some(Update::Missed(state))) => {
                        let block = state.blocks().iter().next().unwrap();
                        last = block.body.content().unwrap().to_string().parse().unwrap();
                    }
                    Some(Some(other)) => panic!("{other:?}"),
                    Some(None) => return last,
                    None => std::thread::yield_now(),
                }
            }
        });
        for (count, state) in states.iter().enumerate() {
            sender.send(update(count), state);
        }
        drop(sender);
        assert_eq!(reader.join().unwrap(), states.len() - 1);
    }
}
