//! A shard's items: look up, write, change in place, remove.
//!
//! The store knows when an item is dead (expired, or below the flush floor) and makes room by collecting
//! segments ([`crate::evict`]); the meaning of commands is the engine's matter. The store reads no clock: the
//! caller sets its time with [`Store::advance`].
//!
//! # Invariants (walked by [`Store::verify`])
//! * Each index entry names one item that is not marked dead, in a segment of this store, whose key hashes
//!   to the entry's place; each item not marked dead is named by one entry.
//! * Segments' accounts equal the sum of their live items.

use std::sync::Arc;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

use crate::counters::StoreStats;
#[cfg(any(test, fuzzing, feature = "verify"))]
use crate::counters::StoreUsage;
use crate::ghost::Ghost;
use crate::huge::HugeValue;
use crate::index::{Index, Slot};
use crate::item::{self, Attributes, HUGE_REF, Item, Marks, NEVER, SLACK_MAX};
use crate::memory::Memory;
use crate::segment::{Log, Queue};

/// Hashes keys with a seed of this process, so that clients cannot choose keys that collide.
#[derive(Clone)]
pub struct KeyHasher(Arc<RapidSecrets>);

impl KeyHasher {
    /// A hasher for this seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(RapidSecrets::seed(seed)))
    }

    /// The key's hash: rapidhash v3.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_inline::<true, true, false>(key, &self.0)
    }
}

/// The layout of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes of a segment, a power of two of at least 16 KiB.
    pub segment_bytes: usize,
    /// Stores that share the memory.
    pub shards: usize,
    /// TTL classes: items that die at about the same time share segments.
    pub ttl_classes: u8,
    /// Make room by evicting live items; otherwise a write fails when there is none.
    pub evictions: bool,
}

impl StoreConfig {
    /// Number of shards and their layout for a server of `memory_bytes` and `threads` workers.
    ///
    /// Half the square of the workers, up to four for each: the chance that one meets another in a shard then stays about the
    /// same, and few workers need few locks for a batch (one worker never waits). At least four for each 8 GiB,
    /// since with many segments the choice of the next to empty would take too long; and each has 8 MiB. A shard
    /// has 256 segments, so that the four or five that are spare, open or half emptied are 2 % of it, of 16 KiB to
    /// 1 MiB: fewer in less memory, more in much. TTL classes: up to 23 (one an octave), one for 16 segments.
    pub fn derive(memory_bytes: usize, threads: usize, evictions: bool) -> (usize, Self) {
        const SEGMENTS: usize = 256;
        let by_workers = (threads * threads / 2).min(threads * 4);
        let by_memory = (memory_bytes >> 33) * 4;
        let mut shards = by_workers.max(by_memory).max(1).next_power_of_two().min(256);
        while shards > 1 && memory_bytes / shards < 8 << 20 {
            shards /= 2;
        }
        let per_shard = memory_bytes / shards;
        let segment_bytes = (per_shard / SEGMENTS).clamp(16 << 10, 1 << 20);
        let segment_bytes = 1 << segment_bytes.ilog2();
        let ttl_classes = (per_shard / segment_bytes / 16).clamp(1, 23) as u8;
        (shards, Self { segment_bytes, shards, ttl_classes, evictions })
    }

    /// Longest value in bytes that goes into the log; longer ones are huge.
    pub fn inline_max(&self) -> usize {
        self.segment_bytes / 4
    }
}

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
    pub(crate) slot: Slot,
    pub(crate) location: u64,
}

/// A value to store.
#[derive(Debug, Clone)]
pub enum NewValue<'a> {
    /// Up to [`StoreConfig::inline_max`] bytes, in two parts.
    Inline([&'a [u8]; 2]),
    /// A longer value, already copied into pages.
    Huge(Arc<HugeValue>),
}

/// No room, and none could be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A collection under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    pub(crate) segment: u32,
    /// Offset of the next item in the segment.
    pub(crate) at: usize,
    /// All live items stay.
    pub(crate) compact: bool,
}

/// An item that was evicted, for watchers.
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

/// A shard's items. See the module's text.
pub struct Store {
    pub(crate) config: StoreConfig,
    pub(crate) memory: Arc<Memory>,
    pub(crate) index: Index,
    pub(crate) log: Log,
    pub(crate) ghost: Ghost,
    pub(crate) walk: Option<Walk>,
    /// Bytes walked without freeing anything: the bytes walked, less a multiple of those freed. From 0 to
    /// [`Store::most_barren`].
    pub(crate) barren: usize,
    /// The last segment emptied was given to other shards.
    pub(crate) donated: bool,
    pub(crate) evicted: Option<Vec<Evicted>>,
    pub(crate) stats: StoreStats,
    /// The second of the last use in the oldest sealed segment, as the last tick found it.
    pub(crate) oldest_use: Option<u32>,
    /// The second of that tick.
    pub(crate) oldest_noted: u32,
    huge: Vec<Option<Arc<HugeValue>>>,
    huge_free: Vec<u32>,
    hasher: KeyHasher,
    /// The largest value that recently entered the small queue; shrinks as segments leave that queue.
    pub(crate) largest: usize,
    pub(crate) now: u32,
    pub(crate) floor: u64,
}

