//! Many tasks, some at a time, each in a git worktree of its own. `conductor fleet` is this, grown up.
//!
//! `cargo run --example many_tasks`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{error::Error, io, path::Path, process::Command};

use futures_util::{StreamExt, stream};
use opencode_conductor::{
    ConversationManager, CreateTaskSession, PromptInput,
    test_util::{FakeOpenCode, Script},
    worktree::{IgnoredFiles, Worktrees},
};

/// The manager would run all of them at once.
const AT_A_TIME: usize = 2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    fake.on_prompt(|prompt| Script::says(format!("I have looked for {}.", prompt.text)));
    let place = tempfile::tempdir()?;
    let repository = place.path().join("repository");
    git(place.path(), "init --quiet repository")?;
    let me = "-c user.name=me -c user.email=me@example.org -c commit.gpgsign=false";
    git(&repository, &format!("{me} commit --quiet --allow-empty --message=Start"))?;

    let manager = ConversationManager::connect(&fake.url()).await?;
    let worktrees = Worktrees::of(&repository).await?;
    let prompts = ["a slow test", "a missing test", "a flaky test", "a test of nothing"];
    let tasks = prompts.into_iter().enumerate().map(|(index, prompt)| {
        let (manager, worktrees, repository, place) = (&manager, &worktrees, &repository, place.path());
        async move {
            let id = format!("task-{index}");
            // The worktree is on no branch, at the repository's current commit.
            let worktree = worktrees.make(place.join(&id)).await?;
            let create = CreateTaskSession::new("my-project", id.as_str(), repository, worktree.path());
            let session = manager.create_task_session(create).await?.session_id;
            let result = manager.prompt(PromptInput::new(session, prompt)).await?.settled()?;
            // Fails if the agent has left something, and then nothing is lost.
            worktree.remove(IgnoredFiles::Keep).await?;
            Ok::<_, Box<dyn Error>>((id, result.answer().unwrap_or_default()))
        }
    });
    let mut ended = stream::iter(tasks).buffer_unordered(AT_A_TIME);
    while let Some(task) = ended.next().await {
        let (id, answer) = task?;
        println!("{id}: {answer}");
    }
    manager.shutdown().await;
    Ok(())
}

/// Runs git on a repository of our own; in a worktree that an agent has written to, leave that to `worktree`.
fn git(directory: &Path, arguments: &str) -> io::Result<()> {
    let status = Command::new("git").args(arguments.split(' ')).current_dir(directory).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("git failed")) }
}
