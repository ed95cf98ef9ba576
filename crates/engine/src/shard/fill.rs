//! Fills: values that were computed for a miss of a key under a rule.
//!
//! A fill counts as of its miss: as of the number that the clock showed there. Where the miss is known
//! ([`FillKind`], decided in `store`), it is stored only if no hard event (a write, a delete, a hard
//! bump, a flush) of its key has a larger number; a larger soft event makes it stale on arrival. Where it is
//! not known, the key's account decides ([`Judgement`]). A fill comes on a connection, or without one and
//! shows the lease's token.
//!
//! # Histories
//! H is the holder, W a waiter, X another client. A number behind "at" is the clock's. The tests named
//! are in `tests/`.
//!
//! 1. H misses at 5. X deletes at 6, and the fence of the key is 6. H stores: the fill counts as of 5, 5 < 6,
//!    it is dropped. A `set` is answered `STORED`: other clients cannot distinguish this from a value that
//!    was stored just before the delete. An `add` is answered `NOT_STORED`, an `ms` with a token `EX` or
//!    `NF`. (`fences.rs`: `a_value_computed_before_a_delete_is_never_served`,
//!    `a_late_fill_is_dropped_however_it_comes`)
//! 2. H misses at 5. X bumps a tag of the key, or flushes, at 6: no fence of a shard knows. The fill is
//!    compared with the floors and bumps as well, and dropped. (`fences.rs`: `flushes_revoke_leases`,
//!    `tags.rs`: `a_value_computed_before_a_bump_is_not_served_after_it`)
//! 3. H misses at 5 under a rule. The rule is removed at 6; X deletes at 7, and without a rule no fence is
//!    raised. The rule comes back, and H stores: 5 < 6, the number at which keys ceased to be under a rule,
//!    and the fill is dropped. A rule that gets other tags counts as removed: X may have bumped a tag that it
//!    had. (`fences.rs`: `changed_rules_do_not_open_a_gap`, `tags.rs`:
//!    `a_fill_is_fenced_though_the_rule_has_lost_the_tag`)
//! 4. H misses at 5. X invalidates softly at 6. H stores: 5 < 6, the value is stored as stale. It has expired
//!    in the second of its miss at the latest, and its grace counts from there: the soft event has ended it,
//!    in the moment of the miss at the earliest. It goes to waiters that began before 6. (`fences.rs`:
//!    `soft_invalidation_makes_a_late_fill_stale`, `grace.rs`:
//!    `a_fill_that_is_stale_on_arrival_is_served_for_the_grace_from_its_miss`)
//! 5. H misses at 5, W at 6, both compute. H stores at 7: the item's stamp is 5, and no event is noted. W
//!    stores: its fill counts as of 5 or 6, and replaces H's value. Were this write an event, every later
//!    fill of an open miss would be dropped. (`herd.rs`:
//!    `the_deadline_promotes_and_the_others_go_on_waiting`)
//! 6. H misses at 5, W waits. H stores a value that has expired already (exptime -1): W gets it, and nothing
//!    is kept. The clock moves on, so that no miss after this one notes 5 as well. The same from a client
//!    that is not the holder is a delete. (`herd.rs`: `a_value_can_be_given_to_waiters_and_not_be_kept`)
//! 7. Under a rule without leases H asks with `mg N` and gets a stub. X bumps a tag that only H's `ms` names:
//!    the value is dropped, but the stub does not carry the tag and is still there. It would wait for a value
//!    that does not come, so it is removed, and the next `mg N` wins again. (`unleased.rs`:
//!    `a_value_that_comes_too_late_leaves_no_stub_behind`)
//! 8. W waits with a `gat`. The value is stored and delivered: W's touch is applied then, since it could not
//!    be when W asked. A stale value is not prolonged. (`cascades.rs`:
//!    `a_held_gat_touches_when_it_is_answered`)
//! 9. H's fill and X's delete, flush or bump come at the same moment on two threads. If the fill is first,
//!    its item is removed, or found to be too old when it is read; if the event is first, the fill is dropped
//!    as in 1 and 2. (`shuttle.rs`: `fill_and_delete`, `fill_and_flush`, `fill_and_bump`)
//! 10. Under a rule with a loader H misses at 5 without a lease, and X deletes at 6. Job 7 begins. C, which
//!     has changed the source, stores: it cannot be told from H, whose value would be old, and is dropped.
//!     But job 7 may have read the source before C changed it. So C's `set` counts as a delete: the job is
//!     revoked, and another one begins. (`loads.rs`: `a_set_that_is_dropped_counts_as_a_delete`)
//! 11. H misses at 5, X deletes at 6, W misses at 6 and stores: its fill may be H's, of the value from before
//!     6. It is shown for a time, and goes to all waiters ([`Judgement::Provisional`]). H stores: the last
//!     old miss is filled, and the provisional value goes. (`account.rs`:
//!     `a_provisional_value_goes_when_the_old_miss_is_filled`)
//! 12. A value is judged, and the shard has no room for it. The request comes again when there is room, and
//!     is judged as if for the first time. (`account.rs`: `a_fill_that_waits_for_room_is_judged_once`)
//! 13. Under `owner = "connection"` a connection has missed more keys than it remembers, or the server has
//!     just started. It stores a key, and it is not known whether that is the fill of a miss from before X's
//!     delete or a new value. It is dropped, and the value that is there, which may be older, is deleted.
//!     (`account.rs`: `a_write_that_may_be_a_fill_leaves_nothing_older`) It takes no miss off the record: if
//!     it is a new value, X's miss is open still, and X's value comes later.
//! 14. H has token 5 and is late; W has the lease under token 7 and stores: the item's stamp is 7. H's value
//!     is not older than an event, but 5 < 7: it is dropped, since W's was computed later. (`tokens.rs`,
//!     `herd.rs`: `the_deadline_promotes_and_the_others_go_on_waiting`)
//! 15. Under a rule without leases H takes a lock in the place of the value, by an `add`. It may be an old
//!     value, but as a provisional one it would end while H computes, and W would take the lock as well. It
//!     is `NOT_STORED`: to H another client was first. (`account.rs`:
//!     `a_lock_in_the_place_of_a_value_is_never_provisional`)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{
    Ambiguous, FillMoment, FillVerdict, Filler, Judgement, RuleState, ShownValue, SoftRelation, StaleFill,
    Surroundings, ValueHashes, Waiter, refresh_lead_s,
};
use cattlegrid_store::{Attributes, Found, Life, Lookup, Marks, NEVER, Refresh, Store, TAGS_MAX};
use cattlegrid_tags::TagList;

