//! What the core costs, and that the cost does not grow with the conversation: `cargo bench --bench core`.
//!
//! `-- --quick` gives rougher figures in less time, `-- --json` gives JSON, and `-- logs` only one section. Comparisons are
//! ratios of one run.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints and reads the clock"
)]
#![expect(clippy::cast_precision_loss, clippy::cast_possible_wrap, reason = "figures need not be exact")]
#![expect(clippy::expect_used, reason = "a benchmark of broken input is worth nothing")]

mod figures;

use std::{fs, hint::black_box, path::Path, sync::Arc, time::Duration};

use opencode_conductor::{
    Architecture, BlockBody, BlockId, BlockOrder, BlockStatus, ConversationBlock, ConversationEvent,
    ConversationId, ConvertOptions, MessageId, Millis, SessionConversationState, SessionId, SessionTree,
    message_signature, parse_claude, parse_claude_stream, parse_transcript, reduce_session_event,
    wire::{Message, ServerEvent},
};
use serde_json::{Value, json};

use crate::figures::{Settings, Stopwatch, Table, compared, seconds, timed};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
/// Changes per run.
const CHANGES: usize = 20_000;

fn main() {
    type Section = fn(&Settings) -> Table;
    let Some(settings) = Settings::from_args() else { return };
    let sections: [(&str, Section); 6] = [
        ("reducer", reducer),
        ("text", long_text),
        ("logs", logs),
        ("growth", growth),
        ("documents", documents),
        ("claude", claude),
    ];
    let wanted = sections.into_iter().filter(|(name, _)| settings.wants(name));
    settings.print(&wanted.map(|(_, section)| section(&settings)).collect::<Vec<_>>());
}

#[derive(Clone, Copy)]
enum Keep {
    Nothing,
    Everything,
}

fn reducer(settings: &Settings) -> Table {
    type Run = fn(&SessionConversationState, Keep) -> Duration;
    let mut table = Table::new("Fold, by blocks there are", "ns per event", &["1,000", "10,000", "100,000"]);
    let [small, middle, large] = SIZES.map(conversation);
    for (name, run) in [("delta", deltas as Run), ("new block", upserts)] {
        for (kept, keep) in [("", Keep::Nothing), (", all states kept", Keep::Everything)] {
            let took =
                compared(settings, [&|| run(&small, keep), &|| run(&middle, keep), &|| run(&large, keep)]);
            table.row(format!("{name}{kept}"), took.map(|seconds| seconds * 1e9 / CHANGES as f64));
        }
    }
    table
}

fn text(at: usize, status: BlockStatus) -> ConversationEvent {
    let message = MessageId::new(format!("msg_{at:08}"));
    let order = BlockOrder::message(Millis::new(at as i64), message);
    let body = BlockBody::assistant_text("some words");
    let mut block = ConversationBlock::new(format!("prt_{at:08}"), order, body);
    block.status = status;
    ConversationEvent::block_upsert(ConversationId::main(), block)
}

fn conversation(n_blocks: usize) -> SessionConversationState {
    let mut state = SessionConversationState::new();
    for at in 0..n_blocks {
        let status = if at + 1 == n_blocks { BlockStatus::Pending } else { BlockStatus::Complete };
        state.apply(&text(at, status));
    }
    state
}

fn fold(state: &SessionConversationState, events: &[ConversationEvent], keep: Keep) -> Duration {
    match keep {
        Keep::Nothing => {
            let mut state = state.clone();
            // The first change copies what is shared with the original.
            state.apply(&events[0]);
            let start = Stopwatch::start();
            for event in events {
                state.apply(event);
            }
            let took = start.elapsed();
            black_box(state);
            took
        }
        Keep::Everything => {
            let mut states = Vec::with_capacity(events.len() + 1);
            states.push(state.clone());
            let start = Stopwatch::start();
            for event in events {
                let next = reduce_session_event(&states[states.len() - 1], event);
                states.push(next);
            }
            let took = start.elapsed();
            black_box(states);
            took
        }
    }
}

