//! The short way to the event that is nearly all of a stream: text that is added to a part.
//!
//! A general decoder reads names, finds fields and skips what it does not know. Of a delta the server writes the same words
//! every time, and only the values between them differ. Whatever stands in any other way is left to the general decoder.

use super::event::{EventPayload, PartDelta, ServerEvent};

/// What every delta has between its id and its first value.
const HEAD: &str = r#""type":"message.part.delta","properties":{"sessionID":""#;

/// Whose text it is, if `json` begins as a delta does.
#[cfg(feature = "client")]
pub(crate) fn session(json: &str) -> Option<&str> {
    let (_id, mut words) = Words::of_delta(json)?;
    words.value()
}

/// The delta in `json`, if it is one and stands as the server writes it.
pub(super) fn decode(json: &str) -> Option<ServerEvent> {
    let (id, mut words) = Words::of_delta(json)?;
    let session_id = words.value()?.into();
    let message_id = words.after(r#","messageID":""#)?.value()?.into();
    let part_id = words.after(r#","partID":""#)?.value()?.into();
    let field = words.after(r#","field":""#)?.value()?.to_owned();
    let delta = words.after(r#","delta":"#)?.0.strip_suffix("}}")?;
    let delta = serde_json::from_str(delta).ok()?;
    let payload = EventPayload::PartDelta(PartDelta { session_id, message_id, part_id, field, delta });
    Some(ServerEvent { id: id.map(str::to_owned), directory: None, payload })
}

/// What is left to read.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    /// The event's id, and what follows the name of the first property.
    fn of_delta(json: &'a str) -> Option<(Option<&'a str>, Self)> {
        let mut words = Self(json.strip_prefix('{')?);
        let id = match words.after(r#""id":""#) {
            Some(words) => {
                let id = words.value()?;
                words.after(",")?;
                Some(id)
            }
            None => None,
        };
        words.after(HEAD)?;
        Some((id, words))
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
        for json in short {
            let event = decode(&json).unwrap();
            assert_eq!(event, ServerEvent::decode_any(&json).unwrap(), "{json}");
            #[cfg(feature = "client")]
            assert_eq!(session(&json), event.payload.session_id().map(crate::SessionId::as_str), "{json}");
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
            assert_eq!(decode(&json), None, "{json}");
        }
    }
}
