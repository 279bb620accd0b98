//! The same prompt sent again: the way to find out, or to make sure, that it runs.

use opencode_conductor::test_util::{Script, Step};
use serde_json::json;

use crate::stage::Stage;

fn gated(gate: &str) -> Step {
    Step::text("one two three four").gate_middle(gate)
}

pub(crate) async fn repost_while_running(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let body = stage.prompt(&session, &Script::new([gated("repostrunning")])).await;
    stage.event("message.part.delta", &session, 1).await;
    let again = stage.post_prompt(&session, &body).await;
    stage.note_answer("again", &again);
    // Stored a second time: two events of the same part.
    let part = body["parts"][0]["id"].clone();
    let twice = |seen: &[serde_json::Value]| {
        seen.iter().filter(|event| event["properties"]["part"]["id"] == part).count() == 2
    };
    stage.events.wait("the prompt stored twice", twice).await;
    stage.target.open_gate("repostrunning");
    stage.idle(&session, 1).await;
}

pub(crate) async fn repost_after_finish(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let body = stage.turn(&session, [Step::text("once")]).await;
    stage.post_prompt(&session, &body).await;
    stage.idle(&session, 2).await;
}

pub(crate) async fn repost_without_part_ids(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let body = stage.turn(&session, [Step::text("once")]).await;
    let text = json!([{"type": "text", "text": "doubled"}]);
    stage.post_prompt(&session, &json!({"messageID": body["messageID"], "parts": text})).await;
    stage.idle(&session, 2).await;
}

pub(crate) async fn repost_after_error(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut step = Step::error(400);
    if let Some(error) = &mut step.error {
        error.times = 1;
    }
    step.text = String::from("this time");
    let body = stage.prompt(&session, &Script::new([step])).await;
    stage.idle(&session, 2).await;
    stage.post_prompt(&session, &body).await;
    stage.idle(&session, 3).await;
}

pub(crate) async fn repost_of_an_older_message(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let body = stage.turn(&session, [Step::text("first")]).await;
    stage.turn(&session, [Step::text("second")]).await;
    stage.post_prompt(&session, &body).await;
    stage.idle(&session, 3).await;
}

pub(crate) async fn foreign_message_id(stage: &mut Stage<'_>) {
    let owner = stage.session().await;
    let other = stage.session().await;
    let body = stage.turn(&owner, [Step::text("mine")]).await;
    let mut stolen = stage.prompt_body("not mine");
    stolen["messageID"] = body["messageID"].clone();
    let answer = stage.post_prompt(&other, &stolen).await;
    stage.note_answer("accepted", &answer);
    stage.event("session.error", &other, 1).await;
}
