//! Calls of methods that a host runs: without a lock, and stored afterwards if the object is as it was.
//!
//! ```text
//!   under its lock: copy the plain state ──▶ no lock: Host::call ──▶ under its lock: same CAS? store ──▶ what follows
//! ```
//! A run that finds its object changed is lost. The call then stands in the object's queue, and is run again
//! when the object is busy with it (`call_later`): so on an object that many call each gets its turn.
//!
//! # Invariants
//! * No shard is locked while a host's method runs.
//! * What a run leaves is stored, and what follows from it is done, only if the object has the CAS with which
//!   its state was copied (or is absent as it was), and is not busy with another call.
//! * A run that changes nothing takes effect in the moment in which its state was copied.

use std::cell::Cell;

use cattlegrid_objects::{FollowUp, HostedMethod, ScriptCall, ScriptMethodId, ScriptOutcome, copy_plain};
use cattlegrid_store::NEVER;

use crate::engine::Engine;
use crate::engine::world::{OtherObject, World};
use crate::reply::call::{NO_ROOM, TOO_LARGE};
use crate::running::item_key;
use crate::shard::object::{Call, CallOutcome, Commit, ObjectCopy, left, unix_ms};
use crate::shards::ShardLock;
use crate::shared::Names;
use crate::step::Step;

/// Bytes of a buffer that a thread keeps between calls.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    /// For plain states.
    static PLAIN: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// For the values of replies.
    static VALUE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The outcome of a run of a host's method.
#[derive(Debug)]
pub(crate) enum HostOutcome {
    /// The value, for [`keep_value`] when it has been copied. The object's CAS, and seconds to live.
    Value {
        value: Vec<u8>,
        flags: u32,
        cas: u64,
        ttl: Option<u64>,
    },
    Miss,
    Error(String),
    /// The object has changed meanwhile; nothing was stored.
    Moved,
}

/// Keeps the value of a reply as the thread's buffer.
pub(crate) fn keep_value(value: Vec<u8>) {
    if value.capacity() <= KEPT_BYTES {
        VALUE.set(value);
    }
}

