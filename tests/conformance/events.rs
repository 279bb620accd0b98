//! An open event stream and what came over it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt;
use reqwest::RequestBuilder;
use serde_json::Value;
use tokio::{sync::watch, task::JoinSet};

use crate::target::LIMIT;

pub(crate) struct Events {
    seen: Arc<Mutex<Vec<Value>>>,
    changed: watch::Receiver<Progress>,
    _reader: JoinSet<()>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Progress {
    n_seen: usize,
    has_ended: bool,
}

impl Events {
    /// Opens a stream and waits for `server.connected`.
    pub(crate) async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.expect("an event stream");
        assert_eq!(response.status(), 200);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (progress, changed) = watch::channel(Progress::default());
        let mut reader = JoinSet::new();
        let store = Arc::clone(&seen);
        reader.spawn(async move {
            let mut body = response.bytes_stream();
            let mut buffer = Vec::new();
            while let Some(Ok(chunk)) = body.next().await {
                buffer.extend_from_slice(&chunk);
                while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                    let frame: Vec<u8> = buffer.drain(..end + 2).collect();
                    let data = frame.strip_prefix(b"data: ").expect("only data lines");
                    let event = serde_json::from_slice(data).expect("an event in JSON");
                    store.lock().expect("the store").push(event);
                }
                progress.send_modify(|progress| progress.n_seen = store.lock().expect("the store").len());
            }
            progress.send_modify(|progress| progress.has_ended = true);
        });
        let mut events = Self { seen, changed, _reader: reader };
        events.wait("server.connected", |seen| !seen.is_empty()).await;
        events
    }

    pub(crate) fn seen(&self) -> Vec<Value> {
        self.seen.lock().expect("the store").clone()
    }

    /// Waits until what was seen so far looks as wanted.
    pub(crate) async fn wait(&mut self, what: &str, wanted: impl Fn(&[Value]) -> bool) {
        self.wait_within(LIMIT, what, wanted).await;
    }

    pub(crate) async fn wait_within(
        &mut self,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&[Value]) -> bool,
    ) {
        let seen = Arc::clone(&self.seen);
        let done =
            self.changed.wait_for(|progress| progress.has_ended || wanted(&seen.lock().expect("the store")));
        let in_time = tokio::time::timeout(limit, done).await.is_ok();
        let seen = self.seen();
        if !in_time || !wanted(&seen) {
            let tail: Vec<String> = seen.iter().rev().take(12).rev().map(shorten).collect();
            panic!("never saw {what}; the last events were\n{}", tail.join("\n"));
        }
    }

    /// Waits for the end of the stream.
    pub(crate) async fn wait_for_end(&mut self) {
        let ended = self.changed.wait_for(|progress| progress.has_ended);
        let ended = tokio::time::timeout(LIMIT, ended).await;
        assert!(ended.is_ok(), "the stream did not end");
    }
}

fn shorten(event: &Value) -> String {
    event.to_string().chars().take(300).collect()
}
