//! What a store notes about its queues, and how large the small one may be: what the choice of a victim
//! ([`crate::choice`]) goes by.
//!
//! The target of the small queue is a tenth of the memory at first. It grows where keys come back that were
//! evicted from it, and shrinks where keys come back that were evicted from the main queue
//! ([`crate::ghost`]), and with what the main queue's walk keeps: the more, the fewer uses an item has, since
//! one with many would stay in a shorter queue too. That does not count while the small queue's bytes hit
//! more often than the main one's. While hardly any key that came back is used again in the main queue, the
//! target grows faster: those are values that are filled, read once and no more. It is one for all stores of
//! a memory ([`CommonNotes`]), which learn the sooner.
//!
//! The constants were found with a model in bytes at the level of segments, and then with the store itself
//! under some fifty loads (`cattlegrid-store-bench work`).
//!
//! Source of the small and the main queue: J. Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP 2023.

#![expect(clippy::cast_precision_loss, reason = "shares of the memory, ages and counts need no 52 bits")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ghost::EvictedFrom;
use crate::index::USES_MAX;
use crate::segment::{Place, SegmentQueue};

/// The target of the small queue, as a share of the memory, at first.
const SMALL_SHARE: f64 = 0.1;
/// The bounds of the small queue's share of the memory.
const SMALL_SHARES: (f64, f64) = (0.05, 0.8);
/// Above this share it grows at half the pace.
const SMALL_HIGH: f64 = 0.6;
/// Above this share, or where it has this share of the bytes of a store and is [`EAGER`], stores compare the heads
/// of their small queues when one of them needs room.
const MOSTLY_SMALL: f64 = 0.7;
/// The target is told to all stores when it has moved by this much.
const TOLD: f64 = 0.0005;
/// Steps of the target.
const STEPS: TargetSteps = TargetSteps { others: 4.0, main: 8.0, kept: 1.0 };
/// The steps while less than [`RETURNS`] of what came back is used.
const STEPS_UP: TargetSteps = TargetSteps { others: 8.0, main: 4.0, kept: 0.5 };
/// See [`STEPS_UP`].
const RETURNS: f64 = 0.06;
/// The share of what came back and is used is a mean of this many, of all stores of a memory, and of one at
/// least.
const RETURNS_WINDOW: (f64, f64) = (8192.0, 1024.0);
/// Above this multiple of its target one use is enough to leave the small queue for the main one, unless it
/// is [`BUSY`].
const EAGER: f64 = 1.5;
/// The age of a blind item is noted at this many of its first uses. Some sessions are read soon, and again much
/// later; what is used more often leaves for the main queue.
pub(crate) const EARLY_USES: u8 = 2;
/// Blind items are late from this multiple of the age at which others are read.
const REACH: f64 = 1.25;
/// Not if this share of those that were evicted is asked for afterwards.
const LACKED: f64 = 0.03;
/// Then the main queue's head goes before blind items already at this multiple of their age.
const LACKED_BIAS: f64 = 0.85;
/// Blind items are unread once those of a share of the memory, [`UNREAD_RUN`], were stored one after the other
/// with fewer first reads in the meantime than this share of them.
const UNREAD: f64 = 0.2;
/// Items that are stored after which both counts are halved. Where reading begins, it should soon show.
const STORED_WINDOW: f64 = 128.0;
/// See [`UNREAD`]. With 0, 5 of 100 sessions were lost of those that begin when the memory is full (gap of a third
/// of it); with a quarter, 89.9 in place of 95.7 % of the gets of popular values hit beside a batch of 3,000 bytes
/// (four threads).
const UNREAD_RUN: f64 = 0.1;
/// Blind items are hopeless if their first reads are fewer than this share of those that are asked for too late,
/// while the blind queue has more than [`HELD`] of all bytes: no memory would be enough for them.
const READ_IN_TIME: f64 = 0.3;
/// See [`READ_IN_TIME`].
const HELD: f64 = 0.5;
/// Blind items are also given up once those of this share of the memory were evicted for which clients ask, at
/// ages that are far above that of any that is read, and no longer grow: the memory they have got has not helped.
const PATIENCE: f64 = 0.5;
/// They grow while they are this multiple of the highest before.
const GROWS: f64 = 1.1;
/// Ages above this multiple of that at which items are read are far above it.
const FAR: f64 = 1.5;
/// They are no longer given up when blind items of this multiple of the memory have been evicted: the first time,
/// doubling up to the most.
const GIVEN_UP: (f64, f64) = (4.0, 64.0);
/// How late hopeless items are: as much as gives the highest bias.
const HOPELESS: f64 = 2.0;
/// How much older than blind items others must be at most, to go before those that are late; and before those that
/// are unread.
const BIAS_MAX: f64 = 8.0;
/// One in this many hits is counted by its queue.
const SAMPLE: u32 = 8;
/// Counted gets of all stores of a memory after which the counts are halved, and of one at least.
const SAMPLES: (f64, f64) = (1024.0, 128.0);
/// The main queue is stale when its hits for each byte are less than one in this many of the small one's.
const STALE: f64 = 4.0;
/// And the small one has this share of all gets.
const BUSY_HITS: f64 = 0.2;
/// And no more than this share of all bytes.
const STALE_BYTES: f64 = 0.8;
/// The small queue is busy with this multiple of the main one's hits for each byte, and with [`BUSY_HITS`].
/// What the main one keeps does not count then.
const BUSY: f64 = 1.3;
/// The share of what main's walk keeps is a mean over one in this many bytes of the memory.
const KEPT_WINDOW: f64 = 16.0;