impl Engine {
    /// Runs a host's method once, stores what it leaves, and does what follows. `has_object`: the object is
    /// busy with this call; otherwise it was not busy a moment ago. Releases all shards.
    pub(crate) fn run_script(
        &self,
        call: &Call<'_>,
        script: &HostedMethod<'_>,
        has_object: bool,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> HostOutcome {
        let mut plain = PLAIN.take();
        let ran = self.run_on_copy(call, script, has_object, &mut plain, lock, step);
        if plain.capacity() <= KEPT_BYTES {
            PLAIN.set(plain);
        }
        lock.release();
        if matches!(ran, HostOutcome::Moved) {
            step.counters.script_moved.add(1);
        }
        ran
    }

    fn run_on_copy(
        &self,
        call: &Call<'_>,
        script: &HostedMethod<'_>,
        has_object: bool,
        plain: &mut Vec<u8>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> HostOutcome {
        let shard = lock.shard(call.hash);
        if Names::changes(shard.names_now()) != call.changes && !shard.has_type(call.type_id) {
            // It was switched off in between.
            return HostOutcome::Miss;
        }
        let reads = script.about.reads;
        let seen = shard.view_object(call.hash, call.item_key, reads, step, |view, seen| {
            copy_plain(view, plain);
            seen
        });
        lock.release();
        let settings = call.registry.settings();
        let mut value = VALUE.take();
        value.clear();
        if seen.is_none() && script.method == ScriptMethodId::Dump {
            return absent(settings.compat, value);
        }
        let (others, states) = self.copy_others(call, script, seen, plain, step);
        // `new` sees nothing of the object whose place the new one takes.
        let own = seen.filter(|_| !call.begins_anew());
        let mut world = World::new(self, call, own, others, step);
        let one = ScriptCall {
            object_type: script.object_type,
            method: script.method,
            key: call.key(),
            arguments: call.arguments,
            own: own.map(|_| &**plain),
            replaces: seen.is_some() && own.is_none(),
            others: &states,
            expires_ms: own.filter(|seen| seen.expiry != NEVER).map(|seen| unix_ms(step.now, seen.expiry)),
            now_ms: step.now.unix_ms(),
            random: call.random,
            settings,
            own_settings: script.settings,
            zone: script.zone,
        };
        #[cfg(all(debug_assertions, not(shuttle)))]
        assert_unlocked();
        let done = script.host.call(&one, &mut world, &mut value);
        let mut after = done.after;
        let outcome = match done.outcome {
            ScriptOutcome::Value { .. } if value.len() > settings.result_max => {
                ScriptOutcome::Error(TOO_LARGE.to_owned())
            }
            outcome => outcome,
        };
        match outcome {
            ScriptOutcome::Moved => return HostOutcome::Moved,
            ScriptOutcome::Error(text) => {
                if text.starts_with("SERVER_ERROR") {
                    step.counters.script_errors.add(1);
                }
                after.retain(|one| matches!(one, FollowUp::Event { .. } | FollowUp::Log(_)));
                self.follow(call, after, lock, step);
                keep_value(value);
                return HostOutcome::Error(text);
            }
            ScriptOutcome::Value { .. } | ScriptOutcome::Miss => {}
        }
        let changes = done.change.is_some() || done.expires_ms.is_some();
        let (cas, ttl) = if changes {
            let commit = Commit {
                seen: seen.map(|seen| seen.cas),
                new: done.change.as_deref(),
                expires_ms: done.expires_ms,
            };
            match self.commit_script(call, &commit, has_object, lock, step) {
                Ok(shown) => shown,
                Err(failed) => return failed,
            }
        } else {
            if !reads && seen.is_some() {
                // It could have changed the object, and a change counts as a use.
                lock.shard(call.hash).view_object(call.hash, call.item_key, true, step, |_, _| ());
            }
            seen.map_or((0, None), |seen| (self.shown_cas(seen.cas), left(step.now, seen.expiry)))
        };
        self.follow(call, after, lock, step);
        if let ScriptOutcome::Value { flags } = outcome {
            return HostOutcome::Value { value, flags, cas, ttl };
        }
        keep_value(value);
        HostOutcome::Miss
    }

    /// Stores what a method has left, if the object is as it was. Its CAS as clients see it, and seconds to
    /// live.
    fn commit_script(
        &self,
        call: &Call<'_>,
        commit: &Commit<'_>,
        has_object: bool,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Result<(u64, Option<u64>), HostOutcome> {
        if !has_object && lock.shard(call.hash).is_busy(call.item_key) {
            // Another call has made it busy meanwhile, and its method counts on it.
            return Err(HostOutcome::Moved);
        }
        let one = Call { commit: Some(commit), ..*call };
        match self.run_with_room(&one, has_object, lock, step) {
            CallOutcome::Value { cas, ttl, .. } => Ok((cas, ttl)),
            CallOutcome::Moved | CallOutcome::Busy => Err(HostOutcome::Moved),
            CallOutcome::Miss => Err(HostOutcome::Miss),
            CallOutcome::Error(text) => Err(HostOutcome::Error(text)),
            CallOutcome::NoRoom(_) | CallOutcome::PinnedFull => {
                step.counters.store_no_memory.add(1);
                Err(HostOutcome::Error(NO_ROOM.to_owned()))
            }
            CallOutcome::List(_) => unreachable!("what a host's method leaves lists nothing"),
        }
    }

    /// The plain states of the objects that arguments name, in the order of
    /// [`cattlegrid_objects::ScriptMethod::keys`].
    fn copy_others(
        &self,
        call: &Call<'_>,
        script: &HostedMethod<'_>,
        seen: Option<ObjectCopy>,
        plain: &[u8],
        step: &Step<'_>,
    ) -> (Vec<OtherObject>, Vec<Option<Vec<u8>>>) {
        let (mut others, mut states) = (Vec::new(), Vec::new());
        for place in &script.about.keys {
            // A key that is too long names no object.
            let key = call.arguments.get(*place).and_then(|key| item_key(call.type_id, key));
            let Some(key) = key else {
                others.push(OtherObject::NONE);
                states.push(None);
                continue;
            };
            if *key == *call.item_key {
                others.push(OtherObject {
                    hash: call.hash,
                    item_key: Some(key),
                    cas: seen.map(|seen| seen.cas),
                });
                states.push(seen.map(|_| plain.to_vec()));
                continue;
            }
            let hash = self.hash_object(&key);
            let mut copy = Vec::new();
            let mut shard = self.shards.lock(self.shards.number(hash));
            let cas = shard.view_object(hash, &key, true, step, |view, seen| {
                copy_plain(view, &mut copy);
                seen.map(|seen| seen.cas)
            });
            drop(shard);
            others.push(OtherObject { hash, item_key: Some(key), cas });
            states.push(cas.map(|_| copy));
        }
        (others, states)
    }
}

/// The reply of `dump` to an object that there is not.
fn absent(compat: bool, mut value: Vec<u8>) -> HostOutcome {
    if compat {
        value.extend_from_slice(b"ERROR_CACHE_MISS");
        return HostOutcome::Value { value, flags: 0, cas: 0, ttl: None };
    }
    keep_value(value);
    HostOutcome::Miss
}

/// A locked shard makes its thread unguarded.
#[cfg(all(debug_assertions, not(shuttle)))]
fn assert_unlocked() {
    let is_guarded = cattlegrid_panic::guarded(cattlegrid_panic::is_guarded);
    assert_eq!(is_guarded, Ok(true), "a host's method runs while a shard is locked");
}
