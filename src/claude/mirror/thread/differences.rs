//! How two readings of a thread differ.

use std::sync::Arc;

use super::Thread;
use crate::{
    conversation::{ConversationBlock, ConversationEvent},
    ids::BlockId,
};

impl Thread {
    /// What was known and is not said any more.
    pub(in crate::claude::mirror) fn gone(&self, said: Option<&Self>, events: &mut Vec<ConversationEvent>) {
        let is_said = |id: &BlockId| said.is_some_and(|said| said.blocks.contains_key(id));
        let mut gone: Vec<_> = self.blocks.keys().filter(|id| !is_said(id)).collect();
        gone.sort();
        events.extend(gone.into_iter().map(|id| ConversationEvent::BlockRemoved {
            conversation_id: self.id.clone(),
            block_id: id.clone(),
        }));
        for (id, message) in &self.messages {
            let told = |said: &Self| said.messages.get(id).is_some_and(|message| message.told.is_some());
            if let Some((created, _)) = message.told
                && !said.is_some_and(told)
            {
                events.push(ConversationEvent::MetadataUpdate {
                    conversation_id: self.id.clone(),
                    message_id: id.clone(),
                    created,
                    model: None,
                    usage: None,
                });
            }
        }
    }

    /// What is said and was not known.
    pub(in crate::claude::mirror) fn news(&self, known: Option<&Self>, events: &mut Vec<ConversationEvent>) {
        let is_known = |block: &Arc<ConversationBlock>| {
            known.and_then(|known| known.blocks.get(&block.id)).is_some_and(|known| known == block)
        };
        let mut news: Vec<_> = self.blocks.values().filter(|block| !is_known(block)).collect();
        news.sort_by_key(|block| (&block.order, &block.id));
        events.extend(news.into_iter().map(|block| ConversationEvent::BlockUpsert {
            conversation_id: self.id.clone(),
            block: block.clone(),
        }));
        for (id, message) in &self.messages {
            let known = known.and_then(|known| known.messages.get(id)).and_then(|known| known.told);
            if message.told != known {
                events.extend(message.usage_event(&self.id, id));
            }
        }
    }
}
