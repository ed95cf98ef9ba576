//! Requests that wait: how the wait for a key begins, for a `get` and for an `mg`; how a `get` is parked, and
//! how its deadline, the end of its connection or a circle of waiting connections ends the wait. `ends` of the
//! shard is how the wait for a key ends before its value comes, `fill` how the value reaches it.
//!
//! The engine holds a `get` whose keys it has all asked for, and an `mg` at once (`execute`).
//!
//! A held get leaves its keys' places in the queues of their leases and a [`ParkedRequest`] reply on its
//! connection. Shards are locked one at a time; between two locks other threads may decide a wait, and their
//! decision comes as a wake.
//!
//! # Histories
//! H is the holder, W a waiter, X another client; each connection is served by one thread. The tests named
//! are in `tests/`; `late.rs` is in those of `herd`.
//!
//! 1. W's `get` finds key 1 leased. Before W is queued, the shard's lock is released, for another key of the
//!    same `get`; H's value is stored, or H's lease ends. `hold_key` looks again, under the lock under which
//!    it queues W: W gets the value or the lease, or waits for the client that has the lease by then.
//!    (`shuttle.rs`: `many_keys_in_many_shards`)
//! 2. W's time is up on its thread. On another thread H's value is stored, or H's lease passes to W, and W is
//!    taken out of the queue. `expire` finds W gone: the result comes as a wake, and answers W. The request
//!    has no deadline from then on, so it is not expired again. (`shuttle.rs`: `end_of_a_hold_and_fill`,
//!    `timeout_fill_and_close`, `failure_close_and_the_end_of_a_hold`)
//! 3. W's `get` of several keys is answered at once after all, because it gets the lease of one of them. Its
//!    wait for another key was decided on another thread in this moment: its wake finds no request, but if it
//!    was given that lease too, its session must know. `note_decided` records it. (`late.rs`:
//!    `the_miss_of_a_lease_whose_time_is_up_ends_with_its_window`)
//! 4. A holds key 1 and waits for key 2; B holds key 2 and begins to wait for key 1 at the same time. Both
//!    publish first and look for a circle afterwards: the one that publishes last finds it, and gives up a
//!    wait, as a miss. (`shuttle.rs`: `publish_and_check_of_two` and the two after it, `orders.rs`:
//!    `every_circle_is_cut`)
//! 5. A and B wait for each other according to what they have published, but B has lost its lease since: the
//!    circle is not real. Each edge is verified in its shard, and the search repeated without those that are
//!    untrue. After [`UNTRUE_MAX`] of these, or on a path of too many edges, a wait is given up without
//!    proof. (`herd`: `an_outdated_edge_hides_no_circle`)
//! 6. A waits for key 2, and is given the lease of key 1, for which B waits, while B holds key 2: the
//!    promotion closes the circle. So A looks again when it gets the wake. (`shuttle.rs`:
//!    `a_promotion_that_closes_a_circle`)
//! 7. W gives up waiting: its client closes the connection and computes the value. Its miss is recorded as of
//!    the number at which it began to wait, so that a delete since then drops its value, on whichever
//!    connection it comes. (`fences.rs`: `a_client_that_gives_up_waiting_may_compute`)
//! 8. The same for the keys of W's `get` that were there when it asked, or came while it waited: W has not
//!    seen their values, and may compute them. They are withheld ([`WithheldKey`]), and recorded as misses if
//!    W gives up. (`fences.rs`: `a_client_that_gives_up_waiting_may_compute_the_keys_that_were_there`,
//!    `a_client_that_gives_up_waiting_may_compute_the_keys_that_came_meanwhile`,
//!    `a_get_that_was_answered_withholds_nothing_any_more`)
//! 9. W's connection is closed, and the lease has passed to W in the same moment: history 9 of the herd's
//!    `end`. (`shuttle.rs`: `promote_and_close`)
//! 10. A timer on one thread ends leases. On another thread X flushes, or bumps a tag: `timeout_ms` and the
//!     flag that asks for a look are reset before the look, so an event during the look asks for another one.
//!     (`shuttle.rs`: `timeouts_and_an_event_that_revokes`) The look also finds the next moment at which a
//!     flush that is phased in reaches the key of an older lease, and sets `timeout_ms` and `revoke_at_ms` to
//!     it at its end: a look on another thread that has reset them meanwhile finds the same moment.
//!     (`tags.rs`: `a_rolling_flush_revokes_each_lease_at_the_moment_of_its_key`)
//! 11. A lease of a rule with `rule_computers` ends in one shard and gives its slot to a lease in another.
//!     `finish_step` does this when the first shard's step is over, and again while that frees further slots.
//!     (`shuttle.rs`: `slots_of_a_rule`)
//! 12. W's `get` of several keys got the lease of key 1 and waits for key 2 all the same
//!     (`partial = "wait"`), on a connection that other threads of W's client share: one of these was given a
//!     lease of key 1 earlier, and has it no more. What it computes is as old as its own miss. So a lease is
//!     named by its token, never by its key alone: only the miss of W's is as new as the reply.
//!     (`partial.rs`: `what_another_thread_computes_is_as_old_as_it_is`)
//! 13. W's `get` is answered an error in the end. Its client hears of no lease, and some take an error for a
//!     miss and store: the lease passes on, the record of the miss stays. (`partial.rs`:
//!     `an_error_that_a_client_takes_for_a_miss_stores_nothing_old`)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{
    CircleSearch, Edge, HoldTerms, LateLease, LateNotice, LeaseKind, OldValueReader, WaitAnswer,
    WithdrawReason, WithheldKey,
};
use cattlegrid_protocol::{Get, Keys, Meta, reply};
use cattlegrid_store::Lookup;

