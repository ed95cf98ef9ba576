//! How a lease ends, or passes on to the first waiter: its value comes, its holder gives up, is closed or is
//! late, its key is invalidated.
//!
//! A lease whose right is withdrawn passes to the first waiter of its queue, under a new token
//! ([`Herd::admit`] and the private `pass_on`); without waiters it ends. A lease whose value was stored ends,
//! and its waiters get the value ([`Herd::stored`]). The token of a lease that ended unfilled is kept for a
//! fill window, so that a late fill is recognised.
//!
//! # Histories
//! H is the holder, W the first waiter, V another waiter, X a client without a wait. A number behind "at" is
//! the clock's: the lease's token, or the number of an event. The tests named are in the engine's `tests/`;
//! `late.rs` is in this crate's.
//!
//! 1. H misses at 5 and is the holder; W waits. H's connection is reset: the lease passes to W under token 6,
//!    at once. After an orderly close H's pool may send the value on another connection: the lease passes on
//!    only when `close_grace_ms` are over, unless the value comes first. (`herd.rs`:
//!    `the_next_waiter_gets_the_lease_when_the_holder_closes`)
//! 2. H misses at 5, W and V wait. The deadline passes: the lease passes to W under token 6. H stores late,
//!    and no event came after 5: the value is stored, V gets it, and W's lease ends, filled by another
//!    client. W still computes: token 6 is kept, and W's value replaces H's. (`herd.rs`:
//!    `the_deadline_promotes_and_the_others_go_on_waiting`)
//! 3. H misses at 5, W waits. X deletes at 6: the lease passes to W under token 7. H stores: its fill counts
//!    as of 5 and is dropped. H is no longer the holder, so W's lease goes on. (`fences.rs`:
//!    `a_value_computed_before_a_delete_is_never_served`)
//! 4. H misses at 5, W waits. X flushes, or bumps a tag of the key, at 6: no shard is told. The next get of
//!    the key finds 5 < 6 and revokes the lease before it is answered; without a get, the engine's timer
//!    does. (`fences.rs`: `flushes_revoke_leases`, `tags.rs`:
//!    `a_get_sent_after_a_bump_does_not_get_a_value_computed_before_it`)
//! 5. H misses at 5, W waits. X stores without having asked: W gets X's value and the lease ends. (`herd.rs`:
//!    `an_absent_key_stays_absent_while_it_is_computed`)
//! 6. H misses at 5, W waits. X invalidates softly at 6: W is the holder under token 7. V begins to wait at
//!    7. H stores: its fill counts as of 5 < 6 and is stored stale. It goes to waiters that began before 6
//!    only; V waits for W's value. Also if X invalidates softly once more, at 8: the first event that is
//!    newer than the value counts. (`fences.rs`: `soft_invalidation_makes_a_late_fill_stale`)
//! 7. H misses at 5, W waits. A fill is dropped, because it may be older than an event, and there is no
//!    value: the lease passes to W. If it was not H's fill, H computes on, and one more computation shows
//!    sooner what the value is. If there is a value, or it is known to which miss the fill belongs, only the
//!    filler's own lease ends. (`ends.rs`: `a_dropped_fill_passes_the_lease_on`)
//! 8. H's value is refused, because it is too large or there is no memory. The lease counts as unfilled; the
//!    delete that follows passes it on. (`ends.rs`: `a_value_that_is_always_refused_is_let_pass`)
//! 9. H's connection is reset on one thread, and the lease passes to W. On another thread W's connection is
//!    closed before the wake arrives: no record of W's session says that it is the holder.
//!    `Herd::forget_waiter` does not find W in the queue, finds it as the holder, and passes the lease on to
//!    V. (`shuttle.rs`: `promote_and_close`)
//! 10. W's get is answered at once, because of another of its keys, after its wait was decided on another
//!     thread. `Herd::withdraw` does not find W in the queue; `Herd::promoted` then records the lease, if W
//!     has got it, as W's. Its miss is recorded for a fill window even if the deadline has passed and the
//!     timer has not acted on it. (`late.rs`: `the_miss_of_a_lease_whose_time_is_up_ends_with_its_window`)
//! 11. Of a rule with `rule_computers`, a lease is queued for a slot, and W waits for it. A slot becomes free
//!     in another shard, and the admission is on its way. W's time is up first: the lease ends for lack of
//!     waiters. The admission finds no lease, or one of another token, and gives the slot to the next in the
//!     queue. (`shuttle.rs`: `a_slot_passes_over_a_waiter_that_closes`, `herd.rs`:
//!     `a_slot_is_not_lost_on_a_key_without_waiters`)
//! 12. H computes two keys of such a rule, the second one beyond the limit; W waits for it. Its lease is
//!     revoked: W has no computation of its own that it could be nested in, so the lease is queued, with its
//!     waiters. (`slots.rs`: `a_nested_lease_that_passes_on_waits_for_a_slot`)
//! 13. H's lease ends unfilled by its deadline, the last one that the rule allows in a row: the key is let
//!     pass. Its waiters are not made holders one after the other: all get misses. (`ends.rs`:
//!     `each_held_get_ends_in_one_counter`)
//! 14. H reports a failure by its token while W and V wait. A waiter that asked for the lease gets the text:
//!     that is a miss, which is recorded, since its client may compute the value. The first of the other
//!     waiters is the holder. H's own miss is taken off the record by its token. (`tokens.rs`:
//!     `an_error_reaches_the_clients_that_asked_for_the_lease`, `an_answer_with_a_failure_counts_as_a_miss`)
//! 15. H gets token 5, and X misses while the clock shows 5: its miss has the same number. H stores with its
//!     token after its own miss has aged out: X's miss stays open. (`tokens.rs`:
//!     `a_token_used_after_its_window_takes_no_other_miss_with_it`)
//! 16. The rules change while W waits, and none of the new ones leases the key: a `set` would not look for
//!     waiters. W gets a miss. (`ends.rs`: `waiters_under_a_removed_rule_are_answered`)
//! 17. The shard has no room for another lease, and clients hold leases that they asked for by name for a
//!     long time, without waiters. X misses another key: the lease that is due last is ended to make room.
//!     Its token is kept, and its holder can still store. (`slots.rs`:
//!     `leases_that_were_asked_for_too_long_make_room`)
//! 18. Of a rule with `grace_on_error`: there is an old value, within its grace or past it. H computes, W
//!     waits. H says that it has failed, or its time is up: W gets the old value. Until a back-off is over
//!     all gets do; then X gets the lease, and the others still get the old value. (`grace.rs`:
//!     `an_old_value_is_served_while_computing_fails`)

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{EndedLease, Herd};
use crate::ask::{Ask, Filler, HerdStep, JobOrder, Role, StaleFill, Verdict};
use crate::connection::{MissRecord, Session};
use crate::lease::{Closed, Grant, Holder, Lease, LeaseKind, RemovedLease, Waiter, WaiterId, lease_ms};
use crate::ledger::{Events, Surroundings};
use crate::rule::{Admission, RuleState, count};

