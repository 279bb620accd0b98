//! The same calls on OpenCode and on Claude Code. What differs is how the manager is made.
//!
//! `cargo run --example other_agents`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::error::Error;

use opencode_conductor::{
    ConversationManager, CreateTaskSession, ManagerBuilder, OpenCode, OpenCodeClient, PromptInput,
    claude::ClaudeCode,
    error_chain,
    test_util::{ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude, FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::json;

/// Knows nothing of the agent.
async fn work(name: &str, manager: ConversationManager, prompt: String) -> Result<(), Box<dyn Error>> {
    let task = CreateTaskSession::new("my-project", "task-42", "/project", "/project/worktree");
    let session = manager.create_task_session(task).await?.session_id;
    let result = manager.prompt(PromptInput::new(session, prompt)).await?.settled()?;
    println!("{name}: {}", result.answer().unwrap_or_default());
    println!("  {} blocks, {} tokens", result.conversation.blocks().len(), result.usage.tokens.total());
    // What only one of them has is reached by its name.
    println!("  messages: {} of OpenCode", result.messages.opencode().len());
    println!("  lines: {} of Claude Code", result.messages.claude().len());
    // What one of them cannot do is an error that says so.
    match result.diff().await {
        Ok(changes) => changes.iter().for_each(|change| println!("  {} +{}", change.path, change.additions)),
        Err(error) => println!("  no diff: {}", error_chain(&error)),
    }
    manager.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    let agent = OpenCode::new(OpenCodeClient::new(&fake.url())?);
    let write = ScriptedTool::new("write", json!({"filePath": "README.md", "content": "Hello.\n"}));
    let script = Script::new([Step::tool(write), Step::text("There is a README now.")]);
    work("OpenCode", ManagerBuilder::new(agent).build(), script.prompt("Write a README.")).await?;

    // With `ClaudeOptions::new()` instead of the fake's this is the `claude` on the path: one process per session.
    let fake = FakeClaude::start().await?;
    let agent = ClaudeCode::new(fake.options());
    let script = ClaudeScript::new([
        vec![ClaudeTool::new("Write", json!({"file_path": "README.md"}), "written").into()],
        vec![ClaudeStep::Text("There is a README now.".to_owned())],
    ]);
    work("Claude Code", ManagerBuilder::new(agent).build(), script.prompt("Write a README.")).await
}
