//! Blocks: what a thread of a conversation is made of.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{BlockOutput, BlockText};
use crate::{
    ids::{AgentId, BlockId, ConversationId, MessageId, PartId, ToolUseId},
    time::{Millis, Timestamp},
};

/// Details that not every block has; shared, so that copying a block stays cheap.
pub type Metadata = Option<Arc<Map<String, Value>>>;

/// One block of a conversation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConversationBlock {
    /// The block's id, unique in its thread.
    pub id: BlockId,
    /// The thread it belongs to.
    pub conversation_id: ConversationId,
    /// Where in the thread it stands. An event may leave it open: then a known block keeps its place, and a new one comes
    /// last. In a state every block has one.
    pub order: Option<BlockOrder>,
    /// When it began, as the data says.
    pub timestamp: Timestamp,
    /// Whether it may still change.
    pub status: BlockStatus,
    /// Further details.
    pub metadata: Metadata,
    /// What it is.
    pub body: BlockBody,
    /// Fields of its JSON that this version does not know, kept as they came.
    pub extra: Metadata,
}

impl ConversationBlock {
    /// A complete block of the main thread without metadata.
    pub fn new(id: impl Into<BlockId>, order: BlockOrder, body: BlockBody) -> Self {
        Self {
            id: id.into(),
            conversation_id: ConversationId::main(),
            timestamp: order.created.into(),
            order: Some(order),
            status: BlockStatus::Complete,
            metadata: None,
            body,
            extra: None,
        }
    }

    /// Whether it waits for the end of the turn: it may still change, and is not a subagent that still runs.
    pub(super) fn ends_with_the_turn(&self) -> bool {
        self.status == BlockStatus::Pending
            && self.body.as_subagent().is_none_or(|subagent| subagent.subagent_status.is_final())
    }
}

/// Where a block stands in its thread.
///
/// The order is part of the data: the time and id of the message, then the part. Blocks may arrive in any order and still
/// form the same list. In JSON it is an array, which compares like this type, element by element.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "OrderTuple", into = "OrderTuple")]
#[non_exhaustive]
pub struct BlockOrder {
    /// When the block's message was created.
    pub created: Millis,
    /// The message; settles ties of time.
    pub message: MessageId,
    /// 0 for what the message contains, 1 for what comes after it, such as its error.
    pub rank: u8,
    /// The part; empty for the message as a whole.
    pub part: PartId,
    /// 0 for a block, 1 for its result; counts the blocks that came after it without a place of their own.
    pub sub: u32,
}

type OrderTuple = (Millis, MessageId, u8, PartId, u32);

impl BlockOrder {
    /// The place of a message as a whole, before its parts.
    pub fn message(created: Millis, message: MessageId) -> Self {
        Self { created, message, ..Self::default() }
    }

    /// The place of a part of the same message.
    #[must_use]
    pub fn part(&self, part: PartId) -> Self {
        Self { part, rank: 0, sub: 0, ..self.clone() }
    }

    /// The place right after this one, for a result.
    #[must_use]
    pub fn result(&self) -> Self {
        Self { sub: 1, ..self.clone() }
    }

    /// The next place after this one, for a block that comes last and has no place of its own.
    pub(super) fn next(&self) -> Self {
        Self { sub: self.sub.saturating_add(1), ..self.clone() }
    }

    /// The place after all parts of the same message.
    #[must_use]
    pub fn trailing(&self) -> Self {
        Self { rank: 1, part: PartId::default(), sub: 0, ..self.clone() }
    }
}

impl From<OrderTuple> for BlockOrder {
    fn from((created, message, rank, part, sub): OrderTuple) -> Self {
        Self { created, message, rank, part, sub }
    }
}

impl From<BlockOrder> for OrderTuple {
    fn from(BlockOrder { created, message, rank, part, sub }: BlockOrder) -> Self {
        (created, message, rank, part, sub)
    }
}

/// Whether a block may still change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BlockStatus {
    /// It may still change.
    #[serde(alias = "running")]
    Pending,
    /// It is finished.
    #[serde(alias = "completed", alias = "success")]
    Complete,
    /// It failed.
    Error,
}

/// How far a tool call or a subagent got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RunStatus {
    /// It has not begun.
    Pending,
    /// It runs, or ran when its server died.
    Running,
    /// It succeeded. Also read from the words that other writers have for it.
    #[serde(alias = "complete", alias = "completed")]
    Success,
    /// It failed, was refused or was aborted.
    Error,
}

impl RunStatus {
    /// Whether it is over.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Error)
    }

    /// The status of a block that is this far.
    pub fn block_status(self) -> BlockStatus {
        match self {
            Self::Pending | Self::Running => BlockStatus::Pending,
            Self::Success => BlockStatus::Complete,
            Self::Error => BlockStatus::Error,
        }
    }
}