use crate::delivered::Verdict;
use crate::engine::Engine;
use crate::parked::{
    GetPiece, LeasedKey, ParkedForm, ParkedRequest, Pending, PieceResult, Progress, ReplyPart, TRIAL_MS,
    count, done_part,
};
use crate::query::{HoldLimits, KeyAnswer, Query};
use crate::reply::get::{AskedKey, GetEnd, GetForm};
use crate::rules::{ActiveRules, Match};
use crate::shard::get::answer_miss;
use crate::shard::mg::{meta_busy, meta_miss, meta_query};
use crate::shard::standing::Standing;
use crate::shard::{Flow, HoldStart, Shard};
use crate::shards::ShardLock;
use crate::step::Context;
use crate::step::Output;

/// How a get waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GetWait {
    /// The get has more than one key.
    pub(crate) many: bool,
    /// The end of the reply, behind the keys.
    pub(crate) end: GetEnd,
    /// Only for what loaders compute: it is a part of a long get.
    pub(crate) only_loaders: bool,
    /// When it began to, in milliseconds since the start, if that was with an earlier part or later parts may
    /// wait too.
    pub(crate) since_ms: Option<u64>,
}

impl GetWait {
    /// The wait of a single get, whose reply has no end of its own.
    pub(crate) const ONE: Self =
        Self { many: false, end: GetEnd::Nothing, only_loaders: false, since_ms: None };
}

/// Writes the parts of a request that is answered after all; `withdrawn`: the answers of the keys that it
/// waited for, by slot.
fn write_parts(parts: Vec<ReplyPart>, mut withdrawn: Vec<(u16, Verdict)>, out: &mut Output) {
    for part in parts {
        match part {
            ReplyPart::Done(done) => out.append(done),
            ReplyPart::Key { asked, slot, .. } => {
                let at = withdrawn.iter().position(|(own, _)| *own == slot);
                asked.write(at.map(|at| withdrawn.swap_remove(at).1), out);
            }
        }
    }
}

/// What is left of a hold that began then.
fn left_ms(hold_ms: u32, since_ms: Option<u64>, now_ms: u64) -> u32 {
    let waited_ms = since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
    hold_ms.saturating_sub(u32::try_from(waited_ms).unwrap_or(u32::MAX))
}

impl Shard {
    /// Answers a leased key for which its get does not wait.
    fn pass_by(&mut self, leased: &LeasedKey<'_>, cx: &mut Context<'_>) {
        self.do_not_wait(&leased.asked, leased.hash, leased.holds.has_old, cx);
        self.with_herd(&mut cx.step, |herd, _| herd.not_waited_for(leased.hash));
    }
}

