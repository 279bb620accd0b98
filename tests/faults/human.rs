//! Who is asked for permission.

use std::sync::Arc;

use opencode_conductor::{Decision, PermissionPolicy};
use tokio::sync::watch;

/// Answers nothing before the fault has struck, and then allows everything.
pub(crate) struct Human {
    asked: watch::Sender<bool>,
    may_answer: watch::Sender<bool>,
}

impl Human {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { asked: watch::Sender::new(false), may_answer: watch::Sender::new(false) })
    }

    pub(crate) fn policy(self: &Arc<Self>) -> PermissionPolicy {
        let human = Arc::clone(self);
        PermissionPolicy::ask(move |_| {
            let human = Arc::clone(&human);
            async move {
                human.asked.send_replace(true);
                wait_for_true(&human.may_answer).await;
                Decision::AllowOnce
            }
        })
    }

    /// Waits until there is something to answer.
    pub(crate) async fn is_asked(&self) {
        wait_for_true(&self.asked).await;
    }

    pub(crate) fn may_answer(&self) {
        self.may_answer.send_replace(true);
    }
}

async fn wait_for_true(sender: &watch::Sender<bool>) {
    sender.subscribe().wait_for(|value| *value).await.unwrap();
}
