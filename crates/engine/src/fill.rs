//! Writes of keys under a rule: which miss a fill belongs to, whether it is still welcome, and who waits for it.
//!
//! A fill counts as of its miss. It is stored only if nothing hard happened to its key since; what happened
//! softly makes it stale on arrival. Any other write is taken as it comes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{DropCause, Filler, Owner, RuleState, Waiter, refresh_lead_s};
use cattlegrid_store::{Attributes, Found, Lookup, Marks, NEVER, NewValue, Value};
use cattlegrid_tags::{TagList, Validity};

use crate::ask::Standing;
use crate::meta::is_stub;
use crate::park::{Delivered, DeliveredValue};
use crate::rules::Change;
use crate::shard::Shard;
use crate::shared::Match;
use crate::step::{Context, Verdict};
use crate::store_cmd::{Mode, Outcome, Write};

/// The rule of a key that is written.
pub(crate) struct Ruled {
    pub(crate) state: Arc<RuleState>,
    pub(crate) tags: TagList,
    pub(crate) negative_ttl_s: u32,
}

/// What a write is, seen from the misses of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
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
    fn stamp(self) -> Option<u64> {
        match self {
            Self::No => None,
            Self::Of(number) | Self::Perhaps(number) | Self::ByToken(number) => Some(number),
        }
    }

    fn token(self) -> Option<u64> {
        if let Self::ByToken(token) = self { Some(token) } else { None }
    }
}

impl Shard {
    /// The rule of a key, if it has one.
    pub(crate) fn rule_of(&mut self, key: &[u8]) -> Option<Ruled> {
        self.herd.as_ref()?;
        let active = self.shared.rules();
        let Match { rule, state, captures } = active.as_ref()?.find(key)?;
        let tags = self.tags_of(rule, &captures);
        Some(Ruled { state: Arc::clone(state), tags, negative_ttl_s: rule.negative_ttl_s })
    }

    /// A storing command of a key under a rule.
    pub(crate) fn write_ruled(&mut self, write: &Write<'_>, ruled: &Ruled, cx: &mut Context<'_>) -> Outcome {
        let found = match self.lookup(write.hash, write.key, &cx.step) {
            Lookup::Found(found) => Some(found),
            _ => None,
        };
        let standing = found
            .map_or(Standing::Absent, |found| self.standing(found, write.hash, Some(&ruled.state), &cx.step));
        let fresh = found.filter(|_| matches!(standing, Standing::Fresh | Standing::Early));
        let fill = self.fill_of(write, fresh, ruled, cx);
        let by = filler(write.hash, fill, cx);
        self.answer_own_waits(write.hash, by, cx);
        let outcome = match (write.mode, fresh) {
            // A refresh of a value that is still good is its holder's.
            (Mode::Add, Some(_)) if !self.holds(write.hash, by) => Outcome::NotStored,
            (Mode::Set | Mode::Add, _) | (Mode::Replace, Some(_)) => {
                return self.store_value(write, found, fill, ruled, cx);
            }
            (Mode::Cas, _) if fill.token().is_some() => {
                return self.store_value(write, found, fill, ruled, cx);
            }
            (Mode::Append | Mode::Prepend, None) if write.vivify.is_some() => {
                return self.store_value(write, found, fill, ruled, cx);
            }
            (Mode::Append | Mode::Prepend | Mode::Replace, None) => Outcome::NotStored,
            (Mode::Cas, None) => match found {
                // Invalidated softly: its old CAS is good for nothing.
                Some(found) if self.is_softened(found, write.hash, cx) && standing != Standing::Negative => {
                    Outcome::Exists
                }
                _ => Outcome::NotFound,
            },
            (Mode::Cas, Some(fresh)) if self.store.item(fresh).cas() == write.compare => {
                return self.store_value(write, found, fill, ruled, cx);
            }
            (Mode::Cas, Some(fresh)) if ruled.state.policy().leases && self.is_older(write, fresh) => {
                self.mark_for_older(write, fresh, cx)
            }
            (Mode::Cas | Mode::Append | Mode::Prepend, Some(fresh)) => {
                // What replaces a value, as stale or at its end, carries the rule's tags as well.
                let tags = ruled.tags.union(&write.tags).unwrap_or(ruled.tags);
                let outcome = self.write_over(&Write { tags, huge: write.huge.clone(), ..*write }, fresh, cx);
                if let Outcome::Stored { .. } = outcome {
                    self.raise_hard(write.hash, self.shared.clock());
                }
                outcome
            }
        };
        if fill != Fill::No && outcome == Outcome::NotStored {
            self.consume(write.hash, fill, cx);
        }
        outcome
    }

