//! Hands requests of tools and models over to whoever looks at the page.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use opencode_conductor::{PermissionDecision, PermissionPolicy, QuestionDecision, QuestionPolicy, RequestId};
use tokio::sync::oneshot;

use crate::hub::Hub;

/// Where decisions of one kind are waited for.
pub(crate) struct Desk<Decision> {
    hub: Arc<Hub>,
    waiting: Mutex<HashMap<RequestId, oneshot::Sender<Decision>>>,
}

/// A request for as long as anybody waits for its decision.
struct Ticket<Decision> {
    desk: Arc<Desk<Decision>>,
    request: RequestId,
}

pub(crate) fn permissions(desk: &Arc<Desk<PermissionDecision>>) -> PermissionPolicy {
    let desk = Arc::clone(desk);
    PermissionPolicy::ask(move |request| {
        let decision = Arc::clone(&desk).wait_for(request.id);
        let nobody = || PermissionDecision::Reject("Nobody is there to decide.".to_owned());
        async move { decision.await.unwrap_or_else(nobody) }
    })
}

pub(crate) fn questions(desk: &Arc<Desk<QuestionDecision>>) -> QuestionPolicy {
    let desk = Arc::clone(desk);
    QuestionPolicy::ask(move |request| {
        let decision = Arc::clone(&desk).wait_for(request.id);
        async move { decision.await.unwrap_or(QuestionDecision::Decline) }
    })
}

impl<Decision> Desk<Decision> {
    pub(crate) fn new(hub: &Arc<Hub>) -> Arc<Self> {
        Arc::new(Self { hub: Arc::clone(hub), waiting: Mutex::default() })
    }

    /// Decides a request; false if nobody waits for it.
    pub(crate) fn decide(&self, request: &str, decision: Decision) -> bool {
        let waiting = self.waiting().remove(request);
        waiting.is_some_and(|waiting| waiting.send(decision).is_ok())
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

impl<Decision> Drop for Ticket<Decision> {
    fn drop(&mut self) {
        self.desk.waiting().remove(&self.request);
        self.desk.hub.close(&self.request);
    }
}
