//! What Claude Code says on standard output, and what it writes to its transcripts, line for line.
//!
//! The types follow 2.1.325 and read what older versions wrote. A line of a kind that is not known is kept as it came; a *known*
//! line that is malformed is a [`DecodeError`] that names the JSON path. Fields that nothing here needs are not read: who keeps the
//! lines keeps them.

mod control;
mod delta;
mod message;
mod stream;
mod system;
#[cfg(test)]
mod tests;
mod transcript;

pub use self::{
    control::{ControlReply, ControlRequest, ControlResponse, HostRequest, ToolPermission},
    message::{
        ApiUsage, AssistantBody, AssistantLine, Content, ContentBlock, MediaSource, Origin, OutputDetails,
        UserBody, UserLine,
    },
    stream::{
        CommandLifecycle, Delta, LifecycleState, PartialEvent, PartialMessage, StreamMessage, TurnResult,
    },
    system::{
        ApiRetry, BackgroundTask, CompactBoundary, CompactMetadata, Informational, PermissionDenied,
        SessionInit, SessionState, SystemMessage, TaskNotification, TaskStarted, TaskUsage,
    },
    transcript::{Attachment, QueuedCommand, SubagentMeta, SystemLine, TranscriptEvent, TranscriptLine},
};
pub use crate::json::DecodeError;

use crate::json::decode::JsonPath;

/// A line, or a part of one, of a kind that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unknown {
    /// Its `type`, with its `subtype` after a slash where that is what is not known.
    pub kind: Box<str>,
    /// Its JSON as it came.
    pub json: Box<str>,
}

/// A line as text.
fn text<'a>(what: &'static str, line: &'a [u8]) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(line).map_err(|error| {
        let good = String::from_utf8_lossy(&line[..error.valid_up_to()]);
        DecodeError::custom(what, JsonPath::Root, &good, "it is not UTF-8")
    })
}
