//! Messages: who said it, when, and how it ended.

use std::sync::Arc;

use serde::{
    Deserialize, Serialize,
    de::{MapAccess, value::MapAccessDeserializer},
};
use serde_json::{Value, value::RawValue};

use super::{Extra, Part, extra::wire_struct};
use crate::{
    agent::ModelRef,
    conversation::TokenUsage,
    ids::{MessageId, SessionId},
    json::{
        cursor::{Cursor, Scan, field_name},
        decode::{DecodeError, Decoded, JsonPath, Object, decode, decode_list, deserialize_by_from_json},
        tagged::{Fields, OneGo, Tagged},
    },
    time::Millis,
};

/// A message with its parts, as the server lists it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Message {
    /// Who said it, when, and how it ended.
    pub info: MessageInfo,
    /// What it is made of, in order.
    pub parts: Vec<Part>,
}

/// A message without its parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
#[non_exhaustive]
pub enum MessageInfo {
    /// A prompt, or something the server put in its place.
    User(UserMessage),
    /// One step of the model.
    Assistant(Box<AssistantMessage>),
    /// A role that this version does not know.
    #[serde(untagged)]
    Unknown(UnknownMessage),
}

wire_struct! {
    /// A prompt, or something the server put in its place.
    UserMessage {
        /// The message's id; the client may choose it.
        id: MessageId,
        /// The session it belongs to.
        session_id as "sessionID": SessionId,
        /// When it was created, or last submitted again.
        time: MessageTime = default,
        /// The agent it is for.
        #[serde(deserialize_with = "crate::ids::read_shared_option")]
        agent?: Arc<str>,
        /// The model it is for.
        model?: ModelRef,
    }

    /// One step of the model.
    AssistantMessage {
        /// The message's id.
        id: MessageId,
        /// The session it belongs to.
        session_id as "sessionID": SessionId,
        /// When it was created and completed.
        time: MessageTime = default,
        /// The user message that it answers, which need not be the caller's: compaction and merged prompts move it.
        parent_id as "parentID"?: MessageId,
        /// The model that wrote it.
        #[serde(deserialize_with = "crate::ids::read_shared")]
        model_id as "modelID": Arc<str> = default,
        /// The model's provider.
        #[serde(deserialize_with = "crate::ids::read_shared")]
        provider_id as "providerID": Arc<str> = default,
        /// The agent; `compaction` for summaries.
        #[serde(deserialize_with = "crate::ids::read_shared_option")]
        mode?: Arc<str>,
        /// Whether it is a summary of the history and not an answer.
        summary?: bool,
        /// Why the model stopped; absent while it runs and after errors.
        #[serde(deserialize_with = "crate::ids::read_shared_option")]
        finish?: Arc<str>,
        /// How it failed.
        error?: MessageError,
        /// What it cost.
        #[serde(serialize_with = "crate::conversation::write_number")]
        cost: f64 = default,
        /// What it used.
        tokens: Tokens = default,
    }
}

wire_struct! {
    /// When a message was created and completed.
    MessageTime {
        /// The beginning.
        created: Millis = default,
        /// The end; absent while it runs, and for ever if the server died meanwhile.
        completed?: Millis,
    }

    /// How a message or a session failed.
    MessageError {
        /// The server's name of the error, such as `APIError` or `MessageAbortedError`.
        name: String,
        /// Its details; see [`MessageError::message`].
        data: Value = default,
    }

    /// Tokens used.
    Tokens {
        /// All of them, where the provider said so.
        total?: u64,
        /// Read by the model, without the cached ones.
        #[serde(deserialize_with = "crate::json::number::count")]
        input: u64 = default,
        /// Written by the model.
        #[serde(deserialize_with = "crate::json::number::count")]
        output: u64 = default,
        /// Thought by the model.
        #[serde(deserialize_with = "crate::json::number::count")]
        reasoning: u64 = default,
        /// Cached.
        cache: TokenCache = default,
    }

    /// Tokens in the provider's cache.
    TokenCache {
        /// Read from it.
        #[serde(deserialize_with = "crate::json::number::count")]
        read: u64 = default,
        /// Written to it.
        #[serde(deserialize_with = "crate::json::number::count")]
        write: u64 = default,
    }
}

/// A message of a role that this version does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnknownMessage {
    /// The message's id.
    pub id: MessageId,
    /// The session it belongs to.
    #[serde(rename = "sessionID")]
    pub session_id: SessionId,
    /// The role the server gave it.
    #[serde(default)]
    pub role: String,
    /// When it was created and completed.
    #[serde(default)]
    pub time: MessageTime,
    /// All other fields.
    #[serde(flatten)]
    pub raw: Extra,
}

impl From<&Tokens> for TokenUsage {
    fn from(tokens: &Tokens) -> Self {
        Self {
            input: tokens.input,
            output: tokens.output,
            reasoning: tokens.reasoning,
            cache_read: tokens.cache.read,
            cache_write: tokens.cache.write,
        }
    }
}

impl MessageError {
    /// The error in words.
    pub fn message(&self) -> &str {
        self.data.get("message").and_then(Value::as_str).unwrap_or(&self.name)
    }

    /// The provider's HTTP status, for an `APIError`.
    pub fn status_code(&self) -> Option<u16> {
        self.data.get("statusCode")?.as_u64()?.try_into().ok()
    }

    /// Whether a client aborted the turn.
    pub fn is_aborted(&self) -> bool {
        self.name == "MessageAbortedError"
    }
}