/// How far the target of the small queue moves, in sizes of the item.
struct TargetSteps {
    /// Up, where a key comes back that was evicted from the small or the blind queue; times the number of
    /// those from the main queue for one of these, if that is more than one.
    others: f64,
    /// Down, where a key comes back that was evicted from the main queue; the other way round.
    main: f64,
    /// Down, for an item that the walk of the main queue keeps; as many times as it has uses less than
    /// [`USES_MAX`] + 1.
    kept: f64,
}

/// What a store has noted about its queues.
#[derive(Debug)]
pub(crate) struct QueueNotes {
    /// Of the bytes that main's walk meets, the share that stays.
    kept: f64,
    /// What is not told yet of the steps of [`CommonNotes::target`].
    untold: f64,
    common: Arc<CommonNotes>,
    /// Stores of the memory.
    shards: f64,
    /// The share of those that came back which are used until the walk of the main queue meets them.
    returns: f64,
    /// Bytes of the small queue as a multiple of its target, at the last choice: in the log and outside it.
    small: [f64; 2],
    /// Bytes of the queues at the last choice, in the log and outside it.
    bytes: [[usize; SegmentQueue::COUNT]; 2],
    /// Of blind items by the place of their values.
    blind: [BlindNotes; Place::COUNT],
    reads: u32,
    /// `reads` when the last blind item was stored.
    reads_before: u32,
    /// See [`SAMPLES`].
    samples: f64,
    /// See [`RETURNS_WINDOW`].
    returns_window: f64,
    /// Of values in the log and outside it.
    rates: [Rates; 2],
}

/// What is noted of blind items. The counts decay.
#[derive(Debug)]
struct BlindNotes {
    /// The age in ticks at which they are read, once or twice, at most; infinite until one was read or evicted.
    reach: f64,
    /// The same, but it takes the eviction of the whole memory to halve.
    furthest: f64,
    /// How many were evicted.
    gone: f64,
    /// Of these, those that a client has asked for.
    lacked: f64,
    /// How many were read for the first time.
    read: f64,
    /// Bytes that were evicted without a gain: see [`PATIENCE`].
    gainless: f64,
    /// The highest age of these.
    gainless_age: f64,
    /// Bytes to be evicted until they are no longer given up, as multiples of the memory.
    given_up: f64,
    /// The next value of `given_up`.
    pause: f64,
    /// How many were stored, and meanwhile read for the first time.
    stored: f64,
    stored_read: f64,
    /// Bytes of those that are unread, as a share of the memory.
    unread: f64,
}

