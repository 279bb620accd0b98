//! The reducer: one event onto a state.
//!
//! Total: whatever the event, there is a next state, and nothing panics. The rules that matter are those for events that come
//! too early, twice or not at all, because that is how they come.

use std::sync::Arc;

use super::{
    BlockBody, BlockOrder, ConversationBlock, ConversationEvent, ConversationMetadata, MessageUsage,
    SessionConversationState, SubagentBlock, SubagentCompleted, SubagentSpawned, SubagentState, Thread,
    state::Target,
};
use crate::{
    ids::{BlockId, ConversationId, ToolUseId},
    time::Timestamp,
};

/// Something that a step changed, so that a view need not compare states.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A block is new, changed or moved.
    Block {
        /// The thread that the block is in.
        conversation_id: ConversationId,
        /// The block, to be looked up in the new state.
        block_id: BlockId,
    },
    /// A block is gone.
    #[non_exhaustive]
    BlockRemoved {
        /// The thread that the block was in.
        conversation_id: ConversationId,
        /// The block that is gone.
        block_id: BlockId,
    },
    /// A subagent is new or changed, apart from its thread.
    #[non_exhaustive]
    Subagent {
        /// The call that started the subagent.
        tool_use_id: ToolUseId,
    },
    /// A subagent is gone, with its thread.
    #[non_exhaustive]
    SubagentRemoved {
        /// The call that had started it.
        tool_use_id: ToolUseId,
    },
    /// What a thread used changed.
    #[non_exhaustive]
    Metadata {
        /// The thread whose usage changed.
        conversation_id: ConversationId,
    },
}

/// The state after `event`; `state` stays as it is and shares what did not change.
///
/// # Examples
/// ```
/// use opencode_conductor::{
///     BlockBody, BlockOrder, ConversationBlock, ConversationEvent, ConversationId, MessageId, Millis,
///     SessionConversationState, reduce_session_event,
/// };
///
/// let order = BlockOrder::message(Millis::new(1), MessageId::new("msg_1"));
/// let block = ConversationBlock::new("prt_1", order, BlockBody::assistant_text("Hello"));
/// let event = ConversationEvent::block_upsert(ConversationId::main(), block);
/// let before = SessionConversationState::new();
/// let after = reduce_session_event(&before, &event);
/// assert_eq!((before.blocks().len(), after.blocks().len()), (0, 1));
/// ```
#[must_use]
pub fn reduce_session_event(
    state: &SessionConversationState,
    event: &ConversationEvent,
) -> SessionConversationState {
    let mut next = state.clone();
    next.apply(event);
    next
}

/// The state after `event`, and what the event changed.
#[must_use]
pub fn reduce_with_changes(
    state: &SessionConversationState,
    event: &ConversationEvent,
) -> (SessionConversationState, Vec<Change>) {
    let mut next = state.clone();
    let changes = next.apply_with_changes(event);
    (next, changes)
}

impl SessionConversationState {
    /// Folds an event into this state; clones made earlier do not change.
    pub fn apply(&mut self, event: &ConversationEvent) {
        Fold { state: self, changes: None }.event(event);
    }

    /// Folds an event into this state and says what changed.
    pub fn apply_with_changes(&mut self, event: &ConversationEvent) -> Vec<Change> {
        let mut changes = Vec::new();
        Fold { state: self, changes: Some(&mut changes) }.event(event);
        changes
    }
}

impl<'a> Extend<&'a ConversationEvent> for SessionConversationState {
    fn extend<I: IntoIterator<Item = &'a ConversationEvent>>(&mut self, events: I) {
        for event in events {
            self.apply(event);
        }
    }
}

/// One step.
struct Fold<'a> {
    state: &'a mut SessionConversationState,
    changes: Option<&'a mut Vec<Change>>,
}

