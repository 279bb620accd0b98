//! Transcripts: which documents are understood, and what is said about those that are not.

use opencode_conductor::{
    Architecture, ConvertOptions, OpenCodeFormat, OpenCodeOptions, SessionConversationState, SessionId,
    Thinking, TranscriptError, parse_opencode, parse_transcript,
};
use serde_json::{Value, json};

fn prompt(session: &str, text: &str) -> Value {
    let id = format!("msg_{session}");
    json!({"info": {"id": id, "sessionID": session, "role": "user", "time": {"created": 1}},
        "parts": [{"id": format!("prt_{session}"), "sessionID": session, "messageID": id, "type": "text", "text": text}]})
}

fn task(session: &str, child: &str) -> Value {
    let id = format!("msg_{session}_2");
    json!({"info": {"id": id, "sessionID": session, "role": "assistant", "time": {"created": 2, "completed": 3}},
        "parts": [{"id": format!("prt_{child}_task"), "sessionID": session, "messageID": id, "type": "tool", "tool": "task",
            "callID": "c", "state": {"status": "completed", "input": {}, "output": "done", "metadata": {"sessionId": child}}}]})
}

fn info(id: &str, parent: Option<&str>) -> Value {
    let mut info = json!({"id": id, "title": id, "time": {"created": 1, "updated": 1}});
    if let Some(parent) = parent {
        info["parentID"] = json!(parent);
    }
    info
}

/// Each thread and how many blocks it has.
fn shape(state: &SessionConversationState) -> Vec<(String, String, usize)> {
    let below = state.subagents().map(|subagent| {
        (subagent.tool_use_id.to_string(), subagent.parent_id.to_string(), subagent.blocks.len())
    });
    [("main".to_owned(), String::new(), state.blocks().len())].into_iter().chain(below).collect()
}

#[track_caller]
fn check(text: &str, root: &str, expected: &[(&str, &str, usize)]) {
    let transcript = parse_transcript(Architecture::OpenCode, text).unwrap();
    assert_eq!(transcript.root, Some(SessionId::new(root)));
    assert!(transcript.malformed.is_empty(), "{:?}", transcript.malformed);
    let expected: Vec<_> =
        expected.iter().map(|(id, parent, n)| ((*id).to_owned(), (*parent).to_owned(), *n)).collect();
    assert_eq!(shape(&transcript.state), expected);
}

#[test]
fn lists_exports_and_exports_with_children_are_recognised() {
    let messages = json!([prompt("ses_1", "hi"), task("ses_1", "ses_2")]);
    let children = json!([{"info": info("ses_2", Some("ses_1")), "messages": [prompt("ses_2", "deeper"), task("ses_2", "ses_3")],
        "children": [{"messages": [prompt("ses_3", "deepest")]}]}]);
    let alone = [("main", "", 2), ("prt_ses_2_task", "main", 0)];
    check(&messages.to_string(), "ses_1", &alone);
    check(&format!("\u{feff}\n {messages}"), "ses_1", &alone);
    check(&json!({"info": info("ses_1", None), "messages": messages}).to_string(), "ses_1", &alone);
    check(
        &json!({"info": info("ses_1", None), "messages": messages, "children": children}).to_string(),
        "ses_1",
        &[("main", "", 2), ("prt_ses_2_task", "main", 2), ("prt_ses_3_task", "prt_ses_2_task", 1)],
    );
    // A child that no call names shows under its own id.
    check(
        &json!({"messages": [prompt("ses_1", "hi")], "children": [{"messages": [prompt("ses_9", "by hand")]}]}).to_string(),
        "ses_1",
        &[("main", "", 2), ("ses_9", "main", 1)],
    );
}

#[test]
fn a_child_exported_alone_is_the_root() {
    let export = json!({"info": info("ses_2", Some("ses_1")), "messages": [prompt("ses_2", "hi")]});
    check(&export.to_string(), "ses_2", &[("main", "", 1)]);
}

#[test]
fn event_logs_are_lines_of_json_or_sse() {
    let part = &prompt("ses_1", "hi")["parts"][0];
    let events = [
        json!({"type": "server.connected", "properties": {}}),
        json!({"type": "session.created", "properties": {"info": info("ses_1", None)}}),
        json!({"type": "message.updated", "properties": {"info": prompt("ses_1", "hi")["info"]}}),
        json!({"type": "message.part.updated", "properties": {"part": part}}),
    ];
    let lines = |prefix: &str, gap: &str| -> String {
        events.iter().flat_map(|event| [prefix.to_owned(), event.to_string(), format!("\n{gap}")]).collect()
    };
    for log in [
        lines("", ""),
        lines("data: ", "\n"),
        lines("data:", ": comment\nevent: x\n\n"),
        lines("12:00:01.5 [feed] data: ", "\r\n"),
    ] {
        check(&log, "ses_1", &[("main", "", 1)]);
    }
    let global = events.iter().map(|event| json!({"directory": "/p", "payload": event}).to_string());
    let global = global.collect::<Vec<_>>().join("\n");
    check(&global, "ses_1", &[("main", "", 1)]);
}

