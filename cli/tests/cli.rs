//! `conductor` as a person runs it: what it prints, what it says about mistakes, and how it exits.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test should stop")]

#[path = "../../tests/support/model.rs"]
mod model;
#[path = "../../tests/support/real.rs"]
mod real;
mod terminal;

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    thread::JoinHandle,
    time::Duration,
};

use opencode_conductor::{
    Directory, OpenCodeClient, WaitOptions,
    test_util::{
        ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude, FakeOpenCode, FakeOptions, Fault, Log, Route,
        Script, ScriptedTool, Step,
    },
    wire::PermissionReply,
};
use rustix::{
    process::{Pid, Signal, kill_process},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::timeout,
};
use unicode_width::UnicodeWidthStr;

/// How long a program may take before something is wrong with it.
const PATIENCE: Duration = Duration::from_secs(400);

/// How a program ended.
struct Ended {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn new(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "status {}\n{}\n{}", self.status, self.stdout, self.stderr)
    }
}

/// A command, without anything of the caller's surroundings that changes what it does.
fn conductor(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conductor"));
    command.arg(name).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    for name in ["OPENCODE_BIN", "OPENCODE_SERVER_PASSWORD", "CLAUDE_BIN", "CLAUDE_CONFIG_DIR"] {
        command.env_remove(name);
    }
    command
}

async fn run(mut command: Command) -> Ended {
    Ended::new(timeout(PATIENCE, command.output()).await.expect("ends in time").unwrap())
}

fn says(text: &str) -> String {
    Script::says(text).prompt("do it")
}

#[tokio::test]
async fn a_whole_task_is_shown_without_a_server() {
    let ended = run(conductor("run", &[])).await;
    assert_eq!(ended.status, 0, "{ended}");
    assert_eq!(ended.stderr, "");
    let shown = [
        "❯ parse_amount accepts negative amounts.",
        "✻ Amounts are parsed in one place.",
        "✓ read src/amount.rs",
        "✓ @explore Find callers of parse_amount",
        "│ ✓ grep",
        "✗ edit src/amount.rs",
        "All four tests of the module pass.",
        "✓ settled in",
        "6 steps · 7 tool calls · 1 subagent",
        "tokens",
        "cost",
    ];
    for words in shown {
        assert!(ended.stdout.contains(words), "{words:?} is missing in {ended}");
    }
    assert!(!ended.stdout.contains('\x1b'), "colours without a terminal: {ended}");
}

#[tokio::test]
async fn a_task_is_printed_as_one_json_object() {
    let ended = run(conductor("run", &["--json", "--task", "t1", &says("Hello.")])).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
    let report = ended.json();
    assert_eq!(report["answer"], "Hello.");
    assert_eq!(report["completion"], json!({"type": "settled", "retryable": false}));
    assert_eq!(report["submission"]["prompt"], says("Hello."));
    assert_eq!((&report["taskId"], &report["refused"]), (&json!("t1"), &json!([])));
    assert_eq!(report["messages"].as_array().unwrap().len(), 1);
    assert_eq!(report["usage"]["tokens"]["input"], 10);
    for counter in ["requests", "bytesReceived", "feedBytes"] {
        assert!(report["client"][counter].as_u64().unwrap() > 0, "{counter}: {ended}");
    }
    assert_eq!(report["client"]["reconnects"], 0);
}

#[tokio::test]
async fn what_was_changed_and_refused_is_said() {
    let write = ScriptedTool::new("write", json!({"filePath": "a.txt", "content": "one\ntwo\n"}));
    let refused = |n: usize| {
        let command = format!("touch {n}");
        Step::tool(ScriptedTool::new("bash", json!({"command": command})).asks("bash", command))
    };
    let steps = [Step::tool(write)].into_iter().chain((1..=4).map(refused)).chain([Step::text("Done.")]);
    let prompt = Script::new(steps).prompt("do it");
    let words = "4 requests: bash touch 1 · bash touch 2 · bash touch 3 · …";
    let ended = run(conductor("run", &[&prompt])).await;
    assert_eq!(ended.status, 0, "{ended}");
    assert!(ended.stdout.contains("\n  changed a.txt new +2 −0\n"), "{ended}");
    assert!(ended.stdout.contains(&format!("\n  refused {words}\n")), "{ended}");
    let ended = run(conductor("fleet", &[&prompt, &says("Nothing to do.")])).await;
    assert!(ended.stdout.contains(&format!("\ntask-01 was refused {words}\n")), "{ended}");
    assert!(!ended.stdout.contains("task-02 was refused"), "{ended}");
    let ended = run(conductor("run", &[&says("Nothing to do.")])).await;
    assert!(!ended.stdout.contains("changed") && !ended.stdout.contains("refused"), "{ended}");
}

#[tokio::test]
async fn a_failed_task_is_reported_and_exits_with_1() {
    let prompt = Script::new([Step::error(400)]).prompt("do it");
    let ended = run(conductor("run", &["--json", &prompt])).await;
    assert_eq!(ended.status, 1, "{ended}");
    assert_eq!(ended.json()["completion"]["type"], "failed");
    assert_eq!(ended.json()["answer"], Value::Null);
    let ended = run(conductor("run", &["--agent", "nobody", "--json", "hello"])).await;
    assert_eq!(ended.status, 1, "{ended}");
    let report = ended.json();
    assert_eq!((&report["completion"]["type"], &report["submission"]), (&json!("notRun"), &Value::Null));
    assert!(report["completion"]["reason"].is_string() && report["elapsedMs"].is_u64(), "{ended}");
}

#[tokio::test]
async fn what_could_not_be_tried_is_one_json_object_too() {
    let elsewhere = TempDir::new().unwrap();
    let rows: &[(&str, &[&str], &str)] = &[
        ("run", &["--server", "http://127.0.0.1:1", "hi"], "no server at http://127.0.0.1:1"),
        ("run", &["--task", " "], "task id must not be empty"),
        ("fleet", &["--server", "http://127.0.0.1:1", "hi"], "no server at http://127.0.0.1:1"),
        ("fleet", &["--directory", elsewhere.path().to_str().unwrap()], "is not a git repository"),
    ];
    for (name, arguments, words) in rows {
        let ended = run(conductor(name, &[&["--json"], *arguments].concat())).await;
        assert_eq!(ended.status, 2, "{ended}");
        let completion = &ended.json()["completion"];
        assert_eq!(completion["type"], "noSession", "{ended}");
        assert!(completion["message"].as_str().unwrap().contains(words), "{words:?} is missing in {ended}");
        assert!(ended.stderr.contains(words), "{ended}");
    }
}

