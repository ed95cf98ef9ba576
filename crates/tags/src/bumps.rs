//! The last bump of each tag: two arrays of numbers, hard and soft; and the floors of all tags, of each class
//! of items.
//!
//! Both have two rows of `2^k` slots, and a tag has one slot in each row. Hard and soft numbers of a place
//! are adjacent, so that a look-up of both kinds reaches one cache line for each row:
//! ```text
//!   row 0   | hard soft | hard soft | ... 2^k          row 1   | hard soft | hard soft | ... 2^k
//! ```
//! # Order
//! Bumps are serialised by one lock: take the number, raise the slots, publish it as `last_bump` (release). A
//! thread that loads `last_bump` (acquire) and then slots sees all slots that were raised up to that bump.
//! Slots are read without the lock. A thread may see the old or the new number of a slot that a bump is
//! raising: that bump has not been answered yet.
//!
//! # Invariants
//! * A slot never goes down, so a bump is never forgotten.
//! * Numbers of bumps rise in the order of the lock.

use crate::occupancy::{Occupancy, ROWS};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock, zeros};
use crate::tag::TagHash;

/// How a bump invalidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BumpKind {
    /// Items of the tag are misses.
    Hard,
    /// Items of the tag are stale: one client recomputes, the others get the old value for as long as its
    /// grace allows.
    Soft,
}

/// Number of classes.
pub const CLASSES: usize = 4;

/// Which floors of all tags concern an item: those of its class. What a class means is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct FloorClass(u8);

impl FloorClass {
    /// All of them.
    pub const ALL: [Self; CLASSES] = [Self(0), Self(1), Self(2), Self(3)];

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

const KINDS: usize = 2;

/// A place of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BumpPlace(usize);

/// Bytes of the rows' slots at one place, both kinds.
const PLACE_BYTES: usize = ROWS * KINDS * size_of::<u64>();
/// The two halves of a tag's hash choose its places.
const BITS_MAX: u32 = 32;

/// The numbers of the last bumps of all tags, in two arrays of fixed size.
#[derive(Debug)]
pub struct Bumps {
    slots: Box<[AtomicU64]>,
    /// `k`: each row has `2^k` slots a kind.
    bits: u32,
    /// The highest number of any bump, 0 before the first.
    last_bump: AtomicU64,
    /// The floors of all tags, hard and soft, for items of each class: all tags count as bumped with these
    /// numbers. 0: none.
    floors: [[AtomicU64; KINDS]; CLASSES],
    /// The highest floor of all classes. Most items are above it, so that their class need not be computed.
    highest_floors: [AtomicU64; KINDS],
    /// [`DENSE`] or [`SPARSE`].
    sampling: AtomicU64,
    /// Held while a bump takes its number and raises slots. Also guards the ages of the slots.
    writer: Mutex<BumpWriter>,
}

#[derive(Debug)]
struct BumpWriter {
    last_bump: u64,
    occupancy: [Occupancy; KINDS],
    /// Running mean of [`Bumps::estimate`] over sampled look-ups, and how many there were.
    sampled: f64,
    samples: u64,
    /// Sampling is dense until there are this many samples.
    dense_until: u64,
    /// Bumps since it last became dense.
    since_dense: u64,
    /// Calls of [`Bumps::bump_carried`].
    self_bumped: u64,
}

/// Samples in the running mean; with fewer samples it is not reliable and not shown.
pub(crate) const SAMPLES_MIN: u64 = 64;

/// One in 16 look-ups is sampled (minus 1) after the start, and again after a bump for each
/// [`SLOTS_PER_DENSE`]th slot, until the running mean consists of such samples.
const DENSE: u64 = 15;
/// One in 4096 look-ups is sampled otherwise (minus 1).
const SPARSE: u64 = 4095;
const SLOTS_PER_DENSE: usize = 64;

/// Figures about the arrays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BumpStats {
    pub(crate) bumps: [u64; KINDS],
    pub(crate) used: [u64; KINDS],
    pub(crate) false_stale: Option<f64>,
    pub(crate) self_bumped: u64,
}

