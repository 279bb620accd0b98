//! Events from JSON: the short way for those that the server says often, and the general one for all.

use std::borrow::Cow;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny},
};
use serde_json::{Map, Value, value::RawValue};

use super::{EventPayload, PartDelta, PermissionReply, ServerEvent};
use crate::{
    ids::{MessageId, PartId, RequestId, SessionId},
    json::{
        cursor::{Cursor, Scan, field_name},
        decode::{DecodeError, JsonPath, Object, decode, decode_seed, object},
        tagged::{OneGo, Tagged},
    },
    opencode::wire::{EnvironmentEvent, MessageError, MessageInfo, Part, QuestionAnswer, SessionStatus},
};

impl ServerEvent {
    /// Decodes an event of `/event` or `/global/event`.
    ///
    /// # Errors
    /// If an event of a known type is malformed; the error names it.
    pub fn from_json(json: &str) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(json);
        match Self::scan(&mut cursor) {
            Some(event) if cursor.is_at_end() => Ok(event),
            Some(_) | None => Self::decode_stepwise(json),
        }
    }

    /// Decodes an event that is not written as usual, or one that is malformed and needs an error that says where.
    fn decode_stepwise(json: &str) -> Result<Self, DecodeError> {
        /// On the global stream everything else is inside `payload`.
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(default)]
            id: Option<String>,
            #[serde(borrow, default, rename = "type")]
            kind: Option<Cow<'a, str>>,
            #[serde(borrow, default)]
            properties: Option<&'a RawValue>,
            #[serde(default)]
            directory: Option<String>,
            #[serde(borrow, default)]
            payload: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct WithKind<'a> {
            #[serde(borrow, rename = "type")]
            kind: Cow<'a, str>,
        }
        let root = JsonPath::Root;
        let outer: Envelope<'_> = decode("event", root, json)?;
        let directory = outer.directory.clone();
        let (at, text, event) = match outer.payload {
            Some(raw) if outer.kind.is_none() => {
                let at = JsonPath::Field(&root, "payload");
                (at, raw.get(), decode("event", at, raw.get())?)
            }
            Some(_) | None => (root, json, outer),
        };
        let kind = match event.kind {
            Some(kind) => kind,
            None => decode::<WithKind<'_>>("event", at, text)?.kind,
        };
        let properties = event.properties.map_or("{}", RawValue::get);
        let payload = EventPayload::decode(&kind, JsonPath::Field(&at, "properties"), properties)?;
        Ok(Self { id: event.id, directory, payload })
    }
}

impl Scan for ServerEvent {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        let (id, kind) = scan_head(cursor)?;
        let payload = EventPayload::scan(kind, cursor)?;
        cursor.word("}")?;
        Some(Self { id: id.map(str::to_owned), directory: None, payload })
    }
}

/// Reads an event's id and type, up to its properties.
pub(crate) fn scan_head<'a>(cursor: &mut Cursor<'a>) -> Option<(Option<&'a str>, &'a str)> {
    cursor.word("{")?;
    let id = match cursor.word(r#""id":"#) {
        Some(()) => {
            let id = cursor.plain()?;
            cursor.word(",")?;
            Some(id)
        }
        None => None,
    };
    cursor.word(r#""type":"#)?;
    let kind = cursor.plain()?;
    cursor.word(r#","properties":"#)?;
    Some((id, kind))
}

#[derive(Deserialize)]
struct WithInfo<T> {
    info: T,
}

#[derive(Deserialize)]
struct WithPart<T> {
    part: T,
    #[serde(default)]
    delta: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(rename = "sessionID")]
    session_id: SessionId,
    status: OneGo<SessionStatus>,
}

#[derive(Deserialize)]
struct Replied {
    #[serde(rename = "sessionID")]
    session_id: SessionId,
    #[serde(rename = "requestID", alias = "permissionID")]
    request_id: RequestId,
    #[serde(default, alias = "response")]
    reply: Value,
}

#[derive(Deserialize)]
struct Disposed {
    #[serde(default)]
    directory: String,
}

/// The name of the field that grows.
struct DeltaField(Cow<'static, str>);

impl Scan for DeltaField {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        Some(Self(match cursor.string()? {
            Cow::Borrowed("text") => Cow::Borrowed("text"),
            other => Cow::Owned(other.into_owned()),
        }))
    }
}

/// The properties of an event of this type.
#[derive(Clone, Copy)]
struct Properties<'a> {
    kind: &'a str,
}

impl<'de> DeserializeSeed<'de> for Properties<'_> {
    type Value = EventPayload;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<EventPayload, D::Error> {
        EventPayload::read(self.kind, deserializer)
    }
}

