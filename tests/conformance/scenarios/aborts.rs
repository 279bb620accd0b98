//! Aborts, by where they catch the turn.

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use serde_json::json;

use crate::stage::{Stage, bash};

fn gated(gate: &str) -> Step {
    Step::text("one two three four").gate_middle(gate)
}

pub(crate) async fn abort_while_streaming(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([gated("abortstreaming")])).await;
    stage.event("message.part.delta", &session, 1).await;
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
    stage.turn(&session, [Step::text("on we go")]).await;
}

pub(crate) async fn abort_running_bash(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let tool = stage.gated_tool("abortbash");
    stage.prompt(&session, &Script::new([Step::tool(tool), Step::text("never said")])).await;
    stage
        .find("a tool with output", |kind, properties| {
            kind == "message.part.updated" && properties["part"]["state"]["metadata"]["output"].is_string()
        })
        .await;
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
}

pub(crate) async fn abort_before_stream(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step = Step::text("never said").gate_before("abortbefore");
    stage.prompt(&session, &Script::new([step])).await;
    stage.event("session.status", &session, 2).await;
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
}

pub(crate) async fn abort_in_retry(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([Step::error(503)])).await;
    stage
        .find("a retry", |kind, properties| {
            kind == "session.status"
                && properties["status"]["type"] == "retry"
                && properties["sessionID"] == session.as_str()
        })
        .await;
    let status = stage.status_of(&session).await;
    stage.note("status", status);
    stage.abort(&session).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn abort_idle(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.abort(&session).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn abort_unknown(stage: &mut Stage<'_>) {
    stage.abort("ses_nope").await;
    stage.idle("ses_nope", 1).await;
    stage.abort("nope").await;
}

pub(crate) async fn abort_loses_queued_prompt(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([gated("abortqueued")])).await;
    stage.event("message.part.delta", &session, 1).await;
    let queued = stage.prompt(&session, &Script::new([Step::text("never said")])).await;
    stage.stored(&queued).await;
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
}

pub(crate) async fn abort_with_permission_pending(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([Step::tool(bash("touch x", ""))])).await;
    let asked = stage.find("a permission request", |kind, _| kind == "permission.asked").await;
    stage.tool_running(&session).await;
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
    let ghosts = stage.get("/permission").await;
    stage.note_answer("ghost", &ghosts);
    let path = format!("/permission/{}/reply", asked["id"].as_str().expect("an id"));
    let answer = stage.post(&path, &json!({"reply": "once"})).await;
    stage.note_answer("answered all the same", &answer);
    let none = stage.get("/permission").await;
    stage.note_answer("gone", &none);
}

pub(crate) async fn abort_with_question_pending(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let options = json!([{"label": "yes", "description": "y"}]);
    let question = json!({"questions": [{"question": "sure?", "header": "h", "options": options}]});
    let tool = ScriptedTool::new("question", question);
    stage.prompt(&session, &Script::new([Step::tool(tool)])).await;
    stage.find("a question", |kind, _| kind == "question.asked").await;
    stage.tool_running(&session).await;
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
    let ghosts = stage.get("/question").await;
    stage.note("ghosts", ghosts.json().as_array().map(Vec::len));
    let id = ghosts.json()[0]["id"].clone();
    let path = format!("/question/{}/reject", id.as_str().expect("an id"));
    stage.post(&path, &json!({})).await;
}

/// Unlike after an error, the runner is gone at once: a prompt that is sent now runs beside the cleaning up.
pub(crate) async fn prompt_between_abort_idles(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([Step::tool(bash("touch x", ""))])).await;
    let asked = stage.find("a permission request", |kind, _| kind == "permission.asked").await;
    stage.tool_running(&session).await;
    let path = format!("/session/{session}/abort");
    let body = stage.prompt_body(&Script::new([Step::text("right away")]).prompt("do"));
    let request = stage.target.request(reqwest::Method::POST, &path);
    let aborting = crate::target::send(request);
    let prompting = async {
        stage.idle(&session, 1).await;
        stage.post_prompt(&session, &body).await
    };
    let (aborted, prompted) = futures_util::future::join(aborting, prompting).await;
    stage.note("statuses", json!([aborted.status, prompted.status]));
    stage
        .find("the answer", |kind, properties| {
            let info = &properties["info"];
            kind == "message.updated"
                && info["parentID"] == body["messageID"]
                && !info["time"]["completed"].is_null()
        })
        .await;
    let reply = format!("/permission/{}/reply", asked["id"].as_str().expect("an id"));
    stage.post(&reply, &json!({"reply": "once"})).await;
    stage
        .find("the aborted message", |kind, properties| {
            kind == "message.updated" && properties["info"]["error"]["name"] == "MessageAbortedError"
        })
        .await;
    let list = stage.get(&format!("/session/{session}/message")).await.json();
    let ends: Vec<serde_json::Value> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|message| {
            json!([message["info"]["role"], message["info"]["finish"], message["info"]["error"]["name"]])
        })
        .collect();
    stage.note("messages", ends);
    // Two runs at once: their events come in any order.
    stage.forget_turns();
}
