//! What items keep outside the log: huge values and trees, in one table, named by a number in the item's bytes.
//!
//! # Invariants
//! * Each entry belongs to one item: it is taken out when the item leaves the store, and moves with it in the log unchanged.
//! * Numbers are used again: `free` has those of all empty places.

use std::sync::Arc;

use crate::huge::HugeValue;
use crate::tree::Tree;

/// A value that is not in the log.
#[derive(Debug)]
pub(crate) enum Outside {
    /// Never changed, and sent by connections without a lock.
    Huge(Arc<HugeValue>),
    /// Changed in place, read under the shard's lock only.
    Tree(Box<Tree>),
}

impl Outside {
    /// Bytes of the budget that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Huge(huge) => huge.held_bytes(),
            Self::Tree(tree) => tree.held_bytes(),
        }
    }

    /// Of these, bytes of a tree.
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

/// The table of a store. See the module's text.
#[derive(Debug, Default)]
pub(crate) struct OutsideTable {
    entries: Vec<Option<Outside>>,
    free: Vec<u32>,
}

impl OutsideTable {
    /// Adds an entry. Returns its number.
    pub(crate) fn insert(&mut self, outside: Outside) -> u32 {
        let number = self.free.pop().unwrap_or(self.entries.len() as u32);
        if number as usize == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[number as usize] = Some(outside);
        number
    }

    /// Takes an entry out; its number is free then.
    pub(crate) fn take(&mut self, number: u32) -> Option<Outside> {
        let taken = self.entries[number as usize].take();
        if taken.is_some() {
            self.free.push(number);
        }
        taken
    }

    /// The entry of this number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Outside> {
        self.entries[number as usize].as_ref()
    }

    /// The tree of this number; `None`: it is a huge value.
    pub(crate) fn tree_mut(&mut self, number: u32) -> Option<&mut Tree> {
        match self.entries[number as usize].as_mut()? {
            Outside::Huge(_) => None,
            Outside::Tree(tree) => Some(tree),
        }
    }

    /// Checks the list of free numbers; returns the number of entries.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn verify(&self) -> usize {
        let used = self.entries.iter().flatten().count();
        assert_eq!(used + self.free.len(), self.entries.len(), "numbers in use and free");
        assert!(self.free.iter().all(|n| self.entries[*n as usize].is_none()), "a free number is in use");
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
        let huge = || Outside::Huge(HugeValue::new(&memory, &[&[1; 5_000]]).unwrap());
        let mut table = OutsideTable::default();
        let (a, b) =
            (table.insert(huge()), table.insert(Outside::Tree(Box::new(Tree::new(&memory).unwrap()))));
        assert_eq!((a, b, table.verify()), (0, 1, 2));
        assert!(table.tree_mut(a).is_none() && table.tree_mut(b).is_some());
        assert_eq!((table.get(a).unwrap().value_len(), table.get(b).unwrap().value_len()), (5_000, 0));
        assert_eq!(
            (table.get(a).unwrap().held_bytes(), table.get(a).unwrap().tree_bytes()),
            (2 * PAGE_BYTES, 0)
        );
        assert!(table.take(a).is_some() && table.take(a).is_none());
        assert_eq!((table.insert(huge()), table.verify()), (a, 2));
    }
}
