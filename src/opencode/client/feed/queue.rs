//! What waits for one subscriber: bounded, and never silently shortened.
//!
//! Most events are small and have one reader. Their text is put one behind the other into a buffer that the reader takes as a
//! whole and decodes for itself: the readers share the work with the one task that reads the connection, and hardly any
//! memory is allocated on one thread to be freed on another.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

use super::{FeedLoss, FeedOptions, FeedSignal, GoneReason, ResyncReason, decode, lock};
use crate::opencode::{client::stats::Counters, wire::ServerEvent};

/// Once so many events wait, the reader is not asked to decode more: a connection that is read faster than its events can be
/// decoded would overflow the queue.
const MANY: usize = 256;
/// No larger text is left to the reader.
const SMALL: usize = 16 * 1024;
/// How many events an emptied batch keeps room for. There are two batches per subscriber, and it may sleep for long.
const KEEP_EVENTS: usize = 32;
/// How many bytes of JSON.
const KEEP_BYTES: usize = 8 * 1024;

/// The writing side.
pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes the one reader.
    ready: AtomicWaker,
    max_events: usize,
    max_bytes: usize,
    counters: Arc<Counters>,
}

/// The reading side.
pub(super) struct Reader {
    queue: Arc<Queue>,
    taken: Batch,
}

#[derive(Default)]
struct State {
    batch: Batch,
    /// Of the events in the batch.
    n_events: usize,
    bytes: usize,
    /// Whether `Connected` was given, so that the next opening ends a gap.
    joined: bool,
    gone: Option<GoneReason>,
}

#[derive(Default)]
struct Batch {
    waiting: VecDeque<Waiting>,
    /// The events that are left to the reader.
    json: String,
    /// How much of `json` was read.
    read: usize,
}

enum Waiting {
    Signal(FeedSignal),
    /// So many bytes of the batch's JSON.
    Json(usize),
}

impl Queue {
    pub(super) fn new(options: &FeedOptions, counters: Arc<Counters>) -> Self {
        Self {
            state: Mutex::default(),
            ready: AtomicWaker::new(),
            max_events: options.queue_events,
            max_bytes: options.queue_bytes,
            counters,
        }
    }

    /// Hands the undecoded event to its only reader. Returns false if the event is large or the reader is far behind: then it has
    /// to be decoded now.
    pub(super) fn leave(&self, json: &str) -> bool {
        let mut state = lock(&self.state);
        let is_left = json.len() <= SMALL && state.n_events < MANY.min(self.max_events);
        if is_left {
            self.push_event(&mut state, Waiting::Json(json.len()), json.len());
            state.batch.json.push_str(json);
        }
        is_left
    }

    /// Adds an event of `size` bytes.
    pub(super) fn event(&self, event: &Arc<ServerEvent>, size: usize) {
        let event = Waiting::Signal(FeedSignal::Event(Arc::clone(event)));
        self.push_event(&mut lock(&self.state), event, size);
    }

    /// If that is too much, all events that wait make room for one `Resync`.
    fn push_event(&self, state: &mut State, event: Waiting, size: usize) {
        let fits = state.n_events < self.max_events && state.bytes + size <= self.max_bytes;
        // One event alone is always let through, however small the limit.
        if !fits && state.n_events > 0 {
            let unseen = |waiting: &Waiting| matches!(waiting, Waiting::Signal(FeedSignal::Connected));
            let connected = state.batch.waiting.iter().any(unseen);
            state.clear();
            if connected {
                self.push(state, FeedSignal::Connected);
            }
            self.push_resync(state, ResyncReason::Overflow);
        }
        state.n_events += 1;
        state.bytes += size;
        self.push_waiting(state, event);
    }

    /// The stream is open, for the first time or after `loss`.
    pub(super) fn live(&self, loss: Option<&FeedLoss>) {
        let mut state = lock(&self.state);
        match (state.joined, loss) {
            (true, Some(loss)) => self.push_resync(&mut state, ResyncReason::Reconnected(loss.clone())),
            (true, None) => {}
            (false, _) => {
                state.joined = true;
                self.push(&mut state, FeedSignal::Connected);
            }
        }
    }

