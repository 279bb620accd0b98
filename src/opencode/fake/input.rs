//! How the server reads requests, and what it says of those it cannot read.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{access::resolve, answer::Answer, serve::Call};

/// The session id of the path. One without the prefix breaks the server.
pub(super) fn session_id(call: &Call) -> Result<&str, Answer> {
    let id = call.segments.get(1).map_or("", String::as_str);
    if id.starts_with("ses") { Ok(id) } else { Err(Answer::server_error()) }
}

/// A body that must be a JSON object.
pub(super) fn json_body(call: &Call) -> Result<Value, Answer> {
    if call.body.is_empty() {
        return Err(Answer::bad_request("Payload", "Expected object, got undefined"));
    }
    let content_type = call.header("content-type").unwrap_or_default();
    if !content_type.starts_with("application/json") {
        return Err(Answer::unsupported(content_type));
    }
    // The real server answers malformed JSON with a 500.
    let body: Value = serde_json::from_slice(&call.body).map_err(|_unread| Answer::server_error())?;
    if body.is_object() {
        Ok(body)
    } else {
        Err(Answer::bad_request("Payload", &format!("Expected object, got {body}")))
    }
}

pub(super) fn optional_body(call: &Call) -> Result<Value, Answer> {
    if call.body.is_empty() {
        return Ok(json!({}));
    }
    json_body(call)
}

/// The body of a prompt.
pub(super) fn prompt(call: &Call) -> Result<Value, Answer> {
    let body = json_body(call)?;
    let bad = |message: String| Answer::bad_request("Payload", &message);
    if let Some(id) = body["messageID"].as_str()
        && !id.starts_with("msg")
    {
        return Err(bad(format!(
            "Expected a string starting with \"msg\", got \"{id}\"\n  at [\"messageID\"]"
        )));
    }
    if let Some(model) = body.get("model") {
        for field in ["providerID", "modelID"] {
            if !model[field].is_string() {
                return Err(bad(format!("Missing key\n  at [\"model\"][\"{field}\"]")));
            }
        }
    }
    let Some(parts) = body["parts"].as_array() else {
        return Err(bad("Missing key\n  at [\"parts\"]".to_owned()));
    };
    for (index, part) in parts.iter().enumerate() {
        let required: &[&str] = match part["type"].as_str() {
            Some("text") => &["text"],
            Some("file") => &["mime", "url"],
            Some("agent") => &["name"],
            Some("subtask") => &["prompt", "description", "agent"],
            _ => {
                let kinds = ["text", "file", "agent", "subtask"]
                    .map(|kind| format!("{{ readonly \"type\": \"{kind}\", ... }}"));
                return Err(bad(format!(
                    "Expected {}, got {part}\n  at [\"parts\"][{index}]",
                    kinds.join(" | ")
                )));
            }
        };
        if let Some(id) = part["id"].as_str()
            && !id.starts_with("prt")
        {
            return Err(bad(format!(
                "Expected a string starting with \"prt\", got \"{id}\"\n  at [\"parts\"][{index}][\"id\"]"
            )));
        }
        if let Some(missing) = required.iter().find(|field| !part[**field].is_string()) {
            return Err(bad(format!("Missing key\n  at [\"parts\"][{index}][\"{missing}\"]")));
        }
    }
    Ok(body)
}

/// Which messages of a session are wanted.
#[derive(Debug)]
pub(super) struct Page {
    /// The newest so many; 0 stands for all.
    pub(super) limit: usize,
    /// Only those older than this message.
    pub(super) before: Option<(u64, String)>,
}

impl Page {
    pub(super) fn of(call: &Call) -> Result<Self, Answer> {
        let bad = |expected: String| {
            Answer::bad_request("Query", &format!("Expected {expected}\n  at [\"limit\"]"))
        };
        let read_limit = |text: &str| {
            let number: i64 = text.parse().map_err(|_unread| bad("an integer, got NaN".to_owned()))?;
            let negative = || bad(format!("a value greater than or equal to 0, got {number}"));
            usize::try_from(number).map_err(|_negative| negative())
        };
        let limit = call.query("limit").map(read_limit).transpose()?;
        let cursor =
            |text| read_cursor(text).filter(|_| limit.is_some()).ok_or_else(Answer::bare_bad_request);
        let before = call.query("before").map(cursor).transpose()?;
        Ok(Self { limit: limit.unwrap_or(0), before })
    }
}

fn read_cursor(cursor: &str) -> Option<(u64, String)> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let cursor: Value = serde_json::from_slice(&bytes).ok()?;
    Some((cursor["time"].as_u64()?, cursor["id"].as_str()?.to_owned()))
}

/// One name per directory: decoded once more, links followed, dots and trailing slashes gone.
pub(super) fn normal_directory(named: &str) -> String {
    let decoded = percent_decode_str(named).decode_utf8_lossy();
    if let Ok(real) = std::fs::canonicalize(decoded.as_ref()) {
        return real.to_string_lossy().into_owned();
    }
    resolve("/", &decoded)
}
