//! Who decides when a tool needs permission: a rule for all, a rule for one prompt, or your own code, which sees the command.
//!
//! A tool that needs permission waits until it gets an answer. Without a policy of yours the manager rejects, and the model is told why.
//!
//! `cargo run --example permissions`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::error::Error;

use opencode_conductor::{
    Ask, ConversationManager, CreateTaskSession, Decision, OpenCodeClient, PermissionPolicy, PromptInput,
    test_util::{FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::{Value, json};

/// Allows what builds and tests. It may take its time, and ask a person: the limits of the turn stand still meanwhile.
async fn decide(ask: Ask) -> Decision {
    let Some(wanted) = ask.permission() else { return ask.decline() };
    // The command as it will run. The patterns only say what "always" would cover.
    let command = wanted.metadata.get("command").and_then(Value::as_str).unwrap_or_default();
    let decision = match command.split_whitespace().next() {
        Some("cargo") if !command.contains([';', '&', '|']) => Decision::AllowOnce,
        _ => Decision::Reject("Only cargo may be run here.".to_owned()),
    };
    let task = ask.task.as_ref().map_or("?", |task| task.as_str());
    println!("{task} wants to run `{command}`: {decision:?}");
    decision
}

/// A prompt to which the fake's model runs these commands.
fn prompt_for(commands: [&str; 2]) -> String {
    let steps = commands.map(|command| {
        let mut tool = ScriptedTool::new("bash", json!({"command": command})).output("ok");
        tool.result.ask = Some(("bash".to_owned(), command.to_owned()));
        Step::tool(tool)
    });
    Script::new(steps.into_iter().chain([Step::text("Done as far as I was let.")])).prompt("Tidy up.")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    let client = OpenCodeClient::new(&fake.url())?;
    let manager = ConversationManager::builder(client).permissions(PermissionPolicy::ask(decide)).build();
    let task = CreateTaskSession::new("my-project", "task-42", "/project", "/project/worktree");
    let session = manager.create_task_session(task).await?.session_id;

    let prompt = PromptInput::new(session.clone(), prompt_for(["cargo fmt", "rm -rf target"]));
    println!("  {}", manager.prompt(prompt).await?.settled()?.answer().unwrap_or_default());

    // Another rule for this prompt alone.
    let prompt = PromptInput::new(session, prompt_for(["cargo clean", "rm -rf target"]));
    let result = manager.prompt(prompt.permissions(PermissionPolicy::FailTurn)).await?;
    println!("with FailTurn: {}", result.completion);
    manager.shutdown().await;
    Ok(())
}
