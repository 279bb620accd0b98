//! Keeps one connection open and hands out what it carries.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream::BoxStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Feed, FeedLoss, GoneReason, OpenFeeds, ResyncReason, decode, peek::Peek, queue::Queue};
use crate::{
    backoff::Backoff,
    ids::SessionId,
    opencode::{
        client::{ApiError, call::Call, http::Http, sse::EventDecoder},
        wire::{EventPayload, ServerEvent},
    },
};

/// Where connections come from; tests have one without sockets.
pub(super) trait EventSource: Send + Sync + 'static {
    type Chunks: Stream<Item = Result<Bytes, ApiError>> + Send + Unpin;

    fn open(&self) -> impl Future<Output = Result<Self::Chunks, ApiError>> + Send;
}

/// The server's event stream.
pub(super) struct HttpSource {
    http: Arc<Http>,
    call: Call,
}

impl HttpSource {
    pub(super) fn new(http: &Arc<Http>, call: Call) -> Self {
        Self { http: Arc::clone(http), call }
    }
}

impl EventSource for HttpSource {
    type Chunks = BoxStream<'static, Result<Bytes, ApiError>>;

    async fn open(&self) -> Result<Self::Chunks, ApiError> {
        self.http.stream(&self.call).await
    }
}

/// How many events are handed out before other tasks get their turn, so that a burst does not overflow the queue of a
/// subscriber that shares this thread.
const BURST: usize = 256;

/// Runs a feed until it has no subscribers, the client is shut down, or the server refuses for good.
pub(super) async fn run<S: EventSource>(feeds: Arc<OpenFeeds>, feed: Arc<Feed>, source: S) {
    let reason = tokio::select! {
        biased;
        () = feeds.cancel.cancelled() => GoneReason::ShutDown,
        () = feeds.unused(&feed) => return,
        reason = keep_connected(&feeds, &feed, &source) => reason,
    };
    tracing::debug!(directory = ?feed.directory, %reason, "event feed ended");
    feeds.end(&feed, &reason);
}

async fn keep_connected<S: EventSource>(feeds: &OpenFeeds, feed: &Feed, source: &S) -> GoneReason {
    let options = &feeds.options;
    let mut backoff = Backoff::new(options.backoff, options.max_backoff);
    loop {
        let mut connection = Connection { feeds, feed, live_since: None };
        let loss = connection.run(source).await;
        if connection.live_since.is_some_and(|since| since.elapsed() >= options.calm) {
            backoff.reset();
        }
        let mut asked = Duration::ZERO;
        if let FeedLoss::Failed(error) = &loss {
            if error.is_unauthorized() {
                return GoneReason::Unauthorized(Arc::clone(error));
            }
            asked = error.retry_after().unwrap_or_default().min(options.max_backoff);
        }
        feed.lost(&loss);
        let pause = backoff.next_pause().max(asked);
        tracing::debug!(directory = ?feed.directory, reason = %loss, ?pause, "event stream lost");
        sleep(pause).await;
    }
}

struct Connection<'a> {
    feeds: &'a OpenFeeds,
    feed: &'a Feed,
    live_since: Option<Instant>,
}

