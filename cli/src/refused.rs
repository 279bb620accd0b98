//! What an agent asked for and did not get, in a few words.

use opencode_conductor::Ask;
use serde_json::Value;

use crate::style::{plural, shorten};

/// How many requests are quoted, and how much of each.
const MAX_QUOTED: usize = 3;
const MAX_COLUMNS: usize = 30;

/// How many requests were refused, and what the first of them wanted; nothing if there were none.
pub fn summary(refused: &[Ask]) -> Option<String> {
    let mut quoted: Vec<String> = refused.iter().take(MAX_QUOTED).map(quote).collect();
    if refused.len() > MAX_QUOTED {
        quoted.push("…".to_owned());
    }
    (!refused.is_empty()).then(|| format!("{}: {}", plural(refused.len(), "request"), quoted.join(" · ")))
}

fn quote(ask: &Ask) -> String {
    let words = match ask.permission() {
        Some(permission) => {
            let command = permission.metadata.get("command").and_then(Value::as_str);
            let wanted = command.map_or_else(|| permission.patterns.join(" "), str::to_owned);
            format!("{} {wanted}", permission.permission)
        }
        None => ask.questions().first().map(|question| question.question.clone()).unwrap_or_default(),
    };
    shorten(&words, MAX_COLUMNS)
}
