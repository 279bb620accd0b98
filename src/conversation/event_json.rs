//! Events as JSON: one way to write them, several ways to read them. docs/JSON.md has the table.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::Value;

use super::{
    BlockOrder, BlockOutput, ConversationBlock, ConversationEvent, Metadata, RunStatus, SubagentCompleted,
    SubagentSpawned, fields::Fields,
};
use crate::{
    ids::{AgentId, ConversationId, ToolUseId},
    time::Timestamp,
};

/// Where and when, as some writers put it beside an event's own fields.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Context {
    conversation_id: Option<ConversationId>,
    timestamp: Option<Timestamp>,
}

impl Context {
    fn take(fields: &mut Fields) -> Self {
        fields.if_fits("context").unwrap_or_default()
    }

    /// The thread that an event names in either way.
    fn conversation<E: Error>(&mut self, fields: &mut Fields) -> Result<Option<ConversationId>, E> {
        Ok(fields.optional("conversationId")?.or_else(|| self.conversation_id.take()))
    }
}

impl<'de> Deserialize<'de> for ConversationEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Fields::read(deserializer)?;
        let kind: String = fields.required("type")?;
        match kind.as_str() {
            "block:upsert" => return upsert(fields),
            "subagent:spawned" => return SubagentSpawned::from_fields(fields).map(Self::SubagentSpawned),
            "subagent:completed" => {
                return SubagentCompleted::from_fields(fields).map(Self::SubagentCompleted);
            }
            _ => {}
        }
        let given = Context::take(&mut fields).conversation(&mut fields)?;
        let conversation_id = given.unwrap_or_else(ConversationId::main);
        match kind.as_str() {
            "block:delta" => Ok(Self::BlockDelta {
                conversation_id,
                block_id: fields.required("blockId")?,
                delta: fields.required("delta")?,
            }),
            "block:removed" => {
                Ok(Self::BlockRemoved { conversation_id, block_id: fields.required("blockId")? })
            }
            "session:idle" => Ok(Self::SessionIdle { conversation_id }),
            "metadata:update" => Ok(Self::MetadataUpdate {
                conversation_id,
                message_id: fields.required("messageId")?,
                created: fields.required("created")?,
                model: fields.optional("model")?,
                usage: fields.optional("usage")?,
            }),
            other => Err(D::Error::unknown_variant(
                other,
                &[
                    "block:upsert",
                    "block:delta",
                    "block:removed",
                    "subagent:spawned",
                    "subagent:completed",
                    "session:idle",
                    "metadata:update",
                ],
            )),
        }
    }
}

fn upsert<E: Error>(mut fields: Fields) -> Result<ConversationEvent, E> {
    let mut context = Context::take(&mut fields);
    let given = context.conversation(&mut fields)?;
    let mut block: Fields = fields.required("block")?;
    if let (false, Some(timestamp)) = (block.has("timestamp"), context.timestamp) {
        block.add("timestamp", timestamp.to_string());
    }
    let has_thread = block.has("conversationId");
    let mut block = ConversationBlock::from_fields::<E>(block)
        .map_err(|error| E::custom(format_args!("`block`: {error}")))?;
    let own = has_thread.then(|| block.conversation_id.clone());
    let conversation_id = given.or(own).unwrap_or_else(ConversationId::main);
    if !has_thread {
        block.conversation_id = conversation_id.clone();
    }
    Ok(ConversationEvent::BlockUpsert { conversation_id, block: Arc::new(block) })
}

impl<'de> Deserialize<'de> for SubagentSpawned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_fields(without_type(deserializer)?)
    }
}

impl SubagentSpawned {
    fn from_fields<E: Error>(mut fields: Fields) -> Result<Self, E> {
        let mut context = Context::take(&mut fields);
        let conversation_id = context.conversation(&mut fields)?.unwrap_or_else(ConversationId::main);
        let agent_id: Option<AgentId> = fields.optional("agentId")?;
        let tool_use_id = call(&mut fields, agent_id.as_ref())?;
        let prompt: Option<Arc<str>> = fields.if_fits("prompt");
        Ok(Self {
            conversation_id,
            tool_use_id,
            agent_id,
            subagent_type: fields.first_of(&["subagentType", "name"])?.unwrap_or_default(),
            description: fields.if_fits("description"),
            prompt: prompt.or_else(|| asked(&mut fields)).unwrap_or_default(),
            status: fields.if_fits("status").unwrap_or(RunStatus::Running),
            order: fields.if_fits("order"),
            timestamp: fields.optional("timestamp")?.or(context.timestamp),
            metadata: fields.metadata_and_rest(),
        })
    }
}

