//! Time limits, and what a turn that ran into one still has.
//!
//! `cargo run --example limits`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{error::Error, time::Duration};

use opencode_conductor::{
    BlockBody, Completion, ConversationManager, CreateTaskSession, OpenCodeClient, PromptInput, WaitOptions,
    test_util::{FakeOpenCode, Script, Step},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    // This model stops in the middle of its answer.
    fake.on_prompt(|_| {
        let step = Step::text("The first half is easy. The second half never comes.");
        Script::new([step.gate_middle("never opened")])
    });

    // For all prompts. Only progress moves the first limit, so that a long turn is not cut off while it gets on.
    let wait = WaitOptions::default()
        .idle_timeout(Duration::from_secs(60)) // the model is silent
        .tool_timeout(Duration::from_secs(30 * 60)) // a tool is silent, such as a build
        .deadline(Some(Duration::from_secs(2 * 3600))) // all of it
        .max_steps(500);
    let manager = ConversationManager::builder(OpenCodeClient::new(&fake.url())?).wait(wait)?.build();
    let task = CreateTaskSession::new("my-project", "task-42", "/project", "/project/worktree");
    let session = manager.create_task_session(task).await?.session_id;

    // For this one.
    let prompt = PromptInput::new(session, "Explain both halves.").idle_timeout(Duration::from_millis(300));
    let result = manager.prompt(prompt).await?;
    match &result.completion {
        Completion::Settled => println!("done"),
        Completion::TimedOut { limit, abort, .. } => {
            println!("timed out: {limit}");
            let confirmed = abort.as_ref().is_some_and(|abort| abort.confirmed);
            println!("the server says that the session has stopped: {confirmed}");
        }
        other => println!("{other}"),
    }
    // Running out of time is no error: what was said until then is there.
    for block in result.conversation.blocks().iter() {
        if let BlockBody::AssistantText { content, .. } = &block.body {
            println!("said until then: {content:?}");
        }
    }
    // With `settled`, callers who only want a success get an error that holds the same result.
    if let Err(failed) = result.settled() {
        println!("as an error: {failed}");
    }
    manager.shutdown().await;
    Ok(())
}
