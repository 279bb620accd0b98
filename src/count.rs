//! Counters: what was done and seen, as a snapshot for the caller and, with the feature `metrics`, as metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Defines a snapshot and the counters behind it. Each has the name that it goes by as a metric, and perhaps a label.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $statistics:ident, $counters:ident {
            $($(#[$doc:meta])* $name:ident: $metric:literal $([$label:literal = $value:literal])?,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        // What an earlier version did not count is 0.
        #[serde(rename_all = "camelCase", default)]
        #[non_exhaustive]
        pub struct $statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug)]
        pub(crate) struct $counters {
            $(pub(crate) $name: $crate::count::Counter,)*
        }

        impl Default for $counters {
            fn default() -> Self {
                Self { $($name: $crate::count::Counter {
                    value: Default::default(),
                    #[cfg(feature = "metrics")]
                    emit: |count| metrics::counter!($metric $(, $label => $value)?).increment(count),
                },)* }
            }
        }

        impl $counters {
            pub(crate) fn snapshot(&self) -> $statistics {
                $statistics { $($name: self.$name.get(),)* }
            }
        }
    };
}
pub(crate) use counters;

/// Something that is counted.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) value: AtomicU64,
    /// Looks the metric up each time, so that it does not matter when the recorder is installed.
    #[cfg(feature = "metrics")]
    pub(crate) emit: fn(u64),
}

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        let count = count as u64;
        self.value.fetch_add(count, Relaxed);
        #[cfg(feature = "metrics")]
        (self.emit)(count);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// How many of something there are now.
#[derive(Debug)]
pub(crate) struct Gauge {
    value: AtomicU64,
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "the metric's name"))]
    metric: &'static str,
}

/// One of them; dropped when it is gone.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Gauge);

impl Gauge {
    pub(crate) fn new(metric: &'static str) -> Self {
        Self { value: AtomicU64::new(0), metric }
    }

    pub(crate) fn hold(&self) -> Held<'_> {
        self.value.fetch_add(1, Relaxed);
        #[cfg(feature = "metrics")]
        metrics::gauge!(self.metric).increment(1);
        Held(self)
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.value.fetch_sub(1, Relaxed);
        #[cfg(feature = "metrics")]
        metrics::gauge!(self.0.metric).decrement(1);
    }
}