/// Most keys that one request waits for, or a part of it.
pub(crate) const KEYS_HELD_MAX: usize = 1024;

/// Untrue edges of circles after which a wait is given up (history 5).
const UNTRUE_MAX: usize = 8;

impl Engine {
    /// The rest of a `get` with keys that other clients compute: waits for them if this client has nothing to
    /// compute itself.
    #[cold]
    pub(crate) fn finish_get<'k>(
        &self,
        get: &Get<'k>,
        pending: &Pending<'_>,
        piece: GetPiece,
        left: Option<Keys<'k>>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> PieceResult<'k> {
        let begun = piece.progress.is_begun();
        if !pending.control.is_empty() {
            // A get with a control key does not wait.
            Self::answer_leased(pending, lock, cx);
            lock.release();
            return self.answer_control(pending, left, get.cas, cx);
        }
        if !pending.busy.is_empty() && !begun {
            let _dropped = cx.out.split_off(pending.from);
            reply::line(&mut cx.out.bytes, reply::error::BUSY);
            self.miss_unseen(get.keys.clone().flatten(), pending, lock, cx);
            Self::pass_on_unseen(&pending.computes, lock, cx);
            for leased in &pending.leased {
                let shard = lock.shard(leased.hash);
                shard.with_herd(&mut cx.step, |herd, _| herd.not_waited_for(leased.hash));
            }
            return PieceResult::Done;
        }
        // A client that got a lease must hear of it now, unless its rule lets it wait; and a get that was
        // sent in part is not held, except for what loaders compute.
        let too_many = pending.leased.len() > KEYS_HELD_MAX;
        let many = get.keys.clone().flatten().nth(1).is_some();
        let many_on_trial = many && pending.leased.iter().any(|key| key.holds.on_trial);
        // The keys that are there, or come meanwhile, are withheld, and are recorded as misses if the client
        // gives up (history 8).
        let keys = if many { get.keys.clone().flatten().take(KEYS_HELD_MAX + 1).count() } else { 1 };
        let is_long = begun || keys > KEYS_HELD_MAX || many && !cx.session.can_withhold(keys);
        // What a loader computes is waited for part by part: no client has to hear of a lease.
        let by_loader = pending.leased.iter().any(|key| key.holds.by_loader);
        let must_not_wait = is_long && !(by_loader && cx.session.can_wait_for(keys.min(KEYS_HELD_MAX)));
        if pending.must_answer()
            || !pending.busy.is_empty()
            || too_many
            || must_not_wait
            || many_on_trial && !is_long
        {
            Self::answer_leased(pending, lock, cx);
            if let Some(left) = left {
                return PieceResult::More(left);
            }
            cx.out.bytes.extend_from_slice(reply::END);
            return PieceResult::Done;
        }
        // Other parts need not wait for this one.
        let since_ms = (by_loader && !pending.call_next).then_some(match piece.progress {
            Progress::Waits(since_ms) => since_ms,
            Progress::New | Progress::Begun => cx.step.now.ms,
        });
        let mut wait = GetWait { many: many || begun, end: GetEnd::Classic, only_loaders: is_long, since_ms };
        if let Some(left) = left {
            // The output is full, or a call comes next: what was executed is held, and the rest is answered
            // after it.
            let end = get.keys.rest().len() - left.rest().len();
            let all = Keys::of_rest(&get.keys.rest()[..end]).flatten();
            let pending = pending.of_part();
            wait.end = GetEnd::Nothing;
            return match self.park_get(all, &pending, wait, lock, cx) {
                Some(parked) => PieceResult::ParkedMore(parked, left),
                None => PieceResult::More(left),
            };
        }
        let all = get.keys.clone().flatten();
        let parked = if begun {
            wait.end = GetEnd::Last;
            self.park_get(all, &pending.of_part(), wait, lock, cx)
        } else {
            self.park_get(all, pending, wait, lock, cx)
        };
        parked.map_or(PieceResult::Done, PieceResult::Parked)
    }

