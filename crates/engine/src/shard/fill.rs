//! Fills: values that were computed for a miss of a key under a rule.
//!
//! A fill counts as of its miss: as of the number that the clock showed there ([`Fill`], decided in `write_ruled`). It is
//! stored only if no hard event (a write, a delete, a hard bump, a flush) of its key has a larger number; a larger soft
//! event makes it stale on arrival. It comes on a connection, or without one and shows the lease's token.
//!
//! # Histories
//! H is the holder, W a waiter, X another client. A number behind "at" is the clock's. The tests named
//! are in `tests/`.
//!
//! 1. H misses at 5. X deletes at 6, and the fence of the key is 6. H stores: the fill counts as of 5, 5 < 6, it is
//!    dropped. A `set` is answered `STORED`: other clients cannot distinguish this from a value that was stored just
//!    before the delete. An `add` is answered `NOT_STORED`, an `ms` with a token `EX` or `NF`. (`fences.rs`:
//!    `a_value_computed_before_a_delete_is_never_served`, `a_late_fill_is_dropped_however_it_comes`)
//! 2. H misses at 5. X bumps a tag of the key, or flushes, at 6: no fence of a shard knows. The fill is compared with
//!    the floors and bumps as well, and dropped. (`fences.rs`: `flushes_revoke_leases`, `tags.rs`:
//!    `a_value_computed_before_a_bump_is_not_served_after_it`)
//! 3. H misses at 5 under a rule. The rule is removed at 6; X deletes at 7, and without a rule no fence is raised. The
//!    rule comes back, and H stores: 5 < 6, the number at which keys ceased to be under a rule, and the fill is
//!    dropped. A rule that gets other tags counts as removed: X may have bumped a tag that it had. (`fences.rs`:
//!    `changed_rules_do_not_open_a_gap`, `tags.rs`: `a_fill_is_fenced_though_the_rule_has_lost_the_tag`)
//! 4. H misses at 5. X invalidates softly at 6. H stores: 5 < 6, the value is stored as stale. It has expired in the
//!    second of its miss at the latest, and its grace counts from there: the soft event has ended it, in the moment of
//!    the miss at the earliest. It goes to waiters that began before 6. (`fences.rs`:
//!    `soft_invalidation_makes_a_late_fill_stale`, `grace.rs`:
//!    `a_fill_that_is_stale_on_arrival_is_served_for_the_grace_from_its_miss`)
//! 5. H misses at 5, W at 6, both compute. H stores at 7: the item's stamp is 5, and so is the fence. W stores: its
//!    fill counts as of 5 or 6, which is not below the fence, and replaces H's value. Had the fence been raised to 7,
//!    every later fill of an open miss would be dropped. (`herd.rs`:
//!    `the_deadline_promotes_and_the_others_go_on_waiting`)
//! 6. H misses at 5, W waits. H stores a value that has expired already (exptime -1): W gets it, and nothing is kept.
//!    The clock moves on, so that no miss after this one notes 5 as well. The same from a client that is not the holder
//!    is a delete. (`herd.rs`: `a_value_can_be_given_to_waiters_and_not_be_kept`)
//! 7. Under a rule without leases H asks with `mg N` and gets a stub. X bumps a tag that only H's `ms` names: the value
//!    is dropped, but the stub does not carry the tag and is still there. It would wait for a value that does not come,
//!    so it is removed, and the next `mg N` wins again. (`unleased.rs`:
//!    `a_value_that_comes_too_late_leaves_no_stub_behind`)
//! 8. W waits with a `gat`. The value is stored and delivered: W's touch is applied then, since it could not be when W
//!    asked. A stale value is not prolonged. (`cascades.rs`: `a_held_gat_touches_when_it_is_answered`)
//! 9. H's fill and X's delete, flush or bump come at the same moment on two threads. If the fill is first, its item is
//!    removed, or found to be too old when it is read; if the event is first, the fill is dropped as in 1 and 2.
//!    (`shuttle.rs`: `fill_and_delete`, `fill_and_flush`, `fill_and_bump`)
//! 10. Under a rule with a loader H misses at 5 without a lease, and X deletes at 6. Job 7 begins. C, which has changed the
//!     source, stores: it cannot be told from H, whose value would be old, and is dropped. But job 7 may have read the source
//!     before C changed it. So C's `set` counts as a delete: the job is revoked, and another one begins.
//!     (`loads.rs`: `a_set_that_is_dropped_counts_as_a_delete`)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{DropCause, Filler, RuleState, Waiter, refresh_lead_s};
use cattlegrid_store::{Attributes, Found, Lookup, Marks, NEVER};

