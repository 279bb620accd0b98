//! Logs, if they are asked for.

use std::{env, io::stderr};

use tracing_subscriber::EnvFilter;

/// Writes logs to standard error if `RUST_LOG` says which, such as `RUST_LOG=opencode_conductor=debug`.
pub fn init() {
    if env::var_os("RUST_LOG").is_some_and(|filter| !filter.is_empty()) {
        tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(stderr).init();
    }
}
