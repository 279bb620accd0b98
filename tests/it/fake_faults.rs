//! The fake's own promises: each fault does what its name says, and nothing else.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use opencode_conductor::test_util::{FakeOpenCode, FakeOptions, Fault, Moment, Route, Script, Step};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

/// A fake and a client that knows nothing of it.
struct Rig {
    fake: FakeOpenCode,
    client: Client,
}

impl Rig {
    async fn start() -> Self {
        Self::start_with(FakeOptions::new()).await
    }

    async fn start_with(options: FakeOptions) -> Self {
        let fake = FakeOpenCode::start_with(options).await.unwrap();
        let client = Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(30))
            .build()
            .unwrap();
        Self { fake, client }
    }

    async fn get(&self, path: &str) -> reqwest::Result<Response> {
        self.client.get(format!("{}{path}", self.fake.url())).send().await
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Result<Response> {
        self.client.post(format!("{}{path}", self.fake.url())).json(body).send().await
    }

    async fn session(&self) -> String {
        let created: Value =
            self.post("/session", &json!({"title": "t"})).await.unwrap().json().await.unwrap();
        created["id"].as_str().unwrap().to_owned()
    }

    async fn prompt(&self, session: &str, steps: impl IntoIterator<Item = Step>) -> Value {
        let message = format!("msg_{}", self.fake.log().requests.len());
        let text = Script::new(steps).prompt("do");
        let body = json!({"messageID": message, "parts": [{"id": "prt_1", "type": "text", "text": text}]});
        self.post_prompt(session, &body).await;
        body
    }

    async fn post_prompt(&self, session: &str, body: &Value) {
        let answer = self.post(&format!("/session/{session}/prompt_async"), body).await.unwrap();
        assert_eq!(answer.status(), 204);
    }

    async fn idle(&self, session: &str, n: usize) {
        self.fake.wait_for(|log| log.events_of(session, "session.idle") >= n).await;
    }

    /// The types of the events that a stream brings until it ends, and whether it ended in good order.
    async fn drain(&self, stream: Response) -> (Vec<String>, bool) {
        let mut bytes = Vec::new();
        let mut chunks = stream.bytes_stream();
        let mut in_order = true;
        while let Some(chunk) = chunks.next().await {
            match chunk {
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(_) => in_order = false,
            }
        }
        (kinds(&bytes), in_order)
    }

    fn n_sessions(&self) -> usize {
        self.fake.sessions().len()
    }
}

