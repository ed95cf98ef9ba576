//! Outstanding misses by key: to which miss a fill without a token belongs.
//!
//! An entry holds the number of outstanding misses of a key and the smallest number that was noted at one of them. A
//! fill lowers the count and never raises the number, because it is not known whose fill it was; when the count is 0
//! the entry is removed. A client that never fills must not hold its key's number down forever. So an entry has two
//! generations, and the older one ages out as a whole when its last miss is a fill window old.
//!
//! It is not known either to which generation a fill belongs. It is counted against the younger one, so the older
//! number stays; the younger one's count may then be too small by this number of fills when the older one ages out. So
//! that many misses are carried over, every time: a miss that is never filled is passed from generation to generation
//! while further misses of its key arrive, each time under the number of a younger miss.
//!
//! A closed connection changes nothing here. Pools close a connection while the thread that used it still computes, and
//! its fill comes on another connection.
//!
//! The table is bounded. A miss that finds no room leaves its number in a fixed array, in a slot by hash: the smallest
//! number lost, kept until a fill window has passed since the slot's last loss. A fill counts as of the smaller of its
//! entry's and its slot's number: a fill is dropped rather than stored wrongly. While a slot counts, a fill does not
//! lower an entry: its miss may be the lost one.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;

use crate::fence::slot;
use crate::hash::BuildIdentity;

/// Outstanding misses of a shard's keys. See the module's text.
#[derive(Debug)]
pub struct Ledger {
    entries: HashMap<u64, Entry, BuildIdentity>,
    most: usize,
    lost: Box<[Loss]>,
    /// Slots of `lost` with an `until`: those that count, and those that did at the last [`Ledger::settle`].
    lost_slots: usize,
    /// When the next [`Ledger::settle`] has something to do, in milliseconds.
    settle_ms: u64,
    /// Misses that found no room: they decide when the search for aged entries is repeated.
    losses: u64,
}

/// The smallest number that found no room in the table.
#[derive(Debug, Clone, Copy, Default)]
struct Loss {
    number: u64,
    /// In units of [`TICK_MS`], so that a slot takes 16 bytes.
    since: u32,
    /// 0: it stands for no miss.
    until: u32,
}

/// Unit of the times in [`Loss`], in milliseconds.
const TICK_MS: u64 = 10;

impl Loss {
    fn counts(&self, now_ms: u64) -> bool {
        u64::from(self.until) * TICK_MS > now_ms
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    old: Generation,
    new: Generation,
    /// Fills counted against `new` that may have belonged to `old`.
    unsure: u32,
    window_ms: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Generation {
    /// The smallest number; meaningless while nothing is recorded (`until_ms` is 0).
    oldest: u64,
    count: u32,
    /// Misses carried over from the generation before.
    carried: u32,
    start_ms: u64,
    until_ms: u64,
}

impl Generation {
    fn is_empty(&self) -> bool {
        self.until_ms == 0
    }

    fn total(&self) -> u32 {
        self.count + self.carried
    }

    /// Whether a miss with this number may be in this generation.
    fn covers(&self, number: u64) -> bool {
        !self.is_empty() && number >= self.oldest
    }
}

impl Entry {
    /// Drops what is too old.
    fn age(&mut self, now_ms: u64) {
        let window = u64::from(self.window_ms);
        if !self.old.is_empty() && self.old.until_ms <= now_ms {
            if !self.new.is_empty() {
                self.new.carried += self.old.total().min(self.unsure);
            }
            self.old = Generation::default();
            self.unsure = 0;
        }
        if self.old.is_empty() && !self.new.is_empty() {
            if self.new.until_ms <= now_ms {
                self.new = Generation::default();
            } else if self.new.start_ms + window / 2 <= now_ms {
                self.old = std::mem::take(&mut self.new);
            }
        }
    }

    fn total(&self) -> u32 {
        self.old.total() + self.new.total()
    }

    fn oldest(&self) -> Option<Oldest> {
        let generations = [&self.old, &self.new].into_iter().filter(|g| !g.is_empty());
        let oldest = generations.min_by_key(|generation| generation.oldest)?;
        (self.total() > 0).then_some(Oldest { number: oldest.oldest, since_ms: oldest.start_ms, lost: false })
    }
}

/// The oldest outstanding miss of a key, or a lost miss that may be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oldest {
    /// Its number: a fill counts as of this number at the latest.
    pub number: u64,
    /// When it was noted at the latest, in milliseconds since the start.
    pub since_ms: u64,
    /// The miss found no room in the table, and may be another key's.
    pub lost: bool,
}

/// Milliseconds from one look for what is too old to the next.
const SETTLE_MS: u64 = 900;
/// Keys for which that time counts once.
const SETTLED_KEYS: usize = 16_384;

/// Bytes that an entry takes in its table.
const ENTRY_BYTES: usize = 2 * (size_of::<Entry>() + 16);

impl Ledger {
    /// A ledger of at most `bytes` bytes: seven eighths for entries, the rest for misses that find no room.
    pub fn new(bytes: usize) -> Self {
        let slots = 1 << (bytes / 8 / size_of::<Loss>()).max(1).ilog2();
        Self::with(bytes * 7 / 8 / ENTRY_BYTES, slots)
    }

