//! The real executable, on a scripted model: faults, and what it has in common with the fake.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use opencode_conductor::{
    Completion, ConversationManager, Decision, MemoryStore, PermissionPolicy, PromptExecutionResult,
    SessionId,
    claude::ClaudeOptions,
    test_util::{ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude},
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;
use tokio::sync::watch;

use super::{
    anthropic::Model,
    faults::letter,
    requests::{check_that_a_request_waits_for_the_next, with_desk},
    stage::{builder, gone, input, manager, patient, session, soon},
};

/// A home, a project and a model for the real executable.
pub(crate) struct Lab {
    executable: PathBuf,
    pub(crate) root: TempDir,
    model: Model,
}

impl Lab {
    /// Nothing, with words on how to change that, if there is no executable.
    pub(crate) async fn find() -> Option<Self> {
        let named = std::env::var_os("CLAUDE_BIN").filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(executable) = named else {
            let how = "skipped: set CLAUDE_BIN to the claude executable (.ci/install-claude) to run the tests of a real Claude Code";
            assert!(std::env::var_os("REQUIRE_CLAUDE").is_none(), "{how}");
            drop(writeln!(std::io::stderr(), "{how}"));
            return None;
        };
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("project")).unwrap();
        Some(Self { executable, root, model: Model::start().await })
    }

    pub(crate) fn options(&self) -> ClaudeOptions {
        ClaudeOptions::new()
            .executable(&self.executable)
            .config_directory(self.root.path().join("config"))
            .env("HOME", self.root.path())
            .env("ANTHROPIC_BASE_URL", &self.model.url)
            .env("ANTHROPIC_API_KEY", "sk-ant-scripted")
            .env("CLAUDE_CODE_MAX_RETRIES", "2")
            .env("DISABLE_TELEMETRY", "1")
            .env("DISABLE_ERROR_REPORTING", "1")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
    }

    pub(crate) fn project(&self) -> String {
        self.root.path().canonicalize().unwrap().join("project").to_string_lossy().into_owned()
    }

    /// The process of a session, as soon as there is one.
    async fn process(&self, session: &SessionId) -> Pid {
        let path = self.root.path().join(format!("config/conductor/{session}.lock"));
        loop {
            if let Some(pid) = read_pid(&path) {
                return pid;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn read_pid(path: &Path) -> Option<Pid> {
    Pid::from_raw(std::fs::read_to_string(path).ok()?.trim().parse().ok()?)
}

fn text(words: &str) -> ClaudeStep {
    ClaudeStep::Text(words.to_owned())
}

fn gate(name: &str) -> ClaudeStep {
    ClaudeStep::Gate(name.to_owned())
}

/// What is compared: how it ended, what was said, and what the conversation shows.
async fn played(manager: &ConversationManager, id: &SessionId, script: &ClaudeScript) -> String {
    let prompt = format!("msg-{:016x}", fastrand::u64(..));
    let outcome = soon(manager.prompt(input(id, script).message_id(prompt.clone())).into_future()).await;
    let result: PromptExecutionResult = match outcome {
        Ok(result) => result,
        Err(error) => return format!("error: {}", error.delivery() as u8),
    };
    let kind = |block: &opencode_conductor::ConversationBlock| {
        let json = serde_json::to_value(block).unwrap();
        format!(
            "{}/{}",
            json["type"].as_str().unwrap_or_default(),
            json["status"].as_str().unwrap_or_default()
        )
    };
    let blocks: Vec<String> = result.conversation.blocks().iter().map(|block| kind(block)).collect();
    format!(
        "{} {:?} threads={} output={} cost={} {}",
        letter(&Ok(result.clone())),
        result.answer(),
        result.usage_by_session.len(),
        result.usage.tokens.output,
        result.usage.cost > 0.0,
        blocks.join(" ")
    )
}

fn scenarios() -> Vec<(&'static str, Vec<ClaudeScript>)> {
    let two = |first: Vec<ClaudeStep>| ClaudeScript::new([first, vec![text("done")]]);
    let part = ClaudeScript::new([vec![text("the part")]]);
    vec![
        ("a text", vec![ClaudeScript::text("hello")]),
        ("thinking", vec![ClaudeScript::new([vec![ClaudeStep::Thinking("hm".to_owned()), text("hello")]])]),
        ("two prompts", vec![ClaudeScript::text("one"), ClaudeScript::text("two")]),
        ("a tool", vec![two(vec![text("now"), ClaudeTool::new("Bash", bash("echo hi"), "hi").into()])]),
        ("a permission", vec![two(vec![ClaudeTool::bash("touch made").asks().into()])]),
        ("a question", vec![two(vec![ClaudeTool::question("Which?").into()])]),
        ("a subagent", vec![two(vec![ClaudeTool::subagent(part.clone()).into()])]),
        (
            "a subagent in the background",
            vec![two(vec![ClaudeTool::subagent(part).in_background().into()]).after([vec![text("noted")]])],
        ),
        ("an error", vec![ClaudeScript::new([vec![ClaudeStep::Error(400, "scripted".to_owned())]])]),
        (
            "an error, then a text",
            vec![
                ClaudeScript::new([vec![ClaudeStep::Error(400, "scripted".to_owned())]]),
                ClaudeScript::text("hello"),
            ],
        ),
    ]
}

fn bash(command: &str) -> serde_json::Value {
    serde_json::json!({"command": command, "description": "A command"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fake_and_the_real_executable_play_alike() {
    let Some(lab) = Lab::find().await else { return };
    let mut differences = Vec::new();
    for (name, scripts) in scenarios() {
        let fake = FakeClaude::start().await.unwrap();
        let on_fake = manager(fake.options());
        let on_real = manager(lab.options());
        let (a, b) = (session(&on_fake, "/project").await, session(&on_real, &lab.project()).await);
        for script in &scripts {
            let (fake, real) = (played(&on_fake, &a, script).await, played(&on_real, &b, script).await);
            if fake != real {
                differences.push(format!("{name}:\n  fake {fake}\n  real {real}"));
            }
        }
        soon(on_fake.shutdown()).await;
        soon(on_real.shutdown()).await;
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Where the turn is when something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Started,
    Called,
    Streaming,
    Tool,
    Permission,
    Subagent,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Kill,
    Stop,
    Abort,
    /// The owner lets go; another one resumes the turn.
    Leave,
}

fn promises() -> Vec<(At, Blow, char)> {
    vec![
        (At::Started, Blow::Kill, 'S'),
        (At::Called, Blow::Kill, 'S'),
        (At::Streaming, Blow::Kill, 'I'),
        (At::Tool, Blow::Kill, 'I'),
        (At::Permission, Blow::Kill, 'I'),
        (At::Subagent, Blow::Kill, 'I'),
        (At::Streaming, Blow::Stop, 'T'),
        (At::Tool, Blow::Stop, 'T'),
        (At::Subagent, Blow::Stop, 'T'),
        (At::Streaming, Blow::Abort, 'A'),
        (At::Tool, Blow::Abort, 'A'),
        (At::Permission, Blow::Abort, 'A'),
        (At::Subagent, Blow::Abort, 'A'),
        (At::Streaming, Blow::Leave, 'S'),
        (At::Tool, Blow::Leave, 'S'),
        // The end of its host is a no, with which the turn goes on.
        (At::Permission, Blow::Leave, 'S'),
        (At::Subagent, Blow::Leave, 'S'),
    ]
}

fn script(at: At, marks: &str) -> ClaudeScript {
    let waits = format!("touch {marks}.reached; while [ ! -e {marks}.open ]; do sleep 0.05; done");
    let last = vec![text("the whole answer")];
    match at {
        At::Started => ClaudeScript::new([last]),
        // Before a byte of the answer.
        At::Called => ClaudeScript::new([vec![gate(marks), text("the whole answer")]]),
        At::Streaming => ClaudeScript::new([vec![text("first"), gate(marks), text("the whole answer")]]),
        At::Tool => ClaudeScript::new([vec![ClaudeTool::bash(&waits).into()], last]),
        At::Permission => {
            ClaudeScript::new([vec![ClaudeTool::bash(&format!("touch {marks}.asked")).into()], last])
        }
        At::Subagent => {
            let part = ClaudeScript::new([vec![text("first"), gate(marks), text("the part")]]);
            ClaudeScript::new([vec![ClaudeTool::subagent(part).into()], last])
        }
    }
}

async fn cell(lab: &Lab, at: At, blow: Blow, promised: char) {
    let case = format!("{blow:?} at {at:?}");
    let marks = format!("{at:?}{blow:?}");
    let asked = watch::Sender::new(false);
    let tell = asked.clone();
    let policy = PermissionPolicy::ask(move |ask| {
        let tell = tell.clone();
        async move {
            if at == At::Permission {
                tell.send_replace(true);
                std::future::pending::<()>().await;
            }
            drop(ask);
            Decision::AllowOnce
        }
    });
    let store = Arc::new(MemoryStore::default());
    let owner = builder(lab.options()).permissions(policy).store(Arc::clone(&store) as _).build();
    let id = session(&owner, &lab.project()).await;
    let prompt = format!("msg-{marks}-{id}");
    let limits = match blow {
        Blow::Stop => patient().idle_timeout(Duration::from_secs(15)).tool_timeout(Duration::from_secs(15)),
        _ => patient(),
    };
    let marker = PathBuf::from(lab.project()).join(&marks);
    let work = input(&id, &script(at, &marks)).message_id(prompt.clone()).wait(limits);
    let running = owner.prompt(work).start();
    let reached = async {
        match at {
            At::Started => drop(lab.process(&id).await),
            At::Called | At::Streaming | At::Subagent => lab.model.wait_at(&marks).await,
            At::Tool => {
                while !marker.with_extension("reached").exists() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            At::Permission => drop(asked.subscribe().wait_for(|asked| *asked).await),
        }
        // What the model said so far has arrived here, too.
        let n_blocks = || owner.conversation(&id).map_or(0, |state| state.blocks().len());
        while !matches!(at, At::Started | At::Called) && n_blocks() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(reached).await;
    let process = lab.process(&id).await;
    let open = || {
        lab.model.open_gate(&marks);
        std::fs::write(marker.with_extension("open"), "").unwrap();
    };
    let outcome = match blow {
        Blow::Kill => {
            kill_process(process, Signal::KILL).unwrap();
            open();
            soon(running).await
        }
        Blow::Stop => {
            kill_process_group(process, Signal::STOP).unwrap();
            soon(running).await
        }
        Blow::Abort => {
            assert!(soon(running.abort()).await.unwrap().confirmed, "{case}");
            soon(running).await
        }
        Blow::Leave => {
            soon(owner.shutdown()).await;
            drop(running);
            open();
            let next = builder(lab.options()).build();
            let record = store.open_turns().remove(0);
            let outcome = soon(next.resume(id.clone(), record.prompt.message_id)).await;
            soon(next.shutdown()).await;
            outcome
        }
    };
    assert_eq!(letter(&outcome), promised, "{case}: {outcome:?}");
    open();
    if promised == 'S' {
        // All that the last message says.
        let answer = if at == At::Streaming { "first\n\nthe whole answer" } else { "the whole answer" };
        assert_eq!(outcome.unwrap().answer().as_deref(), Some(answer), "{case}");
    }
    if at != At::Called {
        assert_eq!(
            lab.model.begun(&script(at, &marks).prompt("do it")),
            1,
            "{case}: the model was asked once"
        );
    }
    soon(owner.shutdown()).await;
    // The next manager goes on with the session.
    let next = manager(lab.options());
    let result = soon(next.prompt(input(&id, &ClaudeScript::text("next"))).into_future()).await;
    let result = result.unwrap_or_else(|error| panic!("{case}: the next prompt: {error:?}"));
    assert_eq!(
        (&result.completion, result.answer().as_deref()),
        (&Completion::Settled, Some("next")),
        "{case}"
    );
    soon(next.shutdown()).await;
    soon(gone(id.as_str())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_in_every_phase_ends_as_promised_on_the_real_executable() {
    let Some(lab) = Lab::find().await else { return };
    let n_cells = promises().len();
    for (at, blow, promised) in promises() {
        Box::pin(cell(&lab, at, blow, promised)).await;
    }
    assert!(n_cells >= 12, "{n_cells} cells");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_whoever_waits_next_on_the_real_executable() {
    let Some(lab) = Lab::find().await else { return };
    let (manager, id, desk) = with_desk(lab.options(), &lab.project()).await;
    check_that_a_request_waits_for_the_next(&manager, &id, &desk).await;
    assert!(PathBuf::from(lab.project()).join("made").exists());
    soon(manager.shutdown()).await;
    soon(gone(id.as_str())).await;
}
