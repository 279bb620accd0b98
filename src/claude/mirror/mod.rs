//! The mirror of a session: what it streams and what its files say, as one conversation.
//!
//! Every block is found by an id that both sources give it, and stands where its data says, so that a line may come twice, late, or
//! from either source: what is known already makes no event. Only text in pieces has to come once and in order.

mod partial;
mod subagent;
#[cfg(test)]
mod tests;
mod thread;

use std::{
    collections::{HashMap, HashSet},
    mem,
};

use self::{
    subagent::Subagent,
    thread::{LineSource, SubagentCall, Thread},
};
use super::{
    convert::{self, Meaning},
    transcript::{ClaudeFiles, SubagentLines},
    wire::{
        AssistantLine, Content, ContentBlock, StreamMessage, SystemLine, SystemMessage, TranscriptEvent,
        TranscriptLine, UserLine,
    },
};
use crate::{
    conversation::{
        BlockBody, BlockOrder, ConversationBlock, ConversationEvent, ConvertOptions, TokenUsage, Usage,
    },
    ids::{AgentId, ConversationId, MessageId, ToolUseId},
    time::Millis,
};

/// What what a session cost is kept under: Claude Code tells it of the whole session only.
const COST: &str = "cost";

/// How much of a session its files say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileRead {
    /// The session goes on, and its files may lag behind what it streamed: they complete what is known, and remove nothing.
    MayLag,
    /// No process works on the session: what its files do not say is gone, and what is unfinished stays so.
    Final,
}

/// One session, its subagents included.
#[derive(Debug, Default)]
pub struct SessionMirror {
    options: ConvertOptions,
    threads: HashMap<ConversationId, Thread>,
    /// By the call that started them.
    subagents: HashMap<ToolUseId, Subagent>,
    /// The threads of lines of subagents that stand in the main file, as before 2.0.
    sidechains: HashMap<MessageId, ConversationId>,
    /// Turns that are over: one that is told again must not end the next.
    results: HashSet<MessageId>,
    cost: f64,
}