use crate::delivered::{Delivered, DeliveredValue, Verdict};
use crate::rules::Change;
use crate::rules::active::Ruled;
use crate::shard::Shard;
use crate::shard::put::{Data, Fill, Filling, Mode, Outcome, Write};
use crate::shard::standing::is_stub;
use crate::step::Step;

impl Shard {
    /// Stores a whole value or drops it, and wakes the waiters.
    pub(crate) fn store_value(
        &mut self,
        write: &Write<'_>,
        found: Option<Found>,
        mut filling: Filling<'_>,
        ruled: &Ruled,
        step: &mut Step<'_>,
    ) -> Outcome {
        let Filling { fill, by, .. } = filling;
        let counters = ruled.state.counters();
        // More tags than fit were refused before.
        let tags = ruled.tags.union(&write.tags).unwrap_or(ruled.tags);
        // History 2: no fence knows these events.
        let (mut hard, mut soft) = self.shared.outside(write.hash, tags.hashes(), step.now);
        // A loader's lease ends with each event of its key: the fence would only add those of keys that share its slot.
        let by_loader = filling.session.is_none();
        if let Some(herd) = self.herd.as_mut().filter(|_| !by_loader) {
            if let Some(stamp) = fill.stamp() {
                herd.fence.note_fill(self.shared.clock().saturating_sub(stamp), self.shared.shards());
            }
            let events = herd.fence.events(write.hash);
            (hard, soft) = (hard.max(events.hard), soft.max(events.soft));
        }
        // History 3: a miss under rules that have gone since may be older than an event that was not noted.
        hard = hard.max(self.shared.uncovered());
        if fill.stamp().is_some_and(|stamp| stamp < hard) {
            ruled.state.count_dropped(self.cause_of_drop(write.hash, &filling, hard, ruled, step.now.ms));
            self.consume(write.hash, &mut filling, step.now.ms);
            if ruled.state.policy().loader && fill.token().is_none() {
                // History 10.
                self.delete_unawaited(write.key, write.hash, step);
            } else {
                self.with_herd(step, |herd, step| herd.dropped(write.hash, by, step));
            }
            let unleased = found.filter(|_| !ruled.state.policy().leases);
            if let Some(stub) = unleased.filter(|found| is_stub(&self.store.item(*found))) {
                // History 7: the stub would never be filled, and the next client wins again.
                self.store.remove(write.hash, stub);
            }
            return match (write.mode, found) {
                (Mode::Cas, Some(_)) => Outcome::Exists,
                (Mode::Cas, None) => Outcome::NotFound,
                (Mode::Add, _) => Outcome::NotStored,
                // History 1: to others it was stored just before the event.
                _ => Outcome::Stored { cas: 0, size: write.data.len() },
            };
        }
        let stale = fill.stamp().filter(|stamp| *stamp < soft).map(|_| soft);
        let appends = matches!(write.mode, Mode::Append | Mode::Prepend);
        let expiry = write.vivify.filter(|_| appends).unwrap_or(write.expiry);
        if expiry != NEVER && expiry <= step.now.second {
            return self.store_nothing(write, found, filling, stale, ruled, step);
        }
        let number = self.shared.tick();
        let cas = write.explicit_cas.unwrap_or(number);
        let stamp = fill.stamp().unwrap_or(number);
        let policy = ruled.state.policy();
        let lead_s = if policy.early && expiry != NEVER && !write.negative {
            refresh_lead_s(expiry - step.now.second, ruled.state.p90_ms(), write.hash)
        } else {
            0
        };
        let grace_s = if write.negative { 0 } else { policy.grace_s };
        // History 4: the soft event has ended the value, in the moment of the miss at the earliest. Grace counts from
        // there.
        let ends = if stale.is_some() && grace_s > 0 {
            let since = self.shared.second_of(stamp);
            if expiry == NEVER { since } else { expiry.min(since) }
        } else {
            expiry
        };
        let mut marks = if stale.is_some() { Marks::STALE } else { Marks::none() };
        if write.negative {
            marks = marks.with(Marks::NEGATIVE);
        }
        if appends {
            marks = marks.with(Marks::EDITED);
        }
        let attributes = Attributes {
            flags: write.flags,
            expiry: ends,
            accessed: step.now.second,
            cas,
            stamp: (stamp != cas).then_some(stamp),
            grace_s,
            refresh_lead_s: lead_s,
            tags: tags.hashes(),
            marks,
        };
        if self.store.put(write.hash, write.key, &attributes, write.data.to_value()).is_err() {
            return Outcome::NoRoom(write.data.len());
        }
        match (write.negative, fill, stale) {
            (true, ..) => counters.negatives.fetch_add(1, Ordering::Relaxed),
            (_, Fill::No, _) => 0,
            (_, _, None) => counters.fills_stored.fetch_add(1, Ordering::Relaxed),
            (_, _, Some(_)) => counters.fills_stale.fetch_add(1, Ordering::Relaxed),
        };
        self.consume(write.hash, &mut filling, step.now.ms);
        // History 5: to the stamp, and not to the number of this write.
        self.raise_hard(write.hash, stamp);
        let waiters = self.take_waiters(write, by, stale, step);
        self.deliver(write, cas, ends, &ruled.state, waiters, step);
        Outcome::Stored { cas: self.shown_cas(cas), size: write.data.len() }
    }

