use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::convert::{Converter, Rest, task_result};
use crate::{
    conversation::{ConversationEvent, ConvertOptions, Thinking},
    ids::ConversationId,
    opencode::wire::Message,
};

/// Everything that a message shows in `conversation`.
fn shown(
    message: &Message,
    conversation: &ConversationId,
    options: ConvertOptions,
) -> Vec<ConversationEvent> {
    let converter = Converter { conversation, options, rest: Rest::MayChange };
    let mut events = converter.whole(&message.info, message.parts.iter());
    for part in &message.parts {
        events.extend(converter.part(&message.info, part, None));
    }
    events
}

fn step(changes: &Value) -> Value {
    with(
        json!({"id": "msg_2", "sessionID": "ses_1", "role": "assistant", "time": {"created": 2000, "completed": 3000},
            "providerID": "p", "modelID": "m"}),
        changes,
    )
}

fn user() -> Value {
    json!({"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1000}})
}

fn with(mut object: Value, changes: &Value) -> Value {
    object.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    object
}

fn tool(name: &str, state: &Value) -> Value {
    json!({"type": "tool", "callID": "call_1", "tool": name, "state": state})
}

fn decoded(info: &Value, parts: &[Value]) -> Message {
    let parts: Vec<Value> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| {
            with(json!({"id": format!("prt_{at}"), "sessionID": "ses_1", "messageID": info["id"]}), part)
        })
        .collect();
    Message::from_json(&json!({"info": info, "parts": parts}).to_string()).unwrap()
}

/// One line of JSON per event, without what all blocks have and what the usage of an empty step says.
#[track_caller]
fn check(info: &Value, parts: &[Value], expected: &Expect) {
    let message = decoded(info, parts);
    let conversation = ConversationId::new("t1");
    let events = shown(&message, &conversation, ConvertOptions::default());
    let lines: Vec<String> = events
        .iter()
        .filter(|event| !is_empty_usage(event))
        .map(|event| {
            let mut json = serde_json::to_value(event).unwrap();
            assert_eq!(json["conversationId"], "t1");
            if let ConversationEvent::BlockUpsert { .. } = event {
                assert_eq!(json["block"]["conversationId"], "t1");
                json = json["block"].take();
            }
            json.as_object_mut().unwrap().remove("conversationId");
            json.to_string()
        })
        .collect();
    expected.assert_eq(&lines.join("\n"));
}

fn is_empty_usage(event: &ConversationEvent) -> bool {
    matches!(event, ConversationEvent::MetadataUpdate { usage: Some(usage), .. } if usage.tokens.total() == 0)
}

#[test]
fn a_prompt_is_one_block_of_what_its_author_wrote() {
    check(
        &user(),
        &[
            json!({"type": "text", "text": "Look at"}),
            json!({"type": "text", "text": "Called the Read tool", "synthetic": true}),
            json!({"type": "text", "text": "a note for people", "ignored": true}),
            json!({"type": "text", "text": "these."}),
            json!({"type": "file", "mime": "text/plain", "filename": "a.txt", "url": "file:///a.txt"}),
            json!({"type": "file", "mime": "image/png", "url": "data:image/png;base64,AAECAw=="}),
            json!({"type": "file", "mime": "text/plain", "url": "data:text/plain,a%20b"}),
            json!({"type": "agent", "name": "explore"}),
            json!({"type": "subtask", "agent": "general", "description": "look", "prompt": "Look."}),
        ],
        &expect![[
            r#"{"content":"Look at\nthese.","id":"msg_1","order":[1000,"msg_1",0,"",0],"parts":[{"filename":"a.txt","mediaType":"text/plain","type":"file","url":"file:///a.txt"},{"mediaType":"image/png","size":4,"type":"file"},{"mediaType":"text/plain","size":3,"type":"file"},{"name":"explore","type":"agent"},{"agent":"general","description":"look","prompt":"Look.","type":"subtask"}],"status":"complete","timestamp":"1970-01-01T00:00:01.000Z","type":"user_message"}"#
        ]],
    );
}

#[test]
fn a_prompt_of_nothing_but_the_servers_words_is_marked() {
    check(
        &user(),
        &[json!({"type": "text", "text": "Continue.", "synthetic": true})],
        &expect![[
            r#"{"content":"Continue.","id":"msg_1","metadata":{"synthetic":true},"order":[1000,"msg_1",0,"",0],"status":"complete","timestamp":"1970-01-01T00:00:01.000Z","type":"user_message"}"#
        ]],
    );
}

#[test]
fn a_prompt_without_anything_to_show_has_no_block() {
    check(&user(), &[], &expect![[r""]]);
    check(&user(), &[json!({"type": "text", "text": " \n"})], &expect![[r""]]);
}

#[test]
fn text_and_thinking_show_unless_blank() {
    check(
        &step(&json!({"time": {"created": 2000}})),
        &[
            json!({"type": "reasoning", "text": "hm\n", "time": {"start": 2100, "end": 2200}}),
            json!({"type": "text", "text": "\nyes", "time": {"start": 2300}}),
            json!({"type": "text", "text": "  \n", "time": {"start": 2400, "end": 2500}}),
            json!({"type": "reasoning", "text": "", "time": {"start": 2400}}),
        ],
        &expect![[r#"
            {"content":"hm\n","id":"prt_0","model":"p/m","order":[2000,"msg_2",0,"prt_0",0],"status":"complete","timestamp":"1970-01-01T00:00:02.100Z","type":"thinking"}
            {"content":"\nyes","id":"prt_1","model":"p/m","order":[2000,"msg_2",0,"prt_1",0],"status":"pending","timestamp":"1970-01-01T00:00:02.300Z","type":"assistant_text"}"#]],
    );
}

#[test]
fn a_summary_is_marked() {
    check(
        &step(&json!({"summary": true})),
        &[json!({"type": "text", "text": "so far"})],
        &expect![[
            r#"{"content":"so far","id":"prt_0","metadata":{"summary":true},"model":"p/m","order":[2000,"msg_2",0,"prt_0",0],"status":"complete","timestamp":"1970-01-01T00:00:02.000Z","type":"assistant_text"}"#
        ]],
    );
}

#[test]
fn a_tool_call_shows_its_use_and_its_result() {
    for (state, expected) in [
        (
            json!({"status": "pending", "input": {}, "raw": ""}),
            expect![[
                r#"{"id":"prt_0","input":{},"metadata":{"callId":"call_1"},"name":"bash","order":[2000,"msg_2",0,"prt_0",0],"status":"pending","timestamp":"1970-01-01T00:00:02.000Z","toolStatus":"pending","toolUseId":"prt_0","type":"tool_use"}"#
            ]],
        ),
        (
            json!({"status": "running", "input": {"command": "ls"}, "time": {"start": 2100}, "metadata": {"output": "a"}}),
            expect![[
                r#"{"id":"prt_0","input":{"command":"ls"},"metadata":{"callId":"call_1"},"name":"bash","order":[2000,"msg_2",0,"prt_0",0],"status":"pending","timestamp":"1970-01-01T00:00:02.100Z","toolStatus":"running","toolUseId":"prt_0","type":"tool_use"}"#
            ]],
        ),
        (
            json!({"status": "completed", "input": {"command": "ls"}, "output": "a\nb", "title": "List", "metadata": {"output": "a\nb", "exit": 0},
            "time": {"start": 2100, "end": 2350}, "attachments": [{"type": "file", "mime": "image/png", "url": "data:image/png;base64,AAAA"}]}),
            expect![[r#"
                {"id":"prt_0","input":{"command":"ls"},"metadata":{"callId":"call_1"},"name":"bash","order":[2000,"msg_2",0,"prt_0",0],"status":"complete","timestamp":"1970-01-01T00:00:02.100Z","title":"List","toolStatus":"success","toolUseId":"prt_0","type":"tool_use"}
                {"durationMs":250,"id":"result-prt_0","isError":false,"metadata":{"exit":0},"order":[2000,"msg_2",0,"prt_0",1],"output":"a\nb","parts":[{"mediaType":"image/png","size":3,"type":"file"}],"status":"complete","timestamp":"1970-01-01T00:00:02.350Z","toolUseId":"prt_0","type":"tool_result"}"#]],
        ),
        (
            json!({"status": "error", "input": {"command": "ls"}, "error": "refused", "time": {"start": 2100, "end": 2101}}),
            expect![[r#"
                {"id":"prt_0","input":{"command":"ls"},"metadata":{"callId":"call_1"},"name":"bash","order":[2000,"msg_2",0,"prt_0",0],"status":"error","timestamp":"1970-01-01T00:00:02.100Z","toolStatus":"error","toolUseId":"prt_0","type":"tool_use"}
                {"durationMs":1,"id":"result-prt_0","isError":true,"order":[2000,"msg_2",0,"prt_0",1],"output":"refused","status":"error","timestamp":"1970-01-01T00:00:02.101Z","toolUseId":"prt_0","type":"tool_result"}"#]],
        ),
        (
            json!({"status": "paused", "input": {}}),
            expect![[
                r#"{"id":"prt_0","input":{},"metadata":{"callId":"call_1"},"name":"bash","order":[2000,"msg_2",0,"prt_0",0],"status":"pending","timestamp":"1970-01-01T00:00:02.000Z","toolStatus":"running","toolUseId":"prt_0","type":"tool_use"}"#
            ]],
        ),
    ] {
        check(&step(&json!({})), &[tool("bash", &state)], &expected);
    }
}

#[test]
fn a_task_is_a_subagent_and_no_tool() {
    let input = json!({"description": "look", "prompt": "Look around.", "subagent_type": "explore"});
    for (state, expected) in [
        (
            json!({"status": "pending", "input": {}}),
            expect![[
                r#"{"id":"prt_0","input":"","name":"","order":[2000,"msg_2",0,"prt_0",0],"status":"pending","subagentStatus":"pending","timestamp":"1970-01-01T00:00:02.000Z","toolUseId":"prt_0","type":"subagent"}"#
            ]],
        ),
        (
            json!({"status": "running", "input": input, "time": {"start": 2100}, "metadata": {"sessionId": "ses_2"}}),
            expect![[
                r#"{"agentId":"ses_2","context":{"conversationId":"t1","timestamp":"1970-01-01T00:00:02.100Z"},"description":"look","order":[2000,"msg_2",0,"prt_0",0],"prompt":"Look around.","status":"running","subagentType":"explore","timestamp":"1970-01-01T00:00:02.100Z","toolUseId":"prt_0","type":"subagent:spawned"}"#
            ]],
        ),
        (
            json!({"status": "completed", "input": input, "time": {"start": 2100, "end": 2200}, "metadata": {"sessionId": "ses_2"},
            "output": "<task id=\"ses_2\" state=\"completed\">\n<task_result>\nFound it.\n</task_result>\n</task>"}),
            expect![[r#"
                {"agentId":"ses_2","context":{"conversationId":"t1","timestamp":"1970-01-01T00:00:02.100Z"},"description":"look","order":[2000,"msg_2",0,"prt_0",0],"prompt":"Look around.","status":"running","subagentType":"explore","timestamp":"1970-01-01T00:00:02.100Z","toolUseId":"prt_0","type":"subagent:spawned"}
                {"agentId":"ses_2","durationMs":100,"order":[2000,"msg_2",0,"prt_0",0],"output":"Found it.","status":"completed","timestamp":"1970-01-01T00:00:02.100Z","toolUseId":"prt_0","type":"subagent:completed"}"#]],
        ),
        (
            json!({"status": "error", "input": input, "time": {"start": 2100, "end": 2200}, "error": "Subagent failed (task_id: ses_2): no"}),
            expect![[r#"
                {"agentId":"ses_2","context":{"conversationId":"t1","timestamp":"1970-01-01T00:00:02.100Z"},"description":"look","order":[2000,"msg_2",0,"prt_0",0],"prompt":"Look around.","status":"running","subagentType":"explore","timestamp":"1970-01-01T00:00:02.100Z","toolUseId":"prt_0","type":"subagent:spawned"}
                {"agentId":"ses_2","durationMs":100,"order":[2000,"msg_2",0,"prt_0",0],"output":"Subagent failed (task_id: ses_2): no","status":"error","timestamp":"1970-01-01T00:00:02.100Z","toolUseId":"prt_0","type":"subagent:completed"}"#]],
        ),
        (
            json!({"status": "completed", "input": input, "metadata": {"sessionId": "ses_2", "background": true}, "output": "started"}),
            expect![[
                r#"{"agentId":"ses_2","context":{"conversationId":"t1","timestamp":"1970-01-01T00:00:02.000Z"},"description":"look","order":[2000,"msg_2",0,"prt_0",0],"prompt":"Look around.","status":"running","subagentType":"explore","timestamp":"1970-01-01T00:00:02.000Z","toolUseId":"prt_0","type":"subagent:spawned"}"#
            ]],
        ),
    ] {
        check(&step(&json!({})), &[tool("task", &state)], &expected);
    }
}

#[test]
fn a_subagents_answer_is_freed_of_what_servers_wrap_around_it() {
    for (output, answer) in [
        ("<task id=\"ses_2\" state=\"completed\">\n<task_result>\nFound.\n</task_result>\n</task>", "Found."),
        ("task_id: ses_2 (for resuming)\n\n<task_result>\nFound.\n</task_result>", "Found."),
        ("Found.\n\n<task_metadata>\nsession_id: ses_2\n</task_metadata>", "Found."),
        ("<task_result>\ncut off", "cut off"),
        ("plain", "plain"),
        ("", ""),
    ] {
        assert_eq!(task_result(output), answer);
    }
}

#[test]
fn errors_compaction_and_retries_show() {
    let error = json!({"name": "APIError", "data": {"message": "overloaded", "statusCode": 529, "isRetryable": true}});
    check(
        &step(&json!({"error": error})),
        &[],
        &expect![[
            r#"{"content":"overloaded","id":"error-msg_2","metadata":{"name":"APIError","statusCode":529},"order":[2000,"msg_2",1,"",0],"status":"error","timestamp":"1970-01-01T00:00:03.000Z","type":"error"}"#
        ]],
    );
    check(
        &step(&json!({"error": {"name": "MessageAbortedError"}})),
        &[],
        &expect![[
            r#"{"content":"MessageAbortedError","id":"error-msg_2","metadata":{"name":"MessageAbortedError"},"order":[2000,"msg_2",1,"",0],"status":"error","timestamp":"1970-01-01T00:00:03.000Z","type":"error"}"#
        ]],
    );
    check(
        &user(),
        &[json!({"type": "compaction", "auto": true, "overflow": true})],
        &expect![[
            r#"{"id":"prt_0","message":"The conversation so far was summarised.","metadata":{"auto":true,"overflow":true},"order":[1000,"msg_1",0,"prt_0",0],"status":"complete","subtype":"compaction","timestamp":"1970-01-01T00:00:01.000Z","type":"system"}"#
        ]],
    );
    check(
        &step(&json!({})),
        &[json!({"type": "retry", "attempt": 2, "error": error})],
        &expect![[
            r#"{"id":"prt_0","message":"Attempt 2 failed: overloaded","metadata":{"attempt":2,"name":"APIError","statusCode":529},"order":[2000,"msg_2",0,"prt_0",0],"status":"complete","subtype":"retry","timestamp":"1970-01-01T00:00:02.000Z","type":"system"}"#
        ]],
    );
}

#[test]
fn markers_and_the_unknown_show_nothing() {
    check(
        &step(&json!({})),
        &[
            json!({"type": "step-start"}),
            json!({"type": "step-finish", "reason": "stop", "cost": 1, "tokens": {"input": 5}}),
            json!({"type": "snapshot", "snapshot": "x"}),
            json!({"type": "patch", "hash": "x", "files": []}),
            json!({"type": "hologram"}),
            json!({"type": "file", "mime": "text/plain", "url": ""}),
        ],
        &expect![[r""]],
    );
    check(
        &json!({"id": "msg_3", "sessionID": "ses_1", "role": "narrator"}),
        &[json!({"type": "text", "text": "x"})],
        &expect![[r""]],
    );
}

#[test]
fn a_step_says_what_it_used() {
    let tokens =
        json!({"total": 99, "input": 1, "output": 2, "reasoning": 3, "cache": {"read": 4, "write": 5}});
    check(
        &step(&json!({"cost": 0.25, "tokens": tokens})),
        &[],
        &expect![[
            r#"{"created":2000,"messageId":"msg_2","model":"p/m","type":"metadata:update","usage":{"cost":0.25,"tokens":{"cacheRead":4,"cacheWrite":5,"input":1,"output":2,"reasoning":3}}}"#
        ]],
    );
}

#[test]
fn thinking_can_be_left_out_and_a_part_shows_alone() {
    let message = decoded(
        &step(&json!({})),
        &[json!({"type": "reasoning", "text": "hm"}), json!({"type": "text", "text": "yes"})],
    );
    let main = ConversationId::main();
    let n_events = |at: usize, options| {
        let converter = Converter { conversation: &main, options, rest: Rest::MayChange };
        converter.part(&message.info, &message.parts[at], None).len()
    };
    let omit = ConvertOptions::default().thinking(Thinking::Omit);
    assert_eq!((n_events(0, ConvertOptions::default()), n_events(0, omit), n_events(1, omit)), (1, 0, 1));
    assert_eq!(shown(&message, &main, omit).len(), 2);
}
