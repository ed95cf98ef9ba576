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
//! * A thread that has a [`ShardGuard`] is unguarded: its panic aborts the process (`cattlegrid_panic`).

use std::ops::{Deref, DerefMut};

use cattlegrid_panic::Unguarded;

use crate::engine::Engine;
use crate::shard::Shard;
use crate::sync::MutexGuard;

/// Shards that a batch keeps locked at most; those whose numbers differ by a multiple of it take each other's place.
const HELD_MAX: usize = 8;

/// Locked shards of an engine. Drop or [`ShardLock::release`] it before anything that waits, and before whatever locks
/// shards by itself: every method of [`Engine`] that does not take one of these.
pub struct ShardLock<'e> {
    engine: &'e Engine,
    held: [Option<(usize, ShardGuard<'e>)>; HELD_MAX],
    /// Another worker had what was wanted.
    met: bool,
}

/// A locked shard. A panic while there is one leaves the shard half changed, so it aborts the process.
pub(crate) struct ShardGuard<'e> {
    // Unlocked before the thread is guarded again: fields are dropped in this order.
    shard: MutexGuard<'e, Shard>,
    _unguarded: Unguarded,
}

impl<'e> ShardGuard<'e> {
    #[inline]
    pub(crate) fn new(shard: MutexGuard<'e, Shard>) -> Self {
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

/// Hashes that [`ShardLock::prefetch`] takes at most.
pub const PREFETCH_MAX: usize = 32;

impl<'e> ShardLock<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        Self { engine, held: [const { None }; HELD_MAX], met: false }
    }

    /// Lets go of all shards.
    pub fn release(&mut self) {
        self.held = [const { None }; HELD_MAX];
    }

    /// The shard of this hash, locked.
    #[inline]
    pub(crate) fn shard(&mut self, hash: u64) -> &mut Shard {
        self.numbered(self.engine.shard_number(hash))
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
        let guard = self.engine.try_lock(number).unwrap_or_else(|| {
            self.release();
            self.met = true;
            self.engine.lock(number)
        });
        &mut self.held[place].insert((number, guard)).1
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
            let number = self.engine.shard_number(hashes[left.trailing_zeros() as usize]);
            let engine = self.engine;
            let shard = self.numbered(number);
            let mut candidates = left;
            while candidates != 0 {
                let bit = candidates & candidates.wrapping_neg();
                let hash = hashes[candidates.trailing_zeros() as usize];
                candidates ^= bit;
                if engine.shard_number(hash) == number {
                    each(shard, hash);
                    left ^= bit;
                }
            }
        }
    }
}