impl Bumps {
    /// Arrays in at most `memory_bytes`: the largest power of two of slots a row that fits, at least 1 (32
    /// bytes in all), at most 2^32. 64 MiB are 2 Mi slots a row, 128 bytes are 4.
    ///
    /// The pages are the system's until bumps reach them (or the process locks its memory).
    pub fn new(memory_bytes: usize) -> Self {
        let bits = (memory_bytes / PLACE_BYTES).max(1).ilog2().min(BITS_MAX);
        let per_row = 1_usize << bits;
        Self {
            slots: zeros(per_row * ROWS * KINDS),
            bits,
            last_bump: AtomicU64::new(0),
            floors: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            highest_floors: std::array::from_fn(|_| AtomicU64::new(0)),
            sampling: AtomicU64::new(DENSE),
            writer: Mutex::new(BumpWriter {
                last_bump: 0,
                occupancy: [Occupancy::new(per_row), Occupancy::new(per_row)],
                sampled: 0.0,
                samples: 0,
                dense_until: SAMPLES_MIN,
                since_dense: 0,
                self_bumped: 0,
            }),
        }
    }

    /// Bytes of the arrays. Constant.
    pub fn memory_bytes(&self) -> usize {
        Self::bytes_of(self.slots_per_row())
    }

    /// Bytes of arrays with this number of slots in each row.
    pub(crate) const fn bytes_of(slots_per_row: usize) -> usize {
        slots_per_row * PLACE_BYTES
    }

    /// Slots of a row, per kind.
    pub fn slots_per_row(&self) -> usize {
        1 << self.bits
    }

    /// Invalidates all items that carry the tag and have a stamp below the number taken. Returns that number.
    ///
    /// `take_number` is called once, under the lock that orders bumps; it gives the clock's next number,
    /// higher than that of any bump before. A check that begins after this has returned obeys it.
    pub fn bump(&self, tag: TagHash, kind: BumpKind, take_number: impl FnOnce() -> u64) -> u64 {
        self.replace(tag, kind, take_number).0
    }

    /// Records a bump, and returns the previous contents of the tag's slots.
    pub(crate) fn replace(
        &self,
        tag: TagHash,
        kind: BumpKind,
        take_number: impl FnOnce() -> u64,
    ) -> (u64, [(BumpPlace, u64); ROWS]) {
        self.raise(&mut self.lock(), tag, kind, take_number())
    }

    /// Bumps several tags hard on behalf of a change of an item that carries some of them, with no other bump
    /// in between. Returns the last number, as of which the changed item counts; `None` if a bump before
    /// these had invalidated it.
    ///
    /// `stamp`, `carried` and `class` are the item's; there is at least one tag in `bumped`.
    pub(crate) fn bump_carried(
        &self,
        bumped: &[TagHash],
        stamp: u64,
        (carried, class): (impl IntoIterator<Item = u64>, FloorClass),
        mut take_number: impl FnMut() -> u64,
    ) -> Option<u64> {
        let mut writer = self.lock();
        writer.self_bumped += 1;
        let invalid = self.invalidates(stamp, carried, Some(class));
        let mut last = 0;
        for tag in bumped {
            last = self.raise(&mut writer, *tag, BumpKind::Hard, take_number()).0;
        }
        (!invalid).then_some(last)
    }

    /// Takes a number between two bumps. `None` if a bump before it has invalidated an original with this
    /// stamp and these tags.
    pub(crate) fn restamp(
        &self,
        stamp: u64,
        carried: impl IntoIterator<Item = u64>,
        take_number: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let _writer = self.lock();
        let invalid = self.invalidates(stamp, carried, None);
        (!invalid).then(take_number)
    }

    /// Whether a bump or a floor of all tags has invalidated an item with this stamp and these tags. `None`:
    /// an original. Under the lock.
    fn invalidates(
        &self,
        stamp: u64,
        carried: impl IntoIterator<Item = u64>,
        class: Option<FloorClass>,
    ) -> bool {
        let is_below = class.is_some_and(|class| self.are_floors_above(stamp, || class) != (false, false));
        let is_above = |tag| self.are_above(stamp, TagHash::from_stored(tag)) != (false, false);
        carried.into_iter().any(|tag| is_below || is_above(tag))
    }

    /// Raises the floor of all tags for items of this class to this number, which was given out before or is
    /// the next. Returns whether the floor was below it. A check that begins after this has returned obeys
    /// it.
    pub(crate) fn raise_floor(&self, class: FloorClass, kind: BumpKind, number: u64) -> bool {
        let mut writer = self.lock();
        if self.floor(class, kind) >= number {
            return false;
        }
        self.floors[class.index()][kind as usize].store(number, Ordering::Relaxed);
        self.highest_floors[kind as usize].fetch_max(number, Ordering::Relaxed);
        // A number of the past: those of bumps go on rising.
        if writer.last_bump < number {
            writer.last_bump = number;
        }
        self.last_bump.store(writer.last_bump, Ordering::Release);
        true
    }

