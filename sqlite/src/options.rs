//! What a store can be told.

use std::{path::Path, time::Duration};

use opencode_conductor::StoreError;

use crate::SqliteStore;

/// Settings of a [`SqliteStore`].
#[derive(Debug, Clone)]
#[must_use]
pub struct SqliteOptions {
    pub(crate) busy_timeout: Duration,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) keep_finished: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
            keep_finished: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

impl SqliteOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long to wait for another process that is writing; default 5 s.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Limits the size of the database, beyond which writes fail as on a full disk; default no limit.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets how long turns are kept after they are over; default 30 days. Older ones are removed when a store is opened, and when open
    /// turns are claimed.
    pub fn keep_finished(mut self, age: Duration) -> Self {
        self.keep_finished = age;
        self
    }

    /// Opens a store, or makes an empty one.
    ///
    /// # Errors
    /// If it is damaged or not a store, of a newer version, read-only, locked for longer than the
    /// [`busy_timeout`](Self::busy_timeout), on a full disk, or cannot be opened at all; the error's kind says which.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        SqliteStore::open_with(self, path.as_ref()).await
    }
}
