//! What is saved of a session loses nothing: of every recording, by JSON, and back from the conversation.

use expect_test::expect;
use opencode_conductor::{
    AgentProfile, Architecture, CombinedTranscript, ConvertOptions, Millis, ModelRef, RuntimeSessionData,
    SavedSessionData, SessionConversationState, SessionListData, SessionStatus, SessionTree, TranscriptError,
    WorkspaceFile, wire::ServerEvent,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{claude_parity, fixtures_parity};

/// The transcripts of every recording, with what they load to.
fn recordings() -> Vec<(String, Architecture, CombinedTranscript, SessionConversationState)> {
    let opencode = fixtures_parity::fixtures().into_iter().map(|fixture| {
        let mut lists = fixture.lists.iter().zip(&fixture.sessions);
        let mut combined = CombinedTranscript::new(lists.next().unwrap().0);
        for (list, session) in lists {
            combined = combined.subagent(session.id.as_str(), list, None);
        }
        let loaded = fixture.listed();
        (fixture.name, Architecture::OpenCode, combined, loaded)
    });
    let claude = claude_parity::recordings().into_iter().map(|recording| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut combined = CombinedTranscript::new(text(&recording.main));
        for (id, transcript, meta) in &recording.subagents {
            combined = combined.subagent(id, text(transcript), Some(text(meta)));
        }
        let loaded = recording.loaded();
        (recording.name, Architecture::ClaudeCode, combined, loaded)
    });
    opencode.chain(claude).collect()
}

fn saved(architecture: Architecture, transcript: CombinedTranscript) -> SavedSessionData {
    let mut data = SavedSessionData::new(SessionListData::new("ses_1".into(), architecture));
    data.refresh(transcript);
    data
}

fn by_json<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

#[test]
fn every_recording_is_saved_and_loaded_without_loss() {
    for (name, architecture, transcript, state) in recordings() {
        let data = saved(architecture, transcript.clone());
        assert_eq!(data.transcript(), transcript, "{name}");
        assert_eq!(by_json(&data), data, "{name}");
        let (loaded, malformed) = data.clone().load().unwrap();
        assert!(malformed.is_empty(), "{name}: {malformed:?}");
        assert_eq!(loaded.conversation, state, "{name}");
        assert_eq!(*loaded.saved, data, "{name}: what is loaded is still there as it was");
        let again: RuntimeSessionData = by_json(&loaded);
        assert_eq!(again.conversation, state, "{name}");
        assert_eq!(again.saved, loaded.saved, "{name}");
    }
}

#[test]
fn what_was_observed_of_every_recording_is_written_so_that_it_loads_the_same() {
    for fixture in fixtures_parity::fixtures() {
        let root = &fixture.sessions[0].id;
        let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
        let mut state = SessionConversationState::new();
        let events = fixture.events.lines().filter_map(|line| line.strip_prefix("data:"));
        for event in events {
            let observed = tree.apply_event(ServerEvent::from_json(event.trim()).unwrap());
            observed.events.iter().for_each(|event| state.apply(event));
        }
        let sessions: Vec<_> = tree.sessions().cloned().collect();
        for session in sessions {
            tree.settle(&session).events.iter().for_each(|event| state.apply(event));
        }
        let data = saved(Architecture::OpenCode, tree.transcript());
        let (loaded, malformed) = by_json(&data).load().unwrap();
        assert!(malformed.is_empty(), "{}: {malformed:?}", fixture.name);
        let pretty = |state: &SessionConversationState| serde_json::to_string_pretty(state).unwrap();
        assert_eq!(pretty(&loaded.conversation), pretty(&state), "{}", fixture.name);
    }
}

#[test]
fn an_agent_without_a_format_of_its_own_is_saved_as_its_conversation() {
    for (name, _, _, state) in recordings() {
        let transcript = CombinedTranscript::new(serde_json::to_string(&state).unwrap());
        let (loaded, _) = by_json(&saved(Architecture::Conversation, transcript)).load().unwrap();
        assert_eq!(loaded.conversation, state, "{name}");
    }
}

#[test]
fn what_cannot_be_loaded_says_why_and_is_kept() {
    let foreign = saved(Architecture::Other("gemini-cli".to_owned()), CombinedTranscript::new("[]"));
    assert_eq!(by_json(&foreign), foreign);
    let error = foreign.load().unwrap_err();
    assert!(matches!(error, TranscriptError::UnknownArchitecture(name) if name == "gemini-cli"));
    let broken = saved(Architecture::Conversation, CombinedTranscript::new("{\"blocks\": [3]}"));
    assert!(matches!(broken.load(), Err(TranscriptError::Malformed { .. })));
    let nothing = SavedSessionData::new(SessionListData::new("ses_1".into(), Architecture::OpenCode));
    assert_eq!(nothing.load().unwrap().0.conversation, SessionConversationState::new());
}

