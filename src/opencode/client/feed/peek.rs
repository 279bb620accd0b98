//! Reads as much of an event as is needed to know who wants it.
//!
//! One connection carries the events of every session of its directory, and most runners follow a few. Events of other
//! sessions are skipped without being built up in memory, and those of one reader are left to it.

use crate::{json::cursor::Cursor, opencode::wire::scan_head};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Peek<'a> {
    pub(super) kind: &'a str,
    /// The session it concerns.
    pub(super) session: Option<&'a str>,
    /// Whether it may show that another session belongs to the same tree.
    pub(super) names_others: bool,
}

impl<'a> Peek<'a> {
    /// `None` if the event is not written as usual, and has to be decoded to be understood.
    pub(super) fn new(json: &'a str) -> Option<Self> {
        let mut event = Cursor::new(json);
        let (_id, kind) = scan_head(&mut event)?;
        let session = event.field("sessionID")?;
        let (info, part) = match kind {
            "message.part.updated" => (None, event.field("part")?),
            _ if session.is_none() => (event.field("info")?, None),
            _ => (None, None),
        };
        let inside = match (info, part) {
            _ if session.is_some() => None,
            (Some(info), _) if kind.starts_with("session.") => info.field("id")?,
            (Some(object), _) | (None, Some(object)) => object.field("sessionID")?,
            (None, None) => None,
        };
        let tool = part.map_or(Some(None), |part| part.field("tool"))?;
        let names_others = match kind {
            "session.created" | "session.updated" => true,
            _ => tool.is_some_and(|mut tool| tool.plain() == Some("task")),
        };
        let session = match session.or(inside) {
            Some(mut session) => Some(session.plain()?),
            None => None,
        };
        Some(Self { kind, session, names_others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_wherever_it_stands() {
        let rows = [
            (r#"{"type":"server.heartbeat","properties":{}}"#, None),
            (r#"{"id":"evt_1","type":"server.connected","properties":{}}"#, None),
            (r#"{"type":"session.idle","properties":{"sessionID":"ses_1"}}"#, Some("ses_1")),
            (r#"{"type":"message.part.delta","properties":{"sessionID":"ses_1","delta":""}}"#, Some("ses_1")),
            (
                r#"{"type":"message.part.delta","properties":{"delta":"\n","sessionID":"ses_1"}}"#,
                Some("ses_1"),
            ),
            (
                r#"{"type":"message.updated","properties":{"info":{"id":"msg_1","sessionID":"ses_1"}}}"#,
                Some("ses_1"),
            ),
            (
                r#"{"type":"message.part.updated","properties":{"part":{"id":"prt_1","sessionID":"ses_1"}}}"#,
                Some("ses_1"),
            ),
            (r#"{"type":"session.deleted","properties":{"info":{"id":"ses_1"}}}"#, Some("ses_1")),
            (r#"{"type":"session.error","properties":{"error":{"name":"x"}}}"#, None),
            (
                r#"{"type":"new.event","properties":{"new":[{}],"sessionID":"ses_1","info":null}}"#,
                Some("ses_1"),
            ),
        ];
        for (json, session) in rows {
            let peek = Peek::new(json).unwrap();
            assert_eq!((peek.session, peek.names_others), (session, false), "{json}");
        }
        for unusual in [
            r#"{"properties":{"sessionID":"ses_1"},"type":"session.idle"}"#,
            r#"{"type":"session.idle","properties":{"sessionID":7}}"#,
            r#"{"type":"session.idle", "properties":{"sessionID":"ses_1"}}"#,
            r#"{"type":"new.event","properties":{"info":"text"}}"#,
            r#"{"id":"evt_1","type":"server.connected"}"#,
            "no json",
        ] {
            assert_eq!(Peek::new(unusual), None, "{unusual}");
        }
    }

    #[test]
    fn others_are_named_by_their_creation_and_by_the_task_that_made_them() {
        let call = |tool: &str| {
            format!(
                r#"{{"type":"message.part.updated","properties":{{"part":{{"sessionID":"ses_1","type":"tool","tool":"{tool}"}}}}}}"#
            )
        };
        let created = r#"{"type":"session.created","properties":{"info":{"id":"ses_2","parentID":"ses_1"}}}"#;
        assert!(Peek::new(&call("task")).unwrap().names_others);
        assert!(!Peek::new(&call("read")).unwrap().names_others);
        assert!(Peek::new(created).unwrap().names_others);
    }
}
