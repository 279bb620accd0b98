//! Permissions and questions.

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use serde_json::{Value, json};

use crate::stage::{Stage, bash, calls};

/// Starts a turn that asks, and returns the request.
async fn ask(stage: &mut Stage<'_>, session: &str, steps: impl IntoIterator<Item = Step>) -> Value {
    stage.prompt(session, &Script::new(steps)).await;
    stage
        .find("a request", |kind, properties| {
            (kind == "permission.asked" || kind == "question.asked") && properties["sessionID"] == session
        })
        .await
}

async fn reply(stage: &mut Stage<'_>, asked: &Value, body: Value) {
    let path = format!("/permission/{}/reply", asked["id"].as_str().expect("an id"));
    let answer = stage.post(&path, &body).await;
    stage.note_answer("reply", &answer);
}

fn touching() -> [Step; 2] {
    [Step::tool(bash("touch x", "")), Step::text("done")]
}

pub(crate) async fn permission_once(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let asked = ask(stage, &session, [Step::tool(bash("touch notes.txt", "")), Step::text("done")]).await;
    let list = stage.get("/permission").await;
    stage.note_answer("pending", &list);
    let status = stage.status_of(&session).await;
    stage.note("status", status);
    reply(stage, &asked, json!({"reply": "once"})).await;
    stage.idle(&session, 1).await;
    reply(stage, &asked, json!({"reply": "once"})).await;
}

pub(crate) async fn permission_always(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let tools = [bash("touch notes.txt", ""), bash("touch -c none", "")];
    let asked = ask(stage, &session, [calls(tools), Step::text("done")]).await;
    stage.event("permission.asked", &session, 2).await;
    reply(stage, &asked, json!({"reply": "always"})).await;
    stage.idle(&session, 1).await;
    stage.turn(&session, [Step::tool(bash("touch -c other", "")), Step::text("unasked")]).await;
    let other = stage.session().await;
    stage.turn(&other, [Step::tool(bash("touch -c more", "")), Step::text("unasked too")]).await;
    // What was allowed for good lives as long as the instance.
    stage.post("/instance/dispose", &json!({})).await;
    stage.events.wait_for_end().await;
    stage.listen_again().await;
}

pub(crate) async fn permission_reject(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let asked = ask(stage, &session, touching()).await;
    reply(stage, &asked, json!({"reply": "reject"})).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn permission_reject_with_message(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let asked = ask(stage, &session, touching()).await;
    reply(stage, &asked, json!({"reply": "reject", "message": "use another way"})).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn one_reject_settles_all(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let tools = [bash("touch x", ""), bash("touch y", "")];
    let asked = ask(stage, &session, [calls(tools), Step::text("never said")]).await;
    stage.event("permission.asked", &session, 2).await;
    reply(stage, &asked, json!({"reply": "reject"})).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn old_reply_route(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let asked = ask(stage, &session, touching()).await;
    let path = format!("/session/{session}/permissions/{}", asked["id"].as_str().expect("an id"));
    let request = stage.target.request(reqwest::Method::POST, &path);
    let answer = crate::target::send(request.json(&json!({"response": "reject"}))).await;
    stage.note_answer("reply", &answer);
    stage.idle(&session, 1).await;
}

pub(crate) async fn denied_by_rule(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::tool(bash("rm x", "")), Step::text("done")]).await;
}

pub(crate) async fn session_allows(stage: &mut Stage<'_>) {
    let rules = json!([{"permission": "*", "pattern": "*", "action": "allow"}]);
    let session = stage.session_with(json!({"permission": rules})).await;
    stage.turn(&session, [Step::tool(bash("touch -c none", "")), Step::text("done")]).await;
}

pub(crate) async fn session_denies(stage: &mut Stage<'_>) {
    let rules = json!([{"permission": "bash", "pattern": "echo *", "action": "deny"}]);
    let session = stage.session_with(json!({"permission": rules})).await;
    stage.turn(&session, [Step::tool(bash("echo hi", "hi\n")), Step::text("done")]).await;
}

fn question() -> ScriptedTool {
    let options = json!([{"label": "pg", "description": "x"}, {"label": "my", "description": "y"}]);
    let questions = json!([
        {"question": "which?", "header": "h", "options": options},
        {"question": "sure?", "header": "s", "options": options},
    ]);
    ScriptedTool::new("question", json!({"questions": questions}))
}

/// The same call for the third time in one step; none of them has ended when the answer comes.
async fn looping(stage: &mut Stage<'_>, answer: Value) -> String {
    let session = stage.session().await;
    let same = stage.gated_tool("loop");
    let asked = ask(stage, &session, [calls([same.clone(), same.clone(), same]), Step::text("enough")]).await;
    reply(stage, &asked, answer).await;
    session
}

pub(crate) async fn loop_rejected(stage: &mut Stage<'_>) {
    let session = looping(stage, json!({"reply": "reject"})).await;
    stage.idle(&session, 2).await;
}

pub(crate) async fn loop_rejected_with_message(stage: &mut Stage<'_>) {
    let session = looping(stage, json!({"reply": "reject", "message": "try something else"})).await;
    stage.idle(&session, 2).await;
}

pub(crate) async fn loop_allowed(stage: &mut Stage<'_>) {
    let session = looping(stage, json!({"reply": "once"})).await;
    stage.target.open_gate("loop");
    stage.idle(&session, 1).await;
}

pub(crate) async fn question_answered(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let asked = ask(stage, &session, [Step::tool(question()), Step::text("done")]).await;
    let list = stage.get("/question").await;
    stage.note_answer("pending", &list);
    let path = format!("/question/{}/reply", asked["id"].as_str().expect("an id"));
    let answer = stage.post(&path, &json!({"answers": [["pg", "my"], []]})).await;
    stage.note_answer("reply", &answer);
    stage.idle(&session, 1).await;
}

pub(crate) async fn question_dismissed(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let asked = ask(stage, &session, [Step::tool(question()), Step::text("never said")]).await;
    let path = format!("/question/{}/reject", asked["id"].as_str().expect("an id"));
    let answer = stage.post(&path, &json!({})).await;
    stage.note_answer("reject", &answer);
    stage.idle(&session, 1).await;
}

pub(crate) async fn question_denied(stage: &mut Stage<'_>) {
    let rules = json!([{"permission": "question", "pattern": "*", "action": "deny"}]);
    let session = stage.session_with(json!({"permission": rules})).await;
    stage.turn(&session, [Step::tool(question()), Step::text("done")]).await;
}
