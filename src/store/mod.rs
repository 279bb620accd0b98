//! What outlives a process: which task has which session, and how far each prompt got.
//!
//! A prompt that was sent and not recorded is a prompt that runs twice, or is lost, when the process dies. So the manager writes a
//! [`TurnRecord`] before every effect of a turn, and the next process goes on from there. Several processes may share what is stored.
//! Each has a handle of its own, and a task or a turn belongs to one living handle at a time: the store says who may write, so that
//! two processes never work on the same prompt. How it finds out that the owner of a handle has died is the store's own business.
//!
//! Beside that it keeps what is [saved](SavedSessionData) of sessions: their transcripts, which nothing depends on.

mod error;
mod memory;
#[cfg(feature = "test-util")]
pub(crate) mod suite;
#[cfg(feature = "test-util")]
pub(crate) mod tapped;

pub use error::{StoreError, StoreErrorKind};
pub use memory::MemoryStore;

use serde::{Deserialize, Serialize};

use crate::{
    agent::{BoxFuture, Phase, PreparedPrompt, WaitOptions},
    directory::Directory,
    ids::{MessageId, SessionId, TaskId},
    session::{ConversationSessionMeta, SavedSessionData, SessionListData},
};

/// A prompt that was prepared, and how far it got: all that another process needs to go on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnRecord {
    /// The task that the session belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// Where the session works.
    pub directory: Directory,
    /// The prompt, to the byte.
    pub prompt: PreparedPrompt,
    /// How far it got.
    pub phase: Phase,
    /// The limits that the prompt brought with it; without them it has those of the manager that goes on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<WaitOptions>,
}

impl TurnRecord {
    /// A prompt of a session that works in `directory`.
    pub fn new(task_id: Option<TaskId>, directory: Directory, prompt: PreparedPrompt, phase: Phase) -> Self {
        Self { task_id, directory, prompt, phase, limits: None }
    }

    /// Whether it is not over.
    pub fn is_open(&self) -> bool {
        self.phase != Phase::Finished
    }
}

/// What a process finds when it wants to make the session of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskClaim {
    /// No process has ever wanted to. The task is this handle's now.
    New,
    /// A process wanted to and did not say what came of it: there may be a session. The task is this handle's now.
    #[non_exhaustive]
    Unclear {
        /// The tag that the session would carry.
        tag: String,
    },
    /// The task has this session.
    Session(SessionId),
}

impl TaskClaim {
    /// There may be a session that carries this tag.
    pub fn unclear(tag: impl Into<String>) -> Self {
        Self::Unclear { tag: tag.into() }
    }
}

/// Keeps what outlives a process.
///
/// A handle stands for one process, and lives as long as it. What is written is safe when the future is ready. Writes take effect in the
/// order of the calls, also if a future is dropped before it is ready. A handle that another manager uses as well does not
/// protect the two from each other; give each manager its own.
///
/// [`test_util::store_suite`](crate::test_util) holds an implementation to what is said here.
pub trait Store: Send + Sync {
    /// Reserves a task for the making of its session, which will carry `tag`. The tag of an earlier reservation stays.
    ///
    /// # Errors
    /// [`StoreErrorKind::Taken`] if another living handle has reserved it.
    fn claim_task<'a>(
        &'a self,
        task: &'a TaskId,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<TaskClaim, StoreError>>;

    /// Gives up the reservation of a task that has no session: the next handle that claims it is told [`TaskClaim::Unclear`].
    fn release_task<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Writes what is known of a session, in place of what was known. Its task has this session from now on; another one that it had
    /// is forgotten as by [`Store::remove_session`].
    fn put_session<'a>(
        &'a self,
        session: &'a ConversationSessionMeta,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Forgets a session, the task's claim to it, and its turns that are over. What was saved of it stays.
    fn remove_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>>;

    /// All sessions, by id.
    fn sessions(&self) -> BoxFuture<'_, Result<Vec<ConversationSessionMeta>, StoreError>>;

    /// Writes how far a prompt got. The first record of a prompt is kept whole; later ones change the phase, and never back.
    /// A prompt that is written for the first time belongs to this handle.
    ///
    /// # Errors
    /// [`StoreErrorKind::TurnOpen`] if another turn of the session is open, [`StoreErrorKind::Taken`] if the turn is not this
    /// handle's. Nothing is written then.
    fn put_turn<'a>(&'a self, record: &'a TurnRecord) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Forgets an open turn of this handle, as if it had never been written: its prompt was not run, and may be sent again. A turn that
    /// is over, or that belongs to another handle, stays.
    fn remove_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// A turn, which is this handle's from now on unless it is over; nothing if it is not known.
    ///
    /// # Errors
    /// [`StoreErrorKind::Taken`] if it is open and belongs to another living handle.
    fn claim_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<Option<TurnRecord>, StoreError>>;

    /// All open turns but those of other living handles, by session. They are this handle's from now on.
    fn claim_turns(&self) -> BoxFuture<'_, Result<Vec<TurnRecord>, StoreError>>;

    /// Saves a session's data, in place of what was saved. Who saves is not checked: the last one wins.
    fn put_saved<'a>(&'a self, data: &'a SavedSessionData) -> BoxFuture<'a, Result<(), StoreError>>;

    /// What was saved of a session; nothing if nothing was, or if it was pruned.
    fn saved<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SavedSessionData>, StoreError>>;

    /// Removes what was saved of a session.
    fn remove_saved<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The sessions of which something is saved: those that changed last first, then by id.
    fn saved_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionListData>, StoreError>>;

    /// Gives up everything that this handle has claimed, so that others need not wait for its end.
    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}