/// What a block is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BlockBody {
    /// A prompt.
    UserMessage {
        /// Its text.
        content: BlockText,
        /// What it carries besides text.
        parts: Vec<ContentPart>,
    },
    /// Text of the model.
    #[non_exhaustive]
    AssistantText {
        /// What the model wrote.
        content: BlockText,
        /// The model that wrote it.
        model: Option<Arc<str>>,
    },
    /// The model's thinking.
    #[non_exhaustive]
    Thinking {
        /// What the model thought.
        content: BlockText,
        /// The model that wrote it.
        model: Option<Arc<str>>,
    },
    /// A tool call.
    #[non_exhaustive]
    ToolUse {
        /// Ties it to its result.
        tool_use_id: ToolUseId,
        /// The name of the tool.
        name: Arc<str>,
        /// A few words on this call.
        title: Option<Arc<str>>,
        /// Its arguments.
        input: Arc<Value>,
        /// How far it got.
        tool_status: RunStatus,
    },
    /// What a tool call gave.
    #[non_exhaustive]
    ToolResult {
        /// The call.
        tool_use_id: ToolUseId,
        /// What it returned, or why it failed.
        output: BlockOutput,
        /// Whether it failed.
        is_error: bool,
        /// How long it ran.
        duration_ms: Option<u64>,
        /// Files it returned.
        parts: Vec<ContentPart>,
    },
    /// Something the agent's system did, such as summarising the history.
    #[non_exhaustive]
    System {
        /// What kind of thing it did, such as `compaction` or `retry`.
        subtype: Option<Arc<str>>,
        /// What it did, in words.
        content: BlockText,
    },
    /// A subagent; its own thread is in the state's subagents.
    Subagent(SubagentBlock),
    /// Something that went wrong.
    #[non_exhaustive]
    Error {
        /// What went wrong, in words.
        content: BlockText,
    },
    /// A kind of block that this version does not know; what it says is in [`ConversationBlock::extra`].
    #[non_exhaustive]
    Unknown {
        /// The `type` of its JSON.
        kind: Arc<str>,
    },
}

/// A subagent, as its parent's thread shows it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SubagentBlock {
    /// The call that started it, and the id of its thread.
    pub tool_use_id: ToolUseId,
    /// The agent's own id, once known.
    pub subagent_id: Option<AgentId>,
    /// How far it got.
    pub subagent_status: RunStatus,
    /// Which agent.
    pub name: Arc<str>,
    /// What for, in a few words.
    pub description: Option<Arc<str>>,
    /// What it was asked: the prompt as a string, or whatever else the writer of its JSON put there.
    pub input: Arc<Value>,
    /// What it answered, or why it failed.
    pub output: Option<BlockOutput>,
    /// How long it ran.
    pub duration_ms: Option<u64>,
}

/// Something in a message besides text. Bytes are never copied into it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum ContentPart {
    /// A file.
    File {
        /// Its media type.
        #[serde(default)]
        media_type: Arc<str>,
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filename: Option<Arc<str>>,
        /// Where it is, unless it came inside the message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<Arc<str>>,
        /// Its size in bytes, if it came inside the message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    /// A mention of an agent.
    #[non_exhaustive]
    Agent {
        /// The name of the agent.
        name: Arc<str>,
    },
    /// An order to run a subagent.
    #[non_exhaustive]
    Subtask {
        /// The agent that is to run it.
        agent: Arc<str>,
        /// What for, in a few words.
        description: Arc<str>,
        /// What it is asked.
        prompt: Arc<str>,
    },
}

impl BlockBody {
    /// What the user said, without attachments.
    pub fn user_message(content: impl Into<BlockText>) -> Self {
        Self::UserMessage { content: content.into(), parts: Vec::new() }
    }

    /// What the model said.
    pub fn assistant_text(content: impl Into<BlockText>) -> Self {
        Self::AssistantText { content: content.into(), model: None }
    }

    /// The text of blocks that have one; tool calls and subagents do not.
    pub fn content(&self) -> Option<&BlockText> {
        match self {
            Self::UserMessage { content, .. }
            | Self::AssistantText { content, .. }
            | Self::Thinking { content, .. }
            | Self::System { content, .. }
            | Self::Error { content } => Some(content),
            Self::ToolUse { .. } | Self::ToolResult { .. } | Self::Subagent(_) | Self::Unknown { .. } => None,
        }
    }

    /// The `type` of its JSON.
    pub fn kind(&self) -> &str {
        match self {
            Self::UserMessage { .. } => "user_message",
            Self::AssistantText { .. } => "assistant_text",
            Self::Thinking { .. } => "thinking",
            Self::ToolUse { .. } => "tool_use",
            Self::ToolResult { .. } => "tool_result",
            Self::System { .. } => "system",
            Self::Subagent(_) => "subagent",
            Self::Error { .. } => "error",
            Self::Unknown { kind } => kind,
        }
    }

    /// The subagent, if it shows one.
    pub fn as_subagent(&self) -> Option<&SubagentBlock> {
        if let Self::Subagent(subagent) = self { Some(subagent) } else { None }
    }

    /// Whether it has a text that may be streamed.
    pub(super) fn is_streamed(&self) -> bool {
        matches!(self, Self::AssistantText { .. } | Self::Thinking { .. })
    }

    /// The text that may be streamed.
    pub(super) fn streamed_mut(&mut self) -> Option<&mut BlockText> {
        match self {
            Self::AssistantText { content, .. } | Self::Thinking { content, .. } => Some(content),
            Self::UserMessage { .. }
            | Self::ToolUse { .. }
            | Self::ToolResult { .. }
            | Self::System { .. }
            | Self::Subagent(_)
            | Self::Error { .. }
            | Self::Unknown { .. } => None,
        }
    }
}
