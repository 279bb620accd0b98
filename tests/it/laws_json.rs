//! Events and states that other writers wrote, with nothing that this crate adds, are read and folded, and nothing of what they
//! say is lost.

use std::collections::BTreeSet;

use opencode_conductor::{
    ConversationEvent, SessionConversationState,
    markdown::{self, MarkdownOptions},
    reduce_session_event, reduce_to_stream,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::laws_fold::config;

/// Few ids, so that they collide in every way.
fn id() -> BoxedStrategy<Value> {
    prop::sample::select(&["main", "a", "b", "c", "d"][..]).prop_map(Value::from).boxed()
}

fn thread() -> BoxedStrategy<Value> {
    prop_oneof![3 => Just(json!("main")), 2 => id()].boxed()
}

/// Text that can be recognised wherever it ends up.
fn said() -> BoxedStrategy<Value> {
    any::<u32>().prop_map(|n| json!(format!("said-{n}"))).boxed()
}

fn any_value() -> BoxedStrategy<Value> {
    prop_oneof![
        said(),
        Just(Value::Null),
        any::<i32>().prop_map(Value::from),
        said().prop_map(|said| json!({"text": said, "n": 1})),
        said().prop_map(|said| json!([said, {"deep": [said]}])),
    ]
    .boxed()
}

fn moment() -> BoxedStrategy<Value> {
    let moments = ["2026-01-31T12:00:00.000Z", "2025-12-20T09:30:15Z", "2025-06-01T00:00:00.123+02:00"];
    prop::sample::select(moments.to_vec()).prop_map(Value::from).boxed()
}

/// A number, as the type says: whole or not, of either sign.
fn number() -> BoxedStrategy<Value> {
    prop_oneof![(0..100_000).prop_map(Value::from), (-1e3..1e6_f64).prop_map(Value::from)].boxed()
}

fn word(words: &'static [&'static str]) -> BoxedStrategy<Value> {
    prop::sample::select(words).prop_map(Value::from).boxed()
}

/// A field that has to be there.
fn has(name: &'static str, value: BoxedStrategy<Value>) -> BoxedStrategy<Map<String, Value>> {
    value.prop_map(move |value| Map::from_iter([(name.to_owned(), value)])).boxed()
}

/// A field that may be left out.
fn may(name: &'static str, value: BoxedStrategy<Value>) -> BoxedStrategy<Map<String, Value>> {
    prop_oneof![has(name, value), Just(Map::new())].boxed()
}

fn object(fields: Vec<BoxedStrategy<Map<String, Value>>>) -> BoxedStrategy<Value> {
    fields.prop_map(|fields| fields.into_iter().flatten().collect::<Map<_, _>>().into()).boxed()
}

const BLOCK: &[&str] = &["pending", "complete", "error"];
const RUN: &[&str] = &["pending", "running", "success", "error"];

fn any_block() -> BoxedStrategy<Value> {
    let of = |kind: &'static str, status: &'static [&'static str], fields: Vec<_>| {
        let mut all = vec![
            has("id", id()),
            has("type", Just(json!(kind)).boxed()),
            has("timestamp", moment()),
            has("status", word(status)),
            has("conversationId", thread()),
            may("displayName", any_value()),
        ];
        all.extend(fields);
        object(all)
    };
    let subagent = of(
        "subagent",
        RUN,
        vec![
            may("toolUseId", id()),
            may("subagentId", id()),
            may("name", said()),
            may("description", said()),
            has("input", said()),
            may("output", said()),
            may("durationMs", number()),
        ],
    );
    prop_oneof![
        of("user_message", BLOCK, vec![has("content", said())]),
        of("assistant_text", BLOCK, vec![has("content", said()), may("model", said())]),
        of("thinking", BLOCK, vec![has("content", said())]),
        of("tool_use", BLOCK, vec![has("toolUseId", id()), has("name", said()), has("input", any_value())]),
        of("tool_use", RUN, vec![may("toolUseId", id()), has("toolName", said()), may("input", any_value())]),
        of(
            "tool_result",
            BLOCK,
            vec![
                has("toolUseId", id()),
                has("output", any_value()),
                may("isError", any::<bool>().prop_map(Value::from).boxed()),
                may("durationMs", number()),
            ],
        ),
        of("system", BLOCK, vec![has("subtype", said()), has("message", said())]),
        of("skill_load", BLOCK, vec![has("skill", said()), may("content", any_value())]),
        subagent.clone(),
        // As the rule for a spawned subagent makes it.
        subagent.prop_map(|mut block| {
            let fields = block.as_object_mut().unwrap();
            fields.remove("id");
            fields.remove("conversationId");
            fields.insert("toolUseId".to_owned(), json!("a"));
            block
        }),
    ]
    .boxed()
}

