//! One scenario's server, model and event recorder, and the verbs a scenario is written in.

#![expect(clippy::expect_used, reason = "a recording that cannot be made should stop the recorder")]

use std::{cmp::Reverse, fs, path::Path, time::Duration};

use futures_util::StreamExt;
use opencode_conductor::test_util::{Script, Step};
use reqwest::{Method, Response};
use serde_json::{Value, json, value::RawValue};
use tokio::{process::Command, sync::watch, task::JoinSet, time::timeout};

use crate::{
    model::ScriptedModel,
    real::{RealOptions, RealServer},
    scenarios::Scenario,
};

/// No scenario has a silence longer than this before the thing it waits for.
const EVENT_LIMIT: Duration = Duration::from_secs(60);
/// The tail after the last idle ends well before this much silence.
const QUIET: Duration = Duration::from_millis(2500);

pub(crate) struct Stage {
    pub(crate) model: ScriptedModel,
    pub(crate) server: RealServer,
    /// The session whose tree is saved: the first one made.
    pub(crate) root: String,
    version: String,
    lines: watch::Sender<Vec<String>>,
    reader: JoinSet<()>,
    /// How many lines earlier waits have consumed.
    seen: usize,
    /// What was done, for the reader of the fixture.
    log: Vec<Value>,
}

