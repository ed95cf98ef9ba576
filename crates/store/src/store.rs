//! A shard's items: look up, write, change in place, remove.
//!
//! The store knows when an item is dead (expired, or below the flush floor) and makes room by collecting
//! segments ([`crate::evict`]). The engine gives commands their meaning. The store reads no clock: the caller
//! sets its time with [`Store::advance`]. `object.rs` has what only objects need.
//!
//! # Invariants (walked by [`Store::verify`])
//! * Each index entry names one item that is not marked dead, in a segment of this store, whose key hashes
//!   to the entry's place; each item not marked dead is named by one entry.
//! * Segments' accounts equal the sum of their live items.

use std::sync::Arc;

use crate::config::StoreConfig;
use crate::counters::StoreStats;
use crate::evict::LeastShares;
use crate::expired::ExpiredItem;
use crate::ghost::{EvictedFrom, Ghost};
use crate::graveyard::Graveyard;
use crate::hasher::KeyHasher;
use crate::holdings::Holdings;
use crate::huge::HugeValue;
use crate::index::{EntrySlot, Index};
use crate::item::{self, Attributes, Item, Marks, NEVER, OUTSIDE_REF, ReadCheck, SLACK_MAX};
use crate::memory::{GivenBack, Memory};
use crate::outside::{OutsideTable, OutsideValue};
use crate::policy::{EARLY_USES, QueueNotes};
use crate::segment::{Log, Place, SegmentQueue, Weight};
use crate::shares;
use crate::tree::Tree;

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing.
    Absent,
    /// An item that had expired; it is removed now.
    Expired,
    /// An item from before the last flush; it is removed now.
    Flushed,
    /// A live item.
    Found(Found),
}

/// A live item's place. Valid until the store is changed; in-place changes of the item itself keep it valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub(crate) slot: EntrySlot,
    pub(crate) location: u64,
}

/// A value to store.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// Up to [`StoreConfig::inline_max`] bytes, in two parts.
    Inline([&'a [u8]; 2]),
    /// A longer value, already copied into pages.
    Huge(Arc<HugeValue>),
    /// The members of an object.
    Tree(Box<Tree>),
}

impl NewValue<'_> {
    /// Bytes of the log that it takes, and of the budget outside the log.
    pub fn weighs(&self) -> (usize, usize) {
        match self {
            Self::Inline(_) => (self.len(), 0),
            Self::Huge(huge) => (OUTSIDE_REF, huge.held_bytes()),
            Self::Tree(tree) => (OUTSIDE_REF, tree.held_bytes()),
        }
    }

    /// Bytes of the value, or of the pages of a tree.
    fn len(&self) -> usize {
        match self {
            Self::Inline(parts) => parts[0].len() + parts[1].len(),
            Self::Huge(huge) => huge.len(),
            Self::Tree(tree) => tree.held_bytes(),
        }
    }
}

/// Pages by which the ghost queue grows.
const GHOST_PAGES: usize = 4;

/// No room, and none could be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreFull;

/// A collection under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Collection {
    pub(crate) segment: u32,
    /// Offset of the next item in the segment.
    pub(crate) at: usize,
    /// All live items stay.
    pub(crate) compact: bool,
}

/// An item that was evicted, for watchers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// The item's key; of an object its own key, without its type.
    pub key: Box<[u8]>,
    /// The number of its type, if it is an object.
    pub object: Option<u16>,
    /// Whether it was ever read.
    pub fetched: bool,
    /// Second at which it would have expired; 0 is never.
    pub expiry: u32,
    /// Second of its last access.
    pub accessed: u32,
    /// Bytes of its value.
    pub value_len: usize,
}