/// Waiters that are searched for a reply that is the next of its connection.
const FRONT_SEARCH: usize = 64;
/// Leases that are searched for one to displace, from the latest deadline on.
const DISPLACED_LOOKS: usize = 16;

impl Herd {
    /// Gives a free slot of its rule to this lease (history 11). If the lease is gone, the slot is for the
    /// next.
    pub fn admit<V>(&mut self, admitted: &Admission, step: &mut HerdStep<'_, V>) {
        self.drop_if_deserted(admitted.hash);
        let lease = self.leases.get(admitted.hash);
        if lease.is_some_and(|l| l.token == admitted.token && !l.holder.computes()) {
            self.pass_on(admitted.hash, &|counters| &counters.promoted_slot, step);
        } else {
            step.effects.admitted.extend(admitted.rule.give_back_admitted());
        }
    }

    /// Makes the first waiter the holder (histories 1, 2, 3); without waiters the lease ends. `cause`: counts
    /// the promotion.
    pub(super) fn pass_on<V>(
        &mut self,
        hash: u64,
        cause: &dyn Fn(&crate::policy::RuleCounters) -> &AtomicU64,
        step: &mut HerdStep<'_, V>,
    ) {
        let Some(mut removed) = self.leases.remove(hash) else { return };
        if removed.lease.rule.policy().loader {
            return self.load_again(hash, removed, step);
        }
        let lease = &mut *removed.lease;
        let computes = lease.holder.computes();
        if computes && lease.kind == LeaseKind::Absent && self.passes.passes(hash, step.now_ms) {
            return self.send_all(hash, removed, &|counters| &counters.held_passed, step);
        }
        let (old_token, old_until) = (lease.token, lease.missed_until_ms);
        let front = |waiter: &Waiter| waiter.caller.front() == waiter.request;
        // A waiter whose reply is the next of its connection is answered at once; any other within
        // `hold_behind`.
        let first = self
            .waiters
            .find(&lease.queue, FRONT_SEARCH, front)
            .or_else(|| self.waiters.find(&lease.queue, 1, |_| true))
            .map(|(at, waiter)| (at, waiter.caller.number()));
        let rule = Arc::clone(&lease.rule);
        let Some((at, connection)) = first else {
            return self.end(hash, removed, false, step);
        };
        let token = step.clock.tick();
        match lease.holder.connection() {
            // It was admitted.
            None => rule.take_admitted(Some(connection)),
            Some(old) if rule.pass_slot(old, connection, (hash, token)) => {}
            Some(_) => return self.queue_again(hash, removed, token, step),
        }
        let waiter = self.waiters.take(&mut lease.queue, at);
        lease.token = token;
        lease.holder = Holder::new(&waiter.caller, waiter.how);
        lease.closing = false;
        lease.reentries = 0;
        lease.tried = false;
        lease.join(step.now_ms);
        lease.deadline_ms = step.now_ms + u64::from(lease_ms(waiter.how, &rule));
        // The old holder may still compute: the time of the new one is no measure.
        if let Some(begun) = lease.begun.replace(rule.begin(step.now_ms)) {
            rule.end(&begun, false, None, step.now_ms);
        }
        let hint = lease.hint.clone();
        self.leases.put_back(hash, removed);
        count(cause(rule.counters()));
        rule.counters().waited(step.now_ms.saturating_sub(waiter.since_ms));
        self.end_token(hash, old_token, old_until, &rule, step.now_ms);
        let record = self.record(hash, token, true, Events::default(), &rule, step);
        step.effects.wake(waiter, Verdict::lease(Grant::new(record, hint)));
    }

