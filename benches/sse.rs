//! Compares the decoder in use with the alternatives, in one run: `cargo bench --bench sse`.
//!
//! What matters is growth, so the figures are ratios: an event twice as long should take twice as long, and many
//! small events should cost per event what a few do. `eventsource-stream` is what `reqwest-eventsource` decodes with.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints and reads the clock"
)]
#![expect(clippy::expect_used, reason = "a benchmark of broken input is worth nothing")]

mod figures;

use std::{convert::Infallible, num::NonZeroUsize};

use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{FutureExt, Stream, StreamExt, stream};

use crate::figures::{Settings, Table, seconds, timed};

#[path = "../src/opencode/client/sse.rs"]
#[expect(dead_code, reason = "the benchmark uses a part of it")]
mod sse;

const MIB: usize = 1 << 20;
const CHUNK: usize = 16 * 1024;

type Decoder = fn(&[Bytes]) -> usize;

/// What no decoder can do without: every byte of an event is copied once, and checked to be UTF-8.
fn copy(chunks: &[Bytes]) -> usize {
    let mut data = Vec::new();
    for chunk in chunks {
        data.extend_from_slice(chunk);
    }
    String::from_utf8(data).expect("valid").len()
}

fn conductor(chunks: &[Bytes]) -> usize {
    let mut decoder = sse::EventDecoder::new(NonZeroUsize::new(32 * MIB).expect("not zero"));
    let mut total = 0;
    for chunk in chunks {
        let mut chunk = &**chunk;
        while let Some(event) = decoder.next(&mut chunk) {
            total += event.expect("small enough").len();
        }
    }
    total
}

fn eventsource_stream(chunks: &[Bytes]) -> usize {
    sum(bytes(chunks).eventsource().map(|event| event.expect("valid").data.len()))
}

fn sse_stream(chunks: &[Bytes]) -> usize {
    sum(sse_stream::SseByteStream::new(bytes(chunks))
        .map(|event| event.expect("valid").data.map_or(0, |data| data.len())))
}

fn bytes(chunks: &[Bytes]) -> impl Stream<Item = Result<Bytes, Infallible>> + Unpin {
    stream::iter(chunks.iter().cloned().map(Ok))
}

fn sum(lengths: impl Stream<Item = usize>) -> usize {
    lengths.fold(0, |total, length| async move { total + length }).now_or_never().expect("never waits")
}

/// One event with `size` bytes of JSON, as a network delivers it.
fn one_event(size: usize) -> Vec<Bytes> {
    let overhead = "{\"text\":\"\"}".len();
    let text = format!("data: {{\"text\":\"{}\"}}\n\n", "x".repeat(size - overhead));
    Bytes::from(text).chunks(CHUNK).map(Bytes::copy_from_slice).collect()
}

/// `count` events of some 100 bytes in one chunk.
fn small_events(count: usize) -> Vec<Bytes> {
    let event = format!(
        "data: {{\"type\":\"message.part.delta\",\"properties\":{{\"delta\":\"{}\"}}}}\n\n",
        "y".repeat(40)
    );
    vec![Bytes::from(event.repeat(count))]
}

fn main() {
    let decoders: [(&str, Decoder); 4] = [
        ("copy", copy),
        ("conductor", conductor),
        ("sse-stream", sse_stream),
        ("eventsource-stream", eventsource_stream),
    ];
    let Some(settings) = Settings::from_args() else { return };
    let large = [1, 4, 8, 16].map(|mib| one_event(mib * MIB));
    let small = [1_000, 4_000, 16_000].map(small_events);
    let sections: [(&str, Table, &[Vec<Bytes>]); 2] = [
        ("one", Table::new("One event", "ms", &["1 MiB", "4 MiB", "8 MiB", "16 MiB"]), &large),
        ("many", Table::new("Small events in one chunk", "ms", &["1,000", "4,000", "16,000"]), &small),
    ];
    let mut tables = Vec::new();
    for (_, mut table, inputs) in sections.into_iter().filter(|(name, ..)| settings.wants(name)) {
        for (name, decoder) in decoders {
            let time = |input: &Vec<Bytes>| seconds(&settings, || timed(|| decoder(input))) * 1e3;
            table.row(name, inputs.iter().map(time));
        }
        tables.push(table);
    }
    settings.print(&tables);
}
