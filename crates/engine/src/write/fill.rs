//! Fills: values that were computed for a miss of a key under a rule.
//!
//! A fill counts as of its miss. It is stored only if nothing hard happened to its key since; what happened
//! softly makes it stale on arrival. Who fills is a connection, or has no connection and shows the lease's token.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{DropCause, Filler, RuleState, Session, Waiter, refresh_lead_s};
use cattlegrid_store::{Attributes, Found, Lookup, Marks, NEVER, NewValue};

use crate::item::is_stub;
use crate::rules::Change;
use crate::rules::active::Ruled;
use crate::shard::Shard;
use crate::step::{Step, Verdict};
use crate::wait::delivered::{Delivered, DeliveredValue};
use crate::write::store::{Mode, Outcome, Write};

/// What a write is, seen from the misses of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// No fill.
    No,
    /// It counts as of this number.
    Of(u64),
    /// It may, and whose miss that was is not known: the miss stays open.
    Perhaps(u64),
    /// The same, and it has shown the number as a token.
    ByToken(u64),
}

impl Fill {
    pub(crate) fn stamp(self) -> Option<u64> {
        match self {
            Self::No => None,
            Self::Of(number) | Self::Perhaps(number) | Self::ByToken(number) => Some(number),
        }
    }

    pub(crate) fn token(self) -> Option<u64> {
        if let Self::ByToken(token) = self { Some(token) } else { None }
    }
}

/// A write as a fill, and whose it is.
pub(crate) struct Filling<'a> {
    pub(crate) fill: Fill,
    pub(crate) by: Filler,
    /// The connection's part in the herd; None: who fills has none, but a token.
    pub(crate) session: Option<&'a mut Session>,
}

impl Shard {
    /// Stores a whole value, or does not, and tells those who wait.
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
        // Too many were refused before.
        let tags = ruled.tags.union(&write.tags).unwrap_or(ruled.tags);
        let (mut hard, mut soft) = self.shared.outside(write.hash, tags.hashes(), step.now);
        if let Some(herd) = &mut self.herd {
            if let Some(stamp) = fill.stamp() {
                herd.fence.note_fill(self.shared.clock().saturating_sub(stamp), self.shared.shards());
            }
            let events = herd.fence.events(write.hash);
            (hard, soft) = (hard.max(events.hard), soft.max(events.soft));
        }
        // Who missed under rules that have gone since may have missed an event as well.
        hard = hard.max(self.shared.uncovered());
        if fill.stamp().is_some_and(|stamp| stamp < hard) {
            ruled.state.count_dropped(self.cause_of_drop(write.hash, &filling, hard, ruled, step.now.ms));
            self.consume(write.hash, &mut filling, step.now.ms);
            self.with_herd(step, |herd, step| herd.dropped(write.hash, by, step));
            let unleased = found.filter(|_| !ruled.state.policy().leases);
            if let Some(stub) = unleased.filter(|found| is_stub(&self.store.item(*found))) {
                // Nobody else comes to fill it: the next one wins again.
                self.store.remove(write.hash, stub);
            }
            return match (write.mode, found) {
                (Mode::Cas, Some(_)) => Outcome::Exists,
                (Mode::Cas, None) => Outcome::NotFound,
                (Mode::Add, _) => Outcome::NotStored,
                // To everybody else this cannot be told from having been stored just before what came after.
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
        // What came softly after the miss has ended it, at the earliest in the moment of the miss: grace counts from there.
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
        let value = match &write.huge {
            Some(huge) => NewValue::Huge(Arc::clone(huge)),
            None => NewValue::Inline([write.data, &[]]),
        };
        if self.store.put(write.hash, write.key, &attributes, value).is_err() {
            return Outcome::NoRoom(write.data.len());
        }
        match (write.negative, fill, stale) {
            (true, ..) => counters.negatives.fetch_add(1, Ordering::Relaxed),
            (_, Fill::No, _) => 0,
            (_, _, None) => counters.fills_stored.fetch_add(1, Ordering::Relaxed),
            (_, _, Some(_)) => counters.fills_stale.fetch_add(1, Ordering::Relaxed),
        };
        self.consume(write.hash, &mut filling, step.now.ms);
        self.raise_hard(write.hash, stamp);
        let waiters = self.take_waiters(write, by, stale, step);
        self.deliver(write, cas, ends, &ruled.state, waiters, step);
        Outcome::Stored { cas: self.shown_cas(cas), size: write.data.len() }
    }

    /// Why a fill is dropped, `hard` being the event that came after its miss.
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
            // Who takes longer than a lease is taken for dead.
            Some(oldest) if oldest.since_ms + u64::from(ruled.state.lease_ms()) <= now_ms => {
                DropCause::Abandoned
            }
            _ => DropCause::Other,
        }
    }

    /// A value that is over when it comes: its holder's goes to all who wait, and nothing is kept; anybody else's is
    /// a delete.
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
            // Taken also for a fill: no later miss is to note the number of an earlier one.
            let taken = self.shared.tick();
            let number = fill.stamp().unwrap_or(taken);
            self.raise_hard(write.hash, number);
            let waiters = self.take_waiters(write, by, stale, step);
            ruled.state.counters().fills_stored.fetch_add(1, Ordering::Relaxed);
            self.deliver(write, number, write.expiry, &ruled.state, waiters, step);
        } else {
            // What its connection waits for was answered before.
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

    /// Gives a value to those who waited for it: copied once, whatever becomes of the item.
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
            let (value, copied) = match &write.huge {
                Some(huge) => (DeliveredValue::Huge(Arc::clone(huge)), 0),
                None => (DeliveredValue::Inline(write.data.into()), write.data.len()),
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
            // An old value is not prolonged.
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

    /// The miss of a fill has been answered for.
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

    /// A fill was refused. `deletes`: its key is deleted next.
    pub(crate) fn give_up_fill(&mut self, hash: u64, by: Filler, deletes: bool, step: &mut Step<'_>) {
        self.with_herd(step, |herd, step| {
            // A delete passes the lease on, but is no sign that the key cannot be filled.
            if deletes { herd.refused(hash, by, step) } else { herd.dropped(hash, by, step) }
        });
    }
}
