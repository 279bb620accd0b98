//! Parts: what a message is made of.

use std::{borrow::Cow, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{Extra, MessageError, ModelRef, Tokens, extra::wire_struct};
use crate::{
    ids::{CallId, MessageId, PartId, SessionId},
    json::{
        cursor::{Cursor, Scan, field_name},
        decode::{DecodeError, JsonPath, deserialize_by_from_json},
        tagged::{Fields, Tagged, Text},
    },
    time::Millis,
};

/// One part of a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Part {
    /// The part's own id; parts of a message are ordered by it.
    pub id: PartId,
    /// The session it belongs to.
    #[serde(rename = "sessionID")]
    pub session_id: SessionId,
    /// The message it belongs to.
    #[serde(rename = "messageID")]
    pub message_id: MessageId,
    /// What it is.
    #[serde(flatten)]
    pub body: PartBody,
}

/// What a part is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PartBody {
    /// Text of the user or of the model.
    Text(TextPart),
    /// The model's thinking.
    Reasoning(ReasoningPart),
    /// A tool call and what came of it.
    Tool(Box<ToolPart>),
    /// An attachment.
    File(FilePart),
    /// A model call began.
    StepStart(StepStartPart),
    /// A model call ended.
    StepFinish(StepFinishPart),
    /// The state of the worktree.
    Snapshot(SnapshotPart),
    /// What a step changed in the worktree.
    Patch(PatchPart),
    /// A mention of an agent.
    Agent(AgentPart),
    /// An order to run a subagent.
    Subtask(SubtaskPart),
    /// The history before this was summarised.
    Compaction(CompactionPart),
    /// A provider call was tried again.
    Retry(RetryPart),
    /// A kind that this version does not know.
    #[serde(untagged)]
    Unknown(UnknownPart),
}

/// A part of a kind that this version does not know, whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
#[non_exhaustive]
pub struct UnknownPart {
    /// All of its fields but the ids.
    pub raw: Extra,
}

impl UnknownPart {
    /// The `type` the server gave it.
    pub fn kind(&self) -> &str {
        self.raw.get("type").and_then(Value::as_str).unwrap_or_default()
    }
}

wire_struct! {
    /// Text of the user or of the model.
    TextPart {
        /// The text; while it streams the server's lists show it empty.
        text: String,
        /// Written by the server, not by the user.
        synthetic?: bool,
        /// Not shown to the model.
        ignored?: bool,
        /// When it was streamed; with an end the text is final.
        time?: PartTime,
        /// Provider and server details.
        metadata?: Extra,
    }

    /// The model's thinking.
    ReasoningPart {
        /// The text; while it streams the server's lists show it empty.
        text: String,
        /// When it was streamed; with an end the text is final.
        time?: PartTime,
        /// Provider details.
        metadata?: Extra,
    }

    /// A tool call and what came of it.
    ToolPart {
        /// The provider's name of the call; may repeat within a session.
        call_id as "callID": CallId,
        /// The tool's name.
        tool: String,
        /// How far it got.
        state: ToolState,
        /// Provider details.
        metadata?: Extra,
    }

    /// An attachment.
    FilePart {
        /// Its media type.
        mime: String = default,
        /// Its name.
        filename?: String,
        /// Where it is, or a `data:` URL with the bytes.
        url: String = default,
        /// What it was taken from.
        source?: Value,
    }

    /// A model call began.
    StepStartPart {
        /// The worktree's state at that moment.
        snapshot?: String,
    }

    /// A model call ended.
    StepFinishPart {
        /// Why it ended.
        reason: String = default,
        /// The worktree's state at that moment.
        snapshot?: String,
        /// What it cost.
        #[serde(serialize_with = "crate::conversation::write_number")]
        cost: f64 = default,
        /// What it used.
        tokens: Tokens = default,
    }

    /// The state of the worktree.
    SnapshotPart {
        /// Its name in the server's shadow repository.
        snapshot: String = default,
    }

    /// What a step changed in the worktree.
    PatchPart {
        /// Its name in the server's shadow repository.
        hash: String = default,
        /// The files it touches.
        files: Vec<String> = default,
    }

    /// A mention of an agent.
    AgentPart {
        /// The agent that is mentioned.
        name: String = default,
        /// Where in the prompt it was mentioned.
        source?: Value,
    }

    /// An order to run a subagent.
    SubtaskPart {
        /// What the subagent is asked.
        prompt: String = default,
        /// In a few words.
        description: String = default,
        /// Which agent runs it.
        agent: String = default,
        /// With which model.
        model?: ModelRef,
        /// The command it came from.
        command?: String,
    }

    /// The history before this was summarised.
    CompactionPart {
        /// Whether the server decided it.
        auto: bool = default,
        /// Whether the model's context had overflowed.
        overflow?: bool,
    }

    /// A provider call was tried again.
    RetryPart {
        /// Which attempt.
        attempt: u32 = default,
        /// Why the attempt before it failed.
        error: MessageError,
    }
}

