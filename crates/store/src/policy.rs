//! What leaves a store first: a segment in which nothing lives, a segment that is half empty, or the coldest head of a queue.
//!
//! There are three queues ([`Queue`]): the small one for fills, which is kept at its target; the blind one for what was stored without
//! a miss before; and the main one for what was used in these. Each is the row of its segments, and beside it the lists of its
//! values outside the log, one an octave of their bytes ([`crate::outside`]). The first of each row and list are its *heads*. A
//! head is the colder, the longer ago its items were stored and the larger they are: *coldness* is age x size^0.7, of a segment by
//! the means of its items. A size counts for less than its bytes, since hits are what is counted, but bytes are what is fetched.
//!
//! The target of the small queue is a tenth of the memory at first. It grows where keys come back that were evicted from it, and
//! shrinks where keys come back that were evicted from the main queue ([`crate::ghost`]), and with what the main queue's walk
//! keeps. While hardly any key that came back is used again in the main queue, it grows faster: those are values that are
//! filled, read once and no more.
//!
//! Where the small queue has no more than its target, the main and the blind queue compete by their coldest heads. Blind items that are older
//! than any is when it is first read, give way earlier, if the main queue keeps much of what its walk meets.
//!
//! The small queue is not emptied while the main one is stale: its bytes hit less than a quarter as often as those of the small
//! one, which has a fifth of all gets. That is a deploy that has changed all keys, or a load that was not there before.
//!
//! The constants are those of a model in bytes at the level of segments, under some forty loads; most change the hit ratios by less
//! than a point when they are halved or doubled.
//!
//! Source of the small and the main queue: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

#![expect(clippy::cast_precision_loss, reason = "shares of the memory, ages and counts need no 52 bits")]

use crate::ghost::From;
use crate::offers::Offer;
use crate::outside::Head;
use crate::segment::{Queue, Segment, State, TICKS_PER_MS};
use crate::store::Store;

/// The target of the small queue, as a share of the memory, at first.
const SMALL_SHARE: f64 = 0.1;
/// Its bounds.
const SMALL_SHARES: (f64, f64) = (0.05, 0.6);
/// Steps of the target.
const STEPS: Steps = Steps { others: 4.0, main: 8.0, kept: 2.0 };
/// The same while less than [`RETURNS`] of what came back is used.
const STEPS_UP: Steps = Steps { others: 8.0, main: 4.0, kept: 1.0 };
/// See [`STEPS_UP`].
const RETURNS: f64 = 0.06;
/// The share of what came back and is used is a mean of this many, of all stores of a memory, and of one at least.
const RETURNS_WINDOW: (f64, f64) = (8192.0, 1024.0);
/// Above this multiple of its target one use is enough to leave the small queue for the main one.
const EAGER: f64 = 1.5;
/// A segment is compacted when less than this share of it is alive, in per cent.
const COMPACT_PERCENT: usize = 60;
/// While more than one in this many bytes of the memory is dead, also when more than one in [`COMPACT_DEAD`] of its bytes is.
const DEAD_SHARE: usize = 20;
/// See [`DEAD_SHARE`].
const COMPACT_DEAD: usize = 5;
/// Where nothing is evicted, a segment is compacted when one in this many of its bytes is dead.
const COMPACT_DEAD_KEPT: usize = 20;
/// A segment with pinned items or stubs is emptied for its space only if one in this many of its bytes is not theirs.
const WORTH: usize = 8;
/// Exponent of the size in the coldness.
const SIZE_EXPONENT: f64 = 0.7;
/// Blind items are late from this multiple of the age at which others are first read.
const REACH: f64 = 1.25;
/// How much colder than blind items the main queue's must be at most, when those are late.
const BIAS_MAX: f64 = 8.0;
/// One in this many hits is counted by its queue.
const SAMPLE: u32 = 8;
/// Counted gets of all stores of a memory after which the counts are halved, and of one at least.
const SAMPLES: (f64, f64) = (1024.0, 128.0);
/// The main queue is stale when its hits for each byte are less than one in this many of the small one's.
const STALE: f64 = 4.0;
/// And the small one has this share of all gets.
const STALE_HITS: f64 = 0.2;
/// And no more than this share of all bytes.
const STALE_BYTES: f64 = 0.8;
/// Above this severity nothing is taken from a main queue of which everything stays, as long as another has something.
const BARREN: u8 = 1;
/// The share of what main's walk keeps is a mean over one in this many bytes of the memory.
const KEPT_WINDOW: f64 = 16.0;