impl BlindNotes {
    fn new() -> Self {
        Self {
            reach: f64::INFINITY,
            furthest: 0.0,
            gone: 0.0,
            lacked: 0.0,
            read: 0.0,
            gainless: 0.0,
            gainless_age: 0.0,
            given_up: 0.0,
            pause: GIVEN_UP.0,
            stored: 0.0,
            stored_read: 0.0,
            unread: 0.0,
        }
    }

    /// Notes that bytes of this share of the memory were evicted at this age, in ticks, for which clients ask
    /// or not.
    fn evicted(&mut self, age: f64, share: f64, is_lacked: bool) {
        self.furthest *= 0.5_f64.powf(share);
        if self.given_up > 0.0 {
            self.given_up -= share;
        } else if age <= FAR * self.furthest {
            (self.gainless, self.gainless_age, self.pause) = (0.0, 0.0, GIVEN_UP.0);
        } else if is_lacked && age > GROWS * self.gainless_age {
            (self.gainless, self.gainless_age) = (0.0, age);
        } else if is_lacked {
            self.gainless += share;
            if self.gainless > PATIENCE {
                (self.gainless, self.gainless_age, self.given_up) = (0.0, 0.0, self.pause);
                self.pause = (2.0 * self.pause).min(GIVEN_UP.1);
            }
        }
    }

    /// Notes that an item was stored whose bytes are this share of the memory.
    fn stored(&mut self, share: f64) {
        self.stored += 1.0;
        if self.stored > STORED_WINDOW {
            self.stored /= 2.0;
            self.stored_read /= 2.0;
        }
        self.unread = if self.stored_read < UNREAD * self.stored { self.unread + share } else { 0.0 };
    }
}

/// What is hit, as decaying counts of samples.
#[derive(Debug, Default)]
struct Rates {
    /// Hits and fills.
    gets: f64,
    /// Hits by queue.
    hits: [f64; SegmentQueue::COUNT],
}

impl Rates {
    fn count(&mut self, gets: f64, most: f64) {
        self.gets += gets;
        if self.gets > most {
            self.gets /= 2.0;
            self.hits.iter_mut().for_each(|hits| *hits /= 2.0);
        }
    }

    /// Whether each byte of the small queue hits that many times as often as one of the main queue, and the
    /// small one has its share of all gets; `bytes` are those of the queues.
    fn is_busy(&self, times: f64, bytes: [usize; SegmentQueue::COUNT]) -> bool {
        let [small, main, _] = bytes.map(|bytes| bytes as f64);
        let [small_hits, main_hits, _] = self.hits;
        small_hits > BUSY_HITS * self.gets && main_hits * times * small < small_hits * main
    }
}

impl QueueNotes {
    /// For one of this many stores of a memory, which have this in common.
    pub(crate) fn new(shards: usize, common: Arc<CommonNotes>) -> Self {
        let window = |(all, least): (f64, f64)| (all / shards as f64).max(least);
        Self {
            kept: 0.0,
            untold: 0.0,
            common,
            shards: shards as f64,
            returns: 0.5,
            small: [0.0; 2],
            bytes: [[0; SegmentQueue::COUNT]; 2],
            blind: [(); Place::COUNT].map(|()| BlindNotes::new()),
            reads: 0,
            reads_before: 0,
            samples: window(SAMPLES),
            returns_window: window(RETURNS_WINDOW),
            rates: [Rates::default(), Rates::default()],
        }
    }

    /// Counts a hit. True: it should be counted by its queue, with [`QueueNotes::sample_hit`].
    #[inline]
    pub(crate) fn count_hit(&mut self) -> bool {
        self.reads = self.reads.wrapping_add(1);
        self.reads.is_multiple_of(SAMPLE)
    }

    /// Counts a hit by its queue; `is_outside`: of a value outside the log.
    #[cold]
    pub(crate) fn sample_hit(&mut self, queue: SegmentQueue, is_outside: bool) {
        let rates = &mut self.rates[usize::from(is_outside)];
        rates.hits[queue as usize] += 1.0;
        rates.count(1.0, self.samples);
    }

    /// Counts a fill: a get that has missed.
    pub(crate) fn count_fill(&mut self, is_outside: bool) {
        self.rates[usize::from(is_outside)].count(1.0 / f64::from(SAMPLE), self.samples);
    }

