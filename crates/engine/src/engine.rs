//! All shards: which one a key belongs to, and what concerns more than one.
//!
//! A batch of requests, or of a multi-get's keys, keeps the shards that it uses locked while it meets no other worker
//! ([`ShardLock`]); values too long for the log are copied into pages of their own without any lock.
//! Nobody waits for a shard's lock while holding another's.

use std::sync::Arc;

use cattlegrid_protocol::{Get, Keys, Request, StoreVerb};
use cattlegrid_store::{
    HugeValue, Item, KeyHasher, Memory, PAGE_BYTES, Store, StoreConfig, StoreStats, StoreUsage,
};

use crate::ask::{Answer, KeyState};
use crate::event::Looker;
use crate::park::Parked;
use crate::shard::{Flow, Shard};
use crate::shard_lock::{PREFETCH_MAX, ShardGuard, ShardLock};
use crate::shared::Shared;
use crate::step::Context;
use crate::store_cmd::{Mode, Write, note_refused};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, TryLockError};
use crate::time::Now;
use crate::waiting::Pending;
use crate::why::{Explain, Why};

/// What an engine is built from.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "switches of the command line")]
pub struct EngineConfig {
    /// The budget for items and index, in bytes.
    pub memory_bytes: usize,
    /// Worker threads that will use it: decides how many shards there are.
    pub threads: usize,
    /// Make room by evicting; otherwise writes fail when memory is full.
    pub evictions: bool,
    /// Answer 0 for every CAS.
    pub hide_cas: bool,
    /// Largest item in bytes that an append may make: see `cattlegrid_protocol::Limits::fits`.
    pub max_item_bytes: usize,
    /// Ask the system for large pages.
    pub large_pages: bool,
    /// Bytes for the numbers of tags, see `cattlegrid_tags::Bumps::new`; 0 without a rule file. Not in the budget until
    /// tags are used.
    pub tag_bytes: usize,
    /// Clients may flush by a control key.
    pub allows_flush: bool,
    /// Writes what `@why:` tells.
    pub explain: Explain,
    /// Seed of the hash of keys and tags. Must not be known to clients.
    pub seed: u64,
}

/// All shards. See the module's text.
pub struct Engine {
    memory: Arc<Memory>,
    shards: Box<[Slot]>,
    hasher: KeyHasher,
    shared: Arc<Shared>,
    inline_max: usize,
    evictions: bool,
    /// Bytes of the budget that are not for items.
    reserved: AtomicUsize,
    /// Those of the tags are among them.
    tags_reserved: AtomicBool,
    allows_flush: bool,
    explain: Explain,
}

/// How much of a `get` is executed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Keys before these are answered already, and what was written of it may be sent.
    pub begun: bool,
    /// Until the output has this many bytes or more.
    pub bytes: usize,
    /// At most so many keys, above 0.
    pub keys: usize,
}

impl Piece {
    /// All of it.
    pub const ALL: Self = Self { begun: false, bytes: usize::MAX, keys: usize::MAX };
}

/// What became of a `get`.
#[derive(Debug)]
#[must_use]
pub enum Got<'k> {
    /// Answered; `END` is written.
    Done,
    /// These keys, one at least, are still to be answered.
    More(Keys<'k>),
    /// It waits; nothing is written.
    Parked(Box<Parked>),
}

