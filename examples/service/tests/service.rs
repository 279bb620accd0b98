//! The service over HTTP, on a fake server.

#![expect(clippy::unwrap_used, reason = "a broken rig should stop the test")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::StreamExt;
use opencode_conductor::{
    OpenCodeClient,
    test_util::{FakeOpenCode, FakeOptions, ModelPrice, Route, Script, ScriptedTool, Step},
};
use opencode_conductor_service::Service;
use opencode_conductor_sqlite::SqliteStore;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than anything here takes, on a machine with much else to do.
const LIMIT: Duration = Duration::from_secs(60);

struct Rig {
    fake: FakeOpenCode,
    store: TempDir,
}

/// A service that runs; ended with its process, if it is not stopped before.
struct Running {
    service: Service,
    url: String,
    http: reqwest::Client,
    _serving: DropGuard,
}

impl Rig {
    async fn new() -> Self {
        let options = FakeOptions::default().price("mock/m", ModelPrice::new(1.0, 2.0));
        Self { fake: FakeOpenCode::start_with(options).await.unwrap(), store: TempDir::new().unwrap() }
    }

    async fn start(&self) -> Running {
        let store = SqliteStore::open(PathBuf::from(self.store.path()).join("store.db")).await.unwrap();
        let client = OpenCodeClient::new(&self.fake.url()).unwrap();
        let service = Service::start(client, Arc::new(store)).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (serving, running) = (CancellationToken::new(), service.clone());
        let ended = serving.clone();
        tokio_util::task::TaskTracker::new().spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = running.restore_later() => {}
                served = async { axum::serve(listener, running.router()).await } => served.unwrap(),
            }
        });
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Running { service, url, http, _serving: serving.drop_guard() }
    }
}

