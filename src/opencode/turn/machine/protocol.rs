//! What goes into the machine and what comes out of it.

use std::borrow::Cow;

use super::{Reading, Request};
use crate::{
    ids::{MessageId, RequestId},
    opencode::{
        mirror::Observed,
        turn::{Delivery, Limit},
        wire::{MessageError, ServerEvent},
    },
};

/// What a turn waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    /// An answer to a prompt.
    Answer {
        /// The prompt's own message.
        prompt: MessageId,
        /// What it says, by which it is known under another id.
        text: String,
        /// How far an earlier client recorded that it got; [`Delivery::NotSent`] for a prompt that is new.
        from: Delivery,
    },
    /// That whatever runs now comes to rest.
    Rest,
}

/// Something happened.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The event stream is open: what happens from now on will be seen.
    StreamOpened,
    /// The event stream is down: what happens from now on will not be seen.
    StreamLost,
    /// Events were missed, and what happens from now on will be seen. If the stream stayed open, the server has not died meanwhile.
    StreamGap,
    /// The server said something about a session of the tree.
    Event(Cow<'a, ServerEvent>),
    /// The server does not know the session any more.
    SessionGone,
    /// The server refuses the credentials.
    Unauthorized,
    /// A submission was answered, or failed: so much is known of it.
    Submitted(Delivery),
    /// A submission was answered with what [`Input::SessionGone`] or [`Input::Unauthorized`] will say next: so much is known of it.
    SubmissionRefused(Delivery),
    /// What a read brought.
    ReadDone(ReadId, Reading),
    /// A read failed.
    ReadFailed(ReadId),
    /// A human was asked about a request: all limits stand still but that of a server out of reach, which could not take the answer.
    HumanAsked(RequestId),
    /// A request was decided about: no human is waited for. The server may not have the answer yet.
    Decided(RequestId),
    /// The decision about a request is to end the turn.
    Refused(RequestId),
    /// The abort that was asked for has been made, or could not be.
    AbortDone {
        /// Whether the server says that nothing runs any more.
        confirmed: bool,
    },
    /// The caller aborts the turn.
    Stop,
}

/// What came of a turn's [`advance`](super::Turn::advance).
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// What is to be done, in this order.
    pub(crate) actions: Vec<Action>,
    /// What the end of the turn means for the conversation.
    pub(crate) observed: Observed,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Record how far the prompt got, before the next action is performed. Each value comes at most once, and none after a
    /// greater one.
    Record(Delivery),
    /// Submit the prompt; always the identical request.
    Submit,
    /// Read the session, then say [`Input::ReadDone`] or [`Input::ReadFailed`].
    Read(Read),
    /// Decide about a request, then say [`Input::Decided`] or [`Input::Refused`]; before that [`Input::HumanAsked`] if it takes
    /// a human.
    Ask(Request),
    /// A request that was to be decided about needs no answer any more.
    Closed(RequestId),
    /// Abort the session and its descendants, then say [`Input::AbortDone`].
    Abort,
    /// The turn is over.
    Finish(Ended),
}

/// Tells one read of a turn from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadId(pub(super) u64);

/// A read that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    /// To be given back with what it brought.
    pub(crate) id: ReadId,
    /// What to read.
    pub(crate) scope: Scope,
}

/// What to read of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(crate) struct Scope {
    /// The messages back to the prompt's.
    pub(crate) messages: bool,
    /// The status.
    pub(crate) status: bool,
    /// What only a gap makes necessary: descendants and their messages, and all that is asked.
    pub(crate) tree: bool,
    /// What is asked: pending permissions and questions.
    pub(crate) requests: bool,
}

impl Scope {
    const NOTHING: Self = Self { messages: false, status: false, tree: false, requests: false };
    pub(super) const MESSAGES: Self = Self { messages: true, ..Self::NOTHING };
    pub(super) const STATUS: Self = Self { status: true, ..Self::NOTHING };
    pub(super) const REQUESTS: Self = Self { requests: true, ..Self::NOTHING };
    pub(super) const TREE: Self = Self { tree: true, requests: true, ..Self::NOTHING };
    /// Everything about the root.
    pub(super) const SESSION: Self = Self { messages: true, status: true, ..Self::NOTHING };
    pub(super) const ALL: Self = Self { messages: true, status: true, tree: true, requests: true };

    /// With the descendants, if they are wanted.
    pub(super) fn with_tree(self, tree: bool) -> Self {
        if tree { self.union(Self::TREE) } else { self }
    }

    pub(super) fn covers(self, other: Self) -> bool {
        self.union(other) == self
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self {
            messages: self.messages || other.messages,
            status: self.status || other.status,
            tree: self.tree || other.tree,
            requests: self.requests || other.requests,
        }
    }
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ended {
    /// The session is at rest and every message after the prompt is complete. The messages say whether the model finished or failed.
    AtRest,
    /// The session is at rest but a message will never be complete, or what the server had of the turn is gone: the server died
    /// meanwhile.
    Interrupted,
    /// The session is at rest but a message will never be complete, because the run died with this error in a server that lives.
    Failed(MessageError),
    /// The server has the prompt but does not run it.
    NotStarted {
        /// What it said about that.
        error: Option<MessageError>,
    },
    /// The prompt could not be delivered.
    NotDelivered(Delivery),
    /// A limit ran out; the session was aborted unless the caller wanted otherwise.
    Limit(Limit),
    /// The session does not exist any more.
    SessionGone,
    /// The server refuses the credentials.
    Unauthorized,
    /// It was stopped from outside.
    Stopped(Stop),
}

/// Why a turn was stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The caller aborted it.
    Aborted,
    /// The caller's policy says that such a request ends the turn.
    Refused,
}

impl Ended {
    /// What it is in a word or two, without what the server said.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::AtRest => "at rest",
            Self::Interrupted => "interrupted",
            Self::Failed(_) => "failed",
            Self::NotStarted { .. } => "not started",
            Self::NotDelivered(_) => "not delivered",
            Self::Limit(_) => "out of time",
            Self::SessionGone => "session gone",
            Self::Unauthorized => "unauthorized",
            Self::Stopped(_) => "stopped",
        }
    }
}