    /// A ledger of `entries` entries and `slots` slots for lost misses (a power of two).
    pub fn with(entries: usize, slots: usize) -> Self {
        debug_assert!(slots.is_power_of_two());
        Self {
            entries: HashMap::with_hasher(BuildIdentity),
            most: entries.max(1),
            lost: vec![Loss::default(); slots].into(),
            lost_slots: 0,
            settle_ms: 0,
            losses: 0,
        }
    }

    /// Records a miss under a rule whose fill window is `window_ms` milliseconds. `now_ms`: milliseconds since the
    /// start.
    pub fn record(&mut self, hash: u64, number: u64, now_ms: u64, window_ms: u32) {
        if self.entries.len() >= self.most && !self.entries.contains_key(&hash) {
            // A walk is worth its time only if the last one found an aged entry.
            if self.losses.is_multiple_of(64) {
                self.drop_aged(now_ms);
            }
            if self.entries.len() >= self.most {
                return self.lose(hash, number, now_ms + u64::from(window_ms), now_ms);
            }
        }
        let entry = self.entries.entry(hash).or_insert(Entry {
            old: Generation::default(),
            new: Generation::default(),
            unsure: 0,
            window_ms,
        });
        entry.window_ms = window_ms;
        entry.age(now_ms);
        let new = &mut entry.new;
        if new.is_empty() {
            *new = Generation { oldest: number, start_ms: now_ms.max(1), ..*new };
        }
        new.oldest = new.oldest.min(number);
        new.count += 1;
        // The window may have become shorter since; a miss keeps the window of its own time.
        new.until_ms = new.until_ms.max(now_ms + u64::from(window_ms)).max(1);
    }

    fn lose(&mut self, hash: u64, number: u64, until_ms: u64, now_ms: u64) {
        self.losses += 1;
        let at = slot(hash, self.lost.len());
        let loss = &mut self.lost[at];
        let ticks = |ms: u64| u32::try_from(ms).unwrap_or(u32::MAX);
        if !loss.counts(now_ms) || number < loss.number {
            (loss.number, loss.since) = (number, ticks(now_ms / TICK_MS));
        }
        self.lost_slots += usize::from(loss.until == 0);
        loss.until = loss.until.max(ticks(until_ms.div_ceil(TICK_MS))).max(1);
    }

    /// The miss as of which a fill counts, if a miss of the key is outstanding or may be.
    pub fn oldest(&mut self, hash: u64, now_ms: u64) -> Option<Oldest> {
        let entry = match self.entries.entry(hash) {
            MapEntry::Occupied(mut entry) => {
                entry.get_mut().age(now_ms);
                let oldest = entry.get().oldest();
                if oldest.is_none() {
                    entry.remove();
                }
                oldest
            }
            MapEntry::Vacant(_) => None,
        };
        let loss = self.lost[slot(hash, self.lost.len())];
        let loss = loss.counts(now_ms).then_some(Oldest {
            number: loss.number,
            since_ms: u64::from(loss.since) * TICK_MS,
            lost: true,
        });
        entry.into_iter().chain(loss).min_by_key(|oldest| oldest.number)
    }

    /// A fill came for a miss: for the miss with this `number` if it is known, otherwise for any of them.
    pub fn fill(&mut self, hash: u64, number: Option<u64>, now_ms: u64) {
        self.lower(hash, now_ms, |entry| {
            // A token is known for longer than its miss is remembered.
            if number.is_some_and(|number| !entry.old.covers(number) && !entry.new.covers(number)) {
                return;
            }
            if entry.new.count > 0 {
                entry.new.count -= 1;
                entry.unsure += u32::from(entry.old.total() > 0);
            } else if entry.old.count > 0 {
                entry.old.count -= 1;
            } else if entry.new.carried > 0 {
                entry.new.carried -= 1;
            } else {
                entry.old.carried = entry.old.carried.saturating_sub(1);
            }
        });
    }

    fn lower(&mut self, hash: u64, now_ms: u64, lower: impl FnOnce(&mut Entry)) {
        if self.lost[slot(hash, self.lost.len())].counts(now_ms) {
            return;
        }
        let MapEntry::Occupied(mut entry) = self.entries.entry(hash) else { return };
        entry.get_mut().age(now_ms);
        lower(entry.get_mut());
        if entry.get().total() == 0 {
            entry.remove();
        }
    }