    pub(super) fn lost(&self, loss: &FeedLoss) {
        let mut state = lock(&self.state);
        let waiting = &mut state.batch.waiting;
        // Of several outages that a subscriber has not read yet, it is told of the last.
        if let [.., Waiting::Signal(FeedSignal::Lost { .. }), Waiting::Signal(FeedSignal::Resync { .. })] =
            waiting.make_contiguous()
        {
            waiting.truncate(waiting.len() - 2);
        }
        self.push(&mut state, FeedSignal::Lost { reason: loss.clone() });
    }

    /// Something was missed while the stream was open.
    pub(super) fn missed(&self, reason: ResyncReason) {
        let mut state = lock(&self.state);
        if !matches!(state.batch.waiting.back(), Some(Waiting::Signal(FeedSignal::Resync { .. }))) {
            self.push_resync(&mut state, reason);
        }
    }

    pub(super) fn end(&self, reason: GoneReason) {
        lock(&self.state).gone = Some(reason);
        self.ready.wake();
    }

    fn push_resync(&self, state: &mut State, reason: ResyncReason) {
        self.counters.resyncs.increment();
        self.push(state, FeedSignal::Resync { reason });
    }

    fn push(&self, state: &mut State, signal: FeedSignal) {
        self.push_waiting(state, Waiting::Signal(signal));
    }

    fn push_waiting(&self, state: &mut State, waiting: Waiting) {
        let is_first = state.batch.waiting.is_empty();
        state.batch.waiting.push_back(waiting);
        if is_first {
            self.ready.wake();
        }
    }
}

impl State {
    fn clear(&mut self) {
        self.batch.clear();
        self.n_events = 0;
        self.bytes = 0;
    }
}

impl Batch {
    fn clear(&mut self) {
        self.waiting.clear();
        self.waiting.shrink_to(KEEP_EVENTS);
        self.json.clear();
        self.json.shrink_to(KEEP_BYTES);
        self.read = 0;
    }
}

