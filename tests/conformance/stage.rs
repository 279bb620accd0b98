//! What scenarios are written with: requests, waiting, and notes that become the comparable record.

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    events::Events,
    normal::Record,
    target::{Answer, Target, send},
};

pub(crate) struct Stage<'a> {
    pub(crate) target: &'a mut Target,
    pub(crate) events: Events,
    /// The directory that requests name.
    directory: String,
    record: Record,
    counter: usize,
    /// Makes ids unique among the scenarios of one server.
    scenario: String,
}

impl<'a> Stage<'a> {
    pub(crate) async fn open(target: &'a mut Target, scenario: &str) -> Self {
        let directory = target.directory(0);
        let events = open_events(target, &directory).await;
        let mut record = Record::new();
        record.replace(target.directory(1), "<dir2>");
        record.replace(target.directory(0), "<dir>");
        Self { target, events, directory, record, counter: 0, scenario: scenario.replace('_', "") }
    }

    /// The directory above the projects, in which the server keeps its own files.
    pub(crate) fn home(&mut self) -> String {
        let home = self.target.home();
        self.record.replace(home.clone(), "<home>");
        home
    }

    /// Goes on in another directory.
    pub(crate) async fn enter(&mut self, directory: String) {
        self.record.replace(directory.clone(), "<here>");
        self.directory = directory;
        self.listen_again().await;
    }

    /// Opens the event stream anew.
    pub(crate) async fn listen_again(&mut self) {
        self.events = open_events(self.target, &self.directory).await;
    }

    /// Notes something worth comparing.
    pub(crate) fn note(&mut self, label: &str, value: impl Into<Value>) {
        self.record.note(label, value.into());
    }

    /// Leaves the events out of the record, where chance decides which there are.
    pub(crate) fn forget_turns(&mut self) {
        self.record.forget_events();
    }

    /// Notes an answer: status, kind of content, body.
    pub(crate) fn note_answer(&mut self, label: &str, answer: &Answer) {
        let content_type = answer.header("content-type").unwrap_or_default();
        let kind = content_type.split(';').next().unwrap_or_default();
        let body = match kind {
            "application/json" => answer.json(),
            "text/html" => "a page".into(),
            _ => answer.text.clone().into(),
        };
        self.note(label, json!({"status": answer.status, "type": kind, "body": body}));
    }

    /// The record of this scenario: notes, the lanes of all sessions seen and their final messages.
    pub(crate) async fn finish(mut self) -> Value {
        self.marker_turn().await;
        let sessions = self.record.sessions_of(&self.events.seen());
        for session in sessions {
            let list = self.get(&format!("/session/{session}/message")).await;
            if list.status == 200 {
                self.record.messages(&session, list.json());
            }
        }
        self.record.finish(&self.events.seen())
    }

    /// A whole small turn elsewhere: whatever the scenario still had coming is here before its end.
    async fn marker_turn(&mut self) {
        let created = self.post("/session", &json!({"title": "marker"})).await.json();
        let marker = created["id"].as_str().expect("a session").to_owned();
        self.record.ignore(&marker);
        self.prompt(&marker, &Script::new([Step::text("marker")])).await;
        self.idle(&marker, 1).await;
    }

