//! Stores that share one memory, as in a server, in one thread.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use cattlegrid_store::{
    Attributes, HugeValue, KeyHasher, LeastShares, Lookup, Memory, NewValue, PAGE_BYTES, Store, StoreConfig,
};

/// All shards of a server.
pub(crate) struct Cache {
    pub(crate) memory: Arc<Memory>,
    pub(crate) shards: Vec<Store>,
    hasher: KeyHasher,
    inline_max: usize,
    /// The present second.
    pub(crate) now: u32,
    /// The present millisecond.
    pub(crate) now_ms: u64,
    floor: u64,
    clock: u64,
}

impl Cache {
    /// An empty cache. `seed`: of the key hash.
    pub(crate) fn new(memory_bytes: usize, seed: u64) -> Result<Self> {
        Self::of_threads(memory_bytes, seed, 1)
    }

    /// With the shards of a server of this many worker threads.
    pub(crate) fn of_threads(memory_bytes: usize, seed: u64, threads: usize) -> Result<Self> {
        let memory = Memory::new(memory_bytes)?;
        let (count, config) = StoreConfig::derive(memory_bytes, threads, true);
        let hasher = KeyHasher::new(seed);
        let shards = (0..count).map(|_| Store::new(Arc::clone(&memory), hasher.clone(), config));
        let shards = shards.collect::<Option<Vec<_>>>().ok_or_else(|| anyhow!("no memory for the shards"))?;
        let inline_max = config.inline_max();
        Ok(Self { memory, shards, hasher, inline_max, now: 1, now_ms: 0, floor: 0, clock: 0 })
    }

    /// Reads a key. True: it is there.
    pub(crate) fn get(&mut self, key: &[u8]) -> bool {
        let (hash, number) = self.place(key);
        let store = &mut self.shards[number];
        store.advance(self.now, self.now_ms, self.floor);
        let Lookup::Found(found) = store.lookup(hash, key) else {
            store.note_miss(hash);
            return false;
        };
        store.count_read(found);
        true
    }

    /// Whether a key is there; not counted as a read.
    #[cfg(test)]
    fn has(&mut self, key: &[u8]) -> bool {
        let (hash, number) = self.place(key);
        matches!(self.shards[number].lookup(hash, key), Lookup::Found(_))
    }

    /// Stores a value that lives `ttl` seconds, 0: forever. False: there was no room.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8], ttl: u32) -> bool {
        let (hash, number) = self.place(key);
        self.clock += 1;
        let expiry = if ttl == 0 { 0 } else { self.now + ttl };
        let attributes = Attributes { expiry, accessed: self.now, cas: self.clock, ..Attributes::default() };
        let huge = if value.len() > self.inline_max {
            let Some(huge) = self.huge(value) else { return false };
            Some(huge)
        } else {
            None
        };
        let new = || match &huge {
            Some(huge) => NewValue::Huge(Arc::clone(huge)),
            None => NewValue::Inline([value, &[]]),
        };
        self.shards[number].advance(self.now, self.now_ms, self.floor);
        if self.shards[number].put(hash, key, &attributes, new()).is_ok() {
            if self.memory.wanted_bytes() > 0 {
                let bytes = self.memory.take_wanted();
                if let Some(coldest) = self.memory.coldest_store(|_| true) {
                    self.shards[coldest].advance(self.now, self.now_ms, self.floor);
                    self.shards[coldest].make_room_for_others(bytes);
                }
            }
            return true;
        }
        self.free(self.inline_max * 4, Some(number));
        self.shards[number].put(hash, key, &attributes, new()).is_ok()
    }

    /// Removes a key.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        let (hash, number) = self.place(key);
        let store = &mut self.shards[number];
        store.advance(self.now, self.now_ms, self.floor);
        if let Lookup::Found(found) = store.lookup(hash, key) {
            store.remove(hash, found);
        }
    }

    /// Makes everything stored until now dead.
    pub(crate) fn flush(&mut self) {
        self.clock += 1;
        self.floor = self.clock;
    }

    /// The work that a server does once per second. True: there is more to do.
    pub(crate) fn tick(&mut self) -> bool {
        let mut more = false;
        for store in &mut self.shards {
            store.advance(self.now, self.now_ms, self.floor);
            more |= store.tick();
        }
        more
    }

    fn place(&self, key: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash(key);
        (hash, (hash >> 56) as usize & (self.shards.len() - 1))
    }

    fn huge(&mut self, value: &[u8]) -> Option<Arc<HugeValue>> {
        for _ in 0..4 {
            if let Some(huge) = HugeValue::new(&self.memory, &[value]) {
                return Some(huge);
            }
            let missing = (value.len() + PAGE_BYTES).saturating_sub(self.memory.free_bytes());
            if self.free(missing.max(PAGE_BYTES), None) == 0 {
                break;
            }
        }
        HugeValue::new(&self.memory, &[value])
    }

    /// Evicts where the coldest items are until this many bytes are free.
    fn free(&mut self, bytes: usize, except: Option<usize>) -> usize {
        let piece = self.inline_max * 4;
        let (mut freed, mut dry) = (0, vec![false; self.shards.len()]);
        if let Some(except) = except {
            dry[except] = true;
        }
        while freed < bytes {
            let coldest =
                self.memory.coldest_store(|store| !dry[store]).or_else(|| dry.iter().position(|dry| !dry));
            let Some(number) = coldest else { break };
            self.shards[number].advance(self.now, self.now_ms, self.floor);
            let got = self.shards[number].give_back(piece.min(bytes - freed), LeastShares::Taken);
            dry[number] = got == 0;
            freed += got;
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// Values of up to 1 MiB, more than the small queue's share of a shard, are there when their writer reads
    /// them.
    #[test]
    fn a_value_just_stored_is_found() {
        let mut cache = Cache::new(32 << 20, 1).unwrap();
        let mut rng = SmallRng::seed_from_u64(1);
        let value = vec![b'v'; 1 << 20];
        let mut early = 0;
        for key in 0..2_000_u64 {
            let len = rng.random_range(0..1 << 20);
            assert!(cache.set(&key.to_le_bytes(), &value[..len], 0));
            for back in [0, 1, 2] {
                early += u64::from(key >= back && !cache.has(&(key - back).to_le_bytes()));
            }
        }
        assert_eq!(early, 0, "of 2,000 values");
    }
}
