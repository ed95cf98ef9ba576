//! Single pages in the order of their numbers.

use std::sync::Arc;

use crate::memory::{Memory, PAGE_BYTES};

/// The bytes of one page.
pub(crate) type Page = [u8; PAGE_BYTES];

/// Single pages that belong to their owner alone, numbered from 0 on: four bytes for each, and one lock for
/// as many as are taken or given back at once. Their first content is arbitrary.
pub(crate) struct PageSet {
    memory: Arc<Memory>,
    /// Each page at most once.
    pages: Vec<u32>,
}

impl PageSet {
    /// Pages given back under one lock at most.
    const BATCH: usize = 1024;

    /// Without pages.
    pub(crate) fn new(memory: &Arc<Memory>) -> Self {
        Self { memory: Arc::clone(memory), pages: Vec::new() }
    }

    /// Where the pages come from.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Number of pages.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Bytes outside the budget that hold the pages' numbers.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<u32>()
    }

    /// Adds `count` pages at the end; false, and none, when fewer are free.
    pub(crate) fn grow(&mut self, count: usize) -> bool {
        self.memory.take_pages(count, &mut self.pages)
    }

    /// Gives pages from the end back until `len` are left.
    pub(crate) fn shrink(&mut self, len: usize) {
        while self.pages.len() > len {
            let rest = self.pages.len().saturating_sub(Self::BATCH).max(len);
            let count = self.pages.len() - rest;
            self.memory.lock().put_back(self.pages.drain(rest..));
            self.memory.count_given(count);
        }
        if self.pages.capacity() / 4 > self.pages.len() {
            self.pages.shrink_to(self.pages.len() * 2);
        }
    }

    /// The pages' places in the budget, in the order of their numbers.
    pub(crate) fn order(&self) -> &[u32] {
        &self.pages
    }

    /// Gives its pages other numbers: `order` has the same places.
    ///
    /// # Panics
    /// It has others: pages of another set could be reached. In release builds, too: it is called only to
    /// take back what has failed.
    pub(crate) fn reorder(&mut self, order: Vec<u32>) {
        let sorted = |places: &[u32]| {
            let mut places = places.to_vec();
            places.sort_unstable();
            places
        };
        assert!(sorted(&order) == sorted(&self.pages), "the same pages");
        self.pages = order;
    }

    /// Exchanges the numbers of two pages.
    pub(crate) fn swap(&mut self, a: usize, b: usize) {
        self.pages.swap(a, b);
    }

    /// The bytes of page `number`, below [`PageSet::len`].
    #[inline]
    pub(crate) fn page(&self, number: usize) -> &Page {
        let offset = self.pages[number] as usize * PAGE_BYTES;
        // SAFETY: the page is mapped and belongs to this set alone (`Memory::take_pages`), and `self` is
        // borrowed.
        unsafe { self.memory.base.add(offset).cast::<Page>().as_ref() }
    }

    /// A page, to write.
    #[inline]
    pub(crate) fn page_mut(&mut self, number: usize) -> &mut Page {
        let offset = self.pages[number] as usize * PAGE_BYTES;
        // SAFETY: as in `page`, and `self` is borrowed mutably.
        unsafe { self.memory.base.add(offset).cast::<Page>().as_mut() }
    }
}

impl Drop for PageSet {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

impl std::fmt::Debug for PageSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageSet({} pages)", self.pages.len())
    }
}
