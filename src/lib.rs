//! Runs coding tasks on `OpenCode` and tells the truth about how they ended.

#[cfg(feature = "client")]
mod client;
mod ids;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;
pub mod wire;

pub use ids::{
    BlockId, CallId, ConversationId, MessageId, PartId, ProjectId, RequestId, SessionId, TaskId, ToolUseId,
};
pub use time::{InvalidTimestamp, Millis, Timestamp};
