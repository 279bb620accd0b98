//! How a request can fail, and what is known about it then.

use std::{error::Error, fmt, time::Duration};

use crate::{agent::Delivery, error::InvalidInput, opencode::wire::DecodeError};

/// A cause from below, kept whole.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A request to the server failed.
#[derive(Debug)]
pub struct ApiError {
    operation: &'static str,
    kind: Box<ApiErrorKind>,
}

/// In which way a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiErrorKind {
    /// The input was refused before anything was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// There is no connection to the server.
    #[error("cannot connect to the server")]
    Connect(#[source] BoxError),
    /// The server did not answer, or stopped answering, for this long.
    #[error("no {} from the server within {} ms", if *answered { "further byte" } else { "answer" }, after.as_millis())]
    #[non_exhaustive]
    Timeout {
        /// The time allowed.
        after: Duration,
        /// Whether the answer had begun.
        answered: bool,
    },
    /// The connection broke after the request, or a part of it, had been sent.
    #[error("the connection broke")]
    Broken(#[source] BoxError),
    /// The server refused or failed.
    #[error("the server answered {0}")]
    Status(ServerAnswer),
    /// The answer is not JSON.
    #[error("the server answered {status} with {}, not JSON{}", content_type.as_deref().unwrap_or("no content type"), if *html { ": it has no such route" } else { "" })]
    #[non_exhaustive]
    NotJson {
        /// The HTTP status.
        status: u16,
        /// What the server says it is.
        content_type: Option<String>,
        /// Whether it is a page: what the server answers on routes that it does not have.
        html: bool,
    },
    /// The answer is larger than allowed.
    #[error("the answer is larger than {limit} bytes")]
    #[non_exhaustive]
    TooLarge {
        /// How many bytes an answer may have.
        limit: usize,
    },
    /// The answer is JSON of an unexpected shape.
    #[error("the answer cannot be understood")]
    Decode(#[source] DecodeError),
}

/// An error as the server worded it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The server's name for the error, such as `NotFoundError`.
    pub name: Option<String>,
    /// The server's words.
    pub message: Option<String>,
    /// What the server logged the error under.
    pub reference: Option<String>,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    pub(crate) fn new(operation: &'static str, kind: impl Into<ApiErrorKind>) -> Self {
        Self { operation, kind: Box::new(kind.into()) }
    }

    /// What was attempted, such as `list messages`.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// In which way it failed.
    pub fn kind(&self) -> &ApiErrorKind {
        &self.kind
    }

    /// The HTTP status, if the server answered.
    pub fn status(&self) -> Option<u16> {
        match &*self.kind {
            ApiErrorKind::Status(answer) => Some(answer.status),
            ApiErrorKind::NotJson { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The error as the server worded it, if it did.
    pub fn answer(&self) -> Option<&ServerAnswer> {
        match &*self.kind {
            ApiErrorKind::Status(answer) => Some(answer),
            _ => None,
        }
    }

    /// Whether the server does not know what was asked for.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the server refuses the credentials; asking again will not help.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self.status(), Some(401 | 403))
    }

    /// Whether the same request may succeed later.
    ///
    /// That it may be *repeated* is another question: see [`ApiError::delivery`].
    pub fn is_retryable(&self) -> bool {
        match &*self.kind {
            ApiErrorKind::Connect(_) | ApiErrorKind::Timeout { .. } | ApiErrorKind::Broken(_) => true,
            ApiErrorKind::Status(answer) => matches!(answer.status, 408 | 429 | 500..),
            ApiErrorKind::Invalid(_)
            | ApiErrorKind::NotJson { .. }
            | ApiErrorKind::TooLarge { .. }
            | ApiErrorKind::Decode(_) => false,
        }
    }

    /// Whether the server may have acted on the request.
    pub fn delivery(&self) -> Delivery {
        match &*self.kind {
            ApiErrorKind::Invalid(_) | ApiErrorKind::Connect(_) => Delivery::NotSent,
            ApiErrorKind::Status(answer) => match answer.status {
                // A proxy may say 408 or 425 after it has passed the request on.
                408 | 425 => Delivery::Unknown,
                400..500 => Delivery::Rejected,
                _ => Delivery::Unknown,
            },
            // The page that stands for "no such route" did nothing.
            ApiErrorKind::NotJson { html: true, status: 200, .. } => Delivery::Rejected,
            ApiErrorKind::NotJson { .. }
            | ApiErrorKind::Timeout { .. }
            | ApiErrorKind::Broken(_)
            | ApiErrorKind::TooLarge { .. }
            | ApiErrorKind::Decode(_) => Delivery::Unknown,
        }
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        self.answer()?.retry_after
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.operation, self.kind)
    }
}

impl Error for ApiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}

impl fmt::Display for ServerAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        if let Some(message) = &self.message {
            write!(f, ": {message}")?;
        }
        if let Some(reference) = &self.reference {
            write!(f, " ({reference})")?;
        }
        Ok(())
    }
}
