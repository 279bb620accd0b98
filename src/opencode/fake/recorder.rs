//! What the fake saw and did, for assertions and for waiting without sleeping.

use std::sync::{Mutex, MutexGuard};

use serde_json::Value;
use tokio::sync::Notify;

use super::Route;
use crate::lock::lock;

/// Everything that happened at a fake so far, oldest first.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Log {
    /// The HTTP requests, in order of arrival.
    pub requests: Vec<RecordedRequest>,
    /// The calls of the model that answered prompts; titles and compactions are not among them.
    pub model_calls: Vec<ModelCall>,
    /// The events that were published, without deltas and heartbeats.
    pub events: Vec<RecordedEvent>,
    /// How many deltas were published.
    pub deltas: usize,
    /// Gates at which something had to wait, in order of arrival.
    pub gates_reached: Vec<String>,
    /// Event streams that are open now.
    pub open_streams: usize,
    /// Connections that are open now, event streams included.
    pub open_connections: usize,
    /// Connections that were ever accepted.
    pub connections: usize,
    /// How many requests were forgotten.
    forgotten: usize,
}

/// One HTTP request and its answer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedRequest {
    /// The method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, empty without one.
    pub query: String,
    /// The endpoint it was routed to.
    pub route: Route,
    /// The status of the answer; `None` while it is under way or when the connection was dropped instead.
    pub status: Option<u16>,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the answer's body that were handed to the connection so far.
    pub bytes_out: u64,
}

/// One call of the model for a prompt.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelCall {
    /// The session that is answered.
    pub session: String,
    /// The user message that is answered.
    pub message: String,
    /// The step of the script that was played.
    pub step: usize,
    /// True when this call began to answer the message within a run; retries and later steps do not.
    pub first: bool,
}

/// One published event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// The event's type, such as `session.idle`.
    pub kind: String,
    /// The session it is about, empty without one.
    pub session: String,
    /// The event's properties.
    pub properties: Value,
}

impl Log {
    /// How many requests one endpoint got.
    pub fn count(&self, route: Route) -> usize {
        self.requests.iter().filter(|request| request.route == route).count()
    }

    /// How many events of a type were published for a session.
    pub fn events_of(&self, session: &str, kind: &str) -> usize {
        let is = |event: &&RecordedEvent| event.kind == kind && event.session == session;
        self.events.iter().filter(is).count()
    }

    /// The place of the next request, which stays valid when the log is cleared.
    pub(super) fn push_request(&mut self, request: RecordedRequest) -> usize {
        self.requests.push(request);
        self.forgotten + self.requests.len() - 1
    }

    pub(super) fn request_mut(&mut self, place: usize) -> Option<&mut RecordedRequest> {
        self.requests.get_mut(place.checked_sub(self.forgotten)?)
    }

    pub(super) fn clear(&mut self) {
        self.forgotten += self.requests.len();
        self.requests.clear();
        self.model_calls.clear();
        self.events.clear();
        self.gates_reached.clear();
        self.deltas = 0;
    }
}

#[derive(Debug, Default)]
pub(super) struct Recorder {
    log: Mutex<Log>,
    changed: Notify,
}

impl Recorder {
    pub(super) fn read(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let result = change(&mut self.read());
        self.changed.notify_waiters();
        result
    }

    pub(super) async fn wait_for(&self, mut found: impl FnMut(&Log) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if found(&self.read()) {
                return;
            }
            changed.await;
        }
    }
}
