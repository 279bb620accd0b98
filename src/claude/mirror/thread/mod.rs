//! One thread of a session: its blocks as far as they are known.

mod differences;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::{Map, json};

use super::partial::Open;
use crate::{
    claude::{
        convert,
        wire::{
            ApiRetry, ApiUsage, AssistantLine, CompactBoundary, Content, ContentBlock, Informational,
            UserLine,
        },
    },
    conversation::{
        BlockBody, BlockOrder, BlockStatus, ConversationBlock, ConversationEvent, ConvertOptions, Metadata,
        RunStatus, Thinking, Usage,
    },
    ids::{BlockId, ConversationId, MessageId, PartId, ToolUseId},
    time::{Millis, Timestamp},
};

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineSource {
    Stream = 0,
    File = 1,
}

/// A call for a subagent, and where it stands.
pub(super) struct SubagentCall<'a> {
    pub(super) order: Option<BlockOrder>,
    pub(super) block: &'a ContentBlock,
}

/// A result that was read before its call.
#[derive(Debug)]
pub(super) struct EarlyResult {
    pub(super) content: Content,
    pub(super) is_error: bool,
    timestamp: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: ConversationId,
    /// What was said of each block.
    pub(super) blocks: HashMap<BlockId, Arc<ConversationBlock>>,
    pub(super) messages: HashMap<MessageId, Message>,
    pub(super) open: Option<Open>,
    results: HashMap<ToolUseId, EarlyResult>,
    /// Why the conversation was summarised, until the summary comes.
    boundary: Metadata,
    boundaries: HashSet<MessageId>,
    /// Attempts that failed, until the message comes that they were for; by source, because each tells all of them.
    retries: [Vec<ApiRetry>; 2],
    retried: HashSet<MessageId>,
    /// The last moment that something happened.
    latest: Option<Timestamp>,
}

/// A message of the model.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// When its first line that shows something was written.
    created: Option<Timestamp>,
    model: Option<Arc<str>>,
    usage: ApiUsage,
    told: Option<(Millis, Usage)>,
    /// Which of its blocks a line is, and which sources have told it.
    lines: HashMap<MessageId, (u32, [bool; 2])>,
    blocks: Vec<BlockId>,
}

impl Thread {
    pub(super) fn new(id: ConversationId) -> Self {
        Self {
            id,
            blocks: HashMap::new(),
            messages: HashMap::new(),
            open: None,
            results: HashMap::new(),
            boundary: None,
            boundaries: HashSet::new(),
            retries: [Vec::new(), Vec::new()],
            retried: HashSet::new(),
            latest: None,
        }
    }

    /// Says that a block is like this, unless that is known.
    pub(super) fn put(&mut self, mut block: ConversationBlock, events: &mut Vec<ConversationEvent>) {
        block.conversation_id = self.id.clone();
        if self.blocks.get(&block.id).is_some_and(|known| **known == block) {
            return;
        }
        let block = Arc::new(block);
        self.blocks.insert(block.id.clone(), block.clone());
        events.push(ConversationEvent::BlockUpsert { conversation_id: self.id.clone(), block });
    }

    /// Remembers a block that something else told of.
    pub(super) fn keep(&mut self, block: Arc<ConversationBlock>) {
        self.blocks.insert(block.id.clone(), block);
    }

