//! Making room: a walk through whole segments, whole-segment expiry, compaction, and large values one by one.
//!
//! One segment at a time is *walked* from front to back, a bounded piece at each write while memory is low,
//! so that a fresh segment is ready before the open one is full. Which one is [`crate::policy`]'s matter. Of
//! a segment that is compacted the live items move to the end of their queue. Otherwise items that were used
//! often enough move to the end of the main queue (from another queue with their count at 0, within the main
//! queue with one use less), and the rest is evicted. The ghost queue remembers items evicted from the small
//! and the blind queue. Stubs, whose values are outside the log, move on in their queue: such a value is
//! evicted when it is the first of its list and colder than any segment.
//!
//! Where nearly every item was used, the walk frees nearly nothing, and no write may wait until all items
//! have aged. So a segment of the small or the blind queue of whose first items nearly all were used twice
//! becomes the last of the main queue as it is, without a walk ([`Store::promote`]), as if its items had been
//! moved there, and another victim is chosen. In the main queue, and where these items say otherwise, the
//! bytes walked without freeing anything are counted ([`Store::barren`]), and the more they are, the more
//! uses an item must have to stay; after six segments no item stays. So in the long run one walked byte in
//! seven is freed, and a walk of 8 to 16 times the bytes written (more for the shortest items) stays ahead of
//! the writers.
//!
//! A share that has more than its most ([`crate::shares`]) is walked at its own writes, as long as it has
//! more than its part of that in the store, whether or not memory is low.
//!
//! Pinned items always move on. A segment in which little but them and stubs is alive is left alone: emptying
//! it would move nearly all of it and free nearly nothing. Those of them that have died in it are buried
//! where they are ([`Store::reclaim_pinned`]). Trees that leave the store are taken apart before anything is
//! evicted ([`crate::graveyard`]).
//!
//! Evictions are spread: while the stores of a memory have few items ([`FEW_ITEMS`]), a piece of a walk ends
//! after eight of them, once these had the bytes that a write needs to stay behind the walk
//! ([`Store::pause_after`]). So where items are about as long as what is written each write evicts eight at
//! most; a long value in the place of many short ones evicts as many as it replaces.
//!
//! # Invariants
//! * A write walks a bounded number of bytes, unless it finds no room at all.
//! * The segment that is walked takes no appends, and its survivors have room: the collector's spare.
//! * A pinned item leaves the store only when it is dead, removed or replaced: where it cannot move, the walk
//!   ends before it.

use crate::choice::Victim;
use crate::counters::LastEvicted;
use crate::ghost::EvictedFrom;
use crate::index::USES_MAX;
use crate::item::{self, Item, Marks, NEVER};
use crate::memory::{GivenBack, PAGE_BYTES};
use crate::offers::{Offer, Rank};
use crate::outside::OutsideHead;
use crate::segment::{Place, Segment, SegmentQueue, SegmentState};
use crate::shares::ShareSet;
use crate::store::{Collection, Evicted, Found, Store, StoreFull};

