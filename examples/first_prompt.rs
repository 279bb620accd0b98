//! One task, one prompt, one answer, and a second prompt that continues the conversation.
//!
//! `cargo run --example first_prompt` needs nothing installed: a fake server inside the program plays the model. With
//! `OPENCODE_URL=http://127.0.0.1:4096` the same calls go to an `opencode serve`.

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{env, error::Error};

use opencode_conductor::{
    ConversationManager, CreateTaskSession, PromptInput,
    test_util::{FakeOpenCode, Script},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    fake.on_prompt(|prompt| {
        let is_first = prompt.text.starts_with("What");
        Script::says(if is_first { "It parses amounts of money." } else { "Start with src/lib.rs." })
    });
    let url = env::var("OPENCODE_URL").unwrap_or_else(|_| fake.url());

    // One manager per server. It is a handle: clones share everything.
    let manager = ConversationManager::connect(&url).await?;

    // A task has a session of its own, in the directory that the agent works in.
    let here = env::current_dir()?;
    let task = CreateTaskSession::new("my-project", "task-42", &here, &here);
    let session = manager.create_task_session(task).await?.session_id;

    // The call returns when the turn is over. Only `settled` says that the model finished: every other end becomes an error that holds
    // what there is.
    let prompt = PromptInput::new(session.clone(), "What does this project do? One sentence.");
    let result = manager.send_initial_prompt_and_await_messages(prompt).await?.settled()?;
    println!("{}", result.answer().unwrap_or_default());
    println!("  {} tokens, ${:.4}", result.usage.tokens.total(), result.usage.cost);

    let prompt = PromptInput::new(session, "Where should I start reading?");
    let result = manager.send_follow_up_prompt_and_await_messages(prompt).await?.settled()?;
    println!("{}", result.answer().unwrap_or_default());

    manager.shutdown().await;
    Ok(())
}
