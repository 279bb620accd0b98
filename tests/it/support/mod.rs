//! What the tests share.

pub(crate) mod live;
pub(crate) mod mock;
pub(crate) mod real;
#[cfg(feature = "test-util")]
pub(crate) mod stage;

use std::time::Duration;

/// How long a test waits for something that must happen; never how long it waits for something not to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Fails the test instead of hanging.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("happens in time")
}
