//! The layout of a store, and how many of them a server has.

use crate::shares::SHARES_MAX;

/// The layout of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes of a segment, a power of two of at least 16 KiB.
    pub segment_bytes: usize,
    /// Stores that share the memory.
    pub shards: usize,
    /// TTL classes of each share: items that die at about the same time are in the same segments.
    pub ttl_classes: u8,
    /// Make room by evicting live items; otherwise a write fails when there is none.
    pub evictions: bool,
}

impl StoreConfig {
    /// Number of shards and their layout for a server of `memory_bytes` and `threads` workers.
    ///
    /// Half the square of the workers, up to four for each: the chance that one meets another in a shard then
    /// stays about the same, and few workers need few locks for a batch (one worker never waits). At least
    /// four for each 8 GiB, since with many segments the choice of the next to empty would take too long; and
    /// each has 8 MiB. A shard has 256 segments, so that the four or five that are spare, open or half
    /// emptied are 2 % of it, of 16 KiB to 1 MiB: fewer in less memory, more in much. TTL classes: up to 23
    /// (one an octave), one for 32 segments, since each has open segments for short and for long items in each
    /// queue. With one for 16 segments, many lives and sizes hit up to 1.2 points less.
    pub fn derive(memory_bytes: usize, threads: usize, evictions: bool) -> (usize, Self) {
        const SEGMENTS: usize = 256;
        let by_workers = (threads * threads / 2).min(threads * 4);
        let by_memory = (memory_bytes >> 33) * 4;
        let mut shards = by_workers.max(by_memory).max(1).next_power_of_two().min(256);
        while shards > 1 && memory_bytes / shards < 8 << 20 {
            shards /= 2;
        }
        let per_shard = memory_bytes / shards;
        let segment_bytes = (per_shard / SEGMENTS).clamp(16 << 10, 1 << 20);
        let segment_bytes = 1 << segment_bytes.ilog2();
        let ttl_classes = (per_shard / segment_bytes / 32).clamp(1, 23) as u8;
        (shards, Self { segment_bytes, shards, ttl_classes, evictions })
    }

    /// This layout for a memory with this many shares: the TTL classes are divided among them, since each has
    /// open segments of its own.
    #[must_use]
    pub fn shared_by(self, shares: usize) -> Self {
        let groups = shares.min(SHARES_MAX) + 1;
        Self { ttl_classes: (usize::from(self.ttl_classes) / groups).max(1) as u8, ..self }
    }

    /// Longest value in bytes that goes into the log; longer ones are huge.
    ///
    /// An eighth of a segment, so that a segment's end which is too short for the next one is a sixteenth of
    /// it on average; 4 KiB at least and 32 KiB at most: from there on it costs less to receive and send a
    /// value in its pages than to copy it. In its pages a value takes 256 bytes more than it has, at most,
    /// and what an item has. With a sixteenth 3 to 7 % more items of 8 to 14 kB fit into small memories, and
    /// 17 % fewer sessions of 5,000 bytes stay beside popular values of 100.
    pub fn inline_max(&self) -> usize {
        (self.segment_bytes / 8).clamp(SHORTEST_HUGE, LONGEST_INLINE)
    }
}

/// See [`StoreConfig::inline_max`]. Each huge value has a whole page, so that its eviction makes room for
/// another.
const SHORTEST_HUGE: usize = 4 << 10;
/// See [`StoreConfig::inline_max`].
const LONGEST_INLINE: usize = 32 << 10;
