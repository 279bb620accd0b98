//! Tasks, sessions and prompts: the calls that a task runner makes.
//!
//! [`ConversationManager`] is the handle. It keeps two maps (task to session, session to what is known of it), lets one prompt at a time
//! into each session, answers what agents ask, and turns the end of an execution into a result. What waiting means is the agent's
//! business: see [`OpenSession`].

mod agent_session;
mod desk;
mod ended;
mod error;
mod host;
mod inner;
mod input;
mod json;
mod options;
mod policy;
mod prompt;
mod queue;
mod record;
mod registry;
mod restore;
mod result;
mod run;
mod save;
mod session;
mod sessions;
mod stats;
mod updates;

pub use agent_session::{AgentSession, SentMessage};
pub use desk::{AnswerError, ApprovalDesk};
pub use error::{JsonAnswerError, PromptError, SessionError, TurnFailed};
pub use input::{AttachmentError, CreateTaskSession, PromptInput, WhenBusy};
pub use json::JsonAnswer;
pub use options::ManagerBuilder;
pub use policy::{AskHandler, PermissionPolicy, QuestionPolicy};
pub use prompt::{Prompt, RunningPrompt};
pub use record::WhenStoreFails;
pub use restore::RestoredTurn;
pub use result::{PromptExecutionResult, PromptSubmission};
pub use stats::{ManagerStatistics, TurnStatistics};
pub use updates::{Update, Updates};

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{
    Instrument, error_span,
    field::{self, display},
    info, warn,
};

use self::{
    ended::answer_aborts,
    host::{Host, TurnState},
    inner::{Inner, agent_error},
    options::ManagerOptions,
    run::{Queued, Run, Work},
    stats::ManagerCounters,
    updates::UpdateSender,
};
use crate::{
    agent::{AbortReport, Agent, Delivery, Ended, IdleOutcome, OpenSession, Stop, Unprepared, WaitOptions},
    error::InvalidInput,
    ids::{SessionId, TaskId},
    session::ConversationSessionMeta,
};

/// A handle to an agent's sessions; cheap to clone, and all clones share one state.
///
/// Must be used inside a tokio runtime with time and I/O enabled.
#[derive(Clone)]
pub struct ConversationManager {
    inner: Arc<Inner>,
}

impl ConversationManager {
    fn new(agent: Arc<dyn Agent>, options: ManagerOptions) -> Self {
        let inner = Arc::new_cyclic(|me| Inner {
            me: me.clone(),
            agent,
            options,
            registry: Mutex::default(),
            in_flight: Mutex::default(),
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            counters: ManagerCounters::default(),
        });
        Self { inner }
    }

    /// The agent whose sessions it manages.
    pub fn agent(&self) -> &dyn Agent {
        &*self.inner.agent
    }

    /// How the agent works with a session that the manager knows.
    pub(crate) fn open_session(&self, session: &SessionId) -> Result<Arc<dyn OpenSession>, SessionError> {
        self.inner.known(session).map(|session| Arc::clone(&session.agent))
    }

    /// As [`Self::open_session`], but takes over a session that the manager does not know.
    pub(crate) async fn find_session(
        &self,
        session: &SessionId,
    ) -> Result<Arc<dyn OpenSession>, SessionError> {
        self.inner.session(session, None).await.map(|session| Arc::clone(&session.agent))
    }

