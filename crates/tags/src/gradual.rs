//! Gradual purges: the items of one tag become stale one after the other, spread over a period.
//!
//! A purge has a tag, a number, a start and a period. An item that carries the tag and is below the number is
//! stale once its own phase, that of a rolling floor ([`RollingFloor::phase_ms`]), has passed since the
//! start. The purge raises no slots: it is kept in a list until the longest grace has passed since the end of
//! its period, so that each item's grace counts from the moment of the item. Then it retires: the tag's
//! *hard* slots are raised to its number.
//!
//! # How it is read
//! While the list is empty, one load says so. Otherwise a filter, one bit for each tag's hash modulo its
//! size, answers for most tags that are not in the list. What is left reads the list under a sequence lock,
//! as [`Floors`] do.
//!
//! # Invariants
//! * A purge is in the list, or the hard slots of its tag are not below its number.
//! * At most [`GRADUAL_MAX`] purges run, and at most [`KEPT_MAX`] are in the list: one more makes the first
//!   that has ended retire early.
//! * A check that begins after a purge has been begun obeys it.
//!
//! [`Floors`]: crate::rolling::Floors
//! [`RollingFloor::phase_ms`]: crate::rolling::RollingFloor::phase_ms

use crate::bumps::{BumpKind, Bumps};
use crate::rolling::phase_ms;
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock, zeros};
use crate::tag::TagHash;

/// Most gradual purges whose period is not over; a further one takes effect at once.
pub const GRADUAL_MAX: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

/// Most purges in the list.
pub(crate) const KEPT_MAX: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };

/// Words of the filter.
const FILTER_WORDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// Tag, number, start, period.
const FIELDS: usize = 4;

/// Reads without the lock before a reader waits for the writer.
const ATTEMPTS: usize = 8;

/// A purge of a tag that is spread over a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purge {
    /// The tag that is purged.
    pub tag: TagHash,
    /// Items with a stamp below this are purged.
    pub number: u64,
    /// When it began, in milliseconds of the caller's clock.
    pub start_ms: u64,
    /// Milliseconds over which it is spread.
    pub period_ms: u64,
}

impl Purge {
    /// When a key's old item becomes stale, in milliseconds of the caller's clock: not after the end of the
    /// period.
    pub fn moment_ms(&self, key_hash: u64) -> u64 {
        self.start_ms.saturating_add(phase_ms(key_hash, self.period_ms)).saturating_add(1)
    }

    fn end_ms(&self) -> u64 {
        self.start_ms.saturating_add(self.period_ms)
    }
}

/// The outcome of the order of a gradual purge, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeOutcome {
    /// The purge has begun.
    Gradually(u64),
    /// Too many were running: it was an ordinary soft bump.
    AtOnce(u64),
}

impl PurgeOutcome {
    /// Items of the tag with a stamp below this are purged.
    pub fn number(self) -> u64 {
        let (Self::Gradually(number) | Self::AtOnce(number)) = self;
        number
    }
}

/// The gradual purges, of which at most [`GRADUAL_MAX`] run.
#[derive(Debug)]
pub(crate) struct Purges {
    /// Purges in the list.
    count: AtomicU64,
    /// The bits of their tags.
    filter: [AtomicU64; FILTER_WORDS],
    /// Odd while the fields around it change.
    version: AtomicU64,
    /// [`FIELDS`] for each.
    entries: Box<[AtomicU64]>,
    /// Held by a thread that changes any of this; readers see a copy of the guarded list.
    writer: Mutex<PurgeWriter>,
}

#[derive(Debug, Default)]
struct PurgeWriter {
    kept: Vec<KeptPurge>,
    version: u64,
    begun: u64,
    at_once: u64,
}

#[derive(Debug, Clone, Copy)]
struct KeptPurge {
    purge: Purge,
    /// When it retires: the grace of its last item is over.
    due_ms: u64,
}

/// Figures about gradual purges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PurgeStats {
    pub(crate) begun: u64,
    pub(crate) at_once: u64,
}