    /// Why a fill is dropped; `hard` is the event that came after its miss.
    fn cause_of_drop(
        &mut self,
        hash: u64,
        filling: &Filling<'_>,
        hard: u64,
        ruled: &Ruled,
        now_ms: u64,
    ) -> DropCause {
        let (fill, session) = (filling.fill, filling.session.as_deref());
        if fill.token().is_none() && session.is_some_and(|session| session.repeats(hash, hard, now_ms)) {
            return DropCause::Repeated;
        }
        let own = fill.token().or_else(|| session?.oldest(hash, now_ms));
        if own.is_some_and(|own| own < hard) {
            return DropCause::Late;
        }
        let oldest = self.herd.as_mut().and_then(|herd| herd.ledger.oldest(hash, now_ms));
        match oldest {
            Some(oldest) if oldest.lost => DropCause::Overflow,
            // A client that takes longer than a lease counts as dead.
            Some(oldest) if oldest.since_ms + u64::from(ruled.state.lease_ms()) <= now_ms => {
                DropCause::Abandoned
            }
            _ => DropCause::Other,
        }
    }

    /// A value that has expired on arrival (history 6): the holder's goes to all waiters, and nothing is kept; any
    /// other is a delete.
    fn store_nothing(
        &mut self,
        write: &Write<'_>,
        found: Option<Found>,
        mut filling: Filling<'_>,
        stale: Option<u64>,
        ruled: &Ruled,
        step: &mut Step<'_>,
    ) -> Outcome {
        let Filling { fill, by, .. } = filling;
        let by_holder = self.holds(write.hash, by);
        self.consume(write.hash, &mut filling, step.now.ms);
        if by_holder {
            if let Some(found) = found {
                self.store.remove(write.hash, found);
            }
            // The clock moves on for a fill as well: no later miss may note the number of an earlier one.
            let taken = self.shared.tick();
            let number = fill.stamp().unwrap_or(taken);
            self.raise_hard(write.hash, number);
            let waiters = self.take_waiters(write, by, stale, step);
            ruled.state.counters().fills_stored.fetch_add(1, Ordering::Relaxed);
            self.deliver(write, number, write.expiry, &ruled.state, waiters, step);
        } else {
            // The waits of its own connection were answered before.
            self.delete_unawaited(write.key, write.hash, step);
        }
        Outcome::Stored { cas: 0, size: write.data.len() }
    }

