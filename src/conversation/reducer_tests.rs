use std::sync::Arc;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{
    BlockBody, BlockOrder, BlockStatus, Change, ConversationBlock, ConversationEvent, RunStatus,
    SessionConversationState, reduce_session_event, reduce_with_changes,
};
use crate::ids::{BlockId, ConversationId, MessageId, PartId, ToolUseId};

/// Decodes an event as a TypeScript peer would send it.
fn event(json: Value) -> ConversationEvent {
    serde_json::from_value(json).unwrap()
}

fn order(at: u32) -> Value {
    json!([1000 + at, format!("msg_{at}"), 0, format!("prt_{at}"), 0])
}

fn block(conversation: &str, at: u32, status: &str, body: &Value) -> ConversationEvent {
    let mut block = json!({
        "id": format!("prt_{at}"), "conversationId": conversation, "order": order(at),
        "timestamp": "2026-01-31T12:00:00Z", "status": status,
    });
    block.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    event(json!({"type": "block:upsert", "conversationId": conversation, "block": block}))
}

fn text(conversation: &str, at: u32, status: &str, content: &str) -> ConversationEvent {
    block(conversation, at, status, &json!({"type": "assistant_text", "content": content}))
}

fn tool(conversation: &str, at: u32, tool_status: &str) -> ConversationEvent {
    let status = if tool_status == "success" { "complete" } else { "pending" };
    let body = json!({"type": "tool_use", "toolUseId": format!("prt_{at}"), "name": "bash", "input": {},
        "toolStatus": tool_status});
    block(conversation, at, status, &body)
}

fn delta(conversation: &str, at: u32, delta: &str) -> ConversationEvent {
    event(
        json!({"type": "block:delta", "conversationId": conversation, "blockId": format!("prt_{at}"), "delta": delta}),
    )
}

fn removed(conversation: &str, id: &str) -> ConversationEvent {
    event(json!({"type": "block:removed", "conversationId": conversation, "blockId": id}))
}

fn spawned(conversation: &str, id: &str, agent: Option<&str>) -> ConversationEvent {
    event(
        json!({"type": "subagent:spawned", "conversationId": conversation, "toolUseId": id, "agentId": agent,
        "name": "general", "input": {"prompt": "look"}, "status": "running", "order": order(50),
        "timestamp": "2026-01-31T12:00:00Z"}),
    )
}

fn completed(conversation: &str, id: &str, status: &str) -> ConversationEvent {
    event(
        json!({"type": "subagent:completed", "conversationId": conversation, "toolUseId": id, "status": status,
        "output": "found", "durationMs": 7, "order": order(50), "timestamp": "2026-01-31T12:00:00Z"}),
    )
}

fn idle(conversation: &str) -> ConversationEvent {
    event(json!({"type": "session:idle", "conversationId": conversation}))
}

fn usage(
    conversation: &str,
    message: &str,
    created: i64,
    model: &str,
    input: u64,
    cost: f64,
) -> ConversationEvent {
    event(json!({"type": "metadata:update", "conversationId": conversation, "messageId": message,
        "created": created, "model": model, "usage": {"tokens": {"input": input}, "cost": cost}}))
}

fn fold(events: &[ConversationEvent]) -> SessionConversationState {
    events.iter().fold(SessionConversationState::new(), |state, event| reduce_session_event(&state, event))
}

/// One line per block, subagents below, indented.
fn outline(state: &SessionConversationState) -> String {
    fn line(block: &ConversationBlock) -> String {
        let what = match &block.body {
            BlockBody::UserMessage { content, .. } => format!("user {content:?}"),
            BlockBody::AssistantText { content, .. } => format!("text {content:?}"),
            BlockBody::Thinking { content, .. } => format!("thinking {content:?}"),
            BlockBody::ToolUse { name, tool_status, .. } => format!("tool {name} {tool_status:?}"),
            BlockBody::ToolResult { output, .. } => format!("result {output:?}"),
            BlockBody::System { content, .. } => format!("system {content:?}"),
            BlockBody::Error { content } => format!("error {content:?}"),
            BlockBody::Unknown { kind } => format!("{kind}"),
            BlockBody::Subagent(subagent) => format!(
                "subagent {} {:?} {:?} {:?}",
                subagent.name, subagent.subagent_id, subagent.subagent_status, subagent.output
            ),
        };
        format!("{} {:?} {what}\n", block.id, block.status)
    }
    let mut lines: String = state.blocks().iter().map(|block| line(block)).collect();
    for subagent in state.subagents() {
        let parent = &subagent.parent_id;
        let about = (&subagent.agent_id, subagent.status);
        lines.extend([format!(
            "[{} in {parent}: {} {:?} {:?}]\n",
            subagent.tool_use_id, subagent.name, about.0, about.1
        )]);
        lines.extend(subagent.blocks.iter().map(|block| format!("  {}", line(block))));
    }
    lines
}

