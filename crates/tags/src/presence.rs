//! Which tags an item or an open miss may have, so that bumps of all others need not be recorded.
//!
//! A server that follows a log bumps a tag for each row that changes, whether anything was made from it or
//! not. Recorded, a flood of them would make tags look bumped that were not
//! ([`false_stale_share`](crate::false_stale_share)). So a tag is *noted* before an item or a miss has it,
//! and a bump of a tag that was not noted raises no slot.
//!
//! # Generations
//! Notes are bits of a filter, 8 for each slot of a row and two for each tag, both in one word; they are
//! never taken back. So there are two filters. Each tag is noted in both; bumps ask the one *in force*. The
//! other one is cleared, then filled with the tags of all items, and takes the place of the first when this
//! is done and no miss is open that is older. Until the first one is in force all bumps are recorded.
//!
//! # Late names
//! A client may name a tag with its value: at its miss the tag was not noted, and a bump in between was left
//! out. Bumps that are left out are therefore kept in small arrays, and who names tags raises the slots to
//! what those say ([`Presence::left_out`]). Most servers have no such client. When there is one, arrays of
//! the size of the slots take the place of the small ones ([`Tags::name_exactly`]): of a bump before they
//! were there only the small ones know, so that it counts as one of that moment at most.
//!
//! # Order
//! A bump that is left out is put into these arrays *before* its bits are looked at for the last time; a tag
//! that is named is noted *before* they are read. Each has a fence in between, so at least one of both sees
//! the other (`tests/it/loom.rs`: `a_tag_that_is_named_while_a_bump_is_left_out`).

use std::sync::OnceLock;

use crate::bumps::{BumpKind, Bumps};
use crate::check::Tags;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence, zeros};
use crate::tag::TagHash;

/// Slots of a row for each word of a filter.
const SLOTS_PER_WORD: usize = 8;

/// The small arrays have one part of this many of the memory of the slots, at most.
const LEFT_OUT_PART: usize = 8;

/// The tags that an item or an open miss may have.
#[derive(Debug)]
pub(crate) struct Presence {
    /// Those of even generations, and of odd ones.
    filters: [Box<[AtomicU64]>; 2],
    /// The generation whose filter is in force; 0: none is, and all tags may be there.
    in_force: AtomicU64,
    /// The last generation that ended.
    ended: AtomicU64,
    /// Bits that were set since the filter was cleared, in each.
    bits: [AtomicU64; 2],
    /// The last bumps that were left out.
    left_out: Bumps,
    /// The bumps that were left out since `exact_since`, in arrays of full size.
    exact: OnceLock<Bumps>,
    /// A number that was given out when they were there; 0: they are not, or may not be for all bumps.
    exact_since: AtomicU64,
    /// A tag was named late.
    is_named: AtomicBool,
    /// How many there were.
    count: AtomicU64,
}

impl Presence {
    /// No tag is noted, and all may be there. `slots`: of a row of the arrays of bumps.
    pub(crate) fn new(slots: usize) -> Self {
        let words = Self::words(slots);
        Self {
            filters: [zeros(words), zeros(words)],
            in_force: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            bits: [AtomicU64::new(0), AtomicU64::new(0)],
            left_out: Bumps::new(Self::left_out_bytes(slots)),
            exact: OnceLock::new(),
            exact_since: AtomicU64::new(0),
            is_named: AtomicBool::new(false),
            count: AtomicU64::new(0),
        }
    }

    fn words(slots: usize) -> usize {
        (slots / SLOTS_PER_WORD).max(1)
    }

    fn left_out_bytes(slots: usize) -> usize {
        Bumps::bytes_of(slots) / LEFT_OUT_PART
    }

    /// Bytes of what [`Presence::new`] allocates.
    pub(crate) fn bytes_of(slots: usize) -> usize {
        2 * Self::words(slots) * size_of::<u64>() + Self::left_out_bytes(slots)
    }

