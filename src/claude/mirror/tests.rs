use crate::{
    BlockBody, BlockStatus, ConversationBlock, ConversationEvent, ConvertOptions, RunStatus,
    SessionConversationState, Thinking,
    claude::{
        ClaudeFiles, FileRead, SessionMirror, SubagentFile,
        wire::{StreamMessage, TranscriptLine},
    },
};

const PROMPT: &str = r#"{"type":"user","message":{"role":"user","content":[{"type":"text","text":"Hello"}]},"uuid":"u1","timestamp":"2026-01-01T00:00:00.000Z","isReplay":true}"#;
const START: &str = r#"{"type":"stream_event","event":{"type":"message_start","message":{"id":"msg_1","model":"m","content":[],"usage":{"input_tokens":5,"output_tokens":1}}}}"#;
const BLOCK: &str = r#"{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}}"#;
const DELTA: &str = r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi "}}}"#;
const TEXT: &str = r#"{"type":"assistant","message":{"id":"msg_1","model":"m","content":[{"type":"text","text":"Hi there."}],"usage":{"input_tokens":5,"output_tokens":1}},"uuid":"a1","timestamp":"2026-01-01T00:00:01.000Z"}"#;
const USED: &str = r#"{"type":"stream_event","event":{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}}"#;
const RESULT: &str =
    r#"{"type":"result","subtype":"success","is_error":false,"total_cost_usd":0.25,"session_id":"s"}"#;

fn fold(state: &mut SessionConversationState, mirror: &mut SessionMirror, lines: &[&str]) {
    for line in lines {
        state.extend(&mirror.stream(&StreamMessage::from_json(line).unwrap()));
    }
}

fn streamed(lines: &[&str]) -> SessionConversationState {
    let (mut state, mut mirror) = (SessionConversationState::new(), SessionMirror::default());
    fold(&mut state, &mut mirror, lines);
    state
}

fn files(main: &[&str]) -> ClaudeFiles {
    let (files, malformed) = ClaudeFiles::decode(main.join("\n").as_bytes(), &[]);
    assert!(malformed.is_empty(), "{malformed:?}");
    files
}

fn loaded(main: &[&str]) -> SessionConversationState {
    let mut state = SessionConversationState::new();
    state.extend(&SessionMirror::default().files(&files(main), FileRead::Final));
    state
}

fn blocks(state: &SessionConversationState) -> Vec<(String, BlockStatus, String)> {
    let shown = |block: &std::sync::Arc<ConversationBlock>| {
        let text = block.body.content().map(|text| text.as_str().into_owned()).unwrap_or_default();
        (block.id.to_string(), block.status, text)
    };
    state.blocks().iter().map(shown).collect()
}

