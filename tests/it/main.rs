//! Behaviour, one module each, in one binary so that it links once.

#[cfg(feature = "client")]
mod client_calls;
#[cfg(feature = "client")]
mod client_secrets;
#[cfg(feature = "client")]
mod feed_live;
mod fixtures_parity;
#[cfg(feature = "test-util")]
mod manager_turns;
#[cfg(feature = "client")]
mod server_fake;
#[cfg(feature = "client")]
mod server_real;
#[cfg(feature = "client")]
mod support;
mod laws_fold;
mod laws_model;
