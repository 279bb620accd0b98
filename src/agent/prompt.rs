//! A prompt: what is asked, and what becomes of it before it is sent.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use super::Delivery;
use crate::{
    error::InvalidInput,
    ids::{MessageId, SessionId},
    time::Timestamp,
};

/// What is asked of a session, with everything loaded and checked.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct PromptSpec {
    /// What is asked, in order.
    pub parts: Vec<PromptPart>,
    /// The id that the prompt's message must have; by default the agent makes one.
    pub message_id: Option<MessageId>,
    /// The model that was asked for.
    pub model: Option<ModelRef>,
    /// The model to use if none was asked for and the session has none of its own.
    pub default_model: Option<ModelRef>,
    /// The agent (a set of instructions and tools) that was asked for.
    pub agent: Option<String>,
    /// The agent to use if none was asked for and the session has none of its own.
    pub default_agent: Option<String>,
    /// Text to add to the system prompt.
    pub system: Option<String>,
    /// The model's variant, such as an effort.
    pub variant: Option<String>,
}

/// A part of a prompt.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptPart {
    /// Text of the user.
    Text(String),
    /// An attachment.
    #[non_exhaustive]
    File {
        /// Its name.
        name: Option<String>,
        /// Its media type, such as `image/png`.
        media_type: String,
        /// Its content.
        bytes: Arc<[u8]>,
    },
    /// A mention of an agent, as `@name` in a terminal is.
    Mention(String),
}

/// A prompt that can be sent, and sent again: all ids are made, and the request is fixed to the byte.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PreparedPrompt {
    /// The session it is for.
    pub session_id: SessionId,
    /// The message that it becomes.
    pub message_id: MessageId,
    /// Its text.
    pub text: String,
    /// When it was prepared.
    pub prepared_at: Timestamp,
    /// The request, in the agent's own form.
    pub request: String,
}

/// How far a prompt got, as recorded before the effect that the phase names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Phase {
    /// Its ids are made; it was not sent.
    Prepared,
    /// It may have been sent.
    Submitted,
    /// The agent has it.
    Accepted,
    /// The model was called.
    Started,
    /// It is over.
    Finished,
}

/// A model, as `provider/model`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelRef {
    /// The provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// The model, as its provider names it.
    #[serde(rename = "modelID")]
    pub model_id: String,
}

impl PromptSpec {
    /// Its text, without attachments and mentions.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            PromptPart::Text(text) => Some(text.as_str()),
            PromptPart::File { .. } | PromptPart::Mention(_) => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

impl PreparedPrompt {
    /// A prompt that becomes the message `message_id` of a session.
    pub fn new(
        session_id: SessionId,
        message_id: MessageId,
        text: impl Into<String>,
        prepared_at: Timestamp,
        request: impl Into<String>,
    ) -> Self {
        Self { session_id, message_id, text: text.into(), prepared_at, request: request.into() }
    }
}

impl Phase {
    /// What is known about a prompt that got this far.
    pub fn delivery(self) -> Delivery {
        match self {
            Self::Prepared => Delivery::NotSent,
            Self::Submitted => Delivery::Unknown,
            Self::Accepted => Delivery::Accepted,
            Self::Started | Self::Finished => Delivery::Started,
        }
    }
}

impl ModelRef {
    /// A model of a provider.
    pub fn new(provider_id: impl Into<String>, model_id: impl Into<String>) -> Self {
        Self { provider_id: provider_id.into(), model_id: model_id.into() }
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider_id, self.model_id)
    }
}

impl FromStr for ModelRef {
    type Err = InvalidInput;

    /// Reads `provider/model`, where the model may hold further slashes.
    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        match text.trim().split_once('/') {
            Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
                Ok(Self::new(provider, model))
            }
            Some(_) | None => Err(InvalidInput::new("model", "must be like provider/model")),
        }
    }
}

impl fmt::Debug for PromptSpec {
    /// Without the prompt: it belongs in no log above trace level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptSpec")
            .field("n_parts", &self.parts.len())
            .field("model", &self.model)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PromptPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::File { media_type, bytes, .. } => write!(f, "File({media_type}, {} bytes)", bytes.len()),
            Self::Mention(name) => write!(f, "Mention({name:?})"),
        }
    }
}

impl fmt::Debug for PreparedPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedPrompt")
            .field("session_id", &self.session_id)
            .field("message_id", &self.message_id)
            .finish_non_exhaustive()
    }
}
