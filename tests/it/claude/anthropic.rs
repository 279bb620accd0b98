//! The model behind a real Claude Code: a small endpoint on loopback that plays a [`ClaudeScript`].
//!
//! The newest user text that holds a script decides, and the number of answers since then is the step, so that the model needs no
//! memory. Requests without tools are Claude Code's own (titles and the like).

use std::{collections::HashSet, convert::Infallible, sync::Arc};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use opencode_conductor::test_util::{ClaudeScript, ClaudeStep};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};

/// A running model; dropping it closes the port.
pub(crate) struct Model {
    pub(crate) url: String,
    gates: Arc<watch::Sender<Gates>>,
    _server: JoinSet<()>,
}

#[derive(Default)]
struct Gates {
    open: HashSet<String>,
    reached: HashSet<String>,
    /// How often the first message of a script was asked for, by the prompt that holds it.
    begun: Vec<String>,
}

impl Model {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gates = Arc::new(watch::Sender::new(Gates::default()));
        let router = Router::new().route("/v1/messages", post(answer)).with_state(Arc::clone(&gates));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, gates, _server: server }
    }

    pub(crate) async fn wait_at(&self, gate: &str) {
        let mut gates = self.gates.subscribe();
        drop(gates.wait_for(|gates| gates.reached.contains(gate)).await.unwrap());
    }

    pub(crate) fn open_gate(&self, gate: &str) {
        self.gates.send_modify(|gates| {
            gates.open.insert(gate.to_owned());
        });
    }

    /// How often the first message for a prompt was asked for.
    pub(crate) fn begun(&self, prompt: &str) -> usize {
        self.gates.borrow().begun.iter().filter(|begun| begun.contains(prompt)).count()
    }
}

async fn answer(State(gates): State<Arc<watch::Sender<Gates>>>, Json(body): Json<Value>) -> Response {
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let (prompt, step) = last_script(&body);
    let script = prompt.as_deref().map(ClaudeScript::of).filter(|_| has_tools);
    let helper = vec![ClaudeStep::Text("scripted helper".to_owned())];
    let steps = script.map_or(helper, |script| {
        let all: Vec<_> = script.messages.into_iter().chain(script.after).collect();
        all.get(step.min(all.len().saturating_sub(1))).cloned().unwrap_or_default()
    });
    if has_tools && step == 0 {
        gates.send_modify(|gates| gates.begun.extend(prompt));
    }
    if let Some(ClaudeStep::Error(status, words)) = steps.first() {
        let kind = if *status == 404 { "not_found_error" } else { "invalid_request_error" };
        let error = json!({"type": "error", "error": {"type": kind, "message": words}});
        return (StatusCode::from_u16(*status).unwrap(), Json(error)).into_response();
    }
    let (sender, mut lines) = mpsc::unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |context| {
        lines.poll_recv(context).map(|line| line.map(Ok::<String, Infallible>))
    });
    #[expect(clippy::disallowed_methods, reason = "it ends with the connection")]
    tokio::spawn(play(steps, gates, sender));
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}

/// The newest user text with a script, and how many answers came after it.
fn last_script(body: &Value) -> (Option<String>, usize) {
    let mut found = (None, 0);
    for message in body["messages"].as_array().into_iter().flatten() {
        if message["role"] == "assistant" {
            found.1 += 1;
            continue;
        }
        let alone = message["content"].as_str().map(str::to_owned);
        let blocks = message["content"].as_array().into_iter().flatten();
        let texts = blocks.filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str());
        for text in texts.map(str::to_owned).chain(alone) {
            // What Claude Code tells the model about a subagent may quote its prompt.
            if text.contains("[[play ")
                && !text.contains("<task-notification>")
                && !text.contains("<system-reminder>")
            {
                found = (Some(text), 0);
            }
        }
    }
    found
}

async fn play(
    steps: Vec<ClaudeStep>,
    gates: Arc<watch::Sender<Gates>>,
    sender: mpsc::UnboundedSender<String>,
) {
    // The CLI may have gone away.
    let say = |event: Value| {
        drop(sender.send(format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())));
    };
    let id = format!("msg_{:016x}", fastrand::u64(..));
    let usage = json!({"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0});
    let calls = steps.iter().any(|step| matches!(step, ClaudeStep::Tool(_)));
    // A gate in front of everything holds back the whole answer.
    let mut steps = steps.into_iter().peekable();
    while let Some(ClaudeStep::Gate(gate)) = steps.next_if(|step| matches!(step, ClaudeStep::Gate(_))) {
        if !stand_at(&gate, &gates, &sender).await {
            return;
        }
    }
    say(json!({"type": "message_start", "message": {"id": id, "type": "message", "role": "assistant",
        "model": "claude-scripted", "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage}}));
    let mut index = 0;
    for step in steps {
        let (start, delta) = match step {
            ClaudeStep::Gate(gate) => {
                if !stand_at(&gate, &gates, &sender).await {
                    return;
                }
                continue;
            }
            ClaudeStep::Thinking(text) => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
            ClaudeStep::Text(text) => {
                (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text}))
            }
            ClaudeStep::Tool(tool) => (
                json!({"type": "tool_use", "id": format!("toolu_{:016x}", fastrand::u64(..)), "name": tool.name, "input": {}}),
                json!({"type": "input_json_delta", "partial_json": tool.input.to_string()}),
            ),
            _ => continue,
        };
        say(json!({"type": "content_block_start", "index": index, "content_block": start}));
        say(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        say(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    }
    let reason = if calls { "tool_use" } else { "end_turn" };
    say(
        json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null}, "usage": usage}),
    );
    say(json!({"type": "message_stop"}));
}

/// Waits until a gate is opened; says whether the client is still there.
async fn stand_at(gate: &str, gates: &watch::Sender<Gates>, sender: &mpsc::UnboundedSender<String>) -> bool {
    gates.send_modify(|gates| {
        gates.reached.insert(gate.to_owned());
    });
    let mut open = gates.subscribe();
    tokio::select! {
        _ = open.wait_for(|gates| gates.open.contains(gate)) => true,
        () = sender.closed() => false,
    }
}
