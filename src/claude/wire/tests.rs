use std::error::Error;

use serde_json::json;

use super::*;

/// A good line of every known kind of the stream.
const STREAM: &[&str] = &[
    r#"{"type":"user","message":{"role":"user","content":[{"type":"text","text":"Hello"}]},"uuid":"u1","timestamp":"2026-01-01T00:00:00.000Z","isReplay":true,"parent_tool_use_id":null}"#,
    r#"{"type":"assistant","message":{"id":"msg_1","model":"m","content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":1}},"uuid":"a1","timestamp":"2026-01-01T00:00:01.000Z","parent_tool_use_id":"toolu_1"}"#,
    r#"{"type":"stream_event","event":{"type":"message_start","message":{"id":"msg_1","model":"m","content":[],"usage":{}}},"parent_tool_use_id":null}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"H"}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"H"}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_stop","index":0}}"#,
    r#"{"type":"stream_event","event":{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}}"#,
    r#"{"type":"command_lifecycle","command_uuid":"u1","state":"queued"}"#,
    r#"{"total_cost_usd":0.5,"is_error":false,"subtype":"success","result":"Hi","type":"result","user_message_uuid":"u1","num_turns":1}"#,
    r#"{"type":"system","subtype":"init","session_id":"s1","cwd":"/","model":"m"}"#,
    r#"{"type":"system","subtype":"status","status":null}"#,
    r#"{"type":"system","subtype":"session_state_changed","state":"requires_action"}"#,
    r#"{"type":"system","subtype":"api_retry","attempt":1,"max_retries":3,"retry_delay_ms":1000,"error_status":null,"error":"x"}"#,
    r#"{"type":"system","subtype":"compact_boundary","uuid":"b1","compact_metadata":{"trigger":"auto","pre_tokens":9}}"#,
    r#"{"type":"system","subtype":"task_started","task_id":"t1","tool_use_id":"toolu_1","is_backgrounded":true}"#,
    r#"{"type":"system","subtype":"task_progress","task_id":"t1"}"#,
    r#"{"type":"system","subtype":"task_updated","task_id":"t1","patch":{}}"#,
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"completed","usage":{"duration_ms":5}}"#,
    r#"{"type":"system","subtype":"background_tasks_changed","tasks":[{"task_id":"t1"}]}"#,
    r#"{"type":"system","subtype":"thinking_tokens","estimated_tokens":5}"#,
    r#"{"type":"system","subtype":"permission_denied","tool_name":"Bash","message":"no"}"#,
    r#"{"type":"system","subtype":"informational","content":"Note"}"#,
    r#"{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"blocked_path":"/x"}}"#,
    r#"{"type":"control_response","response":{"subtype":"success","request_id":"r1","response":{}}}"#,
    r#"{"type":"control_cancel_request","request_id":"r1"}"#,
];

/// A good line of every known kind of transcripts.
const FILE: &[&str] = &[
    r#"{"parentUuid":null,"isSidechain":false,"type":"user","message":{"role":"user","content":"Hello"},"uuid":"u1","timestamp":"2026-01-01T00:00:00.000Z"}"#,
    r#"{"parentUuid":"u1","message":{"id":"msg_1","content":[{"type":"thinking","thinking":"Hm","signature":"s"}]},"apiBlockIndex":0,"type":"assistant","uuid":"a1","timestamp":"2026-01-01T00:00:01.000Z"}"#,
    r#"{"type":"system","subtype":"api_error","retryAttempt":1,"maxRetries":3,"retryInMs":10.5,"error":{"status":429},"timestamp":"2026-01-01T00:00:01.000Z"}"#,
    r#"{"type":"system","subtype":"compact_boundary","compactMetadata":{"trigger":"manual"},"uuid":"b1"}"#,
    r#"{"type":"system","subtype":"informational","content":"Note","uuid":"i1"}"#,
    r#"{"type":"attachment","attachment":{"type":"queued_command","prompt":"More","source_uuid":"u2"}}"#,
    r#"{"type":"cost-state","totalCostUSD":0.5}"#,
];

fn kinds(lines: &[&str], is_known: impl Fn(&str) -> bool) {
    for line in lines {
        assert!(is_known(line), "{line}");
        // What a kind needs, of another type, is an error that says where.
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for field in value.as_object().unwrap().keys() {
            let mut broken = value.clone();
            broken[field] = json!([[]]);
            if matches!(field.as_str(), "type" | "message" | "event" | "request" | "response" | "attachment")
            {
                let error = StreamMessage::from_json(&broken.to_string())
                    .map(|_| ())
                    .and_then(|()| TranscriptLine::from_json(&broken.to_string()).map(|_| ()))
                    .unwrap_err();
                let at = if value["type"] == "system" && field == "message" { "." } else { field };
                assert!(error.path().starts_with(at), "{field} of {line}: {error}");
            }
        }
    }
}

