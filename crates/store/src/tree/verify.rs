//! A walk through a whole tree that checks its invariants.

use super::Tree;
use super::node::EntryContent;
use crate::memory::PAGE_BYTES;

/// What a walk has found.
struct WalkFindings {
    pages: Vec<bool>,
    values: Vec<u32>,
    inner: usize,
    bytes: u64,
    held: usize,
}

impl Tree {
    /// Walks the whole tree.
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn verify(&self) {
        let mut found =
            WalkFindings { pages: vec![false; self.used], values: Vec::new(), inner: 0, bytes: 0, held: 0 };
        if self.used == 0 {
            assert_eq!((self.len, self.bytes, self.inner), (0, 0, 0), "taken apart");
            return;
        }
        let root = self.node(self.root);
        assert!(root.level() == 0 || root.count() >= 2, "a root has two pages below it");
        let len = self.verify_page(self.root, root.level(), None, None, &mut found);
        assert!(found.pages.iter().all(|is_found| *is_found), "each page in use is reached");
        assert_eq!((len, found.bytes, found.inner), (self.len, self.bytes, self.inner));
        let values = found.values.len();
        found.values.sort_unstable();
        found.values.dedup();
        assert_eq!((found.values.len(), self.values.len()), (values, values), "a value has one entry");
        assert_eq!(self.held_bytes(), self.pages.len() * PAGE_BYTES + found.held);
        assert!(self.holds_reserve || self.pages.len() <= self.used + self.used / 64, "spare pages");
    }

    /// Pages from the root to a leaf, both counted.
    pub fn verify_height(&self) -> usize {
        self.node(self.root).level() + 1
    }

    /// Returns the number of entries from a page down; their keys lie in `from..to`.
    fn verify_page(
        &self,
        page: u32,
        level: usize,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
        found: &mut WalkFindings,
    ) -> u64 {
        let is_again = std::mem::replace(&mut found.pages[page as usize], true);
        assert!(!is_again, "a page is reached once");
        let node = self.node(page);
        node.verify();
        assert_eq!(node.level(), level);
        let count = node.count();
        assert!(count > 0 || page == self.root, "an empty page");
        let first = usize::from(level > 0);
        for index in first..count {
            assert!(from.is_none_or(|from| from <= node.key(index)), "a key below its page's");
            assert!(to.is_none_or(|to| node.key(index) < to), "a key above its page's");
        }
        if level == 0 {
            for index in 0..count {
                let value = match node.content(index) {
                    EntryContent::Here(value) => value.len(),
                    EntryContent::Elsewhere(number) => {
                        found.values.push(number);
                        found.held += self.values.get(number).held_bytes();
                        self.values.get(number).len()
                    }
                    EntryContent::Child(..) => panic!("a leaf has no pages below it"),
                };
                found.bytes += (node.key(index).len() + value) as u64;
            }
            return count as u64;
        }
        found.inner += 1;
        for index in 0..count {
            let from = if index == 0 { from } else { Some(node.key(index)) };
            let to = if index + 1 < count { Some(node.key(index + 1)) } else { to };
            let below = self.verify_page(node.child(index), level - 1, from, to, found);
            assert_eq!(below, node.below(index), "the count of entries");
        }
        node.below_first(count)
    }
}