    /// The number with which all tags count as bumped to items of this class, 0: never. After
    /// [`Bumps::last_bump`].
    #[inline]
    pub fn floor(&self, class: FloorClass, kind: BumpKind) -> u64 {
        self.floors[class.index()][kind as usize].load(Ordering::Relaxed)
    }

    /// Whether all tags count as bumped above `stamp` to items of this class: hard, soft. After
    /// [`Bumps::last_bump`].
    #[inline]
    pub(crate) fn are_floors_above(&self, stamp: u64, class: impl FnOnce() -> FloorClass) -> (bool, bool) {
        let [hard, soft] = &self.highest_floors;
        if hard.load(Ordering::Relaxed) <= stamp && soft.load(Ordering::Relaxed) <= stamp {
            return (false, false);
        }
        let class = class();
        (self.floor(class, BumpKind::Hard) > stamp, self.floor(class, BumpKind::Soft) > stamp)
    }

    fn raise(
        &self,
        writer: &mut BumpWriter,
        tag: TagHash,
        kind: BumpKind,
        number: u64,
    ) -> (u64, [(BumpPlace, u64); ROWS]) {
        // Equal: that of the floor of all tags was the next one.
        debug_assert!(number >= writer.last_bump, "numbers rise");
        let places = self.places(tag);
        let slots = places.map(|place| self.slot(place, kind));
        // A swap waits for its cache miss before anything else proceeds: fetch both slots first.
        #[cfg(not(loom))]
        let _fetched = slots.map(|slot| slot.load(Ordering::Relaxed));
        // The lock makes this a maximum.
        let old = slots.map(|slot| slot.swap(number, Ordering::Relaxed));
        writer.occupancy[kind as usize].note(number, old);
        writer.since_dense += 1;
        if writer.since_dense >= (self.slots_per_row() / SLOTS_PER_DENSE) as u64 {
            (writer.since_dense, writer.dense_until) = (0, writer.samples + SAMPLES_MIN);
            self.sampling.store(DENSE, Ordering::Relaxed);
        }
        writer.last_bump = number;
        self.last_bump.store(number, Ordering::Release);
        (number, [(BumpPlace(places[0]), old[0]), (BumpPlace(places[1]), old[1])])
    }

    /// Takes a number, which is the last bump's from then on, without raising a slot: what is invalidated by
    /// it is noted elsewhere.
    pub(crate) fn mark(&self, take_number: impl FnOnce() -> u64) -> u64 {
        let mut writer = self.lock();
        let number = take_number();
        // Equal: that of the floor of all tags was the next one.
        debug_assert!(number >= writer.last_bump, "numbers rise");
        writer.last_bump = number;
        self.last_bump.store(number, Ordering::Release);
        number
    }

    /// The tag's places.
    pub(crate) fn places_of(&self, tag: TagHash) -> [BumpPlace; ROWS] {
        self.places(tag).map(BumpPlace)
    }

    /// The tag was bumped with this number before, which was not recorded. A check that begins after this has
    /// returned obeys it. Returns the previous contents of the slots that were raised.
    pub(crate) fn raise_late(&self, tag: TagHash, kind: BumpKind, number: u64) -> [(BumpPlace, u64); ROWS] {
        let mut writer = self.lock();
        let mut replaced = self.places(tag).map(|place| (BumpPlace(place), 0));
        for (row, (place, before)) in replaced.iter_mut().enumerate() {
            let slot = self.slot(place.0, kind);
            let old = slot.load(Ordering::Relaxed);
            if old < number {
                slot.store(number, Ordering::Relaxed);
                writer.occupancy[kind as usize].note_late(row, number, old);
                *before = old;
            }
        }
        writer.last_bump = writer.last_bump.max(number);
        self.last_bump.store(writer.last_bump, Ordering::Release);
        replaced
    }

    /// Items that a soft bump of this number made stale in this place are dead from now on. The number was
    /// bumped before, so `last_bump` is not below it.
    pub(crate) fn harden(&self, place: BumpPlace, number: u64) {
        let mut writer = self.lock();
        let slot = self.slot(place.0, BumpKind::Hard);
        let old = slot.load(Ordering::Relaxed);
        if old < number {
            slot.store(number, Ordering::Relaxed);
            let row = usize::from(place.0 >= self.slots_per_row());
            writer.occupancy[BumpKind::Hard as usize].note_late(row, number, old);
        }
    }

    /// The highest number of any bump, 0 before the first. Slots read after it include all bumps up to it.
    #[inline]
    pub fn last_bump(&self) -> u64 {
        self.last_bump.load(Ordering::Acquire)
    }