    /// Whether it is an `ms` with `I` that shows an older CAS than the item's.
    fn is_older(&self, write: &Write<'_>, fresh: Found) -> bool {
        write.or_stale && write.compare != 0 && write.compare < self.store.item(fresh).cas()
    }

    /// Such an `ms` asks for a value to be computed again. What it brings itself may be from before a delete, and would be
    /// served for the rule's grace: the newer value that is there takes its place as the old one.
    fn mark_for_older(&mut self, write: &Write<'_>, fresh: Found, cx: &mut Context<'_>) -> Outcome {
        let numbers = self.numbers(write.explicit_cas);
        if !self.mark_stale(write.key, write.hash, fresh, numbers, None, cx) {
            return Outcome::NoRoom(write.data.len());
        }
        let number = numbers.1.unwrap_or(numbers.0);
        self.invalidate_softly(write.key, write.hash, number, cx);
        Outcome::Stored { cas: self.shown_cas(numbers.0), size: write.data.len() }
    }

    /// It was invalidated softly, by name or by its own key.
    fn is_softened(&self, found: Found, hash: u64, cx: &Context<'_>) -> bool {
        let item = self.store.item(found);
        item.marks().has(Marks::STALE)
            || self.shared.tags().check(item.stamp(), item.tags(), hash, cx.step.now.ms) == Validity::Stale
    }

    fn holds(&self, hash: u64, by: Filler) -> bool {
        self.herd.as_ref().is_some_and(|herd| herd.holds(hash, by))
    }

    fn raise_hard(&mut self, hash: u64, number: u64) {
        if let Some(herd) = &mut self.herd {
            herd.fence.raise_hard(hash, number);
        }
    }

    /// Which miss this write fills.
    fn fill_of(&mut self, write: &Write<'_>, fresh: Option<Found>, ruled: &Ruled, cx: &Context<'_>) -> Fill {
        let Some(herd) = &mut self.herd else { return Fill::No };
        match write.mode {
            Mode::Cas if write.takes_token => {
                let own = fresh.filter(|fresh| self.store.item(*fresh).cas() == write.compare);
                match own {
                    // The stub was made at the miss.
                    Some(own) if !ruled.state.policy().leases && is_stub(&self.store.item(own)) => {
                        Fill::Of(self.store.item(own).stamp())
                    }
                    None if herd.knows_token(write.hash, write.compare, cx.step.now.ms) => {
                        Fill::ByToken(write.compare)
                    }
                    _ => Fill::No,
                }
            }
            Mode::Set | Mode::Add => {
                let own = cx.session.oldest(write.hash, cx.step.now.ms);
                let mut of_key =
                    || herd.ledger.oldest(write.hash, cx.step.now.ms).map(|oldest| oldest.number);
                match ruled.state.policy().owner {
                    Owner::Key => own.into_iter().chain(of_key()).min().map_or(Fill::No, Fill::Of),
                    // Its own miss may be one that found no room among its records.
                    Owner::Connection if own.is_none() && cx.session.has_lost(cx.step.now.ms) => {
                        of_key().map_or(Fill::No, Fill::Perhaps)
                    }
                    Owner::Connection => own.map_or(Fill::No, Fill::Of),
                }
            }
            _ => Fill::No,
        }
    }