impl EventPayload {
    /// Reads the properties of an event of type `kind`, if it is one of those that the server says often.
    fn scan(kind: &str, cursor: &mut Cursor<'_>) -> Option<Self> {
        /// Reads the fields by these names, each of which may be absent, and skips others.
        macro_rules! scan {
            ($($field:ident = $name:literal),*) => {
                $(let mut $field = None;)*
                cursor.fields(|cursor| {
                    $(if cursor.is_named(field_name!($name)) {
                        return cursor.once(&mut $field);
                    })*
                    cursor.skip_field()
                })?;
            };
        }
        Some(match kind {
            "message.part.delta" => {
                scan!(
                    session = "sessionID",
                    message = "messageID",
                    part = "partID",
                    field = "field",
                    delta = "delta"
                );
                let field = field.map_or(Cow::Borrowed(""), |DeltaField(field)| field);
                let (session_id, message_id, part_id, delta) = (session?, message?, part?, delta?);
                Self::PartDelta(PartDelta { session_id, message_id, part_id, field, delta })
            }
            "message.part.updated" => {
                scan!(part = "part", delta = "delta");
                Self::PartUpdated { part: part?, delta: delta.flatten() }
            }
            "message.updated" => {
                scan!(info = "info");
                Self::MessageUpdated(info?)
            }
            "session.created" | "session.updated" => {
                scan!(info = "info");
                if kind == "session.created" {
                    Self::SessionCreated(info?)
                } else {
                    Self::SessionUpdated(info?)
                }
            }
            "session.status" => {
                scan!(session_id = "sessionID", status = "status");
                Self::SessionStatus { session_id: session_id?, status: status? }
            }
            "session.idle" => {
                scan!(session_id = "sessionID");
                Self::SessionIdle { session_id: session_id? }
            }
            "server.connected" => cursor.skip().map(|_| Self::ServerConnected)?,
            "server.heartbeat" => cursor.skip().map(|_| Self::ServerHeartbeat)?,
            _ => Self::Environment(EnvironmentEvent::scan(kind, cursor)?),
        })
    }

    /// As [`Self::read`], with a path to errors in tagged objects as well.
    fn decode(kind: &str, at: JsonPath<'_>, json: &str) -> Result<Self, DecodeError> {
        Ok(match kind {
            "message.part.updated" => {
                let with: WithPart<&RawValue> = decode(kind, at, json)?;
                let part = Part::decode(JsonPath::Field(&at, "part"), with.part.get())?;
                Self::PartUpdated { part, delta: with.delta }
            }
            "message.updated" => {
                let with: WithInfo<&RawValue> = decode(kind, at, json)?;
                Self::MessageUpdated(MessageInfo::decode(JsonPath::Field(&at, "info"), with.info.get())?)
            }
            _ => decode_seed(kind, at, json, Properties { kind })?,
        })
    }

    /// Reads the properties of an event of type `kind` in one go.
    fn read<'de, D: Deserializer<'de>>(kind: &str, properties: D) -> Result<Self, D::Error> {
        /// Reads the fields of a variant, each with its name in JSON.
        macro_rules! fields {
            ($variant:ident { $($field:ident: $ty:ty = $name:literal $(| $alias:literal)?),* }) => {{
                #[derive(Deserialize)]
                struct Named {
                    $(#[serde(rename = $name $(, alias = $alias)?)] $field: $ty,)*
                }
                let Named { $($field),* } = object(properties)?;
                Self::$variant { $($field),* }
            }};
        }
        let session_info = |WithInfo { info: Object(info) }| info;
        Ok(match kind {
            "message.part.delta" => Self::PartDelta(object(properties)?),
            "message.part.updated" => {
                let WithPart { part: OneGo(part), delta } = object(properties)?;
                Self::PartUpdated { part, delta }
            }
            "message.updated" => {
                let WithInfo { info: OneGo(info) } = object(properties)?;
                Self::MessageUpdated(info)
            }
            "message.removed" => {
                fields!(MessageRemoved {
                    session_id: SessionId = "sessionID",
                    message_id: MessageId = "messageID"
                })
            }
            "message.part.removed" => fields!(PartRemoved {
                session_id: SessionId = "sessionID",
                message_id: MessageId = "messageID",
                part_id: PartId = "partID"
            }),
            "session.created" => Self::SessionCreated(object(properties).map(session_info)?),
            "session.updated" => Self::SessionUpdated(object(properties).map(session_info)?),
            "session.deleted" => Self::SessionDeleted(object(properties).map(session_info)?),
            "session.status" => {
                let Status { session_id, status: OneGo(status) } = object(properties)?;
                Self::SessionStatus { session_id, status }
            }
            "session.idle" => fields!(SessionIdle { session_id: SessionId = "sessionID" }),
            "session.error" => fields!(SessionError {
                session_id: Option<SessionId> = "sessionID",
                error: Option<MessageError> = "error"
            }),
            "session.compacted" => fields!(SessionCompacted { session_id: SessionId = "sessionID" }),
            "permission.asked" | "permission.updated" => Self::PermissionAsked(object(properties)?),
            "permission.replied" => {
                let Replied { session_id, request_id, reply } = object(properties)?;
                let reply = PermissionReply::deserialize(reply).ok();
                Self::PermissionReplied { session_id, request_id, reply }
            }
            "question.asked" => Self::QuestionAsked(object(properties)?),
            "question.replied" | "question.rejected" => {
                fields!(QuestionClosed {
                    session_id: SessionId = "sessionID",
                    request_id: RequestId = "requestID",
                    answers: Option<Vec<QuestionAnswer>> = "answers"
                })
            }
            "server.connected" => IgnoredAny::deserialize(properties).map(|_| Self::ServerConnected)?,
            "server.heartbeat" => IgnoredAny::deserialize(properties).map(|_| Self::ServerHeartbeat)?,
            "server.instance.disposed" => {
                let Disposed { directory } = object(properties)?;
                Self::InstanceDisposed { directory }
            }
            _ if EnvironmentEvent::knows(kind) => {
                Self::Environment(EnvironmentEvent::read(kind, properties)?)
            }
            _ => {
                // `null` stands for no properties.
                let properties =
                    Option::deserialize(properties)?.unwrap_or_else(|| Value::Object(Map::new()));
                Self::Unknown { kind: kind.to_owned(), properties }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Every event of the recordings, with the fields in the order in which real servers write them.
    fn recorded() -> Vec<String> {
        let fixtures = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures")).unwrap();
        let logs =
            fixtures.filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("events.sse")).ok());
        let lines = logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>());
        lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)).collect()
    }

