//! One thread: blocks by id, and their order.

use std::sync::Arc;

use imbl::{HashMap, OrdSet};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BlockOrder, BlockStatus, ConversationBlock};
use crate::ids::BlockId;

/// The blocks of one thread, in order, each found by its id without a scan.
///
/// Cloning one costs a few reference counts; clones share all blocks that neither changed.
#[derive(Clone, Default)]
pub struct Thread {
    blocks: HashMap<BlockId, Arc<ConversationBlock>>,
    /// Kept apart from the blocks, so that a block that grows does not touch it.
    order: OrdSet<Arc<Place>>,
    /// The blocks that the end of the turn finishes.
    pending: OrdSet<BlockId>,
}

/// Where which block stands. The id settles ties, so that no two blocks can share a place.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    order: BlockOrder,
    id: BlockId,
}

impl Thread {
    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block with this id.
    pub fn get(&self, id: &BlockId) -> Option<&Arc<ConversationBlock>> {
        self.blocks.get(id)
    }

    /// The blocks in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<ConversationBlock>> {
        self.order.iter().filter_map(|place| self.blocks.get(&place.id))
    }

    /// Puts a block in its place, instead of the one with the same id; says whether that changed anything.
    pub(super) fn put(&mut self, block: &Arc<ConversationBlock>) -> bool {
        let old = self.blocks.get(&block.id);
        if old.is_some_and(|old| Arc::ptr_eq(old, block) || old == block) {
            return false;
        }
        if old.is_none_or(|old| old.order != block.order) {
            let place =
                |block: &ConversationBlock| Place { order: block.order.clone(), id: block.id.clone() };
            if let Some(old) = old {
                self.order.remove(&place(old));
            }
            self.order.insert(Arc::new(place(block)));
        }
        if block.ends_with_the_turn() {
            self.pending.insert(block.id.clone());
        } else {
            self.pending.remove(&block.id);
        }
        self.blocks.insert(block.id.clone(), block.clone());
        true
    }

    /// Adds to the text of a block; says whether there was such a text.
    pub(super) fn append(&mut self, id: &BlockId, delta: &str) -> bool {
        // Looking first keeps a shared map from being copied for nothing.
        if !self.blocks.get(id).is_some_and(|block| block.body.is_streamed()) {
            return false;
        }
        let text = self.blocks.get_mut(id).and_then(|block| Arc::make_mut(block).body.streamed_mut());
        text.map(|text| text.push_str(delta)).is_some()
    }

    pub(super) fn remove(&mut self, id: &BlockId) -> Option<Arc<ConversationBlock>> {
        let block = self.blocks.remove(id)?;
        self.order.remove(&Place { order: block.order.clone(), id: id.clone() });
        self.pending.remove(id);
        Some(block)
    }

    /// Finishes what the end of the turn finishes; returns those blocks.
    pub(super) fn finish_pending(&mut self) -> impl Iterator<Item = BlockId> + use<> {
        let pending = std::mem::take(&mut self.pending);
        for id in &pending {
            if let Some(block) = self.blocks.get_mut(id) {
                Arc::make_mut(block).status = BlockStatus::Complete;
            }
        }
        pending.into_iter()
    }
}

impl PartialEq for Thread {
    fn eq(&self, other: &Self) -> bool {
        // The other fields follow from the blocks.
        self.blocks == other.blocks
    }
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl FromIterator<Arc<ConversationBlock>> for Thread {
    fn from_iter<I: IntoIterator<Item = Arc<ConversationBlock>>>(blocks: I) -> Self {
        let mut thread = Self::default();
        for block in blocks {
            thread.put(&block);
        }
        thread
    }
}

impl Serialize for Thread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Thread {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Arc<ConversationBlock>>::deserialize(deserializer).map(Self::from_iter)
    }
}