/// A shard's items.
pub struct Store {
    pub(crate) config: StoreConfig,
    pub(crate) memory: Arc<Memory>,
    pub(crate) index: Index,
    pub(crate) log: Log,
    pub(crate) ghost: Ghost,
    /// Keys that were missed of late: what is stored for one of them is a fill.
    pub(crate) misses: Ghost,
    pub(crate) policy: QueueNotes,
    pub(crate) walk: Option<Collection>,
    /// Bytes walked without freeing anything: the bytes walked, less a multiple of those freed. From 0 to
    /// [`Store::most_barren`].
    pub(crate) barren: usize,
    /// The store's number among the stores of the memory.
    pub(crate) number: usize,
    /// The store has offered nothing to others.
    pub(crate) is_empty: bool,
    /// Bytes of walks that other stores have been asked for since there was room.
    pub(crate) waited: usize,
    pub(crate) evicted: Option<Vec<Evicted>>,
    pub(crate) stats: StoreStats,
    /// The second of the last use in the oldest sealed segment, as the last tick found it.
    pub(crate) oldest_use: Option<u32>,
    /// The second of that tick.
    pub(crate) oldest_noted: u32,
    pub(crate) outside: OutsideTable,
    pub(crate) graveyard: Graveyard,
    /// Items that were evicted, by share.
    pub(crate) share_evictions: [u64; shares::COUNT],
    pub(crate) holdings: Holdings,
    hasher: KeyHasher,
    /// See [`Store::last_expired`].
    pub(crate) expired: ExpiredItem,
    pub(crate) now: u32,
    pub(crate) floor: u64,
}

impl Store {
    /// An empty store that takes its memory from `memory`, page by page. `None`: not even its reserve is
    /// available.
    pub fn new(memory: Arc<Memory>, hasher: KeyHasher, config: StoreConfig) -> Option<Self> {
        let mut misses = Ghost::new(1);
        misses.grow(&memory);
        let mut log = Log::new(Arc::clone(&memory), config.segment_bytes, config.ttl_classes)?;
        log.set_keeps_all(!config.evictions);
        Some(Self {
            index: Index::new(Arc::clone(&memory))?,
            log,
            ghost: Ghost::new(GHOST_PAGES),
            misses,
            policy: QueueNotes::new(config.shards, Arc::clone(memory.common())),
            walk: None,
            expired: ExpiredItem::default(),
            barren: 0,
            number: memory.offers().enlist(),
            is_empty: false,
            waited: 0,
            evicted: None,
            stats: StoreStats::default(),
            oldest_use: None,
            oldest_noted: 0,
            outside: OutsideTable::new(memory.shares().count()),
            graveyard: Graveyard::default(),
            share_evictions: [0; shares::COUNT],
            holdings: Holdings::new(Arc::clone(&memory)),
            hasher,
            now: 1,
            floor: 0,
            config,
            memory,
        })
    }

    /// Moves the store on to second `now`, and to `now_ms` milliseconds, by which it compares the ages of
    /// items; items whose stamp is below `floor` are dead. None of them goes back. All stores of a memory
    /// have one clock.
    #[inline]
    pub fn advance(&mut self, now: u32, now_ms: u64, floor: u64) {
        // Written only when it changes: with several workers a write takes the line from the other's cache.
        if now_ms > self.log.now_ms() {
            self.log.advance(now_ms);
            self.now = self.now.max(now);
        } else if now > self.now {
            self.now = now;
        }
        if floor > self.floor {
            self.raise_floor(floor);
        }
    }

    #[cold]
    fn raise_floor(&mut self, floor: u64) {
        self.floor = floor;
        // Some of the pinned items of any segment may be dead now.
        self.log.reap_all();
    }

    /// The live item of this key; objects are not among them. A dead one is removed.
    #[inline]
    pub fn lookup(&mut self, hash: u64, key: &[u8]) -> Lookup {
        self.lookup_among(hash, key, false)
    }