/// The fields of an event that is read as what it is known to be.
fn without_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
    let mut fields = Fields::read(deserializer)?;
    fields.value("type");
    Ok(fields)
}

/// The prompt inside the whole arguments of a call; the other arguments are kept.
fn asked(fields: &mut Fields) -> Option<Arc<str>> {
    match fields.value("input")? {
        Value::String(prompt) => Some(prompt.into()),
        Value::Object(mut arguments) => {
            let prompt = match arguments.remove("prompt") {
                Some(Value::String(prompt)) => Some(prompt.into()),
                Some(other) => {
                    arguments.insert("prompt".to_owned(), other);
                    None
                }
                None => None,
            };
            if !arguments.is_empty() {
                fields.keep("input", arguments);
            }
            prompt
        }
        Value::Null => None,
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
            fields.keep("input", other);
            None
        }
    }
}

/// The call that started a subagent; where a writer only knows the agent, that names both.
fn call<E: Error>(fields: &mut Fields, agent: Option<&AgentId>) -> Result<ToolUseId, E> {
    let call: Option<ToolUseId> = fields.optional("toolUseId")?;
    call.or_else(|| agent.map(|agent| ToolUseId::new(agent.as_str())))
        .ok_or_else(|| E::missing_field("toolUseId"))
}

impl Serialize for SubagentSpawned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Clients that look for the thread and the time there.
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct WrittenContext<'a> {
            conversation_id: &'a ConversationId,
            #[serde(skip_serializing_if = "Option::is_none")]
            timestamp: Option<Timestamp>,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            conversation_id: &'a ConversationId,
            context: WrittenContext<'a>,
            tool_use_id: &'a ToolUseId,
            #[serde(skip_serializing_if = "Option::is_none")]
            agent_id: &'a Option<AgentId>,
            subagent_type: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            description: &'a Option<Arc<str>>,
            prompt: &'a str,
            status: RunStatus,
            #[serde(skip_serializing_if = "Option::is_none")]
            order: &'a Option<BlockOrder>,
            #[serde(skip_serializing_if = "Option::is_none")]
            timestamp: Option<Timestamp>,
            #[serde(skip_serializing_if = "Option::is_none")]
            metadata: &'a Metadata,
        }
        Written {
            conversation_id: &self.conversation_id,
            context: WrittenContext { conversation_id: &self.conversation_id, timestamp: self.timestamp },
            tool_use_id: &self.tool_use_id,
            agent_id: &self.agent_id,
            subagent_type: &self.subagent_type,
            description: &self.description,
            prompt: &self.prompt,
            status: self.status,
            order: &self.order,
            timestamp: self.timestamp,
            metadata: &self.metadata,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SubagentCompleted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_fields(without_type(deserializer)?)
    }
}

impl SubagentCompleted {
    fn from_fields<E: Error>(mut fields: Fields) -> Result<Self, E> {
        let mut context = Context::take(&mut fields);
        let conversation_id = context.conversation(&mut fields)?.unwrap_or_else(ConversationId::main);
        let agent_id: Option<AgentId> = fields.optional("agentId")?;
        let tool_use_id = call(&mut fields, agent_id.as_ref())?;
        let word: String = fields.required("status")?;
        let status = RunStatus::deserialize(&Value::from(word.as_str())).ok();
        if status.is_none() {
            // An unknown word for the end is taken for a failure, and kept.
            fields.keep("status", word);
        }
        Ok(Self {
            conversation_id,
            tool_use_id,
            agent_id,
            status: status.unwrap_or(RunStatus::Error),
            output: fields.value("output").map(BlockOutput::from),
            duration_ms: fields.millis("durationMs"),
            order: fields.if_fits("order"),
            timestamp: fields.optional("timestamp")?.or(context.timestamp),
            metadata: fields.metadata_and_rest(),
        })
    }
}

/// The end of a subagent, as events call it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes every field by reference")]
pub(super) fn write_end<S: Serializer>(status: &RunStatus, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match status {
        RunStatus::Success => "completed",
        RunStatus::Error => "error",
        RunStatus::Running => "running",
        RunStatus::Pending => "pending",
    })
}
