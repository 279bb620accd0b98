//! How to test a runner of your own: the fake plays scripts, stops at gates until the test opens them, and fails on demand.
//!
//! In your project `runner` is the code under test, and each block of `main` a `#[tokio::test]`; the feature `test-util` belongs to your
//! `[dev-dependencies]`. There is not a sleep in it.
//!
//! `cargo run --example test_with_the_fake`

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use opencode_conductor::{
    ConversationManager, CreateTaskSession, Error, PromptInput, SessionId,
    test_util::{FakeOpenCode, Fault, Route, Script, Step},
};

/// The runner under test.
async fn runner(manager: &ConversationManager, session: &SessionId) -> Result<String, Error> {
    let prompt = PromptInput::new(session.clone(), "Go.");
    let result = manager.prompt(prompt).await?.settled()?;
    Ok(result.answer().unwrap_or_default())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fake = FakeOpenCode::start().await?;
    let manager = ConversationManager::connect(&fake.url()).await?;
    let task = CreateTaskSession::new("my-project", "task-42", "/project", "/project/worktree");
    let session = manager.create_task_session(task).await?.session_id;

    // The answer to the submission is lost: the prompt runs once all the same.
    fake.on_prompt(|_| Script::says("One answer."));
    fake.inject(Route::PromptAsync, Fault::DropAfterEffect);
    assert_eq!(runner(&manager, &session).await?, "One answer.");
    assert_eq!(fake.prompts_run(session.as_str()).len(), 1);
    println!("a lost answer: prompted once");

    // The event stream breaks while the model speaks. The gate holds the model until that has happened.
    fake.on_prompt(|_| Script::new([Step::text("Nothing is missing.").gate_middle("speaking")]));
    let break_stream = async {
        fake.wait_at("speaking").await;
        fake.cut_streams();
        fake.open_gate("speaking");
    };
    let (answer, ()) = tokio::join!(runner(&manager, &session), break_stream);
    assert_eq!(answer?, "Nothing is missing.");
    println!("a broken stream: nothing is missing");

    // The provider fails for good.
    fake.on_prompt(|_| Script::new([Step::error(401)]));
    let error = runner(&manager, &session).await.err().ok_or("it must not succeed")?;
    println!("a failing provider: {error}");

    // What was sent can be counted, too.
    println!("{} prompts submitted in all", fake.request_count(Route::PromptAsync));
    manager.shutdown().await;
    Ok(())
}
