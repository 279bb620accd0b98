//! Decodes server-sent events: the one file that knows which crate does it.
//!
//! `sse-core` was chosen by measurement (`benches/sse.rs`): it alone is linear for any chunking, bounds the size of
//! an event *and* survives both an oversized event and invalid UTF-8. `eventsource-stream` is quadratic in the size
//! of an event and dies of one invalid byte, `sse-stream` is linear but has no bound and ends at the first invalid
//! byte.

use std::{borrow::Cow, num::NonZeroUsize};

use sse_core::{SseDecoder, SseEvent};

/// An event was larger than the limit and has been skipped; the decoder goes on with the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {limit} bytes")]
pub(crate) struct EventTooLarge {
    pub(crate) limit: usize,
}

/// Turns chunks of bytes into the `data` of each event; other fields mean nothing to `OpenCode`.
///
/// An event that stands whole in a chunk, as one line of data, is not copied. All others are put together by `sse-core`.
#[derive(Debug)]
pub(crate) struct EventDecoder {
    decoder: SseDecoder,
    limit: NonZeroUsize,
    /// Whether an event was the last thing that was read.
    is_between_events: bool,
}

/// A decoder keeps a buffer as large as its last event and gives that capacity to every string that follows, so
/// after an event above this size it is replaced.
const KEEP_CAPACITY: usize = 64 * 1024;

impl EventDecoder {
    /// A decoder for one connection, whose events may have `limit` bytes of data.
    pub(crate) fn new(limit: NonZeroUsize) -> Self {
        Self { decoder: SseDecoder::with_limit(limit), limit, is_between_events: false }
    }

    /// The next complete event in `chunk`, of which its bytes are taken; `None` when the chunk is used up.
    pub(crate) fn next<'c>(&mut self, chunk: &mut &'c [u8]) -> Option<Result<Cow<'c, str>, EventTooLarge>> {
        if chunk.is_empty() {
            return None;
        }
        if self.is_between_events
            && let Some((data, rest)) = whole_event(chunk).filter(|(data, _)| data.len() <= self.limit.get())
        {
            *chunk = rest;
            return Some(Ok(Cow::Borrowed(data)));
        }
        self.is_between_events = false;
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
                    self.is_between_events = true;
                    return Some(Ok(Cow::Owned(data)));
                }
                Ok(SseEvent::Retry(_)) => {}
                Err(_) => {
                    return Some(Err(EventTooLarge { limit: self.limit.get() }));
                }
            }
        }
    }
}

/// The data of an event of one line that begins and ends in `chunk`, and what follows it.
fn whole_event(chunk: &[u8]) -> Option<(&str, &[u8])> {
    let line = chunk.strip_prefix(b"data: ")?;
    let (data, rest) = line.split_at(memchr::memchr2(b'\n', b'\r', line)?);
    Some((str::from_utf8(data).ok()?, rest.strip_prefix(b"\n\n")?))
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