impl Store {
    /// An empty store that takes its memory from `memory`, page by page. `None`: not even its reserve is
    /// available.
    pub fn new(memory: Arc<Memory>, hasher: KeyHasher, config: StoreConfig) -> Option<Self> {
        Some(Self {
            index: Index::new(Arc::clone(&memory))?,
            log: Log::new(Arc::clone(&memory), config.segment_bytes, config.ttl_classes)?,
            ghost: Ghost::default(),
            walk: None,
            barren: 0,
            donated: false,
            evicted: None,
            stats: StoreStats::default(),
            oldest_use: None,
            oldest_noted: 0,
            huge: Vec::new(),
            huge_free: Vec::new(),
            hasher,
            largest: 0,
            now: 1,
            floor: 0,
            config,
            memory,
        })
    }

    /// Moves the store on to second `now`; items whose stamp is below `floor` are dead. Neither goes back.
    #[inline]
    pub fn advance(&mut self, now: u32, floor: u64) {
        // Written only when it changes: with several workers a write takes the line from the other's cache.
        if now > self.now {
            self.now = now;
        }
        if floor > self.floor {
            self.floor = floor;
        }
    }

    /// The live item of this key. A dead one is removed.
    #[inline]
    pub fn lookup(&mut self, hash: u64, key: &[u8]) -> Lookup {
        let Some(found) = self.find(hash, key) else { return Lookup::Absent };
        let bytes = self.log.bytes(found.location);
        let dead_at = item::dead_at(bytes);
        let lookup = if item::stamp(bytes) < self.floor {
            Lookup::Flushed
        } else if dead_at != NEVER && dead_at <= self.now {
            Lookup::Expired
        } else {
            return Lookup::Found(found);
        };
        self.stats.reclaimed += 1;
        self.remove(hash, found);
        lookup
    }

    /// Pages with a value that is too long for the log; evicts items to make room if there is no other way.
    pub fn huge_value(&mut self, value: &[u8]) -> Option<Arc<HugeValue>> {
        HugeValue::new(&self.memory, &[value]).or_else(|| {
            if self.config.evictions {
                self.give_back(value.len() + crate::memory::PAGE_BYTES);
            }
            HugeValue::new(&self.memory, &[value])
        })
    }

