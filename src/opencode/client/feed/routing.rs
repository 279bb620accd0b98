//! Who gets which event.
//!
//! A directory may have a thousand subscribers and each of them one session, so an event finds its targets by its session and
//! not by asking every subscriber.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::queue::Queue;
use crate::ids::{IdMap, SessionId};

pub(super) type SubscriberId = u64;

/// The subscribers of a feed and the sessions that they follow.
#[derive(Default)]
pub(super) struct Routing {
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    followers: IdMap<SessionId, BTreeSet<SubscriberId>>,
    /// Those who want every event.
    watchers: BTreeSet<SubscriberId>,
    next_id: SubscriberId,
}

struct Subscriber {
    queue: Arc<Queue>,
    sessions: Vec<SessionId>,
}

impl Routing {
    pub(super) fn add(&mut self, queue: Arc<Queue>, everything: bool) -> SubscriberId {
        let id = self.next_id;
        self.next_id += 1;
        self.subscribers.insert(id, Subscriber { queue, sessions: Vec::new() });
        if everything {
            self.watchers.insert(id);
        }
        id
    }

    pub(super) fn remove(&mut self, id: SubscriberId) {
        self.watchers.remove(&id);
        for session in self.subscribers.remove(&id).into_iter().flat_map(|gone| gone.sessions) {
            if let Some(followers) = self.followers.get_mut(&session) {
                followers.remove(&id);
                if followers.is_empty() {
                    self.followers.remove(&session);
                }
            }
        }
    }

    pub(super) fn follow(&mut self, id: SubscriberId, session: &SessionId) {
        if let Some(subscriber) = self.subscribers.get_mut(&id)
            && self.followers.entry(session.clone()).or_default().insert(id)
        {
            subscriber.sessions.push(session.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.subscribers.values().map(|subscriber| &subscriber.queue)
    }

    /// Learns of a child: who follows its parent follows it.
    pub(super) fn learn(&mut self, parent: &SessionId, child: &SessionId) {
        for follower in self.followers.get(parent).cloned().unwrap_or_default() {
            self.follow(follower, child);
        }
    }

    /// Who gets an event of `session`, if it is one alone.
    pub(super) fn only(&self, session: Option<&str>) -> Option<&Arc<Queue>> {
        let followers = self.followers.get(session?)?;
        let id = followers.first().filter(|_| followers.len() == 1 && self.watchers.is_empty())?;
        self.subscribers.get(id).map(|subscriber| &subscriber.queue)
    }

    /// Who gets an event of `session`.
    pub(super) fn targets(&self, session: Option<&str>, kind: &str) -> Vec<Arc<Queue>> {
        // An error without a session may belong to any of them.
        if session.is_none() && matches!(kind, "session.error" | "server.instance.disposed") {
            return self.all().cloned().collect();
        }
        let none = BTreeSet::new();
        let followers = session.and_then(|session| self.followers.get(session)).unwrap_or(&none);
        let wanted = followers.union(&self.watchers);
        wanted.filter_map(|id| self.subscribers.get(id)).map(|found| Arc::clone(&found.queue)).collect()
    }
}