/// Bytes walked for each byte written while memory is low.
const WALK_RATIO: usize = 16;
/// Bounds of one piece of walk.
const WALK_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=32 << 10;
/// Items in all stores of a memory below which evictions are spread over many writes.
const FEW_ITEMS: usize = 10_000;
/// Evictions after which a piece of a walk ends then.
const EVICTIONS: u64 = 8;
/// Bytes that it must have evicted by then, as a share of what may be walked: of pieces for short writes, and
/// for long ones.
const EVICTED_SHARE: (usize, usize) = (16, 4);
/// Bytes of a walk for which a value outside the log counts: choosing takes about as long.
const LARGE_WALK: usize = 2 << 10;
/// The bytes that are walked at once of a segment that becomes one of the main queue as it is.
const PROMOTION_WALK: usize = 4 << 10;
/// Items by which it is told whether nearly all of a segment were used.
const SAMPLE: usize = 16;
/// Of these, as many may be unused.
const SAMPLE_UNUSED: usize = 1;
/// Uses of the others.
const SAMPLE_USES: u8 = 2;
/// Most uses that an item needs in addition to those that the walk's severity adds.
const NEEDED_MAX: u8 = 3;
/// Bytes walked for each byte of a write that is too long for these bounds.
const LONG_WALK_RATIO: usize = 8;
/// Of this many walked bytes one should be freed.
const YIELD: usize = 7;
/// Pages of buried trees that a write gives back at least.
const WRITE_PAGES: usize = 16;
/// Segments of which a walk in other stores may be asked for one segment of room, before a store makes it
/// itself.
const PATIENCE: usize = 4;
/// Pages of buried trees that are given back in a second, and between two attempts of a write that waits for
/// room.
const TICK_PAGES: usize = 256;
/// Segments walked without freeing anything, after which an item needs one more use to stay.
const BARREN_SEGMENTS: usize = 2;
/// Items for one place among the recent misses.
const ITEMS_PER_MISS: usize = 16;
/// Places of the ghost queue for a number of items.
const GHOSTS_PER_ITEMS: (usize, usize) = (3, 2);

/// What becomes of items of shares that have no more than their least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeastShares {
    /// They stay.
    Kept,
    /// They are evicted where nothing else is: what all shares have at least may be more than there is room
    /// for.
    Taken,
}

/// What a walk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Segments for this store's writers.
    Writers,
    /// Memory for others.
    Memory(LeastShares),
    /// That this share has no more than its most.
    Share(u8),
}

/// What [`Store::begin_walk`] has chosen.
#[derive(Debug, PartialEq)]
enum WalkChoice {
    /// A segment, which is walked from now on.
    Walk,
    /// A segment that was made one of the main queue as it was.
    Promoted,
    /// A value outside the log, and its queue.
    Large(OutsideHead, SegmentQueue),
}

/// A step of [`Store::walk_some`].
struct WalkStep {
    /// Bytes of the walk for which it counts.
    bytes: usize,
    /// Bytes of items that were evicted.
    evicted: usize,
    /// A segment became one of the main queue, and nothing was walked.
    is_promotion: bool,
}

/// Where a piece of a walk ends before its bytes are walked: both have been evicted.
#[derive(Debug, Clone, Copy)]
struct WalkPause {
    /// [`Stats::evictions`](crate::counters) at its end.
    evictions: u64,
    bytes: usize,
}

impl WalkPause {
    /// There is none.
    const NEVER: Self = Self { evictions: u64::MAX, bytes: 0 };

    /// Whether it has come, after `bytes` were evicted.
    fn has_come(self, evictions: u64, bytes: usize) -> bool {
        evictions >= self.evictions && bytes >= self.bytes
    }
}

/// What became of an item that the collector has come to.
enum CollectedItem {
    /// The item was kept, and has moved.
    Moved,
    /// The item has left the store.
    Gone,
    /// The item is pinned, and there is no room to move it to.
    Stuck,
}

/// What ends pinned items that the store itself takes for live ones.
pub struct PinnedEnds<'a> {
    /// The number of the last event that may have ended some. No event ends items with its number as their
    /// stamp, or a later one.
    pub event: u64,
    /// Whether the time ends some as well.
    pub by_time: bool,
    /// Whether the item with this hash is over.
    pub is_over: &'a dyn Fn(u64, &Item<'_>) -> bool,
}

/// What [`Store::reclaim_pinned`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReclaimedItems {
    /// Items that were looked at.
    pub looks: usize,
    /// Items that were dead.
    pub items: usize,
}