impl Purges {
    /// No purges.
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            filter: std::array::from_fn(|_| AtomicU64::new(0)),
            version: AtomicU64::new(0),
            entries: zeros(KEPT_MAX * FIELDS),
            writer: Mutex::new(PurgeWriter::default()),
        }
    }

    /// Begins a purge and returns its number. `grace_ms`: the longest grace of any item. Gives `take_number`
    /// back when too many are running.
    pub(crate) fn start<T: FnOnce() -> u64>(
        &self,
        purge: Purge,
        grace_ms: u64,
        bumps: &Bumps,
        take_number: T,
    ) -> Result<u64, T> {
        let now_ms = purge.start_ms;
        let mut writer = lock(&self.writer);
        writer.retire(now_ms, bumps);
        let room = writer.running(now_ms) < GRADUAL_MAX;
        let begun = if room {
            if writer.kept.len() == KEPT_MAX {
                writer.retire_first(now_ms, bumps);
            }
            // Under this lock: who has taken a later number and waits for the lock sees the purge.
            let number = bumps.mark(take_number);
            let due_ms = purge.end_ms().saturating_add(grace_ms);
            writer.kept.push(KeptPurge { purge: Purge { number, ..purge }, due_ms });
            writer.begun += 1;
            Ok(number)
        } else {
            writer.at_once += 1;
            Err(take_number)
        };
        self.publish(&mut writer);
        begun
    }

    /// Makes the purges retire that are due.
    pub(crate) fn sweep(&self, now_ms: u64, bumps: &Bumps) {
        let mut writer = lock(&self.writer);
        if writer.retire(now_ms, bumps) {
            self.publish(&mut writer);
        }
    }

    /// Nothing is kept. What has retired before that is in the slots.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The highest number of a purge of this tag whose moment has come for a key; 0: none.
    #[inline]
    pub(crate) fn last_due(&self, tag: u64, key_hash: u64, now_ms: u64) -> u64 {
        self.fold(
            tag,
            0,
            |last, purge| {
                if purge.moment_ms(key_hash) <= now_ms { last.max(purge.number) } else { last }
            },
        )
    }

    /// The highest number of a purge of this tag; 0: none.
    pub(crate) fn last(&self, tag: u64) -> u64 {
        self.fold(tag, 0, |last, purge| last.max(purge.number))
    }

    /// The last purge of several tags, once a purge that is being begun now has begun.
    pub(crate) fn last_begun(&self, tags: &[u64]) -> u64 {
        let writer = lock(&self.writer);
        let these = writer.kept.iter().filter(|kept| tags.contains(&kept.purge.tag.get()));
        these.map(|kept| kept.purge.number).max().unwrap_or(0)
    }

    /// The first moment of a key by the purges of this tag above `stamp`, of those up to `now_ms` (`passed`)
    /// or of those after it; `u64::MAX`: none.
    pub(crate) fn first_moment_ms(
        &self,
        tag: u64,
        stamp: u64,
        key_hash: u64,
        now_ms: u64,
        passed: bool,
    ) -> u64 {
        self.fold(tag, u64::MAX, |first, purge| {
            let ms = purge.moment_ms(key_hash);
            if purge.number > stamp && (ms <= now_ms) == passed { first.min(ms) } else { first }
        })
    }

    /// The purges of a tag, oldest first.
    pub(crate) fn of(&self, tag: TagHash) -> Vec<Purge> {
        let writer = lock(&self.writer);
        writer.kept.iter().map(|kept| kept.purge).filter(|purge| purge.tag == tag).collect()
    }

    /// Purges whose period is not over.
    pub(crate) fn running(&self, now_ms: u64) -> usize {
        lock(&self.writer).running(now_ms)
    }

    pub(crate) fn stats(&self) -> PurgeStats {
        let writer = lock(&self.writer);
        PurgeStats { begun: writer.begun, at_once: writer.at_once }
    }

    #[inline]
    fn fold<R: Copy>(&self, tag: u64, none: R, with: impl Fn(R, &Purge) -> R) -> R {
        let (word, bit) = place(tag);
        // A bit that is gone is that of a purge that has retired: its slots have been raised.
        if self.is_empty() || self.filter[word].load(Ordering::Acquire) & bit == 0 {
            return none;
        }
        self.fold_each(tag, none, with)
    }

    #[inline(never)]
    fn fold_each<R: Copy>(&self, tag: u64, none: R, with: impl Fn(R, &Purge) -> R) -> R {
        for _ in 0..ATTEMPTS {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let result = self.read(tag, none, &with);
                // The reads above are done before the version is read again.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return result;
                }
            }
        }
        let writer = lock(&self.writer);
        let these = writer.kept.iter().filter(|kept| kept.purge.tag.get() == tag);
        these.fold(none, |result, kept| with(result, &kept.purge))
    }

    /// The entries as they are: consistent if no thread changes them.
    fn read<R: Copy>(&self, tag: u64, none: R, with: &impl Fn(R, &Purge) -> R) -> R {
        let count = self.count.load(Ordering::Relaxed) as usize;
        let mut result = none;
        for fields in self.entries.chunks_exact(FIELDS).take(count) {
            let field = |at: usize| fields[at].load(Ordering::Relaxed);
            if field(0) == tag {
                let (number, start_ms, period_ms) = (field(1), field(2), field(3));
                result = with(result, &Purge { tag: TagHash::from_stored(tag), number, start_ms, period_ms });
            }
        }
        result
    }

    /// Publishes the writer's list to readers.
    fn publish(&self, writer: &mut PurgeWriter) {
        self.version.store(writer.version + 1, Ordering::Relaxed);
        // A thread that sees one of the stores below sees the odd version, too.
        fence(Ordering::Release);
        let mut filter = [0; FILTER_WORDS];
        for (fields, KeptPurge { purge, .. }) in self.entries.chunks_exact(FIELDS).zip(&writer.kept) {
            let Purge { tag, number, start_ms, period_ms } = *purge;
            let values = [tag.get(), number, start_ms, period_ms];
            fields.iter().zip(values).for_each(|(field, value)| field.store(value, Ordering::Relaxed));
            let (word, bit) = place(tag.get());
            filter[word] |= bit;
        }
        // Release: filter and count are read on their own, too, and say which purges have retired.
        self.filter.iter().zip(filter).for_each(|(word, bits)| word.store(bits, Ordering::Release));
        self.count.store(writer.kept.len() as u64, Ordering::Release);
        writer.version += 2;
        self.version.store(writer.version, Ordering::Release);
    }
}

