//! Runs coding tasks on `OpenCode` and tells the truth about how they ended.

mod ids;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;
pub mod turn;
pub mod wire;

pub use ids::{
    BlockId, CallId, ConversationId, MessageId, PartId, ProjectId, RequestId, SessionId, TaskId, ToolUseId,
};
pub use time::{InvalidTimestamp, Millis, Timestamp};
