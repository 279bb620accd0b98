//! Sessions and servers that end.

use opencode_conductor::test_util::{Script, Step};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    stage::{Stage, bash},
    target::send,
};

fn gated(gate: &str) -> Step {
    Step::text("one two three four").gate_middle(gate)
}

pub(crate) async fn delete_session(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = stage.session_with(json!({"parentID": session, "title": "child"})).await;
    stage.turn(&session, [Step::text("hello")]).await;
    for label in ["deleted", "deleted again"] {
        let answer = send(stage.target.request(Method::DELETE, &format!("/session/{session}"))).await;
        stage.note_answer(label, &answer);
    }
    for session in [&session, &child] {
        let answer = stage.get(&format!("/session/{session}/message")).await;
        stage.note_answer("messages", &answer);
    }
}

pub(crate) async fn delete_while_busy(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([gated("deletebusy")])).await;
    stage.event("message.part.delta", &session, 1).await;
    let answer = send(stage.target.request(Method::DELETE, &format!("/session/{session}"))).await;
    stage.note_answer("deleted", &answer);
    stage.event("session.deleted", &session, 1).await;
    let status = stage.status_of(&session).await;
    stage.note("status", status);
    stage.abort(&session).await;
    stage.forget_turns();
}

/// What is left of a session after a crash, and what comes of sending the prompt again.
async fn look_and_repost(stage: &mut Stage<'_>, session: &str, body: &Value) {
    let list = stage.get(&format!("/session/{session}/message")).await;
    stage.note_answer("left", &list);
    let statuses = stage.get("/session/status").await;
    stage.note_answer("statuses", &statuses);
    stage.listen_again().await;
    stage.post_prompt(session, body).await;
    stage.idle(session, 1).await;
}

pub(crate) async fn restart_while_streaming(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let body = stage.prompt(&session, &Script::new([gated("restartstream")])).await;
    stage.event("message.part.delta", &session, 1).await;
    stage.target.restart().await;
    stage.events.wait_for_end().await;
    stage.target.open_gate("restartstream");
    look_and_repost(stage, &session, &body).await;
}

pub(crate) async fn restart_while_tool_runs(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let tool = stage.gated_tool("restarttool");
    let body = stage.prompt(&session, &Script::new([Step::tool(tool), Step::text("done")])).await;
    stage
        .find("a tool with output", |kind, properties| {
            kind == "message.part.updated" && properties["part"]["state"]["metadata"]["output"].is_string()
        })
        .await;
    stage.target.restart().await;
    stage.events.wait_for_end().await;
    stage.target.open_gate("restarttool");
    look_and_repost(stage, &session, &body).await;
}

pub(crate) async fn restart_with_permission_pending(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([Step::tool(bash("touch x", ""))])).await;
    stage.find("a permission request", |kind, _| kind == "permission.asked").await;
    stage.tool_running(&session).await;
    stage.target.restart().await;
    stage.events.wait_for_end().await;
    let list = stage.get("/permission").await;
    stage.note_answer("pending", &list);
    stage.listen_again().await;
    stage.abort(&session).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn fork_session(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::text("hello")]).await;
    let forked = stage.post(&format!("/session/{session}/fork"), &json!({})).await.json();
    stage.note("title", forked["title"].clone());
    let answer = stage.post("/session/ses_nope/fork", &json!({})).await;
    stage.note_answer("fork an unknown session", &answer);
}
