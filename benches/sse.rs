//! Compares the decoder in use with the alternatives, in one run: `cargo bench --bench sse`.
//!
//! What matters is growth, so the figures are ratios: an event twice as long should take twice as long, and many
//! small events should cost per event what a few do. `eventsource-stream` is what `reqwest-eventsource` decodes with.

#![expect(clippy::print_stdout, reason = "the figures are the point of this program")]
#![expect(clippy::expect_used, reason = "a benchmark of broken input is worth nothing")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    convert::Infallible,
    hint::black_box,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{FutureExt, Stream, StreamExt, stream};

#[path = "../src/client/sse.rs"]
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
    for mut chunk in chunks.iter().cloned() {
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

/// The best of several runs; one run is enough where it takes seconds.
fn time(decoder: Decoder, input: &[Bytes]) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..7 {
        let started = Instant::now();
        black_box(decoder(black_box(input)));
        best = best.min(started.elapsed());
        if best > Duration::from_millis(500) {
            break;
        }
    }
    best
}

/// Starts this program again with an allocator that keeps its memory. Otherwise the kernel hands out fresh pages for every
/// large event, and their cost, which has steps, hides how the decoders grow.
fn keep_memory() -> bool {
    const SETTINGS: [(&str, &str); 3] = [
        ("MALLOC_MMAP_THRESHOLD_", "33554432"),
        ("MALLOC_TRIM_THRESHOLD_", "4294967296"),
        ("MALLOC_TOP_PAD_", "268435456"),
    ];
    if std::env::var_os(SETTINGS[0].0).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("a program has a path");
    let status = std::process::Command::new(program).envs(SETTINGS).status().expect("it starts");
    assert!(status.success());
    false
}

fn main() {
    if !keep_memory() {
        return;
    }
    let decoders: [(&str, Decoder); 4] = [
        ("copy", copy),
        ("conductor", conductor),
        ("sse-stream", sse_stream),
        ("eventsource-stream", eventsource_stream),
    ];
    let large = [1, 4, 8, 16].map(|mib| (format!("1 x {mib} MiB"), one_event(mib * MIB)));
    let small = [1_000, 16_000].map(|count| (format!("{count} small in one chunk"), small_events(count)));
    let mut rows = Vec::new();
    for (name, input) in large.iter().chain(&small) {
        let n_bytes: usize = input.iter().map(Bytes::len).sum();
        let times = decoders.map(|(_, decoder)| time(decoder, input));
        for ((decoder, _), time) in decoders.iter().zip(times) {
            #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
            let rate = n_bytes as f64 / MIB as f64 / time.as_secs_f64();
            println!("{name:>26}  {decoder:<18} {time:>12.3?} {rate:>9.1} MiB/s");
        }
        rows.push(times);
    }
    println!();
    for (index, (decoder, _)) in decoders.iter().enumerate() {
        let ratio = |later: usize, earlier: usize| {
            rows[later][index].as_secs_f64() / rows[earlier][index].as_secs_f64()
        };
        println!(
            "{decoder:<18} growth: 4 to 16 MiB {:>6.1} (linear: 4), 1 to 16 MiB {:>6.1} (linear: 16), \
             1,000 to 16,000 events {:>7.1} (linear: 16)",
            ratio(3, 1),
            ratio(3, 0),
            ratio(5, 4)
        );
    }
    let gain = rows[2][3].as_secs_f64() / rows[2][1].as_secs_f64();
    println!("8 MiB event: {gain:.0} times faster than eventsource-stream (wanted: at least 50)");
}