    /// Notes that a blind item of this age is read, which was read so often before.
    pub(crate) fn reached(&mut self, place: Place, age: u64, uses: u8) {
        let blind = &mut self.blind[place as usize];
        if uses == 0 {
            blind.read += 1.0;
            blind.stored_read += 1.0;
        }
        let age = ticks(age);
        blind.furthest = blind.furthest.max(age);
        blind.reach = if blind.reach.is_finite() { blind.reach.max(age) } else { age };
    }

    /// Notes that blind items of this age were evicted: a segment of them, or a value outside the log. They had
    /// the bytes of this share of a segment, and of the memory.
    pub(crate) fn passed(&mut self, place: Place, age: u64, of_segment: f64, of_memory: f64) {
        let is_lacked = self.is_lacked(place);
        let blind = &mut self.blind[place as usize];
        blind.evicted(ticks(age), of_memory * self.shards, is_lacked);
        blind.reach = blind.reach.min(ticks(age)) * (1.0 - of_segment / 64.0);
    }

    /// Notes that a blind item is stored whose bytes are this share of the memory. Where nothing is read between
    /// many of them, that says nothing: these may all be read later.
    pub(crate) fn stored_blind(&mut self, place: Place, of_memory: f64) {
        if self.reads != std::mem::replace(&mut self.reads_before, self.reads) {
            self.blind[place as usize].stored(of_memory * self.shards);
        }
    }

    /// Notes that a blind item was evicted.
    pub(crate) fn lost_blind(&mut self, place: Place) {
        let blind = &mut self.blind[place as usize];
        blind.gone += 1.0;
        if blind.gone > self.samples {
            blind.gone /= 2.0;
            blind.lacked /= 2.0;
            blind.read /= 2.0;
        }
    }

    /// Notes that main's walk has met an item with this share of the memory and this many uses.
    pub(crate) fn met(&mut self, stays: bool, (share, uses): (f64, u8), is_outside: bool) {
        let weight = (share * self.shards * KEPT_WINDOW).min(1.0);
        self.kept += (f64::from(u8::from(stays)) - self.kept) * weight;
        let place = usize::from(is_outside);
        if stays && uses > 0 && !self.is_busy(place) {
            self.move_target(-self.steps().kept * f64::from(USES_MAX + 1 - uses.min(USES_MAX)) * share);
        }
    }

    /// Notes that main's walk has met an item that the ghost queue had sent there.
    pub(crate) fn returned(&mut self, was_used: bool) {
        self.returns += (f64::from(u8::from(was_used)) - self.returns) / self.returns_window;
    }

    /// Notes that a key comes back, for which this share of the memory is wanted. `counts`: of the ghost
    /// queue.
    pub(crate) fn signal(&mut self, from: EvictedFrom, share: f64, counts: [usize; 2]) {
        let [others, main] = counts.map(|count| count.max(1) as f64);
        let steps = self.steps();
        let pace = if self.common.target() > SMALL_HIGH { 0.5 } else { 1.0 };
        if let EvictedFrom::Blind(place) = from {
            self.blind[place as usize].lacked += 1.0;
        }
        self.move_target(match from {
            EvictedFrom::Small | EvictedFrom::Blind(_) => {
                steps.others * pace * (main / others).max(1.0) * share
            }
            EvictedFrom::Main => -steps.main * (others / main).max(1.0) * share,
        });
    }