    /// The item.
    #[inline]
    pub fn item(&self, found: Found) -> Item<'_> {
        let bytes = self.log.bytes(found.location);
        Item::new(bytes, item::huge_number(bytes).and_then(|n| self.huge[n as usize].as_ref()))
    }

    /// Counts a read: its use, its time, that it was fetched.
    #[inline]
    pub fn count_read(&mut self, found: Found) {
        self.index.count_use(found.slot);
        let now = self.now;
        let item = self.item(found);
        let (accessed, marks) = (item.accessed(), item.marks());
        if accessed != now || !marks.has(Marks::FETCHED) {
            let bytes = self.log.bytes_mut(found.location);
            item::set_accessed(bytes, now);
            item::set_marks(bytes, marks.with(Marks::FETCHED));
        }
    }

    /// Changes an item's marks.
    pub fn set_marks(&mut self, found: Found, marks: Marks) {
        item::set_marks(self.log.bytes_mut(found.location), marks);
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
        let class = self.log.class(self.now, dead_at);
        let (queue, old) = {
            let segment = self.log.segment_of(found.location);
            (segment.queue, segment.class)
        };
        let bytes = item::allotted(self.log.bytes(found.location));
        // Only while there is room: a touch must not evict other items.
        if class > old && self.log.has_room(queue, class, bytes) {
            return self.relocate(hash, found, queue, class).unwrap_or(found);
        }
        found
    }

    /// Stores an item; replaces the key's old one if there is one.
    ///
    /// # Errors
    /// [`Full`]: no room. The old item, if any, is unchanged.
    pub fn put(
        &mut self,
        hash: u64,
        key: &[u8],
        attributes: &Attributes<'_>,
        value: NewValue<'_>,
    ) -> Result<(), Full> {
        let stored = match &value {
            NewValue::Inline(parts) => parts[0].len() + parts[1].len(),
            NewValue::Huge(_) => HUGE_REF,
        };
        let needed = item::needed(attributes, key.len(), stored);
        let dead_at = attributes.dead_at();
        let class = self.log.class(self.now, dead_at);
        let mut old = self.find(hash, key);
        let mut queue = None;
        if let Some(found) = old {
            let segment = self.log.segment_of(found.location);
            queue = Some(segment.queue);
            self.index.count_use(found.slot);
            let allotted = item::allotted(self.log.bytes(found.location));
            if needed <= allotted && allotted - needed <= SLACK_MAX.min(needed) && class <= segment.class {
                self.write_in_place(found, allotted, key, attributes, &value, dead_at);
                self.stats.total += 1;
                return Ok(());
            }
        }
        // A key that is rewritten once will probably be rewritten again: leave it some room.
        let slack = if old.is_some() { (needed / 8).min(SLACK_MAX) / 8 * 8 } else { 0 };
        let queue = queue.unwrap_or_else(|| if self.ghost.take(hash) { Queue::Main } else { Queue::Small });
        if queue == Queue::Small
            && let NewValue::Huge(huge) = &value
        {
            self.largest = self.largest.max(huge.len());
        }
        let bytes = (needed + slack).min(self.config.segment_bytes);
        let location = if self.log.has_room(queue, class, bytes) {
            self.log.append(queue, class, bytes).ok_or(Full)?
        } else {
            let location = self.make_room(queue, class, bytes)?;
            old = self.find(hash, key);
            location
        };
        let huge_bytes = self.write(location, bytes, key, attributes, value);
        self.log.add(location, bytes, huge_bytes, dead_at, attributes.stamp.unwrap_or(attributes.cas));
        match old {
            Some(found) => {
                self.bury(found.location);
                self.index.set_location(found.slot, location);
            }
            None => self.insert(hash, location)?,
        }
        self.stats.total += 1;
        self.upkeep(bytes);
        Ok(())
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

    /// Its layout.
    pub fn config(&self) -> StoreConfig {
        self.config
    }

    /// Forbids or allows the eviction of live items.
    pub fn set_evictions(&mut self, on: bool) {
        self.config.evictions = on;
    }

    /// Calls `each` with the items of the index's buckets from `cursor` on, until about `most` were seen, or that many
    /// buckets. Returns the cursor to go on from; `None` at the end. Dead items are left out.
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
                    each(Item::new(
                        bytes,
                        item::huge_number(bytes).and_then(|n| self.huge[n as usize].as_ref()),
                    ));
                }
            });
        }
        None
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<Found> {
        let mut location = 0;
        let slot = self.index.find(hash, |l| {
            location = l;
            Item::new(self.log.bytes(l), None).key() == key
        })?;
        Some(Found { slot, location })
    }

    pub(crate) fn is_dead(&self, bytes: &[u8]) -> bool {
        let dead_at = item::dead_at(bytes);
        item::stamp(bytes) < self.floor || dead_at != NEVER && dead_at <= self.now
    }

    /// Moves an item to the end of a queue; `None`: no room there.
    pub(crate) fn relocate(&mut self, hash: u64, found: Found, queue: Queue, class: u8) -> Option<Found> {
        let bytes = item::allotted(self.log.bytes(found.location));
        let to = self.log.append_survivor(queue, class, bytes)?;
        self.log.copy(found.location, to, bytes);
        let moved = self.log.bytes(to);
        let (dead_at, stamp, huge) = (item::dead_at(moved), item::stamp(moved), self.huge_bytes(moved));
        self.log.add(to, bytes, huge, dead_at, stamp);
        self.log.remove(found.location, bytes, huge);
        item::set_dead(self.log.bytes_mut(found.location));
        self.index.set_location(found.slot, to);
        debug_assert_eq!(self.hash_at(to), hash);
        Some(Found { slot: found.slot, location: to })
    }

    /// The item at `location` is no longer in the index.
    pub(crate) fn bury(&mut self, location: u64) {
        let allotted = item::allotted(self.log.bytes(location));
        let huge_bytes = self.drop_huge(location);
        self.log.remove(location, allotted, huge_bytes);
        item::set_dead(self.log.bytes_mut(location));
    }

    /// Drops the huge value that the item at `location` names. Returns its bytes; 0: the item names none.
    fn drop_huge(&mut self, location: u64) -> usize {
        let Some(number) = item::huge_number(self.log.bytes(location)) else { return 0 };
        self.huge_free.push(number);
        let Some(value) = self.huge[number as usize].take() else { return 0 };
        let bytes = value.held_bytes();
        value.leave();
        bytes
    }

    pub(crate) fn hash_at(&self, location: u64) -> u64 {
        self.hasher.hash(Item::new(self.log.bytes(location), None).key())
    }

    /// Pages of the huge value that the item names.
    pub(crate) fn huge_bytes(&self, bytes: &[u8]) -> usize {
        let huge = item::huge_number(bytes).and_then(|n| self.huge[n as usize].as_ref());
        huge.map_or(0, |h| h.held_bytes())
    }

    /// Adds an index entry; if there is no page for it, it replaces the least used entry of its chain. The spare segment is
    /// used for a page only where nothing may be evicted; otherwise a writer would soon have to wait for another spare.
    fn insert(&mut self, hash: u64, location: u64) -> Result<(), Full> {
        let try_insert = |store: &mut Self| {
            let (hasher, log) = (&store.hasher, &store.log);
            store.index.insert(hash, location, |l| hasher.hash(Item::new(log.bytes(l), None).key()))
        };
        if try_insert(self).is_ok() {
            return Ok(());
        }
        if self.config.evictions
            && let Some(slot) = self.index.least_used_of_chain(hash)
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
        Err(Full)
    }

    fn write_in_place(
        &mut self,
        found: Found,
        allotted: usize,
        key: &[u8],
        attributes: &Attributes<'_>,
        value: &NewValue<'_>,
        dead_at: u32,
    ) {
        let before = self.drop_huge(found.location);
        let after = self.write(found.location, allotted, key, attributes, value.clone());
        let stamp = attributes.stamp.unwrap_or(attributes.cas);
        self.log.replace(found.location, (before, after), dead_at, stamp);
    }

    /// Writes an item; returns the pages of its huge value.
    fn write(
        &mut self,
        location: u64,
        allotted: usize,
        key: &[u8],
        attributes: &Attributes<'_>,
        value: NewValue<'_>,
    ) -> usize {
        match value {
            NewValue::Inline(parts) => {
                let len = parts[0].len() + parts[1].len();
                let into = &mut self.log.bytes_mut(location)[..allotted];
                item::write(into, key, attributes, len, false, parts);
                0
            }
            NewValue::Huge(huge) => {
                let (len, held) = (huge.len(), huge.held_bytes());
                let number = self.huge_free.pop().unwrap_or(self.huge.len() as u32);
                if number as usize == self.huge.len() {
                    self.huge.push(None);
                }
                huge.enter();
                self.huge[number as usize] = Some(huge);
                let into = &mut self.log.bytes_mut(location)[..allotted];
                item::write(into, key, attributes, len, true, [&number.to_le_bytes(), &[]]);
                held
            }
        }
    }

    /// Walks the whole structure.
    ///
    /// # Panics
    /// Where an invariant does not hold.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub fn verify(&self) {
        let mut named = self.index.verify(|location| self.hash_at(location));
        named.sort_unstable();
        assert!(named.windows(2).all(|w| w[0] != w[1]), "two entries name one item");
        let mut found = Vec::new();
        let (mut huge_count, mut queues) = (0, [0_usize; 2]);
        let mut counted = StoreUsage { queue_items: [0; 2], ..self.usage() };
        (counted.items, counted.bytes, counted.huge_bytes, counted.segments) = (0, 0, 0, 0);
        for (index, segment) in self.log.iter() {
            let from = self.walk.as_ref().map_or(0, |w| if w.segment == index { w.at } else { 0 });
            let (mut bytes, mut items, mut huge, mut at) = (0, 0, 0, 0);
            crate::segment::walk(&self.log, index, |location, allotted| {
                let content = self.log.bytes(location);
                if !item::is_dead(content) {
                    assert!(at >= from, "the collector left a live item behind");
                    assert!(
                        self.is_dead(content) || !segment.is_dead(self.now, self.floor),
                        "a dead segment holds a live item"
                    );
                    bytes += allotted;
                    items += 1;
                    huge += self.huge_bytes(content);
                    huge_count += usize::from(item::huge_number(content).is_some());
                    found.push(location);
                }
                at += allotted;
            });
            assert_eq!((bytes, items, huge), (segment.live_bytes, segment.live_items, segment.huge_bytes));
            queues[segment.queue as usize] += self.log.segment_bytes() + huge;
            counted.items += items as u64;
            counted.queue_items[segment.queue as usize] += items as u64;
            counted.bytes += (bytes + huge) as u64;
            counted.huge_bytes += huge as u64;
            counted.segments += 1;
        }
        found.sort_unstable();
        assert_eq!(found, named, "the index and the log name different items");
        assert_eq!(huge_count, self.huge.iter().flatten().count(), "huge values and their items");
        assert_eq!(huge_count + self.huge_free.len(), self.huge.len());
        assert_eq!(queues, [self.log.queue_bytes(Queue::Small), self.log.queue_bytes(Queue::Main)]);
        assert_eq!(counted, self.usage(), "what is counted at each change is what there is");
    }
}