use crate::delivered::{DeliveredValue, Delivery, Verdict};
use crate::rules::{Change, OwnedMatch};
use crate::shard::Shard;
use crate::shard::put::{
    FillKind, FillWrite, Write, WriteData, WriteMode, WriteOutcome, hash_item, hash_write,
};
use crate::shard::standing::is_stub;
use crate::slow::SlowKind;
use crate::step::Step;
use crate::time::Now;

impl Shard {
    /// Stores a whole value or drops it, and wakes the waiters.
    pub(crate) fn store_value(
        &mut self,
        write: &Write<'_>,
        found: Option<Found>,
        mut filling: FillWrite<'_>,
        ruled: &OwnedMatch,
        step: &mut Step<'_>,
    ) -> WriteOutcome {
        let FillWrite { fill, by, .. } = filling;
        let appends = matches!(write.mode, WriteMode::Append | WriteMode::Prepend);
        let expiry = write.vivify.filter(|_| appends).unwrap_or(write.expiry);
        let is_over = expiry != NEVER && expiry <= step.now.second;
        if is_over && !self.holds(write.hash, by) {
            return self.delete_for(write, filling, ruled, step);
        }
        self.shared.note_named(write.tags.hashes(), step.now.ms);
        // More tags than fit were refused before.
        let tags = ruled.tags.union(&write.tags).unwrap_or(ruled.tags);
        let around = self.surroundings(write.hash, tags.hashes(), &ruled.state, step.now);
        let judged = self.judge(write, &filling, &tags, &around, ruled, step.now);
        if !judged.judgement.stores() {
            return self.drop_fill(write, found, filling, &judged, &around, ruled, step);
        }
        if is_over || matches!(judged.judgement, Judgement::Provisional { .. }) && judged.closed {
            return self.give_only(write, found, filling, &judged, &around, ruled, step);
        }
        let Some((cas, ends)) = self.put_fill(write, expiry, &filling, &judged, &tags, ruled, step.now)
        else {
            if let Some(herd) = &mut self.herd {
                // History 12.
                herd.ledger.undo(write.hash);
            }
            return WriteOutcome::NoRoom(write.data.len());
        };
        let stale = self.stale(write, &judged, ruled, step.now);
        note_crossing(write.hash, &filling, &judged, &ruled.state, step.now.ms);
        count_stored(write, fill, &judged, stale.is_some(), ruled);
        self.note_slow(write, fill, &judged, ruled, step.now);
        self.consume(write.hash, &mut filling, &around, step.now.ms);
        let waiters = self.take_waiters(write, by, stale, step);
        self.deliver(write, cas, ends, &ruled.state, waiters, step);
        WriteOutcome::Stored { cas: self.shown_cas(cas), size: write.data.len() }
    }

