//! Floors: numbers below which everything is invalid, at once (hard) or spread over a period (rolling).
//!
//! `flush_all` raises the *hard floor*; items below it are dead. A *rolling floor* has a number, a start
//! and a period: an item below it is stale once its own phase has passed since the start,
//! ```text
//!   phase(key) = hash'(key) / 2^64 x period
//! ```
//! so that at time `t` the share `1 - t / period` of the old items is still served, and the recomputations
//! reach the application one by one. When the period is over, the rolling floor is a hard one.
//!
//! # How it is read
//! An item that is not below the highest floor, hard or rolling, is below none: one load and one comparison,
//! which is enough for all items stored after the last flush. The check of an older item reads a snapshot
//! under a sequence lock (H.-J. Boehm, "Can seqlocks get along with programming language memory models?",
//! 2012): the version is odd while a writer is at work, and a reader that saw it change reads again, after
//! some attempts with the writers' lock.
//!
//! # Invariants
//! * The hard floor and the highest number never go down.
//! * A check that begins after a flush has returned obeys it.

use crate::check::Validity;
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock};

/// Most rolling floors at a time; one more turns the oldest into a hard floor.
pub const ROLLING_MAX: usize = 4;

/// A flush spread over a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollingFloor {
    /// Items with a stamp below this are flushed.
    pub number: u64,
    /// When it began, in milliseconds of the caller's clock.
    pub start_ms: u64,
    /// Milliseconds after which everything below is flushed.
    pub period_ms: u64,
}

impl RollingFloor {
    /// Milliseconds from the start at which a key's old item becomes stale: below the period, by a hash that
    /// is independent of the bits of `key_hash` that index and shards use.
    #[inline]
    pub fn phase_ms(&self, key_hash: u64) -> u64 {
        phase_ms(key_hash, self.period_ms)
    }

    /// When a key's old item becomes stale, in milliseconds of the caller's clock: the first at which it is
    /// no longer served.
    pub fn moment_ms(&self, key_hash: u64) -> u64 {
        self.start_ms + self.phase_ms(key_hash) + 1
    }

    /// Share of old items still served, 1.0 at the start, 0.0 from the end on.
    pub fn share_served(&self, now_ms: u64) -> f64 {
        if self.is_over(now_ms) { 0.0 } else { 1.0 - self.elapsed_ms(now_ms) as f64 / self.period_ms as f64 }
    }

    fn check(&self, stamp: u64, key_hash: u64, now_ms: u64) -> Validity {
        if stamp >= self.number {
            Validity::Valid
        } else if self.is_over(now_ms) {
            Validity::Dead
        } else if self.elapsed_ms(now_ms) > self.phase_ms(key_hash) {
            Validity::Stale
        } else {
            Validity::Valid
        }
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.elapsed_ms(now_ms) >= self.period_ms
    }

    /// For a thread that read its clock just before the start, 0.
    fn elapsed_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.start_ms)
    }
}

/// All floors of a server. Times are milliseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Floors {
    /// The highest number of any floor there ever was.
    highest: AtomicU64,
    /// When the pending flush is due, 0 when there is none.
    flush_at_ms: AtomicU64,
    /// Odd while the fields below change.
    version: AtomicU64,
    hard: AtomicU64,
    /// Number, start, period; the number 0 is none.
    rolling: [[AtomicU64; 3]; ROLLING_MAX],
    /// Held by a thread that changes any of this; readers see a copy of the guarded floors.
    writer: Mutex<FloorWriter>,
}

#[derive(Debug, Default)]
struct FloorWriter {
    floors: Snapshot,
    /// The copy that readers see.
    published: Snapshot,
    highest: u64,
    version: u64,
    flush_at_ms: u64,
    /// See [`Floors::take_ended`].
    ended: bool,
}

/// The floors at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Snapshot {
    pub(crate) hard: u64,
    /// Oldest first, then none.
    pub(crate) rolling: [Option<RollingFloor>; ROLLING_MAX],
}

