//! Integration tests: one binary, one module per behaviour.

#![cfg(feature = "client")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]
#![expect(clippy::print_stderr, reason = "whoever runs the tests should know what was skipped")]

mod client_calls;
mod client_secrets;
mod feed_live;
mod server_fake;
mod server_real;
mod support;