#[tokio::test]
async fn mistakes_get_one_line_and_2() {
    let nowhere = TempDir::new().unwrap();
    let no_repository = nowhere.path().to_str().unwrap();
    let missing = nowhere.path().join("missing");
    let missing = missing.to_str().unwrap();
    let guarded = FakeOpenCode::start_with(FakeOptions::new().password("right")).await.unwrap();
    let guarded = guarded.url();
    let (free, listener) = ("127.0.0.1:0", TcpListener::bind("127.0.0.1:0").await.unwrap());
    let taken = listener.local_addr().unwrap().to_string();
    let rows: &[(&str, &[&str], &str)] = &[
        ("rnu", &[], "there is no command 'rnu'"),
        ("completions", &[], "no shell given"),
        ("completions", &["cmd.exe"], "choose bash"),
        ("run", &["--jsn"], "did you mean --json?"),
        ("run", &["--bogus"], "invalid option '--bogus'"),
        ("run", &["-x"], "invalid option '-x'"),
        ("run", &["one", "two"], "put it in quotes"),
        ("run", &[" "], "the prompt is empty"),
        ("run", &["--server"], "missing argument for option '--server'"),
        ("run", &["--server", "http://127.0.0.1:1", "hi"], "no server at http://127.0.0.1:1"),
        ("run", &["--server", "nonsense", "hi"], "must be a valid URL"),
        ("run", &["--server", &guarded, "hi"], "wants a password"),
        ("run", &["--server", &guarded, "--password-env", "WRONG", "hi"], "refuses the password"),
        ("run", &["--password-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE of --password-env is not set"),
        ("run", &["--managed"], "say what to do"),
        ("run", &["--managed", "hi"], "cannot find the executable"),
        ("run", &["--managed", "--server", "http://127.0.0.1:1", "hi"], "choose one server"),
        (
            "run",
            &["--server", "http://127.0.0.1:1", "--server", "http://127.0.0.1:2", "hi"],
            "choose one server",
        ),
        ("run", &["--agent-kind", "claude"], "say what to do"),
        ("run", &["--agent-kind", "claude", "hi"], "npm install -g @anthropic-ai/claude-code"),
        ("run", &["--agent-kind", "claude", "--managed", "hi"], "choose one server"),
        ("run", &["--agent-kind", "nobody", "hi"], "choose opencode or claude"),
        ("run", &["--directory", missing], "there is no such directory"),
        ("run", &["--task", " "], "task id must not be empty"),
        ("run", &["--model", "m"], "provider/model"),
        ("run", &["--idle-timeout", "0"], "a number of seconds above 0"),
        ("run", &["--timeout", "soon"], "a number of seconds above 0"),
        ("run", &["--permission", "perhaps"], "choose allow, reject or ask"),
        ("fleet", &["--bogus"], "invalid option '--bogus'"),
        ("fleet", &["--tasks", "0"], "a number from 1 to"),
        ("fleet", &["--concurrency", "-1"], "a number from 1 to"),
        ("fleet", &["--directory", no_repository], "is not a git repository"),
        ("fleet", &["--directory", missing], "there is no such directory"),
        ("fleet", &["--server", "http://127.0.0.1:1", "hi"], "no server at http://127.0.0.1:1"),
        ("fleet", &["--server", &guarded, "hi"], "wants a password"),
        ("fleet", &["--managed"], "say what to do"),
        ("fleet", &["--permission", "ask"], "choose allow or reject"),
        ("fleet", &["--agent-kind", "claude", "hi"], "CLAUDE_BIN"),
        ("serve", &["--bogus"], "invalid option '--bogus'"),
        ("serve", &["--listen", "4747"], "give an address and a port"),
        ("serve", &["--listen", "0.0.0.0:4747"], "the page is not encrypted"),
        ("serve", &["--listen", &taken], "choose another address"),
        ("serve", &["--tasks", "0"], "a number from 1 to"),
        ("serve", &["--tasks", "2", "hi"], "one prompt per task"),
        ("serve", &[" "], "a prompt is empty"),
        ("serve", &["--model", "m"], "provider/model"),
        ("serve", &["--listen", free, "--directory", missing], "there is no such directory"),
        ("serve", &["--listen", free, "--server", "http://127.0.0.1:1"], "no server at http://127.0.0.1:1"),
        ("serve", &["--listen", free, "--server", &guarded], "wants a password"),
        (
            "serve",
            &["--listen", free, "--server", &guarded, "--password-env", "WRONG"],
            "refuses the password",
        ),
        ("serve", &["--listen", free, "--managed"], "cannot find the executable"),
        ("serve", &["--listen", free, "--agent-kind", "claude"], "CLAUDE_BIN"),
    ];
    for (name, arguments, words) in rows {
        let mut command = conductor(name, arguments);
        command.env("WRONG", "wrong").env("OPENCODE_BIN", missing).env("CLAUDE_BIN", missing);
        let ended = run(command).await;
        assert_eq!(ended.status, 2, "{name} {arguments:?}: {ended}");
        assert_eq!(ended.stderr.lines().count(), 1, "{name} {arguments:?}: {ended}");
        assert!(ended.stderr.contains(words), "{name} {arguments:?}: {words:?} is missing in {ended}");
        assert!(ended.stderr.starts_with("conductor: "), "{ended}");
    }
}

#[tokio::test]
async fn help_is_no_mistake() {
    let says = async |arguments: &[&str], words: &str| {
        let ended = run(conductor(arguments[0], &arguments[1..])).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
        assert!(ended.stdout.contains(words), "{words:?} is missing in {ended}");
    };
    for name in ["run", "fleet", "serve"] {
        says(&[name, "--help"], "--password-env <VAR>").await;
        says(&["help", name], "--password-env <VAR>").await;
        let idle = WaitOptions::default().idle_timeout.as_secs();
        says(&[name, "--help"], &format!("is not cut off [default: {idle}]")).await;
    }
    says(&["--help"], "Runs one task and shows it live").await;
    says(&["replay", "-h"], "<FILE>...").await;
    says(&["completions", "--help"], "[possible values: bash,").await;
    let version = format!("conductor {}\n", env!("CARGO_PKG_VERSION"));
    says(&["--version"], &version).await;
    says(&["-V"], &version).await;
}

#[tokio::test]
async fn without_a_command_all_are_named() {
    let ended = run(Command::new(env!("CARGO_BIN_EXE_conductor"))).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{ended}");
    for name in ["run", "fleet", "serve", "replay", "completions"] {
        assert!(ended.stderr.contains(&format!("\n  {name} ")), "{name} is missing in {ended}");
    }
}

#[tokio::test]
async fn a_shell_understands_the_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(conductor("completions", &[shell])).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
        assert!(ended.stdout.contains("password-env"), "{shell}: {ended}");
        if shell == "bash" {
            let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
            let mut input = bash.stdin.take().unwrap();
            input.write_all(ended.stdout.as_bytes()).await.unwrap();
            drop(input);
            assert!(bash.wait().await.unwrap().success());
        }
    }
}

