//! How a store can fail.

use std::{error::Error, fmt};

use crate::ids::MessageId;

/// A store could not do what it was asked.
///
/// [`source`](Error::source) is the error of the engine underneath, if there is one.
#[derive(Debug)]
pub struct StoreError {
    attempt: String,
    kind: StoreErrorKind,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// In which way a store failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// What is stored cannot be read: it is damaged, or not a store at all.
    Corrupt,
    /// It may be read and not written.
    ReadOnly,
    /// Another process kept it locked for longer than this one waits.
    Locked,
    /// It was written by a newer version of this program, whose form is not understood here.
    #[non_exhaustive]
    Newer {
        /// The version of what is stored.
        found: u32,
        /// The newest version that this program understands.
        supported: u32,
    },
    /// There is no room left.
    Full,
    /// The task or the turn belongs to another process that is alive.
    Taken,
    /// Another turn of the session is open.
    #[non_exhaustive]
    TurnOpen {
        /// The prompt of that turn.
        message_id: MessageId,
    },
    /// It did not answer, or cannot be reached now.
    Unavailable,
    /// Anything else.
    Failed,
}

impl StoreError {
    /// `attempt` failed; it names what it was about.
    pub fn new(attempt: impl Into<String>, kind: StoreErrorKind) -> Self {
        Self { attempt: attempt.into(), kind, source: None }
    }

    /// Adds the error of the engine underneath.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// In which way it failed.
    pub fn kind(&self) -> &StoreErrorKind {
        &self.kind
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            StoreErrorKind::Locked
            | StoreErrorKind::Full
            | StoreErrorKind::Taken
            | StoreErrorKind::TurnOpen { .. }
            | StoreErrorKind::Unavailable => true,
            StoreErrorKind::Corrupt
            | StoreErrorKind::ReadOnly
            | StoreErrorKind::Newer { .. }
            | StoreErrorKind::Failed => false,
        }
    }

    /// Whether the store works and refuses: what was to be written belongs to another handle.
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Taken | StoreErrorKind::TurnOpen { .. })
    }
}

impl StoreErrorKind {
    /// What is stored has the version `found`; up to `supported` is understood.
    pub fn newer(found: u32, supported: u32) -> Self {
        Self::Newer { found, supported }
    }

    /// The turn of `message_id` is open.
    pub fn turn_open(message_id: MessageId) -> Self {
        Self::TurnOpen { message_id }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: ", self.attempt)?;
        match &self.kind {
            StoreErrorKind::Corrupt => f.write_str("the store is damaged, or not a store"),
            StoreErrorKind::ReadOnly => f.write_str("the store cannot be written"),
            StoreErrorKind::Locked => f.write_str("the store is locked by another process"),
            StoreErrorKind::Newer { found, supported } => {
                write!(f, "the store has version {found}, and this program understands up to {supported}")
            }
            StoreErrorKind::Full => f.write_str("there is no room left"),
            StoreErrorKind::Taken => f.write_str("it belongs to another process"),
            StoreErrorKind::TurnOpen { message_id } => write!(f, "the turn of {message_id} is open"),
            StoreErrorKind::Unavailable => f.write_str("the store does not answer"),
            StoreErrorKind::Failed => f.write_str("the store could not do it"),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