fn deltas(state: &SessionConversationState, keep: Keep) -> Duration {
    let block_id = BlockId::new(format!("prt_{:08}", state.blocks().len() - 1));
    let event = ConversationEvent::block_delta(ConversationId::main(), block_id, " word");
    fold(state, &vec![event; CHANGES], keep)
}

fn upserts(state: &SessionConversationState, keep: Keep) -> Duration {
    let from = state.blocks().len();
    let events: Vec<_> = (from..from + CHANGES).map(|at| text(at, BlockStatus::Complete)).collect();
    fold(state, &events, keep)
}

/// Additions to a megabyte of text, every state kept.
fn long_text(settings: &Settings) -> Table {
    let mut state = SessionConversationState::new();
    let order = BlockOrder::message(Millis::new(1), MessageId::new("msg_1"));
    let body = BlockBody::assistant_text("x".repeat(1 << 20));
    let block = Arc::new(ConversationBlock::new("prt_00000000", order, body));
    state.apply(&ConversationEvent::block_upsert(ConversationId::main(), block));
    let mut table = Table::new("Fold into one long text, all states kept", "ns per event", &["1 MiB"]);
    table.row("delta", [seconds(settings, || deltas(&state, Keep::Everything)) * 1e9 / CHANGES as f64]);
    table
}

fn logs(settings: &Settings) -> Table {
    let mut recorded: Vec<(SessionId, Vec<String>)> = Vec::new();
    for directory in fixtures() {
        let Ok(log) = fs::read_to_string(directory.join("events.sse")) else { continue };
        let lines: Vec<String> =
            log.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect();
        let root = lines.iter().find_map(|line| {
            ServerEvent::from_json(line).ok().and_then(|event| event.payload.session_id().cloned())
        });
        recorded.extend(root.map(|root| (root, lines)));
    }
    let decode = |lines: &[String]| -> Vec<ServerEvent> {
        lines.iter().filter_map(|line| ServerEvent::from_json(line).ok()).collect()
    };
    let decoded: Vec<_> = recorded.iter().map(|(root, lines)| (root.clone(), decode(lines))).collect();
    let n_events: usize = recorded.iter().map(|(_, lines)| lines.len()).sum();
    let n_bytes: usize = recorded.iter().flat_map(|(_, lines)| lines).map(String::len).sum();
    let lines = || recorded.iter().flat_map(|(_, lines)| lines);
    let all = || recorded.iter().for_each(|(root, lines)| replay(root, lines));
    let events = || lines().for_each(|line| drop(black_box(ServerEvent::from_json(line))));
    let values = || lines().for_each(|line| drop(black_box(serde_json::from_str::<Value>(line))));
    let merge = || decoded.iter().for_each(|(root, events)| fold_events(root, events));
    let names = [
        "decode + merge + fold",
        "decode alone",
        "(serde_json into Value, for comparison)",
        "merge + fold alone",
    ];
    let took = compared(settings, [&|| timed(all), &|| timed(events), &|| timed(values), &|| timed(merge)]);
    let mut table = Table::new("All recordings, each on its own", "events per second", &["recordings"]);
    for (name, seconds) in names.into_iter().zip(took) {
        table.row(name, [n_events as f64 / seconds]);
    }
    table.row("(recordings)", [recorded.len() as f64]);
    table.row("(bytes per event)", [n_bytes as f64 / n_events as f64]);
    table
}

/// Claude Code's lines, by how many there are; the recordings as they are.
fn claude(settings: &Settings) -> Table {
    let of = |directory: &Path, name: &str| fs::read(directory.join(name)).ok();
    let directories: Vec<_> = fixtures().filter(|path| path.ends_with("claude")).collect();
    let directories = directories.iter().filter_map(|path| fs::read_dir(path).ok()).flatten().flatten();
    let directories: Vec<_> = directories.map(|entry| entry.path()).collect();
    let streams: Vec<_> = directories.iter().filter_map(|path| of(path, "stream-1.jsonl")).collect();
    let files: Vec<_> = directories.iter().filter_map(|path| of(path, "transcript.jsonl")).collect();
    let generated: Vec<_> = SIZES.map(claude_stream).into_iter().map(|stream| vec![stream]).collect();
    let rate = |documents: &[Vec<u8>], load: fn(&[u8])| {
        let lines: usize = documents.iter().flatten().filter(|byte| **byte == b'\n').count();
        lines as f64 / seconds(settings, || timed(|| documents.iter().for_each(|document| load(document))))
    };
    let stream = |text: &[u8]| drop(black_box(parse_claude_stream(text, ConvertOptions::default(), |_| {})));
    let file = |text: &[u8]| drop(black_box(parse_claude(text, &[], ConvertOptions::default(), |_| {})));
    let columns = ["recordings", "1,000", "10,000", "100,000"];
    let mut table = Table::new("Claude Code: decode + merge + fold", "lines per second", &columns);
    let streamed = [&streams, &generated[0], &generated[1], &generated[2]];
    table.row("stream", streamed.map(|documents| rate(documents, stream)));
    table.row("transcripts, recorded", [rate(&files, file)]);
    table
}

