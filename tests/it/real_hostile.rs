//! A hostile model on a real server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use opencode_conductor::{
    Completion, ConversationManager, CreateTaskSession, Decision, Directory, LaunchOptions, OpenCodeClient,
    OpenCodeServer, PermissionPolicy, PromptInput, SessionId,
    test_util::{Script, ScriptedTool, Step},
    worktree::Worktrees,
};
use serde_json::{Value, json};

use super::{
    model::ScriptedModel,
    real::{RealOptions, RealServer},
    support::{
        secrets::{self, PASSWORD, checked},
        soon,
        stage::{bash, ms, task, texts},
    },
};

/// No turn takes longer, of a cold server on a machine with much else to do.
const TURN_LIMIT: Duration = Duration::from_secs(150);

struct House {
    server: RealServer,
    _model: ScriptedModel,
}

impl House {
    /// `None` without a server on this machine.
    async fn open() -> Option<Self> {
        let executable = RealServer::find()?;
        let model = ScriptedModel::start().await;
        let permission = json!({"bash": {"*": "ask"}, "edit": "allow"});
        let options = RealOptions::new(executable, model.base_url())
            .password(PASSWORD)
            .config(json!({"permission": permission}));
        Some(Self { server: RealServer::start(options).await, _model: model })
    }

    fn manager(&self, policy: PermissionPolicy) -> ConversationManager {
        let client = secrets::client(self.server.url()).build().unwrap();
        ConversationManager::builder(client).permissions(policy).build()
    }

    fn project(&self) -> PathBuf {
        self.server.project(0)
    }

    async fn session(&self, manager: &ConversationManager, task: &str) -> SessionId {
        let request = CreateTaskSession::new("project", task, self.project(), self.project());
        checked(manager.create_task_session(request).await).unwrap().session_id
    }
}

/// A model that resumes a session of another task makes its command run there. No policy here may allow that.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_model_merely_names_is_not_answered_for() {
    let Some(house) = House::open().await else { return };
    let manager = house.manager(PermissionPolicy::AllowAlways);
    let (session, stranger) = (house.session(&manager, "own").await, house.session(&manager, "theirs").await);
    let file = house.project().join("stranger");
    let own = Script::new([bash(&format!("touch {}", file.display()), ""), Step::text("theirs")]);
    let mut resumed = task(&own);
    resumed.args["task_id"] = stranger.as_str().into();
    let script = Script::new([Step::tool(resumed), Step::text("never")]);
    let running = manager.prompt(PromptInput::new(session.clone(), script.prompt("do it"))).start();
    let api = manager.client().unwrap().directory(&Directory::new(house.project()).unwrap());
    let asks = async || {
        let asked = api.permissions().await.unwrap().items;
        asked.iter().any(|request| request.session_id == stranger)
    };
    while !soon(asks()).await {
        tokio::time::sleep(ms(50)).await;
    }
    // A whole turn of another task later it is still unanswered.
    let other = house.session(&manager, "meanwhile").await;
    let meanwhile =
        soon(manager.prompt(PromptInput::new(other, texts("fine").prompt("do it"))).into_future());
    assert_eq!(meanwhile.await.unwrap().completion, Completion::Settled);
    assert!(soon(asks()).await, "it is for the stranger's owner to answer");
    let report = soon(manager.abort(&session)).await.unwrap();
    assert_eq!(report.sessions, std::slice::from_ref(&session));
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Aborted);
    assert!(result.usage_by_session.keys().all(|counted| *counted == session));
    assert!(!file.exists(), "the stranger's command did not run");
}

fn git(directory: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]).args(words);
    let output = command.env("GIT_CONFIG_GLOBAL", "/dev/null").current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An agent that may only edit files writes a git directory of its own, and points the worktree to it. A program that then runs `git status` there