impl Fold<'_> {
    fn event(&mut self, event: &ConversationEvent) {
        match event {
            ConversationEvent::BlockUpsert { conversation_id, block } => self.upsert(conversation_id, block),
            ConversationEvent::BlockDelta { conversation_id, block_id, delta } => {
                self.delta(conversation_id, block_id, delta);
            }
            ConversationEvent::BlockRemoved { conversation_id, block_id } => {
                self.removed(conversation_id, block_id);
            }
            ConversationEvent::SubagentSpawned(spawned) => self.spawned(spawned),
            ConversationEvent::SubagentCompleted(completed) => self.completed(completed),
            ConversationEvent::SessionIdle { conversation_id } => self.idle(conversation_id),
            ConversationEvent::MetadataUpdate { conversation_id, message_id, created, model, usage } => {
                let known = match usage {
                    Some(_) => Some(self.target_or_create(conversation_id)),
                    None => self.state.target(conversation_id),
                };
                let Some(target) = known else { return };
                let metadata = self.thread(&target).1;
                let is_changed = match *usage {
                    Some(usage) => {
                        let (message_id, model) = (message_id.clone(), model.clone());
                        metadata.set(MessageUsage { message_id, created: *created, model, usage })
                    }
                    None => metadata.remove(message_id),
                };
                if is_changed {
                    self.report(|| Change::Metadata { conversation_id: target.conversation_id() });
                }
            }
        }
    }

    fn upsert(&mut self, conversation: &ConversationId, block: &Arc<ConversationBlock>) {
        let target = self.target_or_create(conversation);
        self.put(&target, block.clone());
    }

    fn delta(&mut self, conversation: &ConversationId, block: &BlockId, delta: &str) {
        if delta.is_empty() {
            return;
        }
        let Some(target) = self.state.target(conversation) else { return };
        if self.thread(&target).0.append(block, delta) {
            self.block_changed(&target, block);
        }
    }

    fn removed(&mut self, conversation: &ConversationId, id: &BlockId) {
        let Some(target) = self.state.target(conversation) else { return };
        let subagent = match self.thread(&target).0.remove(id) {
            Some(block) => {
                self.report(|| Change::BlockRemoved {
                    conversation_id: target.conversation_id(),
                    block_id: id.clone(),
                });
                let Some(subagent) = block.body.as_subagent() else { return };
                subagent.tool_use_id.clone()
            }
            // A subagent that was never announced has a thread but no block.
            None => ToolUseId::from(&ConversationId::from(id)),
        };
        let Some(state) = self.state.subagents.get(&subagent) else { return };
        let has_block = self.state.block(&state.parent_id, id).is_some();
        if !has_block {
            self.remove_subagents(subagent);
        }
    }

    fn spawned(&mut self, spawned: &SubagentSpawned) {
        let SubagentSpawned { tool_use_id, order, timestamp, .. } = spawned;
        let target = self.target_or_create(&spawned.conversation_id);
        let mut block = self.take_subagent_block(&target, tool_use_id, order.as_ref(), *timestamp);
        spawned.tell(Arc::make_mut(&mut block));
        self.put(&target, block);
    }

    fn completed(&mut self, completed: &SubagentCompleted) {
        let SubagentCompleted { tool_use_id, order, timestamp, .. } = completed;
        let target = match self.state.subagents.get(tool_use_id) {
            // Wherever its block lives; a thread without a block gets it where the event says.
            Some(state) if self.has_block(state) => self.target_or_create(&state.parent_id.clone()),
            Some(_) | None => self.target_or_create(&completed.conversation_id),
        };
        let mut block = self.take_subagent_block(&target, tool_use_id, order.as_ref(), *timestamp);
        completed.tell(Arc::make_mut(&mut block));
        self.put(&target, block);
    }

    fn idle(&mut self, conversation: &ConversationId) {
        let Some(target) = self.state.target(conversation) else { return };
        for block in self.thread(&target).0.finish_pending() {
            self.block_changed(&target, &block);
        }
    }

    /// The thread that an event means; an unknown one becomes the thread of a subagent that will be announced later.
    fn target_or_create(&mut self, conversation: &ConversationId) -> Target {
        if let Some(target) = self.state.target(conversation) {
            return target;
        }
        let id = ToolUseId::from(conversation);
        let subagent = SubagentState::unannounced(id.clone());
        self.state.subagents.insert(id.clone(), Arc::new(subagent));
        self.report(|| Change::Subagent { tool_use_id: id.clone() });
        Target::Subagent(id)
    }

    fn thread(&mut self, target: &Target) -> (&mut Thread, &mut ConversationMetadata) {
        if let Target::Subagent(id) = target
            && let Some(subagent) = self.state.subagents.get_mut(id)
        {
            let subagent = Arc::make_mut(subagent);
            return (&mut subagent.blocks, &mut subagent.metadata);
        }
        (&mut self.state.blocks, &mut self.state.metadata)
    }

    fn put(&mut self, target: &Target, mut block: Arc<ConversationBlock>) {
        if !target.is_called(&block.conversation_id) {
            // The event named the thread by its agent.
            Arc::make_mut(&mut block).conversation_id = target.conversation_id();
        }
        self.keep_ended(&mut block);
        if self.thread(target).0.put(&block) {
            self.block_changed(target, &block.id);
        }
        if let Some(subagent) = block.body.as_subagent() {
            self.sync_subagent(target, subagent);
        }
    }

    /// Lets a subagent that has ended stay ended, with its result: a block that says otherwise was written before that.
    fn keep_ended(&self, block: &mut Arc<ConversationBlock>) {
        let Some(shown) = block.body.as_subagent() else { return };
        let Some(ended) = self.state.subagents.get(&shown.tool_use_id) else { return };
        if shown.subagent_status.is_final() || !ended.status.is_final() {
            return;
        }
        let block = Arc::make_mut(block);
        block.status = ended.status.block_status();
        if let BlockBody::Subagent(shown) = &mut block.body {
            shown.subagent_status = ended.status;
            shown.output.clone_from(&ended.output);
            shown.duration_ms = ended.duration_ms;
        }
    }

    /// The subagent's block as it is, or a new one; taken out of any other thread that it was in.
    fn take_subagent_block(
        &mut self,
        target: &Target,
        id: &ToolUseId,
        order: Option<&BlockOrder>,
        timestamp: Option<Timestamp>,
    ) -> Arc<ConversationBlock> {
        let is_subagent = |block: &Arc<ConversationBlock>| block.body.as_subagent().is_some();
        let block_id = self.block_of(id, target);
        if let Some(block) = self.thread(target).0.get(&block_id).filter(|block| is_subagent(block)) {
            return block.clone();
        }
        let elsewhere = self.state.subagents.get(id).map(|state| state.parent_id.clone());
        if let Some(elsewhere) = elsewhere.and_then(|parent| self.state.target(&parent))
            && elsewhere != *target
            && let block_id = self.block_of(id, &elsewhere)
            && self.thread(&elsewhere).0.get(&block_id).is_some_and(is_subagent)
            && let Some(mut block) = self.thread(&elsewhere).0.remove(&block_id)
        {
            self.report(|| Change::BlockRemoved { conversation_id: elsewhere.conversation_id(), block_id });
            Arc::make_mut(&mut block).order = order.cloned();
            return block;
        }
        Arc::new(ConversationBlock::of_subagent(id, order, timestamp))
    }

    /// The id of the block that shows a subagent in a thread: that of its call, but other writers name blocks otherwise.
    fn block_of(&self, id: &ToolUseId, target: &Target) -> BlockId {
        let named = BlockId::from(id);
        let Some(thread) = self.state.thread_of(target) else { return named };
        if !self.state.subagents.contains_key(id) || thread.get(&named).is_some() {
            return named;
        }
        let shows = |block: &&Arc<ConversationBlock>| {
            block.body.as_subagent().is_some_and(|shown| shown.tool_use_id == *id)
        };
        thread.iter().find(shows).map_or(named, |block| block.id.clone())
    }

    /// Makes the subagent's state say what its block says.
    fn sync_subagent(&mut self, target: &Target, block: &SubagentBlock) {
        let id = &block.tool_use_id;
        if ConversationId::from(id).is_main() {
            // The name of the main thread cannot be that of a subagent.
            return;
        }
        let old = self.state.subagents.get(id);
        let mut new = old.map_or_else(|| SubagentState::unannounced(id.clone()), |old| (**old).clone());
        new.parent_id = target.conversation_id();
        new.learn(block);
        if old.is_some_and(|old| old.same_apart_from_thread(&new)) {
            return;
        }
        let old_agent =
            old.and_then(|old| old.agent_id.clone()).filter(|agent| Some(agent) != new.agent_id.as_ref());
        if let Some(agent) = &new.agent_id {
            self.state.index_agent(agent, id);
        }
        self.state.subagents.insert(id.clone(), Arc::new(new));
        if let Some(agent) = old_agent {
            self.reindex_agent(&agent);
        }
        self.report(|| Change::Subagent { tool_use_id: id.clone() });
    }

    /// Removes a subagent and all that were started in its thread.
    fn remove_subagents(&mut self, first: ToolUseId) {
        let mut doomed = vec![first];
        while let Some(id) = doomed.pop() {
            let Some(subagent) = self.state.subagents.remove(&id) else { continue };
            let below = subagent.blocks.iter().filter_map(|block| block.body.as_subagent());
            doomed.extend(below.map(|below| below.tool_use_id.clone()));
            if let Some(agent) = &subagent.agent_id {
                self.reindex_agent(agent);
            }
            self.report(|| Change::SubagentRemoved { tool_use_id: id });
        }
    }

    fn reindex_agent(&mut self, agent: &crate::ids::AgentId) {
        let first = self.state.subagents().find(|subagent| subagent.agent_id.as_ref() == Some(agent));
        match first.map(|subagent| subagent.tool_use_id.clone()) {
            Some(id) => self.state.agents.insert(agent.clone(), id),
            None => self.state.agents.remove(agent),
        };
    }

    fn has_block(&self, subagent: &SubagentState) -> bool {
        let Some(parent) = self.state.target(&subagent.parent_id) else { return false };
        let block = self.block_of(&subagent.tool_use_id, &parent);
        self.state.thread_of(&parent).is_some_and(|thread| thread.get(&block).is_some())
    }

    fn report(&mut self, change: impl FnOnce() -> Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change());
        }
    }

    fn block_changed(&mut self, target: &Target, block: &BlockId) {
        self.report(|| Change::Block { conversation_id: target.conversation_id(), block_id: block.clone() });
    }
}

impl SubagentState {
    fn same_apart_from_thread(&self, other: &Self) -> bool {
        (&self.agent_id, &self.parent_id, &self.name, &self.description, self.status)
            == (&other.agent_id, &other.parent_id, &other.name, &other.description, other.status)
            && (&self.prompt, &self.output, self.duration_ms)
                == (&other.prompt, &other.output, other.duration_ms)
    }
}
