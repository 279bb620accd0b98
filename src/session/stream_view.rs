//! A conversation as a stream of five events: a block starts, its text grows, it changes, it is complete, and what was used.
//!
//! Some clients are written for these and not for the events that a conversation is folded from. They are a view of the same
//! conversation: everything in a state can be got from them too.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    conversation::{
        BlockStatus, Change, ConversationBlock, ConversationEvent, RunWords, SessionConversationState,
        TokenUsage, reduce_with_changes,
    },
    ids::{BlockId, ConversationId},
};

/// One event of a session's stream.
///
/// A client keeps a list of blocks for each `conversationId`. A block that starts or is complete replaces the one with the same
/// id, or comes last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum StreamEvent {
    /// A block that may still change is there.
    #[non_exhaustive]
    BlockStart {
        /// The thread that the block belongs to.
        conversation_id: ConversationId,
        /// The block as it is now. Of a tool call, too, its `status` says in JSON how far it got.
        #[serde(serialize_with = "write_block")]
        block: Arc<ConversationBlock>,
    },
    /// A block's text grew.
    #[non_exhaustive]
    TextDelta {
        /// The thread that the block belongs to.
        conversation_id: ConversationId,
        /// The block, by its id.
        block_id: BlockId,
        /// What is added to its `content`.
        delta: String,
    },
    /// Something about a block changed, and it is as finished as it was.
    #[non_exhaustive]
    BlockUpdate {
        /// The thread that the block belongs to.
        conversation_id: ConversationId,
        /// The block, by its id.
        block_id: BlockId,
        /// The fields of its JSON that are different now.
        updates: Map<String, Value>,
        /// Whether the block is gone; with a subagent's block its thread, and those below it, unless it shows elsewhere.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        removed: bool,
    },
    /// A block is finished.
    #[non_exhaustive]
    BlockComplete {
        /// The thread that the block belongs to.
        conversation_id: ConversationId,
        /// The block as it is now. Of a tool call, too, its `status` says in JSON how far it got.
        #[serde(serialize_with = "write_block")]
        block: Arc<ConversationBlock>,
    },
    /// What a thread used so far; replaces what was said about that thread before.
    #[non_exhaustive]
    MetadataUpdate {
        /// The thread that used it.
        conversation_id: ConversationId,
        /// The model of its last message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<Arc<str>>,
        /// The tokens of all its messages; subagents have their own.
        usage: StreamUsage,
        /// The cost of all its messages.
        #[serde(rename = "costUSD", serialize_with = "crate::conversation::write_number")]
        cost_usd: f64,
    },
}

/// Tokens by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct StreamUsage {
    /// Read by the model, without the cached ones.
    pub input_tokens: u64,
    /// Written by the model.
    pub output_tokens: u64,
    /// Thought by the model.
    pub reasoning_tokens: u64,
    /// Read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Written to the provider's cache.
    pub cache_write_tokens: u64,
}

impl From<TokenUsage> for StreamUsage {
    fn from(tokens: TokenUsage) -> Self {
        Self {
            input_tokens: tokens.input,
            output_tokens: tokens.output,
            reasoning_tokens: tokens.reasoning,
            cache_read_tokens: tokens.cache_read,
            cache_write_tokens: tokens.cache_write,
        }
    }
}

