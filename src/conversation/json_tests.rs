//! The JSON of everything that is serialised, and what else is read.

use std::sync::Arc;

use expect_test::{Expect, expect};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    BlockBody, BlockOrder, BlockOutput, BlockStatus, BlockText, ContentPart, ConversationBlock,
    ConversationEvent, ConversationMetadata, MessageUsage, RunStatus, SessionConversationState,
    SubagentBlock, SubagentState, Thread, TokenUsage, Usage,
};
use crate::{
    ids::{MessageId, PartId},
    time::Millis,
};

fn read<T: DeserializeOwned>(json: &Value) -> T {
    serde_json::from_value(json.clone()).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// One line of JSON per value; each is read as what it was.
#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(values: &[T], expected: &Expect) {
    let lines: Vec<String> = values.iter().map(|value| serde_json::to_string(value).unwrap()).collect();
    expected.assert_eq(&lines.join("\n"));
    for (line, value) in lines.iter().zip(values) {
        assert_eq!(serde_json::from_str::<T>(line).unwrap(), *value, "{line}");
    }
}

/// What other writers' JSON is written as once it was read; that is then read as the same.
#[track_caller]
fn check_read<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    json: &[Value],
    expected: &Expect,
) {
    check(&json.iter().map(read::<T>).collect::<Vec<_>>(), expected);
}

const MOMENT: &str = "2026-01-31T12:00:00.000Z";

fn order() -> BlockOrder {
    BlockOrder::message(Millis::new(1_769_860_800_000), MessageId::new("msg_1"))
}

fn block(part: &str, body: BlockBody) -> ConversationBlock {
    ConversationBlock::new(part, order().part(PartId::new(part)), body)
}

fn subagent() -> SubagentBlock {
    SubagentBlock {
        tool_use_id: "prt_7".into(),
        subagent_id: Some("ses_2".into()),
        subagent_status: RunStatus::Running,
        name: "explore".into(),
        description: Some("look".into()),
        input: Arc::new(json!("Look around.")),
        output: None,
        duration_ms: None,
    }
}

