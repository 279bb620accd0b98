//! A session as one handle: made or opened, talked to, and saved as it goes.

use std::{
    fmt,
    future::IntoFuture,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use futures_util::Stream;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::{
    ConversationManager, CreateTaskSession, PromptError, PromptExecutionResult, PromptInput, RunningPrompt,
    SessionError,
    inner::{Inner, agent_error},
    save::{self, Saver},
    session::Session,
    updates::StreamEvents,
};
use crate::{
    agent::AbortReport,
    ids::SessionId,
    lock::lock,
    session::{
        AgentProfile, RuntimeSessionData, SavedSessionData, SessionListData, StreamEvent, WorkspaceFile,
    },
};

/// One session: send it messages, look at it, and find it again after a restart.
///
/// A thin handle on a [`ConversationManager`], which does the work. With a [store](super::ManagerBuilder::store) it is saved as it goes:
/// soon after each block that is complete, when it is [asked for](Self::save), and when the last handle is dropped or the manager
/// shut down. Saving never holds up a turn, and one that fails is tried again. A session that the manager was told to forget is not saved any more.
///
/// Cheap to clone, and all clones are the same session. Must be used inside a tokio runtime.
///
/// # Examples
/// ```no_run
/// use futures_util::StreamExt;
/// use opencode_conductor::{AgentProfile, AgentSession, ConversationManager, CreateTaskSession, StreamEvent};
///
/// # async fn example(manager: ConversationManager) -> Result<(), opencode_conductor::Error> {
/// let task = CreateTaskSession::new("project", "task-42", "/srv/project", "/srv/worktrees/task-42");
/// let session = AgentSession::create(&manager, task, AgentProfile::new("code-assistant")).await?;
/// let mut message = session.send_message("What is in config.json?");
/// while let Some(event) = message.next().await {
///     match event {
///         StreamEvent::TextDelta { delta, .. } => print!("{delta}"),
///         StreamEvent::BlockComplete { block, .. } => println!("{}", block.id),
///         _ => {}
///     }
/// }
/// println!("{}", message.await?.completion);
/// println!("{} blocks", session.state().conversation.blocks().len());
///
/// // Later, perhaps in another process:
/// let session = AgentSession::open(&manager, session.session_id()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AgentSession {
    manager: ConversationManager,
    shared: Arc<Shared>,
    /// Asks for a save; nothing without a store. The saving ends when all of these are gone.
    saves: Option<mpsc::Sender<save::Answer>>,
}

/// What the handles and the saving share.
pub(super) struct Shared {
    pub(super) session: Arc<Session>,
    profile: AgentProfile,
    data: Mutex<Arc<SavedSessionData>>,
}

impl Shared {
    /// What was saved last, or is about to be.
    pub(super) fn data(&self) -> MutexGuard<'_, Arc<SavedSessionData>> {
        lock(&self.data)
    }
}

impl AgentSession {
    /// Makes the session of a task.
    ///
    /// # Errors
    /// As [`ConversationManager::create_task_session`].
    pub async fn create(
        manager: &ConversationManager,
        request: CreateTaskSession,
        profile: AgentProfile,
    ) -> Result<Self, SessionError> {
        let meta = manager.create_task_session(request).await?;
        let session = manager.inner.known(&meta.session_id)?;
        let mut data = new_data(&manager.inner, &session);
        data.listed.agent_profile_reference = profile.reference.clone();
        data.agent_profile = Some(profile);
        Ok(Self::new(manager, session, data))
    }

    /// Opens a session by its id, with its whole conversation and with what was saved of it, its profile included.
    ///
    /// What the agent knows of the conversation counts. If it knows nothing of it any more, it is that which was saved.
    ///
    /// # Errors
    /// If the agent does not have the session, or it or the store cannot be asked. To look at a session without its agent,
    /// [load](SavedSessionData::load) what the store has [saved](crate::Store::saved).
    pub async fn open(manager: &ConversationManager, session: &SessionId) -> Result<Self, SessionError> {
        let inner = &manager.inner;
        let saved = match inner.options.recording() {
            Some(recording) => recording.wait(recording.store.saved(session)).await,
            None => Ok(None),
        };
        let saved = saved.map_err(|source| SessionError::Store { source })?;
        let session = inner.session(session, None).await?;
        let loaded = session.agent.load().await;
        loaded.map_err(|source| agent_error("loading the conversation of", &session.id, source))?;
        let data = match saved {
            Some(saved) => {
                match saved.clone().load() {
                    Ok((known, _)) => session.conversation.restore(known.conversation),
                    Err(error) => warn!(session = %session.id, %error, "what was saved cannot be loaded"),
                }
                saved
            }
            None => new_data(inner, &session),
        };
        Ok(Self::new(manager, session, data))
    }

