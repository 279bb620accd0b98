#![cfg_attr(feature = "client", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "client"),
    doc = "The conversation core of `opencode-conductor`: plain data and pure functions. The rest needs the feature `client`."
)]

mod conversation;
#[cfg(feature = "client")]
mod count;
mod error;
#[cfg(feature = "client")]
pub mod guide;
mod ids;
#[cfg(feature = "client")]
mod manager;
pub mod markdown;
mod opencode;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;
mod transcript;

pub use opencode::{convert, turn, wire};
// The names that the modules have had so far.
use opencode::mirror as observe;
#[cfg(feature = "client")]
use opencode::{client, server};

#[cfg(feature = "client")]
pub use client::{
    ApiError, ApiErrorKind, ClientBuilder, ClientStatistics, Cursor, Directory, DirectoryClient, FeedLoss,
    FeedOptions, FeedSignal, GoneReason, MessageList, MessagePage, Method, OpenCodeClient, RawAnswer,
    RawRequest, ResyncReason, ServerAnswer, SessionFilter, Subscription,
};
pub use conversation::{
    BlockBody, BlockOrder, BlockStatus, BlockText, Change, ContentPart, ConversationBlock, ConversationEvent,
    ConversationMetadata, MessageUsage, Metadata, RunStatus, SessionConversationState, SubagentBlock,
    SubagentCompleted, SubagentSpawned, SubagentState, Thread, TokenUsage, Usage, reduce_session_event,
    reduce_with_changes,
};
pub use error::InvalidInput;
pub use ids::{
    AgentId, BlockId, CallId, ConversationId, MessageId, PartId, ProjectId, RequestId, SessionId, TaskId,
    ToolUseId,
};
#[cfg(feature = "client")]
pub use manager::{
    AbortReport, AttachmentError, Completion, ConversationManager, ConversationSessionMeta,
    CreateTaskSession, IdleOutcome, JsonAnswerError, ManagerBuilder, ManagerStatistics, PermissionDecision,
    PermissionHandler, PermissionPolicy, Prompt, PromptError, PromptExecutionResult, PromptInput,
    PromptSubmission, QuestionDecision, QuestionHandler, QuestionPolicy, RunningPrompt, SessionError,
    TurnFailed, TurnStatistics, Update, Updates, WhenBusy, resolve_prompt_model,
};
pub use observe::{Observed, SessionTree, Snapshot, message_signature};
#[cfg(feature = "client")]
pub use server::{LaunchError, LaunchOptions, OpenCodeServer, RestartPolicy, ServerExit, ServerState};
pub use time::{InvalidTimestamp, Millis, Timestamp};
pub use transcript::{
    Architecture, Malformed, OpenCodeFormat, OpenCodeOptions, Transcript, TranscriptError, parse_opencode,
    parse_transcript,
};
pub use turn::{Delivery, Limit, TimeoutAction, WaitOptions};
