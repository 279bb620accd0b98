//! Which task has which session, and what is known of each session.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use super::{driver::AbortWish, error::SessionError, line::Line};
use crate::{
    client::Directory,
    conversation::{ConversationEvent, SessionConversationState},
    convert::ConvertOptions,
    ids::{ProjectId, SessionId, TaskId},
    observe::{Observed, SessionTree},
    time::Timestamp,
    wire::{ModelRef, SessionInfo},
};

/// What is known of a session.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConversationSessionMeta {
    /// The session.
    pub session_id: SessionId,
    /// The task it was made for.
    pub task_id: Option<TaskId>,
    /// The project of the task.
    pub project_id: Option<ProjectId>,
    /// The project's own directory.
    pub project_directory: Option<PathBuf>,
    /// The directory it works in.
    pub directory: Directory,
    /// Its title.
    pub title: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed, as the server last said.
    pub updated_at: Timestamp,
}

impl ConversationSessionMeta {
    pub(super) fn of(info: &SessionInfo, directory: Directory) -> Self {
        Self {
            session_id: info.id.clone(),
            task_id: None,
            project_id: None,
            project_directory: None,
            directory,
            title: info.title.clone(),
            created_at: info.time.created.into(),
            updated_at: info.time.updated.into(),
        }
    }
}

/// A session that the manager looks after.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) directory: Directory,
    pub(super) line: Arc<Line>,
    live: Mutex<Live>,
}

/// The part of a session that changes.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) meta: ConversationSessionMeta,
    pub(super) tree: SessionTree,
    pub(super) state: SessionConversationState,
    pub(super) model: Option<ModelRef>,
    pub(super) agent: Option<String>,
    /// The session is known to be at rest, so that a prompt may be sent without looking.
    pub(super) at_rest: bool,
    /// How to stop the turn that runs now.
    pub(super) stop: Option<mpsc::Sender<AbortWish>>,
}

impl Session {
    pub(super) fn new(meta: ConversationSessionMeta, options: ConvertOptions, at_rest: bool) -> Self {
        let (id, directory) = (meta.session_id.clone(), meta.directory.clone());
        let tree = SessionTree::new(id.clone(), options);
        let state = SessionConversationState::default();
        let live = Live { meta, tree, state, model: None, agent: None, at_rest, stop: None };
        Self { id, directory, line: Arc::default(), live: Mutex::new(live) }
    }

    /// For short sections only, never across an await.
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// Folds what was observed into the state.
    pub(super) fn fold(&mut self, observed: &Observed) {
        self.fold_events(&observed.events);
    }

    fn fold_events(&mut self, events: &[ConversationEvent]) {
        for event in events {
            self.state.apply(event);
        }
    }
}

/// The maps. They change together, under one lock.
#[derive(Debug, Default)]
pub(super) struct Registry {
    tasks: HashMap<TaskId, SessionId>,
    sessions: HashMap<SessionId, Arc<Session>>,
    in_progress: HashSet<TaskId>,
}

impl Registry {
    pub(super) fn session(&self, session: &SessionId) -> Option<&Arc<Session>> {
        self.sessions.get(session)
    }

    pub(super) fn task(&self, task: &TaskId) -> Option<&SessionId> {
        self.tasks.get(task)
    }

    /// Reserves a task while its session is being made.
    pub(super) fn reserve(&mut self, task: &TaskId, replace: bool) -> Result<(), SessionError> {
        if let Some(session) = self.tasks.get(task).filter(|_| !replace) {
            return Err(SessionError::TaskHasSession { task: task.clone(), session: session.clone() });
        }
        if !self.in_progress.insert(task.clone()) {
            return Err(SessionError::InProgress { task: task.clone() });
        }
        Ok(())
    }

    pub(super) fn release(&mut self, task: &TaskId) {
        self.in_progress.remove(task);
    }

    /// Adds a session, or returns the one that is there already. A session that a task had before is forgotten.
    pub(super) fn add(&mut self, session: Session) -> Arc<Session> {
        if let Some(known) = self.sessions.get(&session.id) {
            return Arc::clone(known);
        }
        let task = session.live().meta.task_id.clone();
        if let Some(replaced) = task.and_then(|task| self.tasks.insert(task, session.id.clone())) {
            self.sessions.remove(&replaced);
        }
        let session = Arc::new(session);
        self.sessions.insert(session.id.clone(), Arc::clone(&session));
        session
    }

    /// Gives a session to a task, unless the task has another, or another task has it.
    pub(super) fn assign(&mut self, task: &TaskId, session: &Session) -> Result<(), SessionError> {
        let mut live = session.live();
        let owner = live.meta.task_id.as_ref().filter(|owner| self.tasks.get(*owner) == Some(&session.id));
        let taken = |task: &TaskId, session: &SessionId| SessionError::TaskHasSession {
            task: task.clone(),
            session: session.clone(),
        };
        if let Some(owner) = owner.filter(|owner| *owner != task) {
            return Err(taken(owner, &session.id));
        }
        if let Some(other) = self.tasks.get(task).filter(|other| **other != session.id) {
            return Err(taken(task, other));
        }
        if self.in_progress.contains(task) {
            return Err(SessionError::InProgress { task: task.clone() });
        }
        self.tasks.insert(task.clone(), session.id.clone());
        live.meta.task_id = Some(task.clone());
        Ok(())
    }

    pub(super) fn forget(&mut self, session: &SessionId) -> Option<Arc<Session>> {
        let known = self.sessions.remove(session)?;
        self.tasks.retain(|_, of_task| of_task != session);
        Some(known)
    }
}