fn kinds(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let events = text.split_terminator("\n\n").filter_map(|frame| frame.strip_prefix("data: "));
    events
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_dropped_request_has_an_effect_or_none() {
    let rig = Rig::start().await;
    rig.fake.inject(Route::CreateSession, Fault::DropBeforeEffect);
    assert!(rig.post("/session", &json!({})).await.is_err());
    assert_eq!(rig.n_sessions(), 0);
    rig.fake.inject(Route::CreateSession, Fault::DropAfterEffect);
    assert!(rig.post("/session", &json!({})).await.is_err());
    assert_eq!(rig.n_sessions(), 1);
    assert_eq!(rig.post("/session", &json!({})).await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_error_status_comes_before_or_after_the_effect() {
    let rig = Rig::start().await;
    rig.fake.inject(Route::CreateSession, Fault::Status(503));
    assert_eq!(rig.post("/session", &json!({})).await.unwrap().status(), 503);
    assert_eq!(rig.n_sessions(), 0);
    rig.fake.inject(Route::CreateSession, Fault::StatusAfterEffect(502));
    assert_eq!(rig.post("/session", &json!({})).await.unwrap().status(), 502);
    assert_eq!(rig.n_sessions(), 1);
    rig.fake.inject(Route::ListSessions, Fault::Html);
    let page = rig.get("/session").await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html");
}

#[tokio::test]
async fn a_truncated_body_is_shorter_than_announced() {
    let rig = Rig::start().await;
    rig.fake.inject(Route::Health, Fault::TruncateBody(5));
    let answer = rig.get("/global/health").await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.content_length().unwrap() > 5);
    assert!(answer.bytes().await.is_err());
}

#[tokio::test]
async fn a_gate_holds_the_request_or_its_answer() {
    let rig = Rig::start().await;
    rig.fake.inject(Route::CreateSession, Fault::DelayUntil("before".to_owned()));
    rig.fake.inject(Route::CreateSession, Fault::HoldAnswerUntil("after".to_owned()));
    let body = json!({});
    let watch = async {
        rig.fake.wait_at("before").await;
        assert_eq!((rig.n_sessions(), rig.fake.waiting_at("before")), (0, 1));
        rig.fake.open_gate("before");
    };
    let (first, ()) = tokio::join!(rig.post("/session", &body), watch);
    assert_eq!(first.unwrap().status(), 200);
    let watch = async {
        rig.fake.wait_at("after").await;
        assert_eq!(rig.n_sessions(), 2);
        rig.fake.open_gate("after");
    };
    let (second, ()) = tokio::join!(rig.post("/session", &body), watch);
    assert_eq!(second.unwrap().status(), 200);
}

#[tokio::test]
async fn a_hanging_request_is_never_answered() {
    let rig = Rig::start().await;
    rig.fake.inject(Route::Health, Fault::Hang);
    let url = format!("{}/global/health", rig.fake.url());
    let mut answer = std::pin::pin!(rig.client.get(url).send());
    tokio::select! {
        answer = &mut answer => panic!("{answer:?}"),
        () = rig.fake.wait_for(|log| !log.requests.is_empty()) => {}
    }
    assert!(tokio::time::timeout(Duration::from_millis(200), answer).await.is_err());
    assert_eq!(rig.fake.requests()[0].status, None);
}

#[tokio::test]
async fn injections_count_skip_and_choose() {
    let rig = Rig::start().await;
    let injection = rig.fake.inject(Route::Any, Fault::Status(500)).times(2).after(1).only("limit=7");
    let mut statuses = Vec::new();
    for query in ["", "?limit=7", "?limit=7", "?limit=6", "?limit=7", "?limit=7"] {
        statuses.push(rig.get(&format!("/session{query}")).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 500, 200, 500, 200]);
    assert_eq!(injection.left(), 0);
    rig.fake.inject(Route::Health, Fault::Status(500)).always();
    assert_eq!(rig.get("/global/health").await.unwrap().status(), 500);
    rig.fake.clear_faults();
    assert_eq!(rig.get("/global/health").await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_lost_prompt_is_stored_and_a_forgotten_one_is_not() {
    let rig = Rig::start().await;
    let session = rig.session().await;
    rig.fake.inject(Route::PromptAsync, Fault::ForgetPrompt);
    rig.prompt(&session, [Step::text("x")]).await;
    assert_eq!(rig.fake.messages(&session).len(), 0);
    rig.fake.inject(Route::PromptAsync, Fault::LosePrompt);
    let lost = rig.prompt(&session, [Step::text("x")]).await;
    rig.fake.wait_for(|log| log.events_of(&session, "message.part.updated") == 1).await;
    assert_eq!(rig.fake.prompts_run(&session), Vec::<String>::new());
    rig.post_prompt(&session, &lost).await;
    rig.idle(&session, 1).await;
    let message = lost["messageID"].as_str().unwrap();
    assert_eq!(rig.fake.prompts_run(&session), [message]);
    assert_eq!(rig.fake.model_calls(message), 1);
}

#[tokio::test]
async fn a_prompt_in_the_cleanup_after_an_error_is_lost() {
    let rig = Rig::start().await;
    rig.fake.hold(Moment::Cleanup, "cleanup");
    let session = rig.session().await;
    rig.prompt(&session, [Step::error(400)]).await;
    rig.fake.wait_at("cleanup").await;
    rig.prompt(&session, [Step::text("x")]).await;
    rig.fake.wait_for(|log| log.events_of(&session, "message.part.updated") == 2).await;
    rig.fake.open_gate("cleanup");
    rig.idle(&session, 2).await;
    assert_eq!(rig.fake.prompts_run(&session).len(), 1);
}

/// Opens a stream with a fault, runs a short turn, and says what came.
async fn stream_with(fault: Fault) -> (Vec<String>, bool) {
    let rig = Rig::start().await;
    // What trails a turn would come or not come.
    rig.fake.hold(Moment::Tail, "never");
    rig.fake.inject(Route::Event, fault);
    let stream = rig.get("/event").await.unwrap();
    let session = rig.session().await;
    rig.prompt(&session, [Step::text("one two")]).await;
    rig.idle(&session, 1).await;
    rig.fake.end_streams();
    rig.drain(stream).await
}

#[tokio::test]
async fn streams_are_cut_ended_and_silenced_after_so_many_events() {
    let (cut, in_order) = stream_with(Fault::CutAfterEvents(3)).await;
    assert_eq!((cut.len(), in_order), (3, false));
    let (ended, in_order) = stream_with(Fault::EndAfterEvents(3)).await;
    assert_eq!((ended.len(), in_order), (3, true));
    // The end came from the rig, not from the fault.
    let (silenced, in_order) = stream_with(Fault::SilenceAfterEvents(2)).await;
    assert_eq!((silenced.len(), in_order), (2, true));
    let (torn, in_order) = stream_with(Fault::CutAfterBytes(100)).await;
    assert_eq!((torn.len(), in_order), (1, false));
}

#[tokio::test]
async fn events_are_doubled_or_swapped_but_not_lost() {
    // A limit that is never reached is no fault at all.
    let (plain, _) = stream_with(Fault::EndAfterEvents(usize::MAX)).await;
    let (doubled, _) = stream_with(Fault::DuplicateEvents).await;
    let twice: Vec<String> = plain.iter().flat_map(|kind| [kind.clone(), kind.clone()]).collect();
    assert_eq!(doubled, twice);
    let (swapped, _) = stream_with(Fault::ReorderEvents).await;
    let mut expected = plain;
    expected[1..].chunks_mut(2).for_each(<[String]>::reverse);
    assert_eq!(swapped, expected);
}

#[tokio::test]
async fn open_streams_can_be_cut_and_are_counted() {
    let rig = Rig::start().await;
    let cut = rig.get("/event").await.unwrap();
    let dropped = rig.get("/event").await.unwrap();
    rig.fake.wait_for(|log| log.open_streams == 2).await;
    drop(dropped);
    rig.fake.wait_for(|log| log.open_streams == 1).await;
    rig.fake.cut_streams();
    assert!(!rig.drain(cut).await.1);
    rig.fake.wait_for(|log| log.open_streams == 0 && log.open_connections == 0).await;
    let event_bytes: u64 = rig
        .fake
        .requests()
        .iter()
        .filter(|request| request.route == Route::Event)
        .map(|request| request.bytes_out)
        .sum();
    assert!(event_bytes > 0);
}

#[tokio::test]
async fn a_silent_stream_has_no_heartbeats() {
    let rig = Rig::start_with(FakeOptions::new().heartbeat(Duration::from_millis(5))).await;
    let beating = rig.get("/event").await.unwrap();
    let mut beats = beating.bytes_stream();
    let mut bytes = Vec::new();
    while kinds(&bytes).iter().filter(|kind| *kind == "server.heartbeat").count() < 2 {
        bytes.extend_from_slice(&beats.next().await.unwrap().unwrap());
    }
    drop(beats);
    rig.fake.inject(Route::Event, Fault::SilenceAfterEvents(1));
    let silent = rig.get("/event").await.unwrap();
    let mut chunks = silent.bytes_stream();
    let first = chunks.next().await.unwrap().unwrap();
    assert_eq!(kinds(&first), ["server.connected"]);
    let nothing = tokio::time::timeout(Duration::from_millis(100), chunks.next()).await;
    assert!(nothing.is_err());
}

/// Or another program could take it, and the server would not come back.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_of_a_killed_server_is_never_free() {
    let rig = Rig::start().await;
    let address: SocketAddr = rig.fake.url().strip_prefix("http://").unwrap().parse().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let other = tokio::task::spawn_blocking({
        let is_over = Arc::clone(&is_over);
        move || {
            let mut n_free = 0;
            while !is_over.load(Ordering::Relaxed) {
                n_free += usize::from(TcpSocket::new_v4().unwrap().bind(address).is_ok());
            }
            n_free
        }
    });
    let mut lives = Ok(());
    for _ in 0..300 {
        lives = lives.and(rig.fake.restart().await);
    }
    is_over.store(true, Ordering::Relaxed);
    assert_eq!((other.await.unwrap(), lives.map_err(|error| error.kind())), (0, Ok(())));
    rig.get("/global/health").await.unwrap();
}

#[tokio::test]
async fn a_killed_server_refuses_and_comes_back_with_what_was_stored() {
    let rig = Rig::start().await;
    let stream = rig.get("/event").await.unwrap();
    let session = rig.session().await;
    let step = Step::text("one two three four").gate_middle("never");
    rig.prompt(&session, [step]).await;
    rig.fake.wait_at("never").await;
    rig.fake.kill().await.unwrap();
    assert!(!rig.drain(stream).await.1);
    assert!(rig.get("/global/health").await.unwrap_err().is_connect());
    assert_eq!((rig.fake.open_connections(), rig.fake.waiting_at("never")), (0, 0));
    rig.fake.revive().await.unwrap();
    let statuses: Value = rig.get("/session/status").await.unwrap().json().await.unwrap();
    assert_eq!(statuses, json!({}));
    let left: Value = rig.get(&format!("/session/{session}/message")).await.unwrap().json().await.unwrap();
    assert_eq!(left.as_array().unwrap().len(), 2);
    assert_eq!(left[1]["info"]["time"]["completed"], Value::Null);
    assert_eq!(left[1]["parts"][1]["text"], "");
}

#[tokio::test]
async fn the_clock_can_be_wrong() {
    let rig = Rig::start().await;
    let created = |session: &Value| session["time"]["created"].as_u64().unwrap();
    rig.session().await;
    rig.fake.set_clock_ahead(Duration::from_secs(3600));
    rig.session().await;
    rig.fake.set_clock_behind(Duration::from_secs(3600));
    rig.session().await;
    let times: Vec<u64> = rig.fake.sessions().iter().map(created).collect();
    assert!(times[1] > times[0] + 3_500_000 && times[2] < times[0] - 3_500_000);
}

#[tokio::test]
async fn a_hook_chooses_scripts_once_per_prompt() {
    let rig = Rig::start().await;
    rig.fake.on_prompt(|prompt| Script::new([Step::text(prompt.text.to_uppercase())]));
    let session = rig.session().await;
    let body = json!({"messageID": "msg_1", "parts": [{"id": "prt_1", "type": "text", "text": "shout"}]});
    rig.post_prompt(&session, &body).await;
    rig.idle(&session, 1).await;
    let answer = &rig.fake.messages(&session)[1];
    assert_eq!(answer["parts"][1]["text"], "SHOUT");
}

#[tokio::test]
async fn a_cleared_log_still_knows_what_is_open() {
    let rig = Rig::start().await;
    let stream = rig.get("/event").await.unwrap();
    rig.session().await;
    rig.fake.clear_log();
    let log = rig.fake.log();
    assert_eq!((log.requests.len(), log.events.len(), log.open_streams), (0, 0, 1));
    rig.session().await;
    let request = &rig.fake.requests()[0];
    assert_eq!((request.route, request.status), (Route::CreateSession, Some(200)));
    drop(stream);
}
