//! Time in the feed, on a paused clock: connections come from memory, so nothing but the clock passes.

use std::{
    collections::VecDeque,
    future,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use super::*;
use crate::opencode::client::ApiErrorKind;

const CONNECTED: &str = "data: {\"type\":\"server.connected\",\"properties\":{}}\n\n";
const HEARTBEAT: &str = "data: {\"type\":\"server.heartbeat\",\"properties\":{}}\n\n";

/// What the next attempt to connect meets.
enum Attempt {
    /// Never an answer.
    Mute,
    Refused,
    /// Bytes at times after the connection was opened, then the end.
    Stream(Vec<(Duration, &'static str)>),
    /// The same, but the end never comes.
    Open(Vec<(Duration, &'static str)>),
}

#[derive(Clone)]
struct Memory {
    attempts: Arc<Mutex<VecDeque<Attempt>>>,
    opened: mpsc::UnboundedSender<Instant>,
}

impl EventSource for Memory {
    type Chunks = BoxStream<'static, Result<Bytes, ApiError>>;

    async fn open(&self) -> Result<Self::Chunks, ApiError> {
        self.opened.send(Instant::now()).unwrap();
        let attempt = lock(&self.attempts).pop_front();
        let (chunks, ends) = match attempt {
            Some(Attempt::Mute) | None => return future::pending().await,
            Some(Attempt::Refused) => {
                let kind = ApiErrorKind::Connect("refused".into());
                return Err(ApiError::new("open the event stream", kind));
            }
            Some(Attempt::Stream(chunks)) => (chunks, true),
            Some(Attempt::Open(chunks)) => (chunks, false),
        };
        let opened = Instant::now();
        let chunks = stream::iter(chunks).then(move |(at, text)| async move {
            tokio::time::sleep_until(opened + at).await;
            Ok(Bytes::from_static(text.as_bytes()))
        });
        Ok(if ends { chunks.boxed() } else { chunks.chain(stream::pending()).boxed() })
    }
}

struct Setup {
    feeds: Feeds,
    source: Memory,
    opened: mpsc::UnboundedReceiver<Instant>,
    started: Instant,
}

fn setup(options: FeedOptions, attempts: impl IntoIterator<Item = Attempt>) -> Setup {
    let (sender, opened) = mpsc::unbounded_channel();
    let attempts = Arc::new(Mutex::new(attempts.into_iter().collect()));
    Setup {
        feeds: Feeds::new(options, Arc::default()),
        source: Memory { attempts, opened: sender },
        opened,
        started: Instant::now(),
    }
}

impl Setup {
    fn subscribe(&self) -> Subscription {
        self.feeds.subscribe(None, true, || self.source.clone())
    }

    /// The time until the next attempt to connect.
    async fn next_opening(&mut self) -> Duration {
        let at = self.opened.recv().await.unwrap();
        let since = at - self.started;
        self.started = at;
        since
    }

    fn statistics(&self) -> crate::opencode::client::ClientStatistics {
        self.feeds.0.counters.snapshot()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_storm_slows_down_and_calm_makes_it_quick_again() {
    let options = FeedOptions::new().backoff(Duration::from_millis(200), seconds(10)).calm(seconds(60));
    // The server accepts and ends every connection at once, eight times; the ninth lasts a minute.
    let brief = || Attempt::Stream(vec![(Duration::ZERO, CONNECTED)]);
    let mut attempts: Vec<_> = (0..8).map(|_| brief()).collect();
    let beats = [(Duration::ZERO, CONNECTED), (seconds(30), HEARTBEAT), (seconds(60), HEARTBEAT)];
    attempts.push(Attempt::Stream(beats.to_vec()));
    attempts.push(Attempt::Open(vec![(Duration::ZERO, CONNECTED)]));
    let mut setup = setup(options, attempts);
    let mut subscription = setup.subscribe();
    assert_eq!(setup.next_opening().await, Duration::ZERO);
    assert!(matches!(subscription.next().await, FeedSignal::Connected));
    for nominal in [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
        assert!(matches!(subscription.next().await, FeedSignal::Lost { reason: FeedLoss::Closed }));
        let pause = setup.next_opening().await;
        let nominal = Duration::from_millis(nominal);
        assert!(
            pause >= nominal / 2 && pause <= nominal + Duration::from_millis(2),
            "{pause:?} of {nominal:?}"
        );
        let signal = subscription.next().await;
        assert!(
            matches!(signal, FeedSignal::Resync { reason: ResyncReason::Reconnected(FeedLoss::Closed) }),
            "{signal:?}"
        );
    }
    let pause = setup.next_opening().await.checked_sub(seconds(60)).unwrap();
    assert!(pause <= Duration::from_millis(202), "{pause:?}");
    assert!(matches!(subscription.next().await, FeedSignal::Lost { .. }));
    assert!(matches!(subscription.next().await, FeedSignal::Resync { .. }));
    assert_eq!(setup.statistics().reconnects, 9);
}

#[tokio::test(start_paused = true)]
async fn outages_slept_through_are_told_as_one() {
    let brief = || Attempt::Stream(vec![(Duration::ZERO, CONNECTED)]);
    let mut attempts: Vec<_> = (0..50).map(|_| brief()).collect();
    attempts.push(Attempt::Open(vec![(Duration::ZERO, CONNECTED)]));
    let mut setup = setup(FeedOptions::new(), attempts);
    let mut subscription = setup.subscribe();
    for _ in 0..=50 {
        setup.next_opening().await;
    }
    tokio::task::yield_now().await;
    assert!(matches!(subscription.next().await, FeedSignal::Connected));
    assert!(matches!(subscription.next().await, FeedSignal::Lost { .. }));
    assert!(matches!(subscription.next().await, FeedSignal::Resync { .. }));
    assert!(timeout(seconds(1), subscription.next()).await.is_err(), "nothing more waits");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_a_connection_and_their_end_ends_it() {
    let mut beats = vec![(Duration::ZERO, CONNECTED)];
    beats.extend((1..=60).map(|count| (seconds(10 * count), HEARTBEAT)));
    let mut setup = setup(FeedOptions::new().silence(seconds(35)), [Attempt::Open(beats)]);
    let mut subscription = setup.subscribe();
    assert_eq!(setup.next_opening().await, Duration::ZERO);
    assert!(matches!(subscription.next().await, FeedSignal::Connected));
    let signal = subscription.next().await;
    assert!(
        matches!(signal, FeedSignal::Lost { reason: FeedLoss::Silent { after } } if after == seconds(35))
    );
    assert_eq!(setup.started.elapsed().as_secs(), 600 + 35);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stalls_before_its_first_heartbeat_is_given_up_as_soon_as_any_other() {
    let quiet = || Attempt::Open(vec![(Duration::ZERO, CONNECTED)]);
    let mut setup = setup(FeedOptions::new().silence(seconds(35)), [quiet(), quiet()]);
    let mut subscription = setup.subscribe();
    assert_eq!(setup.next_opening().await, Duration::ZERO);
    assert!(matches!(subscription.next().await, FeedSignal::Connected));
    assert!(timeout(seconds(34), subscription.next()).await.is_err());
    let signal = subscription.next().await;
    assert!(
        matches!(signal, FeedSignal::Lost { reason: FeedLoss::Silent { after } } if after == seconds(35))
    );
    assert!(matches!(subscription.next().await, FeedSignal::Resync { .. }), "what it did not say is read");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_opens_is_given_up_in_time() {
    let attempts = [
        Attempt::Mute,
        Attempt::Open(Vec::new()),
        // Bytes are not enough: the stream has to be declared open.
        Attempt::Open((0..10).map(|count| (seconds(count), HEARTBEAT)).collect()),
        Attempt::Refused,
        Attempt::Open(vec![(seconds(4), CONNECTED)]),
    ];
    let mut setup = setup(FeedOptions::new().ready_timeout(seconds(5)), attempts);
    let mut subscription = setup.subscribe();
    assert_eq!(setup.next_opening().await, Duration::ZERO);
    for _ in 0..3 {
        assert!(setup.next_opening().await >= seconds(5));
    }
    assert!(setup.next_opening().await < seconds(5));
    let signal = subscription.next().await;
    assert!(
        matches!(signal, FeedSignal::Lost { reason: FeedLoss::NotReady { after } } if after == seconds(5))
    );
    assert!(matches!(subscription.next().await, FeedSignal::Connected), "the first opening ends no gap");
    assert_eq!(setup.statistics().resyncs, 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_lingers_for_the_next_subscriber_and_not_longer() {
    let open = || Attempt::Open(vec![(Duration::ZERO, CONNECTED)]);
    let mut setup = setup(FeedOptions::new().linger(seconds(2)), [open(), open()]);
    let mut subscription = setup.subscribe();
    assert_eq!(setup.next_opening().await, Duration::ZERO);
    assert!(matches!(subscription.next().await, FeedSignal::Connected));
    for _ in 0..3 {
        drop(subscription);
        tokio::time::sleep(Duration::from_millis(1_900)).await;
        subscription = setup.subscribe();
        assert!(matches!(subscription.next().await, FeedSignal::Connected));
    }
    assert!(setup.opened.try_recv().is_err(), "one connection so far");
    drop(subscription);
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(setup.feeds.0.tasks.len(), 0, "the feed has ended");
    let mut subscription = setup.subscribe();
    assert!(matches!(subscription.next().await, FeedSignal::Connected));
    assert!(setup.opened.try_recv().is_ok(), "a new connection");
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_whether_the_connection_was_lost_since() {
    let brief = Attempt::Stream(vec![(Duration::ZERO, CONNECTED), (seconds(10), HEARTBEAT)]);
    let open = Attempt::Open(vec![(Duration::ZERO, CONNECTED)]);
    let setup = setup(FeedOptions::new().linger(seconds(2)), [brief, open]);
    let mut subscription = setup.subscribe();
    let first = subscription.watch();
    assert!(matches!(subscription.next().await, FeedSignal::Connected));
    assert!(first.is_unbroken() && setup.subscribe().watch().is_unbroken());
    assert!(matches!(subscription.next().await, FeedSignal::Lost { .. }));
    let while_down = subscription.watch();
    assert!(!first.is_unbroken());
    assert!(matches!(subscription.next().await, FeedSignal::Resync { .. }));
    let second = subscription.watch();
    assert!(!first.is_unbroken() && !while_down.is_unbroken() && second.is_unbroken());
    drop(subscription);
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(!second.is_unbroken(), "the connection was not needed any more");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_signal_can_be_cancelled_at_any_point() {
    let ticks = (0..100).map(|count| {
        (
            Duration::from_millis(7 * count),
            "data: {\"type\":\"session.idle\",\"properties\":{\"sessionID\":\"ses_1\"}}\n\n",
        )
    });
    let chunks = std::iter::once((Duration::ZERO, CONNECTED)).chain(ticks).collect();
    let setup = setup(FeedOptions::new(), [Attempt::Open(chunks)]);
    let mut subscription = setup.subscribe();
    let seen = AtomicUsize::new(0);
    while seen.load(Relaxed) < 101 {
        // Given up and asked again all the time; no event may fall in between.
        if timeout(Duration::from_millis(5), subscription.next()).await.is_ok() {
            seen.fetch_add(1, Relaxed);
        }
    }
    assert!(timeout(seconds(1), subscription.next()).await.is_err());
}
