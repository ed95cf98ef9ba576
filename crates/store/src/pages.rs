//! Which pages of the budget are free, and where the next ones are taken.
//!
//! Aligned runs, for segments and the index, are searched upwards, large values' pages downwards from the
//! top, so that both stay together. No search looks at pages that are not free. A search for a large value
//! looks at few words of the bitmap: it takes several runs rather than search for a run of the whole length.
//!
//! # Invariants
//! * `some` has the words of `free` that are not 0, `full` those that are all ones.
//! * Pages from `mapped` on are not free.

use crate::numbers::NumberSet;

/// The free pages of the budget.
pub(crate) struct Pages {
    /// Bit set: the page is free.
    free: Vec<u64>,
    /// Words of `free` with free pages.
    some: NumberSet,
    /// Words of `free` with free pages only.
    full: NumberSet,
    /// Bit set: the page was handed out since its memory was last given back to the system.
    touched: Vec<u64>,
    /// Bit set: free and touched at the last [`Pages::purge`]; cleared when handed out.
    aged: Vec<u64>,
    /// Number of bits of `touched`: pages that may be resident.
    resident: usize,
    /// Word at which the last [`Pages::discard`] ended.
    discarded: usize,
    /// Pages that can be read and written: [0, mapped).
    mapped: usize,
    /// Where the last search for an aligned run of 2^n pages ended, by n: runs of a size stay together,
    /// so that index pages do not break up the room for segments.
    cursors: [usize; 64],
}

/// Words of the bitmap in which a run that is long enough is searched, in addition to those that it fills.
const LOOKS: usize = 8;

impl Pages {
    /// None of `reserved` pages, a multiple of 64, is mapped.
    pub(crate) fn new(reserved: usize) -> Self {
        let words = reserved / 64;
        Self {
            free: vec![0; words],
            some: NumberSet::new(words),
            full: NumberSet::new(words),
            touched: vec![0; words],
            aged: vec![0; words],
            resident: 0,
            discarded: 0,
            mapped: 0,
            cursors: [0; 64],
        }
    }

    /// Pages that can be read and written.
    pub(crate) fn mapped(&self) -> usize {
        self.mapped
    }

    /// The pages below `mapped`, a multiple of 64 and no less than before, can be read and written. New ones
    /// are free.
    pub(crate) fn map_up_to(&mut self, mapped: usize) {
        for word in self.mapped / 64..mapped / 64 {
            self.set_word(word, u64::MAX);
        }
        self.mapped = mapped;
    }

    #[inline]
    fn set_word(&mut self, word: usize, bits: u64) {
        let before = std::mem::replace(&mut self.free[word], bits);
        if (before == 0) != (bits == 0) {
            self.some.set(word, bits != 0);
        }
        if (before == u64::MAX) != (bits == u64::MAX) {
            self.full.set(word, bits == u64::MAX);
        }
    }

    /// First free run of `count` pages, a power of two, at a multiple of `count`, searched from the last find
    /// onwards.
    pub(crate) fn find_aligned(&mut self, count: usize) -> Option<usize> {
        let cursor = count.trailing_zeros() as usize;
        let span = count.div_ceil(64);
        let start = self.cursors[cursor] / span * span;
        let at = self
            .find_aligned_in(count, start, usize::MAX)
            .or_else(|| self.find_aligned_in(count, 0, start))?;
        self.cursors[cursor] = at / 64;
        Some(at)
    }

    /// [`Pages::find_aligned`] in the words [from, until).
    fn find_aligned_in(&self, count: usize, from: usize, until: usize) -> Option<usize> {
        let mut from = from;
        if count < 64 {
            while let Some(word) = self.some.first_from(from).filter(|word| *word < until) {
                let aligned = (0..64).step_by(count).find(|bit| {
                    let mask = mask(*bit, count);
                    self.free[word] & mask == mask
                });
                if let Some(bit) = aligned {
                    return Some(word * 64 + bit);
                }
                from = word + 1;
            }
            return None;
        }
        let span = count / 64;
        while let Some(word) = self.full.first_from(from).filter(|word| *word < until) {
            let first = word / span * span;
            if first == word && self.is_full(word, span) {
                return Some(word * 64);
            }
            from = first + span;
        }
        None
    }

