//! Locks of short sections.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. A panic leaves what the locks here guard consistent, so that one that was poisoned is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
