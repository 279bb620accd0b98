//! `conductor replay` as a person runs it, on the recorded sessions and on what is none.

#![expect(clippy::unwrap_used, reason = "a broken test rig should stop the test")]

mod terminal;

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use opencode_conductor::{ConversationEvent, SessionConversationState};
use serde_json::{Value, json};

fn replay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conductor"));
    command.arg("replay").args(arguments).env_remove("NO_COLOR").output().unwrap()
}

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let dirs = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let dirs: Vec<PathBuf> = dirs.filter(|path| path.join("events.sse").exists()).collect();
    assert!(!dirs.is_empty());
    dirs
}

#[test]
fn json_is_the_serialised_state_and_the_same_each_time() {
    for fixture in fixtures() {
        let mut lists: Vec<String> = fs::read_dir(fixture.join("messages"))
            .unwrap()
            .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
            .collect();
        lists.sort();
        let lists = lists.iter().map(String::as_str).chain(["--json"]).collect::<Vec<_>>();
        let events = fixture.join("events.sse");
        for arguments in [lists, vec![events.to_str().unwrap(), "--json", "--format", "opencode-events"]] {
            let (one, two) = (replay(&arguments), replay(&arguments));
            assert_eq!((one.status.code(), one.stderr.as_slice()), (Some(0), &b""[..]), "{arguments:?}");
            assert_eq!(one.stdout, two.stdout);
            let text = String::from_utf8(one.stdout).unwrap();
            let state: SessionConversationState = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap() + "\n", text);
        }
    }
}

#[test]
fn the_events_are_lines_of_json_that_fold_to_the_state() {
    for fixture in fixtures() {
        let log = fixture.join("events.sse");
        let list = fs::read_dir(fixture.join("messages")).unwrap().next().unwrap().unwrap().path();
        for file in [log.to_str().unwrap(), list.to_str().unwrap()] {
            let output = replay(&[file, "--events"]);
            assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{file}");
            let lines = String::from_utf8(output.stdout).unwrap();
            let mut state = SessionConversationState::new();
            for line in lines.lines() {
                let event: ConversationEvent = serde_json::from_str(line).unwrap();
                assert_eq!(serde_json::to_string(&event).unwrap(), line);
                state.apply(&event);
            }
            let expected = String::from_utf8(replay(&[file, "--json"]).stdout).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap() + "\n", expected, "{file}");
        }
    }
}

