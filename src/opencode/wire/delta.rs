//! The short way to what is nearly all of a stream: who an event is for, and text that is added to a part.
//!
//! A general decoder reads names, finds fields and skips what it does not know. The server writes the same words in the same
//! order every time, and only the values between them differ. Whatever stands in any other way is left to the general decoder.

use std::borrow::Cow;

use super::event::{EventPayload, PartDelta, ServerEvent};
use crate::ids::{MessageId, PartId, SessionId};

/// Whose text was read last: the next piece is nearly always of the same part, and then shares its ids.
#[derive(Debug, Default)]
pub(crate) struct LastPart {
    session: SessionId,
    message: MessageId,
    part: PartId,
}

/// The kind of an event and the session that it is for, if both can be told from how `json` begins, and it tells of no other
/// session.
#[cfg(feature = "client")]
pub(crate) fn head(json: &str) -> Option<(&str, &str)> {
    let (_id, kind, mut words) = Words::of_event(json)?;
    let session = words.after(r#""sessionID":""#)?.value()?;
    let is_enough = match kind {
        "message.part.delta"
        | "message.updated"
        | "message.removed"
        | "message.part.removed"
        | "session.status"
        | "session.idle"
        | "session.diff"
        | "session.compacted" => true,
        // A call may have started a subagent.
        "message.part.updated" => words.after(r#","part":{"#)?.part_kind()? != "tool",
        _ => false,
    };
    is_enough.then_some((kind, session))
}

/// The delta in `json`, if it is one and stands as the server writes it.
pub(super) fn decode(json: &str, last: &mut LastPart) -> Option<ServerEvent> {
    let (id, kind, mut words) = Words::of_event(json)?;
    if kind != "message.part.delta" {
        return None;
    }
    let session = words.after(r#""sessionID":""#)?.value()?;
    let message = words.after(r#","messageID":""#)?.value()?;
    let part = words.after(r#","partID":""#)?.value()?;
    let field = match words.after(r#","field":""#)?.value()? {
        "text" => Cow::Borrowed("text"),
        other => Cow::Owned(other.to_owned()),
    };
    let delta = words.after(r#","delta":"#)?.0.strip_suffix("}}")?;
    let delta = serde_json::from_str(delta).ok()?;
    if last.part.as_str() != part || last.message.as_str() != message || last.session.as_str() != session {
        *last = LastPart { session: session.into(), message: message.into(), part: part.into() };
    }
    let LastPart { session, message, part } = &*last;
    let (session_id, message_id, part_id) = (session.clone(), message.clone(), part.clone());
    let payload = EventPayload::PartDelta(PartDelta { session_id, message_id, part_id, field, delta });
    Some(ServerEvent { id: id.map(str::to_owned), directory: None, payload })
}

/// What is left to read.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    /// An event's id and kind, and what follows the beginning of its properties.
    fn of_event(json: &'a str) -> Option<(Option<&'a str>, &'a str, Self)> {
        let mut words = Self(json.strip_prefix('{')?);
        let id = match words.after(r#""id":""#) {
            Some(words) => {
                let id = words.value()?;
                words.after(",")?;
                Some(id)
            }
            None => None,
        };
        let kind = words.after(r#""type":""#)?.value()?;
        words.after(r#","properties":{"#)?;
        Some((id, kind, words))
    }

    /// The kind of a part of which everything before it is a string.
    #[cfg(feature = "client")]
    fn part_kind(&mut self) -> Option<&'a str> {
        loop {
            let name = self.after("\"")?.value()?;
            let value = self.after(":\"")?.value()?;
            if name == "type" {
                return Some(value);
            }
            self.after(",")?;
        }
    }

    /// Goes behind `expected`, if that comes next.
    fn after(&mut self, expected: &str) -> Option<&mut Self> {
        self.0 = self.0.strip_prefix(expected)?;
        Some(self)
    }

    /// Reads to the end of a string of which the first quote was read, if it is as plain as an id.
    fn value(&mut self) -> Option<&'a str> {
        let end = self.0.bytes().position(|byte| matches!(byte, b'"' | b'\\' | ..=0x1f))?;
        let (value, rest) = self.0.split_at(end);
        self.0 = rest.strip_prefix('"')?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELTA: &str = r#"{"id":"evt_1","type":"message.part.delta","properties":{"sessionID":"ses_1","messageID":"msg_1","partID":"prt_1","field":"text","delta":"a \"b\"\n\u00e9 é"}}"#;

    #[test]
    fn it_leads_where_the_long_way_does() {
        let short = [
            DELTA.to_owned(),
            DELTA.replace(r#""id":"evt_1","#, ""),
            DELTA.replace("ses_1", ""),
            DELTA.replace("text", "reasoning"),
            DELTA.replace(r#"a \"b\"\n\u00e9 é"#, ""),
            DELTA.replace(r#"a \"b\"\n\u00e9 é"#, "}}"),
        ];
        let mut last = LastPart::default();
        for json in short {
            let event = decode(&json, &mut last).unwrap();
            assert_eq!(event, ServerEvent::decode_any(&json).unwrap(), "{json}");
            #[cfg(feature = "client")]
            assert_eq!(
                head(&json).map(|(_, session)| session),
                event.payload.session_id().map(crate::SessionId::as_str),
                "{json}"
            );
        }
    }

    #[test]
    fn ids_are_shared_only_while_they_are_the_same() {
        let mut last = LastPart::default();
        for json in [DELTA, DELTA, &DELTA.replace("prt_1", "prt_2"), &DELTA.replace("ses_1", "ses_2"), DELTA]
        {
            assert_eq!(decode(json, &mut last), Some(ServerEvent::decode_any(json).unwrap()));
        }
    }

    #[cfg(feature = "client")]
    #[test]
    fn who_an_event_is_for_is_told_by_its_beginning_unless_it_tells_of_others() {
        let event = |kind: &str, rest: &str| {
            format!(r#"{{"id":"evt_1","type":"{kind}","properties":{{"sessionID":"ses_1"{rest}}}}}"#)
        };
        let text = r#","part":{"id":"prt_1","sessionID":"ses_1","type":"text","text":""}"#;
        for (kind, rest) in
            [("message.updated", r#","info":{}"#), ("session.idle", ""), ("message.part.updated", text)]
        {
            assert_eq!(head(&event(kind, rest)), Some((kind, "ses_1")));
        }
        let early = r#","part":{"time":{},"type":"text"}"#;
        let (task, child) =
            (text.replace(r#""text""#, r#""tool""#), r#","info":{"id":"ses_2","parentID":"ses_1"}"#);
        for (kind, rest) in [
            ("message.part.updated", early),
            ("message.part.updated", &task),
            ("session.created", child),
            ("session.updated", child),
            ("session.error", ""),
            ("new.kind", ""),
        ] {
            assert_eq!(head(&event(kind, rest)), None, "{kind} {rest}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_long_way() {
        let long = [
            DELTA.replace("part.delta", "part.updated"),
            DELTA.replace("part.delta", "part.deltas"),
            DELTA.replace("evt_1", r"e\u0076t_1"),
            DELTA.replace("msg_1", r#"\""#),
            DELTA.replace("prt_1", "prt\n1"),
            DELTA.replace("{\"id\"", "{ \"id\""),
            DELTA.replace(r#""field":"text","#, ""),
            DELTA.replace(r#""field":"text""#, r#""field":"text","new":1"#),
            DELTA.replace(r#","delta":"#, r#","new":1,"delta":"#),
            DELTA.replace("}}", r#","new":1}}"#),
            DELTA.replace("}}", r#"},"new":1}"#),
            DELTA.replace("}}", r#"}},{"new":{}}"#),
            DELTA.replace("}}", "}} "),
            DELTA.replace("}}", "}"),
            DELTA.replace("é", "\n"),
            String::new(),
        ];
        for json in long {
            assert_eq!(decode(&json, &mut LastPart::default()), None, "{json}");
        }
    }
}