    /// An item or a miss has this tag from now on, or is about to.
    pub(crate) fn note(&self, tag: TagHash) {
        let (word, mask) = self.place(tag);
        for (filter, bits) in self.filters.iter().zip(&self.bits) {
            if filter[word].load(Ordering::Relaxed) & mask != mask {
                let before = filter[word].fetch_or(mask, Ordering::Relaxed);
                bits.fetch_add(u64::from((mask & !before).count_ones()), Ordering::Relaxed);
            }
        }
    }

    /// Whether an item or a miss may have this tag.
    pub(crate) fn may_have(&self, tag: TagHash) -> bool {
        let (word, mask) = self.place(tag);
        loop {
            let generation = self.in_force.load(Ordering::Acquire);
            if generation == 0 {
                return true;
            }
            let bits = self.filters[parity(generation)][word].load(Ordering::Relaxed);
            // Bits of a filter that was cleared since are not seen without the generation that took its
            // place.
            fence(Ordering::Acquire);
            if self.in_force.load(Ordering::Relaxed) == generation {
                return bits & mask == mask;
            }
        }
    }

    /// Leaves a bump out, unless the tag is noted meanwhile: true. `take_number`: as for [`Bumps::bump`].
    pub(crate) fn leave_out(&self, tag: TagHash, kind: BumpKind, take_number: impl FnOnce() -> u64) -> bool {
        if self.may_have(tag) {
            return false;
        }
        let number = self.left_out.bump(tag, kind, take_number);
        fence(Ordering::SeqCst);
        // A number above `exact_since` was taken when the arrays were there.
        if let Some(exact) = self.exact.get() {
            exact.raise_late(tag, kind, number);
        }
        fence(Ordering::SeqCst);
        let is_left_out = !self.may_have(tag);
        self.count.fetch_add(u64::from(is_left_out), Ordering::Relaxed);
        is_left_out
    }

    /// The numbers of the last bumps of a tag that were left out, hard and soft; 0: none. By collision they
    /// can be too high. The tag was noted before.
    pub(crate) fn left_out(&self, tag: TagHash) -> [u64; 2] {
        fence(Ordering::SeqCst);
        let since = self.exact_since.load(Ordering::Acquire);
        let exact = self.exact.get().filter(|_| since > 0);
        [BumpKind::Hard, BumpKind::Soft].map(|kind| {
            let few = self.left_out.last_own(tag, kind);
            exact.map_or(few, |exact| exact.last_own(tag, kind).max(few.min(since)))
        })
    }

    /// Bytes of the arrays of full size, if they are there.
    pub(crate) fn exact_bytes(&self) -> usize {
        self.exact.get().map_or(0, Bumps::memory_bytes)
    }

    /// Whether the arrays of full size are wanted and not there.
    pub(crate) fn wants_exact(&self) -> bool {
        self.is_named.load(Ordering::Relaxed) && self.exact.get().is_none()
    }

    /// Makes them. `take_number` gives the clock's next number.
    pub(crate) fn make_exact(&self, bytes: usize, take_number: impl FnOnce() -> u64) {
        self.exact.get_or_init(|| Bumps::new(bytes));
        // Bumps with a higher number find them.
        fence(Ordering::SeqCst);
        self.exact_since.store(take_number(), Ordering::Release);
    }

    /// How many bumps were left out.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The share of bits that are set in the filter in force, 0.0..=1.0; `None`: none is.
    pub(crate) fn share(&self) -> Option<f64> {
        let generation = self.in_force.load(Ordering::Relaxed);
        let all = self.filters[0].len() * u64::BITS as usize;
        let bits = self.bits[parity(generation)].load(Ordering::Relaxed);
        (generation > 0).then_some(bits as f64 / all as f64)
    }

    /// Begins a generation: clears the filter that is not in force. One thread at a time.
    pub(crate) fn begin(&self) {
        let next = parity(self.ended.load(Ordering::Relaxed) + 1);
        // Who sees a cleared word sees that the filter is not in force.
        fence(Ordering::Release);
        for word in &self.filters[next] {
            word.store(0, Ordering::Relaxed);
        }
        self.bits[next].store(0, Ordering::Relaxed);
    }

