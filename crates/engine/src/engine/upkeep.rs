//! Types that are switched on while there are items: plain items under names that become names of calls are
//! removed, and so are the objects of types that are switched off. Objects of a type whose `evict` has
//! changed are marked anew, as far as `pinned_max` allows.
//!
//! The walk goes over the index of each shard, some buckets a call. An index that shrinks may move entries to
//! buckets that were passed, so the shard is walked again then. Until the walk has ended, names are
//! recognised before the look-up, so nothing that it has not reached yet is served.
//!
//! A request that began under other types finds that they have changed, by [`Shared::names`], when it has
//! locked its shard: a command that stores looks at its key again, and a call of a type that is switched off
//! is a miss. So nothing comes in behind the walk.
//!
//! [`Shared::names`]: crate::shared::EngineShared

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{Herd, HerdConfig, LEASE_BYTES, LeaseLimit, Observer};
use cattlegrid_objects::Registry;
use cattlegrid_store::ReclaimedItems;
use cattlegrid_tags::Prefixes;

use crate::engine::Engine;
use crate::rules::Rules;
use crate::shared::Names;
use crate::sync::{PoisonError, TryLockError};
use crate::time::Now;
use crate::walk::{NameWalk, WalkPosition};

/// Items that a call looks at.
const ITEMS: usize = 16 << 10;

/// Pinned items that refused calls look at in a millisecond, on average over [`LOOKS_AHEAD_MS`]: about a
/// twentieth of a processor.
const LOOKS_PER_MS: u64 = 1_000;

/// See [`LOOKS_PER_MS`].
const LOOKS_AHEAD_MS: u64 = 1_000;

/// Items that are looked at under one lock.
const ITEMS_LOCKED: usize = 256;

/// The memory that rules may take of the limit, and how many requests may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesConfig {
    /// Bytes of [`crate::EngineConfig::tag_bytes`], which are taken out of the limit with the first cascade
    /// or bump.
    pub tag_bytes: usize,
    /// Bytes for leases and outstanding misses.
    pub ledger_bytes: usize,
    /// Bytes for the last events of keys.
    pub fence_bytes: usize,
    /// Most requests that are held at once.
    pub waiters: usize,
    /// Prefix of control keys; empty: there are none.
    pub control: Box<[u8]>,
    /// The prefixes that clients put before every key.
    pub prefixes: Prefixes,
}

