//! Tasks, sessions and prompts: the calls that a task runner makes.
//!
//! [`ConversationManager`] is the handle. It keeps three maps (task to session, session to directory, session to what is known
//! of it), lets one prompt at a time into each session, and drives every prompt's [`Turn`](crate::turn::Turn) to a truthful end.

mod driver;
mod error;
mod input;
mod json;
mod line;
mod mint;
mod model;
mod options;
mod policy;
mod prompt;
mod reading;
mod registry;
mod result;
mod updates;

pub use error::{JsonAnswerError, PromptError, SessionError, TurnFailed};
pub use input::{AttachmentError, CreateTaskSession, PromptInput, WhenBusy};
pub use model::resolve_prompt_model;
pub use options::ManagerBuilder;
pub use policy::{
    PermissionDecision, PermissionHandler, PermissionPolicy, QuestionDecision, QuestionHandler,
    QuestionPolicy,
};
pub use prompt::{Prompt, RunningPrompt};
pub use registry::ConversationSessionMeta;
pub use result::{AbortReport, Completion, PromptExecutionResult, PromptSubmission};
pub use updates::{Update, Updates};

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Map, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, debug, debug_span};

use self::{
    driver::{Driven, Driver, End, Terms, abort_tree},
    input::{check_directory, check_id, check_session, check_task},
    line::{Place, Turnstile},
    mint::Mint,
    options::ManagerOptions,
    registry::{Registry, Session},
    updates::Reporter,
};
use crate::{
    client::{
        ApiError, Directory, DirectoryClient, MessagePage, OpenCodeClient, SessionFilter, Subscription,
    },
    conversation::{SessionConversationState, Usage},
    ids::{SessionId, TaskId},
    observe::Snapshot,
    turn::{Delivery, Ended, TimeoutAction, WaitOptions},
    wire::{CreateSession, Message, MessageInfo, ModelRef, PromptPart, PromptRequest, SessionInfo},
};

/// How often the making of a session is tried.
const CREATE_ATTEMPTS: u32 = 4;
/// The first pause before it is tried again; doubles each time.
const CREATE_PAUSE: Duration = Duration::from_millis(250);
/// How many calls may wait for the same turn to be aborted; more abort by themselves.
const ABORT_WISHES: usize = 16;
/// Where a session's metadata says which call made it.
const TAG: &str = "conductor";

/// A handle to a server's sessions; cheap to clone, and all clones share one state.
///
/// Must be used inside a tokio runtime with time and I/O enabled.
#[derive(Clone)]
pub struct ConversationManager {
    inner: Arc<Inner>,
}

struct Inner {
    client: OpenCodeClient,
    options: ManagerOptions,
    registry: Mutex<Registry>,
    mint: Mint,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// How a session came to rest.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum IdleOutcome {
    /// Its last turn is complete, in the way that is given; nothing if it has none.
    Rest(Option<Completion>),
    /// Its last prompt was stored but not run.
    Unanswered,
}

impl ConversationManager {
    /// A manager of the server at `url`, with all defaults. Connects when it has to.
    ///
    /// # Errors
    /// If `url` is not an HTTP URL.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::ConversationManager;
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let manager = ConversationManager::connect("http://127.0.0.1:4096")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(url: &str) -> Result<Self, ApiError> {
        Ok(Self::builder(OpenCodeClient::new(url)?).build())
    }

