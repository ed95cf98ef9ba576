//! All shards: the choice of a key's shard, and the work that a step leaves for the engine itself
//! ([`Engine::finish_step`]): waiters that get slots of rules in other shards, and deadlines.
//!
//! The modules below do the work that concerns several shards. Each calls only those before it in the list;
//! the work on one shard alone is in `shard`.
//!
//! # Invariants
//! * No thread waits for a shard's lock while it holds another's.

// What a shard leaves for the engine, and what it cannot do alone.
pub(crate) mod room;

// Replies that wait for a log.
mod bump;

// What is about all keys: tags and flushes, rules, types, statistics.
pub(crate) mod control;
pub(crate) mod stats;

mod renew;
pub(crate) mod upkeep;

// Gets that wait, and loads.
mod finish_load;
mod hold;

// Calls of objects.
mod called;
mod world;

mod follow;

mod call_script;

mod call_later;

mod call;

// Requests of all kinds.
mod get;

mod execute;

pub(crate) mod run;

use std::sync::Arc;

use cattlegrid_herd::Herd;
use cattlegrid_objects::{Registry, TYPE_BITS};
use cattlegrid_protocol::Request;
use cattlegrid_store::{KeyHasher, Memory, ObjectNames, Share, Store, StoreConfig};
use cattlegrid_tags::{PREFIXES_MAX, PrefixId, Prefixes};

use crate::rules::why::{Explain, Why};
use crate::shard::Shard;
use crate::shards::{ShardLock, Shards};
use crate::shared::EngineShared;
use crate::step::{Interest, Step};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::time::Now;
use crate::walk::Renewal;

/// The parameters of an engine.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "switches of the command line")]
pub struct EngineConfig {
    /// The memory budget for items and index, in bytes; at least 1 MiB.
    pub memory_bytes: usize,
    /// Number of serving threads (lanes) that will use it: determines the number of shards.
    pub threads: usize,
    /// Evict items to make room; otherwise writes fail when the memory is full.
    pub evictions: bool,
    /// Answer 0 for every CAS.
    pub hide_cas: bool,
    /// Largest item that an append may produce, in bytes: see `cattlegrid_protocol::Limits::fits`.
    pub max_item_bytes: usize,
    /// Ask the system for large pages.
    pub large_pages: bool,
    /// Bytes for the numbers of tags, see `cattlegrid_tags::Bumps::new`; 0 without a rule file. They are not
    /// in the budget until tags are used.
    pub tag_bytes: usize,
    /// Clients may flush by a control key.
    pub allows_flush: bool,
    /// Writes the answer to `@why:`.
    pub explain: Explain,
    /// Reads a clock in nanoseconds that never goes back, to time calls of objects.
    pub nanos: fn() -> u64,
    /// Seed of the hash of keys and tags. Must not be known to clients.
    pub seed: u64,
    /// The shares that keys of some prefixes have of the memory for items, see `cattlegrid_store::Share`.
    pub shares: Vec<Share>,
    /// What clients put before keys, by which objects are counted for shares.
    pub prefixes: Prefixes,
}

/// All shards, and the commands that clients send to them.
pub struct Engine {
    memory: Arc<Memory>,
    pub(crate) shards: Shards,
    hasher: KeyHasher,
    shared: Arc<EngineShared>,
    /// Bytes of the longest value that is kept in the log, and not in pages of its own.
    inline_max: usize,
    segment_bytes: usize,
    /// Bytes of the budget that are not for items.
    reserved: AtomicUsize,
    /// Whether the bytes for tags are among them.
    tags_reserved: AtomicBool,
    /// Notes of tags.
    renewal: Mutex<Renewal>,
    allows_flush: bool,
    explain: Explain,
    nanos: fn() -> u64,
}

