//! Waits of one connection, seen from a shard: how each is ended before its value comes. And leases that
//! other rules or events end.
//!
//! # Histories
//! A client sends several commands on one connection without waiting for replies. The tests named are in
//! `tests/`.
//!
//! 1. `get 1` waits for another client's value; then the same connection sends `delete 1`, or `set 1` as a
//!    client that is not the holder. The `get` comes first in the order of the connection, so it must not see
//!    the result of the second command: it is answered first, as a miss. (`herd.rs`:
//!    `a_delete_answers_the_gets_before_it`, `ends.rs`: `each_held_get_ends_in_one_counter`)
//! 2. The connection is the holder, and is shared by several threads: `get 1` of another thread waits, then
//!    the holder's `set 1` comes on it. This is the value that the `get` waits for: it is not answered
//!    before, and gets the value. (`herd.rs`: `one_multiplexed_connection_and_many_processes`)
//! 3. A wait is ended here while another thread has decided it: nothing is found in the queue, and the wake
//!    that is on its way answers the request. (`shuttle.rs`: `end_of_a_hold_and_fill`)
//! 4. The rules change while a get asks for the key. The new rules are loaded under the shard's lock: a get
//!    that comes later asks under these or newer ones, so no lease is left behind that they do not know.
//!    (`shuttle.rs`: `other_rules_while_clients_wait`)

use std::sync::Arc;

use cattlegrid_herd::{
    Filler, Herd, HerdStep, RuleState, SessionWait, UnansweredKey, WithdrawReason, WithheldKey,
};
use cattlegrid_store::Lookup;

use crate::delivered::{Verdict, Wake};
use crate::shard::Shard;
use crate::step::{Context, Step};

impl Shard {
    /// Ends the wait for one key when its time is up; `released`: its connection sends no more. None: it was
    /// decided already (history 3).
    pub(crate) fn expire(
        &mut self,
        wait: &SessionWait,
        released: bool,
        cx: &mut Context<'_>,
    ) -> Option<Verdict> {
        self.advance(&cx.step);
        let expire =
            |herd: &mut Herd, step: &mut HerdStep<'_, _>| herd.expire(wait.hash, wait.waiter, released, step);
        match self.with_herd(&mut cx.step, expire)?? {
            Verdict::Old(old) => Some(self.old_or_miss(&old, &mut cx.step)),
            verdict => Some(verdict),
        }
    }

    /// Ends a wait early, as a miss that this connection knows of, or with the old value. None: it was
    /// decided already (history 3).
    pub(crate) fn withdraw(
        &mut self,
        wait: &SessionWait,
        why: WithdrawReason,
        cx: &mut Context<'_>,
    ) -> Option<Verdict> {
        let withdraw =
            |herd: &mut Herd, step: &mut HerdStep<'_, _>| herd.withdraw(wait.hash, wait.waiter, why, step);
        let UnansweredKey { record, old } = self.with_herd(&mut cx.step, withdraw)??;
        if let Some(record) = record {
            cx.session.record(record, cx.step.now.ms);
        }
        // The miss is recorded already.
        let miss = Verdict::Miss { record: None, hint: None };
        Some(old.map_or(miss, |old| self.old_or_miss(&old, &mut cx.step)))
    }

    /// Answers earlier commands of the same connection that wait for a key that it writes now (history 1).
    /// The holder's write is its fill, and wakes them (history 2). Returns whether they were answered.
    #[cold]
    pub(crate) fn answer_own_waits(&mut self, hash: u64, by: Filler, cx: &mut Context<'_>) -> bool {
        if self.herd.as_ref().is_some_and(|herd| herd.holds(hash, by)) {
            return false;
        }
        self.answer_all_own_waits(hash, cx);
        true
    }

