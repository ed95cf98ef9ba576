//! How a lease ends, or passes on to who has waited longest: its value comes, its holder gives up, goes or is late, its key
//! is invalidated.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{Ended, Herd};
use crate::ask::Ask;
use crate::effects::{Step, Verdict};
use crate::grant::Grant;
use crate::holder::{Closed, Holder, lease_ms};
use crate::how::Filler;
use crate::lease::{Kind, Lease};
use crate::leases::Removed;
use crate::rule::{Admitted, RuleState, count};
use crate::waiters::Waiter;

/// Waiters looked at for one whose reply is the next of its connection.
const FRONT_SEARCH: usize = 64;
/// Leases that are looked at to make room for another, from the one that ends last.
const DISPLACED_LOOKS: usize = 16;

impl Herd {
    /// A slot of its rule is free for this lease. If it is gone, the slot is for the next.
    pub fn admit<V>(&mut self, admitted: &Admitted, step: &mut Step<'_, V>) {
        self.drop_if_deserted(admitted.hash);
        let lease = self.leases.get(admitted.hash);
        if lease.is_some_and(|l| l.token == admitted.token && !l.holder.computes()) {
            self.pass_on(admitted.hash, &|counters| &counters.promoted_slot, step);
        } else {
            step.effects.admitted.extend(admitted.rule.give_back_admitted());
        }
    }

    /// Makes the first waiter the holder; without waiters the lease ends.
    pub(super) fn pass_on<V>(
        &mut self,
        hash: u64,
        cause: &dyn Fn(&crate::rule::RuleCounters) -> &AtomicU64,
        step: &mut Step<'_, V>,
    ) {
        let Some(mut removed) = self.leases.remove(hash) else { return };
        let lease = &mut *removed.lease;
        let computes = lease.holder.computes();
        if computes && lease.kind == Kind::Absent && self.passes.passes(hash, step.now_ms) {
            return self.send_all(hash, removed, &|counters| &counters.held_passed, step);
        }
        let (old_token, old_until) = (lease.token, lease.missed_until_ms);
        let front = |waiter: &Waiter| waiter.caller.front() == waiter.request;
        // One whose reply is the next of its connection hears of it at once; any other within `hold_behind`.
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
            None => rule.take_admitted(connection),
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
        // The old holder may be at it still: what this one takes is no measure.
        if let Some(begun) = lease.begun.replace(rule.begin(step.now_ms)) {
            rule.end(&begun, false, None, step.now_ms);
        }
        let hint = lease.hint.clone();
        self.leases.put_back(hash, removed);
        count(cause(rule.counters()));
        rule.counters().waited(step.now_ms.saturating_sub(waiter.since_ms));
        self.end_token(hash, old_token, old_until, &rule, step.now_ms);
        let record = self.record(hash, token, true, &rule, step);
        step.effects.wake(waiter, Verdict::lease(Grant::new(record, hint)));
    }

    /// A lease whose holder is gone waits for a slot, with all who wait for it: it was nested in another computation of the
    /// holder's, or the limit is lower now.
    fn queue_again<V>(&mut self, hash: u64, mut removed: Removed, token: u64, step: &Step<'_, V>) {
        let lease = &mut *removed.lease;
        let (old_token, old_until, rule) = (lease.token, lease.missed_until_ms, Arc::clone(&lease.rule));
        (lease.token, lease.holder, lease.deadline_ms) = (token, Holder::Queued, u64::MAX);
        (lease.closing, lease.tried, lease.reentries, lease.missed_until_ms) = (false, false, 0, 0);
        if let Some(begun) = lease.begun.take() {
            rule.end(&begun, false, None, step.now_ms);
        }
        self.leases.put_back(hash, removed);
        self.end_token(hash, old_token, old_until, &rule, step.now_ms);
    }

