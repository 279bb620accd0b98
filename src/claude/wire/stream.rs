//! The lines of standard output.

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, MapAccess, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{
    ApiUsage, AssistantLine, ContentBlock, ControlRequest, ControlResponse, SystemMessage, Unknown, UserLine,
    message::AssistantBody,
};
use crate::{
    ids::{MessageId, RequestId, SessionId, ToolUseId},
    json::{
        decode::{DecodeError, JsonPath, object},
        tagged::{Fields, OneGo, Tagged},
    },
};

/// A line of standard output.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum StreamMessage {
    /// A prompt, results of tools, or something that Claude Code tells the model.
    User(Box<UserLine>),
    /// A block of a message of the model.
    Assistant(Box<AssistantLine>),
    /// A piece of a message of the model, while it is written.
    Partial(PartialMessage),
    /// A turn is over.
    Result(Box<TurnResult>),
    /// What Claude Code says about itself.
    System(SystemMessage),
    /// What became of a prompt.
    CommandLifecycle(CommandLifecycle),
    /// Something that the host is asked.
    ControlRequest(ControlRequest),
    /// An answer to a request.
    ControlResponse(ControlResponse),
    /// A request need not be answered any more.
    #[non_exhaustive]
    ControlCancelRequest {
        /// The request.
        request_id: RequestId,
    },
    /// A line of a kind that is not known.
    Unknown(Unknown),
}

/// A piece of a message of the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PartialMessage {
    /// What happened.
    pub event: PartialEvent,
    /// The call whose subagent's message it is; so far only the main thread's are told in pieces.
    pub parent_tool_use_id: Option<ToolUseId>,
}

/// What happened to a message while it is written.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum PartialEvent {
    /// A message begins.
    MessageStart(AssistantBody),
    /// A block of it begins.
    #[non_exhaustive]
    BlockStart {
        /// Which one, from 0.
        index: u32,
        /// The block, still without content.
        block: ContentBlock,
    },
    /// A block grows.
    #[non_exhaustive]
    BlockDelta {
        /// Which one, from 0.
        index: u32,
        /// By what.
        delta: Delta,
    },
    /// A block is complete.
    #[non_exhaustive]
    BlockStop {
        /// Which one, from 0.
        index: u32,
    },
    /// More is known about the message.
    #[non_exhaustive]
    MessageDelta {
        /// What it used.
        usage: ApiUsage,
        /// Why it ended.
        stop_reason: Option<Box<str>>,
    },
    /// The message is complete.
    MessageStop,
    /// Something that is not known, or a sign of life.
    #[non_exhaustive]
    Unknown {
        /// Its type.
        kind: Box<str>,
    },
}

/// What a block grows by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delta {
    /// Text.
    Text(String),
    /// Thinking.
    Thinking(String),
    /// A piece of a call's arguments in JSON.
    InputJson(String),
    /// Something else, such as a signature.
    #[non_exhaustive]
    Unknown {
        /// Its type.
        kind: Box<str>,
    },
}

/// A turn is over.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct TurnResult {
    /// Its id.
    #[serde(default)]
    pub uuid: Option<MessageId>,
    /// `success`, `error_during_execution`, `error_max_turns`, `error_max_budget_usd` …
    #[serde(default)]
    pub subtype: String,
    /// Whether it failed; with `success` too, if the provider's last answer was an error.
    #[serde(default)]
    pub is_error: bool,
    /// Why it ended: `completed`, `api_error`, `aborted_streaming`, `aborted_tools` …
    #[serde(default)]
    pub terminal_reason: Option<String>,
    /// The last text.
    #[serde(default)]
    pub result: Option<String>,
    /// What went wrong.
    #[serde(default)]
    pub errors: Vec<Value>,
    /// The prompt that it answers; none for a turn that Claude Code began by itself.
    #[serde(default)]
    pub user_message_uuid: Option<MessageId>,
    /// All prompts that it answers.
    #[serde(default)]
    pub user_message_uuids: Vec<MessageId>,
    /// The session.
    #[serde(default)]
    pub session_id: SessionId,
    /// What the session has cost so far, in dollars; its earlier processes included.
    #[serde(default)]
    pub total_cost_usd: Option<f64>,
    /// What the turn used.
    #[serde(default)]
    pub usage: Option<ApiUsage>,
    /// How often the model was asked.
    #[serde(default, deserialize_with = "crate::json::number::count")]
    pub num_turns: u64,
    /// How long it took.
    #[serde(default, deserialize_with = "crate::json::number::count")]
    pub duration_ms: u64,
    /// The HTTP status of the provider's last answer, if that was an error.
    #[serde(default)]
    pub api_error_status: Option<u16>,
    /// Why the last message ended.
    #[serde(default)]
    pub stop_reason: Option<String>,
    /// Tools that were not allowed to run.
    #[serde(default)]
    pub permission_denials: Vec<Value>,
}