impl Connection<'_> {
    /// Opens the stream and hands out its events until it ends.
    async fn run<S: EventSource>(&mut self, source: &S) -> FeedLoss {
        let options = &self.feeds.options;
        let after = options.ready_timeout;
        let ready_by = Instant::now() + after;
        let mut chunks = match timeout_at(ready_by, source.open()).await {
            Ok(Ok(chunks)) => chunks,
            Ok(Err(error)) => return FeedLoss::Failed(Arc::new(error)),
            Err(_) => return FeedLoss::NotReady { after },
        };
        let mut decoder = EventDecoder::new(options.event_limit);
        let mut last_chunk = Instant::now();
        loop {
            let deadline = if self.live_since.is_some() { last_chunk + options.silence } else { ready_by };
            let chunk = match timeout_at(deadline, chunks.next()).await {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(error))) => return FeedLoss::Failed(Arc::new(error)),
                Ok(None) => return FeedLoss::Closed,
                Err(_) if self.live_since.is_some() => return FeedLoss::Silent { after: options.silence },
                Err(_) => return FeedLoss::NotReady { after },
            };
            last_chunk = Instant::now();
            let mut n_events = 0;
            let mut rest = &*chunk;
            while let Some(event) = decoder.next(&mut rest) {
                self.feeds.counters.events.increment();
                match event {
                    Ok(json) => {
                        if let Some(loss) = self.handle(&json) {
                            return loss;
                        }
                    }
                    Err(error) => {
                        self.feeds.counters.events_malformed.increment();
                        tracing::warn!(directory = ?self.feed.directory, %error, "event skipped");
                        let reason = ResyncReason::TooLarge { limit: error.limit };
                        tell_missed(&self.all_queues(), &reason);
                    }
                }
                n_events += 1;
                if n_events % BURST == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Hands out one event. Returns a loss if it announces the end of the stream.
    fn handle(&mut self, json: &str) -> Option<FeedLoss> {
        let peek = Peek::new(json);
        if let Some(peek) = &peek {
            match peek.kind {
                "server.connected" => {
                    self.opened();
                    return None;
                }
                "server.heartbeat" => return None,
                _ if self.live_since.is_none() || !self.is_wanted(peek, json) => return None,
                _ => {}
            }
        }
        let event = decode(json, &self.feeds.counters);
        if let Ok(ServerEvent { payload: EventPayload::ServerConnected, .. }) = event {
            self.opened();
            return None;
        }
        // Before the server says that the stream is open nothing is promised, and a snapshot follows anyway.
        self.live_since?;
        match event {
            Ok(ServerEvent { payload: EventPayload::ServerHeartbeat, .. }) => None,
            Ok(event) => self.deliver(event, peek.as_ref(), json.len()),
            Err(error) => {
                let reason = ResyncReason::Malformed(Arc::new(error));
                let targets = match peek {
                    Some(peek) => self.feed.state().routing.targets(peek.session, peek.kind),
                    None => self.all_queues(),
                };
                tell_missed(&targets, &reason);
                None
            }
        }
    }

    /// The server says that the stream is open.
    fn opened(&mut self) {
        if self.live_since.is_none() {
            self.live_since = Some(Instant::now());
            if self.feed.live() {
                self.feeds.counters.reconnects.increment();
            }
        }
    }

    /// Whether an event has to be decoded here: there are subscribers for it, and it was not left to the only one.
    fn is_wanted(&self, peek: &Peek<'_>, json: &str) -> bool {
        let state = self.feed.state();
        if peek.kind.starts_with("session.") && peek.names_others {
            return true;
        }
        match state.routing.only(peek.session) {
            Some(only) if !peek.names_others && only.leave(json) => false,
            Some(_) => true,
            None => !state.routing.targets(peek.session, peek.kind).is_empty(),
        }
    }

    /// Gives an event to its subscribers, who follow a child from now on if it shows one. Returns a loss if it announces the end of
    /// the stream.
    fn deliver(&self, event: ServerEvent, peek: Option<&Peek<'_>>, size: usize) -> Option<FeedLoss> {
        let mut state = self.feed.state();
        if let Some((parent, child)) = event.payload.child() {
            state.routing.learn(parent, &child);
        }
        let session = event.payload.session_id().map(SessionId::as_str);
        let session = session.or_else(|| peek.and_then(|peek| peek.session));
        let targets = state.routing.targets(session, peek.map_or("", |peek| peek.kind));
        drop(state);
        let is_disposed = matches!(event.payload, EventPayload::InstanceDisposed { .. });
        let event = Arc::new(event);
        for queue in targets {
            queue.event(&event, size);
        }
        is_disposed.then_some(FeedLoss::Disposed)
    }

    fn all_queues(&self) -> Vec<Arc<Queue>> {
        self.feed.state().routing.all().cloned().collect()
    }
}

fn tell_missed(targets: &[Arc<Queue>], reason: &ResyncReason) {
    for queue in targets {
        queue.missed(reason.clone());
    }
}
