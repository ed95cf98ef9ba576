//! The standing of an item for a reader: a value, an old one, a negative answer, or nothing.
//!
//! The item has its expiry and its marks. Invalidations by name are found by comparing its stamp with the
//! bumps of its tags and the floors of flushes. The item's header says what must be compared ([`ReadCheck`]):
//! for most hits nothing, and for others only the tags ([`Shard::passes_read_check`]).

use std::sync::atomic::Ordering;

use cattlegrid_herd::{Early, RuleState};
use cattlegrid_store::{Found, Item, Lookup, Marks, NEVER, ReadCheck, prefetch_line};
use cattlegrid_tags::{TagHash, Validity};

use crate::event::{EventKind, Looker};
use crate::shard::Shard;
use crate::step::{Context, Interest, Step};
use crate::time::Now;

/// The standing of an item for a client that asks for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There is no item, or it is over.
    Absent,
    /// The key is known to be absent.
    Negative,
    /// The value is over, and its rule lets it be served while computing fails only.
    Past,
    /// The value is over, but its rule lets it be served while a new one is computed.
    Stale,
    /// The value is good.
    Fresh,
    /// The value is good, and due for a refresh.
    Early,
}

/// The state of a key for the clients that ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyState {
    /// Never stored, deleted, over, or known to be absent.
    Absent,
    /// A fresh value.
    Fresh,
    /// An old value, served while it is refreshed.
    Stale,
    /// Leased, without a value.
    LeasedAbsent,
    /// Leased, with an old value.
    LeasedStale,
    /// Leased, with a fresh value.
    LeasedFresh,
    /// Let pass: not worth a lease.
    Pass,
}

impl Shard {
    /// Whether no tag of an item was bumped since it was written.
    #[inline(never)]
    pub(crate) fn has_current_tags(&self, found: Found, hash: u64, step: &Step<'_>) -> bool {
        let item = self.store.header(found);
        self.shared.tags().is_current(item.stamp()) || self.has_valid_tags(&item, hash, step.now.ms)
    }

    #[inline(never)]
    fn has_valid_tags(&self, item: &Item<'_>, hash: u64, now_ms: u64) -> bool {
        self.shared.validity(item, hash, now_ms) == Validity::Valid
    }

    /// Asks the processor to fetch what a check of the tags of what is probably the key's item will read.
    #[inline]
    pub(crate) fn prefetch_tags(&self, hash: u64) {
        let bumps = self.shared.tags().bumps();
        let Some(item) = self.store.likely_item(hash).filter(|item| item.stamp() < bumps.last_bump()) else {
            return;
        };
        item.tags().for_each(|tag| prefetch_line(bumps.first_place(TagHash::from_stored(tag))));
    }

    /// The item under a key, after invalidations were applied.
    pub(crate) fn lookup(&mut self, hash: u64, key: &[u8], step: &Step<'_>) -> Lookup {
        let lookup = self.store.lookup(hash, key);
        if let Lookup::Found(found) = lookup { self.invalidated(hash, found, step) } else { lookup }
    }

    /// The item under a key after invalidations were applied, as an option.
    pub(crate) fn lookup_found(&mut self, hash: u64, key: &[u8], step: &Step<'_>) -> Option<Found> {
        if let Lookup::Found(found) = self.lookup(hash, key, step) { Some(found) } else { None }
    }

    /// Applies invalidations to an item that was found. An item that a flush or a hard bump has killed is
    /// removed; an item that a soft one has made stale expires at that moment, so that no later one can
    /// prolong its grace.
    pub(crate) fn invalidated(&mut self, hash: u64, found: Found, step: &Step<'_>) -> Lookup {
        if self.read_check(found) == ReadCheck::Nothing {
            return Lookup::Found(found);
        }
        let item = self.store.item(found);
        if has_ended(&item, step.now) {
            if let Some(ruled) = self.shared.rules().as_ref().and_then(|active| active.find(item.key())) {
                ruled.state.counters().lives_ended.fetch_add(1, Ordering::Relaxed);
            }
            self.store.remove(hash, found);
            return Lookup::Absent;
        }
        match self.shared.validity(&item, hash, step.now.ms) {
            Validity::Valid => Lookup::Found(found),
            Validity::Dead => {
                self.store.remove(hash, found);
                Lookup::Flushed
            }
            Validity::Stale => {
                let since = self.shared.stale_since(&item, hash, step.now);
                let since = since.unwrap_or(step.now.second);
                let (expiry, grace_s) = (item.expiry(), item.grace_s());
                if grace_s == 0 || expiry != NEVER && expiry <= since {
                    return Lookup::Found(found);
                }
                if since.saturating_add(grace_s) <= step.now.second {
                    self.store.remove(hash, found);
                    return Lookup::Flushed;
                }
                Lookup::Found(self.store.set_expiry(hash, found, since))
            }
        }
    }

    /// The item under a key that a command other than a read may see: live, not negative, not in its grace.
    pub(crate) fn find(&mut self, hash: u64, key: &[u8], step: &Step<'_>) -> Option<Found> {
        let Lookup::Found(found) = self.lookup(hash, key, step) else { return None };
        if self.read_check(found) == ReadCheck::Nothing {
            return Some(found);
        }
        let active = self.shared.rules();
        let rule = active.as_ref().and_then(|active| active.find(key)).map(|ruled| &**ruled.state);
        if matches!(self.standing(found, hash, rule, step), Standing::Fresh | Standing::Early) {
            return Some(found);
        }
        if rule.is_none() {
            // Its rule is gone: under another rule it would be an old value again, even after a delete that
            // has not found it.
            self.store.remove(hash, found);
        }
        None
    }

