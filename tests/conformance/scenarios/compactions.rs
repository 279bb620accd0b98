//! Sessions that grow too large for the model.

use opencode_conductor::test_util::{ProviderError, Script, Step};
use serde_json::json;

use crate::stage::{Stage, bash, calls};

/// An answer that fills the context.
fn filling(mut step: Step) -> Step {
    step.usage = Some(json!({"prompt_tokens": 95_000, "completion_tokens": 5, "total_tokens": 95_005}));
    step
}

/// A prompt that does not fit.
fn overflowing(times: u32, text: &str) -> Step {
    let mut error = ProviderError::default();
    error.status = 400;
    error.times = times;
    let message = "This model's maximum context length is 100000 tokens";
    error.body = Some(json!({"error": {"message": message, "code": "context_length_exceeded"}}));
    let mut step = Step::text(text);
    step.error = Some(error);
    step
}

pub(crate) async fn compaction_by_usage(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [filling(Step::text("long answer")), Step::text("going on")]).await;
}

pub(crate) async fn compaction_after_tools(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step = filling(calls([bash("echo hi", "hi\n")]));
    stage.turn(&session, [step, Step::text("going on"), Step::text("and on")]).await;
}

pub(crate) async fn compaction_by_overflow(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [overflowing(1, "it fits now")]).await;
}

pub(crate) async fn compaction_by_overflow_replays(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::text("first")]).await;
    stage.turn(&session, [overflowing(1, "it fits now")]).await;
}

pub(crate) async fn compaction_fails(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.target.set_compaction(Step::error(400));
    stage.prompt(&session, &Script::new([filling(Step::text("long answer"))])).await;
    stage.idle(&session, 2).await;
    stage.target.set_compaction(Step::text("SUMMARY: the conversation so far."));
}

pub(crate) async fn summarize_route(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::text("first")]).await;
    let model = json!({"providerID": "mock", "modelID": "m"});
    let answer = stage.post(&format!("/session/{session}/summarize"), &model).await;
    stage.note_answer("summarized", &answer);
    for (label, session, body) in
        [("unknown session", "ses_nope", model), ("no model", session.as_str(), json!({}))]
    {
        let answer = stage.post(&format!("/session/{session}/summarize"), &body).await;
        stage.note_answer(label, &answer);
    }
    stage.turn(&session, [Step::text("after")]).await;
}