/// Reads without the lock before a reader waits for the writer.
const ATTEMPTS: usize = 8;

impl Default for Floors {
    fn default() -> Self {
        Self::new()
    }
}

impl Floors {
    /// No floors.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            highest: zero(),
            flush_at_ms: zero(),
            version: zero(),
            hard: zero(),
            rolling: std::array::from_fn(|_| std::array::from_fn(|_| zero())),
            writer: Mutex::new(FloorWriter::default()),
        }
    }

    /// Flushes everything at `at_ms`, or at once when that is not after `now_ms`. A later call replaces a
    /// flush that is pending: there is one at most.
    ///
    /// At once, `take_number` gives the floor's number, which is returned; a delayed flush takes it when it
    /// is due.
    pub fn flush(&self, at_ms: u64, now_ms: u64, take_number: impl FnOnce() -> u64) -> Option<u64> {
        let mut writer = lock(&self.writer);
        if at_ms > now_ms {
            self.set_pending(&mut writer, at_ms);
            return None;
        }
        let number = take_number();
        self.raise_hard(&mut writer, number);
        self.set_pending(&mut writer, 0);
        Some(number)
    }

    /// Executes the pending flush if it is due. The caller must call it before each command; it is one load
    /// when none is pending.
    #[inline]
    pub fn execute_due(&self, now_ms: u64, take_number: impl FnOnce() -> u64) {
        let at_ms = self.flush_at_ms.load(Ordering::Acquire);
        if at_ms != 0 && now_ms >= at_ms {
            self.execute_pending(now_ms, take_number);
        }
    }

    #[cold]
    fn execute_pending(&self, now_ms: u64, take_number: impl FnOnce() -> u64) {
        let mut writer = lock(&self.writer);
        let at_ms = writer.flush_at_ms;
        if at_ms != 0 && now_ms >= at_ms {
            let number = take_number();
            self.raise_hard(&mut writer, number);
            // Last: a thread that sees that none is pending sees the floor, too.
            self.set_pending(&mut writer, 0);
        }
    }

    /// Begins a rolling flush and returns its number, which `take_number` gives: the clock's next. A period
    /// of 0 is a flush at once.
    ///
    /// When [`ROLLING_MAX`] are running, the oldest becomes a hard floor.
    pub fn start_rolling(&self, now_ms: u64, period_ms: u64, take_number: impl FnOnce() -> u64) -> u64 {
        let mut writer = lock(&self.writer);
        let number = take_number();
        if period_ms == 0 {
            self.raise_hard(&mut writer, number);
            return number;
        }
        let ended = writer.floors.sweep(now_ms);
        let pushed = writer.floors.push(RollingFloor { number, start_ms: now_ms, period_ms });
        writer.ended |= ended || pushed;
        self.publish(&mut writer, number);
        number
    }

    /// Turns rolling floors whose period is over into hard ones. Part of the upkeep: checks treat them as
    /// hard anyway, and then have fewer floors to compare with.
    pub fn sweep(&self, now_ms: u64) {
        let mut writer = lock(&self.writer);
        let ended = writer.floors.sweep(now_ms);
        writer.ended |= ended;
        if writer.floors != writer.published {
            self.publish(&mut writer, 0);
        }
    }

    /// Items with a stamp below this are dead.
    #[inline]
    pub fn hard(&self) -> u64 {
        self.hard.load(Ordering::Acquire)
    }

    /// The highest number of any floor, hard or rolling, up to now: an item that is not below it is below no
    /// floor.
    #[inline]
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::Acquire)
    }

    /// The highest floor, once a floor that is being raised now is raised.
    pub(crate) fn highest_raised(&self) -> u64 {
        lock(&self.writer).highest
    }

    /// Whether a rolling flush has ended since the last call, by its time or to make room for another: all
    /// its items are flushed now. A rolling flush that an immediate flush has overtaken does not count.
    pub fn take_ended(&self) -> bool {
        std::mem::take(&mut lock(&self.writer).ended)
    }

    /// The rolling floors that run, oldest first.
    pub fn rolling(&self) -> impl Iterator<Item = RollingFloor> + use<> {
        self.snapshot().rolling.into_iter().flatten()
    }

    /// When the pending flush is due.
    pub fn pending_flush_ms(&self) -> Option<u64> {
        Some(self.flush_at_ms.load(Ordering::Acquire)).filter(|&at_ms| at_ms != 0)
    }

    /// The answer of the floors for an item.
    #[inline]
    pub fn check(&self, stamp: u64, key_hash: u64, now_ms: u64) -> Validity {
        if stamp >= self.highest() {
            return Validity::Valid;
        }
        self.check_each(stamp, key_hash, now_ms)
    }

    #[inline(never)]
    fn check_each(&self, stamp: u64, key_hash: u64, now_ms: u64) -> Validity {
        let Snapshot { hard, rolling } = self.snapshot();
        if stamp < hard {
            return Validity::Dead;
        }
        let checks = rolling.iter().flatten().map(|floor| floor.check(stamp, key_hash, now_ms));
        checks.max().unwrap_or(Validity::Valid)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        for _ in 0..ATTEMPTS {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let snapshot = self.read();
                // The reads above are done before the version is read again.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return snapshot;
                }
            }
        }
        lock(&self.writer).floors
    }

    /// The fields as they are: consistent if no thread changes them.
    fn read(&self) -> Snapshot {
        let load = |field: &AtomicU64| field.load(Ordering::Relaxed);
        Snapshot {
            hard: load(&self.hard),
            rolling: self.rolling.each_ref().map(|[number, start, period]| {
                let floor =
                    RollingFloor { number: load(number), start_ms: load(start), period_ms: load(period) };
                Some(floor).filter(|floor| floor.number != 0)
            }),
        }
    }

    fn set_pending(&self, writer: &mut FloorWriter, at_ms: u64) {
        writer.flush_at_ms = at_ms;
        self.flush_at_ms.store(at_ms, Ordering::Release);
    }

    fn raise_hard(&self, writer: &mut FloorWriter, number: u64) {
        writer.floors.raise_hard(number);
        self.publish(writer, number);
    }

    /// Publishes the writer's floors to readers, and `number` as the highest if it is.
    fn publish(&self, writer: &mut FloorWriter, number: u64) {
        self.version.store(writer.version + 1, Ordering::Relaxed);
        // A thread that sees one of the stores below sees the odd version, too.
        fence(Ordering::Release);
        let (before, next) = (writer.published, writer.floors);
        if next.hard != before.hard {
            // Release: it is read on its own, too.
            self.hard.store(next.hard, Ordering::Release);
        }
        for (fields, (before, next)) in self.rolling.iter().zip(before.rolling.into_iter().zip(next.rolling))
        {
            if next != before {
                let values = next.map_or([0; 3], |floor| [floor.number, floor.start_ms, floor.period_ms]);
                fields.iter().zip(values).for_each(|(field, value)| field.store(value, Ordering::Relaxed));
            }
        }
        writer.published = next;
        writer.version += 2;
        self.version.store(writer.version, Ordering::Release);
        writer.highest = writer.highest.max(number);
        self.highest.store(writer.highest, Ordering::Release);
    }
}

