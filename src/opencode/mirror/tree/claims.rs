//! Which call a session belongs to: the task parts that name sessions, and the threads that those show in.

use super::{SessionTree, mark};
use crate::{
    conversation::ConversationEvent,
    ids::{BlockId, ConversationId, MessageId, PartId, SessionId},
    opencode::mirror::{Claim, Effects},
};

impl SessionTree {
    /// Carries out what the task parts of `session` said.
    pub(in crate::opencode::mirror) fn settle_claims(&mut self, session: &SessionId, effects: &mut Effects) {
        for claim in std::mem::take(&mut effects.claims) {
            self.claim(session, claim, effects);
        }
    }

    /// A task part of `session` names a child, or no longer does.
    fn claim(&mut self, session: &SessionId, claim: Claim, effects: &mut Effects) {
        let Claim { child, part, owner } = claim;
        self.named(session, &child, &part, owner.as_ref().map(|owner| &owner.order.message));
        if !self.sessions.contains_key(&child) {
            if owner.is_none() || self.deleted.contains(&child) {
                return;
            }
            self.adopt(&child, session, effects);
        }
        let Some(log) = self.sessions.get_mut(&child) else { return };
        if log.parent.as_ref() != Some(session) {
            // The root, or the child of another: naming it does not move it.
            return;
        }
        match owner {
            Some(owner) => log.owners.insert(part, owner),
            None => log.owners.remove(&part),
        };
        let first = log.owners.iter().min_by_key(|(_, owner)| &owner.order).map(|(part, _)| part.as_str());
        let conversation = ConversationId::new(first.unwrap_or(child.as_str()));
        if log.conversation != conversation {
            self.move_to(&child, conversation, effects);
        }
        if self.sessions.get(&child).is_some_and(|log| log.speaks_for_itself()) {
            self.announce(&child, effects);
        }
    }

    /// Remembers that a call names a session, or no longer does.
    pub(super) fn named(
        &mut self,
        session: &SessionId,
        child: &SessionId,
        part: &PartId,
        message: Option<&MessageId>,
    ) {
        let call = (session.clone(), part.clone());
        if let Some(message) = message {
            self.namers.entry(child.clone()).or_default().insert(call, message.clone());
            if self.is_confirmed(child) {
                self.attend(session, message, part, true);
            }
        } else if let Some(calls) = self.namers.get_mut(child) {
            calls.remove(&call);
            if calls.is_empty() {
                self.namers.remove(child);
            }
        }
    }

    /// Tells the calls that name a session whether it is one of the tree's own.
    pub(super) fn attend_namers(&mut self, child: &SessionId, is_ours: bool) {
        for ((session, part), message) in self.namers.get(child).cloned().unwrap_or_default() {
            self.attend(&session, &message, &part, is_ours);
        }
    }

    fn attend(&mut self, session: &SessionId, message: &MessageId, part: &PartId, is_ours: bool) {
        let Some(log) = self.sessions.get_mut(session) else { return };
        log.attend(message, part, is_ours);
        mark(&mut self.calling, session, log.has_lone_call());
    }

    /// Moves a child and all below it to another thread.
    fn move_to(&mut self, child: &SessionId, conversation: ConversationId, effects: &mut Effects) {
        let tree = self.subtree(child);
        let is_visible = tree.iter().any(|id| self.sessions.get(id).is_some_and(|log| log.has_messages()));
        if is_visible {
            self.clear_thread(child, effects);
        }
        if let Some(log) = self.sessions.get_mut(child) {
            log.conversation = conversation;
        }
        if !is_visible {
            return;
        }
        for id in tree {
            let Some(parent) = self.parent_conversation(&id) else { continue };
            if let Some(log) = self.sessions.get_mut(&id) {
                // The parts claim the same children as before, so only the events count.
                let mut shown = Effects::default();
                log.show_again(self.options, &parent, &mut shown);
                if !log.is_confirmed {
                    shown.withhold_usage();
                }
                effects.out.events.append(&mut shown.out.events);
            }
        }
    }

    /// Removes a child's thread and all below it from the conversation; the call that it belonged to stays.
    pub(super) fn clear_thread(&self, child: &SessionId, effects: &mut Effects) {
        let Some(log) = self.sessions.get(child) else { return };
        let Some(parent) = log.parent.as_ref().and_then(|parent| self.sessions.get(parent)) else { return };
        effects.out.events.push(ConversationEvent::BlockRemoved {
            conversation_id: parent.conversation.clone(),
            block_id: BlockId::new(log.conversation.as_str()),
        });
        // No call shows under the child's own id, and to look for one takes a look at every message.
        if log.conversation.as_str() == child.as_str() {
            return;
        }
        effects.out.events.extend(parent.shown(&PartId::new(log.conversation.as_str())));
    }
}
