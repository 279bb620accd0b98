//! Runs coding tasks on `OpenCode` and tells the truth about how they ended.

#[cfg(feature = "client")]
mod client;
mod error;
mod ids;
#[cfg(feature = "client")]
mod server;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;
pub mod wire;

#[cfg(feature = "client")]
pub use client::{
    ApiError, ApiErrorKind, ClientBuilder, ClientStatistics, Cursor, Delivery, Directory, DirectoryClient,
    FeedLoss, FeedOptions, FeedSignal, GoneReason, MessageList, MessagePage, Method, OpenCodeClient,
    RawAnswer, RawRequest, ResyncReason, ServerAnswer, SessionFilter, Subscription,
};
pub use error::InvalidInput;
pub use ids::{
    BlockId, CallId, ConversationId, MessageId, PartId, ProjectId, RequestId, SessionId, TaskId, ToolUseId,
};
#[cfg(feature = "client")]
pub use server::{LaunchError, LaunchOptions, OpenCodeServer, RestartPolicy, ServerExit, ServerState};
pub use time::{InvalidTimestamp, Millis, Timestamp};
