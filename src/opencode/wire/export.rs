//! A whole session in one document.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Message, SessionInfo};
use crate::{
    json::decode::{DecodeError, JsonPath, decode, decode_list},
    setters::setters,
};

/// How deep sessions may be nested in one document; the server allows a handful of levels.
const MAX_DEPTH: usize = 64;

/// A session with its messages, as `opencode export` writes it; and, beyond that, the sessions of its subagents.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[must_use]
#[non_exhaustive]
pub struct SessionExport {
    /// What is known about the session itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<SessionInfo>,
    /// Its messages, oldest first.
    pub messages: Vec<Message>,
    /// The sessions of its subagents; `opencode export` leaves them out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<SessionExport>,
}

impl SessionExport {
    /// A session of which only the messages are known.
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }

    setters! {
        /// Adds what is known about the session itself.
        info(info: SessionInfo) { info = Some(info) }
        /// Adds the sessions of its subagents.
        children(children: Vec<Self>) { children = children }
    }

    /// Decodes a document; what is malformed in it is reported beside the good.
    ///
    /// # Errors
    /// If `json` is not an object with `messages`.
    pub fn from_json(json: &str) -> Result<(Self, Vec<DecodeError>), DecodeError> {
        let mut malformed = Vec::new();
        let export = Self::decode(JsonPath::Root, json, 0, &mut malformed)?;
        Ok((export, malformed))
    }

    fn decode(
        at: JsonPath<'_>,
        json: &str,
        depth: usize,
        malformed: &mut Vec<DecodeError>,
    ) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        #[serde(expecting = "an object")]
        struct Raw<'a> {
            #[serde(borrow, default)]
            info: Option<&'a RawValue>,
            #[serde(borrow)]
            messages: &'a RawValue,
            #[serde(borrow, default)]
            children: Vec<&'a RawValue>,
        }
        let raw: Raw<'_> = decode("session export", at, json)?;
        let info_place = JsonPath::Field(&at, "info");
        let info = raw.info.map(|info| decode("session", info_place, info.get())).transpose();
        let info = info.unwrap_or_else(|error| {
            malformed.push(error);
            None
        });
        let messages_place = JsonPath::Field(&at, "messages");
        let messages = decode_list("message list", messages_place, raw.messages.get(), Message::decode)?;
        malformed.extend(messages.malformed);
        let children_place = JsonPath::Field(&at, "children");
        let mut children = Vec::new();
        for (index, child) in raw.children.into_iter().enumerate() {
            let at = JsonPath::Index(&children_place, index);
            if depth == MAX_DEPTH {
                malformed.push(DecodeError::custom("session export", at, child.get(), "nested too deep"));
                continue;
            }
            match Self::decode(at, child.get(), depth + 1, malformed) {
                Ok(child) => children.push(child),
                Err(error) => malformed.push(error),
            }
        }
        Ok(Self { info, messages: messages.items, children })
    }
}
