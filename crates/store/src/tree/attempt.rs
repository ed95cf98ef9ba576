//! Changes of a tree that may be taken back, and the bound of what the trees of pinned objects take.
//!
//! While changes are an attempt, no page is given back, and each page in use is copied before its first change. Taken back, all
//! pages and long values are what they were.

use std::collections::BTreeMap;

use super::values::Shared;
use super::{Tree, TreeFull};
use crate::memory::{PAGE_BYTES, Page};

/// A tree as it was before an attempt.
pub(super) struct Before {
    /// Its pages in the order of their numbers.
    order: Vec<u32>,
    /// Pages that it has taken since.
    added: Vec<u32>,
    /// Those that have changed since, by their place in the budget.
    changed: BTreeMap<u32, Box<Page>>,
    values: Shared,
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
pub(super) struct Bound {
    /// Most bytes of pinned objects in the budget.
    most: usize,
    /// Bytes that the tree has taken under the bound, which count as pinned besides those that its object is known to hold.
    taken: usize,
    /// It has refused some.
    has_refused: bool,
}

impl Tree {
    /// Bounds its growth: what all pinned objects of the budget hold stays within `most` bytes.
    pub(crate) fn bind(&mut self, most: usize) {
        self.bound = Some(Bound { most, taken: 0, has_refused: false });
    }

    /// Ends the bound. Bytes that were taken under it, which the caller gives back to the account of pinned objects, and whether
    /// it has refused some.
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
        self.before = Some(Box::new(Before {
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
        self.before = None;
        self.trim();
    }

    /// Takes back what was attempted.
    pub(crate) fn take_back(&mut self) {
        let Some(before) = self.before.take() else { return };
        let Before { mut order, added, changed, values, .. } = *before;
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
        self.trim();
    }

    /// Bytes of the budget that it will hold once the attempt is kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.pages.len().min(self.kept_pages()) * PAGE_BYTES + self.values.held_bytes()
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
