#![cfg_attr(feature = "client", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "client"),
    doc = "The conversation core of `opencode-conductor`: plain data and pure functions. The rest needs the feature `client`."
)]
// On docs.rs every item says which feature it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod agent;
#[cfg(feature = "client")]
mod backoff;
pub mod claude;
mod conversation;
#[cfg(feature = "client")]
mod count;
#[cfg(feature = "client")]
mod deadline;
mod directory;
mod error;
#[cfg(feature = "client")]
pub mod guide;
mod ids;
mod json;
mod lock;
#[cfg(feature = "client")]
mod manager;
pub mod markdown;
mod opencode;
#[cfg(feature = "client")]
mod process;
mod session;
mod setters;
mod store;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;
mod transcript;
#[cfg(feature = "client")]
mod wall_clock;
#[cfg(feature = "client")]
pub mod worktree;

pub use agent::{
    AbortReport, Agent, AgentError, AgentErrorKind, AgentStatus, Allowed, Ask, Asked, BoxFuture,
    Capabilities, ChangeKind, Completion, ConversationSink, Decision, Delivery, Ended, Execution, Failure,
    FileChange, IdleOutcome, Limit, MadeFor, ModelRef, NativeMessages, NewSession, Notice, OpenSession,
    Opened, Permission, Phase, PreparedPrompt, PromptPart, PromptSpec, Question, QuestionAnswer,
    QuestionOption, SessionDescription, Stop, StopRequest, Subject, TimeoutAction, TurnHost, Unprepared,
    WaitOptions,
};
pub use conversation::{
    BlockBody, BlockOrder, BlockOutput, BlockStatus, BlockText, Change, ContentPart, ConversationBlock,
    ConversationEvent, ConversationMetadata, ConvertOptions, MessageUsage, Metadata, RunStatus,
    SessionConversationState, SubagentBlock, SubagentCompleted, SubagentSpawned, SubagentState, Thinking,
    Thread, TokenUsage, Usage, reduce_session_event, reduce_with_changes,
};
pub use directory::Directory;
pub use error::{Error, InvalidInput, error_chain};
pub use ids::{
    AgentId, AgentProfileReference, BlockId, CallId, ConversationId, MessageId, PartId, ProjectId, RequestId,
    SessionId, TaskId, ToolUseId,
};
#[cfg(feature = "client")]
pub use manager::{
    AgentSession, AnswerError, ApprovalDesk, AskHandler, AttachmentError, ConversationManager,
    CreateTaskSession, JsonAnswer, JsonAnswerError, ManagerBuilder, ManagerStatistics, PermissionPolicy,
    Prompt, PromptError, PromptExecutionResult, PromptInput, PromptSubmission, QuestionPolicy, RestoredTurn,
    RunningPrompt, SentMessage, SessionError, TurnFailed, TurnStatistics, Update, Updates, WhenBusy,
    WhenStoreFails,
};
#[cfg(feature = "client")]
pub use opencode::client::{
    ApiError, ApiErrorKind, ClientBuilder, ClientStatistics, Cursor, DirectoryClient, FeedLoss, FeedOptions,
    FeedSignal, GoneReason, MessageList, MessagePage, Method, OpenCodeClient, RawAnswer, RawRequest,
    ResyncReason, ServerAnswer, SessionFilter, Subscription,
};
pub use opencode::mirror::{Observed, SessionTree, Snapshot, message_signature};
#[cfg(feature = "client")]
pub use opencode::server::{
    LaunchError, LaunchOptions, OpenCodeServer, PoolOptions, PoolStatistics, RestartPolicy,
    ServerEnvironment, ServerExit, ServerLease, ServerPool, ServerState,
};
pub use opencode::wire;
#[cfg(feature = "client")]
pub use opencode::{CheckError, OpenCode, resolve_prompt_model};
pub use session::{
    AgentProfile, ConversationSessionMeta, RuntimeSessionData, SavedSessionData, SavedSubagent,
    SessionListData, SessionStatus, StreamEvent, StreamUsage, WorkspaceFile, reduce_to_stream,
};
pub use store::{MemoryStore, Store, StoreError, StoreErrorKind, TaskClaim, TurnRecord};
pub use time::{InvalidTimestamp, Millis, Timestamp};
pub use transcript::{
    Architecture, CombinedSubagent, CombinedTranscript, Malformed, OpenCodeFormat, OpenCodeOptions,
    Transcript, TranscriptError, parse_claude, parse_claude_stream, parse_opencode, parse_opencode_events,
    parse_transcript,
};
