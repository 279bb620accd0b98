//! The files of a session: its transcript, and those of its subagents.

use crate::{
    claude::wire::{SubagentMeta, TranscriptLine},
    ids::AgentId,
    transcript::Malformed,
};

/// A subagent's transcript as it was read.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SubagentFile<'a> {
    /// The subagent: the file's name without `agent-` and `.jsonl`.
    pub id: &'a str,
    /// The file.
    pub transcript: &'a [u8],
    /// The meta file beside it.
    pub meta: Option<&'a [u8]>,
}

impl<'a> SubagentFile<'a> {
    /// A subagent's transcript without a meta file.
    pub fn new(id: &'a str, transcript: &'a [u8]) -> Self {
        Self { id: id.strip_prefix("agent-").unwrap_or(id), transcript, meta: None }
    }

    /// Adds the meta file that stands beside it.
    #[must_use]
    pub fn meta(self, meta: &'a [u8]) -> Self {
        Self { meta: Some(meta), ..self }
    }
}

/// The lines of a session's files.
#[derive(Debug, Clone, Default)]
pub struct ClaudeFiles {
    pub(in crate::claude) main: Vec<TranscriptLine>,
    /// Whether there was a line at all.
    has_lines: bool,
    pub(in crate::claude) subagents: Vec<SubagentLines>,
}

/// The lines of a subagent's file.
#[derive(Debug, Clone)]
pub(in crate::claude) struct SubagentLines {
    pub(in crate::claude) id: AgentId,
    pub(in crate::claude) meta: SubagentMeta,
    pub(in crate::claude) lines: Vec<TranscriptLine>,
}

impl ClaudeFiles {
    /// Decodes a session's transcript, and those of its subagents in any order; what is malformed comes beside the rest, the
    /// transcript being document 0.
    pub fn decode(main: &[u8], subagents: &[SubagentFile<'_>]) -> (Self, Vec<Malformed>) {
        let mut malformed = Vec::new();
        let (main, has_lines) = lines(0, main, &mut malformed);
        let subagents = subagents.iter().enumerate().map(|(index, file)| {
            let document = index + 1;
            let meta = file.meta.map_or(Ok(SubagentMeta::default()), SubagentMeta::from_bytes);
            let meta = meta.unwrap_or_else(|error| {
                malformed.push(Malformed { document, line: None, error });
                SubagentMeta::default()
            });
            let (lines, _) = lines(document, file.transcript, &mut malformed);
            SubagentLines { id: AgentId::new(file.id), meta, lines }
        });
        let subagents = subagents.collect();
        (Self { main, has_lines, subagents }, malformed)
    }

    /// Whether the transcript has no line that Claude Code could have written.
    pub(in crate::claude) fn is_empty(&self) -> bool {
        !self.has_lines
    }
}

fn lines(document: usize, text: &[u8], malformed: &mut Vec<Malformed>) -> (Vec<TranscriptLine>, bool) {
    let mut lines = Vec::new();
    let mut has_lines = false;
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        match TranscriptLine::from_bytes(line) {
            // Nothing that they say is shown, and they are most of a file.
            Ok(TranscriptLine::Unknown(_)) => has_lines = true,
            Ok(line) => {
                has_lines = true;
                lines.push(line);
            }
            Err(error) => malformed.push(Malformed { document, line: Some(index + 1), error }),
        }
    }
    (lines, has_lines)
}
