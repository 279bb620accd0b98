//! A process of Claude Code, spoken to over its standard streams.

#![expect(clippy::expect_used, reason = "a recording that cannot be made should stop the recorder")]

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// No scenario has a silence longer than this before the thing it waits for.
const LIMIT: Duration = Duration::from_secs(90);

const FLAGS: [&str; 12] = [
    "-p",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    "--replay-user-messages",
    "--forward-subagent-text",
    "--permission-prompt-tool",
    "stdio",
    "--allowedTools",
];

/// How a request for permission is answered.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Allow,
    Deny,
    DenyAndInterrupt,
    Choose(&'static str),
}

pub(crate) struct Host {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    /// What it said, line by line.
    pub(crate) said: Vec<String>,
    pub(crate) answer: Answer,
}

impl Host {
    pub(crate) fn start(claude: &Path, home: &Path, project: &Path, model: &str, session: &[&str]) -> Self {
        let mut command = Command::new(claude);
        command.args(FLAGS).arg("Bash(echo *),Bash(sleep *),Bash(false),Read,Agent").args(session);
        command.current_dir(project).env_clear().kill_on_drop(true);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env("PATH", path).env("HOME", home).env("LANG", "C.UTF-8").env("TERM", "dumb");
        command.env("ANTHROPIC_BASE_URL", model).env("ANTHROPIC_API_KEY", "sk-ant-dummy");
        for name in [
            "DISABLE_TELEMETRY",
            "DISABLE_ERROR_REPORTING",
            "DISABLE_AUTOUPDATER",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS",
        ] {
            command.env(name, "1");
        }
        command.env("CLAUDE_CODE_MAX_RETRIES", "3");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("start Claude Code");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("its standard output")).lines();
        Self { child, stdin, stdout, said: Vec::new(), answer: Answer::Allow }
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("its standard input");
        stdin.write_all(format!("{message}\n").as_bytes()).await.expect("write to Claude Code");
        stdin.flush().await.expect("write to Claude Code");
    }

    pub(crate) async fn prompt(&mut self, uuid: &str, content: Value) {
        let message = json!({"role": "user", "content": content});
        let line = json!({"type": "user", "uuid": uuid, "message": message, "parent_tool_use_id": null, "session_id": ""});
        self.send(&line).await;
    }

    pub(crate) async fn interrupt(&mut self) {
        let request = json!({"subtype": "interrupt"});
        self.send(&json!({"type": "control_request", "request_id": "host-1", "request": request})).await;
    }

    /// Reads until a line is as wanted; answers what is asked meanwhile.
    pub(crate) async fn wait(&mut self, is_wanted: impl Fn(&Value) -> bool) {
        loop {
            let line = timeout(LIMIT, self.stdout.next_line()).await.expect("Claude Code says something");
            let line = line.expect("read what Claude Code says").expect("Claude Code goes on");
            let value: Value = serde_json::from_str(&line).expect("a line of JSON");
            self.said.push(line);
            if value["type"] == "control_request" {
                self.reply(&value).await;
            }
            if is_wanted(&value) {
                return;
            }
        }
    }

    pub(crate) async fn result(&mut self) {
        self.wait(|line| line["type"] == "result").await;
    }

    pub(crate) async fn idle(&mut self) {
        self.wait(|line| line["subtype"] == "session_state_changed" && line["state"] == "idle").await;
    }

    pub(crate) async fn delta(&mut self, text: &str) {
        self.wait(|line| line["event"]["delta"]["text"].as_str().is_some_and(|delta| delta.contains(text)))
            .await;
    }

    pub(crate) async fn tool(&mut self) {
        self.wait(|line| line["type"] == "assistant" && line["message"]["content"][0]["type"] == "tool_use")
            .await;
    }

    async fn reply(&mut self, request: &Value) {
        let input = &request["request"]["input"];
        let answer = match self.answer {
            Answer::Allow => json!({"behavior": "allow", "updatedInput": input}),
            Answer::Deny => json!({"behavior": "deny", "message": "not today"}),
            Answer::DenyAndInterrupt => {
                json!({"behavior": "deny", "message": "not today", "interrupt": true})
            }
            Answer::Choose(label) => {
                let question = input["questions"][0]["question"].as_str().unwrap_or_default();
                let mut input = input.clone();
                input["answers"] = json!({question: label});
                json!({"behavior": "allow", "updatedInput": input})
            }
        };
        let response = json!({"subtype": "success", "request_id": request["request_id"], "response": answer});
        self.send(&json!({"type": "control_response", "response": response})).await;
    }

    /// Lets it finish.
    pub(crate) async fn end(&mut self) {
        drop(self.stdin.take());
        while let Ok(Some(line)) = timeout(LIMIT, self.stdout.next_line()).await.expect("Claude Code ends") {
            self.said.push(line);
        }
        timeout(LIMIT, self.child.wait()).await.expect("Claude Code ends").expect("wait for Claude Code");
    }

    /// Kills it; what it had said and was not read is lost.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.expect("kill Claude Code");
    }
}