    /// About once a second: lets go of what is too old, so that [`Ledger::len`] and [`Ledger::lost_slots`] say what counts. A
    /// table of more than 16,384 keys is walked less often, so that a second has no more of this than that.
    pub fn settle(&mut self, now_ms: u64) {
        if now_ms < self.settle_ms {
            return;
        }
        self.settle_ms = now_ms + SETTLE_MS * (1 + (self.entries.len() / SETTLED_KEYS) as u64);
        self.drop_aged(now_ms);
        if self.lost_slots > 0 {
            for loss in &mut self.lost {
                if !loss.counts(now_ms) {
                    loss.until = 0;
                }
            }
            self.lost_slots = self.lost.iter().filter(|loss| loss.until > 0).count();
        }
    }

    /// Slots that stand for misses that found no room; those that have ceased to since the last [`Ledger::settle`] as well.
    pub fn lost_slots(&self) -> usize {
        self.lost_slots
    }

    /// Keys with outstanding misses. Walks the table.
    pub fn outstanding(&mut self, now_ms: u64) -> usize {
        self.drop_aged(now_ms);
        self.entries.len()
    }

    /// Drops entries that are too old.
    fn drop_aged(&mut self, now_ms: u64) {
        self.entries.retain(|_, entry| {
            entry.age(now_ms);
            entry.total() > 0
        });
    }

