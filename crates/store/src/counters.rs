//! Figures of a store: its counters since the start, and what it holds now. `stats.rs` reads the latter.

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Items stored.
    pub total: u64,
    /// Live items dropped to make room.
    pub evictions: u64,
    /// Evicted items that were never read.
    pub evicted_unfetched: u64,
    /// Evicted items that had a time to live.
    pub evicted_nonzero: u64,
    /// The last one of them.
    pub last_evicted: LastEvicted,
    /// Dead items removed, by a look-up or by the collector.
    pub reclaimed: u64,
    /// Items that the collector has removed, expired or flushed, and that were never read.
    pub expired_unfetched: u64,
    /// Items moved by the collector.
    pub moved: u64,
    /// Segments collected whole by a write that found no room: 0 while upkeep keeps up with the writers.
    pub collected_in_haste: u64,
    /// Times that no segment was available where one was needed to keep or to store an item.
    pub no_free_segment: u64,
}

/// When an item was evicted last, and for how long it had not been used. Of several stores: of those that
/// have evicted in the last second in which any has, the item that each evicted last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastEvicted {
    /// The second; 0: nothing was evicted.
    second: u32,
    idle_seconds: u64,
    stores: u64,
}

impl LastEvicted {
    pub(crate) fn of(second: u32, accessed: u32) -> Self {
        Self { second, idle_seconds: second.saturating_sub(accessed).into(), stores: 1 }
    }

    /// Seconds for which it had not been used, the mean if there are several; 0 if nothing was evicted.
    pub fn idle_seconds(&self) -> u64 {
        self.idle_seconds.checked_div(self.stores).unwrap_or(0)
    }

    fn add(&mut self, other: &Self) {
        if other.second > self.second {
            *self = *other;
        } else if other.second == self.second {
            self.idle_seconds += other.idle_seconds;
            self.stores += other.stores;
        }
    }
}

impl StoreStats {
    /// Adds another store's.
    pub fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.evictions += other.evictions;
        self.evicted_unfetched += other.evicted_unfetched;
        self.evicted_nonzero += other.evicted_nonzero;
        self.last_evicted.add(&other.last_evicted);
        self.reclaimed += other.reclaimed;
        self.expired_unfetched += other.expired_unfetched;
        self.moved += other.moved;
        self.collected_in_haste += other.collected_in_haste;
        self.no_free_segment += other.no_free_segment;
    }
}

/// The memory and the items that a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUsage {
    /// Items, dead ones not yet removed included.
    pub items: u64,
    /// Their bytes, huge values and trees included: memcached's `bytes`.
    pub bytes: u64,
    /// Bytes of the budget that the index has.
    pub index_bytes: u64,
    /// Bytes of the budget that segments have, full and empty ones.
    pub segment_bytes: u64,
    /// Bytes of segments without an item: items that were replaced or removed, gaps, and segments in reserve.
    pub dead_bytes: u64,
    /// Bytes of the budget that huge values have.
    pub huge_bytes: u64,
    /// Bytes of the budget that trees of objects have, those that have left the store and are being taken
    /// apart included.
    pub tree_bytes: u64,
    /// Bytes of the budget that the ghost queue and the recent misses have.
    pub ghost_bytes: u64,
    /// Segments in use.
    pub segments: u64,
    /// Bits of the index's size: memcached's `hash_power_level`.
    pub hash_power: u32,
    /// Items in the small, the main and the blind queue.
    pub queue_items: [u64; 3],
    /// Items that are objects.
    pub objects: u64,
    /// Bytes of objects.
    pub object_bytes: u64,
    /// Bytes of objects that are never evicted.
    pub pinned_bytes: u64,
}

impl StoreUsage {
    /// Adds another store's.
    pub fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.index_bytes += other.index_bytes;
        self.segment_bytes += other.segment_bytes;
        self.dead_bytes += other.dead_bytes;
        self.huge_bytes += other.huge_bytes;
        self.tree_bytes += other.tree_bytes;
        self.ghost_bytes += other.ghost_bytes;
        self.segments += other.segments;
        self.hash_power = self.hash_power.max(other.hash_power);
        self.queue_items.iter_mut().zip(other.queue_items).for_each(|(own, other)| *own += other);
        self.objects += other.objects;
        self.object_bytes += other.object_bytes;
        self.pinned_bytes += other.pinned_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eviction_of_several_stores() {
        let sum = |all: &[LastEvicted]| {
            let mut sum = StoreStats::default();
            for one in all {
                sum.add(&StoreStats { last_evicted: *one, ..StoreStats::default() });
            }
            sum.last_evicted.idle_seconds()
        };
        let none = LastEvicted::default();
        assert_eq!(sum(&[none, none]), 0);
        let (early, late, also_late) =
            (LastEvicted::of(10, 1), LastEvicted::of(20, 15), LastEvicted::of(20, 17));
        assert_eq!(sum(&[early, none]), 9);
        assert_eq!([sum(&[early, late]), sum(&[late, early, none])], [5, 5], "the later one");
        assert_eq!(sum(&[late, early, also_late]), 4, "the mean of 5 and 3");
        assert_eq!(LastEvicted::of(5, 7).idle_seconds(), 0);
    }
}