    /// A manager of the server that `client` talks to.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::{ConversationManager, OpenCodeClient, PermissionPolicy};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = OpenCodeClient::builder("http://127.0.0.1:4096").basic_auth("opencode", "secret").build()?;
    /// let manager = ConversationManager::builder(client).permissions(PermissionPolicy::AllowOnce).build();
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: OpenCodeClient) -> ManagerBuilder {
        ManagerBuilder::new(client)
    }

    fn new(client: OpenCodeClient, options: ManagerOptions) -> Self {
        let inner = Inner {
            client,
            options,
            registry: Mutex::default(),
            mint: Mint::default(),
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The client underneath, for what the manager does not do.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} requests so far", manager.client().statistics().requests);
    /// println!("OpenCode {}", manager.client().health().await?.version);
    /// # Ok(())
    /// # }
    /// ```
    pub fn client(&self) -> &OpenCodeClient {
        &self.inner.client
    }

    /// Makes the session of a task.
    ///
    /// A lost response does not make a second session: the session carries a tag by which it is found again.
    ///
    /// # Errors
    /// If the input is not valid, the task has a session already, or the server cannot make one.
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
        check_task(&request.task)?;
        check_id("project id", request.project.as_str())?;
        let title = request.checked_title()?;
        check_directory("project directory", &request.project_directory)?;
        let directory = check_directory("worktree", &request.worktree)?;
        let _reservation = Reservation::new(&self.inner, &request)?;
        let info = self.inner.create_session(&request, title, &directory).await?;
        self.inner.mint.server_said(info.time.created);
        let mut meta = ConversationSessionMeta::of(&info, directory);
        meta.task_id = Some(request.task.clone());
        meta.project_id = Some(request.project.clone());
        meta.project_directory = Some(request.project_directory.clone());
        meta.created_at = request.created_at.unwrap_or(meta.created_at);
        debug!(task = %request.task, session = %meta.session_id, "session made");
        let session = Session::new(meta.clone(), self.inner.options.convert, true);
        self.inner.registry().add(session);
        Ok(meta)
    }

    /// Takes over a session that was made elsewhere, or by an earlier process, for a task.
    ///
    /// # Errors
    /// If the ids are not valid, the task has another session, another task has this one, or the server does not know it.
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
        let task = task.into();
        check_task(&task)?;
        check_session(session)?;
        if let Some(known) = self.task_session_id(&task).filter(|known| known != session) {
            return Err(SessionError::TaskHasSession { task, session: known });
        }
        let session = self.inner.session(session, None).await?;
        self.inner.registry().assign(&task, &session)?;
        let meta = session.live().meta.clone();
        Ok(meta)
    }

    /// Sends the first prompt of a session and waits for the answer.
    ///
    /// # Errors
    /// If the model was not called; see [`PromptError`]. A turn that began is an `Ok` whose
    /// [`completion`](PromptExecutionResult::completion) says how it ended.
    ///
    /// # Cancel safety
    /// Dropping it leaves the server's run alone; see [`PromptInput::abort_on_drop`].
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
    /// Dropping it leaves the server's run alone; see [`PromptInput::abort_on_drop`].
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
    ///     other => println!("{other:?}, after {} messages", result.messages.len()),
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
    /// If the session is not to be had, or does not come to rest within the limits. The server's run is aborted then, unless
    /// `options` says [`TimeoutAction::Leave`].
    ///
    /// # Cancel safety
    /// Dropping it changes nothing on the server.
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
        check_session(session)?;
        options.validate()?;
        let session = self.inner.session(session, None).await?;
        let _turnstile = session.line.enter().wait().await;
        let api = self.inner.client.directory(&session.directory);
        let mut subscription = api.subscribe(&session.id);
        let terms = self.inner.terms(options);
        let driven = Driver::new(&api, &session, &terms, None, &mut subscription, &mut Reporter::silent())
            .run(false, &mut mpsc::channel(1).1)
            .await;
        self.inner.came_to_rest(&session, &driven.ended)?;
        if matches!(driven.ended, End::Turn(Ended::Interrupted)) {
            return Ok(IdleOutcome::Rest(Some(Completion::Interrupted)));
        }
        let live = session.live();
        let last_turn: Vec<Arc<Message>> = {
            let of_turn = live.tree.messages(&session.id).rev();
            let mut of_turn: Vec<_> = of_turn
                .take_while(|message| !matches!(message.info, MessageInfo::User(_)))
                .cloned()
                .collect();
            of_turn.reverse();
            of_turn
        };
        let asked =
            live.tree.messages(&session.id).any(|message| matches!(message.info, MessageInfo::User(_)));
        Ok(match (last_turn.is_empty(), asked) {
            (true, true) => IdleOutcome::Unanswered,
            (true, false) => IdleOutcome::Rest(None),
            (false, _) => IdleOutcome::Rest(Some(Completion::of_rest(&last_turn))),
        })
    }

    /// All messages of a session, oldest first, as the server has them.
    ///
    /// # Errors
    /// If the session is not to be had, or the server cannot be asked.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// for message in manager.list_conversation_messages(&session).await? {
    ///     println!("{}: {} parts", message.info.id(), message.parts.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_conversation_messages(
        &self,
        session: &SessionId,
    ) -> Result<Vec<Message>, SessionError> {
        check_session(session)?;
        let session = self.inner.session(session, None).await?;
        let api = self.inner.client.directory(&session.directory);
        let list = api.messages(&session.id, &MessagePage::all()).await;
        Ok(list.map_err(|source| server_error("listing messages of", &session.id, source))?.messages)
    }

    /// The events of a session and its descendants, from when it says `Connected`; ends when dropped.
    ///
    /// # Errors
    /// If the manager does not know the session.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::FeedSignal;
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut events = manager.subscribe_to_events(&session)?;
    /// loop {
    ///     match events.next().await {
    ///         FeedSignal::Event(event) => println!("{event:?}"),
    ///         FeedSignal::Resync { reason } => println!("read everything again: {reason}"),
    ///         FeedSignal::Gone { .. } => break,
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe_to_events(&self, session: &SessionId) -> Result<Subscription, SessionError> {
        let session = self.inner.known(session)?;
        Ok(self.inner.client.directory(&session.directory).subscribe(&session.id))
    }

    /// The session of a task.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::TaskId;
    ///
    /// # fn example(manager: opencode_conductor::ConversationManager) {
    /// if let Some(session) = manager.task_session_id(&TaskId::from("task-42")) {
    ///     println!("task-42 has session {session}");
    /// }
    /// # }
    /// ```
    pub fn task_session_id(&self, task: &TaskId) -> Option<SessionId> {
        self.inner.registry().task(task).cloned()
    }

    /// The directory that a session works in.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// let directory = manager.session_directory(&session);
    /// println!("{:?}", directory.map(|directory| directory.as_path().to_owned()));
    /// # }
    /// ```
    pub fn session_directory(&self, session: &SessionId) -> Option<Directory> {
        self.inner.registry().session(session).map(|session| session.directory.clone())
    }

    /// What is known of a session.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// if let Some(meta) = manager.session(&session) {
    ///     println!("{} since {}", meta.title, meta.created_at);
    /// }
    /// # }
    /// ```
    pub fn session(&self, session: &SessionId) -> Option<ConversationSessionMeta> {
        self.inner.registry().session(session).map(|session| session.live().meta.clone())
    }

    /// The conversation of a session as far as this manager has seen it; cheap.
    ///
    /// For a session that was taken over, [`load_conversation`](Self::load_conversation) brings what was before.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::markdown::{self, MarkdownOptions};
    ///
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// if let Some(state) = manager.conversation(&session) {
    ///     println!("{}", markdown::render(&state, &MarkdownOptions::default()));
    /// }
    /// # }
    /// ```
    pub fn conversation(&self, session: &SessionId) -> Option<SessionConversationState> {
        self.inner.registry().session(session).map(|session| session.live().state.clone())
    }

    /// Reads the whole conversation of a session and its descendants from the server.
    ///
    /// # Errors
    /// If the session is not to be had, or the server cannot be asked.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let state = manager.load_conversation(&session).await?;
    /// println!("{}", serde_json::to_string(&state)?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn load_conversation(
        &self,
        session: &SessionId,
    ) -> Result<SessionConversationState, SessionError> {
        check_session(session)?;
        let session = self.inner.session(session, None).await?;
        let api = self.inner.client.directory(&session.directory);
        let failed = |source| server_error("loading the conversation of", &session.id, source);
        let status = api.session_status().await.map_err(failed)?;
        let mut open = vec![session.id.clone()];
        while let Some(id) = open.pop() {
            let list = api.messages(&id, &MessagePage::all()).await.map_err(failed)?;
            let children = api.children(&id).await.map_err(failed)?.items;
            // Nothing runs, on the server or from here, so that what is unfinished stays so.
            let rests = status.get(&id).is_idle() && !session.line.is_taken() && list.malformed.is_empty();
            let snapshot = if rests { Snapshot::Settled } else { Snapshot::Live };
            let mut live = session.live();
            let mut observed = live.tree.apply_messages(&id, &list.messages, snapshot);
            if rests {
                observed.append(live.tree.settle(&id));
            }
            for child in children {
                observed.append(live.tree.apply_session(&child));
                open.push(child.id);
            }
            live.fold(&observed);
        }
        let state = session.live().state.clone();
        Ok(state)
    }

    /// Aborts a session and its descendants, within ten seconds, and says what could be confirmed.
    ///
    /// A prompt in flight ends with what there is of it; prompts that wait behind it go on.
    ///
    /// # Errors
    /// If the session is not to be had.
    ///
    /// # Cancel safety
    /// Dropping it does not take the abort back.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let report = manager.abort(&session).await?;
    /// if !report.confirmed {
    ///     println!("nobody knows whether {} sessions have stopped", report.sessions.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn abort(&self, session: &SessionId) -> Result<AbortReport, SessionError> {
        check_session(session)?;
        let session = self.inner.session(session, None).await?;
        let running = {
            let mut live = session.live();
            live.at_rest = false;
            live.stop.clone()
        };
        // A turn in flight aborts itself: whoever did it from here might hit the next one.
        let (wish, granted) = oneshot::channel();
        if let Some(running) = running
            && running.try_send(wish).is_ok()
            && let Ok(report) = granted.await
        {
            return Ok(report);
        }
        Ok(self.inner.abort(&session).await)
    }

    /// Deletes a session on the server and forgets it.
    ///
    /// # Errors
    /// If the server cannot be asked; a session that it does not have is deleted already.
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
        check_session(session)?;
        let directory = self.session_directory(session);
        let client = &self.inner.client;
        let api =
            directory.map_or_else(|| client.default_directory(), |directory| client.directory(&directory));
        match api.delete_session(session).await {
            Err(error) if !error.is_not_found() => Err(server_error("deleting", session, error)),
            Ok(()) | Err(_) => {
                self.forget(session);
                Ok(())
            }
        }
    }

    /// Forgets a session, which stays on the server. A prompt in flight goes on.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// manager.forget(&session);
    /// assert_eq!(manager.session_directory(&session), None);
    /// # }
    /// ```
    pub fn forget(&self, session: &SessionId) {
        self.inner.registry().forget(session);
    }

    /// Gives up all waiting, joins all tasks and closes all connections. The server's runs go on.
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
        self.inner.client.shutdown().await;
    }

    fn start(&self, input: PromptInput) -> RunningPrompt {
        let (sender, receiver) = oneshot::channel();
        let (reporter, updates) = Reporter::new(input.on_message.clone());
        let cancel = self.inner.shutdown.child_token();
        let session = input.session.clone();
        let span = debug_span!("prompt", %session);
        // The place is taken here and not in the task, so that the order of calls is the order of turns.
        let known = self.inner.registry().session(&session).cloned();
        let place = known.map(|session| (line_up(&session, &input), session));
        let inner = Arc::clone(&self.inner);
        let abandoned = cancel.clone();
        let task = async move {
            // Nobody may be waiting any more.
            drop(sender.send(inner.run(input, place, reporter, abandoned).await));
        };
        self.inner.tasks.spawn(task.instrument(span));
        RunningPrompt::new(session, receiver, updates, cancel)
    }
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, session: &SessionId) -> Result<Arc<Session>, SessionError> {
        let known = self.registry().session(session).cloned();
        known.ok_or_else(|| SessionError::Unknown { session: session.clone() })
    }

    /// The session, taken over if it was made elsewhere.
    async fn session(
        &self,
        id: &SessionId,
        directory: Option<&std::path::Path>,
    ) -> Result<Arc<Session>, SessionError> {
        if let Ok(known) = self.known(id) {
            return Ok(known);
        }
        // Old servers find a session only from a directory of its project. Where it works is for the server to say: status
        // and events of any other directory are those of strangers.
        let api = match directory {
            Some(directory) => self.client.directory(&Directory::new(directory)?),
            None => self.client.default_directory(),
        };
        let info = api.session(id).await.map_err(|source| server_error("finding", id, source))?;
        let meta = ConversationSessionMeta::of(&info, Directory::new(&info.directory)?);
        Ok(self.registry().add(Session::new(meta, self.options.convert, false)))
    }

    async fn create_session(
        &self,
        request: &CreateTaskSession,
        title: String,
        directory: &Directory,
    ) -> Result<SessionInfo, SessionError> {
        let api = self.client.directory(directory);
        let nonce = self.mint.part().to_string();
        let tag = json!({ "task": request.task, "project": request.project, "nonce": nonce });
        let create = CreateSession {
            title: Some(title),
            metadata: Map::from_iter([(TAG.to_owned(), tag)]),
            permission: request.permissions.clone(),
            ..CreateSession::default()
        };
        let mut attempt = 0;
        // There may be a session that nobody knows the id of: it is looked for before another is made.
        let mut unclear = false;
        loop {
            attempt += 1;
            let found = if unclear { find_tagged(&api, &nonce).await } else { Ok(None) };
            let made = match found {
                Ok(Some(info)) => Ok(info),
                Ok(None) => api.create_session(&create).await,
                Err(error) => Err(error),
            };
            let error = match made {
                Ok(info) => return Ok(info),
                Err(error) => error,
            };
            unclear |= error.delivery() == Delivery::Unknown;
            let give_up = attempt == CREATE_ATTEMPTS || !(error.is_retryable() || unclear);
            if give_up {
                return Err(SessionError::Server {
                    attempt: format!("making a session for task {}", request.task),
                    source: error,
                });
            }
            sleep(CREATE_PAUSE * 2_u32.saturating_pow(attempt - 1)).await;
        }
    }

    fn terms(&self, wait: WaitOptions) -> Terms {
        let ManagerOptions { permissions, questions, .. } = &self.options;
        Terms { wait, permissions: permissions.clone(), questions: questions.clone() }
    }

    /// Runs a prompt from its place in the line to its result, unless its caller loses interest.
    async fn run(
        &self,
        input: PromptInput,
        place: Option<(Option<Place>, Arc<Session>)>,
        reporter: Reporter,
        abandoned: CancellationToken,
    ) -> Result<PromptExecutionResult, PromptError> {
        let id = input.session.clone();
        let given_up = |delivery| Err(PromptError::GivenUp { session: id, delivery });
        let (_turnstile, session, parts) = tokio::select! {
            biased;
            () = abandoned.cancelled() => return given_up(Delivery::NotSent),
            turn = self.enter(&input, place) => turn?,
        };
        let mut delivery = Delivery::NotSent;
        let executed = tokio::select! {
            biased;
            () = abandoned.cancelled() => None,
            result = self.execute(&input, &session, parts, reporter, &mut delivery) => Some(result),
        };
        if let Some(result) = executed {
            return result;
        }
        session.live().stop = None;
        // The next prompt waits until this is over.
        if input.abort_on_drop && delivery != Delivery::NotSent {
            self.abort(&session).await;
        }
        given_up(delivery)
    }

    /// Everything before a prompt's turn: checks it, finds its session, reads its attachments and waits in line.
    async fn enter(
        &self,
        input: &PromptInput,
        place: Option<(Option<Place>, Arc<Session>)>,
    ) -> Result<(Turnstile, Arc<Session>, Vec<PromptPart>), PromptError> {
        input.validate()?;
        let (place, session) = if let Some(known) = place {
            known
        } else {
            let session = self.session(&input.session, input.directory.as_deref()).await?;
            (line_up(&session, input), session)
        };
        let Some(place) = place else {
            return Err(PromptError::Busy { session: session.id.clone() });
        };
        let mut parts = Vec::with_capacity(input.parts.len());
        for part in &input.parts {
            parts.push(part.load(&self.mint).await?);
        }
        Ok((place.wait().await, session, parts))
    }

    /// A prompt's turn. `delivery` tells how far it got if the call is dropped.
    async fn execute(
        &self,
        input: &PromptInput,
        session: &Session,
        parts: Vec<PromptPart>,
        mut reporter: Reporter,
        delivery: &mut Delivery,
    ) -> Result<PromptExecutionResult, PromptError> {
        let api = self.client.directory(&session.directory);
        let mut subscription = api.subscribe(&session.id);
        let (stopper, mut stop) = mpsc::channel(ABORT_WISHES);
        session.live().stop = Some(stopper);
        let terms = self.terms(input.limits(&self.options.wait));

        let at_rest = session.live().at_rest;
        if !at_rest {
            let wait = terms.wait.clone().on_limit(TimeoutAction::Leave);
            let terms = Terms { wait, ..self.terms(WaitOptions::default()) };
            let driver = Driver::new(&api, session, &terms, None, &mut subscription, &mut reporter);
            let rest = driver.run(false, &mut stop).await;
            self.came_to_rest(session, &rest.ended)?;
        }

        // After the wait, so that its id is younger than everything in the session.
        let newest = {
            let mut live = session.live();
            learn(&mut live);
            live.tree.messages(&session.id).next_back().map(|message| message.info.time().created)
        };
        let mut request = PromptRequest::new(self.mint.message(newest), parts);
        request.model = self.model(&api, session, input.model.clone()).await;
        request.agent = input
            .agent
            .clone()
            .or_else(|| session.live().agent.clone())
            .or_else(|| self.options.agent.clone());
        request.system = input.system.clone();
        request.variant = input.variant.clone();
        session.live().at_rest = false;
        *delivery = Delivery::Unknown;
        let submission = PromptSubmission {
            session_id: session.id.clone(),
            message_id: request.message_id.clone(),
            prompt: prompt_text(&request.parts),
            submitted_at: mint::now().into(),
        };
        let driver = Driver::new(&api, session, &terms, Some(&request), &mut subscription, &mut reporter);
        let turn = driver.run(!at_rest, &mut stop).await;
        self.conclude(session, submission, turn)
    }

    /// Explicit, else the session's last, else what the server would use.
    async fn model(
        &self,
        api: &DirectoryClient,
        session: &Session,
        explicit: Option<ModelRef>,
    ) -> Option<ModelRef> {
        let known = explicit.or_else(|| session.live().model.clone()).or_else(|| self.options.model.clone());
        if known.is_some() {
            return known;
        }
        let config = api.config().await.unwrap_or_default();
        let configured = resolve_prompt_model(&config, &crate::wire::ProviderList::default());
        if configured.is_some() {
            return configured;
        }
        // The server decides if even this is not to be had.
        let providers = api.providers().await.unwrap_or_default();
        resolve_prompt_model(&config, &providers)
    }

    /// What a wait for rest means for the session, and whether a prompt may follow.
    fn came_to_rest(&self, session: &Session, ended: &End) -> Result<(), PromptError> {
        let id = session.id.clone();
        match ended {
            // What was interrupted or never ran stays as it is: the next prompt may go out.
            End::Turn(Ended::Settled | Ended::Interrupted | Ended::NotStarted { .. }) => {
                session.live().at_rest = true;
                Ok(())
            }
            End::Turn(Ended::Limit(limit)) => Err(PromptError::NotAtRest { session: id, limit: *limit }),
            End::Turn(Ended::SessionGone) => {
                self.registry().forget(&id);
                Err(PromptError::SessionGone { session: id })
            }
            End::Turn(Ended::Stopped(_)) => {
                Err(PromptError::Aborted { session: id, delivery: Delivery::NotSent })
            }
            End::Turn(Ended::NotDelivered(_)) | End::GivenUp => {
                Err(PromptError::GivenUp { session: id, delivery: Delivery::NotSent })
            }
            End::Unauthorized => Err(PromptError::Unauthorized),
        }
    }

    fn conclude(
        &self,
        session: &Session,
        submission: PromptSubmission,
        driven: Driven,
    ) -> Result<PromptExecutionResult, PromptError> {
        let Driven { ended, delivery, abort, cause } = driven;
        let id = session.id.clone();
        let (messages, usage_by_session, conversation) = {
            let mut live = session.live();
            live.at_rest = matches!(ended, End::Turn(Ended::Settled | Ended::Interrupted));
            let after = live.tree.turn(&session.id, &submission.message_id);
            let messages: Vec<Arc<Message>> = after.cloned().collect();
            learn(&mut live);
            (messages, result::usage_of(&live.tree, &submission.message_id), live.state.clone())
        };
        let started = messages.iter().any(|message| message.info.as_assistant().is_some());
        let completion = match ended {
            End::Turn(Ended::Settled) => Completion::of_rest(&messages),
            End::Turn(Ended::Interrupted) => Completion::Interrupted,
            // It started after all, when nobody expected it any more, and was aborted.
            End::Turn(Ended::NotStarted { .. }) if started => Completion::Aborted,
            End::Turn(Ended::NotStarted { error }) => {
                return Err(PromptError::NotStarted { session: id, error });
            }
            End::Turn(Ended::NotDelivered(delivery)) => {
                return Err(PromptError::NotDelivered { session: id, delivery, source: cause });
            }
            End::Turn(Ended::Limit(limit)) if started => Completion::TimedOut { limit, abort },
            End::Turn(Ended::Limit(limit)) => {
                return Err(PromptError::TimedOut { session: id, limit, delivery, abort });
            }
            End::Turn(Ended::Stopped(stop)) if started => Completion::of_stop(stop),
            End::Turn(Ended::Stopped(_)) => return Err(PromptError::Aborted { session: id, delivery }),
            End::Turn(Ended::SessionGone) => {
                self.registry().forget(&id);
                return Err(PromptError::SessionGone { session: id });
            }
            End::Unauthorized => return Err(PromptError::Unauthorized),
            End::GivenUp => return Err(PromptError::GivenUp { session: id, delivery }),
        };
        let mut usage = Usage::default();
        for of_session in usage_by_session.values() {
            usage += *of_session;
        }
        Ok(PromptExecutionResult { submission, messages, completion, usage, usage_by_session, conversation })
    }

    async fn abort(&self, session: &Session) -> AbortReport {
        let sessions = session.live().tree.sessions().cloned().collect();
        abort_tree(&self.client.directory(&session.directory), session.id.clone(), sessions).await
    }
}

