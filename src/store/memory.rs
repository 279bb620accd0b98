//! A store that lasts as long as its process.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::{Store, StoreError, StoreErrorKind, TaskClaim, TurnRecord};
use crate::{
    agent::BoxFuture,
    ids::{MessageId, SessionId, TaskId},
    session::ConversationSessionMeta,
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

    /// The records of turns that are not over, by session and message.
    pub fn open_turns(&self) -> Vec<TurnRecord> {
        let open = |turn: &Turn| turn.record.is_open().then(|| turn.record.clone());
        self.shared().turns.values().filter_map(open).collect()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
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
            return Ok(());
        }
        if record.is_open()
            && let Some(open) = shared.open_turn(session)
        {
            let kind = StoreErrorKind::turn_open(open.record.prompt.message_id.clone());
            return Err(StoreError::new(attempt(), kind));
        }
        let turn = Turn { record: record.clone(), owner: self.own() };
        shared.turns.insert((session.clone(), message.clone()), turn);
        Ok(())
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
        let mut shared = self.shared();
        let is_free = |turn: &&mut Turn| turn.record.is_open() && !turn.owner.is_another(&self.handle);
        let free = shared.turns.values_mut().filter(is_free);
        free.map(|turn| {
            turn.owner = self.own();
            turn.record.clone()
        })
        .collect()
    }
}

impl Shared {
    fn open_turn(&self, session: &SessionId) -> Option<&Turn> {
        self.turns.values().find(|turn| turn.record.is_open() && turn.record.prompt.session_id == *session)
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

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.shared().release(&self.handle);
        Box::pin(ready(Ok(())))
    }
}