wire_struct! {
    /// When a part was streamed.
    PartTime {
        /// The first token.
        start: Millis = default,
        /// The last token.
        end?: Millis,
    }

    /// How far a tool call got.
    ///
    /// One struct for all statuses, because servers differ in which fields they send with which.
    ToolState {
        /// Pending, running, completed or failed.
        status: ToolStatus,
        /// The call's arguments; empty while pending.
        input: Arc<Value> = default,
        /// The arguments as the model wrote them so far, while pending.
        raw?: String,
        /// A short title.
        title?: String,
        /// What a completed call returned to the model.
        output?: String,
        /// Why a failed call failed.
        error?: String,
        /// The tool's own details, such as a subagent's `sessionId`.
        metadata?: Extra,
        /// When it ran.
        time?: ToolTime,
        /// Files it returned.
        attachments?: Vec<Value>,
    }

    /// When a tool ran.
    ToolTime {
        /// The start.
        start: Millis = default,
        /// The end.
        end?: Millis,
        /// When its output was dropped from the model's context.
        compacted?: Millis,
    }
}

/// The stages of a tool call, in the only order they follow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ToolStatus {
    /// The model is still writing the arguments.
    #[default]
    Pending,
    /// It runs.
    Running,
    /// It returned.
    Completed,
    /// It failed, was refused or was aborted.
    Error,
    /// A status that this version does not know.
    #[serde(untagged)]
    Unknown(String),
}

impl<'de> Deserialize<'de> for ToolStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(|Text(status)| status.into())
    }
}

impl Scan for ToolStatus {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.string().map(Self::from)
    }
}

impl From<Cow<'_, str>> for ToolStatus {
    fn from(status: Cow<'_, str>) -> Self {
        match &*status {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "completed" => Self::Completed,
            "error" => Self::Error,
            _ => Self::Unknown(status.into_owned()),
        }
    }
}

impl ToolStatus {
    /// Whether nothing follows.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Completed | Self::Error)
    }
}

impl ToolPart {
    /// Whether the call starts a subagent.
    pub fn is_task(&self) -> bool {
        self.tool == "task"
    }

    /// Whether the call started a subagent and returned at once, while the subagent works on.
    pub fn is_background_task(&self) -> bool {
        // The metadata are read only when they are looked at.
        let is_background =
            |metadata: &Extra| metadata.get("background").and_then(Value::as_bool) == Some(true);
        self.is_task()
            && self.state.status == ToolStatus::Completed
            && self.state.metadata.as_ref().is_some_and(is_background)
    }

    /// The session of the subagent that this call started, if it is such a call.
    ///
    /// The call's metadata names it; a failed call may have lost them, and then the text does.
    pub fn child_session(&self) -> Option<SessionId> {
        if !self.is_task() {
            return None;
        }
        let metadata = self.state.metadata.as_ref();
        let named =
            metadata.and_then(|metadata| metadata.get("sessionId").or_else(|| metadata.get("sessionID")));
        if let Some(id) = named.and_then(Value::as_str) {
            return Some(id.into());
        }
        let texts = [self.state.output.as_deref(), self.state.error.as_deref()];
        texts.into_iter().flatten().find_map(session_in_text)
    }
}

/// Finds the session that a task's output (`<task id="ses_…"`, `task_id: ses_…`) or error (`(task_id: ses_…)`) names.
fn session_in_text(text: &str) -> Option<SessionId> {
    ["<task id=\"", "task_id: ", "session_id: "].into_iter().find_map(|marker| {
        let rest = text.split_once(marker)?.1;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest[..end].starts_with("ses_").then(|| SessionId::from(&rest[..end]))
    })
}

impl Part {
    /// A part of a message.
    pub fn new(id: PartId, session_id: SessionId, message_id: MessageId, body: PartBody) -> Self {
        Self { id, session_id, message_id, body }
    }

