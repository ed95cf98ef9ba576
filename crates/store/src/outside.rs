//! Values that items keep outside the log: huge values and trees, in one table, named by a number in the
//! item's bytes.
//!
//! What may be evicted is in a list: one for each share, queue and octave of the bytes held, in the order in
//! which it was stored or kept. So the collector finds a large value without a walk over the stubs in the
//! log, and chooses among few by age and size.
//!
//! # Invariants
//! * Each entry belongs to one item: it is taken out when the item leaves the store, and moves with it in the
//!   log unchanged.
//! * Numbers are used again: `free` has those of all empty places.
//! * A list has entries of its octave only; pinned objects are in none (`Store::file`).

use std::sync::Arc;

use crate::huge::HugeValue;
use crate::segment::SegmentQueue;
use crate::shares::ShareSet;
use crate::tree::Tree;

/// A value that is not in the log.
#[derive(Debug)]
pub(crate) enum OutsideValue {
    /// Never changed, and sent by connections without a lock.
    Huge(Arc<HugeValue>),
    /// Changed in place, read under the shard's lock only.
    Tree(Box<Tree>),
}

impl OutsideValue {
    /// Bytes of the budget that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Huge(huge) => huge.held_bytes(),
            Self::Tree(tree) => tree.held_bytes(),
        }
    }

    /// Bytes of the tree; 0 for a huge value.
    pub(crate) fn tree_bytes(&self) -> usize {
        match self {
            Self::Huge(_) => 0,
            Self::Tree(tree) => tree.held_bytes(),
        }
    }

    /// Length of the value as a client sees it: a tree has none.
    pub(crate) fn value_len(&self) -> usize {
        match self {
            Self::Huge(huge) => huge.len(),
            Self::Tree(_) => 0,
        }
    }
}

/// Lists for each queue of a share: one an octave of the bytes held.
const OCTAVES: usize = 20;
/// Bytes of the first octave, a page, in the logarithm.
const FIRST_OCTAVE: u32 = 12;
/// The end of a list, and no list.
const NONE: u32 = u32::MAX;

/// A place of the table.
#[derive(Debug)]
struct OutsideEntry {
    outside: OutsideValue,
    /// The hash of the item's key.
    hash: u64,
    /// When it was stored; between that and the last move, if it was kept by the collector.
    stored: u64,
    /// The list it is in; [`NONE`]: in none.
    list: u32,
    before: u32,
    after: u32,
}

/// What is outside the log and first in its list: the one of its queue and octave that was stored or kept
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutsideHead {
    pub(crate) number: u32,
    /// The hash of the item's key.
    pub(crate) hash: u64,
    /// When it counts as stored, in milliseconds.
    pub(crate) stored: u64,
    /// Bytes of the budget that it holds.
    pub(crate) held_bytes: usize,
    pub(crate) is_tree: bool,
}

#[derive(Debug, Clone, Copy)]
struct OutsideList {
    first: u32,
    last: u32,
}

/// The table of huge values and trees, which items name by a number.
#[derive(Debug)]
pub(crate) struct OutsideTable {
    entries: Vec<Option<OutsideEntry>>,
    free: Vec<u32>,
    lists: Vec<OutsideList>,
    /// For each queue of each share, the octaves whose lists are not empty, one bit each.
    filled: Vec<u32>,
}

/// The list of a queue of a share for what holds `bytes`.
fn list_of(share: u8, queue: SegmentQueue, bytes: usize) -> usize {
    let octave = bytes.max(1).ilog2().saturating_sub(FIRST_OCTAVE) as usize;
    row_of(share, queue) * OCTAVES + octave.min(OCTAVES - 1)
}

/// The lists of a queue of a share among all.
fn row_of(share: u8, queue: SegmentQueue) -> usize {
    usize::from(share) * SegmentQueue::COUNT + queue as usize
}