/// The state after `event`, and what to tell a client of the stream about it.
///
/// # Examples
/// ```
/// use opencode_conductor::{ConversationEvent, SessionConversationState, StreamEvent, reduce_to_stream};
///
/// let mut state = SessionConversationState::new();
/// let mut said = String::new();
/// for json in [
///     r#"{"type": "block:upsert", "block": {"id": "b1", "type": "assistant_text", "content": "Hel",
///         "status": "pending", "timestamp": "2026-01-31T12:00:00Z"}}"#,
///     r#"{"type": "block:delta", "blockId": "b1", "delta": "lo"}"#,
///     r#"{"type": "session:idle"}"#,
/// ] {
///     let event: ConversationEvent = serde_json::from_str(json)?;
///     let (next, stream) = reduce_to_stream(&state, &event);
///     state = next;
///     for event in stream {
///         said += match event {
///             StreamEvent::BlockStart { .. } => "start ",
///             StreamEvent::TextDelta { .. } => "delta ",
///             StreamEvent::BlockComplete { .. } => "complete ",
///             _ => "",
///         };
///     }
/// }
/// assert_eq!(said, "start delta complete ");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn reduce_to_stream(
    state: &SessionConversationState,
    event: &ConversationEvent,
) -> (SessionConversationState, Vec<StreamEvent>) {
    let (next, changes) = reduce_with_changes(state, event);
    let mut stream = Vec::new();
    let mut removed = Vec::new();
    for change in &changes {
        match change {
            Change::Block { conversation_id, block_id } => {
                stream.extend(block_event(state, &next, event, conversation_id, block_id));
            }
            Change::BlockRemoved { conversation_id, block_id } => {
                removed.push(gone(conversation_id, block_id));
            }
            // A thread without a block can be removed too.
            Change::SubagentRemoved { .. } => {
                if let (true, ConversationEvent::BlockRemoved { conversation_id, block_id }) =
                    (removed.is_empty(), event)
                {
                    removed.push(gone(conversation_id, block_id));
                }
            }
            Change::Metadata { conversation_id } => stream.extend(metadata(&next, conversation_id)),
            // The event of its block says the same.
            Change::Subagent { .. } => {}
        }
    }
    // Last, so that a subagent that moves to another thread is seen there before it is gone from its old place.
    stream.extend(removed);
    (next, stream)
}

/// What to tell a client of the stream that missed what made `before` into `after`: each block that is not as it was, as a whole.
#[cfg(feature = "client")]
pub(crate) fn stream_between(
    before: &SessionConversationState,
    after: &SessionConversationState,
) -> Vec<StreamEvent> {
    let mut stream = Vec::new();
    for (conversation_id, thread) in threads(after) {
        let old = before.thread(&conversation_id);
        for block in thread.iter() {
            let same = |old: &Arc<ConversationBlock>| Arc::ptr_eq(old, block) || old == block;
            if !old.and_then(|old| old.get(&block.id)).is_some_and(same) {
                stream.push(whole(conversation_id.clone(), block.clone()));
            }
        }
        let used = metadata(after, &conversation_id);
        if used != metadata(before, &conversation_id) {
            stream.extend(used);
        }
    }
    for (conversation_id, thread) in threads(before) {
        let gone = thread.iter().filter(|block| after.block(&conversation_id, &block.id).is_none());
        stream.extend(gone.map(|block| self::gone(&conversation_id, &block.id)));
    }
    stream
}

#[cfg(feature = "client")]
fn threads(
    state: &SessionConversationState,
) -> impl Iterator<Item = (ConversationId, &crate::conversation::Thread)> {
    let subagents =
        state.subagents().map(|subagent| (ConversationId::from(&subagent.tool_use_id), &subagent.blocks));
    std::iter::once((ConversationId::main(), state.blocks())).chain(subagents)
}

fn block_event(
    before: &SessionConversationState,
    after: &SessionConversationState,
    event: &ConversationEvent,
    conversation_id: &ConversationId,
    block_id: &BlockId,
) -> Option<StreamEvent> {
    let block = after.block(conversation_id, block_id)?.clone();
    let (conversation_id, block_id) = (conversation_id.clone(), block_id.clone());
    let is_pending = block.status == BlockStatus::Pending;
    let old = before.block(&conversation_id, &block_id);
    if let (Some(_), ConversationEvent::BlockDelta { delta, .. }) = (old, event) {
        return Some(StreamEvent::TextDelta { conversation_id, block_id, delta: delta.clone() });
    }
    let old = old.filter(|old| (old.status == BlockStatus::Pending) == is_pending);
    if let Some(updates) = old.and_then(|old| updates(old, &block)) {
        return Some(StreamEvent::BlockUpdate { conversation_id, block_id, updates, removed: false });
    }
    Some(whole(conversation_id, block))
}

fn whole(conversation_id: ConversationId, block: Arc<ConversationBlock>) -> StreamEvent {
    if block.status == BlockStatus::Pending {
        StreamEvent::BlockStart { conversation_id, block }
    } else {
        StreamEvent::BlockComplete { conversation_id, block }
    }
}