    /// Ends a lease that was taken out. Its waiters must have been taken before.
    fn end<V>(&mut self, hash: u64, removed: Removed, filled: bool, step: &mut Step<'_, V>) {
        let lease = removed.end();
        debug_assert_eq!(lease.queue.len(), 0, "nobody is left behind");
        if let Some(begun) = &lease.begun {
            let joined_ms = lease.joined_ms.filter(|_| lease.computers > 1);
            lease.rule.end(begun, filled, joined_ms, step.now_ms);
        }
        match lease.holder.connection() {
            Some(connection) => step.effects.admitted.extend(lease.rule.finish_slot(connection)),
            None => lease.rule.leave_queue(lease.token),
        }
        if !filled {
            self.end_token(hash, lease.token, lease.missed_until_ms, &lease.rule, step.now_ms);
        }
    }

    /// Remembers the token of a lease that ended unfilled; `missed_until_ms`: its miss counts so long in the ledger.
    pub(super) fn end_token(
        &mut self,
        hash: u64,
        token: u64,
        missed_until_ms: u64,
        rule: &RuleState,
        now_ms: u64,
    ) {
        if self.ended_order.len() >= self.leases_max
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        let until = now_ms + u64::from(rule.fill_window_ms());
        if self.ended.insert(token, Ended { hash, until_ms: until, missed_until_ms }).is_none() {
            self.ended_order.push_back(token);
        }
    }

    /// A value was stored, by a fill or by anybody: takes all who wait for it. `soft`: it is already stale, by the
    /// soft event of this number; those who began to wait after that do not get it.
    pub fn stored<V>(
        &mut self,
        hash: u64,
        key: &[u8],
        by: Filler,
        soft: Option<u64>,
        step: &mut Step<'_, V>,
    ) -> Vec<Waiter> {
        let Some(lease) = self.leases.of_key(hash, key) else {
            self.passes.filled(hash);
            return Vec::new();
        };
        let mut got = Vec::new();
        // They stand in the order in which they came.
        let before = |waiter: &Waiter| soft.is_none_or(|soft| waiter.since < soft);
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
        if soft.is_none() {
            self.passes.filled(hash);
            self.end_filled(hash, by_holder, step);
            return got;
        }
        lease.kind = Kind::Stale;
        if by_holder {
            self.pass_on(hash, &|counters| &counters.promoted_gave_up, step);
        }
        self.drop_if_deserted(hash);
        got
    }

    fn end_filled<V>(&mut self, hash: u64, by_holder: bool, step: &mut Step<'_, V>) {
        let Some(removed) = self.leases.remove(hash) else { return };
        let lease = &removed.lease;
        let (token, until, rule) = (lease.token, lease.missed_until_ms, Arc::clone(&lease.rule));
        // Filled by another: the holder is at it still, and its fill is to be known as one.
        self.end(hash, removed, by_holder, step);
        if by_holder {
            self.ended.remove(&token);
        } else {
            self.end_token(hash, token, until, &rule, step.now_ms);
        }
    }

    /// A token was used for a fill: not again. Its miss has been answered for, if it still counts: later another miss may have
    /// noted the same number.
    pub fn use_token(&mut self, hash: u64, token: u64, now_ms: u64) {
        let ended = self.ended.remove(&token).filter(|ended| ended.hash == hash);
        let lease = self.leases.get_mut(hash).filter(|lease| lease.token == token);
        let of_lease = lease.map(|lease| std::mem::take(&mut lease.missed_until_ms));
        if of_lease.or(ended.map(|ended| ended.missed_until_ms)).is_some_and(|until_ms| until_ms > now_ms) {
            self.ledger.fill(hash, Some(token), now_ms);
        }
    }

    /// A fill was dropped. If it was the holder's, its lease ends unfilled, and the next in the queue computes.
    pub fn dropped<V>(&mut self, hash: u64, by: Filler, step: &mut Step<'_, V>) {
        // One that came on another connection of a pool may be that of an older miss: its lease goes on.
        if self.holds(hash, by) {
            self.count_unset(hash, step);
            self.pass_on(hash, &|counters| &counters.promoted_gave_up, step);
        }
    }

