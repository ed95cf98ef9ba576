//! Making room: S3-FIFO over segments, whole-segment expiry, compaction.
//!
//! One segment at a time is *walked* from front to back, a bounded piece at each write while memory is low,
//! so that a fresh segment is ready before the open one is full. The walk takes a segment in which nothing is
//! alive; if there is none, the emptiest, if less than 60 % of it is alive (its items move to the end of their queue);
//! otherwise the oldest of the small queue while that is above its share, or else of the main queue. There,
//! items that were used move to the end of the main queue (from the small queue with their count at 0, within the main
//! queue with one use less), and the rest is evicted. The ghost queue remembers items evicted from the small queue.
//!
//! Where nearly every item was used, the walk frees nearly nothing, and no write may wait until all items have aged.
//! So the bytes walked without freeing anything are counted ([`Store::barren`]), and the more they are, the more
//! uses an item must have to stay; after six segments no item stays. So in the long run one walked byte in seven is
//! freed, and a walk of 8 to 16 times the bytes written (more for the shortest items) stays ahead of the writers.
//!
//! Pinned items always move on. A segment in which little but them is alive is left alone: emptying it would move nearly all of it
//! and free nearly nothing. Those of them that have died in it are buried where they are ([`Store::reclaim_pinned`]).
//! Trees that leave the store are taken apart before anything is evicted ([`crate::graveyard`]).
//!
//! # Invariants
//! * A write walks a bounded number of bytes, unless it finds no room at all.
//! * The segment that is walked takes no appends, and its survivors have room: the collector's spare.
//! * A pinned item leaves the store only when it is dead, removed or replaced: where it cannot move, the walk ends before it.
//!
//! Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

use crate::index::USES_MAX;
use crate::item::{self, Item, Marks, NEVER};
use crate::memory::PAGE_BYTES;
use crate::segment::{Queue, Segment, State};
use crate::store::{Evicted, Found, Full, Store, Walk};

/// The small queue has room for this many values of the size of the largest recent one, up to a quarter of the memory.
const LARGEST_KEPT: usize = 8;
/// The small queue's share of the memory, in per cent.
const SMALL_PERCENT: usize = 10;
/// A segment is compacted when less than this share of it is alive, in per cent.
const COMPACT_PERCENT: usize = 60;
/// Bytes walked for each byte written while memory is low.
const WALK_RATIO: usize = 16;
/// Bounds of one piece of walk.
const WALK_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=32 << 10;
/// Bytes walked at once in a segment of large values, which lie outside it: a few values.
const HEAVY_WALK: usize = 256;
/// Bytes walked for each byte of a write that is too long for these bounds.
const LONG_WALK_RATIO: usize = 8;
/// Of this many walked bytes one should be freed.
const YIELD: usize = 7;
/// A segment with pinned items is emptied for its space only if one in this many of its bytes is not theirs.
const WORTH: usize = 8;
/// Pages of buried trees that a write gives back at least.
const WRITE_PAGES: usize = 16;
/// Pages of buried trees that are given back in a second, and between two attempts of a write that waits for room.
const TICK_PAGES: usize = 256;
/// Segments walked without freeing anything, after which an item needs one more use to stay.
const BARREN_SEGMENTS: usize = 2;

/// What became of an item that the collector has come to.
enum Collected {
    /// It was kept, and has moved.
    Moved,
    /// It has left the store.
    Gone,
    /// It is pinned, and there is no room to move it to.
    Stuck,
}

/// What ends pinned items that the store itself takes for live ones.
pub struct Ends<'a> {
    /// The number of the last event that may have ended some. No event ends items with its number as their stamp, or a later one.
    pub event: u64,
    /// Whether the time ends some as well.
    pub by_time: bool,
    /// Whether the item with this hash is over.
    pub is_over: &'a dyn Fn(u64, &Item<'_>) -> bool,
}

