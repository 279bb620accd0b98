//! What the sessions of a tree say that they are doing.

use std::collections::BTreeMap;

use crate::{
    ids::SessionId,
    opencode::{
        mirror::SessionTree,
        wire::{SessionStatus, StatusMap},
    },
};

/// What a session is doing, by its own last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Nothing, it says; also what is assumed of a session that has said nothing.
    Idle,
    /// It runs.
    Busy,
    /// It waits to call the provider again.
    Retry,
    /// Its status is one that this version does not know, which says neither that it runs nor that it does not.
    Unrecognised,
}

impl From<&SessionStatus> for Activity {
    fn from(status: &SessionStatus) -> Self {
        match status {
            SessionStatus::Idle => Self::Idle,
            SessionStatus::Busy => Self::Busy,
            SessionStatus::Retry { .. } => Self::Retry,
            SessionStatus::Unknown(_) => Self::Unrecognised,
        }
    }
}

impl Activity {
    /// Whether the session says that it works.
    pub(super) fn is_running(self) -> bool {
        matches!(self, Self::Busy | Self::Retry)
    }
}

/// The last word of each session of a tree.
#[derive(Debug)]
pub(super) struct Statuses {
    root: Activity,
    /// The descendants that are not idle. One that is not confirmed yet says so only once, but counts for nothing.
    descendants: BTreeMap<SessionId, Activity>,
    n_changes: u64,
}

impl Statuses {
    pub(super) fn new() -> Self {
        Self { root: Activity::Idle, descendants: BTreeMap::new(), n_changes: 0 }
    }

    pub(super) fn root(&self) -> Activity {
        self.root
    }

    /// How often an event has changed a word. What was read while that happened may be older than what was heard.
    pub(super) fn n_changes(&self) -> u64 {
        self.n_changes
    }

    pub(super) fn root_says(&mut self, activity: Activity) {
        self.n_changes += u64::from(activity != self.root);
        self.root = activity;
    }

    pub(super) fn descendant_says(&mut self, session: &SessionId, activity: Activity) {
        let before = if activity == Activity::Idle {
            self.descendants.remove(session)
        } else {
            self.descendants.insert(session.clone(), activity)
        };
        self.n_changes += u64::from(before.unwrap_or(Activity::Idle) != activity);
    }

    /// Takes the word of sessions that are not in the tree any more for nothing.
    pub(super) fn forget_deleted(&mut self, tree: &SessionTree) {
        let n_before = self.descendants.len();
        self.descendants.retain(|session, _| tree.contains(session));
        self.n_changes += u64::from(self.descendants.len() != n_before);
    }

    /// Takes in what was read of all of them at one moment.
    pub(super) fn replace(&mut self, tree: &SessionTree, read: &StatusMap) {
        self.root = read.get(tree.root()).into();
        let descendants = tree.children().map(|child| (child.clone(), Activity::from(read.get(child))));
        self.descendants = descendants.filter(|(_, activity)| *activity != Activity::Idle).collect();
    }

    /// Whether the status of a descendant does not tell whether it works.
    pub(super) fn is_descendant_unclear(&self) -> bool {
        self.descendants.values().any(|activity| *activity == Activity::Unrecognised)
    }

    /// The descendants that are not idle.
    pub(super) fn active_descendants(&self, tree: &SessionTree) -> impl Iterator<Item = &SessionId> {
        self.descendants.keys().filter(|session| tree.is_confirmed(session))
    }

    /// Whether a descendant works. Where its status does not tell, its messages do.
    pub(super) fn is_descendant_running(&self, tree: &SessionTree) -> bool {
        let mut confirmed = self.descendants.iter().filter(|(session, _)| tree.is_confirmed(session));
        confirmed.any(|(session, activity)| match activity {
            Activity::Busy | Activity::Retry => true,
            Activity::Unrecognised => tree.has_incomplete_step(session),
            Activity::Idle => false,
        })
    }
}
