//! `get gets gat gats` of one key, and the gets of the binary protocol.
//!
//! A hit of a plain value, or of one whose tags are valid, is answered by [`Shard::get`] and
//! [`Shard::write_hit`] alone. A miss of a key that may have a rule, and an item that is more than a value
//! (in its grace, due for a refresh, with a bumped tag, stale, a negative answer), are passed on to
//! [`Shard::get_ruled`].

use cattlegrid_store::{Found, Lookup};

use crate::event::{EventKind, Interest, Looker};
use crate::names::Names;
use crate::query::Decision;
use crate::reply::get::AskedKey;
use crate::rules::Change;
use crate::shard::Shard;
use crate::shard::counted::count_ruled;
use crate::shard::flow::KeyAnswer;
use crate::shard::miss::{answer_miss, miss};
use crate::shard::standing::Standing;
use crate::step::Context;

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
            self.shared.note_stray(key, &mut cx.step);
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
            self.observe_miss(key, hash, lookup, cx);
            return miss(asked, lookup, cx);
        };
        let decision = self.decide(&asked.query(hash), &ruled, lookup, cx);
        count_ruled(&ruled, decision.is_hit());
        if decision.is_miss() {
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
