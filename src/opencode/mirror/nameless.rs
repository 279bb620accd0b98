//! Task calls that failed and do not say which session they started.
//!
//! Some releases leave the session out of a call that was cancelled, so that a load sees a call without a session and a session
//! without a call. What the call asked for is the first prompt of its session; by that the two are brought together, once both are
//! at rest. Where the call was seen to run, its session is known, and nothing of this is needed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Effects, SessionTree, session::SessionLog};
use crate::{
    conversation::BlockOrder,
    ids::SessionId,
    opencode::wire::{ToolPart, ToolStatus},
};

/// Such calls of one session, by what they asked for, each at its place.
#[derive(Debug, Default)]
pub(super) struct NamelessCalls(BTreeMap<String, BTreeSet<BlockOrder>>);

impl NamelessCalls {
    pub(super) fn insert(&mut self, prompt: String, order: BlockOrder) {
        self.0.entry(prompt).or_default().insert(order);
    }

    /// Takes out the first call that asked for this.
    fn take(&mut self, prompt: &str) -> Option<BlockOrder> {
        let calls = self.0.get_mut(prompt)?;
        let first = calls.pop_first();
        if calls.is_empty() {
            self.0.remove(prompt);
        }
        first
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a task call asked for, if it has failed.
pub(super) fn prompt_of_failed_task(tool: &ToolPart) -> Option<&str> {
    let has_failed = tool.is_task() && tool.state.status == ToolStatus::Error;
    tool.state.input.get("prompt").filter(|_| has_failed)?.as_str()
}

impl SessionTree {
    /// Gives the nameless calls of a session that is at rest those of its children that no call names, in the order in which they
    /// were made.
    pub(super) fn match_children(&mut self, parent: &SessionId, effects: &mut Effects) {
        let Some(log) = self.sessions.get(parent) else { return };
        if log.nameless.is_empty() {
            return;
        }
        // The ids of later sessions sort before those of earlier ones.
        let made = |child: &SessionId| Some((self.sessions.get(child)?.created(), Reverse(child.clone())));
        let children: BTreeSet<_> = log.children.iter().filter_map(made).collect();
        for (_, Reverse(child)) in children {
            self.match_child(&child, effects);
        }
    }

    /// Gives a session that no call names to a nameless call of its parent.
    pub(super) fn match_child(&mut self, child: &SessionId, effects: &mut Effects) {
        let Some(log) = self.sessions.get(child) else { return };
        let Some(parent) = log.parent.clone().filter(|_| log.is_told && log.owners.is_empty()) else {
            return;
        };
        let has_asked = |parent: &SessionLog| parent.is_at_rest() && !parent.nameless.is_empty();
        if !log.is_at_rest() || !self.sessions.get(&parent).is_some_and(|parent| has_asked(parent)) {
            return;
        }
        let Some(prompt) = log.first_prompt().map(str::to_owned) else { return };
        let options = self.options;
        let Some(log) = self.sessions.get_mut(&parent) else { return };
        if let Some(call) = log.nameless.take(&prompt) {
            log.name_child(&call, child, options, effects);
            self.settle_claims(&parent, effects);
        }
    }
}
