//! All pages that watch the tasks see the same, whenever they come and however slow they are.

use std::{sync::Arc, time::Duration};

use opencode_conductor::{
    Ask, ConversationEvent, Permission, SessionConversationState, Subject,
    test_util::{Script, Step},
};
use reqwest::Response;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    hub::{About, CAPACITY, Hub, MAX_TASKS, Watcher},
    rig::{Dashboard, asking},
};

/// Follows one task as the page does, by the library's own fold.
struct Page {
    response: Response,
    unread: Vec<u8>,
    seq: u64,
    task: Value,
    conversation: SessionConversationState,
    n_snapshots: usize,
    n_events: usize,
}

impl Page {
    async fn start(dashboard: &Dashboard) -> Self {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = client
            .get(format!("{}/events", dashboard.url))
            .header("cookie", dashboard.cookie())
            .send()
            .await
            .unwrap();
        let mut watcher = Self {
            response,
            unread: Vec::new(),
            seq: 0,
            task: Value::Null,
            conversation: SessionConversationState::new(),
            n_snapshots: 0,
            n_events: 0,
        };
        watcher.next().await;
        assert_eq!(watcher.n_snapshots, 1, "a snapshot comes first");
        watcher
    }

    /// Takes the next change in.
    async fn next(&mut self) {
        let end = loop {
            if let Some(end) = self.unread.windows(2).position(|bytes| bytes == b"\n\n") {
                break end;
            }
            self.unread.extend(self.response.chunk().await.unwrap().expect("the events go on"));
        };
        let event: Vec<u8> = self.unread.drain(..end + 2).collect();
        let event = String::from_utf8(event).unwrap();
        let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else { return };
        let mut change: Value = serde_json::from_str(data).unwrap();
        let seq = change["seq"].as_u64().unwrap();
        let kind = change["type"].take();
        if kind != "snapshot" {
            assert_eq!(seq, self.seq + 1, "none is missing, none comes twice");
        }
        self.seq = seq;
        match kind.as_str().unwrap() {
            "snapshot" => {
                self.n_snapshots += 1;
                self.task = change["tasks"][0].take();
                self.conversation = serde_json::from_value(self.task["conversation"].take()).unwrap();
            }
            "task" => self.task = change["task"].take(),
            "conversation" => {
                self.n_events += 1;
                let event: ConversationEvent = serde_json::from_value(change["event"].take()).unwrap();
                self.conversation.apply(&event);
            }
            // Steps were missed, by the program itself.
            "reset" => self.conversation = serde_json::from_value(change["conversation"].take()).unwrap(),
            other => panic!("{other}"),
        }
    }

    async fn until_the_end(&mut self) {
        while self.task["status"] != "ended" {
            self.next().await;
        }
    }
}

#[tokio::test]
async fn all_watchers_see_the_same_whenever_they_come() {
    // So few that all of them can wait for a slow reader, and so none is missed.
    const WORDS: usize = 900;
    let step = Step::text("So: ").words(WORDS).gate_before("begin");
    let dashboard = Dashboard::start([("talk", Script::new([step]))]).await;
    let mut first = Page::start(&dashboard).await;
    dashboard.fake.wait_at("begin").await;
    dashboard.fake.open_gate("begin");
    let mut later = Vec::new();
    while first.task["status"] != "ended" {
        first.next().await;
        if first.n_events % 100 == 1 && later.len() < first.n_events / 100 + 1 {
            later.push(Page::start(&dashboard).await);
        }
    }
    assert!(later.len() >= WORDS / 100, "{} events", first.n_events);
    assert!(first.n_events >= WORDS, "streamed, not summed up: {} events", first.n_events);
    let loaded = dashboard.loaded(first.task["session"].as_str().unwrap()).await;
    assert_eq!(first.conversation, loaded);
    for mut watcher in later {
        watcher.until_the_end().await;
        assert_eq!((&watcher.conversation, watcher.n_snapshots), (&loaded, 1));
    }
}

#[tokio::test]
async fn more_than_anybody_can_follow_ends_in_the_same_state() {
    let step = Step::text("So: ").words(30_000).gate_before("begin");
    let dashboard = Dashboard::start([("talk", Script::new([step]))]).await;
    let mut slow = Page::start(&dashboard).await;
    let mut quick = Page::start(&dashboard).await;
    dashboard.fake.wait_at("begin").await;
    dashboard.fake.open_gate("begin");
    quick.until_the_end().await;
    slow.until_the_end().await;
    let loaded = dashboard.loaded(quick.task["session"].as_str().unwrap()).await;
    assert_eq!(quick.conversation, loaded);
    assert_eq!(slow.conversation, loaded);
}