impl Snapshot {
    /// Whether a rolling floor has become a hard one.
    fn sweep(&mut self, now_ms: u64) -> bool {
        let over = self.rolling.iter().flatten().filter(|floor| floor.is_over(now_ms));
        let Some(number) = over.map(|floor| floor.number).max() else { return false };
        self.raise_hard(number);
        true
    }

    /// Adds a floor. True: a rolling floor has become a hard one.
    fn push(&mut self, floor: RollingFloor) -> bool {
        let full = if let [Some(oldest), .., Some(_)] = self.rolling {
            self.raise_hard(oldest.number);
            true
        } else {
            false
        };
        let free = self.rolling.iter_mut().find(|place| place.is_none());
        *free.expect("one was freed if all were taken") = Some(floor);
        full
    }

    /// Removes rolling floors that are not above the hard one: they change no answer.
    fn raise_hard(&mut self, number: u64) {
        self.hard = self.hard.max(number);
        let mut rest = self.rolling.into_iter().flatten().filter(|floor| floor.number > self.hard);
        self.rolling = std::array::from_fn(|_| rest.next());
    }
}

/// See [`RollingFloor::phase_ms`].
#[inline]
pub(crate) fn phase_ms(key_hash: u64, period_ms: u64) -> u64 {
    ((u128::from(mix(key_hash)) * u128::from(period_ms)) >> 64) as u64
}