/// The same message as its file has it.
fn on_disk() -> String {
    TEXT.replace(r#""output_tokens":1"#, r#""output_tokens":7"#)
}

const COST: &str = r#"{"type":"cost-state","totalCostUSD":0.25}"#;

#[test]
fn a_message_grows_and_ends_as_its_file_says() {
    let whole = [PROMPT, START, BLOCK, DELTA, DELTA, TEXT, USED, RESULT];
    let pending = streamed(&whole[..5]);
    assert_eq!(blocks(&pending)[1], ("msg_1#0".to_owned(), BlockStatus::Pending, "Hi Hi ".to_owned()));
    let done = streamed(&whole);
    assert_eq!(blocks(&done)[1], ("msg_1#0".to_owned(), BlockStatus::Complete, "Hi there.".to_owned()));
    assert_eq!(done, loaded(&[PROMPT, &on_disk(), COST]));
    assert_eq!((done.usage().tokens.input, done.usage().tokens.output), (5, 7));
    assert!((done.total_usage().cost - 0.25).abs() < f64::EPSILON);
}

#[test]
fn an_attempt_without_a_line_is_taken_back() {
    let again = START.replace("msg_1", "msg_2");
    for next in [again.as_str(), RESULT] {
        let state = streamed(&[PROMPT, START, BLOCK, DELTA, next]);
        assert_eq!(blocks(&state).len(), 1, "{next}");
    }
}

#[test]
fn files_complete_what_was_streamed_and_only_the_last_read_removes() {
    let (mut state, mut mirror) = (SessionConversationState::new(), SessionMirror::default());
    fold(&mut state, &mut mirror, &[PROMPT, START, BLOCK, DELTA, TEXT]);
    let before = state.clone();
    state.extend(&mirror.files(&files(&[PROMPT]), FileRead::MayLag));
    assert_eq!(state, before, "a file that lags removes nothing");
    state.extend(&mirror.files(&files(&[PROMPT, &on_disk()]), FileRead::MayLag));
    assert_eq!(state.usage().tokens.output, 7, "a file knows what was used");
    assert!(mirror.files(&files(&[PROMPT, &on_disk()]), FileRead::MayLag).is_empty());
    state.extend(&mirror.files(&files(&[PROMPT]), FileRead::Final));
    assert_eq!(state, loaded(&[PROMPT]), "in the end only what is written was said");
}

#[test]
fn a_prompt_that_is_sent_again_keeps_its_place() {
    let again = PROMPT.replace("00:00:00.000Z", "00:00:09.000Z");
    let confirmed = again.replace(r#","timestamp":"2026-01-01T00:00:09.000Z""#, "");
    assert_eq!(streamed(&[PROMPT, &again, &confirmed]), streamed(&[PROMPT]));
    assert_eq!(streamed(&[&again, PROMPT]), streamed(&[PROMPT]));
    assert!(streamed(&[&confirmed]).blocks().is_empty());
}

#[test]
fn thinking_can_be_left_out_of_both() {
    let thought = TEXT.replace(r#""type":"text","text""#, r#""type":"thinking","thinking""#);
    let delta = DELTA.replace("text_delta", "thinking_delta").replace(r#""text":"Hi"#, r#""thinking":"Hi"#);
    let mut mirror = SessionMirror::new(ConvertOptions::default().thinking(Thinking::Omit));
    let mut state = SessionConversationState::new();
    fold(&mut state, &mut mirror, &[PROMPT, START, BLOCK, &delta, &thought]);
    assert_eq!(state.blocks().len(), 1);
    let block = streamed(&[PROMPT, START, BLOCK, &delta, &thought]);
    assert!(matches!(block.blocks().iter().last().unwrap().body, BlockBody::Thinking { .. }));
}

#[test]
fn what_is_broken_is_told_beside_what_is_good() {
    let mut text = format!("{PROMPT}\n{{\"type\":\"user\"\n\n").into_bytes();
    text.extend(b"\xff\xfe\n");
    text.extend(on_disk().bytes());
    text.extend(b"\n{\"type\":\"assist");
    let subagent = SubagentFile::new("agent-x", b"{}").meta(b"[]");
    let (files, malformed) = ClaudeFiles::decode(&text, &[subagent]);
    let places: Vec<_> = malformed.iter().map(|bad| (bad.document, bad.line)).collect();
    assert_eq!(places, [(0, Some(2)), (0, Some(4)), (0, Some(6)), (1, None), (1, Some(1))]);
    let mut state = SessionConversationState::new();
    state.extend(&SessionMirror::default().files(&files, FileRead::Final));
    assert_eq!(state.blocks().len(), 2);
}

/// A call for a subagent, and lines of it.
fn agent_lines() -> [String; 3] {
    let call = TEXT.replace(
        r#"{"type":"text","text":"Hi there."}"#,
        r#"{"type":"tool_use","id":"toolu_1","name":"Task","input":{"prompt":"Look","description":"d","subagent_type":"g"}}"#,
    );
    let prompt = PROMPT
        .replace("Hello", "Look")
        .replace("u1", "s1")
        .replace("}]},", "}]},\"isSidechain\":true,\"parentUuid\":null,");
    let answer = TEXT
        .replace("msg_1", "msg_s")
        .replace("a1", "s2")
        .replace("{\"type\"", "{\"isSidechain\":true,\"parentUuid\":\"s1\",\"type\"");
    let answer = answer.replacen(
        "{\"isSidechain\":true,\"parentUuid\":\"s1\",\"type\":\"text\"",
        "{\"type\":\"text\"",
        1,
    );
    [call, prompt, answer]
}

#[test]
fn subagents_are_found_in_every_layout() {
    let [call, prompt, answer] = agent_lines();
    let check = |state: &SessionConversationState, layout: &str| {
        let subagent = state.subagent(&"toolu_1".into()).unwrap_or_else(|| panic!("{layout}: no subagent"));
        let texts: Vec<_> =
            subagent.blocks.iter().map(|block| block.body.content().unwrap().as_str().into_owned()).collect();
        assert_eq!(texts, ["Look", "Hi there."], "{layout}");
        assert_eq!(subagent.status, RunStatus::Running, "{layout}");
        assert_eq!(state.subagents().count(), 1, "{layout}");
    };
    // Before 2.0 they stand in the main file.
    check(&loaded(&[PROMPT, &call, &prompt, &answer]), "1.0");
    // Then beside it, with nothing but a name; some of them warm something up.
    let main = [PROMPT, call.as_str()].join("\n");
    let subagent = [prompt.as_str(), &answer].join("\n");
    let warm_up = subagent.replace("Look", "Warmup");
    let of = |subagents: &[SubagentFile<'_>]| {
        let (files, malformed) = ClaudeFiles::decode(main.as_bytes(), subagents);
        assert!(malformed.is_empty(), "{malformed:?}");
        let mut state = SessionConversationState::new();
        state.extend(&SessionMirror::default().files(&files, FileRead::Final));
        state
    };
    let beside = SubagentFile::new("agent-abc", subagent.as_bytes());
    check(&of(&[SubagentFile::new("agent-w", warm_up.as_bytes()), beside]), "2.0");
    // Now a meta file names the call.
    check(&of(&[beside.meta(br#"{"toolUseId":"toolu_1"}"#)]), "2.1");
}

#[test]
fn every_line_of_a_transcript_may_come_again() {
    let [call, prompt, answer] = agent_lines();
    let lines = [PROMPT, &call, &prompt, &answer, COST];
    let files = files(&lines);
    let mut mirror = SessionMirror::default();
    assert!(!mirror.files(&files, FileRead::MayLag).is_empty());
    assert!(mirror.files(&files, FileRead::MayLag).is_empty());
    assert!(lines.iter().all(|line| TranscriptLine::from_json(line).is_ok()));
    let idle = |event: &ConversationEvent| matches!(event, ConversationEvent::SessionIdle { .. });
    assert!(mirror.files(&files, FileRead::Final).iter().all(idle));
}
