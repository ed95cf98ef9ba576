//! What leaves a store first: a segment in which nothing lives, a segment that is half empty, or the coldest
//! head of a queue.
//!
//! There are three queues ([`SegmentQueue`]): the small one for fills, which is kept at its target; the blind
//! one for items that were stored without a miss before; and the main one for items that were used in these.
//! A queue has a row of segments, and lists of the values outside the log, one for each octave of their bytes
//! ([`crate::outside`]). The first of each row and list are its *heads*. *Coldness* is age x size^0.7; for a
//! segment, the means of its items count. The exponent is below 1, since hits are counted, while bytes are
//! fetched.
//!
//! Short and long items are in segments apart ([`Place`]), so that a queue has two rows. Its head is the colder
//! of the first of both; for the small queue the older, since an item has its time there to be used, whatever
//! its size. A head then counts as an item of the queue's mean size that is as cold: by the size of the colder
//! row alone, blind items would seem much smaller than those of the main queue, or much larger.
//!
//! Where the small queue has no more than its target, the main and the blind queue compete by the ages of
//! their coldest heads. The size of a large blind item does not count against it, since it can often not be
//! fetched again; a small one has the advantage of its size. A blind item is *late* when it is older than the
//! age at which items are read once or twice, unless clients ask for many of the evicted ones. Then it is the other
//! way round: a small one loses this advantage, and the size of a large one counts. It also gives way earlier
//! if the main queue keeps much of what its walk meets. What is late is told apart by the place of the values,
//! since sessions often have other sizes than values without a reader; between those in the log and outside
//! it the ages decide in the same way. While clients ask for many of the evicted ones, blind items have an
//! advantage over the main queue's, as long as there is hope that more memory helps them.
//!
//! The choice is made among the shares of which something may be evicted ([`crate::shares`]): only their
//! heads and the bytes of their queues count. If it falls on the main or the blind queue of a share whose own
//! small queue exceeds its target, the head of that small queue leaves instead. A share that was small for
//! long thus has the balance of a cache of its own.
//!
//! While hardly any blind item is read, they go before what is up to eight times as old, whatever it is, also
//! before the small queue is emptied: what a batch writes does not push out what is read. Sessions of a new
//! kind that are read late are lost with it until clients have asked for some.
//!
//! The small queue is not emptied either while the main one is stale: its bytes hit less than a quarter as often
//! as those of the small one, which has a fifth of all gets. This happens after a deploy that has changed all
//! keys, or under a new load. Where the main queue has nothing at all, the small one
//! competes with the blind one by age.

#![expect(clippy::cast_precision_loss, reason = "shares of the memory and ages need no 52 bits")]
#![expect(clippy::cast_sign_loss, reason = "ages are not negative")]

use crate::ghost::EvictedFrom;
use crate::item::Marks;
use crate::offers::Offer;
use crate::outside::OutsideHead;
use crate::policy::ticks;
use crate::segment::{Place, Segment, SegmentQueue, SegmentState, TICKS_PER_MS};
use crate::shares::{self, ShareSet};
use crate::store::{Found, Store};

/// A segment is compacted when less than this share of it is alive, in per cent.
const COMPACT_PERCENT: usize = 60;
/// While more than one in this many bytes of the memory is dead, also when more than one in [`COMPACT_DEAD`]
/// of its bytes is.
const DEAD_SHARE: usize = 20;
/// See [`DEAD_SHARE`].
const COMPACT_DEAD: usize = 5;
/// Where nothing is evicted, a segment is compacted when one in this many of its bytes is dead.
const COMPACT_DEAD_KEPT: usize = 20;
/// A segment with pinned items or stubs is emptied for its space only if one in this many of its bytes is not
/// theirs.
const WORTH: usize = 8;
/// Exponent of the size in the coldness.
const SIZE_EXPONENT: f64 = 0.7;
/// Above this severity nothing is taken from a main queue of which everything stays, as long as the blind one
/// has something older that clients do not ask for when it has gone.
const BARREN: u8 = 1;

