//! One prompt in flight per session, the others in the order they came.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex},
};

use tokio::sync::{oneshot, watch};

use crate::{
    agent::{AbortReport, StopRequest},
    lock::lock,
};

/// The prompt that may run in a session, and those that wait for it.
///
/// Agents do take a prompt while they are busy, but merge it into the running turn, or lose it if that fails. So prompts wait here.
#[derive(Debug, Default)]
pub(super) struct PromptQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    holder: Option<Holder>,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// The prompt that has the permit: from the moment in which it is granted, which the prompt may notice later, to its end.
#[derive(Debug)]
struct Holder {
    stop: watch::Sender<Option<StopRequest>>,
    aborts: Vec<AbortCall>,
}

/// A call that wants a prompt aborted, and waits for what came of it.
pub(super) type AbortCall = oneshot::Sender<AbortReport>;

/// A place in the queue, taken at once: the order of calls is the order of turns.
#[derive(Debug)]
pub(super) struct Ticket(oneshot::Receiver<Permit>);

/// The right to prompt. Dropping it lets the next ticket have it.
#[derive(Debug)]
pub(super) struct Permit {
    /// Nothing once the right was passed on.
    queue: Option<Arc<PromptQueue>>,
    stop: watch::Receiver<Option<StopRequest>>,
}

/// A place that prompts have one after the other, with no other prompt between them.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(Arc<Mutex<Option<Permit>>>);

impl PromptQueue {
    pub(super) fn enter(self: &Arc<Self>) -> Ticket {
        self.ticket(&mut lock(&self.0))
    }

    /// As [`enter`](Self::enter), unless the ticket would have to wait.
    pub(super) fn try_enter(self: &Arc<Self>) -> Option<Ticket> {
        let mut state = lock(&self.0);
        state.holder.is_none().then(|| self.ticket(&mut state))
    }

    fn ticket(self: &Arc<Self>, state: &mut State) -> Ticket {
        let (sender, receiver) = oneshot::channel();
        state.waiting.push_back(sender);
        if state.holder.is_none() {
            self.grant(state);
        }
        Ticket(receiver)
    }

    /// Whether a prompt runs, or is about to.
    pub(super) fn is_taken(&self) -> bool {
        lock(&self.0).holder.is_some()
    }

    /// Tells the prompt that has the permit to abort, which then answers the call; gives the call back if there is no such prompt.
    ///
    /// The prompt aborts the session itself: an abort from here might hit the next one.
    pub(super) fn abort(&self, call: AbortCall) -> Option<AbortCall> {
        lock(&self.0).abort(call)
    }

    /// As [`abort`](Self::abort), and all that wait are sent away.
    pub(super) fn abort_all(&self, call: AbortCall) -> Option<AbortCall> {
        let mut state = lock(&self.0);
        let waiting = mem::take(&mut state.waiting);
        let call = state.abort(call);
        // Dropped without the lock, which those that wake up may take.
        drop(state);
        drop(waiting);
        call
    }

    /// Tells the prompt that has the permit to stop waiting for its turn.
    pub(super) fn give_up(&self) {
        if let Some(holder) = &lock(&self.0).holder {
            holder.stop.send_replace(Some(StopRequest::GiveUp));
        }
    }

    /// The calls that want the prompt aborted which has the permit.
    pub(super) fn take_aborts(&self) -> Vec<AbortCall> {
        lock(&self.0).take_aborts()
    }

    /// Gives the permit to the first who still waits for it.
    fn grant(self: &Arc<Self>, state: &mut State) {
        state.holder = None;
        while let Some(sender) = state.waiting.pop_front() {
            let (stop, stopped) = watch::channel(None);
            let permit = Permit { queue: Some(Arc::clone(self)), stop: stopped };
            match sender.send(permit) {
                Ok(()) => {
                    state.holder = Some(Holder { stop, aborts: Vec::new() });
                    return;
                }
                // The ticket was dropped. The permit must not pass itself on, which this loop does.
                Err(mut unused) => drop(unused.queue.take()),
            }
        }
    }
}

