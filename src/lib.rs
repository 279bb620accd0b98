//! Runs coding tasks on `OpenCode` and tells the truth about how they ended.

mod conversation;
pub mod convert;
mod ids;
mod observe;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;
pub mod turn;
pub mod wire;

pub use conversation::{
    BlockBody, BlockOrder, BlockStatus, BlockText, Change, ContentPart, ConversationBlock, ConversationEvent,
    ConversationMetadata, MessageUsage, Metadata, RunStatus, SessionConversationState, SubagentBlock,
    SubagentCompleted, SubagentSpawned, SubagentState, Thread, TokenUsage, Usage, reduce_session_event,
    reduce_with_changes,
};
pub use ids::{
    AgentId, BlockId, CallId, ConversationId, MessageId, PartId, ProjectId, RequestId, SessionId, TaskId,
    ToolUseId,
};
pub use observe::{Observed, SessionTree, Snapshot, message_signature};
pub use time::{InvalidTimestamp, Millis, Timestamp};