impl Store {
    /// Room for an item of `bytes`, made by collecting whole segments if there is no other way.
    pub(crate) fn make_room(
        &mut self,
        queue: SegmentQueue,
        class: u8,
        bytes: usize,
    ) -> Result<u64, StoreFull> {
        let mut rounds = self.rounds();
        self.log.set_may_grow(true);
        loop {
            // Class and queue are preferences: the wrong ones are better than waiting.
            let location = self.log.append(queue, class, bytes);
            let location = location.or_else(|| self.log.append_anywhere(queue, class, bytes));
            let mut others = queue.others();
            if let Some(location) =
                location.or_else(|| others.find_map(|other| self.log.append_anywhere(other, class, bytes)))
            {
                return Ok(location);
            }
            if self.graveyard.take_apart(TICK_PAGES) {
                continue;
            }
            // A write that waits does not wait for items to be moved.
            self.barren = self.most_barren();
            if rounds == 0 || !self.collect_one(Purpose::Writers) {
                // Where the log holds nothing, there is nothing to copy into the collector's spare.
                if self.log.iter().next().is_none()
                    && let Some(location) = self.log.append_survivor(queue, class, bytes, false)
                {
                    return Ok(location);
                }
                self.stats.no_free_segment += u64::from(self.config.evictions);
                return Err(StoreFull);
            }
            self.stats.collected_in_haste += 1;
            rounds -= 1;
        }
    }

    /// A bounded piece of collection, if memory is low. `written`: bytes that were just appended.
    pub(crate) fn upkeep(&mut self, written: usize) {
        if self.is_empty {
            self.publish(Offer::Unknown);
        }
        if self.index.feed() && self.log.is_well() {
            if self.waited > 0 {
                self.waited = 0;
            }
            return;
        }
        let is_plenty = self.memory.free_bytes() >= self.config.segment_bytes * self.config.shards;
        let rank = if is_plenty || self.walk.is_some() {
            Rank::Alike
        } else {
            self.memory.offers().compare(self.number)
        };
        // The coldest store leaves to others what is free.
        if is_plenty || self.walk.is_none() {
            self.log.set_may_grow(rank != Rank::Colder);
        }
        // What is buried is given back before anything is evicted.
        if self.is_well() || self.graveyard.take_apart(WRITE_PAGES.max(2 * written / PAGE_BYTES)) {
            self.waited = 0;
            return;
        }
        let piece = (written * WALK_RATIO).clamp(*WALK_BYTES.start(), *WALK_BYTES.end());
        let piece = piece.max(written * LONG_WALK_RATIO);
        if rank == Rank::Warmer && self.waited < PATIENCE * self.config.segment_bytes {
            self.waited += piece;
            return self.memory.offers().want(piece);
        }
        self.walk_pieces(piece, Purpose::Writers);
    }

    /// Evicts items of a share that has more than its most: a bounded piece, after `written` bytes were
    /// stored for it. Each store keeps to its part, so that it does not evict the only large value it has.
    #[inline]
    pub(crate) fn keep_to_share(&mut self, share: u8, written: usize) {
        if share > 0 {
            self.shrink_share(share, written);
        }
    }

    #[cold]
    fn shrink_share(&mut self, share: u8, written: usize) {
        if self.is_over(share, written) {
            let piece = (written * WALK_RATIO).clamp(*WALK_BYTES.start(), *WALK_BYTES.end());
            self.walk_pieces(piece.max(written * LONG_WALK_RATIO), Purpose::Share(share));
        }
    }

    /// Whether a share has more than its most, and more of it here than an equal part and these bytes.
    fn is_over(&self, share: u8, bytes: usize) -> bool {
        let most = self.memory.shares().over(share);
        most.is_some_and(|most| self.log.share_bytes(share) > most / self.config.shards + bytes)
    }

    /// Takes what is missing from the memory: a page for the index, spare segments. True: nothing is missing
    /// any more.
    fn is_well(&mut self) -> bool {
        // Both, even if the first is not available.
        self.index.feed() & self.log.refill()
    }