    /// Ends a lease that waits for its slot and has no waiter.
    pub(super) fn drop_if_deserted(&mut self, hash: u64) {
        let is_deserted = |lease: &Lease| !lease.holder.computes() && lease.queue.len() == 0;
        if self.leases.get(hash).is_some_and(is_deserted)
            && let Some(removed) = self.leases.remove(hash)
        {
            let lease = removed.end();
            self.limit.give(lease.rule.leases());
            lease.rule.leave_queue(lease.token);
        }
    }

    /// Ends the wait of a closed connection; `heard`: the records of the leases that it was told of. False:
    /// its wait was decided already, and its miss is not recorded by this call.
    pub fn forget_waiter<V>(
        &mut self,
        hash: u64,
        id: WaiterId,
        connection: u64,
        heard: &[MissRecord],
        step: &mut HerdStep<'_, V>,
    ) -> bool {
        let Some(lease) = self.leases.get_mut(hash) else { return false };
        if let Some(waiter) = self.waiters.unlink(&mut lease.queue, id) {
            // A client that gives up waiting may compute, and its fill comes on another connection.
            let rule = Arc::clone(&lease.rule);
            rule.counters().waited(step.now_ms.saturating_sub(waiter.since_ms));
            count(&rule.counters().held_gone);
            self.record_since(hash, waiter.since, rule.fill_window_ms(), step.now_ms);
            self.drop_if_deserted(hash);
            return true;
        }
        // History 9 of `end`: it was promoted and never hears of it. Its miss stays recorded.
        let token = lease.token;
        if lease.holder.is(connection) && !heard.iter().any(|record| record.number == token) {
            self.pass_on(hash, &|counters| &counters.promoted_close, step);
        }
        false
    }

    /// A get of several keys does not wait for this key after all.
    pub fn not_waited_for(&mut self, hash: u64) {
        self.drop_if_deserted(hash);
    }

