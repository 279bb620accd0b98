//! Reads as much of an event as is needed to know who wants it.
//!
//! One connection carries the events of every session of its directory, and most runners follow a few. Events of other
//! sessions are skipped without being built up in memory.

use std::borrow::Cow;

use serde::Deserialize;

use crate::opencode::wire::delta;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Peek<'a> {
    pub(super) kind: Cow<'a, str>,
    /// The session it concerns.
    pub(super) session: Option<&'a str>,
    /// A session that it shows to belong to `parent`'s tree.
    pub(super) child: Option<Child<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Child<'a> {
    pub(super) parent: &'a str,
    pub(super) session: &'a str,
}

impl<'a> Peek<'a> {
    /// `None` if the event has an unusual shape and has to be decoded to be understood.
    pub(super) fn new(json: &'a str) -> Option<Self> {
        if let Some((kind, session)) = delta::head(json) {
            return Some(Self { kind: kind.into(), session: Some(session), child: None });
        }
        let Head { kind, properties } = serde_json::from_str(json).ok()?;
        let Properties { session, info, part } = properties.unwrap_or_default();
        let info = info.unwrap_or_default();
        let part = part.unwrap_or_default();
        let mut child = None;
        let session = if kind.starts_with("session.") && session.or(info.id).is_some() {
            let own = info.id.or(session);
            if let (Some(parent), Some(session)) = (info.parent, info.id) {
                child = Some(Child { parent, session });
            }
            own
        } else {
            session.or(info.session).or(part.session)
        };
        if let (Some("task"), Some(parent)) = (part.tool, session) {
            let spawned = part.state.and_then(|state| state.metadata).and_then(|metadata| metadata.session);
            child = spawned.map(|session| Child { parent, session });
        }
        Some(Self { kind, session, child })
    }
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    properties: Option<Properties<'a>>,
}

#[derive(Deserialize, Default)]
struct Properties<'a> {
    #[serde(rename = "sessionID", default)]
    session: Option<&'a str>,
    #[serde(borrow, default)]
    info: Option<Info<'a>>,
    #[serde(borrow, default)]
    part: Option<Part<'a>>,
}

#[derive(Deserialize, Default)]
struct Info<'a> {
    #[serde(default)]
    id: Option<&'a str>,
    #[serde(rename = "sessionID", default)]
    session: Option<&'a str>,
    #[serde(rename = "parentID", default)]
    parent: Option<&'a str>,
}

#[derive(Deserialize, Default)]
struct Part<'a> {
    #[serde(rename = "sessionID", default)]
    session: Option<&'a str>,
    #[serde(default)]
    tool: Option<&'a str>,
    #[serde(borrow, default)]
    state: Option<ToolState<'a>>,
}

#[derive(Deserialize)]
struct ToolState<'a> {
    #[serde(borrow, default)]
    metadata: Option<Metadata<'a>>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(rename = "sessionId", alias = "sessionID", default)]
    session: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_wherever_it_stands() {
        let rows = [
            (r#"{"type":"server.heartbeat","properties":{}}"#, None),
            (r#"{"id":"evt_1","type":"server.connected"}"#, None),
            (r#"{"type":"session.idle","properties":{"sessionID":"ses_1"}}"#, Some("ses_1")),
            (r#"{"type":"message.part.delta","properties":{"sessionID":"ses_1","delta":""}}"#, Some("ses_1")),
            (r#"{"type":"message.part.delta","properties":{"delta":"","sessionID":"ses_1"}}"#, Some("ses_1")),
            (
                r#"{"properties":{"info":{"id":"msg_1","sessionID":"ses_1"}},"type":"message.updated"}"#,
                Some("ses_1"),
            ),
            (
                r#"{"type":"message.part.updated","properties":{"part":{"id":"prt_1","sessionID":"ses_1"}}}"#,
                Some("ses_1"),
            ),
            (r#"{"type":"session.updated","properties":{"info":{"id":"ses_1"}}}"#, Some("ses_1")),
            (r#"{"type":"session.error","properties":{"error":{"name":"x"}}}"#, None),
            (r#"{"type":"new.event","properties":{"sessionID":"ses_1","info":null}}"#, Some("ses_1")),
        ];
        for (json, session) in rows {
            let peek = Peek::new(json).unwrap();
            assert_eq!((peek.session, peek.child), (session, None), "{json}");
        }
        assert_eq!(Peek::new(r#"{"type":"new.event","properties":{"info":"text"}}"#), None);
        assert_eq!(Peek::new("no json"), None);
    }

    #[test]
    fn children_are_told_by_their_session_and_by_the_task_that_made_them() {
        let child = Some(Child { parent: "ses_1", session: "ses_2" });
        for json in [
            r#"{"type":"session.created","properties":{"info":{"id":"ses_2","parentID":"ses_1"}}}"#,
            r#"{"type":"session.updated","properties":{"sessionID":"ses_2","info":{"id":"ses_2","parentID":"ses_1"}}}"#,
            r#"{"type":"message.part.updated","properties":{"part":{"sessionID":"ses_1","type":"tool","tool":"task",
                "state":{"status":"running","metadata":{"sessionId":"ses_2"}}}}}"#,
        ] {
            assert_eq!(Peek::new(json).unwrap().child, child, "{json}");
        }
        for json in [
            r#"{"type":"message.updated","properties":{"info":{"id":"msg_2","sessionID":"ses_1","parentID":"msg_1"}}}"#,
            r#"{"type":"message.part.updated","properties":{"part":{"sessionID":"ses_1","type":"tool","tool":"read",
                "state":{"status":"running","metadata":{"sessionId":"ses_2"}}}}}"#,
        ] {
            assert_eq!(Peek::new(json).unwrap().child, None, "{json}");
        }
    }
}
