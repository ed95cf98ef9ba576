//! Figures of a store: what it holds now, and how long its oldest item has been unused.

use crate::counters::{StoreStats, StoreUsage};
use crate::item::{self, Item};
use crate::segment::SegmentQueue;
use crate::shares::{self, ShareSet, ShareUsage};
use crate::store::Store;

/// Bytes of the oldest sealed segment that are looked at for the item that has been unused longest.
const LOOK_SEALED_BYTES: usize = 32 << 10;
/// The bytes that are looked at of an open segment.
const LOOK_OPEN_BYTES: usize = 4 << 10;

/// Bytes of the budget that a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHeld {
    /// Segments, full and empty, what their items have outside the log, and trees that are taken apart.
    pub log: usize,
    /// The index.
    pub index: usize,
    /// The ghost queue and the recent misses.
    pub ghost: usize,
}

impl Store {
    /// Counters since the start.
    pub fn stats(&self) -> StoreStats {
        self.stats
    }

    /// The sums of what the store holds now: exact, from sums that each change keeps. It looks at no item and
    /// no segment.
    pub fn usage(&self) -> StoreUsage {
        let outside_bytes = self.log.outside_bytes();
        let objects = self.holdings.total();
        let tree_bytes = objects.tree_bytes;
        StoreUsage {
            items: self.index.len() as u64,
            bytes: (self.log.live_bytes() + outside_bytes) as u64,
            index_bytes: self.index.bytes() as u64,
            segment_bytes: (self.log.held_bytes() - outside_bytes) as u64,
            dead_bytes: (self.log.held_bytes() - outside_bytes - self.log.live_bytes()) as u64,
            huge_bytes: outside_bytes as u64 - tree_bytes,
            tree_bytes: tree_bytes + self.graveyard.held_bytes() as u64,
            ghost_bytes: (self.ghost.bytes() + self.misses.bytes()) as u64,
            segments: self.log.used() as u64,
            hash_power: self.index.level(),
            queue_items: SegmentQueue::ALL.map(|queue| self.log.queue_items(queue) as u64),
            objects: objects.items,
            object_bytes: objects.held_bytes(),
            pinned_bytes: self.holdings.pinned_bytes() as u64,
        }
    }

    /// The memory that the items of a share hold: of the one with this number, counted from 1 in the order of
    /// [`Memory::shared`](crate::Memory::shared); of 0, all others. Only where there are shares.
    pub fn share_usage(&self, share: usize) -> ShareUsage {
        let of_share = ShareSet::one(share as u8);
        let items: usize = SegmentQueue::ALL.iter().map(|queue| self.log.queue(of_share, *queue).items).sum();
        ShareUsage {
            items: items as u64,
            bytes: self.log.share_bytes(share as u8) as u64,
            evictions: self.share_evictions[share],
        }
    }

    /// The second of the last use of an item that has been unused long; `None` without items.
    ///
    /// Looks at the oldest segment as [`Store::tick`] has seen it; until one is sealed, at the open ones,
    /// some KiB of each.
    pub fn oldest_use(&self) -> Option<u32> {
        if self.oldest_use.is_some() {
            return self.oldest_use;
        }
        self.log.open_segments().filter_map(|index| self.oldest_use_in(index, LOOK_OPEN_BYTES)).min()
    }

    /// Looks for the oldest segment that is sealed, and at a piece of it, for [`Store::oldest_use`].
    pub(crate) fn note_oldest_use(&mut self) {
        let sealed =
            self.log.iter().filter(|(_, segment)| segment.sequence < u64::MAX && segment.live_items > 0);
        let oldest = sealed.min_by_key(|(_, segment)| segment.sequence).map(|(index, _)| index);
        self.oldest_use = oldest.and_then(|index| self.oldest_use_in(index, LOOK_SEALED_BYTES));
    }

    /// The second of the last use of the item that has been unused longest, of those in the segment's first
    /// `bytes`, and of the first one behind them if nothing lives there. `None`: nothing lives in the
    /// segment.
    fn oldest_use_in(&self, index: u32, bytes: usize) -> Option<u32> {
        let segment = self.log.get(index).filter(|segment| segment.live_items > 0)?;
        let mut oldest: Option<u32> = None;
        let mut at = 0;
        while at < segment.filled
            && (at < bytes || oldest.is_none())
            && let Some(location) = self.log.location(index, at)
        {
            let content = self.log.bytes(location);
            if !item::is_dead(content) {
                let used = Item::new(content, None).accessed();
                oldest = Some(oldest.map_or(used, |before| before.min(used)));
            }
            at += item::allotted(content);
        }
        oldest
    }

    /// Bytes of the budget it holds: what counts when shards are compared.
    pub fn held_bytes(&self) -> usize {
        let held = self.held();
        held.log + held.index + held.ghost
    }

    /// The bytes that the store holds, by what they are held for.
    pub fn held(&self) -> StoreHeld {
        StoreHeld {
            log: self.log.held_bytes() + self.graveyard.held_bytes(),
            index: self.index.bytes(),
            ghost: self.ghost.bytes() + self.misses.bytes(),
        }
    }

    /// Sets the counters to zero.
    pub fn reset_stats(&mut self) {
        self.stats = StoreStats::default();
        self.share_evictions = [0; shares::COUNT];
    }
}
