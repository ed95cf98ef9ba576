//! Making room: S3-FIFO over segments, whole-segment expiry, compaction.
//!
//! One segment at a time is *walked* from front to back, a bounded piece at each write while memory is low,
//! so that a fresh segment is ready before the open one is full. Which one: a segment in which nothing is
//! alive; else the emptiest, if less than 60 % of it is alive (its items move to the end of their queue);
//! else the oldest of the small queue while that is above its share, of the main queue otherwise. There,
//! what was used moves to the main queue (small: its count starts again; main: it loses one), and the rest
//! leaves, remembered by the ghost queue if it was in the small one.
//!
//! Where nearly everything was used, the walk frees nearly nothing, and no write may wait until it has aged
//! all there is. So what is walked in vain is counted ([`Store::barren`]), and the more there is, the more
//! uses an item must have to stay; after six segments none is enough. So in the long run one byte in seven that are
//! walked is freed, and a walk of 8 to 16 times the bytes written (more for the shortest items) stays ahead of the writers.
//!
//! Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

use crate::index::USES_MAX;
use crate::item::{self, Marks};
use crate::segment::{Queue, Segment, State};
use crate::store::{Found, Full, Store};

/// Values as large as the largest lately stored that the small queue has room for, up to a quarter of the memory.
const LARGEST_KEPT: usize = 8;
/// The small queue's share of the memory, in per cent.
const SMALL_PERCENT: usize = 10;
/// A segment is compacted when less than this share of it is alive, in per cent.
const COMPACT_PERCENT: usize = 60;
/// Bytes walked for each byte written while memory is low.
const WALK_RATIO: usize = 16;
/// Bounds of one piece of walk.
const WALK_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=32 << 10;
/// Bytes walked for each byte written by those that write more than these bounds allow for.
const LONG_WALK_RATIO: usize = 8;
/// One byte in so many that are walked is to be freed.
const YIELD: usize = 7;
/// Segments walked in vain after which items must have been used once more than otherwise to stay.
const BARREN_SEGMENTS: usize = 2;

/// A collection under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    pub(crate) segment: u32,
    /// Where the next item to look at begins.
    pub(crate) at: usize,
    compact: bool,
}

/// An item that was evicted, for whoever watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// Its key.
    pub key: Box<[u8]>,
    /// Whether it was ever read.
    pub fetched: bool,
    /// Second at which it would have expired; 0 is never.
    pub expiry: u32,
    /// Second of its last access.
    pub accessed: u32,
    /// Bytes of its value.
    pub value_len: usize,
}

impl Store {
    /// Room for an item of `bytes`, made by collecting whole segments if there is no other way.
    pub(crate) fn make_room(&mut self, queue: Queue, class: u8, bytes: usize) -> Result<u64, Full> {
        // Each round empties a segment; after two of each there would be room even if all of them moved.
        let mut rounds = self.log.iter().count() * 2 + 4;
        self.log.set_may_grow(true);
        loop {
            // Class and queue are preferences: better the wrong ones than to wait.
            let location = self.log.append(queue, class, bytes);
            let location = location.or_else(|| self.log.append_anywhere(queue, bytes));
            if let Some(location) = location.or_else(|| self.log.append_anywhere(queue.other(), bytes)) {
                return Ok(location);
            }
            // Whoever waits does not wait for items to be moved.
            self.barren = self.most_barren();
            if rounds == 0 || !self.collect_one(false) {
                // Where the log holds nothing, there is nothing to copy into the collector's spare.
                if self.log.iter().next().is_none()
                    && let Some(location) = self.log.append_survivor(queue, class, bytes)
                {
                    return Ok(location);
                }
                self.stats.no_free_segment += u64::from(self.config.evictions);
                return Err(Full);
            }
            self.stats.collected_in_haste += 1;
            rounds -= 1;
        }
    }

    /// A bounded piece of collection, if memory is low. `written`: bytes that were just appended.
    pub(crate) fn upkeep(&mut self, written: usize) {
        let nobody_waits = self.memory.free_bytes() >= self.config.segment_bytes * self.config.shards;
        self.log.set_may_grow(nobody_waits || self.surplus() <= 0);
        if self.log.refill() {
            return;
        }
        let piece = (written * WALK_RATIO).clamp(*WALK_BYTES.start(), *WALK_BYTES.end());
        let mut left = piece.max(written * LONG_WALK_RATIO);
        while let Some(walked) = self.walk_some(left, false) {
            left = left.saturating_sub(walked);
            if left == 0 || self.log.refill() {
                break;
            }
        }
    }