    /// Stores a whole value, or does not, and tells those who wait.
    fn store_value(
        &mut self,
        write: &Write<'_>,
        found: Option<Found>,
        fill: Fill,
        ruled: &Ruled,
        cx: &mut Context<'_>,
    ) -> Outcome {
        let by = filler(write.hash, fill, cx);
        let counters = ruled.state.counters();
        // Too many were refused before.
        let tags = ruled.tags.union(&write.tags).unwrap_or(ruled.tags);
        let (mut hard, mut soft) = self.shared.outside(write.hash, tags.hashes(), cx.step.now);
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
            ruled.state.count_dropped(self.cause_of_drop(write.hash, fill, hard, ruled, cx));
            self.consume(write.hash, fill, cx);
            self.with_herd(&mut cx.step, |herd, step| herd.dropped(write.hash, by, step));
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
        if expiry != NEVER && expiry <= cx.step.now.second {
            return self.store_nothing(write, found, fill, stale, ruled, cx);
        }
        let number = self.shared.tick();
        let cas = write.explicit_cas.unwrap_or(number);
        let stamp = fill.stamp().unwrap_or(number);
        let policy = ruled.state.policy();
        let lead_s = if policy.early && expiry != NEVER && !write.negative {
            refresh_lead_s(expiry - cx.step.now.second, ruled.state.p90_ms(), write.hash)
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
            accessed: cx.step.now.second,
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
        self.consume(write.hash, fill, cx);
        self.raise_hard(write.hash, stamp);
        let waiters = self.take_waiters(write, by, stale, cx);
        self.deliver(write, cas, ends, &ruled.state, waiters, cx);
        Outcome::Stored { cas: self.shown_cas(cas), size: write.data.len() }
    }

    /// Why a fill is dropped, `hard` being the event that came after its miss.
    fn cause_of_drop(
        &mut self,
        hash: u64,
        fill: Fill,
        hard: u64,
        ruled: &Ruled,
        cx: &Context<'_>,
    ) -> DropCause {
        if fill.token().is_none() && cx.session.repeats(hash, hard, cx.step.now.ms) {
            return DropCause::Repeated;
        }
        let own = fill.token().or_else(|| cx.session.oldest(hash, cx.step.now.ms));
        if own.is_some_and(|own| own < hard) {
            return DropCause::Late;
        }
        let oldest = self.herd.as_mut().and_then(|herd| herd.ledger.oldest(hash, cx.step.now.ms));
        match oldest {
            Some(oldest) if oldest.lost => DropCause::Overflow,
            // Who takes longer than a lease is taken for dead.
            Some(oldest) if oldest.since_ms + u64::from(ruled.state.lease_ms()) <= cx.step.now.ms => {
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
        fill: Fill,
        stale: Option<u64>,
        ruled: &Ruled,
        cx: &mut Context<'_>,
    ) -> Outcome {
        let by = filler(write.hash, fill, cx);
        let by_holder = self.holds(write.hash, by);
        self.consume(write.hash, fill, cx);
        if by_holder {
            if let Some(found) = found {
                self.store.remove(write.hash, found);
            }
            // Taken also for a fill: no later miss is to note the number of an earlier one.
            let taken = self.shared.tick();
            let number = fill.stamp().unwrap_or(taken);
            self.raise_hard(write.hash, number);
            let waiters = self.take_waiters(write, by, stale, cx);
            ruled.state.counters().fills_stored.fetch_add(1, Ordering::Relaxed);
            self.deliver(write, number, write.expiry, &ruled.state, waiters, cx);
        } else {
            self.delete_ruled(write.key, write.hash, cx);
        }
        Outcome::Stored { cas: 0, size: write.data.len() }
    }

    fn take_waiters(
        &mut self,
        write: &Write<'_>,
        by: Filler,
        stale: Option<u64>,
        cx: &mut Context<'_>,
    ) -> Vec<Waiter> {
        self.with_herd(&mut cx.step, |herd, step| herd.stored(write.hash, write.key, by, stale, step))
            .unwrap_or_default()
    }

    /// Gives a value to those who waited for it: copied once, whatever becomes of the item.
    fn deliver(
        &mut self,
        write: &Write<'_>,
        cas: u64,
        expiry: u32,
        rule: &RuleState,
        waiters: Vec<Waiter>,
        cx: &mut Context<'_>,
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
                ttl: cx.step.now.left(expiry),
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
                self.store.set_expiry(write.hash, found, cx.step.now.expiry(exptime));
                self.cascade(write.key, write.hash, Change::Touch, cx.step.now);
            }
            let verdict = if let Some(delivered) = &delivered {
                Verdict::Value(Arc::clone(delivered))
            } else {
                let miss = self.with_herd(&mut cx.step, |herd, step| herd.miss(write.hash, rule, step));
                Verdict::Negative { record: miss }
            };
            cx.step.effects.herd.wake(waiter, verdict);
        }
    }

    /// The miss of a fill has been answered for.
    fn consume(&mut self, hash: u64, fill: Fill, cx: &mut Context<'_>) {
        let Some(herd) = &mut self.herd else { return };
        match fill {
            Fill::No | Fill::Perhaps(_) => {}
            Fill::Of(_) => {
                cx.session.take_oldest(hash, cx.step.now.ms);
                herd.ledger.fill(hash, None, cx.step.now.ms);
            }
            Fill::ByToken(token) => {
                cx.session.take_number(hash, token);
                herd.use_token(hash, token, cx.step.now.ms);
            }
        }
    }

    /// A write was refused: the miss that it would have filled, if its key is under a rule, will not be filled any
    /// more. The old value goes where it could be taken for the new one: after a `set`, and after an `ms` in any mode, as
    /// in memcached. Otherwise a lease passes to the next waiter, and the value stays.
    pub(crate) fn refused(&mut self, write: &Write<'_>, cx: &mut Context<'_>) {
        let mut by = None;
        if let Some(ruled) = self.rule_of(write.key) {
            let fill = self.fill_of(write, None, &ruled, cx);
            by = (fill != Fill::No).then(|| filler(write.hash, fill, cx));
            self.consume(write.hash, fill, cx);
        }
        let deletes = write.mode == Mode::Set || write.takes_token;
        if let Some(by) = by {
            // A delete passes the lease on, but is no sign that the key cannot be filled.
            self.with_herd(&mut cx.step, |herd, step| {
                if deletes {
                    herd.refused(write.hash, by, step);
                } else {
                    herd.dropped(write.hash, by, step);
                }
            });
        }
        if deletes {
            self.invalidate(write.key, write.hash, cx);
        }
    }

    /// Deletes a key under a rule. Returns the size of the value that readers could have seen.
    pub(crate) fn delete_ruled(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) -> Option<usize> {
        self.answer_all_own_waits(hash, cx);
        let number = self.shared.tick();
        self.raise_hard(hash, number);
        let mut size = None;
        if let Lookup::Found(found) = self.lookup(hash, key, &cx.step) {
            let item = self.store.item(found);
            if !item.marks().has(Marks::NEGATIVE) {
                size = Some(item.value_len());
            }
            self.store.remove(hash, found);
        }
        self.with_herd(&mut cx.step, |herd, step| herd.invalidated(hash, key, step));
        size
    }

    /// A key was invalidated softly: fills of earlier misses will be stale, and its lease is revoked.
    pub(crate) fn invalidate_softly(&mut self, key: &[u8], hash: u64, number: u64, cx: &mut Context<'_>) {
        self.answer_all_own_waits(hash, cx);
        self.with_herd(&mut cx.step, |herd, step| {
            herd.fence.raise_soft(hash, number);
            herd.invalidated(hash, key, step);
        });
    }

    /// A key under a rule was changed in place, or came into being by arithmetic: `created`.
    pub(crate) fn changed(&mut self, key: &[u8], hash: u64, created: bool, cx: &mut Context<'_>) {
        let Some(ruled) = self.rule_of(key) else { return };
        self.raise_hard(hash, self.shared.clock());
        let Lookup::Found(found) = self.store.lookup(hash, key) else { return };
        if !created {
            return;
        }
        let item = self.store.item(found);
        let (flags, cas, expiry) = (item.flags(), item.cas(), item.expiry());
        let mut value = Vec::new();
        if let Value::Inline(bytes) = item.value() {
            value.extend_from_slice(bytes);
        }
        let write = Write { flags, expiry, ..Write::set(key, hash, &value) };
        let by = filler(hash, Fill::No, cx);
        self.answer_own_waits(hash, by, cx);
        let waiters = self.take_waiters(&write, by, None, cx);
        self.deliver(&write, cas, expiry, &ruled.state, waiters, cx);
    }
}

/// Who fills, as its connection's records tell.
fn filler(hash: u64, fill: Fill, cx: &Context<'_>) -> Filler {
    let pooled = matches!(fill, Fill::Of(_)) && cx.session.oldest(hash, cx.step.now.ms).is_none();
    Filler { connection: cx.session.caller().number(), token: fill.token(), pooled }
}