    /// Ends it: the tags of all items, and of all misses that are open, were noted since it began.
    pub(crate) fn end(&self) {
        let generation = self.ended.load(Ordering::Relaxed) + 1;
        self.ended.store(generation, Ordering::Relaxed);
        self.in_force.store(generation, Ordering::Release);
    }

    /// Records all bumps again, until a generation that begins later has ended.
    pub(crate) fn record_all(&self) {
        self.in_force.store(0, Ordering::Release);
    }

    /// The word of a tag, and its bits there: of other parts of the hash than those that choose its slots
    /// alone.
    fn place(&self, tag: TagHash) -> (usize, u64) {
        let mixed = tag.get().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let word = (u128::from(mixed) * self.filters[0].len() as u128) >> 64;
        let bit = |shift: u32| 1_u64 << (tag.get() >> shift & 63);
        (word as usize, bit(20) | bit(52))
    }
}

/// The filter of a generation.
fn parity(generation: u64) -> usize {
    (generation & 1) as usize
}

impl Tags {
    /// Bumps by [`Tags::leaves_out`] concern noted tags only from now on, when a generation has ended.
    pub fn select(&self) {
        self.presence.get_or_init(|| Presence::new(self.bumps().slots_per_row()));
    }

    /// Whether tags are noted: [`Tags::select`] was called.
    #[inline]
    pub fn selects(&self) -> bool {
        self.presence.get().is_some()
    }

    /// Bytes that [`Tags::select`] takes.
    pub fn select_bytes(&self) -> usize {
        Presence::bytes_of(self.bumps().slots_per_row())
    }

    /// An item or a miss is about to have these tags: its number is taken after this has returned.
    #[inline]
    pub fn note(&self, tags: &[u64]) {
        if let Some(presence) = self.presence.get() {
            for tag in tags {
                presence.note(TagHash::from_stored(*tag));
            }
            // A bump that takes a later number sees the notes.
            fence(Ordering::Release);
        }
    }

    /// Notes tags that were not noted at the miss: bumps since then that were left out are recorded now.
    ///
    /// The arguments are those of [`Tags::bump_softly`].
    pub fn note_named(&self, tags: &[u64], now_ms: u64, grace_ms: u64, time_of: impl Fn(u64) -> u64) {
        let Some(presence) = self.presence.get() else { return };
        if !tags.is_empty() && !presence.is_named.load(Ordering::Relaxed) {
            presence.is_named.store(true, Ordering::Relaxed);
        }
        self.note(tags);
        for tag in tags.iter().map(|tag| TagHash::from_stored(*tag)) {
            for (kind, number) in [BumpKind::Hard, BumpKind::Soft].into_iter().zip(presence.left_out(tag)) {
                if number > self.bumps().last_own(tag, kind) {
                    self.raise_late(tag, kind, number, now_ms, grace_ms, &time_of);
                }
            }
        }
    }

    /// Whether a bump of this tag may be left out, since no item and no miss has it; otherwise it must be
    /// made. `take_number`: as for [`Bumps::bump`], called once at most.
    pub fn leaves_out(&self, tag: TagHash, kind: BumpKind, take_number: impl FnOnce() -> u64) -> bool {
        self.presence.get().is_some_and(|presence| presence.leave_out(tag, kind, take_number))
    }

    /// Whether clients name tags with their values, and [`Tags::name_exactly`] was not called: what was left
    /// out looks bumped to them more often than what was recorded.
    pub fn names_roughly(&self) -> bool {
        self.presence.get().is_some_and(Presence::wants_exact)
    }

    /// Takes as much memory again as the slots of bumps, so that tags that are named late look bumped as
    /// seldom as others. `take_number`: as for [`Bumps::bump`].
    pub fn name_exactly(&self, take_number: impl FnOnce() -> u64) {
        if let Some(presence) = self.presence.get() {
            presence.make_exact(self.bumps().memory_bytes(), take_number);
        }
    }

    /// Begins a generation of notes, which forgets those that are not made again. One thread at a time.
    pub fn begin_notes(&self) {
        if let Some(presence) = self.presence.get() {
            presence.begin();
        }
    }

