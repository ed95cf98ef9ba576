//! A store with short names for its operations, and a clock that goes on with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cattlegrid_store::{
    Attributes, HugeValue, KeyHasher, LeastShares, Lookup, Memory, NewValue, ObjectNames, PAGE_BYTES, Share,
    Store, StoreConfig,
};

pub(crate) const MEBIBYTE: usize = 1 << 20;

/// A store, its memory and its hasher.
pub(crate) struct One {
    pub(crate) memory: Arc<Memory>,
    hasher: KeyHasher,
    pub(crate) store: Store,
    cas: u64,
    /// Of all stores: a millisecond for ten of them.
    requests: Arc<AtomicU64>,
}

impl One {
    /// Stores that share a memory.
    pub(crate) fn several(memory_bytes: usize, count: usize) -> Vec<Self> {
        Self::sharing(memory_bytes, count, &[])
    }

    /// A store that evicts no live item.
    pub(crate) fn without_evictions(memory_bytes: usize) -> Self {
        Self::with(memory_bytes, 1, &[], false).remove(0)
    }

    /// Stores of one memory with shares; a key begins with its lowest byte.
    pub(crate) fn sharing(memory_bytes: usize, count: usize, shares: &[Share]) -> Vec<Self> {
        Self::with(memory_bytes, count, shares, true)
    }

    fn with(memory_bytes: usize, count: usize, shares: &[Share], evictions: bool) -> Vec<Self> {
        let memory =
            Memory::shared(memory_bytes, shares, ObjectNames::default()).expect("there is address space");
        let hasher = KeyHasher::new(1);
        let by_workers = (1..20).map(|workers| StoreConfig::derive(memory_bytes, workers, evictions));
        let (_, config) = by_workers
            .into_iter()
            .find(|(shards, _)| *shards == count)
            .expect("workers for this many shards");
        let config = config.shared_by(shares.len());
        let store = || Store::new(Arc::clone(&memory), hasher.clone(), config).expect("there is a reserve");
        let requests = Arc::new(AtomicU64::new(0));
        let one = |()| Self {
            memory: Arc::clone(&memory),
            hasher: hasher.clone(),
            store: store(),
            cas: 0,
            requests: Arc::clone(&requests),
        };
        std::iter::repeat_n((), count).map(one).collect()
    }

    pub(crate) fn advance(&mut self) {
        self.requests.fetch_add(1, Relaxed);
        let requests = self.requests.load(Relaxed);
        self.store.advance(self.second(), requests / 10, 0);
    }

    /// 10,000 requests take a second.
    fn second(&self) -> u32 {
        2 + (self.requests.load(Relaxed) / 10_000) as u32
    }

    pub(crate) fn put(&mut self, key: u64, len: usize) {
        self.advance();
        let content = vec![b'v'; len];
        let value = if len > self.store.config().inline_max() {
            let huge = HugeValue::new(&self.memory, &[&content]).or_else(|| {
                self.store.give_back(len + PAGE_BYTES, LeastShares::Kept);
                HugeValue::new(&self.memory, &[&content])
            });
            let huge = huge.or_else(|| {
                self.store.give_back(len + PAGE_BYTES, LeastShares::Taken);
                HugeValue::new(&self.memory, &[&content])
            });
            NewValue::Huge(huge.expect("there is room for a value"))
        } else {
            NewValue::Inline([&content, &[]])
        };
        self.cas += 1;
        let attributes = Attributes { cas: self.cas, accessed: self.second(), ..Attributes::default() };
        let key = key.to_le_bytes();
        let hash = self.hasher.hash(&key);
        if self.store.put(hash, &key, &attributes, value).is_err() {
            // Of a value in the log. An engine asks other stores first.
            self.store.give_back(len + self.store.config().segment_bytes, LeastShares::Taken);
            let again = NewValue::Inline([&content, &[]]);
            self.store.put(hash, &key, &attributes, again).expect("there is room for an item");
        }
    }

    /// Puts a value that fits into the log. False: there is no room.
    pub(crate) fn try_put(&mut self, key: u64, len: usize) -> bool {
        self.advance();
        self.cas += 1;
        let attributes = Attributes { cas: self.cas, accessed: self.second(), ..Attributes::default() };
        let (key, value) = (key.to_le_bytes(), vec![b'v'; len]);
        self.store.put(self.hasher.hash(&key), &key, &attributes, NewValue::Inline([&value, &[]])).is_ok()
    }

    /// Removes an item.
    pub(crate) fn delete(&mut self, key: u64) {
        let key = key.to_le_bytes();
        let hash = self.hasher.hash(&key);
        if let Lookup::Found(found) = self.store.lookup(hash, &key) {
            self.store.remove(hash, found);
        }
    }

    /// Puts an item whose key was missed.
    pub(crate) fn fill(&mut self, key: u64, len: usize) {
        self.store.note_miss(self.hasher.hash(&key.to_le_bytes()));
        self.put(key, len);
    }

    pub(crate) fn get(&mut self, key: u64) -> bool {
        self.advance();
        let key = key.to_le_bytes();
        let hash = self.hasher.hash(&key);
        let Lookup::Found(found) = self.store.lookup(hash, &key) else {
            self.store.note_miss(hash);
            return false;
        };
        self.store.count_read(found);
        true
    }
}

/// What an engine does after each request.
pub(crate) fn make_wanted_room(stores: &mut [One]) {
    let memory = Arc::clone(&stores[0].memory);
    if memory.wanted_bytes() > 0 {
        let bytes = memory.take_wanted();
        let coldest = memory.coldest_store(|_| true).expect("one has something");
        stores[coldest].advance();
        stores[coldest].store.make_room_for_others(bytes);
    }
}
