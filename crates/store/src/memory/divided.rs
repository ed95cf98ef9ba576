//! Pages that are divided: the last part of a large value, which would leave most of a page empty, shares one
//! with others.
//!
//! A page has 16 units. A part moves to the page whose longest free run of units is the shortest that is long
//! enough. Where there is none its end moves to the longest run that there is, and its beginning to another;
//! where there is none for that either, the page in which it lies is divided: so a value never needs a page
//! more for it. A page that no part has any more goes back. However parts come and go, they have no more
//! pages than if each had one of its own.
//!
//! # Invariants
//! * A unit belongs to one part at most; a divided page is not free in `Pages`, and counts as used.
//! * Each divided page has a unit that is taken, and is in the list of its longest free run.

use std::collections::HashMap;

use super::PAGE_BYTES;

/// Bytes of a unit.
pub(super) const UNIT_BYTES: usize = PAGE_BYTES / UNITS;
/// Units of a page.
const UNITS: usize = 16;

/// Units side by side in one page; none at all by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Units {
    pub(super) page: u32,
    first: u8,
    count: u8,
}

impl Units {
    /// The offset of its first byte in the reservation.
    #[inline]
    pub(super) fn offset(self) -> usize {
        self.page as usize * PAGE_BYTES + usize::from(self.first) * UNIT_BYTES
    }

    /// The size in bytes.
    #[inline]
    pub(super) fn len(self) -> usize {
        usize::from(self.count) * UNIT_BYTES
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.count == 0
    }

    fn mask(self) -> u16 {
        mask(self.first.into(), self.count.into())
    }
}

/// Pages that the last parts of several large values share.
#[derive(Debug, Default)]
pub(super) struct DividedPages {
    pages: HashMap<u32, DividedPage>,
    /// The pages by their longest free run.
    by_run: [Vec<u32>; UNITS],
    /// Free units of all of them.
    free: usize,
}

#[derive(Debug, Clone, Copy)]
struct DividedPage {
    /// Bit set: the unit is free.
    free: u16,
    /// The page's place in its list.
    place: u32,
}

impl DividedPages {
    /// Units for a part of `bytes` bytes (1 to 15 units) in the page `own`: its beginning, and its end if
    /// that is elsewhere. The beginning may be where it is, in `own`, which is divided then; otherwise `own`
    /// has become free of it.
    pub(super) fn place(&mut self, own: u32, bytes: usize) -> [Units; 2] {
        let count = bytes.div_ceil(UNIT_BYTES);
        debug_assert!((1..UNITS).contains(&count), "{bytes} bytes");
        if let Some(units) = self.take(count) {
            return [units, Units::default()];
        }
        let longest = (1..count).rev().find(|run| !self.by_run[*run].is_empty());
        let end = longest.and_then(|run| self.take(run)).unwrap_or_default();
        let count = count - usize::from(end.count);
        let beginning = self.take(count).unwrap_or_else(|| {
            let units = Units { page: own, first: 0, count: count as u8 };
            self.enter(own, !units.mask());
            units
        });
        [beginning, end]
    }

    /// Units side by side. None: no page has as many.
    fn take(&mut self, count: usize) -> Option<Units> {
        let page = *self.by_run[count..].iter().find_map(|list| list.last())?;
        let free = self.leave(page);
        let units = Units { page, first: first_of(free, count) as u8, count: count as u8 };
        self.enter(page, free & !units.mask());
        Some(units)
    }

    /// Gives units back; true: no part has the page any more, and it belongs to the caller.
    pub(super) fn give(&mut self, units: Units) -> bool {
        let free = self.leave(units.page);
        debug_assert_eq!(free & units.mask(), 0, "units freed twice");
        let free = free | units.mask();
        let is_whole = free == u16::MAX;
        if !is_whole {
            self.enter(units.page, free);
        }
        is_whole
    }

    /// Bytes of these pages that no part has.
    pub(super) fn free_bytes(&self) -> usize {
        self.free * UNIT_BYTES
    }

    fn enter(&mut self, page: u32, free: u16) {
        self.free += free.count_ones() as usize;
        let list = &mut self.by_run[longest_run(free)];
        self.pages.insert(page, DividedPage { free, place: list.len() as u32 });
        list.push(page);
    }