    /// The tag's last bump of that kind, or the floor of all tags for items of this class; 0 if there was
    /// none. By collision it can be too high, never too low.
    #[inline]
    pub fn last(&self, tag: TagHash, kind: BumpKind, class: FloorClass) -> u64 {
        self.last_own(tag, kind).max(self.floor(class, kind))
    }

    /// The number of a tag's last bump of this kind, without the floors of all tags: as it concerns
    /// originals.
    #[inline]
    pub fn last_own(&self, tag: TagHash, kind: BumpKind) -> u64 {
        self.last_bump();
        let [a, b] = self.places(tag).map(|place| self.slot(place, kind).load(Ordering::Relaxed));
        a.min(b)
    }

    /// Whether the tag looks bumped above `stamp`: hard, soft. After [`Bumps::last_bump`].
    ///
    /// Mostly the first row answers no to both, and the second row, another cache miss, is not needed.
    #[inline]
    pub(crate) fn are_above(&self, stamp: u64, tag: TagHash) -> (bool, bool) {
        let above = |place, kind| self.slot(place, kind).load(Ordering::Relaxed) > stamp;
        let [a, b] = self.places(tag);
        let (hard, soft) = (above(a, BumpKind::Hard), above(a, BumpKind::Soft));
        if !(hard | soft) {
            return (false, false);
        }
        (hard && above(b, BumpKind::Hard), soft && above(b, BumpKind::Soft))
    }

    /// The place that a check of an item with this tag reads first, for a prefetch.
    #[inline]
    pub fn first_place(&self, tag: TagHash) -> &impl Sized {
        self.slot(self.places(tag)[0], BumpKind::Hard)
    }

    /// Share of tags, 0.0..=1.0, that look bumped above `since` although they were not: the probability, per
    /// tag, that an item with that stamp is recomputed without need. Hard and soft together, counted from the
    /// slots.
    ///
    /// Waits for a bump that is in progress; do not call it for each look-up.
    pub fn estimate(&self, since: u64) -> f64 {
        self.lock().estimate(since)
    }

    /// Whether a look-up with this random number is one of those that are sampled.
    #[inline]
    pub(crate) fn is_sampled(&self, random: u64) -> bool {
        random & self.sampling.load(Ordering::Relaxed) == 0
    }

