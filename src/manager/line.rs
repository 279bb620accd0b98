//! One prompt in flight per session, the others in the order they came.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::oneshot;

/// A line of prompts before a session.
///
/// The server does take a prompt while it is busy, but loses it if the running turn fails; so prompts wait here instead.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    taken: bool,
    waiting: VecDeque<oneshot::Sender<Turnstile>>,
}

/// A place in the line, taken at once; the order of calls is the order of turns.
#[derive(Debug)]
pub(super) struct Place(oneshot::Receiver<Turnstile>);

/// The right to prompt; passes on when dropped.
#[derive(Debug)]
pub(super) struct Turnstile(Option<Arc<Line>>);

impl Line {
    pub(super) fn enter(self: &Arc<Self>) -> Place {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        state.waiting.push_back(sender);
        if !state.taken {
            state.taken = true;
            drop(state);
            self.pass_on();
        }
        Place(receiver)
    }

    /// As [`enter`](Self::enter), unless one would have to wait.
    pub(super) fn try_enter(self: &Arc<Self>) -> Option<Place> {
        {
            let mut state = self.lock();
            if std::mem::replace(&mut state.taken, true) {
                return None;
            }
        }
        let (sender, receiver) = oneshot::channel();
        // The receiver is here.
        drop(sender.send(Turnstile(Some(Arc::clone(self)))));
        Some(Place(receiver))
    }

    /// Whether a prompt would have to wait.
    pub(super) fn is_taken(&self) -> bool {
        self.lock().taken
    }

    fn pass_on(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.lock();
                let next = state.waiting.pop_front();
                state.taken = next.is_some();
                next
            };
            let Some(sender) = next else { return };
            match sender.send(Turnstile(Some(Arc::clone(self)))) {
                Ok(()) => return,
                // That one has left; the right comes back and goes to the next, without passing on a second time.
                Err(mut turnstile) => drop(turnstile.0.take()),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits for the right to prompt.
    ///
    /// # Cancel safety
    /// Dropping it leaves the line.
    pub(super) async fn wait(self) -> Turnstile {
        // The line outlives its places, so the sender is never dropped unused.
        self.0.await.unwrap_or(Turnstile(None))
    }
}

impl Drop for Turnstile {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            line.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn turns_come_in_the_order_of_the_calls_and_skip_those_who_left() {
        let line = Arc::new(Line::default());
        let places: Vec<Place> = (0..4).map(|_| line.enter()).collect();
        let mut places = places.into_iter();
        let (first, left, third, fourth) =
            (places.next().unwrap(), places.next().unwrap(), places.next().unwrap(), places.next().unwrap());
        let turn = first.wait().now_or_never().unwrap();
        let mut third = Box::pin(third.wait());
        assert!(third.as_mut().now_or_never().is_none());
        drop(left);
        drop(turn);
        let turn = third.now_or_never().unwrap();
        drop(fourth);
        drop(turn);
        assert!(!line.is_taken());
        assert!(line.enter().wait().now_or_never().is_some());
        assert!(!line.is_taken());
        let only = line.try_enter().unwrap();
        assert!(line.try_enter().is_none());
        drop(only);
        assert!(!line.is_taken());
    }

    #[test]
    fn a_place_that_got_its_turn_but_was_dropped_passes_it_on() {
        let line = Arc::new(Line::default());
        drop(line.enter());
        assert!(!line.is_taken());
    }
}
