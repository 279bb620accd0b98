//! One thread: blocks by id, and their order.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BlockOrder, BlockStatus, ConversationBlock};
use crate::ids::BlockId;

/// The blocks of one thread, in order, each found by its id without a scan.
///
/// Cloning one costs a few reference counts; clones share all blocks that neither changed.
///
/// Ordered maps, not hashed ones: new blocks come at the end of both, so that they touch the same few nodes however long the
/// thread is.
#[derive(Clone, Default)]
pub struct Thread {
    blocks: OrdMap<Arc<Place>, Arc<ConversationBlock>>,
    places: OrdMap<BlockId, Arc<Place>>,
    /// The blocks that the end of the turn finishes.
    pending: OrdSet<BlockId>,
    /// The block that last grew, newer than the one in `blocks`. Text comes in thousands of pieces to the same block, and
    /// with this they do not touch the maps, of which every kept state would need its own copy.
    growing: Option<(Arc<Place>, Arc<ConversationBlock>)>,
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
        match &self.growing {
            Some((place, block)) if place.id == *id => Some(block),
            Some(_) | None => self.blocks.get(self.places.get(id)?),
        }
    }

    /// The blocks in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<ConversationBlock>> {
        self.blocks.iter().map(|(place, block)| match &self.growing {
            Some((growing, newer)) if Arc::ptr_eq(growing, place) => newer,
            Some(_) | None => block,
        })
    }

    /// Puts a block in its place, instead of the one with the same id; says whether that changed anything. A block that does
    /// not say its place takes that of the one with the same id, or comes last.
    pub(super) fn put(&mut self, block: &Arc<ConversationBlock>) -> bool {
        if let Some(order) = &block.order {
            return self.put_at(order, block);
        }
        let order = match self.places.get(&block.id) {
            Some(place) => place.order.clone(),
            None => self.blocks.get_max().map(|(last, _)| last.order.next()).unwrap_or_default(),
        };
        let placed = ConversationBlock { order: Some(order.clone()), ..(**block).clone() };
        self.put_at(&order, &Arc::new(placed))
    }

    fn put_at(&mut self, order: &BlockOrder, block: &Arc<ConversationBlock>) -> bool {
        let old = self.get(&block.id);
        if old.is_some_and(|old| Arc::ptr_eq(old, block) || old == block) {
            return false;
        }
        self.growing.take_if(|(place, _)| place.id == block.id);
        let old_place = self.places.get(&block.id);
        let place = match old_place {
            Some(place) if place.order == *order => place.clone(),
            Some(_) | None => {
                if let Some(old_place) = old_place {
                    self.blocks.remove(old_place);
                }
                let place = Arc::new(Place { order: order.clone(), id: block.id.clone() });
                self.places.insert(block.id.clone(), place.clone());
                place
            }
        };
        self.blocks.insert(place, block.clone());
        if block.ends_with_the_turn() {
            self.pending.insert(block.id.clone());
        } else if self.pending.contains(&block.id) {
            self.pending.remove(&block.id);
        }
        true
    }

    /// Adds to the text of a block; says whether there was such a text.
    pub(super) fn append(&mut self, id: &BlockId, delta: &str) -> bool {
        if self.growing.as_ref().is_none_or(|(place, _)| place.id != *id) {
            let Some(place) = self.places.get(id) else { return false };
            let Some(block) = self.blocks.get(place).filter(|block| block.body.is_streamed()) else {
                return false;
            };
            let growing = (place.clone(), block.clone());
            self.stop_growing();
            self.growing = Some(growing);
        }
        let block = self.growing.as_mut().map(|(_, block)| Arc::make_mut(block));
        let text = block.and_then(|block| block.body.streamed_mut());
        text.map(|text| text.push_str(delta)).is_some()
    }

    pub(super) fn remove(&mut self, id: &BlockId) -> Option<Arc<ConversationBlock>> {
        self.stop_growing();
        let place = self.places.remove(id)?;
        self.pending.remove(id);
        self.blocks.remove(&place)
    }

    /// Finishes what the end of the turn finishes; returns those blocks.
    pub(super) fn finish_pending(&mut self) -> impl Iterator<Item = BlockId> + use<> {
        self.stop_growing();
        let pending = std::mem::take(&mut self.pending);
        for id in &pending {
            if let Some(block) = self.places.get(id).and_then(|place| self.blocks.get_mut(place)) {
                Arc::make_mut(block).status = BlockStatus::Complete;
            }
        }
        pending.into_iter()
    }

    fn stop_growing(&mut self) {
        if let Some((place, block)) = self.growing.take() {
            self.blocks.insert(place, block);
        }
    }
}

impl PartialEq for Thread {
    fn eq(&self, other: &Self) -> bool {
        // The other fields follow from the blocks.
        self.len() == other.len() && self.iter().eq(other.iter())
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
