//! Transcripts: files that tell what happened in a session, loaded into the same state as a live one.
//!
//! Every format goes through the converter and reducer that the live stream goes through, so that a state loaded from a
//! file equals the one that was streamed.

pub use crate::claude::transcript::{parse_claude, parse_claude_stream};
pub use crate::opencode::transcript::{
    OpenCodeFormat, OpenCodeOptions, parse_opencode, parse_opencode_events,
};

use crate::{
    conversation::{ConvertOptions, SessionConversationState},
    ids::SessionId,
    json::DecodeError,
};

/// Which agent's format a transcript has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// `OpenCode`: message lists, exports, exports with children, and event logs; see [`parse_opencode`].
    OpenCode,
    /// Claude Code: a session's JSONL file; see [`parse_claude`].
    ClaudeCode,
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
}

/// Loads a transcript with the architecture's default options.
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
    match architecture {
        Architecture::OpenCode => parse_opencode(&[text], &OpenCodeOptions::default()),
        Architecture::ClaudeCode => parse_claude(text.as_bytes(), &[], ConvertOptions::default(), |_| {}),
    }
}