impl MessageInfo {
    /// The message's id.
    pub fn id(&self) -> &MessageId {
        self.head().0
    }

    /// The session it belongs to.
    pub fn session_id(&self) -> &SessionId {
        self.head().1
    }

    /// When it was created and completed.
    pub fn time(&self) -> &MessageTime {
        self.head().2
    }

    fn head(&self) -> (&MessageId, &SessionId, &MessageTime) {
        match self {
            Self::User(message) => (&message.id, &message.session_id, &message.time),
            Self::Assistant(message) => (&message.id, &message.session_id, &message.time),
            Self::Unknown(message) => (&message.id, &message.session_id, &message.time),
        }
    }

    /// The model's step, if it is one.
    pub fn as_assistant(&self) -> Option<&AssistantMessage> {
        match self {
            Self::Assistant(message) => Some(message),
            Self::User(_) | Self::Unknown(_) => None,
        }
    }

    /// Decodes a message without its parts.
    ///
    /// # Errors
    /// If a field that this version knows is missing or has another type.
    pub fn from_json(json: &str) -> Result<Self, DecodeError> {
        Self::decode(JsonPath::Root, json)
    }
}

impl Scan for MessageInfo {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        let (role, is_read) = cursor.tag(field_name!("role"), |_| Some(false))?;
        let mut roles = u32::from(is_read);
        let head = |cursor: &mut Cursor<'_>| {
            let is_role = cursor.is_named(field_name!("role"));
            if is_role {
                roles += 1;
                cursor.plain()?;
            }
            Some(is_role)
        };
        let info = match role {
            "user" => Self::User(UserMessage::scan_beside(cursor, head)?),
            "assistant" => Self::Assistant(AssistantMessage::scan_beside(cursor, head)?.into()),
            _ => return None,
        };
        (roles == 1).then_some(info)
    }
}

impl Scan for ModelRef {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        let (mut provider_id, mut model_id): (Option<String>, Option<String>) = (None, None);
        cursor.fields(|cursor| {
            if cursor.is_named(field_name!("providerID")) {
                cursor.once(&mut provider_id)
            } else if cursor.is_named(field_name!("modelID")) {
                cursor.once(&mut model_id)
            } else {
                cursor.skip_field()
            }
        })?;
        Some(Self::new(provider_id?, model_id?))
    }
}

impl Tagged for MessageInfo {
    const WHAT: &'static str = "message";
    const HEAD: &'static [&'static str] = &["role"];

    fn read<'de, A: MapAccess<'de>>(role: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        let body = MapAccessDeserializer::new(fields);
        Ok(match role {
            "user" => Self::User(Deserialize::deserialize(body)?),
            "assistant" => Self::Assistant(Deserialize::deserialize(body)?),
            _ => Self::Unknown(UnknownMessage { role: role.to_owned(), ..Deserialize::deserialize(body)? }),
        })
    }
}

impl Message {
    /// A message of these parts.
    pub fn new(info: MessageInfo, parts: Vec<Part>) -> Self {
        Self { info, parts }
    }

    /// The text of a prompt, if it is one and the server did not make it itself.
    #[cfg(any(test, feature = "client"))]
    pub(crate) fn prompt_text(&self) -> Option<String> {
        let MessageInfo::User(_) = self.info else { return None };
        let mut texts = Vec::new();
        for part in &self.parts {
            match &part.body {
                super::PartBody::Text(part) if part.synthetic != Some(true) => texts.push(part.text.as_str()),
                super::PartBody::Compaction(_) => return None,
                _ => {}
            }
        }
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// Decodes one message with its parts.
    ///
    /// # Errors
    /// If it, or one of its parts, is malformed.
    pub fn from_json(json: &str) -> Result<Self, DecodeError> {
        let mut malformed = Vec::new();
        let message = Self::decode(JsonPath::Root, json, &mut malformed)?;
        malformed.into_iter().next().map_or(Ok(message), Err)
    }

    /// Decodes a list of messages; a malformed message, or a malformed part of one, is reported beside the good ones.
    ///
    /// # Errors
    /// If `json` is not an array.
    pub fn list_from_json(json: &str) -> Result<Decoded<Self>, DecodeError> {
        decode_list("message list", JsonPath::Root, json, Self::decode)
    }

    pub(super) fn decode(
        at: JsonPath<'_>,
        json: &str,
        malformed: &mut Vec<DecodeError>,
    ) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        #[serde(expecting = "an object")]
        struct Raw<'a> {
            #[serde(borrow)]
            info: &'a RawValue,
            #[serde(borrow, default)]
            parts: Vec<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Whole {
            info: OneGo<MessageInfo>,
            #[serde(default)]
            parts: Vec<OneGo<Part>>,
        }
        if let Ok(Object(Whole { info: OneGo(info), parts })) = serde_json::from_str(json) {
            return Ok(Self { info, parts: parts.into_iter().map(|OneGo(part)| part).collect() });
        }
        let raw: Raw<'_> = decode("message", at, json)?;
        let info = MessageInfo::decode(JsonPath::Field(&at, "info"), raw.info.get())?;
        let parts_place = JsonPath::Field(&at, "parts");
        let parts = raw.parts.iter().enumerate().filter_map(|(index, part)| {
            Part::decode(JsonPath::Index(&parts_place, index), part.get())
                .map_err(|error| malformed.push(error))
                .ok()
        });
        Ok(Self { info, parts: parts.collect() })
    }
}

deserialize_by_from_json!(Message, MessageInfo);