/// How far the target of the small queue moves, in sizes of the item.
struct Steps {
    /// Up, where a key comes back that was evicted from the small or the blind queue; times the number of those from the main
    /// queue for one of these, if that is more than one.
    others: f64,
    /// Down, where a key comes back that was evicted from the main queue; the other way round.
    main: f64,
    /// Down, for an item that the walk of the main queue keeps.
    kept: f64,
}

/// What a store has noted about its queues.
#[derive(Debug)]
pub(crate) struct Policy {
    /// The age in ticks at which blind items are first read, at most; infinite until one was read or evicted.
    reach: f64,
    /// Of the bytes that main's walk meets, the share that stays.
    kept: f64,
    /// The target of the small queue, as a share of the memory.
    target: f64,
    /// The share of those that came back which are used until the walk of the main queue meets them.
    returns: f64,
    /// Bytes of the small queue as a multiple of its target, at the last choice: in the log and outside it.
    small: [f64; 2],
    reads: u32,
    /// See [`SAMPLES`].
    samples: f64,
    /// See [`RETURNS_WINDOW`].
    returns_window: f64,
    /// Of values in the log and outside it.
    rates: [Rates; 2],
}

/// What is hit, as decaying counts of samples.
#[derive(Debug, Default)]
struct Rates {
    /// Hits and fills.
    gets: f64,
    /// Hits by queue.
    hits: [f64; Queue::COUNT],
}

impl Rates {
    fn count(&mut self, gets: f64, most: f64) {
        self.gets += gets;
        if self.gets > most {
            self.gets /= 2.0;
            self.hits.iter_mut().for_each(|hits| *hits /= 2.0);
        }
    }

    /// Whether the main queue is stale; `bytes` are those of the queues.
    fn is_stale(&self, bytes: [usize; Queue::COUNT]) -> bool {
        let [small, main, _] = bytes.map(|bytes| bytes as f64);
        let [small_hits, main_hits, _] = self.hits;
        let all = bytes.iter().sum::<usize>() as f64;
        small_hits > STALE_HITS * self.gets
            && main_hits * STALE * small < small_hits * main
            && small < STALE_BYTES * all
    }
}

impl Policy {
    /// For one of this many stores of a memory.
    pub(crate) fn new(shards: usize) -> Self {
        let window = |(all, least): (f64, f64)| (all / shards as f64).max(least);
        Self {
            reach: f64::INFINITY,
            kept: 0.0,
            target: SMALL_SHARE,
            returns: 0.5,
            small: [0.0; 2],
            reads: 0,
            samples: window(SAMPLES),
            returns_window: window(RETURNS_WINDOW),
            rates: [Rates::default(), Rates::default()],
        }
    }

    /// Counts a hit. True: it should be counted by its queue, with [`Policy::sample_hit`].
    #[inline]
    pub(crate) fn count_hit(&mut self) -> bool {
        self.reads = self.reads.wrapping_add(1);
        self.reads.is_multiple_of(SAMPLE)
    }

    /// Counts a hit by its queue; `is_outside`: of a value outside the log.
    #[cold]
    pub(crate) fn sample_hit(&mut self, queue: Queue, is_outside: bool) {
        let rates = &mut self.rates[usize::from(is_outside)];
        rates.hits[queue as usize] += 1.0;
        rates.count(1.0, self.samples);
    }

    /// Counts a fill: a get that has missed.
    pub(crate) fn count_fill(&mut self, is_outside: bool) {
        self.rates[usize::from(is_outside)].count(1.0 / f64::from(SAMPLE), self.samples);
    }