    /// A value was refused, and its key is deleted next. If it was the holder's, its lease counts as one that ended unfilled.
    pub fn refused<V>(&mut self, hash: u64, by: Filler, step: &Step<'_, V>) {
        let lease = self.leases.get(hash);
        if lease.is_some_and(|lease| lease.holder.may_be_filler(lease.token, by, lease.computers)) {
            self.count_unset(hash, step);
        }
    }

    fn count_unset<V>(&mut self, hash: u64, step: &Step<'_, V>) {
        let Some(lease) = self.leases.get(hash) else { return };
        let (policy, counters) = (lease.rule.policy(), lease.rule.counters());
        count(&counters.unset);
        // An old value is there: others were not made to wait.
        if lease.kind == Kind::Absent
            && self.passes.unset(hash, policy.pass_after, policy.pass_for_ms, step.now_ms)
        {
            count(&counters.pass_entered);
        }
    }

    /// Ends a lease that was taken out, and answers all who wait for it with misses.
    fn send_all<V>(
        &mut self,
        hash: u64,
        mut removed: Removed,
        cause: &dyn Fn(&crate::rule::RuleCounters) -> &AtomicU64,
        step: &mut Step<'_, V>,
    ) {
        let rule = Arc::clone(&removed.lease.rule);
        let mut waiting = Vec::new();
        while let Some(waiter) = self.waiters.pop(&mut removed.lease.queue) {
            waiting.push(waiter);
        }
        self.end(hash, removed, false, step);
        for waiter in waiting {
            count(cause(rule.counters()));
            rule.counters().waited(step.now_ms.saturating_sub(waiter.since_ms));
            let record = self.miss(hash, &rule, step);
            step.effects.wake(waiter, Verdict::miss(record));
        }
    }

    /// Other rules are in force: ends the leases of keys that none of them `leases`, and answers who waits with misses.
    pub fn end_unruled<V>(&mut self, leases: impl Fn(&[u8]) -> bool, step: &mut Step<'_, V>) {
        let unruled = self.leases.iter().filter(|(_, lease)| !leases(&lease.key));
        for hash in unruled.map(|(hash, _)| hash).collect::<Vec<_>>() {
            if let Some(removed) = self.leases.remove(hash) {
                self.send_all(hash, removed, &|counters| &counters.held_unruled, step);
            }
        }
    }

    /// The key was deleted, bumped or flushed, or softly so: its lease is revoked, and the next in the queue
    /// computes.
    pub fn invalidated<V>(&mut self, hash: u64, key: &[u8], step: &mut Step<'_, V>) {
        if self.is_leased(hash, key) && self.leases.get(hash).is_some_and(|lease| lease.holder.computes()) {
            self.pass_on(hash, &|counters| &counters.promoted_invalidated, step);
        }
    }

    /// Revokes the key's lease if something happened since that concerns it.
    pub(super) fn revoke_if_below<V>(&mut self, ask: &Ask<'_>, step: &mut Step<'_, V>) {
        if self
            .leases
            .get(ask.hash)
            .is_some_and(|lease| lease.token < ask.last_event && *lease.key == *ask.key)
        {
            self.invalidated(ask.hash, ask.key, step);
        }
    }

    /// Revokes all leases that an event from outside the shard concerns: `below` gives, for a key's hash and
    /// tags, the number of the last one.
    pub fn revoke<V>(&mut self, below: impl Fn(u64, &[u64]) -> u64, step: &mut Step<'_, V>) {
        let hit: Vec<u64> = self
            .leases
            .iter()
            .filter(|(hash, lease)| lease.holder.computes() && lease.token < below(*hash, &lease.tags))
            .map(|(hash, _)| hash)
            .collect();
        for hash in hit {
            self.pass_on(hash, &|counters| &counters.promoted_invalidated, step);
        }
    }

