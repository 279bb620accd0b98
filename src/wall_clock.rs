//! The wall clock: for ids and for the moment of submission, never for waiting.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::time::Millis;

/// The moment that it is now.
#[expect(clippy::disallowed_methods, reason = "the one place where the wall clock is read")]
pub(crate) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis::new(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