impl OutsideTable {
    /// Without entries, for this many shares.
    pub(crate) fn new(shares: usize) -> Self {
        let empty = OutsideList { first: NONE, last: NONE };
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            lists: vec![empty; shares * SegmentQueue::COUNT * OCTAVES],
            filled: vec![0; shares * SegmentQueue::COUNT],
        }
    }

    /// Adds an entry for the item whose key has this hash; it is in no list. Returns its number.
    pub(crate) fn insert(&mut self, outside: OutsideValue, hash: u64) -> u32 {
        let number = self.free.pop().unwrap_or(self.entries.len() as u32);
        if number as usize == self.entries.len() {
            self.entries.push(None);
        }
        let entry = OutsideEntry { outside, hash, stored: 0, list: NONE, before: NONE, after: NONE };
        self.entries[number as usize] = Some(entry);
        number
    }

    /// Takes an entry out; its number is free then.
    pub(crate) fn take(&mut self, number: u32) -> Option<OutsideValue> {
        self.unlist(number);
        let taken = self.entries[number as usize].take();
        if taken.is_some() {
            self.free.push(number);
        }
        taken.map(|entry| entry.outside)
    }

    /// Number of places, empty ones included.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    /// The entry of this number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&OutsideValue> {
        self.entries[number as usize].as_ref().map(|entry| &entry.outside)
    }

    /// The tree of this number; `None`: it is a huge value.
    pub(crate) fn tree_mut(&mut self, number: u32) -> Option<&mut Tree> {
        match &mut self.entries[number as usize].as_mut()?.outside {
            OutsideValue::Huge(_) => None,
            OutsideValue::Tree(tree) => Some(tree),
        }
    }

    /// Puts an entry at the end of its list of this share and queue, as stored at this time; it leaves the
    /// list in which it was.
    pub(crate) fn list(&mut self, number: u32, (share, queue): (u8, SegmentQueue), stored: u64) {
        self.unlist(number);
        let Some(entry) = self.entries[number as usize].as_mut() else { return };
        let list = list_of(share, queue, entry.outside.held_bytes());
        let end = self.lists[list].last;
        (entry.stored, entry.list, entry.before) = (stored, list as u32, end);
        match self.entries.get_mut(end as usize).and_then(Option::as_mut) {
            Some(before) => before.after = number,
            None => self.lists[list].first = number,
        }
        self.lists[list].last = number;
        self.filled[list / OCTAVES] |= 1 << (list % OCTAVES);
    }

    /// Takes an entry out of its list: what is in none is not evicted.
    pub(crate) fn unlist(&mut self, number: u32) {
        let Some(entry) = self.entries[number as usize].as_mut().filter(|entry| entry.list != NONE) else {
            return;
        };
        let (list, before, after) = (entry.list as usize, entry.before, entry.after);
        (entry.list, entry.before, entry.after) = (NONE, NONE, NONE);
        match self.entries.get_mut(before as usize).and_then(Option::as_mut) {
            Some(entry) => entry.after = after,
            None => self.lists[list].first = after,
        }
        match self.entries.get_mut(after as usize).and_then(Option::as_mut) {
            Some(entry) => entry.before = before,
            None => self.lists[list].last = before,
        }
        if self.lists[list].first == NONE {
            self.filled[list / OCTAVES] &= !(1 << (list % OCTAVES));
        }
    }

    /// Whether it is in a list of another octave than that of the bytes it holds, having grown or shrunk.
    pub(crate) fn is_misplaced(&self, number: u32) -> bool {
        let entry = self.entries[number as usize].as_ref().filter(|entry| entry.list != NONE);
        entry.is_some_and(|entry| {
            list_of(0, SegmentQueue::Small, entry.outside.held_bytes()) != entry.list as usize % OCTAVES
        })
    }

    /// When it counts as stored, in milliseconds.
    pub(crate) fn stored(&self, number: u32) -> u64 {
        self.entries[number as usize].as_ref().map_or(0, |entry| entry.stored)
    }

    /// The first of each list of this queue of these shares that is not empty, with its share.
    pub(crate) fn heads(
        &self,
        shares: ShareSet,
        queue: SegmentQueue,
    ) -> impl Iterator<Item = (u8, OutsideHead)> + '_ {
        let all = self.filled.len() / SegmentQueue::COUNT;
        shares.iter(all).flat_map(move |share| self.heads_of(share, queue).map(move |head| (share, head)))
    }

    fn heads_of(&self, share: u8, queue: SegmentQueue) -> impl Iterator<Item = OutsideHead> + '_ {
        let row = row_of(share, queue);
        let mut left = self.filled[row];
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let octave = left.trailing_zeros() as usize;
            left &= left - 1;
            let number = self.lists[row * OCTAVES + octave].first;
            let entry = self.entries[number as usize].as_ref()?;
            Some(OutsideHead {
                number,
                hash: entry.hash,
                stored: entry.stored,
                held_bytes: entry.outside.held_bytes(),
                is_tree: matches!(entry.outside, OutsideValue::Tree(_)),
            })
        })
    }

    /// The share and the queue in whose lists it is, for the verifying walk.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn queue_of(&self, number: u32) -> Option<(u8, SegmentQueue)> {
        let list = self.entries[number as usize].as_ref()?.list;
        let row = list as usize / OCTAVES;
        (list != NONE)
            .then(|| ((row / SegmentQueue::COUNT) as u8, SegmentQueue::ALL[row % SegmentQueue::COUNT]))
    }

    /// The hash of its item's key, for the verifying walk.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn hash_of(&self, number: u32) -> Option<u64> {
        Some(self.entries[number as usize].as_ref()?.hash)
    }

    /// Checks the lists and that of free numbers; returns the number of entries.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn verify(&self) -> usize {
        let used = self.entries.iter().flatten().count();
        assert_eq!(used + self.free.len(), self.entries.len(), "numbers in use and free");
        assert!(self.free.iter().all(|n| self.entries[*n as usize].is_none()), "a free number is in use");
        let mut listed = 0;
        for (number, list) in self.lists.iter().enumerate() {
            let (mut at, mut before) = (list.first, NONE);
            while at != NONE {
                let entry = self.entries[at as usize].as_ref().expect("a list names entries");
                assert_eq!((entry.list as usize, entry.before), (number, before), "an entry of a list");
                assert!(!self.is_misplaced(at), "it has grown or shrunk");
                listed += 1;
                (before, at) = (at, entry.after);
            }
            assert_eq!(list.last, before, "the end of a list");
            let is_filled = self.filled[number / OCTAVES] >> (number % OCTAVES) & 1 == 1;
            assert_eq!(is_filled, list.first != NONE, "lists that are not empty");
        }
        assert_eq!(listed, self.entries.iter().flatten().filter(|entry| entry.list != NONE).count());
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Memory, PAGE_BYTES};

    #[test]
    fn numbers_are_used_again() {
        let memory = Memory::new(64 * PAGE_BYTES).unwrap();
        let huge = || OutsideValue::Huge(HugeValue::new(&memory, &[&[1; 5_000]]).unwrap());
        let mut table = OutsideTable::new(2);
        let (a, b) = (
            table.insert(huge(), 1),
            table.insert(OutsideValue::Tree(Box::new(Tree::new(&memory).unwrap())), 2),
        );
        assert_eq!((a, b, table.verify()), (0, 1, 2));
        assert!(table.tree_mut(a).is_none() && table.tree_mut(b).is_some());
        assert_eq!((table.get(a).unwrap().value_len(), table.get(b).unwrap().value_len()), (5_000, 0));
        assert_eq!(
            (table.get(a).unwrap().held_bytes(), table.get(a).unwrap().tree_bytes()),
            (5_000_usize.next_multiple_of(256), 0)
        );
        assert!(table.take(a).is_some() && table.take(a).is_none());
        assert_eq!((table.insert(huge(), 3), table.verify()), (a, 2));
    }

    #[test]
    fn lists_keep_the_order_of_their_octave() {
        let memory = Memory::new(256 * PAGE_BYTES).unwrap();
        let huge = |bytes| OutsideValue::Huge(HugeValue::new(&memory, &[&vec![1; bytes]]).unwrap());
        let mut table = OutsideTable::new(2);
        let numbers: Vec<u32> =
            [5_000, 6_000, 40_000, 5_500].iter().map(|bytes| table.insert(huge(*bytes), 1)).collect();
        numbers.iter().zip(10..).for_each(|(number, ms)| table.list(*number, (1, SegmentQueue::Small), ms));
        let heads = |table: &OutsideTable, queue| -> Vec<(u32, u64)> {
            table.verify();
            table.heads(ShareSet::one(1), queue).map(|(_, head)| (head.number, head.stored)).collect()
        };
        assert_eq!(heads(&table, SegmentQueue::Small), [(0, 10), (2, 12)]);
        table.list(0, (1, SegmentQueue::Main), 20);
        assert_eq!(
            (heads(&table, SegmentQueue::Small), heads(&table, SegmentQueue::Main)),
            (vec![(1, 11), (2, 12)], vec![(0, 20)])
        );
        table.list(1, (1, SegmentQueue::Small), 21);
        assert_eq!(heads(&table, SegmentQueue::Small), [(3, 13), (2, 12)]);
        table.take(3);
        table.unlist(2);
        assert_eq!(heads(&table, SegmentQueue::Small), [(1, 21)]);
        assert!(table.heads(ShareSet::ALL, SegmentQueue::Blind).next().is_none());
        table.list(0, (0, SegmentQueue::Main), 22);
        let mains =
            table.heads(ShareSet::ALL, SegmentQueue::Main).map(|(share, head)| (share, head.held_bytes));
        assert_eq!(mains.collect::<Vec<_>>(), [(0, 5_000_usize.next_multiple_of(256))]);
        assert_eq!(heads(&table, SegmentQueue::Main), []);
    }
}