    /// Ends it: the tags of all items, and of all misses that are open, were noted since it began.
    pub fn end_notes(&self) {
        if let Some(presence) = self.presence.get() {
            presence.end();
        }
    }

    /// Leaves no bump out until a generation that begins later has ended.
    pub fn record_all(&self) {
        if let Some(presence) = self.presence.get() {
            presence.record_all();
        }
    }

    /// Share of bits that notes have set, 0.0..=1.0: above a half, many tags look noted that are not. `None`:
    /// no generation has ended.
    pub fn noted_share(&self) -> Option<f64> {
        self.presence.get()?.share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Validity;
    use crate::tag::TagHasher;

    fn tag(number: u64) -> TagHash {
        TagHasher::new(5).hash(format!("row:{number}").as_bytes()).unwrap()
    }

    #[test]
    fn all_may_be_there_until_the_first_generation_has_ended() {
        let presence = Presence::new(1 << 12);
        assert!(presence.may_have(tag(1)) && !presence.leave_out(tag(1), BumpKind::Hard, || 1));
        presence.begin();
        presence.note(tag(2));
        assert!(presence.may_have(tag(1)));
        presence.end();
        assert!(!presence.may_have(tag(1)) && presence.may_have(tag(2)));
        presence.record_all();
        assert!(presence.may_have(tag(1)));
    }

    #[test]
    fn what_is_not_noted_again_is_forgotten() {
        let presence = Presence::new(1 << 12);
        presence.begin();
        presence.note(tag(1));
        presence.end();
        for generation in 0..4 {
            presence.begin();
            presence.note(tag(2));
            assert_eq!(presence.may_have(tag(1)), generation == 0, "still that of the one before");
            presence.end();
            assert!(!presence.may_have(tag(1)) && presence.may_have(tag(2)));
        }
    }

    /// Share of a thousand tags that are named after a flood and look bumped, and of a hundred that were,
    /// among those of the flood.
    fn named_after(rows: u64, is_exact: bool) -> (f64, f64) {
        let (tags, clock) = (Tags::new(1 << 18), std::cell::Cell::new(0));
        let tick = || {
            clock.set(clock.get() + 1);
            clock.get()
        };
        tags.select();
        tags.begin_notes();
        tags.end_notes();
        assert!(!tags.names_roughly());
        tags.note_named(&[tag(1 << 40).get()], 0, 0, |_| 0);
        assert!(tags.names_roughly());
        let early = tick();
        assert!(tags.leaves_out(tag(0), BumpKind::Hard, tick));
        if is_exact {
            tags.name_exactly(tick);
            assert!(!tags.names_roughly());
        }
        let stamp = tick();
        for n in 1..rows {
            assert!(tags.leaves_out(tag(n), BumpKind::Hard, tick));
        }
        let dead = |stamp: u64, n: u64| {
            tags.note_named(&[tag(n).get()], 0, 0, |_| 0);
            tags.check(stamp, [tag(n).get()], n, 0) != Validity::Valid
        };
        assert!(dead(early, 0), "what was bumped before the arrays were there");
        // Those of the flood last: they raise slots.
        let others = (1 << 32..(1 << 32) + 1000).filter(|n| dead(stamp, *n)).count();
        let bumped = (1..101).filter(|n| dead(stamp, *n)).count();
        (others as f64 / 1000.0, bumped as f64 / 100.0)
    }

    #[test]
    fn tags_that_are_named_late_look_bumped_as_seldom_as_others_when_there_are_arrays_for_them() {
        let (others, bumped) = named_after(1000, true);
        assert!(others < 0.05 && bumped > 0.999, "{others} {bumped}");
        let (rough, bumped) = named_after(1000, false);
        assert!(rough > 4.0 * others && bumped > 0.999, "{rough} {others} {bumped}");
    }

    #[test]
    fn what_is_left_out_is_known_to_who_names_the_tag() {
        let presence = Presence::new(1 << 12);
        presence.begin();
        presence.end();
        assert!(
            presence.leave_out(tag(1), BumpKind::Hard, || 7)
                && presence.leave_out(tag(1), BumpKind::Soft, || 8)
        );
        presence.note(tag(1));
        assert_eq!(
            (presence.left_out(tag(1)), presence.left_out(tag(2)), presence.count()),
            ([7, 8], [0, 0], 2)
        );
        assert!(!presence.leave_out(tag(1), BumpKind::Hard, || 9), "it is noted now");
    }

    /// Share of a thousand tags in use that look bumped after a flood of other rows, and the bumps left out.
    fn after_a_flood(rows: u64, selects: bool) -> (f64, u64) {
        let (tags, clock) = (Tags::new(1 << 18), std::cell::Cell::new(0));
        let tick = || {
            clock.set(clock.get() + 1);
            clock.get()
        };
        if selects {
            tags.select();
            tags.begin_notes();
            tags.end_notes();
        }
        let used = 1 << 32..(1 << 32) + 1000;
        used.clone().for_each(|n| tags.note(&[tag(n).get()]));
        let stamp = tick();
        for n in 0..rows {
            if !tags.leaves_out(tag(n), BumpKind::Hard, tick) {
                tags.bumps().bump(tag(n), BumpKind::Hard, tick);
            }
        }
        let dead =
            used.clone().filter(|n| tags.check(stamp, [tag(*n).get()], *n, 0) != Validity::Valid).count();
        // A row that has pages is another matter.
        assert!(!tags.leaves_out(tag(used.start), BumpKind::Hard, tick));
        (dead as f64 / 1000.0, tags.stats().left_out)
    }

    #[test]
    fn a_flood_of_rows_leaves_the_tags_in_use_alone() {
        let rows = 20_000;
        let (all, none) = (after_a_flood(rows, false), after_a_flood(rows, true));
        assert!(all.0 > 0.6 && all.1 == 0, "{all:?}");
        assert!(none.0 < 0.01 && none.1 > rows * 9 / 10, "{none:?}");
    }

    #[test]
    fn who_names_a_tag_obeys_what_was_left_out() {
        let (tags, clock) = (Tags::new(1 << 16), std::cell::Cell::new(0));
        let tick = || {
            clock.set(clock.get() + 1);
            clock.get()
        };
        tags.select();
        tags.begin_notes();
        tags.end_notes();
        let check = |stamp, n| tags.check(stamp, [tag(n).get()], 7, 0);
        let miss = tick();
        assert!(
            tags.leaves_out(tag(1), BumpKind::Hard, tick) && tags.leaves_out(tag(2), BumpKind::Soft, tick)
        );
        assert_eq!(tags.last(tag(1)), 2, "it is known all the same");
        let later = tick();
        for n in [1, 2, 3] {
            tags.note_named(&[tag(n).get()], 0, 0, |_| 0);
        }
        assert_eq!([1, 2, 3].map(|n| check(miss, n)), [Validity::Dead, Validity::Stale, Validity::Valid]);
        assert_eq!([1, 2, 3].map(|n| check(later, n)), [Validity::Valid; 3]);
    }

    #[test]
    fn few_others_look_noted() {
        // As many tags as slots of a row.
        let slots = 1 << 14;
        let presence = Presence::new(slots);
        presence.begin();
        presence.end();
        (0..slots as u64).for_each(|n| presence.note(tag(n)));
        assert!((0..slots as u64).all(|n| presence.may_have(tag(n))));
        let others = 100_000;
        let noted = (1 << 20..(1 << 20) + others).filter(|n| presence.may_have(tag(*n))).count();
        let share = noted as f64 / others as f64;
        assert!((0.03..0.09).contains(&share), "{share}");
        assert!((presence.share().unwrap() - 0.22).abs() < 0.01, "{:?}", presence.share());
    }

    #[test]
    fn its_memory_is_a_part_of_that_of_the_slots() {
        for bytes in [32, 1 << 10, 1 << 20, 64 << 20] {
            let bumps = Bumps::new(bytes);
            let own = Presence::bytes_of(bumps.slots_per_row());
            assert!(own <= (bytes / 5).max(64), "{bytes}: {own}");
        }
    }
}
