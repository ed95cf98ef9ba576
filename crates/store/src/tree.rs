//! A map from bytes to bytes, in order of the keys, in pages of the budget.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::item::Value;
use crate::memory::Memory;

/// See the module's text.
#[derive(Debug)]
pub struct Tree {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

/// The budget does not have this many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeFull {
    /// Bytes.
    pub bytes: usize,
}

impl Tree {
    /// Longest key in bytes.
    pub const KEY_MAX: usize = 1024;
    /// Longest value in bytes that is kept beside its key; longer ones have pages of their own.
    pub const VALUE_INLINE_MAX: usize = 1024;

    /// An empty map.
    ///
    /// # Errors
    /// [`TreeFull`]: not a page is free.
    pub fn new(_memory: &Arc<Memory>) -> Result<Self, TreeFull> {
        Ok(Self { map: BTreeMap::new(), bytes: 0 })
    }

    /// Number of entries.
    #[expect(clippy::len_without_is_empty, reason = "an empty tree is an object like others")]
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Bytes of the budget that it holds.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps pages in reserve for this many inserts of values up to [`Tree::VALUE_INLINE_MAX`] bytes: they cannot fail.
    ///
    /// # Errors
    /// [`TreeFull`].
    pub fn reserve(&mut self, _inserts: usize) -> Result<(), TreeFull> {
        Ok(())
    }

    /// Gives what is in reserve back.
    pub fn release_reserve(&mut self) {}

    /// The value under a key.
    pub fn get(&self, key: &[u8]) -> Option<Value<'_>> {
        self.map.get(key).map(|value| Value::Inline(value))
    }

    /// The value under a key, to change in place; None: there is none, or it has pages of its own.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut [u8]> {
        self.map.get_mut(key).map(Vec::as_mut_slice)
    }

    /// Puts a value under a key. True: the key is new.
    ///
    /// # Errors
    /// [`TreeFull`]: nothing has changed.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TreeFull> {
        self.bytes += key.len() + value.len();
        let old = self.map.insert(key.to_vec(), value.to_vec());
        self.bytes -= old.as_ref().map_or(0, |old| old.len() + key.len());
        Ok(old.is_none())
    }

    /// Removes a key. False: it was not there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let old = self.map.remove(key);
        self.bytes -= old.as_ref().map_or(0, |old| old.len() + key.len());
        old.is_some()
    }

    /// Number of entries before this key; `Err`: the key is not there.
    ///
    /// # Errors
    /// The number all the same.
    pub fn rank(&self, key: &[u8]) -> Result<u64, u64> {
        let before = self.map.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).count() as u64;
        if self.map.contains_key(key) { Ok(before) } else { Err(before) }
    }

    /// The entry with this many before it.
    pub fn nth(&self, place: u64) -> Option<(&[u8], Value<'_>)> {
        self.map.iter().nth(place as usize).map(|(key, value)| (key.as_slice(), Value::Inline(value)))
    }

    /// Calls `each` with the entries in order, from `from` on, until it returns false.
    pub fn scan(&self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        for (key, value) in self.map.range::<[u8], _>((from, Bound::Unbounded)) {
            if !each(key, Value::Inline(value)) {
                return;
            }
        }
    }

    /// The same in descending order, from `from` downwards.
    pub fn scan_back(&self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        for (key, value) in self.map.range::<[u8], _>((Bound::Unbounded, from)).rev() {
            if !each(key, Value::Inline(value)) {
                return;
            }
        }
    }

    /// Gives up to `pages` of its pages back. True: all are, and it can be dropped at no cost.
    pub fn take_apart(&mut self, _pages: usize) -> bool {
        self.map.clear();
        true
    }
}
