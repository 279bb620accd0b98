//! The stream of five events says everything that a conversation's blocks say.

use std::collections::BTreeMap;

use expect_test::expect;
use opencode_conductor::{
    ConversationBlock, ConversationEvent, ConversationId, SessionConversationState, StreamEvent,
    reduce_to_stream,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    fixtures_parity::fixtures,
    laws_fold::{config, observed_in_any_order, world},
    plain_client::streamed,
};

/// A client of the stream, which reads JSON and keeps lists.
#[derive(Default)]
pub(crate) struct Viewer {
    threads: BTreeMap<String, Vec<Value>>,
    /// The last word on what each thread used.
    used: BTreeMap<String, Value>,
}

impl Viewer {
    fn see(&mut self, event: &Value) {
        let thread = event["conversationId"].as_str().unwrap();
        let blocks = self.threads.entry(thread.to_owned()).or_default();
        let id = if event["block"].is_null() { &event["blockId"] } else { &event["block"]["id"] };
        let at = blocks.iter().position(|block| block["id"] == *id);
        match event["type"].as_str().unwrap() {
            "block_start" | "block_complete" => match at {
                Some(at) => blocks[at] = event["block"].clone(),
                None => blocks.push(event["block"].clone()),
            },
            "text_delta" => {
                let content = &mut blocks[at.unwrap()]["content"];
                *content = json!(content.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
            }
            "block_update" if event["removed"] == true => {
                let gone = at.map(|at| blocks.remove(at));
                self.removed(&gone.unwrap_or_else(|| json!({"type": "subagent", "toolUseId": id})));
            }
            "block_update" => {
                let updates = event["updates"].as_object().unwrap().clone();
                blocks[at.unwrap()].as_object_mut().unwrap().extend(updates);
            }
            "metadata_update" => drop(self.used.insert(thread.to_owned(), event.clone())),
            other => panic!("{other}"),
        }
    }

    /// With a subagent's block goes its thread, and those below it, unless the subagent shows elsewhere.
    fn removed(&mut self, block: &Value) {
        let is_same = |other: &Value| other["type"] == "subagent" && other["toolUseId"] == block["toolUseId"];
        if block["type"] != "subagent" || self.threads.values().flatten().any(is_same) {
            return;
        }
        let call = block["toolUseId"].as_str().unwrap();
        self.used.remove(call);
        for below in self.threads.remove(call).unwrap_or_default() {
            self.removed(&below);
        }
    }

    #[track_caller]
    pub(crate) fn check(&mut self, name: &str, state: &SessionConversationState) {
        let below =
            state.subagents().map(|subagent| (ConversationId::from(&subagent.tool_use_id), &subagent.blocks));
        let threads = below.chain([(ConversationId::main(), state.blocks())]);
        for (id, thread) in threads {
            let blocks = self.threads.remove(id.as_str()).unwrap_or_default();
            let mut blocks: Vec<ConversationBlock> =
                blocks.into_iter().map(|block| serde_json::from_value(block).unwrap()).collect();
            blocks.sort_by(|one, two| (&one.order, &one.id).cmp(&(&two.order, &two.id)));
            let expected: Vec<ConversationBlock> = thread.iter().map(|block| (**block).clone()).collect();
            assert_eq!(blocks, expected, "{name}: {id}");
            let metadata = state.find_subagent(&id).map_or(state.metadata(), |subagent| &subagent.metadata);
            let tokens = metadata.usage().tokens;
            let used = self.used.remove(id.as_str());
            let read = used.as_ref().map_or(0, |used| used["usage"]["inputTokens"].as_u64().unwrap());
            assert_eq!(read, tokens.input, "{name}: {id}");
        }
        self.threads.retain(|_, blocks| !blocks.is_empty());
        assert_eq!(self.threads, BTreeMap::new(), "{name}");
        assert_eq!(self.used, BTreeMap::new(), "{name}");
    }
}

/// Folds events by way of the view.
fn viewed(events: &[ConversationEvent]) -> (Viewer, SessionConversationState) {
    let (mut viewer, mut state) = (Viewer::default(), SessionConversationState::new());
    for event in events {
        let (next, stream) = reduce_to_stream(&state, event);
        for event in &stream {
            let json = serde_json::to_string(event).unwrap();
            assert_eq!(serde_json::from_str::<StreamEvent>(&json).unwrap(), *event, "{json}");
            viewer.see(&serde_json::from_str(&json).unwrap());
        }
        state = next;
    }
    (viewer, state)
}

#[test]
fn the_stream_of_every_recording_folds_to_the_same_blocks() {
    for fixture in fixtures() {
        let (events, expected) = streamed(&fixture);
        let (mut viewer, state) = viewed(&events);
        assert_eq!(state, expected);
        viewer.check(&fixture.name, &state);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_stream_of_any_session_folds_to_the_same_blocks(world in world(), seed: u64) {
        let (mut viewer, state) = viewed(&observed_in_any_order(&world, seed));
        viewer.check("a session", &state);
    }
}

/// A recording's stream, one line per event: what it is called, what about, and the status that it tells.
#[test]
fn a_turn_with_tools_starts_changes_and_completes_blocks() {
    let fixture = fixtures().into_iter().find(|fixture| fixture.name == "tools").unwrap();
    let (events, _) = streamed(&fixture);
    let mut state = SessionConversationState::new();
    let mut lines = Vec::new();
    for event in &events {
        let (next, stream) = reduce_to_stream(&state, event);
        state = next;
        for event in stream {
            let json = serde_json::to_value(&event).unwrap();
            let (block, updates) = (&json["block"], &json["updates"]);
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let status = if block.is_null() { text(&updates["status"]) } else { text(&block["status"]) };
            let line = [text(&json["type"]), text(&block["type"]), text(&block["name"]), status];
            lines.push(line.join(" ").split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    lines.dedup();
    expect![[r#"
        block_complete user_message complete
        metadata_update
        block_start assistant_text pending
        text_delta
        block_start tool_use bash pending
        block_update running
        block_complete assistant_text complete
        block_complete tool_use bash success
        block_complete tool_result complete
        metadata_update
        block_start thinking pending
        text_delta
        block_complete thinking complete
        block_start tool_use write pending
        block_update running
        block_complete tool_use write success
        block_complete tool_result complete
        metadata_update
        block_start tool_use read pending
        block_update running
        block_complete tool_use read success
        block_complete tool_result complete
        metadata_update
        block_start tool_use edit pending
        block_update running
        block_complete tool_use edit success
        block_complete tool_result complete
        metadata_update
        block_start assistant_text pending
        text_delta
        block_complete assistant_text complete
        metadata_update"#]]
    .assert_eq(&lines.join("\n"));
}
