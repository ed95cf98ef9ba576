//! The locks of the shards that a batch has used, kept from one request to the next.
//!
//! The requests of a batch are about keys of all shards, in an order that has to be kept: a reader that sees a flag must
//! see what was written before it. Taking a lock anew for each request would cost more than it seems: a locked
//! instruction waits for all writes before it, and takes the line from another worker's cache.
//!
//! So a batch keeps what it has locked, up to [`HELD_MAX`] shards, as long as it meets nobody. From its first meeting
//! with another worker on it goes on with one shard at a time, which keeps others waiting for one request only.
//!
//! # Invariants
//! * Nobody waits for a shard's lock while holding another's: a second one is only tried, and when that fails the
//!   others are let go before it is waited for.

use crate::shard::Shard;
use crate::sync::{Mutex, MutexGuard, TryLockError};

/// All shards, each with its lock.
pub(crate) struct Shards(Box<[Slot]>);

/// A shard's lock, in cache lines of its own.
#[repr(align(128))]
struct Slot(Mutex<Shard>);

impl Shards {
    /// A shard for each store.
    pub(crate) fn new(shards: impl Iterator<Item = Shard>) -> Self {
        Self(shards.map(|shard| Slot(Mutex::new(shard))).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Which one a key of this hash belongs to.
    #[inline]
    pub(crate) fn number(&self, hash: u64) -> usize {
        (hash >> 56) as usize & (self.0.len() - 1)
    }

    #[inline]
    pub(crate) fn lock(&self, number: usize) -> MutexGuard<'_, Shard> {
        self.0[number].0.lock().expect("a thread that panics takes the process with it")
    }

    /// As [`Shards::lock`], if nobody holds it.
    #[inline]
    pub(crate) fn try_lock(&self, number: usize) -> Option<MutexGuard<'_, Shard>> {
        match self.0[number].0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => unreachable!("a thread that panics takes the process with it"),
        }
    }
}

/// Shards that a batch keeps locked at most; those whose numbers differ by a multiple of it take each other's place.
const HELD_MAX: usize = 8;

/// Locked shards of an engine. Drop or [`ShardLock::release`] it before anything that waits, and before whatever locks
/// shards by itself: every method of [`Engine`] that does not take one of these.
pub struct ShardLock<'e> {
    shards: &'e Shards,
    held: [Option<(usize, MutexGuard<'e, Shard>)>; HELD_MAX],
    /// Another worker had what was wanted.
    met: bool,
}

/// Hashes that [`ShardLock::prefetch`] takes at most.
pub const PREFETCH_MAX: usize = 32;

impl<'e> ShardLock<'e> {
    pub(crate) fn new(shards: &'e Shards) -> Self {
        Self { shards, held: [const { None }; HELD_MAX], met: false }
    }

    /// Lets go of all shards.
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
            self.take(number);
        }
        &mut self.held[place].as_mut().expect("taken above").1
    }

    fn take(&mut self, number: usize) {
        let place = number % HELD_MAX;
        self.held[place] = None;
        if self.met {
            self.release();
        }
        let guard = self.shards.try_lock(number).unwrap_or_else(|| {
            self.release();
            self.met = true;
            self.shards.lock(number)
        });
        self.held[place] = Some((number, guard));
    }

    /// Asks the processor to fetch what the look-ups of these keys (at most [`PREFETCH_MAX`]) will read: all
    /// index buckets, then all items. One key's wait for memory then overlaps with the others'.
    pub fn prefetch(&mut self, hashes: &[u64]) {
        // The first look-up comes too soon for one that is fetched ahead to pay.
        if hashes.len() < 3 {
            return;
        }
        self.each_by_shard(hashes, |shard, hash| shard.store().prefetch(hash));
        self.each_by_shard(hashes, |shard, hash| shard.store().prefetch_item(hash));
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