    fn new(manager: &ConversationManager, session: Arc<Session>, data: SavedSessionData) -> Self {
        let profile = data.agent_profile.clone().unwrap_or_default();
        let shared = Arc::new(Shared { session, profile, data: Mutex::new(Arc::new(data)) });
        let saves = manager.inner.options.recording().map(|recording| {
            let (saves, asked) = mpsc::channel(1);
            let saving = Saver::new(Arc::clone(&manager.inner), recording, Arc::clone(&shared)).run(asked);
            manager.inner.tasks.spawn(saving);
            saves
        });
        Self { manager: manager.clone(), shared, saves }
    }

    /// The agent's name for it.
    pub fn session_id(&self) -> &SessionId {
        &self.shared.session.id
    }

    /// Sends a message, with what the profile says. The session works on one at a time, in the order of the calls.
    ///
    /// The stream ends with the turn; awaiting what is returned gives the result.
    pub fn send_message(&self, text: impl Into<String>) -> SentMessage {
        self.send(PromptInput::new(self.session_id().clone(), text))
    }

    /// As [`Self::send_message`], for prompts that are more than text. What the prompt does not say the profile says.
    pub fn send(&self, mut input: PromptInput) -> SentMessage {
        let profile = &self.shared.profile;
        input.session = self.session_id().clone();
        input.model = input.model.or_else(|| profile.model.clone());
        input.agent = input.agent.or_else(|| profile.agent.clone());
        input.system = input.system.or_else(|| profile.instructions.clone());
        let mut running = self.manager.prompt(input).start();
        let events = running.updates().map(StreamEvents::new);
        SentMessage { running, events }
    }

    /// The session as it is now: its conversation, and the transcripts as they were saved last. Cheap.
    pub fn state(&self) -> RuntimeSessionData {
        let conversation = self.shared.session.conversation.state();
        RuntimeSessionData::new(Arc::clone(&self.shared.data()), conversation)
    }

    /// Changes which files the session was given to work on. They are saved with it; writing them is the caller's.
    pub fn set_workspace_files(&self, files: Vec<WorkspaceFile>) {
        Arc::make_mut(&mut *self.shared.data()).workspace_files = files;
        self.shared.session.conversation.changed();
    }

    /// Saves it now; without a store nothing happens.
    ///
    /// # Errors
    /// If the agent cannot be asked for what it said, the store cannot be written, the session was forgotten, or the manager was shut down.
    pub async fn save(&self) -> Result<(), SessionError> {
        let Some(saves) = &self.saves else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        saves.send(answer).await.map_err(|_gone| SessionError::ShutDown)?;
        answered.await.map_err(|_gone| SessionError::ShutDown)?
    }
}

/// What there is to save of a session that was never saved.
fn new_data(inner: &Inner, session: &Session) -> SavedSessionData {
    let meta = session.meta();
    let mut listed = SessionListData::new(meta.session_id, inner.agent.architecture());
    listed.created_at = Some(meta.created_at.millis());
    listed.last_activity = Some(meta.updated_at.millis());
    SavedSessionData::new(listed)
}

/// A message on its way: a stream of what happens, and a future of the result.
///
/// # Cancel safety
/// Dropping it ends the waiting, and leaves the agent's run alone.
#[derive(Debug)]
#[must_use = "a message that is dropped is not waited for"]
pub struct SentMessage {
    running: RunningPrompt,
    events: Option<StreamEvents>,
}

impl SentMessage {
    /// Aborts the session, as [`ConversationManager::abort`] does. The message then ends with what there is of it.
    ///
    /// # Errors
    /// If the session cannot be found.
    pub async fn abort(&self) -> Result<AbortReport, SessionError> {
        self.running.abort().await
    }
}

impl Stream for SentMessage {
    type Item = StreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        match &mut self.events {
            Some(events) => Pin::new(events).poll_next(context),
            None => Poll::Ready(None),
        }
    }
}

impl IntoFuture for SentMessage {
    type Output = Result<PromptExecutionResult, PromptError>;
    type IntoFuture = RunningPrompt;

    fn into_future(self) -> RunningPrompt {
        self.running
    }
}

impl fmt::Debug for AgentSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSession").field("session", self.session_id()).finish_non_exhaustive()
    }
}