/// What is emptied or evicted next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Victim {
    /// A segment; with `compact` its live items stay.
    Segment { index: u32, compact: bool },
    /// A value outside the log, and its queue.
    Large(OutsideHead, SegmentQueue),
}

/// A victim with its coldness in the logarithm, the time as which its items count as stored, and their size.
#[derive(Debug, Clone, Copy)]
struct ColdVictim {
    degree: f64,
    stored: u64,
    size: usize,
    /// How old it is. It may count as older or younger: see [`Store::as_mean`].
    age: u64,
    place: Place,
    share: u8,
    queue: SegmentQueue,
    victim: Victim,
}

impl Store {
    /// What to empty or evict next, `None`: nothing; and what to offer to other stores. Only items of these
    /// shares are evicted.
    pub(crate) fn choose(&self, may_compact: bool, shares: ShareSet) -> (Option<Victim>, Offer) {
        let segment_bytes = self.config.segment_bytes;
        // Live and dead bytes, and the segment.
        let mut sparsest: Option<(usize, u32)> = None;
        let mut deadest: Option<(usize, u32)> = None;
        let mut rows = Rows::default();
        let mut dead_bytes = 0;
        for (index, segment) in self.log.iter() {
            if self.is_dead_segment(segment) {
                return (Some(Victim::Segment { index, compact: false }), Offer::Dead);
            }
            let is_worth = segment.evictable_bytes(segment_bytes) * WORTH >= segment_bytes;
            // Without the spare a pinned item may have no place to move to.
            let may_move = segment.pinned_bytes == 0 || !self.log.is_reserve_gone();
            if segment.state != SegmentState::Sealed {
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
            let row = &mut rows[usize::from(segment.share)][segment.queue as usize];
            let (bytes, items) = segment.plain();
            (row.bytes, row.items) = (row.bytes + bytes, row.items + items);
            let first = &mut row.first[segment.place as usize];
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
        let [log, outside] = self.heads_of(&rows, shares);
        let first = self.first_of(shares, &log, &outside).map(|head| self.own_first(&rows, shares, head));
        (first.map(|head| head.victim), self.offer_of(&log, &outside))
    }

    /// The coldest heads of the queues of these shares: of the segments that are the first of each row, and
    /// outside the log.
    fn heads_of(&self, rows: &Rows, shares: ShareSet) -> [Heads; 2] {
        let segments = |queue: SegmentQueue| {
            let all = shares.iter(self.memory.shares().count());
            let heads = all.flat_map(|share| self.heads_in(&rows[usize::from(share)][queue as usize], queue));
            heads.max_by(|a, b| self.order(a, queue).total_cmp(&self.order(b, queue)))
        };
        [SegmentQueue::ALL.map(segments), SegmentQueue::ALL.map(|queue| self.coldest_large(shares, queue))]
    }

    /// The first segments of the rows of a queue.
    fn heads_in(&self, row: &QueueRows, queue: SegmentQueue) -> impl Iterator<Item = ColdVictim> {
        let mean = row.bytes / row.items.max(1);
        let heads = row.first.iter().filter_map(|first| self.coldest_segment(*first));
        heads.map(move |head| if row.items == 0 { head } else { self.as_mean(head, mean, queue) })
    }

    /// A head of a queue whose items have `mean` bytes, as one of this size that is as cold. What is in the
    /// small queue keeps its age.
    fn as_mean(&self, head: ColdVictim, mean: usize, queue: SegmentQueue) -> ColdVictim {
        let of_mean = head.size.max(1) as f64 / mean.max(1) as f64;
        let factor = if queue == SegmentQueue::Small { 1.0 } else { of_mean.powf(SIZE_EXPONENT) };
        let age = (head.age as f64 * factor) as u64;
        let stored = self.log.now().saturating_sub(age);
        ColdVictim { stored, size: mean, degree: coldness(age, (mean.max(1) as f64).log2()), ..head }
    }

    /// By which the heads of a queue in the log are ordered: the highest goes first.
    fn order(&self, head: &ColdVictim, queue: SegmentQueue) -> f64 {
        match queue {
            SegmentQueue::Small => ticks(head.age).log2(),
            SegmentQueue::Main => head.degree,
            SegmentQueue::Blind => head.degree + self.policy.blind_bias(head.place, head.age).log2(),
        }
    }

    /// What goes in the place of this head, which is the first of these shares: see the module's text.
    fn own_first(&self, rows: &Rows, shares: ShareSet, head: ColdVictim) -> ColdVictim {
        let own = ShareSet::one(head.share);
        if head.queue == SegmentQueue::Small || shares == own || !self.log.has_shares() {
            return head;
        }
        let heads = self.heads_of(rows, own);
        let place = usize::from(head.place.is_outside());
        let is_due = self.policy.is_due(place == 1, self.bytes(own)[place]);
        heads[place][SegmentQueue::Small as usize].filter(|_| is_due).unwrap_or(head)
    }

    /// Which of these heads goes first. Fills are compared with each other, in the log or outside it,
    /// wherever the colder head is; then with what is blind.
    fn first_of(&self, shares: ShareSet, log: &Heads, outside: &Heads) -> Option<ColdVictim> {
        let severity = self.severity();
        // Where the walk frees nearly nothing, a large value that is not used frees much at once.
        let frees_large = severity > 0 && outside[0].or(outside[2]).is_some();
        let is_outside = frees_large || fills(outside) > fills(log);
        let [small, main, _] = if is_outside { *outside } else { *log };
        let blind = if frees_large { outside[2] } else { self.first_blind(log[2], outside[2]) };
        let rest = match (main, blind) {
            (Some(main), Some(blind)) => {
                let is_older = blind.stored < main.stored && !self.policy.is_lacked(blind.place);
                let is_first = severity > BARREN && is_older || self.is_before(&blind, &main);
                Some(if is_first { blind } else { main })
            }
            (main, blind) => main.or(blind),
        };
        let is_due = match (small, main, blind) {
            _ if severity > 0 => true,
            (Some(small), main, Some(blind)) if main.is_none() || self.policy.is_unread(blind.place) => {
                !self.is_before(&blind, &small)
            }
            _ => self.policy.is_due(is_outside, self.bytes(shares)[usize::from(is_outside)]),
        };
        if is_due { small.or(rest) } else { rest.or(small) }
    }

    /// Which of the blind heads goes first, in the log or outside it: by their ages; the size of that outside
    /// counts when it is late.
    fn first_blind(&self, log: Option<ColdVictim>, outside: Option<ColdVictim>) -> Option<ColdVictim> {
        let (Some(small), Some(large)) = (log, outside) else { return log.or(outside) };
        let [of_small, of_large] =
            [small, large].map(|head| ticks(self.age(head.stored)) * self.policy.bias(head.place, head.age));
        let is_late = self.policy.is_late(Place::Outside, large.age);
        let ratio = if is_late { (small.size as f64 / large.size as f64).min(1.0) } else { 1.0 };
        if of_large > of_small * ratio.powf(SIZE_EXPONENT) { outside } else { log }
    }

    /// Whether blind items go before these others: by their ages, and by the sizes where these speak for the
    /// blind ones, or for the others when the blind ones are late.
    fn is_before(&self, blind: &ColdVictim, other: &ColdVictim) -> bool {
        let [age, of_other] = [blind.stored, other.stored].map(|stored| self.age(stored));
        let ratio = other.size as f64 / blind.size.max(1) as f64;
        let is_late = self.policy.is_late(blind.place, blind.age);
        let ratio = if is_late { ratio.min(1.0) } else { ratio.max(1.0) };
        ticks(age) * self.policy.bias(blind.place, blind.age) > ticks(of_other) * ratio.powf(SIZE_EXPONENT)
    }

    /// What to offer to other stores: what the queues other than the small one would lose, since that is what
    /// stores have in common; or what the small one would lose, where it has most of the memory.
    fn offer_of(&self, log: &Heads, outside: &Heads) -> Offer {
        let [small, main] = [0, 1].map(|queue| colder(log[queue], outside[queue]));
        let blind = self.first_blind(log[2], outside[2]);
        if let Some(main) = main {
            self.memory.offers().note_main_size(main.size);
        }
        let offered = match (main, blind) {
            _ if small.is_some_and(|small| self.policy.is_mostly_small(small.place.is_outside())) => small,
            (Some(main), Some(blind)) if !self.is_before(&blind, &main) => Some(main),
            (_, Some(blind)) => {
                let advantage = self.policy.bias(blind.place, blind.age).min(1.0);
                let age = (self.age(blind.stored) as f64 * advantage) as u64;
                return Offer::Blind { stored_ms: (self.log.now() - age) / TICKS_PER_MS };
            }
            (main, None) => main.or(small),
        };
        offered.map_or(Offer::Nothing, |head| Offer::Items {
            stored_ms: head.stored / TICKS_PER_MS,
            size: head.size,
        })
    }

    /// A segment is compacted when one in this many of its bytes is dead; `dead_bytes` are those of sealed
    /// segments. 0: in none.
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

    /// Bytes of the queues of these shares that are not pinned: in the log and outside it.
    fn bytes(&self, shares: ShareSet) -> [[usize; SegmentQueue::COUNT]; 2] {
        let queues = SegmentQueue::ALL.map(|queue| self.log.queue(shares, queue));
        [queues.map(|queue| queue.bytes - queue.pinned - queue.outside), queues.map(|queue| queue.outside)]
    }

    /// Notes that a key comes back that was evicted, for an item of `bytes`.
    pub(crate) fn signal(&mut self, from: EvictedFrom, bytes: usize) {
        let share = self.of_memory(bytes);
        self.policy.signal(from, share, self.ghost.counts());
    }

    /// These bytes as a share of the whole memory.
    pub(crate) fn of_memory(&self, bytes: usize) -> f64 {
        bytes as f64 / self.memory.limit_bytes().max(1) as f64
    }

    /// Notes that blind items were evicted that were stored at this time: a segment of them, or a value outside
    /// the log that has these `bytes`.
    pub(crate) fn passed(&mut self, place: Place, stored: u64, bytes: usize) {
        let of_segment = (bytes as f64 / self.config.segment_bytes as f64).min(1.0);
        self.policy.passed(place, self.age(stored), of_segment, self.of_memory(bytes));
    }

    /// Bytes of an item on average, in the log and outside it.
    pub(crate) fn mean_size(&self) -> usize {
        (self.log.live_bytes() + self.log.outside_bytes()) / self.index.len().max(1)
    }

    /// Notes how full the queues of these shares are.
    pub(crate) fn note_choice(&mut self, shares: ShareSet) {
        let bytes = self.bytes(shares);
        self.policy.note_bytes(bytes);
    }

    /// The segment of this sequence and index, with its coldness.
    fn coldest_segment(&self, first: Option<(u64, u32)>) -> Option<ColdVictim> {
        let (_, index) = first?;
        let segment = self.log.get(index)?;
        let victim = Victim::Segment { index, compact: false };
        let cold = self.cold(segment.stored(), segment.mean_bytes(), (segment.share, segment.queue), victim);
        Some(ColdVictim { place: segment.place, ..cold })
    }

    /// The coldest head of the lists of a queue of these shares.
    fn coldest_large(&self, shares: ShareSet, queue: SegmentQueue) -> Option<ColdVictim> {
        let heads = self.outside.heads(shares, queue).map(|(share, head)| {
            // An object is no value that can be had again: it goes by its age alone.
            let size = if head.is_tree { self.mean_bytes() } else { head.held_bytes };
            let mut cold = self.cold(head.stored, size, (share, queue), Victim::Large(head, queue));
            if queue == SegmentQueue::Blind {
                let age = self.age(head.stored);
                let is_late = self.policy.is_late(Place::Outside, age);
                let size = if is_late { size } else { size.min(self.config.inline_max()) };
                cold.degree =
                    coldness(age, (size.max(1) as f64).log2()) + self.policy.bias(Place::Outside, age).log2();
            }
            cold
        });
        heads.max_by(|a, b| a.degree.total_cmp(&b.degree))
    }

    fn cold(
        &self,
        stored: u64,
        size: usize,
        (share, queue): (u8, SegmentQueue),
        victim: Victim,
    ) -> ColdVictim {
        let age = self.age(stored);
        let degree = coldness(age, (size.max(1) as f64).log2());
        ColdVictim { degree, stored, size, age, place: Place::Outside, share, queue, victim }
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

    /// Notes one of the first uses of an item: less than [`EARLY_USES`](crate::policy::EARLY_USES) were before.
    #[cold]
    pub(crate) fn note_early_use(&mut self, found: Found) {
        let segment = self.log.segment_of(found.location);
        if segment.queue == SegmentQueue::Blind {
            let number = crate::item::outside_number(self.log.bytes(found.location));
            let stored = number.map_or_else(|| segment.stored(), |number| self.outside.stored(number));
            let place = if number.is_some() { Place::Outside } else { segment.place };
            self.policy.reached(place, self.age(stored), self.index.uses(found.slot));
        }
    }

    /// Counts a write over an item, by one with these marks, as a use, and returns its queue. Not that of a
    /// blind item that is written again soon, and was not read yet: it is being made. Nor of an item that was
    /// read since the last write: who reads a session and writes it back has used it once, not twice. What is
    /// changed in its place keeps the mark of that read, and each change counts.
    #[inline]
    pub(crate) fn count_write(&mut self, found: Found, marks: Marks) -> SegmentQueue {
        let segment = self.log.segment_of(found.location);
        let queue = segment.queue;
        let is_no_use = queue == SegmentQueue::Blind
            && if self.header(found).marks().has(Marks::FETCHED) {
                !marks.has(Marks::FETCHED)
            } else {
                self.index.uses(found.slot) == 0 && self.log.is_new(segment)
            };
        if !is_no_use {
            self.index.count_use(found.slot);
        }
        queue
    }

    /// The time as which the item at `location` counts as stored when it is moved: see [`Store::used_at`].
    pub(crate) fn moved_at(&self, location: u64, stored: u64) -> u64 {
        self.used_at(stored, crate::item::accessed(self.log.bytes(location)))
    }

    /// When an item was used last, in ticks, that was stored at this time: half as long ago, but within the
    /// second `accessed`.
    pub(crate) fn used_at(&self, stored: u64, accessed: u32) -> u64 {
        const SECOND: u64 = 1000 * TICKS_PER_MS;
        let age = self.age(stored);
        let idle_s = u64::from(self.now.saturating_sub(accessed));
        let idle = (age / 2).clamp(idle_s.saturating_sub(1) * SECOND, (idle_s + 1) * SECOND);
        self.log.now() - idle.min(age)
    }

    pub(crate) fn is_dead_segment(&self, segment: &Segment) -> bool {
        segment.state != SegmentState::Collected
            && segment.filled > 0
            && segment.is_dead(self.now, self.floor)
    }
}

/// The sealed segments of each queue of each share.
type Rows = [[QueueRows; SegmentQueue::COUNT]; shares::COUNT];

/// The rows of a queue.
#[derive(Debug, Clone, Copy, Default)]
struct QueueRows {
    /// The first segments of short and of long items: the sequence and the index.
    first: [Option<(u64, u32)>; Place::IN_LOG],
    /// Bytes of the items of all.
    bytes: usize,
    /// How many these are.
    items: usize,
}

/// The coldest heads of the queues.
type Heads = [Option<ColdVictim>; SegmentQueue::COUNT];

/// The coldness of the coldest of the heads of fills.
fn fills(heads: &Heads) -> f64 {
    heads[..2].iter().flatten().map(|head| head.degree).fold(f64::NEG_INFINITY, f64::max)
}

fn colder(one: Option<ColdVictim>, other: Option<ColdVictim>) -> Option<ColdVictim> {
    one.into_iter().chain(other).max_by(|a, b| a.degree.total_cmp(&b.degree))
}

/// The coldness of an item or segment, in the logarithm: how long it is unused, and its size (in the
/// logarithm, too).
pub(crate) fn coldness(age: u64, size: f64) -> f64 {
    ticks(age).log2() + SIZE_EXPONENT * size
}
