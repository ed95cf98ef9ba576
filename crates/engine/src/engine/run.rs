//! Runs of quiet gets: several commands that are one multi-get.
//!
//! A client of the binary protocol asks for many keys with quiet gets and a `noop`, one of the meta protocol
//! with `mg ... q` and `mn`. They are executed one by one while no key is leased by another client. The first
//! such key makes the rest of the run, up to its end, one multi-get: it is held once, for `hold_many`, and
//! its end is answered with it. Were each get held for itself, the finished `noop` behind it would cut its
//! hold, and a key that is asked for behind a get that waits is never leased to its client.
//!
//! # Invariants
//! * A run that has the lease of a key is not held, since its client must hear of it now, unless the rule of
//!   the key that is waited for says otherwise.
//! * A get that is left for [`Engine::get_run`] has written and counted nothing.

use cattlegrid_herd::WithheldKey;
use cattlegrid_protocol::Request;

use crate::engine::Engine;
use crate::engine::hold::{GetWait, KEYS_HELD_MAX};
use crate::parked::{LeasedKey, ParkedRequest, Pending};
use crate::reply::get::{AskedKey, GetEnd, GetForm};
use crate::reply::meta::is_explicit;
use crate::shard::Execution;
use crate::shards::ShardLock;
use crate::step::Context;

/// The outcome of a get of a run.
#[derive(Debug)]
#[must_use]
pub enum RunGet {
    /// The get is done.
    Done,
    /// The get is done, and its connection computes the key, under this token: rules may say that the rest of
    /// the run is not held.
    Computes(u64),
    /// The get waits, for the call of an object.
    Parked(Box<ParkedRequest>),
    /// Nothing was done: the rest of the run, from this get on, is for [`Engine::get_run`].
    Held,
}

/// What of a run was answered before.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnsweredGets<'s> {
    /// Hashes of its keys.
    pub keys: &'s [u64],
    /// Hashes of those of which it has the lease, and its tokens.
    pub computes: &'s [(u64, u64)],
}

/// Whether a run may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MayHold {
    /// The run is too long, or a part of it was held.
    No,
    /// The run computes some of its keys: only if the rule of a key that another client computes says that it
    /// waits.
    IfPartial,
    /// The run computes none of its keys so far.
    Yes,
}

/// Whether a request may be part of a run that is held as one.
pub fn is_of_run(request: &Request<'_>) -> bool {
    match request {
        Request::PacketGet(_) => true,
        // A get of the lease, of a tag or of a method is answered by itself.
        Request::MetaGet(meta) => !is_explicit(meta) && !meta.set.has(b'G') && !meta.set.has(b'A'),
        _ => false,
    }
}

/// Whether a get of a run is quiet: the first that is not ends it.
pub fn is_quiet_get(request: &Request<'_>) -> bool {
    match request {
        Request::PacketGet(get) => get.packet.is_quiet(),
        Request::MetaGet(meta) => meta.set.has(b'q'),
        _ => false,
    }
}