    /// Notes that a blind item of this age was read for the first time.
    pub(crate) fn reached(&mut self, age: u64) {
        let age = ticks(age);
        self.reach = if self.reach.is_finite() { self.reach.max(age) } else { age };
    }

    /// Notes that a segment of blind items of this age was emptied.
    pub(crate) fn passed(&mut self, age: u64) {
        self.reach = self.reach.min(ticks(age)) * (1.0 - 1.0 / 64.0);
    }

    /// Notes that main's walk has met an item of `bytes`. `memory_bytes`: of the store.
    pub(crate) fn met(&mut self, stays: bool, bytes: usize, memory_bytes: usize) {
        let share = bytes as f64 / memory_bytes.max(1) as f64;
        self.kept += (f64::from(u8::from(stays)) - self.kept) * (share * KEPT_WINDOW).min(1.0);
        if stays {
            self.move_target(-self.steps().kept * share);
        }
    }

    /// Notes that main's walk has met an item that the ghost queue had sent there.
    pub(crate) fn returned(&mut self, was_used: bool) {
        self.returns += (f64::from(u8::from(was_used)) - self.returns) / self.returns_window;
    }

    /// Notes that a key comes back, for which this share of the memory is wanted. `counts`: of the ghost queue.
    fn signal(&mut self, from: From, share: f64, counts: [usize; 2]) {
        let [others, main] = counts.map(|count| count.max(1) as f64);
        let steps = self.steps();
        self.move_target(match from {
            From::Others => steps.others * (main / others).max(1.0) * share,
            From::Main => -steps.main * (others / main).max(1.0) * share,
        });
    }

    fn steps(&self) -> &'static Steps {
        if self.returns < RETURNS { &STEPS_UP } else { &STEPS }
    }

    fn move_target(&mut self, by: f64) {
        self.target = (self.target + by).clamp(SMALL_SHARES.0, SMALL_SHARES.1);
    }

    /// The bytes of the small queue as a multiple of its target; `bytes` are those of the queues.
    fn of_target(&self, bytes: [usize; Queue::COUNT]) -> f64 {
        let target = self.target * bytes.iter().sum::<usize>() as f64;
        bytes[Queue::Small as usize] as f64 / target.max(1.0)
    }

    /// Uses that an item of this queue needs to leave it for the main one, or to stay in that; `is_outside`: its value is outside
    /// the log.
    pub(crate) fn needed(&self, queue: Queue, is_outside: bool) -> u8 {
        match queue {
            Queue::Small if self.small[usize::from(is_outside)] > EAGER => 1,
            Queue::Small | Queue::Blind => 2,
            Queue::Main => 1,
        }
    }

    /// How much colder than a segment of blind items of this age the main queue's head must be to go first, in the logarithm.
    fn bias(&self, age: u64) -> f64 {
        let late = ticks(age) / (REACH * self.reach);
        let most = 1.0 + (BIAS_MAX - 1.0) * (2.0 * self.kept).min(1.0);
        late.powi(4).clamp(1.0, most).log2()
    }
}

/// Ticks as a number that is not 0.
fn ticks(ticks: u64) -> f64 {
    ticks as f64 + 1.0
}

/// What is emptied or evicted next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Victim {
    /// A segment; with `compact` its live items stay.
    Segment { index: u32, compact: bool },
    /// A value outside the log, and its queue.
    Large(Head, Queue),
}

/// A victim with its coldness in the logarithm, the time as which its items count as stored, and their size.
#[derive(Debug, Clone, Copy)]
struct Cold {
    degree: f64,
    stored: u64,
    size: usize,
    victim: Victim,
}

