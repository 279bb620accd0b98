//! Runs coding tasks on `OpenCode` and tells the truth about how they ended.

mod ids;

pub use ids::{
    BlockId, CallId, ConversationId, MessageId, PartId, ProjectId, RequestId, SessionId, TaskId, ToolUseId,
};
