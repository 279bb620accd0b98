//! Prompts, results of tools and messages of the model: the same lines in the stream and in transcripts.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, value::MapAccessDeserializer},
};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    ids::{AgentId, MessageId, ToolUseId},
    json::{
        decode::object,
        tagged::{Fields, OneGo, Tagged},
    },
    time::Timestamp,
};

/// A line of the user's side: a prompt, results of tools, or something that Claude Code tells the model.
#[expect(clippy::struct_excessive_bools, reason = "they are in the JSON, each with a name")]
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct UserLine {
    /// Its id; of a prompt the one that it was sent with.
    #[serde(default)]
    pub uuid: Option<MessageId>,
    /// When it was written; a replay without one only confirms a prompt that is known.
    #[serde(default)]
    pub timestamp: Option<Timestamp>,
    /// What it says.
    #[serde(deserialize_with = "object")]
    pub message: UserBody,
    /// Streamed: the call whose subagent's line it is.
    #[serde(default)]
    pub parent_tool_use_id: Option<ToolUseId>,
    /// The subagent whose line it is.
    #[serde(default, alias = "agentId")]
    pub agent_id: Option<AgentId>,
    /// Streamed: it repeats what was sent.
    #[serde(default, rename = "isReplay")]
    pub is_replay: bool,
    /// Streamed: Claude Code wrote it, for the model.
    #[serde(default, rename = "isSynthetic")]
    pub is_synthetic: bool,
    /// On disk: Claude Code wrote it, for the model.
    #[serde(default, rename = "isMeta")]
    pub is_meta: bool,
    /// On disk: it summarises what was before it.
    #[serde(default, rename = "isCompactSummary")]
    pub is_compact_summary: bool,
    /// On disk: it belongs to a subagent.
    #[serde(default, rename = "isSidechain")]
    pub is_sidechain: bool,
    /// On disk: the line before it.
    #[serde(default, rename = "parentUuid")]
    pub parent_uuid: Option<MessageId>,
    /// On disk: who wrote it, unless it was the user.
    #[serde(default)]
    pub origin: Option<Origin>,
    /// What the tool returned, before it was made a text for the model; of any shape.
    #[serde(default, alias = "toolUseResult")]
    pub tool_use_result: Option<Box<RawValue>>,
}

/// What a line of the user's side says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct UserBody {
    /// Text, images and results of tools.
    pub content: Content,
}

/// Who wrote a line, unless it was the user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Origin {
    /// Such as `task-notification`.
    #[serde(default)]
    pub kind: String,
    /// Which run of a task it tells of.
    #[serde(default, rename = "runId")]
    pub run_id: Option<String>,
}

/// A line of the model's side: mostly one block of a message.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct AssistantLine {
    /// Its id.
    #[serde(default)]
    pub uuid: Option<MessageId>,
    /// When it was written; streams before 2.1.3 have none.
    #[serde(default)]
    pub timestamp: Option<Timestamp>,
    /// The message it is of.
    #[serde(deserialize_with = "object")]
    pub message: AssistantBody,
    /// Streamed: the call whose subagent's line it is.
    #[serde(default)]
    pub parent_tool_use_id: Option<ToolUseId>,
    /// The subagent whose line it is.
    #[serde(default, alias = "agentId")]
    pub agent_id: Option<AgentId>,
    /// On disk: it belongs to a subagent.
    #[serde(default, rename = "isSidechain")]
    pub is_sidechain: bool,
    /// On disk: the line before it.
    #[serde(default, rename = "parentUuid")]
    pub parent_uuid: Option<MessageId>,
    /// On disk: which of the message's blocks it is.
    #[serde(default, rename = "apiBlockIndex")]
    pub api_block_index: Option<u32>,
    /// On disk: it is no message, but what the provider answered instead of one.
    #[serde(default, rename = "isApiErrorMessage", alias = "is_api_error_message")]
    pub is_api_error: bool,
    /// What went wrong, in a word.
    #[serde(default, deserialize_with = "word")]
    pub error: Option<Box<str>>,
}

impl AssistantLine {
    /// Whether it tells of an error instead of what the model said.
    pub fn is_error(&self) -> bool {
        self.is_api_error || self.error.is_some()
    }

    /// Whether Claude Code wrote it, and not a model.
    pub fn is_synthetic(&self) -> bool {
        self.message.model.as_deref() == Some("<synthetic>")
    }
}

/// A message of the model, or a block of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct AssistantBody {
    /// The message's id; lines of one message share it.
    pub id: MessageId,
    /// The model; `<synthetic>` if Claude Code wrote it.
    #[serde(default)]
    pub model: Option<Arc<str>>,
    /// Its blocks, or one of them.
    #[serde(default, deserialize_with = "blocks")]
    pub content: Vec<ContentBlock>,
    /// What it used: streamed, as far as was known when the message began.
    #[serde(default)]
    pub usage: Option<ApiUsage>,
    /// Why it ended: only in transcripts.
    #[serde(default)]
    pub stop_reason: Option<Box<str>>,
}

