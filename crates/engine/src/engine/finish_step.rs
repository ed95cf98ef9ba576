//! What a step leaves for the engine itself: waiters that get slots of rules in other shards, and deadlines.

use std::sync::atomic::Ordering;

use cattlegrid_herd::Herd;

use crate::engine::Engine;
use crate::event::Interest;
use crate::shards::ShardLock;
use crate::step::Step;

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
        if self.memory.wants_room() {
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
}