/// A shard's lock, in cache lines of its own.
#[repr(align(128))]
struct Slot(Mutex<Shard>);

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
                Some(Slot(Mutex::new(Shard::new(store, Arc::clone(&shared)))))
            })
            .collect::<Option<Box<[_]>>>()
            .ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            memory,
            shards,
            hasher,
            shared,
            inline_max: layout.inline_max(),
            evictions: config.evictions,
            reserved: AtomicUsize::new(0),
            tags_reserved: AtomicBool::new(false),
            allows_flush: config.allows_flush,
            explain: config.explain,
        })
    }

    /// The clock and the flush floor.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The budget.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// No shard locked yet.
    pub fn shard_lock(&self) -> ShardLock<'_> {
        ShardLock::new(self)
    }

    /// The hash of the request's key, of the first if it has several; `None`: it is about no key.
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
            Request::MetaNoop | Request::Admin(_) => return None,
        };
        Some(self.hasher.hash(key))
    }

    /// Executes a request about one key with this hash. A `get` is for [`Engine::get`]; requests about none
    /// are the server's. What it returns waits: its reply comes later.
    ///
    /// # Panics
    /// On a `get` and on a request about no key.
    pub fn execute(
        &self,
        request: &Request<'_>,
        hash: u64,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<Parked>> {
        if self.is_about_tags(request) {
            // The first use of tags takes memory from all shards.
            lock.release();
            self.execute_tags(request, cx);
            return None;
        }
        let data: &[u8] = match request {
            Request::Store(store) => store.data,
            Request::MetaSet(_, data) => data,
            _ => &[],
        };
        let mut huge = None;
        if data.len() > self.inline_max {
            lock.release();
            huge = self.huge_value(data);
            if huge.is_none() {
                self.refuse(request, hash, lock, cx);
                return None;
            }
        }
        let mut flow = lock.shard(hash).execute(request, hash, huge.clone(), cx);
        if let Flow::NeedsRoom(bytes) = flow {
            lock.release();
            self.free(bytes.max(self.inline_max * 4), Some(hash));
            let shard = lock.shard(hash);
            shard.insist(true);
            flow = shard.execute(request, hash, huge, cx);
            shard.insist(false);
        }
        self.settle(lock, &mut cx.step);
        match flow {
            Flow::Replied => None,
            Flow::Parked(parked) => {
                self.check_circle(lock, cx);
                Some(parked)
            }
            Flow::NeedsRoom(_) => unreachable!("a shard that insists always replies"),
        }
    }

    /// Executes a piece of a `get` whose first key has the hash `first`. To go on: the same with the keys that are left.
    ///
    /// The pause keeps a request for many large values from filling memory while its client reads slowly, and one for many
    /// keys from keeping other clients waiting.
    pub fn get<'k>(
        &self,
        get: &Get<'k>,
        first: u64,
        piece: Piece,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Got<'k> {
        let mut keys = get.keys.clone().flatten();
        let one = keys.next().filter(|_| keys.clone().next().is_none());
        let mut pending = Pending::new(cx);
        let left = match one {
            Some(key) if cx.out.len() < piece.bytes => {
                let answer = lock.shard(first).get(key, first, get.cas, get.touch, cx);
                if answer != Answer::Hit {
                    pending.note(key, first, answer, cx);
                }
                None
            }
            _ => self.get_many(get, piece, lock, &mut pending, cx),
        };
        // A lease that was revoked may have had a slot of its rule.
        self.settle(lock, &mut cx.step);
        if pending.is_special() {
            let got = self.finish_get(get, &pending, piece.begun, left, lock, cx);
            self.settle(lock, &mut cx.step);
            return got;
        }
        if let Some(left) = left {
            return Got::More(left);
        }
        cx.out.bytes.extend_from_slice(cattlegrid_protocol::reply::END);
        Got::Done
    }

    fn get_many<'k>(
        &self,
        get: &Get<'k>,
        piece: Piece,
        lock: &mut ShardLock<'_>,
        pending: &mut Pending<'k>,
        cx: &mut Context<'_>,
    ) -> Option<Keys<'k>> {
        let mut keys = get.keys.clone().flatten();
        let mut room = piece.keys;
        let mut batch: [&[u8]; PREFETCH_MAX] = [&[]; PREFETCH_MAX];
        let mut hashes = [0; PREFETCH_MAX];
        loop {
            let mut count = 0;
            while let Some(key) = (count < PREFETCH_MAX).then(|| keys.next()).flatten() {
                batch[count] = key;
                hashes[count] = self.hasher.hash(key);
                count += 1;
            }
            lock.prefetch(&hashes[..count]);
            for (key, hash) in batch.iter().copied().zip(hashes).take(count) {
                if cx.out.len() >= piece.bytes || room == 0 {
                    let all = get.keys.rest();
                    return Some(Keys::of_rest(&all[key.as_ptr().addr() - all.as_ptr().addr()..]));
                }
                room -= 1;
                let answer = lock.shard(hash).get(key, hash, get.cas, get.touch, cx);
                if answer != Answer::Hit {
                    pending.note(key, hash, answer, cx);
                }
            }
            if count < PREFETCH_MAX {
                return None;
            }
        }
    }

    /// Notes a store that did not come here, since it is too large (`too_large`) or there is no memory for its data.
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

    /// Removes a key whose new value was refused, so that the old one is not taken for it. `token`: the number of the
    /// miss that the value was computed for, if the client named it.
    pub fn invalidate(&self, key: &[u8], token: Option<u64>, cx: &mut Context<'_>) {
        let hash = self.hasher.hash(key);
        let write = Write::refused(key, hash, token);
        let mut lock = self.shard_lock();
        lock.shard(hash).note_lookup(key, hash, Looker::Other, cx);
        lock.shard(hash).refused(&write, cx);
        self.settle(&mut lock, &mut cx.step);
    }

    /// Pages for a value too long for the log; evicts from the fullest shards to get them.
    fn huge_value(&self, data: &[u8]) -> Option<Arc<HugeValue>> {
        // Others may take what was freed: try a few times, for more than is needed.
        for _ in 0..4 {
            if let Some(huge) = HugeValue::new(&self.memory, &[data]) {
                return Some(huge);
            }
            let missing = (data.len() + PAGE_BYTES).saturating_sub(self.memory.free_bytes()).max(PAGE_BYTES);
            if self.free(missing, None) == 0 {
                break;
            }
        }
        HugeValue::new(&self.memory, &[data])
    }

    /// Evicts until so many bytes have gone back to the memory, from the fullest shards first; not from
    /// that of `except`. Returns how many did.
    fn free(&self, bytes: usize, except: Option<u64>) -> usize {
        if !self.evictions {
            return 0;
        }
        let except = except.map(|hash| self.shard_number(hash));
        let mut freed = 0;
        let mut by_size: Vec<(usize, usize)> = (0..self.shards.len())
            .filter(|n| Some(*n) != except)
            .map(|n| (self.lock(n).store().held_bytes(), n))
            .collect();
        by_size.sort_unstable_by(|a, b| b.cmp(a));
        // A little from each first, so that one large value does not cost one shard everything.
        let piece = bytes.div_ceil(by_size.len().max(1)).max(self.inline_max);
        for share in [piece, usize::MAX] {
            for &(_, number) in &by_size {
                if freed >= bytes {
                    return freed;
                }
                freed += self.lock(number).store_mut().give_back(share.min(bytes - freed));
            }
        }
        freed
    }

    /// No pages for a value: say so, and drop the old one where it could be taken for the new one.
    fn refuse(&self, request: &Request<'_>, hash: u64, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        cx.step.counters.store_no_memory.add(1);
        let quiet = matches!(request, Request::Store(store) if store.noreply);
        if !quiet {
            cattlegrid_protocol::reply::line(
                &mut cx.out.bytes,
                cattlegrid_protocol::reply::error::OUT_OF_MEMORY,
            );
        }
        let (write, mode, classic) = match request {
            Request::Store(store) => {
                let mode = Mode::of(store.verb);
                (Write { mode, ..Write::set(store.key, hash, &[]) }, mode, true)
            }
            Request::MetaSet(meta, _) => {
                let token = meta.set.has(b'C').then_some(meta.set.compare_cas);
                let mode = Mode::of(meta.set.store_verb());
                (Write::refused(meta.key.bytes(), hash, token), mode, false)
            }
            _ => unreachable!("only these have a value"),
        };
        note_refused(write.key, mode, classic, "no_memory", cx);
        if !classic || mode == Mode::Set {
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

    /// Whether the tags' memory has been taken out of the budget; true from the first call on.
    pub(crate) fn tags_reserved(&self) -> bool {
        self.tags_reserved.load(Ordering::Relaxed) || self.tags_reserved.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn hash_key(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Takes bytes of the budget for something else than items.
    pub(crate) fn reserve(&self, bytes: usize) -> std::io::Result<()> {
        let limit = self.limit_bytes();
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.set_memory_limit(limit)
    }

    /// The budget, with what rules take of it.
    pub fn limit_bytes(&self) -> usize {
        self.memory.limit_bytes() + self.reserved.load(Ordering::Relaxed)
    }

    /// Raises or lowers the budget (`cache_memlimit`); evicts what no longer fits.
    ///
    /// # Errors
    /// `InvalidInput` above four times the first budget; the system's when it refuses the memory.
    pub fn set_memory_limit(&self, bytes: usize) -> std::io::Result<()> {
        self.memory.set_limit(bytes.saturating_sub(self.reserved.load(Ordering::Relaxed)))?;
        for _ in 0..16 {
            let over = self.memory.used_bytes().saturating_sub(self.memory.limit_bytes());
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
                let shard = self.lock(n);
                let herd = shard.herd.as_ref()?;
                herd.verify();
                Some(herd.waiting())
            })
            .sum();
        assert_eq!(waiting, self.held(), "waiters are counted");
    }

    /// What a key is to those who ask for it, for tests: see [`KeyState`].
    pub fn key_state(&self, key: &[u8], now: Now) -> KeyState {
        let hash = self.hasher.hash(key);
        self.lock(self.shard_number(hash)).key_state(key, hash, now)
    }

    /// Nobody computes, waits or is published as doing both.
    pub fn is_quiet(&self) -> bool {
        self.held() == 0 && self.leases() == 0 && self.shared.graph.is_empty()
    }

    /// Bytes of values that were copied for requests that wait, and are not in their replies yet.
    pub fn delivered_bytes(&self) -> usize {
        self.shared.delivered.get()
    }

    /// Leases there are, for tests and statistics.
    pub fn leases(&self) -> usize {
        (0..self.shards.len()).filter_map(|n| self.lock(n).herd.as_ref().map(|herd| herd.len())).sum()
    }

    /// Once a second: gives the memory of dead segments back, a bounded piece of each shard. True: there is more to do.
    pub fn tick(&self, now: Now) -> bool {
        self.shared.settle(now.ms);
        let floor = self.shared.floor(now.second);
        let mut more = false;
        for number in 0..self.shards.len() {
            let mut shard = self.lock(number);
            shard.store_mut().advance(now.second, floor);
            more |= shard.store_mut().tick();
        }
        more
    }

    /// What all stores hold and have counted.
    pub fn usage(&self) -> (StoreUsage, StoreStats) {
        let mut usage = StoreUsage::default();
        let mut stats = StoreStats::default();
        for number in 0..self.shards.len() {
            let shard = self.lock(number);
            usage.add(&shard.store().usage());
            stats.add(&shard.store().stats());
        }
        (usage, stats)
    }

    /// The second of the last use of the item that has been unused longest, as far as the oldest segments of the shards
    /// tell; `None` without items.
    pub fn oldest_use(&self) -> Option<u32> {
        (0..self.shards.len()).filter_map(|number| self.lock(number).store().oldest_use()).min()
    }

    /// Sets the stores' counters to zero.
    pub fn reset_stats(&self) {
        (0..self.shards.len()).for_each(|n| self.lock(n).store_mut().reset_stats());
    }

    /// Calls `each` with items from `cursor` on, about `most` of them. Returns where to go on; `None` at the end.
    pub fn scan(&self, cursor: Cursor, most: usize, mut each: impl FnMut(Item<'_>)) -> Option<Cursor> {
        if cursor.shard >= self.shards.len() {
            return None;
        }
        let next = self.lock(cursor.shard).store().scan(cursor.bucket, most, &mut each);
        Some(match next {
            Some(bucket) => Cursor { bucket, ..cursor },
            None => Cursor { shard: cursor.shard + 1, bucket: 0 },
        })
    }

    #[inline]
    pub(crate) fn shard_number(&self, hash: u64) -> usize {
        (hash >> 56) as usize & (self.shards.len() - 1)
    }

    #[inline]
    pub(crate) fn lock(&self, number: usize) -> ShardGuard<'_> {
        ShardGuard::new(self.shards[number].0.lock().expect(BROKEN))
    }

    /// As [`Engine::lock`], if nobody holds it.
    #[inline]
    pub(crate) fn try_lock(&self, number: usize) -> Option<ShardGuard<'_>> {
        match self.shards[number].0.try_lock() {
            Ok(shard) => Some(ShardGuard::new(shard)),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("{BROKEN}"),
        }
    }
}

/// In a program without the hook of `cattlegrid_panic`, which aborts before any other thread can get here.
const BROKEN: &str = "a thread has panicked with this shard locked: the shard is not used again";

/// A place in a scan of all items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    shard: usize,
    bucket: usize,
}