impl PurgeWriter {
    fn running(&self, now_ms: u64) -> usize {
        self.kept.iter().filter(|kept| now_ms < kept.purge.end_ms()).count()
    }

    /// Whether any was due.
    fn retire(&mut self, now_ms: u64, bumps: &Bumps) -> bool {
        let before = self.kept.len();
        self.kept.retain(|kept| {
            let stays = now_ms < kept.due_ms;
            if !stays {
                harden(&kept.purge, bumps);
            }
            stays
        });
        self.kept.len() < before
    }

    /// Makes the purge retire that ended first. There is one, since fewer are running than are kept.
    fn retire_first(&mut self, now_ms: u64, bumps: &Bumps) {
        let ended = self.kept.iter().enumerate().filter(|(_, kept)| kept.purge.end_ms() <= now_ms);
        if let Some((at, _)) = ended.min_by_key(|(_, kept)| kept.purge.end_ms()) {
            harden(&self.kept.remove(at).purge, bumps);
        }
    }
}

/// Items below the purge are dead from now on.
fn harden(purge: &Purge, bumps: &Bumps) {
    for place in bumps.places_of(purge.tag) {
        bumps.harden(place, purge.number);
    }
    debug_assert!(bumps.last_own(purge.tag, BumpKind::Hard) >= purge.number, "both slots were raised");
}

