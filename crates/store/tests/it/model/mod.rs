//! A model of a store: plain maps that say which replies are allowed.
//!
//! Plain items and objects are drawn with equal keys. No more than `pinned_max` bytes are pinned by the
//! model, as in a server.

#![expect(clippy::unwrap_used, reason = "a test's model: a panic is a finding")]

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use cattlegrid_store::{
    Attributes, Found, HugeValue, Item, KeyHasher, LeastShares, Lookup, Marks, Memory, NEVER, NewValue,
    ObjectNames, PinnedEnds, Share, Store, StoreConfig, Tree, Value,
};

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Put {
        key: u16,
        len: usize,
        ttl: u32,
        flags: u32,
    },
    Get {
        key: u16,
    },
    Delete {
        key: u16,
    },
    Touch {
        key: u16,
        ttl: u32,
    },
    Cas {
        key: u16,
    },
    Wait {
        seconds: u32,
    },
    Flush,
    Tick,
    GiveBack {
        bytes: usize,
    },
    Purge,
    PutObject {
        key: u16,
        len: usize,
        ttl: u32,
        pinned: bool,
    },
    PutTree {
        key: u16,
        entries: u16,
        ttl: u32,
        pinned: bool,
    },
    GetObject {
        key: u16,
    },
    EditObject {
        key: u16,
    },
    Grow {
        key: u16,
        from: u16,
        entries: u16,
        len: usize,
    },
    Shrink {
        key: u16,
        from: u16,
        entries: u16,
    },
    Drop {
        key: u16,
    },
    TouchObject {
        key: u16,
        ttl: u32,
    },
    Pin {
        key: u16,
        on: bool,
    },
    Reclaim,
    /// Pinned objects of a kind end, as by a tag: see [`PinnedEnds`].
    End {
        kind: u8,
    },
}

/// What an object should be.
struct Object {
    state: State,
    expiry: u32,
    cas: u64,
    pinned: bool,
}

enum State {
    Bytes(Vec<u8>),
    Tree(BTreeMap<Vec<u8>, Vec<u8>>),
}

pub(crate) struct Model {
    pub(crate) store: Store,
    memory: Arc<Memory>,
    hasher: KeyHasher,
    /// Value seed, length, expiry, flags, CAS.
    items: HashMap<u16, (u64, usize, u32, u32, u64)>,
    objects: HashMap<u16, Object>,
    /// Nothing more is pinned above this many bytes.
    pub(crate) pinned_max: usize,
    now: u32,
    now_ms: u64,
    clock: u64,
    floor: u64,
    evictions: bool,
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(31).wrapping_add(i as u64 * 7) >> 3) as u8).collect()
}

fn key_bytes(key: u16) -> Vec<u8> {
    // The first two bytes are an object's type.
    let mut bytes = vec![(key % 5) as u8, 0];
    bytes.extend_from_slice(format!("key:{key}:").as_bytes());
    bytes.resize(bytes.len() + usize::from(key % 61), b'k');
    bytes
}

impl Model {
    pub(crate) fn new(bytes: usize, evictions: bool) -> Self {
        Self::sharing(bytes, evictions, &[])
    }

    pub(crate) fn sharing(bytes: usize, evictions: bool, shares: &[Share]) -> Self {
        let memory = Memory::shared(bytes, shares, ObjectNames::default()).unwrap();
        let (stores, config) = StoreConfig::derive(bytes, 1, evictions);
        assert_eq!(stores, 1);
        let config = config.shared_by(shares.len());
        let hasher = KeyHasher::new(1);
        let store = Store::new(Arc::clone(&memory), hasher.clone(), config).unwrap();
        let (items, objects) = (HashMap::new(), HashMap::new());
        let pinned_max = bytes / 4;
        Self {
            store,
            memory,
            hasher,
            items,
            objects,
            pinned_max,
            now: 2,
            now_ms: 2_000,
            clock: 0,
            floor: 0,
            evictions,
        }
    }

