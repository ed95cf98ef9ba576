//! Making room: S3-FIFO over segments, whole-segment expiry, compaction.
//!
//! One segment at a time is *walked* from front to back, a bounded piece at each write while memory is low,
//! so that a fresh segment is ready before the open one is full. Which one: a segment in which nothing is
//! alive; else the emptiest, if less than 60 % of it is alive (its items move to the end of their queue);
//! else the oldest of the small queue while that is above its share, of the main queue otherwise. There,
//! what was used moves to the main queue (small: its count starts again; main: it loses one), and the rest
//! leaves, remembered by the ghost queue if it was in the small one.
//!
//! Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

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
            let location = self.log.append(queue, class, bytes);
            if let Some(location) = location.or_else(|| self.log.append_anywhere(queue, bytes)) {
                return Ok(location);
            }
            if rounds == 0 || !self.collect_one(false) {
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
        if !self.log.refill() {
            self.walk_some((written * WALK_RATIO).clamp(*WALK_BYTES.start(), *WALK_BYTES.end()), false);
        }
    }

    /// Once a second: empties a segment in which nothing is alive, so that its memory can go back before
    /// anybody needs it. True: there may be more.
    pub fn tick(&mut self) -> bool {
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
        while before.saturating_sub(self.memory.used_bytes()) < bytes && rounds > 0 && self.collect_one(true)
        {
            rounds -= 1;
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

    fn walk_some(&mut self, bytes: usize, to_memory: bool) {
        if self.walk.is_none() && !self.begin_walk() {
            return;
        }
        let Some(mut walk) = self.walk else { return };
        let Some(segment) = self.log.get(walk.segment) else { return };
        let (filled, queue) = (segment.filled, segment.queue);
        // Nothing left alive: no need to look at the rest.
        let empty = |store: &Self| store.log.get(walk.segment).is_none_or(|s| s.live_items == 0);
        let until = walk.at.saturating_add(bytes);
        while walk.at < filled.min(until) && !empty(self) {
            let Some(location) = self.log.location(walk.segment, walk.at) else { break };
            let content = self.log.bytes(location);
            walk.at += item::allotted(content);
            if !item::is_dead(content) {
                self.collect_item(location, queue, walk.compact);
            }
        }
        if walk.at >= filled || empty(self) {
            self.walk = None;
            let ghost_is_small =
                self.config.evictions && self.stats.evictions > 0 && self.ghost.is_small(self.index.len());
            // A shard that holds too much gives every other segment to those that hold too little.
            self.donated = !self.donated && self.surplus() > self.config.segment_bytes.cast_signed();
            let wanted = self.donated || ghost_is_small || self.index.is_hungry();
            self.log.free(walk.segment, to_memory || wanted);
            if ghost_is_small {
                self.ghost.grow(&self.memory);
            }
        } else {
            self.walk = Some(walk);
        }
    }

    /// By how many bytes the store holds more than its part of what all shards hold together.
    fn surplus(&self) -> isize {
        self.held_bytes().cast_signed() - (self.memory.used_bytes() / self.config.shards).cast_signed()
    }

    fn collect_item(&mut self, location: u64, queue: Queue, compact: bool) {
        let hash = self.hash_at(location);
        let slot = self.index.find(hash, |l| l == location).expect("a live item is in the index");
        let found = Found { slot, location };
        if self.is_dead(self.log.bytes(location)) {
            let fetched = self.item(found).marks().has(Marks::FETCHED);
            self.stats.expired_unfetched += u64::from(!fetched);
            self.stats.reclaimed += 1;
            self.remove(hash, found);
            return;
        }
        let uses = self.index.uses(slot);
        // Compaction keeps the class, so that its survivors fit into one segment, which is in reserve.
        let class = if compact {
            self.log.segment_of(location).class
        } else {
            self.log.class(self.now, item::dead_at(self.log.bytes(location)))
        };
        let keep = compact || uses > 0;
        if keep {
            let (to, uses) = match queue {
                _ if compact => (queue, uses),
                Queue::Small => (Queue::Main, 0),
                Queue::Main => (Queue::Main, uses - 1),
            };
            if self.relocate(hash, found, to, class).is_some() {
                self.index.set_uses(slot, uses);
                self.stats.moved += 1;
                return;
            }
        }
        self.stats.no_free_segment += u64::from(keep);
        if queue == Queue::Small {
            self.ghost.insert(hash);
            self.largest -= self.largest / 256;
        }
        self.evict(hash, found);
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
        let (small, main) = (self.log.queue_bytes(Queue::Small), self.log.queue_bytes(Queue::Main));
        let [from_small, from_main] = oldest;
        // A few of the largest values must fit, or each would push out the one before it at once.
        let least = (LARGEST_KEPT * self.largest).min((small + main) / 4);
        let small_is_due = small * 100 > (small + main) * SMALL_PERCENT && small > least;
        let (first, second) = if small_is_due { (from_small, from_main) } else { (from_main, from_small) };
        first.or(second).map(|(_, index)| (index, false))
    }

    fn is_dead_segment(&self, segment: &Segment) -> bool {
        segment.state != State::Collected && segment.filled > 0 && segment.is_dead(self.now, self.floor)
    }
}