    /// The standing of the item under a key. `rule`: the rule of the key.
    pub(crate) fn standing(
        &self,
        found: Found,
        hash: u64,
        rule: Option<&RuleState>,
        step: &Step<'_>,
    ) -> Standing {
        self.standing_at(found, hash, rule, step.now)
    }

    /// See [`KeyState`].
    pub(crate) fn key_state(&mut self, key: &[u8], hash: u64, now: Now) -> KeyState {
        self.store.advance(now.second, now.ms, self.shared.floor(now.second));
        let active = self.shared.rules();
        let rule = active.as_ref().and_then(|active| active.find(key)).map(|ruled| &**ruled.state);
        let standing = match self.store.lookup(hash, key) {
            Lookup::Found(found) => self.standing_at(found, hash, rule, now),
            _ => Standing::Absent,
        };
        let herd = self.herd.as_ref();
        match (standing, herd.is_some_and(|herd| herd.is_leased(hash, key))) {
            (Standing::Absent | Standing::Negative | Standing::Past, true) => KeyState::LeasedAbsent,
            (Standing::Stale, true) => KeyState::LeasedStale,
            (Standing::Fresh | Standing::Early, true) => KeyState::LeasedFresh,
            (Standing::Absent | Standing::Past, false)
                if herd.is_some_and(|herd| herd.passes(hash, now.ms)) =>
            {
                KeyState::Pass
            }
            (Standing::Absent | Standing::Negative | Standing::Past, false) => KeyState::Absent,
            (Standing::Stale, false) => KeyState::Stale,
            (Standing::Fresh | Standing::Early, false) => KeyState::Fresh,
        }
    }

    fn standing_at(&self, found: Found, hash: u64, rule: Option<&RuleState>, now: Now) -> Standing {
        let item = self.store.item(found);
        let marks = item.marks();
        if has_ended(&item, now) {
            return Standing::Absent;
        }
        if marks.has(Marks::NEGATIVE) {
            // It has no grace: a soft invalidation ends it as well, of a tag or of the key itself.
            let validity = self.shared.validity(&item, hash, now.ms);
            let is_valid = validity == Validity::Valid && !marks.has(Marks::STALE);
            return if is_valid { Standing::Negative } else { Standing::Absent };
        }
        let softened = match self.shared.validity(&item, hash, now.ms) {
            Validity::Dead => return Standing::Absent,
            Validity::Stale => self.shared.stale_since(&item, hash, now),
            Validity::Valid => None,
        };
        let expired = Some(item.expiry()).filter(|expiry| *expiry != NEVER && *expiry <= now.second);
        let over = expired.into_iter().chain(softened).min();
        // Without leases no client is sent to refresh: an item marked stale is a value, as in memcached.
        let Some(rule) = rule.filter(|rule| rule.policy().leases) else {
            return if over.is_some() { Standing::Absent } else { Standing::Fresh };
        };
        let edited = marks.has(Marks::EDITED);
        if over.is_some() || marks.has(Marks::STALE) {
            // A counter is not a computed value, and an old one is not served. An item that was marked
            // without a grace is not served either.
            let Some(over) = over.filter(|_| !edited) else { return Standing::Absent };
            let kept_s = item.grace_s();
            return if now.second < over.saturating_add(rule.grace_s(kept_s)) {
                Standing::Stale
            } else if now.second < over.saturating_add(kept_s) {
                Standing::Past
            } else {
                Standing::Absent
            };
        }
        let due = item.refresh_at().is_some_and(|second| second <= now.second);
        if due && !edited && rule.policy().early != Early::Off { Standing::Early } else { Standing::Fresh }
    }

    /// Notes a look-up of a key whose reply does not depend on it.
    #[cold]
    pub(crate) fn note_lookup(&mut self, key: &[u8], hash: u64, by: Looker, cx: &mut Context<'_>) {
        if !cx.step.interest.wants(Interest::FETCHERS) {
            return;
        }
        self.advance(&cx.step);
        let lookup = self.lookup(hash, key, &cx.step);
        let size = self.find(hash, key, &cx.step).map(|found| self.store.item(found).value_len());
        let status = match (size, lookup) {
            (Some(_), _) => "found",
            (None, Lookup::Expired) => "expired",
            (None, Lookup::Flushed) => "flushed",
            (None, _) => "not_found",
        };
        let size = size.unwrap_or(0);
        cx.note(Interest::FETCHERS, key, || EventKind::Get { status, size, by });
    }
}

/// Whether the limited life of an item is over.
fn has_ended(item: &Item<'_>, now: Now) -> bool {
    item.life().is_some_and(|life| life.ends_ms <= now.ms)
}

/// Whether an item is a stub: `N` created it at a miss, and the client that won it has not filled it yet.
pub(crate) fn is_stub(item: &Item<'_>) -> bool {
    item.value_len() == 0 && item.marks().has(Marks::WON) && !item.marks().has(Marks::STALE)
}
