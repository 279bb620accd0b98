//! A canned server: wiremock with a typed method for each route that a manager uses.
//!
//! Every answer is a whole body, the event stream too, so it is at its end as soon as it was sent. That is enough for tests of a
//! manager that need a server to say something, and not when. What a server does by itself is for the fake.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use opencode_conductor::{ConversationManager, FeedOptions, ManagerBuilder};
use serde_json::{Value, json};
use wiremock::{
    Mock, MockServer, Request, Respond, ResponseTemplate,
    matchers::{any, method, path, path_regex},
};

use super::secrets;

/// The one session of the server.
pub(crate) const SESSION: &str = "ses_1";

pub(crate) struct OpenCodeMock {
    server: MockServer,
    seen: Seen,
}

/// The bodies of what was posted so far. Answers may name what the client chose: `PROMPT1` stands for the id of its first prompt.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(String, Value)>>>);

impl Seen {
    fn add(&self, request: &Request) {
        let body = serde_json::from_slice(&request.body).unwrap_or_default();
        self.0.lock().unwrap().push((request.url.path().to_owned(), body));
    }

    fn of(&self, path: &str) -> Vec<Value> {
        let seen = self.0.lock().unwrap();
        seen.iter().filter(|(of, _)| of == path).map(|(_, body)| body.clone()).collect()
    }

    /// The text with the names filled in; nothing if it names a prompt that is still to come.
    fn fill(&self, text: String) -> Option<String> {
        let mut prompts = self.of(&format!("/session/{SESSION}/prompt_async"));
        // One that was sent again is the same prompt.
        prompts.dedup_by(|one, two| one["messageID"] == two["messageID"]);
        let filled = prompts.iter().enumerate().fold(text, |text, (index, prompt)| {
            text.replace(&format!("PROMPT{}", index + 1), prompt["messageID"].as_str().unwrap())
        });
        (!filled.contains("PROMPT")).then_some(filled)
    }
}

/// Gives one answer after the other, each as soon as the prompts that it names are there; the last one again and again.
struct InTurn {
    seen: Seen,
    answers: Vec<Value>,
    next: Mutex<usize>,
}

impl Respond for InTurn {
    fn respond(&self, _: &Request) -> ResponseTemplate {
        let mut next = self.next.lock().unwrap();
        let at = (*next).min(self.answers.len() - 1);
        let filled = self.seen.fill(self.answers[at].to_string());
        *next += usize::from(filled.is_some());
        let earlier =
            || self.answers[..at].iter().rev().find_map(|answer| self.seen.fill(answer.to_string()));
        let text = filled.or_else(earlier).unwrap_or_else(|| "[]".to_owned());
        ResponseTemplate::new(200).set_body_raw(text, "application/json")
    }
}

impl OpenCodeMock {
    /// A server that, like the real one, has a web page for every route that it does not know. Its session has no children.
    pub(crate) async fn start() -> Self {
        let server = MockServer::start().await;
        let page = ResponseTemplate::new(200).set_body_raw("<!doctype html>", "text/html");
        Mock::given(any()).respond_with(page).with_priority(u8::MAX).mount(&server).await;
        let mock = Self { server, seen: Seen::default() };
        mock.get(&format!("/session/{SESSION}/children"), ok(json!([]))).await;
        mock
    }

    /// A manager that is quick to reconnect.
    pub(crate) fn manager(&self) -> ManagerBuilder {
        let (least, most) = (Duration::from_millis(10), Duration::from_millis(50));
        let client = secrets::client(&self.server.uri())
            .feed(FeedOptions::new().backoff(least, most))
            .read_backoff(least, most);
        ConversationManager::builder(client.build().unwrap())
    }

    /// `POST /session`, which answers with these statuses in turn and then makes the session; `GET /session` lists it, whatever was answered.
    pub(crate) async fn mock_create_session(&self, failures: &'static [u16]) {
        let seen = self.seen.clone();
        let made = move |request: &Request| {
            seen.add(request);
            let made = seen.of("/session");
            match failures.get(made.len() - 1) {
                Some(status) => ResponseTemplate::new(*status),
                None => ok(session(made.last().unwrap())),
            }
        };
        self.post("/session", made).await;
        let seen = self.seen.clone();
        let list = move |_: &Request| ok(seen.of("/session").iter().take(1).map(session).collect());
        self.get("/session", list).await;
    }

