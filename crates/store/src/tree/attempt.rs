//! Changes of a tree that may be taken back, and the bound of what the trees of pinned objects take.
//!
//! While changes are an attempt, no page is given back, and each page in use is copied before its first
//! change. Taken back, all pages and long values are what they were.

use std::collections::BTreeMap;

use super::values::SharedValues;
use super::{Tree, TreeFull};
use crate::memory::{PAGE_BYTES, Page};

/// A tree as it was before an attempt.
pub(super) struct TreeBefore {
    /// The tree's pages in the order of their numbers.
    order: Vec<u32>,
    /// Pages that it has taken since.
    added: Vec<u32>,
    /// Those that have changed since, by their place in the budget.
    changed: BTreeMap<u32, Box<Page>>,
    values: SharedValues,
    used: usize,
    inner: usize,
    root: u32,
    len: u64,
    bytes: u64,
    longest_key: usize,
    largest_entry: usize,
}

/// How far the tree of a pinned object may grow.
#[derive(Debug, Clone, Copy)]
pub(super) struct PinnedBound {
    /// Most bytes of pinned objects in the budget.
    most: usize,
    /// Bytes that the tree has taken under the bound, which count as pinned besides those that its object is
    /// known to hold.
    taken: usize,
    /// The bound has refused some growth.
    has_refused: bool,
}

impl Tree {
    /// Bounds its growth: what all pinned objects of the budget hold stays within `most` bytes.
    pub(crate) fn bind(&mut self, most: usize) {
        self.bound = Some(PinnedBound { most, taken: 0, has_refused: false });
    }

    /// Ends the bound. Bytes that were taken under it, which the caller gives back to the account of pinned
    /// objects, and whether it has refused some.
    pub(crate) fn unbind(&mut self) -> (usize, bool) {
        self.bound.take().map_or((0, false), |bound| (bound.taken, bound.has_refused))
    }

    /// Takes bytes under the bound.
    pub(super) fn check_bound(&mut self, bytes: usize) -> Result<(), TreeFull> {
        let Some(bound) = &mut self.bound else { return Ok(()) };
        if !self.pages.memory().take_pinned(bytes, bound.most) {
            bound.has_refused = true;
            return Err(TreeFull { bytes });
        }
        bound.taken += bytes;
        Ok(())
    }

    /// Changes from now on are an attempt, until [`Tree::keep`] or [`Tree::take_back`].
    pub(crate) fn attempt(&mut self) {
        self.before = Some(Box::new(TreeBefore {
            order: self.pages.order().to_vec(),
            added: Vec::new(),
            changed: BTreeMap::new(),
            values: self.values.share(),
            used: self.used,
            inner: self.inner,
            root: self.root,
            len: self.len,
            bytes: self.bytes,
            longest_key: self.longest_key,
            largest_entry: self.largest_entry,
        }));
    }

    /// Keeps what was attempted.
    pub(crate) fn keep(&mut self) {
        let pages = self.attempted_pages();
        self.before = None;
        self.pages.shrink(pages);
    }

    /// Takes back what was attempted.
    pub(crate) fn take_back(&mut self) {
        let Some(before) = self.before.take() else { return };
        let TreeBefore { mut order, added, changed, values, .. } = *before;
        let len = order.len();
        order.extend_from_slice(&added);
        self.pages.reorder(order);
        for number in 0..self.pages.len() {
            if let Some(page) = changed.get(&self.pages.order()[number]) {
                *self.pages.page_mut(number) = **page;
            }
        }
        self.values.become_again(values);
        (self.used, self.inner, self.root) = (before.used, before.inner, before.root);
        (self.len, self.bytes) = (before.len, before.bytes);
        (self.longest_key, self.largest_entry) = (before.longest_key, before.largest_entry);
        self.pages.shrink(len);
    }

    /// Bytes of the budget that it will hold once the attempt is kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.attempted_pages() * PAGE_BYTES + self.values.held_bytes()
    }

    /// Pages that stay when the attempt is kept: none is spare that was not there before.
    fn attempted_pages(&self) -> usize {
        let before = self.before.as_ref().map_or(usize::MAX, |before| before.order.len());
        self.used.max(self.pages.len().min(self.kept_pages()).min(before))
    }

    /// Copies a page that is about to change.
    pub(super) fn note_change(&mut self, page: u32) {
        let Some(before) = &mut self.before else { return };
        let place = self.pages.order()[page as usize];
        before.changed.entry(place).or_insert_with(|| Box::new(*self.pages.page(page as usize)));
    }

    /// Takes pages that are spare.
    pub(super) fn grow(&mut self, count: usize) -> Result<(), TreeFull> {
        let (bytes, len) = (count * PAGE_BYTES, self.pages.len());
        self.check_bound(bytes)?;
        if !self.pages.grow(count) {
            return Err(TreeFull { bytes });
        }
        if let Some(before) = &mut self.before {
            before.added.extend_from_slice(&self.pages.order()[len..]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;
    use crate::item::Value;
    use crate::memory::Memory;

    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    fn entries(tree: &Tree) -> Entries {
        let mut all = Vec::new();
        tree.scan(Bound::Unbounded, |key, value: Value<'_>| {
            let mut copy = Vec::new();
            value.copy_to(&mut copy);
            all.push((key.to_vec(), copy));
            true
        });
        all
    }

    #[test]
    fn what_is_taken_back_has_not_been() {
        let memory = Memory::new(1024 * PAGE_BYTES).unwrap();
        let mut tree = Tree::new(&memory).unwrap();
        let mut random = 1_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        for round in 0..300_u16 {
            let (before, held, is_kept) = (entries(&tree), tree.held_bytes(), round.is_multiple_of(3));
            tree.attempt();
            for _ in 0..below(120) {
                let key = format!("{:0width$}", below(400), width = 3 + below(60) as usize);
                let len = [0, 30, 900, 9000][below(4) as usize];
                match below(3) {
                    0 => drop(tree.remove(key.as_bytes())),
                    1 => drop(tree.get_mut(key.as_bytes()).map(|value| value.fill(round as u8))),
                    _ => drop(tree.insert(key.as_bytes(), &vec![round as u8; len])),
                }
            }
            if is_kept {
                let kept = tree.kept_bytes();
                tree.keep();
                assert_eq!(tree.held_bytes(), kept);
            } else {
                tree.take_back();
                assert_eq!(entries(&tree), before);
                assert!(tree.held_bytes() <= held);
            }
            tree.verify();
            let held = memory.used_bytes() - memory.divided_free_bytes();
            assert_eq!((held, memory.pinned_bytes()), (tree.held_bytes(), 0));
        }
        drop(tree);
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn a_bound_counts_what_is_taken_and_refuses_more() {
        let memory = Memory::new(1024 * PAGE_BYTES).unwrap();
        let mut tree = Tree::new(&memory).unwrap();
        tree.bind(3 * PAGE_BYTES);
        assert!(tree.insert(b"long", &[0; 2 * PAGE_BYTES]).is_ok());
        let before = entries(&tree);
        assert!(tree.insert(b"longer", &[0; 2 * PAGE_BYTES]).is_err() && tree.reserve(2).is_err());
        assert_eq!(entries(&tree), before);
        let taken = memory.pinned_object_bytes();
        assert_eq!(tree.unbind(), (taken, true));
        memory.give_pinned(taken);
        assert!(tree.insert(b"longer", &[0; 2 * PAGE_BYTES]).is_ok());
        assert_eq!((tree.unbind(), memory.pinned_object_bytes()), ((0, false), 0));
    }
}
