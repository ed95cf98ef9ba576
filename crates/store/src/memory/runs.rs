//! Pages in several runs, used as one row of bytes: a large value's. Its last part may share a page with
//! those of others.
//!
//! # Invariants
//! * The pages of all runs belong to these runs alone (`Memory::take_runs`) until they are given back; so do
//!   the units of the tail.
//! * `before` of each run is the number of pages of the runs before it.

use std::sync::Arc;

use super::divided::{UNIT_BYTES, Units};
use super::{Memory, PAGE_BYTES};

/// Pages in several runs that belong to their owner alone, as one row of bytes. Their first content is
/// arbitrary.
pub struct Runs {
    memory: Arc<Memory>,
    /// Most values have one run: then nothing is allocated. Without meaning while there are no pages.
    first: Span,
    rest: Vec<Span>,
    pages: usize,
    /// Units behind the last whole page.
    tail: [Units; 2],
}

/// A run of pages.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    /// The place of the first page.
    page: u32,
    /// Pages of the runs before it.
    before: u32,
}

impl Runs {
    /// Without pages.
    pub fn new(memory: &Arc<Memory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            first: Span::default(),
            rest: Vec::new(),
            pages: 0,
            tail: [Units::default(); 2],
        }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.pages * PAGE_BYTES + self.tail_len()
    }

    /// Bytes behind the pages.
    #[inline]
    fn tail_len(&self) -> usize {
        self.tail[0].len() + self.tail[1].len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of runs of pages.
    pub(super) fn count(&self) -> usize {
        if self.pages == 0 { 0 } else { 1 + self.rest.len() }
    }

    /// Adds pages at the end that hold `bytes`; false, and none, when fewer are free. Not after
    /// [`Runs::shrink_to`].
    pub fn grow(&mut self, bytes: usize) -> bool {
        debug_assert!(self.tail[0].is_empty(), "runs of fixed length do not grow");
        let Self { memory, first, rest, pages, .. } = self;
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
        self.memory.count_given(surplus);
        self.rest.retain(|span| (span.before as usize) < wanted);
        self.pages = wanted;
    }

    /// Gives back what the first `bytes` bytes do not need: pages at the end, and units of the last one. They
    /// grow no more.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.truncate(bytes);
        let part = bytes % PAGE_BYTES;
        if !self.tail[0].is_empty() || part == 0 || part > PAGE_BYTES - UNIT_BYTES || self.len() < bytes {
            return;
        }
        let (page, _, count) = self.span(self.count() - 1);
        let last = page + count - 1;
        // Until the part has moved: others may take what is free of the last page once it is divided.
        let mut divided = self.memory.divided();
        self.tail = divided.place(last as u32, part);
        let [beginning, end] = self.tail;
        let moves = beginning.page as usize != last;
        // SAFETY: all are mapped and belong to these runs alone, the last page and the units of other pages,
        // which are divided.
        unsafe {
            let base = self.memory.base.as_ptr();
            let from = base.add(last * PAGE_BYTES);
            let len = part.min(beginning.len());
            if moves {
                std::ptr::copy_nonoverlapping(from, base.add(beginning.offset()), len);
            }
            std::ptr::copy_nonoverlapping(from.add(len), base.add(end.offset()), part - len);
        }
        drop(divided);
        if moves {
            self.truncate(bytes - part);
        } else {
            self.pages -= 1;
            self.rest.retain(|span| (span.before as usize) < self.pages);
        }
    }

    /// The bytes from `offset` on, in pieces: one for each run, and the tail.
    #[inline]
    pub fn from(&self, offset: usize) -> impl Iterator<Item = &[u8]> {
        let (first, mut skip) = self.place_of(offset);
        let pages = self.pages * PAGE_BYTES;
        let mut in_tail = offset.saturating_sub(pages);
        let tail = self.tail.into_iter().filter_map(move |units| {
            let skipped = in_tail.min(units.len());
            in_tail -= skipped;
            if skipped == units.len() {
                return None;
            }
            // SAFETY: the units are mapped and belong to these runs alone (`Memory::take_units`), and `self`
            // is borrowed.
            unsafe {
                let at = self.memory.base.as_ptr().add(units.offset() + skipped);
                Some(std::slice::from_raw_parts(at, units.len() - skipped))
            }
        });
        let runs = (first..self.count()).map(move |number| {
            let (page, _, count) = self.span(number);
            let skipped = std::mem::take(&mut skip);
            let at = page * PAGE_BYTES + skipped;
            // SAFETY: the pages are mapped and belong to these runs alone (`Memory::take_runs`), and `self`
            // is borrowed.
            unsafe {
                std::slice::from_raw_parts(self.memory.base.as_ptr().add(at), count * PAGE_BYTES - skipped)
            }
        });
        runs.chain(tail)
    }

    /// The bytes from `offset` on, to write, before [`Runs::shrink_to`].
    pub fn from_mut(&mut self, offset: usize) -> impl Iterator<Item = &mut [u8]> {
        debug_assert!(self.tail[0].is_empty(), "runs of fixed length are not written");
        let (first, mut skip) = self.place_of(offset);
        let runs = &*self;
        (first..runs.count()).map(move |number| {
            let (page, _, count) = runs.span(number);
            let skipped = std::mem::take(&mut skip);
            let at = page * PAGE_BYTES + skipped;
            // SAFETY: as in `from`; `self` is borrowed mutably for as long as the slices live, and runs have
            // no page in common.
            unsafe {
                std::slice::from_raw_parts_mut(
                    runs.memory.base.as_ptr().add(at),
                    count * PAGE_BYTES - skipped,
                )
            }
        })
    }

    /// The run that has the byte at `offset`, or the last one, and the bytes before it in that run; behind
    /// the last one if it is in the tail.
    #[inline]
    fn place_of(&self, offset: usize) -> (usize, usize) {
        if offset >= self.pages * PAGE_BYTES && !self.tail[0].is_empty() {
            return (self.count(), 0);
        }
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
        for units in std::mem::take(&mut self.tail).into_iter().filter(|units| !units.is_empty()) {
            self.memory.give_units(units);
        }
        self.truncate(0);
    }
}

impl std::fmt::Debug for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runs({} of {} pages)", self.count(), self.pages)
    }
}