    /// Walks `bytes` or a little more, until the log has its spare segments, one was given back to the
    /// memory, or the share has no more than its most.
    fn walk_pieces(&mut self, bytes: usize, purpose: Purpose) {
        let (mut left, given) = (bytes, GivenBack::new());
        let mut pause = self.pause_after(bytes);
        while let Some(walked) = self.walk_some(left, pause, purpose) {
            left = left.saturating_sub(walked.bytes);
            let is_enough = match purpose {
                Purpose::Writers => self.is_well(),
                Purpose::Memory(_) => given.bytes() > 0,
                Purpose::Share(share) => !self.is_over(share, 0),
            };
            // A tree that was evicted is taken apart before anything else is.
            if left == 0
                || is_enough
                || !self.graveyard.is_empty()
                || pause.has_come(self.stats.evictions, walked.evicted)
            {
                break;
            }
            pause.bytes = pause.bytes.saturating_sub(walked.evicted);
        }
    }

    /// Where a piece of `bytes` pauses. Never where there are many items: then few evictions at a time would
    /// only make the walk dearer.
    fn pause_after(&self, bytes: usize) -> WalkPause {
        if self.index.len() * self.config.shards >= FEW_ITEMS {
            return WalkPause::NEVER;
        }
        let (short, long) = EVICTED_SHARE;
        let share = if bytes > *WALK_BYTES.end() { long } else { short };
        WalkPause { evictions: self.stats.evictions + EVICTIONS, bytes: bytes / share }
    }

    /// A bounded piece of collection for stores that need room and whose items are warmer
    /// ([`Memory::take_wanted`]). What it frees goes back to the memory.
    ///
    /// [`Memory::take_wanted`]: crate::Memory::take_wanted
    pub fn make_room_for_others(&mut self, bytes: usize) {
        if self.graveyard.take_apart(WRITE_PAGES.max(bytes / PAGE_BYTES)) {
            return;
        }
        if self.is_coldest() {
            self.walk_pieces(bytes, Purpose::Memory(LeastShares::Kept));
        }
    }

    /// Whether no other store of the memory would lose much colder items, as far as is known. A store in
    /// which a walk is under way says yes; a store that has nothing to lose but what is in open segments, no:
    /// these are not closed for others.
    pub fn is_coldest(&mut self) -> bool {
        if self.walk.is_some() {
            return true;
        }
        let (victim, offer) = self.choose(true, self.memory.evictable_shares());
        self.publish(offer);
        victim.is_some() && self.memory.offers().compare(self.number) != Rank::Warmer
    }

    /// Once a second: empties a segment in which nothing is alive, so that its memory can go back before it
    /// is needed, takes a piece of a large tree apart that has left the store, and notes what
    /// [`Store::oldest_use`] shows. True: there may be more.
    pub fn tick(&mut self) -> bool {
        // What is collected may take several calls in a second.
        if self.oldest_noted != self.now {
            self.oldest_noted = self.now;
            self.note_oldest_use();
            if self.walk.is_none() {
                let (_, offer) = self.choose(true, self.memory.evictable_shares());
                self.publish(offer);
            }
            self.reclaim_pinned(None);
        }
        let mut others = 1..self.memory.shares().count() as u8;
        if let Some(share) = others.find(|share| self.is_over(*share, 0)) {
            let before = self.log.share_bytes(share);
            self.walk_pieces(*WALK_BYTES.end(), Purpose::Share(share));
            // What it has too much may be pinned.
            if self.log.share_bytes(share) < before {
                return true;
            }
        }
        self.graveyard.take_apart(TICK_PAGES);
        if self.walk.is_none() && !self.log.iter().any(|(_, s)| self.is_dead_segment(s)) {
            return !self.graveyard.is_empty();
        }
        let pause = self.pause_after(*WALK_BYTES.start());
        self.walk_some(*WALK_BYTES.end(), pause, Purpose::Memory(LeastShares::Kept)).is_some()
            || !self.graveyard.is_empty()
    }

