//! Values of the busiest keys in this process's own memory.
//!
//! An entry lives as long as its value's own time to live says, and no longer than [`NearCache::longest`].
//! Nothing else ends it when another client writes the key. This client's own writes do.
//!
//! Keys share a fixed number of slots, each with a number that every write of this client raises, before it
//! is sent and when it is over. A read takes its slot's number before it is sent, and its entry keeps that
//! number.
//!
//! # Invariants
//! * An entry is returned only while its number is that of its slot. So a value that was read before an own
//!   write ended is not returned after it, in whatever order the two put and remove entries.
//! * An entry is not returned at or after its deadline, which is counted from the time at which the read was
//!   sent.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::item::Item;

/// How a [`Client`](crate::Client) keeps values of the busiest keys in this process (feature `near-cache`).
///
/// [`Client::get`](crate::Client::get) and [`Client::get_many`](crate::Client::get_many) use it, and nothing
/// else does: `gets`, `get_item`, `get_or_compute`, `fetch_or_compute`, namespaces and
/// [`Client::call`](crate::Client::call) always ask the server, and so do all reads of keys with tags, of
/// keys that begin with `@`, and over [`Protocol::Text`](crate::Protocol::Text), which does not say how long
/// a value still lives.
///
/// **What another client writes or deletes is seen here only when the entry's time is over**: the rest of the
/// value's own time to live when it was read (which the server says in whole seconds, and which is rounded
/// down), at most [`longest`](Self::longest). The client's own writes and deletes of a key end its entry at
/// once; its invalidations and `flush_all` end all entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearCache {
    /// Most bytes of keys and values, with 96 bytes for each entry. The least busy entries make room.
    /// Default: 16 MiB.
    pub bytes: u64,
    /// Longest time to live of an entry, for values that live longer and those that never expire. Default: 1
    /// s.
    pub longest: Duration,
}

impl Default for NearCache {
    fn default() -> Self {
        Self { bytes: 16 << 20, longest: Duration::from_secs(1) }
    }
}

/// Number of slots. A write makes the entries of one of them useless.
const SLOTS: usize = 4096;
/// Bytes of an entry without its key and value.
const ENTRY_BYTES: u64 = 96;

/// A near cache.
pub(crate) struct Near {
    entries: Cache<Box<[u8]>, NearEntry, EntryWeight>,
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    longest: Duration,
}

#[derive(Debug, Clone)]
struct NearEntry {
    data: Bytes,
    flags: u32,
    number: u64,
    deadline: Instant,
}

#[derive(Debug, Clone, Copy)]
struct EntryWeight;

impl Weighter<Box<[u8]>, NearEntry> for EntryWeight {
    fn weight(&self, key: &Box<[u8]>, entry: &NearEntry) -> u64 {
        ENTRY_BYTES + key.len() as u64 + entry.data.len() as u64
    }
}

/// A read that is about to be sent: what [`Near::insert`] needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadMark {
    number: u64,
    began: Instant,
}

/// An own write of a key. When it is dropped, the write is over or given up.
pub(crate) struct WriteGuard<'a> {
    near: &'a Near,
    slot: usize,
}

impl Near {
    pub(crate) fn new(settings: NearCache) -> Self {
        let estimate = usize::try_from(settings.bytes / 512).unwrap_or(1 << 20).clamp(16, 1 << 20);
        Self {
            entries: Cache::with_weighter(estimate, settings.bytes, EntryWeight),
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            longest: settings.longest,
        }
    }

    /// The value of this key, without a CAS number.
    pub(crate) fn get(&self, key: &[u8], now: Instant) -> Option<Item> {
        let entry = self.entries.get(key)?;
        if entry.deadline <= now || entry.number != self.slots[self.slot(key)].load(Ordering::SeqCst) {
            self.entries.remove_if(key, |present| {
                present.number == entry.number && present.deadline == entry.deadline
            });
            return None;
        }
        Some(Item { data: entry.data, flags: entry.flags, cas: 0 })
    }

    /// Marks the begin of a read; called before the read is sent.
    pub(crate) fn reading(&self, key: &[u8], now: Instant) -> ReadMark {
        ReadMark { number: self.slots[self.slot(key)].load(Ordering::SeqCst), began: now }
    }

    /// Keeps what was read. `left` is the rest of its time to live as of when it was read; None: it never
    /// expires.
    pub(crate) fn insert(&self, key: &[u8], reading: ReadMark, item: &Item, left: Option<Duration>) {
        let lives = left.unwrap_or(self.longest).min(self.longest);
        if lives.is_zero() || reading.number != self.slots[self.slot(key)].load(Ordering::SeqCst) {
            return;
        }
        let Some(deadline) = reading.began.checked_add(lives) else { return };
        // A copy: the item's bytes may be a part of a much larger buffer.
        let data = Bytes::copy_from_slice(&item.data);
        self.entries
            .insert(key.into(), NearEntry { data, flags: item.flags, number: reading.number, deadline });
    }

    /// Marks the begin of a write or delete of this process; called before it is sent.
    pub(crate) fn writing(&self, key: &[u8]) -> WriteGuard<'_> {
        let slot = self.slot(key);
        self.slots[slot].fetch_add(1, Ordering::SeqCst);
        self.entries.remove(key);
        WriteGuard { near: self, slot }
    }

    /// Ends all entries, and those of reads that are under way.
    pub(crate) fn clear(&self) {
        for slot in &self.slots {
            slot.fetch_add(1, Ordering::SeqCst);
        }
        self.entries.clear();
    }

    fn slot(&self, key: &[u8]) -> usize {
        self.hasher.hash_one(key) as usize % SLOTS
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.near.slots[self.slot].fetch_add(1, Ordering::SeqCst);
    }
}

