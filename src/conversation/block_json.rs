//! Blocks as JSON: one way to write them, several ways to read them.
//!
//! Other writers name things a little differently (`toolName`, a `status` of `running`) and leave out what this crate adds
//! (`order`, `toolStatus`, …). All of that is read, and what is unknown stays where it was. docs/JSON.md has the table.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error, ser::SerializeMap};
use serde_json::{Map, Value};

use super::{BlockBody, BlockOutput, ConversationBlock, RunStatus, SubagentBlock, fields::Fields};
use crate::ids::{AgentId, BlockId, ToolUseId};

/// Which blocks say in their `status` how far a run got (`running`, `success`), and not only whether they may still change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunWords {
    /// Subagents. A tool call says it in `toolStatus`, because clients finish what is `pending` when a session is idle.
    Subagents,
    /// Subagents and tool calls.
    SubagentsAndTools,
}

impl Serialize for ConversationBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.write(serializer, RunWords::Subagents)
    }
}

impl ConversationBlock {
    pub(crate) fn write<S: Serializer>(&self, serializer: S, words: RunWords) -> Result<S::Ok, S::Error> {
        let names = self.extra.is_some().then(Vec::new);
        let mut object = Object { map: serializer.serialize_map(None)?, names };
        object.field("id", &self.id)?;
        object.field("conversationId", &self.conversation_id)?;
        object.some("order", self.order.as_ref())?;
        object.field("timestamp", &self.timestamp)?;
        let run = match (self.body.as_subagent(), &self.body) {
            (Some(subagent), _) => Some(subagent.subagent_status),
            (None, BlockBody::ToolUse { tool_status, .. }) if words == RunWords::SubagentsAndTools => {
                Some(*tool_status)
            }
            (None, _) => None,
        };
        match run.filter(|run| run.block_status() == self.status) {
            Some(run) => object.field("status", &run)?,
            None => object.field("status", &self.status)?,
        }
        object.some("metadata", self.metadata.as_ref())?;
        object.field("type", self.body.kind())?;
        object.body(&self.body)?;
        if let Some(extra) = &self.extra {
            object.extra(extra)?;
        }
        object.map.end()
    }
}

/// An object that is being written.
struct Object<M> {
    map: M,
    /// What was written so far, where unknown fields are still to come.
    names: Option<Vec<&'static str>>,
}

impl<M: SerializeMap> Object<M> {
    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), M::Error> {
        if let Some(names) = &mut self.names {
            names.push(name);
        }
        self.map.serialize_entry(name, value)
    }

    fn some<T: Serialize>(&mut self, name: &'static str, value: Option<T>) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.field(name, &value))
    }

    fn body(&mut self, body: &BlockBody) -> Result<(), M::Error> {
        match body {
            BlockBody::UserMessage { content, parts } => {
                self.field("content", content)?;
                self.some("parts", (!parts.is_empty()).then_some(parts))
            }
            BlockBody::AssistantText { content, model } | BlockBody::Thinking { content, model } => {
                self.field("content", content)?;
                self.some("model", model.as_ref())
            }
            BlockBody::ToolUse { tool_use_id, name, title, input, tool_status } => {
                self.field("toolUseId", tool_use_id)?;
                self.field("name", name)?;
                self.some("title", title.as_ref())?;
                self.field("input", input)?;
                self.field("toolStatus", tool_status)
            }
            BlockBody::ToolResult { tool_use_id, output, is_error, duration_ms, parts } => {
                self.field("toolUseId", tool_use_id)?;
                self.field("output", output)?;
                self.field("isError", is_error)?;
                self.some("durationMs", *duration_ms)?;
                self.some("parts", (!parts.is_empty()).then_some(parts))
            }
            BlockBody::System { subtype, content } => {
                self.some("subtype", subtype.as_ref())?;
                self.field("message", content)
            }
            BlockBody::Subagent(subagent) => self.subagent(subagent),
            BlockBody::Error { content } => self.field("content", content),
            BlockBody::Unknown { .. } => Ok(()),
        }
    }

    fn subagent(&mut self, subagent: &SubagentBlock) -> Result<(), M::Error> {
        let SubagentBlock {
            tool_use_id,
            subagent_id,
            subagent_status,
            name,
            description,
            input,
            output,
            duration_ms,
        } = subagent;
        self.field("toolUseId", tool_use_id)?;
        self.some("subagentId", subagent_id.as_ref())?;
        self.field("subagentStatus", subagent_status)?;
        self.field("name", name)?;
        self.some("description", description.as_ref())?;
        self.field("input", input)?;
        self.some("output", output.as_ref())?;
        self.some("durationMs", *duration_ms)
    }

    /// A name is written once, by those who know it.
    fn extra(&mut self, extra: &Map<String, Value>) -> Result<(), M::Error> {
        let names = self.names.take().unwrap_or_default();
        for (name, value) in extra.iter().filter(|(name, _)| !names.contains(&name.as_str())) {
            self.map.serialize_entry(name, value)?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for ConversationBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_fields(Fields::read(deserializer)?)
    }
}

