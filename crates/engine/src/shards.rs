//! The locks of the shards that a batch has used, kept from one request to the next.
//!
//! The requests of a batch are about keys of all shards, and their order must be kept: a reader that sees a
//! flag must see what was written before it. Taking a lock for each request is expensive: a locked
//! instruction waits for all writes before it, and takes the cache line from another lane.
//!
//! So a batch keeps the shards that it has locked, up to [`HELD_MAX`], until it meets another lane. From then
//! on it locks one shard at a time, which delays other lanes for one request only.
//!
//! # Invariants
//! * No thread waits for a shard's lock while it holds another's: a second lock is only tried, and when that
//!   fails the others are released before it is waited for.
//! * A thread that has a [`ShardGuard`] is unguarded: its panic aborts the process (`cattlegrid_panic`).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cattlegrid_panic::Unguarded;

use crate::shard::Shard;
use crate::shared::EngineShared;
use crate::sync::{Mutex, MutexGuard, TryLockError};

/// All shards, each with its lock.
pub(crate) struct Shards {
    slots: Box<[ShardSlot]>,
    shared: Arc<EngineShared>,
}

/// A shard's lock, in cache lines of its own.
#[repr(align(128))]
struct ShardSlot {
    shard: Mutex<Shard>,
    /// Times that a batch has waited for it.
    waits: AtomicU64,
}

impl Shards {
    /// A shard for each store.
    pub(crate) fn new(shards: impl Iterator<Item = Shard>, shared: Arc<EngineShared>) -> Self {
        let slots = shards.map(|shard| ShardSlot { shard: Mutex::new(shard), waits: AtomicU64::new(0) });
        Self { slots: slots.collect(), shared }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Times that a batch has waited for a shard.
    pub(crate) fn waits(&self) -> u64 {
        self.slots.iter().map(|slot| slot.waits.load(Ordering::Relaxed)).sum()
    }

    /// Sets the count of waits to zero.
    pub(crate) fn reset_waits(&self) {
        self.slots.iter().for_each(|slot| slot.waits.store(0, Ordering::Relaxed));
    }

    /// The number of the shard of a key with this hash.
    #[inline]
    pub(crate) fn number(&self, hash: u64) -> usize {
        (hash >> 56) as usize & (self.slots.len() - 1)
    }

    #[inline]
    pub(crate) fn lock(&self, number: usize) -> ShardGuard<'_> {
        ShardGuard::new(self.slots[number].shard.lock().expect(BROKEN))
    }

    /// Takes the lock of [`Shards::lock`] after [`Shards::try_lock`] has failed.
    #[cold]
    fn wait(&self, number: usize) -> ShardGuard<'_> {
        self.slots[number].waits.fetch_add(1, Ordering::Relaxed);
        self.lock(number)
    }

    /// Takes the lock of [`Shards::lock`], unless another thread holds it.
    #[inline]
    pub(crate) fn try_lock(&self, number: usize) -> Option<ShardGuard<'_>> {
        match self.slots[number].shard.try_lock() {
            Ok(shard) => Some(ShardGuard::new(shard)),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("{BROKEN}"),
        }
    }
}

/// In a program without the hook of `cattlegrid_panic`, which aborts before any other thread can get here.
const BROKEN: &str = "a thread has panicked with this shard locked: the shard is not used again";

/// A locked shard. A panic while a thread has one leaves the shard half changed, so it aborts the process.
pub(crate) struct ShardGuard<'e> {
    // Unlocked before the thread is guarded again: fields are dropped in this order.
    shard: MutexGuard<'e, Shard>,
    _unguarded: Unguarded,
}

impl<'e> ShardGuard<'e> {
    #[inline]
    fn new(shard: MutexGuard<'e, Shard>) -> Self {
        Self { shard, _unguarded: Unguarded::new() }
    }
}

impl Deref for ShardGuard<'_> {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl DerefMut for ShardGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }
}

/// Most shards that a batch keeps locked; shards whose numbers differ by a multiple of it replace each other.
const HELD_MAX: usize = 8;

/// Locked shards of an engine. Drop or [`ShardLock::release`] it before anything that waits, and before any
/// call that locks shards by itself: every method of [`crate::Engine`] that does not take a `ShardLock`.
pub struct ShardLock<'e> {
    shards: &'e Shards,
    held: [Option<(usize, ShardGuard<'e>)>; HELD_MAX],
    /// Another lane held a lock that was wanted.
    met: bool,
}

/// Most hashes that [`ShardLock::prefetch`] takes.
pub const PREFETCH_MAX: usize = 32;

impl<'e> ShardLock<'e> {
    pub(crate) fn new(shards: &'e Shards) -> Self {
        Self { shards, held: [const { None }; HELD_MAX], met: false }
    }

    /// Releases all shards.
    pub fn release(&mut self) {
        self.held = [const { None }; HELD_MAX];
    }

    /// The shard of this hash, locked.
    #[inline]
    pub(crate) fn shard(&mut self, hash: u64) -> &mut Shard {
        self.numbered(self.shards.number(hash))
    }

    #[inline]
    pub(crate) fn numbered(&mut self, number: usize) -> &mut Shard {
        let place = number % HELD_MAX;
        if self.held[place].as_ref().is_none_or(|(held, _)| *held != number) {
            return self.take(number);
        }
        &mut self.held[place].as_mut().expect("found above").1
    }

    fn take(&mut self, number: usize) -> &mut Shard {
        let place = number % HELD_MAX;
        self.held[place] = None;
        if self.met {
            self.release();
        }
        let guard = self.shards.try_lock(number).unwrap_or_else(|| {
            self.release();
            self.met = true;
            self.shards.wait(number)
        });
        &mut self.held[place].insert((number, guard)).1
    }

    /// Asks the processor to fetch the memory that the look-ups of these keys (at most [`PREFETCH_MAX`]) will
    /// read: all index buckets, then all items, then the places of their tags. The waits for memory of the
    /// keys then overlap.
    pub fn prefetch(&mut self, hashes: &[u64]) {
        // With fewer keys the first look-up comes too soon for the prefetch to pay.
        if hashes.len() < 3 {
            return;
        }
        self.each_by_shard(hashes, |shard, hash| shard.store().prefetch(hash));
        self.each_by_shard(hashes, |shard, hash| shard.store().prefetch_item(hash));
        if self.shards.shared.tags().bumps().last_bump() > 0 {
            self.each_by_shard(hashes, Shard::prefetch_tags);
        }
    }

    /// Locks each shard once.
    fn each_by_shard(&mut self, hashes: &[u64], mut each: impl FnMut(&Shard, u64)) {
        let hashes = &hashes[..hashes.len().min(PREFETCH_MAX)];
        let mut left = u32::MAX >> (PREFETCH_MAX - hashes.len());
        while left != 0 {
            let number = self.shards.number(hashes[left.trailing_zeros() as usize]);
            let shards = self.shards;
            let shard = self.numbered(number);
            let mut candidates = left;
            while candidates != 0 {
                let bit = candidates & candidates.wrapping_neg();
                let hash = hashes[candidates.trailing_zeros() as usize];
                candidates ^= bit;
                if shards.number(hash) == number {
                    each(shard, hash);
                    left ^= bit;
                }
            }
        }
    }
}