impl Running {
    async fn call(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let request = match body {
            Value::Null => request,
            Value::String(text) => request.body(text),
            json => request.json(&json),
        };
        let answer = timeout(LIMIT, request.send()).await.unwrap().unwrap();
        (answer.status(), answer.json().await.unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call(Method::GET, path, Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        answer
    }

    /// Makes a task and sends it a first prompt.
    async fn create(&self, task: &str, script: &Script) -> Value {
        let new = json!({"project": "p", "directory": "/project", "worktree": "/project/worktree"});
        let (status, created) = self.call(Method::PUT, &format!("/tasks/{task}"), new).await;
        assert_eq!(status, StatusCode::CREATED, "{created}");
        self.prompt(task, "first", script).await;
        created
    }

    async fn prompt(&self, task: &str, name: &str, script: &Script) {
        let (path, text) = (format!("/tasks/{task}/prompts/{name}"), script.prompt("do it"));
        assert_eq!(self.call(Method::PUT, &path, text.into()).await.0, StatusCode::ACCEPTED, "{path}");
    }

    /// The conversation as a new reader of a task's events is given it.
    async fn snapshot(&self, task: &str) -> Value {
        let mut snapshot = Value::Null;
        let read = async |text: &str| {
            let data = text.split_once("data: ").and_then(|(_, data)| data.split_once('\n'));
            snapshot = data.map(|(data, _)| serde_json::from_str(data).unwrap()).unwrap_or_default();
            !snapshot.is_null()
        };
        self.watch(task, read).await;
        snapshot
    }

    /// Reads the events of a task until one is as wanted. Also what is looked for changes only with an event.
    async fn watch(&self, task: &str, mut is_wanted: impl AsyncFnMut(&str) -> bool) {
        let events = self.http.get(format!("{}/tasks/{task}/events", self.url)).send().await.unwrap();
        let mut pieces = events.bytes_stream();
        let mut text = String::new();
        let reading = async {
            while !is_wanted(&text).await {
                let piece = pieces.next().await.unwrap().unwrap();
                text += std::str::from_utf8(&piece).unwrap();
            }
        };
        timeout(LIMIT, reading).await.unwrap_or_else(|_| panic!("only {text}"));
    }

    /// Waits until a prompt is over, and shows it.
    async fn ended(&self, task: &str, name: &str) -> Value {
        let asking = async {
            loop {
                let shown = self.get(&format!("/tasks/{task}/prompts/{name}")).await;
                if !shown["completion"].is_null() {
                    return shown;
                }
            }
        };
        timeout(LIMIT, asking).await.unwrap_or_else(|_| panic!("{task} does not end"))
    }
}

/// Which texts the model said, in a conversation as JSON.
fn answers(conversation: &Value) -> Vec<&str> {
    let blocks = conversation["blocks"].as_array().unwrap().iter();
    blocks.filter(|it| it["type"] == "assistant_text").map(|it| it["content"].as_str().unwrap()).collect()
}

fn says(text: &str) -> Script {
    Script::new([Step::text(text)])
}

fn asks() -> Script {
    let tool =
        ScriptedTool::new("bash", json!({"command": "touch x"})).output("made").asks("bash", "touch x");
    Script::new([Step::tool(tool), Step::text("done")])
}

/// A text that the model stops in the middle of.
fn stops_at(text: &str, gate: &str) -> Script {
    Script::new([Step::text(text).gate_middle(gate)])
}

#[tokio::test]
async fn a_task_runs_and_tells_what_it_said_changed_and_cost() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    let write = |path| ScriptedTool::new("write", json!({"filePath": path, "content": "one\n"}));
    let writes = |path, text| Script::new([Step::tool(write(path)), Step::text(text)]);
    service.create("one", &writes("/project/worktree/a.txt", "written")).await;
    let first = service.ended("one", "first").await;
    assert_eq!((&first["answer"], &first["completion"]["type"]), (&json!("written"), &json!("settled")));
    let shown = service.get("/tasks/one").await;
    assert_eq!((&shown["usage"], &shown["isRunning"]), (&first["usage"], &json!(false)));
    assert!(shown["usage"]["cost"].as_f64().unwrap() > 0.0, "{shown}");

    service.prompt("one", "second", &writes("/project/worktree/b.txt", "as well")).await;
    assert_eq!(service.ended("one", "second").await["answer"], "as well");
    for (name, path) in [("first", "a.txt"), ("second", "b.txt")] {
        let changes = service.get(&format!("/tasks/one/prompts/{name}/diff")).await;
        assert_eq!((&changes[0]["path"], &changes[0]["kind"]), (&json!(path), &json!("added")));
        assert_eq!(changes.as_array().unwrap().len(), 1, "{changes}");
    }
    assert_eq!(service.get("/tasks").await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_end_of_a_prompt_is_not_taken_for_that_of_the_next() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    service.create("one", &says("hello")).await;
    service.ended("one", "first").await;
    service.prompt("one", "second", &stops_at("hello again", "middle")).await;
    timeout(LIMIT, rig.fake.wait_at("middle")).await.unwrap();
    service.prompt("one", "third", &says("good bye")).await;
    for open in ["second", "third"] {
        let shown = service.get(&format!("/tasks/one/prompts/{open}")).await;
        assert_eq!(shown, json!({"completion": null}), "{open}");
    }
    rig.fake.open_gate("middle");
    for (name, answer) in [("third", "good bye"), ("second", "hello again"), ("first", "hello")] {
        assert_eq!(service.ended("one", name).await["answer"], answer);
    }
}

#[tokio::test]
async fn a_prompt_that_is_sent_again_runs_once() {
    let rig = Rig::new().await;
    let first = rig.start().await;
    let script = stops_at("one two three", "middle");
    let created = first.create("one", &script).await;
    timeout(LIMIT, rig.fake.wait_at("middle")).await.unwrap();
    first.prompt("one", "first", &script).await;
    // It waits for its turn, and is lost.
    first.prompt("one", "second", &says("at last")).await;
    first.service.stop().await;
    drop(first);

    let second = rig.start().await;
    assert_eq!(second.get("/tasks/one/prompts/first").await, json!({"completion": null}));
    let (lost, _) = second.call(Method::GET, "/tasks/one/prompts/second", Value::Null).await;
    assert_eq!(lost, StatusCode::NOT_FOUND);
    rig.fake.open_gate("middle");
    assert_eq!(second.ended("one", "first").await["answer"], "one two three");
    second.prompt("one", "second", &says("at last")).await;
    assert_eq!(second.ended("one", "second").await["answer"], "at last");
    second.service.stop().await;
    drop(second);

    // Both are over, which the third one does not know.
    let third = rig.start().await;
    for (name, answer) in [("first", "one two three"), ("second", "at last")] {
        third.prompt("one", name, &says("something else")).await;
        assert_eq!(third.ended("one", name).await["answer"], answer);
    }
    let session = created["sessionId"].as_str().unwrap();
    assert_eq!(rig.fake.prompts_run(session).len(), 2);
}

#[tokio::test]
async fn after_a_restart_a_task_is_shown_whole() {
    let rig = Rig::new().await;
    let first = rig.start().await;
    first.create("one", &says("hello")).await;
    first.prompt("one", "second", &says("hello again")).await;
    first.ended("one", "second").await;
    let before = first.get("/tasks/one").await["usage"].clone();
    first.prompt("one", "third", &stops_at("good bye", "middle")).await;
    timeout(LIMIT, rig.fake.wait_at("middle")).await.unwrap();
    first.service.stop().await;
    drop(first);
    rig.fake.clear_log();

    let second = rig.start().await;
    // The turn that goes on has opened the session, and reads its messages.
    timeout(LIMIT, rig.fake.wait_for(|log| log.count(Route::ListMessages) > 0)).await.unwrap();
    let snapshot = second.snapshot("one").await;
    assert_eq!(answers(&snapshot)[..2], ["hello", "hello again"], "{snapshot}");
    rig.fake.open_gate("middle");
    let third = second.ended("one", "third").await;
    let after = second.get("/tasks/one").await["usage"].clone();
    let tokens = |usage: &Value| usage["tokens"]["output"].as_u64().unwrap();
    assert_eq!(tokens(&after), tokens(&before) + tokens(&third["usage"]));
    assert_eq!(answers(&second.snapshot("one").await), ["hello", "hello again", "good bye"]);
}

#[tokio::test]
async fn a_service_that_starts_before_its_server_goes_on_when_that_is_there() {
    let rig = Rig::new().await;
    let first = rig.start().await;
    let created = first.create("one", &stops_at("one two three", "middle")).await;
    timeout(LIMIT, rig.fake.wait_at("middle")).await.unwrap();
    first.service.stop().await;
    drop(first);
    rig.fake.kill().await.unwrap();

    let second = rig.start().await;
    assert_eq!(second.get("/tasks").await.as_array().unwrap().len(), 1);
    // Each try ends later than that of the prompt which began before it.
    for _ in 0..2 {
        let (status, answer) = second.call(Method::GET, "/tasks/one", Value::Null).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    }
    rig.fake.revive().await.unwrap();
    // Nobody has looked after the first prompt yet, which comes before this one. The server lost it.
    second.prompt("one", "second", &says("as if nothing had been")).await;
    assert_eq!(second.ended("one", "first").await["completion"]["type"], "interrupted");
    assert_eq!(second.ended("one", "second").await["answer"], "as if nothing had been");
    assert_eq!(rig.fake.prompts_run(created["sessionId"].as_str().unwrap()).len(), 2);
}

#[tokio::test]
async fn a_person_decides_once() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    service.create("one", &asks()).await;
    service.watch("one", async |text| text.contains("\"asked\"")).await;
    let asks = service.get("/asks").await;
    assert_eq!((&asks[0]["task"], &asks[0]["subject"]["patterns"]), (&json!("one"), &json!(["touch x"])));
    let path = format!("/tasks/one/asks/{}", asks[0]["id"].as_str().unwrap());
    let decide = async |decision: Value| service.call(Method::POST, &path, decision).await.0;
    assert_eq!(decide(json!({"type": "answer", "value": [["x"]]})).await, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(decide(json!({"type": "allowOnce"})).await, StatusCode::OK);
    assert_eq!(decide(json!({"type": "failTurn"})).await, StatusCode::CONFLICT);
    assert_eq!(service.ended("one", "first").await["answer"], "done");
    assert_eq!(service.get("/asks").await, json!([]));
}

#[tokio::test]
async fn an_abort_ends_a_task() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    service.create("one", &stops_at("one two three", "never")).await;
    timeout(LIMIT, rig.fake.wait_at("never")).await.unwrap();
    let (status, report) = service.call(Method::POST, "/tasks/one/abort", Value::Null).await;
    assert_eq!((status, &report["confirmed"]), (StatusCode::OK, &json!(true)));
    assert_eq!(service.ended("one", "first").await["completion"]["type"], "aborted");
}

#[tokio::test]
async fn a_service_that_is_started_again_goes_on() {
    let rig = Rig::new().await;
    let first = rig.start().await;
    let created = first.create("one", &asks()).await;
    first.watch("one", async |text| text.contains("\"asked\"")).await;
    let asked = first.get("/asks").await;
    first.service.stop().await;
    drop(first);

    let second = rig.start().await;
    second.watch("one", async |text| text.contains("touch x") && second.get("/asks").await == asked).await;
    let path = format!("/tasks/one/asks/{}", asked[0]["id"].as_str().unwrap());
    assert_eq!(second.call(Method::POST, &path, json!({"type": "allowOnce"})).await.0, StatusCode::OK);
    assert_eq!(second.ended("one", "first").await["answer"], "done");
    let session = created["sessionId"].as_str().unwrap();
    assert_eq!(rig.fake.prompts_run(session).len(), 1);
}

#[tokio::test]
async fn what_cannot_be_done_says_why() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    let new = json!({"project": "p", "directory": "/project", "worktree": "/project/worktree"});
    let relative = json!({"project": "p", "directory": "here", "worktree": "here"});
    // The name is trimmed, everywhere.
    let created = service.create("%20one", &says("hello")).await;
    assert_eq!(created["taskId"], "one");
    service.ended("%20one", "first").await;
    let cases = [
        (Method::GET, "/tasks/none", Value::Null, StatusCode::NOT_FOUND, "there is no task none"),
        (Method::PUT, "/tasks/none/prompts/x", "x".into(), StatusCode::NOT_FOUND, "there is no task none"),
        (Method::GET, "/tasks/one/prompts/x", Value::Null, StatusCode::NOT_FOUND, "was not sent"),
        (
            Method::PUT,
            "/tasks/one/prompts/x",
            " ".into(),
            StatusCode::UNPROCESSABLE_ENTITY,
            "must not be empty",
        ),
        (Method::PUT, "/tasks/one", new.clone(), StatusCode::CONFLICT, "already has session"),
        (Method::PUT, "/tasks/two", relative, StatusCode::UNPROCESSABLE_ENTITY, "must be"),
    ];
    for (method, path, body, wanted, why) in cases {
        let (status, answer) = service.call(method, path, body).await;
        assert_eq!(status, wanted, "{path}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(why), "{path}: {answer}");
    }
    // The server loses the session, while the service does not look.
    service.service.stop().await;
    drop(service);
    let client = OpenCodeClient::new(&rig.fake.url()).unwrap();
    client.default_directory().delete_session(&created["sessionId"].as_str().unwrap().into()).await.unwrap();
    let service = rig.start().await;
    let (status, answer) = service.call(Method::GET, "/tasks/one", Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{answer}");
    rig.fake.kill().await.unwrap();
    let (status, answer) = service.call(Method::PUT, "/tasks/three", new).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("is it running?"), "{answer}");
}