/// A stream of this many lines: messages of ten words each.
fn claude_stream(n_lines: usize) -> Vec<u8> {
    let mut lines = Vec::new();
    let partial = |event: &Value| {
        // In the order in which they are written.
        format!(
            r#"{{"type":"stream_event","event":{event},"session_id":"s","parent_tool_use_id":null,"uuid":"u"}}"#
        )
    };
    for message in 0.. {
        let id = format!("msg_{message:08}");
        let moment = format!(
            "2026-01-01T{:02}:{:02}:{:02}.000Z",
            message / 3600 % 24,
            message / 60 % 60,
            message % 60
        );
        let usage = json!({"input_tokens": 10, "output_tokens": 1});
        let body = json!({"id": id, "model": "m", "content": [], "usage": usage});
        lines.push(partial(&json!({"type": "message_start", "message": body})));
        lines.push(partial(&json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})));
        for word in 0..10 {
            let event = format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"word {word} "}}}}"#
            );
            lines.push(format!(
                r#"{{"type":"stream_event","event":{event},"session_id":"s","parent_tool_use_id":null,"uuid":"u"}}"#
            ));
        }
        let content = json!([{"type": "text", "text": "word ".repeat(10)}]);
        let body = json!({"id": id, "model": "m", "content": content, "usage": usage});
        lines.push(
            json!({"type": "assistant", "message": body, "uuid": format!("a{message:08}"), "timestamp": moment}).to_string(),
        );
        lines.push(partial(&json!({"type": "content_block_stop", "index": 0})));
        lines.push(partial(&json!({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9}})));
        lines.push(partial(&json!({"type": "message_stop"})));
        if lines.len() >= n_lines {
            break;
        }
    }
    (lines.join("\n") + "\n").into_bytes()
}

fn fixtures() -> impl Iterator<Item = std::path::PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    fs::read_dir(fixtures).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn growth(settings: &Settings) -> Table {
    let mut table =
        Table::new("One session, by streamed texts", "events per second", &["100", "1,000", "10,000"]);
    let rate = |n_texts| {
        let (root, lines) = generated(n_texts);
        lines.len() as f64 / seconds(settings, || timed(|| replay(&root, &lines)))
    };
    table.row("decode + merge + fold", [100, 1_000, 10_000].map(rate));
    table
}

/// Whole documents: lists of messages, and states.
fn documents(settings: &Settings) -> Table {
    let columns = ["100", "1,000", "10,000"];
    let mut table = Table::new("Documents, by messages", "messages per second", &columns);
    let mut figures: [Vec<f64>; 4] = Default::default();
    for n_messages in [100, 1_000, 10_000] {
        let list = list(n_messages);
        let messages: Vec<Message> = serde_json::from_str(&list).expect("a list");
        let load = || parse_transcript(Architecture::OpenCode, &list).expect("a transcript");
        let state = load().state;
        let stored = serde_json::to_string(&state).expect("states are JSON");
        let mut measure = |index: usize, run: &dyn Fn()| {
            let figures: &mut Vec<f64> = &mut figures[index];
            figures.push(n_messages as f64 / seconds(settings, || timed(run)));
        };
        measure(0, &|| drop(black_box(load())));
        measure(1, &|| drop(black_box(messages.iter().map(message_signature).collect::<Vec<_>>())));
        measure(2, &|| drop(black_box(serde_json::to_string(&state))));
        measure(3, &|| drop(black_box(serde_json::from_str::<SessionConversationState>(&stored))));
    }
    for (name, figures) in
        ["load a transcript", "signatures", "write a state", "read a state"].into_iter().zip(figures)
    {
        table.row(name, figures);
    }
    table
}

