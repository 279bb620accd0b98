//! What folding costs, and that the cost does not grow with the conversation.
//!
//! `cargo bench --bench core` prints nanoseconds per event for conversations of 1,000 to 100,000 blocks, with and without
//! every intermediate state kept, and rates for decoding and folding logs. All comparisons are ratios of one run.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    reason = "a benchmark prints, reads the clock and divides"
)]

use std::{
    fs,
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use opencode_conductor::{
    BlockBody, BlockId, BlockOrder, BlockStatus, ConversationBlock, ConversationEvent, ConversationId,
    MessageId, Millis, SessionConversationState, SessionId, SessionTree, convert::ConvertOptions,
    reduce_session_event, wire::ServerEvent,
};
use serde_json::json;

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

fn main() {
    // `cargo bench --bench core -- logs` runs one section.
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, section) in [("reducer", reducer as fn()), ("text", long_text), ("logs", logs)] {
        if only.as_deref().is_none_or(|only| only == name) {
            section();
        }
    }
}

fn reducer() {
    println!("reducer, ns per event            {:>9} {:>9} {:>9}   ratio", "1,000", "10,000", "100,000");
    flat("delta", |state, n| deltas(state, n, Keep::Nothing));
    flat("delta, all states kept", |state, n| deltas(state, n, Keep::Everything));
    flat("new block", |state, n| upserts(state, n, Keep::Nothing));
    flat("new block, all states kept", |state, n| upserts(state, n, Keep::Everything));
}

#[derive(Clone, Copy)]
enum Keep {
    Nothing,
    Everything,
}

/// Time that this thread really ran, where the system tells (Linux): other work on the machine does not count.
struct Stopwatch {
    cpu: Option<u64>,
    wall: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Self { cpu: cpu_nanos(), wall: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        match (self.cpu, cpu_nanos()) {
            (Some(start), Some(end)) => Duration::from_nanos(end - start),
            (_, _) => self.wall.elapsed(),
        }
    }
}

fn cpu_nanos() -> Option<u64> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

/// Nanoseconds per event, over as many runs as it takes for the coarse clock to be exact enough.
fn cost(n_events: usize, mut run: impl FnMut() -> Duration) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..3 {
        let (mut total, mut n_runs) = (Duration::ZERO, 0);
        let wall = Instant::now();
        while total < Duration::from_millis(300) && wall.elapsed() < Duration::from_secs(5) {
            total += run();
            n_runs += n_events;
        }
        best = best.min(total.as_secs_f64() * 1e9 / n_runs as f64);
    }
    best
}

fn flat(name: &str, run: impl Fn(&SessionConversationState, usize) -> Duration) {
    const EVENTS: usize = 20_000;
    let costs = SIZES.map(|size| {
        let state = conversation(size);
        cost(EVENTS, || run(&state, EVENTS))
    });
    let [small, middle, large] = costs;
    println!("  {name:<30} {small:>9.0} {middle:>9.0} {large:>9.0}   {:.2}×", large / small);
}

