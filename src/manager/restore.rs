//! Going on where an earlier process stopped.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    ConversationManager, ConversationSessionMeta, RunningPrompt, SessionError,
    inner::Inner,
    record::{MAX_PAUSE, PAUSE, Recording},
    run::{Resume, Work},
};
use crate::{
    agent::MadeFor,
    backoff::Backoff,
    directory::Directory,
    error::InvalidInput,
    ids::{MessageId, SessionId, TaskId},
    store::{StoreError, TurnRecord},
};

/// A turn that an earlier process left open, and that goes on now.
#[derive(Debug)]
#[non_exhaustive]
pub struct RestoredTurn {
    /// The turn as it was recorded: its task, its prompt, and how far that got.
    pub record: TurnRecord,
    /// Its result, and its updates. Dropping it gives the turn up again.
    pub running: RunningPrompt,
}

impl ConversationManager {
    /// Takes over from an earlier process: which task has which session, and every open turn that belongs to no other living process.
    ///
    /// Each of the turns goes on from the phase that was recorded before its last effect. A prompt that was not sent is sent; one
    /// that may have been sent is looked for first. What runs is attached to, what is done is collected, what the agent stored and
    /// did not run is started, and what the agent lost ends as interrupted. No prompt runs twice. Permissions and questions that are
    /// open are asked again, with their task.
    ///
    /// Sessions are opened when they are needed. A turn whose agent cannot be reached stays open: call this again later. So does a
    /// process that looks after the turns of others that may die. Without a store there is nothing to restore.
    ///
    /// # Errors
    /// If the store cannot be read.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager) -> Result<(), opencode_conductor::Error> {
    /// for turn in manager.restore().await? {
    ///     let task = turn.record.task_id.clone();
    ///     let result = turn.running.await?;
    ///     println!("{task:?} {}", result.completion);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn restore(&self) -> Result<Vec<RestoredTurn>, StoreError> {
        let Some(recording) = self.inner.options.recording() else { return Ok(Vec::new()) };
        let running = self.inner.in_flight().clone();
        let sessions = recording.wait(recording.store.sessions()).await?;
        let n_sessions = sessions.len();
        self.inner.registry().restore(sessions);
        let mut records = recording.wait(recording.store.claim_turns()).await?;
        {
            let running_now = self.inner.in_flight();
            records.retain(|record| {
                let turn = turn_key(record);
                !running.contains(&turn) && !running_now.contains(&turn)
            });
        }
        info!(n_sessions, n_turns = records.len(), "restored");
        let restored = records.into_iter().map(|record| {
            let resume = Resume::recorded(record.clone());
            RestoredTurn { record, running: self.start(Work::Resume(Box::new(resume))) }
        });
        Ok(restored.collect())
    }

    /// Goes on with one prompt that was sent before, by this process or an earlier one.
    ///
    /// With a record of it in the store, this is what [`restore`](Self::restore) does. Without one it is waited for if the agent has
    /// it, and nothing is ever sent: what the agent does not know ends as interrupted. A prompt that is over gives its result
    /// again. The result is that of any other prompt; without a record it does not hold the prompt's text.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager) -> Result<(), opencode_conductor::Error> {
    /// let result = manager.resume("ses_from_your_database", "msg_from_your_database").await?;
    /// println!("{}: {}", result.completion, result.answer().unwrap_or_default());
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(&self, session: impl Into<SessionId>, message: impl Into<MessageId>) -> RunningPrompt {
        let resume = Resume { session: session.into().trimmed(), message: message.into(), record: None };
        self.start(Work::Resume(Box::new(resume)))
    }

    /// The session of a task: the one that this manager knows, else the newest that the agent keeps for the task, which is then
    /// taken over.
    ///
    /// For runners without a store. `OpenCode` finds a session by the tag that [`create_task_session`](Self::create_task_session)
    /// gives it, among the newest thousand of the directory.
    ///
    /// # Errors
    /// If the task's id is not valid, the agent cannot be asked, or the session belongs to another task here.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::Directory;
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager) -> Result<(), opencode_conductor::Error> {
    /// let worktree = Directory::new("/srv/worktrees/task-42")?;
    /// match manager.find_task_session("task-42", &worktree).await? {
    ///     Some(meta) => println!("task-42 goes on in {}", meta.session_id),
    ///     None => println!("task-42 has not begun"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn find_task_session(
        &self,
        task: impl Into<TaskId>,
        directory: &Directory,
    ) -> Result<Option<ConversationSessionMeta>, SessionError> {
        let task: TaskId = task.into().trimmed();
        InvalidInput::check_id("task id", task.as_str())?;
        let known = self.task_session_id(&task).and_then(|session| self.session(&session));
        if known.is_some() {
            return Ok(known);
        }
        match self.inner.find(MadeFor::Task(task.clone()), directory).await? {
            Some(session) => self.adopt_session(task, &session).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Inner {
    /// Looks for a session on the agent's side.
    pub(super) async fn find(
        &self,
        wanted: MadeFor,
        directory: &Directory,
    ) -> Result<Option<SessionId>, SessionError> {
        let found = self.agent.find(&wanted, directory).await;
        let attempt = || format!("looking for a session in {directory}");
        found.map_err(|source| SessionError::Agent { attempt: attempt(), source })
    }

    /// Forgets a session, here and in the store.
    pub(super) fn forget(&self, session: &SessionId) {
        self.registry().forget(session);
        if let Some(recording) = self.options.recording() {
            let session = session.clone();
            let mut removal = Box::pin(async move {
                if let Err(error) = recording.wait(recording.store.remove_session(&session)).await {
                    warn!(%session, %error, "the session could not be forgotten");
                }
            });
            // It is in line from here on: the task can have another session at once.
            if (&mut removal).now_or_never().is_none() {
                self.tasks.spawn(removal);
            }
        }
    }

    /// Writes what is known of a session.
    pub(super) async fn store_session(&self, meta: &ConversationSessionMeta) -> Result<(), SessionError> {
        let Some(recording) = self.options.recording() else { return Ok(()) };
        match recording.wait(recording.store.put_session(meta)).await {
            Err(error) if !recording.goes_on(&error) => Err(SessionError::Store { source: error }),
            Err(error) => {
                warn!(session = %meta.session_id, %error, "the session could not be stored");
                let (me, session) = (self.me.clone(), meta.session_id.clone());
                self.tasks.spawn(store_later(me, recording, session, self.shutdown.clone()));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Takes over a session that was made elsewhere for a task, whose session it is from now on.
    pub(super) async fn adopt(
        &self,
        task: &TaskId,
        session: &SessionId,
    ) -> Result<Arc<super::session::Session>, SessionError> {
        let session = self.session(session, None).await?;
        self.registry().assign(task, &session)?;
        self.store_session(&session.meta()).await?;
        Ok(session)
    }
}

/// Writes what is known of a session once the store works again, unless it is forgotten before that.
async fn store_later(
    manager: Weak<Inner>,
    recording: Recording,
    session: SessionId,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(PAUSE, MAX_PAUSE);
    let mut is_last = false;
    while !is_last {
        is_last = tokio::select! {
            () = sleep(backoff.next_pause()) => false,
            () = shutdown.cancelled() => true,
        };
        let Some(meta) = manager.upgrade().and_then(|manager| manager.registry().meta(&session)) else {
            return;
        };
        match recording.wait(recording.store.put_session(&meta)).await {
            Err(error) if !error.is_refusal() => debug!(%session, %error, "the session could not be stored"),
            Ok(()) | Err(_) => return,
        }
    }
}

/// What tells the turns of a store apart.
pub(super) fn turn_key(record: &TurnRecord) -> (SessionId, MessageId) {
    (record.prompt.session_id.clone(), record.prompt.message_id.clone())
}

/// Whether the agent says that it does not know the session.
pub(super) fn is_gone(error: &SessionError) -> bool {
    matches!(error, SessionError::Agent { source, .. } if source.is_not_found())
}
