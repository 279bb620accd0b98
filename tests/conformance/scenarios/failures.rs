//! Providers that fail, prompts that cannot run, and what the server does then.

use std::collections::BTreeMap;

use opencode_conductor::test_util::{ProviderError, Script, Step};
use serde_json::json;

use crate::stage::Stage;

pub(crate) async fn provider_error(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([Step::error(400)])).await;
    stage.idle(&session, 2).await;
}

/// The run dies when its step has begun, and says so after it is idle; the step is never completed.
pub(crate) async fn run_that_dies(stage: &mut Stage<'_>) {
    stage.enter(stage.target.missing_directory()).await;
    let session = stage.session().await;
    let mut body = stage.prompt_body(&Script::new([Step::text("never")]).prompt("do"));
    body["model"] = json!({"providerID": "mock", "modelID": "m"});
    stage.post_prompt(&session, &body).await;
    stage.event("session.error", &session, 1).await;
    let status = stage.status_of(&session).await;
    stage.note("status", status);
}

pub(crate) async fn unknown_model(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut body = stage.prompt_body("x");
    body["model"] = json!({"providerID": "mock", "modelID": "nope"});
    stage.post_prompt(&session, &body).await;
    stage.event("session.error", &session, 2).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn unknown_model_sticks(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut body = stage.prompt_body("x");
    body["model"] = json!({"providerID": "mock", "modelID": "nope"});
    stage.post_prompt(&session, &body).await;
    stage.event("session.error", &session, 2).await;
    let body = stage.prompt_body("y");
    stage.post_prompt(&session, &body).await;
    stage.event("session.error", &session, 4).await;
    let mut body = stage.prompt_body(&Script::new([Step::text("better")]).prompt("do"));
    body["model"] = json!({"providerID": "mock", "modelID": "m"});
    stage.post_prompt(&session, &body).await;
    stage.idle(&session, 3).await;
}

pub(crate) async fn unknown_agent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut body = stage.prompt_body("x");
    body["agent"] = "nope".into();
    stage.post_prompt(&session, &body).await;
    stage.event("session.error", &session, 2).await;
    let status = stage.status_of(&session).await;
    stage.note("status", status);
}

/// Fails this often, asking for no patience.
fn flaky(status: u16, times: u32, text: &str) -> Step {
    let mut error = ProviderError::default();
    error.status = status;
    error.times = times;
    error.headers = BTreeMap::from([("retry-after-ms".to_owned(), "1".to_owned())]);
    let mut step = Step::text(text);
    step.error = Some(error);
    step
}

pub(crate) async fn retry_then_answer(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [flaky(503, 2, "at last")]).await;
}

pub(crate) async fn retry_after_partial_text(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut step = flaky(200, 1, "some words");
    if let Some(error) = &mut step.error {
        error.body = Some(json!({"error": {"code": "x", "message": "Overloaded", "type": "server_error"}}));
    }
    stage.turn(&session, [step]).await;
}

pub(crate) async fn retries_exhausted(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([flaky(429, 0, "never")])).await;
    stage.idle(&session, 2).await;
}

/// A prompt that is sent at the first of the two idles after an error.
pub(crate) async fn lost_prompt_then_kick(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.target.hold_cleanup();
    stage.prompt(&session, &Script::new([Step::error(400)])).await;
    stage.event("session.error", &session, 1).await;
    let lost = stage.prompt(&session, &Script::new([Step::text("found again")])).await;
    stage.stored(&lost).await;
    stage.target.let_clean_up();
    stage.idle(&session, 2).await;
    let messages = stage.get(&format!("/session/{session}/message")).await;
    stage.note_answer("lost", &messages);
    stage.post_prompt(&session, &lost).await;
    stage.idle(&session, 3).await;
}

pub(crate) async fn error_loses_queued_prompt(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut step = Step::error(400);
    step.gate_before = Some("queuederror".to_owned());
    stage.prompt(&session, &Script::new([step])).await;
    stage.event("session.status", &session, 2).await;
    let queued = stage.prompt(&session, &Script::new([Step::text("never said")])).await;
    stage.stored(&queued).await;
    stage.target.open_gate("queuederror");
    stage.idle(&session, 2).await;
}