    /// Takes a page out of its list; its free units.
    fn leave(&mut self, page: u32) -> u16 {
        let DividedPage { free, place } = self.pages.remove(&page).expect("units are of a divided page");
        self.free -= free.count_ones() as usize;
        let list = &mut self.by_run[longest_run(free)];
        list.swap_remove(place as usize);
        if let Some(moved) = list.get(place as usize).and_then(|moved| self.pages.get_mut(moved)) {
            moved.place = place;
        }
        free
    }
}

/// `count` bits (1 to 15) from `first` upwards.
fn mask(first: usize, count: usize) -> u16 {
    ((1 << count) - 1) << first
}

/// Length of the longest run of set bits; of a page that is divided, so less than 16.
fn longest_run(free: u16) -> usize {
    let (mut left, mut length) = (free, 0);
    while left != 0 {
        left &= left >> 1;
        length += 1;
    }
    length.min(UNITS - 1)
}

/// Where the shortest run of set bits begins that has at least `count`.
fn first_of(free: u16, count: usize) -> usize {
    let (mut first, mut best) = (0, UNITS + 1);
    let mut at = 0;
    while at < UNITS {
        let run = (free >> at).trailing_ones() as usize;
        if run >= count && run < best {
            (first, best) = (at, run);
        }
        at += run.max(1);
    }
    debug_assert!(best <= UNITS, "a run is long enough");
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_units() {
        for (free, longest) in [(0, 0), (1, 1), (0b1011, 2), (0xff0f, 8), (0x7fff, 15), (0xfffe, 15)] {
            assert_eq!(longest_run(free), longest, "{free:b}");
        }
        assert_eq!(first_of(u16::MAX, 3), 0);
        assert_eq!(first_of(0b1110_1111_1011, 3), 9, "the shortest that is long enough");
        assert_eq!(first_of(0b1111_0000_0000_0000, 4), 12);
    }

    #[test]
    fn no_unit_is_taken_twice_and_all_go_back() {
        let (mut divided, mut random) = (DividedPages::default(), 7_u64);
        let mut taken: Vec<[Units; 2]> = Vec::new();
        let (mut next, mut whole) = (0, Vec::new());
        for round in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 33) as usize;
            let is_fourth = number.is_multiple_of(4);
            let grows = is_fourth != (round / 2000_u32).is_multiple_of(2);
            if grows || taken.is_empty() {
                let bytes = 1 + number / 4 % (15 * UNIT_BYTES);
                let own = whole.pop().unwrap_or_else(|| {
                    next += 1;
                    next
                });
                let both = divided.place(own, bytes);
                let len = both[0].len() + both[1].len();
                assert!(len >= bytes && len < bytes + UNIT_BYTES && !both[0].is_empty(), "{both:?}");
                if both[0].page != own {
                    whole.push(own);
                }
                taken.push(both);
            } else {
                let both = taken.swap_remove(number / 4 % taken.len());
                for units in both.into_iter().filter(|units| !units.is_empty()) {
                    if divided.give(units) {
                        whole.push(units.page);
                    }
                }
            }
            if round % 100 == 0 {
                let mut used: HashMap<u32, u16> = HashMap::new();
                for units in taken.iter().flatten().filter(|units| !units.is_empty()) {
                    let page = used.entry(units.page).or_default();
                    assert_eq!(*page & units.mask(), 0, "{units:?}");
                    *page |= units.mask();
                }
                assert_eq!(used.len(), divided.pages.len());
                assert!(used.iter().all(|(page, taken)| divided.pages[page].free == !taken));
                let listed: usize = divided.by_run.iter().map(Vec::len).sum();
                assert_eq!(listed, used.len());
                let free: u32 = used.values().map(|taken| taken.count_zeros()).sum();
                assert_eq!(divided.free_bytes(), free as usize * UNIT_BYTES);
                assert!(used.len() <= taken.len(), "no more pages than parts");
            }
        }
        for units in taken.drain(..).flatten().filter(|units| !units.is_empty()) {
            divided.give(units);
        }
        assert!(divided.pages.is_empty() && divided.by_run.iter().all(Vec::is_empty));
        assert_eq!(divided.free_bytes(), 0);
    }

    /// Parts of any one length fill their pages, since they may be in two pieces.
    #[test]
    fn parts_of_one_length_leave_little_free() {
        for count in 1..UNITS {
            let mut divided = DividedPages::default();
            for own in 0..1000 {
                divided.place(own, count * UNIT_BYTES);
            }
            let (all, taken) = (divided.pages.len() * PAGE_BYTES, 1000 * count * UNIT_BYTES);
            assert!(all - taken < PAGE_BYTES, "{count}: {all} bytes for {taken}");
        }
    }
}
