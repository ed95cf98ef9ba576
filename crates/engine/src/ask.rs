//! Keys under a rule that are asked for and have no fresh value: who computes, who waits, who gets the old one.
//!
//! Nothing here is on the way of a hit: [`Shard::get`] comes here after a miss, or when the item says that it
//! is more than a value (in its grace, due for a refresh, tagged, stale or a negative answer).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{Filler, Herd, RuleState, Step as HerdStep, Wait, Waited, Withdrawn};
use cattlegrid_protocol::reply;
use cattlegrid_store::{Found, Lookup, Marks, NEVER};
use cattlegrid_tags::{TagList, Validity};

use crate::decide::{Decision, Holds, Query};
use crate::event::{EventKind, Interest, Looker};
use crate::park::{Delivered, Part};
use crate::rules::{Captures, Change, Rule};
use crate::shard::Shard;
use crate::shared::ActiveRules;
use crate::step::{Context, Step, Verdict};
use crate::time::Now;

/// What an item is to one who asks for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not there.
    Absent,
    /// Known to be absent.
    Negative,
    /// Over, but its rule lets the old value be served while a new one is computed.
    Stale,
    /// Good.
    Fresh,
    /// Good, and due to be refreshed.
    Early,
}

/// What a key is to those who ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyState {
    /// Never stored, deleted, over, or known to be absent.
    Absent,
    /// There.
    Fresh,
    /// Over, and served while it is refreshed.
    Stale,
    /// Computed for the first time.
    LeasedAbsent,
    /// Refreshed after it was over.
    LeasedStale,
    /// Refreshed before that.
    LeasedFresh,
    /// Not worth a lease.
    Pass,
}

/// What a key of a `get` came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Answer {
    /// Its `VALUE` block is written.
    Hit,
    /// It has none.
    Miss,
    /// It has none, and this connection is to compute it.
    Compute,
    /// It is computed already; it has not been waited for yet.
    Leased(Holds),
    /// `SERVER_ERROR busy`.
    Busy,
    /// It is a control key.
    Control,
}

/// How waiting for a key began.
#[derive(Debug)]
pub(crate) enum Held {
    /// It waits.
    Waits,
    /// It has been answered meanwhile: its block, or nothing, is written.
    Written,
    /// This connection is to compute it after all.
    Compute,
    /// `SERVER_ERROR busy`.
    Busy,
}

