//! A store that lasts as long as its process.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    future::ready,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use super::{Store, StoreError, StoreErrorKind, TaskClaim, TurnRecord};
use crate::{
    agent::BoxFuture,
    ids::{MessageId, SessionId, TaskId},
    lock::lock,
    session::{ConversationSessionMeta, SavedSessionData, SessionListData},
};

/// Keeps everything in memory: for tests, and to see what would be kept.
#[derive(Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    /// What the handle owns points here, and is free when the handle is gone.
    handle: Arc<()>,
}

#[derive(Debug, Default)]
struct Shared {
    tasks: BTreeMap<TaskId, Task>,
    sessions: BTreeMap<SessionId, ConversationSessionMeta>,
    turns: BTreeMap<(SessionId, MessageId), Turn>,
    /// The prompt of each session whose turn is not over.
    open: BTreeMap<SessionId, MessageId>,
    saved: BTreeMap<SessionId, Arc<SavedSessionData>>,
}

#[derive(Debug)]
enum Task {
    Reserved { tag: String, owner: Owner },
    Session(SessionId),
}

#[derive(Debug)]
struct Turn {
    record: TurnRecord,
    owner: Owner,
}

#[derive(Debug, Default)]
struct Owner(Weak<()>);

impl Owner {
    fn is(&self, handle: &Arc<()>) -> bool {
        self.0.upgrade().is_some_and(|owner| Arc::ptr_eq(&owner, handle))
    }

    fn is_another(&self, handle: &Arc<()>) -> bool {
        self.0.strong_count() > 0 && !self.is(handle)
    }
}

impl MemoryStore {
    /// Another handle to the same memory, as another process would have it.
    #[must_use]
    pub fn another_handle(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), handle: Arc::default() }
    }

    /// The records of turns that are not over, by session.
    pub fn open_turns(&self) -> Vec<TurnRecord> {
        let shared = self.shared();
        let open = shared.open.iter().filter_map(|(session, message)| shared.turn(session, message));
        open.map(|turn| turn.record.clone()).collect()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }

    fn own(&self) -> Owner {
        Owner(Arc::downgrade(&self.handle))
    }

    fn claim_task(&self, task: &TaskId, tag: &str) -> Result<TaskClaim, StoreError> {
        match self.shared().tasks.entry(task.clone()) {
            Entry::Vacant(free) => {
                free.insert(Task::Reserved { tag: tag.to_owned(), owner: self.own() });
                Ok(TaskClaim::New)
            }
            Entry::Occupied(mut known) => match known.get_mut() {
                Task::Session(session) => Ok(TaskClaim::Session(session.clone())),
                Task::Reserved { owner, .. } if owner.is_another(&self.handle) => {
                    Err(taken(format!("claiming task {task}")))
                }
                Task::Reserved { tag, owner } => {
                    *owner = self.own();
                    Ok(TaskClaim::unclear(tag.clone()))
                }
            },
        }
    }

    fn put_turn(&self, record: &TurnRecord) -> Result<(), StoreError> {
        let (session, message) = (&record.prompt.session_id, &record.prompt.message_id);
        let attempt = || format!("recording the turn of {message} in session {session}");
        let mut shared = self.shared();
        if let Some(turn) = shared.turns.get_mut(&(session.clone(), message.clone())) {
            if !turn.owner.is(&self.handle) && turn.record.is_open() {
                return Err(taken(attempt()));
            }
            turn.record.phase = turn.record.phase.max(record.phase);
            if !turn.record.is_open() && shared.open.get(session) == Some(message) {
                shared.open.remove(session);
            }
            return Ok(());
        }
        if record.is_open() {
            if let Some(open) = shared.open.get(session) {
                return Err(StoreError::new(attempt(), StoreErrorKind::turn_open(open.clone())));
            }
            shared.open.insert(session.clone(), message.clone());
        }
        let turn = Turn { record: record.clone(), owner: self.own() };
        shared.turns.insert((session.clone(), message.clone()), turn);
        Ok(())
    }

    fn remove_turn(&self, session: &SessionId, message: &MessageId) {
        let shared = &mut *self.shared();
        let is_own = |turn: &Turn| turn.record.is_open() && turn.owner.is(&self.handle);
        if shared.turn(session, message).is_some_and(is_own) {
            shared.turns.remove(&(session.clone(), message.clone()));
            shared.open.remove(session);
        }
    }

    fn claim_turn(&self, session: &SessionId, message: &MessageId) -> Result<Option<TurnRecord>, StoreError> {
        let mut shared = self.shared();
        let Some(turn) = shared.turns.get_mut(&(session.clone(), message.clone())) else { return Ok(None) };
        if turn.record.is_open() {
            if turn.owner.is_another(&self.handle) {
                return Err(taken(format!("claiming the turn of {message} in session {session}")));
            }
            turn.owner = self.own();
        }
        Ok(Some(turn.record.clone()))
    }

    fn claim_turns(&self) -> Vec<TurnRecord> {
        let shared = &mut *self.shared();
        let mut claimed = Vec::new();
        for open in &shared.open {
            let key = (open.0.clone(), open.1.clone());
            if let Some(turn) = shared.turns.get_mut(&key).filter(|turn| !turn.owner.is_another(&self.handle))
            {
                turn.owner = self.own();
                claimed.push(turn.record.clone());
            }
        }
        claimed
    }
}

