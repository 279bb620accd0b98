//! A manager ends in the middle of an answer, and another goes on: the prompt runs once.
//!
//! Here both are in one process and share a store in memory. `opencode-conductor-sqlite` has the store for processes that are killed, and
//! an example of it.
//!
//! `cargo run --example restart`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{error::Error, sync::Arc};

use opencode_conductor::{
    ConversationManager, CreateTaskSession, MemoryStore, OpenCodeClient, PromptInput,
    test_util::{FakeOpenCode, Script, Step},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    fake.on_prompt(|_| {
        let step = Step::text("Water does not hurry, and the stone is round.");
        Script::new([step.gate_middle("half of it")])
    });
    let store = Arc::new(MemoryStore::default());
    let manager = || -> Result<ConversationManager, Box<dyn Error>> {
        let client = OpenCodeClient::new(&fake.url())?;
        Ok(ConversationManager::builder(client).store(store.clone()).build())
    };

    let first = manager()?;
    let task = CreateTaskSession::new("my-project", "task-42", "/project", "/project/worktree");
    let session = first.create_task_session(task).await?.session_id;
    let running = first.prompt(PromptInput::new(session.clone(), "Write about patience.")).start();
    fake.wait_at("half of it").await;
    // The server goes on with the turn. That it is open stands in the store, with its ids and how far it got.
    first.shutdown().await;
    match running.await {
        Ok(result) => println!("first manager: {}", result.completion),
        Err(error) => println!("first manager: {error}"),
    }
    fake.open_gate("half of it");

    // What the next process does when it starts.
    let second = manager()?;
    for turn in second.restore().await? {
        println!("second manager: goes on with {:?}, which was {:?}", turn.record.task_id, turn.record.phase);
        let result = turn.running.await?.settled()?;
        println!("second manager: {}", result.answer().unwrap_or_default());
    }
    println!("the model was prompted {} time(s)", fake.prompts_run(session.as_str()).len());
    second.shutdown().await;
    Ok(())
}
