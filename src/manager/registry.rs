//! Which task has which session, and what is known of each session.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
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
    /// How many turns have begun, so that what was read before one is not taken for what came of it.
    pub(super) turns: u64,
    /// Something was folded that whoever watches the turn was not told of.
    pub(super) untold: bool,
    /// How to stop the turn that runs now.
    pub(super) stop: Option<mpsc::Sender<AbortWish>>,
}

impl Session {
    pub(super) fn new(meta: ConversationSessionMeta, options: ConvertOptions, at_rest: bool) -> Self {
        let (id, directory) = (meta.session_id.clone(), meta.directory.clone());
        let tree = SessionTree::new(id.clone(), options);
        let state = SessionConversationState::default();
        let live = Live {
            meta,
            tree,
            state,
            model: None,
            agent: None,
            at_rest,
            turns: 0,
            untold: false,
            stop: None,
        };
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
    /// Forgotten while prompts were in flight. Whoever asks for one again gets the same, and stands in the same line.
    fading: HashMap<SessionId, Weak<Session>>,
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
        let meta = session.live().meta.clone();
        if let Some(task) = meta.task_id.clone()
            && let Some(replaced) = self.tasks.insert(task, session.id.clone())
            && replaced != session.id
        {
            self.remove(&replaced);
        }
        let faded = self.fading.remove(&session.id).and_then(|faded| faded.upgrade());
        let known = self.sessions.get(&session.id).cloned().or(faded);
        if let Some(known) = &known
            && meta.task_id.is_some()
        {
            known.live().meta = meta;
        }
        let session = known.unwrap_or_else(|| Arc::new(session));
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
        self.tasks.retain(|_, of_task| of_task != session);
        self.remove(session)
    }

    fn remove(&mut self, session: &SessionId) -> Option<Arc<Session>> {
        let known = self.sessions.remove(session)?;
        self.fading.retain(|_, faded| faded.strong_count() > 0);
        self.fading.insert(session.clone(), Arc::downgrade(&known));
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: &str, task: Option<&str>) -> Session {
        let info: SessionInfo = serde_json::from_value(serde_json::json!({
            "id": id, "title": "t", "directory": "/w", "projectID": "p", "version": "1", "slug": "s",
            "time": {"created": 1, "updated": 1}}))
        .unwrap();
        let mut meta = ConversationSessionMeta::of(&info, Directory::new("/w").unwrap());
        meta.task_id = task.map(TaskId::from);
        Session::new(meta, ConvertOptions::default(), true)
    }

    #[test]
    fn a_session_seen_by_somebody_else_before_its_maker_has_it_still_is_the_tasks() {
        let mut registry = Registry::default();
        registry.add(session("ses_1", None));
        registry.add(session("ses_1", Some("task")));
        assert_eq!(registry.task(&TaskId::from("task")), Some(&SessionId::from("ses_1")));
    }

    #[test]
    fn what_is_assigned_after_it_was_forgotten_can_be_forgotten() {
        let mut registry = Registry::default();
        let known = registry.add(session("ses_1", None));
        registry.forget(&SessionId::from("ses_1"));
        registry.assign(&TaskId::from("task"), &known).unwrap();
        registry.forget(&SessionId::from("ses_1"));
        assert_eq!(registry.task(&TaskId::from("task")), None);
    }
}