/// What [`Store::reclaim_pinned`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reclaimed {
    /// Items that were looked at.
    pub looks: usize,
    /// Items that were dead.
    pub items: usize,
}

impl Store {
    /// Room for an item of `bytes`, made by collecting whole segments if there is no other way.
    pub(crate) fn make_room(&mut self, queue: Queue, class: u8, bytes: usize) -> Result<u64, Full> {
        // Each round empties a segment; after two of each there would be room even if all of them moved.
        let mut rounds = self.log.iter().count() * 2 + 4;
        self.log.set_may_grow(true);
        loop {
            // Class and queue are preferences: the wrong ones are better than waiting.
            let location = self.log.append(queue, class, bytes);
            let location = location.or_else(|| self.log.append_anywhere(queue, bytes));
            if let Some(location) = location.or_else(|| self.log.append_anywhere(queue.other(), bytes)) {
                return Ok(location);
            }
            if self.graveyard.take_apart(TICK_PAGES) {
                continue;
            }
            // A write that waits does not wait for items to be moved.
            self.barren = self.most_barren();
            if rounds == 0 || !self.collect_one(false) {
                // Where the log holds nothing, there is nothing to copy into the collector's spare.
                if self.log.iter().next().is_none()
                    && let Some(location) = self.log.append_survivor(queue, class, bytes, false)
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
        // What is buried is given back before anything is evicted.
        if self.log.refill() || self.graveyard.take_apart(WRITE_PAGES.max(2 * written / PAGE_BYTES)) {
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
    /// it is needed, takes a piece of a large tree apart that has left the store, and notes what [`Store::oldest_use`] shows.
    /// True: there may be more.
    pub fn tick(&mut self) -> bool {
        // What is collected may take several calls in a second.
        if self.oldest_noted != self.now {
            self.oldest_noted = self.now;
            self.note_oldest_use();
            self.reclaim_pinned(None);
        }
        self.graveyard.take_apart(TICK_PAGES);
        if self.walk.is_none() && !self.log.iter().any(|(_, s)| self.is_dead_segment(s)) {
            return !self.graveyard.is_empty();
        }
        self.walk_some(*WALK_BYTES.end(), true).is_some() || !self.graveyard.is_empty()
    }

    /// Buries the dead among the pinned items of one segment, if one may have died since the segment was last looked at. For a
    /// caller that finds [`Memory::pinned_object_bytes`](crate::Memory::pinned_object_bytes) at its limit; [`Store::tick`] does
    /// the same once a second, without `ends`. None: there is no such segment.
    pub fn reclaim_pinned(&mut self, ends: Option<&Ends<'_>>) -> Option<Reclaimed> {
        if self.holdings.pinned_bytes() == 0 {
            return None;
        }
        let (now, floor) = (self.now, self.floor);
        let may_be_over =
            |s: &Segment| ends.is_some_and(|ends| s.looked < ends.event || ends.by_time && s.looked_at < now);
        let (index, segment) = self.log.iter().find(|(_, s)| {
            let is_due = || s.reap_at <= now || s.is_dead(now, floor) || may_be_over(s);
            s.state != State::Collected && s.pinned_bytes > 0 && is_due()
        })?;
        let filled = segment.filled;
        let (mut at, mut next) = (0, u32::MAX);
        let mut reclaimed = Reclaimed::default();
        while at < filled
            && let Some(location) = self.log.location(index, at)
        {
            let content = self.log.bytes(location);
            at += item::allotted(content);
            reclaimed.looks += 1;
            if item::is_dead(content) || !item::marks(content).is_pinned() {
                continue;
            }
            let dead_at = item::dead_at(content);
            let is_over = |ends: &Ends<'_>| (ends.is_over)(self.hash_at(location), &self.item_of(content));
            if self.is_dead(content) || ends.is_some_and(is_over) {
                self.reclaim(location);
                reclaimed.items += 1;
            } else if dead_at != NEVER {
                next = next.min(dead_at);
            }
        }
        if let Some(segment) = self.log.get_mut(index) {
            segment.reap_at = next;
            if let Some(ends) = ends {
                (segment.looked, segment.looked_at) = (ends.event, now);
            }
        }
        Some(reclaimed)
    }

    /// Evicts until `bytes` have gone back to the memory, or nothing is left to evict. Returns how many did. Where nothing may
    /// be evicted it gives back what is dead.
    pub fn give_back(&mut self, bytes: usize) -> usize {
        let before = self.memory.used_bytes();
        self.give_buried_back(before, bytes);
        let mut rounds = self.log.iter().count() * 2 + 4;
        // Unused items are looked for in twice as many segments as would be enough if no item stayed.
        let mut patience = 2 * bytes.div_ceil(self.config.segment_bytes) + 2;
        while before.saturating_sub(self.memory.used_bytes()) < bytes && rounds > 0 {
            if patience == 0 {
                self.barren = self.most_barren();
            }
            if self.walk_some(*WALK_BYTES.end(), true).is_none() {
                break;
            }
            if self.walk.is_none() {
                self.give_buried_back(before, bytes);
                (rounds, patience) = (rounds - 1, patience.saturating_sub(1));
            }
        }
        before.saturating_sub(self.memory.used_bytes())
    }

    /// Takes buried trees apart until the memory's use is `bytes` below `before`, or nothing is buried.
    pub(crate) fn give_buried_back(&mut self, before: usize, bytes: usize) {
        while before.saturating_sub(self.memory.used_bytes()) < bytes
            && self.graveyard.take_apart(bytes.div_ceil(PAGE_BYTES))
        {}
    }

    /// Empties one segment whole. False: there is none to empty, or a pinned item in it cannot move.
    fn collect_one(&mut self, to_memory: bool) -> bool {
        if self.walk.is_none() && !self.begin_walk() {
            return false;
        }
        while self.walk.is_some() {
            if self.walk_some(usize::MAX, to_memory).is_none() {
                return false;
            }
        }
        true
    }

    /// Walks `bytes` or a little more, to the end of one segment at most; where values lie outside it, a few at a time. Returns
    /// how many were walked; `None`: there is nothing to walk, or the walk has ended before a pinned item that cannot move.
    fn walk_some(&mut self, bytes: usize, to_memory: bool) -> Option<usize> {
        if self.walk.is_none() && !self.begin_walk() {
            return None;
        }
        let mut walk = self.walk?;
        let segment = self.log.get(walk.segment)?;
        let (filled, queue) = (segment.filled, segment.queue);
        let is_heavy = segment.outside_bytes > self.config.segment_bytes;
        let bytes = if is_heavy { bytes.min(HEAVY_WALK) } else { bytes };
        // Nothing left alive: no need to look at the rest.
        let empty = |store: &Self| store.log.get(walk.segment).is_none_or(|s| s.live_items == 0);
        let (from, until) = (walk.at, walk.at.saturating_add(bytes));
        let mut kept = 0;
        while walk.at < filled.min(until) && !empty(self) {
            let Some(location) = self.log.location(walk.segment, walk.at) else { break };
            let content = self.log.bytes(location);
            let allotted = item::allotted(content);
            if !item::is_dead(content) {
                match self.collect_item(location, queue, walk.compact) {
                    Collected::Moved => kept += allotted,
                    Collected::Gone => (),
                    Collected::Stuck => {
                        self.walk = None;
                        self.log.give_up(walk.segment);
                        return None;
                    }
                }
            }
            walk.at += allotted;
        }
        let (walked, mut freed) = (walk.at - from, walk.at - from - kept);
        let done = walk.at >= filled || empty(self);
        if done {
            freed += self.config.segment_bytes - walk.at;
        }
        self.barren = (self.barren + walked).saturating_sub(YIELD * freed).min(self.most_barren());
        if done {
            self.walk = None;
            // A segment that only replaces the collector's own spare is not given away.
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

    /// Bytes that the store holds above its equal part of the bytes that all shards hold.
    fn surplus(&self) -> isize {
        self.held_bytes().cast_signed() - (self.memory.used_bytes() / self.config.shards).cast_signed()
    }

    /// The highest value of [`Store::barren`]: then no item stays, however often it was used.
    fn most_barren(&self) -> usize {
        usize::from(USES_MAX) * BARREN_SEGMENTS * self.config.segment_bytes
    }

    /// Uses that an item needs to stay in addition to the usual one, 0..=[`USES_MAX`].
    fn severity(&self) -> u8 {
        (self.barren / (BARREN_SEGMENTS * self.config.segment_bytes)) as u8
    }

    /// Keeps an item or evicts it.
    fn collect_item(&mut self, location: u64, queue: Queue, compact: bool) -> Collected {
        let content = self.log.bytes(location);
        if self.is_dead(content) {
            self.reclaim(location);
            return Collected::Gone;
        }
        let pinned = item::marks(content).is_pinned();
        let (hash, found) = self.found_at(location);
        let uses = self.index.uses(found.slot);
        // Compaction keeps the class, so that its survivors fit into one segment, which is in reserve.
        let class = if compact {
            self.log.segment_of(location).class
        } else {
            self.log.class(self.now, item::dead_at(self.log.bytes(location)))
        };
        let keep = compact || uses > self.severity() || pinned;
        if keep {
            let (to, uses) = match queue {
                _ if compact => (queue, uses),
                Queue::Small => (Queue::Main, 0),
                Queue::Main => (Queue::Main, uses.saturating_sub(1)),
            };
            if self.relocate(hash, found, to, class).is_some() {
                self.index.set_uses(found.slot, uses);
                self.stats.moved += 1;
                return Collected::Moved;
            }
        }
        self.stats.no_free_segment += u64::from(keep);
        if pinned {
            return Collected::Stuck;
        }
        if queue == Queue::Small {
            self.ghost.insert(hash);
            self.largest -= self.largest / 256;
        }
        self.evict(hash, found);
        Collected::Gone
    }

    /// Removes a dead item.
    fn reclaim(&mut self, location: u64) {
        let (hash, found) = self.found_at(location);
        let fetched = self.item(found).marks().has(Marks::FETCHED);
        self.stats.expired_unfetched += u64::from(!fetched);
        self.stats.reclaimed += 1;
        self.remove(hash, found);
    }

    /// The hash and the entry of the item at `location`, which must be in the index.
    fn found_at(&self, location: u64) -> (u64, Found) {
        let hash = self.hash_at(location);
        let slot = self.index.find(hash, |l| l == location).expect("a live item is in the index");
        (hash, Found { slot, location })
    }

    /// Drops a live item to make room.
    pub(crate) fn evict(&mut self, hash: u64, found: Found) {
        let item = self.item(found);
        let fetched = item.marks().has(Marks::FETCHED);
        if self.evicted.is_some() {
            let object = item.object();
            let record = Evicted {
                key: object.map_or(item.key(), |(_, key)| key).into(),
                object: object.map(|(type_id, _)| type_id),
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
            // Everything is in open segments: close one and choose again. Compacting it would only open another.
            None if self.log.seal_fullest() => self.choose(false),
            victim => victim,
        };
        let Some((segment, compact)) = victim else { return false };
        self.log.collect(segment);
        self.walk = Some(Walk { segment, at: 0, compact });
        true
    }

    /// The segment to empty next, and whether its live items stay (`compact`).
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
            // With what is outside the log: a segment sealed for their weight holds little else.
            let live = segment.weight();
            // Without the spare a pinned item may have no place to move to.
            if segment.pinned_bytes > 0 && (self.log.is_reserve_gone() || !self.is_worth(segment)) {
                continue;
            }
            if live * 100 < self.log.segment_bytes() * COMPACT_PERCENT && sparse.is_none_or(|(l, _)| live < l)
            {
                sparse = Some((live, index));
            }
            if segment.outside_bytes - segment.pinned_outside > self.config.segment_bytes
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
        let evictable = |queue| self.log.queue_bytes(queue) - self.log.queue_pinned(queue);
        let (small, main) = (evictable(Queue::Small), evictable(Queue::Main));
        let [from_small, from_main] = oldest;
        // A few of the largest values must fit; otherwise each would evict the one before it at once.
        let least = (LARGEST_KEPT * self.largest).min((small + main) / 4);
        let small_is_due = small * 100 > (small + main) * SMALL_PERCENT && small > least;
        // If the main queue has nothing to give, the small one may have.
        let (first, second) = if small_is_due || self.severity() > 0 {
            (from_small, from_main)
        } else {
            (from_main, from_small)
        };
        first.or(second).map(|(_, index)| (index, false))
    }

    /// Whether enough of a segment is not pinned.
    fn is_worth(&self, segment: &Segment) -> bool {
        let in_log = self.config.segment_bytes - segment.pinned_bytes;
        let outside = segment.outside_bytes - segment.pinned_outside;
        (in_log + outside) * WORTH >= self.config.segment_bytes
    }

    fn is_dead_segment(&self, segment: &Segment) -> bool {
        segment.state != State::Collected && segment.filled > 0 && segment.is_dead(self.now, self.floor)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::item::Attributes;
    use crate::memory::Memory;
    use crate::store::{KeyHasher, Lookup, NewValue, StoreConfig};

    /// Without a spare, as when the collector's has been used: the walk ends before a pinned item, which stays.
    #[test]
    fn a_pinned_item_that_cannot_move_stays() {
        let memory = Memory::new(1 << 20).unwrap();
        let (_, config) = StoreConfig::derive(1 << 20, 1, true);
        let hasher = KeyHasher::new(1);
        let mut store = Store::new(Arc::clone(&memory), hasher.clone(), config).unwrap();
        let marks = Marks::OBJECT.with(Marks::PINNED);
        let key = |n: u32| [&[1, 0][..], &n.to_le_bytes()].concat();
        let put = |store: &mut Store, n: u32| {
            let attributes =
                Attributes { cas: u64::from(n) + 1, marks: Marks::OBJECT, ..Attributes::default() };
            let hash = hasher.hash_object(&key(n));
            store.put(hash, &key(n), &attributes, NewValue::Inline([&[7; 1_000], &[]]))
        };
        // In segments with two other items for a pinned one.
        let mut count = 0;
        while memory.free_bytes() > 100_000 || count % 3 != 2 {
            put(&mut store, count).unwrap();
            if count % 3 == 0
                && let Lookup::Found(found) =
                    store.lookup_object(hasher.hash_object(&key(count)), &key(count))
            {
                store.set_marks(found, marks);
            }
            count += 1;
        }
        memory.set_limit(PAGE_BYTES).unwrap();
        assert!(store.begin_walk());
        let walked = store.walk.unwrap().segment;
        let spares = store.log.exchange_spares(Vec::new());
        while store.log.seal_fullest() {}
        while store.walk.is_some_and(|walk| walk.segment == walked) && store.walk_some(1_000, false).is_some()
        {
        }
        assert!(store.walk.is_none(), "it has ended before the segment's end");
        store.verify();
        assert_eq!(put(&mut store, count), Err(Full));
        assert_eq!(store.give_back(PAGE_BYTES), 0);
        store.verify();
        store.log.exchange_spares(spares);
        memory.set_limit(1 << 20).unwrap();
        for n in count..count + 2_000 {
            put(&mut store, n).expect("it is collected again");
        }
        store.verify();
        let mut found = |n: u32| store.lookup_object(hasher.hash_object(&key(n)), &key(n));
        assert!((0..count).step_by(3).all(|n| matches!(found(n), Lookup::Found(_))), "one is lost");
    }
}
