//! What subagents did, and what each session used.
//!
//! `cargo run --example subagents`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::error::Error;

use opencode_conductor::{
    BlockBody, ConversationManager, CreateTaskSession, PromptInput, SessionConversationState, Thread,
    test_util::{FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    // The model hands a search to a subagent, which has a session of its own below the task's.
    let search = ScriptedTool::new("grep", json!({"pattern": "parse_amount"})).output("src/invoice.rs:41");
    let subagent = Script::new([Step::tool(search), Step::text("One caller: src/invoice.rs.")]);
    let script = Script::new([
        Step::subagent("Find callers", &subagent),
        Step::text("It is safe to change: there is one caller."),
    ]);

    let manager = ConversationManager::connect(&fake.url()).await?;
    let create = CreateTaskSession::new("my-project", "task-42", "/project", "/project/worktree");
    let session = manager.create_task_session(create).await?.session_id;
    let prompt = PromptInput::new(session, script.prompt("May I change parse_amount?"));
    let result = manager.prompt(prompt).await?.settled()?;

    // The answer comes when the subagents, too, are at rest.
    show(&result.conversation, result.conversation.blocks(), "");
    println!();
    for (session, usage) in &result.usage_by_session {
        println!("{session}: {} tokens", usage.tokens.total());
    }
    println!("in all: {} tokens", result.usage.tokens.total());
    manager.shutdown().await;
    Ok(())
}

/// Prints a thread, and those of its subagents further in.
fn show(state: &SessionConversationState, thread: &Thread, indent: &str) {
    for block in thread.iter() {
        match &block.body {
            BlockBody::AssistantText { content, .. } => println!("{indent}● {content}"),
            BlockBody::ToolUse { name, .. } => println!("{indent}⏺ {name}"),
            BlockBody::Subagent(subagent) => {
                println!("{indent}▶ {}", subagent.name);
                if let Some(below) = state.subagent(&subagent.tool_use_id) {
                    show(state, &below.blocks, &format!("{indent}  "));
                }
            }
            _ => {}
        }
    }
}
