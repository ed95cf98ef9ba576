//! `get gets gat gats` of one key, and the gets of the binary protocol: hits and misses, how they are counted
//! and written.
//!
//! A hit of a plain value, or of one whose tags are valid, is answered by [`Shard::get`] and
//! [`Shard::write_hit`] alone. A miss of a key that may have a rule, and an item that is more than a value
//! (in its grace, due for a refresh, with a bumped tag, stale, a negative answer), are passed on to
//! [`Shard::get_ruled`].

use cattlegrid_store::{Found, Lookup, ReadCheck};

use crate::event::{EventKind, Looker};
use crate::query::{Decision, KeyAnswer};
use crate::reply::get::{AskedKey, GetForm};
use crate::rules::{Change, Match};
use crate::shard::Shard;
use crate::shard::standing::Standing;
use crate::shared::Names;
use crate::step::{Context, Interest, Step};

impl Shard {
    /// Answers one key of a get other than `mg`: its value, or the miss if that has a reply.
    #[inline]
    pub(crate) fn get(&mut self, asked: &AskedKey<'_>, hash: u64, cx: &mut Context<'_>) -> KeyAnswer {
        self.advance(&cx.step);
        asked.count(1, cx.step.counters);
        let lookup = self.store.lookup(hash, asked.key);
        match lookup {
            Lookup::Found(found) if self.passes_read_check(found, hash, &cx.step) => {
                self.count_hit(asked.key, &cx.step);
                self.write_hit(asked, hash, found, cx)
            }
            // An item whose rule must be looked for.
            Lookup::Found(_) => self.get_ruled(asked, hash, lookup, cx),
            _ => self.get_absent(asked, hash, lookup, cx),
        }
    }

    /// Whether every reader may get an item's value, after its tags were checked if it needs no other check.
    #[inline]
    pub(crate) fn passes_read_check(&self, found: Found, hash: u64, step: &Step<'_>) -> bool {
        match self.read_check(found) {
            ReadCheck::Nothing => true,
            ReadCheck::Tags => self.has_current_tags(found, hash, step),
            ReadCheck::Rule => false,
        }
    }

    /// A get of a key that has no item, and may have a rule.
    #[inline]
    fn get_absent(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) -> KeyAnswer {
        if self.herd.is_some() || self.names != Names::OFF {
            return self.get_ruled(asked, hash, lookup, cx);
        }
        self.store.note_miss(hash);
        miss(asked, lookup, cx)
    }

    /// Writes a hit.
    #[inline]
    pub(crate) fn write_hit(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        found: Found,
        cx: &mut Context<'_>,
    ) -> KeyAnswer {
        let (key, touch) = (asked.key, asked.touch);
        let mut found = found;
        if let Some(exptime) = touch {
            found = self.store.set_expiry(hash, found, cx.step.now.expiry(exptime));
            cx.step.counters.touch_hits.add(1);
        } else {
            cx.step.counters.get_hits.add(1);
        }
        let item = self.store.item(found);
        let (value, size) = (item.value(), item.value_len());
        asked.begin_value(item.flags(), size, self.shown_cas(item.cas()), &mut cx.out.bytes);
        cx.out.value(value);
        asked.end_value(&mut cx.out.bytes);
        self.store.count_read(found);
        cx.note(Interest::FETCHERS, key, || EventKind::Get { status: "found", size, by: Looker::Get });
        if touch.is_some() {
            self.cascade(key, hash, Change::Touch, cx.step.now);
        }
        KeyAnswer::Hit
    }

