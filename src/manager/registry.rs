//! Which task has which session.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use super::{error::SessionError, session::Session};
use crate::{
    ids::{SessionId, TaskId},
    session::ConversationSessionMeta,
};

/// The maps. They change together, under one lock.
#[derive(Default)]
pub(super) struct Registry {
    tasks: HashMap<TaskId, SessionId>,
    sessions: HashMap<SessionId, Arc<Session>>,
    /// What an earlier process knew of sessions that no call has asked for yet.
    stored: HashMap<SessionId, ConversationSessionMeta>,
    /// Sessions that were forgotten while prompts were in flight. A call that asks for one again gets the same, with its queue.
    forgotten: HashMap<SessionId, Weak<Session>>,
    in_progress: HashSet<TaskId>,
}

impl Registry {
    pub(super) fn session(&self, session: &SessionId) -> Option<&Arc<Session>> {
        self.sessions.get(session)
    }

    /// What is known of a session, opened or not.
    pub(super) fn meta(&self, session: &SessionId) -> Option<ConversationSessionMeta> {
        let open = self.sessions.get(session).map(|session| session.meta());
        open.or_else(|| self.stored.get(session).cloned())
    }

    /// What is known of all sessions, the oldest first.
    pub(super) fn all(&self) -> Vec<ConversationSessionMeta> {
        let open = self.sessions.values().map(|session| session.meta());
        let stored = self.stored.values().filter(|meta| !self.sessions.contains_key(&meta.session_id));
        let mut all: Vec<_> = open.chain(stored.cloned()).collect();
        all.sort_by(|one, two| (one.created_at, &one.session_id).cmp(&(two.created_at, &two.session_id)));
        all
    }

    /// Takes over what an earlier process knew. What is known here already is newer.
    pub(super) fn restore(&mut self, stored: Vec<ConversationSessionMeta>) {
        for meta in stored {
            if self.sessions.contains_key(&meta.session_id) {
                continue;
            }
            if let Some(task) = &meta.task_id {
                let known = self.tasks.get(task).filter(|known| **known != meta.session_id).cloned();
                if known.as_ref().is_some_and(|known| self.sessions.contains_key(known)) {
                    continue;
                }
                // Another process may have replaced it.
                self.tasks.insert(task.clone(), meta.session_id.clone());
                known.and_then(|replaced| self.stored.remove(&replaced));
            }
            self.stored.insert(meta.session_id.clone(), meta);
        }
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
        if let Some(mut stored) = self.stored.remove(&session.id) {
            // The task may have got another session since.
            stored.task_id.take_if(|task| self.tasks.get(task).is_some_and(|known| *known != session.id));
            session.change_meta(|meta| {
                meta.task_id = meta.task_id.take().or(stored.task_id);
                meta.project_id = meta.project_id.take().or(stored.project_id);
                meta.project_directory = meta.project_directory.take().or(stored.project_directory);
                meta.created_at = stored.created_at;
            });
        }
        let meta = session.meta();
        if let Some(task) = meta.task_id.clone()
            && let Some(replaced) = self.tasks.insert(task, session.id.clone())
            && replaced != session.id
        {
            self.stored.remove(&replaced);
            self.remove(&replaced);
        }
        let forgotten = self.forgotten.remove(&session.id).and_then(|forgotten| forgotten.upgrade());
        let known = self.sessions.get(&session.id).cloned().or(forgotten);
        if let Some(known) = &known
            && meta.task_id.is_some()
        {
            known.change_meta(|known| *known = meta);
        }
        let session = known.unwrap_or_else(|| Arc::new(session));
        self.sessions.insert(session.id.clone(), Arc::clone(&session));
        session
    }