    /// Decodes one part.
    ///
    /// # Errors
    /// If a field that this version knows is missing or has another type.
    pub fn from_json(json: &str) -> Result<Self, DecodeError> {
        Self::decode(JsonPath::Root, json)
    }
}

/// The fields that all parts have, as far as they were read.
#[derive(Default)]
struct Head {
    id: Option<PartId>,
    session_id: Option<SessionId>,
    message_id: Option<MessageId>,
}

impl Head {
    /// Reads a field, if it is one of these; says whether it did.
    fn scan(&mut self, cursor: &mut Cursor<'_>) -> Option<bool> {
        if cursor.is_named(field_name!("id")) {
            cursor.once(&mut self.id)?;
        } else if cursor.is_named(field_name!("sessionID")) {
            cursor.once(&mut self.session_id)?;
        } else if cursor.is_named(field_name!("messageID")) {
            cursor.once(&mut self.message_id)?;
        } else {
            return Some(false);
        }
        Some(true)
    }
}

impl Scan for Part {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut head = Head::default();
        let (kind, is_read) = cursor.tag(field_name!("type"), |cursor| head.scan(cursor))?;
        let mut n_kinds = u32::from(is_read);
        let body = PartBody::scan_beside(kind, cursor, |cursor| {
            if cursor.is_named(field_name!("type")) {
                n_kinds += 1;
                return cursor.plain().map(|_| true);
            }
            head.scan(cursor)
        })?;
        let Head { id, session_id, message_id } = head;
        (n_kinds == 1).then_some(Self { id: id?, session_id: session_id?, message_id: message_id?, body })
    }
}

impl Tagged for Part {
    const WHAT: &'static str = "part";
    const HEAD: &'static [&'static str] = &["type", "id", "sessionID", "messageID"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        let body = PartBody::read(kind, MapAccessDeserializer::new(&mut *fields))?;
        let mut id = |name| fields.head(name).ok_or_else(|| A::Error::missing_field(name));
        Ok(Self {
            id: PartId::new(id("id")?),
            session_id: SessionId::new(id("sessionID")?),
            message_id: MessageId::new(id("messageID")?),
            body,
        })
    }
}

impl PartBody {
    /// As [`Part::scan`], for a part of this kind; `head` reads the fields that all parts have.
    fn scan_beside<'a>(
        kind: &str,
        cursor: &mut Cursor<'a>,
        head: impl FnMut(&mut Cursor<'a>) -> Option<bool>,
    ) -> Option<Self> {
        Some(match kind {
            "text" => Self::Text(TextPart::scan_beside(cursor, head)?),
            "reasoning" => Self::Reasoning(ReasoningPart::scan_beside(cursor, head)?),
            "tool" => Self::Tool(ToolPart::scan_beside(cursor, head)?.into()),
            "step-start" => Self::StepStart(StepStartPart::scan_beside(cursor, head)?),
            "step-finish" => Self::StepFinish(StepFinishPart::scan_beside(cursor, head)?),
            "patch" => Self::Patch(PatchPart::scan_beside(cursor, head)?),
            // Seldom, or unknown.
            _ => return None,
        })
    }

    fn read<'de, D: Deserializer<'de>>(kind: &str, body: D) -> Result<Self, D::Error> {
        Ok(match kind {
            "text" => Self::Text(Deserialize::deserialize(body)?),
            "reasoning" => Self::Reasoning(Deserialize::deserialize(body)?),
            "tool" => Self::Tool(Deserialize::deserialize(body)?),
            "file" => Self::File(Deserialize::deserialize(body)?),
            "step-start" => Self::StepStart(Deserialize::deserialize(body)?),
            "step-finish" => Self::StepFinish(Deserialize::deserialize(body)?),
            "snapshot" => Self::Snapshot(Deserialize::deserialize(body)?),
            "patch" => Self::Patch(Deserialize::deserialize(body)?),
            "agent" => Self::Agent(Deserialize::deserialize(body)?),
            "subtask" => Self::Subtask(Deserialize::deserialize(body)?),
            "compaction" => Self::Compaction(Deserialize::deserialize(body)?),
            "retry" => Self::Retry(Deserialize::deserialize(body)?),
            _ => {
                let mut raw = Extra::deserialize(body)?;
                raw.insert("type".to_owned(), kind.into());
                Self::Unknown(UnknownPart { raw })
            }
        })
    }
}

deserialize_by_from_json!(Part);
