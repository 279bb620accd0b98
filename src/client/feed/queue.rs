//! What waits for one subscriber: bounded, and never silently shortened.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

use super::{FeedLoss, FeedOptions, FeedSignal, GoneReason, ResyncReason, lock};
use crate::{client::stats::Counters, wire::ServerEvent};

pub(super) struct Queue {
    state: Mutex<State>,
    ready: Notify,
    max_events: usize,
    max_bytes: usize,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<FeedSignal>,
    /// The size of each event among `waiting`, in order.
    sizes: VecDeque<usize>,
    bytes: usize,
    /// Whether `Connected` was given, so that the next opening ends a gap.
    joined: bool,
    gone: Option<GoneReason>,
}

impl Queue {
    pub(super) fn new(options: &FeedOptions, counters: Arc<Counters>) -> Self {
        Self {
            state: Mutex::default(),
            ready: Notify::new(),
            max_events: options.queue_events,
            max_bytes: options.queue_bytes,
            counters,
        }
    }

    pub(super) async fn next(&self) -> FeedSignal {
        loop {
            let ready = self.ready.notified();
            if let Some(signal) = lock(&self.state).pop() {
                return signal;
            }
            ready.await;
        }
    }

    /// Adds an event of `size` bytes; if that is too much, all events that wait make room for one `Resync`.
    pub(super) fn event(&self, event: &Arc<ServerEvent>, size: usize) {
        let mut state = lock(&self.state);
        let fits = state.sizes.len() < self.max_events && state.bytes + size <= self.max_bytes;
        // One event alone is always let through, however small the limit.
        if !fits && !state.sizes.is_empty() {
            let unseen = |signal: &FeedSignal| matches!(signal, FeedSignal::Connected);
            let connected = state.waiting.iter().any(unseen).then_some(FeedSignal::Connected);
            state.waiting.clear();
            state.sizes.clear();
            state.bytes = 0;
            state.waiting.extend(connected);
            self.push_resync(&mut state, ResyncReason::Overflow);
        }
        state.waiting.push_back(FeedSignal::Event(Arc::clone(event)));
        state.sizes.push_back(size);
        state.bytes += size;
        self.ready.notify_one();
    }

    /// The stream is open, for the first time or after `loss`.
    pub(super) fn live(&self, loss: Option<&FeedLoss>) {
        let mut state = lock(&self.state);
        match (state.joined, loss) {
            (true, Some(loss)) => self.push_resync(&mut state, ResyncReason::Reconnected(loss.clone())),
            (true, None) => {}
            (false, _) => {
                state.joined = true;
                state.waiting.push_back(FeedSignal::Connected);
            }
        }
        self.ready.notify_one();
    }

    pub(super) fn lost(&self, loss: &FeedLoss) {
        let mut state = lock(&self.state);
        // A subscriber that sleeps through several outages needs to hear of one.
        if let [.., FeedSignal::Lost { .. }, FeedSignal::Resync { .. }] = state.waiting.make_contiguous() {
            let shorter = state.waiting.len() - 2;
            state.waiting.truncate(shorter);
        }
        state.waiting.push_back(FeedSignal::Lost { reason: loss.clone() });
        self.ready.notify_one();
    }

    /// Something was missed while the stream was open.
    pub(super) fn missed(&self, reason: ResyncReason) {
        let mut state = lock(&self.state);
        if !matches!(state.waiting.back(), Some(FeedSignal::Resync { .. })) {
            self.push_resync(&mut state, reason);
            self.ready.notify_one();
        }
    }

    pub(super) fn end(&self, reason: GoneReason) {
        lock(&self.state).gone = Some(reason);
        self.ready.notify_one();
    }

    fn push_resync(&self, state: &mut State, reason: ResyncReason) {
        self.counters.resyncs.increment();
        state.waiting.push_back(FeedSignal::Resync { reason });
    }
}

impl State {
    fn pop(&mut self) -> Option<FeedSignal> {
        let Some(signal) = self.waiting.pop_front() else {
            return self.gone.clone().map(|reason| FeedSignal::Gone { reason });
        };
        if let FeedSignal::Event(_) = signal {
            self.bytes -= self.sizes.pop_front().unwrap_or(0);
        }
        Some(signal)
    }
}