#[test]
fn the_json_is_flat_and_what_other_programs_write_is_read() {
    let line = r#"{"type":"user","uuid":"u1","timestamp":"2026-01-31T12:00:00Z","message":{"content":"Hi"}}"#;
    let mut data = saved(Architecture::ClaudeCode, CombinedTranscript::new(line).subagent("a1", "", None));
    data.listed.agent_profile_reference = "code-assistant".into();
    data.listed.status = SessionStatus::Running;
    data.listed.last_activity = Some(Millis::new(2));
    data.listed.created_at = Some(Millis::new(1));
    data.workspace_files.push(WorkspaceFile::new("a.txt", "a"));
    let profile = AgentProfile::new("code-assistant").model(ModelRef::new("anthropic", "claude"));
    data.agent_profile = Some(profile.instructions("Be brief."));
    let (runtime, _) = data.load().unwrap();
    expect![[r#"
        {
          "sessionId": "ses_1",
          "type": "claude-agent-sdk",
          "agentProfileReference": "code-assistant",
          "status": "running",
          "lastActivity": 2,
          "createdAt": 1,
          "rawTranscript": "{\"type\":\"user\",\"uuid\":\"u1\",\"timestamp\":\"2026-01-31T12:00:00Z\",\"message\":{\"content\":\"Hi\"}}",
          "workspaceFiles": [
            {
              "path": "a.txt",
              "content": "a"
            }
          ],
          "agentProfile": {
            "reference": "code-assistant",
            "instructions": "Be brief.",
            "model": {
              "providerID": "anthropic",
              "modelID": "claude"
            }
          },
          "blocks": [
            {
              "id": "u1",
              "conversationId": "main",
              "order": [
                1769860800000,
                "u1",
                0,
                "",
                0
              ],
              "timestamp": "2026-01-31T12:00:00.000Z",
              "status": "complete",
              "type": "user_message",
              "content": "Hi"
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
          },
          "subagents": [
            {
              "id": "a1",
              "rawTranscript": ""
            }
          ]
        }
    "#]]
    .assert_eq(&(serde_json::to_string_pretty(&runtime).unwrap() + "\n"));

    let foreign = json!({
        "sessionId": "s", "type": "claude-agent-sdk", "agentProfileReference": "p", "status": "archived",
        "rawTranscript": "", "workspaceFiles": [{"path": "a", "content": "b", "encoding": "utf8"}], "owner": {"name": "x"},
        "subagents": [{"id": "sub-1", "rawTranscript": "x", "blocks": [
            {"id": "b1", "type": "assistant_text", "content": "Hi", "status": "complete", "timestamp": "2026-01-31T12:00:00Z"}]}],
        "blocks": [],
    });
    let read: RuntimeSessionData = serde_json::from_value(foreign).unwrap();
    assert_eq!(read.saved.listed.status, SessionStatus::Other("archived".to_owned()));
    assert_eq!(read.saved.extra["owner"]["name"], "x");
    assert_eq!(read.saved.workspace_files[0].extra["encoding"], "utf8");
    assert_eq!(read.saved.subagents[0].raw_transcript.as_deref(), Some("x"));
    assert_eq!(read.conversation.subagents().next().unwrap().blocks.len(), 1);
    assert_eq!(by_json(&read), read);
}

fn arbitrary_data() -> impl Strategy<Value = SavedSessionData> {
    let text = || prop::option::of(any::<String>());
    let architecture = prop_oneof![
        Just(Architecture::OpenCode),
        Just(Architecture::ClaudeCode),
        Just(Architecture::Conversation),
        "x-[a-z]{1,8}".prop_map(Architecture::Other),
    ];
    let subagents = prop::collection::vec(("[a-z]{1,3}", text(), text()), 0..4);
    let files = prop::collection::vec((any::<String>(), any::<String>()), 0..3);
    let times = (prop::option::of(any::<i64>()), prop::option::of(any::<i64>()));
    let extra = prop::option::of(("x-[a-z]{1,4}", any::<i32>()));
    (architecture, text(), subagents, files, times, extra).prop_map(
        |(architecture, main, subagents, files, times, extra)| {
            let mut data = saved(architecture, CombinedTranscript::default());
            data.raw_transcript = main;
            for (id, transcript, meta) in subagents {
                let mut one =
                    saved(Architecture::OpenCode, CombinedTranscript::default().subagent(id, "", meta));
                one.subagents[0].raw_transcript = transcript;
                data.subagents.append(&mut one.subagents);
            }
            data.workspace_files =
                files.into_iter().map(|(path, text)| WorkspaceFile::new(path, text)).collect();
            (data.listed.last_activity, data.listed.created_at) =
                (times.0.map(Millis::new), times.1.map(Millis::new));
            data.extra.extend(extra.map(|(name, value)| (name, Value::from(value))));
            data
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_data_survives_json(data in arbitrary_data(), which: prop::sample::Index) {
        prop_assert_eq!(&by_json(&data), &data);
        let recordings = recordings_states();
        let runtime = RuntimeSessionData::new(data, which.get(recordings).clone());
        prop_assert_eq!(by_json(&runtime), runtime);
    }
}

fn recordings_states() -> &'static [SessionConversationState] {
    static STATES: std::sync::OnceLock<Vec<SessionConversationState>> = std::sync::OnceLock::new();
    STATES.get_or_init(|| recordings().into_iter().map(|(.., state)| state).collect())
}