    /// `POST /session/{id}/prompt_async`, always with this status.
    pub(crate) async fn mock_prompt_async(&self, status: u16) {
        let seen = self.seen.clone();
        let answer = move |request: &Request| {
            seen.add(request);
            match status {
                204 => ResponseTemplate::new(204),
                404 => ResponseTemplate::new(404).set_body_json(
                    json!({"name": "NotFoundError", "data": {"message": "Session not found"}}),
                ),
                _ => ResponseTemplate::new(status).set_body_json(
                    json!({"name": "BadRequest", "data": {"message": "no", "kind": "Payload"}}),
                ),
            }
        };
        self.post(&format!("/session/{SESSION}/prompt_async"), answer).await;
    }

    /// `GET /session/{id}/message`: each read is one list further.
    pub(crate) async fn mock_messages(&self, lists: impl IntoIterator<Item = Value>) {
        self.in_turn(&format!("/session/{SESSION}/message"), lists).await;
    }

    /// `GET /session/status`: each read is one map further.
    pub(crate) async fn mock_status(&self, maps: impl IntoIterator<Item = Value>) {
        self.in_turn("/session/status", maps).await;
    }

    /// `GET /event`: each connection gets all events that name no prompt which is still to come, and then the end.
    pub(crate) async fn mock_events(&self, events: impl IntoIterator<Item = Value>) {
        let seen = self.seen.clone();
        let events: Vec<Value> = events.into_iter().collect();
        let stream = move |_: &Request| {
            let events = events.iter().filter_map(|event| seen.fill(event.to_string()));
            let body: String =
                events.flat_map(|event| ["data: ".to_owned(), event, "\n\n".to_owned()]).collect();
            ResponseTemplate::new(200).set_body_raw(body, "text/event-stream")
        };
        self.get("/event", stream).await;
    }

    /// `GET /event` with a status and no stream.
    pub(crate) async fn mock_no_events(&self, status: u16) {
        self.get("/event", ResponseTemplate::new(status)).await;
    }

    /// `GET /permission`: this request, once there is a prompt and until it is answered by `POST /permission/{id}/reply`.
    pub(crate) async fn mock_permission(&self, request: Value) {
        let reply = format!("/permission/{}/reply", request["id"].as_str().unwrap());
        let (seen, answered) = (self.seen.clone(), reply.clone());
        let pending = move |_: &Request| {
            let is_open = seen.fill("PROMPT1".to_owned()).is_some() && seen.of(&answered).is_empty();
            ok(if is_open { json!([request]) } else { json!([]) })
        };
        self.get("/permission", pending).await;
        self.acknowledge(&reply).await;
    }

    /// `POST /session/{id}/abort`.
    pub(crate) async fn mock_abort(&self) {
        self.acknowledge(&format!("/session/{SESSION}/abort")).await;
    }

    /// Any route, with an answer that may name prompts: as a stream of one event, as the answer to a prompt, or as JSON.
    pub(crate) async fn mock_route(&self, verb: &str, route: &str, answer: Value) {
        match (verb, answer) {
            ("GET", event) if route == "/event" => self.mock_events([event]).await,
            ("GET", answer) => self.in_turn(route, [answer]).await,
            (_, Value::Null) => self.mock_prompt_async(204).await,
            (_, answer) => self.post(route, ok(answer)).await,
        }
    }

    /// The requests that came in, such as `GET /event`, without their queries.
    pub(crate) async fn asked(&self) -> Vec<String> {
        let requests = self.server.received_requests().await.unwrap();
        requests.iter().map(|request| format!("{} {}", request.method, request.url.path())).collect()
    }

    /// Nothing for what is not mocked later: no page, and no list of children.
    pub(crate) async fn mock_no_other_route(&self) {
        self.server.reset().await;
    }

    /// Everything, with this status.
    pub(crate) async fn mock_refusal(&self, status: u16) {
        let refusal = Mock::given(path_regex(".*")).respond_with(ResponseTemplate::new(status));
        refusal.with_priority(1).mount(&self.server).await;
    }

