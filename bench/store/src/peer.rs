//! The kinds of cache, and the crate `segcache` in the place of the store, for a comparison of what is kept.

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use segcache::{Policy, Segcache};

/// The kinds of cache that keep items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheKind {
    /// The store of this project.
    Cattlegrid,
    /// `segcache` with its policy S3-FIFO, a tenth of the memory for what is new.
    SegcacheS3fifo,
    /// `segcache` with its policy of merging segments.
    SegcacheMerge,
    /// One LRU list over all items, of the same bytes: see [`crate::lru`].
    Lru,
}

/// S3-FIFO of `segcache`.
pub(crate) const S3FIFO: Policy = Policy::S3Fifo { admission_ratio: 0.1 };
/// Merges of `segcache`.
pub(crate) const MERGE: Policy = Policy::Merge { max: 8, merge: 4, compact: 2 };

/// Bytes of a place in its hash table.
const PLACE: usize = 8;

/// A cache of the crate.
pub(crate) struct Peer(Segcache);

impl Peer {
    /// With segments of this many bytes, in which each value must fit. Its hash table counts as a part of the
    /// memory and does not grow: it is for items of `item_bytes`.
    pub(crate) fn new(
        memory_bytes: usize,
        segment_bytes: usize,
        item_bytes: usize,
        policy: Policy,
    ) -> Result<Self> {
        let places = (memory_bytes / item_bytes).next_power_of_two();
        let cache = Segcache::builder()
            .hash_power(u8::try_from(places.ilog2())?)
            .heap_size(memory_bytes - places * PLACE)
            .segment_size(i32::try_from(segment_bytes)?)
            .eviction(policy);
        Ok(Self(cache.build().map_err(|error| anyhow!("segcache: {error}"))?))
    }

    /// Reads a key. True: it is there.
    pub(crate) fn get(&self, key: &[u8]) -> bool {
        self.0.get(key).is_some()
    }

    /// Stores a value, unless it does not fit into a segment.
    pub(crate) fn set(&self, key: &[u8], value: &[u8], ttl: u32) {
        if self.0.insert(key, value, None, std::time::Duration::from_secs(ttl.into())).is_err() {
            self.0.delete(key);
        }
    }

    /// Removes a key.
    pub(crate) fn delete(&self, key: &[u8]) {
        self.0.delete(key);
    }
}
