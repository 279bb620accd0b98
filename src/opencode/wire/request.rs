//! What the client says to the server.

use serde::{Deserialize, Serialize};

use super::{Extra, ModelRef};
use crate::ids::{MessageId, PartId, SessionId};

/// A prompt.
///
/// There is no `tools` and no `format` here on purpose: the first replaces the session's whole permission ruleset, the second
/// makes the session's messages unreadable.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PromptRequest {
    /// The user message's id, chosen by the client, so that the same prompt can be sent again without running twice.
    #[serde(rename = "messageID")]
    pub message_id: MessageId,
    /// What is asked.
    pub parts: Vec<PromptPart>,
    /// The model; the server remembers the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRef>,
    /// The agent that is to answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Added to the system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The model's variant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl PromptRequest {
    /// A prompt of these parts.
    pub fn new(message_id: MessageId, parts: Vec<PromptPart>) -> Self {
        Self { message_id, parts, model: None, agent: None, system: None, variant: None }
    }
}

/// A part of a prompt, with an id chosen by the client: sent again under the same id it is replaced, not doubled.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum PromptPart {
    /// Text of the user.
    Text {
        /// The part's id.
        id: PartId,
        /// What the user says.
        text: String,
    },
    /// An attachment.
    #[non_exhaustive]
    File {
        /// The part's id.
        id: PartId,
        /// Its media type.
        mime: String,
        /// Its name.
        #[serde(skip_serializing_if = "Option::is_none")]
        filename: Option<String>,
        /// A `file:` or `data:` URL.
        url: String,
    },
    /// A mention of an agent.
    #[non_exhaustive]
    Agent {
        /// The part's id.
        id: PartId,
        /// The agent that is mentioned.
        name: String,
    },
}

/// A session to be made.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CreateSession {
    /// The session whose child it becomes.
    #[serde(rename = "parentID", skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SessionId>,
    /// Its title; without one the server asks a model for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What the client wants to find it by.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub metadata: Extra,
    /// What its tools may do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permission: Vec<PermissionRule>,
}

/// A change to a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UpdateSession {
    /// Its new title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its new metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Extra>,
}

/// What a tool may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PermissionRule {
    /// The permission, such as `bash`; `*` for all.
    pub permission: String,
    /// What it is asked for, such as `git *`.
    pub pattern: String,
    /// What to do then.
    pub action: PermissionAction,
}

impl PermissionRule {
    /// A rule.
    pub fn new(permission: impl Into<String>, pattern: impl Into<String>, action: PermissionAction) -> Self {
        Self { permission: permission.into(), pattern: pattern.into(), action }
    }
}

/// What a permission rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PermissionAction {
    /// The tool runs.
    Allow,
    /// The tool fails.
    Deny,
    /// The server asks its clients.
    Ask,
}
