//! Every recorded session of Claude Code folds to the same state from its stream as from its files.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use opencode_conductor::{
    Architecture, CombinedTranscript, ConversationBlock, ConvertOptions, SessionConversationState,
    Transcript,
    claude::{ClaudeFiles, FileRead, SessionMirror, SubagentFile, wire::StreamMessage},
    parse_claude, parse_claude_stream, parse_transcript,
};

/// What cannot be equal, and in what it differs. That a tool was running when its process was killed is written by the next one, which
/// does not stream it; and a streamed remark does not say when it was made.
const UNEQUAL: &[(&str, &[&str])] =
    &[("killed_tool", &["tool_use differs", "tool_result only loaded"]), ("refusal", &["system differs"])];

/// One recording.
pub(crate) struct Recording {
    pub(crate) name: String,
    /// Of one process after the other.
    pub(crate) stream: Vec<u8>,
    pub(crate) main: Vec<u8>,
    /// Id, transcript and meta file.
    pub(crate) subagents: Vec<(String, Vec<u8>, Vec<u8>)>,
}

pub(crate) fn recordings() -> Vec<Recording> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/claude");
    let mut dirs: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    dirs.retain(|path| path.join("transcript.jsonl").exists());
    dirs.sort();
    assert!(dirs.len() >= 25, "only {} recordings", dirs.len());
    dirs.iter().map(|dir| Recording::read(dir)).collect()
}

impl Recording {
    fn read(dir: &Path) -> Self {
        let mut stream = Vec::new();
        for number in 1.. {
            let Ok(said) = fs::read(dir.join(format!("stream-{number}.jsonl"))) else { break };
            stream.extend(said);
        }
        let files = fs::read_dir(dir.join("subagents")).into_iter().flatten();
        let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        let subagent = |path: PathBuf| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, fs::read(&path).unwrap(), fs::read(path.with_extension("meta.json")).unwrap())
        };
        Self {
            name: dir.file_name().unwrap().to_string_lossy().into_owned(),
            stream,
            main: fs::read(dir.join("transcript.jsonl")).unwrap(),
            subagents: files.into_iter().map(subagent).collect(),
        }
    }

    pub(crate) fn is_equal(&self) -> bool {
        UNEQUAL.iter().all(|(name, _)| *name != self.name)
    }

    pub(crate) fn messages(&self) -> Vec<StreamMessage> {
        let lines = self.stream.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| StreamMessage::from_bytes(line).unwrap()).collect()
    }

    /// The files as they are once this much of each has been written; the whole of them with 1.
    pub(crate) fn files(&self, part: f64) -> ClaudeFiles {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "any place will do"
        )]
        let cut = |text: &'_ [u8]| ((text.len() as f64 * part) as usize).min(text.len());
        let subagents: Vec<_> = self
            .subagents
            .iter()
            .map(|(id, text, meta)| SubagentFile::new(id, &text[..cut(text)]).meta(meta))
            .collect();
        let (files, malformed) = ClaudeFiles::decode(&self.main[..cut(&self.main)], &subagents);
        // The last line of each may be cut.
        assert!(
            malformed.len() <= if part < 1.0 { 1 + subagents.len() } else { 0 },
            "{}: {malformed:?}",
            self.name
        );
        files
    }

    pub(crate) fn loaded(&self) -> SessionConversationState {
        let subagents = self.subagents.iter();
        let subagents: Vec<_> =
            subagents.map(|(id, text, meta)| SubagentFile::new(id, text).meta(meta)).collect();
        self.good(parse_claude(&self.main, &subagents, ConvertOptions::default(), |_| {}).unwrap())
    }

    pub(crate) fn streamed(&self) -> SessionConversationState {
        self.good(parse_claude_stream(&self.stream, ConvertOptions::default(), |_| {}).unwrap())
    }

    fn good(&self, transcript: Transcript) -> SessionConversationState {
        assert!(transcript.malformed.is_empty(), "{}: {:?}", self.name, transcript.malformed);
        assert!(transcript.root.is_some(), "{}", self.name);
        transcript.state
    }
}

/// The state without what subagents used, which the stream does not tell.
fn without_usage_of_subagents(state: &SessionConversationState) -> serde_json::Value {
    let mut state = serde_json::to_value(state).unwrap();
    for subagent in state["subagents"].as_array_mut().unwrap() {
        subagent.as_object_mut().unwrap().remove("metadata");
    }
    state
}

