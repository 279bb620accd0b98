//! The events of a directory, from one connection however many listen.
//!
//! The server repeats nothing: what happens while no connection is open is never seen. So a subscriber is told of every
//! gap, once and after it has ended, and has to read the state anew then; between gaps it misses nothing.
//!
//! ```text
//! Connected ─▶ Event* ─▶ Lost ─▶ Resync ─▶ Event* ─▶ … ─▶ Gone
//! ```
//!
//! The connection is always drained. A subscriber that does not keep up loses its queue, not the connection, and learns
//! of it by a `Resync`.

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use tokio::{sync::Notify, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ApiError, Directory, DirectoryClient, OpenCodeClient, api::routes, options::FeedOptions, stats::Counters,
};
use crate::{
    ids::SessionId,
    lock::lock,
    opencode::wire::{DecodeError, EventPayload, ServerEvent},
};

mod connection;
mod peek;
mod queue;
mod routing;

use connection::{EventSource, HttpSource};
use queue::{Queue, Reader};
use routing::{Routing, SubscriberId};

/// What a [`Subscription`] gives.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FeedSignal {
    /// The stream is open: whatever happens from now on will be seen. Comes once, before anything but [`FeedSignal::Lost`].
    Connected,
    /// Something happened.
    Event(Arc<ServerEvent>),
    /// There is no connection; it is being opened again. Comes once per outage, also when the first attempt fails.
    #[non_exhaustive]
    Lost {
        /// How the connection was lost.
        reason: FeedLoss,
    },
    /// Events were missed, and whatever happens from now on will be seen: read what matters again. Comes once per gap.
    #[non_exhaustive]
    Resync {
        /// Why events were missed.
        reason: ResyncReason,
    },
    /// Nothing will come any more.
    #[non_exhaustive]
    Gone {
        /// Why the subscription is over.
        reason: GoneReason,
    },
}

/// Why a connection ended, or could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FeedLoss {
    /// The server ended the stream.
    #[error("the server ended the event stream")]
    Closed,
    /// The server gave up the directory's state; turns that ran in it were aborted.
    #[error("the server disposed of the directory's instance")]
    Disposed,
    /// Nothing came any more, not even heartbeats.
    #[error("the event stream was silent for {} ms", after.as_millis())]
    #[non_exhaustive]
    Silent {
        /// For this long.
        after: Duration,
    },
    /// The server accepted the connection but never said that the stream is open.
    #[error("the event stream was not open after {} ms", after.as_millis())]
    #[non_exhaustive]
    NotReady {
        /// For this long.
        after: Duration,
    },
    /// The connection broke or was refused.
    #[error("the event stream failed")]
    Failed(#[source] Arc<ApiError>),
}

/// Why events were missed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ResyncReason {
    /// The connection was lost and has been opened again.
    #[error("the event stream was interrupted")]
    Reconnected(#[source] FeedLoss),
    /// The subscriber did not keep up, and what waited for it was dropped.
    #[error("the subscriber did not keep up with the events")]
    Overflow,
    /// An event was larger than allowed.
    #[error("an event was larger than {limit} bytes")]
    #[non_exhaustive]
    TooLarge {
        /// How many bytes an event may have.
        limit: usize,
    },
    /// An event that may concern the subscriber could not be decoded.
    #[error("an event could not be decoded")]
    Malformed(#[source] Arc<DecodeError>),
}

/// Why a subscription ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GoneReason {
    /// The server refuses the credentials.
    #[error("the server refuses the credentials")]
    Unauthorized(#[source] Arc<ApiError>),
    /// The client was shut down.
    #[error("the client was shut down")]
    ShutDown,
}

/// The events of some sessions, or of a whole directory. Ends when dropped.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{Directory, FeedSignal, OpenCodeClient};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = OpenCodeClient::new("http://127.0.0.1:4096")?;
/// let mut events = client.directory(&Directory::new("/srv/project")?).subscribe_all();
/// loop {
///     match events.next().await {
///         FeedSignal::Event(event) => println!("{event:?}"),
///         FeedSignal::Resync { reason, .. } => println!("read everything again: {reason}"),
///         FeedSignal::Gone { reason, .. } => break println!("{reason}"),
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Subscription {
    feed: Arc<Feed>,
    reader: Reader,
    id: SubscriberId,
    /// Background tasks live as long as a client does.
    client: Option<OpenCodeClient>,
    /// The stream of signals has ended.
    is_over: bool,
}

impl DirectoryClient {
    /// Subscribes to a session's events, and to those of its descendants as they appear.
    ///
    /// The connection is shared by all subscribers of the directory and stays open a little longer than the last of them.
    /// Descendants that existed before have to be named with [`Subscription::follow`].
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn subscribe(&self, session: &SessionId) -> Subscription {
        let subscription = self.subscribe_to(false);
        subscription.follow(session);
        subscription
    }

    /// Subscribes to all events of the directory.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn subscribe_all(&self) -> Subscription {
        self.subscribe_to(true)
    }

    fn subscribe_to(&self, everything: bool) -> Subscription {
        let source = || HttpSource::new(self.client.http(), self.call(routes::EVENTS));
        let mut subscription = self.client.feeds().subscribe(self.directory(), everything, source);
        subscription.client = Some(self.client.clone());
        subscription
    }
}