    /// A key of a `get` that is neither a plain hit nor a plain miss.
    #[cold]
    pub(crate) fn get_ruled(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) -> KeyAnswer {
        let key = asked.key;
        if self.shared.control(key).is_some() {
            return KeyAnswer::Control;
        }
        if (self.names == Names::FIRST || !matches!(lookup, Lookup::Found(_)))
            && let Some(answer) = self.named(key)
        {
            return answer;
        }
        let lookup = match lookup {
            Lookup::Found(found) => self.invalidated(hash, found, &cx.step),
            _ => lookup,
        };
        if !matches!(lookup, Lookup::Found(_)) {
            self.store.note_miss(hash);
            if self.names != Names::OFF {
                self.shared.note_stray(key, &mut cx.step);
            }
        }
        let active = self.shared.rules();
        let ruled = active.as_ref().and_then(|active| active.find(key));
        let found = if let Lookup::Found(found) = lookup { Some(found) } else { None };
        let Some(ruled) = ruled else {
            if let Some(found) = found
                && self.standing(found, hash, None, &cx.step) == Standing::Fresh
            {
                return self.write_hit(asked, hash, found, cx);
            }
            self.note_unmatched(key);
            if self.observer.is_some() {
                self.observe_miss(key, hash, lookup, cx);
            }
            return miss(asked, lookup, cx);
        };
        let decision = self.decide(&asked.query(hash), &ruled, lookup, cx);
        count_ruled(&ruled, decision.is_hit());
        if decision.is_miss() && self.observer.is_some() {
            self.observe_miss(key, hash, lookup, cx);
        }
        match decision {
            Decision::Fresh(found) => self.write_hit(asked, hash, found, cx),
            // An old value is not prolonged by the clients that read it.
            Decision::Old(found, _) | Decision::Probed(found, _) => {
                self.write_hit(&asked.without_touch(), hash, found, cx)
            }
            Decision::Negative => miss(asked, Lookup::Absent, cx),
            Decision::Miss => miss(asked, lookup, cx),
            Decision::Compute { .. } => {
                answer_miss(asked, lookup, cx);
                KeyAnswer::Compute
            }
            Decision::Leased(holds) => KeyAnswer::Leased(holds),
            Decision::Busy => KeyAnswer::Busy,
        }
    }
}

impl Shard {
    /// A hit of a key whose rule was not looked up.
    #[inline]
    pub(crate) fn count_hit(&mut self, key: &[u8], step: &Step<'_>) {
        if self.herd.is_some() {
            self.count_hit_of_rule(key, step);
        }
    }

    #[inline(never)]
    fn count_hit_of_rule(&mut self, key: &[u8], step: &Step<'_>) {
        let weight = self.ruled_hits.weight(step.now.second);
        if weight == 0 {
            return;
        }
        let active = self.shared.rules();
        let Some(active) = active.as_ref() else { return };
        if let Some(ruled) = active.find(key) {
            ruled.state.counters().count_get(u64::from(weight), true);
        }
        if active.rules().observes()
            && let Some(observed) = active.find_observing(key)
        {
            observed.state.note_match();
            observed.state.counters().count_get(u64::from(weight), true);
        }
    }
}

/// A get of a key under a rule that is known.
pub(crate) fn count_ruled(ruled: &Match<'_>, is_hit: bool) {
    ruled.state.counters().count_get(1, is_hit);
}

/// Counts a miss.
#[inline]
pub(crate) fn missed(asked: &AskedKey<'_>, lookup: Lookup, cx: &mut Context<'_>) {
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
    count_miss(asked.touches(), cx);
    let by = if matches!(asked.form, GetForm::Meta(_)) { Looker::MetaGet } else { Looker::Get };
    cx.note(Interest::FETCHERS, asked.key, || EventKind::Get { status, size: 0, by });
}

#[inline]
pub(crate) fn count_miss(touches: bool, cx: &Context<'_>) {
    if touches {
        cx.step.counters.touch_misses.add(1);
    } else {
        cx.step.counters.get_misses.add(1);
    }
}

/// Counts a miss, and writes its reply if there is one.
#[inline]
pub(crate) fn answer_miss(asked: &AskedKey<'_>, lookup: Lookup, cx: &mut Context<'_>) {
    missed(asked, lookup, cx);
    asked.write_miss(&mut cx.out.bytes);
}

#[inline]
pub(crate) fn miss(asked: &AskedKey<'_>, lookup: Lookup, cx: &mut Context<'_>) -> KeyAnswer {
    answer_miss(asked, lookup, cx);
    KeyAnswer::Miss
}
