//! How the manager's calls can fail.

use std::{error, fmt};

use super::{input::AttachmentError, result::PromptExecutionResult};
use crate::{
    agent::{
        AbortReport, AgentError, AgentErrorKind, Allowed, Completion, Delivery, Failure, Limit, UNCONFIRMED,
    },
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
///
/// As JSON `{"type": "notRun", "reason": "timedOut", "message": …, "delivery": "accepted", "retryable": true, "sessionId": …, "taskId": …}`,
/// where the message has the causes, too: it can stand where the `completion` of a result stands.
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
    #[error("{} cannot be used", Named(session, task))]
    #[non_exhaustive]
    Session {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// How far the prompt got before, if it was begun earlier.
        delivery: Delivery,
        /// Why not.
        source: SessionError,
    },
    /// The session has a prompt in flight, and this one was not to wait.
    #[error("{} has a prompt in flight: let this one queue, or send it later", Named(session, task))]
    #[non_exhaustive]
    Busy {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
    },
    /// The session did not come to rest, so the prompt, if there was one, was not sent.
    #[error("{} did not come to rest: {limit} ({allowed}){}", Named(session, task), unconfirmed(abort.as_ref()))]
    #[non_exhaustive]
    NotAtRest {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// Which limit ran out.
        limit: Limit,
        /// How much it allowed.
        allowed: Allowed,
        /// What became of what runs there; nothing if it was left alone, as it always is for a prompt that waits.
        abort: Option<AbortReport>,
        /// The agent's last error, if there was one: it may be down rather than busy.
        source: Option<AgentError>,
    },
    /// The prompt could not be delivered.
    #[error("the prompt for {} was not delivered ({delivery}){}", Named(session, task), ran_out(limit.as_ref(), allowed.as_ref()))]
    #[non_exhaustive]
    NotDelivered {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// What is known about it.
        delivery: Delivery,
        /// The limit that ran out meanwhile, if one did.
        limit: Option<Limit>,
        /// How much it allowed.
        allowed: Option<Allowed>,
        /// The error of the last attempt.
        source: Option<AgentError>,
    },
    /// The prompt could not be recorded, so it was not sent.
    #[error("the prompt for {} could not be recorded, so it was not sent", Named(session, task))]
    #[non_exhaustive]
    NotRecorded {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// The store's error.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// An earlier prompt of the session is still open in the store: [`resume`](super::ConversationManager::resume) it first.
    #[error("the prompt {message_id} of {} is still open: resume it first", Named(session, task))]
    #[non_exhaustive]
    TurnOpen {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// The prompt that is open.
        message_id: MessageId,
    },
    /// What is recorded of the prompt could not be read, or another process works on it; nothing was sent.
    #[error("the prompt for {} could not be taken over", Named(session, task))]
    #[non_exhaustive]
    NotClaimed {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// The store's error.
        source: StoreError,
    },
    /// The agent has the prompt but does not run it.
    #[error("{} did not run the prompt{}{}", Named(session, task), error.as_ref().map(|error| format!(": {error}")).unwrap_or_default(), unconfirmed(abort.as_ref()))]
    #[non_exhaustive]
    NotStarted {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// What the agent said about it.
        error: Option<Box<Failure>>,
        /// What became of it; nothing if the agent says that it will not run. Otherwise it may start late, so it was aborted.
        abort: Option<AbortReport>,
        /// The agent's last error, if there was one.
        source: Option<AgentError>,
    },
    /// A limit ran out before the model said anything.
    #[error("{} timed out before the model said anything: {limit} ({allowed}){}", Named(session, task), unconfirmed(abort.as_ref()))]
    #[non_exhaustive]
    TimedOut {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// Which limit.
        limit: Limit,
        /// How much it allowed.
        allowed: Allowed,
        /// How far the prompt got.
        delivery: Delivery,
        /// What became of the agent's run; nothing if it was left alone.
        abort: Option<AbortReport>,
        /// The agent's last error, if there was one.
        source: Option<AgentError>,
    },
    /// It was aborted, or refused by the policy, before the model said anything.
    #[error("the prompt for {} was aborted{}", Named(session, task), unconfirmed(abort.as_ref()))]
    #[non_exhaustive]
    Aborted {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// How far the prompt got.
        delivery: Delivery,
        /// What became of the agent's run; nothing if the prompt was not sent.
        abort: Option<AbortReport>,
        /// The agent's last error, if there was one.
        source: Option<AgentError>,
    },
    /// The agent lost the prompt before the model said anything; it is not sent again.
    #[error("the agent lost the prompt for {}", Named(session, task))]
    #[non_exhaustive]
    Interrupted {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// How far the prompt got.
        delivery: Delivery,
        /// The agent's last error, if there was one.
        source: Option<AgentError>,
    },
    /// The session was deleted meanwhile.
    #[error("{} does not exist any more", Named(session, task))]
    #[non_exhaustive]
    SessionGone {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// How far the prompt got.
        delivery: Delivery,
        /// The agent's answer.
        source: Option<AgentError>,
    },
    /// The agent refuses the credentials.
    #[error(
        "the agent refuses the credentials for {}: check the password or the login",
        Named(session, task)
    )]
    #[non_exhaustive]
    Unauthorized {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// How far the prompt got.
        delivery: Delivery,
        /// The agent's answer.
        source: Option<AgentError>,
    },
    /// The waiting was given up. The agent's run goes on, unless the prompt wants to be aborted with it.
    #[error("waiting for {} was given up", Named(session, task))]
    #[non_exhaustive]
    GivenUp {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// How far the prompt got.
        delivery: Delivery,
    },
    /// The manager was shut down.
    #[error("the manager was shut down while {} was waited for", Named(session, task))]
    #[non_exhaustive]
    ShutDown {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
        /// How far the prompt got.
        delivery: Delivery,
    },
    /// Code panicked while the prompt ran: the caller's, in a handler or in what is told messages, or this crate's. The agent's run may go on.
    #[error("a panic ended the waiting for {}: see what the program printed", Named(session, task))]
    #[non_exhaustive]
    Panicked {
        /// The session that the prompt was for.
        session: SessionId,
        /// The task that the session belongs to.
        task: Option<TaskId>,
    },
}

