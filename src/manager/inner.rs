//! What all clones of a manager share.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::{
    CreateTaskSession, SessionError,
    options::ManagerOptions,
    registry::Registry,
    session::{Conversation, Session},
    stats::ManagerCounters,
};
use crate::{
    agent::{Agent, AgentError, MadeFor, NewSession},
    directory::Directory,
    ids::{MessageId, SessionId, TaskId},
    lock::lock,
    store::TaskClaim,
};

/// What all clones of a manager share.
pub(super) struct Inner {
    /// Itself, for tasks that must not keep it alive.
    pub(super) me: Weak<Inner>,
    pub(super) agent: Arc<dyn Agent>,
    pub(super) options: ManagerOptions,
    pub(super) registry: Mutex<Registry>,
    /// The recorded turns that run here, or are about to.
    pub(super) in_flight: Mutex<HashSet<(SessionId, MessageId)>>,
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    pub(super) counters: ManagerCounters,
}

impl Inner {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    pub(super) fn in_flight(&self) -> MutexGuard<'_, HashSet<(SessionId, MessageId)>> {
        lock(&self.in_flight)
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
        let stored = self.registry().meta(id).map(|meta| meta.directory);
        let directory = directory.or(stored.as_ref());
        let conversation: Arc<Conversation> = Arc::default();
        let opened =
            self.agent.open(id, directory, self.options.convert, Arc::clone(&conversation) as _).await;
        let opened = opened.map_err(|source| agent_error("finding", id, source))?;
        // The agent says where the session works.
        Ok(self.registry().add(Session::new(opened, conversation)))
    }

    /// Whether the manager was not shut down yet.
    pub(super) fn check_open(&self) -> Result<(), SessionError> {
        if self.shutdown.is_cancelled() { Err(SessionError::ShutDown) } else { Ok(()) }
    }

    /// Makes the session of a task that no other call is making one for.
    pub(super) async fn create_session(
        &self,
        request: &CreateTaskSession,
        new: &NewSession,
    ) -> Result<Arc<Session>, SessionError> {
        self.check_open()?;
        let _reservation = Reservation::new(self, request)?;
        let mut new = new.clone();
        let conversation: Arc<Conversation> = Arc::default();
        let made = match self.claim(request, &mut new).await? {
            // An earlier process got as far as this.
            Some(session) => {
                let sink = Arc::clone(&conversation) as _;
                self.agent.open(&session, Some(&new.directory), self.options.convert, sink).await
            }
            None => self.agent.create(&new, Arc::clone(&conversation) as _).await,
        };
        let opened = match made {
            Ok(opened) => opened,
            Err(source) => {
                self.release_claim(request).await;
                let attempt = format!("making a session for task {}", request.task);
                return Err(SessionError::Agent { attempt, source });
            }
        };
        let session = Session::new(opened, conversation);
        session.change_meta(|meta| {
            meta.task_id = Some(request.task.clone());
            meta.project_id = Some(request.project.clone());
            meta.project_directory = Some(request.project_directory.clone());
            meta.created_at = request.created_at.unwrap_or(meta.created_at);
        });
        self.store_session(&session.meta()).await?;
        Ok(self.registry().add(session))
    }

    /// Claims the task in the store, so that no other process makes a session for it. Gives the session that an earlier call made
    /// without saying so, if there is one.
    async fn claim(
        &self,
        request: &CreateTaskSession,
        new: &mut NewSession,
    ) -> Result<Option<SessionId>, SessionError> {
        let Some(recording) = self.options.recording() else { return Ok(None) };
        let tag = format!("{:032x}", fastrand::u128(..));
        let claimed = recording.wait(recording.store.claim_task(&request.task, &tag)).await;
        new.tag = Some(tag);
        match claimed {
            Ok(TaskClaim::Session(session)) if !request.replace => {
                Err(SessionError::TaskHasSession { task: request.task.clone(), session })
            }
            Ok(TaskClaim::Session(_) | TaskClaim::New) => Ok(None),
            Ok(TaskClaim::Unclear { tag }) => {
                new.tag = Some(tag.clone());
                let found = self.find(MadeFor::Call(tag), &new.directory).await;
                if found.is_err() {
                    self.release_claim(request).await;
                }
                found
            }
            Err(error) if recording.goes_on(&error) => Ok(None),
            Err(source) => Err(SessionError::Store { source }),
        }
    }

    /// Lets other processes try. Whether there is a session is unclear, which the store remembers.
    async fn release_claim(&self, request: &CreateTaskSession) {
        if let Some(recording) = self.options.recording()
            && let Err(error) = recording.wait(recording.store.release_task(&request.task)).await
        {
            warn!(task = %request.task, %error, "the task could not be released");
        }
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
