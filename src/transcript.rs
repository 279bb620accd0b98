//! Transcripts: files that tell what happened in a session, loaded into the same state as a live one.
//!
//! Every format goes through the converter and reducer that the live stream goes through, so that a state loaded from a
//! file equals the one that was streamed.

pub use crate::claude::transcript::{parse_claude, parse_claude_stream};
pub use crate::opencode::transcript::{
    OpenCodeFormat, OpenCodeOptions, parse_opencode, parse_opencode_events,
};

use serde::{Deserialize, Serialize};

use crate::{
    claude::SubagentFile,
    conversation::{ConvertOptions, SessionConversationState},
    ids::SessionId,
    json::{
        DecodeError,
        decode::{JsonPath, decode},
    },
};

/// Which agent's format a transcript has. In JSON it is a word, as it stands at each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Architecture {
    /// `opencode`: message lists, exports, exports with children, and event logs; see [`parse_opencode`].
    #[serde(rename = "opencode")]
    OpenCode,
    /// `claude-agent-sdk`: Claude Code, a session's JSONL file; see [`parse_claude`].
    #[serde(rename = "claude-agent-sdk")]
    ClaudeCode,
    /// `conversation`: the JSON of a [`SessionConversationState`], for agents that write nothing of their own.
    #[serde(rename = "conversation")]
    Conversation,
    /// Any other word. What such an agent wrote can be kept and not be loaded.
    #[serde(untagged)]
    Other(String),
}

/// A transcript, loaded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Transcript {
    /// The conversation.
    pub state: SessionConversationState,
    /// The session at its top; nothing if the transcript is empty.
    pub root: Option<SessionId>,
    /// What could not be understood; the state is of the rest.
    pub malformed: Vec<Malformed>,
}

/// Something in a transcript that could not be understood.
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
#[non_exhaustive]
pub struct Malformed {
    /// Which of several documents, from 0.
    pub document: usize,
    /// The line, from 1, in formats of one element per line.
    pub line: Option<usize>,
    /// What was wrong, and where.
    #[source]
    pub error: DecodeError,
}

/// A session's transcript and those of its subagents as one document: `{"main": "…", "subagents": [{"id": "…", "transcript": "…"}]}`.
///
/// # Examples
/// ```
/// use opencode_conductor::{Architecture, CombinedTranscript, parse_transcript};
///
/// let main = r#"{"type":"user","uuid":"u1","timestamp":"2026-01-31T12:00:00Z","message":{"content":"Hello"}}"#;
/// let document = CombinedTranscript::new(main).to_json();
/// assert_eq!(parse_transcript(Architecture::ClaudeCode, &document)?.state.blocks().len(), 1);
/// # Ok::<(), opencode_conductor::TranscriptError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CombinedTranscript {
    /// The session's own, in its agent's format.
    pub main: String,
    /// Its subagents'.
    #[serde(default)]
    pub subagents: Vec<CombinedSubagent>,
}

/// A subagent's transcript inside a [`CombinedTranscript`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CombinedSubagent {
    /// The subagent.
    pub id: String,
    /// Its transcript, in its agent's format.
    #[serde(default)]
    pub transcript: String,
    /// What stands beside it in a meta file, for agents that write one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<String>,
}

impl CombinedTranscript {
    /// A session without subagents.
    pub fn new(main: impl Into<String>) -> Self {
        Self { main: main.into(), subagents: Vec::new() }
    }

    /// Adds a subagent's transcript, and what its meta file says.
    #[must_use]
    pub fn subagent(
        mut self,
        id: impl Into<String>,
        transcript: impl Into<String>,
        meta: Option<String>,
    ) -> Self {
        self.subagents.push(CombinedSubagent { id: id.into(), transcript: transcript.into(), meta });
        self
    }

    /// The document, if `text` is one.
    pub fn find(text: &str) -> Option<Self> {
        if !text.trim_start().starts_with('{') {
            return None;
        }
        serde_json::from_str(text).ok()
    }