impl Reader {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue, taken: Batch::default() }
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<FeedSignal> {
        loop {
            match self.taken.waiting.pop_front() {
                Some(Waiting::Signal(signal)) => return Poll::Ready(signal),
                Some(Waiting::Json(length)) => return Poll::Ready(self.decode(length)),
                None => {}
            }
            // What comes after the look is not missed.
            self.queue.ready.register(context.waker());
            self.taken.clear();
            let mut state = lock(&self.queue.state);
            std::mem::swap(&mut self.taken, &mut state.batch);
            state.clear();
            if self.taken.waiting.is_empty() {
                return match state.gone.clone() {
                    Some(reason) => Poll::Ready(FeedSignal::Gone { reason }),
                    None => Poll::Pending,
                };
            }
        }
    }

    fn decode(&mut self, length: usize) -> FeedSignal {
        let from = self.taken.read;
        self.taken.read += length;
        match decode(&self.taken.json[from..self.taken.read], &self.queue.counters) {
            Ok(event) => FeedSignal::Event(Arc::new(event)),
            Err(error) => {
                self.queue.counters.resyncs.increment();
                FeedSignal::Resync { reason: ResyncReason::Malformed(Arc::new(error)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;

    fn pair(options: &FeedOptions) -> (Arc<Queue>, Reader) {
        let queue = Arc::new(Queue::new(options, Arc::default()));
        (Arc::clone(&queue), Reader::new(queue))
    }

    fn idle(session: &str) -> String {
        format!(r#"{{"type":"session.idle","properties":{{"sessionID":"{session}"}}}}"#)
    }

    /// As the feed does it; says whether the reader has to decode it.
    fn give(queue: &Queue, json: &str) -> bool {
        let left = queue.leave(json);
        if !left {
            let event = decode(json, &queue.counters).unwrap();
            queue.event(&Arc::new(event), json.len());
        }
        left
    }

    /// The signal that waits, in a word.
    fn read(reader: &mut Reader) -> Option<String> {
        Some(match poll_fn(|context| reader.poll_next(context)).now_or_never()? {
            FeedSignal::Event(event) => event.payload.session_id().unwrap().to_string(),
            FeedSignal::Connected => "connected".to_owned(),
            FeedSignal::Lost { .. } => "lost".to_owned(),
            FeedSignal::Resync { reason } => reason.to_string(),
            FeedSignal::Gone { .. } => "gone".to_owned(),
        })
    }

    #[test]
    fn what_is_given_is_read_in_order_wherever_it_is_decoded() {
        let mut both = [false; 2];
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (queue, mut reader) = pair(&FeedOptions::new());
            let mut expected = VecDeque::new();
            for count in 0..2_000 {
                match random.u8(..) {
                    0 => {
                        queue.lost(&FeedLoss::Closed);
                        expected.push_back("lost".to_owned());
                    }
                    1..=10 => {
                        let session = "x".repeat(random.usize(..2 * SMALL));
                        both[usize::from(give(&queue, &idle(&session)))] = true;
                        expected.push_back(session);
                    }
                    11..=150 => {
                        let session = format!("ses_{count}");
                        both[usize::from(give(&queue, &idle(&session)))] = true;
                        expected.push_back(session);
                    }
                    _ => assert_eq!(read(&mut reader), expected.pop_front(), "seed {seed}"),
                }
            }
            queue.end(GoneReason::ShutDown);
            while let Some(next) = expected.pop_front() {
                assert_eq!(read(&mut reader), Some(next), "seed {seed}");
            }
            assert_eq!(read(&mut reader).as_deref(), Some("gone"));
        }
        assert_eq!(both, [true; 2], "both ways were gone");
    }

    #[test]
    fn a_reader_that_sleeps_is_helped_and_at_last_told_to_read_anew() {
        let (queue, mut reader) = pair(&FeedOptions::new().queue(1_000, usize::MAX));
        queue.live(None);
        let left = (0..1_000).filter(|_| give(&queue, &idle("ses_1"))).count();
        assert_eq!(left, MANY);
        assert_eq!(read(&mut reader).as_deref(), Some("connected"));
        // What the reader has taken it keeps.
        for _ in 0..1_001 {
            give(&queue, &idle("ses_2"));
        }
        (0..1_000).for_each(|_| assert_eq!(read(&mut reader).as_deref(), Some("ses_1")));
        assert_eq!(read(&mut reader).as_deref(), Some("the subscriber did not keep up with the events"));
        assert_eq!(read(&mut reader).as_deref(), Some("ses_2"));
        assert_eq!(read(&mut reader), None);
    }

    #[test]
    fn bytes_are_bounded_and_one_event_always_fits() {
        let json = idle("ses_1");
        let (queue, mut reader) = pair(&FeedOptions::new().queue(100, 2 * json.len()));
        for _ in 0..3 {
            give(&queue, &json);
        }
        assert_eq!(read(&mut reader).as_deref(), Some("the subscriber did not keep up with the events"));
        assert_eq!(read(&mut reader).as_deref(), Some("ses_1"));
        assert_eq!(read(&mut reader), None);
        let large = "x".repeat(1_000);
        assert!(give(&queue, &idle(&large)));
        assert_eq!(read(&mut reader), Some(large));
    }

    #[test]
    fn what_turns_out_to_be_malformed_is_a_gap() {
        let (queue, mut reader) = pair(&FeedOptions::new());
        assert!(queue.leave(r#"{"type":"session.idle","properties":{"sessionID":7}}"#));
        assert!(queue.leave(&idle("ses_1")));
        assert_eq!(read(&mut reader).as_deref(), Some("an event could not be decoded"));
        assert_eq!(read(&mut reader).as_deref(), Some("ses_1"));
        let statistics = queue.counters.snapshot();
        assert_eq!((statistics.events_malformed, statistics.resyncs), (1, 1));
    }
}
