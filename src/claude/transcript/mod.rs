//! Claude Code's transcripts and recorded streams.

mod files;

use serde::Deserialize;

pub(super) use self::files::SubagentLines;
pub use self::files::{ClaudeFiles, SubagentFile};
use super::{
    mirror::{FileRead, SessionMirror},
    wire::{StreamMessage, SystemMessage},
};
use crate::{
    conversation::{ConversationEvent, ConvertOptions, SessionConversationState},
    ids::SessionId,
    transcript::{Malformed, Transcript, TranscriptError},
};

/// Loads a session from its transcript and those of its subagents, in any order, of any version.
///
/// The transcript is document 0, its subagents' are those after it.
///
/// # Errors
/// If the transcript has no line that Claude Code could have written; what is malformed besides is reported beside the result.
pub fn parse_claude(
    main: &[u8],
    subagents: &[SubagentFile<'_>],
    options: ConvertOptions,
    on_event: impl FnMut(&ConversationEvent),
) -> Result<Transcript, TranscriptError> {
    let (files, malformed) = ClaudeFiles::decode(main, subagents);
    let malformed = some_good(files.is_empty(), malformed)?;
    let events = SessionMirror::new(options).files(&files, FileRead::Final);
    let mut folded = Folded::new(on_event);
    folded.fold(&events);
    Ok(Transcript { state: folded.state, root: session_of(main), malformed })
}

/// Loads what a session said on standard output, as far as it goes: one that was cut off shows a turn that still runs.
///
/// # Errors
/// If it has no line that Claude Code could have said; what is malformed besides is reported beside the result.
pub fn parse_claude_stream(
    stream: &[u8],
    options: ConvertOptions,
    on_event: impl FnMut(&ConversationEvent),
) -> Result<Transcript, TranscriptError> {
    let mut mirror = SessionMirror::new(options);
    let mut folded = Folded::new(on_event);
    let (mut root, mut malformed, mut is_empty) = (None, Vec::new(), true);
    for (index, line) in stream.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        match StreamMessage::from_bytes(line) {
            Ok(message) => {
                is_empty = false;
                match &message {
                    StreamMessage::System(SystemMessage::Init(init)) => root = Some(init.session_id.clone()),
                    StreamMessage::Result(result) => root = Some(result.session_id.clone()),
                    _ => {}
                }
                folded.fold(&mirror.stream(&message));
            }
            Err(error) => malformed.push(Malformed { document: 0, line: Some(index + 1), error }),
        }
    }
    let malformed = some_good(is_empty, malformed)?;
    Ok(Transcript { state: folded.state, root, malformed })
}

/// A state, and a function that gets each event before it is folded.
struct Folded<F> {
    state: SessionConversationState,
    on_event: F,
}

impl<F: FnMut(&ConversationEvent)> Folded<F> {
    fn new(on_event: F) -> Self {
        Self { state: SessionConversationState::new(), on_event }
    }

    fn fold(&mut self, events: &[ConversationEvent]) {
        for event in events {
            (self.on_event)(event);
            self.state.apply(event);
        }
    }
}

/// What is malformed beside what is good; if nothing is, this is something else.
fn some_good(is_empty: bool, mut malformed: Vec<Malformed>) -> Result<Vec<Malformed>, TranscriptError> {
    let first = malformed.iter().position(|malformed| malformed.document == 0);
    match first.filter(|_| is_empty) {
        Some(first) => {
            let Malformed { document, error, .. } = malformed.swap_remove(first);
            Err(TranscriptError::Malformed { document, source: error })
        }
        None => Ok(malformed),
    }
}

/// The session that a transcript is of.
fn session_of(main: &[u8]) -> Option<SessionId> {
    #[derive(Deserialize)]
    struct Line {
        #[serde(rename = "sessionId")]
        session_id: SessionId,
    }
    let lines = main.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).map(|Line { session_id }| session_id).next()
}