    /// Keys in the table; the misses of some may be too old to count.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No key has an entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Slots that stand for misses that found no room. Walks all of them.
    pub fn slots_in_loss(&self, now_ms: u64) -> usize {
        self.lost.iter().filter(|loss| loss.counts(now_ms)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u32 = 1000;

    fn ledger() -> Ledger {
        Ledger::with(100, 4)
    }

    fn number(ledger: &mut Ledger, hash: u64, now_ms: u64) -> Option<u64> {
        ledger.oldest(hash, now_ms).map(|oldest| oldest.number)
    }

    #[test]
    fn a_fill_lowers_the_count_and_never_raises_the_number() {
        let mut ledger = ledger();
        ledger.record(1, 10, 5, WINDOW);
        ledger.record(1, 20, 6, WINDOW);
        assert_eq!(number(&mut ledger, 1, 7), Some(10));
        ledger.fill(1, None, 8);
        assert_eq!(number(&mut ledger, 1, 9), Some(10), "whose fill it was is not known");
        ledger.fill(1, None, 9);
        assert_eq!(ledger.oldest(1, 9), None);
        assert!(ledger.is_empty());
    }

    #[test]
    fn only_misses_older_than_a_window_age_out() {
        let mut ledger = ledger();
        ledger.record(1, 10, 100, WINDOW);
        ledger.record(1, 20, 700, WINDOW);
        assert_eq!(number(&mut ledger, 1, 1099), Some(10));
        assert_eq!(number(&mut ledger, 1, 1100), Some(20), "the first was never filled");
        assert_eq!(number(&mut ledger, 1, 1699), Some(20));
        assert_eq!(ledger.oldest(1, 1700), None);
    }

    #[test]
    fn a_fill_of_the_older_miss_does_not_hide_the_younger_one() {
        let mut ledger = ledger();
        ledger.record(1, 10, 100, WINDOW);
        ledger.record(1, 20, 1000, WINDOW);
        ledger.fill(1, None, 1050);
        // It was the fill of the first miss. The second is outstanding, long after the first would have aged out.
        assert_eq!(number(&mut ledger, 1, 1500), Some(20));
        ledger.fill(1, None, 1600);
        assert_eq!(ledger.oldest(1, 1600), None);
    }

    #[test]
    fn a_client_that_never_fills_does_not_hold_the_number_down_forever() {
        let mut ledger = ledger();
        ledger.record(1, 1, 1, WINDOW);
        let mut number = 1;
        for now in (10..20_000).step_by(10) {
            number += 1;
            ledger.record(1, number, now, WINDOW);
            if now > 6000 {
                let oldest = ledger.oldest(1, now).unwrap().number;
                assert!(number - oldest <= 10 * u64::from(WINDOW) / 10, "{oldest} of {number} at {now}");
            }
            ledger.fill(1, None, now + 5);
        }
        assert_eq!(ledger.oldest(1, 22_000), None);
    }

    #[test]
    fn a_miss_that_is_too_old_is_not_outstanding() {
        let mut ledger = ledger();
        ledger.record(1, 10, 0, WINDOW);
        ledger.record(2, 11, 500, WINDOW);
        assert_eq!((ledger.outstanding(999), ledger.len()), (2, 2));
        assert_eq!((ledger.outstanding(1000), ledger.outstanding(1500), ledger.len()), (1, 0, 0));
    }

    #[test]
    fn a_miss_without_room_leaves_its_number() {
        let mut ledger = Ledger::with(2, 1);
        ledger.record(1, 10, 0, WINDOW);
        ledger.record(2, 11, 0, WINDOW);
        ledger.record(3, 12, 100, WINDOW);
        ledger.record(4, 13, 200, WINDOW);
        assert_eq!(number(&mut ledger, 3, 300), Some(12));
        assert_eq!(number(&mut ledger, 9, 300), Some(12), "fails closed");
        assert_eq!(number(&mut ledger, 1, 300), Some(10));
        assert_eq!(ledger.slots_in_loss(300), 1);
        assert_eq!(ledger.oldest(9, 1200), None);
    }

    #[test]
    fn counts_follow_each_miss_and_ageing_waits_for_settle() {
        let mut ledger = Ledger::with(2, 4);
        ledger.record(1, 10, 0, WINDOW);
        ledger.record(2, 11, 0, WINDOW);
        assert_eq!((ledger.len(), ledger.lost_slots()), (2, 0));
        (100..200_u64).for_each(|n| ledger.record(n << 56 | n << 24 | n, n, 150, WINDOW));
        assert_eq!(ledger.lost_slots(), ledger.slots_in_loss(150));
        assert!(ledger.lost_slots() > 0);
        // Again in the same slots, counted once.
        (100..200_u64).for_each(|n| ledger.record(n << 56 | n << 24 | n, n + 100, 150, WINDOW));
        assert_eq!(ledger.lost_slots(), ledger.slots_in_loss(150));
        ledger.settle(200);
        assert_eq!((ledger.len(), ledger.lost_slots()), (2, ledger.slots_in_loss(200)));
        let slots = ledger.lost_slots();
        ledger.settle(1_050);
        assert_eq!((ledger.len(), ledger.lost_slots()), (2, slots), "not yet a second");
        ledger.settle(1_101);
        assert_eq!((ledger.len(), ledger.lost_slots()), (0, slots), "49 ms are left");
        ledger.settle(3_000);
        assert_eq!((ledger.lost_slots(), ledger.slots_in_loss(3_000)), (0, 0));
        assert_eq!(ledger.oldest(1, 3_000), None);
    }

    #[test]
    fn a_miss_that_is_never_filled_is_passed_on_while_misses_go_on() {
        let mut ledger = ledger();
        ledger.record(1, 1, 1, WINDOW);
        let mut number = 1;
        for now in (100..10_000).step_by(100) {
            number += 1;
            ledger.record(1, number, now, WINDOW);
            ledger.fill(1, None, now + 5);
            // A miss is outstanding all the time, and it is at most two windows old.
            let oldest = ledger.oldest(1, now + 6).unwrap();
            assert!(oldest.since_ms + 2 * u64::from(WINDOW) >= now, "{oldest:?} at {now}");
        }
        assert_eq!(ledger.oldest(1, 9_900 + u64::from(WINDOW)), None, "a pause of a window ends it");
    }

    #[test]
    fn the_oldest_miss_says_since_when_and_whether_it_was_lost() {
        let mut ledger = Ledger::with(1, 1);
        ledger.record(1, 10, 100, WINDOW);
        ledger.record(1, 11, 200, WINDOW);
        assert_eq!(ledger.oldest(1, 300), Some(Oldest { number: 10, since_ms: 100, lost: false }));
        ledger.record(2, 5, 300, WINDOW);
        let lost = Some(Oldest { number: 5, since_ms: 300, lost: true });
        assert_eq!((ledger.oldest(1, 400), ledger.oldest(2, 400)), (lost, lost));
    }

    #[test]
    fn a_token_whose_miss_is_forgotten_takes_no_other() {
        let mut ledger = ledger();
        ledger.record(1, 10, 0, WINDOW);
        ledger.record(1, 20, 1500, WINDOW);
        ledger.fill(1, Some(10), 1600);
        assert_eq!(number(&mut ledger, 1, 1700), Some(20));
        ledger.fill(1, Some(20), 1800);
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_fill_of_a_lost_miss_takes_no_other() {
        let mut ledger = Ledger::with(1, 1);
        ledger.record(2, 5, 0, WINDOW);
        ledger.record(1, 10, 500, WINDOW);
        assert_eq!(number(&mut ledger, 2, 1300), Some(10), "its entry is over and makes room");
        ledger.record(1, 20, 1400, WINDOW);
        ledger.fill(1, None, 1450);
        assert_eq!(number(&mut ledger, 1, 2000), Some(20), "longer than the loss counts");
    }

    #[test]
    fn a_miss_keeps_the_window_it_was_told_under() {
        let mut ledger = ledger();
        ledger.record(1, 10, 0, WINDOW);
        ledger.record(1, 20, 10, WINDOW / 10);
        assert_eq!(number(&mut ledger, 1, 900), Some(10));
        assert_eq!(ledger.oldest(1, 1000), None);
    }
}
