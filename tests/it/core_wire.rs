//! What the server says is decoded with its errors placed, and nothing of it is lost.

use opencode_conductor::wire::{
    DecodeError, Decoded, EnvironmentEvent, EventPayload, Message, Part, PartBody, PermissionReply,
    ServerEvent, SessionExport, SessionInfo, SessionStatus, StatusMap, ToolStatus,
};
use serde_json::{Value, json};

use crate::fixtures_parity::fixtures;

/// An event, the part of it that is broken, and where the error must be.
fn malformed(kind: &str, properties: &Value, what: &str, path: &str) {
    let event = json!({"id": "evt_1", "type": kind, "properties": properties});
    let error = ServerEvent::from_json(&event.to_string()).expect_err(kind);
    assert_eq!((error.what(), error.path()), (what, path), "{kind} {properties}");
    let global = json!({"directory": "/project", "payload": event});
    let error = ServerEvent::from_json(&global.to_string()).expect_err(kind);
    assert_eq!(
        (error.what(), error.path()),
        (what, format!("payload.{path}").as_str()),
        "{kind} {properties}"
    );
}

fn user(changes: Value) -> Value {
    merged(json!({"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1}}), changes)
}

fn assistant(changes: Value) -> Value {
    merged(
        json!({"id": "msg_1", "sessionID": "ses_1", "role": "assistant", "time": {"created": 1}, "parentID": "msg_0",
            "modelID": "m", "providerID": "p", "cost": 0,
            "tokens": {"input": 1, "output": 1, "reasoning": 0, "cache": {"read": 0, "write": 0}}}),
        changes,
    )
}

fn part(kind: &str, changes: Value) -> Value {
    merged(json!({"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1", "type": kind}), changes)
}

fn session(changes: Value) -> Value {
    merged(json!({"id": "ses_1", "title": "t", "time": {"created": 1, "updated": 2}}), changes)
}

/// Sets fields, or removes those that are set to null.
fn merged(mut object: Value, mut changes: Value) -> Value {
    for (field, value) in std::mem::take(changes.as_object_mut().unwrap()) {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(&field)),
            value => object[field] = value,
        }
    }
    object
}

#[test]
fn a_malformed_known_event_is_an_error_that_names_the_place() {
    for (kind, properties, what, path) in [
        ("message.updated", json!({}), "message.updated", "properties"),
        ("message.updated", json!({"info": 3}), "message", "properties.info"),
        ("message.updated", json!({"info": {"id": "msg_1"}}), "message", "properties.info"),
        ("message.updated", json!({"info": user(json!({"id": null}))}), "message", "properties.info"),
        (
            "message.updated",
            json!({"info": user(json!({"time": {"created": "x"}}))}),
            "message",
            "properties.info.time.created",
        ),
        (
            "message.updated",
            json!({"info": user(json!({"model": {"providerID": "p"}}))}),
            "message",
            "properties.info.model",
        ),
        (
            "message.updated",
            json!({"info": assistant(json!({"sessionID": 1}))}),
            "message",
            "properties.info.sessionID",
        ),
        (
            "message.updated",
            json!({"info": assistant(json!({"error": {}}))}),
            "message",
            "properties.info.error",
        ),
        (
            "message.updated",
            json!({"info": assistant(json!({"cost": "1"}))}),
            "message",
            "properties.info.cost",
        ),
        (
            "message.updated",
            json!({"info": assistant(json!({"tokens": {"cache": {"read": "1"}}}))}),
            "message",
            "properties.info.tokens.cache.read",
        ),
        (
            "message.updated",
            json!({"info": assistant(json!({"time": {"completed": []}}))}),
            "message",
            "properties.info.time.completed",
        ),
        ("message.removed", json!({"sessionID": "ses_1"}), "message.removed", "properties"),
        ("message.part.updated", json!({"part": 1}), "part", "properties.part"),
        ("message.part.updated", json!({"delta": "x"}), "message.part.updated", "properties"),
        (
            "message.part.updated",
            json!({"part": part("text", json!({"text": "x"})), "delta": 1}),
            "message.part.updated",
            "properties.delta",
        ),
        (
            "message.part.delta",
            json!({"sessionID": "ses_1", "messageID": "msg_1", "partID": 1, "delta": "x"}),
            "message.part.delta",
            "properties.partID",
        ),
        (
            "message.part.delta",
            json!({"sessionID": "ses_1", "messageID": "msg_1", "partID": "prt_1"}),
            "message.part.delta",
            "properties",
        ),
        (
            "message.part.removed",
            json!({"sessionID": "ses_1", "messageID": "msg_1"}),
            "message.part.removed",
            "properties",
        ),
        ("session.created", json!({"info": {}}), "session.created", "properties.info"),
        (
            "session.updated",
            json!({"info": session(json!({"parentID": 1}))}),
            "session.updated",
            "properties.info.parentID",
        ),
        (
            "session.deleted",
            json!({"info": session(json!({"time": {"updated": "x"}}))}),
            "session.deleted",
            "properties.info.time.updated",
        ),
        ("session.status", json!({"sessionID": "ses_1"}), "session.status", "properties"),
        (
            "session.status",
            json!({"sessionID": "ses_1", "status": {"type": "retry", "next": "soon"}}),
            "session.status",
            "properties.status",
        ),
        ("session.idle", json!({}), "session.idle", "properties"),
        ("session.compacted", json!({"sessionID": null}), "session.compacted", "properties.sessionID"),
        ("session.error", json!({"sessionID": 1}), "session.error", "properties.sessionID"),
        (
            "session.error",
            json!({"sessionID": "ses_1", "error": {"data": {}}}),
            "session.error",
            "properties.error",
        ),
        ("permission.asked", json!({"id": "per_1"}), "permission.asked", "properties"),
        (
            "permission.updated",
            json!({"id": "per_1", "sessionID": "ses_1", "pattern": 3}),
            "permission.updated",
            "properties.pattern",
        ),
        ("permission.replied", json!({"sessionID": "ses_1"}), "permission.replied", "properties"),
        (
            "question.asked",
            json!({"id": "que_1", "sessionID": "ses_1", "questions": [{"options": [1]}]}),
            "question.asked",
            "properties.questions[0].options[0]",
        ),
        ("question.replied", json!({"requestID": "que_1"}), "question.replied", "properties"),
        ("question.rejected", json!({}), "question.rejected", "properties"),
        ("file.edited", json!({}), "file.edited", "properties"),
        ("vcs.branch.updated", json!({"branch": 1}), "vcs.branch.updated", "properties.branch"),
        ("todo.updated", json!({"sessionID": "ses_1", "todos": [1]}), "todo.updated", "properties.todos[0]"),
        ("pty.exited", json!({"id": "pty_1", "exitCode": "x"}), "pty.exited", "properties.exitCode"),
        (
            "server.instance.disposed",
            json!({"directory": 1}),
            "server.instance.disposed",
            "properties.directory",
        ),
    ] {
        malformed(kind, &properties, what, path);
    }
}

#[test]
fn a_malformed_known_part_is_an_error_that_names_the_place() {
    let tool = |state: Value| part("tool", json!({"callID": "c", "tool": "bash", "state": state}));
    for (part, path) in [
        (part("text", json!({})), ""),
        (part("text", json!({"text": 1})), ".text"),
        (part("text", json!({"text": "x", "time": {"start": "x"}})), ".time.start"),
        (part("text", json!({"text": "x", "synthetic": "yes"})), ".synthetic"),
        (part("text", json!({"text": "x", "id": null})), ""),
        (part("text", json!({"text": "x", "messageID": 1})), ".messageID"),
        (part("reasoning", json!({})), ""),
        (part("reasoning", json!({"text": "x", "time": {"start": 1, "end": "x"}})), ".time.end"),
        (part("tool", json!({"callID": "c", "tool": "bash"})), ""),
        (tool(json!({})), ".state"),
        (tool(json!({"status": 1})), ".state.status"),
        (tool(json!({"status": "completed", "output": 1})), ".state.output"),
        (tool(json!({"status": "error", "error": {}})), ".state.error"),
        (tool(json!({"status": "running", "time": {"start": {}}})), ".state.time.start"),
        (tool(json!({"status": "running", "metadata": []})), ".state.metadata"),
        (part("file", json!({"mime": 1})), ".mime"),
        (part("step-start", json!({"snapshot": 1})), ".snapshot"),
        (part("step-finish", json!({"cost": "free"})), ".cost"),
        (part("step-finish", json!({"tokens": {"output": []}})), ".tokens.output"),
        (part("snapshot", json!({"snapshot": 1})), ".snapshot"),
        (part("patch", json!({"files": [1]})), ".files[0]"),
        (part("agent", json!({"name": 1})), ".name"),
        (part("subtask", json!({"prompt": 1})), ".prompt"),
        (part("compaction", json!({"auto": "yes"})), ".auto"),
        (part("retry", json!({"attempt": 1})), ""),
        (part("retry", json!({"attempt": -1, "error": {"name": "x"}})), ".attempt"),
    ] {
        malformed("message.part.updated", &json!({"part": part}), "part", &format!("properties.part{path}"));
        // One bad part sinks neither its message nor the list.
        let good = json!({"id": "prt_0", "sessionID": "ses_1", "messageID": "msg_1", "type": "text", "text": "good"});
        let list =
            json!([{"info": user(json!({})), "parts": []}, {"info": user(json!({})), "parts": [good, part]}]);
        let decoded = Message::list_from_json(&list.to_string()).unwrap();
        assert_eq!(decoded.items.iter().map(|message| message.parts.len()).collect::<Vec<_>>(), [0, 1]);
        let paths: Vec<_> = decoded.malformed.iter().map(|error| error.path().to_owned()).collect();
        assert_eq!(paths, [format!("[1].parts[1]{path}")]);
        let export = json!({"messages": [], "children": [{"messages": list}]});
        let (export, errors) = SessionExport::from_json(&export.to_string()).unwrap();
        assert_eq!(export.children[0].messages.len(), 2);
        assert_eq!(errors[0].path(), format!("children[0].messages[1].parts[1]{path}"));
    }
}

#[test]
fn a_bad_message_does_not_sink_the_list() {
    let list = json!([{"info": user(json!({}))}, {"info": user(json!({"id": 5}))}, 7, {"info": assistant(json!({}))}]);
    let decoded = Message::list_from_json(&list.to_string()).unwrap();
    assert_eq!(decoded.items.len(), 2);
    let paths: Vec<_> = decoded.malformed.iter().map(|error| (error.what(), error.path())).collect();
    assert_eq!(paths, [("message", "[1].info.id"), ("message", "[2]")]);
    let error = Message::list_from_json("{}").unwrap_err();
    assert_eq!((error.what(), error.path()), ("message list", "."));
    let secret = r#"[{"info":"my secret prompt"}]"#;
    let error = Message::list_from_json(secret).unwrap().malformed.remove(0);
    let cause = std::error::Error::source(&error).unwrap();
    assert_eq!(cause.to_string(), "invalid type: string, expected an object at line 1 column 18");
    assert!(!format!("{error} {error:?}").contains("secret"));
    assert!(error.snippet().contains("secret"));
}

#[test]
fn an_array_is_no_object() {
    for event in [
        json!(["evt_1", "session.next.whatever", {}]),
        json!(["evt_1", "message.part.delta", {"sessionID": "s", "messageID": "m", "partID": "p", "delta": "x"}]),
        json!({"type": "message.part.delta", "properties": ["s", "m", "p", "text", "x"]}),
        json!({"type": "session.idle", "properties": ["ses_1"]}),
    ] {
        assert!(ServerEvent::from_json(&event.to_string()).is_err(), "{event}");
    }
    let list = json!([[user(json!({})), []], {"info": ["user"], "parts": []}]);
    let list = Message::list_from_json(&list.to_string()).unwrap();
    let places: Vec<&str> = list.malformed.iter().map(DecodeError::path).collect();
    assert_eq!((list.items.len(), places), (0, vec!["[0]", "[1].info"]));
    assert!(SessionStatus::from_json(r#"["idle"]"#).is_err());
}

#[test]
fn what_happens_around_sessions_has_types() {
    let read = |kind: &str, properties: Value| {
        let event = json!({"type": kind, "properties": properties});
        ServerEvent::from_json(&event.to_string()).unwrap().payload
    };
    let edited = read("file.edited", json!({"file": "/p/a.rs"}));
    assert_eq!(
        edited,
        EventPayload::Environment(EnvironmentEvent::FileEdited { file: "/p/a.rs".to_owned() })
    );
    let ready = read("worktree.ready", json!({"name": "w", "branch": "opencode/w", "more": 1}));
    let branch = Some("opencode/w".to_owned());
    let expected = EnvironmentEvent::WorktreeReady { name: "w".to_owned(), branch };
    assert_eq!(ready, EventPayload::Environment(expected));
    let none = read("vcs.branch.updated", json!({}));
    assert_eq!(none, EventPayload::Environment(EnvironmentEvent::BranchChanged { branch: None }));
    let todos =
        json!({"sessionID": "ses_1", "todos": [{"content": "c", "status": "pending", "priority": "high"}]});
    assert_eq!(
        read("todo.updated", todos).session_id().map(opencode_conductor::SessionId::as_str),
        Some("ses_1")
    );

    // What was answered is kept; an answer of a newer server is not an error.
    let answered = |kind: &str, rest: Value| {
        let mut properties = json!({"sessionID": "ses_1", "requestID": "req_1"});
        properties.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        read(kind, properties)
    };
    for (reply, expected) in [("reject", Some(PermissionReply::Reject)), ("tomorrow", None)] {
        let EventPayload::PermissionReplied { reply, .. } =
            answered("permission.replied", json!({"reply": reply}))
        else {
            panic!()
        };
        assert_eq!(reply, expected);
    }
    let replied = answered("question.replied", json!({"answers": [["pg"], []]}));
    let EventPayload::QuestionClosed { answers, .. } = replied else { panic!() };
    assert_eq!(answers, Some(vec![vec!["pg".to_owned()], vec![]]));
    let EventPayload::QuestionClosed { answers: None, .. } = answered("question.rejected", json!({})) else {
        panic!()
    };
}

#[test]
fn the_unknown_is_kept() {
    let event = r#"{"type":"session.next.whatever","properties":{"a":[1,{"b":null}]}}"#;
    let EventPayload::Unknown { kind, properties } = ServerEvent::from_json(event).unwrap().payload else {
        panic!()
    };
    assert_eq!((kind.as_str(), properties), ("session.next.whatever", json!({"a": [1, {"b": null}]})));

    let unknown = part("hologram", json!({"depth": 3}));
    let decoded = Part::from_json(&unknown.to_string()).unwrap();
    let PartBody::Unknown(body) = &decoded.body else { panic!("{decoded:?}") };
    assert_eq!(body.kind(), "hologram");
    assert_eq!(serde_json::to_value(&decoded).unwrap(), unknown);

    for message in [
        json!({"info": user(json!({"role": "narrator", "tone": "dry"})), "parts": [unknown]}),
        json!({"info": user(json!({"mood": "good"})), "parts": []}),
        json!({"info": assistant(json!({"structured": {"x": 1}})), "parts": [part("text", json!({"text": "x", "font": "serif"}))]}),
    ] {
        round_trips::<Message>(&message);
    }
    let tool = part(
        "tool",
        json!({"callID": "c", "tool": "x", "state": {"status": "paused", "input": {}, "why": "?"}}),
    );
    round_trips::<Part>(&tool);
    let PartBody::Tool(body) = Part::from_json(&tool.to_string()).unwrap().body else { panic!() };
    assert_eq!(body.state.status, ToolStatus::Unknown("paused".into()));
    let status = SessionStatus::from_json(r#"{"type":"dreaming","of":"sheep"}"#).unwrap();
    assert_eq!(serde_json::to_value(&status).unwrap(), json!({"type": "dreaming", "of": "sheep"}));
}

#[track_caller]
fn round_trips<T: serde::Serialize + serde::de::DeserializeOwned>(json: &Value) {
    let decoded: T =
        serde_json::from_str(&json.to_string()).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!(serde_json::to_value(&decoded).unwrap(), *json);
}

#[test]
fn every_recorded_document_survives_decoding_and_encoding() {
    let mut n_events = 0;
    for fixture in fixtures() {
        for list in &fixture.lists {
            let original: Vec<Value> = serde_json::from_str(list).unwrap();
            let decoded = Message::list_from_json(list).unwrap();
            assert!(decoded.malformed.is_empty(), "{}: {:?}", fixture.name, decoded.malformed);
            for (message, original) in decoded.items.iter().zip(&original) {
                assert_eq!(serde_json::to_value(message).unwrap(), *original, "{}", fixture.name);
            }
        }
        for session in &fixture.sessions_json {
            round_trips::<SessionInfo>(session);
        }
        for line in fixture.events.lines().filter_map(|line| line.strip_prefix("data: ")) {
            let event: Value = serde_json::from_str(line).unwrap();
            let properties = &event["properties"];
            let decoded =
                ServerEvent::from_json(line).unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
            let (encoded, original) = match &decoded.payload {
                EventPayload::MessageUpdated(info) => (serde_json::to_value(info), &properties["info"]),
                EventPayload::PartUpdated { part, .. } => (serde_json::to_value(part), &properties["part"]),
                EventPayload::SessionCreated(info)
                | EventPayload::SessionUpdated(info)
                | EventPayload::SessionDeleted(info) => (serde_json::to_value(info), &properties["info"]),
                EventPayload::SessionStatus { status, .. } => {
                    (serde_json::to_value(status), &properties["status"])
                }
                EventPayload::SessionError { error: Some(error), .. } => {
                    (serde_json::to_value(error), &properties["error"])
                }
                EventPayload::QuestionAsked(request) => (serde_json::to_value(request), properties),
                _ => continue,
            };
            assert_eq!(encoded.unwrap(), *original, "{}", fixture.name);
            n_events += 1;
        }
        if let Some(export) = &fixture.export {
            let (decoded, errors) = SessionExport::from_json(export).unwrap();
            assert!(errors.is_empty());
            assert_eq!(
                serde_json::to_value(&decoded).unwrap(),
                serde_json::from_str::<Value>(export).unwrap()
            );
        }
    }
    assert!(n_events > 500, "only {n_events} events");
}

#[test]
fn the_global_stream_wraps_events() {
    let event = ServerEvent::from_json(
        r#"{"directory":"/project","project":"p","payload":{"id":"evt_1","type":"session.idle","properties":{"sessionID":"ses_1"}}}"#,
    )
    .unwrap();
    assert_eq!((event.directory.as_deref(), event.id.as_deref()), (Some("/project"), Some("evt_1")));
    assert_eq!(event.payload, EventPayload::SessionIdle { session_id: "ses_1".into() });
    let event = ServerEvent::from_json(r#"{"payload":{"type":"server.heartbeat","properties":{}}}"#).unwrap();
    assert_eq!((event.directory, event.payload), (None, EventPayload::ServerHeartbeat));
    // The durable copies that the global stream adds are not ours, and no error.
    let copy = r#"{"directory":"/p","payload":{"type":"sync","syncEvent":{"id":"x","type":"message.updated.1","seq":3}}}"#;
    assert!(
        matches!(ServerEvent::from_json(copy).unwrap().payload, EventPayload::Unknown { kind, .. } if kind == "sync")
    );
    let error = ServerEvent::from_json(r#"{"payload":{"properties":{}}}"#).unwrap_err();
    assert_eq!(error.path(), "payload");
    assert_eq!(ServerEvent::from_json("{}").unwrap_err().path(), ".");
    assert_eq!(ServerEvent::from_json("nonsense").unwrap_err().path(), ".");
    assert!(ServerEvent::from_json(r#"{"type":"server.connected"} trailing"#).is_err());
}

#[test]
fn what_old_servers_said_is_understood() {
    // 1.0 and 1.1: no event ids, and the whole text with each delta.
    let event = json!({"type": "message.part.updated", "properties": {"part": part("text", json!({"text": "a b"})), "delta": " b"}});
    let event = ServerEvent::from_json(&event.to_string()).unwrap();
    let EventPayload::PartUpdated { part, delta } = event.payload else { panic!() };
    assert_eq!((event.id, delta.as_deref(), &part.id), (None, Some(" b"), &"prt_1".into()));
    // 1.0: permission.updated with other names, and its own answer.
    let event = json!({"type": "permission.updated", "properties": {"id": "per_1", "sessionID": "ses_1", "type": "bash",
        "pattern": "rm *", "messageID": "msg_1", "callID": "c", "title": "rm x", "metadata": {}, "time": {"created": 1}}});
    let EventPayload::PermissionAsked(request) = ServerEvent::from_json(&event.to_string()).unwrap().payload
    else {
        panic!()
    };
    assert_eq!((request.permission.as_str(), request.patterns), ("bash", vec!["rm *".to_owned()]));
    assert_eq!(request.extra["title"], "rm x");
    let event = r#"{"type":"permission.replied","properties":{"sessionID":"ses_1","permissionID":"per_1","response":"once"}}"#;
    assert_eq!(
        ServerEvent::from_json(event).unwrap().payload,
        EventPayload::PermissionReplied {
            session_id: "ses_1".into(),
            request_id: "per_1".into(),
            reply: Some(PermissionReply::Once)
        }
    );
    // 1.0 answers an empty list where a map is meant.
    assert_eq!(serde_json::from_str::<StatusMap>("[]").unwrap(), StatusMap::default());
    let busy: StatusMap = serde_json::from_str(r#"{"ses_1":{"type":"busy"}}"#).unwrap();
    assert_eq!(
        (busy.get(&"ses_1".into()), busy.get(&"ses_2".into())),
        (&SessionStatus::Busy, &SessionStatus::Idle)
    );
}

#[test]
fn odd_counts_do_not_cost_a_message() {
    let odd = json!({"info": assistant(json!({"tokens": {"input": -5, "output": 1.5, "reasoning": 1e99}})), "parts": []});
    let decoded = Message::from_json(&odd.to_string()).unwrap();
    let tokens = &decoded.info.as_assistant().unwrap().tokens;
    assert_eq!((tokens.input, tokens.output, tokens.reasoning), (0, 1, u64::MAX));
}

#[test]
fn a_list_of_sessions_is_decoded_one_by_one() {
    let list = json!([session(json!({})), session(json!({"id": null}))]);
    let decoded = Decoded::<SessionInfo>::from_json("session", &list.to_string()).unwrap();
    assert_eq!((decoded.items.len(), decoded.malformed[0].path()), (1, "[1]"));
}

#[test]
fn sessions_nested_too_deep_are_refused_without_recursion() {
    let mut export = r#"{"messages":[]}"#.to_owned();
    for _ in 0..5_000 {
        export = format!(r#"{{"messages":[],"children":[{export}]}}"#);
    }
    let (_, errors) = SessionExport::from_json(&export).unwrap();
    assert_eq!(errors.len(), 1);
}