    /// Buries the dead among the pinned items of one segment, if one may have died since the segment was last
    /// looked at. For a caller that finds [`Memory::pinned_object_bytes`](crate::Memory::pinned_object_bytes)
    /// at its limit; [`Store::tick`] does the same once a second, without `ends`. None: there is no such
    /// segment.
    pub fn reclaim_pinned(&mut self, ends: Option<&PinnedEnds<'_>>) -> Option<ReclaimedItems> {
        if self.holdings.pinned_bytes() == 0 {
            return None;
        }
        let (now, floor) = (self.now, self.floor);
        let may_be_over =
            |s: &Segment| ends.is_some_and(|ends| s.looked < ends.event || ends.by_time && s.looked_at < now);
        let (index, segment) = self.log.iter().find(|(_, s)| {
            let is_due = || s.reap_at <= now || s.is_dead(now, floor) || may_be_over(s);
            s.state != SegmentState::Collected && s.pinned_bytes > 0 && is_due()
        })?;
        let filled = segment.filled;
        let (mut at, mut next) = (0, u32::MAX);
        let mut reclaimed = ReclaimedItems::default();
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
            let is_over =
                |ends: &PinnedEnds<'_>| (ends.is_over)(self.hash_at(location), &self.item_of(content));
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

    /// Evicts until `bytes` have gone back to the memory, or nothing is left to evict. Returns how many did.
    /// Where nothing may be evicted it gives back what is dead.
    pub fn give_back(&mut self, bytes: usize, least: LeastShares) -> usize {
        let given = GivenBack::new();
        self.give_buried_back(given, bytes);
        let mut rounds = self.rounds();
        // Unused items are looked for in twice as many segments as would be enough if no item stayed.
        let mut patience = 2 * bytes.div_ceil(self.config.segment_bytes) + 2;
        while given.bytes() < bytes && rounds > 0 {
            if patience == 0 {
                self.barren = self.most_barren();
            }
            let Some(walked) = self.walk_some(*WALK_BYTES.end(), WalkPause::NEVER, Purpose::Memory(least))
            else {
                break;
            };
            if self.walk.is_none() && !walked.is_promotion {
                self.give_buried_back(given, bytes);
                (rounds, patience) = (rounds - 1, patience.saturating_sub(1));
            }
        }
        given.bytes()
    }

    /// Takes buried trees apart until `bytes` are given back, or nothing is buried.
    pub(crate) fn give_buried_back(&mut self, given: GivenBack, bytes: usize) {
        while given.bytes() < bytes && self.graveyard.take_apart(bytes.div_ceil(PAGE_BYTES)) {}
    }

    /// Segments and large values to empty and to evict, after which there is room if there can be any: each
    /// round takes one, and after two of each there would be room even if all segments' items moved.
    fn rounds(&self) -> usize {
        self.log.iter().count() * 2 + 4 + self.outside.places()
    }

    /// Empties one segment whole, or evicts a large value. False: there is none, or a pinned item cannot
    /// move.
    fn collect_one(&mut self, purpose: Purpose) -> bool {
        loop {
            let Some(walked) = self.walk_some(usize::MAX, WalkPause::NEVER, purpose) else { return false };
            if self.walk.is_none() && !walked.is_promotion {
                return true;
            }
        }
    }

    /// Walks `bytes` or a little more, to the pause or the end of one segment at most; or looks at one large
    /// value, or promotes a segment. `None`: there is nothing to walk, or the walk has ended before a pinned
    /// item that cannot move.
    fn walk_some(&mut self, bytes: usize, pause: WalkPause, purpose: Purpose) -> Option<WalkStep> {
        if self.walk.is_none() {
            match self.begin_walk(purpose)? {
                WalkChoice::Walk => (),
                WalkChoice::Promoted => {
                    return Some(WalkStep { bytes: PROMOTION_WALK, evicted: 0, is_promotion: true });
                }
                WalkChoice::Large(head, queue) => {
                    let before = self.stats.evictions;
                    self.collect_large(head, queue);
                    let evicted = if self.stats.evictions > before { head.held_bytes } else { 0 };
                    if queue == SegmentQueue::Blind && evicted > 0 {
                        self.passed(Place::Outside, head.stored, evicted);
                    }
                    return Some(WalkStep { bytes: LARGE_WALK, evicted, is_promotion: false });
                }
            }
        }
        let mut walk = self.walk?;
        let segment = self.log.get(walk.segment)?;
        let (filled, place, queue, stored) = (segment.filled, segment.place, segment.queue, segment.stored());
        // Nothing left alive: no need to look at the rest.
        let empty = |store: &Self| store.log.get(walk.segment).is_none_or(|s| s.live_items == 0);
        let (from, until) = (walk.at, walk.at.saturating_add(bytes));
        let (mut kept, mut evicted) = (0, 0);
        while walk.at < filled.min(until) && !empty(self) && !pause.has_come(self.stats.evictions, evicted) {
            let Some(location) = self.log.location(walk.segment, walk.at) else { break };
            let content = self.log.bytes(location);
            let allotted = item::allotted(content);
            if !item::is_dead(content) {
                let before = self.stats.evictions;
                match self.collect_item(location, queue, walk.compact, stored) {
                    CollectedItem::Moved => kept += allotted,
                    CollectedItem::Gone if self.stats.evictions > before => evicted += allotted,
                    CollectedItem::Gone => (),
                    CollectedItem::Stuck => {
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
            if queue == SegmentQueue::Blind && !walk.compact {
                self.passed(place, stored, self.config.segment_bytes);
            }
            // A segment that only replaces the collector's own spare is not given away.
            let gained = !self.log.is_reserve_gone();
            let items = self.index.len();
            let may_grow = gained && self.stats.evictions > 0 && self.config.evictions;
            let ghost_is_small =
                may_grow && self.ghost.is_small(items * GHOSTS_PER_ITEMS.0 / GHOSTS_PER_ITEMS.1);
            let misses_are_few = may_grow && self.misses.is_small(items / ITEMS_PER_MISS);
            let wanted = ghost_is_small || misses_are_few || self.index.is_hungry();
            self.log.free(walk.segment, purpose != Purpose::Writers || wanted);
            self.index.feed();
            if ghost_is_small {
                self.ghost.grow(&self.memory);
            }
            if misses_are_few {
                self.misses.grow(&self.memory);
            }
        } else {
            self.walk = Some(walk);
        }
        Some(WalkStep { bytes: walked, evicted, is_promotion: false })
    }

    /// The highest value of [`Store::barren`]: then no item stays, however often it was used.
    fn most_barren(&self) -> usize {
        usize::from(USES_MAX) * BARREN_SEGMENTS * self.config.segment_bytes
    }

    /// Uses that an item needs to stay in addition to the usual one, 0..=[`USES_MAX`].
    pub(crate) fn severity(&self) -> u8 {
        (self.barren / (BARREN_SEGMENTS * self.config.segment_bytes)) as u8
    }

    /// Keeps an item of the segment that is walked, or evicts it. `stored`: when the items of that segment
    /// were stored.
    fn collect_item(
        &mut self,
        location: u64,
        queue: SegmentQueue,
        compact: bool,
        stored: u64,
    ) -> CollectedItem {
        let content = self.log.bytes(location);
        if self.is_dead(content) {
            self.reclaim(location);
            return CollectedItem::Gone;
        }
        let (hash, found) = self.found_at(location);
        let weight = self.weigh(location);
        let uses = self.index.uses(found.slot).saturating_sub(self.log.segment_of(location).spent);
        // Compaction keeps the class, so that its survivors fit into one segment, which is in reserve.
        let (class, share, place) = {
            let segment = self.log.segment_of(location);
            (segment.class, segment.share, segment.place)
        };
        let (dead_at, bytes) = (item::dead_at(self.log.bytes(location)), weight.bytes + weight.outside);
        let class = if compact { class } else { self.log.class(share, self.now, dead_at, bytes) };
        let stays = compact || weight.is_stub() || {
            let needed = self.policy.needed(queue, false).saturating_add(self.extra_uses(weight.bytes));
            let stays = uses >= needed.min(NEEDED_MAX) + self.severity() || weight.pinned;
            if queue == SegmentQueue::Main {
                self.met_in_main(location, uses, stays, (weight.bytes, false));
            }
            stays
        };
        if stays {
            let moved_at = self.moved_at(location, stored);
            let (to, uses, stored) = match queue {
                _ if compact || weight.is_stub() => (queue, uses, stored),
                SegmentQueue::Main => (queue, uses.saturating_sub(1), moved_at),
                SegmentQueue::Small | SegmentQueue::Blind => (SegmentQueue::Main, 0, moved_at),
            };
            if self.relocate(hash, found, (to, class), stored).is_some() {
                self.index.set_uses(found.slot, uses);
                self.stats.moved += 1;
                return CollectedItem::Moved;
            }
        }
        self.stats.no_free_segment += u64::from(stays);
        if weight.pinned || !self.config.evictions {
            return CollectedItem::Stuck;
        }
        self.remember(hash, queue, place);
        self.evict(hash, found);
        CollectedItem::Gone
    }

    /// Keeps a value outside the log, which is the first of a list of this queue, or evicts it.
    fn collect_large(&mut self, head: OutsideHead, queue: SegmentQueue) {
        let log = &self.log;
        let is_its = |location| item::outside_number(log.bytes(location)) == Some(head.number);
        let slot = self.index.find(head.hash, is_its).expect("what is outside the log has its item");
        let found = Found { slot, location: self.index.location(slot) };
        if self.is_dead(self.log.bytes(found.location)) {
            return self.reclaim(found.location);
        }
        let uses = self.index.uses(slot);
        let needed = self.policy.needed(queue, true) + self.severity();
        // An object in use stays, however little the walk frees: it has used up its uses before it comes
        // round again.
        let stays = uses >= if head.is_tree { needed.min(USES_MAX) } else { needed };
        if queue == SegmentQueue::Main {
            self.met_in_main(found.location, uses, stays, (head.held_bytes, true));
        }
        if stays {
            // An object that is in use is as good as new, however large: it is changed in its place.
            let moved_at = self.moved_at(found.location, head.stored);
            let stored = if head.is_tree { self.log.now() } else { moved_at };
            let share = self.log.segment_of(found.location).share;
            let dead_at = item::dead_at(self.log.bytes(found.location));
            let class = self.log.class(share, self.now, dead_at, head.held_bytes);
            let moved = queue == SegmentQueue::Main
                || self.relocate(head.hash, found, (SegmentQueue::Main, class), stored).is_some();
            if moved {
                self.index.set_uses(slot, if queue == SegmentQueue::Main { uses - 1 } else { 0 });
                self.outside.list(head.number, (share, SegmentQueue::Main), stored);
                self.barren =
                    (self.barren + head.held_bytes.min(self.config.segment_bytes)).min(self.most_barren());
                self.stats.moved += 1;
                return;
            }
        }
        self.barren = self.barren.saturating_sub(YIELD * head.held_bytes);
        self.remember(head.hash, queue, Place::Outside);
        self.evict(head.hash, found);
    }

    /// Notes that the walk of the main queue has met an item.
    fn met_in_main(&mut self, location: u64, uses: u8, stays: bool, (bytes, is_outside): (usize, bool)) {
        if item::take_returned(self.log.bytes_mut(location)) {
            self.policy.returned(uses > 0);
        }
        let share = self.of_memory(bytes);
        self.policy.met(stays, (share, uses), is_outside);
    }

    /// Remembers an item that is evicted.
    fn remember(&mut self, hash: u64, queue: SegmentQueue, place: Place) {
        self.ghost.insert(hash, EvictedFrom::queue(queue, place));
        if queue == SegmentQueue::Blind {
            self.policy.lost_blind(place);
        }
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
        let (expires, accessed) = (item.expiry() != NEVER, item.accessed());
        if self.evicted.is_some() {
            let object = item.object();
            let record = Evicted {
                key: object.map_or(item.key(), |(_, key)| key).into(),
                object: object.map(|(type_id, _)| type_id),
                fetched,
                expiry: item.expiry(),
                accessed,
                value_len: item.value_len(),
            };
            self.evicted.iter_mut().for_each(|e| e.push(record.clone()));
            self.memory.note_evicted();
        }
        self.share_evictions[usize::from(self.log.segment_of(found.location).share)] += 1;
        self.stats.evictions += 1;
        self.stats.evicted_unfetched += u64::from(!fetched);
        self.stats.evicted_nonzero += u64::from(expires);
        self.stats.last_evicted = LastEvicted::of(self.now, accessed);
        self.remove(hash, found);
    }

    fn publish(&mut self, offer: Offer) {
        self.is_empty = offer == Offer::Nothing;
        self.memory.offers().publish(self.number, offer, self.log.now_ms());
    }

    /// Chooses the next segment to empty, or the next large value. `None`: there is neither.
    fn begin_walk(&mut self, purpose: Purpose) -> Option<WalkChoice> {
        let chosen = if let Purpose::Share(share) = purpose {
            self.find_victim(ShareSet::one(share), false)
        } else {
            let shares = self.memory.evictable_shares();
            self.note_choice(shares);
            let mut chosen = self.find_victim(shares, true);
            self.publish(chosen.1);
            let above = self.memory.shares_above_least();
            let all = (purpose == Purpose::Memory(LeastShares::Taken)).then_some(ShareSet::ALL);
            for others in std::iter::once(above).chain(all) {
                if chosen.0.is_none() && others != shares {
                    chosen = self.find_victim(others, true);
                }
            }
            chosen
        };
        let (segment, compact) = match chosen.0? {
            Victim::Large(head, queue) => return Some(WalkChoice::Large(head, queue)),
            Victim::Segment { index, compact } => (index, compact),
        };
        if !compact && self.promote(segment) {
            return Some(WalkChoice::Promoted);
        }
        self.log.collect(segment);
        self.walk = Some(Collection { segment, at: 0, compact });
        Some(WalkChoice::Walk)
    }

    /// What to empty or evict of these shares, or to compact of all; and what to offer to other stores.
    fn find_victim(&mut self, shares: ShareSet, may_compact: bool) -> (Option<Victim>, Offer) {
        match self.choose(may_compact, shares) {
            // Everything is in open segments: close one and choose again. Compacting it would only open
            // another.
            (None, _) if self.log.seal_fullest(shares) => self.choose(false, shares),
            chosen => chosen,
        }
    }

    /// Makes a segment of the small or the blind queue one of the main queue as it is, if nearly all of its
    /// first items were used often enough.
    fn promote(&mut self, index: u32) -> bool {
        let Some(segment) = self.log.get(index) else { return false };
        let may_be = segment.queue != SegmentQueue::Main
            && segment.state == SegmentState::Sealed
            && segment.outside_bytes + segment.pinned_bytes == 0
            && !self.is_dead_segment(segment);
        // At the highest severity nothing stays, since a write waits.
        if !may_be || self.severity() >= USES_MAX {
            return false;
        }
        let (filled, stored) = (segment.filled, segment.stored());
        let (mut at, mut met, mut unused, mut accessed) = (0, 0, 0, 0);
        while at < filled
            && met < SAMPLE
            && let Some(location) = self.log.location(index, at)
        {
            let content = self.log.bytes(location);
            let bytes = item::allotted(content);
            let is_used = || {
                let needed = SAMPLE_USES.saturating_add(self.extra_uses(bytes)).min(NEEDED_MAX);
                self.index.uses(self.found_at(location).1.slot) >= needed
            };
            unused += usize::from(item::is_dead(content) || !is_used());
            if unused > SAMPLE_UNUSED {
                return false;
            }
            (at, met, accessed) = (at + bytes, met + 1, accessed.max(item::accessed(content)));
        }
        if unused > 0 && met < SAMPLE {
            return false;
        }
        self.log.promote(index, self.used_at(stored, accessed), SAMPLE_USES);
        true
    }
}

#[cfg(test)]
mod tests;
