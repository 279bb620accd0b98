//! Events: the steps that a conversation is folded from.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    BlockBody, BlockOrder, BlockOutput, BlockStatus, ConversationBlock, Metadata, RunStatus, SubagentBlock,
    Usage,
};
use crate::{
    ids::{AgentId, BlockId, ConversationId, MessageId, ToolUseId},
    time::{Millis, Timestamp},
};

/// One step of a conversation: something we concluded from what the server said.
///
/// Reads the JSON of other writers too: what this crate adds may be absent, and so may the thread, which is then the main one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum ConversationEvent {
    /// A block is there, or is now like this.
    #[serde(rename = "block:upsert")]
    #[non_exhaustive]
    BlockUpsert {
        /// The thread that the block belongs to.
        conversation_id: ConversationId,
        /// The block, whole.
        block: Arc<ConversationBlock>,
    },
    /// A text or thinking block grew.
    #[serde(rename = "block:delta")]
    #[non_exhaustive]
    BlockDelta {
        /// The thread that the block belongs to.
        conversation_id: ConversationId,
        /// The block that grew.
        block_id: BlockId,
        /// What is added to its content.
        delta: String,
    },
    /// A block is gone; with a subagent's block its whole thread, and those below it.
    #[serde(rename = "block:removed")]
    #[non_exhaustive]
    BlockRemoved {
        /// The thread that the block belongs to.
        conversation_id: ConversationId,
        /// The block that is gone.
        block_id: BlockId,
    },
    /// A subagent was started, or more is known about it.
    #[serde(rename = "subagent:spawned")]
    SubagentSpawned(SubagentSpawned),
    /// A subagent is done.
    #[serde(rename = "subagent:completed")]
    SubagentCompleted(SubagentCompleted),
    /// A thread's turn is over; what was pending in it stays as it is.
    #[serde(rename = "session:idle")]
    #[non_exhaustive]
    SessionIdle {
        /// The thread whose turn is over.
        conversation_id: ConversationId,
    },
    /// What one message used; replaces what was known about that message.
    #[serde(rename = "metadata:update")]
    #[non_exhaustive]
    MetadataUpdate {
        /// The thread that the message is in.
        conversation_id: ConversationId,
        /// The message that used it.
        message_id: MessageId,
        /// When the message was created.
        created: Millis,
        /// The model that wrote it.
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<Arc<str>>,
        /// What it used; absent if the message is gone.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
}

impl ConversationEvent {
    /// A block of a thread is there, or is now like this.
    pub fn block_upsert(conversation_id: ConversationId, block: impl Into<Arc<ConversationBlock>>) -> Self {
        Self::BlockUpsert { conversation_id, block: block.into() }
    }

    /// A text or thinking block of a thread grew by `delta`.
    pub fn block_delta(conversation_id: ConversationId, block_id: BlockId, delta: impl Into<String>) -> Self {
        Self::BlockDelta { conversation_id, block_id, delta: delta.into() }
    }

    /// A block of a thread is gone.
    pub fn block_removed(conversation_id: ConversationId, block_id: BlockId) -> Self {
        Self::BlockRemoved { conversation_id, block_id }
    }

    /// A thread's turn is over.
    pub fn session_idle(conversation_id: ConversationId) -> Self {
        Self::SessionIdle { conversation_id }
    }
}

/// A subagent was started, or more is known about it.
///
/// What is absent or empty here leaves what is known as it is, and a finished subagent stays finished.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SubagentSpawned {
    /// The thread that started it.
    pub conversation_id: ConversationId,
    /// The call that started it, and the id of its own thread.
    pub tool_use_id: ToolUseId,
    /// The agent's own id, once known.
    pub agent_id: Option<AgentId>,
    /// Which agent.
    pub subagent_type: Arc<str>,
    /// What for, in a few words.
    pub description: Option<Arc<str>>,
    /// What it was asked.
    pub prompt: Arc<str>,
    /// Pending or running.
    pub status: RunStatus,
    /// Where its block stands in the parent's thread; by default where it is, or else last.
    pub order: Option<BlockOrder>,
    /// When it began, as the data says.
    pub timestamp: Option<Timestamp>,
    /// Further details, which are added to those of its block.
    pub metadata: Metadata,
}

