//! A session as it is listed, saved and shown: each is the one before and more.
//!
//! What is saved is the transcript in the agent's own format, so that nothing that only the agent understands is lost, and a later
//! version can read more out of it. The conversation is loaded from it again.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};

use super::AgentProfile;
use crate::{
    conversation::{ConversationMetadata, SessionConversationState, SubagentState, Thread},
    ids::{AgentId, AgentProfileReference, SessionId},
    time::Millis,
    transcript::{Architecture, CombinedSubagent, CombinedTranscript, Malformed, TranscriptError},
};

/// What a session does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum SessionStatus {
    /// Nothing: it waits for a prompt.
    #[default]
    Idle,
    /// It works on a prompt; or the program that waited for that is gone.
    Running,
    /// Nothing, and the last that it did failed.
    Error,
    /// Another program's word.
    #[serde(untagged)]
    Other(String),
}

/// What is shown of a session in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionListData {
    /// The agent's name for the session.
    pub session_id: SessionId,
    /// The format of its transcripts.
    #[serde(rename = "type")]
    pub architecture: Architecture,
    /// Which profile it was made with; empty if with none.
    #[serde(default)]
    pub agent_profile_reference: AgentProfileReference,
    /// What it does.
    #[serde(default)]
    pub status: SessionStatus,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Millis>,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Millis>,
}

/// What is saved of a session.
///
/// # Examples
/// ```
/// use opencode_conductor::{Architecture, CombinedTranscript, SavedSessionData, SessionListData};
///
/// let line = r#"{"type":"user","uuid":"u1","timestamp":"2026-01-31T12:00:00Z","message":{"content":"Hello"}}"#;
/// let mut saved = SavedSessionData::new(SessionListData::new("ses_1".into(), Architecture::ClaudeCode));
/// saved.refresh(CombinedTranscript::new(line));
/// let json = serde_json::to_string(&saved)?;
///
/// let saved: SavedSessionData = serde_json::from_str(&json)?;
/// let (session, malformed) = saved.load()?;
/// assert_eq!((session.conversation.blocks().len(), malformed.len()), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SavedSessionData {
    /// What is shown of it in a list.
    #[serde(flatten)]
    pub listed: SessionListData,
    /// Its transcript, in its agent's own format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_transcript: Option<String>,
    /// The transcripts of its subagents, of all depths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subagents: Vec<SavedSubagent>,
    /// The files that it was given to work on.
    #[serde(default)]
    pub workspace_files: Vec<WorkspaceFile>,
    /// The profile that it was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_profile: Option<AgentProfile>,
    /// Fields that this version does not know, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What is saved of a subagent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SavedSubagent {
    /// The agent's own name for it.
    pub id: AgentId,
    /// Its transcript, in its agent's own format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_transcript: Option<String>,
    /// What stands beside it in a meta file, for agents that write one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<String>,
}

/// A file that a session was given to work on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WorkspaceFile {
    /// Where it is, below the directory that the session works in.
    pub path: String,
    /// What is in it.
    #[serde(default)]
    pub content: String,
    /// Fields that this version does not know, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A session as it lives in memory: what is saved of it, and the conversation.
///
/// In JSON its `blocks` are those of the main thread, and each of its `subagents` has both its raw transcript and its `blocks`. Cheap to
/// clone.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RuntimeSessionData {
    /// What was saved last.
    pub saved: Arc<SavedSessionData>,
    /// The conversation, which may be further.
    pub conversation: SessionConversationState,
}

impl SessionListData {
    /// A session of which nothing else is known.
    pub fn new(session_id: SessionId, architecture: Architecture) -> Self {
        Self {
            session_id,
            architecture,
            agent_profile_reference: AgentProfileReference::default(),
            status: SessionStatus::Idle,
            last_activity: None,
            created_at: None,
        }
    }
}

impl SavedSessionData {
    /// A session without a transcript.
    pub fn new(listed: SessionListData) -> Self {
        Self {
            listed,
            raw_transcript: None,
            subagents: Vec::new(),
            workspace_files: Vec::new(),
            agent_profile: None,
            extra: Map::new(),
        }
    }

    /// Takes over its transcripts as they are now.
    pub fn refresh(&mut self, transcript: CombinedTranscript) {
        self.raw_transcript = Some(transcript.main);
        let subagents = transcript.subagents.into_iter().map(|CombinedSubagent { id, transcript, meta }| {
            SavedSubagent { id: id.into(), raw_transcript: Some(transcript), meta }
        });
        self.subagents = subagents.collect();
    }

    /// Its transcripts as one document.
    pub fn transcript(&self) -> CombinedTranscript {
        let main = CombinedTranscript::new(self.raw_transcript.clone().unwrap_or_default());
        self.subagents.iter().fold(main, |combined, subagent| {
            let transcript = subagent.raw_transcript.clone().unwrap_or_default();
            combined.subagent(subagent.id.as_str(), transcript, subagent.meta.clone())
        })
    }