    /// Answers the keys that others compute as misses; the same for busy keys when it is too late for an
    /// error.
    pub(crate) fn answer_leased(pending: &Pending<'_>, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        for (asked, _) in &pending.busy {
            // Its miss is recorded already.
            answer_miss(asked, Lookup::Absent, cx);
        }
        // Old values are written at their keys' places.
        let has_old = pending.leased.iter().any(|leased| leased.holds.has_old);
        let places = pending.leased.iter().rev().map(|leased| leased.at).filter(|_| has_old);
        let mut cuts: Vec<Output> = places.map(|at| cx.out.split_off(at)).collect();
        for leased in &pending.leased {
            let shard = lock.shard(leased.hash);
            shard.pass_by(leased, cx);
            if let Some(cut) = cuts.pop() {
                cx.out.append(cut);
            }
        }
    }

    /// Lets a get wait for those of its keys that other clients compute. `all`: its keys. None: it is
    /// answered after all.
    pub(crate) fn park_get<'k>(
        &self,
        all: impl Iterator<Item = &'k [u8]>,
        pending: &Pending<'_>,
        GetWait { many, end, only_loaders, since_ms }: GetWait,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<ParkedRequest>> {
        let waits_for = |key: &LeasedKey<'_>| key.holds.by_loader || !only_loaders;
        let touches = pending.leased.iter().any(|leased| leased.asked.touches());
        let hold_of = |key: &LeasedKey<'_>| if many { key.holds.many_ms } else { key.holds.one_ms };
        // Keys without a value decide; old ones wait no longer than these.
        let waited_for = || pending.leased.iter().filter(|key| waits_for(key));
        let without = waited_for().filter(|key| !key.holds.has_old).map(hold_of).min();
        let hold_ms = without.or_else(|| waited_for().map(hold_of).min()).unwrap_or(0);
        let hold_ms = left_ms(hold_ms, since_ms, cx.step.now.ms);
        let behind_ms = waited_for().map(|key| key.holds.behind_ms).min().unwrap_or(0);
        // The output so far, cut at the places of the keys that may wait.
        let mut cuts = Vec::with_capacity(pending.leased.len() + 1);
        for leased in pending.leased.iter().rev() {
            cuts.push(cx.out.split_off(leased.at));
        }
        cuts.push(cx.out.split_off(pending.from));
        let (mut parts, mut waits, mut busy) = (Vec::new(), 0, false);
        let (mut computes, partial_waits) = (pending.computes.clone(), pending.partial_waits());
        for (slot, leased) in pending.leased.iter().enumerate() {
            push_done(&mut parts, cuts.pop());
            let slot = slot as u16;
            let shard = lock.shard(leased.hash);
            if !waits_for(leased) {
                shard.pass_by(leased, cx);
                done_part(&mut parts, cx, pending.from);
                continue;
            }
            match shard.hold_key(
                &leased.asked,
                leased.hash,
                (slot, many),
                (hold_ms, leased.holds.has_old),
                cx,
            ) {
                HoldStart::Waits => {
                    parts.push(ReplyPart::Key { slot, asked: leased.asked.to_owned(), verdict: None });
                    waits += 1;
                }
                HoldStart::Written => done_part(&mut parts, cx, pending.from),
                HoldStart::Compute => {
                    computes.push((leased.hash, cx.session.last_lease(leased.hash).unwrap_or(0)));
                    done_part(&mut parts, cx, pending.from);
                }
                HoldStart::Busy if end == GetEnd::Classic => busy = true,
                HoldStart::Busy => {
                    leased.asked.write_error(reply::error::BUSY, &mut cx.out.bytes);
                    done_part(&mut parts, cx, pending.from);
                }
            }
        }
        push_done(&mut parts, cuts.pop());
        if waits > 0 && (computes.is_empty() || partial_waits) && !busy {
            if many {
                self.withhold(all, pending, lock, cx);
            }
            let mut deadline = cx.step.now.ms + u64::from(hold_ms);
            let full_ms = waited_for().any(|key| key.holds.on_trial).then_some(deadline);
            if full_ms.is_some() {
                deadline = cx.step.now.ms + u64::from(hold_ms.min(TRIAL_MS));
            }
            let form = ParkedForm::Get { parts, end };
            self.check_circle(lock, cx);
            let parked = ParkedRequest::new(cx.ticket.request, deadline, behind_ms, touches, form);
            let waits = |(hash, token)| {
                let extend = lock.shard(hash).with_herd(&mut cx.step, |herd, _| {
                    let key = herd.extend(hash, token, deadline)?;
                    Some(LateLease { key, hash, token, told: LateNotice::Waits(deadline) })
                });
                extend.flatten()
            };
            let computes = computes.into_iter().filter_map(waits).collect();
            let parked = if many && partial_waits { parked.partial(computes) } else { parked };
            return Some(Box::new(parked.on_trial(full_ms).since(since_ms)));
        }
        let withdrawn = Self::withdraw_request(cx.ticket.request, lock, cx);
        if busy {
            let waited_for = Pending { leased: Vec::new(), ..pending.of_part() };
            self.miss_unseen(all, &waited_for, lock, cx);
            Self::pass_on_unseen(&computes, lock, cx);
            reply::line(&mut cx.out.bytes, reply::error::BUSY);
            return None;
        }
        for (_, verdict) in &withdrawn {
            count(verdict, touches, cx.step.counters);
        }
        write_parts(parts, withdrawn, cx.out);
        end.write(&mut cx.out.bytes);
        None
    }

    /// Withholds the keys of a request that are there while it waits for the others (history 8).
    fn withhold<'k>(
        &self,
        all: impl Iterator<Item = &'k [u8]>,
        pending: &Pending<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) {
        for key in all {
            let hash = self.hash_key(key);
            if !pending.leased.iter().any(|leased| leased.hash == hash) {
                lock.shard(hash).withhold(key, hash, cx);
            }
        }
    }

    /// Records the keys of a request as misses that its client does not see since it is answered an error:
    /// those that are there, and those that others compute.
    fn miss_unseen<'k>(
        &self,
        all: impl Iterator<Item = &'k [u8]>,
        pending: &Pending<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) {
        for key in all {
            let hash = self.hash_key(key);
            let is_leased = pending.leased.iter().any(|leased| leased.hash == hash);
            lock.shard(hash).miss_unseen(key, hash, is_leased, cx);
        }
    }

    /// Passes leases on of which a client does not hear, since it is answered an error.
    fn pass_on_unseen(computes: &[(u64, u64)], lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        for (hash, token) in computes.iter().copied() {
            let late = LateLease { key: Box::default(), hash, token, told: LateNotice::Never };
            lock.shard(hash).tell_late(&late, cx);
        }
    }

    /// Takes back all waits of a request that is answered after all. Returns what each key is answered, by
    /// slot.
    fn withdraw_request(request: u64, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) -> Vec<(u16, Verdict)> {
        let mut answers = Vec::new();
        let own: Vec<_> = cx.session.waits().iter().filter(|wait| wait.request == request).copied().collect();
        for wait in &own {
            let shard = lock.shard(wait.hash);
            let verdict = shard.withdraw(wait, WithdrawReason::Answered, cx).unwrap_or_else(|| {
                // History 3: its wake finds no request, but the client is answered a miss all the same.
                shard.note_decided(wait, cx);
                Verdict::Miss { record: None, hint: None }
            });
            if let Some(record) = verdict.record() {
                cx.session.record(*record, cx.step.now.ms);
            }
            answers.push((wait.slot, verdict));
            cx.session.end_wait(wait.request, wait.slot);
        }
        answers
    }

    /// Records what this connection's client does not see, begins the time of leases of which it is told only
    /// now, and ends circles. The caller calls this when requests of the connection were told the results of
    /// their keys ([`needs_a_look`](cattlegrid_herd::Session::needs_a_look)).
    pub fn look_at_waits(&self, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        let unseen = cx.session.take_unseen();
        Self::record_withheld(unseen, lock, cx);
        let late = cx.session.take_late();
        if !late.is_empty() {
            for late in &late {
                lock.shard(late.hash).tell_late(late, cx);
            }
            self.finish_step(lock, &mut cx.step);
        }
        self.check_circle(lock, cx);
    }

    /// Ends a circle of connections that wait for each other (histories 4 to 6). The caller calls this when
    /// this connection has begun to wait, or was given a lease while it waits. If the connection is part of a
    /// circle, it gives up a wait of its own, as a miss.
    pub fn check_circle(&self, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        let graph = &self.shared().graph;
        let mut walk = cx.session.publish(graph);
        let mut untrue = Vec::new();
        let hash = loop {
            match walk {
                CircleSearch::Clear => return,
                CircleSearch::Circle(edges) if untrue.len() < UNTRUE_MAX => {
                    // History 5: what was published may be out of date; a real circle stays.
                    let is_untrue = |edge: &&Edge| {
                        let herd = lock.shard(edge.hash).herd.as_ref();
                        herd.and_then(|herd| herd.holder(edge.hash)) != Some(edge.holder)
                    };
                    match edges.iter().find(is_untrue) {
                        Some(edge) => untrue.push(*edge),
                        None => break edges[0].hash,
                    }
                    walk = graph.look_again(cx.session.caller().number(), &untrue);
                }
                CircleSearch::Circle(_) | CircleSearch::TooLong => match cx.session.waits().last() {
                    Some(wait) => break wait.hash,
                    None => return,
                },
            }
        };
        let Some(wait) = cx.session.waits().iter().find(|wait| wait.hash == hash).copied() else {
            return;
        };
        // Its wake is on the way in any case; with it comes another search, if it waits for more.
        lock.shard(hash).give_up(&wait, WithdrawReason::Circle, cx);
        self.finish_step(lock, &mut cx.step);
    }

    /// Answers what is still open of a parked request whose time is up. A wait that was decided elsewhere at
    /// the same moment comes as a wake (history 2); it must not be expired again.
    pub fn expire(&self, parked: &mut ParkedRequest, cx: &mut Context<'_>) {
        self.end_waits(parked, false, cx);
    }

    /// Answers a parked request at once: its connection sends no more, or the server stops.
    pub fn release(&self, parked: &mut ParkedRequest, cx: &mut Context<'_>) {
        self.end_waits(parked, true, cx);
    }

    fn end_waits(&self, parked: &mut ParkedRequest, released: bool, cx: &mut Context<'_>) {
        if parked.end_bump() || !released && parked.extend_trial(cx.session) {
            return;
        }
        let mut lock = self.shard_lock();
        let request = parked.request();
        // Its client may have given up: then it may compute the keys that it has not seen (history 8).
        let mut withheld = if released { cx.session.take_withheld(Some(request)) } else { Vec::new() };
        let own: Vec<_> = cx.session.waits().iter().filter(|wait| wait.request == request).copied().collect();
        for wait in own {
            if let Some(verdict) = lock.shard(wait.hash).expire(&wait, released, cx) {
                if verdict.record().is_some() {
                    forget_one(&mut withheld, wait.hash);
                }
                parked.resolve(wait.slot, verdict, cx.session, cx.step.now.ms, cx.step.counters);
            }
        }
        Self::record_withheld(withheld, &mut lock, cx);
        self.finish_step(&mut lock, &mut cx.step);
        parked.never_again();
    }

    /// Ends the session of a closed connection; `orderly`: its client said so. Its waits end, its leases
    /// pass on (histories 7 to 9).
    pub fn leave(&self, orderly: bool, cx: &mut Context<'_>) {
        let connection = cx.session.caller().number();
        cx.session.caller().set_gone();
        cx.session.unpublish(&self.shared().graph);
        let waits = cx.session.waits().to_vec();
        let records = cx.session.take_records();
        let observed = cx.session.take_observed();
        if waits.is_empty() && records.is_empty() && observed.is_empty() {
            return;
        }
        let mut lock = self.shard_lock();
        for hash in observed {
            lock.shard(hash).observe_close(hash, connection, orderly, &cx.step);
        }
        let mut withheld = cx.session.take_withheld(None);
        for wait in waits {
            let recorded = lock.shard(wait.hash).with_herd(&mut cx.step, |herd, step| {
                herd.forget_waiter(wait.hash, wait.waiter, connection, &records, step)
            });
            if recorded == Some(true) {
                forget_one(&mut withheld, wait.hash);
            }
            cx.session.end_wait(wait.request, wait.slot);
        }
        Self::record_withheld(withheld, &mut lock, cx);
        // Its misses stay in the ledger: in a pool the fill comes on another connection.
        for record in records.iter().filter(|record| record.leased) {
            lock.shard(record.hash).with_herd(&mut cx.step, |herd, step| {
                herd.holder_closed(record.hash, connection, orderly, step);
            });
        }
        self.finish_step(&mut lock, &mut cx.step);
        debug_assert!(cx.session.waits().is_empty());
    }

    /// Records what was withheld from a client that gave up as misses (history 8).
    fn record_withheld(withheld: Vec<WithheldKey>, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        for WithheldKey { hash, number, window_ms } in withheld {
            let now_ms = cx.step.now.ms;
            if let Some(herd) = &mut lock.shard(hash).herd {
                let record = herd.record_since(hash, number, window_ms, now_ms);
                cx.session.record(record, now_ms);
            }
        }
    }
}