/// A subagent is done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SubagentCompleted {
    /// The thread that started it.
    pub conversation_id: ConversationId,
    /// The call that started it, and the id of its own thread.
    pub tool_use_id: ToolUseId,
    /// The agent's own id, if it is known now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// Success or error; anything else does not end the subagent, and does not start one that has ended.
    #[serde(serialize_with = "super::event_json::write_end")]
    pub status: RunStatus,
    /// What it answered, or why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<BlockOutput>,
    /// How long it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Where its block stands in the parent's thread, in case it was never announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<BlockOrder>,
    /// When it began, in case it was never announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// Further details, which are added to those of its block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Metadata,
}

impl SubagentSpawned {
    /// The block of a subagent of which only this is known.
    pub(crate) fn block(&self) -> ConversationBlock {
        let mut block =
            ConversationBlock::of_subagent(&self.tool_use_id, self.order.as_ref(), self.timestamp);
        block.conversation_id = self.conversation_id.clone();
        self.tell(&mut block);
        block
    }

    /// Writes into a subagent's block what this says.
    pub(super) fn tell(&self, block: &mut ConversationBlock) {
        if self.order.is_some() {
            block.order.clone_from(&self.order);
        }
        if let Some(timestamp) = self.timestamp {
            block.timestamp = timestamp;
        }
        add(&mut block.metadata, &self.metadata);
        let BlockBody::Subagent(subagent) = &mut block.body else { return };
        if self.agent_id.is_some() {
            subagent.subagent_id.clone_from(&self.agent_id);
        }
        if !self.subagent_type.is_empty() {
            subagent.name = self.subagent_type.clone();
        }
        if self.description.is_some() {
            subagent.description.clone_from(&self.description);
        }
        if !self.prompt.is_empty() {
            subagent.input = Arc::new(Value::from(&*self.prompt));
        }
        if !subagent.subagent_status.is_final() {
            subagent.subagent_status = subagent.subagent_status.max(self.status);
            block.status = subagent.subagent_status.block_status();
        }
    }
}

impl SubagentCompleted {
    /// Writes into a subagent's block what this says.
    pub(crate) fn tell(&self, block: &mut ConversationBlock) {
        add(&mut block.metadata, &self.metadata);
        let BlockBody::Subagent(subagent) = &mut block.body else { return };
        if self.agent_id.is_some() {
            subagent.subagent_id.clone_from(&self.agent_id);
        }
        if self.status.is_final() {
            subagent.subagent_status = self.status;
            subagent.output.clone_from(&self.output);
            subagent.duration_ms = self.duration_ms;
        } else if !subagent.subagent_status.is_final() {
            subagent.subagent_status = subagent.subagent_status.max(self.status);
        }
        block.status = subagent.subagent_status.block_status();
    }
}

impl ConversationBlock {
    /// A subagent's block of which only its call is known.
    pub(super) fn of_subagent(
        id: &ToolUseId,
        order: Option<&BlockOrder>,
        timestamp: Option<Timestamp>,
    ) -> Self {
        let body = BlockBody::Subagent(SubagentBlock {
            tool_use_id: id.clone(),
            subagent_id: None,
            subagent_status: RunStatus::Pending,
            name: "".into(),
            description: None,
            input: Arc::new(Value::from("")),
            output: None,
            duration_ms: None,
        });
        let mut block = Self::new(BlockId::from(id), order.cloned().unwrap_or_default(), body);
        block.order = order.cloned();
        block.timestamp = timestamp.unwrap_or(block.timestamp);
        block.status = BlockStatus::Pending;
        block
    }
}

/// Adds details to those that are known; what is new replaces what has the same name.
fn add(known: &mut Metadata, more: &Metadata) {
    let Some(more) = more else { return };
    match known {
        None => *known = Some(more.clone()),
        Some(known) if more.iter().all(|(name, value)| known.get(name) == Some(value)) => {}
        Some(known) => {
            let details = more.iter().map(|(name, value)| (name.clone(), value.clone()));
            Arc::<Map<_, _>>::make_mut(known).extend(details);
        }
    }
}

impl ConversationEvent {
    /// The thread it concerns; for a subagent, the one that started it.
    pub fn conversation_id(&self) -> &ConversationId {
        match self {
            Self::BlockUpsert { conversation_id, .. }
            | Self::BlockDelta { conversation_id, .. }
            | Self::BlockRemoved { conversation_id, .. }
            | Self::SessionIdle { conversation_id }
            | Self::MetadataUpdate { conversation_id, .. }
            | Self::SubagentSpawned(SubagentSpawned { conversation_id, .. })
            | Self::SubagentCompleted(SubagentCompleted { conversation_id, .. }) => conversation_id,
        }
    }
}
