//! Claude Code: what its command line says, what it writes to disk, how both become the same conversation, and how it is run.
//!
//! [`wire`] is what it says, line for line; `convert` says what a line means; [`SessionMirror`] merges what a session streams with what
//! its files say; `transcript` loads files. Nothing of that does I/O.
//!
//! With the feature `claude` it is an agent of the manager: `process` is one process, `claim` keeps others away from a session,
//! `activity` folds what a process does, `wait` waits for a turn, and `agent` and `session` are what the manager sees.

mod convert;
mod mirror;
pub(crate) mod transcript;
pub mod wire;

#[cfg(feature = "claude")]
mod activity;
#[cfg(feature = "claude")]
mod agent;
#[cfg(feature = "claude")]
mod ask;
#[cfg(feature = "claude")]
mod claim;
#[cfg(feature = "claude")]
mod clock;
#[cfg(feature = "claude")]
mod error;
#[cfg(feature = "claude")]
mod execute;
#[cfg(all(unix, feature = "claude", feature = "test-util"))]
pub(crate) mod fake;
#[cfg(feature = "claude")]
mod files;
#[cfg(feature = "claude")]
mod live;
#[cfg(feature = "claude")]
mod options;
#[cfg(feature = "claude")]
mod process;
#[cfg(feature = "claude")]
mod recorded;
#[cfg(feature = "claude")]
mod request;
#[cfg(feature = "claude")]
mod rest;
#[cfg(feature = "claude")]
mod session;
#[cfg(feature = "claude")]
mod version;
#[cfg(feature = "claude")]
mod wait;

#[cfg(feature = "claude")]
pub use self::{
    agent::ClaudeCode,
    error::ClaudeError,
    options::{ClaudeOptions, OnRelease},
    version::Version,
};
pub use self::{
    mirror::{FileRead, SessionMirror},
    transcript::{ClaudeFiles, SubagentFile},
};
