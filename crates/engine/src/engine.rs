//! All shards: to which one a key belongs, and what concerns more than one.
//!
//! A batch of requests, or of the keys of a multi-get, keeps the shards that it uses locked until it meets another
//! lane ([`ShardLock`]); values too long for the log are copied into their own pages without a lock.
//!
//! # Invariants
//! * No thread waits for a shard's lock while it holds another's.

use std::sync::Arc;

use cattlegrid_protocol::{Block, Packet, Request, StoreVerb, reply::error};
use cattlegrid_store::{
    ArrivingValue, HugeValue, Item, KeyHasher, Memory, PAGE_BYTES, Store, StoreConfig, StoreStats, StoreUsage,
};

use crate::event::Looker;
use crate::item::KeyState;
use crate::read::reply::refusals_of;
use crate::read::run::Executed;
use crate::rules::why::{Explain, Why};
use crate::shard::{Flow, Shard};
use crate::shards::{ShardLock, Shards};
use crate::shared::Shared;
use crate::step::Context;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::time::Now;
use crate::wait::park::Parked;
use crate::write::store::{Mode, Write, note_refused};

/// The parameters of an engine.
#[derive(Debug, Clone, Copy)]
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
    /// Bytes for the numbers of tags, see `cattlegrid_tags::Bumps::new`; 0 without a rule file. They are not in the
    /// budget until tags are used.
    pub tag_bytes: usize,
    /// Clients may flush by a control key.
    pub allows_flush: bool,
    /// Writes the answer to `@why:`.
    pub explain: Explain,
    /// Reads a clock in nanoseconds that never goes back, to time calls of objects.
    pub nanos: fn() -> u64,
    /// Seed of the hash of keys and tags. Must not be known to clients.
    pub seed: u64,
}

