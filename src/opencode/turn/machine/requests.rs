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

/// Requests of sessions that are not confirmed, which are few: a list that follows has those that are dropped here.
const MAX_HELD: usize = 256;
/// Requests of one turn: far more than any person or policy is asked.
const MAX_REQUESTS: usize = 8192;

/// The requests of a turn.
///
/// A session that only a task call names may belong to another turn, which answers its requests. They are held until the server says
/// that it is a descendant, and are never passed on if the server does not say so.
#[derive(Debug, Default)]
pub(super) struct Requests {
    passed_on: BTreeMap<RequestId, State>,
    held: BTreeMap<RequestId, Request>,
    n_dropped: u64,
}

impl Requests {
    /// Takes in a request that is to be passed on: one that is new, of this tree, and not of a step that is over, since after an
    /// abort the server goes on listing requests that nothing waits for. Returns whether it is such a one.
    pub(super) fn register(&mut self, tree: &SessionTree, request: &Request) -> bool {
        let step = request.step().and_then(|step| tree.log(request.session(), step)?.info.as_ref());
        let is_over = step.is_some_and(|step| step.time().completed.is_some());
        if is_over || self.passed_on.contains_key(request.id()) {
            return false;
        }
        let is_confirmed = tree.is_confirmed(request.session());
        if !is_confirmed && !tree.contains(request.session()) {
            return false;
        }
        let is_full =
            if is_confirmed { self.passed_on.len() >= MAX_REQUESTS } else { self.held.len() >= MAX_HELD };
        if is_full {
            self.n_dropped += 1;
            return false;
        }
        if is_confirmed {
            self.passed_on.insert(request.id().clone(), State::Open);
        } else {
            self.held.insert(request.id().clone(), request.clone());
        }
        is_confirmed
    }

    /// How many were neither passed on nor held, because there were too many.
    pub(super) fn n_dropped(&self) -> u64 {
        self.n_dropped
    }

    /// The requests that were held and whose session is confirmed by now.
    pub(super) fn release(&mut self, tree: &SessionTree) -> Vec<Request> {
        let held = std::mem::take(&mut self.held);
        let (confirmed, held) =
            held.into_iter().partition(|(_, request)| tree.is_confirmed(request.session()));
        self.held = held;
        BTreeMap::into_values(confirmed).collect()
    }

    /// Takes in that a request needs no answer any more. Returns whether it was open.
    pub(super) fn close(&mut self, request: &RequestId) -> bool {
        self.held.remove(request);
        match self.passed_on.get_mut(request) {
            Some(state) => std::mem::replace(state, State::Closed) == State::Open,
            None => false,
        }
    }

    pub(super) fn is_closed(&self, request: &RequestId) -> bool {
        self.passed_on.get(request) == Some(&State::Closed)
    }

    pub(super) fn open(&self) -> Vec<RequestId> {
        self.passed_on
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