    /// The holder gives up, with a text or without. Returns what those are told who asked for the lease.
    /// False: the token is not the lease's.
    pub fn failed<V>(&mut self, hash: u64, token: u64, text: &[u8], step: &mut Step<'_, V>) -> bool {
        let Some(lease) = self.leases.get_mut(hash).filter(|lease| lease.token == token) else {
            return false;
        };
        let rule = Arc::clone(&lease.rule);
        count(&rule.counters().failures);
        let text: Arc<[u8]> = text.into();
        let mut told = Vec::new();
        // Its miss stays recorded: its value may have been stored through another connection, and have been counted off.
        while let Some(waiter) = self.waiters.pop_if(&mut lease.queue, usize::MAX, Waiter::is_explicit) {
            told.push(waiter);
        }
        for waiter in told {
            rule.counters().waited(step.now_ms.saturating_sub(waiter.since_ms));
            count(&rule.counters().held_failed);
            let record = self.miss(hash, &rule, step);
            step.effects.wake(waiter, Verdict::Failed { text: Arc::clone(&text), record });
        }
        self.passes.failed(hash, step.now_ms);
        self.pass_on(hash, &|counters| &counters.promoted_gave_up, step);
        if self.leases.get(hash).is_some() {
            self.passes.begun(hash, step.now_ms);
        }
        self.ended.remove(&token);
        true
    }

    /// The connection that holds this lease is gone.
    pub fn holder_closed<V>(&mut self, hash: u64, connection: u64, orderly: bool, step: &mut Step<'_, V>) {
        let Some(lease) = self.leases.get(hash) else { return };
        match lease.holder.closed(connection, orderly) {
            Closed::Stays => return,
            Closed::AtOnce => return self.pass_on(hash, &|counters| &counters.promoted_close, step),
            Closed::AfterGrace => {}
        }
        let deadline_ms = step.now_ms + u64::from(lease.rule.policy().close_grace_ms);
        let Some(mut removed) = self.leases.remove(hash) else { return };
        removed.lease.closing = true;
        removed.lease.deadline_ms = removed.lease.deadline_ms.min(deadline_ms);
        self.leases.put_back(hash, removed);
    }

    /// When the next lease's time is up, in milliseconds since the start.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.leases.first_deadline().map(|(ms, _)| ms)
    }

    /// Ends leases whose time is up.
    pub fn handle_timeouts<V>(&mut self, step: &mut Step<'_, V>) {
        while let Some((_, hash)) = self.leases.first_deadline().filter(|(ms, _)| *ms <= step.now_ms) {
            self.time_is_up(hash, step);
        }
    }

    /// Makes room for a lease: ends one that was asked for by name for longer than its rule's time, which is not over in that
    /// time, and for which nobody waits. Whoever computes it can still store the value.
    pub(super) fn displace<V>(&mut self, step: &mut Step<'_, V>) -> bool {
        let is_long = |(_, lease): &(u64, &Lease)| {
            let rule_ms = u64::from(lease.rule.lease_ms());
            lease.queue.len() == 0 && lease.deadline_ms > step.now_ms.saturating_add(rule_ms)
        };
        let latest = self.leases.latest().take(DISPLACED_LOOKS).find(is_long);
        let Some((hash, lease)) = latest else { return false };
        count(&lease.rule.counters().leases_displaced);
        self.pass_on(hash, &|counters| &counters.promoted_deadline, step);
        true
    }

    fn time_is_up<V>(&mut self, hash: u64, step: &mut Step<'_, V>) {
        if self.leases.get(hash).is_some_and(|lease| lease.closing) {
            return self.pass_on(hash, &|counters| &counters.promoted_close, step);
        }
        self.count_unset(hash, step);
        self.pass_on(hash, &|counters| &counters.promoted_deadline, step);
    }
}