/// A message list: prompts, and answers that call a tool and say something.
fn list(n_messages: usize) -> String {
    let message = |at: usize| {
        let id = format!("msg_{at:08}");
        let part = |n: usize, mut body: Value| {
            body["id"] = json!(format!("prt_{at:08}{n}"));
            body["sessionID"] = json!("ses_1");
            body["messageID"] = json!(id);
            body
        };
        let text = part(
            0,
            json!({"type": "text", "text": "some words ".repeat(20), "time": {"start": at, "end": at}}),
        );
        if at.is_multiple_of(2) {
            let info = json!({"id": id, "sessionID": "ses_1", "role": "user", "time": {"created": at}});
            return json!({"info": info, "parts": [text]});
        }
        let state = json!({"status": "completed", "input": {"command": "ls"}, "output": "a\nb\n".repeat(50),
            "title": "ls", "metadata": {}, "time": {"start": at, "end": at}});
        let tool =
            part(1, json!({"type": "tool", "callID": format!("call_{at}"), "tool": "bash", "state": state}));
        let info = json!({"id": id, "sessionID": "ses_1", "role": "assistant",
            "time": {"created": at, "completed": at}, "modelID": "m", "providerID": "p", "cost": 0.1, "finish": "stop",
            "tokens": {"input": 10, "output": 10, "reasoning": 0, "cache": {"read": 0, "write": 0}}});
        json!({"info": info, "parts": [tool, text]})
    };
    Value::from((0..n_messages).map(message).collect::<Vec<_>>()).to_string()
}

fn replay(root: &SessionId, lines: &[String]) {
    let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
    let mut state = SessionConversationState::new();
    for line in lines {
        if let Ok(event) = ServerEvent::from_json(line) {
            state.extend(&tree.apply_event(event).events);
        }
    }
    black_box(state);
}

fn fold_events(root: &SessionId, events: &[ServerEvent]) {
    let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
    let mut state = SessionConversationState::new();
    for event in events {
        state.extend(&tree.apply_event(event).events);
    }
    black_box(state);
}

/// A session of one text per step, each streamed in twenty deltas.
fn generated(n_parts: usize) -> (SessionId, Vec<String>) {
    let session = "ses_1";
    let mut lines = Vec::new();
    for at in 0..n_parts {
        let (message, part) = (format!("msg_{at:08}"), format!("prt_{at:08}"));
        let mut info = json!({"id": message, "sessionID": session, "role": "assistant", "time": {"created": at},
            "modelID": "m", "providerID": "p", "cost": 0, "tokens": {"input": 1, "output": 1}});
        // With the fields in the server's order, which a value of serde_json does not keep.
        let mut push = |kind: &str, properties: &str| {
            lines.push(format!(r#"{{"id":"evt_0","type":"{kind}","properties":{properties}}}"#));
        };
        let mut body = json!({"id": part, "sessionID": session, "messageID": message, "type": "text", "text": "",
            "time": {"start": at}});
        let whose = format!(r#""sessionID":"{session}""#);
        push("message.updated", &format!(r#"{{{whose},"info":{info}}}"#));
        push("message.part.updated", &format!(r#"{{{whose},"part":{body}}}"#));
        let delta = format!(
            r#"{{{whose},"messageID":"{message}","partID":"{part}","field":"text","delta":"word "}}"#
        );
        for _ in 0..20 {
            push("message.part.delta", &delta);
        }
        body["text"] = json!("word ".repeat(20));
        body["time"]["end"] = json!(at);
        push("message.part.updated", &format!(r#"{{{whose},"part":{body}}}"#));
        info["time"]["completed"] = json!(at);
        push("message.updated", &format!(r#"{{{whose},"info":{info}}}"#));
    }
    (SessionId::new(session), lines)
}
