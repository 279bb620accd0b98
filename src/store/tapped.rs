//! A store whose calls a test can watch, hold and fail.

use std::{fmt, sync::Arc};

use super::{Store, StoreError, TaskClaim, TurnRecord};
use crate::{
    agent::{BoxFuture, Phase},
    ids::{MessageId, SessionId, TaskId},
    session::{ConversationSessionMeta, SavedSessionData, SessionListData},
};

/// A call of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreCall {
    /// [`Store::claim_task`]
    ClaimTask,
    /// [`Store::release_task`]
    ReleaseTask,
    /// [`Store::put_session`]
    PutSession,
    /// [`Store::remove_session`]
    RemoveSession,
    /// [`Store::sessions`]
    Sessions,
    /// [`Store::put_turn`] of this phase
    PutTurn(Phase),
    /// [`Store::remove_turn`]
    RemoveTurn,
    /// [`Store::claim_turn`]
    ClaimTurn,
    /// [`Store::claim_turns`]
    ClaimTurns,
    /// [`Store::put_saved`]
    PutSaved,
    /// [`Store::saved`]
    Saved,
    /// [`Store::remove_saved`]
    RemoveSaved,
    /// [`Store::saved_sessions`]
    SavedSessions,
    /// [`Store::release`]
    Release,
}

/// Before or after a call took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Nothing has happened.
    Before,
    /// What was to be written is safe, and the caller does not know it.
    After,
}

type Tap = Arc<dyn Fn(StoreCall, Effect) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

/// A store whose calls a test can watch, hold and fail, before and after they take effect.
pub struct TappedStore {
    inner: Arc<dyn Store>,
    tap: Tap,
}

impl TappedStore {
    /// Lets `tap` see every call of `store`, twice. The call waits for it, and fails with it.
    pub fn new(
        store: Arc<dyn Store>,
        tap: impl Fn(StoreCall, Effect) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: store, tap: Arc::new(tap) }
    }

    fn tapped<'a, T: Send + 'a>(
        &'a self,
        name: StoreCall,
        call: impl FnOnce(&'a dyn Store) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        Box::pin(async move {
            (self.tap)(name, Effect::Before).await?;
            let answer = call(&*self.inner).await?;
            (self.tap)(name, Effect::After).await?;
            Ok(answer)
        })
    }
}

impl fmt::Debug for TappedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TappedStore").finish_non_exhaustive()
    }
}

impl Store for TappedStore {
    fn claim_task<'a>(
        &'a self,
        task: &'a TaskId,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<TaskClaim, StoreError>> {
        self.tapped(StoreCall::ClaimTask, move |store| store.claim_task(task, tag))
    }

    fn release_task<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.tapped(StoreCall::ReleaseTask, move |store| store.release_task(task))
    }

    fn put_session<'a>(
        &'a self,
        session: &'a ConversationSessionMeta,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.tapped(StoreCall::PutSession, move |store| store.put_session(session))
    }

    fn remove_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.tapped(StoreCall::RemoveSession, move |store| store.remove_session(session))
    }

    fn sessions(&self) -> BoxFuture<'_, Result<Vec<ConversationSessionMeta>, StoreError>> {
        self.tapped(StoreCall::Sessions, |store| store.sessions())
    }

    fn put_turn<'a>(&'a self, record: &'a TurnRecord) -> BoxFuture<'a, Result<(), StoreError>> {
        self.tapped(StoreCall::PutTurn(record.phase), move |store| store.put_turn(record))
    }

    fn remove_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.tapped(StoreCall::RemoveTurn, move |store| store.remove_turn(session, message))
    }

    fn claim_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<Option<TurnRecord>, StoreError>> {
        self.tapped(StoreCall::ClaimTurn, move |store| store.claim_turn(session, message))
    }

    fn claim_turns(&self) -> BoxFuture<'_, Result<Vec<TurnRecord>, StoreError>> {
        self.tapped(StoreCall::ClaimTurns, |store| store.claim_turns())
    }

    fn put_saved<'a>(&'a self, data: &'a SavedSessionData) -> BoxFuture<'a, Result<(), StoreError>> {
        self.tapped(StoreCall::PutSaved, move |store| store.put_saved(data))
    }

    fn saved<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SavedSessionData>, StoreError>> {
        self.tapped(StoreCall::Saved, move |store| store.saved(session))
    }

    fn remove_saved<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.tapped(StoreCall::RemoveSaved, move |store| store.remove_saved(session))
    }

    fn saved_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionListData>, StoreError>> {
        self.tapped(StoreCall::SavedSessions, |store| store.saved_sessions())
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.tapped(StoreCall::Release, |store| store.release())
    }
}