impl Engine {
    /// An empty engine.
    ///
    /// # Errors
    /// The system's, when it does not give the address space; `OutOfMemory` when the budget is too small
    /// for the shards' reserves (below 1 MiB).
    pub fn new(config: EngineConfig) -> std::io::Result<Self> {
        let (bounds, prefixes) = (config.shares, config.prefixes);
        let before = (0..=PREFIXES_MAX as u8).map(|number| prefixes.text(PrefixId::of_number(number)).into());
        let objects = ObjectNames { bits: TYPE_BITS, before: before.collect() };
        let memory = Memory::shared(config.memory_bytes, &bounds, objects)?;
        if config.large_pages {
            memory.use_large_pages()?;
        }
        let (count, layout) = StoreConfig::derive(config.memory_bytes, config.threads, config.evictions);
        let layout = layout.shared_by(bounds.len());
        let hasher = KeyHasher::new(config.seed);
        let shared = Arc::new(EngineShared::new(
            config.hide_cas,
            config.max_item_bytes,
            config.tag_bytes,
            config.seed,
        ));
        let shards = (0..count)
            .map(|_| {
                let store = Store::new(Arc::clone(&memory), hasher.clone(), layout)?;
                Some(Shard::new(store, Arc::clone(&shared)))
            })
            .collect::<Option<Vec<_>>>()
            .ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            memory,
            shards: Shards::new(shards.into_iter(), Arc::clone(&shared)),
            hasher,
            shared,
            inline_max: layout.inline_max(),
            segment_bytes: layout.segment_bytes,
            reserved: AtomicUsize::new(0),
            tags_reserved: AtomicBool::new(false),
            renewal: Mutex::default(),
            allows_flush: config.allows_flush,
            explain: config.explain,
            nanos: config.nanos,
        })
    }

    /// Notes the start of the server: no number that is given out from now on counts as older than this
    /// moment.
    pub fn begin(&self, now: Now) {
        self.shared.sweep(now.ms);
    }

    /// The state that all shards share.
    pub fn shared(&self) -> &EngineShared {
        &self.shared
    }

    /// The memory budget.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Times that a batch has waited for a shard that another thread had locked, since the start or the last
    /// [`Engine::reset_stats`].
    pub fn lock_waits(&self) -> u64 {
        self.shards.waits()
    }

    /// Bytes of values that were copied for waiting requests and are not in their replies yet.
    #[inline]
    pub fn delivered_bytes(&self) -> usize {
        self.shared.delivered.get()
    }

    /// A lock set without a locked shard.
    pub fn shard_lock(&self) -> ShardLock<'_> {
        ShardLock::new(&self.shards)
    }

    /// The hash of the request's key, of the first one if it has several; `None`: the request has no key.
    #[inline]
    pub fn hash(&self, request: &Request<'_>) -> Option<u64> {
        let key = match request {
            Request::Get(get) => get.keys.clone().flatten().next()?,
            Request::Store(store) => store.key,
            Request::Arith(arith) => arith.key,
            Request::Touch(touch) => touch.key,
            Request::Delete(delete) => delete.key,
            Request::MetaGet(meta)
            | Request::MetaSet(meta, _)
            | Request::MetaDelete(meta)
            | Request::MetaArith(meta) => meta.key.bytes(),
            Request::MetaDebug(key) => key.bytes(),
            Request::PacketGet(get) => get.key,
            Request::MetaNoop | Request::Admin(_) | Request::Packet(..) => return None,
        };
        Some(self.hasher.hash(key))
    }

    pub(crate) fn explain(&self, why: &Why) -> String {
        (self.explain)(why)
    }

    pub(crate) fn allows_flush(&self) -> bool {
        self.allows_flush
    }

    /// Whether the tags' memory has been taken out of the budget; true from the second call on.
    pub(crate) fn tags_reserved(&self) -> bool {
        self.tags_reserved.load(Ordering::Relaxed) || self.tags_reserved.swap(true, Ordering::Relaxed)
    }

    /// The clock that calls are timed by.
    pub(crate) fn nanos(&self) -> u64 {
        (self.nanos)()
    }

    /// The hash of an object's item.
    #[inline]
    pub(crate) fn hash_object(&self, item_key: &[u8]) -> u64 {
        self.hasher.hash_object(item_key)
    }

    pub(crate) fn hash_key(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// The types that are switched on.
    pub fn objects(&self) -> Option<Arc<Registry>> {
        Option::clone(&self.shared().objects())
    }

    /// The CAS of an item as clients see it: [`Shard::shown_cas`].
    pub(crate) fn shown_cas(&self, cas: u64) -> u64 {
        if self.shared().hide_cas { 0 } else { cas }
    }
}

