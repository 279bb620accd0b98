//! Asks early whether the server is there, and says what is wrong if it is not.

use super::client::{ApiError, ApiErrorKind, OpenCodeClient};
use crate::manager::ConversationManager;

/// The server cannot be used, and most likely why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The address is not one of a server.
    #[error(transparent)]
    Invalid(ApiError),
    /// There is no connection, or no answer.
    #[error("cannot reach a server at {url}: does `opencode serve` run there, and is the address right?")]
    #[non_exhaustive]
    Unreachable {
        /// The address that was tried.
        url: String,
        /// How the request failed.
        #[source]
        source: ApiError,
    },
    /// The server wants other credentials.
    #[error(
        "the server at {url} refuses the credentials: its password is what OPENCODE_SERVER_PASSWORD was when it started; give it to \
         ClientBuilder::basic_auth"
    )]
    #[non_exhaustive]
    Unauthorized {
        /// The server's address.
        url: String,
        /// How the request failed.
        #[source]
        source: ApiError,
    },
    /// What answers is no `OpenCode`, or one in trouble.
    #[error("what answers at {url} does not answer like OpenCode: is it another service, or a proxy?")]
    #[non_exhaustive]
    NotOpenCode {
        /// The address that was tried.
        url: String,
        /// How the request failed; `None` if it was answered with something else.
        #[source]
        source: Option<ApiError>,
    },
    /// The manager runs another agent, which has no server.
    #[error("there is no server to check: the agent is {agent}")]
    #[non_exhaustive]
    OtherAgent {
        /// The agent's name.
        agent: String,
    },
}

impl ConversationManager {
    /// Asks the server whether it is there and takes the credentials; gives its version.
    ///
    /// [`connect`](Self::connect) does so by itself. A manager from a [`builder`](Self::builder) makes no request before its first task, so this
    /// is how to find out earlier. Servers before 1.1 do not tell their version.
    ///
    /// # Errors
    /// As [`CheckError`] says, with a hint at the cause.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::{CheckError, ConversationManager, OpenCodeClient};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let manager = ConversationManager::builder(OpenCodeClient::new("http://127.0.0.1:4096")?).build();
    /// match manager.check().await {
    ///     Ok(version) => println!("OpenCode {}", version.as_deref().unwrap_or("before 1.1")),
    ///     Err(error @ CheckError::Unauthorized { .. }) => return Err(error.into()),
    ///     Err(error) => eprintln!("{error}; starting all the same"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self) -> Result<Option<String>, CheckError> {
        let Some(client) = self.client() else {
            return Err(CheckError::OtherAgent { agent: self.agent().name().to_owned() });
        };
        let url = client.base_url();
        match version(client).await {
            Ok(Some(version)) if version.is_empty() => Err(CheckError::NotOpenCode { url, source: None }),
            Ok(version) => Ok(version),
            Err(error) => Err(CheckError::of(url, error)),
        }
    }
}

/// The version, or nothing from a server that has no route for it and others of its own.
async fn version(client: &OpenCodeClient) -> Result<Option<String>, ApiError> {
    match client.health().await {
        Ok(health) => Ok(Some(health.version)),
        Err(error) if has_no_such_route(&error) => {
            client.default_directory().session_status().await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Servers before 1.1 pass unknown routes on to the internet: they answer with a page, or with 500 if they cannot reach it.
fn has_no_such_route(error: &ApiError) -> bool {
    match error.kind() {
        ApiErrorKind::NotJson { html, .. } => *html,
        ApiErrorKind::Status(answer) => matches!(answer.status, 404 | 500),
        _ => false,
    }
}

impl CheckError {
    fn of(url: String, source: ApiError) -> Self {
        match source.kind() {
            _ if source.is_unauthorized() => Self::Unauthorized { url, source },
            ApiErrorKind::Invalid(_) => Self::Invalid(source),
            ApiErrorKind::Connect(_) | ApiErrorKind::Timeout { .. } | ApiErrorKind::Broken(_) => {
                Self::Unreachable { url, source }
            }
            ApiErrorKind::Status(_)
            | ApiErrorKind::NotJson { .. }
            | ApiErrorKind::TooLarge { .. }
            | ApiErrorKind::Decode(_) => Self::NotOpenCode { url, source: Some(source) },
        }
    }

    /// Whether the server may be there a little later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => source.is_retryable(),
            Self::NotOpenCode { source, .. } => source.as_ref().is_some_and(ApiError::is_retryable),
            Self::Invalid(_) | Self::Unauthorized { .. } | Self::OtherAgent { .. } => false,
        }
    }
}
