//! Turns that go as they should, or nearly.

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use serde_json::{Value, json};

use crate::stage::{Stage, bash, calls, task};

fn with(mut step: Step, change: impl FnOnce(&mut Step)) -> Step {
    change(&mut step);
    step
}

pub(crate) async fn text_turn(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::text("hello brave\n\nnew world")]).await;
}

pub(crate) async fn reasoning_turn(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step =
        Step::text("the answer").reasoning("let me think").words(3).blob(10).usage(usage(100, 40, 30, 10));
    stage.turn(&session, [step]).await;
}

/// A turn of three steps and a subagent, each with its price; the numbers are such that floats would not add up.
pub(crate) async fn priced_turn(stage: &mut Stage<'_>) {
    let providers = stage.get("/config/providers").await.json();
    let mock = providers["providers"].as_array().into_iter().flatten().find(|found| found["id"] == "mock");
    stage.note("listed", mock.map(|mock| mock["models"]["m"]["cost"].clone()).unwrap_or_default());
    let config = stage.get("/config").await.json();
    stage.note("configured", config["provider"]["mock"]["models"]["m"]["cost"].clone());
    let session = stage.session().await;
    let child = [Step::text("found it").usage(usage(77, 7, 3, 1))];
    let steps = [
        calls([bash("echo hi", "hi\n")]).usage(usage(100, 40, 30, 10)),
        calls([task("look", "general", child)]).usage(usage(33_333, 0, 891, 0)),
        Step::text("done").usage(usage(3, 0, 1, 0)),
    ];
    stage.turn(&session, steps).await;
    let info = stage.get(&format!("/session/{session}")).await.json();
    stage.note("session", json!({"cost": info["cost"], "tokens": info["tokens"]}));
}

/// The provider's usage object.
fn usage(prompt: u64, cached: u64, completion: u64, reasoning: u64) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
}

pub(crate) async fn empty_answer(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::default()]).await;
}

pub(crate) async fn length_finish(stage: &mut Stage<'_>) {
    finish(stage, "length").await;
}

pub(crate) async fn odd_finish(stage: &mut Stage<'_>) {
    finish(stage, "weird").await;
}

pub(crate) async fn content_filter(stage: &mut Stage<'_>) {
    finish(stage, "content_filter").await;
}

async fn finish(stage: &mut Stage<'_>, reason: &str) {
    let session = stage.session().await;
    let step = Step::text("some words").finish(reason);
    stage.turn(&session, [step, Step::text("second")]).await;
}

pub(crate) async fn dropped_stream(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step = with(Step::text("some words"), |step| step.drop = true);
    stage.turn(&session, [step, Step::text("second")]).await;
}

pub(crate) async fn tool_turn(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step = with(calls([bash("echo hi", "hi\n")]), |step| step.text = String::from("I run it"));
    stage.turn(&session, [step, Step::text("done")]).await;
}

pub(crate) async fn parallel_tools(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step = with(calls([bash("echo one", "one\n"), bash("true", "")]), |step| {
        step.reasoning = String::from("both at once");
    });
    stage.turn(&session, [step, Step::text("done")]).await;
}

pub(crate) async fn failing_tool(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let path = format!("{}/none.txt", stage.target.directory(0));
    let read = ScriptedTool::new("read", json!({"filePath": path})).fails(format!("File not found: {path}"));
    stage.turn(&session, [Step::tool(read), Step::text("done")]).await;
}

pub(crate) async fn unknown_tool(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let tool = ScriptedTool::new("nosuch", json!({"a": 1}));
    stage.turn(&session, [Step::tool(tool), Step::text("done")]).await;
}

pub(crate) async fn invalid_arguments(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let tool = ScriptedTool::new("read", json!("{\"filePath"));
    stage.turn(&session, [Step::tool(tool), Step::text("done")]).await;
}

pub(crate) async fn stop_with_tools(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step = with(calls([bash("echo hi", "hi\n")]), |step| step.finish = Some("stop".to_owned()));
    stage.turn(&session, [step, Step::text("done")]).await;
}

pub(crate) async fn follow_up(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::text("first")]).await;
    stage.turn(&session, [Step::text("second")]).await;
    let mut plain = stage.prompt_body("no script here");
    plain["agent"] = "plan".into();
    stage.post_prompt(&session, &plain).await;
    stage.idle(&session, 3).await;
    let info = stage.get(&format!("/session/{session}")).await;
    stage.note_answer("session", &info);
}

pub(crate) async fn no_reply(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut body = stage.prompt_body("just so that you know");
    body["noReply"] = true.into();
    stage.post_prompt(&session, &body).await;
    stage.stored(&body).await;
    let status = stage.status_of(&session).await;
    stage.note("status", status);
}

pub(crate) async fn sync_message(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let path = format!("/session/{session}/message");
    let body = stage.prompt_body(&Script::new([Step::text("at once")]).prompt("do"));
    let answer = stage.post(&path, &body).await;
    stage.note_answer("answered", &answer);
    let answer = stage.post(&path, &body).await;
    stage.note_answer("again", &answer);
    let body = stage.prompt_body(&Script::new([Step::error(400)]).prompt("do"));
    let answer = stage.post(&path, &body).await;
    stage.note_answer("failed", &answer);
    stage.idle(&session, 4).await;
    let mut body = stage.prompt_body("x");
    body["noReply"] = true.into();
    let answer = stage.post(&path, &body).await;
    stage.note_answer("no reply", &answer);
    let mut body = stage.prompt_body("x");
    body["agent"] = "nope".into();
    let answer = stage.post(&path, &body).await;
    stage.note_answer("unknown agent", &answer);
}

pub(crate) async fn default_title(stage: &mut Stage<'_>) {
    let created = stage.post("/session", &json!({})).await.json();
    let session = created["id"].as_str().expect("a session").to_owned();
    let is_default = created["title"].as_str().is_some_and(|title| title.starts_with("New session - "));
    stage.note("default title", is_default);
    stage.turn(&session, [Step::text("hello")]).await;
    let named = stage
        .find("a title", |kind, properties| {
            let title = properties["info"]["title"].as_str().unwrap_or("New session");
            kind == "session.updated"
                && properties["sessionID"] == session.as_str()
                && !title.starts_with("New session")
        })
        .await;
    stage.note("title", named["info"]["title"].clone());
}

pub(crate) async fn busy_during_text(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let first = Step::text("one two three four").gate_middle("busytext");
    stage.prompt(&session, &Script::new([first])).await;
    stage.event("message.part.delta", &session, 1).await;
    let status = stage.status_of(&session).await;
    stage.note("status", status);
    let second = stage.prompt(&session, &Script::new([Step::text("second")])).await;
    stage.stored(&second).await;
    stage.target.open_gate("busytext");
    stage.idle(&session, 1).await;
}

pub(crate) async fn busy_during_tool(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let tool = stage.gated_tool("busytool");
    stage.prompt(&session, &Script::new([Step::tool(tool), Step::text("never said")])).await;
    stage.tool_running(&session).await;
    let second = stage.prompt(&session, &Script::new([Step::text("second")])).await;
    stage.stored(&second).await;
    stage.target.open_gate("busytool");
    stage.idle(&session, 1).await;
}
