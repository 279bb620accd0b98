//! The short way to the line that is nearly all of a stream: text that is added to a block of the main thread.
//!
//! Claude Code writes the same words every time, and only the values between them differ. Whatever stands in any other way is left to
//! the general decoder.

use super::stream::{Delta, PartialEvent, PartialMessage, StreamMessage};

const HEAD: &str = r#"{"type":"stream_event","event":{"type":"content_block_delta","index":"#;

/// The line in `json`, if it adds text and stands as Claude Code writes it.
pub(super) fn decode(json: &str) -> Option<StreamMessage> {
    let rest = json.strip_prefix(HEAD)?;
    let (index, rest) = rest.split_once(',')?;
    let index = index.parse().ok().filter(|_| {
        index.bytes().all(|digit| digit.is_ascii_digit()) && (index == "0" || !index.starts_with('0'))
    })?;
    let rest = rest.strip_prefix(r#""delta":{"type":""#)?;
    let (is_text, rest) = match rest.strip_prefix(r#"text_delta","text":"#) {
        Some(rest) => (true, rest),
        None => (false, rest.strip_prefix(r#"thinking_delta","thinking":"#)?),
    };
    let (text, rest) = rest.split_at(string_end(rest)?);
    let rest = rest.strip_prefix(r#"}},"session_id":""#)?;
    let (_, rest) = plain(rest)?;
    let mut rest = rest.strip_prefix(r#","parent_tool_use_id":null"#)?;
    while let Some(field) = rest.strip_prefix(r#",""#) {
        let (name, value) = plain(field)?;
        if matches!(name, "type" | "event" | "session_id" | "parent_tool_use_id") {
            return None;
        }
        (_, rest) = plain(value.strip_prefix(r#":""#)?)?;
    }
    if rest != "}" {
        return None;
    }
    let text = serde_json::from_str(text).ok()?;
    let delta = if is_text { Delta::Text(text) } else { Delta::Thinking(text) };
    let event = PartialEvent::BlockDelta { index, delta };
    Some(StreamMessage::Partial(PartialMessage { event, parent_tool_use_id: None }))
}

/// Where a string ends that `json` begins with.
fn string_end(json: &str) -> Option<usize> {
    let bytes = json.as_bytes();
    if bytes.first() != Some(&b'"') {
        return None;
    }
    let mut at = 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// A string as plain as an id, of which the first quote was read, and what follows it.
fn plain(json: &str) -> Option<(&str, &str)> {
    let end = json.bytes().position(|byte| matches!(byte, b'"' | b'\\' | ..=0x1f))?;
    let (value, rest) = json.split_at(end);
    Some((value, rest.strip_prefix('"')?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{decode::JsonPath, tagged::Tagged};

    const DELTA: &str = r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a \"b\"\n\u00e9 é"}},"session_id":"s1","parent_tool_use_id":null,"uuid":"u1","api_message_id":"msg_1"}"#;

    #[test]
    fn it_leads_where_the_long_way_does() {
        let short = [
            DELTA.to_owned(),
            DELTA.replace(r#""text_delta","text""#, r#""thinking_delta","thinking""#),
            DELTA.replace(r#""index":0"#, r#""index":12"#),
            DELTA.replace(r#","api_message_id":"msg_1""#, ""),
            DELTA.replace(r#"a \"b\"\n\u00e9 é"#, ""),
            DELTA.replace(r#"a \"b\"\n\u00e9 é"#, r"\\"),
        ];
        for json in short {
            let long = StreamMessage::decode(JsonPath::Root, &json).unwrap();
            assert_eq!(format!("{:?}", decode(&json).unwrap()), format!("{long:?}"), "{json}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_long_way() {
        let long = [
            DELTA.replace("text_delta", "signature_delta"),
            DELTA.replace("block_delta", "block_stop"),
            DELTA.replace(r#""index":0"#, r#""index":-1"#),
            DELTA.replace(r#""index":0"#, r#""index":00"#),
            DELTA.replace(":null", r#":"toolu_1""#),
            DELTA.replace(r#""uuid":"u1""#, r#""uuid":null"#),
            DELTA.replace(r#""uuid":"u1""#, r#""event":"u1""#),
            DELTA.replace(r#""uuid":"u1""#, r#""uuid":"u\u0031""#),
            DELTA.replace("é", "\n"),
            DELTA.replace("}},", "},"),
            DELTA.trim_end_matches('}').to_owned(),
            format!("{DELTA} "),
            DELTA[..100].to_owned(),
            String::new(),
        ];
        for json in long {
            assert!(decode(&json).is_none(), "{json}");
        }
    }
}
