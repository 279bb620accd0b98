//! Events: the steps that a conversation is folded from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BlockOrder, BlockText, ConversationBlock, RunStatus, Usage};
use crate::{
    ids::{AgentId, BlockId, ConversationId, MessageId, ToolUseId},
    time::{Millis, Timestamp},
};

/// One step of a conversation: something we concluded from what the server said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum ConversationEvent {
    /// A block is there, or is now like this.
    #[serde(rename = "block:upsert")]
    BlockUpsert {
        /// The thread.
        conversation_id: ConversationId,
        /// The block, whole.
        block: Arc<ConversationBlock>,
    },
    /// A text or thinking block grew.
    #[serde(rename = "block:delta")]
    BlockDelta {
        /// The thread.
        conversation_id: ConversationId,
        /// The block.
        block_id: BlockId,
        /// What is added to its content.
        delta: String,
    },
    /// A block is gone; with a subagent's block its whole thread, and those below it.
    #[serde(rename = "block:removed")]
    BlockRemoved {
        /// The thread.
        conversation_id: ConversationId,
        /// The block.
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
    SessionIdle {
        /// The thread.
        conversation_id: ConversationId,
    },
    /// What one message used; replaces what was known about that message.
    #[serde(rename = "metadata:update")]
    MetadataUpdate {
        /// The thread.
        conversation_id: ConversationId,
        /// The message.
        message_id: MessageId,
        /// When the message was created.
        created: Millis,
        /// The model that wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<Arc<str>>,
        /// What it used; absent if the message is gone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
}

/// A subagent was started, or more is known about it.
///
/// What is absent or empty here leaves what is known as it is, and a finished subagent stays finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SubagentSpawned {
    /// The thread that started it.
    pub conversation_id: ConversationId,
    /// The call that started it, and the id of its own thread.
    pub tool_use_id: ToolUseId,
    /// The agent's own id, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// Which agent.
    #[serde(default)]
    pub name: Arc<str>,
    /// What for, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Arc<str>>,
    /// What it was asked.
    #[serde(default)]
    pub input: Arc<Value>,
    /// Pending or running.
    pub status: RunStatus,
    /// Where its block stands in the parent's thread.
    pub order: BlockOrder,
    /// When it began.
    pub timestamp: Timestamp,
}

/// A subagent is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SubagentCompleted {
    /// The thread that started it.
    pub conversation_id: ConversationId,
    /// The call that started it, and the id of its own thread.
    pub tool_use_id: ToolUseId,
    /// Success or error.
    pub status: RunStatus,
    /// What it answered, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<BlockText>,
    /// How long it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Where its block stands in the parent's thread, in case it was never announced.
    pub order: BlockOrder,
    /// When it began, in case it was never announced.
    pub timestamp: Timestamp,
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
