//! Which calls of a session run, and which of those do not merely wait for a session of the tree's own.

use super::SessionLog;
use crate::{
    ids::{MessageId, PartId, SessionId},
    opencode::wire::Part,
};

impl SessionLog {
    /// The calls that have not come to an end, in steps that may still go on.
    pub(in crate::opencode::mirror) fn running_tools(&self) -> impl Iterator<Item = &Part> {
        let running = self.incomplete.intersection(&self.active);
        running.filter_map(|id| self.messages.get(id)).flat_map(|log| log.running_tools())
    }

    pub(in crate::opencode::mirror) fn has_lone_call(&self) -> bool {
        !self.lone_calls.is_empty()
    }

    /// Says whether the session that a call names is one of the tree's own.
    pub(in crate::opencode::mirror) fn attend(&mut self, message: &MessageId, part: &PartId, is_ours: bool) {
        if !is_ours
            && self.messages.get(message).is_some_and(|log| log.is_running_tool(part))
            && self.is_open(message)
        {
            self.lone_calls.insert((message.clone(), part.clone()));
        } else if !self.lone_calls.is_empty() {
            self.lone_calls.remove(&(message.clone(), part.clone()));
        }
    }

    /// Whether a message is a step that may go on.
    pub(super) fn is_open(&self, message: &MessageId) -> bool {
        self.incomplete.contains(message) && self.active.contains(message)
    }

    /// The sessions that calls of this one name, each with the call.
    pub(in crate::opencode::mirror) fn named(&self) -> impl Iterator<Item = (&SessionId, &PartId)> {
        self.messages.values().flat_map(|log| log.named())
    }

    /// Sees anew which calls of a message run. Those that name a session claim it, and are then told whose it is.
    pub(super) fn count_calls(&mut self, message: &MessageId) {
        let calls = (message.clone(), PartId::default())..;
        let old: Vec<_> = self.lone_calls.range(calls).take_while(|(of, _)| of == message).cloned().collect();
        for call in &old {
            self.lone_calls.remove(call);
        }
        if !self.is_open(message) {
            return;
        }
        let running = self.messages.get(message).into_iter().flat_map(|log| log.running_tools());
        self.lone_calls.extend(running.map(|part| (message.clone(), part.id.clone())));
    }
}