    // ── Requests ────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = self.target.request(Method::GET, path);
        send(request.query(&[("directory", &self.directory)])).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let request = self.target.request(Method::POST, path);
        send(request.query(&[("directory", &self.directory)]).json(body)).await
    }

    pub(crate) async fn session(&mut self) -> String {
        self.session_with(json!({})).await
    }

    pub(crate) async fn session_with(&mut self, mut body: Value) -> String {
        if body["title"].is_null() {
            body["title"] = "t".into();
        }
        let created = self.post("/session", &body).await.json();
        let id = created["id"].as_str().expect("a session").to_owned();
        self.record.name_session(&id);
        id
    }

    /// Prompts with fresh ids of the client's making; returns the body, to post it again.
    pub(crate) async fn prompt(&mut self, session: &str, script: &Script) -> Value {
        let body = self.prompt_body(&script.prompt("do"));
        let answer = self.post_prompt(session, &body).await;
        assert_eq!(answer.status, 204, "{}", answer.text);
        body
    }

    /// Prompts and waits for one idle.
    pub(crate) async fn turn(&mut self, session: &str, steps: impl IntoIterator<Item = Step>) -> Value {
        let idles = self.idles(session);
        let body = self.prompt(session, &Script::new(steps)).await;
        self.idle(session, idles + 1).await;
        body
    }

    pub(crate) fn prompt_body(&mut self, text: &str) -> Value {
        let (message, part) = (self.id("msg"), self.id("prt"));
        json!({"messageID": message, "parts": [{"id": part, "type": "text", "text": text}]})
    }

    pub(crate) async fn post_prompt(&self, session: &str, body: &Value) -> Answer {
        self.post(&format!("/session/{session}/prompt_async"), body).await
    }

    /// An id that sorts before the server's own.
    pub(crate) fn id(&mut self, prefix: &str) -> String {
        self.counter += 1;
        format!("{prefix}_0{:03}{}", self.counter, self.scenario)
    }

    pub(crate) async fn abort(&mut self, session: &str) {
        let answer = self.post(&format!("/session/{session}/abort"), &json!({})).await;
        self.note_answer("abort", &answer);
    }

    // ── Waiting ─────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn idles(&self, session: &str) -> usize {
        count(&self.events.seen(), "session.idle", session)
    }

    /// Waits for the n-th idle of a session in this scenario.
    pub(crate) async fn idle(&mut self, session: &str, n: usize) {
        self.event("session.idle", session, n).await;
    }

    /// Waits for the n-th event of a kind for a session.
    pub(crate) async fn event(&mut self, kind: &str, session: &str, n: usize) {
        let what = format!("{n} × {kind} of {session}");
        self.events.wait(&what, |seen| count(seen, kind, session) >= n).await;
    }

    /// Waits for an event and returns its properties.
    pub(crate) async fn find(&mut self, what: &str, is: impl Fn(&str, &Value) -> bool) -> Value {
        let is = |event: &Value| is(event["type"].as_str().unwrap_or_default(), &event["properties"]);
        self.events.wait(what, |seen| seen.iter().any(is)).await;
        let found = self.events.seen().into_iter().find(is).expect("it was seen");
        found["properties"].clone()
    }

    /// Waits until a prompt is stored.
    pub(crate) async fn stored(&mut self, body: &Value) {
        let is = |kind: &str, properties: &Value| {
            kind == "message.part.updated" && properties["part"]["id"] == body["parts"][0]["id"]
        };
        self.find("the stored prompt", is).await;
    }

    /// A tool that runs until the gate of this name is opened.
    pub(crate) fn gated_tool(&mut self, gate: &str) -> ScriptedTool {
        let command = self.target.gate_command(gate);
        self.record.replace(command.clone(), "<gate>");
        bash(&command, "").gate(gate)
    }

    /// Waits until a tool runs.
    pub(crate) async fn tool_running(&mut self, session: &str) {
        let is = |kind: &str, properties: &Value| {
            let part = &properties["part"];
            kind == "message.part.updated"
                && part["sessionID"] == session
                && part["state"]["status"] == "running"
        };
        self.find("a running tool", is).await;
    }

    pub(crate) async fn status_of(&self, session: &str) -> Value {
        self.get("/session/status").await.json()[session].clone()
    }
}

pub(crate) async fn open_events(target: &Target, directory: &str) -> Events {
    let request = target.request(Method::GET, "/event");
    Events::open(request.query(&[("directory", directory)])).await
}

fn count(seen: &[Value], kind: &str, session: &str) -> usize {
    let is = |event: &&Value| event["type"] == kind && event["properties"]["sessionID"] == session;
    seen.iter().filter(is).count()
}

// ── Scripts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

pub(crate) fn bash(command: &str, output: &str) -> ScriptedTool {
    ScriptedTool::new("bash", json!({"command": command, "description": "d"})).output(output)
}

pub(crate) fn task(description: &str, agent: &str, steps: impl IntoIterator<Item = Step>) -> ScriptedTool {
    let prompt = Script::new(steps).prompt("do");
    ScriptedTool::new("task", json!({"description": description, "prompt": prompt, "subagent_type": agent}))
}

/// A step that calls these tools.
pub(crate) fn calls(tools: impl IntoIterator<Item = ScriptedTool>) -> Step {
    Step::tools(tools)
}