    /// The document as text.
    pub fn to_json(&self) -> String {
        // Writing plain data to a string cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Loads what it holds.
    ///
    /// # Errors
    /// As [`parse_transcript`].
    pub fn load(&self, architecture: Architecture) -> Result<Transcript, TranscriptError> {
        match architecture {
            Architecture::OpenCode => {
                let subagents = self.subagents.iter().map(|subagent| subagent.transcript.as_str());
                let documents = std::iter::once(self.main.as_str()).chain(subagents);
                let documents: Vec<&str> = documents.filter(|text| !text.trim().is_empty()).collect();
                parse_opencode(&documents, &OpenCodeOptions::default())
            }
            Architecture::ClaudeCode => {
                let files: Vec<_> = self.subagents.iter().map(CombinedSubagent::file).collect();
                parse_claude(self.main.as_bytes(), &files, ConvertOptions::default(), |_| {})
            }
            Architecture::Conversation => parse_conversation(&self.main),
            Architecture::Other(name) => Err(TranscriptError::UnknownArchitecture(name)),
        }
    }
}

impl CombinedSubagent {
    fn file(&self) -> SubagentFile<'_> {
        let file = SubagentFile::new(&self.id, self.transcript.as_bytes());
        match &self.meta {
            Some(meta) => file.meta(meta.as_bytes()),
            None => file,
        }
    }
}

/// A transcript that could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TranscriptError {
    /// Nothing known begins like this.
    #[error("the transcript is neither a message list, nor an export, nor an event log")]
    #[non_exhaustive]
    Unrecognised {
        /// Which of several documents, from 0.
        document: usize,
    },
    /// The document as a whole is malformed.
    #[error("the transcript could not be decoded")]
    #[non_exhaustive]
    Malformed {
        /// Which of several documents, from 0.
        document: usize,
        /// What was wrong, and where.
        source: DecodeError,
    },
    /// The session asked for is not in it.
    #[error("the transcript has no session {0}")]
    UnknownSession(SessionId),
    /// The format is not one of those that are understood here.
    #[error("the transcripts of {0} cannot be loaded")]
    UnknownArchitecture(String),
}

/// Loads a transcript, or a [`CombinedTranscript`], with the architecture's default options.
///
/// # Examples
/// ```
/// use opencode_conductor::{Architecture, parse_transcript};
///
/// let list = r#"[{
///     "info": {"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1}},
///     "parts": [{"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1", "type": "text", "text": "Hello"}]
/// }]"#;
/// let transcript = parse_transcript(Architecture::OpenCode, list)?;
/// assert_eq!(transcript.state.blocks().len(), 1);
/// # Ok::<(), opencode_conductor::TranscriptError>(())
/// ```
/// # Errors
/// If the text as a whole is not a transcript; what is malformed inside is reported beside the result.
pub fn parse_transcript(architecture: Architecture, text: &str) -> Result<Transcript, TranscriptError> {
    if let Some(combined) = CombinedTranscript::find(text) {
        return combined.load(architecture);
    }
    match architecture {
        Architecture::OpenCode => parse_opencode(&[text], &OpenCodeOptions::default()),
        Architecture::ClaudeCode => parse_claude(text.as_bytes(), &[], ConvertOptions::default(), |_| {}),
        Architecture::Conversation => parse_conversation(text),
        Architecture::Other(name) => Err(TranscriptError::UnknownArchitecture(name)),
    }
}

fn parse_conversation(text: &str) -> Result<Transcript, TranscriptError> {
    let malformed = |source| TranscriptError::Malformed { document: 0, source };
    let state = if text.trim().is_empty() {
        SessionConversationState::new()
    } else {
        decode("conversation", JsonPath::Root, text).map_err(malformed)?
    };
    Ok(Transcript { state, root: None, malformed: Vec::new() })
}