/// The rest of a value's time to live, from the `t` of a meta reply, which counts whole seconds of a clock
/// that ticks once a second: the rest is up to a second shorter. -1 is a value that never expires.
pub(crate) fn left_of(t: i64) -> Option<Duration> {
    match u64::try_from(t) {
        Ok(seconds) => Some(Duration::from_secs(seconds.saturating_sub(1))),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn item(data: &str) -> Item {
        Item { data: data.to_owned().into(), flags: 7, cas: 9 }
    }

    fn near(longest: u64) -> Near {
        Near::new(NearCache { bytes: 1 << 20, longest: Duration::from_millis(longest) })
    }

    #[test]
    fn an_entry_ends_with_its_value_and_at_the_limit() {
        let (near, now) = (near(1000), Instant::now());
        let ms = |ms| now + Duration::from_millis(ms);
        for (left, end) in [(Some(300), 300), (Some(5000), 1000), (None, 1000)] {
            near.insert(b"k", near.reading(b"k", now), &item("v"), left.map(Duration::from_millis));
            let found = near.get(b"k", ms(end - 1)).unwrap();
            assert_eq!((&found.data[..], found.flags, found.cas), (&b"v"[..], 7, 0));
            assert_eq!(near.get(b"k", ms(end)), None);
            assert_eq!(near.entries.len(), 0, "removed");
        }
        near.insert(b"k", near.reading(b"k", now), &item("v"), Some(Duration::ZERO));
        assert_eq!(near.get(b"k", now), None);
        assert_eq!(left_of(-1), None);
        assert_eq!([0, 1, 2].map(left_of), [0, 0, 1].map(|s| Some(Duration::from_secs(s))));
    }

    #[test]
    fn own_writes_end_entries_and_reads_under_way() {
        let (near, now) = (near(1000), Instant::now());
        near.insert(b"k", near.reading(b"k", now), &item("old"), None);
        let before = near.reading(b"k", now);
        let writing = near.writing(b"k");
        assert_eq!(near.get(b"k", now), None);
        let during = near.reading(b"k", now);
        near.insert(b"k", before, &item("old"), None);
        assert_eq!(near.get(b"k", now), None, "read before the write was sent");
        near.insert(b"k", during, &item("either"), None);
        drop(writing);
        assert_eq!(near.get(b"k", now), None, "read before the write was over");
        near.insert(b"k", during, &item("either"), None);
        assert_eq!(near.get(b"k", now), None);
        near.insert(b"k", near.reading(b"k", now), &item("new"), None);
        assert!(near.get(b"k", now).is_some());
        let before = near.reading(b"k", now);
        near.clear();
        assert_eq!(near.get(b"k", now), None);
        near.insert(b"k", before, &item("old"), None);
        assert_eq!(near.get(b"k", now), None);
    }

    #[test]
    fn memory_has_a_bound() {
        let (near, now) = (near(1000), Instant::now());
        let large = item(&"x".repeat(1000));
        for number in 0..10_000 {
            let key = format!("key{number}");
            near.insert(key.as_bytes(), near.reading(key.as_bytes(), now), &large, None);
        }
        assert!(near.entries.weight() <= 1 << 20);
        assert!(near.entries.len() > 500);
        let huge = item(&"x".repeat(2 << 20));
        near.insert(b"huge", near.reading(b"huge", now), &huge, None);
        assert_eq!(near.get(b"huge", now), None);
    }

    /// One step of a client with a few keys: reads and writes have a beginning, a moment at the server, and
    /// an end.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        BeginRead(u8),
        EndRead,
        BeginWrite(u8),
        ServerWrites,
        EndWrite,
        Get(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0u8..3;
        prop_oneof![
            key.clone().prop_map(Step::BeginRead),
            Just(Step::EndRead),
            key.clone().prop_map(Step::BeginWrite),
            Just(Step::ServerWrites),
            Just(Step::EndWrite),
            key.prop_map(Step::Get),
        ]
    }

    proptest! {
        /// A value found is never older than the last own write of its key that had ended.
        #[test]
        fn no_value_from_before_an_own_write(steps in prop::collection::vec(step(), 0..200)) {
            let (near, now) = (near(1_000_000), Instant::now());
            let mut server: HashMap<u8, u64> = HashMap::new();
            let mut ended: HashMap<u8, u64> = HashMap::new();
            let (mut reads, mut writes, mut version) = (Vec::new(), Vec::new(), 0);
            for step in steps {
                match step {
                    Step::BeginRead(key) => {
                        let reading = near.reading(&[key], now);
                        reads.push((key, reading, server.get(&key).copied().unwrap_or(0)));
                    }
                    Step::EndRead => if !reads.is_empty() {
                        let (key, reading, version) = reads.remove(0);
                        near.insert(&[key], reading, &item(&version.to_string()), None);
                    },
                    Step::BeginWrite(key) => writes.push((key, near.writing(&[key]), None)),
                    Step::ServerWrites => if let Some(write) = writes.iter_mut().find(|write| write.2.is_none()) {
                        version += 1;
                        server.insert(write.0, version);
                        write.2 = Some(version);
                    },
                    Step::EndWrite => if let Some(place) = writes.iter().position(|write| write.2.is_some()) {
                        let (key, writing, version) = writes.remove(place);
                        drop(writing);
                        ended.insert(key, version.unwrap());
                    },
                    Step::Get(key) => if let Some(found) = near.get(&[key], now) {
                        let found: u64 = std::str::from_utf8(&found.data).unwrap().parse().unwrap();
                        prop_assert!(found >= ended.get(&key).copied().unwrap_or(0));
                    },
                }
            }
        }
    }
}
