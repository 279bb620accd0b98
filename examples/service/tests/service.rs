//! The service over HTTP, on a fake server.

#![expect(clippy::unwrap_used, reason = "a broken rig should stop the test")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::StreamExt;
use opencode_conductor::{
    OpenCodeClient,
    test_util::{FakeOpenCode, FakeOptions, ModelPrice, Script, ScriptedTool, Step},
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
        let (router, serving) = (service.router(), CancellationToken::new());
        let ended = serving.clone();
        tokio_util::task::TaskTracker::new().spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                served = async { axum::serve(listener, router).await } => served.unwrap(),
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

    async fn create(&self, task: &str, script: &Script) -> (StatusCode, Value) {
        let task = json!({"task": task, "project": "p", "directory": "/project", "worktree": "/project/worktree",
            "prompt": script.prompt("do it")});
        self.call(Method::POST, "/tasks", task).await
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

    /// Waits until a task's prompt is over, and shows the task.
    async fn ended(&self, task: &str) -> Value {
        let asking = async {
            loop {
                let shown = self.get(&format!("/tasks/{task}")).await;
                if shown["isRunning"] == false && !shown["last"].is_null() {
                    return shown;
                }
            }
        };
        timeout(LIMIT, asking).await.unwrap_or_else(|_| panic!("{task} does not end"))
    }
}

fn says(text: &str) -> Script {
    Script::new([Step::text(text)])
}

fn asks() -> Script {
    let tool =
        ScriptedTool::new("bash", json!({"command": "touch x"})).output("made").asks("bash", "touch x");
    Script::new([Step::tool(tool), Step::text("done")])
}

#[tokio::test]
async fn a_task_runs_and_tells_what_it_said_changed_and_cost() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    let write =
        ScriptedTool::new("write", json!({"filePath": "/project/worktree/a.txt", "content": "one\n"}));
    let script = Script::new([Step::tool(write), Step::text("written")]);
    let (status, created) = service.create("one", &script).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{created}");
    let shown = service.ended("one").await;
    assert_eq!(shown["last"]["answer"], "written", "{shown}");
    assert_eq!(shown["last"]["completion"]["type"], "settled");
    assert_eq!(shown["usage"], shown["last"]["usage"]);
    assert!(shown["usage"]["cost"].as_f64().unwrap() > 0.0, "{shown}");
    let changes = service.get("/tasks/one/diff").await;
    assert_eq!((&changes[0]["path"], &changes[0]["kind"]), (&json!("a.txt"), &json!("added")));

    let (status, _) =
        service.call(Method::POST, "/tasks/one/prompts", says("again").prompt("and?").into()).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    service.watch("one", async |text| text.contains("again")).await;
    assert_eq!(service.get("/tasks").await.as_array().unwrap().len(), 1);
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
    assert_eq!(service.ended("one").await["last"]["answer"], "done");
    assert_eq!(service.get("/asks").await, json!([]));
}

#[tokio::test]
async fn an_abort_ends_a_task() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    let endless = Script::new([Step::text("one two three").gate_middle("never")]);
    service.create("one", &endless).await;
    timeout(LIMIT, rig.fake.wait_at("never")).await.unwrap();
    let (status, report) = service.call(Method::POST, "/tasks/one/abort", Value::Null).await;
    assert_eq!((status, &report["confirmed"]), (StatusCode::OK, &json!(true)));
    assert_eq!(service.ended("one").await["last"]["completion"]["type"], "aborted");
}

#[tokio::test]
async fn a_service_that_is_started_again_goes_on() {
    let rig = Rig::new().await;
    let first = rig.start().await;
    let (_, created) = first.create("one", &asks()).await;
    first.watch("one", async |text| text.contains("\"asked\"")).await;
    let asked = first.get("/asks").await;
    first.service.stop().await;
    drop(first);

    let second = rig.start().await;
    second.watch("one", async |text| text.contains("touch x") && second.get("/asks").await == asked).await;
    let path = format!("/tasks/one/asks/{}", asked[0]["id"].as_str().unwrap());
    assert_eq!(second.call(Method::POST, &path, json!({"type": "allowOnce"})).await.0, StatusCode::OK);
    assert_eq!(second.ended("one").await["last"]["answer"], "done");
    let session = created["session"]["sessionId"].as_str().unwrap();
    assert_eq!(rig.fake.prompts_run(session).len(), 1);
}

#[tokio::test]
async fn what_cannot_be_done_says_why() {
    let rig = Rig::new().await;
    let service = rig.start().await;
    let refused = async |method, path: &str, body: Value| service.call(method, path, body).await;
    assert_eq!(refused(Method::GET, "/tasks/none", Value::Null).await.0, StatusCode::NOT_FOUND);
    service.create("one", &says("hello")).await;
    assert_eq!(service.create("one", &says("hello")).await.0, StatusCode::CONFLICT);
    let relative =
        json!({"task": "two", "project": "p", "directory": "here", "worktree": "here", "prompt": "x"});
    let (status, answer) = refused(Method::POST, "/tasks", relative).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer["error"].as_str().unwrap().contains("must be"), "{answer}");
    service.ended("one").await;
    rig.fake.kill().await.unwrap();
    let (status, answer) = service.create("three", &says("hello")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("is it running?"), "{answer}");
}