/// runs its command.
#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_runs_nothing_that_an_agent_wrote_with_edit_alone() {
    let Some(house) = House::open().await else { return };
    let place = tempfile::tempdir().unwrap();
    let (repository, marker) = (place.path().join("repository"), place.path().join("marker"));
    fs::create_dir(&repository).unwrap();
    fs::copy(house.project().join("opencode.json"), repository.join("opencode.json")).unwrap();
    git(&repository, &["init", "--quiet"]);
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "--quiet", "--message=m"]);
    let worktrees = Worktrees::of(&repository).await.unwrap();
    let worktree = worktrees.make(place.path().join("w")).await.unwrap();

    let write = |name: &str, content: String| {
        let path = worktree.path().join(name);
        Step::tool(ScriptedTool::new("write", json!({"filePath": path, "content": content})))
    };
    let config =
        format!("[core]\n\trepositoryformatversion = 0\n\tfsmonitor = \"touch {};\"\n", marker.display());
    let script = Script::new([
        write("evil/config", config),
        write("evil/HEAD", "ref: refs/heads/main\n".to_owned()),
        write("evil/objects/x", "x".to_owned()),
        write("evil/refs/x", "x".to_owned()),
        write(".git", format!("gitdir: {}\n", worktree.path().join("evil").display())),
        Step::text("done"),
    ]);
    // No person is asked: bash is not needed.
    let manager = house.manager(PermissionPolicy::FailTurn);
    let request = CreateTaskSession::new("project", "evil", &repository, worktree.path());
    let session = checked(manager.create_task_session(request).await).unwrap().session_id;
    let turn = manager.prompt(PromptInput::new(session, script.prompt("do it"))).into_future();
    let result = tokio::time::timeout(TURN_LIMIT, turn).await.expect("it ends in time");
    assert_eq!(result.unwrap().completion, Completion::Settled);
    manager.shutdown().await;
    // The server looks after its snapshots with git, too, and is not what this is about.
    drop(house);
    drop(fs::remove_file(&marker));

    let written = fs::read_to_string(worktree.path().join(".git")).unwrap();
    assert!(written.contains("evil"), "the agent could do it: {written}");
    let work = worktree.work().await.unwrap();
    assert!(work.files.iter().any(|name| name.starts_with("evil/")), "{work:?}");
    assert!(worktree.remove(opencode_conductor::worktree::IgnoredFiles::Discard).await.is_err());
    assert!(!marker.exists(), "the agent's command was run");
    git(worktree.path(), &["status"]);
    assert!(marker.exists(), "the test can tell");
}

/// Patterns are what the server made of a command. What a person has to see is the command.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_asked_gets_the_command_in_full() {
    let Some(house) = House::open().await else { return };
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asks = Arc::clone(&asked);
    let manager = house.manager(PermissionPolicy::ask(move |ask| {
        asks.lock().unwrap().push(ask.permission().unwrap().clone());
        async { Decision::Reject("no".to_owned()) }
    }));
    let session = house.session(&manager, "asks").await;
    let command = "cd . && touch 'a\u{202e}b' &&\n  echo \"$(rm -f c)\" # d";
    let script = Script::new([bash(command, ""), Step::text("done")]);
    let result = soon(manager.prompt(PromptInput::new(session, script.prompt("do it"))).into_future()).await;
    assert_eq!(result.unwrap().completion, Completion::Settled);
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].metadata["command"], command);
    assert!(!asked[0].patterns.iter().any(|pattern| pattern == command), "{:?}", asked[0].patterns);
    assert!(!asked[0].always.is_empty());
}

/// The outputs of all tools of a session.
fn outputs(messages: &Value) -> String {
    let parts = messages.as_array().unwrap().iter().flat_map(|message| message["parts"].as_array().unwrap());
    parts.filter_map(|part| part["state"]["output"].as_str()).collect()
}

/// A model that lists its environment sees neither the password of the API nor what the caller's process has.
#[tokio::test(flavor = "multi_thread")]
async fn the_password_and_the_callers_variables_do_not_reach_tools() {
    if RealServer::find().is_none() {
        return;
    }
    let model = ScriptedModel::start().await;
    let place = tempfile::tempdir().unwrap();
    let project = place.path().canonicalize().unwrap().join("project");
    fs::create_dir(&project).unwrap();
    git(&project, &["init", "--quiet"]);
    let provider = json!({"npm": "@ai-sdk/openai-compatible", "name": "Mock",
        "options": {"baseURL": model.base_url(), "apiKey": "x"},
        "models": {"m": {"name": "M", "tool_call": true, "limit": {"context": 100_000, "output": 10_000}}}});
    let options = LaunchOptions::new()
        .env_allow(["PATH", "OPENCODE_BIN"])
        .env("HOME", place.path())
        .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
        .env("WANTED", "yes")
        .password(PASSWORD)
        .directory(&project)
        .config(
            json!({"share": "disabled", "model": "mock/m", "small_model": "mock/m", "permission": "allow",
            "provider": {"mock": provider}}),
        );
    let server = soon(OpenCodeServer::launch(options)).await.unwrap();
    let manager = ConversationManager::builder(server.client().clone()).build();
    let request = CreateTaskSession::new("project", "env", &project, &project);
    let session = manager.create_task_session(request).await.unwrap().session_id;
    let script = Script::new([bash("env", ""), Step::text("done")]);
    let input = PromptInput::new(session.clone(), script.prompt("do it"));
    let result = soon(manager.prompt(input).into_future()).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    let messages = serde_json::to_value(result.messages.opencode()).unwrap();
    let listed = outputs(&messages);
    assert!(listed.contains("WANTED=yes"), "{listed}");
    assert!(!listed.contains(PASSWORD), "the password is not for tools");
    // Of this process's own there are many, and cargo's are always among them.
    assert!(
        std::env::vars().any(|(name, _)| name.starts_with("CARGO")) && !listed.contains("CARGO"),
        "{listed}"
    );
    // It still guards the API.
    let wrong = OpenCodeClient::builder(&server.url()).basic_auth("opencode", "wrong").build().unwrap();
    assert_eq!(wrong.health().await.unwrap_err().status(), Some(401));
    manager.shutdown().await;
    soon(server.shutdown()).await;
}