impl SessionMirror {
    /// A session of which nothing is known.
    pub fn new(options: ConvertOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Takes in a line of the stream.
    pub fn stream(&mut self, message: &StreamMessage) -> Vec<ConversationEvent> {
        let mut events = Vec::new();
        match message {
            StreamMessage::Partial(partial) => {
                let id = thread_of(partial.parent_tool_use_id.as_ref());
                let options = self.options;
                self.thread(&id).partial(&partial.event, options, &mut events);
            }
            StreamMessage::User(line) => {
                let id = thread_of(line.parent_tool_use_id.as_ref());
                self.meet(&id, line.agent_id.as_ref(), &mut events);
                self.user(&id, line, &mut events);
            }
            StreamMessage::Assistant(line) => {
                let id = thread_of(line.parent_tool_use_id.as_ref());
                self.meet(&id, line.agent_id.as_ref(), &mut events);
                self.assistant(&id, line, LineSource::Stream, &mut events);
            }
            StreamMessage::System(message) => self.system(message, &mut events),
            StreamMessage::Result(result) => {
                let is_news = result.uuid.as_ref().is_none_or(|uuid| self.results.insert(uuid.clone()));
                if !is_news {
                    return events;
                }
                let main = ConversationId::main();
                self.thread(&main).abandon(&mut events);
                self.cost(result.total_cost_usd.unwrap_or(0.0), &mut events);
                events.push(ConversationEvent::SessionIdle { conversation_id: main });
            }
            StreamMessage::CommandLifecycle(_)
            | StreamMessage::ControlRequest(_)
            | StreamMessage::ControlResponse(_)
            | StreamMessage::ControlCancelRequest { .. }
            | StreamMessage::Unknown(_) => {}
        }
        events
    }

    /// Takes in a session's files, as a whole or the beginning of them.
    pub fn files(&mut self, files: &ClaudeFiles, read: FileRead) -> Vec<ConversationEvent> {
        let mut events = Vec::new();
        match read {
            FileRead::MayLag => {
                // A subagent's file may be ahead of the one with its call; it is read again when that is there.
                self.read(files, &mut events);
            }
            FileRead::Final => {
                let mut said = Self { options: self.options, cost: self.cost, ..Self::default() };
                let unnamed = said.read(files, &mut events);
                said.unnamed(&unnamed, &mut events);
                let known = mem::replace(self, said);
                if !known.threads.is_empty() {
                    events = self.differences(&known);
                }
                let mut threads: Vec<_> = self.threads.keys().cloned().collect();
                threads.sort();
                let idle = |conversation_id| ConversationEvent::SessionIdle { conversation_id };
                events.extend(threads.into_iter().map(idle));
            }
        }
        events
    }

    /// The subagents between the main thread and this one, the highest first.
    #[cfg(feature = "claude")]
    pub(super) fn above(&self, agent: &AgentId) -> Vec<AgentId> {
        let found = self.subagents.values().find(|subagent| subagent.agent_id() == Some(agent));
        let parent = |subagent: &&Subagent| self.subagents.get(&ToolUseId::from(subagent.parent()?));
        // No more than there are: what was streamed may name calls in a circle.
        let above = std::iter::successors(found, parent).skip(1).take(self.subagents.len());
        let mut above: Vec<_> = above.filter_map(Subagent::agent_id).cloned().collect();
        above.reverse();
        above
    }

    /// What has to happen to what was known before.
    fn differences(&self, known: &Self) -> Vec<ConversationEvent> {
        let mut events = Vec::new();
        for (id, thread) in &known.threads {
            thread.gone(self.threads.get(id), &mut events);
        }
        let mut threads: Vec<_> = self.threads.iter().collect();
        threads.sort_by_key(|(id, _)| *id);
        for (id, thread) in threads {
            thread.news(known.threads.get(id), &mut events);
        }
        if self.cost > known.cost {
            events.push(cost_event(self.cost));
        }
        events
    }

    /// Reads all but subagents' files that nothing names; gives those.
    fn read<'f>(
        &mut self,
        files: &'f ClaudeFiles,
        events: &mut Vec<ConversationEvent>,
    ) -> Vec<&'f SubagentLines> {
        for line in &files.main {
            let is_sidechain = match line {
                TranscriptLine::User(line) => line.is_sidechain,
                TranscriptLine::Assistant(line) => line.is_sidechain,
                _ => false,
            };
            let thread = if is_sidechain { self.sidechain(line) } else { ConversationId::main() };
            self.line(&thread, line, events);
        }
        // A subagent's own calls are in its file, so parents have to be read before children.
        let mut waiting: Vec<&SubagentLines> = files.subagents.iter().collect();
        while !waiting.is_empty() {
            let number = waiting.len();
            waiting.retain(|file| {
                let call = self.call_of(file);
                if let Some(call) = &call {
                    self.subagent_file(&ConversationId::from(call), file, events);
                }
                call.is_none()
            });
            if waiting.len() == number {
                break;
            }
        }
        waiting
    }

    /// Subagents that nothing names: those that Claude Code started for itself, and those whose call was lost.
    fn unnamed(&mut self, files: &[&SubagentLines], events: &mut Vec<ConversationEvent>) {
        for file in files {
            if !is_warm_up(file) {
                let thread = match &file.meta.tool_use_id {
                    Some(call) => ConversationId::from(call),
                    None => ConversationId::new(file.id.as_str()),
                };
                self.subagent_file(&thread, file, events);
            }
        }
    }

    fn subagent_file(
        &mut self,
        thread: &ConversationId,
        file: &SubagentLines,
        events: &mut Vec<ConversationEvent>,
    ) {
        self.meet(thread, Some(&file.id), events);
        for line in &file.lines {
            self.line(thread, line, events);
        }
    }

    /// The call that started a subagent, by what its meta file says, what the call gave, or what it was asked.
    fn call_of(&self, file: &SubagentLines) -> Option<ToolUseId> {
        if let Some(call) = &file.meta.tool_use_id {
            return self.subagents.get(call).is_some_and(Subagent::is_called).then(|| call.clone());
        }
        let known = self.subagents.iter().find(|(_, subagent)| subagent.agent_id() == Some(&file.id));
        if let Some((call, _)) = known {
            return Some(call.clone());
        }
        let first = file.lines.iter().find_map(|line| match line {
            TranscriptLine::User(line) => Some(line),
            _ => None,
        })?;
        self.asked(&first.message.content)
    }

    /// The first call for a subagent with this prompt that has none yet.
    fn asked(&self, content: &Content) -> Option<ToolUseId> {
        let prompt = content.texts().collect::<Vec<_>>().join("\n");
        let calls = self.subagents.iter().filter(|(id, subagent)| {
            subagent.agent_id().is_none()
                && subagent.prompt() == Some(&prompt)
                && !self.sidechains.values().any(|thread| thread.as_str() == id.as_str())
        });
        calls
            .min_by_key(|(id, subagent)| (subagent.order().cloned(), (*id).clone()))
            .map(|(id, _)| id.clone())
    }

    /// The thread of a subagent's line that stands in the main file: that of the line before it, or of the call with its prompt.
    fn sidechain(&mut self, line: &TranscriptLine) -> ConversationId {
        let (uuid, parent, content) = match line {
            TranscriptLine::User(line) => (&line.uuid, &line.parent_uuid, Some(&line.message.content)),
            TranscriptLine::Assistant(line) => (&line.uuid, &line.parent_uuid, None),
            _ => (&None, &None, None),
        };
        let known = uuid.as_ref().and_then(|uuid| self.sidechains.get(uuid)).cloned();
        let follows = || parent.as_ref().and_then(|parent| self.sidechains.get(parent)).cloned();
        let begins =
            || content.and_then(|content| self.asked(content)).map(|call| ConversationId::from(&call));
        let lost = || ConversationId::new(uuid.as_ref().map_or("sidechain", MessageId::as_str));
        let thread = known.or_else(follows).or_else(begins).unwrap_or_else(lost);
        if let Some(uuid) = uuid {
            self.sidechains.insert(uuid.clone(), thread.clone());
        }
        thread
    }

    fn line(&mut self, id: &ConversationId, line: &TranscriptLine, events: &mut Vec<ConversationEvent>) {
        match line {
            TranscriptLine::User(line) => self.user(id, line, events),
            TranscriptLine::Assistant(line) => self.assistant(id, line, LineSource::File, events),
            TranscriptLine::System(SystemLine { timestamp, event, .. }) => {
                let thread = self.thread(id);
                match event {
                    TranscriptEvent::ApiError(retry) => thread.retried(retry, LineSource::File),
                    TranscriptEvent::CompactBoundary(boundary) => thread.boundary(boundary),
                    TranscriptEvent::Informational(remark) => thread.remark(remark, *timestamp, events),
                }
            }
            TranscriptLine::Attachment(attachment) => {
                let Some(queued) = &attachment.queued else { return };
                let mut line = UserLine::said(queued.prompt.clone());
                line.uuid.clone_from(&queued.source_uuid);
                line.timestamp = attachment.timestamp;
                self.user(id, &line, events);
            }
            TranscriptLine::CostState { total } => self.cost(*total, events),
            TranscriptLine::Unknown(_) => {}
        }
    }

    fn user(&mut self, id: &ConversationId, line: &UserLine, events: &mut Vec<ConversationEvent>) {
        if line.is_replay && line.timestamp.is_none() {
            return;
        }
        for block in line.message.content.blocks() {
            if let ContentBlock::ToolResult { tool_use_id, content, is_error } = block {
                if let Some(subagent) = self.subagents.get_mut(tool_use_id).filter(|agent| agent.is_called())
                {
                    subagent.gave(convert::agent_gave(content, *is_error, line.tool_use_result.as_deref()));
                    self.show_subagent(tool_use_id, events);
                } else {
                    self.thread(id).gave(tool_use_id, content, *is_error, line.timestamp, events);
                }
            }
        }
        let Some(meaning) = convert::meaning(line) else { return };
        let is_main = id.is_main();
        match meaning {
            Meaning::TaskEnded(end) => {
                let Some(call) = end.tool_use_id.clone() else { return };
                self.subagents.entry(call.clone()).or_default().ended(end);
                self.show_subagent(&call, events);
            }
            // That a subagent was interrupted is only streamed as what its call gave.
            Meaning::Interruption(_) if !is_main => {}
            Meaning::Prompt(text) => {
                let asked = self.subagents.get(&ToolUseId::from(id)).and_then(Subagent::prompt);
                if asked == Some(text.as_str()) {
                    return;
                }
                let parts = convert::parts(&line.message.content);
                self.thread(id).said(
                    line,
                    BlockBody::UserMessage { content: text.into(), parts },
                    None,
                    events,
                );
            }
            Meaning::Summary(text) => {
                let thread = self.thread(id);
                let metadata = thread.take_boundary();
                thread.said(line, system("compaction", text), metadata, events);
            }
            Meaning::Interruption(text) => {
                self.thread(id).said(line, system("interruption", text), None, events);
            }
            Meaning::Command { subtype, content } if !content.is_empty() => {
                self.thread(id).said(line, system(subtype, content), None, events);
            }
            Meaning::Hidden | Meaning::Command { .. } => {}
        }
    }

    fn assistant(
        &mut self,
        id: &ConversationId,
        line: &AssistantLine,
        source: LineSource,
        events: &mut Vec<ConversationEvent>,
    ) {
        let options = self.options;
        let placed = self.thread(id).line(line, source, options, events);
        for SubagentCall { order, block } in placed {
            let ContentBlock::ToolUse { id: call, input, .. } = block else { continue };
            let subagent = self.subagents.entry(call.clone()).or_default();
            if let Some(gave) = self.threads.get_mut(id).and_then(|thread| thread.take_result(call)) {
                subagent.gave(convert::agent_gave(&gave.content, gave.is_error, None));
            }
            if subagent.called(id, order, line.timestamp, input) {
                self.show_prompt(call, events);
            }
            self.show_subagent(call, events);
        }
    }

    fn system(&mut self, message: &SystemMessage, events: &mut Vec<ConversationEvent>) {
        let main = ConversationId::main();
        match message {
            SystemMessage::ApiRetry(retry) => self.thread(&main).retried(retry, LineSource::Stream),
            SystemMessage::CompactBoundary(boundary) => self.thread(&main).boundary(boundary),
            SystemMessage::Informational(remark) => self.thread(&main).remark(remark, None, events),
            SystemMessage::TaskStarted(task) => {
                let Some(call) = &task.tool_use_id else { return };
                self.meet(&ConversationId::from(call), Some(&task.task_id), events);
            }
            SystemMessage::TaskNotification(note) => {
                let Some(call) = &note.tool_use_id else { return };
                self.subagents.entry(call.clone()).or_default().ended(convert::task_end(note));
                self.show_subagent(call, events);
            }
            SystemMessage::Init(_)
            | SystemMessage::Status { .. }
            | SystemMessage::SessionStateChanged { .. }
            | SystemMessage::TaskProgress(_)
            | SystemMessage::TaskUpdated { .. }
            | SystemMessage::BackgroundTasksChanged { .. }
            | SystemMessage::ThinkingTokens { .. }
            | SystemMessage::PermissionDenied(_)
            | SystemMessage::ModelRefusal
            | SystemMessage::Unknown(_) => {}
        }
    }

    /// Learns which subagent has a thread.
    fn meet(
        &mut self,
        thread: &ConversationId,
        agent: Option<&AgentId>,
        events: &mut Vec<ConversationEvent>,
    ) {
        let Some(agent) = agent.filter(|_| !thread.is_main()) else { return };
        let call = ToolUseId::from(thread);
        if let Some(subagent) = self.subagents.get_mut(&call)
            && subagent.is_agent(agent)
        {
            self.show_subagent(&call, events);
        }
    }

    fn show_subagent(&mut self, call: &ToolUseId, events: &mut Vec<ConversationEvent>) {
        let Some(subagent) = self.subagents.get_mut(call) else { return };
        if let Some((parent, block)) = subagent.show(call, events) {
            self.thread(&parent).keep(block);
        }
    }

    /// A subagent's prompt: one in the background does not stream it.
    fn show_prompt(&mut self, call: &ToolUseId, events: &mut Vec<ConversationEvent>) {
        let Some(subagent) = self.subagents.get(call) else { return };
        let Some((prompt, began)) = subagent.prompt().map(str::to_owned).zip(subagent.began()) else {
            return;
        };
        if prompt.trim().is_empty() {
            return;
        }
        let order = BlockOrder::message(began.millis(), MessageId::default());
        let body = BlockBody::UserMessage { content: prompt.into(), parts: Vec::new() };
        let block = ConversationBlock::new(format!("prompt-{call}"), order, body);
        self.thread(&ConversationId::from(call)).put(block, events);
    }

    fn cost(&mut self, total: f64, events: &mut Vec<ConversationEvent>) {
        if total > self.cost {
            self.cost = total;
            events.push(cost_event(total));
        }
    }

    fn thread(&mut self, id: &ConversationId) -> &mut Thread {
        // Not by `entry`, which needs an id of its own for every line.
        if !self.threads.contains_key(id) {
            self.threads.insert(id.clone(), Thread::new(id.clone()));
        }
        match self.threads.get_mut(id) {
            Some(thread) => thread,
            None => unreachable!("it was put there"),
        }
    }
}

