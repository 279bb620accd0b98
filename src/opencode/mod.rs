//! `OpenCode`: what its server says, how that becomes a conversation, and how to wait for it.

#[cfg(feature = "client")]
pub(crate) mod client;
pub mod convert;
#[cfg(feature = "test-util")]
pub(crate) mod fake;
pub(crate) mod mirror;
#[cfg(feature = "client")]
pub(crate) mod server;
pub mod turn;
pub mod wire;