    /// Takes in a line of the model; gives its calls for subagents.
    pub(super) fn line<'l>(
        &mut self,
        line: &'l AssistantLine,
        source: LineSource,
        options: ConvertOptions,
        events: &mut Vec<ConversationEvent>,
    ) -> Vec<SubagentCall<'l>> {
        let body = &line.message;
        let is_synthetic = line.is_synthetic();
        let is_shown = body.content.iter().any(|block| shows(block, is_synthetic));
        let Some((index, is_news)) = self.index(line, is_shown, source) else { return Vec::new() };
        let message = self.messages.entry(body.id.clone()).or_default();
        if !is_synthetic {
            message.model.clone_from(&body.model);
            message.usage = convert::most(&message.usage, &body.usage.unwrap_or_default());
        }
        if is_shown {
            self.seen(&body.id, line.timestamp, events);
            if is_news {
                self.show_retries(line, source, events);
            }
        }
        let mut calls = Vec::new();
        for (index, block) in (index..).zip(&body.content) {
            let order = self.order(&body.id, index);
            match block {
                ContentBlock::ToolUse { name, .. } if convert::is_agent_tool(name) => {
                    self.belongs(&body.id, block);
                    calls.push(SubagentCall { order, block });
                }
                ContentBlock::ToolUse { id, .. } => {
                    self.belongs(&body.id, block);
                    self.call(block, order, line.timestamp, events);
                    if let Some(EarlyResult { content, is_error, timestamp }) = self.results.remove(id) {
                        self.gave(id, &content, is_error, timestamp, events);
                    }
                }
                _ => self.text(line, index, block, order, options, events),
            }
        }
        self.tell(&body.id, events);
        calls
    }

    /// Which block of its message a line is, and whether its source tells it for the first time; nothing for a subagent's line that
    /// shows nothing, since those are not streamed.
    fn index(&mut self, line: &AssistantLine, is_shown: bool, source: LineSource) -> Option<(u32, bool)> {
        let is_main = self.id.is_main();
        if !is_main && !is_shown {
            return None;
        }
        let body = &line.message;
        let open = self.open.as_ref().filter(|open| source == LineSource::Stream && open.message == body.id);
        let open = open.and_then(Open::index);
        let message = self.messages.entry(body.id.clone()).or_default();
        let count = u32::try_from(message.lines.len()).unwrap_or(u32::MAX);
        let told = if is_main { line.api_block_index.or(open) } else { None };
        let Some(uuid) = &line.uuid else { return Some((told.unwrap_or(count), true)) };
        let (index, seen) = message.lines.entry(uuid.clone()).or_insert((told.unwrap_or(count), [false; 2]));
        let is_news = !std::mem::replace(&mut seen[source as usize], true);
        Some((*index, is_news))
    }

    /// Something of a message was seen at this time; the earliest counts.
    fn seen(&mut self, id: &MessageId, timestamp: Option<Timestamp>, events: &mut Vec<ConversationEvent>) {
        let Some(timestamp) = timestamp else { return };
        self.latest = self.latest.max(Some(timestamp));
        let Some(message) = self.messages.get_mut(id) else { return };
        if message.created.is_some_and(|created| created <= timestamp) {
            return;
        }
        message.created = Some(timestamp);
        for block in message.blocks.clone() {
            let Some(order) = self.blocks.get(&block).and_then(|block| block.order.clone()) else { continue };
            self.place(&block, BlockOrder { created: timestamp.millis(), ..order }, events);
        }
    }

    /// Moves a block, and the result of a call with it.
    fn place(&mut self, id: &BlockId, order: BlockOrder, events: &mut Vec<ConversationEvent>) {
        let result = BlockId::new(format!("result-{id}"));
        for (id, order) in [(&result, order.result()), (id, order)] {
            if let Some(block) = self.blocks.get(id) {
                let moved = ConversationBlock { order: Some(order), ..(**block).clone() };
                self.put(moved, events);
            }
        }
    }

    fn belongs(&mut self, message: &MessageId, block: &ContentBlock) {
        let ContentBlock::ToolUse { id, .. } = block else { return };
        self.has(message, BlockId::from(id));
    }

    fn has(&mut self, message: &MessageId, block: BlockId) {
        if let Some(message) = self.messages.get_mut(message)
            && !message.blocks.contains(&block)
        {
            message.blocks.push(block);
        }
    }

    /// Where a block of a message stands; nothing as long as it is not known when the message was written.
    pub(super) fn order(&self, message: &MessageId, index: u32) -> Option<BlockOrder> {
        let created = self.messages.get(message)?.created?;
        let part = PartId::new(format!("{index:04}"));
        Some(BlockOrder::message(created.millis(), message.clone()).part(part))
    }

    /// A block of which nothing but its place is known; without one it comes last.
    pub(super) fn block(
        &self,
        id: BlockId,
        order: Option<BlockOrder>,
        timestamp: Option<Timestamp>,
        body: BlockBody,
    ) -> ConversationBlock {
        let timestamp = timestamp.or(self.latest).unwrap_or_else(|| Millis::new(0).into());
        let mut block = ConversationBlock::new(id, BlockOrder::default(), body);
        block.order = order;
        block.timestamp = timestamp;
        block
    }

    fn text(
        &mut self,
        line: &AssistantLine,
        index: u32,
        content: &ContentBlock,
        order: Option<BlockOrder>,
        options: ConvertOptions,
        events: &mut Vec<ConversationEvent>,
    ) {
        let body = &line.message;
        let id = match &line.uuid {
            Some(uuid) if !self.id.is_main() => BlockId::from(uuid),
            Some(_) | None => block_id(&body.id, index),
        };
        let is_thinking = matches!(content, ContentBlock::Thinking { .. } | ContentBlock::RedactedThinking);
        if !shows(content, line.is_synthetic()) || (is_thinking && options.thinking == Thinking::Omit) {
            return;
        }
        let is_complete = |block: &Arc<ConversationBlock>| block.status != BlockStatus::Pending;
        if line.timestamp.is_none() && self.blocks.get(&id).is_some_and(is_complete) {
            return;
        }
        let model = body.model.clone();
        let mut metadata = Map::new();
        let shown = match content {
            ContentBlock::Text { text } if line.is_error() => {
                if let Some(error) = &line.error {
                    metadata.insert("name".to_owned(), json!(error));
                }
                BlockBody::Error { content: text.as_str().into() }
            }
            ContentBlock::Text { text } => BlockBody::AssistantText { content: text.as_str().into(), model },
            ContentBlock::Thinking { thinking } => {
                BlockBody::Thinking { content: thinking.as_str().into(), model }
            }
            ContentBlock::RedactedThinking => {
                metadata.insert("redacted".to_owned(), json!(true));
                BlockBody::Thinking { content: "".into(), model }
            }
            _ => return,
        };
        let mut block = self.block(id.clone(), order, line.timestamp, shown);
        if line.is_error() {
            block.status = BlockStatus::Error;
        }
        block.metadata = (!metadata.is_empty()).then(|| Arc::new(metadata));
        self.has(&body.id, id);
        self.put(block, events);
    }

    /// A call; one that has given something stays like that.
    pub(super) fn call(
        &mut self,
        block: &ContentBlock,
        order: Option<BlockOrder>,
        timestamp: Option<Timestamp>,
        events: &mut Vec<ConversationEvent>,
    ) {
        let ContentBlock::ToolUse { id, name, input } = block else { return };
        let id = BlockId::from(id);
        let known = self.blocks.get(&id).and_then(|known| Some((known.clone(), tool_status(known)?)));
        let final_status = known.as_ref().map(|(_, status)| *status).filter(|status| status.is_final());
        if let Some((known, _)) = &known
            && timestamp.is_none()
            && known.order.is_some()
        {
            return;
        }
        let tool_status = final_status.unwrap_or(RunStatus::Running);
        let body = BlockBody::ToolUse {
            tool_use_id: ToolUseId::new(id.as_str()),
            name: name.clone(),
            title: input.get("description").and_then(|title| title.as_str()).map(Arc::from),
            input: input.clone(),
            tool_status,
        };
        let mut call = self.block(id.clone(), order.clone(), timestamp, body);
        call.status = tool_status.block_status();
        self.put(call, events);
        if let Some(order) = order {
            self.place(&id, order, events);
        }
    }

    /// What a call gave; the first word counts.
    pub(super) fn gave(
        &mut self,
        id: &ToolUseId,
        content: &Content,
        is_error: bool,
        timestamp: Option<Timestamp>,
        events: &mut Vec<ConversationEvent>,
    ) {
        let Some(call) = self.blocks.get(&BlockId::from(id)).cloned() else {
            let gave = EarlyResult { content: content.clone(), is_error, timestamp };
            self.results.entry(id.clone()).or_insert(gave);
            return;
        };
        if tool_status(&call).is_none_or(RunStatus::is_final) {
            return;
        }
        self.latest = self.latest.max(timestamp);
        let status = if is_error { RunStatus::Error } else { RunStatus::Success };
        let mut done = (*call).clone();
        done.status = status.block_status();
        if let BlockBody::ToolUse { tool_status, .. } = &mut done.body {
            *tool_status = status;
        }
        let body = BlockBody::ToolResult {
            tool_use_id: id.clone(),
            output: convert::output(content).into(),
            is_error,
            duration_ms: None,
            parts: convert::parts(content),
        };
        let order = call.order.as_ref().map(BlockOrder::result);
        let mut result =
            self.block(BlockId::new(format!("result-{id}")), order, timestamp.or(Some(call.timestamp)), body);
        result.status = status.block_status();
        self.put(done, events);
        self.put(result, events);
    }

    /// A result that came before what turned out to be a subagent's call.
    pub(super) fn take_result(&mut self, id: &ToolUseId) -> Option<EarlyResult> {
        self.results.remove(id)
    }

    /// Something that a line of the user's side shows; of several times the earliest counts.
    pub(super) fn said(
        &mut self,
        line: &UserLine,
        body: BlockBody,
        metadata: Metadata,
        events: &mut Vec<ConversationEvent>,
    ) {
        let Some(uuid) = &line.uuid else { return };
        let id = BlockId::from(uuid);
        let known = self.blocks.get(&id).cloned();
        let known_at = known.as_ref().filter(|known| known.order.is_some()).map(|known| known.timestamp);
        let timestamp = [known_at, line.timestamp].into_iter().flatten().min();
        let order = timestamp.map(|timestamp| BlockOrder::message(timestamp.millis(), uuid.clone()));
        let mut block = self.block(id, order, timestamp, body);
        block.metadata = metadata.or_else(|| known.and_then(|known| known.metadata.clone()));
        self.latest = self.latest.max(timestamp);
        self.put(block, events);
    }

    pub(super) fn boundary(&mut self, boundary: &CompactBoundary) {
        let is_news = boundary.uuid.as_ref().is_none_or(|uuid| self.boundaries.insert(uuid.clone()));
        if is_news {
            self.boundary = convert::compaction(&boundary.compact_metadata);
        }
    }

    pub(super) fn take_boundary(&mut self) -> Metadata {
        self.boundary.take()
    }

    /// A remark; streamed ones do not say when they were made.
    pub(super) fn remark(
        &mut self,
        remark: &Informational,
        timestamp: Option<Timestamp>,
        events: &mut Vec<ConversationEvent>,
    ) {
        let Some(uuid) = &remark.uuid else { return };
        let id = BlockId::from(uuid);
        if remark.content.trim().is_empty() || (timestamp.is_none() && self.blocks.contains_key(&id)) {
            return;
        }
        let order = timestamp.map(|timestamp| BlockOrder::message(timestamp.millis(), uuid.clone()));
        let mut block =
            self.block(id, order, timestamp, super::system("informational", remark.content.clone()));
        block.metadata =
            remark.level.as_ref().map(|level| Arc::new(Map::from_iter([("level".to_owned(), json!(level))])));
        self.put(block, events);
    }

    /// An attempt failed.
    pub(super) fn retried(&mut self, retry: &ApiRetry, source: LineSource) {
        let is_news = retry.uuid.as_ref().is_none_or(|uuid| self.retried.insert(uuid.clone()));
        if is_news {
            self.retries[source as usize].push(retry.clone());
        }
    }

    /// Shows the attempts that failed before a message: nothing else says when they did in both sources.
    fn show_retries(
        &mut self,
        line: &AssistantLine,
        source: LineSource,
        events: &mut Vec<ConversationEvent>,
    ) {
        let message = &line.message.id;
        let Some(created) = self.messages.get(message).and_then(|message| message.created) else { return };
        for (number, retry) in (1..).zip(std::mem::take(&mut self.retries[source as usize])) {
            let id = BlockId::new(format!("retry-{message}-{number}"));
            let (content, metadata) = convert::retry(&retry);
            let order = BlockOrder { sub: number, ..BlockOrder::message(created.millis(), message.clone()) };
            let mut block =
                self.block(id.clone(), Some(order), Some(created), super::system("retry", content));
            block.metadata = metadata;
            self.has(message, id);
            self.put(block, events);
        }
    }

    /// Learns what a message used.
    pub(super) fn used(&mut self, id: &MessageId, usage: &ApiUsage, events: &mut Vec<ConversationEvent>) {
        if let Some(message) = self.messages.get_mut(id) {
            message.usage = convert::most(&message.usage, usage);
            self.tell(id, events);
        }
    }

    /// Says what a message used, once it shows something.
    fn tell(&mut self, id: &MessageId, events: &mut Vec<ConversationEvent>) {
        let Some(message) = self.messages.get_mut(id) else { return };
        let Some(created) = message.created.map(Timestamp::millis) else { return };
        let told = Some((created, convert::usage(&message.usage)));
        if message.usage != ApiUsage::default() && message.told != told {
            message.told = told;
            events.extend(message.usage_event(&self.id, id));
        }
    }
}

