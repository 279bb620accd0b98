//! The fake carries the load of the benchmarks without being what they measure.

use futures_util::{StreamExt, future::join_all};
use opencode_conductor::test_util::{FakeOpenCode, FakeOptions, Script, Step};
use reqwest::Client;
use serde_json::{Value, json};

const SESSIONS: usize = 1000;
const WORDS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_at_once() {
    let fake = FakeOpenCode::start_with(FakeOptions::new().time_scale(0.0)).await.unwrap();
    let client = Client::builder().no_proxy().build().unwrap();
    let stream = client.get(format!("{}/event", fake.url())).send().await.unwrap();
    let mut step = Step::default();
    step.words = WORDS;
    // No turn is answered before all have asked.
    step.gate_before = Some("start".to_owned());
    let text = Script::new([step]).prompt("do");
    let prompt = json!({"parts": [{"type": "text", "text": text}]});
    let ask = async |_| {
        let created =
            client.post(format!("{}/session", fake.url())).json(&json!({"title": "t"})).send().await.unwrap();
        let session: Value = created.json().await.unwrap();
        let path = format!("{}/session/{}/prompt_async", fake.url(), session["id"].as_str().unwrap());
        assert_eq!(client.post(path).json(&prompt).send().await.unwrap().status(), 204);
    };
    for chunk in (0..SESSIONS).collect::<Vec<_>>().chunks(50) {
        join_all(chunk.iter().map(ask)).await;
    }
    fake.wait_for(|log| log.gates_reached.len() == SESSIONS).await;
    fake.open_gate("start");
    fake.wait_for(|log| log.events.iter().filter(|event| event.kind == "session.idle").count() == SESSIONS)
        .await;
    fake.end_streams();
    let mut chunks = stream.bytes_stream();
    let mut n_deltas = 0;
    let mut rest = Vec::new();
    while let Some(chunk) = chunks.next().await {
        rest.extend_from_slice(&chunk.unwrap());
        let whole = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let lines = rest.drain(..whole).collect::<Vec<_>>();
        n_deltas += String::from_utf8(lines).unwrap().matches("\"message.part.delta\"").count();
    }
    assert_eq!(n_deltas, SESSIONS * WORDS);
    assert_eq!(fake.log().model_calls.len(), SESSIONS);
}
