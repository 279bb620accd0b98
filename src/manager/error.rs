//! How the manager's calls can fail.

use super::{input::AttachmentError, result::PromptExecutionResult};
use crate::{
    agent::{AbortReport, AgentError, Delivery, Failure, Limit},
    conversation::Usage,
    error::InvalidInput,
    ids::{MessageId, SessionId, TaskId},
    store::{StoreError, StoreErrorKind},
};

/// Why a session could not be made, found or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The input was refused before anything was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The task has a session already.
    #[error("task {task} already has session {session}")]
    #[non_exhaustive]
    TaskHasSession {
        /// The task that a session was asked for.
        task: TaskId,
        /// The session that it has.
        session: SessionId,
    },
    /// Another call is making a session for the task right now.
    #[error("a session for task {task} is being made already")]
    #[non_exhaustive]
    InProgress {
        /// The task that a session was asked for.
        task: TaskId,
    },
    /// The session works in another directory than the call says.
    #[error("session {session} works in {known}, not in {given}")]
    #[non_exhaustive]
    OtherDirectory {
        /// The session that was asked for.
        session: SessionId,
        /// Where it works.
        known: String,
        /// Where the call says that it works.
        given: String,
    },
    /// The manager does not know the session, and the call does not look it up.
    #[error("session {session} is not known to this manager")]
    #[non_exhaustive]
    Unknown {
        /// The session that was asked for.
        session: SessionId,
    },
    /// The agent could not do it, or could not be asked.
    #[error("{attempt} failed")]
    #[non_exhaustive]
    Agent {
        /// What was attempted, and for which id.
        attempt: String,
        /// Why it failed.
        source: AgentError,
    },
    /// The store could not keep it, or another process works on the task.
    #[error("the store of the sessions could not be used")]
    #[non_exhaustive]
    Store {
        /// Why not.
        source: StoreError,
    },
    /// The manager was shut down.
    #[error("the manager was shut down")]
    ShutDown,
}

/// Why there is no [`PromptExecutionResult`]: the model was not called, as far as is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The input was refused before anything was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// An attachment could not be read; nothing was sent.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// The session could not be found or taken over.
    #[error(transparent)]
    Session(SessionError),
    /// The session has a prompt in flight, and this one was not to wait.
    #[error("session {session} has a prompt in flight")]
    #[non_exhaustive]
    Busy {
        /// The session that the prompt was for.
        session: SessionId,
    },
    /// The session did not come to rest, so the prompt was not sent.
    #[error("session {session} did not become free for the prompt: {limit}")]
    #[non_exhaustive]
    NotAtRest {
        /// The session that the prompt was for.
        session: SessionId,
        /// Which limit ran out.
        limit: Limit,
        /// The agent's last error, if there was one: it may be down rather than busy.
        source: Option<AgentError>,
    },
    /// The prompt could not be delivered.
    #[error("the prompt for session {session} was not delivered ({delivery:?})")]
    #[non_exhaustive]
    NotDelivered {
        /// The session that the prompt was for.
        session: SessionId,
        /// What is known about it.
        delivery: Delivery,
        /// The error of the last attempt.
        source: Option<AgentError>,
    },
    /// The prompt could not be recorded, so it was not sent.
    #[error("the prompt for session {session} could not be recorded, so it was not sent")]
    #[non_exhaustive]
    NotRecorded {
        /// The session that the prompt was for.
        session: SessionId,
        /// The store's error.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// An earlier prompt of the session is still open in the store: [`resume`](super::ConversationManager::resume) it first.
    #[error("the prompt {message_id} of session {session} is still open")]
    #[non_exhaustive]
    TurnOpen {
        /// The session.
        session: SessionId,
        /// The prompt that is open.
        message_id: MessageId,
    },
    /// What is recorded of the prompt could not be read, or another process works on it; nothing was sent.
    #[error("the prompt for session {session} could not be taken over")]
    #[non_exhaustive]
    NotClaimed {
        /// The session.
        session: SessionId,
        /// The store's error.
        source: StoreError,
    },
    /// The agent has the prompt but does not run it.
    #[error("session {session} did not run the prompt{}", error.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    #[non_exhaustive]
    NotStarted {
        /// The session that the prompt was for.
        session: SessionId,
        /// What the agent said about it.
        error: Option<Failure>,
    },
    /// A limit ran out before the model said anything.
    #[error("session {session} timed out: {limit}")]
    #[non_exhaustive]
    TimedOut {
        /// The session that the prompt was for.
        session: SessionId,
        /// Which limit.
        limit: Limit,
        /// How far the prompt got.
        delivery: Delivery,
        /// What became of the agent's run; nothing if it was left alone.
        abort: Option<AbortReport>,
        /// The agent's last error, if there was one.
        source: Option<AgentError>,
    },
    /// It was aborted, or refused by the policy, before the model said anything.
    #[error("the prompt for session {session} was aborted")]
    #[non_exhaustive]
    Aborted {
        /// The session that the prompt was for.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
    },
    /// The agent lost the prompt before the model said anything; it is not sent again.
    #[error("the agent lost the prompt for session {session}")]
    #[non_exhaustive]
    Interrupted {
        /// The session that the prompt was for.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
    },
    /// The session was deleted meanwhile.
    #[error("session {session} does not exist any more")]
    #[non_exhaustive]
    SessionGone {
        /// The session that the prompt was for.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
    },
    /// The agent refuses the credentials.
    #[error("the agent refuses the credentials for session {session}: check the password")]
    #[non_exhaustive]
    Unauthorized {
        /// The session that the prompt was for.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
        /// The agent's answer.
        source: Option<AgentError>,
    },
    /// The waiting was given up. The agent's run goes on, unless the prompt wants to be aborted with it.
    #[error("waiting for session {session} was given up")]
    #[non_exhaustive]
    GivenUp {
        /// The session that the prompt was for.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
    },
    /// The manager was shut down.
    #[error("the manager was shut down while session {session} was waited for")]
    #[non_exhaustive]
    ShutDown {
        /// The session that the prompt was for.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
    },
}

