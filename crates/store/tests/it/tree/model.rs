//! A tree and a plain map that are given the same operations and must agree, in a budget that others use up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use cattlegrid_store::{Memory, PAGE_BYTES, Runs, Tree, TreeFull, Value};

/// Forms of keys: how long they are and where they differ.
pub(crate) const SHAPES: u8 = 6;

/// A key: its form, and a number that makes it differ from others of the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u8, pub(crate) u16);

impl Key {
    /// The bytes.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let n = self.1;
        match self.0 % SHAPES {
            0 => {
                n.to_be_bytes()[usize::from(n < 256)..][..usize::from(n > 0) + usize::from(n > 255)].to_vec()
            }
            1 => format!("member:{n:013}").into_bytes(),
            2 => vec![b'a' + (n % 3) as u8; usize::from(n) % 1025],
            3 => [&[b'x'; 1000][..], &n.to_be_bytes(), &[0; 22][..usize::from(n % 23)]].concat(),
            4 => {
                u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().repeat(1 + usize::from(n % 5))
            }
            _ => [&[0; 9][..usize::from(n % 10)], &(n / 10).to_le_bytes()].concat(),
        }
    }
}

/// An operation.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Puts a value of this many bytes.
    Insert { key: Key, len: usize },
    /// Removes a key.
    Remove { key: Key },
    /// Asks for a key and its place, and changes its value in place.
    Get { key: Key },
    /// Asks for the entry at a place.
    Nth { place: u16 },
    /// Reads some entries on either side of a key.
    Scan { key: Key, count: usize },
    /// Reserves room for inserts of keys and values up to these lengths; nothing else is left then. Inserts
    /// them, with a removal after some.
    Reserved { from: Key, count: u16, step: u16, len: usize },
    /// Leaves this many pages to the tree, and takes all others.
    Leave { pages: usize },
    /// Takes the tree apart in pieces and begins anew.
    TakeApart { pages: usize },
}

/// The tree, and what it should hold.
pub(crate) struct Model {
    /// The tree.
    pub(crate) tree: Tree,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    memory: Arc<Memory>,
    /// Pages that others have.
    others: Vec<Runs>,
    bytes: u64,
    count: u8,
    /// Inserts that were refused.
    pub(crate) refused: u32,
}

impl Model {
    /// An empty tree in a budget of this many pages.
    pub(crate) fn new(pages: usize) -> Self {
        let memory = Memory::new(pages * PAGE_BYTES).expect("the system has this much memory");
        let tree = Tree::new(&memory).expect("a page is free");
        Self { tree, map: BTreeMap::new(), memory, others: Vec::new(), bytes: 0, count: 0, refused: 0 }
    }

    /// Does an operation with both, and compares.
    pub(crate) fn step(&mut self, op: &Op) {
        match *op {
            Op::Insert { key, len } => {
                if self.insert(&key.bytes(), len).is_err() {
                    self.refused += 1;
                }
            }
            Op::Remove { key } => self.remove(&key.bytes()),
            Op::Get { key } => self.get(&key.bytes()),
            Op::Nth { place } => self.nth(u64::from(place)),
            Op::Scan { key, count } => self.scan(&key.bytes(), count),
            Op::Reserved { from, count, step, len } => self.reserved(from, count, step, len),
            Op::Leave { pages } => self.leave(pages),
            Op::TakeApart { pages } => self.take_apart(pages),
        }
        self.account();
    }

    /// Walks the tree and compares all entries.
    pub(crate) fn verify(&self) {
        self.tree.verify();
        let mut own = self.map.iter();
        self.tree.scan(Bound::Unbounded, |key, value| {
            let (own_key, own_value) = own.next().expect("no more entries than the map has");
            assert_eq!((key, bytes(value)), (own_key.as_slice(), own_value.clone()));
            true
        });
        assert!(own.next().is_none(), "no fewer entries than the map has");
        self.account();
    }

    /// Ends it: what the tree held is given back.
    pub(crate) fn end(self) {
        let held = self.tree.held_bytes();
        let used = self.held();
        drop(self.tree);
        assert_eq!(self.memory.used_bytes() - self.memory.divided_free_bytes(), used - held);
    }

    /// Bytes that have an owner.
    fn held(&self) -> usize {
        self.memory.used_bytes() - self.memory.divided_free_bytes()
    }

    fn account(&self) {
        assert_eq!(self.tree.len(), self.map.len() as u64);
        assert_eq!(self.tree.bytes(), self.bytes);
        let others: usize = self.others.iter().map(Runs::len).sum();
        assert_eq!(self.held(), self.tree.held_bytes() + others);
        assert_eq!(self.memory.pinned_bytes(), 0);
    }