#[track_caller]
fn check(events: &[ConversationEvent], expected: &Expect) {
    let state = fold(events);
    expected.assert_eq(&outline(&state));
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<SessionConversationState>(&json).unwrap(), state, "{json}");
}

#[test]
fn deltas_append_and_white_space_is_content() {
    check(
        &[
            text("main", 1, "pending", "a"),
            delta("main", 1, ""),
            delta("main", 1, "\n"),
            delta("main", 1, "  b"),
        ],
        &expect![[r#"
            prt_1 Pending text "a\n  b"
        "#]],
    );
}

#[test]
fn a_delta_before_its_block_is_ignored() {
    check(
        &[delta("main", 1, "lost"), delta("nowhere", 1, "lost"), text("main", 1, "pending", "kept")],
        &expect![[r#"
            prt_1 Pending text "kept"
        "#]],
    );
}

#[test]
fn a_delta_on_a_block_without_streamed_text_is_ignored() {
    let user = block("main", 2, "complete", &json!({"type": "user_message", "content": "hi", "parts": []}));
    check(
        &[tool("main", 1, "running"), delta("main", 1, "x"), user, delta("main", 2, "x")],
        &expect![[r#"
            prt_1 Pending tool bash Running
            prt_2 Complete user "hi"
        "#]],
    );
}

#[test]
fn an_upsert_replaces_also_the_kind_and_the_place() {
    let moved = block("main", 1, "complete", &json!({"type": "thinking", "content": "b", "order": order(9)}));
    check(
        &[text("main", 1, "pending", "a"), text("main", 2, "complete", "c"), moved],
        &expect![[r#"
            prt_2 Complete text "c"
            prt_1 Complete thinking "b"
        "#]],
    );
}

#[test]
fn blocks_stand_where_the_data_says_whatever_the_arrival() {
    let events = [
        text("main", 1, "complete", "a"),
        text("main", 2, "complete", "b"),
        text("main", 3, "complete", "c"),
    ];
    let [one, two, three] = &events;
    let backwards = [three.clone(), one.clone(), two.clone()];
    assert_eq!(fold(&events), fold(&backwards));
    assert_eq!(
        serde_json::to_string(&fold(&events)).unwrap(),
        serde_json::to_string(&fold(&backwards)).unwrap()
    );
}

#[test]
fn two_blocks_with_the_same_place_are_both_kept() {
    let twin = block("main", 1, "complete", &json!({"type": "thinking", "content": "b", "id": "twin"}));
    check(
        &[text("main", 1, "complete", "a"), twin],
        &expect![[r#"
            prt_1 Complete text "a"
            twin Complete thinking "b"
        "#]],
    );
}

#[test]
fn a_spawned_subagent_has_a_block_and_a_thread() {
    check(
        &[
            spawned("main", "t1", Some("ses_1")),
            text("t1", 1, "complete", "inside"),
            completed("main", "t1", "success"),
        ],
        &expect![[r#"
            t1 Complete subagent general Some("ses_1") Success Some("found")
            [t1 in main: general Some("ses_1") Success]
              prt_1 Complete text "inside"
        "#]],
    );
}

#[test]
fn blocks_before_the_spawn_find_their_subagent() {
    check(
        &[
            text("t1", 1, "complete", "early"),
            usage("t1", "m", 1, "x", 5, 0.5),
            spawned("main", "t1", Some("ses_1")),
        ],
        &expect![[r#"
            t1 Pending subagent general Some("ses_1") Running None
            [t1 in main: general Some("ses_1") Running]
              prt_1 Complete text "early"
        "#]],
    );
}

#[test]
fn completion_before_the_spawn_is_not_lost() {
    let early = [completed("main", "t1", "error"), spawned("main", "t1", Some("ses_1"))];
    let late = [spawned("main", "t1", Some("ses_1")), completed("main", "t1", "error")];
    assert_eq!(fold(&early), fold(&late));
    check(
        &early,
        &expect![[r#"
            t1 Error subagent general Some("ses_1") Error Some("found")
            [t1 in main: general Some("ses_1") Error]
        "#]],
    );
}

#[test]
fn a_repeated_spawn_fills_in_and_takes_nothing_away() {
    let bare =
        event(json!({"type": "subagent:spawned", "conversationId": "main", "toolUseId": "t1", "name": "",
        "input": {}, "status": "pending", "order": order(50), "timestamp": "2026-01-31T12:00:00Z"}));
    let expected = fold(&[spawned("main", "t1", Some("ses_1"))]);
    assert_eq!(fold(&[bare.clone(), spawned("main", "t1", Some("ses_1"))]), expected);
    assert_eq!(
        fold(&[spawned("main", "t1", Some("ses_1")), bare.clone(), spawned("main", "t1", None)]),
        expected
    );
    let (_, changes) = reduce_with_changes(&expected, &bare);
    assert_eq!(changes, []);
}

#[test]
fn threads_are_found_by_tool_use_first_and_then_by_agent() {
    check(
        &[
            spawned("main", "t1", Some("t2")),
            spawned("main", "t2", Some("ses_2")),
            text("t2", 1, "complete", "for the tool use t2"),
            text("ses_2", 2, "complete", "for the agent ses_2"),
        ],
        &expect![[r#"
            t1 Pending subagent general Some("t2") Running None
            t2 Pending subagent general Some("ses_2") Running None
            [t1 in main: general Some("t2") Running]
            [t2 in main: general Some("ses_2") Running]
              prt_1 Complete text "for the tool use t2"
              prt_2 Complete text "for the agent ses_2"
        "#]],
    );
    let state = fold(&[spawned("main", "t2", Some("ses_2")), text("ses_2", 2, "complete", "x")]);
    let thread = state.thread(&ConversationId::new("ses_2")).unwrap();
    assert_eq!(thread.iter().next().unwrap().conversation_id, ConversationId::new("t2"));
}

#[test]
fn of_two_calls_with_one_agent_the_first_by_id_is_meant_by_the_agent() {
    let one = spawned("main", "t1", Some("ses_1"));
    let two = spawned("main", "t2", Some("ses_1"));
    for events in [[&one, &two], [&two, &one]] {
        let mut state = fold(&events.map(Clone::clone));
        state.apply(&text("ses_1", 1, "complete", "x"));
        assert_eq!(state.subagent(&ToolUseId::new("t1")).unwrap().blocks.len(), 1);
        state.apply(&removed("main", "t1"));
        state.apply(&text("ses_1", 1, "complete", "x"));
        assert_eq!(state.subagent(&ToolUseId::new("t2")).unwrap().blocks.len(), 1);
    }
}

#[test]
fn a_block_without_a_place_stays_where_it_is_or_comes_last() {
    let placeless = |at: u32, content: &str| {
        block("main", at, "complete", &json!({"type": "thinking", "content": content, "order": null}))
    };
    check(
        &[
            placeless(9, "first"),
            text("main", 1, "complete", "a"),
            placeless(7, "last"),
            placeless(1, "b"),
            text("main", 2, "complete", "c"),
            placeless(9, "still first"),
        ],
        &expect![[r#"
            prt_9 Complete thinking "still first"
            prt_1 Complete thinking "b"
            prt_7 Complete thinking "last"
            prt_2 Complete text "c"
        "#]],
    );
}

#[test]
fn a_subagent_that_has_ended_is_not_started_again() {
    let running =
        json!({"type": "subagent", "id": "t1", "toolUseId": "t1", "status": "running", "name": "explore"});
    check(
        &[
            spawned("main", "t1", None),
            completed("main", "t1", "completed"),
            completed("main", "t1", "running"),
            spawned("main", "t1", Some("ses_1")),
            block("main", 50, "pending", &running),
        ],
        &expect![[r#"
            t1 Complete subagent explore None Success Some("found")
            [t1 in main: explore Some("ses_1") Success]
        "#]],
    );
    let mut other = running.clone();
    other["id"] = json!("another");
    let state = fold(&[completed("main", "t1", "error"), block("main", 51, "pending", &other)]);
    assert_eq!(state.subagent(&ToolUseId::new("t1")).unwrap().status, RunStatus::Error);
    assert_eq!(state.blocks().get(&BlockId::new("another")).unwrap().status, BlockStatus::Error);
    // But a second end is an end.
    let state = fold(&[completed("main", "t1", "completed"), completed("main", "t1", "error")]);
    assert_eq!(state.subagent(&ToolUseId::new("t1")).unwrap().status, RunStatus::Error);
}

#[test]
fn an_end_that_is_none_only_moves_forward() {
    check(
        &[completed("main", "t1", "running"), completed("main", "t1", "pending")],
        &expect![[r#"
            t1 Pending subagent  None Running None
            [t1 in main:  None Running]
        "#]],
    );
}

#[test]
fn a_subagents_record_says_what_its_block_says() {
    let state = fold(&[
        spawned("main", "t1", None),
        event(
            json!({"type": "subagent:completed", "toolUseId": "t1", "agentId": "a1", "status": "completed",
            "output": "found", "durationMs": 7, "tokens": 12}),
        ),
    ]);
    let subagent = state.subagent_of_agent(&"a1".into()).unwrap();
    assert_eq!((&*subagent.name, subagent.prompt.as_deref()), ("general", Some("look")));
    assert_eq!((subagent.output.clone(), subagent.duration_ms), (Some("found".into()), Some(7)));
    let block = state.blocks().get(&"t1".into()).unwrap();
    assert_eq!(block.metadata.as_ref().unwrap()["tokens"], 12);
}

#[test]
fn a_subagents_block_may_have_an_id_of_its_own() {
    let shown = |status: &str| {
        let body = json!({"type": "subagent", "toolUseId": "t1", "name": "explore", "status": status});
        block("main", 1, "pending", &body)
    };
    check(
        &[shown("running"), text("t1", 2, "complete", "inside"), completed("main", "t1", "completed")],
        &expect![[r#"
            prt_1 Complete subagent explore None Success Some("found")
            [t1 in main: explore None Success]
              prt_2 Complete text "inside"
        "#]],
    );
    // It moves like any other, and goes with its thread.
    let events = [spawned("main", "t2", None), shown("running"), spawned("t2", "t1", None)];
    check(
        &events,
        &expect![[r#"
            t2 Pending subagent general None Running None
            [t1 in t2: general None Running]
            [t2 in main: general None Running]
              prt_1 Pending subagent general None Running None
        "#]],
    );
    let mut state = fold(&events);
    state.apply(&removed("t2", "prt_1"));
    assert_eq!(state, fold(&events[..1]));
}

#[test]
fn nested_subagents_live_in_the_root_and_show_in_their_parent() {
    check(
        &[
            spawned("main", "t1", Some("ses_1")),
            spawned("t1", "t2", Some("ses_2")),
            text("t2", 1, "complete", "deep"),
            completed("t1", "t2", "success"),
        ],
        &expect![[r#"
            t1 Pending subagent general Some("ses_1") Running None
            [t1 in main: general Some("ses_1") Running]
              t2 Complete subagent general Some("ses_2") Success Some("found")
            [t2 in t1: general Some("ses_2") Success]
              prt_1 Complete text "deep"
        "#]],
    );
}

#[test]
fn completion_finds_the_block_wherever_it_lives() {
    check(
        &[spawned("main", "t1", None), spawned("t1", "t2", None), completed("main", "t2", "success")],
        &expect![[r#"
            t1 Pending subagent general None Running None
            [t1 in main: general None Running]
              t2 Complete subagent general None Success Some("found")
            [t2 in t1: general None Success]
        "#]],
    );
}

#[test]
fn a_subagent_spawned_elsewhere_moves_with_its_thread() {
    check(
        &[
            spawned("main", "t1", None),
            spawned("main", "t2", None),
            text("t2", 1, "complete", "x"),
            spawned("t1", "t2", None),
        ],
        &expect![[r#"
            t1 Pending subagent general None Running None
            [t1 in main: general None Running]
              t2 Pending subagent general None Running None
            [t2 in t1: general None Running]
              prt_1 Complete text "x"
        "#]],
    );
}

#[test]
fn idle_finishes_all_that_is_pending_in_its_thread_but_no_running_subagent() {
    check(
        &[
            text("main", 1, "pending", "a"),
            tool("main", 2, "running"),
            spawned("main", "t1", None),
            text("t1", 3, "pending", "still streaming"),
            idle("main"),
            idle("nowhere"),
        ],
        &expect![[r#"
            prt_1 Complete text "a"
            prt_2 Complete tool bash Running
            t1 Pending subagent general None Running None
            [t1 in main: general None Running]
              prt_3 Pending text "still streaming"
        "#]],
    );
}

#[test]
fn removal_takes_a_subagents_thread_and_all_below_it() {
    check(
        &[
            spawned("main", "t1", Some("ses_1")),
            spawned("t1", "t2", None),
            spawned("t2", "t3", None),
            text("main", 1, "complete", "stays"),
            text("main", 2, "complete", "goes"),
            spawned("main", "t9", None),
            removed("main", "t1"),
            removed("main", "prt_2"),
            removed("main", "unknown"),
            removed("nowhere", "prt_1"),
        ],
        &expect![[r#"
            prt_1 Complete text "stays"
            t9 Pending subagent general None Running None
            [t9 in main: general None Running]
        "#]],
    );
}

#[test]
fn a_subagent_that_was_never_announced_can_be_removed() {
    assert_eq!(fold(&[text("ses_1", 1, "complete", "x"), removed("main", "ses_1")]), fold(&[]));
}

#[test]
fn removing_a_block_named_like_another_threads_subagent_leaves_that_alone() {
    let like = block("t1", 1, "complete", &json!({"type": "assistant_text", "content": "x", "id": "t2"}));
    check(
        &[
            spawned("main", "t1", None),
            spawned("main", "t2", None),
            like,
            removed("t1", "t2"),
            removed("t1", "t2"),
        ],
        &expect![[r"
            t1 Pending subagent general None Running None
            t2 Pending subagent general None Running None
            [t1 in main: general None Running]
            [t2 in main: general None Running]
        "]],
    );
}

#[test]
fn a_subagent_in_its_own_thread_does_no_harm() {
    let mut state = fold(&[spawned("t1", "t1", Some("t1")), spawned("main", "main", Some("main"))]);
    state.apply(&text("main", 1, "complete", "x"));
    assert_eq!(state.blocks().len(), 2);
    state.apply(&removed("t1", "t1"));
    assert!(state.subagent(&ToolUseId::new("t1")).is_none());
    let _ = crate::markdown::render(&state, &crate::markdown::MarkdownOptions::default());
}

#[test]
fn very_deep_nesting_is_removed_without_recursion() {
    let mut state = SessionConversationState::new();
    let mut parent = "main".to_owned();
    for depth in 0..20_000 {
        let id = format!("t{depth}");
        state.apply(&spawned(&parent, &id, None));
        parent = id;
    }
    let _ = crate::markdown::render(&state, &crate::markdown::MarkdownOptions::default());
    state.apply(&removed("main", "t0"));
    assert_eq!(state, SessionConversationState::new());
}

#[test]
fn usage_is_kept_per_message_and_counted_once() {
    let mut state = fold(&[
        spawned("main", "t1", None),
        usage("main", "m1", 1, "p/one", 10, 0.1),
        usage("main", "m2", 2, "p/two", 20, 0.2),
        usage("main", "m2", 2, "p/two", 30, 0.3),
        usage("t1", "m3", 3, "p/three", 5, 0.5),
    ]);
    assert_eq!((state.usage().tokens.input, state.total_usage().tokens.input), (40, 45));
    assert_eq!((state.usage().cost, state.total_usage().cost), (0.1 + 0.3, 0.1 + 0.3 + 0.5));
    assert_eq!(state.metadata().model().map(|model| &**model), Some("p/two"));
    let gone =
        event(json!({"type": "metadata:update", "conversationId": "main", "messageId": "m2", "created": 2}));
    assert_eq!(
        state.apply_with_changes(&gone),
        [Change::Metadata { conversation_id: ConversationId::main() }]
    );
    assert_eq!(state.usage().tokens.input, 10);
    assert_eq!(state.metadata().model().map(|model| &**model), Some("p/one"));
    assert_eq!(state.apply_with_changes(&gone), []);
}

#[test]
fn a_cost_survives_being_written() {
    // Once found off by one digit in the last place.
    for cost in [923_102_434_687_862_081_f64, 0.1 + 0.2, 1e-7, 0.0] {
        let state = fold(&[usage("main", "m1", 1, "p/one", 10, cost)]);
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<SessionConversationState>(&json).unwrap(), state, "{json}");
    }
}

#[test]
fn changes_name_what_changed_and_only_that() {
    let mut state = fold(&[text("main", 1, "pending", "a"), tool("main", 2, "running")]);
    let main = ConversationId::main();
    let changed = |id: &str| Change::Block { conversation_id: main.clone(), block_id: BlockId::new(id) };
    assert_eq!(state.apply_with_changes(&text("main", 1, "pending", "a")), []);
    assert_eq!(state.apply_with_changes(&delta("main", 1, "b")), [changed("prt_1")]);
    assert_eq!(state.apply_with_changes(&delta("main", 2, "b")), []);
    assert_eq!(state.apply_with_changes(&idle("main")), [changed("prt_1"), changed("prt_2")]);
    assert_eq!(state.apply_with_changes(&idle("main")), []);
    assert_eq!(
        state.apply_with_changes(&spawned("main", "t1", None)),
        [changed("t1"), Change::Subagent { tool_use_id: ToolUseId::new("t1") }]
    );
    assert_eq!(
        state.apply_with_changes(&removed("main", "t1")),
        [
            Change::BlockRemoved { conversation_id: main.clone(), block_id: BlockId::new("t1") },
            Change::SubagentRemoved { tool_use_id: ToolUseId::new("t1") }
        ]
    );
}

#[test]
fn old_states_stay_as_they_were_and_share_what_did_not_change() {
    let before = fold(&[text("main", 1, "pending", "a"), text("main", 2, "complete", "b")]);
    let json = serde_json::to_string(&before).unwrap();
    let after = reduce_session_event(&before, &delta("main", 1, "x"));
    assert_eq!(serde_json::to_string(&before).unwrap(), json);
    let id = BlockId::new("prt_2");
    let main = ConversationId::main();
    assert!(Arc::ptr_eq(before.block(&main, &id).unwrap(), after.block(&main, &id).unwrap()));
}

#[test]
fn events_and_blocks_have_the_documented_json() {
    let order = BlockOrder::message(crate::Millis::new(1_786_706_395_007), MessageId::new("msg_1"));
    let mut block = ConversationBlock::new(
        "prt_1",
        order.part(PartId::new("prt_1")),
        BlockBody::ToolUse {
            tool_use_id: ToolUseId::new("prt_1"),
            name: "bash".into(),
            title: None,
            input: Arc::new(json!({"command": "ls"})),
            tool_status: RunStatus::Running,
        },
    );
    block.status = BlockStatus::Pending;
    let upsert =
        ConversationEvent::BlockUpsert { conversation_id: ConversationId::main(), block: Arc::new(block) };
    let events = [
        upsert,
        delta("main", 1, "x"),
        spawned("main", "t1", Some("ses_1")),
        completed("main", "t1", "success"),
        usage("t1", "m1", 1, "p/m", 3, 0.5),
        idle("t1"),
        removed("main", "prt_1"),
    ];
    let lines: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    expect![[r#"
        {"type":"block:upsert","conversationId":"main","block":{"id":"prt_1","conversationId":"main","order":[1786706395007,"msg_1",0,"prt_1",0],"timestamp":"2026-08-14T11:19:55.007Z","status":"pending","type":"tool_use","toolUseId":"prt_1","name":"bash","input":{"command":"ls"},"toolStatus":"running"}}
        {"type":"block:delta","conversationId":"main","blockId":"prt_1","delta":"x"}
        {"type":"subagent:spawned","conversationId":"main","context":{"conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z"},"toolUseId":"t1","agentId":"ses_1","subagentType":"general","prompt":"look","status":"running","order":[1050,"msg_50",0,"prt_50",0],"timestamp":"2026-01-31T12:00:00.000Z"}
        {"type":"subagent:completed","conversationId":"main","toolUseId":"t1","status":"completed","output":"found","durationMs":7,"order":[1050,"msg_50",0,"prt_50",0],"timestamp":"2026-01-31T12:00:00.000Z"}
        {"type":"metadata:update","conversationId":"t1","messageId":"m1","created":1,"model":"p/m","usage":{"tokens":{"input":3,"output":0,"reasoning":0,"cacheRead":0,"cacheWrite":0},"cost":0.5}}
        {"type":"session:idle","conversationId":"t1"}
        {"type":"block:removed","conversationId":"main","blockId":"prt_1"}
    "#]].assert_eq(&(lines.join("\n") + "\n"));
    for (line, event) in lines.iter().zip(&events) {
        assert_eq!(serde_json::from_str::<ConversationEvent>(line).unwrap(), *event);
    }
    let state = fold(&events[..6]);
    expect![[r#"
        {
          "blocks": [
            {
              "id": "t1",
              "conversationId": "main",
              "order": [
                1050,
                "msg_50",
                0,
                "prt_50",
                0
              ],
              "timestamp": "2026-01-31T12:00:00.000Z",
              "status": "success",
              "type": "subagent",
              "toolUseId": "t1",
              "subagentId": "ses_1",
              "subagentStatus": "success",
              "name": "general",
              "input": "look",
              "output": "found",
              "durationMs": 7
            },
            {
              "id": "prt_1",
              "conversationId": "main",
              "order": [
                1786706395007,
                "msg_1",
                0,
                "prt_1",
                0
              ],
              "timestamp": "2026-08-14T11:19:55.007Z",
              "status": "pending",
              "type": "tool_use",
              "toolUseId": "prt_1",
              "name": "bash",
              "input": {
                "command": "ls"
              },
              "toolStatus": "running"
            }
          ],
          "subagents": [
            {
              "toolUseId": "t1",
              "agentId": "ses_1",
              "parentId": "main",
              "name": "general",
              "status": "success",
              "prompt": "look",
              "output": "found",
              "durationMs": 7,
              "blocks": [],
              "metadata": {
                "model": "p/m",
                "usage": {
                  "tokens": {
                    "input": 3,
                    "output": 0,
                    "reasoning": 0,
                    "cacheRead": 0,
                    "cacheWrite": 0
                  },
                  "cost": 0.5
                },
                "messages": [
                  {
                    "messageId": "m1",
                    "created": 1,
                    "model": "p/m",
                    "usage": {
                      "tokens": {
                        "input": 3,
                        "output": 0,
                        "reasoning": 0,
                        "cacheRead": 0,
                        "cacheWrite": 0
                      },
                      "cost": 0.5
                    }
                  }
                ]
              }
            }
          ],
          "metadata": {
            "usage": {
              "tokens": {
                "input": 0,
                "output": 0,
                "reasoning": 0,
                "cacheRead": 0,
                "cacheWrite": 0
              },
              "cost": 0
            },
            "messages": []
          }
        }
    "#]]
    .assert_eq(&(serde_json::to_string_pretty(&state).unwrap() + "\n"));
}

#[test]
fn unknown_fields_are_tolerated() {
    let with_more = json!({"type": "session:idle", "conversationId": "main", "since": 1});
    assert_eq!(event(with_more), idle("main"));
    let state = json!({"blocks": [], "later": true});
    assert_eq!(
        serde_json::from_value::<SessionConversationState>(state).unwrap(),
        SessionConversationState::new()
    );
}
