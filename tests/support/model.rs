//! The model behind real `OpenCode` servers: a small OpenAI-compatible endpoint on loopback that plays a [`Script`].
//!
//! `OpenCode` calls a model for three purposes, and a request says which only by its content: answering (it offers
//! tools), titling a session and compacting one (neither offers tools). Answers come from the newest user message
//! that holds a script; the step is the number of assistant messages after it, so the model needs no memory, and user
//! messages that the server adds by itself (tool images, "continue" after a compaction) do not derail a script.

#![allow(dead_code, reason = "each target that includes this module uses its own part of it")]
#![expect(clippy::expect_used, reason = "a broken test rig should stop the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

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

/// A running scripted model; dropping it closes the port and every connection.
pub(crate) struct ScriptedModel {
    base_url: String,
    state: watch::Sender<State>,
    _server: JoinSet<()>,
}

/// One request to the model, in order of arrival.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelCall {
    pub(crate) kind: CallKind,
    /// Which step of the script was played; 0 without a script.
    pub(crate) step: usize,
    /// The user message that drives: the newest with a script, else the newest.
    pub(crate) prompt: String,
    /// The newest user message.
    pub(crate) last_user: String,
}

/// What the server wanted from the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Chat,
    Title,
    /// Old servers also have each user message summarised; that counts as this, too.
    Compaction,
}

#[derive(Default)]
struct State {
    calls: Vec<ModelCall>,
    open_gates: BTreeSet<String>,
    compaction: Option<Step>,
    /// How often a step with a limited number of failures has failed, by session, prompt and step.
    failures: BTreeMap<(String, String, usize), u32>,
}

impl ScriptedModel {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bind the model's port");
        let port = listener.local_addr().expect("the model's address").port();
        let state = watch::Sender::new(State::default());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, state.clone()));
        Self { base_url: format!("http://127.0.0.1:{port}/v1"), state, _server: server }
    }

    /// What a provider's `baseURL` should be.
    pub(crate) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Lets everything pass that waits, or ever will wait, at the named gate.
    pub(crate) fn open_gate(&self, name: &str) {
        self.state.send_modify(|state| {
            state.open_gates.insert(name.to_owned());
        });
    }

    /// Answers compaction requests with this step from now on.
    pub(crate) fn set_compaction(&self, step: Step) {
        self.state.send_modify(|state| state.compaction = Some(step));
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<ModelCall> {
        self.state.borrow().calls.clone()
    }

    /// How often the first step of a prompt that contains `words` was asked for.
    pub(crate) fn runs_of(&self, words: &str) -> usize {
        self.state.borrow().runs_of(words)
    }

    /// Waits until the first step of prompts that contain `words` was asked for `n` times.
    pub(crate) async fn wait_for_runs(&self, words: &str, n: usize) {
        self.state
            .subscribe()
            .wait_for(|state| state.runs_of(words) >= n)
            .await
            .expect("the model holds its own state");
    }

    /// Waits until `n` chat calls have arrived in all; a gated one counts as soon as it arrives.
    pub(crate) async fn wait_for_calls(&self, n: usize) {
        let chats = |state: &State| state.calls.iter().filter(|call| call.kind == CallKind::Chat).count();
        self.state
            .subscribe()
            .wait_for(|state| chats(state) >= n)
            .await
            .expect("the model holds its own state");
    }
}

impl State {
    fn runs_of(&self, words: &str) -> usize {
        let is_run =
            |call: &&ModelCall| call.kind == CallKind::Chat && call.step == 0 && call.prompt.contains(words);
        self.calls.iter().filter(is_run).count()
    }
}