/// What a message used. What is absent is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ApiUsage {
    /// Tokens read, without cached ones.
    #[serde(default)]
    pub input_tokens: Option<u64>,
    /// Tokens written, thought ones included.
    #[serde(default)]
    pub output_tokens: Option<u64>,
    /// Tokens written to the cache.
    #[serde(default)]
    pub cache_creation_input_tokens: Option<u64>,
    /// Tokens read from the cache.
    #[serde(default)]
    pub cache_read_input_tokens: Option<u64>,
    /// Kinds of tokens written.
    #[serde(default)]
    pub output_tokens_details: Option<OutputDetails>,
}

/// Kinds of tokens written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[non_exhaustive]
pub struct OutputDetails {
    /// Tokens thought.
    #[serde(default)]
    pub thinking_tokens: Option<u64>,
}

/// What a message contains.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Content {
    /// A text.
    Text(String),
    /// Blocks.
    Blocks(Vec<ContentBlock>),
}

impl Default for Content {
    /// Nothing.
    fn default() -> Self {
        Self::Blocks(Vec::new())
    }
}

impl Content {
    /// Its blocks; none if it is a text.
    pub fn blocks(&self) -> &[ContentBlock] {
        match self {
            Self::Text(_) => &[],
            Self::Blocks(blocks) => blocks,
        }
    }

    /// Its texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let alone = match self {
            Self::Text(text) => Some(text.as_str()),
            Self::Blocks(_) => None,
        };
        let inside = self.blocks().iter().filter_map(|block| match block {
            ContentBlock::Text { text } => Some(text.as_str()),
            _ => None,
        });
        alone.into_iter().chain(inside)
    }
}

/// A block of a message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ContentBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// The model's thinking.
    #[non_exhaustive]
    Thinking {
        /// The text.
        thinking: String,
    },
    /// Thinking that the provider does not show.
    RedactedThinking,
    /// A tool call.
    #[non_exhaustive]
    ToolUse {
        /// The call.
        id: ToolUseId,
        /// The tool.
        name: Arc<str>,
        /// Its arguments.
        input: Arc<Value>,
    },
    /// What a tool call gave.
    #[non_exhaustive]
    ToolResult {
        /// The call.
        tool_use_id: ToolUseId,
        /// What it returned, or why it failed.
        content: Content,
        /// Whether it failed.
        is_error: bool,
    },
    /// An image.
    Image(MediaSource),
    /// A document.
    Document(MediaSource),
    /// A block that is not known.
    #[non_exhaustive]
    Unknown {
        /// Its type.
        kind: Box<str>,
        /// Its other fields.
        fields: Map<String, Value>,
    },
}

/// Where an image or a document is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct MediaSource {
    /// Its media type.
    #[serde(default)]
    pub media_type: Option<Arc<str>>,
    /// Its bytes in base64.
    #[serde(default)]
    pub data: Option<String>,
    /// Where it is.
    #[serde(default)]
    pub url: Option<Arc<str>>,
}

impl Tagged for ContentBlock {
    const WHAT: &'static str = "content block";
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
        struct Use {
            id: ToolUseId,
            name: Arc<str>,
            #[serde(default)]
            input: Arc<Value>,
        }
        #[derive(Deserialize)]
        struct Gave {
            tool_use_id: ToolUseId,
            #[serde(default, deserialize_with = "content_or_nothing")]
            content: Content,
            #[serde(default)]
            is_error: Option<bool>,
        }
        #[derive(Deserialize)]
        struct Media {
            #[serde(default)]
            source: MediaSource,
        }
        let fields = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "text" => Self::Text { text: Text::deserialize(fields)?.text },
            "thinking" => Self::Thinking { thinking: Thinking::deserialize(fields)?.thinking },
            "redacted_thinking" => {
                de::IgnoredAny::deserialize(fields)?;
                Self::RedactedThinking
            }
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let Use { id, name, input } = Use::deserialize(fields)?;
                Self::ToolUse { id, name, input }
            }
            "tool_result" => {
                let Gave { tool_use_id, content, is_error } = Gave::deserialize(fields)?;
                Self::ToolResult { tool_use_id, content, is_error: is_error.unwrap_or(false) }
            }
            "image" => Self::Image(Media::deserialize(fields)?.source),
            "document" => Self::Document(Media::deserialize(fields)?.source),
            _ => Self::Unknown { kind: kind.into(), fields: Map::deserialize(fields)? },
        })
    }
}

impl<'de> Deserialize<'de> for ContentBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        OneGo::deserialize(deserializer).map(|OneGo(block)| block)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or blocks")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut blocks = Vec::with_capacity(1);
                while let Some(block) = list.next_element()? {
                    blocks.push(block);
                }
                Ok(Content::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Blocks; a text alone is one.
fn blocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ContentBlock>, D::Error> {
    Ok(match Content::deserialize(deserializer)? {
        Content::Text(text) => vec![ContentBlock::Text { text }],
        Content::Blocks(blocks) => blocks,
    })
}

fn content_or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A word; anything else that is there is told as a word too.
fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<str>>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => None,
        Value::String(word) => Some(word.into()),
        _ => Some("unknown".into()),
    })
}