#[tokio::test]
async fn a_watcher_that_falls_behind_gets_a_new_snapshot() {
    let hub = Arc::new(Hub::new(About { server: String::new(), directory: String::new() }));
    let mut watcher = Watcher::new(Arc::clone(&hub), CancellationToken::new());
    let mut next = async || serde_json::from_str::<Value>(&watcher.next().await.unwrap()).unwrap();
    assert_eq!(next().await["type"], "snapshot");
    let first = hub.add("first".to_owned()).unwrap();
    let change = next().await;
    assert_eq!((&change["type"], &change["seq"]), (&json!("task"), &json!(1)));
    for n in 0..=CAPACITY {
        hub.change(first, |task| task.note = Some(n.to_string()));
    }
    let snapshot = next().await;
    assert_eq!((&snapshot["type"], &snapshot["seq"]), (&json!("snapshot"), &json!(CAPACITY + 2)));
    assert_eq!(snapshot["tasks"][0]["note"], json!(CAPACITY.to_string()));
    hub.add("last".to_owned()).unwrap();
    assert_eq!(next().await["seq"], json!(CAPACITY + 3));
}

#[tokio::test]
async fn what_is_kept_for_the_page_is_bounded() {
    let hub = Arc::new(Hub::new(About { server: String::new(), directory: String::new() }));
    for _ in 0..MAX_TASKS {
        assert!(hub.add("task".to_owned()).is_some());
    }
    assert_eq!(hub.add("one too many".to_owned()), None);
}

#[tokio::test]
async fn a_watcher_is_told_of_requests_only_when_they_change() {
    let hub = Arc::new(Hub::new(About { server: String::new(), directory: String::new() }));
    let mut watcher = Watcher::new(Arc::clone(&hub), CancellationToken::new());
    let mut next = async || serde_json::from_str::<Value>(&watcher.next().await.unwrap()).unwrap();
    let task = hub.add("task".to_owned()).unwrap();
    assert_eq!(next().await["type"], "snapshot");
    let ask = |id: &str| {
        let subject = Subject::Permission(Permission::new("bash", Vec::new()));
        Ask::new(id.into(), "ses_1".into(), "ses_1".into(), subject)
    };
    for ids in [&["per_1"][..], &["per_1"], &["per_1", "per_2"], &["per_2"], &[], &[]] {
        hub.show_asks(task, ids.iter().map(|id| ask(id)));
    }
    hub.change(task, |task| task.note = Some("last".to_owned()));
    for ids in [&["per_1"][..], &["per_1", "per_2"], &["per_2"], &[]] {
        let change = next().await;
        let shown = change["task"]["permissions"].as_array().unwrap().iter().map(|card| &card["id"]);
        assert_eq!(shown.collect::<Vec<_>>(), ids);
    }
    assert_eq!(next().await["task"]["note"], "last");
}

#[tokio::test]
async fn a_request_is_answered_once_and_only_by_what_fits() {
    let script = Script::new([Step::tool(asking("touch a")), Step::text("done")]);
    let dashboard = Dashboard::start([("do it", script)]).await;
    let mut page = Page::start(&dashboard).await;
    while page.task["permissions"] == json!([]) {
        page.next().await;
    }
    let request = page.task["permissions"][0]["id"].as_str().unwrap().to_owned();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let post = async |kind: &str, body: Value| {
        let post = client.post(format!("{}/{kind}/{request}", dashboard.url));
        post.header("cookie", dashboard.cookie()).json(&body).send().await.unwrap().status()
    };
    assert_eq!(post("questions", json!({"answers": [["yes"]]})).await, 400);
    assert_eq!(post("permissions", json!({"reply": "once"})).await, 204);
    assert_eq!(post("permissions", json!({"reply": "reject"})).await, 404);
    page.until_the_end().await;
    assert_eq!((&page.task["permissions"], &page.task["outcome"]["type"]), (&json!([]), &json!("settled")));
    let conversation = serde_json::to_string(&page.conversation).unwrap();
    assert!(conversation.contains("did touch a"), "{conversation}");
}

#[tokio::test]
async fn so_many_pages_may_watch_and_one_that_goes_makes_room() {
    let dashboard = Dashboard::start([("do it", Script::says("done"))]).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let watch = async || {
        let request = client.get(format!("{}/events", dashboard.url)).header("cookie", dashboard.cookie());
        request.send().await.unwrap()
    };
    let mut pages = Vec::new();
    for _ in 0..32 {
        let page = watch().await;
        assert_eq!(page.status(), 200);
        pages.push(page);
    }
    assert_eq!(watch().await.status(), 503);
    pages.pop();
    let has_room = async || while watch().await.status() != 200 {};
    tokio::time::timeout(Duration::from_secs(60), has_room()).await.expect("there is room again");
}
