//! Who decides when a tool needs permission: a rule, your own code, which sees the command, or a person at a desk.
//!
//! Without a policy of yours the manager rejects, and the model is told why. `cargo run --example permissions`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::error::Error;

use futures_util::StreamExt;
use opencode_conductor::{
    ApprovalDesk, Ask, ConversationManager, CreateTaskSession, Decision, OpenCodeClient, PermissionPolicy,
    PromptInput,
    test_util::{FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::{Value, json};

/// Allows what builds and tests. It may take its time, and ask a person: the limits of the turn stand still meanwhile.
async fn decide(ask: Ask) -> Decision {
    let Some(wanted) = ask.permission() else { return ask.decline() };
    // The command as it will run. The patterns only say what "always" would cover.
    let command = wanted.metadata.get("command").and_then(Value::as_str).unwrap_or_default();
    let is_cargo = command.starts_with("cargo ") && !command.contains([';', '&', '|', '$', '`', '\n']);
    if is_cargo { Decision::AllowOnce } else { Decision::Reject("Only cargo may be run here.".to_owned()) }
}

/// A prompt to which the fake's model runs these commands.
fn prompt_for(commands: [&str; 2]) -> String {
    let bash = |command| ScriptedTool::new("bash", json!({"command": command})).asks("bash", command);
    Script::new(commands.map(|command| Step::tool(bash(command)))).prompt("Tidy up.")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    let builder = ConversationManager::builder(OpenCodeClient::new(&fake.url())?);
    let manager = builder.permissions(PermissionPolicy::ask(decide)).build();
    let task = CreateTaskSession::new("my-project", "task-42", "/project", "/project/worktree");
    let session = manager.create_task_session(task).await?.session_id;

    let prompt = PromptInput::new(session.clone(), prompt_for(["cargo fmt", "rm -rf target"]));
    for refused in manager.prompt(prompt).await?.settled()?.refused {
        println!("refused: {:?}", refused.permission().map(|wanted| &wanted.patterns));
    }

    // For this prompt, requests lie on a desk until they are answered: by a route of your service, a chat, a page.
    let desk = ApprovalDesk::new();
    let prompt = PromptInput::new(session, prompt_for(["cargo clean", "rm -rf target"]));
    let running = manager.prompt(prompt.permissions(desk.permissions())).start();
    let mut lists = desk.watch().take_until(running);
    while let Some(asks) = lists.next().await {
        for ask in asks {
            let answered = desk.answer(&ask.root, &ask.id, Decision::AllowOnce)?;
            println!("allowed: {:?}", answered.permission().map(|wanted| &wanted.patterns));
        }
    }
    println!("{}", lists.take_result().ok_or("it has ended")??.completion);
    manager.shutdown().await;
    Ok(())
}