    fn steps(&self) -> &'static TargetSteps {
        if self.returns < RETURNS { &STEPS_UP } else { &STEPS }
    }

    fn move_target(&mut self, by: f64) {
        self.untold += by;
        if self.untold.abs() > TOLD {
            self.common.move_target(std::mem::take(&mut self.untold));
        }
    }

    /// The bytes of the small queue as a multiple of its target; `bytes` are those of the queues.
    fn of_target(&self, bytes: [usize; SegmentQueue::COUNT]) -> f64 {
        let target = self.common.target() * bytes.iter().sum::<usize>() as f64;
        bytes[SegmentQueue::Small as usize] as f64 / target.max(1.0)
    }

    /// Whether the small queue should be emptied, which has the first of these `bytes` of the queues.
    pub(crate) fn is_due(&self, is_outside: bool, bytes: [usize; SegmentQueue::COUNT]) -> bool {
        let all = bytes.iter().sum::<usize>() as f64;
        let is_all = bytes[SegmentQueue::Small as usize] as f64 >= STALE_BYTES * all;
        let is_stale = self.rates[usize::from(is_outside)].is_busy(STALE, bytes) && !is_all;
        self.of_target(bytes) > 1.0 && !is_stale
    }

    /// Notes the bytes of the queues in the log and outside it.
    pub(crate) fn note_bytes(&mut self, bytes: [[usize; SegmentQueue::COUNT]; 2]) {
        self.bytes = bytes;
        self.small = bytes.map(|bytes| self.of_target(bytes));
    }

    /// Uses that an item of this queue needs to leave it for the main one, or to stay in that; `is_outside`:
    /// its value is outside the log.
    pub(crate) fn needed(&self, queue: SegmentQueue, is_outside: bool) -> u8 {
        let place = usize::from(is_outside);
        match queue {
            // Where the small queue is used more than the main one, it is large for what is read once more,
            // and no more then.
            SegmentQueue::Small if self.small[place] > EAGER && !self.is_busy(place) => 1,
            SegmentQueue::Small | SegmentQueue::Blind => 2,
            SegmentQueue::Main => 1,
        }
    }

    /// Whether the bytes of the small queue are hit clearly more often than those of the main one.
    fn is_busy(&self, place: usize) -> bool {
        self.rates[place].is_busy(BUSY, self.bytes[place])
    }

    /// Whether blind items of this age are older than any is when it is read, and few that were evicted
    /// are asked for; or there would be no memory for them.
    pub(crate) fn is_late(&self, place: Place, age: u64) -> bool {
        self.late(place, age) > 1.0 && !self.is_lacked(place)
    }

    /// Whether clients ask for many of the blind items that were evicted.
    pub(crate) fn is_lacked(&self, place: Place) -> bool {
        self.lacked(place) >= 1.0
    }

    fn late(&self, place: Place, age: u64) -> f64 {
        if self.is_hopeless(place) {
            return HOPELESS;
        }
        ticks(age) / (REACH * self.blind[place as usize].reach)
    }

    /// Whether hardly any of the blind items is read, and clients do not ask for those that were evicted either.
    pub(crate) fn is_unread(&self, place: Place) -> bool {
        self.blind[place as usize].unread > UNREAD_RUN && !self.is_lacked(place)
    }

    /// Whether most of the memory is for the small queue, or most bytes of this store are in it and it has more
    /// than it should.
    pub(crate) fn is_mostly_small(&self, is_outside: bool) -> bool {
        let all: usize = self.bytes.iter().flatten().sum();
        let small: usize = self.bytes.iter().map(|bytes| bytes[SegmentQueue::Small as usize]).sum();
        let is_over = small as f64 > MOSTLY_SMALL * all as f64 && self.small[usize::from(is_outside)] > EAGER;
        self.common.is_mostly_small() || is_over
    }

    /// Whether no memory would be enough for blind items: see [`READ_IN_TIME`].
    fn is_hopeless(&self, place: Place) -> bool {
        let all: usize = self.bytes.iter().flatten().sum();
        let held: usize = self.bytes.iter().map(|bytes| bytes[SegmentQueue::Blind as usize]).sum();
        let blind = &self.blind[place as usize];
        held as f64 > HELD * all as f64 && blind.read < READ_IN_TIME * blind.lacked
    }

    /// The share of evicted blind items that clients ask for, as a multiple of [`LACKED`]; 0 if they are
    /// hopeless or given up.
    fn lacked(&self, place: Place) -> f64 {
        let blind = &self.blind[place as usize];
        if self.is_hopeless(place) || blind.given_up > 0.0 {
            return 0.0;
        }
        blind.lacked / blind.gone.max(1.0) / LACKED
    }

    /// How many times as old as blind items of this age those of the other length must be to go first: unread
    /// ones are younger than all others when they leave.
    pub(crate) fn blind_bias(&self, place: Place, age: u64) -> f64 {
        self.bias(place, age) * if self.is_unread(place) { BIAS_MAX } else { 1.0 }
    }

    /// How many times as old as blind items of this age others must be to go first.
    pub(crate) fn bias(&self, place: Place, age: u64) -> f64 {
        if self.is_lacked(place) {
            return LACKED_BIAS;
        }
        if self.is_unread(place) {
            return BIAS_MAX;
        }
        let much = (2.0 * self.kept).min(1.0) * (1.0 - self.lacked(place)).max(0.0);
        self.late(place, age).powi(4).clamp(1.0, 1.0 + (BIAS_MAX - 1.0) * much)
    }
}

