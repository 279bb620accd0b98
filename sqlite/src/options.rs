//! What a store can be told.

use std::{path::Path, time::Duration};

use opencode_conductor::StoreError;

use crate::{SqliteStore, saved::Retention};

/// Settings of a [`SqliteStore`].
#[derive(Debug, Clone)]
#[must_use]
pub struct SqliteOptions {
    pub(crate) busy_timeout: Duration,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) keep_finished: Duration,
    pub(crate) keep_saved: Retention,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
            keep_finished: 30 * DAY,
            keep_saved: Retention { age: 90 * DAY, bytes: None },
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

    /// Sets how long what is saved of a session is kept after it was saved last; default 90 days. Older data is removed when a store is
    /// opened, and when open turns are claimed; never that of a session with an open turn.
    pub fn keep_saved(mut self, age: Duration) -> Self {
        self.keep_saved.age = age;
        self
    }

    /// Limits what is saved of all sessions together; default no limit. What was saved longest ago is removed for what is saved now; never
    /// that of a session with an open turn.
    pub fn max_saved_bytes(mut self, bytes: u64) -> Self {
        self.keep_saved.bytes = Some(bytes);
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
