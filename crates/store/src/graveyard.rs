//! Trees that have left the store and still hold pages: they are taken apart in pieces, so that no call waits
//! for a large one.
//!
//! Each second and each write take a piece apart; a caller that needs memory at once takes as many as it
//! needs.
//!
//! # Invariants
//! * `held` is the sum of the bytes that the trees hold; the store counts them as its own until they are
//!   given back.
//! * Small trees are never here: they are given back at once.

use std::collections::VecDeque;

use crate::memory::PAGE_BYTES;
use crate::tree::Tree;

/// Pages of a tree that is given back at once.
const AT_ONCE_PAGES: usize = 4;

/// Trees that have left the store and are taken apart in pieces.
#[derive(Debug, Default)]
pub(crate) struct Graveyard {
    trees: VecDeque<Box<Tree>>,
    held: usize,
}

impl Graveyard {
    /// Takes a tree that no item refers to.
    pub(crate) fn bury(&mut self, mut tree: Box<Tree>) {
        if tree.held_bytes() <= AT_ONCE_PAGES * PAGE_BYTES && tree.take_apart(AT_ONCE_PAGES) {
            return;
        }
        self.held += tree.held_bytes();
        self.trees.push_back(tree);
    }

    /// Nothing is left to take apart.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// Bytes of the budget that its trees hold.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held
    }

    /// Gives up to `pages` pages back, of one tree. False: there was none.
    #[inline]
    pub(crate) fn take_apart(&mut self, pages: usize) -> bool {
        !self.is_empty() && self.take_piece(pages)
    }

    fn take_piece(&mut self, pages: usize) -> bool {
        let Some(tree) = self.trees.front_mut() else { return false };
        let before = tree.held_bytes();
        let is_gone = tree.take_apart(pages.max(1));
        self.held -= before - tree.held_bytes();
        if is_gone {
            self.held -= tree.held_bytes();
            self.trees.pop_front();
        }
        true
    }

    /// Checks the sum.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn verify(&self) {
        assert_eq!(self.trees.iter().map(|tree| tree.held_bytes()).sum::<usize>(), self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn a_small_tree_goes_at_once_and_a_large_one_in_pieces() {
        let memory = Memory::new(1024 * PAGE_BYTES).unwrap();
        let tree = |entries: u32| {
            let mut tree = Box::new(Tree::new(&memory).unwrap());
            for n in 0..entries {
                tree.insert(&n.to_be_bytes(), &[7; 100]).unwrap();
            }
            tree
        };
        let mut graveyard = Graveyard::default();
        graveyard.bury(tree(3));
        assert!(graveyard.is_empty() && graveyard.held_bytes() == 0 && memory.used_bytes() == 0);
        for entries in [2_000, 3_000] {
            graveyard.bury(tree(entries));
        }
        assert!(graveyard.held_bytes() >= 5_000 * 104);
        let mut pieces = 0;
        while graveyard.take_apart(8) {
            graveyard.verify();
            pieces += 1;
            assert!(pieces < 1_000);
        }
        assert!(pieces >= 2 && graveyard.is_empty());
        assert_eq!((graveyard.held_bytes(), memory.used_bytes()), (0, 0));
    }
}
