//! Permissions and questions: which of them concern the turn, and which are still open.

use std::collections::{BTreeMap, BTreeSet};

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

    fn asker(&self) -> Asker {
        let tool = match self {
            Self::Permission(request) => request.tool.as_ref(),
            Self::Question(request) => request.tool.as_ref(),
        };
        Asker { session: self.session().clone(), step: tool.map(|tool| tool.message_id.clone()) }
    }
}

/// Who waits for an answer.
#[derive(Debug)]
struct Asker {
    session: SessionId,
    /// The step whose tool call asks.
    step: Option<MessageId>,
}

impl Asker {
    /// Whether nothing waits any more: the step is over, or the session is not in the tree. The server goes on listing such a request,
    /// as after an abort, and says nothing about it.
    fn is_gone(&self, tree: &SessionTree) -> bool {
        let step = self.step.as_ref().and_then(|step| tree.log(&self.session, step)?.info.as_ref());
        let is_over = step.is_some_and(|step| step.time().completed.is_some());
        is_over || !tree.contains(&self.session)
    }
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
    open: BTreeMap<RequestId, Asker>,
    closed: BTreeSet<RequestId>,
    held: BTreeMap<RequestId, Request>,
    n_dropped: u64,
}

impl Requests {
    /// Takes in a request that is to be passed on: one that is new, of this tree, and still waited for. Returns whether it is such a
    /// one.
    pub(super) fn register(&mut self, tree: &SessionTree, request: &Request) -> bool {
        let id = request.id();
        let asker = request.asker();
        if self.open.contains_key(id) || self.closed.contains(id) || asker.is_gone(tree) {
            return false;
        }
        let is_confirmed = tree.is_confirmed(request.session());
        let n_passed_on = self.open.len() + self.closed.len();
        let is_full = if is_confirmed { n_passed_on >= MAX_REQUESTS } else { self.held.len() >= MAX_HELD };
        if is_full {
            self.n_dropped += 1;
            return false;
        }
        if is_confirmed {
            self.open.insert(id.clone(), asker);
        } else {
            self.held.insert(id.clone(), request.clone());
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
        let Some((request, _)) = self.open.remove_entry(request) else { return false };
        self.closed.insert(request)
    }

    pub(super) fn is_closed(&self, request: &RequestId) -> bool {
        self.closed.contains(request)
    }

    pub(super) fn open(&self) -> Vec<RequestId> {
        self.open.keys().cloned().collect()
    }

    /// The open requests that nothing waits for any more.
    pub(super) fn abandoned(&self, tree: &SessionTree) -> Vec<RequestId> {
        let gone = self.open.iter().filter(|(_, asker)| asker.is_gone(tree));
        gone.map(|(request, _)| request.clone()).collect()
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