fn text(at: usize, status: BlockStatus) -> ConversationEvent {
    let message = MessageId::new(format!("msg_{at:08}"));
    let order = BlockOrder::message(Millis::new(at as i64), message);
    let body = BlockBody::AssistantText { content: "some words".into(), model: Some("p/m".into()) };
    let mut block = ConversationBlock::new(format!("prt_{at:08}"), order, body);
    block.status = status;
    ConversationEvent::BlockUpsert { conversation_id: ConversationId::main(), block: Arc::new(block) }
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

fn deltas(state: &SessionConversationState, n: usize, keep: Keep) -> Duration {
    let block_id = BlockId::new(format!("prt_{:08}", state.blocks().len() - 1));
    let event = ConversationEvent::BlockDelta {
        conversation_id: ConversationId::main(),
        block_id,
        delta: " word".to_owned(),
    };
    fold(state, &vec![event; n], keep)
}

fn upserts(state: &SessionConversationState, n: usize, keep: Keep) -> Duration {
    let from = state.blocks().len();
    let events: Vec<_> = (from..from + n).map(|at| text(at, BlockStatus::Complete)).collect();
    fold(state, &events, keep)
}

/// Ten thousand additions to a megabyte of text, every state kept.
fn long_text() {
    let mut state = SessionConversationState::new();
    let order = BlockOrder::message(Millis::new(1), MessageId::new("msg_1"));
    let body = BlockBody::AssistantText { content: "x".repeat(1 << 20).into(), model: None };
    let block = Arc::new(ConversationBlock::new("prt_00000000", order, body));
    state.apply(&ConversationEvent::BlockUpsert { conversation_id: ConversationId::main(), block });
    let took = cost(1, || deltas(&state, 10_000, Keep::Everything));
    println!("10,000 additions to 1 MiB of text, all states kept: {:.1} ms", took / 1e6);
}

fn logs() {
    println!("decode + merge + fold, events per second");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut recorded: Vec<(SessionId, Vec<String>)> = Vec::new();
    for entry in fs::read_dir(fixtures).into_iter().flatten().flatten() {
        let Ok(log) = fs::read_to_string(entry.path().join("events.sse")) else { continue };
        let lines: Vec<String> =
            log.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect();
        let root = lines.iter().find_map(|line| {
            ServerEvent::from_json(line).ok().and_then(|event| event.payload.session_id().cloned())
        });
        recorded.extend(root.map(|root| (root, lines)));
    }
    let n_events: usize = recorded.iter().map(|(_, lines)| lines.len()).sum();
    let n_bytes: usize = recorded.iter().flat_map(|(_, lines)| lines).map(String::len).sum();
    let whole = cost(n_events, || timed(|| recorded.iter().for_each(|(root, lines)| replay(root, lines))));
    let decoding = cost(n_events, || {
        timed(|| {
            for line in recorded.iter().flat_map(|(_, lines)| lines) {
                black_box(ServerEvent::from_json(line).ok());
            }
        })
    });
    let decoded: Vec<(SessionId, Vec<ServerEvent>)> = recorded
        .iter()
        .map(|(root, lines)| {
            (root.clone(), lines.iter().filter_map(|line| ServerEvent::from_json(line).ok()).collect())
        })
        .collect();
    let folding =
        cost(n_events, || timed(|| decoded.iter().for_each(|(root, events)| fold_events(root, events))));
    println!(
        "  recorded: {} logs, {n_events} events, {:.0} bytes each   {:>9.0}   decoding alone {:.0}, the rest {:.0}",
        recorded.len(),
        n_bytes as f64 / n_events as f64,
        1e9 / whole,
        1e9 / decoding,
        1e9 / folding
    );
    let mut rates = Vec::new();
    for n_parts in [100, 1_000, 10_000] {
        let (root, lines) = generated(n_parts);
        let per_event = cost(lines.len(), || timed(|| replay(&root, &lines)));
        println!("  generated: {n_parts:>6} texts, {:>7} events {:>31.0}", lines.len(), 1e9 / per_event);
        rates.push(per_event);
    }
    println!("  largest to smallest, per event: {:.2}×", rates[2] / rates[0]);
}

fn timed(run: impl FnOnce()) -> Duration {
    let start = Stopwatch::start();
    run();
    start.elapsed()
}

fn replay(root: &SessionId, lines: &[String]) {
    let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
    let mut state = SessionConversationState::new();
    for line in lines {
        if let Ok(event) = ServerEvent::from_json(line) {
            state.extend(&tree.apply_event(&event).events);
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
        let mut push = |kind: &str, properties: serde_json::Value| {
            lines.push(json!({"id": "evt_0", "type": kind, "properties": properties}).to_string());
        };
        let mut body = json!({"id": part, "sessionID": session, "messageID": message, "type": "text", "text": "",
            "time": {"start": at}});
        push("message.updated", json!({"info": info}));
        push("message.part.updated", json!({"part": body}));
        for _ in 0..20 {
            push(
                "message.part.delta",
                json!({"sessionID": session, "messageID": message, "partID": part,
                "field": "text", "delta": "word "}),
            );
        }
        body["text"] = json!("word ".repeat(20));
        body["time"]["end"] = json!(at);
        push("message.part.updated", json!({"part": body}));
        info["time"]["completed"] = json!(at);
        push("message.updated", json!({"info": info}));
    }
    (SessionId::new(session), lines)
}
