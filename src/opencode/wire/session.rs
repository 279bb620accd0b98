//! Sessions, their status, and what the server is configured with.

use std::{collections::BTreeMap, sync::Arc};

use serde::{
    Deserialize, Serialize,
    de::{IgnoredAny, MapAccess, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{Extra, Tokens, extra::wire_struct};
use crate::{
    ids::SessionId,
    json::{
        cursor::{Cursor, Scan, field_name},
        decode::{DecodeError, JsonPath, deserialize_by_from_json},
        tagged::{Fields, Tagged},
    },
    time::Millis,
};

wire_struct! {
    /// A session.
    SessionInfo {
        /// Its id; the server chooses it.
        id: SessionId,
        /// The session whose subagent this one is.
        parent_id as "parentID"?: SessionId,
        /// The directory it works in.
        directory: String = default,
        /// Its title.
        title: String = default,
        /// The server that made it.
        #[serde(deserialize_with = "crate::ids::read_shared")]
        version: Arc<str> = default,
        /// When it was created and last changed.
        time: SessionTime = default,
        /// The agent of its last prompt.
        #[serde(deserialize_with = "crate::ids::read_shared_option")]
        agent?: Arc<str>,
        /// The model of its last prompt.
        model?: SessionModel,
        /// What the client that made it attached to it.
        metadata?: Extra,
    }

    /// When a session was created and last changed.
    SessionTime {
        /// The beginning.
        created: Millis = default,
        /// The last change.
        updated: Millis = default,
    }

    /// The model of a session's last prompt.
    SessionModel {
        /// The model, as its provider names it.
        #[serde(deserialize_with = "crate::ids::read_shared")]
        id: Arc<str>,
        /// The provider.
        #[serde(deserialize_with = "crate::ids::read_shared")]
        provider_id as "providerID": Arc<str>,
    }

    /// Whether the server is well.
    Health {
        /// Whether the server says that it is well.
        healthy: bool = default,
        /// Its version.
        version: String = default,
    }

    /// The part of the server's configuration that prompts depend on.
    ConfigInfo {
        /// The configured model, as `provider/model`.
        model?: String,
        /// The configured agent.
        default_agent?: String,
    }

    /// The providers that the server can use, and the default model of each.
    ProviderList {
        /// The providers.
        providers: Vec<ProviderInfo> = default,
        /// The default model of a provider.
        default: BTreeMap<String, String> = default,
    }

    /// A provider and its models.
    ProviderInfo {
        /// The provider.
        id: String,
        /// Its name for people.
        name: String = default,
        /// Its models by id.
        models: BTreeMap<String, ModelInfo> = default,
    }

    /// A model.
    ModelInfo {
        /// The model, as its provider names it.
        id: String = default,
        /// Its name for people.
        name: String = default,
    }
}

impl SessionInfo {
    /// What the session cost so far, where the server says so.
    pub fn cost(&self) -> Option<f64> {
        self.extra.get("cost").and_then(Value::as_f64)
    }

    /// What the session used so far, where the server says so.
    pub fn tokens(&self) -> Option<Tokens> {
        serde_json::from_value(self.extra.get("tokens")?.clone()).ok()
    }
}

/// What a session is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum SessionStatus {
    /// Nothing, as far as the server says; also before a run starts, between the two idles after an error, and after a crash.
    Idle,
    /// It runs.
    Busy,
    /// It waits to call the provider again.
    Retry {
        /// Which attempt failed.
        attempt: u32,
        /// Why the last call of the provider failed.
        message: String,
        /// When it will try again.
        next: Millis,
    },
    /// A status that this version does not know.
    #[serde(untagged)]
    Unknown(Extra),
}

impl SessionStatus {
    /// Decodes a status.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn from_json(json: &str) -> Result<Self, DecodeError> {
        Self::decode(JsonPath::Root, json)
    }

    /// Whether nothing runs, as far as the server says.
    pub fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }
}

impl Scan for SessionStatus {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut status = None;
        cursor.fields(|cursor| {
            let is_first = cursor.is_named(field_name!("type")) && status.is_none();
            status = match cursor.plain().filter(|_| is_first)? {
                "idle" => Some(Self::Idle),
                "busy" => Some(Self::Busy),
                _ => return None,
            };
            Some(())
        })?;
        status
    }
}

impl Tagged for SessionStatus {
    const WHAT: &'static str = "session status";
    const HEAD: &'static [&'static str] = &["type"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct Retry {
            #[serde(default)]
            attempt: u32,
            #[serde(default)]
            message: String,
            #[serde(default)]
            next: Millis,
        }
        let body = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "idle" => IgnoredAny::deserialize(body).map(|_| Self::Idle)?,
            "busy" => IgnoredAny::deserialize(body).map(|_| Self::Busy)?,
            "retry" => {
                let Retry { attempt, message, next } = Retry::deserialize(body)?;
                Self::Retry { attempt, message, next }
            }
            _ => {
                let mut raw = Extra::deserialize(body)?;
                raw.insert("type".to_owned(), kind.into());
                Self::Unknown(raw)
            }
        })
    }
}

deserialize_by_from_json!(SessionStatus);

/// The status of every session of a directory that is not idle.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct StatusMap(BTreeMap<SessionId, SessionStatus>);

impl StatusMap {
    /// A map of these statuses.
    pub fn new(statuses: impl IntoIterator<Item = (SessionId, SessionStatus)>) -> Self {
        Self(statuses.into_iter().collect())
    }

    /// The status of a session; those not listed are idle.
    pub fn get(&self, session: &SessionId) -> &SessionStatus {
        self.0.get(session).unwrap_or(&SessionStatus::Idle)
    }

    /// The sessions that are not idle.
    pub fn iter(&self) -> impl Iterator<Item = (&SessionId, &SessionStatus)> {
        self.0.iter()
    }
}

impl<'de> Deserialize<'de> for StatusMap {
    /// Servers before 1.1 say `[]` when there is none.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <Box<serde_json::value::RawValue>>::deserialize(deserializer)?;
        if raw.get().trim_start().starts_with('[') {
            return Ok(Self::default());
        }
        serde_json::from_str(raw.get()).map(Self).map_err(serde::de::Error::custom)
    }
}
