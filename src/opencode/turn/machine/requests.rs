//! Permissions and questions: which of them concern the turn, and which are still open.

use std::collections::BTreeMap;

use super::Reading;
use crate::{
    ids::{MessageId, RequestId, SessionId},
    opencode::{
        mirror::SessionTree,
        wire::{PermissionRequest, QuestionRequest},
    },
};

/// Something that a session of the tree needs an answer to before it goes on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    /// A tool needs permission.
    Permission(PermissionRequest),
    /// The model has questions.
    Question(QuestionRequest),
}

impl Request {
    pub(crate) fn id(&self) -> &RequestId {
        match self {
            Self::Permission(request) => &request.id,
            Self::Question(request) => &request.id,
        }
    }

    pub(crate) fn session(&self) -> &SessionId {
        match self {
            Self::Permission(request) => &request.session_id,
            Self::Question(request) => &request.session_id,
        }
    }

    /// The step whose tool call asks.
    fn step(&self) -> Option<&MessageId> {
        let tool = match self {
            Self::Permission(request) => request.tool.as_ref(),
            Self::Question(request) => request.tool.as_ref(),
        };
        tool.map(|tool| &tool.message_id)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Closed,
}

/// The requests that were passed on.
#[derive(Debug, Default)]
pub(super) struct Requests(BTreeMap<RequestId, State>);

impl Requests {
    /// Takes in a request that is to be passed on: one that is new, of this tree, and not of a step that is over, since after an
    /// abort the server goes on listing requests that nothing waits for. Returns whether it is such a one.
    pub(super) fn register(&mut self, tree: &SessionTree, request: &Request) -> bool {
        let step = request.step().and_then(|step| tree.log(request.session(), step)?.info.as_ref());
        let is_over = step.is_some_and(|step| step.time().completed.is_some());
        if is_over || !tree.contains(request.session()) || self.0.contains_key(request.id()) {
            return false;
        }
        self.0.insert(request.id().clone(), State::Open);
        true
    }

    /// Takes in that a request needs no answer any more. Returns whether it was open.
    pub(super) fn close(&mut self, request: &RequestId) -> bool {
        match self.0.get_mut(request) {
            Some(state) => std::mem::replace(state, State::Closed) == State::Open,
            None => false,
        }
    }

    pub(super) fn is_closed(&self, request: &RequestId) -> bool {
        self.0.get(request) == Some(&State::Closed)
    }

    pub(super) fn open(&self) -> Vec<RequestId> {
        self.0
            .iter()
            .filter(|(_, state)| **state == State::Open)
            .map(|(request, _)| request.clone())
            .collect()
    }
}

/// Which of the requests that were open before a read it shows to be answered; none if it does not list all that is pending.
pub(super) fn unlisted(open_before: Vec<RequestId>, reading: &Reading) -> Vec<RequestId> {
    let (Some(permissions), Some(questions)) = (&reading.permissions, &reading.questions) else {
        return Vec::new();
    };
    let is_listed = |open: &RequestId| {
        permissions.iter().any(|request| request.id == *open)
            || questions.iter().any(|request| request.id == *open)
    };
    open_before.into_iter().filter(|open| !is_listed(open)).collect()
}