    /// Makes a client that was answered a miss, and now asks for the lease, the holder that knows the token.
    /// What it stores by the miss of before is judged by that.
    pub(super) fn take_over<V>(
        &mut self,
        ask: &Ask<'_>,
        session: &Session,
        step: &mut HerdStep<'_, V>,
    ) -> Role {
        let mut removed = self.leases.remove(ask.hash).expect("it was found");
        let token = step.clock.tick();
        let lease = &mut *removed.lease;
        let (old_token, old_until, rule) = (lease.token, lease.missed_until_ms, Arc::clone(&lease.rule));
        lease.token = token;
        lease.holder = Holder::new(session.caller(), ask.how);
        (lease.reentries, lease.tried) = (0, false);
        lease.deadline_ms = step.now_ms + u64::from(lease_ms(ask.how, &rule));
        if let Some(begun) = lease.begun.replace(rule.begin(step.now_ms)) {
            rule.end(&begun, false, None, step.now_ms);
        }
        if lease.hint.is_none() {
            lease.hint = ask.hint.map(Into::into);
        }
        let hint = lease.hint.clone();
        self.leases.put_back(ask.hash, removed);
        self.end_token(ask.hash, old_token, old_until, &rule, step.now_ms);
        let record = self.record(ask.hash, token, true, ask.outside, &rule, step);
        Role::Compute(Grant::new(record, hint))
    }

    /// Queues a lease whose holder is gone for a slot, with its waiters (history 12): it was nested in
    /// another computation of the holder's, or the limit is lower now.
    pub(super) fn queue_again<V>(
        &mut self,
        hash: u64,
        mut removed: RemovedLease,
        token: u64,
        step: &HerdStep<'_, V>,
    ) {
        let lease = &mut *removed.lease;
        let (old_token, old_until, rule) = (lease.token, lease.missed_until_ms, Arc::clone(&lease.rule));
        (lease.token, lease.holder, lease.deadline_ms) = (token, Holder::Queued, u64::MAX);
        (lease.closing, lease.tried, lease.reentries, lease.missed_until_ms) = (false, false, 0, 0);
        if let Some(begun) = lease.begun.take() {
            rule.end(&begun, false, None, step.now_ms);
        }
        self.leases.put_back(hash, removed);
        if !rule.policy().loader {
            self.end_token(hash, old_token, old_until, &rule, step.now_ms);
        }
    }

    /// Ends a lease that was taken out. Its waiters must have been taken before.
    pub(super) fn end<V>(
        &mut self,
        hash: u64,
        removed: RemovedLease,
        filled: bool,
        step: &mut HerdStep<'_, V>,
    ) {
        let lease = removed.end();
        self.limit.give(lease.rule.leases());
        debug_assert_eq!(lease.queue.len(), 0, "the waiters have been taken");
        if let Some(begun) = &lease.begun {
            let joined_ms = lease.joined_ms.filter(|_| lease.computers > 1);
            lease.rule.end(begun, filled, joined_ms, step.now_ms);
        }
        match lease.holder.connection() {
            Some(connection) => step.effects.admitted.extend(lease.rule.finish_slot(Some(connection))),
            // The slot is its job's.
            None if lease.holder.is_loader() => {}
            None => lease.rule.leave_queue(lease.token),
        }
        if lease.job_out {
            step.effects.jobs.push(JobOrder::Cancel { token: lease.token });
        }
        if !filled && !lease.rule.policy().loader {
            self.end_token(hash, lease.token, lease.missed_until_ms, &lease.rule, step.now_ms);
        }
    }

    /// Keeps the token of a lease that ended unfilled; `missed_until_ms`: until then its miss counts in the
    /// ledger.
    pub(super) fn end_token(
        &mut self,
        hash: u64,
        token: u64,
        missed_until_ms: u64,
        rule: &RuleState,
        now_ms: u64,
    ) {
        if self.ended_order.len() >= self.ended_max
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        let until = self.ledger.miss_ms(now_ms) + u64::from(rule.fill_window_ms());
        if self.ended.insert(token, EndedLease { hash, until_ms: until, missed_until_ms }).is_none() {
            self.ended_order.push_back(token);
        }
    }

