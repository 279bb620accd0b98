//! How a call to an agent can fail.

use std::{error::Error, fmt};

use super::Delivery;

/// A call to an agent failed.
///
/// [`source`](Error::source) is the agent's own error, such as [`ApiError`](crate::ApiError) of `OpenCode`.
#[derive(Debug)]
pub struct AgentError {
    kind: AgentErrorKind,
    delivery: Delivery,
    source: Box<dyn Error + Send + Sync>,
}

/// In which way a call to an agent failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AgentErrorKind {
    /// The agent refuses the credentials.
    Unauthorized,
    /// The agent does not know what was asked for.
    NotFound,
    /// The agent cannot do this at all.
    Unsupported,
    /// The agent cannot be reached.
    Unreachable,
    /// The agent is there but could not do it now; the same call may succeed later.
    Unavailable,
    /// The agent refused, or answered nonsense.
    Failed,
}

impl AgentError {
    /// A failed call. `delivery` says whether the agent may have acted on it.
    pub fn new(
        kind: AgentErrorKind,
        delivery: Delivery,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { kind, delivery, source: source.into() }
    }

    /// Something that the agent cannot do at all.
    pub fn unsupported(agent: &str, operation: &str) -> Self {
        let message = format!("{agent} cannot {operation}");
        Self::new(AgentErrorKind::Unsupported, Delivery::NotSent, message)
    }

    /// In which way it failed.
    pub fn kind(&self) -> AgentErrorKind {
        self.kind
    }

    /// Whether the agent may have acted on the call.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Whether the agent does not know what was asked for.
    pub fn is_not_found(&self) -> bool {
        self.kind == AgentErrorKind::NotFound
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            AgentErrorKind::Unreachable | AgentErrorKind::Unavailable => true,
            AgentErrorKind::Unauthorized
            | AgentErrorKind::NotFound
            | AgentErrorKind::Unsupported
            | AgentErrorKind::Failed => false,
        }
    }

    /// The agent's own error, if it is one of this type.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.source.downcast_ref()
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            AgentErrorKind::Unauthorized => {
                "the agent refuses the credentials: check the password or the login"
            }
            AgentErrorKind::NotFound => "the agent does not know it",
            AgentErrorKind::Unsupported => "the agent cannot do that",
            AgentErrorKind::Unreachable => "the agent cannot be reached, is it running?",
            AgentErrorKind::Unavailable => "the agent could not do it now",
            AgentErrorKind::Failed => "the agent failed",
        })
    }
}

impl Error for AgentError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