    /// Adds an item that was looked up to the running mean, unless a bump is in progress.
    #[cold]
    pub(crate) fn sample(&self, stamp: u64) {
        if let Ok(mut writer) = self.writer.try_lock() {
            let estimate = writer.estimate(stamp);
            writer.samples += 1;
            let weight = 1.0 / writer.samples.min(SAMPLES_MIN) as f64;
            writer.sampled += (estimate - writer.sampled) * weight;
            if writer.samples == writer.dense_until {
                self.sampling.store(SPARSE, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn stats(&self) -> BumpStats {
        let writer = self.lock();
        let of = |f: fn(&Occupancy) -> u64| [f(&writer.occupancy[0]), f(&writer.occupancy[1])];
        BumpStats {
            bumps: of(Occupancy::bumps),
            used: of(Occupancy::used),
            false_stale: (writer.samples >= SAMPLES_MIN).then_some(writer.sampled),
            self_bumped: writer.self_bumped,
        }
    }

    /// A place in each row, by independent halves of the hash.
    #[inline]
    fn places(&self, tag: TagHash) -> [usize; ROWS] {
        let mask = (1_u64 << self.bits) - 1;
        let (low, high) = (tag.get() & mask, (tag.get() >> 32) & mask);
        [low as usize, high as usize + self.slots_per_row()]
    }

    #[inline]
    fn slot(&self, place: usize, kind: BumpKind) -> &AtomicU64 {
        &self.slots[place * KINDS + kind as usize]
    }

    fn lock(&self) -> MutexGuard<'_, BumpWriter> {
        lock(&self.writer)
    }
}

impl BumpWriter {
    fn estimate(&self, since: u64) -> f64 {
        let [hard, soft] = [0, 1].map(|kind| self.occupancy[kind].false_share(since));
        1.0 - (1.0 - hard) * (1.0 - soft)
    }
}

/// Share of tags, 0.0..=1.0, that look bumped although they were not, after `bumped` distinct other tags
/// were, with `slots_per_row` slots in each of two rows: `(1 - (1 - 1/m)^n)^2`.
///
/// 2 Mi slots and 100,000 bumps give 0.002, 1,000,000 give 0.14.
pub fn false_stale_share(bumped: u64, slots_per_row: usize) -> f64 {
    if bumped == 0 {
        return 0.0;
    }
    let missed = (-1.0 / slots_per_row as f64).ln_1p() * bumped as f64;
    let hit = -missed.exp_m1();
    hit * hit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag::TagHasher;

    fn tag(number: u64) -> TagHash {
        TagHasher::new(1).hash(format!("tag:{number}").as_bytes()).unwrap()
    }

    #[test]
    fn sizes_are_powers_of_two_that_fit() {
        for (bytes, slots) in
            [(0, 1), (32, 1), (127, 2), (128, 4), (1 << 20, 1 << 15), (3 << 20, 1 << 16), (64 << 20, 2 << 20)]
        {
            let bumps = Bumps::new(bytes);
            assert_eq!(bumps.slots_per_row(), slots, "{bytes}");
            assert!(bumps.memory_bytes() <= bytes.max(32), "{bytes}");
        }
    }

    #[test]
    fn kinds_are_apart_and_numbers_only_rise() {
        let bumps = Bumps::new(1 << 20);
        assert_eq!((bumps.last_bump(), bumps.last_own(tag(1), BumpKind::Hard)), (0, 0));
        assert_eq!(bumps.bump(tag(1), BumpKind::Hard, || 5), 5);
        assert_eq!(bumps.bump(tag(1), BumpKind::Soft, || 8), 8);
        assert_eq!((bumps.last_own(tag(1), BumpKind::Hard), bumps.last_own(tag(1), BumpKind::Soft)), (5, 8));
        assert_eq!(
            [4, 5, 8].map(|stamp| bumps.are_above(stamp, tag(1))),
            [(true, true), (false, true), (false, false)]
        );
        assert_eq!((bumps.last_own(tag(2), BumpKind::Hard), bumps.last_own(tag(2), BumpKind::Soft)), (0, 0));
        assert_eq!(bumps.last_bump(), 8);
    }

    #[test]
    fn collisions_only_raise() {
        let bumps = Bumps::new(128);
        for number in 1..=1_000 {
            let kind = if number % 3 == 0 { BumpKind::Soft } else { BumpKind::Hard };
            bumps.bump(tag(number % 50), kind, || number);
            assert!(bumps.last_own(tag(number % 50), kind) >= number);
        }
    }

    #[test]
    fn the_formula_gives_the_figures_of_the_docs() {
        let share = |bumped| format!("{:.3}", false_stale_share(bumped, 2 << 20));
        assert_eq!([share(0), share(100_000), share(1_000_000)], ["0.000", "0.002", "0.144"]);
        assert!(false_stale_share(u64::MAX, 4) > 0.999);
        assert!((false_stale_share(1, 1) - 1.0).abs() < 1e-12 && false_stale_share(0, 1) == 0.0);
    }

    #[test]
    fn the_estimate_is_the_formula_and_what_is_measured() {
        let bumps = Bumps::new(32 << 13);
        let (m, n) = (bumps.slots_per_row(), 4_000_u64);
        for number in 1..=n {
            bumps.bump(tag(number), BumpKind::Hard, || number);
        }
        for since in [0, 1_000, 2_000] {
            let others = 100_000;
            let looks =
                (n + 1..=n + others).filter(|&t| bumps.last_own(tag(t), BumpKind::Hard) > since).count();
            let measured = looks as f64 / others as f64;
            let (estimate, formula) = (bumps.estimate(since), false_stale_share(n - since, m));
            assert!((estimate / formula - 1.0).abs() < 0.1, "since {since}: {estimate}, formula {formula}");
            assert!((measured / formula - 1.0).abs() < 0.1, "since {since}: {measured}, formula {formula}");
        }
    }

    #[test]
    fn the_running_mean_follows_what_is_sampled() {
        let bumps = Bumps::new(32 << 10);
        let shown = || bumps.stats().false_stale;
        for number in 1..=2_000 {
            bumps.bump(tag(number), BumpKind::Soft, || number);
        }
        // The plain mean of the first.
        (1..SAMPLES_MIN / 2).for_each(|_| bumps.sample(2_000));
        (SAMPLES_MIN / 2..SAMPLES_MIN).for_each(|_| bumps.sample(0));
        assert_eq!(shown(), None, "too few");
        bumps.sample(2_000);
        assert!((shown().unwrap() - bumps.estimate(0) / 2.0).abs() < 1e-9);
        (0..2_000).for_each(|_| bumps.sample(0));
        assert!((shown().unwrap() - bumps.estimate(0)).abs() < 1e-9);
        (0..1_000).for_each(|_| bumps.sample(2_000));
        assert!(shown().unwrap() < 1e-6);
        assert_eq!(bumps.stats().bumps, [0, 2_000]);
    }
}
