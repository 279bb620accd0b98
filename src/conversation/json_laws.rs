//! Whatever is written is read as what it was.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{
    BlockBody, BlockOrder, BlockOutput, BlockStatus, ContentPart, ConversationBlock, ConversationEvent,
    Metadata, RunStatus, SessionConversationState, SubagentBlock, SubagentCompleted, SubagentSpawned, Thread,
    TokenUsage, Usage,
};
use crate::{
    ids::{BlockId, ConversationId},
    time::{Millis, Timestamp},
};

fn words() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("main".to_owned()), "[a-c]{1,2}", "\\PC{0,6}"]
}

fn text<T: for<'a> From<&'a str> + std::fmt::Debug>() -> impl Strategy<Value = T> {
    words().prop_map(|text| T::from(text.as_str()))
}

fn maybe<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::of(value)
}

fn any_value() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(words(), inner, 0..3).prop_map(|map| map.into_iter().collect()),
        ]
    })
    .boxed()
}

fn any_metadata() -> BoxedStrategy<Metadata> {
    let fields = prop::collection::btree_map(words(), any_value(), 0..3);
    maybe(fields.prop_map(|fields| Arc::new(fields.into_iter().collect::<Map<_, _>>()))).boxed()
}

/// Fields that no block knows.
fn any_extra() -> BoxedStrategy<Metadata> {
    let name = "[a-c]{1,2}".prop_map(|name| format!("x-{name}"));
    let fields = prop::collection::btree_map(name, any_value(), 1..3);
    maybe(fields.prop_map(|fields| Arc::new(fields.into_iter().collect::<Map<_, _>>()))).boxed()
}

fn any_status() -> impl Strategy<Value = BlockStatus> {
    prop::sample::select(&[BlockStatus::Pending, BlockStatus::Complete, BlockStatus::Error][..])
}

fn any_run() -> impl Strategy<Value = RunStatus> {
    let words = [RunStatus::Pending, RunStatus::Running, RunStatus::Success, RunStatus::Error];
    prop::sample::select(words.to_vec())
}

fn any_millis() -> impl Strategy<Value = Millis> {
    // JSON of a browser cannot say more, and years have four digits.
    (-62_135_596_800_000_i64..=253_402_207_200_000).prop_map(Millis::new)
}

fn any_timestamp() -> impl Strategy<Value = Timestamp> {
    any_millis().prop_map(Timestamp::from)
}

fn any_order() -> BoxedStrategy<BlockOrder> {
    (any_millis(), text(), 0..2_u8, text(), any::<u32>())
        .prop_map(|(created, message, rank, part, sub)| BlockOrder { created, message, rank, part, sub })
        .boxed()
}

fn any_output() -> BoxedStrategy<BlockOutput> {
    any_value().prop_map(BlockOutput::from).boxed()
}

fn any_parts() -> BoxedStrategy<Vec<ContentPart>> {
    let file = (text(), maybe(text()), maybe(text()), any::<Option<u64>>())
        .prop_map(|(media_type, filename, url, size)| ContentPart::File { media_type, filename, url, size });
    let agent = text().prop_map(|name| ContentPart::Agent { name });
    let subtask = (text(), text(), text()).prop_map(|(agent, description, prompt)| ContentPart::Subtask {
        agent,
        description,
        prompt,
    });
    prop::collection::vec(prop_oneof![file, agent, subtask], 0..3).boxed()
}

fn any_body() -> BoxedStrategy<BlockBody> {
    let tool = (text(), text(), maybe(text()), any_value(), any_run()).prop_map(
        |(tool_use_id, name, title, input, tool_status)| {
            let input = Arc::new(input);
            BlockBody::ToolUse { tool_use_id, name, title, input, tool_status }
        },
    );
    let result = (text(), any_output(), any::<bool>(), any::<Option<u64>>(), any_parts()).prop_map(
        |(tool_use_id, output, is_error, duration_ms, parts)| BlockBody::ToolResult {
            tool_use_id,
            output,
            is_error,
            duration_ms,
            parts,
        },
    );
    let ids = (text(), maybe(text()), any_run());
    let rest = (text(), maybe(text()), any_value(), maybe(any_output()), any::<Option<u64>>());
    let subagent = (ids, rest).prop_map(|(ids, rest)| {
        let (tool_use_id, subagent_id, subagent_status) = ids;
        let (name, description, input, output, duration_ms) = rest;
        let input = Arc::new(input);
        BlockBody::Subagent(SubagentBlock {
            tool_use_id,
            subagent_id,
            subagent_status,
            name,
            description,
            input,
            output,
            duration_ms,
        })
    });
    prop_oneof![
        (text(), any_parts()).prop_map(|(content, parts)| BlockBody::UserMessage { content, parts }),
        (text(), maybe(text())).prop_map(|(content, model)| BlockBody::AssistantText { content, model }),
        (text(), maybe(text())).prop_map(|(content, model)| BlockBody::Thinking { content, model }),
        (maybe(text()), text()).prop_map(|(subtype, content)| BlockBody::System { subtype, content }),
        text().prop_map(|content| BlockBody::Error { content }),
        "[x-z]{1,2}".prop_map(|kind| BlockBody::Unknown { kind: kind.into() }),
        tool,
        result,
        subagent,
    ]
    .boxed()
}

