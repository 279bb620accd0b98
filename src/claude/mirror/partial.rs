//! Messages in pieces, while they are written.

use super::thread::{Thread, block_id};
use crate::{
    claude::{
        convert,
        wire::{AssistantBody, ContentBlock, Delta, PartialEvent},
    },
    conversation::{BlockBody, BlockStatus, ConversationEvent, ConvertOptions, RunStatus, Thinking},
    ids::{BlockId, MessageId, ToolUseId},
};

/// The message that is being written.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) message: MessageId,
    /// The block that is being written, by its number and id.
    block: Option<(u32, BlockId)>,
    /// Blocks that have been shown, and of which no line has come yet.
    pending: Vec<BlockId>,
}

impl Open {
    /// Which block is being written.
    pub(super) fn index(&self) -> Option<u32> {
        self.block.as_ref().map(|(index, _)| *index)
    }
}

impl Thread {
    /// Takes in a piece.
    pub(super) fn partial(
        &mut self,
        event: &PartialEvent,
        options: ConvertOptions,
        events: &mut Vec<ConversationEvent>,
    ) {
        match event {
            PartialEvent::MessageStart(body) => self.begin(body, events),
            PartialEvent::BlockStart { index, block } => self.begin_block(*index, block, options, events),
            PartialEvent::BlockDelta { index, delta } => {
                let (delta, is_thinking) = match delta {
                    Delta::Text(text) => (text, false),
                    Delta::Thinking(text) => (text, true),
                    Delta::InputJson(_) | Delta::Unknown { .. } => return,
                };
                self.grow(*index, delta, is_thinking, options, events);
            }
            PartialEvent::MessageDelta { usage, .. } => {
                if let Some(message) = self.open.as_ref().map(|open| open.message.clone()) {
                    self.used(&message, usage, events);
                }
            }
            PartialEvent::BlockStop { .. } | PartialEvent::MessageStop | PartialEvent::Unknown { .. } => {}
        }
    }

    /// Gives up what was shown of a message and has no line: an attempt that failed.
    pub(super) fn abandon(&mut self, events: &mut Vec<ConversationEvent>) {
        let Some(open) = self.open.take() else { return };
        for id in open.pending {
            if self.is_unfinished(&id) {
                self.blocks.remove(&id);
                events
                    .push(ConversationEvent::BlockRemoved { conversation_id: self.id.clone(), block_id: id });
            }
        }
    }

    fn is_unfinished(&self, id: &BlockId) -> bool {
        // Only lines say when a block was written.
        self.blocks.get(id).is_some_and(|block| match &block.body {
            BlockBody::ToolUse { tool_status, .. } => *tool_status == RunStatus::Pending,
            _ => block.status == BlockStatus::Pending,
        })
    }

    fn begin(&mut self, body: &AssistantBody, events: &mut Vec<ConversationEvent>) {
        self.abandon(events);
        let message = self.messages.entry(body.id.clone()).or_default();
        message.start(body.model.as_ref(), &body.usage.unwrap_or_default());
        self.open = Some(Open { message: body.id.clone(), block: None, pending: Vec::new() });
    }

    fn begin_block(
        &mut self,
        index: u32,
        block: &ContentBlock,
        options: ConvertOptions,
        events: &mut Vec<ConversationEvent>,
    ) {
        let Some(open) = &mut self.open else { return };
        let id = match block {
            ContentBlock::ToolUse { id, .. } => BlockId::from(id),
            _ => block_id(&open.message, index),
        };
        open.block = Some((index, id.clone()));
        match block {
            ContentBlock::Text { text } if !text.is_empty() => self.grow(index, text, false, options, events),
            ContentBlock::Thinking { thinking } if !thinking.is_empty() => {
                self.grow(index, thinking, true, options, events);
            }
            // A subagent is announced with its prompt.
            ContentBlock::ToolUse { name, .. } if convert::is_agent_tool(name) => {}
            ContentBlock::ToolUse { id: call, name, input } if !self.blocks.contains_key(&id) => {
                let body = BlockBody::ToolUse {
                    tool_use_id: ToolUseId::clone(call),
                    name: name.clone(),
                    title: None,
                    input: input.clone(),
                    tool_status: RunStatus::Pending,
                };
                self.pend(index, id, body, events);
            }
            _ => {}
        }
    }

    fn grow(
        &mut self,
        index: u32,
        delta: &str,
        is_thinking: bool,
        options: ConvertOptions,
        events: &mut Vec<ConversationEvent>,
    ) {
        if delta.is_empty() || (is_thinking && options.thinking == Thinking::Omit) {
            return;
        }
        let Some(open) = &self.open else { return };
        let id = match &open.block {
            Some((known, id)) if *known == index => id.clone(),
            Some(_) | None => block_id(&open.message, index),
        };
        if !self.blocks.contains_key(&id) {
            let model = self.messages.get(&open.message).and_then(super::thread::Message::model);
            let content = delta.into();
            let body = if is_thinking {
                BlockBody::Thinking { content, model }
            } else {
                BlockBody::AssistantText { content, model }
            };
            self.pend(index, id, body, events);
        } else if self.is_unfinished(&id) {
            events.push(ConversationEvent::BlockDelta {
                conversation_id: self.id.clone(),
                block_id: id,
                delta: delta.to_owned(),
            });
        }
    }

    /// Shows a block that has no line yet.
    fn pend(&mut self, index: u32, id: BlockId, body: BlockBody, events: &mut Vec<ConversationEvent>) {
        let Some(open) = &mut self.open else { return };
        open.pending.push(id.clone());
        let order = self.open.as_ref().and_then(|open| self.order(&open.message, index));
        let mut block = self.block(id, order, None, body);
        block.status = BlockStatus::Pending;
        self.put(block, events);
    }
}
