//! Requests that wait for a person.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::policy::{AskHandler, PermissionPolicy, QuestionPolicy};
use crate::{
    agent::{Ask, Decision},
    error::InvalidInput,
    ids::{RequestId, SessionId},
    lock::lock,
};

/// A person who was asked in the evening may answer in the morning. After that the task has waited for long enough.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Where requests for permission and questions wait for a person; cheap to clone, and all clones share one list.
///
/// Its policies ask the desk: for all sessions of a manager ([`ManagerBuilder`](super::ManagerBuilder)), for one session
/// ([`set_permissions`](super::ConversationManager::set_permissions)) or for one prompt ([`PromptInput`](super::PromptInput)). A request
/// is on the desk until it is answered here or elsewhere, its turn ends, or the desk's patience is over.
///
/// A desk keeps nothing on disk: an `OpenCode` server knows which of its requests are open, and a manager that
/// [restores](super::ConversationManager::restore) a turn after a restart is asked again, under the same ids. A process of Claude Code
/// does not wait for the next manager: it takes the end of the one that it asked for a no, tells the model so, and goes on.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{ApprovalDesk, ConversationManager, Decision, OpenCodeClient};
///
/// # fn example(client: OpenCodeClient) -> Result<(), Box<dyn std::error::Error>> {
/// let desk = ApprovalDesk::new();
/// let manager = ConversationManager::builder(client)
///     .permissions(desk.permissions())
///     .questions(desk.questions())
///     .build();
/// // Later, when a person has looked at the list:
/// for ask in desk.pending() {
///     println!("{:?} of task {:?}", ask.permission(), ask.task);
///     desk.answer(&ask.root, &ask.id, Decision::AllowOnce)?;
/// }
/// # drop(manager);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ApprovalDesk {
    shared: Arc<Shared>,
    patience: Duration,
}

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct List {
    waiting: Vec<Waiting>,
    next_number: u64,
}

struct Waiting {
    number: u64,
    ask: Ask,
    answer: oneshot::Sender<Decision>,
}

/// A request for as long as its turn waits for the decision.
struct DeskEntry {
    shared: Arc<Shared>,
    number: u64,
}

/// Why an answer was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The request does not wait: it was answered already, here or elsewhere, or its turn is over.
    #[error("request {request} of session {session} does not wait for an answer any more")]
    #[non_exhaustive]
    NotPending {
        /// The root session that was named.
        session: SessionId,
        /// The request that was named.
        request: RequestId,
    },
    /// The decision is none for such a request, which waits on.
    #[error(transparent)]
    Unfit(#[from] InvalidInput),
}

impl ApprovalDesk {
    /// A desk on which a request waits for at most a day.
    pub fn new() -> Self {
        Self { shared: Arc::default(), patience: PATIENCE }
    }

    /// Sets how long a request waits for an answer; default a day. After that [`Ask::decline`] is the decision.
    ///
    /// # Errors
    /// If it makes no sense.
    pub fn patience(mut self, patience: Duration) -> Result<Self, InvalidInput> {
        InvalidInput::check_durations(&[("patience", patience)])?;
        self.patience = patience;
        Ok(self)
    }

    /// Asks the desk when a tool needs permission.
    pub fn permissions(&self) -> PermissionPolicy {
        PermissionPolicy::Ask(self.handler())
    }

    /// Asks the desk when the model has a question.
    pub fn questions(&self) -> QuestionPolicy {
        QuestionPolicy::Ask(self.handler())
    }

    /// The requests that wait, the oldest first.
    pub fn pending(&self) -> Vec<Ask> {
        self.shared.list().waiting.iter().map(|waiting| waiting.ask.clone()).collect()
    }

    /// The requests that wait, now and again each time that they change. A slow reader misses lists, but not the last one.
    ///
    /// # Cancel safety
    /// Ends when it is dropped, and not before.
    pub fn watch(&self) -> impl Stream<Item = Vec<Ask>> + Send + Unpin + use<> {
        let mut changes = self.shared.changes.subscribe();
        changes.mark_changed();
        Box::pin(stream::unfold((self.clone(), changes), async |(desk, mut changes)| {
            changes.changed().await.ok()?;
            Some((desk.pending(), (desk, changes)))
        }))
    }

    /// Answers a request of a session, or of a subagent below it. Returns what was asked.
    ///
    /// Of several answers to one request the first counts.
    ///
    /// # Errors
    /// If the request does not wait any more, or the decision does not fit it; see [`Ask::check`].
    pub fn answer(
        &self,
        root: &SessionId,
        request: &RequestId,
        decision: Decision,
    ) -> Result<Ask, AnswerError> {
        let not_pending = || AnswerError::NotPending { session: root.clone(), request: request.clone() };
        let mut list = self.shared.list();
        let is_meant = |waiting: &Waiting| waiting.ask.root == *root && waiting.ask.id == *request;
        let at = list.waiting.iter().rposition(is_meant).ok_or_else(not_pending)?;
        list.waiting[at].ask.check(&decision)?;
        let Waiting { ask, answer, .. } = list.waiting.remove(at);
        drop(list);
        self.shared.changes.send_replace(());
        // The turn may have ended a moment ago.
        answer.send(decision).map_err(|_decision| not_pending())?;
        Ok(ask)
    }

    fn handler(&self) -> AskHandler {
        let Self { shared, patience } = self.clone();
        AskHandler::new(move |ask| {
            // It is on the desk from the call on, not from the first poll.
            let (entry, answer) = shared.put(ask.clone());
            async move {
                let answered = timeout(patience, answer).await;
                drop(entry);
                answered.ok().and_then(Result::ok).unwrap_or_else(|| ask.decline())
            }
        })
    }
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, List> {
        // Nothing that is done under the lock can panic half-way.
        lock(&self.list)
    }

    fn put(self: &Arc<Self>, ask: Ask) -> (DeskEntry, oneshot::Receiver<Decision>) {
        let (answer, receiver) = oneshot::channel();
        let mut list = self.list();
        let number = list.next_number;
        list.next_number += 1;
        list.waiting.push(Waiting { number, ask, answer });
        drop(list);
        self.changes.send_replace(());
        (DeskEntry { shared: Arc::clone(self), number }, receiver)
    }
}

impl Drop for DeskEntry {
    fn drop(&mut self) {
        let mut list = self.shared.list();
        let before = list.waiting.len();
        list.waiting.retain(|waiting| waiting.number != self.number);
        let is_shorter = list.waiting.len() < before;
        drop(list);
        if is_shorter {
            self.shared.changes.send_replace(());
        }
    }
}

impl Default for ApprovalDesk {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ApprovalDesk {
    /// Without the requests: they quote what tools would do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalDesk")
            .field("n_pending", &self.shared.list().waiting.len())
            .field("patience", &self.patience)
            .finish()
    }
}
