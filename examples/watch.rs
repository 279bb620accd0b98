//! A turn while it runs: tools and text as they come.
//!
//! `cargo run --example watch`, or with `OPENCODE_URL=http://127.0.0.1:4096` on a server.

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{collections::HashMap, env, error::Error, io, io::Write as _};

use opencode_conductor::{
    BlockBody, ConversationManager, CreateTaskSession, PromptInput, SessionConversationState, Update,
    test_util::{FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    let tests = ScriptedTool::new("bash", json!({"command": "cargo test"})).output("31 passed");
    fake.on_prompt(move |_| Script::new([Step::tool(tests.clone()), Step::text("All 31 tests pass.")]));
    let url = env::var("OPENCODE_URL").unwrap_or_else(|_| fake.url());
    let manager = ConversationManager::connect(&url).await?;
    let here = env::current_dir()?;
    let task = CreateTaskSession::new("my-project", "task-42", &here, &here);
    let session = manager.create_task_session(task).await?.session_id;

    // Runs in the background. What `start` returns is the future of the result, and has the updates, which end with the turn.
    let mut running = manager.prompt(PromptInput::new(session.clone(), "Do the tests pass?")).start();
    let mut updates = running.updates().ok_or("they are taken once")?;
    let (mut conversation, mut printed) = (SessionConversationState::new(), HashMap::new());
    while let Some(update) = updates.next().await {
        match update {
            Update::Conversation(event) => conversation.apply(&event),
            // For a reader that was too slow: this is how it stands.
            Update::Missed(now) => conversation = *now,
            _ => continue,
        }
        for block in conversation.blocks().iter() {
            let (text, n_printed) = (text(&block.body), printed.entry(block.id.clone()).or_insert(0));
            print!("{}", text.get(*n_printed..).unwrap_or_default());
            *n_printed = text.len();
        }
        io::stdout().flush()?;
    }
    println!("\n{}", running.await?.completion);
    // Any number of others may watch a session: they get the conversation as it is, and updates from then on.
    let (conversation, _updates) = manager.watch(&session)?;
    println!("{} blocks", conversation.blocks().len());
    manager.shutdown().await;
    Ok(())
}

/// What is shown of a block. It only grows.
fn text(block: &BlockBody) -> String {
    match block {
        BlockBody::ToolUse { name, .. } => format!("⏺ {name}\n"),
        BlockBody::ToolResult { output, .. } => format!("  {output}\n"),
        BlockBody::AssistantText { content, .. } => content.to_string(),
        _ => String::new(),
    }
}
