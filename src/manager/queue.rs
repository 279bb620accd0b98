//! One prompt in flight per session, the others in the order they came.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::sync::oneshot;

use crate::lock::lock;

/// The prompts that wait for a session.
///
/// Agents do take a prompt while they are busy, but merge it into the running turn, or lose it if that fails. So prompts wait here.
#[derive(Debug, Default)]
pub(super) struct PromptQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    taken: bool,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// A place in the queue, taken at once: the order of calls is the order of turns.
#[derive(Debug)]
pub(super) struct Ticket(oneshot::Receiver<Permit>);

/// The right to prompt. Dropping it lets the next ticket have it.
#[derive(Debug)]
pub(super) struct Permit(Option<Arc<PromptQueue>>);

impl PromptQueue {
    pub(super) fn enter(self: &Arc<Self>) -> Ticket {
        let (sender, receiver) = oneshot::channel();
        let mut state = lock(&self.0);
        state.waiting.push_back(sender);
        if !state.taken {
            state.taken = true;
            drop(state);
            self.pass_on();
        }
        Ticket(receiver)
    }

    /// As [`enter`](Self::enter), unless the ticket would have to wait.
    pub(super) fn try_enter(self: &Arc<Self>) -> Option<Ticket> {
        {
            let mut state = lock(&self.0);
            if std::mem::replace(&mut state.taken, true) {
                return None;
            }
        }
        let (sender, receiver) = oneshot::channel();
        // Sending cannot fail: the receiver is still in this function.
        drop(sender.send(Permit(Some(Arc::clone(self)))));
        Some(Ticket(receiver))
    }

    /// Sends away all that wait.
    pub(super) fn clear(&self) {
        // Dropped without the lock, which those that wake up may take.
        let waiting = std::mem::take(&mut lock(&self.0).waiting);
        drop(waiting);
    }

    /// Whether a prompt would have to wait.
    #[cfg(test)]
    fn is_taken(&self) -> bool {
        lock(&self.0).taken
    }

    fn pass_on(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = lock(&self.0);
                let next = state.waiting.pop_front();
                state.taken = next.is_some();
                next
            };
            let Some(sender) = next else { return };
            match sender.send(Permit(Some(Arc::clone(self)))) {
                Ok(()) => return,
                // The ticket was dropped, so the permit came back unused. It goes to the next ticket in this loop, not by its own drop.
                Err(mut permit) => drop(permit.0.take()),
            }
        }
    }
}

impl Ticket {
    /// Waits for the right to prompt; nothing if the ticket is sent away.
    ///
    /// # Cancel safety
    /// Dropping it leaves the queue.
    pub(super) async fn wait(self) -> Option<Permit> {
        self.0.await.ok()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn turns_come_in_the_order_of_the_calls_and_skip_those_who_left() {
        let queue = Arc::new(PromptQueue::default());
        let tickets: Vec<Ticket> = (0..4).map(|_| queue.enter()).collect();
        let mut tickets = tickets.into_iter();
        let (first, left, third, fourth) = (
            tickets.next().unwrap(),
            tickets.next().unwrap(),
            tickets.next().unwrap(),
            tickets.next().unwrap(),
        );
        let turn = first.wait().now_or_never().unwrap();
        let mut third = Box::pin(third.wait());
        assert!(third.as_mut().now_or_never().is_none());
        drop(left);
        drop(turn);
        let turn = third.now_or_never().unwrap();
        drop(fourth);
        drop(turn);
        assert!(!queue.is_taken());
        assert!(queue.enter().wait().now_or_never().is_some());
        assert!(!queue.is_taken());
        let only = queue.try_enter().unwrap();
        assert!(queue.try_enter().is_none());
        drop(only);
        assert!(!queue.is_taken());
    }

    #[test]
    fn a_ticket_that_got_its_turn_but_was_dropped_passes_it_on() {
        let queue = Arc::new(PromptQueue::default());
        drop(queue.enter());
        assert!(!queue.is_taken());
    }
}
