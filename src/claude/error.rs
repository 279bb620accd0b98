//! How Claude Code can fail its host.

use std::{io, path::PathBuf};

use super::{version::Version, wire::ApiRetry};
use crate::{
    agent::{AgentError, AgentErrorKind, Delivery},
    ids::SessionId,
    json::DecodeError,
};

/// Claude Code could not be used, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaudeError {
    /// There is no such executable.
    #[error(
        "cannot find {executable}: install Claude Code with `npm install -g @anthropic-ai/claude-code`, or say where it is with \
         CLAUDE_BIN"
    )]
    #[non_exhaustive]
    NotFound {
        /// The executable that was looked for.
        executable: String,
        /// What the system said.
        source: io::Error,
    },
    /// The executable cannot be started.
    #[error(
        "cannot start {executable} in {directory}: does the directory exist, and may the file be executed?"
    )]
    #[non_exhaustive]
    Spawn {
        /// The executable.
        executable: String,
        /// Where it was to be started.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The executable did not say its version.
    #[error("{executable} does not say its version: is it Claude Code? It wrote: {said}")]
    #[non_exhaustive]
    NoVersion {
        /// The executable.
        executable: String,
        /// What it wrote instead.
        said: String,
    },
    /// The executable is too old.
    #[error(
        "Claude Code {found} is too old, {needed} is needed: `npm install -g @anthropic-ai/claude-code@latest` (with Node 20 npm takes \
         an old one; name the version)"
    )]
    #[non_exhaustive]
    TooOld {
        /// Its version.
        found: Version,
        /// The oldest that can do what is needed.
        needed: Version,
    },
    /// The executable is not logged in, or the provider refuses its key.
    #[error("Claude Code is not logged in ({said}): run `claude` and `/login`, or set ANTHROPIC_API_KEY")]
    #[non_exhaustive]
    NotLoggedIn {
        /// What it said about that.
        said: String,
    },
    /// Another owner works with the session.
    #[error(
        "session {session} is in use by another owner: use it there, wait until it is closed, or fork it with a new session"
    )]
    #[non_exhaustive]
    SessionInUse {
        /// The session.
        session: SessionId,
    },
    /// There is no such session.
    #[error("there is no session {session} under {config}: was it made with another CLAUDE_CONFIG_DIR?")]
    #[non_exhaustive]
    NoSuchSession {
        /// The session.
        session: SessionId,
        /// Where it was looked for.
        config: PathBuf,
    },
    /// The process ended while it was needed.
    #[error("Claude Code ended ({}){}", .status.as_deref().unwrap_or("status unknown"), last_words(.stderr))]
    #[non_exhaustive]
    Exited {
        /// Its exit status, or the signal that ended it.
        status: Option<String>,
        /// The last lines of its standard error.
        stderr: Vec<String>,
    },
    /// The provider failed, and was to be asked again when a limit of the turn ran out.
    #[error("the provider failed{}", in_brackets(.said))]
    #[non_exhaustive]
    ProviderFailed {
        /// The attempt that failed last, from 1.
        attempt: u32,
        /// What is known of why; empty if nothing is.
        said: String,
    },
    /// A line of standard output cannot be read. The lines around it were.
    #[error("a line of Claude Code's output cannot be read")]
    Line(#[from] DecodeError),
    /// A line of standard output is too long to be kept. The lines around it were read.
    #[error("a line of Claude Code's output is longer than {limit} bytes and was left out")]
    #[non_exhaustive]
    LineTooLong {
        /// The longest line that is read.
        limit: usize,
    },
    /// A file of Claude Code, or of ours beside it, cannot be read or written.
    #[error("cannot use {}", .path.display())]
    #[non_exhaustive]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An attachment of a kind that Claude Code does not take.
    #[error("Claude Code takes images, PDF and text, not {media_type}")]
    #[non_exhaustive]
    Attachment {
        /// Its kind.
        media_type: String,
    },
}

impl ClaudeError {
    pub(super) fn kind(&self) -> AgentErrorKind {
        match self {
            Self::NotLoggedIn { .. } => AgentErrorKind::Unauthorized,
            Self::NoSuchSession { .. } => AgentErrorKind::NotFound,
            Self::Attachment { .. } => AgentErrorKind::Unsupported,
            Self::NotFound { .. } | Self::Spawn { .. } => AgentErrorKind::Unreachable,
            Self::SessionInUse { .. }
            | Self::Exited { .. }
            | Self::ProviderFailed { .. }
            | Self::File { .. } => AgentErrorKind::Unavailable,
            Self::NoVersion { .. } | Self::TooOld { .. } | Self::Line(_) | Self::LineTooLong { .. } => {
                AgentErrorKind::Failed
            }
        }
    }

    /// The error as the manager sees it, of a prompt that got so far.
    pub(super) fn at(self, delivery: Delivery) -> AgentError {
        AgentError::new(self.kind(), delivery, self)
    }
}

impl From<ClaudeError> for AgentError {
    fn from(error: ClaudeError) -> Self {
        error.at(Delivery::NotSent)
    }
}

impl From<&ApiRetry> for ClaudeError {
    fn from(retry: &ApiRetry) -> Self {
        Self::ProviderFailed { attempt: retry.attempt, said: provider_said(retry) }
    }
}

/// What is known of why the provider failed, such as `HTTP 529, overloaded`; empty if nothing is.
fn provider_said(retry: &ApiRetry) -> String {
    let status = retry.error_status.map(|status| format!("HTTP {status}"));
    let error = retry.error.as_deref().filter(|error| *error != "unknown").map(str::to_owned);
    status.into_iter().chain(error).collect::<Vec<_>>().join(", ")
}

fn in_brackets(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}

/// The end of what a process wrote to standard error, for a message of one line.
fn last_words(stderr: &[String]) -> String {
    let last = stderr.iter().rev().find(|line| !line.trim().is_empty());
    last.map(|line| format!(": {line}")).unwrap_or_default()
}
