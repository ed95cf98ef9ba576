//! A model of a store: a plain map that says which replies are allowed.

#![expect(clippy::unwrap_used, reason = "a test's model: a panic is a finding")]

use std::collections::HashMap;
use std::sync::Arc;

use cattlegrid_store::{
    Attributes, HugeValue, KeyHasher, Lookup, Memory, NEVER, NewValue, Store, StoreConfig, Value,
};

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Put { key: u16, len: usize, ttl: u32, flags: u32 },
    Get { key: u16 },
    Delete { key: u16 },
    Touch { key: u16, ttl: u32 },
    Cas { key: u16 },
    Wait { seconds: u32 },
    Flush,
    Tick,
    GiveBack { bytes: usize },
    Purge,
}

pub(crate) struct Model {
    pub(crate) store: Store,
    memory: Arc<Memory>,
    hasher: KeyHasher,
    /// Value seed, length, expiry, flags, CAS.
    items: HashMap<u16, (u64, usize, u32, u32, u64)>,
    now: u32,
    clock: u64,
    floor: u64,
    evictions: bool,
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(31).wrapping_add(i as u64 * 7) >> 3) as u8).collect()
}

fn key_bytes(key: u16) -> Vec<u8> {
    let mut bytes = format!("key:{key}:").into_bytes();
    bytes.resize(bytes.len() + usize::from(key % 61), b'k');
    bytes
}

impl Model {
    pub(crate) fn new(bytes: usize, evictions: bool) -> Self {
        let memory = Memory::new(bytes).unwrap();
        let (shards, config) = StoreConfig::derive(bytes, 1, evictions);
        assert_eq!(shards, 1);
        let hasher = KeyHasher::new(1);
        let store = Store::new(Arc::clone(&memory), hasher.clone(), config).unwrap();
        Self { store, memory, hasher, items: HashMap::new(), now: 2, clock: 0, floor: 0, evictions }
    }

    pub(crate) fn step(&mut self, op: &Op) {
        self.store.advance(self.now, self.floor);
        match *op {
            Op::Put { key, len, ttl, flags } => self.put(key, len, ttl, flags),
            Op::Get { key } => self.get(key),
            Op::Delete { key } => {
                let (bytes, hash) = self.key(key);
                if let Lookup::Found(found) = self.store.lookup(hash, &bytes) {
                    assert!(self.items.contains_key(&key));
                    self.store.remove(hash, found);
                }
                self.items.remove(&key);
            }
            Op::Touch { key, ttl } => {
                let (bytes, hash) = self.key(key);
                if let Lookup::Found(found) = self.store.lookup(hash, &bytes) {
                    let expiry = self.expiry(ttl);
                    let found = self.store.set_expiry(hash, found, expiry);
                    assert_eq!(self.store.item(found).expiry(), expiry);
                    self.items.get_mut(&key).unwrap().2 = expiry;
                }
            }
            Op::Cas { key } => {
                let (bytes, hash) = self.key(key);
                if let Lookup::Found(found) = self.store.lookup(hash, &bytes) {
                    self.clock += 1;
                    self.store.set_cas(found, self.clock);
                    self.items.get_mut(&key).unwrap().4 = self.clock;
                }
            }
            Op::Wait { seconds } => self.now += seconds,
            Op::Flush => {
                self.clock += 1;
                self.floor = self.clock;
                self.items.clear();
            }
            Op::Tick => {
                for _ in 0..10 {
                    self.store.tick();
                }
            }
            Op::GiveBack { bytes } => {
                if self.evictions {
                    self.store.give_back(bytes);
                }
            }
            Op::Purge => {
                self.memory.purge();
            }
        }
        assert!(self.memory.used_bytes() <= self.memory.limit_bytes());
    }

    fn key(&self, key: u16) -> (Vec<u8>, u64) {
        let bytes = key_bytes(key);
        let hash = self.hasher.hash(&bytes);
        (bytes, hash)
    }

    fn expiry(&self, ttl: u32) -> u32 {
        if ttl == 0 { NEVER } else { self.now + ttl }
    }

    fn put(&mut self, key: u16, len: usize, ttl: u32, flags: u32) {
        let (bytes, hash) = self.key(key);
        self.clock += 1;
        let value = content(self.clock, len);
        let value_arg = if len > self.store.config().inline_max() {
            let mut huge = HugeValue::new(&self.memory, &[&value]);
            if huge.is_none() && self.evictions {
                self.store.give_back(len + 4096);
                huge = HugeValue::new(&self.memory, &[&value]);
            }
            let Some(huge) = huge else { return };
            NewValue::Huge(huge)
        } else {
            NewValue::Inline([&value[..len / 3], &value[len / 3..]])
        };
        let expiry = self.expiry(ttl);
        let attributes =
            Attributes { flags, expiry, accessed: self.now, cas: self.clock, ..Attributes::default() };
        match self.store.put(hash, &bytes, &attributes, value_arg) {
            Ok(()) => {
                self.items.insert(key, (self.clock, len, expiry, flags, self.clock));
            }
            Err(_) => assert!(!self.evictions, "an item that fits was refused"),
        }
    }

    fn get(&mut self, key: u16) {
        let (bytes, hash) = self.key(key);
        let expected = self.items.get(&key).copied();
        match self.store.lookup(hash, &bytes) {
            Lookup::Found(found) => {
                let (seed, len, expiry, flags, cas) = expected.expect("never stored, or deleted");
                assert!(expiry == NEVER || expiry > self.now, "served after its expiry");
                let item = self.store.item(found);
                let mut value = Vec::new();
                item.value().copy_to(&mut value);
                assert_eq!(value, content(seed, len));
                assert_eq!(matches!(item.value(), Value::Huge(_)), len > self.store.config().inline_max());
                assert_eq!((item.expiry(), item.flags(), item.cas()), (expiry, flags, cas));
                self.store.count_read(found);
            }
            Lookup::Absent | Lookup::Expired | Lookup::Flushed => {
                let live = expected.is_some_and(|e| e.2 == NEVER || e.2 > self.now);
                assert!(self.evictions || !live, "a live item vanished with evictions off");
            }
        }
    }
}