    /// Loads the conversation from its transcripts. What is malformed in them is told beside it.
    ///
    /// # Errors
    /// If a transcript is not what its architecture writes, or the architecture is not known.
    pub fn load(self) -> Result<(RuntimeSessionData, Vec<Malformed>), TranscriptError> {
        let (conversation, malformed) = if self.raw_transcript.is_none() && self.subagents.is_empty() {
            (SessionConversationState::new(), Vec::new())
        } else {
            let loaded = self.transcript().load(self.listed.architecture.clone())?;
            (loaded.state, loaded.malformed)
        };
        Ok((RuntimeSessionData::new(self, conversation), malformed))
    }
}

impl WorkspaceFile {
    /// A file of text.
    pub fn new(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self { path: path.into(), content: content.into(), extra: Map::new() }
    }
}

impl RuntimeSessionData {
    /// What was saved, and the conversation.
    pub fn new(saved: impl Into<Arc<SavedSessionData>>, conversation: SessionConversationState) -> Self {
        Self { saved: saved.into(), conversation }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    #[serde(flatten)]
    listed: &'a SessionListData,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_transcript: &'a Option<String>,
    workspace_files: &'a [WorkspaceFile],
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_profile: &'a Option<AgentProfile>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
    blocks: &'a Thread,
    metadata: &'a ConversationMetadata,
    subagents: Vec<WrittenSubagent<'a>>,
}

/// A subagent: what was saved of it, its thread, or both.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSubagent<'a> {
    id: &'a str,
    /// Also written if there is none, to tell what was saved from what was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[expect(clippy::option_option, reason = "absent and null are different here")]
    raw_transcript: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<&'a str>,
    #[serde(flatten)]
    state: Option<&'a SubagentState>,
}

impl<'a> WrittenSubagent<'a> {
    fn new(saved: Option<&'a SavedSubagent>, state: Option<&'a SubagentState>) -> Option<Self> {
        let agent = state.and_then(|state| state.agent_id.as_ref());
        let id = saved.map(|saved| &saved.id).or(agent).map(AgentId::as_str);
        Some(Self {
            id: id.or_else(|| Some(state?.tool_use_id.as_str()))?,
            raw_transcript: saved.map(|saved| saved.raw_transcript.as_deref()),
            meta: saved.and_then(|saved| saved.meta.as_deref()),
            state,
        })
    }
}

impl Serialize for RuntimeSessionData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let saved = &*self.saved;
        let mut shown = BTreeSet::new();
        let mut subagents: Vec<WrittenSubagent<'_>> = Vec::new();
        for saved in &saved.subagents {
            let state = self.conversation.subagent_of_agent(&saved.id);
            let state = state.filter(|state| shown.insert(&state.tool_use_id));
            subagents.extend(WrittenSubagent::new(Some(saved), state.map(|state| &**state)));
        }
        let others = self.conversation.subagents().filter(|state| !shown.contains(&state.tool_use_id));
        subagents.extend(others.filter_map(|state| WrittenSubagent::new(None, Some(state))));
        let written = Written {
            listed: &saved.listed,
            raw_transcript: &saved.raw_transcript,
            workspace_files: &saved.workspace_files,
            agent_profile: &saved.agent_profile,
            extra: &saved.extra,
            blocks: self.conversation.blocks(),
            metadata: self.conversation.metadata(),
            subagents,
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RuntimeSessionData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let mut conversation = Map::new();
        for name in ["blocks", "metadata"] {
            conversation.extend(fields.remove(name).map(|value| (name.to_owned(), value)));
        }
        let mut saved = Vec::new();
        let mut states = Vec::new();
        if let Some(Value::Array(subagents)) = fields.remove("subagents") {
            for subagent in subagents {
                let Value::Object(mut subagent) = subagent else {
                    return Err(D::Error::custom("a subagent is not an object"));
                };
                let has_thread = subagent.contains_key("blocks");
                if subagent.contains_key("rawTranscript") || !has_thread {
                    let names = ["id", "rawTranscript", "meta"];
                    let about = names.iter().filter_map(|name| Some((*name, subagent.get(*name)?.clone())));
                    let about = about.map(|(name, value)| (name.to_owned(), value)).collect();
                    saved.push(Value::Object(about));
                }
                if has_thread {
                    subagent.remove("rawTranscript");
                    subagent.remove("meta");
                    if subagent.contains_key("toolUseId") {
                        subagent.remove("id");
                    }
                    states.push(Value::Object(subagent));
                }
            }
        }
        fields.insert("subagents".to_owned(), saved.into());
        conversation.insert("subagents".to_owned(), states.into());
        let saved: SavedSessionData = serde_json::from_value(fields.into()).map_err(D::Error::custom)?;
        let conversation = serde_json::from_value(conversation.into()).map_err(D::Error::custom)?;
        Ok(Self::new(saved, conversation))
    }
}
