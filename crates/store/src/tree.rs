//! A map from bytes to bytes, in order of the keys, in pages of the budget: a B+ tree that counts.
//!
//! Entries are in the leaves. A page above them has, for each page below it, the smallest key that belongs
//! there (cut to the bytes that are needed) and the number of entries, so that an entry is found by its key
//! or by its place with as many pages read as the tree has levels. Pages have numbers of this tree
//! ([`crate::memory::PageSet`]): those in use come first, spare ones follow. A page that falls below half
//! joins a neighbour where both fit in one, and is given back; the page with the highest number then takes
//! its number. Values that are too long for a page have pages of their own, as huge values of the store.
//!
//! Each change is made at once or not at all: the pages that an insert can need are there before it writes.
//!
//! # Invariants (walked by [`Tree::verify`])
//! * All leaves have the same depth; only a root has no entries, and a root above the leaves has two at
//!   least.
//! * The counts of entries are right. A key lies between its page's key and the next one's.
//! * Pages 0..`used` are reachable from the root, once each; an entry with a value elsewhere has that value
//!   alone.

mod attempt;
mod change;
mod node;
mod values;
#[cfg(any(test, fuzzing, feature = "verify"))]
mod verify;

use std::ops::Bound;
use std::sync::Arc;

use crate::item::Value;
use crate::memory::{Memory, PAGE_BYTES, PageSet};
use attempt::{PinnedBound, TreeBefore};
use node::{EntryContent, TreePage, TreePageMut};
use values::ValueTable;

/// An ordered map from bytes to bytes, in pages of the budget. Keys and values may be empty.
pub struct Tree {
    pages: PageSet,
    /// Pages in use; 0 once the tree is being taken apart.
    used: usize,
    /// Pages above the leaves.
    inner: usize,
    root: u32,
    len: u64,
    bytes: u64,
    /// Upper bounds of what was ever inserted.
    longest_key: usize,
    largest_entry: usize,
    /// Spare pages stay until [`Tree::release_reserve`].
    holds_reserve: bool,
    values: ValueTable,
    bound: Option<PinnedBound>,
    /// There while changes are an attempt.
    before: Option<Box<TreeBefore>>,
}

/// The budget does not have as many bytes as a change needs; nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeFull {
    /// Bytes that are wanted; 0: the key is longer than [`Tree::KEY_MAX`], and no room would help.
    pub bytes: usize,
}

impl Tree {
    /// Longest key in bytes.
    pub const KEY_MAX: usize = 1024;
    /// Longest value in bytes that is kept beside any key. A longer one is kept there where both take half a
    /// page at most (2,033 bytes); otherwise it has pages of its own. Two of the largest entries fit in a
    /// page: that is enough to divide any page.
    pub const VALUE_INLINE_MAX: usize = 1000;

    /// An empty map, of one page.
    ///
    /// # Errors
    /// [`TreeFull`]: not a page is free.
    pub fn new(memory: &Arc<Memory>) -> Result<Self, TreeFull> {
        let mut tree = Self {
            pages: PageSet::new(memory),
            used: 0,
            inner: 0,
            root: 0,
            len: 0,
            bytes: 0,
            longest_key: 0,
            largest_entry: 0,
            holds_reserve: false,
            values: ValueTable::default(),
            bound: None,
            before: None,
        };
        tree.plant()?;
        Ok(tree)
    }