    /// The bodies that were posted to a route.
    pub(crate) fn posted(&self, path: &str) -> Vec<Value> {
        self.seen.of(path)
    }

    /// The prompts that were sent.
    pub(crate) fn prompts(&self) -> Vec<Value> {
        self.posted(&format!("/session/{SESSION}/prompt_async"))
    }

    async fn acknowledge(&self, route: &str) {
        let seen = self.seen.clone();
        let answer = move |request: &Request| {
            seen.add(request);
            ok(json!(true))
        };
        self.post(route, answer).await;
    }

    async fn in_turn(&self, route: &str, answers: impl IntoIterator<Item = Value>) {
        let answers = answers.into_iter().collect();
        self.get(route, InTurn { seen: self.seen.clone(), answers, next: Mutex::new(0) }).await;
    }

    async fn get(&self, route: &str, answer: impl Respond + 'static) {
        Mock::given(method("GET")).and(path(route)).respond_with(answer).mount(&self.server).await;
    }

    async fn post(&self, route: &str, answer: impl Respond + 'static) {
        Mock::given(method("POST")).and(path(route)).respond_with(answer).mount(&self.server).await;
    }
}

fn ok(body: Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(body)
}

/// The session as the request to make it wants it.
fn session(request: &Value) -> Value {
    json!({"id": SESSION, "projectID": "p", "directory": "/project/worktree", "version": "1.18.33",
        "title": request["title"], "metadata": request["metadata"], "time": {"created": 1, "updated": 1}})
}

/// A prompt as the server lists it.
pub(crate) fn prompt(id: &str, created: u32) -> Value {
    json!({"info": {"id": id, "sessionID": SESSION, "role": "user", "time": {"created": created}},
        "parts": [part(id, json!({"type": "text", "text": "what is 2 + 2?"}))]})
}

/// A finished answer as the server lists it.
pub(crate) fn answer(to: &str, text: &str, created: u32) -> Value {
    let id = format!("msg_answer_{created}");
    let time = json!({"start": created, "end": created + 1});
    json!({"info": step(&id, to, created, json!({"time": {"created": created, "completed": created + 1}, "finish": "stop"})),
        "parts": [part(&id, json!({"type": "text", "text": text, "time": time}))]})
}

/// An answer that has only begun.
pub(crate) fn beginning(to: &str, created: u32) -> Value {
    let id = format!("msg_answer_{created}");
    json!({"info": step(&id, to, created, json!({})), "parts": []})
}

/// An answer that failed.
pub(crate) fn failure(to: &str, error: &str, created: u32) -> Value {
    let id = format!("msg_answer_{created}");
    let error = json!({"name": "APIError", "data": {"message": error}});
    json!({"info": step(&id, to, created, json!({"time": {"created": created, "completed": created + 1}, "error": error})),
        "parts": []})
}

fn step(id: &str, to: &str, created: u32, mut rest: Value) -> Value {
    let mut info = json!({"id": id, "sessionID": SESSION, "role": "assistant", "parentID": to, "mode": "build",
        "providerID": "mock", "modelID": "m", "cost": 0, "time": {"created": created},
        "tokens": {"input": 1, "output": 1, "reasoning": 0, "cache": {"read": 0, "write": 0}}});
    info.as_object_mut().unwrap().append(rest.as_object_mut().unwrap());
    info
}

fn part(message: &str, mut rest: Value) -> Value {
    let mut part = json!({"id": format!("prt_{message}"), "sessionID": SESSION, "messageID": message});
    part.as_object_mut().unwrap().append(rest.as_object_mut().unwrap());
    part
}

/// The events that tell of these messages, and of the end.
pub(crate) fn told(messages: &[Value]) -> Vec<Value> {
    let event = |kind: &str, properties: Value| json!({"type": kind, "properties": properties});
    let mut events = vec![event("server.connected", json!({}))];
    for message in messages {
        events.push(event("message.updated", json!({"info": message["info"]})));
        for part in message["parts"].as_array().unwrap() {
            events.push(event("message.part.updated", json!({"part": part})));
        }
    }
    let last = messages.last().map(|message| message["info"]["parentID"].clone());
    // An end that names a prompt is not told before it.
    events.extend(last.map(|prompt| event("session.idle", json!({"sessionID": SESSION, "after": prompt}))));
    events
}
