//! Decodes server-sent events: the one file that knows which crate does it.
//!
//! `sse-core` was chosen by measurement (`benches/sse.rs`): it alone is linear for any chunking, bounds the size of
//! an event *and* survives both an oversized event and invalid UTF-8. `eventsource-stream` is quadratic in the size
//! of an event and dies of one invalid byte, `sse-stream` is linear but has no bound and ends at the first invalid
//! byte.

use std::num::NonZeroUsize;

use bytes::Bytes;
use sse_core::{SseDecoder, SseEvent};

/// An event was larger than the limit and has been skipped; the decoder goes on with the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {limit} bytes")]
pub(crate) struct EventTooLarge {
    pub(crate) limit: usize,
}

/// Turns chunks of bytes into the `data` of each event; other fields mean nothing to `OpenCode`.
#[derive(Debug)]
pub(crate) struct EventDecoder {
    decoder: SseDecoder,
    limit: NonZeroUsize,
}

/// A decoder keeps a buffer as large as its last event and gives that capacity to every string that follows, so
/// after an event above this size it is replaced.
const KEEP_CAPACITY: usize = 64 * 1024;

impl EventDecoder {
    /// A decoder for one connection, whose events may have `limit` bytes of data.
    pub(crate) fn new(limit: NonZeroUsize) -> Self {
        Self { decoder: SseDecoder::with_limit(limit), limit }
    }

    /// The next complete event in `chunk`, of which its bytes are taken; `None` when the chunk is used up.
    pub(crate) fn next(&mut self, chunk: &mut Bytes) -> Option<Result<String, EventTooLarge>> {
        loop {
            match self.decoder.next(chunk)? {
                Ok(SseEvent::Message(message)) => {
                    let mut data = message.data;
                    if data.capacity() > KEEP_CAPACITY {
                        data.shrink_to_fit();
                        // The decoder is between two events. A line feed that belongs to the last carriage
                        // return reads as one more blank line, which ends no event.
                        self.decoder = SseDecoder::with_limit(self.limit);
                    }
                    return Some(Ok(data));
                }
                Ok(SseEvent::Retry(_)) => {}
                Err(_) => {
                    return Some(Err(EventTooLarge { limit: self.limit.get() }));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