impl PromptError {
    /// The store did not keep the record of a prompt.
    pub(super) fn not_recorded(session: SessionId, task: Option<TaskId>, error: StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::TurnOpen { message_id } => {
                Self::TurnOpen { session, task, message_id: message_id.clone() }
            }
            _ => Self::NotRecorded { session, task, source: Some(error.into()) },
        }
    }

    /// The name of the variant, as JSON has it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::Attachment(_) => "attachment",
            Self::Session { .. } => "session",
            Self::Busy { .. } => "busy",
            Self::NotAtRest { .. } => "notAtRest",
            Self::NotDelivered { .. } => "notDelivered",
            Self::NotRecorded { .. } => "notRecorded",
            Self::TurnOpen { .. } => "turnOpen",
            Self::NotClaimed { .. } => "notClaimed",
            Self::NotStarted { .. } => "notStarted",
            Self::TimedOut { .. } => "timedOut",
            Self::Aborted { .. } => "aborted",
            Self::Interrupted { .. } => "interrupted",
            Self::SessionGone { .. } => "sessionGone",
            Self::Unauthorized { .. } => "unauthorized",
            Self::GivenUp { .. } => "givenUp",
            Self::ShutDown { .. } => "shutDown",
            Self::Panicked { .. } => "panicked",
        }
    }

    /// Whether the caller asked for it to end.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(self, Self::Aborted { .. } | Self::GivenUp { .. } | Self::ShutDown { .. })
    }

    /// The session that the prompt was for, if the prompt got as far as that.
    pub fn session(&self) -> Option<&SessionId> {
        self.subject().map(|(session, _)| session)
    }

    /// The task that the session belongs to, if it belongs to one.
    pub fn task(&self) -> Option<&TaskId> {
        self.subject().and_then(|(_, task)| task)
    }

    fn subject(&self) -> Option<(&SessionId, Option<&TaskId>)> {
        match self {
            Self::Session { session, task, .. }
            | Self::Busy { session, task, .. }
            | Self::NotAtRest { session, task, .. }
            | Self::NotDelivered { session, task, .. }
            | Self::NotRecorded { session, task, .. }
            | Self::TurnOpen { session, task, .. }
            | Self::NotClaimed { session, task, .. }
            | Self::NotStarted { session, task, .. }
            | Self::TimedOut { session, task, .. }
            | Self::Aborted { session, task, .. }
            | Self::Interrupted { session, task, .. }
            | Self::SessionGone { session, task, .. }
            | Self::Unauthorized { session, task, .. }
            | Self::GivenUp { session, task, .. }
            | Self::ShutDown { session, task, .. }
            | Self::Panicked { session, task, .. } => Some((session, task.as_ref())),
            Self::Invalid(_) | Self::Attachment(_) => None,
        }
    }

    /// How far the prompt is known to have got.
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::Session { delivery, .. }
            | Self::NotDelivered { delivery, .. }
            | Self::TimedOut { delivery, .. }
            | Self::Aborted { delivery, .. }
            | Self::Interrupted { delivery, .. }
            | Self::SessionGone { delivery, .. }
            | Self::Unauthorized { delivery, .. }
            | Self::GivenUp { delivery, .. }
            | Self::ShutDown { delivery, .. } => *delivery,
            Self::NotStarted { .. } => Delivery::Accepted,
            Self::NotClaimed { .. } | Self::Panicked { .. } => Delivery::Unknown,
            Self::Invalid(_)
            | Self::Attachment(_)
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
            | Self::TimedOut { .. }
            | Self::Interrupted { .. }
            | Self::GivenUp { .. } => true,
            Self::NotDelivered { delivery, source, .. } => {
                *delivery != Delivery::Rejected || source.as_ref().is_some_and(AgentError::is_retryable)
            }
            // One that may still start would run twice.
            Self::NotStarted { error, abort, .. } => {
                error.is_none() && abort.as_ref().is_none_or(|abort| abort.confirmed)
            }
            Self::Session { source, .. } => source.is_retryable(),
            Self::NotClaimed { source, .. } => source.is_retryable(),
            // The open prompt has to be resumed first, which no other attempt does.
            Self::TurnOpen { .. }
            | Self::Invalid(_)
            | Self::Attachment(_)
            | Self::Aborted { .. }
            | Self::SessionGone { .. }
            | Self::Unauthorized { .. }
            | Self::ShutDown { .. }
            | Self::Panicked { .. } => false,
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