/// The miss of this key is recorded already.
fn forget_one(withheld: &mut Vec<WithheldKey>, hash: u64) {
    if let Some(at) = withheld.iter().position(|one| one.hash == hash) {
        withheld.swap_remove(at);
    }
}

fn push_done(parts: &mut Vec<ReplyPart>, done: Option<Output>) {
    parts.extend(done.filter(|done| !done.is_empty()).map(ReplyPart::Done));
}

impl Shard {
    /// After [`Decision::Leased`]: waits for the key, if that can help. `found`: the value that it has;
    /// `slot`: which of the request's keys it is; `many`: that has several; `touch`: the exptime that the
    /// value gets.
    fn hold(
        &mut self,
        query: &Query<'_>,
        ruled: &Match<'_>,
        found: LeaseKind,
        (slot, many, touch): (u16, bool, Option<i64>),
        cx: &mut Context<'_>,
    ) -> WaitAnswer {
        let hold_ms = query.hold_ms(ruled.state.policy().hold_ms);
        let tags = self.tags_of(ruled.rule, &ruled.captures);
        let ask = self.ask(query, ruled, &tags, found, hold_ms, cx);
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        let room = waiting < self.shared.waiting_max.load(Ordering::Relaxed);
        let hold = HoldTerms { request: cx.ticket.request, slot, touch, room, many };
        let session = &mut *cx.session;
        let waited = self.with_herd(&mut cx.step, |herd, step| herd.wait(&ask, &hold, session, step));
        let waited = waited.expect("rules come with herds");
        if let WaitAnswer::Miss(record) | WaitAnswer::Busy(record) = &waited {
            cx.session.record(*record, cx.step.now.ms);
        }
        waited
    }