    /// Whether all pages of `span` words (a power of two, at a multiple of itself) are free.
    fn is_full(&self, word: usize, span: usize) -> bool {
        if span > 64 {
            return (word..word + span).step_by(64).all(|word| self.is_full(word, 64));
        }
        let mask = mask(word % 64, span);
        self.full.words().get(word / 64).is_some_and(|full| full & mask == mask)
    }

    /// First free page, searched from the last find onwards.
    pub(crate) fn find_page(&mut self) -> Option<usize> {
        let word = self.some.first_from(self.cursors[0]).or_else(|| self.some.first_from(0))?;
        self.cursors[0] = word;
        Some(word * 64 + self.free[word].trailing_zeros() as usize)
    }

    /// A free run of 1 to `count` pages, of `count` if one that long is among the highest free pages: where
    /// it begins, and its pages.
    pub(crate) fn run_from_top(&self, count: usize) -> Option<(usize, usize)> {
        let highest = self.some.last_below(usize::MAX)?;
        let (mut word, mut run) = (highest, 0);
        for _ in 0..LOOKS + 2 * count / 64 {
            let bits = self.free[word];
            let upper = bits.leading_ones() as usize;
            if run + upper >= count {
                return Some(((word + 1) * 64 + run - count, count));
            }
            let starts = if count < 64 { starts(bits, count) } else { 0 };
            if starts != 0 {
                return Some((word * 64 + 63 - starts.leading_zeros() as usize, count));
            }
            run = if upper == 64 { run + 64 } else { bits.trailing_ones() as usize };
            let Some(next) = self.some.last_below(word) else { break };
            if next + 1 != word {
                run = 0;
            }
            word = next;
        }
        let bits = self.free[highest];
        let top = 63 - bits.leading_zeros() as usize;
        let length = (bits << (63 - top)).leading_ones() as usize;
        let length = length.min(count);
        Some((highest * 64 + top + 1 - length, length))
    }

    /// Marks single pages as free. The next search for one begins at the lowest of them, so that they stay
    /// together.
    pub(crate) fn put_back(&mut self, pages: impl Iterator<Item = u32>) {
        for page in pages {
            self.mark(page as usize, 1, true);
            self.cursors[0] = self.cursors[0].min(page as usize / 64);
        }
    }

    /// Marks `count` pages from `at` on as free, or as handed out.
    pub(crate) fn mark(&mut self, at: usize, count: usize, free: bool) {
        let mut page = at;
        while page < at + count {
            let (word, bit) = (page / 64, page % 64);
            let n = (64 - bit).min(at + count - page);
            let mask = mask(bit, n);
            let bits = self.free[word];
            if free {
                debug_assert_eq!(bits & mask, 0, "page freed twice");
                self.set_word(word, bits | mask);
            } else {
                debug_assert_eq!(bits & mask, mask, "page taken twice");
                self.set_word(word, bits & !mask);
                self.resident += (mask & !self.touched[word]).count_ones() as usize;
                self.touched[word] |= mask;
                self.aged[word] &= !mask;
            }
            page += n;
        }
    }

    /// Calls `discard` with runs of pages that were free and touched at the last call and still are: first
    /// page and number. Returns the number of all of them.
    pub(crate) fn purge(&mut self, mut discard: impl FnMut(usize, usize)) -> usize {
        let mut purged = 0;
        for word in 0..self.mapped / 64 {
            let idle = self.free[word] & self.touched[word];
            let mut due = idle & self.aged[word];
            self.aged[word] = idle;
            while due != 0 {
                let first = due.trailing_zeros() as usize;
                let count = (due >> first).trailing_ones() as usize;
                discard(word * 64 + first, count);
                purged += count;
                let mask = mask(first, count);
                due &= !mask;
                self.touched[word] &= !mask;
                self.aged[word] &= !mask;
            }
        }
        self.resident -= purged;
        purged
    }

    /// Pages that were handed out since their memory was last given back: as many as may be resident.
    #[inline]
    pub(crate) fn touched(&self) -> usize {
        self.resident
    }

    /// Calls `discard` with runs of free pages that were touched, first page and number, until `count` pages
    /// or a few more were given back, or there are none.
    #[cold]
    pub(crate) fn discard(&mut self, count: usize, mut discard: impl FnMut(usize, usize)) {
        let mut done = 0;
        for step in 0..=self.free.len() {
            let word = (self.discarded + step) % self.free.len();
            let mut due = self.free[word] & self.touched[word];
            while due != 0 && done < count {
                let first = due.trailing_zeros() as usize;
                let run = (due >> first).trailing_ones() as usize;
                discard(word * 64 + first, run);
                done += run;
                let mask = mask(first, run);
                due &= !mask;
                self.touched[word] &= !mask;
                self.aged[word] &= !mask;
            }
            if done >= count {
                self.discarded = word;
                break;
            }
        }
        self.resident -= done;
    }

