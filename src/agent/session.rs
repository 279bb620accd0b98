//! What an agent does, and what it may ask of the manager while it does it.

use std::{any::Any, error::Error, future::Future, pin::Pin, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    AbortReport, AgentError, Ask, Asked, Ended, Execution, FileChange, IdleOutcome, Phase, PreparedPrompt,
    PromptSpec, WaitOptions,
};
use crate::{
    conversation::{ConversationEvent, ConvertOptions},
    directory::Directory,
    error::InvalidInput,
    ids::{MessageId, ProjectId, RequestId, SessionId, TaskId},
    time::Timestamp,
    transcript::{Architecture, CombinedTranscript},
};

/// A future behind a pointer, so that the traits here can be used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A program that works on coding tasks in sessions, such as `OpenCode`.
pub trait Agent: Any + Send + Sync {
    /// What it is called in errors and logs.
    fn name(&self) -> &'static str;

    /// What it can promise.
    fn capabilities(&self) -> Capabilities;

    /// The format of its sessions' [transcripts](OpenSession::transcript). Default: that of an agent that writes none.
    fn architecture(&self) -> Architecture {
        Architecture::Conversation
    }

    /// Checks the form of a session's id before anything is sent.
    ///
    /// # Errors
    /// If it cannot be the id of one of its sessions.
    fn check_session_id(&self, session: &SessionId) -> Result<(), InvalidInput> {
        InvalidInput::check_id("session id", session.as_str())
    }

    /// Makes a session.
    fn create<'a>(
        &'a self,
        request: &'a NewSession,
        sink: Arc<dyn ConversationSink>,
    ) -> BoxFuture<'a, Result<Opened, AgentError>>;

    /// Takes over a session that exists. `directory` is a hint for agents that find sessions by directory only.
    fn open<'a>(
        &'a self,
        session: &'a SessionId,
        directory: Option<&'a Directory>,
        convert: ConvertOptions,
        sink: Arc<dyn ConversationSink>,
    ) -> BoxFuture<'a, Result<Opened, AgentError>>;

    /// Looks for a session by what it was made with; the newest if there are several. Default: an agent that keeps no such
    /// thing finds nothing.
    fn find<'a>(
        &'a self,
        wanted: &'a MadeFor,
        directory: &'a Directory,
    ) -> BoxFuture<'a, Result<Option<SessionId>, AgentError>> {
        let _ = (wanted, directory);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Deletes a session for good. One that does not exist is deleted already.
    fn delete<'a>(
        &'a self,
        session: &'a SessionId,
        directory: Option<&'a Directory>,
    ) -> BoxFuture<'a, Result<(), AgentError>>;

    /// Ends all background work and closes all connections.
    fn shutdown(&self) -> BoxFuture<'_, ()>;
}

/// What an agent can promise. The manager reports what is missing instead of guessing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Capabilities {
    /// A prompt whose submission is unclear can be sent again without running twice.
    pub exactly_once: bool,
    /// A turn can be continued from its recorded phase by another process.
    pub resume: bool,
    /// Permissions and questions are asked, so that a policy can answer them.
    pub asks: bool,
    /// Prompts may hold attachments.
    pub attachments: bool,
    /// A session can be deleted.
    pub delete: bool,
}

impl Capabilities {
    /// An agent that can do all of it.
    pub const fn all() -> Self {
        Self { exactly_once: true, resume: true, asks: true, attachments: true, delete: true }
    }
}

/// A session to be made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewSession {
    /// The task it is for.
    pub task: TaskId,
    /// The project of the task.
    pub project: ProjectId,
    /// Where it works.
    pub directory: Directory,
    /// Its title, on one line.
    pub title: String,
    /// A name for the call that makes it, by which the session can be [found](Agent::find); default one that the agent makes.
    pub tag: Option<String>,
    /// What its conversation shows.
    pub convert: ConvertOptions,
    /// What only this agent understands, under names of its own.
    pub settings: Map<String, Value>,
}