#[test]
fn the_views_show_the_conversation() {
    let fixture = fixtures().into_iter().find(|path| path.ends_with("nested_subagents")).unwrap();
    let events = fixture.join("events.sse");
    let show = |arguments: &[&str]| {
        let arguments: Vec<&str> =
            [events.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
        String::from_utf8(replay(&arguments).stdout).unwrap()
    };
    let terminal = at_a_terminal(&events, "");
    assert!(
        terminal.contains("\u{1b}[32m⏵ nester outer") && terminal.contains("    Inner is done."),
        "{terminal}"
    );
    for plain in [show(&[]), at_a_terminal(&events, "1")] {
        assert!(plain.contains("⏵ nester outer") && !plain.contains('\u{1b}'), "{plain}");
    }
    let markdown = show(&["--markdown"]);
    assert!(markdown.contains("> ### Subagent general: inner · success"), "{markdown}");
    assert!(markdown.contains("> > Inner is done."), "{markdown}");
}

/// What `replay` prints on a terminal, with `NO_COLOR` as given.
fn at_a_terminal(file: &Path, no_color: &str) -> String {
    let (mut terminal, screen) = terminal::open();
    let mut command = Command::new(env!("CARGO_BIN_EXE_conductor"));
    let mut process =
        command.arg("replay").arg(file).env("NO_COLOR", no_color).stdout(screen).spawn().unwrap();
    // It holds the terminal open.
    drop(command);
    let mut printed = Vec::new();
    // A terminal that no program has open any more cannot be read.
    let _ = terminal.read_to_end(&mut printed);
    assert!(process.wait().unwrap().success());
    String::from_utf8(printed).unwrap()
}

/// Models, tools and servers write what they like; a person who looks at it has a terminal that obeys.
#[test]
fn nothing_that_steers_a_terminal_is_printed() {
    let evil = "\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}[31m\u{9b}31m\u{202e}gnp.exe";
    let step = |id: &str, session: &str, parts: Value| {
        let info = json!({
            "id": id, "sessionID": session, "role": "assistant", "time": {"created": 2, "completed": 3}, "modelID": evil,
            "providerID": evil, "error": {"name": evil, "data": {"message": evil}},
        });
        let named = |mut part: Value, n: usize| {
            part["id"] = json!(format!("prt_{id}_{n}"));
            (part["messageID"], part["sessionID"]) = (json!(id), json!(session));
            part
        };
        let parts = parts.as_array().unwrap().iter().cloned().enumerate();
        json!({"info": info, "parts": parts.map(|(n, part)| named(part, n)).collect::<Vec<_>>()})
    };
    let tool = |name: &str, status: &str, metadata: Value| {
        let input = json!({"command": evil, "description": evil, "subagent_type": evil, "prompt": evil});
        let state = json!({
            "status": status, "input": input, "output": evil, "error": evil, "title": evil, "metadata": metadata,
            "time": {"start": 1, "end": 2},
        });
        json!({"type": "tool", "callID": evil, "tool": name, "state": state})
    };
    let parts = json!([
        {"type": "text", "text": evil, "time": {"start": 1, "end": 2}},
        {"type": "reasoning", "text": evil, "time": {"start": 1, "end": 2}},
        tool(evil, "completed", json!({})),
        tool("bash", "error", json!({})),
        tool("task", "completed", json!({"sessionId": "ses_2"})),
    ]);
    let inner = json!([{"type": "text", "text": evil, "time": {"start": 1, "end": 2}}]);
    let document = json!({
        "info": {"id": "ses_1", "title": evil, "time": {"created": 1, "updated": 1}},
        "messages": [step("msg_1", "ses_1", parts), {"info": evil, "parts": []}],
        "children": [{
            "info": {"id": "ses_2", "parentID": "ses_1", "title": evil, "time": {"created": 1, "updated": 1}},
            "messages": [step("msg_2", "ses_2", inner)],
        }],
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("export.json");
    fs::write(&file, document.to_string()).unwrap();
    let file = file.to_str().unwrap();
    for view in [&[file][..], &[file, "--markdown"], &[file, "--json"], &[file, "--events"], &[evil]] {
        let ended = replay(view);
        let [stdout, stderr] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(stdout.contains("gnp.exe") || stderr.contains("gnp.exe"), "{view:?}: {stdout} {stderr}");
        // The program's own colours.
        let stdout = ["0", "1", "2", "31", "32", "33", "34", "35", "36", "90"]
            .iter()
            .fold(stdout, |text, colour| text.replace(&format!("\u{1b}[{colour}m"), ""));
        let is_evil = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        let found: Vec<char> = stdout.chars().chain(stderr.chars()).filter(|c| is_evil(*c)).collect();
        assert!(found.is_empty(), "{view:?}: {found:?} in {stdout} {stderr}");
    }
}

#[test]
fn a_mistake_is_one_clear_line_and_status_2() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (text, broken) = (write("notes.txt", b"not a transcript\n"), write("broken.json", b"[{\"info\":"));
    let (number, bytes) = (write("number.json", b"[1]"), write("bytes.json", b"\xff\xfe"));
    let export = write("export.json", br#"{"messages":[]}"#);
    for (arguments, said) in [
        (vec![], "no file given"),
        (vec!["missing.json"], "missing.json: "),
        (vec![text.as_str()], "notes.txt: the transcript is neither"),
        (
            vec![broken.as_str()],
            "broken.json: the transcript could not be decoded: malformed message list at `[0]`",
        ),
        (
            vec![number.as_str()],
            "number.json: the transcript could not be decoded: malformed message at `[0]`",
        ),
        (vec![bytes.as_str()], "bytes.json: "),
        (
            vec![export.as_str(), "--format", "opencode-messages"],
            "export.json: the transcript could not be decoded",
        ),
        (vec![export.as_str(), "--format", "yaml"], "--format yaml: choose auto, opencode-events"),
        (vec![export.as_str(), "--format"], "missing argument for option '--format'"),
        (vec![export.as_str(), "--colour"], "invalid option '--colour'"),
        (vec![export.as_str(), text.as_str()], "notes.txt: "),
    ] {
        let output = replay(&arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_is_malformed_inside_is_reported_beside_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.jsonl");
    let good = r#"{"type":"session.created","properties":{"info":{"id":"ses_1"}}}"#;
    fs::write(&log, format!("{good}\n{{\"type\":\"session.idle\",\"properties\":{{}}}}\n")).unwrap();
    let output = replay(&[log.to_str().unwrap(), "--json"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr
            .contains("log.jsonl: line 2: malformed session.idle at `properties`: missing field `sessionID`"),
        "{stderr}"
    );
    let output = replay(&[log.to_str().unwrap(), "--session", "ses_2"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn claude_codes_streams_and_transcripts_are_shown_alike() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/claude/subagent");
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let shown = |arguments: &[&str]| {
        let output = replay(arguments);
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (stream, main) = (path("stream-1.jsonl"), path("transcript.jsonl"));
    let subagents = fs::read_dir(dir.join("subagents")).unwrap().map(|entry| entry.unwrap().path());
    let subagent = subagents.into_iter().find(|path| path.extension().unwrap() == "jsonl").unwrap();
    let files = [main.as_str(), subagent.to_str().unwrap(), "--format", "claude-transcript"];
    let state = |text: &str| serde_json::from_str::<SessionConversationState>(text).unwrap();
    let loaded = shown(&[&files[..], &["--json"]].concat());
    // The directory alone says the same.
    assert_eq!(shown(&[dir.to_str().unwrap(), "--format", "claude-transcript", "--json"]), loaded);
    let streamed = shown(&[&stream, "--format", "claude-stream", "--json"]);
    assert_eq!(state(&streamed).blocks(), state(&loaded).blocks());
    let mut folded = SessionConversationState::new();
    for line in shown(&[&files[..], &["--events"]].concat()).lines() {
        folded.apply(&serde_json::from_str(line).unwrap());
    }
    assert_eq!(folded, state(&loaded));
    assert!(shown(&files).contains("⏵ general-purpose Look"));

    let nothing = replay(&[path("../../README.md").as_str(), "--format", "claude-transcript"]);
    assert_eq!(nothing.status.code(), Some(2));
    let text = String::from_utf8(nothing.stderr).unwrap();
    assert!(text.contains("README.md") && text.contains("transcript line"), "{text}");
}
