//! `OpenCode`: what its server says, how that becomes a conversation, and how to wait for it.
//!
//! The pure parts come first: [`wire`] is what the server says, field for field; `convert` makes conversation events of it; `mirror`
//! merges events, deltas and lists of any age; `turn` decides when a prompt is answered. Around them, `client` speaks HTTP and keeps one
//! event feed per directory, `driver` performs what a turn asks for, and `agent` and `session` are what the manager sees.

mod convert;
#[cfg(test)]
mod convert_tests;
pub(crate) mod mirror;
pub(crate) mod transcript;
#[cfg(any(test, feature = "client"))]
pub(crate) mod turn;
pub mod wire;

#[cfg(feature = "client")]
mod abort;
#[cfg(feature = "client")]
mod agent;
#[cfg(feature = "client")]
mod calls;
#[cfg(feature = "client")]
mod check;
#[cfg(feature = "client")]
pub(crate) mod client;
#[cfg(feature = "client")]
mod diff;
#[cfg(feature = "client")]
mod driver;
#[cfg(feature = "client")]
mod failing;
#[cfg(feature = "test-util")]
pub(crate) mod fake;
#[cfg(feature = "client")]
mod mint;
#[cfg(feature = "client")]
mod model;
#[cfg(any(test, feature = "client"))]
mod outcome;
#[cfg(feature = "client")]
mod reading;
#[cfg(feature = "client")]
mod replies;
#[cfg(feature = "client")]
pub(crate) mod server;
#[cfg(feature = "client")]
mod session;
#[cfg(feature = "client")]
mod shared_read;

#[cfg(feature = "client")]
pub use self::{agent::OpenCode, check::CheckError, model::resolve_prompt_model};
