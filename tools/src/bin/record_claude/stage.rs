//! One scenario's home, project, model and processes, and how they are written down.

#![expect(clippy::expect_used, reason = "a recording that cannot be made should stop the recorder")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use opencode_conductor::test_util::Script;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{anthropic::AnthropicModel, host::Host};

/// A picture of one pixel.
pub(crate) const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

pub(crate) struct Stage {
    claude: PathBuf,
    base: TempDir,
    model: AnthropicModel,
    pub(crate) session: String,
    /// Processes that have ended, by what they said.
    ended: Vec<Vec<String>>,
    pub(crate) host: Host,
    prompts: usize,
}

impl Stage {
    pub(crate) async fn set(claude: &Path) -> Self {
        let base = tempfile::tempdir().expect("make a directory");
        fs::create_dir_all(base.path().join("home")).expect("make a home");
        fs::create_dir_all(base.path().join("project")).expect("make a project");
        fs::write(base.path().join("project/hello.txt"), "hello\nworld\n").expect("write a file");
        let model = AnthropicModel::start().await;
        let session = "00000000-0000-4000-8000-000000000001".to_owned();
        let host = Self::process(claude, &base, &model, &["--session-id", &session]);
        Self { claude: claude.to_owned(), base, model, session, ended: Vec::new(), host, prompts: 0 }
    }

    fn process(claude: &Path, base: &TempDir, model: &AnthropicModel, session: &[&str]) -> Host {
        let (home, project) = (base.path().join("home"), base.path().join("project"));
        Host::start(claude, &home, &project, model.base_url(), session)
    }

    /// The project's path, for tools that want one.
    pub(crate) fn path(&self, name: &str) -> String {
        self.base.path().join("project").join(name).display().to_string()
    }

    /// Goes on with another process.
    pub(crate) fn resume(&mut self, flags: &[&str]) {
        let resumed = self.session.clone();
        let arguments: Vec<&str> = ["--resume", &resumed].into_iter().chain(flags.iter().copied()).collect();
        let next = Self::process(&self.claude, &self.base, &self.model, &arguments);
        let before = std::mem::replace(&mut self.host, next);
        self.ended.push(before.said);
    }

    /// Goes on in a copy of the session, of which the recording then is.
    pub(crate) fn fork(&mut self) {
        let copy = "00000000-0000-4000-8000-000000000002".to_owned();
        self.resume(&["--fork-session", "--session-id", &copy]);
        self.session = copy;
    }

    /// Sends a prompt that makes the model play a script.
    pub(crate) async fn script(&mut self, words: &str, script: &Script) {
        self.say(json!([{"type": "text", "text": script.prompt(words)}])).await;
    }

    pub(crate) async fn say(&mut self, content: Value) {
        self.prompts += 1;
        let uuid = format!("00000000-0000-4000-8000-1{:011}", self.prompts);
        self.host.prompt(&uuid, content).await;
    }

    /// Sends the last prompt once more, under its id.
    pub(crate) async fn again(&mut self, words: &str, script: &Script) {
        self.prompts -= 1;
        self.script(words, script).await;
    }

    /// Writes down what was said and what is on disk.
    pub(crate) async fn save(mut self, directory: &Path) -> usize {
        self.host.end().await;
        self.ended.push(std::mem::take(&mut self.host.said));
        if directory.exists() {
            fs::remove_dir_all(directory).expect("remove the old recording");
        }
        fs::create_dir_all(directory).expect("make the recording's directory");
        let mut lines = 0;
        for (number, said) in self.ended.iter().enumerate() {
            lines += said.len();
            let text: String =
                said.iter().map(|line| neutral(&self.base, &self.model, &slim(line))).collect();
            fs::write(directory.join(format!("stream-{}.jsonl", number + 1)), text)
                .expect("write the stream");
        }
        let projects = self.base.path().join("home/.claude/projects");
        let project =
            fs::read_dir(projects).expect("a transcript").next().expect("a project").expect("a project");
        let main = project.path().join(format!("{}.jsonl", self.session));
        lines += copy(&self.base, &self.model, &main, &directory.join("transcript.jsonl"));
        let subagents = project.path().join(&self.session).join("subagents");
        for file in fs::read_dir(&subagents).into_iter().flatten() {
            let file = file.expect("a subagent's file").path();
            let name = file.file_name().expect("a name").to_string_lossy().into_owned();
            fs::create_dir_all(directory.join("subagents")).expect("make the subagents' directory");
            lines += copy(&self.base, &self.model, &file, &directory.join("subagents").join(name));
        }
        lines
    }
}

/// Copies a transcript; returns how many lines it has.
pub(crate) fn copy(base: &TempDir, model: &AnthropicModel, from: &Path, to: &Path) -> usize {
    let text = fs::read_to_string(from).expect("read a transcript");
    let lines: Vec<String> = text.lines().map(|line| neutral(base, model, &slim(line))).collect();
    fs::write(to, lines.concat()).expect("write a transcript");
    lines.len()
}

/// A line without this machine's paths and ports.
fn neutral(base: &TempDir, model: &AnthropicModel, line: &str) -> String {
    let base = base.path().display().to_string();
    let slug: String = base.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let line = line.replace(&base, "/home/user").replace(&slug, "-home-user");
    let port = model.base_url().rsplit_once(':').map_or("", |(_, port)| port);
    format!("{}\n", line.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:1234"))
}

/// A line without the vendor's texts; what people, models and tools said stays to the byte.
fn slim(line: &str) -> String {
    let mut value: Value = serde_json::from_str(line).expect("a line of JSON");
    let kind = value["type"].as_str().unwrap_or_default().to_owned();
    match (kind.as_str(), value["subtype"].as_str().unwrap_or_default()) {
        ("system", "init") => {
            let keep = [
                "type",
                "subtype",
                "session_id",
                "cwd",
                "model",
                "permissionMode",
                "claude_code_version",
                "uuid",
            ];
            retain(&mut value, &keep);
        }
        ("attachment", _) if value["attachment"]["type"] != "queued_command" => {
            let attached = value["attachment"]["type"].clone();
            value["attachment"] = json!({"type": attached, "cut": true});
            retain(&mut value, &["type", "attachment", "uuid", "parentUuid", "timestamp", "isSidechain"]);
        }
        (
            "user"
            | "assistant"
            | "system"
            | "stream_event"
            | "result"
            | "attachment"
            | "cost-state"
            | "command_lifecycle"
            | "control_request"
            | "control_response"
            | "control_cancel_request",
            _,
        ) => {
            return line.to_owned();
        }
        _ if value["agentType"].is_string() => return line.to_owned(),
        _ => retain(&mut value, &["type", "sessionId", "timestamp"]),
    }
    value.to_string()
}

fn retain(value: &mut Value, keep: &[&str]) {
    if let Value::Object(fields) = value {
        fields.retain(|name, _| keep.contains(&name.as_str()));
    }
}
