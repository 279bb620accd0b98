//! Sessions below sessions.

use opencode_conductor::test_util::{Script, Step};
use serde_json::json;

use crate::stage::{Stage, bash, calls, task};

pub(crate) async fn subagent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = task("sub one", "general", [calls([bash("echo hi", "hi\n")]), Step::text("child says")]);
    stage.turn(&session, [Step::tool(child), Step::text("done")]).await;
    let children = stage.get(&format!("/session/{session}/children")).await;
    stage.note_answer("children", &children);
}

pub(crate) async fn parallel_subagents(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let children = [
        task("one", "general", [Step::text("first child")]),
        task("two", "general", [Step::text("second child")]),
    ];
    stage.turn(&session, [calls(children), Step::text("done")]).await;
}

pub(crate) async fn failing_subagent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = task("sub", "general", [Step::error(400)]);
    stage.turn(&session, [Step::tool(child), Step::text("done")]).await;
}

pub(crate) async fn unknown_subagent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = task("sub", "nope", [Step::text("never said")]);
    stage.turn(&session, [Step::tool(child), Step::text("done")]).await;
}

pub(crate) async fn background_without_flag(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut child = task("sub", "general", [Step::text("never said")]);
    child.args["background"] = true.into();
    stage.turn(&session, [Step::tool(child), Step::text("done")]).await;
}

pub(crate) async fn nested_subagents(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let leaf = task("leaf", "general", [Step::text("leaf says")]);
    let middle = task("middle", "nester", [Step::tool(leaf), Step::text("middle says")]);
    stage.turn(&session, [Step::tool(middle), Step::text("done")]).await;
}

/// The built-in agents may not start subagents at all.
pub(crate) async fn too_deep(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let leaf = task("leaf", "general", [Step::text("never said")]);
    let middle = task("middle", "general", [Step::tool(leaf), Step::text("middle says")]);
    stage.turn(&session, [Step::tool(middle), Step::text("done")]).await;
}

fn gated(gate: &str) -> Step {
    Step::text("one two three four").gate_middle(gate)
}

/// Prompts for a subagent that is held in the middle of its answer; returns the child's session.
async fn start_held_child(stage: &mut Stage<'_>, session: &str, gate: &str) -> String {
    let child = task("sub", "general", [gated(gate)]);
    stage.prompt(session, &Script::new([Step::tool(child), Step::text("done")])).await;
    let delta = stage.find("the child's text", |kind, _| kind == "message.part.delta").await;
    delta["sessionID"].as_str().expect("a session").to_owned()
}

pub(crate) async fn abort_parent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = start_held_child(stage, &session, "abortparent").await;
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
    stage.idle(&child, 2).await;
}

pub(crate) async fn abort_child(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = start_held_child(stage, &session, "abortchild").await;
    stage.abort(&child).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn subagent_asks(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = task("sub", "general", [calls([bash("touch x", "")]), Step::text("never said")]);
    stage.prompt(&session, &Script::new([Step::tool(child), Step::text("done")])).await;
    let asked = stage.find("a permission request", |kind, _| kind == "permission.asked").await;
    let path = format!("/permission/{}/reply", asked["id"].as_str().expect("an id"));
    stage.post(&path, &json!({"reply": "reject"})).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn resumed_subagent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let child = task("sub", "general", [Step::text("first")]);
    stage.turn(&session, [Step::tool(child), Step::text("done")]).await;
    let created = stage
        .find("the child", |kind, properties| {
            kind == "session.created" && properties["info"]["parentID"] == session.as_str()
        })
        .await;
    let mut again = task("sub again", "general", [Step::text("second")]);
    again.args["task_id"] = created["info"]["id"].clone();
    stage.turn(&session, [Step::tool(again), Step::text("done")]).await;
}

/// A task call may name any session: it runs there, asks there, and the server does not call it a child of the caller's session.
pub(crate) async fn task_in_a_strangers_session(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let stranger = stage.session().await;
    let mut named = task("theirs", "general", [calls([bash("touch x", "")]), Step::text("never said")]);
    named.args["task_id"] = stranger.as_str().into();
    stage.prompt(&session, &Script::new([Step::tool(named), Step::text("done")])).await;
    let asked = stage.find("a permission request", |kind, _| kind == "permission.asked").await;
    assert_eq!(asked["sessionID"], stranger.as_str());
    let children = stage.get(&format!("/session/{session}/children")).await;
    stage.note_answer("children", &children);
    let info = stage.get(&format!("/session/{stranger}")).await.json();
    stage.note("the stranger's parent", info["parentID"].clone());
    let path = format!("/permission/{}/reply", asked["id"].as_str().expect("an id"));
    stage.post(&path, &json!({"reply": "reject"})).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn subagent_inherits_rules(stage: &mut Stage<'_>) {
    let rules = json!([
        {"permission": "bash", "pattern": "*", "action": "allow"},
        {"permission": "webfetch", "pattern": "*", "action": "deny"},
        {"permission": "external_directory", "pattern": "*", "action": "allow"},
    ]);
    let session = stage.session_with(json!({"permission": rules})).await;
    let child = task("sub", "general", [Step::text("child says")]);
    stage.turn(&session, [Step::tool(child), Step::text("done")]).await;
}

pub(crate) async fn background_subagent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut child = task("sub", "general", [gated("background")]);
    child.args["background"] = true.into();
    stage.turn(&session, [Step::tool(child), Step::text("not waiting")]).await;
    let delta = stage
        .find("the child's text", |kind, properties| {
            kind == "message.part.delta" && properties["sessionID"] != session.as_str()
        })
        .await;
    let child = delta["sessionID"].as_str().expect("a session").to_owned();
    let statuses = json!([stage.status_of(&session).await, stage.status_of(&child).await]);
    stage.note("statuses of parent and child", statuses);
    stage.target.open_gate("background");
    stage.idle(&session, 2).await;
}

pub(crate) async fn abort_with_background_subagent(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut child = task("sub", "general", [gated("backgroundabort")]);
    child.args["background"] = true.into();
    stage.turn(&session, [Step::tool(child), Step::text("not waiting")]).await;
    let delta = stage
        .find("the child's text", |kind, properties| {
            kind == "message.part.delta" && properties["sessionID"] != session.as_str()
        })
        .await;
    let child = delta["sessionID"].as_str().expect("a session").to_owned();
    stage.abort(&session).await;
    stage.idle(&session, 2).await;
    stage.idle(&child, 2).await;
}
