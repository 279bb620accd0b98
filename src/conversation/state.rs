//! The state: the main thread, and every subagent below it.

use std::sync::Arc;

use imbl::{HashMap, OrdMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct};

use super::{ConversationBlock, ConversationMetadata, RunStatus, Thread, Usage};
use crate::ids::{AgentId, BlockId, ConversationId, ToolUseId};

/// A conversation as it stands: the main thread, the subagents' threads, and what they used.
///
/// Cheap to clone, and a clone is a snapshot: folding further events into one does not change the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionConversationState {
    pub(super) blocks: Thread,
    pub(super) metadata: ConversationMetadata,
    /// Of all depths, by the call that started them.
    pub(super) subagents: OrdMap<ToolUseId, Arc<SubagentState>>,
    /// The first subagent, by id, with this agent. Follows from the subagents.
    pub(super) agents: HashMap<AgentId, ToolUseId>,
}

/// A subagent and its thread. What it was asked and what it answered is in its block in the parent's thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SubagentState {
    /// The call that started it.
    pub id: ToolUseId,
    /// The agent's own id, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The thread that started it.
    pub parent_id: ConversationId,
    /// Which agent.
    #[serde(default)]
    pub name: Arc<str>,
    /// What for, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Arc<str>>,
    /// How far it got.
    pub status: RunStatus,
    /// Its thread.
    #[serde(default)]
    pub blocks: Thread,
    /// What its thread used; subagents of its own have theirs.
    #[serde(default)]
    pub metadata: ConversationMetadata,
}

/// One of a state's threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Main,
    Subagent(ToolUseId),
}

impl Target {
    pub(super) fn conversation_id(&self) -> ConversationId {
        match self {
            Self::Main => ConversationId::main(),
            Self::Subagent(id) => ConversationId::from(id),
        }
    }
}

impl SessionConversationState {
    /// An empty conversation.
    pub fn new() -> Self {
        Self::default()
    }

    /// The main thread.
    pub fn blocks(&self) -> &Thread {
        &self.blocks
    }

    /// A thread, by the subagent's tool use, or else by its agent's id.
    pub fn thread(&self, conversation: &ConversationId) -> Option<&Thread> {
        match self.target(conversation)? {
            Target::Main => Some(&self.blocks),
            Target::Subagent(id) => self.subagents.get(&id).map(|subagent| &subagent.blocks),
        }
    }

    /// A block of a thread.
    pub fn block(&self, conversation: &ConversationId, id: &BlockId) -> Option<&Arc<ConversationBlock>> {
        self.thread(conversation)?.get(id)
    }

    /// The subagents of all depths, by the call that started them.
    pub fn subagents(&self) -> impl Iterator<Item = &Arc<SubagentState>> {
        self.subagents.values()
    }

    /// The subagent that this call started.
    pub fn subagent(&self, id: &ToolUseId) -> Option<&Arc<SubagentState>> {
        self.subagents.get(id)
    }

    /// What each message of the main thread used.
    pub fn metadata(&self) -> &ConversationMetadata {
        &self.metadata
    }

    /// What the main thread used, without its subagents.
    pub fn usage(&self) -> Usage {
        self.metadata.usage()
    }

    /// What the main thread and all subagents used.
    pub fn total_usage(&self) -> Usage {
        self.subagents().fold(self.usage(), |mut sum, subagent| {
            sum += subagent.metadata.usage();
            sum
        })
    }

    pub(super) fn target(&self, conversation: &ConversationId) -> Option<Target> {
        if conversation.is_main() {
            return Some(Target::Main);
        }
        if let Some((id, _)) = self.subagents.get_key_value(conversation.as_str()) {
            return Some(Target::Subagent(id.clone()));
        }
        self.agents.get(conversation.as_str()).cloned().map(Target::Subagent)
    }

    /// Enters a subagent in the index of agents; the first by id wins, whichever came first.
    pub(super) fn index_agent(&mut self, agent: &AgentId, id: &ToolUseId) {
        if self.agents.get(agent).is_none_or(|first| id < first) {
            self.agents.insert(agent.clone(), id.clone());
        }
    }
}

impl Serialize for SessionConversationState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("SessionConversationState", 3)?;
        object.serialize_field("blocks", &self.blocks)?;
        object.serialize_field("subagents", &self.subagents().collect::<Vec<_>>())?;
        object.serialize_field("metadata", &self.metadata)?;
        object.end()
    }
}

impl<'de> Deserialize<'de> for SessionConversationState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Stored {
            #[serde(default)]
            blocks: Thread,
            #[serde(default)]
            subagents: Vec<Arc<SubagentState>>,
            #[serde(default)]
            metadata: ConversationMetadata,
        }
        let Stored { blocks, subagents, metadata } = Stored::deserialize(deserializer)?;
        let mut state = Self { blocks, metadata, ..Self::default() };
        for subagent in subagents {
            if let Some(agent) = &subagent.agent_id {
                state.index_agent(agent, &subagent.id);
            }
            state.subagents.insert(subagent.id.clone(), subagent);
        }
        Ok(state)
    }
}
