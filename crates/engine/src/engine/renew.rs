//! Notes of which tags items and open misses have, made anew from time to time, so that bumps of others can
//! be left out.
//!
//! Each thread that stores, misses or names tags notes them before. What is gone stays noted until a
//! generation of notes ends, which begins with none: the walk adds the tags of all items and leases, and ends
//! when no other miss is open that is older.
//!
//! The walk goes over the index of each shard, some buckets a call, as that of `upkeep` does.

use crate::engine::Engine;
use crate::following::FollowedLog;
use crate::sync::{MutexGuard, PoisonError};
use crate::time::Now;
use crate::walk::{GROWTH, LOW_SHARE, REST_MS, Renewal, WalkPosition};

/// Items that a call looks at.
const ITEMS: usize = 16 << 10;

/// Items that are looked at under one lock.
const ITEMS_LOCKED: usize = 256;

impl Engine {
    /// Follows these logs from now on, and no others: see [`Shared::follow`](crate::EngineShared::follow).
    /// With the first one the memory for notes is taken out of the limit.
    pub fn follow_logs(&self, logs: Vec<FollowedLog>, now_ms: u64) {
        let tags = self.shared().tags();
        if !logs.is_empty() && !tags.selects() {
            tags.select();
            let lowered = self.reserve(tags.select_bytes());
            debug_assert!(lowered.is_ok(), "the limit can always be lowered");
        }
        self.shared().follow(logs, now_ms);
    }

    /// Other rules may give keys other tags than those that were noted at their misses: all bumps are
    /// recorded until a generation of notes has ended that begins after this.
    pub(crate) fn forget_notes(&self) {
        let mut renewal = self.renewal();
        self.shared().tags().record_all();
        *renewal = Renewal::Due;
    }

    /// Another generation of notes begins as soon as possible, if none is under way: for simulations.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub fn renew_notes_soon(&self) {
        let mut renewal = self.renewal();
        if let Renewal::Rests { .. } = *renewal {
            *renewal = Renewal::Due;
        }
    }

    /// Misses are open for this many milliseconds more.
    pub(crate) fn delay_notes(&self, ms: u64) {
        if let Renewal::Walks { until_ms: Some(until_ms), .. } = &mut *self.renewal() {
            *until_ms += ms;
        }
    }

    /// A piece of a generation of notes. True: there is more to do at once.
    pub(crate) fn renew_notes(&self, now: Now) -> bool {
        let tags = self.shared().tags();
        if !tags.selects() {
            return false;
        }
        if tags.names_roughly() {
            let lowered = self.reserve(tags.bumps().memory_bytes());
            debug_assert!(lowered.is_ok(), "the limit can always be lowered");
            tags.name_exactly(|| self.shared().tick());
        }
        let mut renewal = self.renewal();
        match &mut *renewal {
            Renewal::Due => {
                tags.begin_notes();
                *renewal =
                    Renewal::Walks { at: WalkPosition::default(), shrinks: self.shrinks(0), until_ms: None };
                true
            }
            Renewal::Walks { at, shrinks, until_ms } => {
                // By a time that was read when the last note had been taken back.
                let until_ms =
                    *until_ms.get_or_insert_with(|| now.ms + u64::from(self.shared().window_max_ms()));
                for _ in 0..ITEMS / ITEMS_LOCKED {
                    if self.note_some(at, shrinks) {
                        continue;
                    }
                    if now.ms >= until_ms {
                        tags.end_notes();
                        let share = tags.noted_share().unwrap_or_default();
                        *renewal = Renewal::Rests { until_ms: now.ms + REST_MS, share };
                    }
                    return false;
                }
                true
            }
            Renewal::Rests { until_ms, share } => {
                let due = (*share * GROWTH).max(LOW_SHARE);
                if now.ms >= *until_ms && tags.noted_share().is_some_and(|now| now >= due) {
                    *renewal = Renewal::Due;
                    return true;
                }
                false
            }
        }
    }

    /// Notes the tags of some items. False: the walk has ended.
    fn note_some(&self, at: &mut WalkPosition, shrinks: &mut u64) -> bool {
        let number = at.shard();
        if number >= self.shard_count() {
            return false;
        }
        let tags = self.shared().tags();
        let mut noted = Vec::new();
        let shard = self.shards.lock(number);
        let next = shard.store().scan(at.bucket(), ITEMS_LOCKED, |item| noted.extend(item.tags()));
        tags.note(&noted);
        match next {
            Some(bucket) => *at = WalkPosition::new(number, bucket),
            None if shard.store().index_shrinks() != *shrinks => {
                // Entries may have moved to buckets that were passed.
                (*at, *shrinks) = (WalkPosition::new(number, 0), shard.store().index_shrinks());
            }
            None => {
                if let Some(herd) = &shard.herd {
                    herd.each_tags(|own| tags.note(own));
                }
                drop(shard);
                (*at, *shrinks) = (WalkPosition::new(number + 1, 0), self.shrinks(number + 1));
            }
        }
        true
    }

    /// Times that the index of a shard has shrunk.
    pub(crate) fn shrinks(&self, number: usize) -> u64 {
        if number < self.shard_count() { self.shards.lock(number).store().index_shrinks() } else { 0 }
    }

    fn renewal(&self) -> MutexGuard<'_, Renewal> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
