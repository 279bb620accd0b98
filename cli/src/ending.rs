//! How a turn ended, for the eye.

use opencode_conductor::Completion;

use crate::style::Ink;

/// The mark and the colour of an end, and a word or two on it. The page has the same words.
pub fn mark(completion: &Completion) -> (char, Ink, String) {
    let failed = |words: &str| ('✗', Ink::Red, words.to_owned());
    match completion {
        Completion::Settled => ('✓', Ink::Green, "settled".to_owned()),
        Completion::Aborted => ('■', Ink::Yellow, "aborted".to_owned()),
        Completion::Failed(_) => failed("failed"),
        Completion::TimedOut { .. } => failed("timed out"),
        Completion::Interrupted => failed("interrupted"),
        Completion::Rejected => failed("rejected"),
        Completion::Refused => failed("refused"),
        Completion::SessionGone => failed("session gone"),
        Completion::Unauthorized => failed("unauthorized"),
        Completion::GivenUp => failed("given up"),
        // In its own words, if the library has a new one.
        other => failed(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_end_is_called_by_its_name_here_and_on_the_page() {
        let page = include_str!("serve/page/view.js");
        let failure = json!({"name": "APIError", "message": "overloaded"});
        let rows = [
            ("settled", json!({}), "✓ settled"),
            ("aborted", json!({}), "■ aborted"),
            ("failed", failure, "✗ failed"),
            ("timedOut", json!({"limit": "idle"}), "✗ timed out"),
            ("interrupted", json!({}), "✗ interrupted"),
            ("rejected", json!({}), "✗ rejected"),
            ("refused", json!({}), "✗ refused"),
            ("sessionGone", json!({}), "✗ session gone"),
            ("unauthorized", json!({}), "✗ unauthorized"),
            ("givenUp", json!({}), "✗ given up"),
        ];
        for (name, mut fields, shown) in rows {
            fields["type"] = name.into();
            let completion: Completion = serde_json::from_value(fields).unwrap();
            let (mark, _, words) = mark(&completion);
            assert_eq!(format!("{mark} {words}"), shown);
            let on_page = if completion.is_settled() { "done" } else { &words };
            let is_on_page = page.lines().any(|line| {
                line.strip_prefix(&format!("  {name}: ["))
                    .is_some_and(|rest| rest.contains(&format!("\"{on_page}\"")))
            });
            assert!(is_on_page, "the page does not say {on_page} of {name}");
        }
    }
}
