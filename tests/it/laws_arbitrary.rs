//! Nothing that can be written as JSON makes decoding, merging, folding or rendering panic.

use std::sync::LazyLock;

use opencode_conductor::{
    Architecture, Change, ConversationEvent, ConversationId, ConvertOptions, SessionConversationState,
    SessionTree, Snapshot,
    markdown::{self, MarkdownOptions},
    parse_transcript, reduce_with_changes,
    wire::{Message, ServerEvent},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    fixtures_parity::{Fixture, fixtures},
    laws_fold::config,
    laws_model::Dice,
};

static FIXTURES: LazyLock<Vec<(Fixture, Vec<Value>)>> = LazyLock::new(|| {
    let events = |fixture: &Fixture| {
        let lines = fixture.events.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    fixtures()
        .into_iter()
        .map(|fixture| (events(&fixture), fixture))
        .map(|(events, fixture)| (fixture, events))
        .collect()
});

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop::sample::select(&["ses_1", "main", "text", "task", "running", "completed", ""][..])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let field = prop::sample::select(
            &["id", "type", "info", "part", "parts", "state", "time", "sessionID", "x"][..],
        );
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(field, inner, 0..4)
                .prop_map(|map| map.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()),
        ]
    })
}

/// Replaces, removes or adds something somewhere.
fn mutate(value: &mut Value, with: &Value, dice: &mut Dice) {
    match value {
        Value::Object(object) if !object.is_empty() && !dice.one_in(6) => {
            let field = object.keys().nth(dice.below(object.len())).unwrap().clone();
            match dice.below(8) {
                0 => drop(object.remove(&field)),
                1 => drop(object.insert(field, with.clone())),
                _ => mutate(&mut object[&field], with, dice),
            }
        }
        Value::Array(array) if !array.is_empty() && !dice.one_in(4) => {
            let at = dice.below(array.len());
            mutate(&mut array[at], with, dice);
        }
        other => *other = with.clone(),
    }
}

fn check_state(state: &SessionConversationState) -> Result<(), TestCaseError> {
    prop_assert_eq!(state.blocks().len(), state.blocks().iter().count());
    let json = serde_json::to_string(state).unwrap();
    prop_assert_eq!(&serde_json::from_str::<SessionConversationState>(&json).unwrap(), state);
    let _ = markdown::render(state, &MarkdownOptions::default());
    Ok(())
}

/// Few ids, so that they collide in every way.
fn any_event() -> impl Strategy<Value = Value> {
    let id = || prop::sample::select(&["main", "a", "b", "c", "d"][..]);
    let status = || prop::sample::select(&["pending", "running", "success", "error"][..]);
    let order = (0..3, id()).prop_map(|(at, id)| json!([at, "m", 0, id, 0]));
    let body = prop_oneof![
        Just(json!({"type": "assistant_text", "content": "x", "status": "pending"})),
        Just(
            json!({"type": "tool_use", "toolUseId": "a", "name": "n", "toolStatus": "running", "status": "pending"})
        ),
        (id(), status(), prop::option::of(id()))
            .prop_map(|(id, status, agent)| json!({"type": "subagent", "toolUseId": id,
            "subagentId": agent, "subagentStatus": status, "status": "complete"})),
    ];
    let moment = "2026-01-31T12:00:00Z";
    let head = (id(), id(), order).prop_map(move |(conversation, id, order)| {
        json!({"conversationId": conversation, "toolUseId": id, "blockId": id, "messageId": id, "order": order,
            "created": 1, "timestamp": moment, "delta": "y"})
    });
    (head, body, status(), prop::option::of(id()), 0..7_usize).prop_map(
        |(mut event, mut block, status, agent, kind)| {
            let kind = [
                "block:upsert",
                "block:delta",
                "block:removed",
                "subagent:spawned",
                "subagent:completed",
                "session:idle",
                "metadata:update",
            ][kind];
            block["id"] = event["blockId"].clone();
            for field in ["conversationId", "order", "timestamp"] {
                block[field] = event[field].clone();
            }
            event["type"] = json!(kind);
            event["block"] = block;
            event["status"] = json!(status);
            event["agentId"] = json!(agent);
            if agent.is_some() {
                event["usage"] = json!({"tokens": {"input": 1}, "cost": 1.5});
            }
            event
        },
    )
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_text_is_decoded_or_refused(text in "\\PC{0,60}", json in any_json()) {
        for text in [text, json.to_string(), format!("[{json}]"), format!("data: {json}\n")] {
            drop(ServerEvent::from_json(&text));
            drop(Message::list_from_json(&text));
            drop(parse_transcript(Architecture::OpenCode, &text));
        }
    }

    #[test]
    fn any_session_of_recorded_and_broken_events_folds(which: usize, json in any_json(), seed: u64) {
        let (fixture, events) = &FIXTURES[which % FIXTURES.len()];
        let mut dice = Dice::new(seed);
        let mut tree = SessionTree::new(fixture.sessions[0].id.clone(), ConvertOptions::default());
        let mut given = SessionTree::new(fixture.sessions[0].id.clone(), ConvertOptions::default());
        let mut state = SessionConversationState::new();
        for event in events.iter().take(80) {
            let mut event = event.clone();
            if dice.one_in(3) {
                mutate(&mut event, &json, &mut dice);
            }
            if let Ok(event) = ServerEvent::from_json(&event.to_string()) {
                let lent = tree.apply_event(&event);
                // An event that is given away means the same.
                assert_eq!(given.apply_event(event), lent);
                state.extend(&lent.events);
            }
        }
        let mut list: Value = serde_json::from_str(&fixture.lists[0]).unwrap();
        for snapshot in [Snapshot::Live, Snapshot::Settled, Snapshot::Complete] {
            mutate(&mut list, &json, &mut dice);
            if let Ok(messages) = Message::list_from_json(&list.to_string()) {
                state.extend(&tree.apply_messages(&fixture.sessions[0].id, &messages.items, snapshot).events);
            }
        }
        for session in &fixture.sessions {
            state.extend(&tree.settle(&session.id).events);
        }
        check_state(&state)?;
    }

    #[test]
    fn any_conversation_events_fold(events in prop::collection::vec(any_event(), 0..30)) {
        let mut state = SessionConversationState::new();
        for event in events {
            let event: ConversationEvent = serde_json::from_value(event).unwrap();
            let again: ConversationEvent = serde_json::from_str(&serde_json::to_string(&event).unwrap()).unwrap();
            prop_assert_eq!(&again, &event);
            let (next, changes) = reduce_with_changes(&state, &event);
            // A change is reported exactly if there is one, and what is reported to be there is there.
            prop_assert_eq!(changes.is_empty(), next == state, "{:?} {:?}", event, changes);
            for change in &changes {
                match change {
                    Change::Block { conversation_id, block_id, .. } => {
                        prop_assert!(next.block(conversation_id, block_id).is_some(), "{:?}", change);
                    }
                    Change::Subagent { tool_use_id, .. } => {
                        let removed = changes.iter().any(|other| {
                            matches!(other, Change::SubagentRemoved { tool_use_id: removed, .. } if removed == tool_use_id)
                        });
                        prop_assert!(removed || next.subagent(tool_use_id).is_some(), "{:?}", change);
                    }
                    _ => {}
                }
            }
            state = next;
        }
        let usage = state.thread(&ConversationId::main()).map(|_| state.total_usage());
        prop_assert!(usage.is_some());
        check_state(&state)?;
    }
}
