//! An answer as a Rust type: the model is told the schema, and asked again if what it says does not fit.
//!
//! `cargo run --example json_answer`, or with `OPENCODE_URL=http://127.0.0.1:4096` on a server.

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{env, error::Error};

use opencode_conductor::{
    ConversationManager, CreateTaskSession, PromptInput,
    test_util::{FakeOpenCode, Script},
};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
struct Review {
    is_good: bool,
    /// What has to change before it can be merged, a sentence each.
    problems: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    // This model forgets a field at first.
    fake.on_prompt(|prompt| {
        let is_first = prompt.text.starts_with("Review");
        let complete = r#"{"is_good": false, "problems": ["the new test cannot fail"]}"#;
        Script::says(if is_first { r#"I would say {"is_good": false}."# } else { complete })
    });
    let url = env::var("OPENCODE_URL").unwrap_or_else(|_| fake.url());
    let manager = ConversationManager::connect(&url).await?;
    let here = env::current_dir()?;
    let task = CreateTaskSession::new("my-project", "task-42", &here, &here);
    let session = manager.create_task_session(task).await?.session_id;

    // Asked again at most twice. The schema is that of the type; `json` takes one that was written by hand.
    let prompt = manager.prompt(PromptInput::new(session, "Review the last commit."));
    let answer = prompt.json_as::<Review>(2).await?;
    let Review { is_good, problems } = answer.value;
    println!("{}: {}", if is_good { "good" } else { "not good" }, problems.join(", "));
    println!("asked {} times, {} tokens in all", answer.attempts, answer.usage.tokens.total());
    manager.shutdown().await;
    Ok(())
}