    fn insert(&mut self, key: &[u8], len: usize) -> Result<(), TreeFull> {
        self.count = self.count.wrapping_add(1);
        let value = vec![self.count; len];
        let held = self.tree.held_bytes();
        match self.tree.insert(key, &value) {
            Ok(is_new) => {
                let old = self.map.insert(key.to_vec(), value);
                self.bytes += (key.len() + len) as u64;
                self.bytes -= old.as_ref().map_or(0, |old| (key.len() + old.len()) as u64);
                assert_eq!(old.is_none(), is_new);
                self.get(key);
                Ok(())
            }
            Err(full) => {
                assert!(full.bytes > self.memory.free_bytes() || len > PAGE_BYTES, "{full:?}");
                self.unchanged(held);
                self.get(key);
                Err(full)
            }
        }
    }

    /// A refusal has taken no page, but the first of a tree that had been taken apart.
    fn unchanged(&self, held: usize) {
        let now = self.tree.held_bytes();
        assert!(now == held || (held, now) == (0, PAGE_BYTES), "{held} {now}");
    }

    fn remove(&mut self, key: &[u8]) {
        let old = self.map.remove(key);
        self.bytes -= old.as_ref().map_or(0, |old| (key.len() + old.len()) as u64);
        assert_eq!(self.tree.remove(key), old.is_some());
        assert!(self.tree.get(key).is_none());
    }

    fn get(&mut self, key: &[u8]) {
        let own = self.map.get_mut(key);
        assert_eq!(self.tree.get(key).map(bytes).as_ref(), own.as_deref());
        assert_eq!(self.tree.rank(key).is_ok(), own.is_some());
        if let Some(value) = self.tree.get_mut(key) {
            let own = own.expect("the map has it too");
            for byte in value.iter_mut().chain(own) {
                *byte = byte.wrapping_add(1);
            }
        } else {
            assert!(own.is_none_or(|own| own.len() > Tree::VALUE_INLINE_MAX));
        }
    }

    fn nth(&self, place: u64) {
        let own = self.map.iter().nth(place as usize);
        let found = self.tree.nth(place);
        assert_eq!(found.map(|(key, _)| key), own.map(|(key, _)| key.as_slice()));
        assert_eq!(found.map(|(_, value)| bytes(value)).as_ref(), own.map(|(_, value)| value));
        if let Some((key, _)) = found {
            assert_eq!(self.tree.rank(key), Ok(place));
        }
    }

    fn scan(&self, key: &[u8], count: usize) {
        let before = self.map.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).count() as u64;
        assert_eq!(self.tree.rank(key).unwrap_or_else(|rank| rank), before);
        for from in [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded] {
            let mut found = Vec::new();
            self.tree.scan(from, |key, _| {
                found.push(key.to_vec());
                found.len() < count
            });
            let own = self.map.range::<[u8], _>((from, Bound::Unbounded)).map(|(key, _)| key.clone());
            assert_eq!(found, own.take(count).collect::<Vec<_>>());
            let mut found = Vec::new();
            self.tree.scan_back(from, |key, _| {
                found.push(key.to_vec());
                found.len() < count
            });
            let own = self.map.range::<[u8], _>((Bound::Unbounded, from)).rev().map(|(key, _)| key.clone());
            assert_eq!(found, own.take(count).collect::<Vec<_>>());
        }
    }

    fn reserved(&mut self, from: Key, count: u16, step: u16, len: usize) {
        let len = len.min(Tree::VALUE_INLINE_MAX);
        let keys: Vec<_> =
            (0..count).map(|n| Key(from.0, from.1.wrapping_add(n.wrapping_mul(step))).bytes()).collect();
        let longest = keys.iter().map(Vec::len).max().unwrap_or(0);
        let held = self.tree.held_bytes();
        if self.tree.reserve_for(keys.len(), longest, len).is_err() {
            self.unchanged(held);
            self.refused += 1;
            return;
        }
        let before = std::mem::take(&mut self.others);
        self.others = self.memory.scattered(self.memory.free_bytes()).into_iter().collect();
        for (n, key) in keys.iter().enumerate() {
            self.insert(key, len).expect("there is room in reserve");
            if n % 3 == 2 {
                self.remove(&keys[n / 2]);
            }
        }
        self.others.extend(before);
        self.tree.release_reserve();
    }

    fn leave(&mut self, pages: usize) {
        self.others.clear();
        let taken = self.memory.free_bytes().saturating_sub(pages * PAGE_BYTES);
        if taken > 0 {
            self.others = vec![self.memory.scattered(taken).expect("as many are free")];
        }
    }

    fn take_apart(&mut self, pages: usize) {
        self.map.clear();
        self.bytes = 0;
        let mut held = self.tree.held_bytes();
        while !self.tree.take_apart(pages) {
            let now = self.tree.held_bytes();
            assert!(now < held, "each piece gives pages back");
            held = now;
            self.account();
            assert!(self.tree.get(b"").is_none() && self.tree.nth(0).is_none() && !self.tree.remove(b""));
        }
        assert_eq!(self.tree.held_bytes(), 0);
        self.tree.verify();
    }
}

/// The bytes of a value.
pub(crate) fn bytes(value: Value<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    value.copy_to(&mut out);
    out
}