    /// Answers the connection's own waits for a key that it deletes: the holder's delete is not a fill.
    pub(crate) fn answer_all_own_waits(&mut self, hash: u64, cx: &mut Context<'_>) {
        let own: Vec<SessionWait> =
            cx.session.waits().iter().filter(|wait| wait.hash == hash).copied().collect();
        for wait in own {
            self.give_up(&wait, WithdrawReason::OwnWrite, cx);
        }
    }

    /// Ends a wait of this connection as a miss, and wakes the request.
    pub(crate) fn give_up(&mut self, wait: &SessionWait, why: WithdrawReason, cx: &mut Context<'_>) {
        let Some(verdict) = self.withdraw(wait, why, cx) else { return };
        let caller = Arc::clone(cx.session.caller());
        cx.step.effects.wake(Wake { caller, request: wait.request, slot: wait.slot, verdict });
    }

    /// Withholds the value of a key under a rule while its request waits.
    pub(crate) fn withhold(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        let Lookup::Found(_) = self.lookup(hash, key, &cx.step) else { return };
        let Some(ruled) = self.rule_of(key) else { return };
        let (number, window_ms) = (self.shared.clock(), ruled.state.fill_window_ms());
        cx.session.withhold(cx.ticket.request, WithheldKey { hash, number, window_ms });
    }

    /// Records a key under a rule as a miss, since its client is answered an error, if it is there or another
    /// client computes it (`is_leased`). Otherwise its miss is recorded already.
    pub(crate) fn miss_unseen(&mut self, key: &[u8], hash: u64, is_leased: bool, cx: &mut Context<'_>) {
        let is_there = matches!(self.lookup(hash, key, &cx.step), Lookup::Found(_));
        let Some(ruled) = self.rule_of(key).filter(|_| is_there || is_leased) else { return };
        let outside = self.shared.outside(hash, ruled.tags.hashes(), Some(&ruled.state), cx.step.now);
        let miss = |herd: &mut Herd, step: &mut HerdStep<'_, _>| {
            herd.missed_by_error(hash, outside, &ruled.state, step)
        };
        if let Some(record) = self.with_herd(&mut cx.step, miss) {
            cx.session.record(record, cx.step.now.ms);
        }
    }

    /// Records a wait that was decided elsewhere at the same moment and whose wake comes too late: if it got
    /// the lease, that is this connection's, and otherwise it has a miss.
    pub(crate) fn note_decided(&mut self, wait: &SessionWait, cx: &mut Context<'_>) {
        let connection = cx.session.caller().number();
        let record = self.with_herd(&mut cx.step, |herd, step| herd.promoted(wait.hash, connection, step));
        if let Some(record) = record {
            cx.session.record(record, cx.step.now.ms);
        }
    }

    /// Ends the leases of keys that no rule leases any more: a `set` of such a key does not look for waiters.
    pub(crate) fn end_unruled(&mut self, step: &mut Step<'_>) {
        // History 4.
        let active = Option::clone(&self.shared.rules());
        let leases = |key: &[u8]| {
            let found = active.as_ref().and_then(|active| active.find(key));
            found.is_some_and(|ruled| ruled.state.policy().leases)
        };
        self.with_herd(step, |herd, step| herd.end_unruled(leases, step));
    }

    /// Revokes the leases that events from outside the shard concern. Returns when an invalidation that is
    /// phased in reaches the key of another lease next, in milliseconds since the start; `u64::MAX`: never.
    pub(crate) fn revoke(&mut self, step: &mut Step<'_>) -> u64 {
        let (now, mut next_ms) = (step.now, u64::MAX);
        let shared = Arc::clone(&self.shared);
        let events = |hash, token, tags: &[u64], rule: &RuleState| {
            let events = shared.outside(hash, tags, Some(rule), now);
            if token >= events.last() {
                let moment_ms = shared.tags().next_moment_ms(token, tags, hash, now.ms);
                next_ms = next_ms.min(moment_ms.unwrap_or(u64::MAX));
            }
            events
        };
        self.with_herd(step, |herd, step| herd.revoke(events, step));
        next_ms
    }
}