fn any_block() -> BoxedStrategy<ConversationBlock> {
    let head = (text(), text(), maybe(any_order()), any_timestamp(), any_status());
    (head, any_metadata(), any_body(), any_extra())
        .prop_map(|(head, metadata, body, extra)| {
            let (id, conversation_id, order, timestamp, status) = head;
            ConversationBlock { id, conversation_id, order, timestamp, status, metadata, body, extra }
        })
        .boxed()
}

fn any_spawned() -> BoxedStrategy<SubagentSpawned> {
    let ids = (text(), text(), maybe(text()), text(), maybe(text()), text());
    (ids, any_run(), maybe(any_order()), maybe(any_timestamp()), any_metadata())
        .prop_map(|(ids, status, order, timestamp, metadata)| {
            let (conversation_id, tool_use_id, agent_id, subagent_type, description, prompt) = ids;
            SubagentSpawned {
                conversation_id,
                tool_use_id,
                agent_id,
                subagent_type,
                description,
                prompt,
                status,
                order,
                timestamp,
                metadata,
            }
        })
        .boxed()
}

fn any_completed() -> BoxedStrategy<SubagentCompleted> {
    let ids = (text(), text(), maybe(text()), any_run(), maybe(any_output()), any::<Option<u64>>());
    (ids, maybe(any_order()), maybe(any_timestamp()), any_metadata())
        .prop_map(|(ids, order, timestamp, metadata)| {
            let (conversation_id, tool_use_id, agent_id, status, output, duration_ms) = ids;
            SubagentCompleted {
                conversation_id,
                tool_use_id,
                agent_id,
                status,
                output,
                duration_ms,
                order,
                timestamp,
                metadata,
            }
        })
        .boxed()
}

fn any_usage() -> impl Strategy<Value = Usage> {
    let counts = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    (counts, 0.0..1e9_f64).prop_map(|((input, output, reasoning, cache_read, cache_write), cost)| {
        let [input, output, reasoning, cache_read, cache_write] =
            [input, output, reasoning, cache_read, cache_write].map(u64::from);
        Usage { tokens: TokenUsage { input, output, reasoning, cache_read, cache_write }, cost }
    })
}

fn any_event() -> BoxedStrategy<ConversationEvent> {
    use ConversationEvent as E;
    let id = || text::<ConversationId>();
    prop_oneof![
        (id(), any_block())
            .prop_map(|(conversation_id, block)| E::BlockUpsert { conversation_id, block: Arc::new(block) }),
        (id(), text(), words()).prop_map(|(conversation_id, block_id, delta)| E::BlockDelta {
            conversation_id,
            block_id,
            delta
        }),
        (id(), text()).prop_map(|(conversation_id, block_id)| E::BlockRemoved { conversation_id, block_id }),
        any_spawned().prop_map(E::SubagentSpawned),
        any_completed().prop_map(E::SubagentCompleted),
        id().prop_map(|conversation_id| E::SessionIdle { conversation_id }),
        (id(), text(), any_millis(), maybe(text()), maybe(any_usage())).prop_map(
            |(conversation_id, message_id, created, model, usage)| E::MetadataUpdate {
                conversation_id,
                message_id,
                created,
                model,
                usage,
            }
        ),
    ]
    .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_survive_being_written(event in any_event()) {
        let json = serde_json::to_string(&event).unwrap();
        prop_assert_eq!(&serde_json::from_str::<ConversationEvent>(&json).unwrap(), &event, "{}", json);
    }

    #[test]
    fn states_survive_being_written(events in prop::collection::vec(any_event(), 0..20)) {
        let mut state = SessionConversationState::new();
        for event in &events {
            state.apply(event);
            let json = serde_json::to_string(&state).unwrap();
            let read: SessionConversationState = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(&read, &state, "{}", json);
            // What follows, too, is the same for both.
            for event in &events {
                let (mut one, mut two) = (state.clone(), read.clone());
                one.apply(event);
                two.apply(event);
                prop_assert_eq!(one, two, "{:?}", event);
            }
        }
    }

    #[test]
    fn a_block_without_a_place_keeps_its_own_or_comes_last(blocks in prop::collection::vec(any_block(), 1..12)) {
        let mut thread = Thread::default();
        for mut block in blocks {
            block.order = None;
            let ids = |thread: &Thread| thread.iter().map(|block| block.id.clone()).collect::<Vec<BlockId>>();
            let mut expected = ids(&thread);
            if !expected.contains(&block.id) {
                expected.push(block.id.clone());
            }
            thread.put(&Arc::new(block));
            prop_assert_eq!(ids(&thread), expected);
            prop_assert!(thread.iter().all(|block| block.order.is_some()));
        }
    }
}