impl Message {
    pub(super) fn start(&mut self, model: Option<&Arc<str>>, usage: &ApiUsage) {
        self.model = model.cloned();
        self.usage = convert::most(&self.usage, usage);
    }

    pub(super) fn model(&self) -> Option<Arc<str>> {
        self.model.clone()
    }

    fn usage_event(&self, thread: &ConversationId, id: &MessageId) -> Option<ConversationEvent> {
        let (created, usage) = self.told?;
        Some(ConversationEvent::MetadataUpdate {
            conversation_id: thread.clone(),
            message_id: id.clone(),
            created,
            model: self.model.clone(),
            usage: Some(usage),
        })
    }
}

/// The id of a text of the main thread.
pub(super) fn block_id(message: &MessageId, index: u32) -> BlockId {
    BlockId::new(format!("{message}#{index}"))
}

/// Whether a block of a message shows anything.
fn shows(block: &ContentBlock, is_synthetic: bool) -> bool {
    match block {
        ContentBlock::Text { text } => !convert::is_silent(text, is_synthetic),
        ContentBlock::Thinking { thinking } => !thinking.trim().is_empty(),
        ContentBlock::RedactedThinking | ContentBlock::ToolUse { .. } => true,
        ContentBlock::ToolResult { .. }
        | ContentBlock::Image(_)
        | ContentBlock::Document(_)
        | ContentBlock::Unknown { .. } => false,
    }
}

fn tool_status(block: &ConversationBlock) -> Option<RunStatus> {
    match &block.body {
        BlockBody::ToolUse { tool_status, .. } => Some(*tool_status),
        _ => None,
    }
}
