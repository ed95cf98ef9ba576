//! Waits of one connection, seen from a shard: how each is ended before its value comes.

use std::sync::Arc;

use cattlegrid_herd::{Filler, Wait, Withdrawn, Withheld};
use cattlegrid_store::Lookup;

use crate::shard::Shard;
use crate::step::{Context, Step, Verdict, Wake};

impl Shard {
    /// The time of one key that a request waits for is up; `released`: its connection sends no more. None: it was decided already.
    pub(crate) fn expire(&mut self, wait: &Wait, released: bool, cx: &mut Context<'_>) -> Option<Verdict> {
        self.advance(&cx.step);
        self.with_herd(&mut cx.step, |herd, step| herd.expire(wait.hash, wait.waiter, released, step))?
    }

    /// Ends a wait early, as a miss that this connection knows of. False: it was decided already.
    pub(crate) fn withdraw(&mut self, wait: &Wait, why: Withdrawn, cx: &mut Context<'_>) -> bool {
        let record =
            self.with_herd(&mut cx.step, |herd, step| herd.withdraw(wait.hash, wait.waiter, why, step));
        let Some(record) = record.flatten() else { return false };
        cx.session.record(record, cx.step.now.ms);
        true
    }

    /// A write or delete of a key that earlier commands of the same connection wait for: those come before it, so
    /// they are answered first. The holder's own is its fill, and wakes them.
    pub(crate) fn answer_own_waits(&mut self, hash: u64, by: Filler, cx: &mut Context<'_>) {
        if cx.session.waits().is_empty() || self.herd.as_ref().is_some_and(|herd| herd.holds(hash, by)) {
            return;
        }
        self.answer_all_own_waits(hash, cx);
    }

    /// A delete of such a key: the holder's is no fill.
    pub(crate) fn answer_all_own_waits(&mut self, hash: u64, cx: &mut Context<'_>) {
        let own: Vec<Wait> = cx.session.waits().iter().filter(|wait| wait.hash == hash).copied().collect();
        for wait in own {
            self.give_up(&wait, Withdrawn::OwnWrite, cx);
        }
    }

    /// Ends a wait of this connection as a miss, and tells it so.
    pub(crate) fn give_up(&mut self, wait: &Wait, why: Withdrawn, cx: &mut Context<'_>) {
        if !self.withdraw(wait, why, cx) {
            return;
        }
        let caller = Arc::clone(cx.session.caller());
        let verdict = Verdict::Miss { record: None, hint: None };
        cx.step.effects.wake(Wake { caller, request: wait.request, slot: wait.slot, verdict });
    }

    /// The value of a key under a rule is withheld while its request waits.
    pub(crate) fn withhold(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        let Lookup::Found(_) = self.lookup(hash, key, &cx.step) else { return };
        let Some(ruled) = self.rule_of(key) else { return };
        let (number, window_ms) = (self.shared.clock(), ruled.state.fill_window_ms());
        cx.session.withhold(cx.ticket.request, Withheld { hash, number, window_ms });
    }

    /// A wait that was decided elsewhere in the same moment, and whose wake comes too late: the lease, if that was it, is
    /// this connection's, and otherwise it has a miss.
    pub(crate) fn note_decided(&mut self, wait: &Wait, cx: &mut Context<'_>) {
        let connection = cx.session.caller().number();
        let record = self.with_herd(&mut cx.step, |herd, step| herd.promoted(wait.hash, connection, step));
        if let Some(record) = record {
            cx.session.record(record, cx.step.now.ms);
        }
    }

    /// Ends the leases of keys that no rule leases any more: a `set` of such a key wakes nobody.
    pub(crate) fn end_unruled(&mut self, step: &mut Step<'_>) {
        // Loaded under the shard's lock: what is asked for later is asked for under these rules or newer ones.
        let active = Option::clone(&self.shared.rules());
        let leases = |key: &[u8]| {
            let found = active.as_ref().and_then(|active| active.find(key));
            found.is_some_and(|ruled| ruled.state.policy().leases)
        };
        self.with_herd(step, |herd, step| herd.end_unruled(leases, step));
    }

    pub(crate) fn revoke(&mut self, step: &mut Step<'_>) {
        let now = step.now;
        let shared = Arc::clone(&self.shared);
        let below = |hash, tags: &[u64]| shared.last_event(hash, tags, now);
        self.with_herd(step, |herd, step| herd.revoke(below, step));
    }
}