    /// A value was stored, by a fill or by any other write: returns the waiters that get it. Waiters that
    /// began after a soft event that is newer than a stale one do not get it (history 6).
    pub fn stored<V>(
        &mut self,
        hash: u64,
        key: &[u8],
        by: Filler,
        stale: Option<StaleFill>,
        step: &mut HerdStep<'_, V>,
    ) -> Vec<Waiter> {
        let Some(lease) = self.leases.of_key(hash, key) else {
            self.passes.filled(hash);
            return Vec::new();
        };
        let mut got = Vec::new();
        // The queue is in order of arrival.
        let before = |waiter: &Waiter| stale.is_none_or(|stale| stale.is_for(waiter.since, waiter.softened));
        while let Some(waiter) = self.waiters.pop_if(&mut lease.queue, 1, before) {
            got.push(waiter);
        }
        let counters = lease.rule.counters();
        for waiter in &got {
            counters.waited(step.now_ms.saturating_sub(waiter.since_ms));
            count(&counters.computes_saved);
            count(&counters.held_filled);
        }
        let by_holder = lease.holder.may_be_filler(lease.token, by, lease.computers);
        if stale.is_none() {
            self.passes.filled(hash);
            self.end_filled(hash, by_holder, step);
            return got;
        }
        lease.kind = LeaseKind::Stale;
        if by_holder {
            self.pass_on(hash, &|counters| &counters.promoted_gave_up, step);
        }
        self.drop_if_deserted(hash);
        got
    }

    fn end_filled<V>(&mut self, hash: u64, by_holder: bool, step: &mut HerdStep<'_, V>) {
        let Some(removed) = self.leases.remove(hash) else { return };
        let lease = &removed.lease;
        let (token, until, rule) = (lease.token, lease.missed_until_ms, Arc::clone(&lease.rule));
        let by_loader = rule.policy().loader;
        // History 5: the holder still computes, and its fill must be recognised.
        self.end(hash, removed, by_holder, step);
        if by_loader {
            // A job's result counts only while its lease stands.
        } else if by_holder {
            self.ended.remove(&token);
        } else {
            self.end_token(hash, token, until, &rule, step.now_ms);
        }
    }

    /// Takes a token out of use: it was used for a fill, or its computation has failed. Its miss is taken off
    /// the record, if it still counts: later another miss may have noted the same number (history 15). True:
    /// a provisional value of the key goes.
    pub fn use_token(&mut self, hash: u64, token: u64, around: &Surroundings, now_ms: u64) -> bool {
        let ended = self.ended.remove(&token).filter(|ended| ended.hash == hash);
        let lease = self.leases.get_mut(hash).filter(|lease| lease.token == token);
        let of_lease = lease.map(|lease| std::mem::take(&mut lease.missed_until_ms));
        let is_open =
            of_lease.or(ended.map(|ended| ended.missed_until_ms)).is_some_and(|until_ms| until_ms > now_ms);
        is_open && self.ledger.take(hash, Some(token), around, now_ms)
    }

    /// A fill was dropped (history 7): the filler's own lease passes on, or with `anyones` the key's lease,
    /// also that of another client.
    pub fn dropped<V>(
        &mut self,
        hash: u64,
        key: &[u8],
        by: Filler,
        anyones: bool,
        step: &mut HerdStep<'_, V>,
    ) {
        let ends = if anyones { self.is_leased(hash, key) } else { self.holds(hash, by) };
        if ends && self.leases.get(hash).is_some_and(|lease| lease.holder.computes()) {
            self.pass_on(hash, &|counters| &counters.promoted_gave_up, step);
        }
    }

    /// The holder's value was refused: its lease ends unfilled, and the next waiter is the holder.
    pub fn gave_up<V>(&mut self, hash: u64, by: Filler, step: &mut HerdStep<'_, V>) {
        if self.holds(hash, by) {
            self.count_unset(hash, step);
            self.pass_on(hash, &|counters| &counters.promoted_gave_up, step);
        }
    }

    /// A value was refused, and its key is deleted next (history 8). If it was the holder's, its lease counts
    /// as unfilled.
    pub fn refused<V>(&mut self, hash: u64, by: Filler, step: &HerdStep<'_, V>) {
        let lease = self.leases.get(hash);
        if lease.is_some_and(|lease| lease.holder.may_be_filler(lease.token, by, lease.computers)) {
            self.count_unset(hash, step);
        }
    }