impl UserLine {
    /// A line that says this, and nothing else.
    fn said(content: Content) -> Self {
        Self {
            uuid: None,
            timestamp: None,
            message: super::wire::UserBody { content },
            parent_tool_use_id: None,
            agent_id: None,
            is_replay: false,
            is_synthetic: false,
            is_meta: false,
            is_compact_summary: false,
            is_sidechain: false,
            parent_uuid: None,
            origin: None,
            tool_use_result: None,
        }
    }
}

/// Whether Claude Code started a subagent for itself, to warm up its cache. Old releases wrote down only what the model said to that.
fn is_warm_up(file: &SubagentLines) -> bool {
    let mut asked = file.lines.iter().filter_map(|line| match line {
        TranscriptLine::User(line) => Some(line),
        _ => None,
    });
    asked.next().is_none_or(|first| first.message.content.texts().eq(["Warmup"]))
}

fn thread_of(parent: Option<&ToolUseId>) -> ConversationId {
    parent.map_or_else(ConversationId::main, ConversationId::from)
}

fn system(subtype: &str, content: String) -> BlockBody {
    BlockBody::System { subtype: Some(subtype.into()), content: content.into() }
}

fn cost_event(cost: f64) -> ConversationEvent {
    ConversationEvent::MetadataUpdate {
        conversation_id: ConversationId::main(),
        message_id: COST.into(),
        created: Millis::new(0),
        model: None,
        usage: Some(Usage { tokens: TokenUsage::default(), cost }),
    }
}