    /// Whether a run of `count` pages, a power of two, is free at a multiple of `count`.
    pub(crate) fn has_aligned(&self, count: usize) -> bool {
        self.find_aligned_in(count, 0, usize::MAX).is_some()
    }
}

/// `count` bits (1..=64) from `bit` upwards.
fn mask(bit: usize, count: usize) -> u64 {
    (u64::MAX >> (64 - count)) << bit
}

/// The bits from which on upwards `count` (1..=64) are set.
fn starts(bits: u64, count: usize) -> u64 {
    let (mut starts, mut have) = (bits, 1);
    while have < count {
        let more = have.min(count - have);
        starts &= starts >> more;
        have += more;
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages as plain booleans.
    fn free(pages: &Pages) -> Vec<bool> {
        (0..pages.mapped).map(|page| pages.free[page / 64] >> (page % 64) & 1 == 1).collect()
    }

    fn verify(pages: &Pages) {
        for (word, bits) in pages.free.iter().enumerate() {
            let is_in = |set: &NumberSet| set.words()[word / 64] >> (word % 64) & 1 == 1;
            assert_eq!((is_in(&pages.some), is_in(&pages.full)), (*bits != 0, *bits == u64::MAX), "{word}");
        }
    }

    #[test]
    fn starts_of_runs_in_a_word() {
        for bits in [0, 1, u64::MAX, 0xf0f0_ff00_0000_0001, 0x8000_0000_0000_0003, u64::MAX >> 1] {
            for count in 1..=64 {
                let expected = (0..=64 - count).filter(|at| bits >> at & mask(0, count) == mask(0, count));
                assert_eq!(starts(bits, count), expected.map(|at| 1 << at).sum::<u64>(), "{bits:x} {count}");
            }
        }
    }

    /// What is found is free, and an aligned run is found if there is one.
    #[test]
    fn searches_agree_with_plain_ones() {
        const PAGES: usize = 64 * 70;
        let mut pages = Pages::new(PAGES + 128);
        pages.map_up_to(PAGES);
        let mut seed = 1_u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for step in 0..4_000 {
            let now = free(&pages);
            if random(100) < 45 && !taken.is_empty() {
                let (at, count) = taken.swap_remove(random(taken.len()));
                pages.mark(at, count, true);
            } else if random(3) == 0 {
                let count = 1 << random(9);
                let is_free = |at: usize| now[at..at + count].iter().all(|free| *free);
                let exists = (0..=PAGES - count).step_by(count).any(is_free);
                let found = pages.find_aligned(count);
                assert_eq!(found.is_some(), exists, "step {step}: {count} pages");
                if let Some(at) = found {
                    assert!(at.is_multiple_of(count) && is_free(at));
                    pages.mark(at, count, false);
                    taken.push((at, count));
                }
            } else {
                let count = 1 + random(200);
                let found = pages.run_from_top(count);
                assert_eq!(found.is_some(), now.contains(&true));
                if let Some((at, n)) = found {
                    assert!((1..=count).contains(&n) && now[at..at + n].iter().all(|free| *free));
                    pages.mark(at, n, false);
                    taken.push((at, n));
                }
            }
            verify(&pages);
        }
        for (at, count) in taken {
            pages.mark(at, count, true);
        }
        verify(&pages);
        assert!(free(&pages).iter().all(|free| *free));
        assert_eq!(pages.run_from_top(PAGES), Some((0, PAGES)));
        assert_eq!(pages.run_from_top(65), Some((PAGES - 65, 65)));
    }

    #[test]
    fn a_long_run_below_few_holes_is_found() {
        let mut pages = Pages::new(64 * 32);
        pages.map_up_to(64 * 32);
        pages.mark(64 * 28, 64 * 4, false);
        for hole in 0..4 {
            pages.mark(64 * (28 + hole) + 7, 3, true);
        }
        assert_eq!(pages.run_from_top(4), Some((64 * 28 - 4, 4)));
        assert_eq!(pages.run_from_top(3), Some((64 * 31 + 7, 3)));
        assert_eq!(pages.run_from_top(200), Some((64 * 28 - 200, 200)));
    }
}