/// What the stores of a memory have in common.
#[derive(Debug)]
pub(crate) struct CommonNotes {
    /// The target of the small queue as a share of the memory: the bits of an `f64`.
    target: AtomicU64,
}

impl CommonNotes {
    pub(crate) fn new() -> Self {
        Self { target: AtomicU64::new(SMALL_SHARE.to_bits()) }
    }

    fn target(&self) -> f64 {
        f64::from_bits(self.target.load(Relaxed))
    }

    fn move_target(&self, by: f64) {
        let to = (self.target() + by).clamp(SMALL_SHARES.0, SMALL_SHARES.1);
        // A step of another store that comes in between is lost, which is one of thousands.
        self.target.store(to.to_bits(), Relaxed);
    }

    /// Whether most of the memory is for the small queue.
    pub(crate) fn is_mostly_small(&self) -> bool {
        self.target() > MOSTLY_SMALL
    }
}

/// Ticks as a number that is not 0.
pub(crate) fn ticks(ticks: u64) -> f64 {
    ticks as f64 + 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_evicted_without_a_gain_is_given_up_for_ever_longer() {
        let mut blind = BlindNotes::new();
        let share = 1.0 / 256.0;
        // One in three is read soon, the others are asked for when no memory would hold them.
        blind.furthest = 100.0;
        let mut pauses = Vec::new();
        let mut since = 0.0;
        for _ in 0..20_000 {
            let was_given_up = blind.given_up > 0.0;
            blind.furthest = blind.furthest.max(100.0);
            blind.evicted(400.0, share, true);
            since += share;
            if was_given_up != (blind.given_up > 0.0) {
                pauses.push((was_given_up, since));
                since = 0.0;
            }
        }
        let lengths = |given_up: bool| {
            let of = pauses.iter().filter(move |pause| pause.0 == given_up);
            of.map(|pause| pause.1.round()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(true), [4.0, 8.0, 16.0, 32.0], "{pauses:?}");
        assert!(lengths(false).iter().all(|length| *length <= 1.0), "{pauses:?}");
        // As soon as they are read at such ages the next time is short again.
        blind.given_up = 0.0;
        blind.furthest = 400.0;
        blind.evicted(410.0, share, true);
        assert!((blind.pause - GIVEN_UP.0).abs() < 1e-9);
    }

    #[test]
    fn ages_that_grow_are_a_gain() {
        let mut blind = BlindNotes::new();
        for n in 0..100 {
            blind.evicted(100.0 * 1.2_f64.powi(n), 0.1, true);
        }
        assert!(blind.given_up <= 0.0 && blind.gainless < 0.2, "{blind:?}");
    }

    #[test]
    fn a_preload_is_not_unread_while_nothing_else_is_read() {
        for reads in [true, false] {
            let mut notes = QueueNotes::new(4, Arc::new(CommonNotes::new()));
            for _ in 0..1_000 {
                if reads {
                    notes.count_hit();
                }
                notes.stored_blind(Place::Long, 0.001);
            }
            assert_eq!(notes.is_unread(Place::Long), reads);
            assert!(!notes.is_unread(Place::Short));
            // Those that are read are not for long.
            for _ in 0..64 {
                notes.count_hit();
                notes.stored_blind(Place::Long, 0.001);
                notes.reached(Place::Long, 1_000, 0);
            }
            assert!(!notes.is_unread(Place::Long));
        }
    }
}