    /// Gives a session to a task, unless the task has another, or another task has it.
    pub(super) fn assign(&mut self, task: &TaskId, session: &Session) -> Result<(), SessionError> {
        let owner = session.meta().task_id.filter(|owner| self.tasks.get(owner) == Some(&session.id));
        let taken = |task: &TaskId, session: &SessionId| SessionError::TaskHasSession {
            task: task.clone(),
            session: session.clone(),
        };
        if let Some(owner) = owner.filter(|owner| owner != task) {
            return Err(taken(&owner, &session.id));
        }
        if let Some(other) = self.tasks.get(task).filter(|other| **other != session.id) {
            return Err(taken(task, other));
        }
        if self.in_progress.contains(task) {
            return Err(SessionError::InProgress { task: task.clone() });
        }
        self.tasks.insert(task.clone(), session.id.clone());
        session.change_meta(|meta| meta.task_id = Some(task.clone()));
        Ok(())
    }

    pub(super) fn forget(&mut self, session: &SessionId) -> Option<Arc<Session>> {
        self.tasks.retain(|_, of_task| of_task != session);
        self.stored.remove(session);
        self.remove(session)
    }

    fn remove(&mut self, session: &SessionId) -> Option<Arc<Session>> {
        let known = self.sessions.remove(session)?;
        self.forgotten.retain(|_, forgotten| forgotten.strong_count() > 0);
        self.forgotten.insert(session.clone(), Arc::downgrade(&known));
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::{
            AbortReport, AgentError, BoxFuture, Execution, IdleOutcome, OpenSession, Opened, Phase,
            PreparedPrompt, PromptSpec, SessionDescription, TurnHost, Unprepared,
        },
        directory::Directory,
        time::Millis,
    };

    /// A session that is never asked for anything.
    struct Nothing;

    impl OpenSession for Nothing {
        fn prepare<'a>(
            &'a self,
            _: &'a PromptSpec,
            _: &'a dyn TurnHost,
        ) -> BoxFuture<'a, Result<PreparedPrompt, Unprepared>> {
            unreachable!()
        }

        fn execute<'a>(
            &'a self,
            _: &'a PreparedPrompt,
            _: Phase,
            _: &'a dyn TurnHost,
        ) -> BoxFuture<'a, Execution> {
            unreachable!()
        }

        fn wait_for_rest<'a>(
            &'a self,
            _: &'a dyn TurnHost,
        ) -> BoxFuture<'a, Result<IdleOutcome, Unprepared>> {
            unreachable!()
        }

        fn abort(&self) -> BoxFuture<'_, AbortReport> {
            unreachable!()
        }

        fn load(&self) -> BoxFuture<'_, Result<(), AgentError>> {
            unreachable!()
        }
    }

    fn session(id: &str, task: Option<&str>) -> Session {
        let directory = Directory::new("/w").unwrap();
        let description = SessionDescription::new(id.into(), directory, "t", Millis::new(1).into());
        let session = Session::new(Opened::new(description, Arc::new(Nothing)), Arc::default());
        session.change_meta(|meta| meta.task_id = task.map(TaskId::from));
        session
    }

    #[test]
    fn a_session_adopted_before_its_maker_registers_it_still_is_the_tasks() {
        let mut registry = Registry::default();
        registry.add(session("ses_1", None));
        registry.add(session("ses_1", Some("task")));
        assert_eq!(registry.task(&TaskId::from("task")), Some(&SessionId::from("ses_1")));
    }

    #[test]
    fn what_was_replaced_after_a_restart_does_not_get_its_task_back() {
        let mut registry = Registry::default();
        let (task, new) = (TaskId::from("task"), SessionId::from("ses_new"));
        registry.restore(vec![session("ses_old", Some("task")).meta()]);
        registry.add(session("ses_new", Some("task")));
        assert_eq!(registry.all().len(), 1);
        registry.add(session("ses_old", None));
        assert_eq!(registry.task(&task), Some(&new));
        assert!(registry.session(&new).is_some());
        // The new one was made by another process.
        let mut elsewhere = Registry::default();
        elsewhere.restore(vec![session("ses_old", Some("task")).meta()]);
        elsewhere.restore(vec![session("ses_new", Some("task")).meta()]);
        assert_eq!((elsewhere.task(&task), elsewhere.all().len()), (Some(&new), 1));
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