impl Store {
    /// What to empty or evict next, `None`: nothing; and what to offer to other stores: what the queues other than the small one
    /// would lose, since that is what stores have in common.
    pub(crate) fn choose(&self, may_compact: bool) -> (Option<Victim>, Offer) {
        let segment_bytes = self.config.segment_bytes;
        // Live and dead bytes, and the segment.
        let mut sparsest: Option<(usize, u32)> = None;
        let mut deadest: Option<(usize, u32)> = None;
        let mut oldest: [Option<(u64, u32)>; Queue::COUNT] = [None; Queue::COUNT];
        let mut dead_bytes = 0;
        for (index, segment) in self.log.iter() {
            if self.is_dead_segment(segment) {
                return (Some(Victim::Segment { index, compact: false }), Offer::Dead);
            }
            let is_worth = segment.evictable_bytes(segment_bytes) * WORTH >= segment_bytes;
            // Without the spare a pinned item may have no place to move to.
            let may_move = segment.pinned_bytes == 0 || !self.log.is_reserve_gone();
            if segment.state != State::Sealed {
                continue;
            }
            // Not with what is empty at its end, which compaction would not gain where items are long.
            let dead = segment.filled - segment.live_bytes;
            dead_bytes += dead;
            if !may_move {
                continue;
            }
            if sparsest.is_none_or(|(live, _)| segment.live_bytes < live) {
                sparsest = Some((segment.live_bytes, index));
            }
            if deadest.is_none_or(|(most, _)| dead > most) {
                deadest = Some((dead, index));
            }
            let first = &mut oldest[segment.queue as usize];
            if is_worth && first.is_none_or(|(sequence, _)| segment.sequence < sequence) {
                *first = Some((segment.sequence, index));
            }
        }
        let sparsest = sparsest.filter(|(live, _)| live * 100 < segment_bytes * COMPACT_PERCENT);
        let deadest = deadest.filter(|(dead, _)| dead * self.compact_dead(dead_bytes) > segment_bytes);
        if let Some((_, index)) = sparsest.or(deadest)
            && may_compact
            && !self.log.is_reserve_gone()
        {
            return (Some(Victim::Segment { index, compact: true }), Offer::Dead);
        }
        if !self.config.evictions {
            return (None, Offer::Nothing);
        }
        let segments = Queue::ALL.map(|queue| self.coldest_segment(oldest[queue as usize]));
        let outside = Queue::ALL.map(|queue| self.coldest_large(queue));
        // Where the walk frees nearly nothing, a large value that is not used frees much at once.
        let is_log = coldest(&segments) >= coldest(&outside)
            && (self.severity() == 0 || outside[0].or(outside[2]).is_none());
        let bytes = if is_log { self.log_bytes() } else { self.outside_bytes() };
        let [small, main, blind] = if is_log { segments } else { outside };
        let rest = match (main, blind) {
            (Some(main), Some(blind)) => {
                let is_first =
                    blind.degree > main.degree - self.bias(&blind.victim) || self.severity() > BARREN;
                Some(if is_first { blind } else { main })
            }
            (main, blind) => main.or(blind),
        };
        let is_due =
            self.policy.of_target(bytes) > 1.0 && !self.policy.rates[usize::from(!is_log)].is_stale(bytes);
        let (first, second) = if is_due || self.severity() > 0 { (small, rest) } else { (rest, small) };
        let lasting = segments[1..].iter().chain(&outside[1..]).flatten();
        let offered = lasting.max_by(|a, b| a.degree.total_cmp(&b.degree)).or(small.as_ref());
        let offer = offered.map_or(Offer::Nothing, |head| Offer::Items {
            stored_ms: head.stored / TICKS_PER_MS,
            size: head.size,
        });
        (first.or(second).map(|head| head.victim), offer)
    }

    /// A segment is compacted when one in this many of its bytes is dead; `dead_bytes` are those of sealed segments. 0: in none.
    fn compact_dead(&self, dead_bytes: usize) -> usize {
        if !self.config.evictions {
            COMPACT_DEAD_KEPT
        } else if dead_bytes * DEAD_SHARE > self.memory_bytes() {
            COMPACT_DEAD
        } else {
            0
        }
    }

