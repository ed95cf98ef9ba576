//! Counters of a store since its start. `stats.rs` has the figures of what it holds now.

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Items stored.
    pub total: u64,
    /// Live items dropped to make room.
    pub evictions: u64,
    /// Of these, never read.
    pub evicted_unfetched: u64,
    /// Dead items removed, by a look-up or by the collector.
    pub reclaimed: u64,
    /// Of those, removed by the collector: expired or flushed and never read.
    pub expired_unfetched: u64,
    /// Items moved by the collector.
    pub moved: u64,
    /// Segments collected whole by a write that found no room: 0 while upkeep keeps up with the writers.
    pub collected_in_haste: u64,
    /// Times that no segment was available where one was needed to keep or to store an item.
    pub no_free_segment: u64,
}

impl StoreStats {
    /// Adds another store's.
    pub fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.evictions += other.evictions;
        self.evicted_unfetched += other.evicted_unfetched;
        self.reclaimed += other.reclaimed;
        self.expired_unfetched += other.expired_unfetched;
        self.moved += other.moved;
        self.collected_in_haste += other.collected_in_haste;
        self.no_free_segment += other.no_free_segment;
    }
}