    fn count_unset<V>(&mut self, hash: u64, step: &HerdStep<'_, V>) {
        let Some(lease) = self.leases.get(hash) else { return };
        let (policy, counters) = (lease.rule.policy(), lease.rule.counters());
        count(&counters.unset);
        if lease.falls_back() {
            return self.note_failure(hash, step);
        }
        // An old value is there: clients did not have to wait. Under a loader no key is let pass.
        if lease.kind == LeaseKind::Absent
            && !policy.loader
            && self.passes.unset(hash, policy.pass_after, policy.pass_for_ms, step.now_ms)
        {
            count(&counters.pass_entered);
        }
    }

    /// The computation of a key with an old value under `grace_on_error` has failed, or has ended unfilled:
    /// for a time the old value is served (history 18).
    fn note_failure<V>(&mut self, hash: u64, step: &HerdStep<'_, V>) {
        self.passes.failed(hash, false, step.clock.last(), step.now_ms);
        self.passes.begun(hash, step.now_ms);
    }

    /// Notes a failure ([`Self::note_failure`]) if no client waits that could compute the value at once.
    fn note_if_deserted<V>(&mut self, hash: u64, step: &HerdStep<'_, V>) {
        if self.leases.get(hash).is_some_and(|lease| lease.falls_back() && lease.queue.len() == 0) {
            self.note_failure(hash, step);
        }
    }

    /// The computation has failed: if there is an old value under `grace_on_error`, all waiters get it
    /// (history 18). False: there is none.
    fn fall_back<V>(
        &mut self,
        hash: u64,
        cause: &dyn Fn(&crate::policy::RuleCounters) -> &AtomicU64,
        step: &mut HerdStep<'_, V>,
    ) -> bool {
        if !self.leases.get(hash).is_some_and(Lease::falls_back) || !self.passes.is_failing(hash) {
            return false;
        }
        let Some(removed) = self.leases.remove(hash) else { return false };
        self.send_all(hash, removed, cause, step);
        true
    }

    /// Ends a lease that was taken out, and answers all its waiters with misses (history 13), or with old
    /// values.
    pub(super) fn send_all<V>(
        &mut self,
        hash: u64,
        mut removed: RemovedLease,
        cause: &dyn Fn(&crate::policy::RuleCounters) -> &AtomicU64,
        step: &mut HerdStep<'_, V>,
    ) {
        let (rule, key) = (Arc::clone(&removed.lease.rule), removed.lease.key.clone());
        let mut waiting = Vec::new();
        while let Some(waiter) = self.waiters.pop(&mut removed.lease.queue) {
            waiting.push(waiter);
        }
        self.end(hash, removed, false, step);
        for waiter in waiting {
            count(cause(rule.counters()));
            rule.counters().waited(step.now_ms.saturating_sub(waiter.since_ms));
            let verdict = match self.old_for(&waiter, hash, &key) {
                Some(old) => Verdict::Old(old),
                None => Verdict::miss(self.miss(hash, &rule, step)),
            };
            step.effects.wake(waiter, verdict);
        }
    }

    /// Other rules are in force: ends the leases of keys that none of them `leases`, and answers their
    /// waiters with misses (history 16).
    pub fn end_unruled<V>(&mut self, leases: impl Fn(&[u8]) -> bool, step: &mut HerdStep<'_, V>) {
        let unruled = self.leases.iter().filter(|(_, lease)| !leases(&lease.key));
        for hash in unruled.map(|(hash, _)| hash).collect::<Vec<_>>() {
            if let Some(removed) = self.leases.remove(hash) {
                self.send_all(hash, removed, &|counters| &counters.held_unruled, step);
            }
        }
    }

    /// The key was deleted, bumped or flushed, or invalidated softly: its lease is revoked and passes to the
    /// next waiter (history 3).
    pub fn invalidated<V>(&mut self, hash: u64, key: &[u8], step: &mut HerdStep<'_, V>) {
        if self.is_leased(hash, key) && self.leases.get(hash).is_some_and(|lease| lease.holder.computes()) {
            self.pass_on(hash, &|counters| &counters.promoted_invalidated, step);
        }
    }

