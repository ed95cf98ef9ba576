//! What a store counts.

use crate::counters::StoreStats;
use crate::item::{self, Item};
use crate::segment::Queue;
use crate::store::Store;

/// What a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUsage {
    /// Items, dead ones not yet removed included.
    pub items: u64,
    /// Their bytes, huge values included: memcached's `bytes`.
    pub bytes: u64,
    /// Of the budget: the index.
    pub index_bytes: u64,
    /// Of the budget: segments, full and empty.
    pub segment_bytes: u64,
    /// Of the budget: huge values.
    pub huge_bytes: u64,
    /// Of the budget: the ghost queue.
    pub ghost_bytes: u64,
    /// Segments in use.
    pub segments: u64,
    /// Bits of the index's size: memcached's `hash_power_level`.
    pub hash_power: u32,
    /// Items in the small and the main queue.
    pub queue_items: [u64; 2],
}

/// Bytes of the budget that a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreHeld {
    /// Segments, full and empty, and the huge values that their items name.
    pub log: usize,
    /// The index.
    pub index: usize,
    /// The ghost queue.
    pub ghost: usize,
}

impl StoreUsage {
    /// Adds another store's.
    pub fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.index_bytes += other.index_bytes;
        self.segment_bytes += other.segment_bytes;
        self.huge_bytes += other.huge_bytes;
        self.ghost_bytes += other.ghost_bytes;
        self.segments += other.segments;
        self.hash_power = self.hash_power.max(other.hash_power);
        self.queue_items[0] += other.queue_items[0];
        self.queue_items[1] += other.queue_items[1];
    }
}

impl Store {
    /// Counters since the start.
    pub fn stats(&self) -> StoreStats {
        self.stats
    }

    /// What it holds now.
    pub fn usage(&self) -> StoreUsage {
        let mut usage = StoreUsage {
            items: self.index.len() as u64,
            index_bytes: self.index.bytes() as u64,
            segment_bytes: self.log.held_bytes() as u64,
            ghost_bytes: self.ghost.bytes() as u64,
            hash_power: self.index.level(),
            ..StoreUsage::default()
        };
        for (_, segment) in self.log.iter() {
            usage.bytes += segment.weight() as u64;
            usage.huge_bytes += segment.huge_bytes as u64;
            usage.segments += 1;
            usage.queue_items[usize::from(segment.queue == Queue::Main)] += segment.live_items as u64;
        }
        usage.segment_bytes -= usage.huge_bytes;
        usage
    }

    /// The second of the last use of the item in the oldest segment that has been unused longest; `None` without items.
    /// Walks that segment; while there are open ones only, these.
    pub fn oldest_use(&self) -> Option<u32> {
        let alive = || self.log.iter().filter(|(_, segment)| segment.live_items > 0);
        let first = alive().map(|(_, segment)| segment.sequence).min()?;
        let mut oldest = u32::MAX;
        for (index, segment) in alive().filter(|(_, segment)| segment.sequence == first) {
            let mut at = 0;
            while at < segment.filled
                && let Some(location) = self.log.location(index, at)
            {
                let bytes = self.log.bytes(location);
                if !item::is_dead(bytes) {
                    oldest = oldest.min(Item::new(bytes, None).accessed());
                }
                at += item::allotted(bytes);
            }
        }
        Some(oldest)
    }

    /// Bytes of the budget it holds: what counts when shards are compared.
    pub fn held_bytes(&self) -> usize {
        let held = self.held();
        held.log + held.index + held.ghost
    }

    /// The same by what they are held for. Unlike [`Store::usage`] it does not look at each segment.
    pub fn held(&self) -> StoreHeld {
        StoreHeld { log: self.log.held_bytes(), index: self.index.bytes(), ghost: self.ghost.bytes() }
    }

    /// Sets the counters to zero.
    pub fn reset_stats(&mut self) {
        self.stats = StoreStats::default();
    }
}
