//! Older releases, as far as a client can tell them apart.

use std::{collections::BTreeSet, fmt, time::Duration};

use futures_util::StreamExt;
use opencode_conductor::test_util::{FakeOpenCode, FakeOptions, Flavour, Script, Step};
use reqwest::Client;
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess},
};
use serde_json::{Value, json};

/// Plays a turn and returns the events of its directory's stream.
async fn events_of_a_turn(flavour: Flavour) -> Vec<Value> {
    let stream = stream_of_a_turn(flavour).await;
    events(&stream).map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn events(stream: &str) -> impl Iterator<Item = &str> {
    stream.split_terminator("\n\n").map(|frame| frame.strip_prefix("data: ").unwrap())
}

async fn stream_of_a_turn(flavour: Flavour) -> String {
    let options = FakeOptions::new().flavour(flavour).time_scale(0.0).heartbeat(Duration::from_millis(5));
    let fake = FakeOpenCode::start_with(options).await.unwrap();
    let client = Client::builder().no_proxy().build().unwrap();
    let stream = client.get(format!("{}/event", fake.url())).send().await.unwrap();
    let created =
        client.post(format!("{}/session", fake.url())).json(&json!({"title": "t"})).send().await.unwrap();
    let session: Value = created.json().await.unwrap();
    let session = session["id"].as_str().unwrap();
    let mut step = Step::text("one two");
    step.reasoning = String::from("hm");
    let text = Script::new([step]).prompt("do");
    let prompt = json!({"parts": [{"type": "text", "text": text}]});
    let path = format!("{}/session/{session}/prompt_async", fake.url());
    client.post(path).json(&prompt).send().await.unwrap();
    fake.wait_for(|log| log.events_of(session, "session.idle") == 1).await;
    fake.end_streams();
    let mut chunks = stream.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        bytes.extend_from_slice(&chunk.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

/// The names of an object's fields, as they stand.
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, _)) = map.next_entry::<String, de::IgnoredAny>()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// An event's type, and the names of its fields and properties in order.
fn shape(event: &str) -> String {
    #[derive(Deserialize)]
    struct Event {
        #[serde(rename = "type")]
        kind: String,
        properties: Names,
    }
    let Names(fields) = serde_json::from_str(event).unwrap();
    let Event { kind, properties: Names(properties) } = serde_json::from_str(event).unwrap();
    format!("{kind} {fields:?} {properties:?}")
}

/// The feed relies on it, which reads most events without decoding them.
#[tokio::test]
async fn the_fields_of_events_stand_as_those_of_real_servers_do() {
    let rows = [
        (Flavour::V1_18, include_str!("../../fixtures/plain/events.sse")),
        (Flavour::V1_1, include_str!("../../fixtures/v1.1.65-plain/events.sse")),
    ];
    for (flavour, recorded) in rows {
        let recorded: BTreeSet<String> = events(recorded).map(shape).collect();
        let stream = stream_of_a_turn(flavour).await;
        let ours: BTreeSet<String> = events(&stream).map(shape).collect();
        assert!(recorded.len() >= 6, "{recorded:?}");
        // The recorded turns were too short for a heartbeat.
        let is_recorded =
            |shape: &&String| recorded.contains(*shape) || shape.starts_with("server.heartbeat ");
        let strange: Vec<_> = ours.iter().filter(|shape| !is_recorded(shape)).collect();
        assert!(strange.is_empty(), "{flavour:?} has {strange:#?}, recorded were {recorded:#?}");
    }
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

#[tokio::test]
async fn release_1_1_has_deltas_inside_part_updates() {
    let events = events_of_a_turn(Flavour::V1_1).await;
    assert!(of_kind(&events, "message.part.delta").is_empty());
    assert!(events.iter().all(|event| event.get("id").is_none()));
    let texts: Vec<(&Value, &Value)> = of_kind(&events, "message.part.updated")
        .iter()
        .filter(|event| {
            event["properties"]["part"]["type"] == "text" && event["properties"].get("delta").is_some()
        })
        .map(|event| (&event["properties"]["part"]["text"], &event["properties"]["delta"]))
        .collect();
    assert_eq!(texts, [(&json!("one "), &json!("one ")), (&json!("one two"), &json!("two"))]);
    let bare = of_kind(&events, "message.updated");
    assert!(!bare.is_empty() && bare.iter().all(|event| event["properties"].get("sessionID").is_none()));
}

#[tokio::test]
async fn release_1_15_0_tells_of_deltas_and_statuses_only() {
    let events = events_of_a_turn(Flavour::V1_15_0).await;
    for kind in ["message.updated", "message.part.updated", "session.created"] {
        assert!(of_kind(&events, kind).is_empty(), "{kind}");
    }
    assert_eq!(of_kind(&events, "message.part.delta").len(), 3);
    assert_eq!(of_kind(&events, "session.idle").len(), 1);
}

#[tokio::test]
async fn old_releases_accept_unknown_sessions_in_silence() {
    let body = json!({"parts": [{"type": "text", "text": "x"}]});
    for (flavour, status) in [(Flavour::V1_1, 204), (Flavour::V1_15_0, 404), (Flavour::V1_18, 404)] {
        let fake = FakeOpenCode::start_with(FakeOptions::new().flavour(flavour)).await.unwrap();
        let client = Client::builder().no_proxy().build().unwrap();
        let path = format!("{}/session/ses_nope/prompt_async", fake.url());
        assert_eq!(client.post(path).json(&body).send().await.unwrap().status(), status, "{flavour:?}");
    }
}