/// Any of the basic events, with the thread and the time where their writers put them.
fn any_event() -> BoxedStrategy<Value> {
    let context =
        object(vec![may("conversationId", thread()), may("timestamp", moment()), may("sessionId", id())]);
    let of = |kind: &'static str, fields: Vec<_>| {
        let mut all = vec![has("type", Just(json!(kind)).boxed()), may("context", context.clone())];
        all.extend(fields);
        object(all)
    };
    prop_oneof![
        4 => of("block:upsert", vec![has("conversationId", thread()), has("block", any_block())]),
        3 => of("block:delta", vec![has("conversationId", thread()), has("blockId", id()), has("delta", said())]),
        2 => of(
            "subagent:spawned",
            vec![
                may("conversationId", thread()),
                has("toolUseId", id()),
                has("prompt", said()),
                has("subagentType", said()),
                may("description", said()),
                may("model", any_value()),
            ],
        ),
        2 => of(
            "subagent:completed",
            vec![
                has("toolUseId", id()),
                may("agentId", id()),
                has("status", word(&["completed", "error", "cancelled", "success"])),
                may("output", said()),
                may("durationMs", number()),
                may("totalTokens", any_value()),
            ],
        ),
        1 => of("session:idle", vec![has("conversationId", thread())]),
    ]
    .boxed()
}

fn any_state() -> BoxedStrategy<Value> {
    let blocks = || prop::collection::vec(any_block(), 0..5).prop_map(Value::from).boxed();
    let subagent = object(vec![
        has("toolUseId", id()),
        may("agentId", id()),
        has("blocks", blocks()),
        has("status", word(RUN)),
        may("prompt", said()),
        may("output", said()),
        may("durationMs", number()),
        may("rawTranscript", said()),
    ]);
    // No two with the same id: the second would replace the first.
    let subagents = prop::collection::vec(subagent, 0..3).prop_map(|mut subagents| {
        let mut seen = BTreeSet::new();
        subagents.retain(|subagent| seen.insert(subagent["toolUseId"].to_string()));
        Value::from(subagents)
    });
    object(vec![has("blocks", blocks()), has("subagents", subagents.boxed())])
}

/// Everything that a value says.
fn sayings(value: &Value) -> BTreeSet<String> {
    match value {
        Value::String(text) if text.starts_with("said-") => BTreeSet::from([text.clone()]),
        Value::Array(values) => values.iter().flat_map(sayings).collect(),
        Value::Object(fields) => fields.values().flat_map(sayings).collect(),
        _ => BTreeSet::new(),
    }
}

/// Reads, writes and reads again; nothing that was said is gone.
fn read<T>(json: &Value) -> Result<T, TestCaseError>
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let read: T = serde_json::from_value(json.clone())
        .map_err(|error| TestCaseError::fail(format!("{error}: {json}")))?;
    let written = serde_json::to_value(&read).unwrap();
    prop_assert_eq!(&serde_json::from_value::<T>(written.clone()).unwrap(), &read, "{}", written);
    let lost: Vec<String> = sayings(json).difference(&sayings(&written)).cloned().collect();
    prop_assert!(lost.is_empty(), "{lost:?} of {json} is not in {written}");
    Ok(read)
}

fn without_repeated_ids(state: &mut Value) {
    let unique = |blocks: &mut Value| {
        let mut seen = BTreeSet::new();
        let id = |block: &Value| block.get("id").unwrap_or(&block["toolUseId"]).to_string();
        blocks.as_array_mut().unwrap().retain(|block| seen.insert(id(block)));
    };
    unique(&mut state["blocks"]);
    for subagent in state["subagents"].as_array_mut().unwrap() {
        unique(&mut subagent["blocks"]);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_event_of_another_writer_is_read_and_folded(events in prop::collection::vec(any_event(), 1..25)) {
        let mut state = SessionConversationState::new();
        for json in &events {
            let event: ConversationEvent = read(json)?;
            let (next, _) = reduce_to_stream(&state, &event);
            prop_assert_eq!(&next, &reduce_session_event(&state, &event));
            state = next;
        }
        let json = serde_json::to_value(&state).unwrap();
        prop_assert_eq!(&serde_json::from_value::<SessionConversationState>(json).unwrap(), &state);
        let _ = markdown::render(&state, &MarkdownOptions::default());
    }

    #[test]
    fn any_state_of_another_writer_is_read_in_its_order(mut json in any_state(), events in prop::collection::vec(any_event(), 0..5)) {
        without_repeated_ids(&mut json);
        let mut state: SessionConversationState = read(&json)?;
        let ids = |blocks: &Value| {
            let blocks = blocks.as_array().unwrap().iter();
            blocks.map(|block| block.get("id").unwrap_or(&block["toolUseId"]).clone()).collect::<Vec<_>>()
        };
        let written = serde_json::to_value(&state).unwrap();
        prop_assert_eq!(ids(&written["blocks"]), ids(&json["blocks"]));
        for subagent in json["subagents"].as_array().unwrap() {
            let same = |other: &&Value| other["toolUseId"] == subagent["toolUseId"];
            let written = written["subagents"].as_array().unwrap().iter().find(same).unwrap();
            prop_assert_eq!(ids(&written["blocks"]), ids(&subagent["blocks"]));
            prop_assert_eq!(&written["status"], &subagent["status"]);
        }
        for event in &events {
            state.apply(&read(event)?);
        }
    }
}