    pub(crate) fn take_waiters(
        &mut self,
        write: &Write<'_>,
        by: Filler,
        stale: Option<u64>,
        step: &mut Step<'_>,
    ) -> Vec<Waiter> {
        self.with_herd(step, |herd, step| herd.stored(write.hash, write.key, by, stale, step))
            .unwrap_or_default()
    }

    /// Gives a value to its waiters (history 8). It is copied once; what happens to the item does not matter.
    pub(crate) fn deliver(
        &mut self,
        write: &Write<'_>,
        cas: u64,
        expiry: u32,
        rule: &RuleState,
        waiters: Vec<Waiter>,
        step: &mut Step<'_>,
    ) {
        if waiters.is_empty() {
            return;
        }
        let delivered = (!write.negative).then(|| {
            let (value, copied) = match &write.data {
                Data::Huge(huge) => (DeliveredValue::Huge(Arc::clone(huge)), 0),
                Data::Inline(bytes) => (DeliveredValue::Inline((*bytes).into()), bytes.len()),
            };
            Arc::new(Delivered {
                flags: write.flags,
                cas: self.shown_cas(cas),
                ttl: step.now.left(expiry),
                value,
                counted: self.shared.delivered.count(copied),
            })
        });
        for waiter in waiters {
            // A stale value is not prolonged.
            if let Some(exptime) = waiter.touch
                && let Lookup::Found(found) = self.store.lookup(write.hash, write.key)
                && !self.store.item(found).marks().has(Marks::STALE)
            {
                self.store.set_expiry(write.hash, found, step.now.expiry(exptime));
                self.cascade(write.key, write.hash, Change::Touch, step.now);
            }
            let verdict = if let Some(delivered) = &delivered {
                Verdict::Value(Arc::clone(delivered))
            } else {
                let miss = self.with_herd(step, |herd, step| herd.miss(write.hash, rule, step));
                Verdict::Negative { record: miss }
            };
            step.effects.herd.wake(waiter, verdict);
        }
    }

    /// Counts off the miss of a fill.
    pub(crate) fn consume(&mut self, hash: u64, filling: &mut Filling<'_>, now_ms: u64) {
        let Some(herd) = &mut self.herd else { return };
        match filling.fill {
            Fill::No | Fill::Perhaps(_) => {}
            Fill::Of(_) => {
                if let Some(session) = &mut filling.session {
                    session.take_oldest(hash, now_ms);
                }
                herd.ledger.fill(hash, None, now_ms);
            }
            Fill::ByToken(token) => {
                if let Some(session) = &mut filling.session {
                    session.take_number(hash, token);
                }
                herd.use_token(hash, token, now_ms);
            }
        }
    }

    /// Ends the lease for which a fill was refused. `deletes`: its key is deleted next.
    pub(crate) fn give_up_fill(&mut self, hash: u64, by: Filler, deletes: bool, step: &mut Step<'_>) {
        self.with_herd(step, |herd, step| {
            // The delete passes the lease on, but does not show that the key cannot be filled.
            if deletes { herd.refused(hash, by, step) } else { herd.dropped(hash, by, step) }
        });
    }
}
