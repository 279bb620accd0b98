//! A dashboard to look at, on a fake server that does what it is told.

use std::{path::Path, process::Stdio};

use opencode_conductor::{
    ConversationManager, SessionConversationState, SessionId,
    test_util::{FakeOpenCode, Script, ScriptedTool},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// A running dashboard; dropping it ends it.
pub(crate) struct Dashboard {
    /// Where it is, without the token.
    pub(crate) url: String,
    /// What it prints for people to open.
    pub(crate) entry: String,
    pub(crate) fake: FakeOpenCode,
    pub(crate) process: Child,
    _directory: TempDir,
}

impl Dashboard {
    /// On a fake server in this process, with a task for each prompt.
    pub(crate) async fn start<const N: usize>(tasks: [(&str, Script); N]) -> Self {
        let fake = FakeOpenCode::start().await.unwrap();
        let prompts = tasks.each_ref().map(|(prompt, _)| (*prompt).to_owned());
        let scripts = tasks.map(|(prompt, script)| (prompt.to_owned(), script));
        // Not in the prompts, since those are shown.
        fake.on_prompt(move |prompt| {
            let script =
                scripts.iter().find(|(text, _)| *text == prompt.text).map(|(_, script)| script.clone());
            script.unwrap_or_else(|| Script::says("Nobody told me."))
        });
        let directory = TempDir::new().unwrap();
        let server = ["--server".to_owned(), fake.url()];
        let mut command = command(directory.path());
        let (process, entry) = spawn(command.args(server).args(prompts)).await;
        let url = entry.split("/?").next().unwrap().to_owned();
        Self { url, entry, fake, process, _directory: directory }
    }

    /// What a browser has after it opened the address.
    pub(crate) fn cookie(&self) -> String {
        let (port, token) = (self.url.rsplit(':').next().unwrap(), self.token());
        format!("conductor-{port}={token}")
    }

    pub(crate) fn token(&self) -> &str {
        self.entry.split_once("/?token=").unwrap().1
    }

    /// A task's conversation, read from the server by another client.
    pub(crate) async fn loaded(&self, session: &str) -> SessionConversationState {
        let manager = ConversationManager::connect(&self.fake.url()).await.unwrap();
        let session = SessionId::new(session);
        manager.adopt_session("look", &session).await.unwrap();
        let state = manager.load_conversation(&session).await.unwrap();
        manager.shutdown().await;
        state
    }
}

pub(crate) fn command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conductor"));
    command.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(directory);
    command.env_remove("OPENCODE_SERVER_PASSWORD").stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// Starts a dashboard and waits for its address, with the token in it.
pub(crate) async fn spawn(command: &mut Command) -> (Child, String) {
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    let url = line.split(' ').next().unwrap().to_owned();
    assert!(url.starts_with("http://127.0.0.1:"), "{line:?}");
    (process, url)
}

/// A shell command that needs a permission.
pub(crate) fn asking(command: &str) -> ScriptedTool {
    let tool = ScriptedTool::new("bash", json!({"command": command}));
    tool.output(format!("did {command}")).asks("bash", command)
}

/// A question with two answers to choose from.
pub(crate) fn question(words: &str, labels: [&str; 2]) -> ScriptedTool {
    let options = labels.map(|label| json!({"label": label, "description": "as you like"}));
    let questions: Value = json!([{"header": "Choice", "question": words, "options": options}]);
    ScriptedTool::new("question", json!({"questions": questions}))
}