    /// Once a second: empties a segment in which nothing is alive, so that its memory can go back before
    /// it is needed, and notes what [`Store::oldest_use`] shows. True: there may be more.
    pub fn tick(&mut self) -> bool {
        // What is collected may take several calls in a second.
        if self.oldest_noted != self.now {
            self.oldest_noted = self.now;
            self.note_oldest_use();
        }
        if self.walk.is_none() && !self.log.iter().any(|(_, s)| self.is_dead_segment(s)) {
            return false;
        }
        self.walk_some(*WALK_BYTES.end(), true);
        true
    }

    /// Evicts until `bytes` have gone back to the memory, or nothing is left to evict. Returns how many did.
    pub fn give_back(&mut self, bytes: usize) -> usize {
        let before = self.memory.used_bytes();
        let mut rounds = self.log.iter().count() * 2 + 4;
        // Twice as many segments as would do if nothing stayed are looked at for what was not used.
        let mut patience = 2 * bytes.div_ceil(self.config.segment_bytes) + 2;
        while before.saturating_sub(self.memory.used_bytes()) < bytes && rounds > 0 {
            if patience == 0 {
                self.barren = self.most_barren();
            }
            if !self.collect_one(true) {
                break;
            }
            (rounds, patience) = (rounds - 1, patience.saturating_sub(1));
        }
        before.saturating_sub(self.memory.used_bytes())
    }

    /// Keeps a record of evicted items from now on, or no longer.
    pub fn record_evictions(&mut self, on: bool) {
        if on != self.evicted.is_some() {
            self.evicted = on.then(Vec::new);
        }
    }

