//! What goes into the machine and what comes out of it.

use std::collections::BTreeSet;

use super::Limit;
use crate::{
    ids::{RequestId, SessionId},
    wire::{MessageError, SessionStatus},
};

/// What a turn waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// Submit a prompt and wait for its answer.
    Answer,
    /// Wait until whatever runs now has come to rest.
    Rest,
}

/// What a session is doing, as last heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// Nothing, it says.
    Idle,
    /// It runs, or does something this version does not know.
    Busy,
    /// It waits to call the provider again.
    Retry,
}

impl From<&SessionStatus> for Activity {
    fn from(status: &SessionStatus) -> Self {
        match status {
            SessionStatus::Idle => Self::Idle,
            SessionStatus::Busy | SessionStatus::Unknown(_) => Self::Busy,
            SessionStatus::Retry { .. } => Self::Retry,
        }
    }
}

/// How far a prompt is known to have got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Delivery {
    /// It never left, or never arrived.
    NotSent,
    /// The server refused it.
    Rejected,
    /// It was sent, but nothing tells whether it arrived.
    Unknown,
    /// The server has it.
    Accepted,
    /// The model was called.
    Started,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// The event stream is open: what happens from now on will be seen.
    StreamOpened,
    /// The event stream is down, or has a gap: everything must be read again.
    StreamLost,
    /// Events were missed on a stream that stayed open: everything must be read again, but the server has not died.
    Gap,
    /// Something was observed in the session's tree.
    Observed {
        /// Whether it brings the turn forward.
        progress: bool,
    },
    /// A session of the tree said what it is doing.
    Status {
        /// The session that said so; `None` is the root.
        descendant: Option<SessionId>,
        /// What it is doing.
        activity: Activity,
    },
    /// The root session reported an error, which need not be the end.
    SessionError(MessageError),
    /// The root session is gone.
    SessionGone,
    /// A submission was answered, or failed: so much is known of it.
    Submitted(Delivery),
    /// The read that was asked for has been made, and its messages have been merged.
    ReadDone {
        /// What the tree is doing, if that was asked for.
        status: Option<TreeStatus>,
        /// Whether the merged messages brought the turn forward.
        progress: bool,
    },
    /// A read showed a descendant that was not known: what it asked before was not heard.
    DescendantFound,
    /// The read that was asked for failed.
    ReadFailed,
    /// A human was asked; the clocks stand still.
    HumanAsked(RequestId),
    /// A human answered, or need not any more.
    HumanAnswered(RequestId),
    /// The abort that was asked for has been made, or could not be.
    AbortDone,
    /// Somebody wants the turn to end.
    Stop(Stop),
    /// Time has passed.
    Tick,
}

/// What the sessions of a tree are doing, read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeStatus {
    /// What the root is doing.
    pub root: Activity,
    /// The descendants that are not idle.
    pub busy_descendants: BTreeSet<SessionId>,
}

impl TreeStatus {
    /// A tree whose root does this while these descendants are busy.
    pub fn new(root: Activity, busy_descendants: BTreeSet<SessionId>) -> Self {
        Self { root, busy_descendants }
    }
}

/// Why a turn was stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The caller aborted the session.
    Aborted,
    /// The permission policy says that such a request fails the turn.
    Refused,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Submit the prompt; always the identical request.
    Submit,
    /// Read the session, then say [`Input::ReadDone`] or [`Input::ReadFailed`].
    Read(Read),
    /// Abort the session and its descendants, then say [`Input::AbortDone`].
    Abort,
    /// The turn is over.
    Finish(Ended),
}

/// What to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Read {
    /// The messages back to the prompt's.
    pub messages: bool,
    /// The status.
    pub status: bool,
    /// What only a gap makes necessary: descendants, their messages, pending permissions and questions.
    pub tree: bool,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// The session is at rest and every message after the prompt is complete.
    Settled,
    /// The session is at rest but a message will never be complete: the server died meanwhile.
    Interrupted,
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
    /// It was stopped from outside.
    Stopped(Stop),
}

impl Ended {
    /// What it is in a word or two, without what the server said.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Interrupted => "interrupted",
            Self::NotStarted { .. } => "not started",
            Self::NotDelivered(_) => "not delivered",
            Self::Limit(_) => "out of time",
            Self::SessionGone => "session gone",
            Self::Stopped(_) => "stopped",
        }
    }
}
