//! The fuzz targets on stable Rust: every recording, every input that once broke one, and mutations of both.
//!
//! The seeds are made from the recordings, so there is no second copy of them to keep. With `FUZZ_CORPUS` set, they are also
//! written there, a directory for each target, for cargo-fuzz to start from.

use std::{
    collections::HashSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use opencode_conductor::wire::ServerEvent;
use serde_json::Value;

use crate::{
    claude_parity::{Recording, recordings},
    fixtures_parity::{Fixture, fixtures},
};

#[path = "../../fuzz/bodies.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets reach it")]
mod bodies;

/// How many mutations of each seed are tried: more where they cost less.
const MUTATIONS: usize = if cfg!(debug_assertions) { 2 } else { 32 };

/// Seeds longer than this are replayed, but not mutated: it would take too long without optimisation.
const SMALL: usize = 20_000;

fn check(target: &str, body: fn(&[u8]), seeds: &[Vec<u8>]) {
    assert!(seeds.len() > 20, "only {} seeds", seeds.len());
    if let Some(corpus) = std::env::var_os("FUZZ_CORPUS") {
        let dir = Path::new(&corpus).join(target);
        fs::create_dir_all(&dir).unwrap();
        for (index, seed) in seeds.iter().enumerate() {
            fs::write(dir.join(format!("recorded-{index:04}")), seed).unwrap();
        }
    }
    let regressions = regressions(target);
    let mut dice = fastrand::Rng::with_seed(1);
    for (name, seed) in seeds
        .iter()
        .map(|seed| ("a recording", seed))
        .chain(regressions.iter().map(|(name, seed)| (name.as_str(), seed)))
    {
        run(target, body, name, seed);
        if seed.len() <= SMALL {
            for _ in 0..MUTATIONS {
                run(target, body, name, &mutated(seed, &mut dice));
            }
        }
    }
}

/// Shows the input that breaks the body, in a form that can be kept.
fn run(target: &str, body: fn(&[u8]), name: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(input))) {
        let text = input.escape_ascii();
        let why = panic.downcast_ref::<String>().map_or("it panics", String::as_str);
        panic!(
            "{target} breaks on {name}: {why}\nkeep it, or a mutation of it, in fuzz/regressions/{target}:\n{text}"
        );
    }
}

/// The inputs that once broke a target.
fn regressions(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/regressions").join(target);
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

/// Cut off, or with a piece removed, repeated, moved or overwritten.
fn mutated(seed: &[u8], dice: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..dice.usize(1..4) {
        if bytes.is_empty() {
            break;
        }
        let from = dice.usize(..bytes.len());
        let to = (from + 1 + dice.usize(..64)).min(bytes.len());
        let piece = bytes[from..to].to_vec();
        match dice.u8(..5) {
            0 => bytes.truncate(from),
            1 => drop(bytes.drain(from..to)),
            2 => drop(bytes.splice(from..from, piece)),
            3 => {
                let at = dice.usize(..=bytes.len());
                drop(bytes.splice(at..at, piece));
            }
            _ => bytes[from] = *dice.choice(b"\0\x80 \n\r\"\\{}[],:-019etn").unwrap(),
        }
    }
    bytes
}

/// The JSON of each event.
fn events(fixture: &Fixture) -> impl Iterator<Item = &str> {
    fixture.events.lines().filter_map(|line| line.strip_prefix("data: "))
}

/// The names and types in a document: two of the same shape teach a fuzzer nothing.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            // The kinds of things are told by words.
            let word = |name: &str| matches!(name, "type" | "status" | "role" | "tool");
            let field = |(name, value): (&String, &Value)| match value {
                Value::String(text) if word(name) => format!("{name}={text}"),
                value => format!("{name}:{}", shape(value)),
            };
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!("[{}]", items.first().map(shape).unwrap_or_default()),
        Value::String(_) => "s".to_owned(),
        Value::Number(_) => "n".to_owned(),
        Value::Bool(_) => "b".to_owned(),
        Value::Null => "0".to_owned(),
    }
}

fn one_of_each_shape(documents: impl Iterator<Item = Value>) -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    documents
        .filter(|document| seen.insert(shape(document)))
        .map(|document| document.to_string().into_bytes())
        .collect()
}

#[cfg(feature = "client")]
#[test]
fn sse_decoding_does_not_depend_on_the_chunks() {
    let seed = |(index, fixture): (usize, &Fixture)| {
        let from = index * 300 % fixture.events.len();
        let mut bytes = vec![u8::try_from(index % 20).unwrap(), u8::try_from(index).unwrap()];
        bytes.extend(fixture.events.bytes().skip(from).take(3000));
        bytes
    };
    let seeds: Vec<Vec<u8>> = fixtures().iter().enumerate().map(seed).collect();
    check("sse", bodies::sse, &seeds);
}

#[test]
fn any_event_is_decoded_alike_in_any_spelling() {
    let fixtures = fixtures();
    let events = fixtures.iter().flat_map(events).map(|event| serde_json::from_str(event).unwrap());
    check("event", bodies::event, &one_of_each_shape(events));
}

#[test]
fn any_message_list_is_written_as_it_was_read() {
    let fixtures = fixtures();
    let lists = fixtures.iter().flat_map(|fixture| &fixture.lists);
    let lists = lists.map(|list| serde_json::from_str::<Value>(list).unwrap());
    let alone = lists.clone().flat_map(|list| match list {
        Value::Array(messages) => messages,
        other => vec![other],
    });
    let mut seeds = one_of_each_shape(alone.map(|message| Value::Array(vec![message])));
    seeds.extend(lists.map(|list| list.to_string().into_bytes()));
    check("messages", bodies::messages, &seeds);
}

#[test]
fn any_transcript_is_loaded_twice_alike() {
    let documents = fixtures().into_iter().flat_map(|Fixture { events, lists, export, .. }| {
        lists.into_iter().chain([events]).chain(export).map(String::into_bytes)
    });
    check("transcript", bodies::transcript, &documents.collect::<Vec<_>>());
}

#[test]
fn any_observation_can_be_repeated_and_stored() {
    let seed = |fixture: &Fixture| {
        let one_line = |list: &String| serde_json::from_str::<Value>(list).unwrap().to_string();
        let lists = fixture.lists.iter().map(one_line);
        let events = events(fixture).filter(|event| ServerEvent::from_json(event).is_ok()).map(str::to_owned);
        let root = fixture.sessions[0].id.to_string();
        [root].into_iter().chain(events).chain(lists).collect::<Vec<_>>().join("\n").into_bytes()
    };
    check("fold", bodies::fold, &fixtures().iter().map(seed).collect::<Vec<_>>());
}

/// All lines of a recording of Claude Code.
fn claude_lines(recording: &Recording) -> impl Iterator<Item = &[u8]> {
    let files = recording.subagents.iter().map(|(_, file, _)| file);
    let documents = [&recording.stream, &recording.main].into_iter().chain(files);
    documents.flat_map(|text| text.split(|byte| *byte == b'\n')).filter(|line| !line.is_empty())
}

#[test]
fn any_line_of_claude_code_is_read_and_shown() {
    let recordings = recordings();
    let lines = recordings.iter().flat_map(claude_lines).map(|line| serde_json::from_slice(line).unwrap());
    check("claude_line", bodies::claude_line, &one_of_each_shape(lines));
}

#[test]
fn any_session_of_claude_code_is_folded_and_stored() {
    let seed = |recording: &Recording| claude_lines(recording).collect::<Vec<_>>().join(&b'\n');
    check("claude_session", bodies::claude_session, &recordings().iter().map(seed).collect::<Vec<_>>());
}
