//! How the manager's calls can fail.

use super::{
    input::{AttachmentError, LoadError},
    result::{AbortReport, Completion, PromptExecutionResult},
};
use crate::{
    client::ApiError,
    error::InvalidInput,
    ids::{SessionId, TaskId},
    turn::{Delivery, Limit},
    wire::MessageError,
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
    TaskHasSession {
        /// The task.
        task: TaskId,
        /// Its session.
        session: SessionId,
    },
    /// Another call is making a session for the task right now.
    #[error("a session for task {task} is being made already")]
    InProgress {
        /// The task.
        task: TaskId,
    },
    /// Neither the manager nor the caller knows where the session works.
    #[error("session {session} is not known to this manager")]
    Unknown {
        /// The session.
        session: SessionId,
    },
    /// The server could not do it, or could not be asked.
    #[error("{attempt} failed")]
    Server {
        /// What was attempted, and for which id.
        attempt: String,
        /// Why it failed.
        source: ApiError,
    },
}

/// Why there is no [`PromptExecutionResult`]: the model was not called, as far as anybody knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The input was refused before anything was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// An attachment could not be read; nothing was sent.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// The session is not to be had.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The session has a prompt in flight, and this one was not to wait.
    #[error("session {session} has a prompt in flight")]
    Busy {
        /// The session.
        session: SessionId,
    },
    /// The session did not come to rest, so the prompt was not sent.
    #[error("session {session} is busy with something else: {limit}")]
    NotAtRest {
        /// The session.
        session: SessionId,
        /// Which limit ran out.
        limit: Limit,
    },
    /// The prompt could not be delivered.
    #[error("the prompt for session {session} was not delivered ({delivery:?})")]
    NotDelivered {
        /// The session.
        session: SessionId,
        /// What is known about it.
        delivery: Delivery,
        /// Why.
        source: Option<ApiError>,
    },
    /// The server has the prompt but does not run it.
    #[error("session {session} did not run the prompt{}", error.as_ref().map(|error| format!(": {}", error.message())).unwrap_or_default())]
    NotStarted {
        /// The session.
        session: SessionId,
        /// What the server said about it.
        error: Option<MessageError>,
    },
    /// A limit ran out before the model said anything.
    #[error("session {session} timed out: {limit}")]
    TimedOut {
        /// The session.
        session: SessionId,
        /// Which limit.
        limit: Limit,
        /// How far the prompt got.
        delivery: Delivery,
        /// What became of the server's run; nothing if it was left alone.
        abort: Option<AbortReport>,
    },
    /// It was aborted, or refused by the policy, before the model said anything.
    #[error("the prompt for session {session} was aborted")]
    Aborted {
        /// The session.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
    },
    /// The session was deleted meanwhile.
    #[error("session {session} does not exist any more")]
    SessionGone {
        /// The session.
        session: SessionId,
    },
    /// The server refuses the credentials.
    #[error("the server refuses the credentials")]
    Unauthorized,
    /// The manager was shut down, or the waiting was given up. The server's run goes on, unless the prompt wants to be aborted
    /// with it.
    #[error("waiting for session {session} was given up")]
    GivenUp {
        /// The session.
        session: SessionId,
        /// How far the prompt got.
        delivery: Delivery,
    },
}

impl PromptError {
    /// How far the prompt is known to have got.
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::NotDelivered { delivery, .. }
            | Self::TimedOut { delivery, .. }
            | Self::Aborted { delivery, .. }
            | Self::GivenUp { delivery, .. } => *delivery,
            Self::NotStarted { .. } => Delivery::Accepted,
            Self::SessionGone { .. } | Self::Unauthorized => Delivery::Unknown,
            Self::Invalid(_)
            | Self::Attachment(_)
            | Self::Session(_)
            | Self::Busy { .. }
            | Self::NotAtRest { .. } => Delivery::NotSent,
        }
    }

    /// Whether the same task may succeed when it is tried again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::NotAtRest { .. } | Self::TimedOut { .. } | Self::GivenUp { .. } => true,
            Self::NotDelivered { delivery, source, .. } => {
                *delivery != Delivery::Rejected || source.as_ref().is_some_and(ApiError::is_retryable)
            }
            Self::NotStarted { error, .. } => error.is_none(),
            Self::Session(SessionError::Server { source, .. }) => source.is_retryable(),
            Self::Session(_)
            | Self::Invalid(_)
            | Self::Attachment(_)
            | Self::Aborted { .. }
            | Self::SessionGone { .. }
            | Self::Unauthorized => false,
        }
    }
}

impl From<LoadError> for PromptError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Invalid(invalid) => invalid.into(),
            LoadError::Unreadable(unreadable) => unreadable.into(),
        }
    }
}

/// A turn that ended otherwise than by the model finishing; see [`PromptExecutionResult::settled`].
#[derive(Debug, thiserror::Error)]
#[error("session {} {}", result.submission.session_id, describe(&result.completion))]
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

fn describe(completion: &Completion) -> String {
    match completion {
        Completion::Settled => "settled".to_owned(),
        Completion::Failed(error) => format!("failed: {}", error.message()),
        Completion::Aborted => "was aborted".to_owned(),
        Completion::Rejected => "stopped because a request was rejected".to_owned(),
        Completion::Refused => "was stopped by the permission policy".to_owned(),
        Completion::Interrupted => "was interrupted: the server died meanwhile".to_owned(),
        Completion::TimedOut { limit, .. } => format!("timed out: {limit}"),
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
    Shape {
        /// How often it was asked.
        attempts: u32,
        /// The last answer as it was.
        answer: String,
        /// What was wrong with it.
        source: serde_json::Error,
    },
}
