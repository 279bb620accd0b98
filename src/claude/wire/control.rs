//! Requests and answers between Claude Code and its host.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};

use crate::{
    ids::{AgentId, RequestId, ToolUseId},
    json::{
        decode::object,
        tagged::{Fields, OneGo, Tagged},
    },
};

/// Something that Claude Code asks its host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct ControlRequest {
    /// The request; its answer names it.
    pub request_id: RequestId,
    /// What is asked.
    pub request: HostRequest,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HostRequest {
    /// Whether a tool may run; also the way in which the model asks the user (the tool `AskUserQuestion`).
    CanUseTool(Box<ToolPermission>),
    /// Something else.
    #[non_exhaustive]
    Unknown {
        /// Its subtype.
        kind: Box<str>,
        /// Its other fields.
        fields: Map<String, Value>,
    },
}

/// A tool that may not run without permission.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct ToolPermission {
    /// The tool.
    pub tool_name: String,
    /// The tool's name for people.
    #[serde(default)]
    pub display_name: Option<String>,
    /// Its arguments.
    #[serde(default)]
    pub input: Value,
    /// A few words on this call.
    #[serde(default)]
    pub description: Option<String>,
    /// The call.
    #[serde(default)]
    pub tool_use_id: Option<ToolUseId>,
    /// The subagent that wants to run it.
    #[serde(default)]
    pub agent_id: Option<AgentId>,
    /// Rules that would allow it and others like it; an answer may send them back.
    #[serde(default)]
    pub permission_suggestions: Vec<Value>,
    /// Whether only a person can answer.
    #[serde(default)]
    pub requires_user_interaction: Option<bool>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An answer to a request: to one of the host's, or the host's own, repeated.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct ControlResponse {
    /// The answer.
    #[serde(deserialize_with = "object")]
    pub response: ControlReply,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct ControlReply {
    /// `success` or `error`.
    #[serde(default)]
    pub subtype: String,
    /// The request.
    pub request_id: RequestId,
    /// What was asked for.
    #[serde(default)]
    pub response: Option<Value>,
    /// Why it was not done.
    #[serde(default)]
    pub error: Option<String>,
}

impl Tagged for HostRequest {
    const WHAT: &'static str = "control request";
    const HEAD: &'static [&'static str] = &["subtype"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        let fields = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "can_use_tool" => Self::CanUseTool(Deserialize::deserialize(fields)?),
            _ => Self::Unknown { kind: kind.into(), fields: Map::deserialize(fields)? },
        })
    }
}

impl<'de> Deserialize<'de> for HostRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        OneGo::deserialize(deserializer).map(|OneGo(request)| request)
    }
}
