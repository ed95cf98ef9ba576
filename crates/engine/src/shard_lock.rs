//! The lock of the shard that was used last, kept from one request to the next.
//!
//! A batch of requests often stays in one shard, always so with one worker. Taking the lock anew for each
//! would cost more than it seems: a locked instruction waits for all writes before it.
//!
//! # Invariants
//! * At most one shard is locked: the old one is let go before the next is taken.

use std::sync::MutexGuard;

use crate::engine::Engine;
use crate::shard::Shard;

/// At most one locked shard of an engine. Drop or [`ShardLock::release`] it before anything that waits, and
/// before whatever locks shards by itself: every method of [`Engine`] that does not take one of these.
pub struct ShardLock<'e> {
    engine: &'e Engine,
    held: Option<(usize, MutexGuard<'e, Shard>)>,
}

/// Hashes that [`ShardLock::prefetch`] takes at most.
pub const PREFETCH_MAX: usize = 32;

impl<'e> ShardLock<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        Self { engine, held: None }
    }

    /// Lets go of the shard, if there is one.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// The shard of this hash, locked.
    #[inline]
    pub(crate) fn shard(&mut self, hash: u64) -> &mut Shard {
        self.numbered(self.engine.shard_number(hash))
    }

    #[inline]
    pub(crate) fn numbered(&mut self, number: usize) -> &mut Shard {
        if self.held.as_ref().is_none_or(|(held, _)| *held != number) {
            self.held = None;
            self.held = Some((number, self.engine.lock(number)));
        }
        &mut self.held.as_mut().expect("taken above").1
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