#[test]
fn known_lines_are_known_and_malformed_ones_are_errors() {
    kinds(STREAM, |line| {
        !matches!(
            StreamMessage::from_json(line).unwrap(),
            StreamMessage::Unknown(_) | StreamMessage::System(SystemMessage::Unknown(_))
        )
    });
    kinds(FILE, |line| !matches!(TranscriptLine::from_json(line).unwrap(), TranscriptLine::Unknown(_)));
}

#[test]
fn errors_say_where_and_not_what() {
    let line = STREAM[1].replace(r#""text":"Hi""#, r#""text":["secret"]"#);
    let error = StreamMessage::from_json(&line).unwrap_err();
    assert_eq!((error.what(), error.path()), ("stream line", "message.content[0].text"));
    assert!(!format!("{error} {error:?} {:?}", error.source()).contains("secret"));
    let error = StreamMessage::from_json(&STREAM[0].replace("2026", "yesterday")).unwrap_err();
    assert_eq!(error.path(), "timestamp");
    assert_eq!(StreamMessage::from_json("{}").unwrap_err().path(), ".");
    assert_eq!(StreamMessage::from_json(&STREAM[0][..40]).unwrap_err().path(), "message");
    for line in [&b"{\"type\":\"user\xff\"}"[..], b"\xff"] {
        let cause = StreamMessage::from_bytes(line).unwrap_err();
        assert!(cause.source().unwrap().to_string().contains("not UTF-8"));
        assert!(TranscriptLine::from_bytes(line).is_err());
    }
}

#[test]
fn what_is_not_known_is_kept() {
    for line in [r#"{"type":"new","subtype":5,"message":3}"#, r#"{"subtype":"new","type":"system","uuid":5}"#]
    {
        let kind = if line.contains("system") { "system/new" } else { "new" };
        let kept = Unknown { kind: kind.into(), json: line.into() };
        let streamed = match StreamMessage::from_json(line).unwrap() {
            StreamMessage::Unknown(unknown) | StreamMessage::System(SystemMessage::Unknown(unknown)) => {
                unknown
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(streamed, kept);
        let TranscriptLine::Unknown(written) = TranscriptLine::from_json(line).unwrap() else {
            panic!("{line}")
        };
        assert_eq!(written, kept);
    }
    let block = r#"{"type":"assistant","message":{"id":"m","content":[{"type":"new","x":1}]}}"#;
    let StreamMessage::Assistant(line) = StreamMessage::from_json(block).unwrap() else { panic!("{block}") };
    let unknown =
        ContentBlock::Unknown { kind: "new".into(), fields: json!({"x": 1}).as_object().unwrap().clone() };
    assert_eq!(line.message.content, [unknown]);
    let StreamMessage::ControlRequest(asked) = StreamMessage::from_json(STREAM[24]).unwrap() else {
        panic!("asked")
    };
    let HostRequest::CanUseTool(tool) = asked.request else { panic!("{asked:?}") };
    assert_eq!(tool.extra["blocked_path"], "/x");
}

#[test]
fn the_place_of_the_type_does_not_matter() {
    for line in STREAM.iter().chain(FILE) {
        let mut fields: serde_json::Map<_, _> = serde_json::from_str(line).unwrap();
        let kind = fields.remove("type").unwrap();
        let body = serde_json::to_string(&fields).unwrap();
        let first = format!(r#"{{"type":{kind},{}"#, &body[1..]);
        let last = format!(r#"{},"type":{kind}}}"#, &body[..body.len() - 1]);
        let streamed = |line: &str| format!("{:?}", StreamMessage::from_json(line));
        let written = |line: &str| format!("{:?}", TranscriptLine::from_json(line));
        if STREAM.contains(line) {
            assert_eq!(streamed(&first), streamed(&last));
        } else {
            assert_eq!(written(&first), written(&last));
        }
    }
}

#[test]
fn a_line_of_20_megabytes_is_read() {
    let text = "x".repeat(20_000_000);
    let line = format!(
        r#"{{"type":"user","uuid":"u1","message":{{"content":[{{"type":"tool_result","tool_use_id":"t","content":"{text}"}}]}}}}"#
    );
    let StreamMessage::User(user) = StreamMessage::from_json(&line).unwrap() else { panic!("a user line") };
    let ContentBlock::ToolResult { content: Content::Text(read), .. } = &user.message.content.blocks()[0]
    else {
        panic!("a result");
    };
    assert_eq!(read.len(), 20_000_000);
    let cut = &line[..line.len() - 10];
    assert!(StreamMessage::from_json(cut).unwrap_err().snippet().len() <= 200);
}