#[test]
fn the_root_is_the_first_session_without_a_parent_unless_told() {
    let child = json!({"type": "session.created", "properties": {"info": info("ses_2", Some("ses_1"))}});
    let root = json!({"type": "session.created", "properties": {"info": info("ses_1", None)}});
    let said = |session: &str| {
        let prompt = prompt(session, "hi");
        let message = json!({"type": "message.updated", "properties": {"info": prompt["info"]}});
        let part = json!({"type": "message.part.updated", "properties": {"part": prompt["parts"][0]}});
        format!("{message}\n{part}\n")
    };
    let log = format!("{child}\n{root}\n{}{}{}", said("ses_1"), said("ses_2"), said("ses_9"));
    check(&log, "ses_1", &[("main", "", 2), ("ses_2", "main", 1)]);
    let of = |session: &str| parse_opencode(&[&log], &OpenCodeOptions::default().session(session.into()));
    assert_eq!(of("ses_9").unwrap().state.blocks().len(), 1);
    assert!(matches!(of("ses_0"), Err(TranscriptError::UnknownSession(id)) if id.as_str() == "ses_0"));
}

#[test]
fn nothing_is_an_empty_conversation() {
    for nothing in ["[]", r#"{"messages":[]}"#, r#"{"type":"server.connected","properties":{}}"#] {
        let transcript = parse_transcript(Architecture::OpenCode, nothing).unwrap();
        assert_eq!((transcript.root, transcript.state), (None, SessionConversationState::new()));
    }
    let options = OpenCodeOptions::default().session("ses_1".into());
    assert_eq!(parse_opencode(&["[]"], &options).unwrap().root, Some("ses_1".into()));
}

#[test]
fn what_is_malformed_is_reported_beside_the_good() {
    let broken = json!({"type": "session.idle", "properties": {"sessionID": 1}});
    let good = json!({"type": "session.created", "properties": {"info": info("ses_1", None)}});
    let log = format!("{broken}\n{good}\n\ndata: not json\n{broken}\n");
    let transcript = parse_transcript(Architecture::OpenCode, &log).unwrap();
    let mut said: Vec<String> = transcript.malformed.iter().map(ToString::to_string).collect();
    said.sort();
    assert_eq!(
        said,
        [
            "line 1: malformed session.idle at `properties.sessionID`",
            "line 4: malformed event at `.`",
            "line 5: malformed session.idle at `properties.sessionID`"
        ]
    );
    let list = json!([prompt("ses_1", "hi"), {"info": 5}]);
    let transcript = parse_transcript(Architecture::OpenCode, &list.to_string()).unwrap();
    assert_eq!(transcript.malformed[0].to_string(), "malformed message at `[1].info`");
    assert_eq!(transcript.state.blocks().len(), 1);
}

#[test]
fn what_is_no_transcript_is_an_error() {
    let unrecognised = |text: &str| {
        let error = parse_transcript(Architecture::OpenCode, text).unwrap_err();
        assert!(matches!(error, TranscriptError::Unrecognised { document: 0, .. }), "{text:?}: {error:?}");
    };
    unrecognised("");
    unrecognised("hello");
    unrecognised("error: no such session\n");
    let malformed = |text: &str, path: &str| match parse_transcript(Architecture::OpenCode, text).unwrap_err()
    {
        TranscriptError::Malformed { source, .. } => assert_eq!(source.path(), path, "{text}"),
        other => panic!("{text}: {other:?}"),
    };
    malformed("[", ".");
    malformed("[1, 2]", "[0]");
    malformed(r#"{"messages": 3}"#, "messages");
    malformed(r#"{"hello": 1}"#, ".");
    malformed("data: {\"type\":\"session.idle\",\"properties\":{}}\n", "properties");
    let second = parse_opencode(&["[]", "nonsense"], &OpenCodeOptions::default()).unwrap_err();
    assert!(matches!(second, TranscriptError::Unrecognised { document: 1, .. }));
    let forced = OpenCodeOptions::default().format(OpenCodeFormat::Export);
    assert!(parse_opencode(&["[]"], &forced).is_err());
}

#[test]
fn thinking_can_be_left_out() {
    let list = json!([{"info": {"id": "msg_1", "sessionID": "ses_1", "role": "assistant", "time": {"created": 1, "completed": 2}},
        "parts": [{"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1", "type": "reasoning", "text": "hm"}]}]);
    let n_blocks = |thinking| {
        let options = OpenCodeOptions::default().convert(ConvertOptions::default().thinking(thinking));
        parse_opencode(&[&list.to_string()], &options).unwrap().state.blocks().len()
    };
    assert_eq!((n_blocks(Thinking::Keep), n_blocks(Thinking::Omit)), (1, 0));
}

#[test]
fn sessions_that_name_each_other_do_not_loop() {
    let one = json!({"info": info("ses_1", Some("ses_2")), "messages": [prompt("ses_1", "a"), task("ses_1", "ses_2")]});
    let two = json!({"info": info("ses_2", Some("ses_1")), "messages": [prompt("ses_2", "b"), task("ses_2", "ses_1")]});
    let transcript =
        parse_opencode(&[&one.to_string(), &two.to_string()], &OpenCodeOptions::default()).unwrap();
    // Neither is without a parent, so there is no root to begin with.
    assert_eq!(transcript.root, None);
    let options = OpenCodeOptions::default().session("ses_1".into());
    let transcript = parse_opencode(&[&one.to_string(), &two.to_string()], &options).unwrap();
    assert_eq!(shape(&transcript.state)[1], ("prt_ses_1_task".to_owned(), "prt_ses_2_task".to_owned(), 0));
}