    /// After [`KeyAnswer::Leased`]: waits for the key, for at most `hold_ms` milliseconds; `many`: as one of
    /// several; `has_old`: it had an old value. The shard's lock may have been released since, so the key is
    /// looked up again (history 1).
    pub(crate) fn hold_key(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        (slot, many): (u16, bool),
        (hold_ms, has_old): (u32, bool),
        cx: &mut Context<'_>,
    ) -> HoldStart {
        let key = asked.key;
        self.advance(&cx.step);
        let active = self.shared.rules();
        let lookup = self.lookup(hash, key, &cx.step);
        let found = if let Lookup::Found(found) = lookup { Some(found) } else { None };
        let Some(ruled) = active.as_ref().and_then(|active: &Arc<ActiveRules>| active.find(key)) else {
            // The rules have changed in between.
            return self.ask_again(asked, hash, lookup, cx).unwrap_or(HoldStart::Written);
        };
        let standing =
            found.map_or(Standing::Absent, |found| self.standing(found, hash, Some(ruled.state), &cx.step));
        let leased = self.herd.as_ref().is_some_and(|herd| herd.is_leased(hash, key));
        let (is_same, kind) = match standing {
            Standing::Absent => (!has_old, LeaseKind::Absent),
            Standing::Past => (!has_old, LeaseKind::Past),
            Standing::Stale => (has_old, LeaseKind::Stale),
            Standing::Negative | Standing::Fresh | Standing::Early => (false, LeaseKind::Absent),
        };
        if !is_same || !leased {
            // Otherwise another client has the lease again; or the rule has no free slot.
            if let Some(held) = self.ask_again(asked, hash, lookup, cx) {
                return held;
            }
        }
        let query = Query { hold_ms: Some(hold_ms), ..asked.query(hash) };
        match self.hold(&query, &ruled, kind, (slot, many, asked.touch), cx) {
            WaitAnswer::Waits(_) => HoldStart::Waits,
            WaitAnswer::Old => {
                self.answer_old(asked, hash, cx);
                HoldStart::Written
            }
            WaitAnswer::Miss(_) => {
                answer_miss(asked, lookup, cx);
                HoldStart::Written
            }
            WaitAnswer::Busy(_) => HoldStart::Busy,
        }
    }

