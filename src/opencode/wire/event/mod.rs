//! Events: what the server says while it works.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{
    EnvironmentEvent, Extra, MessageError, MessageInfo, Part, QuestionAnswer, SessionInfo, SessionStatus,
    extra::wire_struct,
};
use crate::ids::{CallId, MessageId, PartId, RequestId, SessionId};

mod decode;

#[cfg(feature = "client")]
pub(crate) use decode::scan_head;

/// One event of the server's stream.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ServerEvent {
    /// The event's id (since 1.14); not sorted, so not a cursor.
    pub id: Option<String>,
    /// The directory it concerns, on the global stream.
    pub directory: Option<String>,
    /// What happened.
    pub payload: EventPayload,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EventPayload {
    /// A message was created or changed.
    MessageUpdated(MessageInfo),
    /// A message was removed.
    MessageRemoved {
        /// The session it belonged to.
        session_id: SessionId,
        /// The message that is gone.
        message_id: MessageId,
    },
    /// A part was created or changed.
    PartUpdated {
        /// The part as it is now.
        part: Part,
        /// What was added to its text, from servers before 1.2; the part already has it.
        delta: Option<String>,
    },
    /// Text was added to a part.
    PartDelta(PartDelta),
    /// A part was removed.
    PartRemoved {
        /// The session it belonged to.
        session_id: SessionId,
        /// The message it belonged to.
        message_id: MessageId,
        /// The part that is gone.
        part_id: PartId,
    },
    /// A session was created.
    SessionCreated(SessionInfo),
    /// A session changed.
    SessionUpdated(SessionInfo),
    /// A session was deleted.
    SessionDeleted(SessionInfo),
    /// A session started, stopped, or waits to try again.
    SessionStatus {
        /// The session whose status it is.
        session_id: SessionId,
        /// What it is doing.
        status: SessionStatus,
    },
    /// A session stopped; sent twice after errors and aborts.
    SessionIdle {
        /// The session that stopped.
        session_id: SessionId,
    },
    /// Something went wrong, which need not be the end of the turn.
    SessionError {
        /// The session, if it concerns one.
        session_id: Option<SessionId>,
        /// What went wrong.
        error: Option<MessageError>,
    },
    /// A session's history was summarised.
    SessionCompacted {
        /// The session whose history it was.
        session_id: SessionId,
    },
    /// A tool needs permission.
    PermissionAsked(PermissionRequest),
    /// A permission request was answered.
    PermissionReplied {
        /// The session that asked.
        session_id: SessionId,
        /// The request that is closed.
        request_id: RequestId,
        /// The answer; nothing if it is one that this version does not know.
        reply: Option<PermissionReply>,
    },
    /// The model asks the user.
    QuestionAsked(QuestionRequest),
    /// A question was answered or dismissed.
    QuestionClosed {
        /// The session that asked.
        session_id: SessionId,
        /// The request that is closed.
        request_id: RequestId,
        /// The answers, in the order of the questions; nothing if it was dismissed.
        answers: Option<Vec<QuestionAnswer>>,
    },
    /// The stream is open: what happens from now on will be seen.
    ServerConnected,
    /// The stream is alive.
    ServerHeartbeat,
    /// The server gave up a directory's state; its turns were aborted and its stream ends.
    InstanceDisposed {
        /// The directory whose state is gone.
        directory: String,
    },
    /// Something happened around the sessions.
    Environment(EnvironmentEvent),
    /// An event that this version does not know.
    Unknown {
        /// The type the server gave it.
        kind: String,
        /// Its properties.
        properties: Value,
    },
}

/// Text added to a part.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct PartDelta {
    /// The session that the part is in.
    #[serde(rename = "sessionID")]
    pub session_id: SessionId,
    /// The message that the part is in.
    #[serde(rename = "messageID")]
    pub message_id: MessageId,
    /// The part that grows.
    #[serde(rename = "partID")]
    pub part_id: PartId,
    /// Which of the part's fields grows; `text` so far.
    #[serde(default)]
    pub field: Cow<'static, str>,
    /// What is added.
    pub delta: String,
}

impl PartDelta {
    /// Text added to a part.
    pub fn new(
        session_id: SessionId,
        message_id: MessageId,
        part_id: PartId,
        delta: impl Into<String>,
    ) -> Self {
        Self { session_id, message_id, part_id, field: "text".into(), delta: delta.into() }
    }
}