/// Least time between two searches for leases that a flush or a bump revokes, in milliseconds.
const REVOKE_EVERY_MS: u64 = 10;

impl Engine {
    /// When [`Engine::handle_timeouts`] has work to do, in milliseconds since the start.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        let next = self.shared().timeout_ms.load(Ordering::Acquire);
        (next != u64::MAX).then_some(next)
    }

    /// Ends leases whose deadline has passed, and leases that a flush or a bump revokes (history 10 of
    /// `engine/hold.rs`); those that an invalidation which is phased in revokes, at the moments of their
    /// keys. Any thread may call it.
    pub fn handle_timeouts(&self, step: &mut Step<'_>) {
        let (shared, now) = (self.shared(), step.now);
        if shared.timeout_ms.load(Ordering::Acquire) > now.ms {
            return;
        }
        shared.timeout_ms.store(u64::MAX, Ordering::Release);
        let revoke = shared.revoke_due(now.ms, REVOKE_EVERY_MS);
        let reruled = shared.take_reruled();
        if reruled {
            step.effects.herd.admitted.extend(shared.admit_queued());
        }
        let mut lock = self.shard_lock();
        let mut revoke_ms = u64::MAX;
        for number in 0..self.shard_count() {
            let one = lock.numbered(number);
            if reruled {
                one.end_unruled(step);
            }
            if revoke {
                revoke_ms = revoke_ms.min(one.revoke(step));
            }
            one.with_herd(step, Herd::handle_timeouts);
        }
        shared.revoke_at(revoke_ms);
        self.finish_step(&mut lock, step);
    }

    /// Does the work that a step leaves for other shards (history 11 of `engine/hold.rs`), and notes the next
    /// deadline. Every method that takes a step or a context ends with it; the rest of the effects is the
    /// server's.
    #[inline]
    pub(crate) fn finish_step(&self, lock: &mut ShardLock<'_>, step: &mut Step<'_>) {
        if !step.effects.is_finished() {
            self.finish_admitted(lock, step);
        }
        if self.memory.wanted_bytes() > 0 {
            self.make_wanted_room(lock);
        }
        if step.interest.wants(Interest::EVICTIONS) && self.memory.take_evicted() {
            for number in 0..self.shard_count() {
                lock.numbered(number).note_evictions(step);
            }
        }
    }

    fn finish_admitted(&self, lock: &mut ShardLock<'_>, step: &mut Step<'_>) {
        while !step.effects.herd.admitted.is_empty() {
            for admitted in std::mem::take(&mut step.effects.herd.admitted) {
                lock.shard(admitted.hash).with_herd(step, |herd, step| herd.admit(&admitted, step));
            }
        }
        let deadline_ms = std::mem::replace(&mut step.effects.deadline_ms, u64::MAX);
        self.shared().timeout_ms.fetch_min(deadline_ms, Ordering::AcqRel);
    }

    pub(crate) fn make_wanted_room(&self, lock: &mut ShardLock<'_>) {
        let bytes = self.memory.take_wanted();
        if let Some(number) = self.memory.coldest_store(|number| number < self.shards.len())
            && bytes > 0
        {
            lock.numbered(number).store_mut().make_room_for_others(bytes);
        }
    }
}