impl Subscription {
    /// The next signal. After [`FeedSignal::Gone`] it is that again.
    ///
    /// # Cancel safety
    /// A signal is either returned or still there for the next call.
    pub async fn next(&mut self) -> FeedSignal {
        poll_fn(|context| self.reader.poll_next(context)).await
    }

    /// What can tell later whether the connection has been lost since.
    pub(crate) fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.feed.state().unbroken))
    }

    /// Adds a session, with those of its descendants that appear from now on.
    pub fn follow(&self, session: &SessionId) {
        self.feed.state().routing.follow(self.id, session);
    }
}

/// Knows whether a directory's connection has been there without a break. If it has not, the server may have been restarted, or its
/// configuration changed.
#[derive(Debug)]
pub(crate) struct Watch(Weak<()>);

impl Watch {
    pub(crate) fn is_unbroken(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The signals up to [`FeedSignal::Gone`], which is the last.
impl Stream for Subscription {
    type Item = FeedSignal;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<FeedSignal>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let signal = self.reader.poll_next(context);
        self.is_over = matches!(signal, Poll::Ready(FeedSignal::Gone { .. }));
        signal.map(Some)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.feed.state().routing.remove(self.id);
        self.feed.changed.notify_one();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("directory", &self.feed.directory)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// All feeds of a client. Dropping it ends them.
pub(crate) struct Feeds(Arc<OpenFeeds>);

struct OpenFeeds {
    feeds: Mutex<Open>,
    options: FeedOptions,
    counters: Arc<Counters>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

#[derive(Default)]
struct Open {
    feeds: HashMap<Option<Directory>, Arc<Feed>>,
    shut_down: bool,
}

/// The feed of one directory.
struct Feed {
    directory: Option<Directory>,
    state: Mutex<State>,
    /// A subscriber came or went.
    changed: Notify,
}

struct State {
    link: Link,
    /// Dropped with the connection.
    unbroken: Arc<()>,
    routing: Routing,
}

/// Where a feed's connection is.
enum Link {
    /// The first attempt is under way. Left when the server says that the stream is open, or by a failure.
    Opening,
    /// Events flow. Left by a loss.
    Live,
    /// The connection was lost, or never came about. Left when the server says that the stream is open.
    Down(FeedLoss),
}

impl Feeds {
    pub(crate) fn new(options: FeedOptions, counters: Arc<Counters>) -> Self {
        Self(Arc::new(OpenFeeds {
            feeds: Mutex::default(),
            options,
            counters,
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
        }))
    }

    /// Feeds with the same options and counters, of which none is open.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.0.options.clone(), Arc::clone(&self.0.counters))
    }

    /// Adds a subscriber to a directory's feed, which is opened from `source` if it is not open.
    fn subscribe<S: EventSource>(
        &self,
        directory: Option<&Directory>,
        everything: bool,
        source: impl FnOnce() -> S,
    ) -> Subscription {
        let feeds = &self.0;
        let mut open = lock(&feeds.feeds);
        let existing = open.feeds.get(&directory.cloned()).cloned();
        let is_new = existing.is_none();
        let feed = existing.unwrap_or_else(|| Arc::new(Feed::new(directory.cloned())));
        if is_new && !open.shut_down {
            open.feeds.insert(directory.cloned(), Arc::clone(&feed));
            feeds.tasks.spawn(connection::run(Arc::clone(feeds), Arc::clone(&feed), source()));
        }
        let queue = Arc::new(Queue::new(&feeds.options, Arc::clone(&feeds.counters)));
        let id = feed.add(&queue, everything);
        if open.shut_down {
            queue.end(GoneReason::ShutDown);
        }
        Subscription { feed, reader: Reader::new(queue), id, client: None, is_over: false }
    }

    pub(crate) async fn shutdown(&self) {
        lock(&self.0.feeds).shut_down = true;
        self.0.cancel.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Drop for Feeds {
    fn drop(&mut self) {
        self.0.cancel.cancel();
    }
}

impl OpenFeeds {
    /// Waits until `feed` has had no subscribers for the linger time, and has been taken off the list.
    async fn unused(&self, feed: &Arc<Feed>) {
        loop {
            let changed = feed.changed.notified();
            if !feed.is_unused() {
                changed.await;
                continue;
            }
            tokio::select! {
                () = changed => {}
                () = sleep(self.options.linger) => {
                    let mut open = lock(&self.feeds);
                    if feed.is_unused() {
                        open.feeds.remove(&feed.directory);
                        return;
                    }
                }
            }
        }
    }

    /// Ends `feed`: later subscribers get a new one.
    fn end(&self, feed: &Arc<Feed>, reason: &GoneReason) {
        lock(&self.feeds).feeds.remove(&feed.directory);
        for queue in feed.state().routing.all() {
            queue.end(reason.clone());
        }
    }
}

impl Feed {
    fn new(directory: Option<Directory>) -> Self {
        let state = State { link: Link::Opening, unbroken: Arc::default(), routing: Routing::default() };
        Self { directory, state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn is_unused(&self) -> bool {
        self.state().routing.is_empty()
    }

    fn add(&self, queue: &Arc<Queue>, everything: bool) -> SubscriberId {
        let mut state = self.state();
        match &state.link {
            Link::Opening => {}
            Link::Live => queue.live(None),
            Link::Down(loss) => queue.lost(loss),
        }
        let id = state.routing.add(Arc::clone(queue), everything);
        drop(state);
        self.changed.notify_one();
        id
    }

    /// The server says that the stream is open. Returns whether it had been open before.
    fn live(&self) -> bool {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.link, Link::Live);
        let loss = match &before {
            Link::Down(loss) => Some(loss),
            Link::Opening | Link::Live => None,
        };
        if loss.is_some() {
            state.unbroken = Arc::default();
        }
        for queue in state.routing.all() {
            queue.live(loss);
        }
        loss.is_some()
    }

    fn lost(&self, loss: &FeedLoss) {
        let mut state = self.state();
        if matches!(state.link, Link::Down(_)) {
            return;
        }
        state.link = Link::Down(loss.clone());
        state.unbroken = Arc::default();
        for queue in state.routing.all() {
            queue.lost(loss);
        }
    }
}

/// Decodes an event, and counts what came of it.
fn decode(json: &str, counters: &Counters) -> Result<ServerEvent, DecodeError> {
    counters.events_decoded.increment();
    let event = ServerEvent::from_json(json);
    match &event {
        Ok(ServerEvent { payload: EventPayload::Unknown { .. }, .. }) => counters.events_unknown.increment(),
        Ok(_) => {}
        Err(error) => {
            counters.events_malformed.increment();
            tracing::warn!(%error, "event could not be decoded");
        }
    }
    event
}

#[cfg(test)]
mod tests;
