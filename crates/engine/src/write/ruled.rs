//! Writes and deletes of keys under a rule: which miss a write fills, and what is done with one that fills none.
//!
//! A fill counts as of its miss; see `fill`. Any other write is taken as it comes.

use std::sync::Arc;

use cattlegrid_herd::{Filler, Owner, Session};
use cattlegrid_store::{Found, Lookup, Marks, Value};
use cattlegrid_tags::Validity;

use crate::item::{Standing, is_stub};
use crate::rules::active::{Match, Ruled};
use crate::shard::Shard;
use crate::step::{Context, Step};
use crate::write::fill::{Fill, Filling};
use crate::write::store::{Mode, Outcome, Write};

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
        let found = self.lookup_found(write.hash, write.key, &cx.step);
        let standing = found
            .map_or(Standing::Absent, |found| self.standing(found, write.hash, Some(&ruled.state), &cx.step));
        let fresh = found.filter(|_| matches!(standing, Standing::Fresh | Standing::Early));
        let fill = self.fill_of(write, fresh, ruled, cx.session, cx.step.now.ms);
        let by = filler(write.hash, fill, cx.session, cx.step.now.ms);
        self.answer_own_waits(write.hash, by, cx);
        let stores = match (write.mode, fresh) {
            // A refresh of a value that is still good is its holder's.
            (Mode::Add, Some(_)) => self.holds(write.hash, by),
            (Mode::Set | Mode::Add, _) | (Mode::Replace, Some(_)) => true,
            (Mode::Cas, _) if fill.token().is_some() => true,
            (Mode::Cas, Some(fresh)) => self.store.item(fresh).cas() == write.compare,
            (Mode::Append | Mode::Prepend, None) => write.vivify.is_some(),
            (Mode::Append | Mode::Prepend, Some(_)) | (Mode::Replace | Mode::Cas, None) => false,
        };
        if stores {
            let filling = Filling { fill, by, session: Some(cx.session) };
            return self.store_value(write, found, filling, ruled, &mut cx.step);
        }
        let outcome = match (write.mode, fresh) {
            (Mode::Cas, None) => match found {
                // Invalidated softly: its old CAS is good for nothing.
                Some(found) if self.is_softened(found, write.hash, cx) && standing != Standing::Negative => {
                    Outcome::Exists
                }
                _ => Outcome::NotFound,
            },
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
            _ => Outcome::NotStored,
        };
        if fill != Fill::No && outcome == Outcome::NotStored {
            self.consume(write.hash, &mut Filling { fill, by, session: Some(cx.session) }, cx.step.now.ms);
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

    pub(crate) fn holds(&self, hash: u64, by: Filler) -> bool {
        self.herd.as_ref().is_some_and(|herd| herd.holds(hash, by))
    }

    pub(crate) fn raise_hard(&mut self, hash: u64, number: u64) {
        if let Some(herd) = &mut self.herd {
            herd.fence.raise_hard(hash, number);
        }
    }

    /// Which miss this write fills.
    fn fill_of(
        &mut self,
        write: &Write<'_>,
        fresh: Option<Found>,
        ruled: &Ruled,
        session: &Session,
        now_ms: u64,
    ) -> Fill {
        let Some(herd) = &mut self.herd else { return Fill::No };
        match write.mode {
            Mode::Cas if write.takes_token => {
                let own = fresh.filter(|fresh| self.store.item(*fresh).cas() == write.compare);
                match own {
                    // The stub was made at the miss.
                    Some(own) if !ruled.state.policy().leases && is_stub(&self.store.item(own)) => {
                        Fill::Of(self.store.item(own).stamp())
                    }
                    None if herd.knows_token(write.hash, write.compare, now_ms) => {
                        Fill::ByToken(write.compare)
                    }
                    _ => Fill::No,
                }
            }
            Mode::Set | Mode::Add => {
                let own = session.oldest(write.hash, now_ms);
                let mut of_key = || herd.ledger.oldest(write.hash, now_ms).map(|oldest| oldest.number);
                match ruled.state.policy().owner {
                    Owner::Key => own.into_iter().chain(of_key()).min().map_or(Fill::No, Fill::Of),
                    // Its own miss may be one that found no room among its records.
                    Owner::Connection if own.is_none() && session.has_lost(now_ms) => {
                        of_key().map_or(Fill::No, Fill::Perhaps)
                    }
                    Owner::Connection => own.map_or(Fill::No, Fill::Of),
                }
            }
            _ => Fill::No,
        }
    }

    /// A write was refused: the miss that it would have filled, if its key is under a rule, will not be filled any
    /// more. The old value goes where it could be taken for the new one: after a `set`, and after an `ms` in any mode, as
    /// in memcached. Otherwise a lease passes to the next waiter, and the value stays.
    pub(crate) fn refused(&mut self, write: &Write<'_>, cx: &mut Context<'_>) {
        let mut by = None;
        if let Some(ruled) = self.rule_of(write.key) {
            let now_ms = cx.step.now.ms;
            let fill = self.fill_of(write, None, &ruled, cx.session, now_ms);
            let filler = filler(write.hash, fill, cx.session, now_ms);
            by = (fill != Fill::No).then_some(filler);
            self.consume(write.hash, &mut Filling { fill, by: filler, session: Some(cx.session) }, now_ms);
        }
        let deletes = write.mode == Mode::Set || write.takes_token;
        if let Some(by) = by {
            self.give_up_fill(write.hash, by, deletes, &mut cx.step);
        }
        if deletes {
            self.invalidate(write.key, write.hash, cx);
        }
    }

    /// Deletes a key under a rule. Returns the size of the value that readers could have seen.
    pub(crate) fn delete_ruled(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) -> Option<usize> {
        self.answer_all_own_waits(hash, cx);
        self.delete_unawaited(key, hash, &mut cx.step)
    }

    /// The same for who waits for nothing.
    pub(crate) fn delete_unawaited(&mut self, key: &[u8], hash: u64, step: &mut Step<'_>) -> Option<usize> {
        let number = self.shared.tick();
        self.raise_hard(hash, number);
        let mut size = None;
        if let Lookup::Found(found) = self.lookup(hash, key, step) {
            let item = self.store.item(found);
            if !item.marks().has(Marks::NEGATIVE) {
                size = Some(item.value_len());
            }
            self.store.remove(hash, found);
        }
        self.with_herd(step, |herd, step| herd.invalidated(hash, key, step));
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
        let by = filler(hash, Fill::No, cx.session, cx.step.now.ms);
        self.answer_own_waits(hash, by, cx);
        let waiters = self.take_waiters(&write, by, None, &mut cx.step);
        self.deliver(&write, cas, expiry, &ruled.state, waiters, &mut cx.step);
    }
}

/// Who fills, as its connection's records tell.
fn filler(hash: u64, fill: Fill, session: &Session, now_ms: u64) -> Filler {
    let pooled = matches!(fill, Fill::Of(_)) && session.oldest(hash, now_ms).is_none();
    Filler { connection: Some(session.caller().number()), token: fill.token(), pooled }
}
