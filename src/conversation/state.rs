//! The state: the main thread, and every subagent below it.

use std::{collections::BTreeMap, iter, sync::Arc};

use imbl::{HashMap, OrdMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{
    BlockOutput, ConversationBlock, ConversationMetadata, Metadata, RunStatus, SubagentBlock, Thread, Usage,
    fields::Fields,
};
use crate::ids::{AgentId, BlockId, ConversationId, ToolUseId};

/// A conversation as it stands: the main thread, the subagents' threads, and what they used.
///
/// Cheap to clone, and a clone is a snapshot: folding further events into one does not change the other.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SessionConversationState {
    pub(super) blocks: Thread,
    /// Of all depths, by the call that started them.
    #[serde(serialize_with = "write_list")]
    pub(super) subagents: OrdMap<ToolUseId, Arc<SubagentState>>,
    pub(super) metadata: ConversationMetadata,
    /// The first subagent, by id, with this agent. Follows from the subagents.
    #[serde(skip)]
    pub(super) agents: HashMap<AgentId, ToolUseId>,
}

/// A subagent and its thread. The rest is what its block in the parent's thread says, as far as there is one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SubagentState {
    /// The call that started it.
    pub tool_use_id: ToolUseId,
    /// The agent's own id, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The thread that started it.
    pub parent_id: ConversationId,
    /// Which agent.
    pub name: Arc<str>,
    /// What for, in a few words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<Arc<str>>,
    /// How far it got.
    pub status: RunStatus,
    /// What it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Arc<str>>,
    /// What it answered, or why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<BlockOutput>,
    /// How long it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Its thread.
    pub blocks: Thread,
    /// What its thread used; subagents of its own have theirs.
    pub metadata: ConversationMetadata,
    /// Fields of its JSON that this version does not know, kept as they came.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub extra: Metadata,
}

/// One of a state's threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Main,
    Subagent(ToolUseId),
}