#[tokio::test]
async fn the_right_password_opens_a_server() {
    let guarded = FakeOpenCode::start_with(FakeOptions::new().password("right")).await.unwrap();
    let prompt = says("Welcome.");
    let mut command =
        conductor("run", &["--server", &guarded.url(), "--password-env", "PW", "--json", &prompt]);
    command.env("PW", "right");
    let ended = run(command).await;
    assert_eq!(ended.status, 0, "{ended}");
    assert_eq!(ended.json()["answer"], "Welcome.");
    assert!(!ended.stdout.contains("right"), "{ended}");
}

#[tokio::test]
async fn a_fleet_runs_all_tasks_within_its_limit() {
    let prompt = says("Done.");
    let ended = run(conductor("fleet", &["--tasks", "12", "--concurrency", "4", "--json", &prompt])).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
    let report = ended.json();
    let tasks = report["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 12);
    assert_eq!(report["succeeded"], 12);
    assert!(tasks.iter().all(|task| task["answer"] == "Done."), "{ended}");
    let mut worktrees: Vec<&str> = tasks.iter().map(|task| task["worktree"].as_str().unwrap()).collect();
    assert!(worktrees.iter().all(|path| !Path::new(path).exists()), "worktrees left behind: {ended}");
    worktrees.sort_unstable();
    worktrees.dedup();
    assert_eq!(worktrees.len(), 12, "tasks share a worktree");
}

#[tokio::test]
async fn a_fleet_tells_which_tasks_failed() {
    let (good, bad) = (says("Done."), Script::new([Step::error(401)]).prompt("fail"));
    let ended = run(conductor("fleet", &["--tasks", "4", &good, &bad])).await;
    assert_eq!(ended.status, 1, "{ended}");
    assert_eq!(ended.stderr, "conductor: 2 of 4 tasks did not succeed\n");
    assert!(ended.stdout.contains("2 of 4 succeeded"), "{ended}");
    assert!(ended.stdout.contains("scripted error 401"), "{ended}");
}

/// A command that runs on a fake Claude Code.
fn on_claude(fake: &FakeClaude, name: &str, arguments: &[&str]) -> Command {
    let mut command = conductor(name, &[&["--agent-kind", "claude"], arguments].concat());
    command.envs(fake.environment());
    command
}

#[tokio::test]
async fn a_task_runs_on_claude_code() {
    let fake = FakeClaude::start().await.unwrap();
    let read = ClaudeTool::new("Read", json!({"file_path": "src/lib.rs"}), "a line");
    let part = ClaudeTool::subagent(ClaudeScript::text("I have looked."));
    let text = |words: &str| ClaudeStep::Text(words.to_owned());
    let thought = ClaudeStep::Thinking("Let me see.".to_owned());
    let script = ClaudeScript::new([
        vec![thought, text("I look."), read.into(), part.into()],
        vec![text("First."), text("Second.")],
    ]);
    let prompt = script.prompt("Look at this");
    let place = TempDir::new().unwrap();
    let directory = place.path().to_str().unwrap();
    let ended = run(on_claude(&fake, "run", &["--directory", directory, &prompt])).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
    let shown = [
        "Claude Code",
        "❯ Look at this",
        "✻ Let me see.",
        "● I look.",
        "✓ Read src/lib.rs",
        "✓ @general-purpose A subagent",
        "│ ● I have looked.",
        "● Second.",
        "✓ settled in",
        "2 steps · 1 tool call · 1 subagent",
        "cost $0.0300",
    ];
    for words in shown {
        assert!(ended.stdout.contains(words), "{words:?} is missing in {ended}");
    }
    assert!(!ended.stdout.contains("requests"), "there is no server: {ended}");
    let ended = run(on_claude(&fake, "run", &["--directory", directory, "--json", &prompt])).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
    let report = ended.json();
    assert_eq!(report["answer"], "First.\n\nSecond.");
    assert_eq!(report["completion"]["type"], "settled");
    assert_eq!(report["usageBySession"].as_object().unwrap().len(), 2, "{ended}");
    assert_eq!(report["client"], Value::Null);
}

#[tokio::test]
async fn a_fleet_runs_on_claude_code() {
    let fake = FakeClaude::start().await.unwrap();
    let good = ClaudeScript::text("Done.").prompt("do it");
    let bad = ClaudeScript::new([vec![ClaudeStep::Error(400, "no".to_owned())]]).prompt("fail");
    let ended = run(on_claude(&fake, "fleet", &["--tasks", "4", "--json", &good, &bad])).await;
    assert_eq!(ended.status, 1, "{ended}");
    assert_eq!(ended.stderr, "conductor: 2 of 4 tasks did not succeed\n");
    let report = ended.json();
    assert_eq!(report["succeeded"], 2, "{ended}");
    let answers = report["tasks"].as_array().unwrap().iter().filter(|task| task["answer"] == "Done.");
    assert_eq!(answers.count(), 2, "{ended}");
    assert_eq!(fake.starts().len(), 4, "one process per task");
}

/// Without a repository of the user's, too.
#[tokio::test]
async fn a_fleet_keeps_and_names_what_its_tasks_have_written() {
    let fake = FakeClaude::start().await.unwrap();
    let prompt = ClaudeScript::text("Done.").prompt("do it");
    let place = TempDir::new().unwrap();
    let executable =
        script(&place, r#"case "$*" in *--session-id*) echo work >new;; esac; exec "$FAKE" "$@""#);
    for arguments in [&[][..], &["--json"]] {
        let mut command = on_claude(&fake, "fleet", &[arguments, &[&prompt]].concat());
        let [(_, fake), _] = fake.environment();
        command.env("FAKE", fake).env("CLAUDE_BIN", &executable).env("TMPDIR", place.path());
        let ended = run(command).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
        let worktree = if arguments.is_empty() {
            let named = "kept, since there is work in it: ";
            ended.stdout.lines().find_map(|line| line.strip_prefix(named)).expect("it is named").to_owned()
        } else {
            let report = ended.json();
            assert_eq!(report["tasks"][0]["kept"], true, "{ended}");
            assert_eq!(report["kept"], json!([report["tasks"][0]["worktree"]]), "{ended}");
            report["kept"][0].as_str().unwrap().to_owned()
        };
        let worktree = Path::new(&worktree);
        assert_eq!(fs::read_to_string(worktree.join("new")).unwrap(), "work\n");
        let git = Command::new("git").arg("status").current_dir(worktree).output().await.unwrap();
        assert!(git.status.success(), "its repository is kept, too");
    }
}

/// An executable of a few lines for the shell.
fn script(place: &TempDir, lines: &str) -> PathBuf {
    let path = place.path().join("script");
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn ctrl_c_aborts_the_tasks_of_the_page_on_claude_code() {
    let fake = FakeClaude::start().await.unwrap();
    let never = ClaudeStep::Gate("never".to_owned());
    let prompt = ClaudeScript::new([vec![never, ClaudeStep::Text("never said".to_owned())]]).prompt("wait");
    let mut command = on_claude(&fake, "serve", &["--listen", "127.0.0.1:0", &prompt]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    timeout(PATIENCE, fake.wait_at("never")).await.expect("the task starts");
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), Signal::INT).unwrap();
    let status = timeout(PATIENCE, child.wait()).await.expect("ends in time").unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
    let id = fake.starts()[0].clone().into_iter().skip_while(|word| word != "--session-id").nth(1).unwrap();
    let directory = std::env::current_dir().unwrap();
    let transcript = fs::read_to_string(fake.transcript(&id, directory.to_str().unwrap())).unwrap();
    assert!(transcript.contains("[Request interrupted by user]"), "{transcript}");
}

/// A repository with one commit.
async fn repository() -> TempDir {
    let place = TempDir::new().unwrap();
    let me = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
    let commit = [&me[..], &["commit", "--quiet", "--allow-empty", "--message", "one"]].concat();
    for arguments in [&["init", "--quiet"][..], &commit] {
        let git = Command::new("git").args(arguments).current_dir(place.path()).status().await.unwrap();
        assert!(git.success());
    }
    place
}

async fn worktrees_of(repository: &TempDir) -> usize {
    let git = Command::new("git").args(["worktree", "list"]).current_dir(repository.path()).output().await;
    String::from_utf8(git.unwrap().stdout).unwrap().lines().count()
}

#[tokio::test]
async fn a_fleet_leaves_a_repository_as_it_was() {
    let repository = repository().await;
    let path = repository.path().to_str().unwrap();
    let ended =
        run(conductor("fleet", &["--directory", path, "--tasks", "2", &says("Nothing to do.")])).await;
    assert_eq!(ended.status, 0, "{ended}");
    assert_eq!(worktrees_of(&repository).await, 1, "worktrees left behind: {ended}");
}

#[tokio::test]
async fn a_fleet_that_cannot_start_leaves_a_repository_as_it_was() {
    let repository = repository().await;
    let path = repository.path().to_str().unwrap();
    let ended = run(conductor("fleet", &["--directory", path, "--server", "http://127.0.0.1:1", "hi"])).await;
    assert_eq!(ended.status, 2, "{ended}");
    assert_eq!(worktrees_of(&repository).await, 1, "worktrees left behind: {ended}");
}

/// Starts a command on prompts that never end, interrupts it once they run, and waits for its end.
async fn interrupted(name: &str, arguments: &[&str], n_running: usize) -> Ended {
    let fake = FakeOpenCode::start().await.unwrap();
    let prompt = Script::new([Step::text("never said").gate_before("never")]).prompt("wait");
    let url = fake.url();
    let arguments = [arguments, &["--server", &url, &prompt]].concat();
    let mut child =
        conductor(name, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = fake.wait_for(|log| log.gates_reached.len() >= n_running);
    timeout(PATIENCE, begun).await.expect("the tasks start");
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), Signal::INT).unwrap();
    let status = timeout(PATIENCE, child.wait()).await.expect("ends in time").unwrap();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut stdout).await.unwrap();
    child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
    timeout(PATIENCE, fake.wait_for(|log| log.open_streams == 0))
        .await
        .expect("its stream is closed with it");
    assert!(fake.request_count(Route::Abort) >= n_running, "a turn was left running");
    Ended { status: status.code().unwrap_or(-1), stdout, stderr }
}

