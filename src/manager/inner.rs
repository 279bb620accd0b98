//! What all clones of a manager share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    CreateTaskSession, SessionError,
    options::ManagerOptions,
    registry::Registry,
    session::{Conversation, Session},
    stats::ManagerCounters,
};
use crate::{
    agent::{Agent, AgentError, NewSession},
    directory::Directory,
    ids::{SessionId, TaskId},
};

/// What all clones of a manager share.
pub(super) struct Inner {
    pub(super) agent: Arc<dyn Agent>,
    pub(super) options: ManagerOptions,
    pub(super) registry: Mutex<Registry>,
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    pub(super) counters: ManagerCounters,
}

impl Inner {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self, session: &SessionId) -> Result<Arc<Session>, SessionError> {
        let session = session.clone().trimmed();
        let known = self.registry().session(&session).cloned();
        known.ok_or(SessionError::Unknown { session })
    }

    /// The session, taken over if it was made elsewhere.
    pub(super) async fn session(
        &self,
        id: &SessionId,
        directory: Option<&Directory>,
    ) -> Result<Arc<Session>, SessionError> {
        let id = &id.clone().trimmed();
        self.agent.check_session_id(id)?;
        if let Ok(known) = self.known(id) {
            check_same_directory(&known, directory)?;
            return Ok(known);
        }
        let conversation: Arc<Conversation> = Arc::default();
        let opened =
            self.agent.open(id, directory, self.options.convert, Arc::clone(&conversation) as _).await;
        let opened = opened.map_err(|source| agent_error("finding", id, source))?;
        // The agent says where the session works.
        Ok(self.registry().add(Session::new(opened, conversation)))
    }

    /// Makes the session of a task that no other call is making one for.
    pub(super) async fn create_session(
        &self,
        request: &CreateTaskSession,
        new: &NewSession,
    ) -> Result<Arc<Session>, SessionError> {
        let _reservation = Reservation::new(self, request)?;
        let conversation: Arc<Conversation> = Arc::default();
        let opened = self.agent.create(new, Arc::clone(&conversation) as _).await;
        let attempt = || format!("making a session for task {}", request.task);
        let opened = opened.map_err(|source| SessionError::Agent { attempt: attempt(), source })?;
        let session = Session::new(opened, conversation);
        session.change_meta(|meta| {
            meta.task_id = Some(request.task.clone());
            meta.project_id = Some(request.project.clone());
            meta.project_directory = Some(request.project_directory.clone());
            meta.created_at = request.created_at.unwrap_or(meta.created_at);
        });
        Ok(self.registry().add(session))
    }
}

/// Refuses a directory that contradicts the known one: what runs there would be invisible.
pub(super) fn check_same_directory(session: &Session, given: Option<&Directory>) -> Result<(), SessionError> {
    match given {
        Some(given) if *given != session.directory => Err(SessionError::OtherDirectory {
            session: session.id.clone(),
            known: session.directory.to_string(),
            given: given.to_string(),
        }),
        Some(_) | None => Ok(()),
    }
}

pub(super) fn agent_error(attempt: &str, session: &SessionId, source: AgentError) -> SessionError {
    SessionError::Agent { attempt: format!("{attempt} session {session}"), source }
}

/// Keeps a task to one call while its session is being made.
struct Reservation<'a> {
    inner: &'a Inner,
    task: &'a TaskId,
}

impl<'a> Reservation<'a> {
    fn new(inner: &'a Inner, request: &'a CreateTaskSession) -> Result<Self, SessionError> {
        inner.registry().reserve(&request.task, request.replace)?;
        Ok(Self { inner, task: &request.task })
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.inner.registry().release(self.task);
    }
}
