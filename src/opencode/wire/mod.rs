//! What the server says and hears, field for field.
//!
//! The types follow `OpenCode`'s JSON from 1.0 to 1.18 and keep what they do not know: an unknown event, part, role, status
//! or field is carried raw, so that a newer server never breaks an older client. A *known* thing that is malformed is a
//! [`DecodeError`] that names the JSON path, and one bad element of a list does not sink the others ([`Decoded`]).
//!
//! Objects told apart by a tag (`type`, `role`) are decoded by hand. Serde's own untagged fallback would report a malformed
//! known part only as "did not match any variant".

mod environment;
mod event;
mod export;
mod extra;
mod message;
mod part;
mod request;
mod session;

pub use environment::{EnvironmentEvent, FileDiff, Terminal, Todo};
#[cfg(feature = "client")]
pub(crate) use event::scan_head;
pub use event::{
    EventPayload, PartDelta, PermissionReply, PermissionRequest, Question, QuestionOption, QuestionRequest,
    ServerEvent, ToolReference,
};
pub use export::SessionExport;
pub use extra::Extra;
pub use message::{
    AssistantMessage, Message, MessageError, MessageInfo, MessageTime, TokenCache, Tokens, UnknownMessage,
    UserMessage,
};
pub use part::{
    AgentPart, CompactionPart, FilePart, Part, PartBody, PartTime, PatchPart, ReasoningPart, RetryPart,
    SnapshotPart, StepFinishPart, StepStartPart, SubtaskPart, TextPart, ToolPart, ToolState, ToolStatus,
    ToolTime, UnknownPart,
};
pub use request::{
    CreateSession, PermissionAction, PermissionRule, PromptPart, PromptRequest, UpdateSession,
};
pub use session::{
    ConfigInfo, Health, ModelInfo, ProviderInfo, ProviderList, SessionInfo, SessionModel, SessionStatus,
    SessionTime, StatusMap,
};

#[cfg(feature = "client")]
pub(crate) use crate::json::from_json;
pub use crate::{
    agent::{ModelRef, QuestionAnswer},
    json::{DecodeError, Decoded},
};
