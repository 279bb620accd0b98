//! Every error of a prompt can be had from the fake, in the way that the page on testing names.

use std::{collections::BTreeSet, sync::Arc};

use opencode_conductor::{
    ConversationManager, ManagerBuilder, MemoryStore, PromptError, PromptInput, Store, StoreError,
    StoreErrorKind, WaitOptions, WhenBusy,
    test_util::{Fault, Moment, Route, StoreCall, TappedStore},
};

use crate::support::{
    soon,
    stage::{Stage, client, create, gated_text, ms, quick, texts},
};

async fn error_of(manager: &ConversationManager, input: PromptInput) -> PromptError {
    soon(manager.prompt(input).into_future()).await.unwrap_err()
}

/// The name of the variant.
fn name(error: &PromptError) -> String {
    let shown = format!("{error:?}");
    shown.split([' ', '(']).next().unwrap().to_owned()
}

/// The errors that the page names.
fn on_the_page() -> BTreeSet<String> {
    let page = include_str!("../../src/guide/testing.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| [`PromptError::"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

fn impatient() -> WaitOptions {
    WaitOptions::default().idle_timeout(ms(300))
}

/// What a prompt gives that nothing holds up but what was arranged.
async fn arranged(wait: WaitOptions, arrange: impl FnOnce(&Stage)) -> PromptError {
    let stage = Stage::new().await;
    arrange(&stage);
    let input = stage.input(&texts("never")).wait(wait);
    error_of(&stage.manager, input).await
}

/// What a prompt gives while one of the session is at a gate.
async fn while_one_runs(of: impl AsyncFnOnce(&Stage) -> PromptError) -> PromptError {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two three"));
    soon(stage.fake.wait_at("gate")).await;
    let error = of(&stage).await;
    stage.fake.open_gate("gate");
    soon(running).await.unwrap();
    error
}

/// A manager that keeps its records in this memory, beside the stage's own.
fn with_store(stage: &Stage, memory: &MemoryStore) -> ManagerBuilder {
    ConversationManager::builder(client(&stage.fake)).store(Arc::new(memory.another_handle()))
}

#[tokio::test]
async fn every_error_of_a_prompt_comes_as_the_page_on_testing_says() {
    let mut seen = BTreeSet::new();
    let mut note = |expected: &str, error: PromptError| {
        assert_eq!(name(&error), expected, "{error:?}");
        seen.insert(expected.to_owned());
    };

    let stage = Stage::new().await;
    let input = || stage.input(&texts("never"));
    note("Invalid", error_of(&stage.manager, PromptInput::new(stage.session.clone(), " ")).await);
    note("Attachment", error_of(&stage.manager, input().file("/not/there", "text/plain")).await);
    note("Session", error_of(&stage.manager, PromptInput::new("ses_unknown", "hello")).await);
    note("Panicked", error_of(&stage.manager, input().on_message(|_| panic!("a bug of the caller"))).await);
    note("Interrupted", soon(stage.manager.resume(stage.session.clone(), "msg_unknown")).await.unwrap_err());
    stage.manager.shutdown().await;
    note("ShutDown", error_of(&stage.manager, input()).await);

    let busy = async |stage: &Stage| {
        let input = stage.input(&texts("never")).when_busy(WhenBusy::Refuse);
        error_of(&stage.manager, input).await
    };
    note("Busy", while_one_runs(busy).await);
    let not_at_rest = async |stage: &Stage| {
        let other = ConversationManager::builder(client(&stage.fake)).build();
        error_of(&other, stage.input(&texts("never")).wait(impatient())).await
    };
    note("NotAtRest", while_one_runs(not_at_rest).await);

    let fails =
        |fault: Fault| move |stage: &Stage| drop(stage.fake.inject(Route::PromptAsync, fault).always());
    note("NotDelivered", arranged(WaitOptions::default(), fails(Fault::Status(400))).await);
    note("SessionGone", arranged(WaitOptions::default(), fails(Fault::Status(404))).await);
    note("Unauthorized", arranged(WaitOptions::default(), fails(Fault::Status(401))).await);
    note(
        "NotStarted",
        arranged(WaitOptions::default().start_timeout(ms(100)), fails(Fault::LosePrompt)).await,
    );
    note("TimedOut", arranged(impatient(), |stage| stage.fake.hold(Moment::BeforeStore, "never")).await);

    let stage = Stage::new().await;
    stage.fake.hold(Moment::BeforeRun, "gate");
    let running = stage.start(&texts("never"));
    soon(stage.fake.wait_at("gate")).await;
    soon(stage.manager.abort(&stage.session)).await.unwrap();
    note("Aborted", soon(running).await.unwrap_err());

    let stage = Stage::new().await;
    stage.fake.hold(Moment::BeforeStore, "gate");
    let running = stage.start(&texts("never"));
    soon(stage.fake.wait_at("gate")).await;
    soon(stage.manager.client().unwrap().shutdown()).await;
    note("GivenUp", soon(running).await.unwrap_err());

    let stage = Stage::of(quick()).await;
    let memory = MemoryStore::default();
    let refuses = TappedStore::new(Arc::new(memory.another_handle()), |call, _| {
        let is_turn = matches!(call, StoreCall::PutTurn(_));
        let answer =
            if is_turn { Err(StoreError::new("writing", StoreErrorKind::Unavailable)) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    });
    let refuses: Arc<dyn Store> = Arc::new(refuses);
    let manager = ConversationManager::builder(client(&stage.fake)).store(refuses).build();
    let session = create(&manager, "unrecorded").await;
    note("NotRecorded", error_of(&manager, PromptInput::new(session, "hello")).await);

    let manager = with_store(&stage, &memory).build();
    let session = create(&manager, "left open").await;
    let held = PromptInput::new(session.clone(), gated_text("gate", "one two three").prompt("do it"));
    let running = manager.prompt(held).start();
    soon(stage.fake.wait_at("gate")).await;
    let other = with_store(&stage, &memory).build();
    let open = memory.open_turns().remove(0).prompt.message_id;
    note("NotClaimed", soon(other.resume(session.clone(), open)).await.unwrap_err());
    soon(manager.shutdown()).await;
    drop(soon(running).await);
    stage.fake.open_gate("gate");
    note("TurnOpen", error_of(&other, PromptInput::new(session, "next")).await);

    assert_eq!(seen, on_the_page());
}
