//! What is known of a subagent, and how its parent's thread shows it.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    claude::convert::{AgentGave, TaskEnd, other_arguments},
    conversation::{
        BlockBody, BlockOrder, BlockOutput, ConversationBlock, ConversationEvent, RunStatus,
        SubagentCompleted, SubagentSpawned,
    },
    ids::{AgentId, ConversationId, ToolUseId},
    time::Timestamp,
};

/// A subagent, from whatever has been said of it.
#[derive(Debug, Default)]
pub(super) struct Subagent {
    call: Option<Call>,
    agent_id: Option<AgentId>,
    gave: Option<AgentGave>,
    /// One for each time that it ended in the background.
    ends: Vec<TaskEnd>,
    shown: Option<Arc<ConversationBlock>>,
}

#[derive(Debug, Clone)]
struct Call {
    parent: ConversationId,
    order: Option<BlockOrder>,
    timestamp: Option<Timestamp>,
    input: Arc<Value>,
}

impl Call {
    fn text(&self, name: &str) -> Option<&str> {
        self.input.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }
}

impl Subagent {
    pub(super) fn is_called(&self) -> bool {
        self.call.is_some()
    }

    pub(super) fn agent_id(&self) -> Option<&AgentId> {
        self.agent_id.as_ref()
    }

    /// The thread with the call that started it.
    #[cfg(feature = "claude")]
    pub(super) fn parent(&self) -> Option<&ConversationId> {
        self.call.as_ref().map(|call| &call.parent)
    }

    pub(super) fn prompt(&self) -> Option<&str> {
        self.call.as_ref()?.text("prompt")
    }

    pub(super) fn order(&self) -> Option<&BlockOrder> {
        self.call.as_ref()?.order.as_ref()
    }

    pub(super) fn began(&self) -> Option<Timestamp> {
        self.call.as_ref()?.timestamp
    }

    /// It was started; says whether that is news.
    pub(super) fn called(
        &mut self,
        parent: &ConversationId,
        order: Option<BlockOrder>,
        timestamp: Option<Timestamp>,
        input: &Arc<Value>,
    ) -> bool {
        let known = self.call.as_ref().and_then(|call| call.timestamp);
        let is_news = known.is_none_or(|known| timestamp.is_some_and(|timestamp| timestamp < known));
        let order_is_new = self.order() != order.as_ref();
        if self.call.is_none() || is_news || order_is_new {
            let timestamp = if is_news { timestamp } else { known };
            self.call = Some(Call { parent: parent.clone(), order, timestamp, input: input.clone() });
        }
        is_news
    }

    /// Learns who it is; says whether that is news.
    pub(super) fn is_agent(&mut self, agent: &AgentId) -> bool {
        let is_news = self.agent_id.is_none();
        if is_news {
            self.agent_id = Some(agent.clone());
        }
        is_news
    }

    /// Its call gave something.
    pub(super) fn gave(&mut self, gave: AgentGave) {
        if let Some(agent) = &gave.agent_id {
            self.is_agent(agent);
        }
        if self.gave.is_none() {
            self.gave = Some(gave);
        }
    }

    /// It ended in the background.
    pub(super) fn ended(&mut self, end: TaskEnd) {
        let is_known =
            |known: &TaskEnd| *known == end || (known.run_id.is_some() && known.run_id == end.run_id);
        if !self.ends.iter().any(is_known) {
            self.ends.push(end);
        }
    }

    /// How it ended: as its call says, unless that only started it.
    fn end(&self) -> Option<(RunStatus, Option<BlockOutput>, Option<u64>)> {
        let gave = self.gave.as_ref()?;
        if let Some((status, output, duration)) = &gave.end {
            return Some((*status, Some(output.as_str().into()), *duration));
        }
        let end = self.ends.last()?;
        Some((end.status, end.output.as_deref().map(BlockOutput::from), end.duration_ms))
    }

    /// Says what is new of it, and gives its block and the thread of that.
    pub(super) fn show(
        &mut self,
        id: &ToolUseId,
        events: &mut Vec<ConversationEvent>,
    ) -> Option<(ConversationId, Arc<ConversationBlock>)> {
        let call = self.call.as_ref()?;
        let spawned = SubagentSpawned {
            conversation_id: call.parent.clone(),
            tool_use_id: id.clone(),
            agent_id: self.agent_id.clone(),
            subagent_type: call.text("subagent_type").unwrap_or_default().into(),
            description: call.text("description").map(Arc::from),
            prompt: call.text("prompt").unwrap_or_default().into(),
            status: RunStatus::Running,
            order: call.order.clone(),
            timestamp: call.timestamp,
            metadata: other_arguments(&call.input),
        };
        let completed = self.end().map(|(status, output, duration_ms)| SubagentCompleted {
            conversation_id: call.parent.clone(),
            tool_use_id: id.clone(),
            agent_id: self.agent_id.clone(),
            status,
            output,
            duration_ms,
            order: call.order.clone(),
            timestamp: call.timestamp,
            metadata: None,
        });
        let mut block = spawned.block();
        if let Some(completed) = &completed {
            completed.tell(&mut block);
        }
        let block = Arc::new(block);
        let known = self.shown.replace(block.clone());
        if known.as_ref() == Some(&block) {
            return None;
        }
        let parent = call.parent.clone();
        let was_over = known.as_deref().is_some_and(is_over);
        match (known, completed) {
            (Some(known), None) if !is_over(&known) => events.push(upsert(&parent, &block)),
            (Some(_), Some(_)) if was_over => events.push(upsert(&parent, &block)),
            (known, completed) => {
                if known.is_none() {
                    events.push(ConversationEvent::SubagentSpawned(spawned));
                }
                events.extend(completed.map(ConversationEvent::SubagentCompleted));
            }
        }
        if !was_over && is_over(&block) {
            events.push(ConversationEvent::SessionIdle { conversation_id: ConversationId::from(id) });
        }
        Some((parent, block))
    }
}

fn is_over(block: &ConversationBlock) -> bool {
    matches!(&block.body, BlockBody::Subagent(subagent) if subagent.subagent_status.is_final())
}

fn upsert(thread: &ConversationId, block: &Arc<ConversationBlock>) -> ConversationEvent {
    ConversationEvent::BlockUpsert { conversation_id: thread.clone(), block: block.clone() }
}
