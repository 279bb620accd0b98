//! What the client did and what it saw.

use crate::count::counters;

counters! {
    /// What a client did and saw since it was made.
    ClientStatistics, Counters {
        /// Requests sent, repeated ones and event streams included.
        requests: "opencode_requests_total",
        /// Requests that were repeated.
        retries: "opencode_retries_total",
        /// Bytes of request bodies.
        bytes_sent: "opencode_bytes_sent_total",
        /// Bytes of answers, event streams not included.
        bytes_received: "opencode_bytes_received_total",
        /// Bytes of event streams.
        feed_bytes: "opencode_feed_bytes_total",
        /// Events received.
        events: "opencode_events_total",
        /// Events that were decoded for a subscriber.
        events_decoded: "opencode_events_decoded_total",
        /// Decoded events of a type that this version does not know.
        events_unknown: "opencode_events_unknown_total",
        /// Events that could not be decoded or were too large.
        events_malformed: "opencode_events_malformed_total",
        /// Sessions, messages and requests of turns that were left out because there were too many of them.
        dropped: "opencode_dropped_total",
        /// Event streams opened again after a loss.
        reconnects: "opencode_reconnects_total",
        /// Resync signals given to subscribers.
        resyncs: "opencode_resyncs_total",
    }
}
