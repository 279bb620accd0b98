//! Emitting what changed between what was shown of something and what is to be shown now.

use std::sync::Arc;

use super::Effects;
use crate::{
    conversation::{BlockBody, ConversationBlock, ConversationEvent},
    ids::BlockId,
};

/// Emits the difference between what was shown of something and what is to be shown now.
pub(super) fn emit(
    shown: &mut Vec<ConversationEvent>,
    is_outdated: bool,
    events: Vec<ConversationEvent>,
    effects: &mut Effects,
) {
    let out = &mut effects.out.events;
    for old in shown.iter().filter(|old| !events.iter().any(|new| same_subject(old, new))) {
        out.extend(retraction(old));
    }
    for new in &events {
        if is_outdated || !shown.contains(new) {
            out.push(again(shown, new, &events).unwrap_or_else(|| new.clone()));
        }
    }
    *shown = events;
}

/// What to emit for a subagent that was announced before and of which more is known now. It is announced once, since not
/// every client knows the second time that it has seen it; whatever changes after that is a change of its block.
fn again(
    shown: &[ConversationEvent],
    new: &ConversationEvent,
    events: &[ConversationEvent],
) -> Option<ConversationEvent> {
    use ConversationEvent as E;
    let E::SubagentSpawned(spawned) = new else { return None };
    shown.iter().find(|old| matches!(old, E::SubagentSpawned(_)) && same_subject(old, new))?;
    let mut block = spawned.block();
    for event in events {
        if let E::SubagentCompleted(completed) = event
            && completed.tool_use_id == spawned.tool_use_id
        {
            completed.tell(&mut block);
        }
    }
    Some(E::BlockUpsert { conversation_id: spawned.conversation_id.clone(), block: Arc::new(block) })
}

fn same_subject(one: &ConversationEvent, two: &ConversationEvent) -> bool {
    use ConversationEvent as E;
    match (one, two) {
        // A call that turns out to be of another tool is no subagent any more, and its thread has to go.
        (E::BlockUpsert { block: one, .. }, E::BlockUpsert { block: two, .. }) => {
            one.id == two.id && is_subagent(one) == is_subagent(two)
        }
        (E::SubagentSpawned(one), E::SubagentSpawned(two)) => one.tool_use_id == two.tool_use_id,
        (E::BlockUpsert { block, .. }, E::SubagentSpawned(spawned))
        | (E::SubagentSpawned(spawned), E::BlockUpsert { block, .. }) => {
            block.id == BlockId::from(&spawned.tool_use_id) && is_subagent(block)
        }
        (E::SubagentCompleted(one), E::SubagentCompleted(two)) => one.tool_use_id == two.tool_use_id,
        (E::MetadataUpdate { message_id: one, .. }, E::MetadataUpdate { message_id: two, .. }) => one == two,
        _ => false,
    }
}

fn is_subagent(block: &ConversationBlock) -> bool {
    matches!(block.body, BlockBody::Subagent(_))
}

fn retraction(event: &ConversationEvent) -> Option<ConversationEvent> {
    use ConversationEvent as E;
    match event {
        E::BlockUpsert { conversation_id, block } => {
            Some(E::BlockRemoved { conversation_id: conversation_id.clone(), block_id: block.id.clone() })
        }
        E::SubagentSpawned(spawned) => Some(E::BlockRemoved {
            conversation_id: spawned.conversation_id.clone(),
            block_id: BlockId::from(&spawned.tool_use_id),
        }),
        E::MetadataUpdate { conversation_id, message_id, created, .. } => Some(E::MetadataUpdate {
            conversation_id: conversation_id.clone(),
            message_id: message_id.clone(),
            created: *created,
            model: None,
            usage: None,
        }),
        E::SubagentCompleted(_) | E::BlockDelta { .. } | E::BlockRemoved { .. } | E::SessionIdle { .. } => {
            None
        }
    }
}