    /// The items evicted since the last call, if they are recorded.
    pub fn drain_evicted(&mut self) -> impl Iterator<Item = Evicted> + '_ {
        self.evicted.iter_mut().flat_map(|e| e.drain(..))
    }

    /// Empties one segment whole. False: there is none to empty.
    fn collect_one(&mut self, to_memory: bool) -> bool {
        if self.walk.is_none() && !self.begin_walk() {
            return false;
        }
        while self.walk.is_some() {
            self.walk_some(usize::MAX, to_memory);
        }
        true
    }

    /// Walks `bytes` or a little more, to the end of one segment at most. Returns how many were walked; `None`: there is
    /// nothing to walk.
    fn walk_some(&mut self, bytes: usize, to_memory: bool) -> Option<usize> {
        if self.walk.is_none() && !self.begin_walk() {
            return None;
        }
        let mut walk = self.walk?;
        let segment = self.log.get(walk.segment)?;
        let (filled, queue) = (segment.filled, segment.queue);
        // Nothing left alive: no need to look at the rest.
        let empty = |store: &Self| store.log.get(walk.segment).is_none_or(|s| s.live_items == 0);
        let (from, until) = (walk.at, walk.at.saturating_add(bytes));
        let mut kept = 0;
        while walk.at < filled.min(until) && !empty(self) {
            let Some(location) = self.log.location(walk.segment, walk.at) else { break };
            let content = self.log.bytes(location);
            let allotted = item::allotted(content);
            walk.at += allotted;
            if !item::is_dead(content) && self.collect_item(location, queue, walk.compact) {
                kept += allotted;
            }
        }
        let (walked, mut freed) = (walk.at - from, walk.at - from - kept);
        let done = walk.at >= filled || empty(self);
        if done {
            freed += self.config.segment_bytes - walk.at;
        }
        self.barren = (self.barren + walked).saturating_sub(YIELD * freed).min(self.most_barren());
        if done {
            self.walk = None;
            // What replaces the collector's own spare is no gain yet: nothing of it is given away.
            let gained = !self.log.is_reserve_gone();
            let ghost_is_small = gained
                && self.stats.evictions > 0
                && self.config.evictions
                && self.ghost.is_small(self.index.len());
            // A shard that holds too much gives every other segment it gains to those that hold too little.
            if gained {
                self.donated = !self.donated && self.surplus() > self.config.segment_bytes.cast_signed();
            }
            let wanted = self.donated || ghost_is_small || self.index.is_hungry();
            self.log.free(walk.segment, to_memory || wanted);
            if ghost_is_small {
                self.ghost.grow(&self.memory);
            }
        } else {
            self.walk = Some(walk);
        }
        Some(walked)
    }

    /// By how many bytes the store holds more than its part of what all shards hold together.
    fn surplus(&self) -> isize {
        self.held_bytes().cast_signed() - (self.memory.used_bytes() / self.config.shards).cast_signed()
    }

    /// Where [`Store::barren`] ends: nothing stays then, however often it was used.
    fn most_barren(&self) -> usize {
        usize::from(USES_MAX) * BARREN_SEGMENTS * self.config.segment_bytes
    }

    /// How many uses more than otherwise an item must have to stay, 0..=[`USES_MAX`].
    fn severity(&self) -> u8 {
        (self.barren / (BARREN_SEGMENTS * self.config.segment_bytes)) as u8
    }

    /// Keeps an item or lets it go. True: it was kept, and has moved.
    fn collect_item(&mut self, location: u64, queue: Queue, compact: bool) -> bool {
        let hash = self.hash_at(location);
        let slot = self.index.find(hash, |l| l == location).expect("a live item is in the index");
        let found = Found { slot, location };
        if self.is_dead(self.log.bytes(location)) {
            let fetched = self.item(found).marks().has(Marks::FETCHED);
            self.stats.expired_unfetched += u64::from(!fetched);
            self.stats.reclaimed += 1;
            self.remove(hash, found);
            return false;
        }
        let uses = self.index.uses(slot);
        // Compaction keeps the class, so that its survivors fit into one segment, which is in reserve.
        let class = if compact {
            self.log.segment_of(location).class
        } else {
            self.log.class(self.now, item::dead_at(self.log.bytes(location)))
        };
        let keep = compact || uses > self.severity();
        if keep {
            let (to, uses) = match queue {
                _ if compact => (queue, uses),
                Queue::Small => (Queue::Main, 0),
                Queue::Main => (Queue::Main, uses - 1),
            };
            if self.relocate(hash, found, to, class).is_some() {
                self.index.set_uses(slot, uses);
                self.stats.moved += 1;
                return true;
            }
        }
        self.stats.no_free_segment += u64::from(keep);
        if queue == Queue::Small {
            self.ghost.insert(hash);
            self.largest -= self.largest / 256;
        }
        self.evict(hash, found);
        false
    }

    /// Drops a live item to make room.
    pub(crate) fn evict(&mut self, hash: u64, found: Found) {
        let item = self.item(found);
        let fetched = item.marks().has(Marks::FETCHED);
        if self.evicted.is_some() {
            let record = Evicted {
                key: item.key().into(),
                fetched,
                expiry: item.expiry(),
                accessed: item.accessed(),
                value_len: item.value_len(),
            };
            self.evicted.iter_mut().for_each(|e| e.push(record.clone()));
        }
        self.stats.evictions += 1;
        self.stats.evicted_unfetched += u64::from(!fetched);
        self.remove(hash, found);
    }

    /// Chooses the next segment to empty. False: there is none.
    fn begin_walk(&mut self) -> bool {
        let victim = match self.choose(true) {
            // Everything is in open segments: close one and look again. To compact it would only open another.
            None if self.log.seal_fullest() => self.choose(false),
            victim => victim,
        };
        let Some((segment, compact)) = victim else { return false };
        self.log.collect(segment);
        self.walk = Some(Walk { segment, at: 0, compact });
        true
    }

    /// The segment to empty next, and whether what lives in it stays (`compact`).
    fn choose(&self, may_compact: bool) -> Option<(u32, bool)> {
        let mut sparse: Option<(usize, u32)> = None;
        let mut oldest: [Option<(u64, u32)>; 2] = [None; 2];
        let mut heavy: Option<(u64, u32)> = None;
        for (index, segment) in self.log.iter() {
            if self.is_dead_segment(segment) {
                return Some((index, false));
            }
            if segment.state != State::Sealed {
                continue;
            }
            // With the huge values: a segment sealed for their weight holds little else.
            let live = segment.weight();
            if live * 100 < self.log.segment_bytes() * COMPACT_PERCENT && sparse.is_none_or(|(l, _)| live < l)
            {
                sparse = Some((live, index));
            }
            if segment.huge_bytes > self.config.segment_bytes
                && heavy.is_none_or(|(sequence, _)| segment.sequence < sequence)
            {
                heavy = Some((segment.sequence, index));
            }
            let first = &mut oldest[segment.queue as usize];
            if first.is_none_or(|(sequence, _)| segment.sequence < sequence) {
                *first = Some((segment.sequence, index));
            }
        }
        if let Some((_, index)) = sparse
            && may_compact
            && !self.log.is_reserve_gone()
        {
            return Some((index, true));
        }
        if !self.config.evictions {
            return None;
        }
        // In a segment of huge values there is little to walk and much to gain.
        if let Some((_, index)) = heavy
            && self.severity() > 0
        {
            return Some((index, false));
        }
        let (small, main) = (self.log.queue_bytes(Queue::Small), self.log.queue_bytes(Queue::Main));
        let [from_small, from_main] = oldest;
        // A few of the largest values must fit, or each would push out the one before it at once.
        let least = (LARGEST_KEPT * self.largest).min((small + main) / 4);
        let small_is_due = small * 100 > (small + main) * SMALL_PERCENT && small > least;
        // Where the main queue gives nothing, the small one may, which is on trial.
        let (first, second) = if small_is_due || self.severity() > 0 {
            (from_small, from_main)
        } else {
            (from_main, from_small)
        };
        first.or(second).map(|(_, index)| (index, false))
    }

    fn is_dead_segment(&self, segment: &Segment) -> bool {
        segment.state != State::Collected && segment.filled > 0 && segment.is_dead(self.now, self.floor)
    }
}