impl PromptError {
    /// The error of a prompt that got so far, and whose session cannot be opened.
    pub(super) fn unopened(
        session: SessionId,
        task: Option<TaskId>,
        delivery: Delivery,
        error: SessionError,
    ) -> Self {
        match error {
            SessionError::Invalid(invalid) => invalid.into(),
            SessionError::Agent { source, .. } if source.kind() == AgentErrorKind::Unauthorized => {
                Self::Unauthorized { session, task, delivery, source: Some(source) }
            }
            source => Self::Session { session, task, delivery, source },
        }
    }
}

/// A turn that ended otherwise than by the model finishing; see [`PromptExecutionResult::settled`].
///
/// Its [`source`](error::Error::source) is the agent's last error, if there was one that was not overcome.
#[derive(Debug)]
#[non_exhaustive]
pub struct TurnFailed {
    /// What there is of it.
    pub result: Box<PromptExecutionResult>,
}

impl fmt::Display for TurnFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = &self.result;
        write!(f, "{} {}", Named(&result.submission.session_id, &result.task_id), result.completion)?;
        match (&result.completion, &result.abort) {
            // A limit that ran out says it itself.
            (Completion::TimedOut { .. }, _) => Ok(()),
            (_, Some(AbortReport { confirmed: false, .. })) => f.write_str(UNCONFIRMED),
            (_, _) => Ok(()),
        }
    }
}

impl error::Error for TurnFailed {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.result.cause.as_deref().map(|cause| cause as _)
    }
}

impl TurnFailed {
    pub(super) fn new(result: PromptExecutionResult) -> Self {
        Self { result: Box::new(result) }
    }
}

/// Why there is no answer of the asked shape.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonAnswerError {
    /// The model was not called, at least not by the last attempt.
    #[error("attempt {attempts} has no answer")]
    #[non_exhaustive]
    Prompt {
        /// How often it was asked.
        attempts: u32,
        /// What the attempts before the last one used and cost.
        usage: Usage,
        /// Why not.
        source: PromptError,
    },
    /// The turn of the last attempt did not end well.
    #[error("attempt {attempts} did not end well")]
    #[non_exhaustive]
    Turn {
        /// How often it was asked.
        attempts: u32,
        /// What all attempts used and cost together.
        usage: Usage,
        /// How it ended.
        source: TurnFailed,
    },
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

impl JsonAnswerError {
    /// What all attempts used and cost together.
    pub fn usage(&self) -> Usage {
        match self {
            Self::Prompt { usage, .. } | Self::Turn { usage, .. } | Self::Shape { usage, .. } => *usage,
        }
    }

    /// Whether the same task may succeed when it is tried again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Prompt { source, .. } => source.is_retryable(),
            Self::Turn { source, .. } => source.result.completion.is_retryable(),
            Self::Shape { .. } => false,
        }
    }
}

/// A session with the task that it belongs to.
struct Named<'a>(&'a SessionId, &'a Option<TaskId>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}", self.0)?;
        self.1.as_ref().map_or(Ok(()), |task| write!(f, " of task {task}"))
    }
}

/// What there is to add about a run that may go on.
fn unconfirmed(abort: Option<&AbortReport>) -> &'static str {
    match abort {
        Some(AbortReport { confirmed: false, .. }) => UNCONFIRMED,
        Some(_) | None => "",
    }
}

/// What there is to add about a limit that ran out.
fn ran_out(limit: Option<&Limit>, allowed: Option<&Allowed>) -> String {
    match (limit, allowed) {
        (Some(limit), Some(allowed)) => format!(": {limit} ({allowed})"),
        (Some(limit), None) => format!(": {limit}"),
        (None, _) => String::new(),
    }
}