#[test]
fn blocks_have_the_documented_json() {
    let file = ContentPart::File {
        media_type: "image/png".into(),
        filename: Some("a.png".into()),
        url: Some("file:///a.png".into()),
        size: Some(4),
    };
    let agent = ContentPart::Agent { name: "explore".into() };
    let subtask =
        ContentPart::Subtask { agent: "general".into(), description: "look".into(), prompt: "Look.".into() };
    let tool = |tool_status| BlockBody::ToolUse {
        tool_use_id: "prt_4".into(),
        name: "bash".into(),
        title: Some("List".into()),
        input: Arc::new(json!({"command": "ls"})),
        tool_status,
    };
    let result = |output: BlockOutput, is_error| BlockBody::ToolResult {
        tool_use_id: "prt_4".into(),
        output,
        is_error,
        duration_ms: Some(250),
        parts: Vec::new(),
    };
    let of_subagent = |status, subagent_status| {
        let mut block = block("prt_7", BlockBody::Subagent(SubagentBlock { subagent_status, ..subagent() }));
        block.status = status;
        block
    };
    let pending = |mut block: ConversationBlock| {
        block.status = BlockStatus::Pending;
        block
    };
    let mut marked = block("prt_9", BlockBody::Error { content: "overloaded".into() });
    marked.metadata = Some(Arc::new(Map::from_iter([("statusCode".to_owned(), json!(529))])));
    marked.extra = Some(Arc::new(Map::from_iter([("seen".to_owned(), json!(true))])));
    check(
        &[
            block(
                "msg_1",
                BlockBody::UserMessage { content: "Hi".into(), parts: vec![file, agent, subtask] },
            ),
            pending(block(
                "prt_2",
                BlockBody::AssistantText { content: "Hello".into(), model: Some("p/m".into()) },
            )),
            block("prt_3", BlockBody::Thinking { content: "hm".into(), model: None }),
            pending(block("prt_4", tool(RunStatus::Running))),
            block("prt_4", tool(RunStatus::Success)),
            block("result-prt_4", result("a\nb".into(), false)),
            block("result-prt_4", result(json!({"files": ["a", "b"]}).into(), true)),
            block(
                "prt_6",
                BlockBody::System { subtype: Some("retry".into()), content: "Attempt 2 failed".into() },
            ),
            of_subagent(BlockStatus::Pending, RunStatus::Running),
            of_subagent(BlockStatus::Complete, RunStatus::Success),
            of_subagent(BlockStatus::Complete, RunStatus::Running),
            marked,
            block("prt_10", BlockBody::Unknown { kind: "hologram".into() }),
        ],
        &expect![[r#"
            {"id":"msg_1","conversationId":"main","order":[1769860800000,"msg_1",0,"msg_1",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"user_message","content":"Hi","parts":[{"type":"file","mediaType":"image/png","filename":"a.png","url":"file:///a.png","size":4},{"type":"agent","name":"explore"},{"type":"subtask","agent":"general","description":"look","prompt":"Look."}]}
            {"id":"prt_2","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_2",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"assistant_text","content":"Hello","model":"p/m"}
            {"id":"prt_3","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_3",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"thinking","content":"hm"}
            {"id":"prt_4","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_4",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"tool_use","toolUseId":"prt_4","name":"bash","title":"List","input":{"command":"ls"},"toolStatus":"running"}
            {"id":"prt_4","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_4",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"tool_use","toolUseId":"prt_4","name":"bash","title":"List","input":{"command":"ls"},"toolStatus":"success"}
            {"id":"result-prt_4","conversationId":"main","order":[1769860800000,"msg_1",0,"result-prt_4",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"tool_result","toolUseId":"prt_4","output":"a\nb","isError":false,"durationMs":250}
            {"id":"result-prt_4","conversationId":"main","order":[1769860800000,"msg_1",0,"result-prt_4",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"tool_result","toolUseId":"prt_4","output":{"files":["a","b"]},"isError":true,"durationMs":250}
            {"id":"prt_6","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_6",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"system","subtype":"retry","message":"Attempt 2 failed"}
            {"id":"prt_7","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_7",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"running","type":"subagent","toolUseId":"prt_7","subagentId":"ses_2","subagentStatus":"running","name":"explore","description":"look","input":"Look around."}
            {"id":"prt_7","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_7",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"success","type":"subagent","toolUseId":"prt_7","subagentId":"ses_2","subagentStatus":"success","name":"explore","description":"look","input":"Look around."}
            {"id":"prt_7","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_7",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"subagent","toolUseId":"prt_7","subagentId":"ses_2","subagentStatus":"running","name":"explore","description":"look","input":"Look around."}
            {"id":"prt_9","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_9",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","metadata":{"statusCode":529},"type":"error","content":"overloaded","seen":true}
            {"id":"prt_10","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_10",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"hologram"}"#]],
    );
}

#[test]
fn the_other_types_have_the_documented_json() {
    check(
        &[order(), order().part("prt_1".into()).result(), order().trailing()],
        &expect![[r#"
        [1769860800000,"msg_1",0,"",0]
        [1769860800000,"msg_1",0,"prt_1",1]
        [1769860800000,"msg_1",1,"",0]"#]],
    );
    check(
        &[BlockStatus::Pending, BlockStatus::Complete, BlockStatus::Error],
        &expect![[r#"
        "pending"
        "complete"
        "error""#]],
    );
    check(
        &[RunStatus::Pending, RunStatus::Running, RunStatus::Success, RunStatus::Error],
        &expect![[r#"
        "pending"
        "running"
        "success"
        "error""#]],
    );
    check(
        &[BlockText::from("a\n"), BlockText::default()],
        &expect![[r#"
        "a\n"
        """#]],
    );
    check(
        &[BlockOutput::from("a"), json!({"a": [1, null]}).into(), json!(null).into()],
        &expect![[r#"
        "a"
        {"a":[1,null]}
        null"#]],
    );
    let tokens = TokenUsage { input: 1, output: 2, reasoning: 3, cache_read: 4, cache_write: 5 };
    let usage = Usage { tokens, cost: 0.25 };
    check(&[tokens], &expect![[r#"{"input":1,"output":2,"reasoning":3,"cacheRead":4,"cacheWrite":5}"#]]);
    check(
        &[usage],
        &expect![[
            r#"{"tokens":{"input":1,"output":2,"reasoning":3,"cacheRead":4,"cacheWrite":5},"cost":0.25}"#
        ]],
    );
    let message = MessageUsage {
        message_id: "msg_1".into(),
        created: Millis::new(1),
        model: Some("p/m".into()),
        usage,
    };
    check(
        std::slice::from_ref(&message),
        &expect![[
            r#"{"messageId":"msg_1","created":1,"model":"p/m","usage":{"tokens":{"input":1,"output":2,"reasoning":3,"cacheRead":4,"cacheWrite":5},"cost":0.25}}"#
        ]],
    );
    let mut metadata = ConversationMetadata::default();
    metadata.set(message);
    check(
        &[metadata.clone()],
        &expect![[
            r#"{"model":"p/m","usage":{"tokens":{"input":1,"output":2,"reasoning":3,"cacheRead":4,"cacheWrite":5},"cost":0.25},"messages":[{"messageId":"msg_1","created":1,"model":"p/m","usage":{"tokens":{"input":1,"output":2,"reasoning":3,"cacheRead":4,"cacheWrite":5},"cost":0.25}}]}"#
        ]],
    );
    let thread = Thread::from_iter([Arc::new(block("prt_1", BlockBody::Error { content: "no".into() }))]);
    check(
        std::slice::from_ref(&thread),
        &expect![[
            r#"[{"id":"prt_1","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_1",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"error","content":"no"}]"#
        ]],
    );
    let mut state = SubagentState::unannounced("prt_7".into());
    check(
        &[state.clone()],
        &expect![[
            r#"{"toolUseId":"prt_7","parentId":"main","name":"","status":"running","blocks":[],"metadata":{"usage":{"tokens":{"input":0,"output":0,"reasoning":0,"cacheRead":0,"cacheWrite":0},"cost":0},"messages":[]}}"#
        ]],
    );
    state.learn(&SubagentBlock { output: Some("found".into()), duration_ms: Some(7), ..subagent() });
    (state.blocks, state.metadata) = (thread, metadata);
    check(
        &[state],
        &expect![[
            r#"{"toolUseId":"prt_7","agentId":"ses_2","parentId":"main","name":"explore","description":"look","status":"running","prompt":"Look around.","output":"found","durationMs":7,"blocks":[{"id":"prt_1","conversationId":"main","order":[1769860800000,"msg_1",0,"prt_1",0],"timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"error","content":"no"}],"metadata":{"model":"p/m","usage":{"tokens":{"input":1,"output":2,"reasoning":3,"cacheRead":4,"cacheWrite":5},"cost":0.25},"messages":[{"messageId":"msg_1","created":1,"model":"p/m","usage":{"tokens":{"input":1,"output":2,"reasoning":3,"cacheRead":4,"cacheWrite":5},"cost":0.25}}]}}"#
        ]],
    );
    check(
        &[SessionConversationState::new()],
        &expect![[
            r#"{"blocks":[],"subagents":[],"metadata":{"usage":{"tokens":{"input":0,"output":0,"reasoning":0,"cacheRead":0,"cacheWrite":0},"cost":0},"messages":[]}}"#
        ]],
    );
}

#[test]
fn blocks_of_other_writers_are_read() {
    let of = |fields: Value| {
        let mut block =
            json!({"id": "b1", "timestamp": MOMENT, "status": "complete", "conversationId": "main"});
        block.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        block
    };
    check_read::<ConversationBlock>(
        &[
            // Without what this crate adds.
            of(json!({"type": "assistant_text", "content": "Hello"})),
            of(json!({"type": "assistant_text", "status": "pending", "content": null})),
            of(json!({"type": "tool_use", "toolUseId": "t1", "name": "Read", "input": {"file": "a"}})),
            // With other names and words.
            of(
                json!({"type": "tool_use", "toolName": "Read", "status": "running", "displayName": "Read a file"}),
            ),
            of(json!({"type": "tool_use", "name": "Read", "status": "success"})),
            of(json!({"type": "tool_result", "toolUseId": "b1", "output": {"lines": 3}, "durationMs": 12.7})),
            of(json!({"type": "tool_result", "toolUseId": "b1", "output": null, "status": "error"})),
            of(json!({"type": "tool_result", "toolUseId": "b1"})),
            of(json!({"type": "system", "subtype": "session_start", "message": "Started"})),
            of(json!({"type": "system", "content": "Started"})),
            of(
                json!({"type": "subagent", "toolUseId": "t1", "status": "running", "name": "explore", "input": "Look."}),
            ),
            of(
                json!({"type": "subagent", "id": null, "subagentId": "sub-123", "status": "success", "output": "found"}),
            ),
            of(
                json!({"type": "subagent", "toolUseId": "t1", "agentId": "a1", "status": "error", "durationMs": -1}),
            ),
            of(
                json!({"type": "subagent", "toolUseId": "t1", "status": "pending", "subagentStatus": "running"}),
            ),
            of(json!({"type": "hologram", "content": {"x": 1}})),
            // With something else in a field.
            of(
                json!({"type": "user_message", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}),
            ),
            of(
                json!({"type": "user_message", "content": "a", "parts": [{"type": "text"}], "order": 3, "metadata": 4}),
            ),
            of(json!({"type": "tool_use", "name": "Read", "status": "pending", "toolStatus": "paused"})),
        ],
        &expect![[r#"
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"assistant_text","content":"Hello"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"assistant_text","content":""}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"tool_use","toolUseId":"t1","name":"Read","input":{"file":"a"},"toolStatus":"success"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"tool_use","toolUseId":"b1","name":"Read","input":null,"toolStatus":"running","displayName":"Read a file"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"tool_use","toolUseId":"b1","name":"Read","input":null,"toolStatus":"success"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"tool_result","toolUseId":"b1","output":{"lines":3},"isError":false,"durationMs":12}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"error","type":"tool_result","toolUseId":"b1","output":null,"isError":true}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"tool_result","toolUseId":"b1","output":"","isError":false}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"system","subtype":"session_start","message":"Started"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"system","message":"Started"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"running","type":"subagent","toolUseId":"t1","subagentStatus":"running","name":"explore","input":"Look."}
            {"id":"sub-123","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"success","type":"subagent","toolUseId":"sub-123","subagentId":"sub-123","subagentStatus":"success","name":"","input":null,"output":"found"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"error","type":"subagent","toolUseId":"t1","subagentId":"a1","subagentStatus":"error","name":"","input":null,"durationMs":0}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"running","type":"subagent","toolUseId":"t1","subagentStatus":"running","name":"","input":null}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","type":"hologram","content":{"x":1}}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","metadata":{"content":[{"text":"a","type":"text"},{"type":"image"},"b"]},"type":"user_message","content":"a\nb"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"complete","metadata":{"metadata":4,"order":3,"parts":[{"type":"text"}]},"type":"user_message","content":"a"}
            {"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"pending","metadata":{"toolStatus":"paused"},"type":"tool_use","toolUseId":"b1","name":"Read","input":null,"toolStatus":"pending"}"#]],
    );
}

#[test]
fn a_block_without_what_it_needs_is_refused_by_name() {
    for (block, said) in [
        (json!({"id": "b1", "status": "complete", "timestamp": MOMENT}), "missing field `type`"),
        (json!({"id": "b1", "type": "thinking", "timestamp": MOMENT}), "missing field `status`"),
        (json!({"id": "b1", "type": "thinking", "status": "complete"}), "missing field `timestamp`"),
        (json!({"type": "thinking", "status": "complete", "timestamp": MOMENT}), "missing field `id`"),
        (
            json!({"id": "b1", "type": "thinking", "status": "odd", "timestamp": MOMENT}),
            "`status`: unknown variant `odd`",
        ),
        (
            json!({"id": "b1", "type": "thinking", "status": "complete", "timestamp": "noon"}),
            "`timestamp`: not a timestamp",
        ),
        (
            json!({"id": "b1", "type": "tool_use", "status": "complete", "timestamp": MOMENT}),
            "missing field `name`",
        ),
        (
            json!({"id": "b1", "type": "tool_result", "status": "complete", "timestamp": MOMENT}),
            "missing field `toolUseId`",
        ),
        (json!({"type": "subagent", "status": "running", "timestamp": MOMENT}), "missing field `toolUseId`"),
        (json!([]), "invalid type"),
    ] {
        let error = serde_json::from_value::<ConversationBlock>(block.clone()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}: {block}");
        let event = json!({"type": "block:upsert", "block": block});
        let error = serde_json::from_value::<ConversationEvent>(event).unwrap_err().to_string();
        assert!(error.starts_with("`block`: ") && error.contains(said), "{error}");
    }
}

#[test]
fn events_of_other_writers_are_read() {
    let block =
        json!({"id": "b1", "type": "thinking", "content": "hm", "status": "pending", "timestamp": MOMENT});
    let bare =
        json!({"id": "b1", "type": "thinking", "content": "hm", "status": "pending", "conversationId": "t1"});
    let context = json!({"sessionId": "s1", "conversationId": "t1", "timestamp": MOMENT, "source": "runner"});
    check_read::<ConversationEvent>(
        &[
            json!({"type": "block:upsert", "conversationId": "t1", "block": block}),
            json!({"type": "block:upsert", "block": block}),
            json!({"type": "block:upsert", "block": block, "context": context}),
            json!({"type": "block:upsert", "block": bare, "context": {"timestamp": MOMENT}}),
            json!({"type": "block:delta", "conversationId": "t1", "blockId": "b1", "delta": "x"}),
            json!({"type": "block:delta", "context": context, "blockId": "b1", "delta": ""}),
            json!({"type": "subagent:spawned", "toolUseId": "t1", "prompt": "Look.", "subagentType": "explore"}),
            json!({"type": "subagent:spawned", "toolUseId": "t2", "prompt": "Look.", "subagentType": "explore",
                "description": "look", "context": context, "model": "small"}),
            json!({"type": "subagent:spawned", "conversationId": "t1", "toolUseId": "t2", "name": "explore", "status": "pending",
                "input": {"prompt": "Look.", "task_id": "x"}}),
            json!({"type": "subagent:spawned", "agentId": "a1", "input": "Look."}),
            json!({"type": "subagent:completed", "toolUseId": "t1", "status": "completed"}),
            json!({"type": "subagent:completed", "toolUseId": "t1", "agentId": "a1", "status": "error", "output": "no", "durationMs": 3.5}),
            json!({"type": "subagent:completed", "toolUseId": "t1", "status": "success", "output": {"n": 1}}),
            json!({"type": "subagent:completed", "toolUseId": "t1", "status": "cancelled"}),
            json!({"type": "session:idle", "conversationId": "t1"}),
            json!({"type": "session:idle"}),
        ],
        &expect![[r#"
            {"type":"block:upsert","conversationId":"t1","block":{"id":"b1","conversationId":"t1","timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"thinking","content":"hm"}}
            {"type":"block:upsert","conversationId":"main","block":{"id":"b1","conversationId":"main","timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"thinking","content":"hm"}}
            {"type":"block:upsert","conversationId":"t1","block":{"id":"b1","conversationId":"t1","timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"thinking","content":"hm"}}
            {"type":"block:upsert","conversationId":"t1","block":{"id":"b1","conversationId":"t1","timestamp":"2026-01-31T12:00:00.000Z","status":"pending","type":"thinking","content":"hm"}}
            {"type":"block:delta","conversationId":"t1","blockId":"b1","delta":"x"}
            {"type":"block:delta","conversationId":"t1","blockId":"b1","delta":""}
            {"type":"subagent:spawned","conversationId":"main","context":{"conversationId":"main"},"toolUseId":"t1","subagentType":"explore","prompt":"Look.","status":"running"}
            {"type":"subagent:spawned","conversationId":"t1","context":{"conversationId":"t1","timestamp":"2026-01-31T12:00:00.000Z"},"toolUseId":"t2","subagentType":"explore","description":"look","prompt":"Look.","status":"running","timestamp":"2026-01-31T12:00:00.000Z","metadata":{"model":"small"}}
            {"type":"subagent:spawned","conversationId":"t1","context":{"conversationId":"t1"},"toolUseId":"t2","subagentType":"explore","prompt":"Look.","status":"pending","metadata":{"input":{"task_id":"x"}}}
            {"type":"subagent:spawned","conversationId":"main","context":{"conversationId":"main"},"toolUseId":"a1","agentId":"a1","subagentType":"","prompt":"Look.","status":"running"}
            {"type":"subagent:completed","conversationId":"main","toolUseId":"t1","status":"completed"}
            {"type":"subagent:completed","conversationId":"main","toolUseId":"t1","agentId":"a1","status":"error","output":"no","durationMs":3}
            {"type":"subagent:completed","conversationId":"main","toolUseId":"t1","status":"completed","output":{"n":1}}
            {"type":"subagent:completed","conversationId":"main","toolUseId":"t1","status":"error","metadata":{"status":"cancelled"}}
            {"type":"session:idle","conversationId":"t1"}
            {"type":"session:idle","conversationId":"main"}"#]],
    );
}

#[test]
fn an_event_without_what_it_needs_is_refused_by_name() {
    for (event, said) in [
        (json!({}), "missing field `type`"),
        (json!({"type": "session:closed"}), "unknown variant `session:closed`"),
        (json!({"type": "block:upsert"}), "missing field `block`"),
        (json!({"type": "block:delta", "delta": "x"}), "missing field `blockId`"),
        (json!({"type": "block:delta", "blockId": "b1"}), "missing field `delta`"),
        (json!({"type": "block:delta", "blockId": "b1", "delta": 1}), "`delta`: invalid type"),
        (json!({"type": "subagent:spawned", "prompt": "x"}), "missing field `toolUseId`"),
        (json!({"type": "subagent:completed", "toolUseId": "t1"}), "missing field `status`"),
        (json!({"type": "session:idle", "conversationId": 1}), "`conversationId`: invalid type"),
    ] {
        let error = serde_json::from_value::<ConversationEvent>(event.clone()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}: {event}");
    }
}

#[test]
fn a_state_of_other_writers_is_read() {
    let text = |id: &str| json!({"id": id, "type": "assistant_text", "content": id, "status": "complete", "timestamp": MOMENT});
    let shown = |call: &str| {
        json!({"id": format!("block-{call}"), "type": "subagent", "toolUseId": call, "name": "explore", "input": "Look.",
            "status": "success", "timestamp": MOMENT})
    };
    let state = json!({
        "blocks": [text("b2"), shown("t1"), text("b1")],
        "subagents": [
            {"toolUseId": "t1", "agentId": "a1", "status": "success", "prompt": "Look.", "output": "found", "durationMs": 9,
                "blocks": [text("b3"), shown("t2")]},
            {"id": "t2", "blocks": [text("b4")], "rawTranscript": "…"},
        ],
    });
    let state: SessionConversationState = read(&state);
    let ids = |thread: &Thread| thread.iter().map(|block| block.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(state.blocks()), ["b2", "block-t1", "b1"]);
    let one = state.subagent(&"t1".into()).unwrap();
    let two = state.subagent(&"t2".into()).unwrap();
    assert_eq!(
        (ids(&one.blocks), ids(&two.blocks)),
        (vec!["b3".into(), "block-t2".into()], vec!["b4".into()])
    );
    assert_eq!((one.parent_id.as_str(), two.parent_id.as_str()), ("main", "t1"));
    assert_eq!((one.status, two.status), (RunStatus::Success, RunStatus::Success));
    assert_eq!((&*two.name, two.prompt.as_deref()), ("explore", Some("Look.")));
    assert_eq!(two.extra.as_ref().unwrap()["rawTranscript"], "…");
    assert!(two.blocks.iter().all(|block| block.conversation_id.as_str() == "t2"));
    // By either id.
    assert_eq!(state.subagent_of_agent(&"a1".into()), Some(one));
    assert_eq!(state.find_subagent(&"a1".into()), Some(one));
    assert_eq!(state.find_subagent(&"t2".into()), Some(two));
    assert_eq!((state.find_subagent(&"main".into()), state.subagent_of_agent(&"t1".into())), (None, None));
    let json = serde_json::to_value(&state).unwrap();
    assert_eq!(read::<SessionConversationState>(&json), state);
}
