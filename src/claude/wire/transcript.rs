//! The lines of transcripts, and what stands beside them.

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, value::MapAccessDeserializer},
};

use super::{ApiRetry, AssistantLine, CompactBoundary, Content, Informational, Unknown, UserLine};
use crate::{
    ids::{AgentId, MessageId, ToolUseId},
    json::{
        decode::{DecodeError, JsonPath, decode},
        tagged::{Fields, OneGo, Tagged},
    },
    time::Timestamp,
};

/// A line of a transcript.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TranscriptLine {
    /// A prompt, results of tools, or something that Claude Code tells the model.
    User(Box<UserLine>),
    /// A block of a message of the model.
    Assistant(Box<AssistantLine>),
    /// Something that Claude Code did.
    System(SystemLine),
    /// Something that goes with a prompt.
    Attachment(Box<Attachment>),
    /// What the session has cost, in dollars; written as its process ends.
    #[non_exhaustive]
    CostState {
        /// Its earlier processes included.
        total: f64,
    },
    /// A line of any other kind.
    Unknown(Unknown),
}

/// Something that Claude Code did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SystemLine {
    /// When.
    pub timestamp: Option<Timestamp>,
    /// Whether it belongs to a subagent.
    pub is_sidechain: bool,
    /// What it did.
    pub event: TranscriptEvent,
}

/// What Claude Code did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TranscriptEvent {
    /// A request to the provider failed and was sent again.
    ApiError(ApiRetry),
    /// What was said before is summarised in the user line that follows.
    CompactBoundary(CompactBoundary),
    /// A remark for people.
    Informational(Informational),
}

/// Something that goes with a prompt.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Attachment {
    /// When it was written.
    pub timestamp: Option<Timestamp>,
    /// A prompt that came while another was being answered; other attachments are not shown.
    pub queued: Option<QueuedCommand>,
}

/// A prompt that came while another was being answered.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct QueuedCommand {
    /// What it says.
    pub prompt: Content,
    /// The id it was sent with.
    #[serde(default)]
    pub source_uuid: Option<MessageId>,
}

/// What a subagent's meta file says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SubagentMeta {
    /// The call that started it.
    #[serde(default)]
    pub tool_use_id: Option<ToolUseId>,
    /// The subagent that started it, unless it was the main thread.
    #[serde(default)]
    pub parent_agent_id: Option<AgentId>,
}

impl TranscriptLine {
    /// Decodes a line.
    ///
    /// # Errors
    /// If it is not a JSON object with a type, or a line of a known kind is malformed.
    pub fn from_json(json: &str) -> Result<Self, DecodeError> {
        let mut line = Self::decode(JsonPath::Root, json)?;
        if let Self::Unknown(unknown) = &mut line {
            unknown.json = json.into();
        }
        Ok(line)
    }

    /// Decodes a line as it was read.
    ///
    /// # Errors
    /// As [`Self::from_json`], and if it is not UTF-8.
    pub fn from_bytes(line: &[u8]) -> Result<Self, DecodeError> {
        Self::from_json(super::text(Self::WHAT, line)?)
    }
}

impl SubagentMeta {
    /// Decodes a meta file.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn from_bytes(json: &[u8]) -> Result<Self, DecodeError> {
        decode("subagent's meta file", JsonPath::Root, super::text("subagent's meta file", json)?)
    }
}

impl Tagged for TranscriptLine {
    const WHAT: &'static str = "transcript line";
    const HEAD: &'static [&'static str] = &["type"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct Cost {
            #[serde(rename = "totalCostUSD")]
            total: f64,
        }
        let fields = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "user" => Self::User(Deserialize::deserialize(fields)?),
            "assistant" => Self::Assistant(Deserialize::deserialize(fields)?),
            "system" => match OneGo::deserialize(fields)? {
                OneGo(Ok(line)) => Self::System(line),
                OneGo(Err(unknown)) => Self::Unknown(unknown),
            },
            "attachment" => Self::Attachment(Deserialize::deserialize(fields)?),
            "cost-state" => Self::CostState { total: Cost::deserialize(fields)?.total },
            _ => {
                IgnoredAny::deserialize(fields)?;
                Self::Unknown(Unknown { kind: kind.into(), json: "".into() })
            }
        })
    }
}

/// What Claude Code did, if it is known.
impl Tagged for Result<SystemLine, Unknown> {
    const WHAT: &'static str = "system line";
    const HEAD: &'static [&'static str] = &["subtype"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        /// What lines of all kinds have, with what one of them has besides.
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Line {
            #[serde(default)]
            timestamp: Option<Timestamp>,
            #[serde(default)]
            is_sidechain: bool,
            #[serde(default)]
            uuid: Option<MessageId>,
            #[serde(default)]
            content: Option<String>,
            #[serde(default)]
            level: Option<std::sync::Arc<str>>,
            #[serde(default)]
            compact_metadata: super::CompactMetadata,
            #[serde(default)]
            retry_attempt: u32,
            #[serde(default)]
            max_retries: Option<u32>,
            #[serde(default, deserialize_with = "crate::json::number::count")]
            retry_in_ms: u64,
            #[serde(default)]
            error: Option<ApiError>,
        }
        #[derive(Deserialize)]
        struct ApiError {
            #[serde(default)]
            status: Option<u16>,
            #[serde(default)]
            formatted: Option<Box<str>>,
        }
        let fields = MapAccessDeserializer::new(fields);
        if !matches!(kind, "api_error" | "compact_boundary" | "informational") {
            IgnoredAny::deserialize(fields)?;
            return Ok(Err(Unknown { kind: format!("system/{kind}").into(), json: "".into() }));
        }
        let line = Line::deserialize(fields)?;
        let (error_status, error) =
            line.error.map(|error| (error.status, error.formatted)).unwrap_or_default();
        let event = match kind {
            "api_error" => TranscriptEvent::ApiError(ApiRetry {
                uuid: line.uuid,
                attempt: line.retry_attempt,
                max_retries: line.max_retries,
                retry_delay_ms: line.retry_in_ms,
                error_status,
                error,
            }),
            "compact_boundary" => TranscriptEvent::CompactBoundary(CompactBoundary {
                uuid: line.uuid,
                compact_metadata: line.compact_metadata,
            }),
            _ => TranscriptEvent::Informational(Informational {
                uuid: line.uuid,
                content: line.content.unwrap_or_default(),
                level: line.level,
            }),
        };
        Ok(Ok(SystemLine { timestamp: line.timestamp, is_sidechain: line.is_sidechain, event }))
    }
}

impl<'de> Deserialize<'de> for Attachment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Line {
            #[serde(default)]
            timestamp: Option<Timestamp>,
            attachment: OneGo<Attached>,
        }
        let Line { timestamp, attachment: OneGo(Attached(queued)) } = Line::deserialize(deserializer)?;
        Ok(Self { timestamp, queued })
    }
}

/// The prompt that is attached, if it is one.
struct Attached(Option<QueuedCommand>);

impl Tagged for Attached {
    const WHAT: &'static str = "attachment";
    const HEAD: &'static [&'static str] = &["type"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        let fields = MapAccessDeserializer::new(fields);
        if kind == "queued_command" {
            return Deserialize::deserialize(fields).map(Some).map(Self);
        }
        IgnoredAny::deserialize(fields)?;
        Ok(Self(None))
    }
}