/// Takes a place in a session's line; nothing if it would have to wait and does not want to.
fn line_up(session: &Session, input: &PromptInput) -> Option<Place> {
    match input.when_busy {
        WhenBusy::Queue => Some(session.line.enter()),
        WhenBusy::Refuse => session.line.try_enter(),
    }
}

/// Remembers the model and agent of the last step: those of a prompt that never ran may not exist.
fn learn(live: &mut registry::Live) {
    let root = live.tree.root();
    let step = live.tree.messages(root).rev().find_map(|message| {
        message.info.as_assistant().filter(|step| step.summary != Some(true) && !step.model_id.is_empty())
    });
    if let Some(step) = step {
        let (model, agent) = (ModelRef::new(&step.provider_id, &step.model_id), step.mode.clone());
        live.model = Some(model);
        live.agent = agent.or_else(|| live.agent.take());
    }
}

fn prompt_text(parts: &[PromptPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        PromptPart::Text { text, .. } => Some(text.as_str()),
        PromptPart::File { .. } | PromptPart::Agent { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

async fn find_tagged(api: &DirectoryClient, nonce: &str) -> Result<Option<SessionInfo>, ApiError> {
    let sessions = api.sessions(&SessionFilter::default()).await?.items;
    let tagged = |session: &SessionInfo| {
        session
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.get(TAG)?.get("nonce"))
            .is_some_and(|tag| tag == nonce)
    };
    Ok(sessions.into_iter().find(tagged))
}

fn server_error(attempt: &str, session: &SessionId, source: ApiError) -> SessionError {
    SessionError::Server { attempt: format!("{attempt} session {session}"), source }
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

impl fmt::Debug for ConversationManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_turns = self.inner.tasks.len();
        f.debug_struct("ConversationManager")
            .field("client", &self.inner.client)
            .field("options", &self.inner.options)
            .field("n_turns", &n_turns)
            .finish_non_exhaustive()
    }
}