impl PromptError {
    /// The store did not keep the record of a prompt.
    pub(super) fn not_recorded(session: SessionId, error: StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::TurnOpen { message_id } => {
                Self::TurnOpen { session, message_id: message_id.clone() }
            }
            _ => Self::NotRecorded { session, source: Some(error.into()) },
        }
    }

    /// How far the prompt is known to have got.
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::NotDelivered { delivery, .. }
            | Self::TimedOut { delivery, .. }
            | Self::Aborted { delivery, .. }
            | Self::Interrupted { delivery, .. }
            | Self::SessionGone { delivery, .. }
            | Self::Unauthorized { delivery, .. }
            | Self::GivenUp { delivery, .. }
            | Self::ShutDown { delivery, .. } => *delivery,
            Self::NotStarted { .. } => Delivery::Accepted,
            Self::NotClaimed { .. } => Delivery::Unknown,
            Self::Invalid(_)
            | Self::Attachment(_)
            | Self::Session(_)
            | Self::Busy { .. }
            | Self::NotRecorded { .. }
            | Self::TurnOpen { .. }
            | Self::NotAtRest { .. } => Delivery::NotSent,
        }
    }

    /// Whether the same task may succeed when it is tried again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. }
            | Self::NotAtRest { .. }
            | Self::NotRecorded { .. }
            | Self::TurnOpen { .. }
            | Self::TimedOut { .. }
            | Self::Interrupted { .. }
            | Self::GivenUp { .. } => true,
            Self::NotDelivered { delivery, source, .. } => {
                *delivery != Delivery::Rejected || source.as_ref().is_some_and(AgentError::is_retryable)
            }
            Self::NotStarted { error, .. } => error.is_none(),
            Self::Session(error) => error.is_retryable(),
            Self::NotClaimed { source, .. } => source.is_retryable(),
            Self::Invalid(_)
            | Self::Attachment(_)
            | Self::Aborted { .. }
            | Self::SessionGone { .. }
            | Self::Unauthorized { .. }
            | Self::ShutDown { .. } => false,
        }
    }
}

impl SessionError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Agent { source, .. } => source.is_retryable(),
            Self::Store { source } => source.is_retryable(),
            Self::InProgress { .. } => true,
            Self::Invalid(_)
            | Self::TaskHasSession { .. }
            | Self::OtherDirectory { .. }
            | Self::Unknown { .. }
            | Self::ShutDown => false,
        }
    }
}

impl From<SessionError> for PromptError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Invalid(invalid) => invalid.into(),
            other => Self::Session(other),
        }
    }
}

/// A turn that ended otherwise than by the model finishing; see [`PromptExecutionResult::settled`].
#[derive(Debug, thiserror::Error)]
#[error("session {} {}", result.submission.session_id, result.completion)]
#[non_exhaustive]
pub struct TurnFailed {
    /// What there is of it.
    pub result: Box<PromptExecutionResult>,
}

impl TurnFailed {
    pub(super) fn new(result: PromptExecutionResult) -> Self {
        Self { result: Box::new(result) }
    }
}

impl JsonAnswerError {
    /// Whether the same task may succeed when it is tried again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Prompt(error) => error.is_retryable(),
            Self::Turn(failed) => failed.result.completion.is_retryable(),
            Self::Shape { .. } => false,
        }
    }
}

/// Why there is no answer of the asked shape.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonAnswerError {
    /// There is no answer at all.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The turn did not end well.
    #[error(transparent)]
    Turn(#[from] TurnFailed),
    /// The answers were not of the asked shape, however often the model was told.
    #[error("no answer of the asked shape in {attempts} attempts")]
    #[non_exhaustive]
    Shape {
        /// How often it was asked.
        attempts: u32,
        /// The last answer as it was.
        answer: String,
        /// What all attempts used and cost together.
        usage: Usage,
        /// What was wrong with it.
        source: serde_json::Error,
    },
}
