//! Figures of the engine for the server's statistics, and checks for tests.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use cattlegrid_herd::LeaseView;
use cattlegrid_objects::type_of;
use cattlegrid_store::{Item, ObjectUsage, ShareUsage, StoreStats, StoreUsage};

use crate::engine::Engine;
use crate::shard::standing::KeyState;
use crate::time::Now;
use crate::walk::Cursor;

/// Leases copied for a list while their shard is locked.
const LEASES_COPIED: usize = 64;

/// Objects of all shards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectsUsage {
    /// By the number of the type, for types that have any.
    pub types: BTreeMap<u16, ObjectUsage>,
    /// Objects that a call reads in steps, or for which others wait.
    pub busy: usize,
    /// Calls that have steps left, or wait for an object.
    pub running: usize,
}

/// Contents of the herds of all shards.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HerdUsage {
    /// Leases.
    pub leases: usize,
    /// Deadlines of the leases.
    pub deadlines: usize,
    /// Bytes of the tables of leases, and of the state that leases leave when they end: an upper estimate.
    pub leases_bytes: usize,
    /// Keys with outstanding misses.
    pub outstanding: usize,
    /// Keys for which tags are announced.
    pub announced: usize,
    /// Slots that stand for misses that found no room.
    pub slots_in_loss: usize,
    /// Slots of the fence.
    pub fence_slots: usize,
    /// Fills that met an event of another key in their slot: an estimate, at most this number.
    pub fence_collisions: f64,
}

impl Engine {
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

    /// There is no lease, no waiter, no published connection, no object that is busy, and no call that has
    /// not ended.
    pub fn is_quiet(&self) -> bool {
        let is_busy = (0..self.shards.len()).any(|n| !self.shards.lock(n).busy.is_empty());
        let calls = self.shared.calls.load(Ordering::Relaxed);
        self.held() == 0 && self.leases() == 0 && self.shared.graph.is_empty() && calls == 0 && !is_busy
    }

    /// Number of leases, for tests and statistics.
    pub fn leases(&self) -> usize {
        (0..self.shards.len()).filter_map(|n| self.shards.lock(n).herd.as_ref().map(|herd| herd.len())).sum()
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

    /// The second of the last use of the item that has been unused longest, as far as the oldest segments of
    /// the shards show; `None` without items.
    pub fn oldest_use(&self) -> Option<u32> {
        (0..self.shards.len()).filter_map(|number| self.shards.lock(number).store().oldest_use()).min()
    }

    /// Sets the stores' counters to 0.
    pub fn reset_stats(&self) {
        (0..self.shards.len()).for_each(|n| self.shards.lock(n).store_mut().reset_stats());
        self.shards.reset_waits();
    }

    /// Calls `each` with items from `cursor` on, about `most` of them. Returns where to continue; `None` at
    /// the end. What is stored all the time is listed once, and no key twice, whatever is written in between.
    pub fn list(&self, cursor: Cursor, most: usize, mut each: impl FnMut(Item<'_>)) -> Option<Cursor> {
        if cursor.shard >= self.shards.len() {
            return None;
        }
        let next = self.shards.lock(cursor.shard).store().list(cursor.position, most, &mut each);
        Some(match next {
            Some(position) => Cursor { position, ..cursor },
            None => Cursor { shard: cursor.shard + 1, position: 0 },
        })
    }

    /// The memory that objects hold, and the calls that have not ended.
    pub fn objects_usage(&self) -> ObjectsUsage {
        let running = self.shared().calls.load(Ordering::Relaxed);
        let mut usage = ObjectsUsage { running, ..ObjectsUsage::default() };
        for number in 0..self.shards.len() {
            let shard = self.shards.lock(number);
            usage.busy += shard.busy.len();
            for (type_id, own) in shard.store().object_usage() {
                usage.types.entry(type_of(*type_id)).or_default().add(own);
            }
        }
        usage
    }

    /// The memory that the items of each share hold, in the order of
    /// [`EngineConfig::shares`](crate::EngineConfig); those of all other keys first. One shard at a time is
    /// locked.
    pub fn share_usage(&self, shares: usize) -> Vec<ShareUsage> {
        let mut usage = vec![ShareUsage::default(); shares + 1];
        for number in 0..self.shards.len() {
            let shard = self.shards.lock(number);
            for (share, sum) in usage.iter_mut().enumerate() {
                sum.add(&shard.store().share_usage(share));
            }
        }
        usage
    }

    /// Calls `each` for every lease until it returns false. No shard is locked meanwhile, and none for longer
    /// than it takes to note its leases' hashes or to copy a few leases: what begins or ends in between may
    /// be left out.
    pub fn each_lease(&self, now_ms: u64, mut each: impl FnMut(LeaseView) -> bool) {
        for number in 0..self.shard_count() {
            let hashes =
                self.shards.lock(number).herd.as_ref().map(|herd| herd.lease_hashes()).unwrap_or_default();
            for some in hashes.chunks(LEASES_COPIED) {
                let views: Vec<LeaseView> = {
                    let shard = self.shards.lock(number);
                    let herd = shard.herd.iter();
                    herd.flat_map(|herd| some.iter().filter_map(|hash| herd.view(*hash, now_ms))).collect()
                };
                if !views.into_iter().all(&mut each) {
                    return;
                }
            }
        }
    }

    /// Contents of the shards' herds: exact, except for misses that have become too old since the last
    /// [`Engine::tick`].
    pub fn herd_usage(&self) -> HerdUsage {
        let announced = self.shared().announced.load(Ordering::Relaxed);
        let mut usage = HerdUsage { announced, ..HerdUsage::default() };
        for number in 0..self.shard_count() {
            if let Some(herd) = &self.shards.lock(number).herd {
                usage.leases += herd.len();
                usage.deadlines += herd.deadlines();
                usage.leases_bytes += herd.leases_bytes();
                usage.outstanding += herd.ledger.len();
                usage.slots_in_loss += herd.ledger.lost_slots();
                usage.fence_slots += herd.fence.slots();
                usage.fence_collisions += herd.fence.collisions();
            }
        }
        usage
    }

    /// Number of keys that held requests wait for.
    pub fn held(&self) -> usize {
        self.shared().waiting.load(Ordering::Relaxed)
    }
}