    /// Asks again for a key that was leased when it was asked for first. None: it is leased.
    fn ask_again(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) -> Option<HoldStart> {
        let answer = match asked.form {
            GetForm::Meta(meta) => self.meta_ask_again(meta, hash, lookup, cx),
            _ => self.get_ruled(asked, hash, lookup, cx),
        };
        match answer {
            KeyAnswer::Compute => Some(HoldStart::Compute),
            KeyAnswer::Busy => Some(HoldStart::Busy),
            // Its type was switched on in between.
            KeyAnswer::Object(_) => {
                answer_miss(asked, lookup, cx);
                Some(HoldStart::Written)
            }
            KeyAnswer::Hit | KeyAnswer::Miss | KeyAnswer::Control => Some(HoldStart::Written),
            KeyAnswer::Leased(_) => None,
        }
    }

    /// Answers a key that is not waited for after [`KeyAnswer::Leased`] as a miss, or with its old value.
    pub(crate) fn do_not_wait(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        has_old: bool,
        cx: &mut Context<'_>,
    ) {
        if has_old {
            return self.answer_old(asked, hash, cx);
        }
        let active = self.shared.rules();
        if let Some(ruled) = active.as_ref().and_then(|active| active.find(asked.key)) {
            self.record_miss(hash, &ruled, cx);
        }
        answer_miss(asked, Lookup::Absent, cx);
    }

