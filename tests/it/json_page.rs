//! The page about the JSON says what is so.

use std::{collections::BTreeSet, fs, path::Path};

use opencode_conductor::{
    Ask, Completion, ConversationBlock, ConversationEvent, ConversationSessionMeta, Decision, FileChange,
    RuntimeSessionData, SavedSessionData, SessionConversationState, StreamEvent, WaitOptions,
    reduce_to_stream,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{fixtures_parity::fixtures, plain_client::streamed};

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/JSON.md")).unwrap()
}

/// Reads a line and writes it again, exactly so.
#[track_caller]
fn check<T: Serialize + DeserializeOwned>(line: &str) {
    let value: T = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(serde_json::to_string(&value).unwrap(), line);
}

#[test]
fn the_pages_examples_are_written_like_that() {
    let page = page();
    let mut n_examples = 0;
    for fence in page.split("```json ").skip(1) {
        let (kind, lines) = fence.split_once('\n').unwrap();
        for line in lines.lines().take_while(|line| *line != "```") {
            match kind {
                "event" => check::<ConversationEvent>(line),
                "block" => check::<ConversationBlock>(line),
                "state" => check::<SessionConversationState>(line),
                "stream" => check::<StreamEvent>(line),
                "saved" => check::<SavedSessionData>(line),
                "live" => check::<RuntimeSessionData>(line),
                #[cfg(feature = "client")]
                "submission" => check::<opencode_conductor::PromptSubmission>(line),
                #[cfg(feature = "client")]
                "update" => check::<opencode_conductor::Update>(line),
                #[cfg(feature = "client")]
                "statistics" => check::<opencode_conductor::ManagerStatistics>(line),
                #[cfg(not(feature = "client"))]
                "submission" | "update" | "statistics" => {}
                "session" => check::<ConversationSessionMeta>(line),
                "completion" => check::<Completion>(line),
                "limits" => check::<WaitOptions>(line),
                "ask" => check::<Ask>(line),
                "decision" => check::<Decision>(line),
                "change" => check::<FileChange>(line),
                other => panic!("an example of {other}"),
            }
            n_examples += 1;
        }
    }
    assert!(n_examples > 20, "{n_examples}");
}

/// The names of an object's fields.
fn names(value: &Value) -> BTreeSet<String> {
    value.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

#[test]
fn the_page_names_every_field_event_and_block() {
    let mut names_seen = BTreeSet::new();
    for fixture in fixtures() {
        let (events, _) = streamed(&fixture);
        let mut state = SessionConversationState::new();
        for event in &events {
            let (next, stream) = reduce_to_stream(&state, event);
            state = next;
            let stream = stream.iter().map(|event| serde_json::to_value(event).unwrap());
            for json in stream.chain([serde_json::to_value(event).unwrap()]) {
                names_seen.extend(names(&json));
                names_seen.extend(names(&json["block"]));
                names_seen.extend(json["type"].as_str().map(str::to_owned));
                names_seen.extend(json["block"]["type"].as_str().map(str::to_owned));
                names_seen.extend(json["block"]["status"].as_str().map(str::to_owned));
            }
        }
        let json = serde_json::to_value(&state).unwrap();
        names_seen.extend(names(&json));
        names_seen.extend(json["subagents"].as_array().unwrap().iter().flat_map(names));
    }
    let page = page();
    let code: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let is_named = |name: &String| code.contains(name.as_str()) || code.contains(format!("{name}?").as_str());
    let missing: Vec<_> = names_seen.iter().filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty(), "docs/JSON.md does not name {missing:?}");
    assert!(names_seen.len() > 40, "{names_seen:?}");
}