wire_struct! {
    /// A tool that needs permission.
    PermissionRequest {
        /// What an answer names it by.
        id: RequestId,
        /// The session that asks, which may be a subagent's.
        session_id as "sessionID": SessionId,
        /// What for, such as `bash`.
        permission as "permission" | "type": String = default,
        /// For which commands, files or addresses.
        #[serde(deserialize_with = "one_or_many")]
        patterns as "patterns" | "pattern": Vec<String> = default,
        /// What answering "always" would allow.
        always: Vec<String> = default,
        /// The tool's details.
        metadata: Extra = default,
        /// The call that asks.
        tool?: ToolReference,
    }

    /// The model's questions to the user.
    QuestionRequest {
        /// What an answer names it by.
        id: RequestId,
        /// The session that asks, which may be a subagent's.
        session_id as "sessionID": SessionId,
        /// The questions.
        questions: Vec<Question> = default,
        /// The call that asks.
        tool?: ToolReference,
    }

    /// One question.
    Question {
        /// The question in full.
        question: String = default,
        /// In a word or two.
        header: String = default,
        /// The answers to choose from.
        options: Vec<QuestionOption> = default,
    }

    /// An answer to choose.
    QuestionOption {
        /// The words that stand for the answer.
        label: String = default,
        /// What it means.
        description: String = default,
    }

    /// A tool call.
    ToolReference {
        /// The message it is in.
        message_id as "messageID": MessageId,
        /// The provider's name of the call.
        call_id as "callID": CallId,
    }
}

/// An answer to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PermissionReply {
    /// This call may run.
    Once,
    /// This call and all like it may run, in all sessions of the directory, until the server forgets.
    Always,
    /// It may not. Without a message the turn ends; with one the model reads it and goes on.
    Reject,
}

impl ServerEvent {
    /// An event that says this, without an id.
    pub fn new(payload: EventPayload) -> Self {
        Self { id: None, directory: None, payload }
    }
}

impl<'a> From<&'a ServerEvent> for Cow<'a, ServerEvent> {
    fn from(event: &'a ServerEvent) -> Self {
        Self::Borrowed(event)
    }
}

impl From<ServerEvent> for Cow<'_, ServerEvent> {
    fn from(event: ServerEvent) -> Self {
        Self::Owned(event)
    }
}

impl EventPayload {
    /// A session that it shows to be the child of another, after that one.
    #[cfg(feature = "client")]
    pub(crate) fn child(&self) -> Option<(&SessionId, SessionId)> {
        match self {
            Self::SessionCreated(info) | Self::SessionUpdated(info) | Self::SessionDeleted(info) => {
                Some((info.parent_id.as_ref()?, info.id.clone()))
            }
            Self::PartUpdated {
                part: Part { session_id, body: super::PartBody::Tool(tool), .. }, ..
            } => Some((session_id, tool.child_session()?)),
            _ => None,
        }
    }

    /// The session it concerns.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            Self::MessageUpdated(info) => Some(info.session_id()),
            Self::PartUpdated { part, .. } => Some(&part.session_id),
            Self::PartDelta(delta) => Some(&delta.session_id),
            Self::SessionCreated(info) | Self::SessionUpdated(info) | Self::SessionDeleted(info) => {
                Some(&info.id)
            }
            Self::PermissionAsked(request) => Some(&request.session_id),
            Self::QuestionAsked(request) => Some(&request.session_id),
            Self::SessionError { session_id, .. } => session_id.as_ref(),
            Self::Environment(event) => event.session_id(),
            Self::MessageRemoved { session_id, .. }
            | Self::PartRemoved { session_id, .. }
            | Self::SessionStatus { session_id, .. }
            | Self::SessionIdle { session_id }
            | Self::SessionCompacted { session_id }
            | Self::PermissionReplied { session_id, .. }
            | Self::QuestionClosed { session_id, .. } => Some(session_id),
            Self::ServerConnected
            | Self::ServerHeartbeat
            | Self::InstanceDisposed { .. }
            | Self::Unknown { .. } => None,
        }
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Option::deserialize(deserializer)? {
        Some(OneOrMany::One(pattern)) => vec![pattern],
        Some(OneOrMany::Many(patterns)) => patterns,
        None => Vec::new(),
    })
}
