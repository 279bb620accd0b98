//! A turn while it runs: tools and text as they come.
//!
//! `cargo run --example watch`, or with `OPENCODE_URL=http://127.0.0.1:4096` on a server.

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{collections::HashMap, env, error::Error, io, io::Write as _};

use opencode_conductor::{
    BlockBody, BlockId, ConversationEvent, ConversationManager, CreateTaskSession, PromptInput, Update,
    test_util::{FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    fake.on_prompt(|_| {
        let tests = ScriptedTool::new("bash", json!({"command": "cargo test"})).output("31 passed; 0 failed");
        Script::new([Step::tool(tests), Step::text("All 31 tests pass.")])
    });
    let manager = ConversationManager::connect(&env::var("OPENCODE_URL").unwrap_or_else(|_| fake.url()))?;
    let here = env::current_dir()?;
    let task = CreateTaskSession::new("my-project", "task-42", &here, &here);
    let session = manager.create_task_session(task).await?.session_id;

    // Runs in the background. What `start` returns is the future of the result, and has the updates, which end with the turn.
    let mut running = manager.prompt(PromptInput::new(session, "Do the tests pass?")).start();
    let mut updates = running.updates().ok_or("they are taken once")?;
    let mut printed = HashMap::new();
    while let Some(update) = updates.next().await {
        // Others tell of permissions, of a stream that is down, and (`Missed`) of what a slow reader did not get.
        if let Update::Conversation(event) = update {
            show(event, &mut printed);
            io::stdout().flush()?;
        }
    }
    println!("\n{}", running.await?.completion);
    manager.shutdown().await;
    Ok(())
}

/// Prints what an event adds; `printed` has how many bytes of each text are there already.
fn show(event: ConversationEvent, printed: &mut HashMap<BlockId, usize>) {
    match event {
        // A block is there, or has changed, and is told whole.
        ConversationEvent::BlockUpsert { block, .. } => match &block.body {
            BlockBody::ToolUse { name, tool_status, .. } => println!("⏺ {name} is {tool_status:?}"),
            BlockBody::ToolResult { output, .. } => println!("  {output}"),
            BlockBody::AssistantText { content, .. } => {
                let n_printed = printed.insert(block.id.clone(), content.as_str().len()).unwrap_or_default();
                print!("{}", content.as_str().get(n_printed..).unwrap_or_default());
            }
            _ => {}
        },
        // A text has grown; so may thinking, which is not shown here.
        ConversationEvent::BlockDelta { block_id, delta, .. } => {
            if let Some(n_printed) = printed.get_mut(&block_id) {
                print!("{delta}");
                *n_printed += delta.len();
            }
        }
        _ => {}
    }
}
