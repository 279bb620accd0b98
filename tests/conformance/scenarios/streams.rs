//! The event streams themselves.

use std::time::Duration;

use opencode_conductor::test_util::{Script, Step};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    events::Events,
    stage::{Stage, open_events},
    target::send,
};

fn kinds_of(seen: &[Value], session: &str) -> Vec<Value> {
    let mine = seen.iter().filter(|event| event["properties"]["sessionID"] == session);
    mine.map(|event| event["type"].clone()).collect()
}

/// A stream shows the sessions of its own directory and no others.
pub(crate) async fn events_of_one_directory(stage: &mut Stage<'_>) {
    let mut elsewhere = open_events(stage.target, &stage.target.directory(1)).await;
    let here = stage.session().await;
    stage.turn(&here, [Step::text("here")]).await;
    let request = stage.target.request(Method::POST, "/session");
    let request = request.query(&[("directory", stage.target.directory(1))]);
    let there = send(request.json(&json!({"title": "there"}))).await.json();
    let there = there["id"].as_str().expect("a session").to_owned();
    // The session's own directory counts, whatever the request names.
    stage.prompt(&there, &Script::new([Step::text("there")])).await;
    let idle = |seen: &[Value]| kinds_of(seen, &there).contains(&"session.idle".into());
    elsewhere.wait("idle elsewhere", idle).await;
    stage.note("here, seen there", kinds_of(&elsewhere.seen(), &here));
    stage.note("there, seen here", kinds_of(&stage.events.seen(), &there));
    let statuses = stage.get("/session/status").await.json();
    stage.note("statuses here", statuses);
}

pub(crate) async fn dispose_ends_stream(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let step = Step::text("one two three four").gate_middle("dispose");
    stage.prompt(&session, &Script::new([step])).await;
    stage.event("message.part.delta", &session, 1).await;
    let answer = stage.post("/instance/dispose", &json!({})).await;
    stage.note_answer("disposed", &answer);
    stage.events.wait_for_end().await;
    let seen = stage.events.seen();
    stage.note("last event", seen.last().map(|event| event["type"].clone()));
    let mut kinds = kinds_of(&seen, &session);
    kinds.retain(|kind| {
        ["session.idle", "session.error", "session.status"].iter().any(|wanted| kind == wanted)
    });
    stage.note("session's end", kinds);
    let list = stage.get(&format!("/session/{session}/message")).await;
    stage.note_answer("messages", &list);
    stage.listen_again().await;
    stage.turn(&session, [Step::text("again")]).await;
}

pub(crate) async fn config_change_disposes(stage: &mut Stage<'_>) {
    // A stream that is opened just before may survive the change; one that has shown a turn does not.
    let session = stage.session().await;
    stage.turn(&session, [Step::text("before")]).await;
    let config = stage.get("/config").await.json();
    stage.note("model", config["model"].clone());
    let request = stage.target.request(Method::PATCH, "/config");
    let request = request.query(&[("directory", stage.target.directory(0))]);
    let answer = send(request.json(&json!({"username": "someone"}))).await;
    stage.note("status", answer.status);
    stage.events.wait_for_end().await;
    let last = stage.events.seen().last().map(|event| event["type"].clone());
    stage.note("last event", last);
    stage.listen_again().await;
}

pub(crate) async fn global_events(stage: &mut Stage<'_>) {
    let mut global = Events::open(stage.target.request(Method::GET, "/global/event")).await;
    let connected = global.seen()[0].clone();
    stage.note(
        "first",
        json!([connected.as_object().map(serde_json::Map::len), connected["payload"]["type"]]),
    );
    // It is connected some time before it hears everything.
    let session = stage.session().await;
    loop {
        stage.turn(&session, [Step::text("hello")]).await;
        let heard = |event: &Value| event["payload"]["properties"]["sessionID"] == session.as_str();
        if global.seen().iter().any(heard) {
            break;
        }
    }
    stage.turn(&session, [Step::text("hello")]).await;
    let idle = |event: &Value| event["payload"]["type"] == "session.idle";
    global.wait("idle", |seen| seen.iter().any(idle)).await;
    let event = global.seen().into_iter().find(idle).expect("it was seen");
    let keys: Vec<&String> = event.as_object().expect("an object").keys().collect();
    stage.note("keys", json!(keys));
    stage.note("directory", event["directory"].clone());
    stage.note("payload", event["payload"]["properties"].clone());
    stage.forget_turns();
}

pub(crate) async fn heartbeat(stage: &mut Stage<'_>) {
    let beats = |seen: &[Value]| seen.iter().any(|event| event["type"] == "server.heartbeat");
    stage.events.wait_within(Duration::from_secs(15), "a heartbeat", beats).await;
    let seen = stage.events.seen();
    let beat = seen.iter().find(|event| event["type"] == "server.heartbeat").expect("it was seen");
    stage.note("properties", beat["properties"].clone());
    stage.note("has an id", beat["id"].as_str().is_some_and(|id| id.starts_with("evt_")));
}

/// All ways to name one directory lead to the same instance.
pub(crate) async fn directory_spellings(stage: &mut Stage<'_>) {
    let directory = stage.target.directory(0);
    let encoded = directory.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
    for (label, spelling) in [
        ("trailing slash", format!("{directory}/")),
        ("dots", format!("{directory}/sub/..")),
        ("encoded twice", encoded.clone()),
    ] {
        let request = stage.target.request(Method::POST, "/session").query(&[("directory", spelling)]);
        let session = send(request.json(&json!({"title": "t"}))).await.json();
        stage.note(label, session["directory"].clone());
    }
    let request = stage.target.request(Method::POST, "/session").header("x-opencode-directory", encoded);
    let session = send(request.json(&json!({"title": "t"}))).await.json();
    stage.note("by header", session["directory"].clone());
    let request = stage.target.request(Method::POST, "/session");
    let session = send(request.json(&json!({"title": "t"}))).await.json();
    stage.note("not named", session["directory"].clone());
}