impl NewSession {
    /// A session for a task, with nothing special.
    pub fn new(task: TaskId, project: ProjectId, directory: Directory, title: impl Into<String>) -> Self {
        let (convert, settings) = (ConvertOptions::default(), Map::new());
        Self { task, project, directory, title: title.into(), tag: None, convert, settings }
    }
}

/// What a session was made with, to find it again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MadeFor {
    /// This task.
    Task(TaskId),
    /// The call of this [tag](NewSession::tag).
    Call(String),
}

/// A session that was made or taken over.
#[non_exhaustive]
pub struct Opened {
    /// What the agent says about it.
    pub description: SessionDescription,
    /// How to work with it.
    pub session: Arc<dyn OpenSession>,
}

impl Opened {
    /// A session as the agent describes it.
    pub fn new(description: SessionDescription, session: Arc<dyn OpenSession>) -> Self {
        Self { description, session }
    }
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("description", &self.description).finish_non_exhaustive()
    }
}

/// What an agent says about a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionDescription {
    /// The agent's name for it.
    pub id: SessionId,
    /// Where it works.
    pub directory: Directory,
    /// Its title.
    pub title: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl SessionDescription {
    /// A session made at `created_at` and not changed since.
    pub fn new(id: SessionId, directory: Directory, title: impl Into<String>, created_at: Timestamp) -> Self {
        Self { id, directory, title: title.into(), created_at, updated_at: created_at }
    }
}

/// A session that an agent has open. The manager lets one prompt at a time into it.
pub trait OpenSession: Any + Send + Sync {
    /// Makes the ids of a prompt and its exact request. May wait until the session is free for it.
    ///
    /// # Cancel safety
    /// Dropping it sends nothing.
    fn prepare<'a>(
        &'a self,
        prompt: &'a PromptSpec,
        turn: &'a dyn TurnHost,
    ) -> BoxFuture<'a, Result<PreparedPrompt, Unprepared>>;

    /// Sends a prepared prompt, unless it was sent before, and waits for its end.
    ///
    /// `from` is the phase that was recorded last; [`Phase::Prepared`] for a prompt that is new.
    ///
    /// # Cancel safety
    /// Dropping it leaves the agent's run alone.
    fn execute<'a>(
        &'a self,
        prompt: &'a PreparedPrompt,
        from: Phase,
        turn: &'a dyn TurnHost,
    ) -> BoxFuture<'a, Execution>;

    /// Waits until whatever the session does now has come to rest.
    fn wait_for_rest<'a>(&'a self, turn: &'a dyn TurnHost) -> BoxFuture<'a, Result<IdleOutcome, Unprepared>>;

    /// Stops whatever the session and its subagents do, within ten seconds.
    fn abort(&self) -> BoxFuture<'_, AbortReport>;

    /// Reads the whole conversation and emits what is not known of it.
    fn load(&self) -> BoxFuture<'_, Result<(), AgentError>>;

    /// The transcripts of the session and its subagents as they are now, in the agent's own format; what [`Agent::architecture`] says
    /// loads them. Asked for again and again while the session works, so that it should not ask the agent for what is known.
    /// Default: the agent has no format of its own, and the conversation is written.
    fn transcript(&self) -> BoxFuture<'_, Result<Option<CombinedTranscript>, AgentError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// What the turn of a prompt did to files. Default: the agent does not know.
    fn diff<'a>(&'a self, prompt: &'a MessageId) -> BoxFuture<'a, Result<Vec<FileChange>, AgentError>> {
        let _ = prompt;
        Box::pin(std::future::ready(Err(AgentError::unsupported(
            "this agent",
            "say which files a turn changed",
        ))))
    }
}

