//! Counters: what the client did and what it saw.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a client did and saw since it was made.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ClientStatistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> ClientStatistics {
                ClientStatistics { $($name: self.$name.0.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests sent, repeated ones and event streams included.
    requests,
    /// Requests that were repeated.
    retries,
    /// Bytes of request bodies.
    bytes_sent,
    /// Bytes of answers, event streams not included.
    bytes_received,
    /// Bytes of event streams.
    feed_bytes,
    /// Events received.
    events,
    /// Events that were decoded because somebody wanted them.
    events_decoded,
    /// Decoded events of a type that this version does not know.
    events_unknown,
    /// Events that could not be decoded or were too large.
    events_malformed,
    /// Event streams opened again after a loss.
    reconnects,
    /// Resync signals given to subscribers.
    resyncs,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }
}
