//! Named gates: the way for a test to hold the fake at a point and let it go on, without sleeping.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use tokio::sync::Notify;

use crate::lock::lock;

#[derive(Debug, Default)]
pub(super) struct Gates {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    open: BTreeSet<String>,
    waiting: BTreeMap<String, usize>,
}

impl Gates {
    /// Opens a gate for good.
    pub(super) fn open(&self, name: &str) {
        lock(&self.inner).open.insert(name.to_owned());
        self.changed.notify_waiters();
    }

    /// How many wait at the gate now.
    pub(super) fn waiting(&self, name: &str) -> usize {
        lock(&self.inner).waiting.get(name).copied().unwrap_or(0)
    }

    /// Waits until the gate is open.
    pub(super) async fn pass(&self, name: &str, arrived: impl FnOnce()) {
        let mut changed = std::pin::pin!(self.changed.notified());
        changed.as_mut().enable();
        if lock(&self.inner).open.contains(name) {
            return;
        }
        let _waiter = Waiter::new(self, name);
        arrived();
        loop {
            changed.as_mut().await;
            changed.set(self.changed.notified());
            changed.as_mut().enable();
            if lock(&self.inner).open.contains(name) {
                return;
            }
        }
    }
}

/// One that waits; dropping it, also by cancellation, leaves the queue.
struct Waiter<'a> {
    gates: &'a Gates,
    name: &'a str,
}

impl<'a> Waiter<'a> {
    fn new(gates: &'a Gates, name: &'a str) -> Self {
        *lock(&gates.inner).waiting.entry(name.to_owned()).or_default() += 1;
        Self { gates, name }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = lock(&self.gates.inner).waiting.get_mut(self.name) {
            *waiting -= 1;
        }
    }
}