impl Shard {
    /// What the item under a key is worth to a reader. `rule`: the key's.
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
        self.store.advance(now.second, self.shared.floor(now.second));
        let active = self.shared.rules();
        let rule = active.as_ref().and_then(|active| active.find(key)).map(|ruled| &**ruled.state);
        let standing = match self.store.lookup(hash, key) {
            Lookup::Found(found) => self.standing_at(found, hash, rule, now),
            _ => Standing::Absent,
        };
        let herd = self.herd.as_ref();
        match (standing, herd.is_some_and(|herd| herd.is_leased(hash, key))) {
            (Standing::Absent | Standing::Negative, true) => KeyState::LeasedAbsent,
            (Standing::Stale, true) => KeyState::LeasedStale,
            (Standing::Fresh | Standing::Early, true) => KeyState::LeasedFresh,
            (Standing::Absent, false) if herd.is_some_and(|herd| herd.passes(hash, now.ms)) => KeyState::Pass,
            (Standing::Absent | Standing::Negative, false) => KeyState::Absent,
            (Standing::Stale, false) => KeyState::Stale,
            (Standing::Fresh | Standing::Early, false) => KeyState::Fresh,
        }
    }

    fn standing_at(&self, found: Found, hash: u64, rule: Option<&RuleState>, now: Now) -> Standing {
        let item = self.store.item(found);
        let marks = item.marks();
        if marks.has(Marks::NEGATIVE) {
            return Standing::Negative;
        }
        let softened = match self.shared.tags().check(item.stamp(), item.tags(), hash, now.ms) {
            Validity::Dead => return Standing::Absent,
            Validity::Stale => self.shared.stale_since(item.stamp(), item.tags(), hash, now),
            Validity::Valid => None,
        };
        let expired = Some(item.expiry()).filter(|expiry| *expiry != NEVER && *expiry <= now.second);
        let over = expired.into_iter().chain(softened).min();
        // Without leases nobody refreshes: what is marked stale is a value, as in memcached.
        let Some(rule) = rule.filter(|rule| rule.policy().leases) else {
            return if over.is_some() { Standing::Absent } else { Standing::Fresh };
        };
        let edited = marks.has(Marks::EDITED);
        if over.is_some() || marks.has(Marks::STALE) {
            // A counter is not a computed value: nobody is given an old one. Nor is what was marked without a grace to end.
            let in_grace = over.is_some_and(|over| now.second < over.saturating_add(item.grace_s()));
            return if in_grace && !edited { Standing::Stale } else { Standing::Absent };
        }
        let due = item.refresh_at().is_some_and(|second| second <= now.second);
        if due && !edited && rule.policy().early { Standing::Early } else { Standing::Fresh }
    }

    /// The item under a key, as what was invalidated has left it.
    pub(crate) fn lookup(&mut self, hash: u64, key: &[u8], step: &Step<'_>) -> Lookup {
        let lookup = self.store.lookup(hash, key);
        if let Lookup::Found(found) = lookup { self.invalidated(hash, found, step) } else { lookup }
    }

    /// The same, for an item that was found. What a flush or a bump has killed is removed; what a soft one has made stale has
    /// expired in that moment, so that no later one can prolong its grace.
    pub(crate) fn invalidated(&mut self, hash: u64, found: Found, step: &Step<'_>) -> Lookup {
        if self.is_just_a_value(found) {
            return Lookup::Found(found);
        }
        let item = self.store.item(found);
        match self.shared.tags().check(item.stamp(), item.tags(), hash, step.now.ms) {
            Validity::Valid => Lookup::Found(found),
            Validity::Dead => {
                self.store.remove(hash, found);
                Lookup::Flushed
            }
            Validity::Stale => {
                let since = self.shared.stale_since(item.stamp(), item.tags(), hash, step.now);
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

    /// Whether its expiry alone says what an item is worth.
    #[inline]
    pub(crate) fn is_just_a_value(&self, found: Found) -> bool {
        !self.rolling && self.store.item(found).is_plain(self.store.now())
    }

    /// The item under a key that a command other than a read may see: live, not negative, not in its grace.
    pub(crate) fn find(&mut self, hash: u64, key: &[u8], step: &Step<'_>) -> Option<Found> {
        let Lookup::Found(found) = self.lookup(hash, key, step) else { return None };
        if self.is_just_a_value(found) {
            return Some(found);
        }
        let active = self.shared.rules();
        let rule = active.as_ref().and_then(|active| active.find(key)).map(|ruled| &**ruled.state);
        if matches!(self.standing(found, hash, rule, step), Standing::Fresh | Standing::Early) {
            return Some(found);
        }
        if rule.is_none() {
            // Its rule has gone: with another it would be an old value again, also after a delete that has not found it.
            self.store.remove(hash, found);
        }
        None
    }

    /// The herd, if a rule has needed one.
    pub(crate) fn with_herd<R>(
        &mut self,
        step: &mut Step<'_>,
        act: impl FnOnce(&mut Herd, &mut HerdStep<'_, Arc<Delivered>>) -> R,
    ) -> Option<R> {
        let herd = self.herd.as_deref_mut()?;
        let before = herd.waiting();
        let effects = &mut step.effects.herd;
        let result = act(herd, &mut HerdStep { now_ms: step.now.ms, clock: &*self.shared, effects });
        self.shared.waiting.fetch_add(herd.waiting().wrapping_sub(before), Ordering::Relaxed);
        if let Some(deadline_ms) = herd.next_deadline_ms() {
            step.effects.deadline_ms = step.effects.deadline_ms.min(deadline_ms);
        }
        Some(result)
    }

    /// Records a miss under a rule that comes without a lease.
    pub(crate) fn record_miss(&mut self, hash: u64, rule: &RuleState, cx: &mut Context<'_>) {
        let record = self.with_herd(&mut cx.step, |herd, step| herd.miss(hash, rule, step));
        if let Some(record) = record {
            cx.session.record(record, cx.step.now.ms);
        }
    }

    /// Hashes of the tags that a rule gives a key.
    pub(crate) fn tags_of(&mut self, rule: &Rule, captures: &Captures<'_>) -> TagList {
        let mut list = TagList::new();
        for template in &rule.tags {
            self.scratch.clear();
            template.render(captures, &mut self.scratch);
            let tag = self.shared.tag_hasher().hash_made(&self.scratch);
            // A rule has no more of them than fit.
            let fits = list.insert(tag);
            debug_assert!(fits.is_ok(), "a rule has at most eight tags");
        }
        list
    }

    /// A key of a `get` that is not simply there or not there.
    #[cold]
    pub(crate) fn get_ruled(
        &mut self,
        key: &[u8],
        hash: u64,
        cas: bool,
        touch: Option<i64>,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) -> Answer {
        if self.shared.control(key).is_some() {
            return Answer::Control;
        }
        let lookup = match lookup {
            Lookup::Found(found) => self.invalidated(hash, found, &cx.step),
            _ => lookup,
        };
        let active = self.shared.rules();
        let ruled = active.as_ref().and_then(|active| active.find(key));
        let found = if let Lookup::Found(found) = lookup { Some(found) } else { None };
        let Some(ruled) = ruled else {
            return match found.map(|found| (found, self.standing(found, hash, None, &cx.step))) {
                Some((found, Standing::Fresh)) => self.write_hit(key, hash, found, cas, touch, cx),
                _ => missed(key, touch.is_some(), lookup, cx),
            };
        };
        match self.decide(&Query::plain(key, hash, touch.is_some()), &ruled, lookup, cx) {
            Decision::Fresh(found) => self.write_hit(key, hash, found, cas, touch, cx),
            // It is not prolonged by those who read it.
            Decision::Old(found, _) => self.write_hit(key, hash, found, cas, None, cx),
            Decision::Negative => missed(key, touch.is_some(), Lookup::Absent, cx),
            Decision::Miss => missed(key, touch.is_some(), lookup, cx),
            Decision::Compute(..) => {
                let _counted = missed(key, touch.is_some(), lookup, cx);
                Answer::Compute
            }
            Decision::Leased(holds) => Answer::Leased(holds),
            Decision::Busy => Answer::Busy,
        }
    }

    /// After [`Answer::Leased`]: waits for the key, for `hold_ms` at most; by now it may be there.
    #[expect(clippy::too_many_arguments, reason = "a key, how it is asked for, and how it would wait")]
    pub(crate) fn hold_key(
        &mut self,
        key: &[u8],
        hash: u64,
        slot: u16,
        hold_ms: u32,
        cas: bool,
        touch: Option<i64>,
        cx: &mut Context<'_>,
    ) -> Held {
        self.advance(&cx.step);
        let active = self.shared.rules();
        let lookup = self.lookup(hash, key, &cx.step);
        let found = if let Lookup::Found(found) = lookup { Some(found) } else { None };
        let Some(ruled) = active.as_ref().and_then(|active: &Arc<ActiveRules>| active.find(key)) else {
            // The rules have changed in between.
            let _answered = self.get_ruled(key, hash, cas, touch, lookup, cx);
            return Held::Written;
        };
        let standing =
            found.map_or(Standing::Absent, |found| self.standing(found, hash, Some(ruled.state), &cx.step));
        let leased = self.herd.as_ref().is_some_and(|herd| herd.is_leased(hash, key));
        if standing != Standing::Absent || !leased {
            match self.get_ruled(key, hash, cas, touch, lookup, cx) {
                Answer::Compute => return Held::Compute,
                Answer::Busy => return Held::Busy,
                Answer::Hit | Answer::Miss | Answer::Control => return Held::Written,
                // By another again; or its rule lets no more compute.
                Answer::Leased(_) => {}
            }
        }
        let query = Query { hold_ms: Some(hold_ms), ..Query::plain(key, hash, touch.is_some()) };
        match self.hold(&query, &ruled, slot, touch, cx) {
            Waited::Waits(_) => Held::Waits,
            Waited::Miss(_) => {
                let _counted = missed(key, touch.is_some(), lookup, cx);
                Held::Written
            }
            Waited::Busy => Held::Busy,
        }
    }

    /// After [`Answer::Leased`] that is not waited for: a miss.
    pub(crate) fn do_not_wait(&mut self, key: &[u8], hash: u64, touches: bool, cx: &mut Context<'_>) {
        let active = self.shared.rules();
        if let Some(ruled) = active.as_ref().and_then(|active| active.find(key)) {
            self.record_miss(hash, ruled.state, cx);
        }
        let _counted = missed(key, touches, Lookup::Absent, cx);
    }

    /// Writes a `VALUE` block.
    #[inline]
    pub(crate) fn write_hit(
        &mut self,
        key: &[u8],
        hash: u64,
        found: Found,
        cas: bool,
        touch: Option<i64>,
        cx: &mut Context<'_>,
    ) -> Answer {
        let mut found = found;
        if let Some(exptime) = touch {
            found = self.store.set_expiry(hash, found, cx.step.now.expiry(exptime));
            cx.step.counters.touch_hits.add(1);
        } else {
            cx.step.counters.get_hits.add(1);
        }
        let item = self.store.item(found);
        let (value, size) = (item.value(), item.value_len());
        let cas = cas.then(|| self.shown_cas(item.cas()));
        reply::value_header(&mut cx.out.bytes, key, item.flags(), size, cas);
        cx.out.value(value);
        reply::end_line(&mut cx.out.bytes);
        self.store.count_read(found);
        cx.note(Interest::FETCHERS, key, || EventKind::Get { status: "found", size, by: Looker::Get });
        if touch.is_some() {
            self.cascade(key, hash, Change::Touch, cx.step.now);
        }
        Answer::Hit
    }

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
}

/// Counts a miss.
#[inline]
pub(crate) fn missed(key: &[u8], touches: bool, lookup: Lookup, cx: &mut Context<'_>) -> Answer {
    let status = match lookup {
        Lookup::Expired => {
            cx.step.counters.get_expired.add(1);
            "expired"
        }
        Lookup::Flushed => {
            cx.step.counters.get_flushed.add(1);
            "flushed"
        }
        Lookup::Found(_) | Lookup::Absent => "not_found",
    };
    if touches {
        cx.step.counters.touch_misses.add(1);
    } else {
        cx.step.counters.get_misses.add(1);
    }
    cx.note(Interest::FETCHERS, key, || EventKind::Get { status, size: 0, by: Looker::Get });
    Answer::Miss
}

/// Parts of a classic reply of which some keys wait: cuts what was written since `from`.
pub(crate) fn done_part(parts: &mut Vec<Part>, cx: &mut Context<'_>, from: (usize, usize)) {
    let done = cx.out.split_off(from);
    if !done.is_empty() {
        parts.push(Part::Done(done));
    }
}