impl Engine {
    /// Executes a get of a run: see [`is_of_run`].
    pub fn get_of_run(
        &self,
        request: &Request<'_>,
        hash: u64,
        may_hold: MayHold,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> RunGet {
        match self.execute_with(request, hash, None, true, lock, cx) {
            Execution::Done => RunGet::Done,
            Execution::Computes => RunGet::Computes(cx.session.last_lease(hash).unwrap_or(0)),
            Execution::Parked(parked) => RunGet::Parked(parked),
            Execution::Leased(holds) => {
                if may_hold == MayHold::No && holds.by_loader {
                    // As a get for itself: its value comes whether the client reads or not.
                    uncount(request, cx);
                    return match self.execute_with(request, hash, None, false, lock, cx) {
                        Execution::Parked(parked) => RunGet::Parked(parked),
                        _ => RunGet::Done,
                    };
                }
                let shard = lock.shard(hash);
                shard.with_herd(&mut cx.step, |herd, _| herd.not_waited_for(hash));
                if may_hold == MayHold::Yes || may_hold == MayHold::IfPartial && holds.partial_waits {
                    uncount(request, cx);
                    self.finish_step(lock, &mut cx.step);
                    return RunGet::Held;
                }
                shard.do_not_wait(&asked_of(request), hash, holds.has_old, cx);
                self.finish_step(lock, &mut cx.step);
                RunGet::Done
            }
        }
    }

    /// Executes the rest of a run, with the hashes of its keys, as one multi-get; `end`: what ends it. At
    /// most `bytes` bytes of output are made. `seen`: the keys of the run that were answered before. Returns
    /// how many of the gets are done, of which the first is one unless it names a call by now, and the
    /// request that waits. If not all are done, `end` is not either; the others come after what waits, and
    /// are not held, except for what loaders compute.
    pub fn get_run(
        &self,
        gets: &[(Request<'_>, u64)],
        seen: AnsweredGets<'_>,
        end: GetEnd,
        bytes: usize,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> (usize, Option<Box<ParkedRequest>>) {
        let plain = gets.iter().take(KEYS_HELD_MAX).take_while(|(get, _)| self.names_item(get)).count();
        let mut pending = Pending::at(cx.out.place());
        // The client reads all replies as one.
        pending.computes.extend(seen.computes);
        let mut done = 0;
        for (request, hash) in &gets[..plain] {
            if done > 0 && cx.out.len() >= bytes {
                break;
            }
            let at = cx.out.place();
            match self.execute_with(request, *hash, None, true, lock, cx) {
                Execution::Computes => pending.computes(*hash, cx),
                Execution::Leased(holds) => {
                    pending.leased.push(LeasedKey { asked: asked_of(request), hash: *hash, at, holds });
                }
                Execution::Parked(parked) => {
                    // Its type was switched on in between: nothing can wait behind it here.
                    Self::answer_leased(&pending, lock, cx);
                    self.finish_step(lock, &mut cx.step);
                    return (done + 1, Some(parked));
                }
                Execution::Done => {}
            }
            done += 1;
        }
        let is_all = done == gets.len();
        let end = if is_all { end } else { GetEnd::Nothing };
        let many = gets.len() + seen.keys.len() > 1;
        let on_trial = many && pending.leased.iter().any(|leased| leased.holds.on_trial);
        let by_loader = pending.leased.iter().any(|leased| leased.holds.by_loader);
        let keys = done + seen.keys.len();
        let is_long = !is_all && done == KEYS_HELD_MAX || many && !cx.session.can_withhold(keys);
        let held = !pending.leased.is_empty()
            && !pending.must_answer()
            && !on_trial
            && (!is_long || by_loader && cx.session.can_wait_for(keys));
        if held {
            let all = gets[..done].iter().map(|(request, _)| asked_of(request).key);
            let since_ms = by_loader.then_some(cx.step.now.ms);
            let wait = GetWait { many, end, only_loaders: is_long, since_ms };
            let parked = self.park_get(all, &pending, wait, lock, cx);
            if parked.is_some() {
                self.withhold_seen(seen.keys, cx);
            }
            self.finish_step(lock, &mut cx.step);
            return (done, parked);
        }
        Self::answer_leased(&pending, lock, cx);
        self.finish_step(lock, &mut cx.step);
        end.write(&mut cx.out.bytes);
        (done, None)
    }

    /// A client reads the replies to a run as one. If it gives up, it may compute the keys that were answered
    /// before the run was held as well (history 8 of `hold`).
    fn withhold_seen(&self, seen: &[u64], cx: &mut Context<'_>) {
        let (number, window_ms) = (self.shared().clock(), self.shared().window_max_ms());
        for hash in seen {
            cx.session.withhold(cx.ticket.request, WithheldKey { hash: *hash, number, window_ms });
        }
    }

    /// Whether a get's key is neither a control key nor the name of a call.
    fn names_item(&self, request: &Request<'_>) -> bool {
        let key = asked_of(request).key;
        let shared = self.shared();
        shared.control(key).is_none() && shared.objects().as_ref().is_none_or(|all| all.named(key).is_none())
    }
}

/// The key of a get of a run.
fn asked_of<'k>(request: &'k Request<'k>) -> AskedKey<'k> {
    match request {
        Request::PacketGet(get) => AskedKey::packet(get),
        Request::MetaGet(meta) => AskedKey::meta(meta),
        _ => unreachable!("a run has no other commands"),
    }
}

/// A get that is executed again counts once.
fn uncount(request: &Request<'_>, cx: &Context<'_>) {
    let counters = cx.step.counters;
    let asked = asked_of(request);
    asked.count(1_u64.wrapping_neg(), counters);
    if matches!(asked.form, GetForm::Meta(_)) {
        counters.cmd_meta.add(1_u64.wrapping_neg());
    }
}