impl State {
    fn take_aborts(&mut self) -> Vec<AbortCall> {
        self.holder.as_mut().map(|holder| mem::take(&mut holder.aborts)).unwrap_or_default()
    }

    fn abort(&mut self, call: AbortCall) -> Option<AbortCall> {
        let Some(holder) = &mut self.holder else { return Some(call) };
        holder.aborts.push(call);
        let is_new = |stop: &mut Option<StopRequest>| {
            stop.is_none().then(|| *stop = Some(StopRequest::Abort)).is_some()
        };
        holder.stop.send_if_modified(is_new);
        None
    }
}

impl Ticket {
    /// A ticket that has its permit.
    pub(super) fn with(permit: Permit) -> Self {
        let (sender, receiver) = oneshot::channel();
        // Sending cannot fail: the receiver is still in this function.
        drop(sender.send(permit));
        Self(receiver)
    }

    /// Waits for the right to prompt; nothing if the ticket is sent away.
    ///
    /// # Cancel safety
    /// Dropping it leaves the queue.
    pub(super) async fn wait(self) -> Option<Permit> {
        self.0.await.ok()
    }
}

impl Permit {
    /// How its prompt is told to stop.
    pub(super) fn stop(&self) -> watch::Receiver<Option<StopRequest>> {
        self.stop.clone()
    }

    /// Passes the right on, unless calls want its prompt aborted: these have to be answered first, so that none of them means the next prompt.
    pub(super) fn pass_on(mut self) -> Result<(), (Self, Vec<AbortCall>)> {
        let Some(queue) = self.queue.take() else { return Ok(()) };
        let mut state = lock(&queue.0);
        let aborts = state.take_aborts();
        if aborts.is_empty() {
            queue.grant(&mut state);
            return Ok(());
        }
        drop(state);
        self.queue = Some(queue);
        Err((self, aborts))
    }
}

impl Place {
    /// The permit, if a prompt before this one had it.
    pub(super) fn take(&self) -> Option<Permit> {
        lock(&self.0).take()
    }

    /// Keeps the permit for the next prompt. It is passed on when there is none.
    pub(super) fn put(&self, permit: Permit) {
        *lock(&self.0) = Some(permit);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.grant(&mut lock(&queue.0));
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
    fn an_abort_means_the_prompt_that_has_the_permit_even_before_it_notices() {
        let queue = Arc::new(PromptQueue::default());
        let call = || oneshot::channel().0;
        assert!(queue.abort(call()).is_some(), "nothing to abort");
        let (first, second) = (queue.enter(), queue.enter());
        assert!(queue.abort(call()).is_none());
        let permit = first.wait().now_or_never().unwrap().unwrap();
        assert_eq!(*permit.stop().borrow(), Some(StopRequest::Abort));
        let (permit, calls) = permit.pass_on().unwrap_err();
        assert_eq!(calls.len(), 1, "to be answered before the next prompt begins");
        assert!(permit.pass_on().is_ok());
        let permit = second.wait().now_or_never().unwrap().unwrap();
        assert_eq!(*permit.stop().borrow(), None, "the abort did not mean this one");
    }

    #[test]
    fn an_abort_of_all_misses_none() {
        let queue = Arc::new(PromptQueue::default());
        let (first, second) = (queue.enter(), queue.enter());
        assert!(queue.abort_all(oneshot::channel().0).is_none());
        assert!(second.wait().now_or_never().unwrap().is_none(), "sent away");
        let permit = first.wait().now_or_never().unwrap().unwrap();
        assert_eq!(*permit.stop().borrow(), Some(StopRequest::Abort));
    }

    #[test]
    fn a_ticket_that_got_its_turn_but_was_dropped_passes_it_on() {
        let queue = Arc::new(PromptQueue::default());
        drop(queue.enter());
        assert!(!queue.is_taken());
    }
}