/// A tag's word in the filter, and its bit there.
#[inline]
fn place(tag: u64) -> (usize, u64) {
    ((tag >> 6) as usize % FILTER_WORDS, 1 << (tag & 63))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::bumps::BumpKind::{Hard, Soft};
    use crate::bumps::FloorClass;
    use crate::check::Tags;
    use crate::check::Validity::{self, Dead, Stale, Valid};
    use crate::tag::TagHasher;

    const START_MS: u64 = 5_000;
    const PERIOD_MS: u64 = 60_000;
    const END_MS: u64 = START_MS + PERIOD_MS;
    const KEYS: u64 = 10_000;

    struct Fixture {
        tags: Tags,
        clock: Cell<u64>,
        /// Of the items: before all purges.
        stamp: u64,
    }

    impl Fixture {
        fn new() -> Self {
            Self { tags: Tags::new(1 << 20), clock: Cell::new(1), stamp: 1 }
        }

        fn tick(&self) -> u64 {
            self.clock.set(self.clock.get() + 1);
            self.clock.get()
        }

        fn purge_at(&self, name: &str, now_ms: u64, period_ms: u64, grace_ms: u64) -> PurgeOutcome {
            // Numbers are given out each at its own number of milliseconds.
            self.tags.purge(tag(name), (now_ms, period_ms), grace_ms, |number| number, || self.tick())
        }

        fn purge(&self, name: &str, grace_ms: u64) -> PurgeOutcome {
            self.purge_at(name, START_MS, PERIOD_MS, grace_ms)
        }

        /// The answer for an old item with the tag.
        fn check(&self, name: &str, key_hash: u64, now_ms: u64) -> Validity {
            self.tags.check(self.stamp, [tag(name).get()], key_hash, now_ms)
        }

        fn since(&self, name: &str, key_hash: u64, now_ms: u64) -> Option<u64> {
            self.tags.stale_since_ms(
                self.stamp,
                ([tag(name).get()], FloorClass::default()),
                key_hash,
                now_ms,
                |number| number,
            )
        }

        fn moment(&self, name: &str, key_hash: u64) -> u64 {
            self.tags.purges_of(tag(name))[0].moment_ms(key_hash)
        }
    }

    fn tag(name: &str) -> TagHash {
        TagHasher::new(3).hash(name.as_bytes()).unwrap()
    }

    #[test]
    fn the_share_that_is_stale_grows_evenly() {
        let all = Fixture::new();
        assert!(matches!(all.purge("a", 0), PurgeOutcome::Gradually(_)));
        let share = |name, part| {
            let now_ms = START_MS + PERIOD_MS * part / 100;
            (0..KEYS).filter(|key| all.check(name, *key, now_ms) == Stale).count() as f64 / KEYS as f64
        };
        for part in [0, 25, 50, 75, 100] {
            assert!((share("a", part) - part as f64 / 100.0).abs() < 0.01, "{part} %: {}", share("a", part));
        }
        assert!(share("a", 0) < 1e-9 && share("a", 100) > 1.0 - 1e-9);
        assert!(share("b", 100) < 1e-9, "another tag");
        assert_eq!(all.tags.check(all.stamp, [], 7, END_MS), Valid, "no tag");
        let new = all.tick();
        assert_eq!(all.tags.check(new, [tag("a").get()], 7, END_MS), Valid, "stored after it began");
    }

    #[test]
    fn the_phase_is_that_of_a_rolling_floor() {
        let all = Fixture::new();
        all.purge("a", 0);
        all.tags.floors().start_rolling(START_MS, PERIOD_MS, || all.tick());
        let floor = all.tags.floors().rolling().next().unwrap();
        assert!((0..KEYS).all(|key| all.moment("a", key) == floor.moment_ms(key)));
    }

    #[test]
    fn grace_counts_from_the_moment_of_the_item() {
        const GRACE_MS: u64 = 30_000;
        let all = Fixture::new();
        let number = all.purge("a", GRACE_MS).number();
        for key in 0..100 {
            let moment = all.moment("a", key);
            assert_eq!((all.check("a", key, moment - 1), all.since("a", key, moment - 1)), (Valid, None));
            for now_ms in [moment, END_MS.max(moment + 1), END_MS + GRACE_MS - 1] {
                all.tags.sweep(now_ms.min(END_MS + GRACE_MS - 1));
                assert_eq!((all.check("a", key, now_ms), all.since("a", key, now_ms)), (Stale, Some(moment)));
            }
        }
        assert_eq!(all.tags.bumps().last_own(tag("a"), Hard), 0);
        all.tags.sweep(END_MS + GRACE_MS);
        assert_eq!((all.check("a", 1, END_MS), all.tags.purges_of(tag("a")).len()), (Dead, 0));
        assert_eq!((all.tags.bumps().last_own(tag("a"), Hard), all.tags.last(tag("a"))), (number, number));
        assert_eq!(all.tags.bumps().last_own(tag("b"), Hard), 0);
    }

    #[test]
    fn without_grace_it_retires_at_the_end_of_its_period() {
        let all = Fixture::new();
        all.purge("a", 0);
        all.tags.sweep(END_MS - 1);
        assert_eq!((all.check("a", 1, END_MS), all.tags.purges_running(END_MS - 1)), (Stale, 1));
        all.tags.sweep(END_MS);
        assert_eq!((all.check("a", 1, END_MS), all.tags.purges_running(END_MS)), (Dead, 0));
    }

    #[test]
    fn one_more_than_may_run_takes_effect_at_once() {
        let all = Fixture::new();
        for n in 0..GRADUAL_MAX {
            assert!(matches!(all.purge(&n.to_string(), 0), PurgeOutcome::Gradually(_)), "{n}");
        }
        let last = all.purge("last", 0);
        assert_eq!(
            (last, all.tags.bumps().last_own(tag("last"), Soft)),
            (PurgeOutcome::AtOnce(last.number()), last.number())
        );
        assert_eq!((all.check("last", 1, START_MS), all.check("0", 1, START_MS)), (Stale, Valid));
        let stats = all.tags.stats();
        assert_eq!((stats.gradual_purges, stats.gradual_at_once), (GRADUAL_MAX as u64, 1));
        // The number of those that run counts, not of those whose items still have grace.
        assert!(matches!(all.purge_at("next", END_MS, 1, 0), PurgeOutcome::Gradually(_)));
    }

    #[test]
    fn the_list_is_bounded() {
        let all = Fixture::new();
        let name = |n: usize| format!("t{n}");
        for n in 0..=KEPT_MAX {
            let now_ms = START_MS + n as u64 * 10;
            assert!(matches!(all.purge_at(&name(n), now_ms, 10, 1_000_000), PurgeOutcome::Gradually(_)));
        }
        let now_ms = START_MS + KEPT_MAX as u64 * 10 + 10;
        let states: Vec<_> = (0..=KEPT_MAX).map(|n| all.check(&name(n), 1, now_ms)).collect();
        assert_eq!((states[0], &states[1..]), (Dead, &[Stale; KEPT_MAX][..]), "the first retired early");
    }

    #[test]
    fn the_strictest_of_several_invalidations_holds() {
        let key = (0..KEYS).find(|key| phase_ms(*key, PERIOD_MS) > PERIOD_MS / 2).unwrap();
        let all = Fixture::new();
        all.purge("a", 1_000_000);
        let moment = all.moment("a", key);
        // Another of the same tag while it runs: the earlier moment counts.
        all.purge_at("a", START_MS + 1, 100, 1_000_000);
        let second = all.tags.purges_of(tag("a"))[1].moment_ms(key);
        assert!(second < moment);
        assert_eq!((all.check("a", key, second - 1), all.check("a", key, second)), (Valid, Stale));
        assert_eq!(all.since("a", key, END_MS), Some(second));
        // A soft bump: at once; grace counts from the earlier of both.
        let all = Fixture::new();
        all.purge("a", 1_000_000);
        let number = all.tags.bump_softly(tag("a"), START_MS, 1_000_000, |number| number, || all.tick());
        assert_eq!((all.check("a", key, START_MS), all.since("a", key, END_MS)), (Stale, Some(number)));
        all.tags.bumps().bump(tag("a"), Hard, || all.tick());
        assert_eq!(all.check("a", key, START_MS), Dead);
        // A flush, of everything.
        let all = Fixture::new();
        all.purge("a", 1_000_000);
        all.tags.floors().flush(START_MS, START_MS, || all.tick());
        assert_eq!(all.check("a", key, START_MS), Dead);
        // A hard bump from before is not softened.
        let all = Fixture::new();
        all.tags.bumps().bump(tag("a"), Hard, || all.tick());
        all.purge("a", 1_000_000);
        assert_eq!(all.check("a", key, START_MS), Dead);
    }

    #[test]
    fn an_item_with_several_tags_obeys_the_purge_of_each() {
        let all = Fixture::new();
        all.purge("a", 0);
        all.purge_at("b", START_MS, 10, 0);
        let tags = ["c", "a", "b"].map(|name| tag(name).get());
        let check = |now_ms| all.tags.check(all.stamp, tags, 7, now_ms);
        let [a, b] = ["a", "b"].map(|name| all.moment(name, 7));
        assert_eq!((check(a.min(b) - 1), check(a.min(b))), (Valid, Stale));
        let next = |now_ms| all.tags.next_moment_ms(all.stamp, &tags, 7, now_ms);
        assert_eq!([START_MS, a.min(b), a.max(b)].map(next), [Some(a.min(b)), Some(a.max(b)), None]);
        assert_eq!(all.tags.next_moment_ms(all.clock.get(), &tags, 7, START_MS), None, "a later token");
        let numbers = ["a", "b"].map(|name| all.tags.last(tag(name)));
        let last = [START_MS, b, END_MS].map(|now_ms| all.tags.last_purge_due(&tags, 7, now_ms));
        assert!(b < a && last == [0, numbers[1], numbers[1]]);
        assert_eq!(all.tags.last_purge_due(&tags[1..2], 7, END_MS), numbers[0]);
    }

    #[test]
    fn an_item_that_a_purge_concerns_gets_no_later_stamp() {
        let all = Fixture::new();
        let carried = || [tag("a").get(), tag("b").get()];
        let restamp = |stamp| all.tags.restamp(stamp, carried(), || all.tick());
        let bump = |stamp| {
            all.tags.bump_carried(&[tag("c")], stamp, (carried(), FloorClass::default()), || all.tick())
        };
        all.purge("other", 0);
        assert!(restamp(all.stamp).is_some() && bump(all.stamp).is_some());
        all.purge("b", 0);
        assert_eq!((restamp(all.stamp), bump(all.stamp)), (None, None), "its moment may come");
        assert!(restamp(all.tick()).is_some() && bump(all.tick()).is_some());
    }

    #[test]
    fn readers_see_each_purge_in_the_list_or_in_the_slots() {
        let tags = Tags::new(1 << 20);
        let clock = AtomicU64::new(1);
        let answered = AtomicU64::new(0);
        let name = |n: u64| tag(&n.to_string());
        let tick = || clock.fetch_add(1, Ordering::Relaxed) + 1;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=3_000 {
                    // Each is over at once, and its grace in 50 ms.
                    tags.purge(name(n), (n, 1), 50, |_| 0, tick);
                    answered.store(n, Ordering::Release);
                    tags.sweep(n);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut n = 0;
                    while n < 3_000 {
                        n = answered.load(Ordering::Acquire);
                        for n in n.saturating_sub(60).max(1)..=n {
                            let seen = tags.check(1, [name(n).get()], 7, n + 1);
                            assert!(seen >= Stale, "{n}: {seen:?}");
                        }
                    }
                });
            }
        });
    }
}
