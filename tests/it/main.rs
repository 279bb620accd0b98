//! Behaviour, one module each, in one binary so that it links once.

mod fixtures_parity;
//! Integration tests: one binary, one module per behaviour.

#![cfg(feature = "client")]

mod client_calls;
mod client_secrets;
mod feed_live;
mod server_fake;
mod server_real;
mod support;
