//! What the tests share.

pub(crate) mod live;
pub(crate) mod mock;
pub(crate) mod real;
pub(crate) mod secrets;
pub(crate) mod sink;
#[cfg(feature = "test-util")]
pub(crate) mod stage;

use std::{fmt::Debug, time::Duration};

/// How long a test waits for something that must happen; never how long it waits for something not to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Fails the test instead of hanging, or if what comes of it shows a secret.
pub(crate) async fn soon<T: Debug>(future: impl Future<Output = T>) -> T {
    let value = tokio::time::timeout(PATIENCE, future).await.expect("happens in time");
    secrets::check(&value);
    value
}