/// The fields that differ; nothing if one is gone, which only the whole block can say.
fn updates(old: &ConversationBlock, new: &ConversationBlock) -> Option<Map<String, Value>> {
    let (old, mut new) = (fields(old)?, fields(new)?);
    if old.keys().any(|name| !new.contains_key(name)) {
        return None;
    }
    new.retain(|name, value| old.get(name) != Some(value));
    Some(new)
}

fn fields(block: &ConversationBlock) -> Option<Map<String, Value>> {
    match block.write(serde_json::value::Serializer, RunWords::SubagentsAndTools) {
        Ok(Value::Object(fields)) => Some(fields),
        Ok(_) | Err(_) => None,
    }
}

fn gone(conversation_id: &ConversationId, block_id: &BlockId) -> StreamEvent {
    let (conversation_id, block_id) = (conversation_id.clone(), block_id.clone());
    StreamEvent::BlockUpdate { conversation_id, block_id, updates: Map::new(), removed: true }
}

fn metadata(state: &SessionConversationState, conversation_id: &ConversationId) -> Option<StreamEvent> {
    let metadata = match state.find_subagent(conversation_id) {
        Some(subagent) => &subagent.metadata,
        None if conversation_id.is_main() => state.metadata(),
        None => return None,
    };
    let usage = metadata.usage();
    Some(StreamEvent::MetadataUpdate {
        conversation_id: conversation_id.clone(),
        model: metadata.model().cloned(),
        usage: usage.tokens.into(),
        cost_usd: usage.cost,
    })
}

fn write_block<S: Serializer>(block: &ConversationBlock, serializer: S) -> Result<S::Ok, S::Error> {
    block.write(serializer, RunWords::SubagentsAndTools)
}

#[cfg(test)]
#[cfg(feature = "client")]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(events: &[Value]) -> SessionConversationState {
        let mut state = SessionConversationState::new();
        for event in events {
            state.apply(&serde_json::from_value(event.clone()).unwrap());
        }
        state
    }

    fn block(thread: &str, id: &str, content: &str, status: &str) -> Value {
        json!({"type": "block:upsert", "conversationId": thread, "block": {"id": id, "type": "assistant_text",
            "content": content, "status": status, "timestamp": "2026-01-31T12:00:00Z"}})
    }

    #[test]
    fn whoever_missed_something_is_told_what_is_different() {
        let spawned = json!({"type": "subagent:spawned", "toolUseId": "t1", "prompt": "p", "subagentType": "s",
            "context": {"conversationId": "main", "timestamp": "2026-01-31T12:00:00Z"}});
        let before = [
            block("main", "same", "a", "complete"),
            block("main", "grows", "a", "pending"),
            block("main", "goes", "a", "complete"),
        ];
        let after = [
            block("main", "grows", "ab", "complete"),
            block("main", "new", "c", "pending"),
            json!({"type": "block:removed", "conversationId": "main", "blockId": "goes"}),
            spawned,
            block("t1", "below", "d", "complete"),
        ];
        let all: Vec<Value> = before.iter().chain(&after).cloned().collect();
        let (before, after) = (state(&before), state(&all));
        let told = stream_between(&before, &after);
        let told: Vec<String> = told
            .iter()
            .map(|event| match event {
                StreamEvent::BlockStart { block, .. } => format!("start {}", block.id),
                StreamEvent::BlockComplete { block, .. } => format!("complete {}", block.id),
                StreamEvent::BlockUpdate { block_id, removed: true, .. } => format!("gone {block_id}"),
                other => format!("{other:?}"),
            })
            .collect();
        for expected in ["complete grows", "start new", "complete below", "gone goes"] {
            assert!(told.iter().any(|told| told == expected), "{expected} is missing in {told:?}");
        }
        assert!(told.iter().any(|told| told.starts_with("start t1")), "the subagent's own block: {told:?}");
        assert!(!told.iter().any(|told| told.contains("same")), "{told:?}");
        assert_eq!(stream_between(&after, &after), []);
    }
}