impl Engine {
    /// Switches types of objects on; None: none. Looks at all items first if those that the change before
    /// removes are not all removed yet. What is stored under names that become names of calls is removed,
    /// some at each [`Engine::tick`].
    pub fn set_objects(&self, registry: Option<Arc<Registry>>) {
        let shared = self.shared();
        let mut walk = shared.name_walk.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(new), Some(old)) = (&registry, self.objects())
            && new.settings() == old.settings()
            && digest(new) == digest(&old)
        {
            // The names are the same. A host that was loaded anew has no disabled methods.
            shared.set_registry(registry);
            return;
        }
        // What the change before removes does not come back with this one.
        if let Some(mut under_way) = walk.take() {
            let before = self.objects();
            while self.walk_some_names(&mut under_way, before.as_deref()) {}
        }
        let is_on = registry.is_some();
        let were_on = shared.has_objects();
        shared.set_registry(registry);
        if !is_on && !were_on {
            return;
        }
        // Before the walk: nothing is stored under these names from now on.
        let changes = Names::changes(shared.names.load(Ordering::Relaxed)) + 1;
        let state = if is_on { Names::FIRST } else { Names::OFF };
        shared.names.store(Names::of(state, changes), Ordering::Release);
        *walk = Some(NameWalk { shrinks: self.shrinks(0), ..NameWalk::default() });
        drop(walk);
        if self.usage().0.items == 0 {
            self.walk_names();
        }
    }

    /// A piece of the walk. True: there is more.
    pub(crate) fn walk_names(&self) -> bool {
        let shared = self.shared();
        let mut walk = match shared.name_walk.try_lock() {
            Ok(walk) => walk,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The types are being changed, on a thread that may have all items to look at.
            Err(TryLockError::WouldBlock) => return true,
        };
        let Some(now) = walk.as_mut() else { return false };
        let registry = Option::clone(&shared.objects());
        for _ in 0..ITEMS / ITEMS_LOCKED {
            if self.walk_some_names(now, registry.as_deref()) {
                continue;
            }
            *walk = None;
            if registry.is_some() {
                let changes = Names::changes(shared.names.load(Ordering::Relaxed));
                shared.names.store(Names::of(Names::AFTER, changes), Ordering::Release);
            }
            return false;
        }
        true
    }

    fn walk_some_names(&self, walk: &mut NameWalk, registry: Option<&Registry>) -> bool {
        let number = walk.at.shard();
        if number >= self.shard_count() {
            return false;
        }
        let mut shard = self.shards.lock(number);
        let mut doomed: Vec<(Box<[u8]>, bool)> = Vec::new();
        let mut changed: Vec<(Box<[u8]>, bool)> = Vec::new();
        let next = shard.store().scan(walk.at.bucket(), ITEMS_LOCKED, |item| {
            let (key, is_object) = (item.key(), item.is_object());
            let stays = match item.object() {
                Some((type_id, _)) => registry.is_some_and(|registry| registry.has_type(type_id)),
                None => registry.is_none_or(|registry| registry.named(key).is_none()),
            };
            if !stays {
                doomed.push((key.into(), is_object));
            } else if let (Some((type_id, _)), Some(registry)) = (item.object(), registry)
                && registry.is_pinned(type_id) != item.marks().is_pinned()
            {
                changed.push((key.into(), registry.is_pinned(type_id)));
            }
        });
        for (key, is_object) in doomed {
            let hash = if is_object { self.hash_object(&key) } else { self.hash_key(&key) };
            shard.remove_any(hash, &key, is_object);
        }
        let room = registry.map_or(0, |registry| registry.settings().pinned_max);
        for (key, pinned) in changed {
            let hash = self.hash_object(&key);
            shard.pin(hash, &key, pinned, self.memory(), room);
        }
        match next {
            Some(bucket) => walk.at = WalkPosition::new(number, bucket),
            None if shard.store().index_shrinks() != walk.shrinks => {
                (walk.at, walk.shrinks) = (WalkPosition::new(number, 0), shard.store().index_shrinks());
            }
            None => {
                drop(shard);
                (walk.at, walk.shrinks) = (WalkPosition::new(number + 1, 0), self.shrinks(number + 1));
            }
        }
        true
    }

    /// Removes pinned objects that are over, in all shards, none of which may be locked. False: there is
    /// none.
    ///
    /// [`LOOKS_PER_MS`] bounds the time that calls spend here which are refused for lack of room.
    pub(crate) fn reclaim_pinned(&self, now: Now) -> bool {
        let paid = &self.shared().pinned_looks_paid_ms;
        let paid_ms = paid.load(Ordering::Relaxed).max(now.ms);
        if paid_ms > now.ms + LOOKS_AHEAD_MS {
            return false;
        }
        let mut all = ReclaimedItems::default();
        for number in 0..self.shard_count() {
            let next = || self.shards.lock(number).reclaim_pinned(now);
            for done in std::iter::from_fn(next) {
                all = ReclaimedItems { looks: all.looks + done.looks, items: all.items + done.items };
            }
        }
        paid.store(paid_ms + all.looks as u64 / LOOKS_PER_MS, Ordering::Relaxed);
        all.items > 0
    }

    /// Nothing has run for `for_ms` milliseconds, until now: the server was stopped (SIGSTOP, a debugger), or its
    /// machine suspended. What clients sent meanwhile waits in its sockets, and came in time: misses and
    /// announced tags do not grow old in a stop. The caller holds up other threads that have read the time
    /// after it until this returns, and holds no lock of a shard.
    pub fn note_stop(&self, for_ms: u64, now_ms: u64) {
        for number in 0..self.shards.len() {
            let mut shard = self.shards.lock(number);
            shard.announced.delay(for_ms);
            if let Some(herd) = &mut shard.herd {
                herd.delay(for_ms, now_ms);
            }
        }
        // After the shards: what a thread records that was stopped in the middle of its work is delayed once at
        // least.
        self.shared.note_stop(for_ms);
        self.delay_notes(for_ms);
    }

    /// Once a second: gives the memory of dead segments back, a bounded piece of each shard, lets go of
    /// misses that are too old, and notes what statistics would have to walk for. True: there is more to do.
    pub fn tick(&self, now: Now) -> bool {
        self.shared.pass_time(now.ms);
        self.shared.sweep(now.ms);
        let more_names = self.walk_names();
        let more_notes = self.renew_notes(now);
        let floor = self.shared.floor(now.second);
        let mut more = more_names || more_notes;
        for number in 0..self.shards.len() {
            let mut shard = self.shards.lock(number);
            shard.store_mut().advance(now.second, now.ms, floor);
            more |= shard.store_mut().tick();
            shard.reclaim_pinned(now);
            if let Some(herd) = &mut shard.herd {
                herd.ledger.sweep(now.ms);
            }
            if let Some(observer) = &mut shard.observer {
                observer.sweep(self.shared.clock(), now.ms);
            }
            shard.announced.sweep(now.ms, &self.shared.announced);
        }
        more
    }

    /// Puts these rules in force, at this time in milliseconds since the start; None: no key has a rule. The
    /// tables that they need are allocated once, of the sizes of `config`, and are part of the memory limit.
    ///
    /// # Errors
    /// The system's, when it refuses to shrink the memory for items.
    pub fn set_rules(
        &self,
        rules: Option<Arc<Rules>>,
        config: &RulesConfig,
        now_ms: u64,
    ) -> std::io::Result<()> {
        if let Some(rules) = &rules {
            let shared = self.shared();
            shared.set_control(&config.control);
            shared.set_prefixes(&config.prefixes);
            shared.set_shards(self.shard_count());
            shared.waiting_max.store(config.waiters, Ordering::Relaxed);
            if rules.has_cascades() {
                // They bump under a shard's lock. Everything else takes the memory with the first bump.
                self.reserve_tags()?;
            }
            if self.shards.lock(0).herd.is_none() {
                self.reserve(config.ledger_bytes + config.fence_bytes)?;
            }
            let shards = self.shard_count();
            // Half of the bytes are for leases, the other half for misses.
            let leases = config.ledger_bytes / 2 / LEASE_BYTES;
            let herd = HerdConfig {
                leases: LeaseLimit::new(leases),
                ended: (leases / shards).max(16),
                ledger_bytes: config.ledger_bytes / 2 / shards,
                fence_bytes: config.fence_bytes / shards,
            };
            for number in 0..shards {
                let mut locked = self.shards.lock(number);
                let herd = locked.herd.get_or_insert_with(|| Box::new(Herd::new(herd.clone())));
                herd.restart_failed();
                // A part of the ledger's bytes.
                let lent = herd.lend(rules.observes()) / shards;
                if let Some(mut observer) = locked.observer.take() {
                    observer.clear(now_ms);
                }
                locked.observer = rules.observes().then(|| Box::new(Observer::new(lent)));
            }
        }
        // Those of the start: a file that is read again may name others.
        let under = |rules: Arc<Rules>| {
            let prefixes = self.shared().prefixes();
            if rules.prefixes() == prefixes { rules } else { Arc::new(rules.for_prefixes(prefixes.clone())) }
        };
        self.forget_notes();
        self.shared().set_rules(rules.map(under), now_ms);
        Ok(())
    }
}

/// The number of the host's sources and limits; 0 without a host.
fn digest(registry: &Registry) -> u64 {
    registry.host().map_or(0, |host| host.digest())
}
