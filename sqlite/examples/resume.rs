//! A runner that is killed with -9 in the middle of an answer, and the one that goes on.
//!
//! `cargo run -p opencode-conductor-sqlite --example resume` shows it on a fake server. With the address of a real one,
//! `… --example resume -- http://127.0.0.1:4096 /srv/worktree`, it is the runner alone: kill it yourself, and start it again.

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{
    collections::HashMap,
    error::Error,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
};

use opencode_conductor::{
    BlockBody, ConversationManager, CreateTaskSession, OpenCodeClient, PromptInput, RunningPrompt,
    test_util::{FakeOpenCode, Script, Step},
};
use opencode_conductor_sqlite::SqliteStore;

const TASK: &str = "task-42";
const DATABASE: &str = "RESUME_DATABASE";
const PROMPT: &str = "RESUME_PROMPT";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(url), Some(worktree)) => {
            let database =
                std::env::var_os(DATABASE).map_or_else(|| PathBuf::from("resume.db"), PathBuf::from);
            let prompt = std::env::var(PROMPT).unwrap_or_else(|_| "Write a poem about patience.".to_owned());
            runner(&url, &worktree, &database, &prompt).await
        }
        _ => show().await,
    }
}

/// One task with one prompt. A process that runs this after another was killed goes on.
async fn runner(url: &str, worktree: &str, database: &Path, prompt: &str) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(SqliteStore::open(database).await?);
    let manager = ConversationManager::builder(OpenCodeClient::new(url)?).store(store).build();
    let restored = manager.restore().await?;
    if restored.is_empty() {
        let session = if let Some(session) = manager.task_session_id(&TASK.into()) {
            session
        } else {
            let create = CreateTaskSession::new("project", TASK, worktree, worktree);
            manager.create_task_session(create).await?.session_id
        };
        println!("  runner: asks");
        watch(&manager, manager.prompt(PromptInput::new(session, prompt)).start()).await?;
    }
    for turn in restored {
        println!("  runner: goes on with {TASK}, which was {:?}", turn.record.phase);
        watch(&manager, turn.running).await?;
    }
    manager.shutdown().await;
    Ok(())
}

/// Prints the answer as it comes.
async fn watch(manager: &ConversationManager, mut running: RunningPrompt) -> Result<(), Box<dyn Error>> {
    let session = running.session_id().clone();
    let mut printed = HashMap::new();
    let mut updates = running.updates().ok_or("they are taken once")?;
    // An update says when to look; the manager has the conversation at any time.
    while updates.next().await.is_some() {
        let conversation = manager.conversation(&session).unwrap_or_default();
        for block in conversation.blocks().iter() {
            if let BlockBody::AssistantText { content, .. } = &block.body {
                let n_printed = printed.entry(block.id.clone()).or_insert(0);
                print!("{}", content.as_str().get(*n_printed..).unwrap_or_default());
                *n_printed = content.as_str().len();
            }
        }
        std::io::stdout().flush()?;
    }
    let result = running.await?;
    println!("\n  runner: {}: {:?}", result.completion, result.answer().unwrap_or_default());
    Ok(())
}

/// Kills a runner, and starts another.
async fn show() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    let directory = tempfile::tempdir()?;
    let step = Step::text("Water does not hurry, and the stone is round.").gate_middle("middle");
    let prompt = Script::new([step]).prompt("Write a poem about patience.");
    let start = || -> std::io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .args([&fake.url(), "/srv/worktree"])
            .env(DATABASE, directory.path().join("turns.db"))
            .env(PROMPT, &prompt)
            .spawn()
    };
    let mut first = start()?;
    println!("runner {} starts", first.id());
    fake.wait_at("middle").await;
    first.kill()?;
    first.wait()?;
    println!("\nkill -9 {}, in the middle of the answer", first.id());
    fake.open_gate("middle");
    let mut second = start()?;
    println!("runner {} starts", second.id());
    let status = tokio::task::spawn_blocking(move || second.wait()).await??;
    let session = fake.sessions().first().and_then(|session| session["id"].as_str().map(str::to_owned));
    let runs = fake.prompts_run(&session.unwrap_or_default()).len();
    println!(
        "the model was called for the prompt {runs} time(s), and {} session(s) made",
        fake.sessions().len()
    );
    if status.success() && runs == 1 { Ok(()) } else { Err("the second runner failed".into()) }
}