    /// An equal part of the memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.limit_bytes() / self.config.shards
    }

    /// Bytes of the queues in the log that are not pinned.
    fn log_bytes(&self) -> [usize; Queue::COUNT] {
        Queue::ALL.map(|queue| {
            self.log.queue_bytes(queue) - self.log.queue_pinned(queue) - self.log.queue_outside(queue)
        })
    }

    /// The same outside it.
    fn outside_bytes(&self) -> [usize; Queue::COUNT] {
        Queue::ALL.map(|queue| self.log.queue_outside(queue))
    }

    /// Notes that a key comes back that was evicted, for an item of `bytes`.
    pub(crate) fn signal(&mut self, from: From, bytes: usize) {
        let share = bytes as f64 / self.memory_bytes().max(1) as f64;
        self.policy.signal(from, share, self.ghost.counts());
    }

    /// Bytes of an item on average, in the log and outside it.
    pub(crate) fn mean_size(&self) -> usize {
        (self.log.live_bytes() + self.log.outside_bytes()) / self.index.len().max(1)
    }

    /// Notes how full the small queue is.
    pub(crate) fn note_choice(&mut self) {
        self.policy.small =
            [self.log_bytes(), self.outside_bytes()].map(|bytes| self.policy.of_target(bytes));
    }

    /// The segment of this sequence and index, with its coldness.
    fn coldest_segment(&self, oldest: Option<(u64, u32)>) -> Option<Cold> {
        let (_, index) = oldest?;
        let segment = self.log.get(index)?;
        let victim = Victim::Segment { index, compact: false };
        Some(self.cold(segment.stored(), segment.mean_bytes(), victim))
    }

    /// The coldest head of the lists of a queue.
    fn coldest_large(&self, queue: Queue) -> Option<Cold> {
        let heads = self.outside.heads(queue).map(|head| {
            // An object is no value that can be had again: it goes by its age alone.
            let size = if head.is_tree { self.mean_bytes() } else { head.held_bytes };
            self.cold(head.stored, size, Victim::Large(head, queue))
        });
        heads.max_by(|a, b| a.degree.total_cmp(&b.degree))
    }

    fn cold(&self, stored: u64, size: usize, victim: Victim) -> Cold {
        let degree = coldness(self.age(stored), (size.max(1) as f64).log2());
        Cold { degree, stored, size, victim }
    }

    fn bias(&self, blind: &Victim) -> f64 {
        match blind {
            Victim::Segment { index, .. } => {
                self.log.get(*index).map_or(0.0, |segment| self.policy.bias(self.age(segment.stored())))
            }
            Victim::Large(..) => 0.0,
        }
    }

    /// Ticks since then.
    pub(crate) fn age(&self, stored: u64) -> u64 {
        self.log.now().saturating_sub(stored)
    }

    /// Bytes of an item whose value is in the log, on average.
    pub(crate) fn mean_bytes(&self) -> usize {
        let (items, bytes) = self.log.whole();
        bytes / items.max(1)
    }

    /// Uses that an item of `bytes` in the log needs in addition: one for each doubling above the mean.
    pub(crate) fn extra_uses(&self, bytes: usize) -> u8 {
        (bytes / self.mean_bytes().max(1)).checked_ilog2().map_or(0, |doublings| doublings as u8)
    }

    /// Notes that the item at `location` is read, which was not read before.
    #[cold]
    pub(crate) fn note_first_use(&mut self, location: u64) {
        let segment = self.log.segment_of(location);
        if segment.queue == Queue::Blind {
            let number = crate::item::outside_number(self.log.bytes(location));
            let stored = number.map_or_else(|| segment.stored(), |number| self.outside.stored(number));
            self.policy.reached(self.age(stored));
        }
    }

    /// The time as which an item counts as stored that is moved, having been stored at this time.
    pub(crate) fn moved_at(&self, stored: u64) -> u64 {
        stored.midpoint(self.log.now())
    }

    pub(crate) fn is_dead_segment(&self, segment: &Segment) -> bool {
        segment.state != State::Collected && segment.filled > 0 && segment.is_dead(self.now, self.floor)
    }
}

/// The coldness of the coldest of these.
fn coldest(heads: &[Option<Cold>; Queue::COUNT]) -> f64 {
    heads.iter().flatten().map(|head| head.degree).fold(f64::NEG_INFINITY, f64::max)
}

/// See the module's text; in the logarithm, as the size.
pub(crate) fn coldness(age: u64, size: f64) -> f64 {
    ticks(age).log2() + SIZE_EXPONENT * size
}