impl Target {
    pub(super) fn is_called(&self, conversation: &ConversationId) -> bool {
        match self {
            Self::Main => conversation.is_main(),
            Self::Subagent(id) => id.as_str() == conversation.as_str(),
        }
    }

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
        self.thread_of(&self.target(conversation)?)
    }

    pub(super) fn thread_of(&self, target: &Target) -> Option<&Thread> {
        match target {
            Target::Main => Some(&self.blocks),
            Target::Subagent(id) => self.subagents.get(id).map(|subagent| &subagent.blocks),
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

    /// The subagent with this agent; of several calls to one agent, the first by id.
    pub fn subagent_of_agent(&self, agent: &AgentId) -> Option<&Arc<SubagentState>> {
        self.subagents.get(self.agents.get(agent)?)
    }

    /// The subagent with this thread, named by its call or else by its agent; nothing for the main thread.
    pub fn find_subagent(&self, conversation: &ConversationId) -> Option<&Arc<SubagentState>> {
        match self.target(conversation)? {
            Target::Main => None,
            Target::Subagent(id) => self.subagents.get(&id),
        }
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
        iter::once(self.usage()).chain(self.subagents().map(|subagent| subagent.metadata.usage())).sum()
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

fn write_list<S: Serializer>(
    subagents: &OrdMap<ToolUseId, Arc<SubagentState>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(subagents.values())
}

impl<'de> Deserialize<'de> for SessionConversationState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Stored {
            #[serde(default)]
            blocks: Vec<ConversationBlock>,
            #[serde(default)]
            subagents: Vec<StoredSubagent>,
            #[serde(default)]
            metadata: ConversationMetadata,
        }
        let Stored { blocks, subagents, metadata } = Stored::deserialize(deserializer)?;
        let mut state = Self { blocks: thread(blocks, &ConversationId::main()), metadata, ..Self::default() };
        let mut foreign = Vec::new();
        for StoredSubagent { state: subagent, has_parent, has_status } in subagents {
            if !has_parent {
                foreign.push((subagent.tool_use_id.clone(), has_status));
            }
            state.subagents.insert(subagent.tool_use_id.clone(), Arc::new(subagent));
        }
        if !foreign.is_empty() {
            state.complete_from_blocks(foreign);
        }
        for subagent in state.subagents.clone().values() {
            if let Some(agent) = &subagent.agent_id {
                state.index_agent(agent, &subagent.tool_use_id);
            }
        }
        Ok(state)
    }
}

impl SessionConversationState {
    /// Completes subagents whose writer did not say which thread started them: that is where their block is. `foreign` has
    /// their calls, and whether the writer said how far they got.
    fn complete_from_blocks(&mut self, foreign: Vec<(ToolUseId, bool)>) {
        let foreign: BTreeMap<ToolUseId, bool> = foreign.into_iter().collect();
        let threads = iter::once(self.blocks.clone());
        let threads: Vec<Thread> =
            threads.chain(self.subagents().map(|subagent| subagent.blocks.clone())).collect();
        for block in threads.iter().flat_map(Thread::iter) {
            let Some(shown) = block.body.as_subagent() else { continue };
            let Some(has_status) = foreign.get(&shown.tool_use_id) else { continue };
            let Some(subagent) = self.subagents.get_mut(&shown.tool_use_id) else { continue };
            let subagent = Arc::make_mut(subagent);
            let said = subagent.clone();
            subagent.learn(shown);
            subagent.parent_id = block.conversation_id.clone();
            // What the stored subagent says itself wins over what its block says.
            if *has_status {
                subagent.status = said.status;
            }
            if !said.name.is_empty() {
                subagent.name = said.name;
            }
            keep_or_take(&mut subagent.agent_id, said.agent_id.as_ref());
            keep_or_take(&mut subagent.description, said.description.as_ref());
            keep_or_take(&mut subagent.prompt, said.prompt.as_ref());
            keep_or_take(&mut subagent.output, said.output.as_ref());
            keep_or_take(&mut subagent.duration_ms, said.duration_ms.as_ref());
        }
    }
}

impl SubagentState {
    /// A subagent of which only the thread's id is known.
    pub(super) fn unannounced(tool_use_id: ToolUseId) -> Self {
        Self {
            tool_use_id,
            agent_id: None,
            parent_id: ConversationId::main(),
            name: "".into(),
            description: None,
            status: RunStatus::Running,
            prompt: None,
            output: None,
            duration_ms: None,
            blocks: Thread::default(),
            metadata: ConversationMetadata::default(),
            extra: None,
        }
    }

    /// Takes over what the subagent's block says; what the block does not say stays.
    pub(super) fn learn(&mut self, block: &SubagentBlock) {
        let prompt = block.input.as_str().or_else(|| block.input.get("prompt")?.as_str());
        if let Some(prompt) = prompt.filter(|prompt| self.prompt.as_deref() != Some(prompt)) {
            self.prompt = Some(prompt.into());
        }
        if !block.name.is_empty() {
            self.name = block.name.clone();
        }
        keep_or_take(&mut self.agent_id, block.subagent_id.as_ref());
        keep_or_take(&mut self.description, block.description.as_ref());
        keep_or_take(&mut self.output, block.output.as_ref());
        keep_or_take(&mut self.duration_ms, block.duration_ms.as_ref());
        self.status = block.subagent_status;
    }
}

fn keep_or_take<T: Clone>(known: &mut Option<T>, said: Option<&T>) {
    if let Some(said) = said {
        *known = Some(said.clone());
    }
}

/// A subagent as it was written, which may have been by a writer that says less.
struct StoredSubagent {
    state: SubagentState,
    has_parent: bool,
    has_status: bool,
}

impl<'de> Deserialize<'de> for StoredSubagent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Fields::read(deserializer)?;
        let agent_id: Option<AgentId> = fields.optional("agentId")?;
        let call: Option<ToolUseId> = fields.first_of(&["toolUseId", "id"])?;
        let call = call.or_else(|| agent_id.as_ref().map(|agent| ToolUseId::new(agent.as_str())));
        let tool_use_id = call.ok_or_else(|| D::Error::missing_field("toolUseId"))?;
        let parent: Option<ConversationId> = fields.optional("parentId")?;
        let status: Option<RunStatus> = fields.optional("status")?;
        let blocks: Vec<ConversationBlock> = fields.optional("blocks")?.unwrap_or_default();
        let (has_parent, has_status) = (parent.is_some(), status.is_some());
        let state = SubagentState {
            agent_id,
            parent_id: parent.unwrap_or_else(ConversationId::main),
            name: fields.optional("name")?.unwrap_or_default(),
            description: fields.optional("description")?,
            status: status.unwrap_or(RunStatus::Running),
            prompt: fields.optional("prompt")?,
            output: fields.value("output").map(BlockOutput::from),
            duration_ms: fields.millis("durationMs"),
            blocks: thread(blocks, &ConversationId::from(&tool_use_id)),
            metadata: fields.optional("metadata")?.unwrap_or_default(),
            extra: fields.rest(),
            tool_use_id,
        };
        Ok(Self { state, has_parent, has_status })
    }
}

impl<'de> Deserialize<'de> for SubagentState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StoredSubagent::deserialize(deserializer).map(|stored| stored.state)
    }
}

/// A thread as it was written; its blocks need not say that they belong to it.
fn thread(blocks: Vec<ConversationBlock>, id: &ConversationId) -> Thread {
    let blocks = blocks.into_iter().map(|mut block| {
        if block.conversation_id.as_str().is_empty() {
            block.conversation_id = id.clone();
        }
        Arc::new(block)
    });
    blocks.collect()
}