/// What became of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct CommandLifecycle {
    /// The prompt.
    pub command_uuid: MessageId,
    /// What became of it.
    pub state: LifecycleState,
}

/// What became of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LifecycleState {
    /// It waits.
    Queued,
    /// It is being answered.
    Started,
    /// It was answered, or had been before.
    Completed,
    /// It will not be answered.
    Cancelled,
    /// Something that is not known.
    #[serde(untagged)]
    Unknown(String),
}

impl StreamMessage {
    /// Decodes a line.
    ///
    /// # Errors
    /// If it is not a JSON object with a type, or a line of a known kind is malformed.
    pub fn from_json(json: &str) -> Result<Self, DecodeError> {
        if let Some(delta) = super::delta::decode(json) {
            return Ok(delta);
        }
        let mut line = Self::decode(JsonPath::Root, json)?;
        if let Self::Unknown(unknown) | Self::System(SystemMessage::Unknown(unknown)) = &mut line {
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

impl Tagged for StreamMessage {
    const WHAT: &'static str = "stream line";
    const HEAD: &'static [&'static str] = &["type"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct Cancelled {
            request_id: RequestId,
        }
        let fields = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "user" => Self::User(Deserialize::deserialize(fields)?),
            "assistant" => Self::Assistant(Deserialize::deserialize(fields)?),
            "stream_event" => Self::Partial(Deserialize::deserialize(fields)?),
            "result" => Self::Result(Deserialize::deserialize(fields)?),
            "system" => Self::System(OneGo::deserialize(fields)?.0),
            "command_lifecycle" => Self::CommandLifecycle(Deserialize::deserialize(fields)?),
            "control_request" => Self::ControlRequest(Deserialize::deserialize(fields)?),
            "control_response" => Self::ControlResponse(Deserialize::deserialize(fields)?),
            "control_cancel_request" => {
                Self::ControlCancelRequest { request_id: Cancelled::deserialize(fields)?.request_id }
            }
            _ => {
                IgnoredAny::deserialize(fields)?;
                Self::Unknown(Unknown { kind: kind.into(), json: "".into() })
            }
        })
    }
}

impl<'de> Deserialize<'de> for PartialMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Line {
            event: OneGo<PartialEvent>,
            #[serde(default)]
            parent_tool_use_id: Option<ToolUseId>,
        }
        let Line { event: OneGo(event), parent_tool_use_id } = Line::deserialize(deserializer)?;
        Ok(Self { event, parent_tool_use_id })
    }
}

impl Tagged for PartialEvent {
    const WHAT: &'static str = "stream event";
    const HEAD: &'static [&'static str] = &["type"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct Start {
            #[serde(deserialize_with = "object")]
            message: AssistantBody,
        }
        #[derive(Deserialize)]
        struct Block {
            index: u32,
            content_block: ContentBlock,
        }
        #[derive(Deserialize)]
        struct Grown {
            index: u32,
            delta: OneGo<Delta>,
        }
        #[derive(Deserialize)]
        struct Index {
            index: u32,
        }
        #[derive(Deserialize)]
        struct Message {
            #[serde(default)]
            usage: ApiUsage,
            #[serde(default)]
            delta: Stop,
        }
        #[derive(Default, Deserialize)]
        struct Stop {
            #[serde(default)]
            stop_reason: Option<Box<str>>,
        }
        let fields = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "message_start" => Self::MessageStart(Start::deserialize(fields)?.message),
            "content_block_start" => {
                let Block { index, content_block } = Block::deserialize(fields)?;
                Self::BlockStart { index, block: content_block }
            }
            "content_block_delta" => {
                let Grown { index, delta: OneGo(delta) } = Grown::deserialize(fields)?;
                Self::BlockDelta { index, delta }
            }
            "content_block_stop" => Self::BlockStop { index: Index::deserialize(fields)?.index },
            "message_delta" => {
                let Message { usage, delta } = Message::deserialize(fields)?;
                Self::MessageDelta { usage, stop_reason: delta.stop_reason }
            }
            "message_stop" => {
                IgnoredAny::deserialize(fields)?;
                Self::MessageStop
            }
            _ => {
                IgnoredAny::deserialize(fields)?;
                Self::Unknown { kind: kind.into() }
            }
        })
    }
}

impl Tagged for Delta {
    const WHAT: &'static str = "delta";
    const HEAD: &'static [&'static str] = &["type"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct Text {
            text: String,
        }
        #[derive(Deserialize)]
        struct Thinking {
            thinking: String,
        }
        #[derive(Deserialize)]
        struct Json {
            partial_json: String,
        }
        let fields = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "text_delta" => Self::Text(Text::deserialize(fields)?.text),
            "thinking_delta" => Self::Thinking(Thinking::deserialize(fields)?.thinking),
            "input_json_delta" => Self::InputJson(Json::deserialize(fields)?.partial_json),
            _ => {
                IgnoredAny::deserialize(fields)?;
                Self::Unknown { kind: kind.into() }
            }
        })
    }
}
