//! Pages in several runs, used as one row of bytes: a large value's.
//!
//! # Invariants
//! * The pages of all runs belong to these runs alone (`Memory::take_runs`) until they are given back.
//! * `before` of each run is the number of pages of the runs before it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Memory, PAGE_BYTES};

/// Pages in several runs that belong to their owner alone, as one row of bytes. Their first content is arbitrary.
pub struct Runs {
    memory: Arc<Memory>,
    /// Most values have one run: then nothing is allocated. Without meaning while there are no pages.
    first: Span,
    rest: Vec<Span>,
    pages: usize,
}

/// A run of pages.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    /// Its first page's place.
    page: u32,
    /// Pages of the runs before it.
    before: u32,
}

impl Runs {
    /// Without pages.
    pub fn new(memory: &Arc<Memory>) -> Self {
        Self { memory: Arc::clone(memory), first: Span::default(), rest: Vec::new(), pages: 0 }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.pages * PAGE_BYTES
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Number of runs.
    pub fn count(&self) -> usize {
        if self.pages == 0 { 0 } else { 1 + self.rest.len() }
    }

    /// Adds pages at the end that hold `bytes`; false, and none, when fewer are free.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let Self { memory, first, rest, pages } = self;
        let count = bytes.div_ceil(PAGE_BYTES);
        if u32::try_from(*pages + count).is_err() {
            return false;
        }
        memory.take_runs(count, |page, count| {
            let span = Span { page, before: *pages as u32 };
            if *pages == 0 {
                *first = span;
            } else {
                rest.push(span);
            }
            *pages += count;
        })
    }

    /// Gives the pages at the end back that the first `bytes` bytes do not need.
    pub fn truncate(&mut self, bytes: usize) {
        let wanted = bytes.div_ceil(PAGE_BYTES);
        if wanted >= self.pages {
            return;
        }
        let surplus = self.pages - wanted;
        let mut pages = self.memory.lock();
        for number in (0..self.count()).rev() {
            let (page, before, count) = self.span(number);
            let kept = wanted.saturating_sub(before).min(count);
            if kept < count {
                pages.mark(page + kept, count - kept, true);
            }
            if before < wanted {
                break;
            }
        }
        drop(pages);
        self.memory.used.fetch_sub(surplus, Relaxed);
        self.rest.retain(|span| (span.before as usize) < wanted);
        self.pages = wanted;
    }

    /// The bytes from `offset` on, in pieces: one for each run.
    #[inline]
    pub fn from(&self, offset: usize) -> impl Iterator<Item = &[u8]> {
        let (first, mut skip) = self.place_of(offset);
        (first..self.count()).map(move |number| {
            let (page, _, count) = self.span(number);
            let skipped = std::mem::take(&mut skip);
            let at = page * PAGE_BYTES + skipped;
            // SAFETY: the pages are mapped and belong to these runs alone (`Memory::take_runs`), and `self` is borrowed.
            unsafe {
                std::slice::from_raw_parts(self.memory.base.as_ptr().add(at), count * PAGE_BYTES - skipped)
            }
        })
    }

    /// The same, to write.
    pub fn from_mut(&mut self, offset: usize) -> impl Iterator<Item = &mut [u8]> {
        let (first, mut skip) = self.place_of(offset);
        let runs = &*self;
        (first..runs.count()).map(move |number| {
            let (page, _, count) = runs.span(number);
            let skipped = std::mem::take(&mut skip);
            let at = page * PAGE_BYTES + skipped;
            // SAFETY: as in `from`; `self` is borrowed mutably for as long as the slices live, and runs have no page in common.
            unsafe {
                std::slice::from_raw_parts_mut(
                    runs.memory.base.as_ptr().add(at),
                    count * PAGE_BYTES - skipped,
                )
            }
        })
    }

    /// The run that has the byte at `offset`, or the last one, and the bytes before it in that run.
    #[inline]
    fn place_of(&self, offset: usize) -> (usize, usize) {
        let page = offset / PAGE_BYTES;
        let number = self.rest.partition_point(|span| span.before as usize <= page);
        let (_, before, count) = self.span(number);
        (number, (offset - before * PAGE_BYTES).min(count * PAGE_BYTES))
    }

    /// The place of a run, the pages before it, and its pages.
    #[inline]
    fn span(&self, number: usize) -> (usize, usize, usize) {
        let span = if number == 0 { self.first } else { self.rest[number - 1] };
        let end = self.rest.get(number).map_or(self.pages, |next| next.before as usize);
        (span.page as usize, span.before as usize, end - span.before as usize)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

impl std::fmt::Debug for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runs({} of {} pages)", self.count(), self.pages)
    }
}
