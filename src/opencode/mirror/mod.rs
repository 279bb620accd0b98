//! The merge: any mixture of events, deltas and polled lists becomes forward-only conversation events.
//!
//! The stream may drop, repeat or stall, polled lists may be older than what was already streamed, text that is being streamed
//! is not in any list, and a child session's messages can arrive before the call that started it is known. This module keeps a
//! mirror of the messages of one session and its descendants, lets everything in it only move forward, and emits what
//! changed. Whatever the mixture, the emitted events fold to the same state as loading the final lists.
//!
//! Entry point: [`SessionTree`].

mod emit;
mod message;
mod nameless;
mod progress;
mod session;
mod signature;
mod tree;

#[cfg(any(test, feature = "client"))]
pub(crate) use message::MessageLog;
pub use signature::message_signature;
pub use tree::SessionTree;

use crate::{
    conversation::{BlockOrder, ConversationEvent},
    ids::{MessageId, PartId, SessionId},
};

/// What came of something observed.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Observed {
    /// What it means for the conversation, to be folded in this order.
    pub events: Vec<ConversationEvent>,
    /// The messages that are new, changed or gone; one may be named more than once.
    pub changed: Vec<(SessionId, MessageId)>,
    /// Whether the tree really got further: a new or grown part, a new or completed step, a tool that moved on. Repetitions,
    /// stale lists, prompts and what the server tidies up after a turn are no progress.
    pub progress: bool,
    /// Whether that was more than the beginning of a model call, such as an empty text: a provider that fails again and again begins
    /// each time.
    pub output: bool,
    /// Sessions that show in the tree from now on; their messages may not all have been seen.
    pub new_sessions: Vec<SessionId>,
}

impl Observed {
    /// Whether nothing came of it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what came of something observed later.
    pub fn append(&mut self, later: Self) {
        self.events.extend(later.events);
        for changed in later.changed {
            if self.changed.last() != Some(&changed) {
                self.changed.push(changed);
            }
        }
        self.progress |= later.progress;
        self.output |= later.output;
        self.new_sessions.extend(later.new_sessions);
    }
}

/// How far a list of messages can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Snapshot {
    /// Read at some moment while the session may be running: it adds and moves things forward, and undoes nothing.
    Live,
    /// The newest messages, read after the session came to rest: the truth, also about what is gone, from the first listed
    /// message on. A list of which some elements could not be decoded is only [`Snapshot::Live`].
    Settled,
    /// All messages, read after the session came to rest: the truth, and what is not listed is gone.
    Complete,
}

/// Where an observation comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Event,
    List(Snapshot),
}

impl Origin {
    /// Whether it is right where it differs from what is known.
    fn is_truth(self) -> bool {
        match self {
            Self::Event | Self::List(Snapshot::Live) => false,
            Self::List(Snapshot::Settled | Snapshot::Complete) => true,
        }
    }
}

/// What a step in one session leads to: what the caller sees, and what the tree has to see to.
#[derive(Debug, Default)]
struct Effects {
    out: Observed,
    /// Task parts that named a child session, or no longer do.
    claims: Vec<Claim>,
    /// Task calls that failed without naming their session: what they asked for, and their place.
    nameless: Vec<(String, BlockOrder)>,
    /// Messages for which there was no room.
    n_dropped: u64,
}

impl Effects {
    /// Takes out what messages used.
    fn withhold_usage(&mut self) {
        self.out.events.retain(|event| !matches!(event, ConversationEvent::MetadataUpdate { .. }));
    }
}

#[derive(Debug)]
struct Claim {
    child: SessionId,
    part: PartId,
    /// Nothing if the part is gone.
    owner: Option<Owner>,
}

/// A task part that named a child session.
#[derive(Debug)]
struct Owner {
    /// Where the part stands.
    order: BlockOrder,
    /// Whether the call returned at once, while the child works on.
    is_background: bool,
}