    /// Number of entries.
    #[expect(clippy::len_without_is_empty, reason = "an empty tree is an object like others")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the budget that it holds: its pages, spare ones included, and those of long values.
    pub fn held_bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES + self.values.held_bytes()
    }

    /// Bytes outside the budget that hold the numbers of its pages and long values: 4 to 16 for each page.
    pub fn heap_bytes(&self) -> usize {
        self.pages.heap_bytes() + self.values.heap_bytes()
    }

    /// The value under a key.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<Value<'_>> {
        let leaf = self.leaf_of(key)?;
        let node = self.node(leaf);
        Some(self.value(node, node.find(key)?))
    }

    /// The value under a key, to change in place; None: there is none, or it has pages of its own.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut [u8]> {
        let leaf = self.leaf_of(key)?;
        let index = self.node(leaf).find(key)?;
        self.node_mut(leaf).into_value(index)
    }

    /// Number of entries before this key; `Err`: the key is not there.
    ///
    /// # Errors
    /// The number all the same.
    pub fn rank(&self, key: &[u8]) -> Result<u64, u64> {
        if self.len == 0 {
            return Err(0);
        }
        let (mut page, mut before) = (self.root, 0);
        loop {
            let node = self.node(page);
            if node.level() == 0 {
                return match node.search(key) {
                    Ok(index) => Ok(before + index as u64),
                    Err(index) => Err(before + index as u64),
                };
            }
            let index = node.descend(key);
            before += node.below_first(index);
            page = node.child(index);
        }
    }

    /// The entry with this many before it.
    pub fn nth(&self, place: u64) -> Option<(&[u8], Value<'_>)> {
        if place >= self.len {
            return None;
        }
        let (mut page, mut place) = (self.root, place);
        loop {
            let node = self.node(page);
            if node.level() == 0 {
                let index = usize::try_from(place).ok()?;
                return Some((node.key(index), self.value(node, index)));
            }
            let mut index = 0;
            while place >= node.below(index) {
                place -= node.below(index);
                index += 1;
            }
            page = node.child(index);
        }
    }

    /// Calls `each` with the entries in order, from `from` on, until it returns false.
    pub fn scan(&self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        if self.len > 0 {
            self.scan_page(self.root, from, &mut each);
        }
    }

    /// Reads the entries in descending order, from `from` downwards.
    pub fn scan_back(&self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        if self.len > 0 {
            self.scan_page_back(self.root, from, &mut each);
        }
    }

    fn scan_page(
        &self,
        page: u32,
        from: Bound<&[u8]>,
        each: &mut impl FnMut(&[u8], Value<'_>) -> bool,
    ) -> bool {
        let node = self.node(page);
        if node.level() == 0 {
            let first = match from {
                Bound::Unbounded => 0,
                Bound::Included(key) => node.search(key).unwrap_or_else(|index| index),
                Bound::Excluded(key) => node.search(key).map_or_else(|index| index, |index| index + 1),
            };
            return (first..node.count()).all(|index| each(node.key(index), self.value(node, index)));
        }
        let first = match from {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => node.descend(key),
        };
        (first..node.count()).all(|index| {
            let from = if index == first { from } else { Bound::Unbounded };
            self.scan_page(node.child(index), from, each)
        })
    }

    fn scan_page_back(
        &self,
        page: u32,
        from: Bound<&[u8]>,
        each: &mut impl FnMut(&[u8], Value<'_>) -> bool,
    ) -> bool {
        let node = self.node(page);
        if node.level() == 0 {
            let end = match from {
                Bound::Unbounded => node.count(),
                Bound::Included(key) => node.search(key).map_or_else(|index| index, |index| index + 1),
                Bound::Excluded(key) => node.search(key).unwrap_or_else(|index| index),
            };
            return (0..end).rev().all(|index| each(node.key(index), self.value(node, index)));
        }
        let last = match from {
            Bound::Unbounded => node.count() - 1,
            Bound::Included(key) | Bound::Excluded(key) => node.descend(key),
        };
        (0..=last).rev().all(|index| {
            let from = if index == last { from } else { Bound::Unbounded };
            self.scan_page_back(node.child(index), from, each)
        })
    }

    /// The leaf that a key belongs to; None: the map is empty.
    #[inline]
    fn leaf_of(&self, key: &[u8]) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut page = self.root;
        loop {
            let node = self.node(page);
            if node.level() == 0 {
                return Some(page);
            }
            page = node.child(node.descend(key));
            if node.level() == 1 {
                self.node(page).load();
            }
        }
    }

    #[inline]
    fn value<'a>(&'a self, node: TreePage<'a>, index: usize) -> Value<'a> {
        match node.content(index) {
            EntryContent::Here(value) => Value::Inline(value),
            EntryContent::Elsewhere(number) => Value::Huge(self.values.get(number)),
            EntryContent::Child(..) => Value::Inline(&[]),
        }
    }

    #[inline]
    fn node(&self, page: u32) -> TreePage<'_> {
        TreePage(self.pages.page(page as usize))
    }

    #[inline]
    fn node_mut(&mut self, page: u32) -> TreePageMut<'_> {
        if self.before.is_some() {
            self.note_change(page);
        }
        TreePageMut(self.pages.page_mut(page as usize))
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree")
            .field("len", &self.len)
            .field("bytes", &self.bytes)
            .field("held_bytes", &self.held_bytes())
            .finish_non_exhaustive()
    }
}