    /// Decodes an event by the short way, if that leads anywhere, and panics unless the long way leads to the same.
    fn scan(json: &str) -> Option<ServerEvent> {
        let mut cursor = Cursor::new(json);
        let event = ServerEvent::scan(&mut cursor).filter(|_| cursor.is_at_end())?;
        let general = ServerEvent::decode_stepwise(json);
        assert_eq!(general.ok().as_ref(), Some(&event), "{json}");
        Some(event)
    }

    #[test]
    fn recorded_events_are_read_the_short_way_and_as_the_long_way_reads_them() {
        let recorded = recorded();
        let n_short = recorded.iter().filter(|json| scan(json).is_some()).count();
        assert!(recorded.len() > 3_000);
        assert!(n_short * 100 > recorded.len() * 97, "{n_short} of {}", recorded.len());
    }

    #[test]
    fn damaged_events_are_read_the_short_way_only_as_the_long_way_reads_them() {
        let pieces = [
            r#""""#,
            r#","""#,
            "\\",
            r"\u0041",
            r"\ud83d\ude00",
            r"\ud800",
            r#"\""#,
            "0",
            "00",
            "-1",
            ".5",
            "1e3",
            "1e999",
            "18446744073709551616",
            "null",
            "true",
            "{}",
            "[]",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "é",
            "\n",
            " ",
            r#""type":"text","#,
            r#""id":"x","#,
            r#""sessionID":"ses_1","#,
            r#","new":{"a":[1,"\n"]}"#,
            r#""\u0069d""#,
        ];
        let mut n_short = 0;
        for (seed, json) in recorded().iter().enumerate() {
            let mut random = fastrand::Rng::with_seed(seed as u64);
            let places: Vec<usize> = json.char_indices().map(|(at, _)| at).collect();
            for _ in 0..20 {
                let mut damaged = json.clone();
                let from = random.choice(&places).copied().unwrap_or_default();
                let to =
                    places.iter().copied().find(|at| *at >= from + random.usize(..4)).unwrap_or(json.len());
                match random.u8(..4) {
                    0 => drop(damaged.drain(from..to.max(from))),
                    1 => damaged.insert_str(from, random.choice(pieces).unwrap_or_default()),
                    2 => damaged.replace_range(from..to.max(from), random.choice(pieces).unwrap_or_default()),
                    _ => {
                        let field = json[from..].find(",\"").map_or(from, |at| from + at);
                        let other = random.choice(&places).copied().unwrap_or_default();
                        let piece = json[other..].chars().take(random.usize(..40)).collect::<String>();
                        damaged.insert_str(field, &piece);
                    }
                }
                n_short += usize::from(scan(&damaged).is_some());
            }
        }
        assert!(n_short > 1_000, "damage that does not matter was read as well: {n_short}");
    }

    #[test]
    fn what_is_not_written_as_usual_is_left_to_the_long_way() {
        let idle = r#"{"id":"evt_1","type":"session.idle","properties":{"sessionID":"ses_1"}}"#;
        assert!(scan(idle).is_some());
        for (from, to) in [
            (r#""evt_1""#, "null"),
            (r#""evt_1","#, r#""evt_1","id":"evt_2","#),
            (r#""sessionID""#, r#""session\u0049D""#),
            (r#""sessionID":"ses_1""#, r#""sessionID":"ses_1","sessionID":"ses_1""#),
            (r#""sessionID":"ses_1""#, ""),
            (r#":{"#, r#": {"#),
            ("}}", "}} "),
            ("}}", "}"),
            ("}}", "}}}"),
            ("\"id\"", "\"directory\""),
            ("session.idle", "session.error"),
        ] {
            let json = idle.replace(from, to);
            assert_eq!(scan(&json), None, "{json}");
        }
    }
}