fn differences(streamed: &SessionConversationState, loaded: &SessionConversationState) -> Vec<String> {
    let mut differences = Vec::new();
    let of =
        |state: &SessionConversationState, block: &ConversationBlock| -> Option<Arc<ConversationBlock>> {
            state.block(&block.conversation_id, &block.id).cloned()
        };
    for block in streamed.blocks().iter() {
        match of(loaded, block) {
            None => differences.push(format!("{} only streamed", block.body.kind())),
            Some(other) if other != *block => differences.push(format!("{} differs", block.body.kind())),
            Some(_) => {}
        }
    }
    let only = loaded.blocks().iter().filter(|block| of(streamed, block).is_none());
    differences.extend(only.map(|block| format!("{} only loaded", block.body.kind())));
    differences
}

#[test]
fn streamed_equals_loaded() {
    for recording in recordings() {
        let (streamed, loaded) = (recording.streamed(), recording.loaded());
        let name = &recording.name;
        assert!(!loaded.blocks().is_empty(), "{name}");
        if let Some((_, known)) = UNEQUAL.iter().find(|(unequal, _)| unequal == name) {
            assert_eq!(differences(&streamed, &loaded), *known, "{name}");
        } else {
            let (one, two) = (without_usage_of_subagents(&streamed), without_usage_of_subagents(&loaded));
            assert_eq!(one, two, "{name}");
        }
        for subagent in streamed.subagents() {
            let written = loaded.subagent(&subagent.tool_use_id).unwrap().metadata.usage().tokens;
            assert!(subagent.metadata.usage().tokens.output <= written.output, "{name}: more than was used");
        }
    }
}

#[test]
fn files_read_at_rest_complete_the_stream() {
    for recording in recordings() {
        for read in [FileRead::MayLag, FileRead::Final] {
            if read == FileRead::MayLag && !recording.is_equal() {
                continue;
            }
            let (mut mirror, mut state) = (SessionMirror::default(), SessionConversationState::new());
            for message in recording.messages() {
                state.extend(&mirror.stream(&message));
            }
            let files = recording.files(1.0);
            state.extend(&mirror.files(&files, read));
            assert_eq!(state, recording.loaded(), "{} with {read:?}", recording.name);
            let again = mirror.files(&files, FileRead::MayLag);
            assert!(again.is_empty(), "{}: {again:?}", recording.name);
        }
    }
}

#[test]
fn one_document_holds_a_session_and_its_subagents() {
    for recording in recordings() {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut document = CombinedTranscript::new(text(&recording.main));
        for (id, transcript, meta) in &recording.subagents {
            document = document.subagent(id, text(transcript), Some(text(meta)));
        }
        let json = document.to_json();
        assert_eq!(CombinedTranscript::find(&json).as_ref(), Some(&document));
        let state = parse_transcript(Architecture::ClaudeCode, &json).unwrap().state;
        assert_eq!(state, recording.loaded(), "{}", recording.name);
        // Other writers do not know of meta files.
        for subagent in &mut document.subagents {
            subagent.meta = None;
        }
        let state = parse_transcript(Architecture::ClaudeCode, &document.to_json()).unwrap().state;
        assert_eq!(state, recording.loaded(), "{} without meta files", recording.name);
    }
}

/// Two subagents at once, from releases that wrote their lines between those of the session, or into files beside it.
#[test]
fn sessions_of_old_releases_load() {
    for version in ["1.0.128", "2.0.50"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/claude-old").join(version);
        let mut subagents = Vec::new();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if name.starts_with("agent-") {
                subagents.push((name, fs::read(&path).unwrap()));
            }
        }
        let subagents: Vec<_> = subagents.iter().map(|(name, text)| SubagentFile::new(name, text)).collect();
        let main = fs::read(dir.join("transcript.jsonl")).unwrap();
        let loaded = parse_claude(&main, &subagents, ConvertOptions::default(), |_| {}).unwrap();
        assert!(loaded.malformed.is_empty(), "{version}: {:?}", loaded.malformed);
        let state = serde_json::to_value(&loaded.state).unwrap();
        let texts = |thread: &serde_json::Value| -> Vec<String> {
            let blocks = thread["blocks"].as_array().unwrap().iter();
            let texts = blocks.filter(|block| block["type"] == "assistant_text");
            texts.map(|block| block["content"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(texts(&state), ["Two at once.", "Both are done."], "{version}");
        let threads = state["subagents"].as_array().unwrap();
        let shown: Vec<String> = threads
            .iter()
            .map(|thread| {
                let mut blocks = thread["blocks"].as_array().unwrap().iter();
                let call = blocks.find(|block| block["type"] == "tool_use").unwrap();
                let said = texts(thread).join(", ");
                format!("{}: {} → {said}; {}", thread["status"], call["input"]["command"], thread["output"])
            })
            .collect();
        let done = |words| format!("\"success\": \"echo {words}\" → It said {words}.; \"It said {words}.\"");
        assert_eq!(shown, [done("one"), done("two")], "{version}");
    }
}
