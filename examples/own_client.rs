//! A client with a password and limits of its own, its errors, and a route that has no typed call.
//!
//! `cargo run --example own_client`, or with `OPENCODE_URL=http://127.0.0.1:4096` and `OPENCODE_SERVER_PASSWORD` on a server.

#![expect(clippy::print_stdout, reason = "it is there to be watched")]

use std::{env, error::Error, time::Duration};

use opencode_conductor::{
    ConversationManager, CreateTaskSession, FeedOptions, Method, OpenCodeClient, PromptInput, RawRequest,
    test_util::{FakeOpenCode, FakeOptions},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start_with(FakeOptions::new().password("secret")).await?;
    let url = env::var("OPENCODE_URL").unwrap_or_else(|_| fake.url());
    let password = env::var("OPENCODE_SERVER_PASSWORD").unwrap_or_else(|_| "secret".to_owned());

    let client = OpenCodeClient::builder(&url)
        .basic_auth("opencode", password)
        .connect_timeout(Duration::from_secs(2))
        .answer_timeout(Duration::from_secs(60)) // a large repository that is opened for the first time
        .read_attempts(5) // reads only: what has an effect is never repeated
        .feed(FeedOptions::default().silence(Duration::from_secs(60)))
        .build()?;
    println!("OpenCode {}", client.health().await?.version);

    // An error says what to do with it. It never holds the password, and neither does `Debug`.
    let stranger = OpenCodeClient::builder(&url).basic_auth("opencode", "a guess").build()?;
    if let Err(error) = stranger.health().await {
        println!(
            "{error}; unauthorized: {}, worth a retry: {}",
            error.is_unauthorized(),
            error.is_retryable()
        );
    }

    // Every route can be called, with the same limits and errors.
    let answer = client.raw(RawRequest::new(Method::Get, "/config")).await?.json()?;
    println!("the server's model: {}", answer["model"]);

    // A manager takes the client as it is, and shares its connections.
    let manager = ConversationManager::builder(client.clone()).build();
    let here = env::current_dir()?;
    let task = CreateTaskSession::new("my-project", "task-42", &here, &here);
    let session = manager.create_task_session(task).await?.session_id;
    let result = manager.prompt(PromptInput::new(session, "Say hello.")).await?.settled()?;
    println!("{}", result.answer().unwrap_or_default());
    manager.shutdown().await;

    let statistics = client.statistics();
    println!("{} requests, {} bytes of events", statistics.requests, statistics.feed_bytes);
    Ok(())
}
