//! What several layers report alike.

use std::{error, time::Duration};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Input that was refused before anything was sent.
///
/// The value itself is left out: it may be a prompt, or hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} {rule}")]
#[non_exhaustive]
pub struct InvalidInput {
    /// Which field.
    pub field: &'static str,
    /// What it has to be.
    pub rule: &'static str,
}

impl InvalidInput {
    /// `field` breaks `rule`, which reads as the end of a sentence: "must be an absolute path".
    pub const fn new(field: &'static str, rule: &'static str) -> Self {
        Self { field, rule }
    }

    /// Refuses ids that are blank or hold control characters.
    pub(crate) fn check_id(field: &'static str, id: &str) -> Result<(), Self> {
        if id.trim().is_empty() {
            return Err(Self::new(field, "must not be empty"));
        }
        if id.chars().any(char::is_control) {
            return Err(Self::new(field, "must not contain control characters"));
        }
        Ok(())
    }

    /// Refuses durations that make no sense as a limit: zero, or longer than any program runs.
    pub(crate) fn check_durations(durations: &[(&'static str, Duration)]) -> Result<(), Self> {
        for &(name, value) in durations {
            if value.is_zero() {
                return Err(Self::new(name, "must be longer than nothing"));
            }
            if value > YEAR {
                return Err(Self::new(name, "must not be longer than a year"));
            }
        }
        Ok(())
    }
}

/// An error and its causes on one line, without what is said twice.
///
/// An error of this crate says what failed, and only its causes say why; a log line wants both.
///
/// # Examples
/// ```
/// use opencode_conductor::{AgentError, AgentErrorKind, Delivery, error_chain};
///
/// let error = AgentError::new(AgentErrorKind::Unreachable, Delivery::NotSent, "connection refused");
/// assert_eq!(error_chain(&error), "the agent cannot be reached, is it running?: connection refused");
/// ```
pub fn error_chain(error: &(dyn error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !line.contains(&words) {
            line = format!("{line}: {words}");
        }
        cause = error.source();
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Any error of this crate: what each call's own error converts into.
///
/// # Examples
/// ```no_run
/// # #[cfg(feature = "client")]
/// # async fn example() -> Result<(), opencode_conductor::Error> {
/// use opencode_conductor::{ConversationManager, CreateTaskSession, PromptInput};
///
/// let manager = ConversationManager::connect("http://127.0.0.1:4096").await?;
/// let task = CreateTaskSession::new("project", "task", "/srv/project", "/srv/worktree");
/// let session = manager.create_task_session(task).await?.session_id;
/// let result = manager.prompt(PromptInput::new(session, "Tidy up.")).await?.settled()?;
/// # drop(result);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Input was refused before anything was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// A transcript could not be loaded.
    #[error(transparent)]
    Transcript(#[from] crate::transcript::TranscriptError),
    /// A store could not do what it was asked.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// An agent could not do what it was asked.
    #[error(transparent)]
    Agent(#[from] crate::agent::AgentError),
    /// A request to an `OpenCode` server failed.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Api(#[from] crate::opencode::client::ApiError),
    /// A server that was checked cannot be used.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Check(#[from] crate::opencode::CheckError),
    /// A managed server could not be started.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Launch(#[from] crate::opencode::server::LaunchError),
    /// A session could not be made, found or removed.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Session(#[from] crate::manager::SessionError),
    /// The model was not called.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Prompt(#[from] crate::manager::PromptError),
    /// The model was called, and did not finish.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Turn(#[from] crate::manager::TurnFailed),
    /// There is no answer of the asked shape.
    #[cfg(feature = "client")]
    #[error(transparent)]
    JsonAnswer(#[from] crate::manager::JsonAnswerError),
    /// An answer to a request was not taken.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Answer(#[from] crate::manager::AnswerError),
    /// A worktree could not be made, looked at or removed.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Worktree(#[from] crate::worktree::WorktreeError),
}

impl Error {
    /// Whether the same task may succeed when it is tried again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::Transcript(_) => false,
            Self::Store(error) => error.is_retryable(),
            Self::Agent(error) => error.is_retryable(),
            #[cfg(feature = "client")]
            Self::Api(error) => error.is_retryable(),
            #[cfg(feature = "client")]
            Self::Check(error) => error.is_retryable(),
            #[cfg(feature = "client")]
            Self::Launch(_) | Self::Answer(_) | Self::Worktree(_) => false,
            #[cfg(feature = "client")]
            Self::Session(error) => error.is_retryable(),
            #[cfg(feature = "client")]
            Self::Prompt(error) => error.is_retryable(),
            #[cfg(feature = "client")]
            Self::Turn(failed) => failed.result.completion.is_retryable(),
            #[cfg(feature = "client")]
            Self::JsonAnswer(error) => error.is_retryable(),
        }
    }
}