    /// Revokes the key's lease if an event that concerns it came after its token (history 4).
    pub(super) fn revoke_if_below<V>(&mut self, ask: &Ask<'_>, step: &mut HerdStep<'_, V>) {
        if self
            .leases
            .get(ask.hash)
            .is_some_and(|lease| lease.token < ask.outside.last() && *lease.key == *ask.key)
        {
            self.ledger.note(ask.hash, ask.outside);
            self.invalidated(ask.hash, ask.key, step);
        }
    }

    /// Revokes all leases that an event from outside the shard concerns (history 4): `events` gives, for a
    /// key's hash, its lease's token, its tags and its rule, the last such events.
    pub fn revoke<V>(
        &mut self,
        mut events: impl FnMut(u64, u64, &[u64], &RuleState) -> Events,
        step: &mut HerdStep<'_, V>,
    ) {
        let computing = self.leases.iter().filter(|(_, lease)| lease.holder.computes());
        let hit: Vec<(u64, Events)> = computing
            .map(|(hash, lease)| (hash, lease.token, events(hash, lease.token, &lease.tags, &lease.rule)))
            .filter(|(_, token, events)| *token < events.last())
            .map(|(hash, _, events)| (hash, events))
            .collect();
        for (hash, events) in hit {
            // Before the next holder's miss is recorded.
            self.ledger.note(hash, events);
            self.pass_on(hash, &|counters| &counters.promoted_invalidated, step);
        }
    }

    /// The holder gives up. With a text its computation has failed: the waiters that asked for the lease get
    /// the text, and the lease passes to the first of the others. Without one it passes to the first of all.
    /// False: the token is not the lease's.
    pub fn failed<V>(
        &mut self,
        hash: u64,
        token: u64,
        text: Option<&[u8]>,
        step: &mut HerdStep<'_, V>,
    ) -> bool {
        let Some(lease) = self.leases.get(hash).filter(|lease| lease.token == token) else {
            return false;
        };
        count(&lease.rule.counters().failures);
        if let Some(text) = text {
            self.tell_failure(hash, text, step);
            self.passes.failed(hash, true, step.clock.last(), step.now_ms);
            if self.fall_back(hash, &|counters| &counters.held_failed, step) {
                self.passes.begun(hash, step.now_ms);
                self.ended.remove(&token);
                return true;
            }
        } else {
            self.note_if_deserted(hash, step);
        }
        self.pass_on(hash, &|counters| &counters.promoted_gave_up, step);
        if text.is_some() && self.leases.get(hash).is_some() {
            self.passes.begun(hash, step.now_ms);
        }
        self.ended.remove(&token);
        true
    }

    /// Answers the waiters that asked for the lease of this key: its computation has failed.
    fn tell_failure<V>(&mut self, hash: u64, text: &[u8], step: &mut HerdStep<'_, V>) {
        let Some(lease) = self.leases.get_mut(hash) else { return };
        let (rule, text) = (Arc::clone(&lease.rule), Arc::<[u8]>::from(text));
        let mut told = Vec::new();
        while let Some(waiter) = self.waiters.pop_if(&mut lease.queue, usize::MAX, Waiter::is_explicit) {
            told.push(waiter);
        }
        for waiter in told {
            rule.counters().waited(step.now_ms.saturating_sub(waiter.since_ms));
            count(&rule.counters().held_failed);
            let record = self.miss(hash, &rule, step);
            step.effects.wake(waiter, Verdict::Failed { text: Arc::clone(&text), record });
        }
    }

    /// The client that holds the lease of this token is told of it only now: its time begins again, and its
    /// miss is one of this moment, since what it computes is as new. The caller has closed the miss of
    /// before. None: the lease is not its any more.
    pub fn renew<V>(&mut self, hash: u64, token: u64, step: &mut HerdStep<'_, V>) -> Option<MissRecord> {
        let mut removed = self.take_lease_of(hash, token)?;
        let token = step.clock.tick();
        let lease = &mut *removed.lease;
        let rule = Arc::clone(&lease.rule);
        lease.token = token;
        lease.deadline_ms = step.now_ms + u64::from(rule.lease_ms());
        if let Some(begun) = lease.begun.replace(rule.begin(step.now_ms)) {
            rule.end(&begun, false, None, step.now_ms);
        }
        self.leases.put_back(hash, removed);
        Some(self.record(hash, token, true, Events::default(), &rule, step))
    }