    /// Notes a computation that took long. Loads are noted when they end.
    #[inline]
    fn note_slow(
        &self,
        write: &Write<'_>,
        fill: FillKind,
        judged: &FillVerdict,
        ruled: &OwnedMatch,
        now: Now,
    ) {
        let ms = match fill {
            FillKind::No => None,
            FillKind::Any { .. } => judged.sample_ms,
            FillKind::Of(_) | FillKind::ByToken(_) => {
                self.herd.as_ref().and_then(|herd| herd.computing_ms(write.hash, now.ms))
            }
        };
        let us = ms.unwrap_or(0) * 1000;
        if us >= self.shared.slow().most_us.load(Ordering::Relaxed) && !ruled.state.policy().loader {
            self.keep_slow(write.key, us, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_slow(&self, key: &[u8], us: u64, now: Now) {
        self.shared.slow().note(SlowKind::Computation, us, now.ms, || {
            let active = self.shared.rules();
            let found = active.as_ref().and_then(|active| active.find(key));
            found.map_or_else(Box::default, |found| found.rule.pattern.text().into())
        });
    }

    /// Judges a write: whether it is stored, as of which number, and for how long.
    fn judge(
        &mut self,
        write: &Write<'_>,
        filling: &FillWrite<'_>,
        tags: &TagList,
        around: &Surroundings,
        ruled: &OwnedMatch,
        now: Now,
    ) -> FillVerdict {
        let hash = write.hash;
        let known = FillVerdict::known(Judgement::Write);
        match filling.fill {
            FillKind::No => known,
            FillKind::Of(number) | FillKind::ByToken(number) => {
                // A loader's lease ends with each event of its key: the fence would only add those of keys
                // that share its slot. The others know no fence of the events outside (history 2).
                let by_loader = filling.session.is_none();
                let events = if by_loader { around.outside } else { around.outside.max(around.written) };
                if let Some(herd) = self.herd.as_mut().filter(|_| !by_loader) {
                    herd.fence.note_fill(self.shared.clock().saturating_sub(number), self.shared.shards());
                }
                // History 14.
                let newer = filling.shown.map(|shown| self.store.item(shown).stamp());
                if number < events.hard || newer.is_some_and(|stamp| number < stamp) {
                    // Whether other old misses are open is known when its own is taken off the record.
                    return FillVerdict { closed: false, ..FillVerdict::known(Judgement::Old) };
                }
                let softened = if number < events.soft { SoftRelation::Now } else { SoftRelation::No };
                FillVerdict { softened, ..FillVerdict::known(Judgement::Clean { stamp: number }) }
            }
            FillKind::Any { strict: strict_owner } => {
                let Some(herd) = &mut self.herd else { return known };
                let drops = around.start.is_some_and(|start| start.drops);
                let policy = ruled.state.policy();
                // History 15.
                let locks = write.mode == WriteMode::Add && !policy.leases;
                // Under a loader a job computes the value at once, and what may be old is not worth showing
                // (history 10).
                let strict =
                    strict_owner || drops || locks || policy.loader || policy.ambiguous == Ambiguous::Drop;
                let moment = FillMoment { now_ms: now.ms, p99_ms: ruled.state.fill_p99_ms(), strict };
                if let Some(start) = around.start {
                    // A key without a record is judged by its slot.
                    let passed = self.shared.clock().saturating_sub(start.number);
                    herd.fence.note_fill(passed, self.shared.shards());
                }
                let values = FillComparison { store: &self.store, write, tags, shown: filling.shown };
                let judged = herd.ledger.fill(hash, around, &moment, &values);
                if strict_owner {
                    // History 13.
                    herd.ledger.undo(hash);
                }
                judged
            }
        }
    }

    /// Puts the value into the store. Returns its CAS and its expiry; None: no room.
    #[expect(clippy::too_many_arguments, reason = "one piece of `store_value`")]
    fn put_fill(
        &mut self,
        write: &Write<'_>,
        expiry: u32,
        filling: &FillWrite<'_>,
        judged: &FillVerdict,
        tags: &TagList,
        ruled: &OwnedMatch,
        now: Now,
    ) -> Option<(u64, u32)> {
        let number = self.shared.tick();
        let cas = write.explicit_cas.unwrap_or(number);
        let mut stamp = judged.judgement.stamp().unwrap_or(number);
        let policy = ruled.state.policy();
        let appends = matches!(write.mode, WriteMode::Append | WriteMode::Prepend);
        let expiry = if write.negative || appends {
            expiry
        } else {
            shortened(expiry, number, write.hash, ruled, now)
        };
        let mut ends = expiry;
        let grace_s = if write.negative { 0 } else { policy.kept_s() };
        let mut marks = Marks::none();
        match judged.softened {
            SoftRelation::No => {}
            SoftRelation::Later { soft, until_ms } => {
                // A flush that is phased in will be a hard event: it must stay above the stamp if it is. (A
                // purge is soft.)
                if self.shared.tags().floors().highest() <= stamp {
                    stamp = stamp.max(soft);
                }
                // Without a grace it is a life, which ends in a millisecond.
                let second = u32::try_from(until_ms.div_ceil(1000)).unwrap_or(u32::MAX);
                ends = if expiry == NEVER { second } else { expiry.min(second) };
            }
            SoftRelation::Now => {
                marks = Marks::STALE;
                // History 4: the soft event has ended the value, in the moment of the miss at the earliest.
                // Grace counts from there.
                if grace_s > 0 {
                    let since = self.shared.second_of(stamp);
                    ends = if expiry == NEVER { since } else { expiry.min(since) };
                }
            }
        }
        let lead_s = if ends != NEVER && !write.negative && marks == Marks::none() {
            refresh_lead_s(policy.early, ends.saturating_sub(now.second), ruled.state.usual_ms(), write.hash)
        } else {
            0
        };
        if write.negative {
            marks = marks.with(Marks::NEGATIVE);
        }
        if appends {
            marks = marks.with(Marks::EDITED);
        }
        let attributes = Attributes {
            flags: write.flags,
            expiry: ends,
            accessed: now.second,
            cas,
            stamp: (stamp != cas).then_some(stamp),
            grace_s,
            refresh: Refresh::lead(lead_s),
            tags: tags.hashes(),
            marks,
        };
        let attributes = attributes.with_life(self.life_of(write, filling, judged, grace_s > 0));
        self.store.put(write.hash, write.key, &attributes, write.data.to_value()).ok()?;
        // History 5: a fill is no event.
        if is_event(filling.fill, judged.judgement) {
            self.raise_written(write.hash, number);
        }
        Some((cas, ends))
    }

    /// The limited life of a value that is stored; `has_grace`: it may be served when it is old.
    fn life_of(
        &self,
        write: &Write<'_>,
        filling: &FillWrite<'_>,
        judged: &FillVerdict,
        has_grace: bool,
    ) -> Option<Life> {
        let softened = match judged.softened {
            SoftRelation::Later { until_ms, .. } if !has_grace => {
                Some(Life { ends_ms: until_ms, provisional: false })
            }
            _ => None,
        };
        let present = || filling.shown.and_then(|shown| self.store.item(shown).life());
        match judged.judgement {
            // A change of the value that is there, which may be old, is as old as that.
            Judgement::Write if write.mode == WriteMode::Cas => present(),
            Judgement::Proved { again: true, .. } => present().or(softened),
            Judgement::Provisional { until_ms, instead, .. } => {
                let mut ends_ms = until_ms.min(judged.closes_ms);
                if let Some(present) = present().filter(|_| instead) {
                    ends_ms = ends_ms.min(present.ends_ms);
                }
                let ends_ms = softened.map_or(ends_ms, |life| life.ends_ms.min(ends_ms));
                Some(Life { ends_ms, provisional: true })
            }
            _ => softened,
        }
    }

    /// A fill that is not stored, though it is answered as if it had been just before the event.
    #[expect(clippy::too_many_arguments, reason = "one piece of `store_value`")]
    fn drop_fill(
        &mut self,
        write: &Write<'_>,
        found: Option<Found>,
        mut filling: FillWrite<'_>,
        judged: &FillVerdict,
        around: &Surroundings,
        ruled: &OwnedMatch,
        step: &mut Step<'_>,
    ) -> WriteOutcome {
        let FillWrite { fill, by, shown, .. } = filling;
        note_crossing(write.hash, &filling, judged, &ruled.state, step.now.ms);
        ruled.state.count_fill(judged.judgement);
        learn(judged, ruled);
        let closed = self.consume(write.hash, &mut filling, around, step.now.ms) || judged.closed;
        let by_loader = ruled.state.policy().loader && fill.token().is_none();
        if by_loader || fill == (FillKind::Any { strict: true }) {
            // Histories 10, 13.
            self.delete_unawaited(write.key, write.hash, step);
        } else {
            let visible = shown.is_some_and(|shown| self.after_drop(write, shown, judged, closed, ruled));
            let anyones = !visible && fill.number().is_none();
            self.with_herd(step, |herd, step| herd.dropped(write.hash, write.key, by, anyones, step));
        }
        let unleased = found.filter(|_| !ruled.state.policy().leases);
        if let Some(stub) = unleased.filter(|found| is_stub(&self.store.item(*found))) {
            // History 7: the stub would never be filled, and the next client wins again.
            self.store.remove(write.hash, stub);
        }
        match (write.mode, found) {
            (WriteMode::Cas, Some(_)) => WriteOutcome::Exists,
            (WriteMode::Cas, None) => WriteOutcome::NotFound,
            (WriteMode::Add, _) => WriteOutcome::NotStored,
            // History 1: to others it was stored just before the event.
            _ => WriteOutcome::Stored { cas: 0, size: write.data.len() },
        }
    }

    /// What a dropped fill does to the value that is there. Returns whether there is one still.
    fn after_drop(
        &mut self,
        write: &Write<'_>,
        shown: Found,
        judged: &FillVerdict,
        closed: bool,
        ruled: &OwnedMatch,
    ) -> bool {
        let life = self.store.item(shown).life();
        if closed && life.is_some_and(|life| life.provisional) {
            ruled.state.counters().lives_closed.fetch_add(1, Ordering::Relaxed);
            self.store.remove(write.hash, shown);
            return false;
        }
        if let Judgement::Dropped { doubt_ms: Some(ends_ms) } = judged.judgement
            && life.is_none_or(|life| life.ends_ms > ends_ms)
        {
            if life.is_none() {
                ruled.state.counters().values_doubted.fetch_add(1, Ordering::Relaxed);
            }
            let mut room = [0; TAGS_MAX];
            let life = Some(Life { ends_ms, provisional: false });
            let item = self.store.item(shown);
            let attributes = item.attributes(&mut room).with_life(life);
            if !self.rewrite(write.key, write.hash, shown, &attributes) {
                // Without room for the end of its life it ends now.
                self.store.remove(write.hash, shown);
                return false;
            }
        }
        true
    }

    /// A value that goes to all waiters and is not kept: it has expired on arrival (history 6), or its
    /// limited life is over before it begins. What is there goes as well.
    #[expect(clippy::too_many_arguments, reason = "one piece of `store_value`")]
    fn give_only(
        &mut self,
        write: &Write<'_>,
        found: Option<Found>,
        mut filling: FillWrite<'_>,
        judged: &FillVerdict,
        around: &Surroundings,
        ruled: &OwnedMatch,
        step: &mut Step<'_>,
    ) -> WriteOutcome {
        let FillWrite { fill, by, .. } = filling;
        note_crossing(write.hash, &filling, judged, &ruled.state, step.now.ms);
        learn(judged, ruled);
        self.consume(write.hash, &mut filling, around, step.now.ms);
        if let Some(found) = found {
            self.store.remove(write.hash, found);
        }
        // The clock moves on for a fill as well: no later miss may note the number of an earlier one.
        let taken = self.shared.tick();
        let number = judged.judgement.stamp().unwrap_or(taken);
        if is_event(fill, judged.judgement) {
            self.raise_written(write.hash, taken);
        }
        if judged.judgement == Judgement::Write {
            ruled.state.counters().fills_stored.fetch_add(1, Ordering::Relaxed);
        } else {
            ruled.state.count_fill(judged.judgement);
        }
        let stale = self.stale(write, judged, ruled, step.now);
        let waiters = self.take_waiters(write, by, stale, step);
        self.deliver(write, number, write.expiry, &ruled.state, waiters, step);
        WriteOutcome::Stored { cas: 0, size: write.data.len() }
    }

    /// A value that has expired on arrival and is not the holder's (history 6): a delete.
    fn delete_for(
        &mut self,
        write: &Write<'_>,
        mut filling: FillWrite<'_>,
        ruled: &OwnedMatch,
        step: &mut Step<'_>,
    ) -> WriteOutcome {
        self.use_up(write, &mut filling, false, ruled, step.now);
        // The waits of its own connection were answered before.
        self.delete_unawaited(write.key, write.hash, step);
        WriteOutcome::Stored { cas: 0, size: write.data.len() }
    }

    /// The judgement of a value that is older than a soft event for certain.
    fn stale(
        &self,
        write: &Write<'_>,
        judged: &FillVerdict,
        ruled: &OwnedMatch,
        now: Now,
    ) -> Option<StaleFill> {
        let stamp = judged.judgement.stamp().filter(|_| judged.softened == SoftRelation::Now)?;
        let tags = write.tags.hashes();
        let by_own_tag =
            !tags.is_empty() && self.shared.outside(write.hash, tags, Some(&ruled.state), now).soft > stamp;
        Some(StaleFill { stamp, by_own_tag })
    }

    pub(crate) fn take_waiters(
        &mut self,
        write: &Write<'_>,
        by: Filler,
        stale: Option<StaleFill>,
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
                WriteData::Huge(huge) => (DeliveredValue::Huge(Arc::clone(huge)), 0),
                WriteData::Inline(bytes) => (DeliveredValue::Inline((*bytes).into()), bytes.len()),
            };
            Arc::new(Delivery {
                flags: write.flags,
                cas: self.shown_cas(cas),
                ttl: step.now.left(expiry),
                is_old: false,
                value,
                counted: self.shared.delivered.count(copied),
            })
        });
        for waiter in waiters {
            // A stale value is not prolonged, and the answer that there is none is not either.
            if let Some(exptime) = waiter.touch.filter(|_| !write.negative)
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

    /// Takes the miss of a fill whose miss is known off the record. True: no old miss is on record any more.
    fn consume(
        &mut self,
        hash: u64,
        filling: &mut FillWrite<'_>,
        around: &Surroundings,
        now_ms: u64,
    ) -> bool {
        let Some(herd) = &mut self.herd else { return false };
        match (filling.fill, &mut filling.session) {
            (FillKind::No, _) | (FillKind::Any { .. }, None) => false,
            (FillKind::Any { .. }, Some(session)) => {
                session.take_oldest(hash, now_ms);
                false
            }
            (FillKind::Of(number), session) => {
                // Its client has no other computation of the key under way.
                let own = session.as_mut().map(|session| session.take_all(hash)).unwrap_or_default();
                let mut closed = false;
                for record in own.iter().filter(|record| record.until_ms > now_ms) {
                    closed = herd.ledger.take(hash, Some(record.number), around, now_ms);
                }
                if own.is_empty() {
                    closed = herd.ledger.take(hash, Some(number), around, now_ms);
                }
                closed
            }
            (FillKind::ByToken(token), session) => {
                if let Some(session) = session {
                    session.take_number(hash, token);
                }
                herd.use_token(hash, token, around, now_ms)
            }
        }
    }

    /// A write that stores nothing takes its miss off the record all the same. `counts`: its value is
    /// compared with others.
    pub(crate) fn use_up(
        &mut self,
        write: &Write<'_>,
        filling: &mut FillWrite<'_>,
        counts: bool,
        ruled: &OwnedMatch,
        now: Now,
    ) {
        self.shared.note_named(write.tags.hashes(), now.ms);
        let tags = ruled.tags.union(&write.tags).unwrap_or(ruled.tags);
        let around = self.surroundings(write.hash, tags.hashes(), &ruled.state, now);
        let mut closed = self.consume(write.hash, filling, &around, now.ms);
        if let FillKind::Any { .. } = filling.fill {
            closed = if filling.fill == (FillKind::Any { strict: true }) && !counts {
                false
            } else if counts {
                self.judge(write, filling, &tags, &around, ruled, now).closed
            } else {
                self.herd.as_mut().is_some_and(|herd| herd.ledger.take(write.hash, None, &around, now.ms))
            };
        }
        if let Some(shown) = filling.shown.filter(|_| closed)
            && self.store.item(shown).life().is_some_and(|life| life.provisional)
        {
            ruled.state.counters().lives_closed.fetch_add(1, Ordering::Relaxed);
            self.store.remove(write.hash, shown);
        }
    }

    /// Ends the lease for which a fill was refused. `deletes`: its key is deleted next.
    pub(crate) fn give_up_fill(&mut self, hash: u64, by: Filler, deletes: bool, step: &mut Step<'_>) {
        self.with_herd(step, |herd, step| {
            // The delete passes the lease on, but does not show that the key cannot be filled.
            if deletes { herd.refused(hash, by, step) } else { herd.gave_up(hash, by, step) }
        });
    }
}

/// The expiry of a value that is stored under this number, after `ttl_jitter`.
fn shortened(expiry: u32, number: u64, hash: u64, ruled: &OwnedMatch, now: Now) -> u32 {
    let policy = ruled.state.policy();
    if policy.ttl_jitter == 0 || expiry == NEVER {
        return expiry;
    }
    // Another number at each store, spread over all numbers (Fibonacci hashing).
    let drawn = (hash ^ number.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let shortened_s = policy.shortened_s(expiry.saturating_sub(now.second), drawn);
    if shortened_s > 0 {
        ruled.state.counters().ttl_shortened.fetch_add(1, Ordering::Relaxed);
    }
    expiry - shortened_s
}

fn count_stored(write: &Write<'_>, fill: FillKind, judged: &FillVerdict, stale: bool, ruled: &OwnedMatch) {
    let counters = ruled.state.counters();
    if write.negative {
        counters.negatives.fetch_add(1, Ordering::Relaxed);
    } else if fill != FillKind::No && stale {
        counters.fills_stale.fetch_add(1, Ordering::Relaxed);
    } else if fill != FillKind::No {
        ruled.state.count_fill(judged.judgement);
    }
    learn(judged, ruled);
}

/// Counts whether a fill came on the connection that was answered a miss of its key.
fn note_crossing(hash: u64, filling: &FillWrite<'_>, judged: &FillVerdict, rule: &RuleState, now_ms: u64) {
    let (FillKind::Any { .. }, Some(session)) = (filling.fill, &filling.session) else { return };
    if judged.judgement == Judgement::Write {
        return;
    }
    let is_own = session.oldest(hash, now_ms).is_some();
    session.caller().peer().note_fill(is_own);
    let counters = rule.counters();
    let counter = if is_own { &counters.fills_own } else { &counters.fills_crossed };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Learns how long the fill was computed.
fn learn(judged: &FillVerdict, ruled: &OwnedMatch) {
    if let Some(ms) = judged.sample_ms {
        ruled.state.learn_fill(ms);
    }
}

/// Whether a value that is stored makes fills of earlier misses old: it is an ordinary write, or may be one
/// where each fill is known.
fn is_event(fill: FillKind, judgement: Judgement) -> bool {
    judgement == Judgement::Write || fill == FillKind::Any { strict: true }
}

/// A fill and the value that is there, compared when that is needed.
pub(crate) struct FillComparison<'a> {
    pub(crate) store: &'a Store,
    pub(crate) write: &'a Write<'a>,
    pub(crate) tags: &'a TagList,
    pub(crate) shown: Option<Found>,
}

impl ValueHashes for FillComparison<'_> {
    fn fill(&self) -> u64 {
        hash_write(self.store, self.write, self.tags.hashes())
    }

    fn shown(&self) -> Option<ShownValue> {
        let item = self.store.item(self.shown?);
        let provisional = item.life().is_some_and(|life| life.provisional);
        Some(ShownValue { value: hash_item(self.store, &item), provisional })
    }
}
