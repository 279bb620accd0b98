//! Hands requests of tools and models over to the person who looks at the page.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use opencode_conductor::{Ask, AskHandler, Decision, RequestId};
use tokio::sync::oneshot;

use super::hub::Hub;

/// Where decisions are waited for.
pub(crate) struct Desk {
    hub: Arc<Hub>,
    waiting: Mutex<HashMap<RequestId, oneshot::Sender<Decision>>>,
}

/// A request for as long as its turn waits for the decision.
struct Ticket {
    desk: Arc<Desk>,
    request: RequestId,
}

impl Desk {
    pub(crate) fn new(hub: &Arc<Hub>) -> Arc<Self> {
        Arc::new(Self { hub: Arc::clone(hub), waiting: Mutex::default() })
    }

    /// Lets the desk decide.
    pub(crate) fn handler(self: &Arc<Self>) -> AskHandler {
        let desk = Arc::clone(self);
        AskHandler::new(move |ask: Ask| {
            let decision = Arc::clone(&desk).wait_for(ask.id.clone());
            async move { decision.await.unwrap_or_else(|| ask.decline()) }
        })
    }

    /// Decides a request. Returns false if no turn waits for it.
    pub(crate) fn decide(&self, request: &str, decision: Decision) -> bool {
        let waiting = self.waiting().remove(request);
        waiting.is_some_and(|waiting| waiting.send(decision).is_ok())
    }

    /// Leaves a request undecided, as if no person were there. Returns false if no turn waits for it.
    pub(crate) fn decline(&self, request: &str) -> bool {
        self.waiting().remove(request).is_some_and(|waiting| !waiting.is_closed())
    }

    /// The decision. Waits from the call on, not from the first poll; giving up closes the request.
    fn wait_for(self: Arc<Self>, request: RequestId) -> impl Future<Output = Option<Decision>> {
        let (sender, decision) = oneshot::channel();
        self.waiting().insert(request.clone(), sender);
        let ticket = Ticket { desk: self, request };
        async move {
            let decision = decision.await.ok();
            drop(ticket);
            decision
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<RequestId, oneshot::Sender<Decision>>> {
        // Nothing that is done under the lock can panic half-way.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.desk.waiting().remove(&self.request);
        self.desk.hub.close(&self.request);
    }
}