    /// The live item of this key among objects, or among plain items.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "its two callers each know one domain: a plain look-up costs what it did"
    )]
    pub(crate) fn lookup_among(&mut self, hash: u64, key: &[u8], objects: bool) -> Lookup {
        let Some(found) = self.find(hash, key, objects) else { return Lookup::Absent };
        let bytes = self.log.bytes(found.location);
        let dead_at = item::dead_at(bytes);
        let lookup = if item::stamp(bytes) < self.floor {
            Lookup::Flushed
        } else if dead_at != NEVER && dead_at <= self.now {
            self.expired = ExpiredItem { expiry: item::expiry(bytes), accessed: item::accessed(bytes) };
            Lookup::Expired
        } else {
            return Lookup::Found(found);
        };
        self.stats.reclaimed += 1;
        self.remove(hash, found);
        lookup
    }

    /// Bytes that all stores of the memory may take.
    pub fn memory_limit(&self) -> usize {
        self.memory.limit_bytes()
    }

    /// Pages with a value that is too long for the log, in parts; evicts items to make room if there is no
    /// other way.
    pub fn huge_value(&mut self, parts: &[&[u8]]) -> Option<Arc<HugeValue>> {
        HugeValue::new(&self.memory, parts).or_else(|| {
            let wanted = parts.iter().map(|part| part.len()).sum::<usize>() + crate::memory::PAGE_BYTES;
            if self.config.evictions {
                self.give_back(wanted, LeastShares::Kept);
            } else {
                self.give_buried_back(GivenBack::new(), wanted);
            }
            HugeValue::new(&self.memory, parts)
        })
    }

    /// The item.
    #[inline]
    pub fn item(&self, found: Found) -> Item<'_> {
        self.item_of(self.log.bytes(found.location))
    }

    /// A hash of these bytes, seeded as that of the keys.
    pub fn hash_bytes(&self, bytes: &[u8]) -> u64 {
        self.hasher.hash(bytes)
    }

    /// The item without a value that lies outside the log.
    #[inline]
    pub fn header(&self, found: Found) -> Item<'_> {
        Item::new(self.log.bytes(found.location), None)
    }

    /// What must be checked now before the item's value is sent to a reader.
    #[inline]
    pub fn read_check(&self, found: Found) -> ReadCheck {
        self.header(found).read_check(self.now)
    }

    /// What is probably the key's item, without a huge value: a hint for prefetching.
    #[inline]
    pub fn likely_item(&self, hash: u64) -> Option<Item<'_>> {
        let location = self.index.likely_location(hash)?;
        Some(Item::new(self.log.bytes(location), None))
    }

    /// The item that begins with these bytes of the log.
    #[inline]
    pub(crate) fn item_of<'s>(&'s self, bytes: &'s [u8]) -> Item<'s> {
        Item::new(bytes, item::outside_number(bytes).and_then(|n| self.outside.get(n)))
    }

    /// Notes that a client has asked for a key that is not there: what is stored for it soon is a fill,
    /// anything else is blind.
    #[inline]
    pub fn note_miss(&mut self, hash: u64) {
        self.misses.insert(hash, EvictedFrom::Small);
        if let Some(from) = self.ghost.tell(hash) {
            self.signal(from, self.mean_size());
        }
    }

    /// The time in milliseconds of the last [`Store::advance`].
    pub fn now_ms(&self) -> u64 {
        self.log.now_ms()
    }

    /// Notes that a client asks for what an item has, with a command that does not fetch it.
    #[inline]
    pub fn note_asked(&mut self, found: Found) {
        if self.index.uses(found.slot) < EARLY_USES {
            self.note_early_use(found);
        }
    }

    /// Counts a read: its use, its time, that it was fetched.
    #[inline]
    pub fn count_read(&mut self, found: Found) {
        self.note_asked(found);
        self.index.count_use(found.slot);
        if self.policy.count_hit() {
            let is_outside = item::outside_number(self.log.bytes(found.location)).is_some();
            self.policy.sample_hit(self.log.segment_of(found.location).queue, is_outside);
        }
        item::set_used(self.log.bytes_mut(found.location), self.now);
    }

    /// Changes an item's marks; [`Marks::OBJECT`] stays as it is.
    pub fn set_marks(&mut self, found: Found, marks: Marks) {
        let bytes = self.log.bytes_mut(found.location);
        if item::is_object(bytes) {
            return self.set_object_marks(found.location, marks.with(Marks::OBJECT));
        }
        item::set_marks(bytes, marks.without(Marks::OBJECT));
    }

    /// Changes an item's CAS. An item without a stamp of its own counts as of it from now on.
    pub fn set_cas(&mut self, found: Found, cas: u64) {
        let bytes = self.log.bytes_mut(found.location);
        item::set_cas(bytes, cas);
        let (dead_at, stamp) = (item::dead_at(bytes), item::stamp(bytes));
        self.log.cover(found.location, dead_at, stamp);
    }

    /// Changes an item's expiry. Returns its place, which may be a new one: an item that will live much
    /// longer moves to a segment of that TTL class.
    pub fn set_expiry(&mut self, hash: u64, found: Found, expiry: u32) -> Found {
        let bytes = self.log.bytes_mut(found.location);
        item::set_expiry(bytes, expiry);
        let (dead_at, stamp) = (item::dead_at(bytes), item::stamp(bytes));
        self.log.cover(found.location, dead_at, stamp);
        let (queue, old, share) = {
            let segment = self.log.segment_of(found.location);
            (segment.queue, segment.class, segment.share)
        };
        let Weight { bytes, outside, .. } = self.weigh(found.location);
        let class = self.log.class(share, self.now, dead_at, bytes + outside);
        // Only while there is room: a touch must not evict other items.
        if Log::dies_later(class, old) && self.log.has_room(queue, class, bytes) {
            let stored = self.log.segment_of(found.location).stored();
            return self.relocate(hash, found, (queue, class), stored).unwrap_or(found);
        }
        found
    }

    /// Stores an item; replaces the key's old one if there is one. With [`Marks::OBJECT`] it is an object,
    /// `key` begins with its type, and `hash` is of [`KeyHasher::hash_object`].
    ///
    /// # Errors
    /// [`StoreFull`]: no room. The old item, if any, is unchanged; a tree that should have replaced its value
    /// is lost.
    pub fn put(
        &mut self,
        hash: u64,
        key: &[u8],
        attributes: &Attributes<'_>,
        value: NewValue<'_>,
    ) -> Result<(), StoreFull> {
        let (stored, held) = value.weighs();
        let objects = attributes.marks.has(Marks::OBJECT);
        let needed = item::needed(attributes, key.len(), stored);
        let dead_at = attributes.dead_at();
        let share = self.log.share(key, objects);
        let class = self.log.class(share, self.now, dead_at, needed + held);
        let mut old = self.find(hash, key, objects);
        let mut queue = None;
        if let Some(found) = old {
            queue = Some(self.count_write(found, attributes.marks));
            if self.fits_in_place(found, needed, class) {
                let allotted = item::allotted(self.log.bytes(found.location));
                self.write_in_place(hash, found, allotted, key, attributes, value, dead_at);
                self.stats.total += 1;
                if held > 0 {
                    self.keep_to_share(share, held);
                }
                return Ok(());
            }
        }
        let pinned = attributes.marks.is_pinned();
        // A key that is rewritten once will probably be rewritten again: leave it some room. Pinned items
        // have a bound.
        let slack = if old.is_some() && !pinned { (needed / 8).min(SLACK_MAX) / 8 * 8 } else { 0 };
        // A pinned item would leave the small queue only to be moved to the main one.
        let (queue, returned) = match queue {
            Some(queue) => (queue, false),
            None if pinned => (SegmentQueue::Main, false),
            None => self.queue_of_new(hash, Place::of(class, held > 0), needed + held),
        };
        let bytes = (needed + slack).min(self.config.segment_bytes);
        let location = if self.log.has_room(queue, class, bytes) {
            self.log.append(queue, class, bytes).ok_or(StoreFull)?
        } else {
            match self.make_room(queue, class, bytes) {
                Ok(location) => {
                    old = self.find(hash, key, objects);
                    location
                }
                Err(full) => {
                    // In its place it is of another TTL class than its segment: better than not stored.
                    if let Some(found) = self.find(hash, key, objects)
                        && self.has_size_for(found, needed)
                    {
                        let allotted = item::allotted(self.log.bytes(found.location));
                        self.write_in_place(hash, found, allotted, key, attributes, value, dead_at);
                        self.stats.total += 1;
                        return Ok(());
                    }
                    self.refuse(value);
                    return Err(full);
                }
            }
        };
        self.write(hash, location, bytes, key, attributes, value);
        if returned {
            item::set_returned(self.log.bytes_mut(location));
        }
        let weight = Weight { bytes, outside: held, pinned };
        self.log.tick();
        let now = self.log.now();
        self.log.add(location, weight, dead_at, attributes.stamp.unwrap_or(attributes.cas), now);
        if held > 0 {
            self.file(location, now);
        }
        if objects {
            self.note_object(location);
        }
        match old {
            Some(found) => {
                self.bury(found.location);
                self.index.set_location(found.slot, location);
            }
            None => self.insert(hash, location)?,
        }
        self.stats.total += 1;
        self.keep_to_share(share, bytes + held);
        self.upkeep(bytes);
        Ok(())
    }

    /// The queue of a key that is not there yet, for an item of this place that takes `bytes`, in the log and
    /// outside it, and whether the ghost queue has sent it there.
    fn queue_of_new(&mut self, hash: u64, place: Place, bytes: usize) -> (SegmentQueue, bool) {
        if self.misses.take(hash).is_none() {
            self.policy.stored_blind(place, self.of_memory(bytes));
            return (SegmentQueue::Blind, false);
        }
        self.policy.count_fill(place.is_outside());
        let Some((from, is_told)) = self.ghost.take(hash) else { return (SegmentQueue::Small, false) };
        if !is_told {
            self.signal(from, bytes);
        }
        match from {
            // It was not used in the main queue: that it comes back does not make it better.
            EvictedFrom::Main => (SegmentQueue::Small, false),
            EvictedFrom::Small | EvictedFrom::Blind(_) => (SegmentQueue::Main, true),
        }
    }

    /// Puts what the item at `location` has outside the log into the list of its queue, as stored at this
    /// time; of a pinned item into none.
    pub(crate) fn file(&mut self, location: u64, stored: u64) {
        let Some(number) = item::outside_number(self.log.bytes(location)) else { return };
        if self.weigh(location).is_stub() {
            let segment = self.log.segment_of(location);
            self.outside.list(number, (segment.share, segment.queue), stored);
        } else {
            self.outside.unlist(number);
        }
    }

    /// An item that needs this many bytes, of this TTL class, is written in the place of an old one.
    pub(crate) fn fits_in_place(&self, old: Found, needed: usize, class: u8) -> bool {
        self.has_size_for(old, needed) && !Log::dies_later(class, self.log.segment_of(old.location).class)
    }

    /// An item that needs this many bytes can be written in the place of an old one.
    fn has_size_for(&self, old: Found, needed: usize) -> bool {
        let allotted = item::allotted(self.log.bytes(old.location));
        needed <= allotted && allotted - needed <= SLACK_MAX.min(needed)
    }

    /// Removes an item.
    pub fn remove(&mut self, hash: u64, found: Found) {
        self.index.remove(hash, found.slot);
        self.bury(found.location);
    }

    /// Asks the processor to fetch the key's bucket.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Asks the processor to fetch what is probably the key's item; its bucket should be there by now.
    #[inline]
    pub fn prefetch_item(&self, hash: u64) {
        if let Some(location) = self.index.likely_location(hash) {
            self.log.prefetch(location);
        }
    }

    /// The second of the last [`Store::advance`].
    #[inline]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// The store's layout.
    pub fn config(&self) -> StoreConfig {
        self.config
    }

    /// Times that the index has shrunk by a bucket: a scan that must miss nothing begins anew when this has
    /// changed.
    pub fn index_shrinks(&self) -> u64 {
        self.index.merges()
    }

    /// Calls `each` with the items of the index's buckets from `cursor` on, until about `most` were seen, or
    /// that many buckets. Returns the cursor to go on from; `None` at the end. Dead items are left out;
    /// objects are among the items.
    ///
    /// The index may grow or shrink in between: an item that stays in the store all the time can then be
    /// reported twice, and in a shrinking index be left out.
    pub fn scan(&self, cursor: usize, most: usize, mut each: impl FnMut(Item<'_>)) -> Option<usize> {
        let mut seen = 0;
        for bucket in cursor..self.index.buckets() {
            if seen >= most || bucket - cursor >= most {
                return Some(bucket);
            }
            self.index.chain(bucket, |location| {
                seen += 1;
                let bytes = self.log.bytes(location);
                if !self.is_dead(bytes) {
                    each(self.item_of(bytes));
                }
            });
        }
        None
    }

    /// Walks over the items as [`Store::scan`] does, but reports each key once at most, and exactly once if
    /// its item stays all the time, however the index grows or shrinks and wherever items are moved in
    /// between. `position`: 0, then what was returned.
    pub fn list(&self, mut position: u64, most: usize, mut each: impl FnMut(Item<'_>)) -> Option<u64> {
        let mut seen = 0;
        for _ in 0..most {
            let (bucket, first, next) = self.index.part_at(position);
            self.index.chain(bucket, |location| {
                seen += 1;
                let bytes = self.log.bytes(location);
                // After a merge the beginning of the chain was reported before.
                let is_new = position == first || self.hash_at(location).reverse_bits() >= position;
                if is_new && !self.is_dead(bytes) {
                    each(self.item_of(bytes));
                }
            });
            position = next?;
            if seen >= most {
                break;
            }
        }
        Some(position)
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8], objects: bool) -> Option<Found> {
        let mut location = 0;
        let slot = self.index.find(hash, |l| {
            location = l;
            item::is_named(self.log.bytes(l), key, objects)
        })?;
        Some(Found { slot, location })
    }

    pub(crate) fn is_dead(&self, bytes: &[u8]) -> bool {
        let dead_at = item::dead_at(bytes);
        item::stamp(bytes) < self.floor || dead_at != NEVER && dead_at <= self.now
    }

    /// Moves an item to the end of a queue, where it counts as stored at `stored`; `None`: no room there.
    /// What it has outside the log stays in its list.
    pub(crate) fn relocate(
        &mut self,
        hash: u64,
        found: Found,
        (queue, class): (SegmentQueue, u8),
        stored: u64,
    ) -> Option<Found> {
        let weight = self.weigh(found.location);
        let to = self.log.append_survivor(queue, class, weight.bytes, weight.pinned)?;
        self.log.copy(found.location, to, weight.bytes);
        let moved = self.log.bytes(to);
        let (dead_at, stamp) = (item::dead_at(moved), item::stamp(moved));
        self.log.remove(found.location, weight);
        self.log.add(to, weight, dead_at, stamp, stored);
        item::set_dead(self.log.bytes_mut(found.location));
        self.index.set_location(found.slot, to);
        debug_assert_eq!(self.hash_at(to), hash);
        Some(Found { slot: found.slot, location: to })
    }

    /// The item at `location` is no longer in the index.
    pub(crate) fn bury(&mut self, location: u64) {
        let weight = self.weigh(location);
        if !item::is_plain_inline(self.log.bytes(location)) {
            self.forget_object(location);
            let outside = self.take_outside(location);
            self.drop_outside(outside);
        }
        self.log.remove(location, weight);
        item::set_dead(self.log.bytes_mut(location));
    }

    /// Takes what the item at `location` has outside the log.
    fn take_outside(&mut self, location: u64) -> Option<OutsideValue> {
        item::outside_number(self.log.bytes(location)).and_then(|number| self.outside.take(number))
    }

    fn drop_outside(&mut self, outside: Option<OutsideValue>) {
        match outside {
            Some(OutsideValue::Huge(huge)) => huge.leave(),
            Some(OutsideValue::Tree(tree)) => self.graveyard.bury(tree),
            None => (),
        }
    }

    pub(crate) fn hash_at(&self, location: u64) -> u64 {
        self.hasher.hash_item(self.log.bytes(location))
    }

    /// The weight of the item at `location`.
    #[inline]
    pub(crate) fn weigh(&self, location: u64) -> Weight {
        let bytes = self.log.bytes(location);
        let weight = Weight::plain(item::allotted(bytes));
        if item::is_plain_inline(bytes) {
            return weight;
        }
        let item = self.item_of(bytes);
        Weight { outside: item.outside_bytes(), pinned: item.marks().is_pinned(), ..weight }
    }

    /// Adds an index entry; if there is no page for it, it replaces the least used entry of its chain. The
    /// spare segment is used for a page only where nothing may be evicted; otherwise a writer would soon have
    /// to wait for another spare.
    fn insert(&mut self, hash: u64, location: u64) -> Result<(), StoreFull> {
        let try_insert = |store: &mut Self| {
            let (hasher, log) = (&store.hasher, &store.log);
            store.index.insert(hash, location, |l| hasher.hash_item(log.bytes(l)))
        };
        if try_insert(self).is_ok() {
            return Ok(());
        }
        if self.config.evictions
            && let shares = self.memory.shares_above_least()
            && let Some(slot) = self.index.least_used_of_chain(hash, |location| {
                let is_pinned = item::marks(self.log.bytes(location)).is_pinned();
                let segment = self.log.segment_of(location);
                (!is_pinned && shares.has(segment.share)).then(|| segment.stored())
            })
        {
            self.evict(hash, Found { slot, location: self.index.location(slot) });
            if try_insert(self).is_ok() {
                return Ok(());
            }
        }
        if self.log.release_spare() && try_insert(self).is_ok() {
            return Ok(());
        }
        self.bury(location);
        Err(StoreFull)
    }

    #[expect(clippy::too_many_arguments, reason = "what is written, and where")]
    fn write_in_place(
        &mut self,
        hash: u64,
        found: Found,
        allotted: usize,
        key: &[u8],
        attributes: &Attributes<'_>,
        value: NewValue<'_>,
        dead_at: u32,
    ) {
        let stamp = attributes.stamp.unwrap_or(attributes.cas);
        let is_plain = !attributes.marks.has(Marks::OBJECT);
        if is_plain
            && let NewValue::Inline(parts) = value
            && item::is_plain_inline(self.log.bytes(found.location))
        {
            self.write_inline(found.location, allotted, key, attributes, parts);
            return self.log.cover(found.location, dead_at, stamp);
        }
        let before = self.weigh(found.location);
        let (outside, pinned) = (value.weighs().1, attributes.marks.is_pinned());
        self.forget_object(found.location);
        // Dropped after the write: a huge value that is written again in its place is not pinned meanwhile.
        let old = self.take_outside(found.location);
        self.write(hash, found.location, allotted, key, attributes, value);
        self.drop_outside(old);
        let after = Weight { outside, pinned, ..before };
        self.log.replace(found.location, before, after, dead_at, stamp);
        self.file(found.location, self.log.now());
        self.note_object(found.location);
    }

    /// Drops a value that is not stored.
    #[cold]
    fn refuse(&mut self, value: NewValue<'_>) {
        if let NewValue::Tree(tree) = value {
            self.graveyard.bury(tree);
        }
    }

    /// Writes an item.
    fn write(
        &mut self,
        hash: u64,
        location: u64,
        allotted: usize,
        key: &[u8],
        attributes: &Attributes<'_>,
        value: NewValue<'_>,
    ) {
        let outside = match value {
            NewValue::Inline(parts) => return self.write_inline(location, allotted, key, attributes, parts),
            NewValue::Huge(huge) => {
                huge.enter();
                OutsideValue::Huge(huge)
            }
            NewValue::Tree(tree) => OutsideValue::Tree(tree),
        };
        let len = outside.value_len();
        let number = self.outside.insert(outside, hash);
        let into = &mut self.log.bytes_mut(location)[..allotted];
        item::write(into, key, attributes, len, true, [&number.to_le_bytes(), &[]]);
    }
    /// Writes an item with its value in the log.
    #[inline]
    fn write_inline(
        &mut self,
        location: u64,
        allotted: usize,
        key: &[u8],
        attributes: &Attributes<'_>,
        parts: [&[u8]; 2],
    ) {
        let len = parts[0].len() + parts[1].len();
        let into = &mut self.log.bytes_mut(location)[..allotted];
        item::write(into, key, attributes, len, false, parts);
    }

    /// Begins or ends the recording of evicted items.
    pub fn record_evictions(&mut self, on: bool) {
        if on != self.evicted.is_some() {
            self.evicted = on.then(Vec::new);
        }
    }

    /// The items evicted since the last call, if they are recorded.
    pub fn drain_evicted(&mut self) -> impl Iterator<Item = Evicted> + '_ {
        self.evicted.iter_mut().flat_map(|e| e.drain(..))
    }
}
