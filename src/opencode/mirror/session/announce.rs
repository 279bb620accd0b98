//! What a session says of itself as a subagent, where no call of its parent says it.

use std::sync::Arc;

use super::SessionLog;
use crate::{
    conversation::{BlockOrder, ConversationEvent, RunStatus, SubagentCompleted, SubagentSpawned},
    ids::{ConversationId, MessageId, PartId, ToolUseId},
    opencode::{
        mirror::{Effects, emit::emit},
        wire::PartBody,
    },
};

impl SessionLog {
    /// Emits what no task part says: that this session is a subagent, if none names it, and the end of one whose call did
    /// not wait for it.
    pub(in crate::opencode::mirror) fn announce(&mut self, parent: &ConversationId, effects: &mut Effects) {
        let mut events = Vec::new();
        if self.parent.is_some() {
            let result = self.result();
            if self.owners.is_empty() && self.has_messages() {
                let spawned = self.announcement(parent);
                events.extend(result.as_ref().map(|result| completed(result, &spawned)));
                events.insert(0, ConversationEvent::SubagentSpawned(spawned));
            }
            for (part, owner) in self.owners.iter().filter(|(_, owner)| owner.is_background) {
                let spawned = SubagentSpawned {
                    tool_use_id: part.into(),
                    order: Some(owner.order.clone()),
                    timestamp: Some(owner.order.created.into()),
                    ..self.announcement(parent)
                };
                events.extend(result.as_ref().map(|result| completed(result, &spawned)));
            }
        }
        emit(&mut self.announced, false, events, effects);
    }

    /// Whether [`Self::announce`] may have something to say.
    pub(in crate::opencode::mirror) fn speaks_for_itself(&self) -> bool {
        self.parent.is_some()
            && (self.owners.values().all(|owner| owner.is_background) || !self.announced.is_empty())
    }

    fn announcement(&self, parent: &ConversationId) -> SubagentSpawned {
        let about = self.about.as_ref();
        let title = about.map_or("", |about| about.title.as_str());
        // "Find the tests (@explore subagent)"
        let named = title.rsplit_once("(@").and_then(|(_, rest)| rest.strip_suffix(" subagent)"));
        let created = self.created();
        SubagentSpawned {
            conversation_id: parent.clone(),
            tool_use_id: ToolUseId::from(&self.id),
            agent_id: Some((&self.id).into()),
            subagent_type: about
                .and_then(|about| about.agent.as_deref())
                .or(named)
                .unwrap_or_default()
                .into(),
            description: (!title.is_empty()).then(|| title.into()),
            prompt: Arc::default(),
            status: RunStatus::Running,
            order: Some(
                BlockOrder::message(created, MessageId::default()).part(PartId::new(self.id.as_str())),
            ),
            timestamp: Some(created.into()),
            metadata: None,
        }
    }

    /// How this session ended, if it is at rest: its error, or its last text.
    fn result(&self) -> Option<Result<String, String>> {
        let is_at_rest = self.active.is_empty() && (self.idle || self.has_messages());
        if !is_at_rest {
            return None;
        }
        if !self.incomplete.is_empty() {
            return Some(Err("interrupted".to_owned()));
        }
        let mut steps = self.messages().rev().filter_map(|log| Some((log, log.step()?)));
        let Some((last, step)) = steps.next() else { return Some(Ok(String::new())) };
        if let Some(error) = &step.error {
            return Some(Err(error.message().to_owned()));
        }
        let texts = last.parts().filter_map(|part| match &part.body {
            PartBody::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        Some(Ok(texts.collect::<Vec<_>>().join("\n").trim().to_owned()))
    }
}

fn completed(result: &Result<String, String>, spawned: &SubagentSpawned) -> ConversationEvent {
    let (status, Ok(output) | Err(output)) = match result {
        Ok(_) => (RunStatus::Success, result),
        Err(_) => (RunStatus::Error, result),
    };
    ConversationEvent::SubagentCompleted(SubagentCompleted {
        conversation_id: spawned.conversation_id.clone(),
        tool_use_id: spawned.tool_use_id.clone(),
        agent_id: spawned.agent_id.clone(),
        status,
        output: Some(output.as_str().into()),
        duration_ms: None,
        order: spawned.order.clone(),
        timestamp: spawned.timestamp,
        metadata: None,
    })
}
