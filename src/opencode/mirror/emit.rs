//! Emitting what changed between what was shown of something and what is to be shown now.

use super::Effects;
use crate::{conversation::ConversationEvent, ids::BlockId};

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
            out.push(new.clone());
        }
    }
    *shown = events;
}

fn same_subject(one: &ConversationEvent, two: &ConversationEvent) -> bool {
    use ConversationEvent as E;
    match (one, two) {
        (E::BlockUpsert { block: one, .. }, E::BlockUpsert { block: two, .. }) => one.id == two.id,
        (E::SubagentSpawned(one), E::SubagentSpawned(two)) => one.tool_use_id == two.tool_use_id,
        (E::SubagentCompleted(one), E::SubagentCompleted(two)) => one.tool_use_id == two.tool_use_id,
        (E::MetadataUpdate { message_id: one, .. }, E::MetadataUpdate { message_id: two, .. }) => one == two,
        _ => false,
    }
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