/// Why a session was not free for a prompt.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unprepared {
    /// What ended the waiting.
    pub ended: Ended,
    /// The last error of the agent that it has not overcome, if there was one.
    pub cause: Option<AgentError>,
    /// What became of the agent's run, if it was aborted.
    pub abort: Option<AbortReport>,
}

impl Unprepared {
    /// The waiting ended like this, and nothing was aborted.
    pub fn new(ended: Ended, cause: Option<AgentError>) -> Self {
        Self { ended, cause, abort: None }
    }
}

/// Where a session's conversation is kept.
pub trait ConversationSink: Send + Sync {
    /// Folds events into the conversation, in this order, and hands them to its readers. Returns at once.
    fn emit(&self, events: Vec<ConversationEvent>);

    /// Takes over a title or a time of change that the agent reported.
    fn describe(&self, title: Option<&str>, updated_at: Option<Timestamp>);
}

/// What an agent may ask of the manager while it works on a prompt.
pub trait TurnHost: ConversationSink {
    /// How long to wait for what.
    fn limits(&self) -> &WaitOptions;

    /// Asks for a decision by the policy in force.
    fn ask(&self, ask: Ask) -> Asked;

    /// Records the phase that the prompt is about to enter. The effect that the phase names must wait for it.
    ///
    /// # Errors
    /// If it could not be recorded; the effect must not happen then.
    fn record(&self, phase: Phase) -> BoxFuture<'_, Result<(), Box<dyn Error + Send + Sync>>>;

    /// Reports something that happened to the turn.
    fn notice(&self, notice: Notice);

    /// Resolves once the turn is to end. Resolves at once when asked again after that.
    fn stop_requested(&self) -> BoxFuture<'_, StopRequest>;

    /// Whether [`TurnHost::message`] has a reader.
    fn wants_messages(&self) -> bool;

    /// Reports a message of the turn, in the agent's own form, that is new or changed.
    fn message(&self, message: &dyn Any);
}

/// What is asked of a running turn from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopRequest {
    /// Abort the session, then end with what there is.
    Abort,
    /// Stop waiting at once and leave the agent's run alone.
    GiveUp,
}

/// Something that happened to a turn.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// The prompt is being sent.
    #[non_exhaustive]
    Submitted {
        /// The message that it becomes.
        message_id: MessageId,
        /// It was sent before and did not start.
        kick: bool,
    },
    /// The session was read.
    Polled,
    /// The root session started, stopped, or waits for its provider.
    Status(AgentStatus),
    /// A request needs no answer any more.
    RequestClosed(RequestId),
    /// The session was aborted, as a limit or a caller wanted; the turn is about to end.
    Aborted(AbortReport),
    /// Live events are missing; the agent is polled meanwhile.
    StreamLost,
    /// Live events arrive again.
    StreamRestored,
}

impl Notice {
    /// The prompt is being sent; `kick` if it was sent before and did not start.
    pub fn submitted(message_id: MessageId, kick: bool) -> Self {
        Self::Submitted { message_id, kick }
    }
}

/// What the root session of a turn is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[non_exhaustive]
pub enum AgentStatus {
    /// Nothing, it says.
    Idle,
    /// It runs.
    Busy,
    /// It waits to call its provider again.
    #[non_exhaustive]
    Retrying {
        /// Which attempt failed.
        attempt: u32,
        /// Why the last call of the provider failed.
        message: String,
        /// When it will try again.
        next: Timestamp,
    },
    /// Something that this version does not know.
    #[non_exhaustive]
    Other {
        /// The agent's word for it.
        status: String,
    },
}

impl AgentStatus {
    /// It waits to call its provider again.
    pub fn retrying(attempt: u32, message: impl Into<String>, next: Timestamp) -> Self {
        Self::Retrying { attempt, message: message.into(), next }
    }

    /// Whether it does nothing, as far as it says.
    pub fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// It does something that this version does not know.
    pub fn other(status: impl Into<String>) -> Self {
        Self::Other { status: status.into() }
    }
}