impl Stage {
    pub(crate) async fn version_of(executable: &Path) -> String {
        // It must not touch the real HOME.
        let home = tempfile::tempdir().expect("make a HOME");
        let mut command = Command::new(executable);
        let output =
            command.arg("--version").env("HOME", home.path()).output().await.expect("ask the version");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub(crate) async fn set(scenario: &Scenario, executable: &Path) -> Self {
        let model = ScriptedModel::start().await;
        let mut options = RealOptions::new(executable.to_owned(), model.base_url());
        options = options.config((scenario.config)());
        for (name, value) in scenario.env {
            options = options.env(name, value);
        }
        let mut stage = Self {
            server: RealServer::start(options).await,
            model,
            root: String::new(),
            version: Self::version_of(executable).await,
            lines: watch::Sender::new(Vec::new()),
            reader: JoinSet::new(),
            seen: 0,
            log: Vec::new(),
        };
        if scenario.warm {
            stage.warm_up().await;
        }
        stage.listen().await;
        stage
    }

    /// Runs one turn unrecorded: the first turn in a directory comes with a hundred lines about plugins.
    async fn warm_up(&mut self) {
        self.listen().await;
        let session = self.server.post("/session", &json!({"title": "warm up"})).await;
        let id = session["id"].as_str().expect("a session id").to_owned();
        let body = json!({"parts": [{"type": "text", "text": "warm up"}]});
        self.server.post(&format!("/session/{id}/prompt_async"), &body).await;
        self.wait_for("session.idle", |properties| properties["sessionID"] == id.as_str()).await;
        self.quiet().await;
        self.reader.shutdown().await;
        self.lines.send_modify(Vec::clear);
        self.seen = 0;
    }

    /// Opens the event stream and waits for its greeting.
    pub(crate) async fn listen(&mut self) {
        let response = self.server.request(Method::GET, "/event").send().await.expect("open the stream");
        self.reader.spawn(read_lines(response, self.lines.clone()));
        self.wait_for("server.connected", |_| true).await;
    }

    /// Makes a session; the first is the root.
    pub(crate) async fn session(&mut self, body: Value) -> String {
        let session = self.server.post("/session", &body).await;
        let id = session["id"].as_str().expect("a session id").to_owned();
        if self.root.is_empty() {
            self.root.clone_from(&id);
        }
        self.log.push(json!({"session": body}));
        id
    }

    /// Sends a prompt that makes the model play `steps`.
    pub(crate) async fn script(&mut self, words: &str, steps: Value) {
        self.prompt(&prompt(words, steps)).await;
    }

    pub(crate) async fn prompt(&mut self, text: &str) {
        self.prompt_parts(json!([{"type": "text", "text": text}])).await;
    }

    pub(crate) async fn prompt_parts(&mut self, parts: Value) {
        let root = self.root.clone();
        self.prompt_session(&root, parts).await;
    }

    pub(crate) async fn prompt_session(&mut self, session: &str, parts: Value) {
        self.send(session, json!({"parts": parts})).await;
    }

    /// Sends a prompt with more than parts.
    pub(crate) async fn prompt_body(&mut self, body: Value) {
        let root = self.root.clone();
        self.send(&root, body).await;
    }

    async fn send(&mut self, session: &str, body: Value) {
        self.server.post(&format!("/session/{session}/prompt_async"), &body).await;
        self.log.push(json!({"prompt": body}));
    }

    /// Posts something else and notes it; `{root}` in the path is the root session.
    pub(crate) async fn act(&mut self, path: &str, body: Value) -> Value {
        let answer = self.server.post(&path.replace("{root}", &self.root), &body).await;
        self.log.push(json!({"post": path, "body": body}));
        answer
    }

    pub(crate) async fn delete(&mut self, path: &str) {
        let request = self.server.request(Method::DELETE, path).timeout(EVENT_LIMIT);
        let status = request.send().await.expect("a response").status();
        assert!(status.is_success(), "DELETE {path}: {status}");
        self.log.push(json!({"delete": path}));
    }

    /// The path of a file in the project.
    pub(crate) fn file(&self, name: &str) -> String {
        self.server.project(0).join(name).display().to_string()
    }

    pub(crate) fn note(&mut self, what: &str) {
        self.log.push(json!({"note": what}));
    }

    /// Waits for the next event of this type whose properties fit, and returns them.
    pub(crate) async fn wait_for(&mut self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let mut lines = self.lines.subscribe();
        let search = async {
            loop {
                let found = {
                    let lines = lines.borrow_and_update();
                    let fresh = lines[self.seen..].iter().enumerate();
                    fresh.map(|(at, line)| (at, event(line))).find_map(|(at, event)| {
                        (event["type"] == kind && fits(&event["properties"]))
                            .then(|| (at, event["properties"].clone()))
                    })
                };
                if let Some((at, properties)) = found {
                    self.seen += at + 1;
                    return properties;
                }
                lines.changed().await.expect("the recorder holds the lines");
            }
        };
        let found = timeout(EVENT_LIMIT, search).await;
        found.unwrap_or_else(|_| panic!("no {kind}; last lines: {:#?}", self.last_lines()))
    }

    /// Waits until the root goes idle, once for each call.
    pub(crate) async fn idle(&mut self) {
        let root = self.root.clone();
        self.wait_for("session.idle", |properties| properties["sessionID"] == root.as_str()).await;
    }

    /// Waits until the root's turn is over, tail and all.
    pub(crate) async fn settle(&mut self) {
        self.idle().await;
        self.quiet().await;
    }

    /// Waits until a part fits: `message.part.updated` carries it whole.
    pub(crate) async fn part(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        self.wait_for("message.part.updated", |properties| fits(&properties["part"])).await["part"].clone()
    }

    /// Waits until nothing but heartbeats has come for a while.
    pub(crate) async fn quiet(&mut self) {
        let mut lines = self.lines.subscribe();
        loop {
            let before = lines.borrow_and_update().iter().filter(|line| !line.contains("heartbeat")).count();
            tokio::time::sleep(QUIET).await;
            if before == lines.borrow().iter().filter(|line| !line.contains("heartbeat")).count() {
                break;
            }
        }
        self.seen = self.lines.borrow().len();
    }

    /// Kills the server, notes the end of the stream, starts it again and listens again.
    pub(crate) async fn crash_and_restart(&mut self) {
        self.server.kill().await;
        while self.reader.join_next().await.is_some() {}
        self.lines.send_modify(|lines| lines.push(": the server was killed here and started again".into()));
        self.server.restart().await;
        self.note("kill -9, start again, listen again");
        self.listen().await;
    }

    /// Writes the fixture's directory anew.
    pub(crate) async fn save(mut self, scenario: &Scenario, directory: &Path) {
        self.quiet().await;
        if directory.exists() {
            fs::remove_dir_all(directory).expect("clear the fixture");
        }
        fs::create_dir_all(directory.join("messages")).expect("make the fixture");
        let events = self.lines.borrow().join("\n\n") + "\n\n";
        self.write(&directory.join("events.sse"), &events);

        let mut sessions = Vec::new();
        let mut open = vec![self.root.clone()];
        while let Some(id) = open.pop() {
            let number = sessions.len();
            let name = if number == 0 { "00-root.json".into() } else { format!("{number:02}-child.json") };
            let messages = self.raw(&format!("/session/{id}/message")).await;
            self.write(&directory.join("messages").join(name), &one_per_line(&messages));
            sessions.push(self.raw(&format!("/session/{id}")).await);
            let children = self.server.get(&format!("/session/{id}/children")).await;
            let mut children = children.as_array().expect("a list of children").clone();
            // The newest is pushed first: the oldest comes next, each with its own children before its sibling.
            children.sort_by_key(|child| Reverse(child["time"]["created"].as_u64()));
            open.extend(children.iter().filter_map(|child| Some(child["id"].as_str()?.to_owned())));
        }
        self.write(&directory.join("sessions.json"), &one_per_line(&format!("[{}]", sessions.join(","))));
        if scenario.export {
            let export = self.server.run(&["export", &self.root]).await;
            self.write(&directory.join("export.json"), &export);
        }
        let about = json!({
            "about": scenario.about, "server": self.version, "config": (scenario.config)(),
            "env": scenario.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
            "done": self.log,
            "modelCalls": self.model.calls().iter().map(|call| format!("{:?} {}", call.kind, call.step)).collect::<Vec<_>>(),
        });
        let about = serde_json::to_string_pretty(&about).expect("plain data") + "\n";
        self.write(&directory.join("about.json"), &about);
    }

    async fn raw(&self, path: &str) -> String {
        let request = self.server.request(Method::GET, path).timeout(EVENT_LIMIT);
        request.send().await.expect("a response").text().await.expect("a body")
    }

    /// Writes text without a trace of this machine.
    fn write(&self, path: &Path, text: &str) {
        let home = self.server.home();
        let text = text
            .replace(home.to_str().expect("a readable HOME"), "/home/user")
            .replace(self.model.base_url(), "http://127.0.0.1:1234/v1")
            .replace(self.server.url(), "http://127.0.0.1:4096");
        fs::write(path, text).expect("write the fixture");
    }

    fn last_lines(&self) -> Vec<String> {
        let lines = self.lines.borrow();
        lines.iter().rev().take(6).map(|line| line.chars().take(300).collect()).collect()
    }
}

/// A prompt text with a script in it; nested ones drive subagents.
pub(crate) fn prompt(words: &str, steps: Value) -> String {
    let steps: Vec<Step> = serde_json::from_value(steps).expect("a script");
    Script::new(steps).prompt(words)
}

/// A step's tool call.
pub(crate) fn tool(name: &str, args: &Value) -> Value {
    json!({"name": name, "args": args})
}

pub(crate) fn bash(command: &str) -> Value {
    tool("bash", &json!({"command": command, "description": "a command"}))
}

pub(crate) fn task(description: &str, prompt: &str) -> Value {
    tool("task", &json!({"description": description, "prompt": prompt, "subagent_type": "general"}))
}

async fn read_lines(response: Response, lines: watch::Sender<Vec<String>>) {
    let mut buffer = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(Ok(bytes)) = body.next().await {
        buffer.extend_from_slice(&bytes);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let line = String::from_utf8(line).expect("text").trim_end().to_owned();
            if !line.is_empty() {
                lines.send_modify(|lines| lines.push(line));
            }
        }
    }
}

fn event(line: &str) -> Value {
    line.strip_prefix("data:").and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default()
}

/// A JSON list as the server wrote it, but with a line for each element.
fn one_per_line(list: &str) -> String {
    let elements: Vec<&RawValue> =
        serde_json::from_str(list).unwrap_or_else(|error| panic!("not a list: {error}: {list}"));
    let elements: Vec<&str> = elements.into_iter().map(RawValue::get).collect();
    format!("[\n{}\n]\n", elements.join(",\n"))
}