    /// The client that holds the lease of this token is not told of it before `until_ms`, in milliseconds
    /// since the start: its time does not end before it could have begun. Returns the key; None: the lease is
    /// not its any more.
    pub fn extend(&mut self, hash: u64, token: u64, until_ms: u64) -> Option<Box<[u8]>> {
        let mut removed = self.take_lease_of(hash, token)?;
        let lease = &mut *removed.lease;
        lease.deadline_ms = lease.deadline_ms.max(until_ms + u64::from(lease.rule.lease_ms()));
        let key = lease.key.clone();
        self.leases.put_back(hash, removed);
        Some(key)
    }

    /// The lease of a key, if a client computes it under this token.
    fn take_lease_of(&mut self, hash: u64, token: u64) -> Option<RemovedLease> {
        let is_it = |lease: &&Lease| lease.token == token && !lease.closing && lease.begun.is_some();
        self.leases.get(hash).filter(is_it)?;
        self.leases.remove(hash)
    }

    /// The connection that holds this lease is closed (history 1). `orderly`: its client said so.
    pub fn holder_closed<V>(
        &mut self,
        hash: u64,
        connection: u64,
        orderly: bool,
        step: &mut HerdStep<'_, V>,
    ) {
        let Some(lease) = self.leases.get(hash) else { return };
        match lease.holder.closed(connection, orderly) {
            Closed::Stays => return,
            Closed::AtOnce => {
                self.note_if_deserted(hash, step);
                return self.pass_on(hash, &|counters| &counters.promoted_close, step);
            }
            Closed::AfterGrace => {}
        }
        let deadline_ms = step.now_ms + u64::from(lease.rule.policy().close_grace_ms);
        let Some(mut removed) = self.leases.remove(hash) else { return };
        removed.lease.closing = true;
        removed.lease.deadline_ms = removed.lease.deadline_ms.min(deadline_ms);
        self.leases.put_back(hash, removed);
    }

    /// The earliest deadline of a lease, in milliseconds since the start.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.leases.first_deadline().map(|(ms, _)| ms)
    }

    /// Ends leases whose deadline has passed (histories 2, 13).
    pub fn handle_timeouts<V>(&mut self, step: &mut HerdStep<'_, V>) {
        while let Some((_, hash)) = self.leases.first_deadline().filter(|(ms, _)| *ms <= step.now_ms) {
            self.time_is_up(hash, step);
        }
    }

    /// Whether there may be another lease of the rule; makes room for it if need be.
    pub(super) fn has_room<V>(&mut self, rule: &RuleState, step: &mut HerdStep<'_, V>) -> bool {
        self.limit.has_room(rule.leases()) || self.displace(rule, step)
    }

    /// Makes room for a lease of the rule (history 17): ends one of its leases without waiters that was asked
    /// for by name for longer than the rule's time and is not due within that time. Its holder can still
    /// store the value. False: there is no such lease.
    fn displace<V>(&mut self, rule: &RuleState, step: &mut HerdStep<'_, V>) -> bool {
        let due_ms = step.now_ms.saturating_add(u64::from(rule.lease_ms()));
        let is_long = |(_, lease): &(u64, &Lease)| {
            lease.queue.len() == 0
                && lease.deadline_ms > due_ms
                && std::ptr::eq(lease.rule.leases(), rule.leases())
        };
        let latest = self.leases.latest().take(DISPLACED_LOOKS).find(is_long);
        let Some((hash, lease)) = latest else { return false };
        count(&lease.rule.counters().leases_displaced);
        self.pass_on(hash, &|counters| &counters.promoted_deadline, step);
        true
    }

    fn time_is_up<V>(&mut self, hash: u64, step: &mut HerdStep<'_, V>) {
        if self.leases.get(hash).is_some_and(|lease| lease.closing) {
            self.note_if_deserted(hash, step);
            return self.pass_on(hash, &|counters| &counters.promoted_close, step);
        }
        self.count_unset(hash, step);
        if !self.fall_back(hash, &|counters| &counters.held_old, step) {
            self.pass_on(hash, &|counters| &counters.promoted_deadline, step);
        }
    }
}