    /// What was done since the manager was made, and what it is doing: turns by outcome, polls, kicks.
    ///
    /// With the feature `metrics` the same facts are also metrics; see the [guide](crate::guide::operating).
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager) {
    /// let stats = manager.statistics();
    /// println!("{} prompts settled, {} run, {} wait", stats.turns.settled, stats.running, stats.waiting);
    /// println!("{} polls, {} prompts sent again", stats.turns.polls, stats.turns.kicks);
    /// # }
    /// ```
    pub fn statistics(&self) -> ManagerStatistics {
        self.inner.counters.snapshot()
    }

    /// Makes the session of a task.
    ///
    /// A lost response does not make a second session: the session carries a tag by which it is found again. That fails in
    /// two cases: the server keeps no metadata, or it is still making the first session when it is asked.
    ///
    /// # Errors
    /// If the input is not valid, the task has a session already, the server cannot make one, or the manager was shut down.
    ///
    /// # Cancel safety
    /// Dropping it may leave a session on the server that no task has.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::CreateTaskSession;
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager) -> Result<(), Box<dyn std::error::Error>> {
    /// let task = CreateTaskSession::new("project", "task-42", "/srv/project", "/srv/worktrees/task-42")
    ///     .title("Fix the flaky test");
    /// let meta = manager.create_task_session(task).await?;
    /// println!("{} works in {}", meta.session_id, meta.directory);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_task_session(
        &self,
        request: CreateTaskSession,
    ) -> Result<ConversationSessionMeta, SessionError> {
        let new = request.check(self.inner.options.convert)?;
        let session = self.inner.create_session(&request, &new).await?;
        info!(task = %request.task, session = %session.id, directory = %session.directory, "session made");
        Ok(session.meta())
    }

    /// Takes over a session that was made elsewhere, or by an earlier process, for a task.
    ///
    /// # Errors
    /// If the ids are not valid, the task has another session, another task has this one, the server does not know it, or the manager was
    /// shut down.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::SessionId;
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager) -> Result<(), Box<dyn std::error::Error>> {
    /// let session = SessionId::new("ses_from_your_database");
    /// let meta = manager.adopt_session("task-42", &session).await?;
    /// println!("{} goes on in {}", meta.title, meta.directory);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn adopt_session(
        &self,
        task: impl Into<TaskId>,
        session: &SessionId,
    ) -> Result<ConversationSessionMeta, SessionError> {
        let task: TaskId = task.into().trimmed();
        InvalidInput::check_id("task id", task.as_str())?;
        self.inner.check_open()?;
        if let Some(known) = self.task_session_id(&task).filter(|known| known != session) {
            return Err(SessionError::TaskHasSession { task, session: known });
        }
        self.inner.adopt(&task, session).await.map(|session| session.meta())
    }

    /// Sends the first prompt of a session and waits for the answer.
    ///
    /// # Errors
    /// If the model was not called; see [`PromptError`]. A turn that began is an `Ok` whose
    /// [`completion`](PromptExecutionResult::completion) says how it ended.
    ///
    /// # Cancel safety
    /// Dropping it leaves the agent's run alone; see [`PromptInput::abort_on_drop`].
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::PromptInput;
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let prompt = PromptInput::new(session, "Make the failing test pass.").agent("build");
    /// let result = manager.send_initial_prompt_and_await_messages(prompt).await?.settled()?;
    /// println!("{} for {:.2}", result.answer().unwrap_or_default(), result.usage.cost);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_initial_prompt_and_await_messages(
        &self,
        input: PromptInput,
    ) -> Result<PromptExecutionResult, PromptError> {
        self.prompt(input).await
    }

    /// Sends a further prompt of a session and waits for the answer. What the session said before is not in the result.
    ///
    /// # Errors
    /// As for [`send_initial_prompt_and_await_messages`](Self::send_initial_prompt_and_await_messages).
    ///
    /// # Cancel safety
    /// Dropping it leaves the agent's run alone; see [`PromptInput::abort_on_drop`].
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::{Completion, PromptInput};
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let prompt = PromptInput::new(session, "Now explain what was wrong.");
    /// let result = manager.send_follow_up_prompt_and_await_messages(prompt).await?;
    /// match &result.completion {
    ///     Completion::Settled => println!("{}", result.answer().unwrap_or_default()),
    ///     other => println!("{other:?}, after {} messages", result.messages.opencode().len()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_follow_up_prompt_and_await_messages(
        &self,
        input: PromptInput,
    ) -> Result<PromptExecutionResult, PromptError> {
        self.prompt(input).await
    }

    /// A prompt to be awaited, watched, or asked for JSON.
    ///
    /// # Examples
    /// ```no_run
    /// use futures_util::StreamExt;
    /// use opencode_conductor::{PromptInput, Update};
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut running = manager.prompt(PromptInput::new(session, "Tidy up.")).start();
    /// let updates = running.updates().expect("taken once");
    /// let show = updates.for_each(async |update| {
    ///     if let Update::Conversation(event) = update {
    ///         println!("{event:?}");
    ///     }
    /// });
    /// let (result, ()) = tokio::join!(running, show);
    /// println!("{:?}", result?.completion);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prompt(&self, input: PromptInput) -> Prompt {
        Prompt::new(self.clone(), input)
    }

    /// Waits until whatever a session does now has come to rest; used after a restart.
    ///
    /// # Errors
    /// If the session cannot be found, or does not come to rest within the limits. The agent's run is aborted then, unless
    /// `options` says [`TimeoutAction::Leave`](crate::TimeoutAction::Leave).
    ///
    /// # Cancel safety
    /// Dropping it changes nothing on the agent's side.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::{IdleOutcome, WaitOptions};
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// match manager.wait_for_session_idle(&session, WaitOptions::default()).await? {
    ///     IdleOutcome::Rest(Some(completion)) => println!("its last turn ended: {completion:?}"),
    ///     IdleOutcome::Rest(None) => println!("nothing was ever asked of it"),
    ///     IdleOutcome::Unanswered => println!("its last prompt was not run"),
    ///     _ => {}
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_for_session_idle(
        &self,
        session: &SessionId,
        options: WaitOptions,
    ) -> Result<IdleOutcome, PromptError> {
        options.validate()?;
        let opened = self.inner.session(session, None).await;
        let session = opened.map_err(|error| {
            let task = self.inner.registry().meta(session).and_then(|meta| meta.task_id);
            PromptError::unopened(session.clone(), task, Delivery::NotSent, error)
        })?;
        // Prompts that wait are sent away with an abort; this is none.
        let mut permit = loop {
            if let Some(permit) = session.queue.enter().wait().await {
                break permit;
            }
        };
        let policies = session.policies(&self.inner.options.policies);
        let turn = TurnState::begin(&self.inner, &session, &permit, policies, None);
        let host = Host { turn: &turn, limits: options };
        let span = error_span!("wait", task = field::Empty, session = %session.id);
        if let Some(task) = session.meta().task_id {
            span.record("task", display(task));
        }
        let rested = tokio::select! {
            rested = session.agent.wait_for_rest(&host).instrument(span) => rested,
            () = self.inner.shutdown.cancelled() => Err(Unprepared::new(Ended::Stopped(Stop::GivenUp), None)),
        };
        self.inner.counters.turns.refusals.add(turn.take_refused().n_in_all);
        while let Err((unanswered, calls)) = permit.pass_on() {
            answer_aborts(&session, calls, None).await;
            permit = unanswered;
        }
        session.conversation.changed();
        rested.map_err(|unprepared| self.inner.not_at_rest(&session, &host.limits, unprepared))
    }

    /// Aborts a session and its descendants, within ten seconds, and says what could be confirmed.
    ///
    /// A prompt in flight ends with what there is of it, and one that is about to be sent is not; prompts that wait behind it go on.
    ///
    /// # Errors
    /// If the session cannot be found.
    ///
    /// # Cancel safety
    /// Dropping it does not take the abort back.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let report = manager.abort(&session).await?;
    /// if !report.confirmed {
    ///     println!("it is not known whether {} sessions have stopped", report.sessions.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn abort(&self, session: &SessionId) -> Result<AbortReport, SessionError> {
        let session = self.inner.session(session, None).await?;
        let (call, report) = oneshot::channel();
        Ok(session.aborted(session.queue.abort(call), report).await)
    }

    /// As [`Self::abort`], and the prompts that wait behind the one in flight are not sent: they end with [`PromptError::Aborted`].
    ///
    /// # Errors
    /// If the session cannot be found.
    ///
    /// # Cancel safety
    /// Dropping it does not take the abort back.
    pub async fn abort_all(&self, session: &SessionId) -> Result<AbortReport, SessionError> {
        let session = self.inner.session(session, None).await?;
        let (call, report) = oneshot::channel();
        Ok(session.aborted(session.queue.abort_all(call), report).await)
    }

    /// Deletes a session for good, with what was saved of it, and forgets it.
    ///
    /// # Errors
    /// If the agent cannot be asked; a session that it does not have is deleted already.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// manager.delete(&session).await?;
    /// assert_eq!(manager.session(&session), None);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn delete(&self, session: &SessionId) -> Result<(), SessionError> {
        self.inner.agent.check_session_id(session)?;
        let directory = self.session_directory(session);
        let deleted = self.inner.agent.delete(session, directory.as_ref()).await;
        deleted.map_err(|source| agent_error("deleting", session, source))?;
        self.forget(session);
        if let Some(recording) = self.inner.options.recording()
            && let Err(error) = recording.wait(recording.store.remove_saved(session)).await
        {
            warn!(%session, %error, "what was saved of a deleted session is still there");
        }
        Ok(())
    }

    /// Forgets a session, which stays with the agent; what was saved of it stays, too. A prompt in flight goes on.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// manager.forget(&session);
    /// assert_eq!(manager.session_directory(&session), None);
    /// # }
    /// ```
    pub fn forget(&self, session: &SessionId) {
        self.inner.forget(session);
    }

    /// Gives up all waiting, joins all tasks and closes all connections. The agent's runs go on, but for prompts with
    /// [`abort_on_drop`](PromptInput::abort_on_drop), and so do other managers of the same client.
    ///
    /// With a store the turns stay open there, and their prompts end as [`Completion::GivenUp`](crate::Completion::GivenUp) or
    /// [`PromptError::ShutDown`]: another process goes on with them ([`restore`](Self::restore)) without waiting for this one to end.
    ///
    /// # Cancel safety
    /// Can be called again.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager) {
    /// manager.shutdown().await;
    /// # }
    /// ```
    pub async fn shutdown(&self) {
        self.inner.shutdown.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        if let Some(recording) = self.inner.options.recording()
            && let Err(error) = recording.wait(recording.store.release()).await
        {
            warn!(%error, "open turns are free for others only when this process ends");
        }
        self.inner.agent.shutdown().await;
    }

    fn start(&self, work: Work) -> RunningPrompt {
        let (sender, receiver) = oneshot::channel();
        let (reader, updates) = UpdateSender::new();
        let cancel = self.inner.shutdown.child_token();
        let id = work.session_id().clone();
        // Of the highest level, so that what is logged inside names task and session wherever the reader's threshold is.
        let span = error_span!("prompt", task = field::Empty, session = %id);
        let task = work.task(&self.inner);
        let is_task_named = task.is_some();
        if let Some(task) = task {
            span.record("task", display(task));
        }
        // The ticket is taken here and not in the task, so that the order of calls is the order of turns.
        let known = self.inner.registry().session(&id).cloned();
        let queued = known.map(|session| Queued { ticket: work.queue_up(&session), session });
        let inner = Arc::clone(&self.inner);
        let abandoned = cancel.clone();
        if let Work::Resume(resume) = &work {
            inner.in_flight().insert(resume.key());
        }
        let (aborts, calls) = mpsc::unbounded_channel();
        let task = async move {
            let run = Run { inner: &inner, work: &work, abandoned: &abandoned, is_task_named };
            let result = run.run(queued, reader, calls).await;
            if let Work::Resume(resume) = &work {
                inner.in_flight().remove(&resume.key());
            }
            if let Ok(session) = inner.known(work.session_id()) {
                session.conversation.changed();
            }
            // The caller may have dropped the prompt.
            drop(sender.send(result));
        };
        self.inner.tasks.spawn(task.instrument(span));
        RunningPrompt::new(self.clone(), id, receiver, updates, aborts, cancel)
    }
}

impl fmt::Debug for ConversationManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConversationManager")
            .field("agent", &self.inner.agent.name())
            .field("options", &self.inner.options)
            .field("n_turns", &self.inner.tasks.len())
            .finish_non_exhaustive()
    }
}
