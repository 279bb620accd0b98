//! Who gets which event.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{peek::Peek, queue::Queue};
use crate::ids::SessionId;

pub(super) type SubscriberId = u64;

/// The subscribers of a feed and the sessions that they follow.
#[derive(Default)]
pub(super) struct Routing {
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    followers: HashMap<SessionId, Vec<SubscriberId>>,
    next_id: SubscriberId,
}

struct Subscriber {
    queue: Arc<Queue>,
    everything: bool,
}

impl Routing {
    pub(super) fn add(&mut self, queue: Arc<Queue>, everything: bool) -> SubscriberId {
        let id = self.next_id;
        self.next_id += 1;
        self.subscribers.insert(id, Subscriber { queue, everything });
        id
    }

    pub(super) fn remove(&mut self, id: SubscriberId) {
        self.subscribers.remove(&id);
        self.followers.retain(|_, followers| {
            followers.retain(|follower| *follower != id);
            !followers.is_empty()
        });
    }

    pub(super) fn follow(&mut self, id: SubscriberId, session: &SessionId) {
        let followers = self.followers.entry(session.clone()).or_default();
        if !followers.contains(&id) {
            followers.push(id);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.subscribers.values().map(|subscriber| &subscriber.queue)
    }

    /// Learns of a child, and tells who gets the event.
    pub(super) fn route(&mut self, event: &Peek<'_>) -> Vec<Arc<Queue>> {
        if let Some(child) = &event.child
            && let Some(followers) = self.followers.get(child.parent).cloned()
        {
            let session = SessionId::new(child.session);
            for follower in followers {
                self.follow(follower, &session);
            }
        }
        self.targets(event.session, &event.kind)
    }

    /// Who gets an event of `session`.
    pub(super) fn targets(&self, session: Option<&str>, kind: &str) -> Vec<Arc<Queue>> {
        let followers =
            session.and_then(|session| self.followers.get(session)).map_or(&[][..], Vec::as_slice);
        // An error without a session may be anybody's.
        let anybodys = session.is_none() && matches!(kind, "session.error" | "server.instance.disposed");
        let wants = |(id, subscriber): &(&SubscriberId, &Subscriber)| {
            anybodys || subscriber.everything || followers.contains(id)
        };
        self.subscribers.iter().filter(wants).map(|(_, subscriber)| Arc::clone(&subscriber.queue)).collect()
    }
}