    /// Answers a key with its old value, if it is there still.
    fn answer_old(&mut self, asked: &AskedKey<'_>, hash: u64, cx: &mut Context<'_>) {
        let old = OldValueReader { key: asked.key.into(), hash, how: asked.query(hash).how };
        let verdict = self.old_or_miss(&old, &mut cx.step);
        if let Some(record) = verdict.record() {
            cx.session.record(*record, cx.step.now.ms);
        }
        count(&verdict, asked.touches(), cx.step.counters);
        (*asked).to_owned().write(Some(verdict), cx.out);
    }

    /// Waits for the key of an `mg` after [`Flow::Leased`].
    pub(crate) fn meta_wait(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        holds: HoldLimits,
        cx: &mut Context<'_>,
    ) -> Flow {
        let asked = AskedKey::meta(meta);
        let active = self.shared.rules();
        let Some(ruled) = active.as_ref().and_then(|active| active.find(asked.key)) else {
            // The rules have changed in between.
            return meta_miss(meta, cx);
        };
        let found = if holds.has_old { LeaseKind::Stale } else { LeaseKind::Absent };
        match self.hold(&meta_query(meta, hash, cx), &ruled, found, (0, false, asked.touch), cx) {
            WaitAnswer::Old => {
                self.answer_old(&asked, hash, cx);
                Flow::Replied
            }
            WaitAnswer::Waits(_) => {
                let full = cx.step.now.ms + u64::from(holds.one_ms);
                let deadline =
                    if holds.on_trial { full.min(cx.step.now.ms + u64::from(TRIAL_MS)) } else { full };
                let part = ReplyPart::Key { slot: 0, asked: asked.to_owned(), verdict: None };
                let form = ParkedForm::Get { parts: vec![part], end: GetEnd::Nothing };
                let parked =
                    ParkedRequest::new(cx.ticket.request, deadline, holds.behind_ms, asked.touches(), form);
                Flow::Parked(Box::new(parked.on_trial(holds.on_trial.then_some(full))))
            }
            WaitAnswer::Miss(_) => meta_miss(meta, cx),
            WaitAnswer::Busy(_) => meta_busy(cx),
        }
    }
}
