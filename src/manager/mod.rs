//! Tasks, sessions and prompts: the calls that a task runner makes.
//!
//! [`ConversationManager`] is the handle. It keeps three maps (task to session, session to directory, session to what is known
//! of it), lets one prompt at a time into each session, and drives every prompt's [`Turn`](crate::turn::Turn) to a truthful end.

mod driver;
mod error;
mod facts;
mod inner;
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
mod replies;
mod result;
mod stats;
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
pub use stats::{ManagerStatistics, TurnStatistics};
pub use updates::{Update, Updates};

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, debug, debug_span};

use self::{
    driver::{Driver, End},
    inner::{Inner, Reservation, line_up, server_error},
    input::{check_directory, check_id, check_session, check_task},
    mint::Mint,
    options::ManagerOptions,
    registry::Session,
    updates::Reporter,
};
use crate::{
    client::{ApiError, Directory, MessagePage, OpenCodeClient, Subscription},
    conversation::SessionConversationState,
    ids::{SessionId, TaskId},
    observe::Snapshot,
    turn::{Ended, WaitOptions},
    wire::{Message, MessageInfo},
};

/// A handle to a server's sessions; cheap to clone, and all clones share one state.
///
/// Must be used inside a tokio runtime with time and I/O enabled.
#[derive(Clone)]
pub struct ConversationManager {
    inner: Arc<Inner>,
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
            counters: Arc::default(),
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

    /// What was done since the manager was made, and what it is doing: turns by outcome, polls, kicks, reconnects, bytes.
    ///
    /// With the feature `metrics` the same facts are also metrics; see the [guide](crate::guide::operating).
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager) {
    /// let stats = manager.stats();
    /// println!("{} prompts settled, {} run, {} wait", stats.turns.settled, stats.running, stats.waiting);
    /// println!("{} polls, {} reconnects", stats.turns.polls, stats.client.reconnects);
    /// # }
    /// ```
    pub fn stats(&self) -> ManagerStatistics {
        self.inner.counters.snapshot(self.inner.client.statistics())
    }

    /// Makes the session of a task.
    ///
    /// A lost response does not make a second session: the session carries a tag by which it is found again. A server that
    /// keeps no metadata cannot be asked for it, and one that is still making the first session cannot know of it.
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
    /// `options` says [`TimeoutAction::Leave`](crate::TimeoutAction::Leave).
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
            .run(None, &mut mpsc::channel(1).1)
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
            (false, _) => IdleOutcome::Rest(Some(Completion::of_rest(&last_turn, false))),
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
        let turns = session.live().turns;
        let status = api.session_status().await.map_err(failed)?;
        let mut open = vec![session.id.clone()];
        while let Some(id) = open.pop() {
            let list = api.messages(&id, &MessagePage::all()).await.map_err(failed)?;
            let children = api.children(&id).await.map_err(failed)?.items;
            // Nothing runs, on the server or from here, so that what is unfinished stays so.
            let taken = session.line.is_taken();
            let mut live = session.live();
            let rests =
                status.get(&id).is_idle() && !taken && live.turns == turns && list.malformed.is_empty();
            let snapshot = if rests { Snapshot::Settled } else { Snapshot::Live };
            let mut observed = live.tree.apply_messages(&id, &list.messages, snapshot);
            if rests {
                observed.append(live.tree.settle(&id));
            }
            for child in children {
                observed.append(live.tree.apply_session(&child));
                open.push(child.id);
            }
            live.fold(&observed);
            live.untold |= !observed.events.is_empty();
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

    /// Gives up all waiting, joins all tasks and closes all connections. The server's runs go on, but for prompts with
    /// [`abort_on_drop`](PromptInput::abort_on_drop).
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
