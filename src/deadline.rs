//! Waiting for a moment that may not come.

use std::future::pending;

use tokio::time::{Instant, sleep_until};

/// Waits until then; for ever if there is no such moment.
pub(crate) async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