impl ConversationBlock {
    pub(super) fn from_fields<E: Error>(mut fields: Fields) -> Result<Self, E> {
        let kind: Arc<str> = fields.required("type")?;
        let id: Option<BlockId> = fields.optional("id")?;
        // `status` says whether the block may still change, and, without `toolStatus` or `subagentStatus`, how far the run got.
        let run: RunStatus = fields.required("status")?;
        let body = match &*kind {
            "user_message" => BlockBody::UserMessage {
                content: fields.text(&["content"]),
                parts: fields.if_fits("parts").unwrap_or_default(),
            },
            "assistant_text" => BlockBody::AssistantText {
                content: fields.text(&["content"]),
                model: fields.if_fits("model"),
            },
            "thinking" => {
                BlockBody::Thinking { content: fields.text(&["content"]), model: fields.if_fits("model") }
            }
            "tool_use" => BlockBody::ToolUse {
                tool_use_id: match fields.optional("toolUseId")? {
                    Some(id) => id,
                    // Results then name the call by the id of its block.
                    None => ToolUseId::new(id.as_ref().ok_or_else(|| E::missing_field("id"))?.as_str()),
                },
                name: fields.first_of(&["name", "toolName"])?.ok_or_else(|| E::missing_field("name"))?,
                title: fields.if_fits("title"),
                input: Arc::new(fields.value("input").unwrap_or_default()),
                tool_status: fields.if_fits("toolStatus").unwrap_or(run),
            },
            "tool_result" => BlockBody::ToolResult {
                tool_use_id: fields.required("toolUseId")?,
                output: fields.value("output").map(BlockOutput::from).unwrap_or_default(),
                is_error: fields.if_fits("isError").unwrap_or(run == RunStatus::Error),
                duration_ms: fields.millis("durationMs"),
                parts: fields.if_fits("parts").unwrap_or_default(),
            },
            "system" => BlockBody::System {
                subtype: fields.if_fits("subtype"),
                content: fields.text(&["message", "content"]),
            },
            "subagent" => BlockBody::Subagent(subagent(&mut fields, id.as_ref(), run)?),
            "error" => BlockBody::Error { content: fields.text(&["content", "message"]) },
            _ => BlockBody::Unknown { kind },
        };
        let id = match (id, &body) {
            (Some(id), _) => id,
            (None, BlockBody::Subagent(subagent)) => BlockId::from(&subagent.tool_use_id),
            (None, _) => return Err(E::missing_field("id")),
        };
        Ok(Self {
            id,
            conversation_id: fields.optional("conversationId")?.unwrap_or_default(),
            order: fields.if_fits("order"),
            timestamp: fields.required("timestamp")?,
            status: run.block_status(),
            body,
            metadata: fields.metadata(),
            extra: fields.rest(),
        })
    }
}

/// A subagent's block may be named by its call, by its agent or by a block id of its own.
fn subagent<E: Error>(fields: &mut Fields, id: Option<&BlockId>, run: RunStatus) -> Result<SubagentBlock, E> {
    let call: Option<ToolUseId> = fields.optional("toolUseId")?;
    let subagent_id: Option<AgentId> = fields.first_of(&["subagentId", "agentId"])?;
    let tool_use_id = call
        .or_else(|| subagent_id.as_ref().map(|agent| ToolUseId::new(agent.as_str())))
        .or_else(|| id.map(|id| ToolUseId::new(id.as_str())))
        .ok_or_else(|| E::missing_field("toolUseId"))?;
    Ok(SubagentBlock {
        tool_use_id,
        subagent_id,
        subagent_status: fields.if_fits("subagentStatus").unwrap_or(run),
        name: fields.first_of(&["name", "subagentType"])?.unwrap_or_default(),
        description: fields.if_fits("description"),
        input: Arc::new(fields.first_value(&["input", "prompt"]).unwrap_or_default()),
        output: fields.value("output").map(BlockOutput::from),
        duration_ms: fields.millis("durationMs"),
    })
}