async fn serve(listener: TcpListener, state: watch::Sender<State>) {
    // Connections live in the set, so that they end together with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            continue;
        };
        let state = state.clone();
        let service = service_fn(move |request| {
            let state = state.clone();
            async move { Ok::<_, Infallible>(answer(request, &state).await) }
        });
        connections.spawn(async move {
            // An error here is a client that went away, which scripts do on purpose.
            drop(http1::Builder::new().serve_connection(TokioIo::new(socket), service).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>, state: &watch::Sender<State>) -> Response {
    // Newer servers name the session; without a name, equal prompts share their failures.
    let session = request
        .headers()
        .get("x-session-affinity")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let body = to_bytes(Body::new(request.into_body()), usize::MAX).await.unwrap_or_default();
    let (call, script) = read_request(&serde_json::from_slice(&body).unwrap_or_default());
    let step = match call.kind {
        CallKind::Chat => pick_step(script, call.step),
        CallKind::Title => Step::text("A generated title"),
        CallKind::Compaction => state
            .borrow()
            .compaction
            .clone()
            .unwrap_or_else(|| Step::text("SUMMARY: the conversation so far.")),
    };
    let mut call_number = 0;
    state.send_modify(|state| {
        call_number = state.calls.len();
        state.calls.push(call.clone());
    });

    tokio::time::sleep(Duration::from_millis(step.before_ms)).await;
    if let Some(gate) = &step.gate_before {
        wait_at_gate(state, gate).await;
    }
    let error = step.error.as_ref().filter(|error| {
        let mut fails = error.times == 0;
        state.send_modify(|state| {
            let failures = state.failures.entry((session, call.prompt, call.step)).or_default();
            *failures += 1;
            fails |= *failures <= error.times;
        });
        fails
    });
    match error {
        Some(error) if error.status != 200 => error_response(error),
        _ => stream_response(&step, error, call_number, state),
    }
}

/// Finds out what the request is for and which script drives it.
fn read_request(body: &Value) -> (ModelCall, Option<Script>) {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is = |message: &Value, role: &str| message["role"] == role;
    let users: Vec<(usize, String)> = messages
        .iter()
        .enumerate()
        .filter(|(_, message)| is(message, "user"))
        .map(|(index, message)| (index, text_of(&message["content"])))
        .collect();
    let last_user = users.last().map(|(_, text)| text.clone()).unwrap_or_default();
    let offers_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let kind = if offers_tools {
        CallKind::Chat
    } else if users.iter().any(|(_, text)| text.contains("Generate a title")) {
        CallKind::Title
    } else if messages
        .iter()
        .any(|message| is(message, "system") && text_of(&message["content"]).contains("summariz"))
        || last_user.to_lowercase().contains("summary")
    {
        CallKind::Compaction
    } else {
        CallKind::Chat
    };
    let driver = users.iter().rev().find_map(|(index, text)| Some((*index, text, Script::find(text)?)));
    match driver {
        Some((index, prompt, script)) => {
            let step = messages[index..].iter().filter(|message| is(message, "assistant")).count();
            (ModelCall { kind, step, prompt: prompt.clone(), last_user }, Some(script))
        }
        None => (ModelCall { kind, step: 0, prompt: last_user.clone(), last_user }, None),
    }
}

/// A message's content is a string or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn pick_step(script: Option<Script>, index: usize) -> Step {
    let Some(script) = script else {
        let mut step = Step::text("Hello from the scripted model.");
        "thinking hard about it".clone_into(&mut step.reasoning);
        return step;
    };
    let last = script.steps.last().filter(|_| script.repeat_last);
    script.steps.get(index).or(last).cloned().unwrap_or_else(|| Step::text("(script over) done."))
}

async fn wait_at_gate(state: &watch::Sender<State>, gate: &str) {
    // The sender is alive as long as this borrow of it.
    drop(state.subscribe().wait_for(|state| state.open_gates.contains(gate)).await);
}

fn error_body(error: &ProviderError) -> Value {
    let default = || json!({"error": {"message": format!("scripted error {}", error.status)}});
    error.body.clone().unwrap_or_else(default)
}

fn error_response(error: &ProviderError) -> Response {
    let mut response = Response::builder().status(error.status).header("content-type", "application/json");
    for (name, value) in &error.headers {
        response = response.header(name, value);
    }
    response.body(Body::from(error_body(error).to_string())).expect("a valid scripted error")
}

/// Something the response does while it streams.
enum Beat {
    Chunk(Value),
    Gate(String),
}

/// Streams the step; an `error` ends it as a chunk of its own after the text.
fn stream_response(
    step: &Step,
    error: Option<&ProviderError>,
    call_number: usize,
    state: &watch::Sender<State>,
) -> Response {
    let mut beats: Vec<Beat> = content_deltas(step).map(|delta| Beat::Chunk(chunk(&delta, None))).collect();
    if let Some(gate) = &step.gate_middle {
        beats.insert(beats.len() / 2, Beat::Gate(gate.clone()));
    }
    if let Some(error) = error {
        beats.push(Beat::Chunk(error_body(error)));
    } else if !step.drop {
        beats.extend(tool_deltas(step, call_number).map(|delta| Beat::Chunk(chunk(&delta, None))));
        let default_finish = if step.tools.is_empty() { "stop" } else { "tool_calls" };
        beats.push(Beat::Chunk(chunk(&json!({}), Some(step.finish.as_deref().unwrap_or(default_finish)))));
        let default_usage = || json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
        let mut usage = chunk(&json!({}), None);
        usage["choices"] = json!([]);
        usage["usage"] = step.usage.clone().unwrap_or_else(default_usage);
        beats.push(Beat::Chunk(usage));
        beats.push(Beat::Chunk("[DONE]".into()));
    }
    let (state, pause) = (state.clone(), Duration::from_millis(step.chunk_ms));
    let body = stream::iter(beats).filter_map(move |beat| {
        let state = state.clone();
        async move {
            match beat {
                Beat::Gate(gate) => {
                    wait_at_gate(&state, &gate).await;
                    None
                }
                Beat::Chunk(chunk) => {
                    tokio::time::sleep(pause).await;
                    let data = chunk.as_str().map_or_else(|| chunk.to_string(), str::to_owned);
                    Some(Ok::<_, Infallible>(Bytes::from(format!("data: {data}\n\n"))))
                }
            }
        }
    });
    Response::builder()
        .header("content-type", "text/event-stream")
        .header("connection", "close")
        .body(Body::from_stream(body))
        .expect("a valid streaming response")
}

fn chunk(delta: &Value, finish: Option<&str>) -> Value {
    json!({
        "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    })
}

fn content_deltas(step: &Step) -> impl Iterator<Item = Value> {
    let content = |text: &str| json!({"content": text});
    std::iter::once(json!({"role": "assistant", "content": ""}))
        .chain(words_of(&step.reasoning).map(|word| json!({"reasoning_content": word})))
        .chain(words_of(&step.text).map(content))
        .chain((0..step.words).map(move |n| content(&format!("w{n} "))))
        .chain((step.blob > 0).then(|| content(&"x".repeat(step.blob))))
}

/// Words with the space after them; line breaks come alone, so that blank deltas occur.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive([' ', '\n']).flat_map(|word| match word.strip_suffix('\n') {
        Some(rest) if !rest.is_empty() => vec![rest, "\n"],
        _ => vec![word],
    })
}

fn tool_deltas(step: &Step, call_number: usize) -> impl Iterator<Item = Value> {
    step.tools.iter().enumerate().flat_map(move |(index, tool)| {
        let id = tool.id.clone().unwrap_or_else(|| format!("call_{call_number}_{index}"));
        let function = json!({"name": tool.name, "arguments": ""});
        [
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}),
            json!({"tool_calls": [{"index": index, "function": {"arguments": arguments(&tool.args)}}]}),
        ]
    })
}

/// A string stands for itself, so that a script can send arguments that are not JSON.
fn arguments(args: &Value) -> String {
    args.as_str().map_or_else(|| args.to_string(), str::to_owned)
}