#[tokio::test]
async fn ctrl_c_aborts_the_task() {
    let ended = interrupted("run", &["--json"], 1).await;
    assert_eq!(ended.status, 1, "{ended}");
    assert!(ended.stderr.contains("aborted"), "{ended}");
    assert_eq!(ended.json()["client"]["reconnects"], 0);
}

#[tokio::test]
async fn ctrl_c_aborts_the_whole_fleet() {
    let ended = interrupted("fleet", &["--tasks", "5", "--concurrency", "2", "--json"], 2).await;
    assert_eq!(ended.status, 1, "{ended}");
    let report = ended.json();
    let types: Vec<&str> = report["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["completion"]["type"].as_str().unwrap())
        .collect();
    assert_eq!(types.iter().filter(|kind| **kind == "notStarted").count(), 3, "{ended}");
    assert!(types.iter().all(|kind| ["notStarted", "aborted", "notRun"].contains(kind)), "{ended}");
    assert_eq!(ended.stderr, "conductor: 5 of 5 tasks did not succeed\n");
}

/// A server that does not abort, and a prompt that never ends on it.
async fn unstoppable() -> (FakeOpenCode, String) {
    let fake = FakeOpenCode::start().await.unwrap();
    fake.inject(Route::Abort, Fault::Hang).always();
    let prompt = Script::new([Step::text("never said").gate_before("never")]).prompt("wait");
    (fake, prompt)
}

async fn interrupt_twice(child: &Child, fake: &FakeOpenCode) {
    signal(child, Signal::INT);
    let aborting = fake.wait_for(|log| log.count(Route::Abort) >= 1);
    timeout(PATIENCE, aborting).await.expect("the first is heard");
    signal(child, Signal::INT);
}

#[tokio::test]
async fn a_second_ctrl_c_does_not_wait_and_still_reports() {
    let (fake, prompt) = unstoppable().await;
    let mut command = conductor("run", &["--json", "--server", &fake.url(), &prompt]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    timeout(PATIENCE, fake.wait_at("never")).await.expect("the task starts");
    interrupt_twice(&child, &fake).await;
    let ended = ended(child).await;
    assert_eq!(ended.status, 1, "{ended}");
    assert_eq!(ended.json()["completion"]["type"], "givenUp", "{ended}");
    assert_eq!(ended.stderr, "conductor: stopped without waiting for the server\n");
}

/// Starts a program whose standard output is a terminal of this width; what it printed is known after its end.
fn spawn_on_terminal(mut command: Command, columns: u16) -> (Child, JoinHandle<String>) {
    let (mut person, program) = terminal::open();
    tcsetwinsize(&person, Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let child = command.stdout(Stdio::from(program)).spawn().unwrap();
    // The command has the terminal open, too.
    drop(command);
    let printed = std::thread::spawn(move || {
        let mut printed = Vec::new();
        // Its end is an error: the terminal hangs up.
        let _ = person.read_to_end(&mut printed);
        String::from_utf8(printed).unwrap()
    });
    (child, printed)
}

#[tokio::test]
async fn a_second_ctrl_c_still_names_what_the_fleet_keeps_and_shows_the_cursor() {
    for json in [&[][..], &["--json"]] {
        let (fake, prompt) = unstoppable().await;
        let (repository, place) = (repository().await, TempDir::new().unwrap());
        let (url, path) = (fake.url(), repository.path().to_str().unwrap());
        let arguments = ["--directory", path, "--server", &url, &prompt];
        let mut command = conductor("fleet", &[json, &arguments].concat());
        command.env("TMPDIR", place.path()).stderr(Stdio::piped());
        let (child, printed) = spawn_on_terminal(command, 80);
        timeout(PATIENCE, fake.wait_at("never")).await.expect("a task starts");
        let of_fleet = fs::read_dir(place.path()).unwrap().next().unwrap().unwrap().path();
        let worktree = of_fleet.join("task-01").canonicalize().unwrap();
        fs::write(worktree.join("new"), "work\n").unwrap();
        interrupt_twice(&child, &fake).await;
        let ended = ended(child).await;
        let printed = printed.join().unwrap();
        assert_eq!(ended.status, 1, "{printed}\n{ended}");
        assert!(worktree.join("new").exists(), "{printed}");
        if json.is_empty() {
            let kept = format!("kept, since there is work in it: {}", worktree.display());
            assert!(printed.contains(&kept) && printed.contains("✗ given up"), "{printed}");
            assert!(printed.rfind("\x1b[?25h") > printed.rfind("\x1b[?25l"), "{printed:?}");
        } else {
            let report: Value = serde_json::from_str(&printed).unwrap();
            assert_eq!(report["tasks"][0]["completion"]["type"], "givenUp", "{printed}");
            assert_eq!(report["kept"], json!([worktree]), "{printed}");
            assert_eq!(report["tasks"][0]["changedFiles"], 1, "{printed}");
        }
        assert_eq!(ended.stderr, "conductor: 1 of 1 tasks did not succeed\n");
    }
}

#[tokio::test]
async fn nothing_that_is_drawn_over_is_wider_than_the_terminal() {
    for (name, columns) in [("fleet", 80), ("fleet", 40), ("run", 40)] {
        let mut command = conductor(name, &[&says(&"All is well. ".repeat(9))]);
        if name == "fleet" {
            command.args(["--tasks", "30", "--concurrency", "30"]);
        }
        let (child, printed) = spawn_on_terminal(command, columns);
        let ended = ended(child).await;
        let printed = printed.join().unwrap();
        assert_eq!(ended.status, 0, "{printed}\n{ended}");
        // The terminal is told not to wrap what is drawn over, and to wrap the rest.
        let frames: Vec<&str> =
            printed.split("\x1b[?7l").skip(1).map(|rest| rest.split_once("\x1b[?7h").unwrap().0).collect();
        assert!(!frames.is_empty(), "{printed:?}");
        for line in frames.iter().flat_map(|frame| frame.lines()) {
            let words = without_colours(line);
            assert!(words.width() <= usize::from(columns), "{name}: {words:?} has {}", words.width());
        }
    }
}

fn without_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default();
    let others = parts.map(|part| part.split_once('m').expect("a colour").1);
    [first].into_iter().chain(others).collect()
}

#[tokio::test]
async fn ctrl_c_aborts_the_tasks_of_the_page_and_is_no_failure() {
    let ended = interrupted("serve", &["--listen", "127.0.0.1:0"], 1).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
    assert!(ended.stdout.starts_with("http://127.0.0.1:"), "{ended}");
}

#[tokio::test]
async fn the_page_ends_while_somebody_has_sent_half_a_request() {
    let mut command = conductor("serve", &["--listen", "127.0.0.1:0", &says("Done.")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).await.unwrap();
    let address = line.strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"GET / HTTP/1.1\r\nHost: loc").await.unwrap();
    // Connections are accepted in order, so after this one's answer the other is being served.
    let mut whole = TcpStream::connect(address).await.unwrap();
    whole.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    whole.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    signal(&child, Signal::INT);
    let ended = ended(child).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
}

/// A named pipe; what is written to it ends when its last writer does.
async fn fifo(place: &TempDir, name: &str) -> PathBuf {
    let path = place.path().join(name);
    assert!(Command::new("mkfifo").arg(&path).status().await.unwrap().success());
    path
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
}

async fn ended(child: Child) -> Ended {
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("ends in time").unwrap();
    Ended::new(output)
}

/// Whichever way it is told, and however early.
#[tokio::test]
async fn an_interrupted_start_leaves_no_process_and_no_worktree() {
    let rows: &[(&str, &[&str], Signal, i32)] = &[
        ("run", &["--json", "--managed", "hi"], Signal::INT, 1),
        ("run", &["--json", "--agent-kind", "claude", "hi"], Signal::TERM, 1),
        ("fleet", &["--json", "--managed", "--tasks", "2", "hi"], Signal::TERM, 1),
        ("fleet", &["--json", "--managed", "hi"], Signal::HUP, 1),
        ("serve", &["--listen", "127.0.0.1:0", "--managed"], Signal::INT, 0),
    ];
    for (name, arguments, sent, status) in rows {
        let place = TempDir::new().unwrap();
        let (repository, alive) = (repository().await, fifo(&place, "alive").await);
        let executable = script(&place, r#"exec 3>"$ALIVE"; echo started >&3; exec sleep 1000"#);
        let directory = ["--directory", repository.path().to_str().unwrap()];
        // Whoever runs the tests may have had the signal ignored, as `nohup` does, and then so does the program.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(env!("CARGO_BIN_EXE_conductor")).arg(name);
        command.args(directory).args(*arguments).stdin(Stdio::null()).kill_on_drop(true);
        command.env("OPENCODE_BIN", &executable).env("CLAUDE_BIN", &executable).env("ALIVE", &alive);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let alive = tokio::fs::File::open(alive).await.unwrap();
        let mut lines = BufReader::new(alive).lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("started"));
        signal(&child, *sent);
        let ended = ended(child).await;
        assert_eq!(ended.status, *status, "{name} {arguments:?}: {ended}");
        let end = timeout(PATIENCE, lines.next_line()).await;
        assert_eq!(end.expect("what it started has ended").unwrap(), None);
        assert_eq!(worktrees_of(&repository).await, 1, "{name} {arguments:?}: {ended}");
        if *status == 1 {
            assert_eq!(ended.json()["completion"]["type"], "noSession", "{ended}");
            assert_eq!(ended.stderr, "conductor: interrupted before anything was tried\n");
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_can_be_interrupted() {
    for (name, status) in [("run", 1), ("fleet", 1), ("serve", 0)] {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let free = if name == "serve" { &["--listen", "127.0.0.1:0"][..] } else { &[] };
        let mut command = conductor(name, &[free, &["--server", &url, "hi"]].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _connection = timeout(PATIENCE, silent.accept()).await.expect("it asks").unwrap();
        signal(&child, Signal::INT);
        let ended = ended(child).await;
        assert_eq!(ended.status, status, "{name}: {ended}");
    }
}

#[tokio::test]
async fn a_session_that_is_not_made_can_be_interrupted() {
    for name in ["run", "fleet"] {
        let fake = FakeOpenCode::start().await.unwrap();
        fake.inject(Route::CreateSession, Fault::Hang);
        let url = fake.url();
        let mut command = conductor(name, &["--json", "--server", &url, "hi"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let asked = |log: &Log| log.requests.iter().any(|request| request.route == Route::CreateSession);
        timeout(PATIENCE, fake.wait_for(asked)).await.expect("a session is asked for");
        signal(&child, Signal::INT);
        let ended = ended(child).await;
        assert_eq!(ended.status, 1, "{name}: {ended}");
        ended.json();
    }
}

#[tokio::test]
async fn an_interrupt_takes_back_the_worktrees_that_were_made() {
    let (place, repository) = (TempDir::new().unwrap(), repository().await);
    let (checking_out, go_on) = (fifo(&place, "checking-out").await, fifo(&place, "go-on").await);
    let filter = script(&place, r#"echo x >"$CHECKING_OUT"; read -r line <"$GO_ON"; cat"#);
    let attributes = repository.path().join(".git/info/attributes");
    fs::create_dir_all(attributes.parent().unwrap()).unwrap();
    fs::write(attributes, "* filter=slow\n").unwrap();
    fs::write(repository.path().join("file"), "text\n").unwrap();
    let filter = filter.to_str().unwrap();
    let me = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
    let commit = [&me[..], &["commit", "--quiet", "--message", "two"]].concat();
    for arguments in [&["add", "file"][..], &commit, &["config", "filter.slow.smudge", filter]] {
        let git = Command::new("git").args(arguments).current_dir(repository.path()).status().await.unwrap();
        assert!(git.success());
    }
    let path = repository.path().to_str().unwrap();
    let mut command = conductor("fleet", &["--directory", path, "--tasks", "3", &says("Done.")]);
    command.env("CHECKING_OUT", &checking_out).env("GO_ON", &go_on);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first is checked out, and the second is about to be.
    tokio::fs::read(&checking_out).await.unwrap();
    tokio::fs::write(&go_on, "\n").await.unwrap();
    tokio::fs::read(&checking_out).await.unwrap();
    signal(&child, Signal::INT);
    tokio::fs::write(&go_on, "\n").await.unwrap();
    let ended = ended(child).await;
    assert_eq!(ended.status, 1, "{ended}");
    assert_eq!(ended.stderr, "conductor: interrupted before anything was tried\n");
    assert_eq!(worktrees_of(&repository).await, 1, "{ended}");
}

#[tokio::test]
async fn a_person_at_the_terminal_is_asked() {
    let tool = ScriptedTool::new("bash", json!({"command": "touch x"})).output("ok").asks("bash", "touch x");
    let prompt = Script::new([Step::tool(tool), Step::text("Done.")]).prompt("do it");
    for (typed, status) in [("y\n", "completed"), ("n\n", "error"), ("", "error")] {
        let mut command = conductor("run", &["--permission", "ask", "--json", &prompt]);
        let input = tempfile::NamedTempFile::new().unwrap();
        fs::write(input.path(), typed).unwrap();
        command.stdin(fs::File::open(input.path()).unwrap());
        let ended = run(command).await;
        assert_eq!(ended.status, 0, "{ended}");
        assert_eq!(ended.json()["completion"]["type"], "settled", "{ended}");
        assert!(ended.stdout.contains(&format!("\"status\": \"{status}\"")), "{typed:?}: {ended}");
        assert!(ended.stderr.contains("[N]o"), "{ended}");
    }
}

/// What was typed before there was a question is no answer to it.
#[tokio::test]
async fn typed_ahead_input_does_not_answer() {
    let tool = ScriptedTool::new("bash", json!({"command": "touch x"})).output("ok").asks("bash", "touch x");
    let prompt = Script::new([Step::tool(tool), Step::text("Done.")]).prompt("do it");
    let command = conductor("run", &["--permission", "ask", "--json", &prompt]);
    let ended = answered_at_a_terminal(command, "y\ny\n", "n\n").await;
    let asked = &ended.stderr;
    assert!(asked.contains("touch x") && asked.contains("[a]lways allows from now on"), "{ended}");
    assert_eq!(ended.json()["completion"]["type"], "settled", "{ended}");
    assert!(ended.stdout.contains("\"status\": \"error\""), "{ended}");
}

/// It was answered elsewhere, and the next one gets the first line that is typed.
#[tokio::test]
async fn a_question_that_needs_no_answer_any_more_is_not_waited_for() {
    let fake = FakeOpenCode::start().await.unwrap();
    let asks = |command: &str| {
        Step::tool(ScriptedTool::new("bash", json!({"command": command})).output("ok").asks("bash", command))
    };
    let prompt = Script::new([asks("touch one"), asks("touch two"), Step::text("Done.")]).prompt("do it");
    let (url, place) = (fake.url(), TempDir::new().unwrap());
    let place = place.path().canonicalize().unwrap();
    let directory = place.to_str().unwrap();
    let arguments = ["--permission", "ask", "--directory", directory, "--server", &url, &prompt];
    let mut person = AtTerminal::start(conductor("run", &arguments)).await;
    person.is_asked(1).await;
    let elsewhere = OpenCodeClient::new(&url).unwrap().directory(&Directory::new(directory).unwrap());
    let pending = elsewhere.permissions().await.unwrap().items;
    elsewhere.reply_permission(&pending[0].id, PermissionReply::Once).await.unwrap();
    person.is_asked(2).await;
    person.types("y\n").await;
    let ended = person.sees_the_end().await;
    assert_eq!(ended.status, 0, "{ended}");
    assert!(ended.stdout.contains("no answer is needed any more"), "{ended}");
    assert!(ended.stdout.contains("✓ bash touch two"), "{ended}");
}

/// Runs a program at a terminal, with something typed before it asks, and an answer once it has; returns what it prints.
async fn answered_at_a_terminal(command: Command, ahead: &str, answer: &str) -> Ended {
    let mut person = AtTerminal::with_typed(command, ahead).await;
    person.is_asked(1).await;
    person.types(answer).await;
    person.sees_the_end().await
}

/// A person who types, and a program that asks.
struct AtTerminal {
    keyboard: tokio::fs::File,
    process: Child,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl AtTerminal {
    async fn start(command: Command) -> Self {
        Self::with_typed(command, "").await
    }

    /// Something is typed before the program starts.
    async fn with_typed(mut command: Command, ahead: &str) -> Self {
        let (keyboard, input) = terminal::open();
        let mut keyboard = tokio::fs::File::from_std(keyboard);
        keyboard.write_all(ahead.as_bytes()).await.unwrap();
        keyboard.flush().await.unwrap();
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Self { keyboard, process: command.spawn().unwrap(), stdout: Vec::new(), stderr: Vec::new() }
    }

    async fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).await.unwrap();
        self.keyboard.flush().await.unwrap();
    }

    /// Waits until so many questions have been shown.
    async fn is_asked(&mut self, count: usize) {
        let n_asked = |printed: &[u8]| String::from_utf8_lossy(printed).matches("[N]o").count();
        let asked = async {
            while n_asked(&self.stdout) + n_asked(&self.stderr) < count {
                let stdout = self.process.stdout.as_mut().unwrap().read_buf(&mut self.stdout);
                let stderr = self.process.stderr.as_mut().unwrap().read_buf(&mut self.stderr);
                let n_read = tokio::select! { n_read = stdout => n_read, n_read = stderr => n_read };
                assert_ne!(n_read.unwrap(), 0, "it asks");
            }
        };
        timeout(PATIENCE, asked).await.expect("it asks in time");
    }

    async fn sees_the_end(self) -> Ended {
        let Self { process, mut stdout, mut stderr, keyboard } = self;
        let output = timeout(PATIENCE, process.wait_with_output()).await.expect("ends in time").unwrap();
        drop(keyboard);
        stdout.extend(output.stdout);
        stderr.extend(output.stderr);
        Ended::new(Output { stdout, stderr, ..output })
    }
}

/// What a model, a tool or a server says must not steer a terminal, nor whatever reads what is printed.
#[tokio::test]
async fn nothing_that_steers_a_terminal_is_printed() {
    let evil = "\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m\u{202e}gnp.exe";
    let tool = ScriptedTool::new("bash", json!({"command": format!("echo {evil}")})).output(evil);
    let script = Script::new([Step::tool(tool), Step::text(evil)]);
    let prompt = script.prompt("do it");
    let is_evil = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    let failing = with_message(evil);
    for (program, args) in [
        ("run", vec![prompt.as_str()]),
        ("run", vec!["--json", prompt.as_str()]),
        ("run", vec![failing.as_str()]),
        ("fleet", vec!["--json", prompt.as_str()]),
        ("fleet", vec![prompt.as_str(), failing.as_str()]),
    ] {
        let ended = run(conductor(program, &args)).await;
        for text in [&ended.stdout, &ended.stderr] {
            let found: Vec<char> = text.chars().filter(|c| is_evil(*c)).collect();
            assert!(found.is_empty(), "{program} {args:?}: {found:?} in {ended}");
        }
        assert!(ended.stdout.contains("gnp.exe") || ended.stderr.contains("gnp.exe"), "{ended}");
    }
}

/// A prompt on which the provider fails with these words.
fn with_message(words: &str) -> String {
    let mut step = Step::error(400);
    if let Some(error) = &mut step.error {
        error.body = Some(json!({"error": {"message": words}}));
    }
    Script::new([step]).prompt("fail")
}

/// Tests on the real server, which `.ci/run` picks by this name.
mod real_server {
    use super::*;

    /// A home for a real server whose only model is the scripted one.
    struct Home {
        directory: TempDir,
        executable: PathBuf,
        _model: model::ScriptedModel,
    }

    impl Home {
        async fn new() -> Option<Self> {
            let executable = real::RealServer::find()?;
            let model = model::ScriptedModel::start().await;
            let directory = TempDir::new().unwrap();
            let config = directory.path().join(".config/opencode");
            fs::create_dir_all(&config).unwrap();
            let settings = json!({
                "model": "mock/m", "small_model": "mock/m", "autoupdate": false, "share": "disabled",
                "permission": {"bash": {"*": "allow", "printf *": "ask"}},
                "provider": {"mock": {
                    "npm": "@ai-sdk/openai-compatible", "name": "Mock",
                    "options": {"baseURL": model.base_url(), "apiKey": "x"},
                    "models": {"m": {
                        "name": "M", "reasoning": true, "tool_call": true,
                        "limit": {"context": 100_000, "output": 10_000},
                    }},
                }},
            });
            fs::write(config.join("opencode.json"), settings.to_string()).unwrap();
            Some(Self { directory, executable, _model: model })
        }

        fn conductor(&self, name: &str, arguments: &[&str]) -> Command {
            let mut command = conductor(name, arguments);
            command
                .env("OPENCODE_BIN", &self.executable)
                .env("HOME", self.directory.path())
                .env_remove("XDG_CONFIG_HOME")
                .env_remove("XDG_DATA_HOME")
                .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
                .env("OPENCODE_DISABLE_AUTOUPDATE", "1")
                .current_dir(self.directory.path());
            command
        }
    }

    #[tokio::test]
    async fn a_task_works_on_a_server_of_its_own() {
        let Some(home) = Home::new().await else { return };
        let ended = run(home.conductor("run", &["--managed", "--json", &says("Hello from afar.")])).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
        let report = ended.json();
        assert_eq!(report["answer"], "Hello from afar.");
        assert_eq!(report["completion"]["type"], "settled");
        assert_eq!(report["messages"].as_array().unwrap().len(), 1);
        assert!(report["client"]["requests"].as_u64().unwrap() > 0);
        let ended = run(home.conductor("run", &["--managed", "--model", "no/such", "hello"])).await;
        assert_eq!(ended.status, 1, "{ended}");
    }

    /// The command as it will run and not as it looks, and what "always" would allow, as the real server says it.
    #[cfg(unix)]
    #[tokio::test]
    async fn a_person_sees_in_full_what_a_real_server_would_run() {
        let Some(home) = Home::new().await else { return };
        let rest = "x".repeat(400);
        let command = format!("printf '\u{202e}gnp' > seen; printf {rest} >> seen");
        let tool = ScriptedTool::new("bash", json!({"command": command, "description": "list the files"}));
        let prompt = Script::new([Step::tool(tool), Step::text("Done.")]).prompt("do it");
        for (answer, runs) in [("n\n", false), ("y\n", true)] {
            let command = home.conductor("run", &["--managed", "--permission", "ask", &prompt]);
            let printed = answered_at_a_terminal(command, "y\n", answer).await.stdout;
            let before = printed.split("[N]o").next().unwrap();
            assert!(
                before.contains("printf '<U+202E>gnp' > seen; printf x") && before.contains(&rest),
                "{before}"
            );
            assert!(before.contains("printf *"), "what \"always\" allows: {before}");
            assert!(!printed.contains('\u{202e}'), "{printed}");
            assert_eq!(home.directory.path().join("seen").exists(), runs, "{printed}");
        }
    }

    #[tokio::test]
    async fn a_fleet_works_on_a_server_of_its_own() {
        let Some(home) = Home::new().await else { return };
        let args = ["--managed", "--tasks", "6", "--concurrency", "3", "--json", &says("Done.")];
        let ended = run(home.conductor("fleet", &args)).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended}");
        assert_eq!(ended.json()["succeeded"], 6);
        assert_eq!(ended.json()["kept"], json!([]), "the server's own files are no work");
    }

    /// A commit on no branch is gone with its worktree, and git sees no changed file.
    #[tokio::test]
    async fn a_fleet_keeps_what_its_tasks_have_changed_or_committed() {
        let Some(home) = Home::new().await else { return };
        let repository = repository().await;
        let path = repository.path().to_str().unwrap();
        let runs = |command: &str| {
            let tool = ScriptedTool::new("bash", json!({"command": command, "description": "work"}));
            Script::new([Step::tool(tool), Step::text("Done.")]).prompt("work")
        };
        let change = runs("touch new");
        let commit = runs(
            "git -c user.name=t -c user.email=t@example.org commit --quiet --allow-empty --message=work",
        );
        let args = ["--managed", "--directory", path, "--json", &change, &commit, &says("Nothing to do.")];
        let ended = run(home.conductor("fleet", &args)).await;
        assert_eq!(ended.status, 0, "{ended}");
        let report = ended.json();
        let fields = ["changedFiles", "newCommits", "kept"];
        let kept = [0, 1, 2].map(|index| fields.map(|field| report["tasks"][index][field].clone()));
        let expected = [
            [json!(1), json!(0), json!(true)],
            [json!(0), json!(1), json!(true)],
            [json!(0), json!(0), json!(false)],
        ];
        assert_eq!(kept, expected, "{ended}");
        let worktree = Path::new(report["tasks"][0]["worktree"].as_str().unwrap());
        assert!(worktree.join("new").exists(), "{ended}");
        assert_eq!(worktrees_of(&repository).await, 3, "{ended}");
        fs::remove_dir_all(worktree.parent().unwrap()).unwrap();
    }
}