/// A permutation in which every bit of the result depends on all bits of `x`: the finaliser of `SplitMix64`.
///
/// Source: D. Stafford, "Better bit mixing", 2011, variant 13.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use Validity::{Dead, Stale, Valid};

    /// A clock of numbers.
    #[derive(Default)]
    struct Clock(Cell<u64>);

    impl Clock {
        fn tick(&self) -> u64 {
            self.0.set(self.0.get() + 1);
            self.0.get()
        }
    }

    /// A hash whose phase is this many 256ths of the period.
    fn key_of_phase(part: u64) -> u64 {
        (0..1 << 20).find(|&key| mix(key) >> 56 == part).unwrap()
    }

    #[test]
    fn a_flush_kills_what_came_before_it() {
        let (floors, clock) = (Floors::new(), Clock::default());
        let before = clock.tick();
        assert_eq!(floors.check(before, 1, 5), Valid);
        assert_eq!(floors.flush(5, 5, || clock.tick()), Some(2));
        assert_eq!(floors.check(before, 1, 5), Dead);
        assert_eq!(floors.check(clock.tick(), 1, 5), Valid);
        assert_eq!((floors.hard(), floors.highest()), (2, 2));
    }

    #[test]
    fn a_delayed_flush_takes_its_number_when_it_is_due() {
        let (floors, clock) = (Floors::new(), Clock::default());
        let check = |stamp, now| {
            floors.execute_due(now, || clock.tick());
            floors.check(stamp, 1, now)
        };
        assert_eq!(floors.flush(10, 5, || unreachable!("not yet")), None);
        let during = clock.tick();
        assert_eq!((check(during, 9), floors.pending_flush_ms()), (Valid, Some(10)));
        assert_eq!((check(during, 10), floors.pending_flush_ms()), (Dead, None));
        assert_eq!(check(clock.tick(), 11), Valid);
    }

    #[test]
    fn a_later_flush_replaces_a_pending_one() {
        let (floors, clock) = (Floors::new(), Clock::default());
        let dead_at = |stamp, now| {
            floors.execute_due(now, || clock.tick());
            floors.check(stamp, 1, now) == Dead
        };
        floors.flush(10, 5, || clock.tick());
        floors.flush(20, 6, || clock.tick());
        let item = clock.tick();
        assert!(!dead_at(item, 15) && dead_at(item, 20));
        floors.flush(30, 21, || clock.tick());
        floors.flush(22, 22, || clock.tick());
        assert!(!dead_at(clock.tick(), 40), "the flush at 30 was replaced by the one at 22");
    }

    #[test]
    fn a_rolling_floor_reaches_each_key_in_its_phase() {
        let (floors, clock) = (Floors::new(), Clock::default());
        let old = clock.tick();
        floors.start_rolling(1_000, 256, || clock.tick());
        let (first, middle, last) = (key_of_phase(0), key_of_phase(128), key_of_phase(255));
        let at = |now| [first, middle, last].map(|key| floors.check(old, key, now));
        assert_eq!(at(900), [Valid; 3]);
        assert_eq!(at(1_000), [Valid; 3]);
        assert_eq!(at(1_001), [Stale, Valid, Valid]);
        assert_eq!(at(1_128), [Stale, Valid, Valid]);
        assert_eq!(at(1_129), [Stale, Stale, Valid]);
        assert_eq!(at(1_255), [Stale, Stale, Valid]);
        assert_eq!(at(1_256), [Dead; 3]);
        let new = clock.tick();
        assert!([1_000, 1_128, 9_999].iter().all(|&now| floors.check(new, first, now) == Valid));
    }

    #[test]
    fn a_rolling_floor_that_is_over_becomes_hard() {
        let (floors, clock) = (Floors::new(), Clock::default());
        let number = floors.start_rolling(0, 100, || clock.tick());
        let longer = floors.start_rolling(0, 1_000, || clock.tick());
        floors.sweep(99);
        assert_eq!((floors.hard(), floors.rolling().count()), (0, 2));
        floors.sweep(100);
        assert_eq!(
            (floors.hard(), floors.rolling().map(|f| f.number).collect::<Vec<_>>()),
            (number, vec![longer])
        );
        floors.sweep(1_000);
        assert_eq!((floors.hard(), floors.rolling().count()), (longer, 0));
    }

    #[test]
    fn a_fifth_turns_the_oldest_into_a_hard_floor() {
        let (floors, clock) = (Floors::new(), Clock::default());
        let old = clock.tick();
        let key = key_of_phase(255);
        let numbers: Vec<_> = (0..4).map(|i| floors.start_rolling(i, 1_000, || clock.tick())).collect();
        assert_eq!((floors.check(old, key, 10), floors.hard()), (Valid, 0));
        let fifth = floors.start_rolling(9, 1_000, || clock.tick());
        assert_eq!((floors.check(old, key, 10), floors.hard()), (Dead, numbers[0]));
        assert_eq!(floors.check(numbers[0], key, 10), Valid);
        assert_eq!(
            floors.rolling().map(|floor| floor.number).collect::<Vec<_>>(),
            [numbers[1], numbers[2], numbers[3], fifth]
        );
    }

    #[test]
    fn a_hard_flush_ends_the_rolling_ones_and_a_period_of_zero_is_one() {
        let (floors, clock) = (Floors::new(), Clock::default());
        floors.start_rolling(0, 100, || clock.tick());
        floors.start_rolling(0, 0, || clock.tick());
        assert_eq!((floors.hard(), floors.highest(), floors.rolling().count()), (2, 2, 0));
    }

    #[test]
    fn the_share_served_falls_evenly_over_60_seconds() {
        const KEYS: u64 = 100_000;
        let (floors, clock) = (Floors::new(), Clock::default());
        let old = clock.tick();
        floors.start_rolling(1_000, 60_000, || clock.tick());
        let floor = floors.rolling().next().unwrap();
        // Consecutive numbers are the worst possible hashes.
        let served = |now| {
            let count = (0..KEYS).filter(|&key| floors.check(old, key, now) == Valid).count();
            count as f64 / KEYS as f64
        };
        assert!(served(1_000) >= 1.0);
        assert!((served(31_000) - 0.5).abs() < 0.01, "{}", served(31_000));
        assert!(served(61_000) <= 0.0);
        for second in (5..60).step_by(5) {
            let now = 1_000 + second * 1_000;
            assert!((served(now) - floor.share_served(now)).abs() < 0.01, "{second}: {}", served(now));
        }
    }

    #[test]
    fn the_phase_is_independent_of_any_bits_that_choose_a_place() {
        let floor = RollingFloor { number: 1, start_ms: 0, period_ms: 1_000_000 };
        for shift in [0, 16, 32, 48, 56] {
            // Keys of one shard or bucket: eight bits are the same.
            let sum: u64 = (0..20_000_u64)
                .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) & !(0xFF << shift) | 0x5A << shift)
                .map(|key| floor.phase_ms(key))
                .sum();
            let mean = sum as f64 / 20_000.0;
            assert!((mean / 500_000.0 - 1.0).abs() < 0.02, "bits from {shift}: {mean}");
        }
    }
}