impl Shared {
    fn turn(&self, session: &SessionId, message: &MessageId) -> Option<&Turn> {
        self.turns.get(&(session.clone(), message.clone()))
    }

    fn put_session(&mut self, session: &ConversationSessionMeta) {
        if let Some(task) = &session.task_id
            && let Some(Task::Session(replaced)) =
                self.tasks.insert(task.clone(), Task::Session(session.session_id.clone()))
            && replaced != session.session_id
        {
            self.remove_session(&replaced);
        }
        self.sessions.insert(session.session_id.clone(), session.clone());
    }

    fn remove_session(&mut self, session: &SessionId) {
        self.sessions.remove(session);
        self.tasks.retain(|_, task| !matches!(task, Task::Session(of_task) if of_task == session));
        self.turns.retain(|(of_turn, _), turn| of_turn != session || turn.record.is_open());
    }

    fn release(&mut self, handle: &Arc<()>) {
        let turns = self.turns.values_mut().map(|turn| &mut turn.owner);
        let tasks = self.tasks.values_mut().filter_map(|task| match task {
            Task::Reserved { owner, .. } => Some(owner),
            Task::Session(_) => None,
        });
        for owner in turns.chain(tasks).filter(|owner| owner.is(handle)) {
            *owner = Owner::default();
        }
    }
}

fn taken(attempt: String) -> StoreError {
    StoreError::new(attempt, StoreErrorKind::Taken)
}

impl Store for MemoryStore {
    fn claim_task<'a>(
        &'a self,
        task: &'a TaskId,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<TaskClaim, StoreError>> {
        Box::pin(ready(self.claim_task(task, tag)))
    }

    fn release_task<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<(), StoreError>> {
        if let Some(Task::Reserved { owner, .. }) = self.shared().tasks.get_mut(task)
            && owner.is(&self.handle)
        {
            *owner = Owner::default();
        }
        Box::pin(ready(Ok(())))
    }

    fn put_session<'a>(
        &'a self,
        session: &'a ConversationSessionMeta,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.shared().put_session(session);
        Box::pin(ready(Ok(())))
    }

    fn remove_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.shared().remove_session(session);
        Box::pin(ready(Ok(())))
    }

    fn sessions(&self) -> BoxFuture<'_, Result<Vec<ConversationSessionMeta>, StoreError>> {
        Box::pin(ready(Ok(self.shared().sessions.values().cloned().collect())))
    }

    fn put_turn<'a>(&'a self, record: &'a TurnRecord) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(self.put_turn(record)))
    }

    fn remove_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.remove_turn(session, message);
        Box::pin(ready(Ok(())))
    }

    fn claim_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<Option<TurnRecord>, StoreError>> {
        Box::pin(ready(self.claim_turn(session, message)))
    }

    fn claim_turns(&self) -> BoxFuture<'_, Result<Vec<TurnRecord>, StoreError>> {
        Box::pin(ready(Ok(self.claim_turns())))
    }

    fn put_saved<'a>(&'a self, data: &'a SavedSessionData) -> BoxFuture<'a, Result<(), StoreError>> {
        self.shared().saved.insert(data.listed.session_id.clone(), Arc::new(data.clone()));
        Box::pin(ready(Ok(())))
    }

    fn saved<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SavedSessionData>, StoreError>> {
        let saved = self.shared().saved.get(session).cloned();
        Box::pin(ready(Ok(saved.map(Arc::unwrap_or_clone))))
    }

    fn remove_saved<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.shared().saved.remove(session);
        Box::pin(ready(Ok(())))
    }

    fn saved_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionListData>, StoreError>> {
        let mut listed: Vec<_> = self.shared().saved.values().map(|data| data.listed.clone()).collect();
        // Stable, so that they stay in the order of their ids.
        listed.sort_by_key(|session| std::cmp::Reverse(session.last_activity));
        Box::pin(ready(Ok(listed)))
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.shared().release(&self.handle);
        Box::pin(ready(Ok(())))
    }
}