/// All shards. See the module's text.
pub struct Engine {
    memory: Arc<Memory>,
    pub(crate) shards: Shards,
    hasher: KeyHasher,
    shared: Arc<Shared>,
    inline_max: usize,
    segment_bytes: usize,
    evictions: bool,
    /// Bytes of the budget that are not for items.
    reserved: AtomicUsize,
    /// Whether the bytes for tags are among them.
    tags_reserved: AtomicBool,
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
        let memory = Memory::new(config.memory_bytes)?;
        if config.large_pages {
            memory.use_large_pages()?;
        }
        let (count, layout) = StoreConfig::derive(config.memory_bytes, config.threads, config.evictions);
        let hasher = KeyHasher::new(config.seed);
        let shared =
            Arc::new(Shared::new(config.hide_cas, config.max_item_bytes, config.tag_bytes, config.seed));
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
            evictions: config.evictions,
            reserved: AtomicUsize::new(0),
            tags_reserved: AtomicBool::new(false),
            allows_flush: config.allows_flush,
            explain: config.explain,
            nanos: config.nanos,
        })
    }

    /// To be called when the server starts: no number that is given out from now on counts as older than this moment.
    pub fn begin(&self, now: Now) {
        self.shared.settle(now.ms);
    }

    /// The state that all shards share.
    pub fn shared(&self) -> &Shared {
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

    /// Executes a request about one key with this hash. A `get` is for [`Engine::get`]; requests without a key are the
    /// server's. Returns a request that waits: its reply comes later.
    ///
    /// # Panics
    /// On a `get`, on a request without a key, and on one whose data block is apart.
    pub fn execute(
        &self,
        request: &Request<'_>,
        hash: u64,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<Parked>> {
        self.execute_with(request, hash, None, false, lock, cx).parked()
    }

    /// As [`Engine::execute`], of a request whose data block is apart: `value`.
    ///
    /// # Panics
    /// On a request for which [`Engine::may_arrive`] is not true.
    pub fn execute_arrived(
        &self,
        request: &Request<'_>,
        hash: u64,
        value: Arc<HugeValue>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<Parked>> {
        self.execute_with(request, hash, Some(value), false, lock, cx).parked()
    }

    /// `of_run`: it is a get of a run, and is not held here.
    pub(crate) fn execute_with(
        &self,
        request: &Request<'_>,
        hash: u64,
        mut huge: Option<Arc<HugeValue>>,
        of_run: bool,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Executed {
        if let Request::PacketGet(get) = request {
            return self.get_packet(get, hash, of_run, lock, cx);
        }
        if self.is_about_tags(request) {
            // The first use of tags takes memory from all shards.
            lock.release();
            self.execute_tags(request, cx);
            return Executed::Done;
        }
        let names = self.shared.names.load(Ordering::Acquire);
        if Self::may_call(names, request)
            && let Some(called) = self.execute_object(request, lock, cx)
        {
            return called.into();
        }
        if let Some(Block::Here(data)) = request.block()
            && !self.fits_the_log(data.len())
        {
            lock.release();
            huge = self.huge_value(data);
            if huge.is_none() {
                self.refuse(request, hash, lock, cx);
                return Executed::Done;
            }
        }
        // Types may have been switched on in between, and the search for items under their names may have passed this shard.
        let mut shard = lock.shard(hash);
        if shard.names_now() != names {
            if let Some(called) = self.execute_object(request, lock, cx) {
                return called.into();
            }
            shard = lock.shard(hash);
        }
        let mut flow = shard.execute(request, hash, huge.clone(), cx);
        if let Flow::NeedsRoom(bytes) = flow {
            lock.release();
            self.make_room(bytes, hash);
            if lock.shard(hash).names_now() != names
                && let Some(called) = self.execute_object(request, lock, cx)
            {
                return called.into();
            }
            let shard = lock.shard(hash);
            shard.insist(true);
            flow = shard.execute(request, hash, huge, cx);
            shard.insist(false);
        }
        if let (Flow::Leased(holds), Request::MetaGet(meta)) = (&flow, request)
            && !of_run
        {
            flow = lock.shard(hash).meta_wait(meta, hash, *holds, cx);
        }
        self.settle(lock, &mut cx.step);
        match flow {
            Flow::Replied => Executed::Done,
            Flow::Computes => Executed::Computes,
            Flow::Leased(holds) => Executed::Leased(holds),
            Flow::Parked(parked) => {
                self.check_circle(lock, cx);
                Executed::Parked(parked)
            }
            Flow::Object => {
                let Request::MetaGet(meta) = request else { unreachable!("only `mg` is recognised late") };
                self.meta_get_object(meta, lock, cx).map_or(Executed::Done, Executed::Parked)
            }
            Flow::NeedsRoom(_) => unreachable!("a shard that insists always replies"),
        }
    }

    /// Notes a store that was not executed, since it is too large (`too_large`) or there is no memory for its data.
    pub fn note_refused(
        &self,
        key: &[u8],
        verb: StoreVerb,
        classic: bool,
        too_large: bool,
        cx: &mut Context<'_>,
    ) {
        let status = if too_large { "too_large" } else { "no_memory" };
        note_refused(key, Mode::of(verb), classic, status, cx);
    }

    /// A new value was refused: ends its lease, and removes the old value if that could be taken for it (`drops_old`).
    /// `token`: the number of the miss for which the value was computed, if the client named it.
    pub fn invalidate(&self, key: &[u8], token: Option<u64>, drops_old: bool, cx: &mut Context<'_>) {
        let hash = self.hasher.hash(key);
        let write = Write { drops_old, ..Write::refused(key, hash, token) };
        let mut lock = self.shard_lock();
        lock.shard(hash).note_lookup(key, hash, Looker::Other, cx);
        lock.shard(hash).refused(&write, cx);
        self.settle(&mut lock, &mut cx.step);
    }

    /// Whether a value of `len` bytes is kept in the log, and not in its own pages.
    #[inline]
    pub(crate) fn fits_the_log(&self, len: usize) -> bool {
        len <= self.inline_max
    }

    /// Whether a request stores a value that will have pages of its own.
    #[inline]
    pub fn stores_in_pages(&self, request: &Request<'_>) -> bool {
        request.block().is_some_and(|data| !self.fits_the_log(data.len()))
    }

    /// Whether the data block of a request may arrive in the pages in which it will stay. What is not stored as it comes may
    /// not: arguments of calls, data of control keys, parts of values.
    pub fn may_arrive(&self, request: &Request<'_>) -> bool {
        let verb = match request {
            Request::Store(store) => store.verb,
            Request::MetaSet(meta, _) if !meta.set.has(b'A') => meta.set.store_verb(),
            _ => return false,
        };
        self.stores_in_pages(request)
            && !matches!(verb, StoreVerb::Append | StoreVerb::Prepend)
            && !self.is_about_tags(request)
    }

    /// The shard of this hash has found no room for `bytes` bytes: frees some in the others.
    pub(crate) fn make_room(&self, bytes: usize, hash: u64) {
        self.free(bytes.max(self.segment_bytes), Some(hash));
    }

    /// A value too long for the log, copied into pages of its own; evicts from the fullest shards to get them. None: there is
    /// no memory.
    pub(crate) fn huge_value(&self, data: &[u8]) -> Option<Arc<HugeValue>> {
        self.with_free_pages(data.len(), || HugeValue::new(&self.memory, &[data]))
    }

    /// Takes pages for `bytes` more bytes of a value that arrives; evicts from the fullest shards to get them. No shard may be
    /// locked by the caller. False: there is no memory, and nothing was taken.
    pub fn grow(&self, value: &mut ArrivingValue, bytes: usize) -> bool {
        self.with_free_pages(value.lacks(bytes), || value.grow(bytes).then_some(())).is_some()
    }

    /// Calls `take`, which takes `bytes` bytes of pages, until there are as many. None: they cannot be had.
    fn with_free_pages<T>(&self, bytes: usize, mut take: impl FnMut() -> Option<T>) -> Option<T> {
        // Other threads may take what was freed: try several times, for more than is needed.
        for _ in 0..4 {
            if let Some(taken) = take() {
                return Some(taken);
            }
            let missing = (bytes + PAGE_BYTES).saturating_sub(self.memory.free_bytes()).max(PAGE_BYTES);
            if self.free(missing, None) == 0 {
                break;
            }
        }
        take()
    }

    /// Evicts until `bytes` bytes have gone back to the memory, from the fullest shards first; not from the shard of
    /// the hash `except`. Returns the number of bytes freed.
    fn free(&self, bytes: usize, except: Option<u64>) -> usize {
        if !self.evictions {
            return 0;
        }
        let except = except.map(|hash| self.shards.number(hash));
        let mut freed = 0;
        let mut by_size: Vec<(usize, usize)> = (0..self.shards.len())
            .filter(|n| Some(*n) != except)
            .map(|n| (self.shards.lock(n).store().held_bytes(), n))
            .collect();
        by_size.sort_unstable_by(|a, b| b.cmp(a));
        // A small share from each shard first, so that one large value does not empty one shard.
        let piece = bytes.div_ceil(by_size.len().max(1)).max(self.segment_bytes / 4);
        for share in [piece, usize::MAX] {
            for &(_, number) in &by_size {
                if freed >= bytes {
                    return freed;
                }
                freed += self.shards.lock(number).store_mut().give_back(share.min(bytes - freed));
            }
        }
        freed
    }

    /// There are no pages for a value: answers an error, and drops the old value where it could be taken for the new
    /// one.
    fn refuse(&self, request: &Request<'_>, hash: u64, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        cx.step.counters.store_no_memory.add(1);
        refusals_of(request).write(error::OUT_OF_MEMORY, &mut cx.out.bytes);
        let (write, mode, classic) = match request {
            Request::Store(store) => {
                let mode = Mode::of(store.verb);
                (Write { mode, drops_old: mode == Mode::Set, ..Write::set(store.key, hash, &[]) }, mode, true)
            }
            Request::MetaSet(meta, _) => {
                let token = meta.set.has(b'C').then_some(meta.set.compare_cas);
                let mode = Mode::of(meta.set.store_verb());
                let drops_old = meta.packet.is_none_or(Packet::is_set);
                (Write { drops_old, ..Write::refused(meta.key.bytes(), hash, token) }, mode, false)
            }
            _ => unreachable!("only these have a value"),
        };
        note_refused(write.key, mode, classic, "no_memory", cx);
        if write.drops_old {
            lock.shard(hash).note_lookup(write.key, hash, Looker::Other, cx);
        }
        lock.shard(hash).refused(&write, cx);
        self.settle(lock, &mut cx.step);
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

    /// Whether items are evicted to make room.
    pub(crate) fn evicts(&self) -> bool {
        self.evictions
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

    /// Takes bytes of the budget for another use than items.
    pub(crate) fn reserve(&self, bytes: usize) -> std::io::Result<()> {
        let limit = self.limit_bytes();
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.set_memory_limit(limit, usize::MAX)
    }

    /// The memory budget in bytes, with the share of the rules.
    pub fn limit_bytes(&self) -> usize {
        self.memory.limit_bytes() + self.reserved.load(Ordering::Relaxed)
    }

    /// Raises or lowers the budget in bytes (`cache_memlimit`); evicts what no longer fits. Of values that have left the store and
    /// are still being sent more than `pinned_max` bytes are about to go: nothing is evicted for these.
    ///
    /// # Errors
    /// `InvalidInput` above four times the first budget; the system's when it refuses the memory.
    pub fn set_memory_limit(&self, bytes: usize, pinned_max: usize) -> std::io::Result<()> {
        self.memory.set_limit(bytes.saturating_sub(self.reserved.load(Ordering::Relaxed)))?;
        for _ in 0..16 {
            let leaving = self.memory.pinned_bytes().saturating_sub(pinned_max);
            let over = self.memory.used_bytes().saturating_sub(leaving + self.memory.limit_bytes());
            if over == 0 || self.free(over, None) == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Walks all herds, for tests.
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn verify(&self) {
        let waiting: usize = (0..self.shards.len())
            .filter_map(|n| {
                let shard = self.shards.lock(n);
                let herd = shard.herd.as_ref()?;
                herd.verify();
                Some(herd.waiting())
            })
            .sum();
        assert_eq!(waiting, self.held(), "waiters are counted");
    }

    /// The state of a key as clients see it, for tests: see [`KeyState`].
    pub fn key_state(&self, key: &[u8], now: Now) -> KeyState {
        let hash = self.hasher.hash(key);
        self.shards.lock(self.shards.number(hash)).key_state(key, hash, now)
    }

    /// There is no lease, no waiter, no published connection, no object that is busy, and no call that has not ended.
    pub fn is_quiet(&self) -> bool {
        let is_busy = (0..self.shards.len()).any(|n| !self.shards.lock(n).busy.is_empty());
        let calls = self.shared.calls.load(Ordering::Relaxed);
        self.held() == 0 && self.leases() == 0 && self.shared.graph.is_empty() && calls == 0 && !is_busy
    }

    /// Bytes of values that were copied for waiting requests and are not in their replies yet.
    pub fn delivered_bytes(&self) -> usize {
        self.shared.delivered.get()
    }

    /// Number of leases, for tests and statistics.
    pub fn leases(&self) -> usize {
        (0..self.shards.len()).filter_map(|n| self.shards.lock(n).herd.as_ref().map(|herd| herd.len())).sum()
    }

    /// Once a second: gives the memory of dead segments back, a bounded piece of each shard, lets go of misses that are too
    /// old, and notes what statistics would have to walk for. True: there is more to do.
    pub fn tick(&self, now: Now) -> bool {
        self.shared.settle(now.ms);
        let more_names = self.walk_names();
        let floor = self.shared.floor(now.second);
        let mut more = more_names;
        for number in 0..self.shards.len() {
            let mut shard = self.shards.lock(number);
            shard.store_mut().advance(now.second, floor);
            more |= shard.store_mut().tick();
            if let Some(herd) = &mut shard.herd {
                herd.ledger.settle(now.ms);
            }
        }
        more
    }

    /// Sizes and counters of all stores.
    pub fn usage(&self) -> (StoreUsage, StoreStats) {
        let mut usage = StoreUsage::default();
        let mut stats = StoreStats::default();
        for number in 0..self.shards.len() {
            let shard = self.shards.lock(number);
            usage.add(&shard.store().usage());
            stats.add(&shard.store().stats());
        }
        (usage, stats)
    }

    /// The second of the last use of the item that has been unused longest, as far as the oldest segments of the shards
    /// show; `None` without items.
    pub fn oldest_use(&self) -> Option<u32> {
        (0..self.shards.len()).filter_map(|number| self.shards.lock(number).store().oldest_use()).min()
    }

    /// Sets the stores' counters to 0.
    pub fn reset_stats(&self) {
        (0..self.shards.len()).for_each(|n| self.shards.lock(n).store_mut().reset_stats());
        self.shards.reset_waits();
    }

    /// Calls `each` with items from `cursor` on, about `most` of them. Returns where to continue; `None` at the end.
    pub fn scan(&self, cursor: Cursor, most: usize, mut each: impl FnMut(Item<'_>)) -> Option<Cursor> {
        if cursor.shard >= self.shards.len() {
            return None;
        }
        let next = self.shards.lock(cursor.shard).store().scan(cursor.bucket, most, &mut each);
        Some(match next {
            Some(bucket) => Cursor { bucket, ..cursor },
            None => Cursor { shard: cursor.shard + 1, bucket: 0 },
        })
    }
}

/// A position in a scan of all items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    shard: usize,
    bucket: usize,
}

impl Cursor {
    pub(crate) fn at(shard: usize, bucket: usize) -> Self {
        Self { shard, bucket }
    }

    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    pub(crate) fn bucket(&self) -> usize {
        self.bucket
    }
}
