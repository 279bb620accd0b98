//! The model behind a real Claude Code: a small endpoint of Anthropic's messages on loopback that plays a [`Script`].
//!
//! Answers come from the newest user message that holds a script; the step is the number of answers after it, so the model needs no
//! memory but of how often a step failed.

#![allow(dead_code, reason = "each target that includes this module uses its own part of it")]
#![expect(clippy::expect_used, reason = "a broken test rig should stop the test")]

use std::{collections::BTreeMap, convert::Infallible, io, time::Duration};

use axum::{
    body::{Body, Bytes, to_bytes},
    response::Response,
};
use futures_util::{StreamExt, stream};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use opencode_conductor::test_util::{ProviderError, Script, Step};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// A running model; dropping it closes the port and every connection.
pub(crate) struct AnthropicModel {
    base_url: String,
    state: watch::Sender<State>,
    _server: JoinSet<()>,
}

#[derive(Default)]
struct State {
    /// The prompt that drove each call, and its step.
    calls: Vec<(String, usize)>,
    /// How often a step has failed, by prompt and step.
    failures: BTreeMap<(String, usize), u32>,
}

impl AnthropicModel {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bind the model's port");
        let port = listener.local_addr().expect("the model's address").port();
        let state = watch::Sender::new(State::default());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, state.clone()));
        Self { base_url: format!("http://127.0.0.1:{port}"), state, _server: server }
    }

    /// What `ANTHROPIC_BASE_URL` should be.
    pub(crate) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// The prompt that drove each call, and its step.
    pub(crate) fn calls(&self) -> Vec<(String, usize)> {
        self.state.borrow().calls.clone()
    }

    /// How often the first step of a prompt that contains `words` was asked for.
    pub(crate) fn runs_of(&self, words: &str) -> usize {
        let state = self.state.borrow();
        state.calls.iter().filter(|(prompt, step)| *step == 0 && prompt.contains(words)).count()
    }

    /// Waits until the first step of prompts that contain `words` was asked for `n` times.
    pub(crate) async fn wait_for_runs(&self, words: &str, n: usize) {
        let mut changes = self.state.subscribe();
        while self.runs_of(words) < n {
            changes.changed().await.expect("the model holds its own state");
        }
    }
}

async fn serve(listener: TcpListener, state: watch::Sender<State>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let state = state.clone();
        let service = service_fn(move |request| {
            let state = state.clone();
            async move { Ok::<_, Infallible>(answer(request, &state).await) }
        });
        connections.spawn(async move {
            // An error here is a client that went away, or a connection that a script cut.
            drop(http1::Builder::new().serve_connection(TokioIo::new(socket), service).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>, state: &watch::Sender<State>) -> Response {
    let path = request.uri().path().to_owned();
    let body = to_bytes(Body::new(request.into_body()), usize::MAX).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if path.ends_with("/count_tokens") {
        return whole(200, &json!({"input_tokens": 100}));
    }
    if !path.ends_with("/v1/messages") {
        return whole(404, &json!({"type": "error", "error": {"type": "not_found_error", "message": path}}));
    }
    let (prompt, step_number, script) = driver(&body);
    let is_helper = body["tools"].as_array().is_none_or(Vec::is_empty);
    let step = match script {
        Some(script) if !is_helper => script.steps.get(step_number).cloned(),
        _ => Some(Step::text("Hello from the scripted model.")),
    };
    let step = step.unwrap_or_else(|| Step::text("(script over) done."));
    let mut number = 0;
    let mut fails = false;
    state.send_modify(|state| {
        number = state.calls.len();
        state.calls.push((prompt.clone(), step_number));
        if let Some(error) = &step.error {
            let failures = state.failures.entry((prompt.clone(), step_number)).or_default();
            *failures += 1;
            fails = error.times == 0 || *failures <= error.times;
        }
    });
    tokio::time::sleep(Duration::from_millis(step.before_ms)).await;
    match step.error.as_ref().filter(|_| fails) {
        Some(error) if error.status != 200 => failed(error),
        error => streamed(&step, number, body["model"].as_str().unwrap_or("model"), error.is_some()),
    }
}

/// The newest user text with a script, the number of answers after it, and the script.
fn driver(body: &Value) -> (String, usize, Option<Script>) {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter(|block| block["type"] == "text");
            texts.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    let users = messages.iter().enumerate().filter(|(_, message)| message["role"] == "user");
    let driver = users
        .map(|(index, message)| (index, text(message)))
        .filter_map(|(index, text)| Some((index, Script::find(&text)?, text)))
        .next_back();
    let Some((index, script, prompt)) = driver else { return (String::new(), 0, None) };
    let roles = messages[index..].iter().map(|message| message["role"] == "assistant").collect::<Vec<_>>();
    let answers = roles.windows(2).filter(|pair| !pair[0] && pair[1]).count();
    (prompt, answers, Some(script))
}

fn whole(status: u16, body: &Value) -> Response {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Body::from(body.to_string())).expect("a valid answer")
}

fn failed(error: &ProviderError) -> Response {
    let kind = match error.status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let body = json!({"type": "error", "error": {"type": kind, "message": format!("scripted error {}", error.status)}});
    whole(error.status, error.body.as_ref().unwrap_or(&body))
}

/// The events of an answer; one that is cut has no end.
fn streamed(step: &Step, number: usize, model: &str, is_cut: bool) -> Response {
    let mut events = vec![json!({"type": "message_start", "message": {
        "id": format!("msg_{number:04}"), "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 10, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": 1},
    }})];
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        for delta in deltas {
            events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        events.push(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    let words = |text: &str| text.split_inclusive(' ').map(str::to_owned).collect::<Vec<_>>();
    if !step.reasoning.is_empty() {
        let mut deltas: Vec<_> = words(&step.reasoning)
            .into_iter()
            .map(|word| json!({"type": "thinking_delta", "thinking": word}))
            .collect();
        deltas.push(json!({"type": "signature_delta", "signature": "c2lnbmF0dXJl"}));
        block(json!({"type": "thinking", "thinking": "", "signature": ""}), deltas);
    }
    let mut text = words(&step.text);
    text.extend((0..step.words).map(|number| format!("w{number} ")));
    if !text.is_empty() {
        let deltas = text.into_iter().map(|word| json!({"type": "text_delta", "text": word}));
        block(json!({"type": "text", "text": ""}), deltas.collect());
    }
    for (call, tool) in step.tools.iter().enumerate() {
        let id = tool.id.clone().unwrap_or_else(|| format!("toolu_{number:04}_{call}"));
        let input = json!({"type": "input_json_delta", "partial_json": tool.args.to_string()});
        block(json!({"type": "tool_use", "id": id, "name": tool.name, "input": {}}), vec![input]);
    }
    let is_cut = is_cut || step.drop;
    if is_cut {
        events.pop();
    } else {
        let reason = if step.tools.is_empty() { "end_turn" } else { "tool_use" };
        let reason = step.finish.as_deref().unwrap_or(reason);
        events.push(json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null}, "usage": {"output_tokens": 40 + number}}));
        events.push(json!({"type": "message_stop"}));
    }
    let pause = Duration::from_millis(step.chunk_ms);
    let events = events.into_iter().map(|event| {
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        Ok(Bytes::from(format!("event: {kind}\ndata: {event}\n\n")))
    });
    let end = is_cut.then(|| Err(io::Error::other("the connection is cut")));
    let body = stream::iter(events.chain(end)).then(move |event| async move {
        tokio::time::sleep(pause).await;
        event
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::from_stream(body)).expect("a valid streaming response")
}
