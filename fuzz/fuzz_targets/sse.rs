//! Any bytes in any chunks: the decoder never panics, keeps its bound, and does not depend on where the chunks end.

#![no_main]

use std::num::NonZeroUsize;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

#[path = "../../src/client/sse.rs"]
mod sse;

fn decode<'a>(limit: NonZeroUsize, chunks: impl Iterator<Item = &'a [u8]>) -> Vec<Option<String>> {
    let mut decoder = sse::EventDecoder::new(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        let mut chunk = Bytes::copy_from_slice(chunk);
        while let Some(event) = decoder.next(&mut chunk) {
            events.push(event.ok());
        }
    }
    events
}

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (limit, size, bytes) = input;
    let limit = NonZeroUsize::from(std::num::NonZeroU8::new(limit).unwrap_or(std::num::NonZeroU8::MIN));
    let whole = decode(limit, std::iter::once(bytes));
    let parts = decode(limit, bytes.chunks(usize::from(size).max(1)));
    assert_eq!(whole, parts);
    // A replacement character takes three bytes where an invalid one took one.
    assert!(whole.iter().flatten().all(|event| event.len() <= 3 * limit.get()));
});