    pub(crate) fn step(&mut self, op: &Op) {
        self.now_ms += self.clock % 3;
        self.store.advance(self.now, self.now_ms, self.floor);
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
            Op::Wait { seconds } => {
                self.now += seconds;
                self.now_ms += u64::from(seconds) * 1000;
            }
            Op::Flush => {
                self.clock += 1;
                self.floor = self.clock;
                self.items.clear();
                self.objects.clear();
            }
            Op::Tick => {
                for _ in 0..10 {
                    self.store.tick();
                }
            }
            Op::GiveBack { bytes } => {
                if self.evictions {
                    self.store.give_back(bytes, LeastShares::Taken);
                }
            }
            Op::Purge => {
                self.memory.purge();
            }
            Op::PutObject { key, len, ttl, pinned } => self.put_object(key, len, ttl, pinned),
            Op::PutTree { key, entries, ttl, pinned } => self.put_tree(key, entries, ttl, pinned),
            Op::GetObject { key } => self.get_object(key),
            Op::EditObject { key } => self.edit(key),
            Op::Grow { key, from, entries, len } => self.grow(key, from, entries, len),
            Op::Shrink { key, from, entries } => self.shrink(key, from, entries),
            Op::Drop { key } => {
                if let Some(found) = self.object(key) {
                    let (_, hash) = self.object_key(key);
                    self.store.remove(hash, found);
                }
                self.objects.remove(&key);
            }
            Op::TouchObject { key, ttl } => {
                if let Some(found) = self.object(key) {
                    let (_, hash) = self.object_key(key);
                    let expiry = self.expiry(ttl);
                    let found = self.store.set_expiry(hash, found, expiry);
                    assert_eq!(self.store.item(found).expiry(), expiry);
                    self.objects.get_mut(&key).unwrap().expiry = expiry;
                }
            }
            Op::Pin { key, on } => {
                let on = on && self.may_pin();
                if let Some(found) = self.object(key) {
                    let marks = self.store.item(found).marks();
                    let marks = if on { marks.with(Marks::PINNED) } else { marks.without(Marks::PINNED) };
                    self.store.set_marks(found, marks);
                    self.objects.get_mut(&key).unwrap().pinned = on;
                }
            }
            Op::Reclaim => {
                self.store.reclaim_pinned(None);
            }
            Op::End { kind } => self.end(u16::from(kind)),
        }
        assert_eq!(self.memory.pinned_object_bytes() as u64, self.store.usage().pinned_bytes);
        assert!(self.memory.used_bytes() <= self.memory.limit_bytes());
    }

    fn end(&mut self, kind: u16) {
        self.clock += 1;
        let is_over = |_: u64, item: &Item<'_>| item.object().is_some_and(|(own, _)| own == kind);
        let ends = PinnedEnds { event: self.clock, by_time: false, is_over: &is_over };
        // The segment that is being collected is left out until its items have moved.
        for _ in 0..2 {
            while self.store.reclaim_pinned(Some(&ends)).is_some() {}
            for _ in 0..100 {
                self.store.tick();
            }
        }
        let over = self.objects.iter().filter(|(key, own)| own.pinned && *key % 5 == kind);
        let over: Vec<u16> = over.map(|(key, _)| *key).collect();
        for key in over {
            let (bytes, hash) = self.key(key);
            let found = self.store.lookup_object(hash, &bytes);
            assert!(!matches!(found, Lookup::Found(_)), "a pinned object that is over stays");
            self.objects.remove(&key);
        }
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
                self.store.give_back(len + 4096, LeastShares::Taken);
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
            Err(_) => self.check_refusal(),
        }
    }

    /// A write was refused: nothing may be evicted, or too much is pinned.
    fn check_refusal(&self) {
        let limit = self.memory.limit_bytes();
        assert!(!self.evictions || self.pinned_max > limit / 4, "an item that fits was refused");
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
                if !key.is_multiple_of(3) {
                    self.store.note_miss(hash);
                }
            }
        }
    }

    fn object_key(&self, key: u16) -> (Vec<u8>, u64) {
        let bytes = key_bytes(key);
        let hash = self.hasher.hash_object(&bytes);
        (bytes, hash)
    }

    fn may_pin(&self) -> bool {
        self.memory.pinned_object_bytes() < self.pinned_max
    }

    /// The object of this key, checked against the model.
    fn object(&mut self, key: u16) -> Option<Found> {
        let (bytes, hash) = self.object_key(key);
        let expected = self.objects.get(&key);
        match self.store.lookup_object(hash, &bytes) {
            Lookup::Found(found) => {
                let expected = expected.expect("never stored, or dropped");
                let item = self.store.item(found);
                assert!(expected.expiry == NEVER || expected.expiry > self.now, "there after its expiry");
                assert_eq!((item.expiry(), item.cas()), (expected.expiry, expected.cas));
                assert_eq!(item.marks().is_pinned(), expected.pinned);
                assert_eq!(item.object(), Some(((key % 5), &bytes[2..])));
                assert_eq!(item.is_tree(), matches!(expected.state, State::Tree(_)));
                Some(found)
            }
            Lookup::Absent | Lookup::Expired | Lookup::Flushed => {
                let live = expected.filter(|e| e.expiry == NEVER || e.expiry > self.now);
                assert!(
                    live.is_none_or(|object| self.evictions && !object.pinned),
                    "a live object vanished that is pinned, or with evictions off"
                );
                self.objects.remove(&key);
                None
            }
        }
    }

    fn put_object(&mut self, key: u16, len: usize, ttl: u32, pinned: bool) {
        let bytes = content(self.clock + 1, len);
        let huge = if len > self.store.config().inline_max() {
            let Some(huge) = self.store.huge_value(&[&bytes[..]]) else { return };
            Some(NewValue::Huge(huge))
        } else {
            None
        };
        let value = huge.unwrap_or(NewValue::Inline([&bytes, &[]]));
        if self.put_value(key, ttl, pinned, value) {
            self.objects.get_mut(&key).unwrap().state = State::Bytes(bytes);
        }
    }

    fn put_tree(&mut self, key: u16, entries: u16, ttl: u32, pinned: bool) {
        let mut tree = Tree::new(&self.memory);
        if tree.is_err() {
            self.store.give_back(16 << 10, LeastShares::Taken);
            tree = Tree::new(&self.memory);
        }
        let Ok(tree) = tree else { return };
        let mut tree = Box::new(tree);
        let mut map = BTreeMap::new();
        for n in 0..entries {
            let (member, value) = (n.to_be_bytes(), content(self.clock + u64::from(n), usize::from(n % 90)));
            if tree.insert(&member, &value).is_ok() {
                map.insert(member.to_vec(), value);
            }
        }
        if self.put_value(key, ttl, pinned, NewValue::Tree(tree)) {
            self.objects.get_mut(&key).unwrap().state = State::Tree(map);
        }
    }

    fn put_value(&mut self, key: u16, ttl: u32, pinned: bool, value: NewValue<'_>) -> bool {
        let (bytes, hash) = self.object_key(key);
        self.clock += 1;
        let pinned = pinned && self.may_pin();
        let marks = if pinned { Marks::OBJECT.with(Marks::PINNED) } else { Marks::OBJECT };
        let expiry = self.expiry(ttl);
        let attributes =
            Attributes { expiry, accessed: self.now, cas: self.clock, marks, ..Attributes::default() };
        if self.store.put(hash, &bytes, &attributes, value).is_err() {
            self.check_refusal();
            return false;
        }
        let object = Object { state: State::Bytes(Vec::new()), expiry, cas: self.clock, pinned };
        self.objects.insert(key, object);
        true
    }

    fn get_object(&mut self, key: u16) {
        let Some(found) = self.object(key) else { return };
        match &self.objects[&key].state {
            State::Bytes(bytes) => {
                let mut value = Vec::new();
                self.store.item(found).value().copy_to(&mut value);
                assert_eq!(&value, bytes);
                let is_huge = bytes.len() > self.store.config().inline_max();
                assert_eq!(matches!(self.store.item(found).value(), Value::Huge(_)), is_huge);
            }
            State::Tree(map) => {
                let tree = self.store.tree(found).unwrap();
                assert_eq!(tree.len(), map.len() as u64);
                let mut entries = map.iter();
                tree.scan(Bound::Unbounded, |member, value| {
                    let mut bytes = Vec::new();
                    value.copy_to(&mut bytes);
                    assert_eq!(entries.next().map(|(m, v)| (&m[..], &v[..])), Some((member, &bytes[..])));
                    true
                });
            }
        }
        self.store.count_read(found);
    }

    /// Changes a value in its place.
    fn edit(&mut self, key: u16) {
        let Some(found) = self.object(key) else { return };
        let inline_max = self.store.config().inline_max();
        let value = self.store.value_mut(found);
        match &mut self.objects.get_mut(&key).unwrap().state {
            State::Bytes(bytes) if bytes.len() <= inline_max => {
                for byte in bytes.iter_mut() {
                    *byte = byte.wrapping_add(1);
                }
                value.unwrap().copy_from_slice(bytes);
            }
            _ => assert!(value.is_none(), "not in the log"),
        }
    }

    /// Puts members into a tree; each that is refused is tried again when memory has been given back, if the
    /// object is still there then.
    fn grow(&mut self, key: u16, from: u16, entries: u16, len: usize) {
        if len <= Tree::VALUE_INLINE_MAX && entries.is_multiple_of(2) {
            return self.grow_at_once(key, from, entries, len);
        }
        for n in from..from.saturating_add(entries) {
            let (member, value) = (n.to_be_bytes(), content(self.clock, len));
            for _ in 0..2 {
                let Some(found) = self.object(key) else { return };
                if self.objects[&key].pinned && !self.may_pin() {
                    return;
                }
                let Some(result) = self.store.tree_mut(found, |tree| tree.insert(&member, &value)) else {
                    return;
                };
                let State::Tree(map) = &mut self.objects.get_mut(&key).unwrap().state else { unreachable!() };
                match result {
                    Ok(is_new) => {
                        assert_eq!(map.insert(member.to_vec(), value).is_none(), is_new);
                        break;
                    }
                    Err(full) => self.store.give_back(full.bytes, LeastShares::Taken),
                };
            }
        }
    }

    /// Puts all members or none, within the bound of pinned objects.
    fn grow_at_once(&mut self, key: u16, from: u16, entries: u16, len: usize) {
        let Some(found) = self.object(key) else { return };
        let State::Tree(_) = &self.objects[&key].state else { return };
        let (value, before) = (content(self.clock, len), self.memory.pinned_object_bytes());
        let numbers = || from..from.saturating_add(entries);
        let put = |tree: &mut Tree| {
            let done = tree.reserve_for(numbers().len(), 2, len).map(|()| {
                numbers().for_each(|n| {
                    assert!(tree.insert(&n.to_be_bytes(), &value).is_ok(), "room was reserved");
                });
            });
            tree.release_reserve();
            done
        };
        let done = self.store.change_tree(found, self.pinned_max, put, Result::is_err);
        assert!(self.memory.pinned_object_bytes() <= self.pinned_max.max(before));
        if done == Ok(Ok(())) {
            let State::Tree(map) = &mut self.objects.get_mut(&key).unwrap().state else { unreachable!() };
            map.extend(numbers().map(|n| (n.to_be_bytes().to_vec(), value.clone())));
        } else {
            assert!(self.memory.pinned_object_bytes() <= before);
        }
        self.store.tree(found).unwrap().verify();
        self.get_object(key);
    }

    fn shrink(&mut self, key: u16, from: u16, entries: u16) {
        let Some(found) = self.object(key) else { return };
        let State::Tree(map) = &mut self.objects.get_mut(&key).unwrap().state else { return };
        self.store.tree_mut(found, |tree| {
            for n in from..from.saturating_add(entries) {
                assert_eq!(tree.remove(&n.to_be_bytes()), map.remove(&n.to_be_bytes()[..]).is_some());
            }
        });
    }
}
