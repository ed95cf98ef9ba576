//! `mg` and `me`.
//!
//! An `mg` of a key under a rule with leases is answered by `mg_ruled`; any other as memcached would.

use cattlegrid_protocol::{Meta, MetaKey, reply};
use cattlegrid_store::{Attributes, Found, Item, Lookup, Marks, NewValue};

use crate::event::{EventKind, Interest, Looker};
use crate::names::Names;
use crate::reply::meta::Refusals;
use crate::rules::Change;
use crate::shard::Shard;
use crate::shard::flow::Flow;
use crate::shard::mg_header::ShownItem;
use crate::shard::miss::meta_get_miss;
use crate::step::Context;
use crate::time::Now;

impl Shard {
    pub(crate) fn meta_get(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let (key, flags) = (meta.key.bytes(), &meta.set);
        let touches = flags.has(b'T');
        let mut created = false;
        let mut lookup = self.store.lookup(hash, key);
        let value = self.meta_value(meta, hash, lookup, cx);
        if let Lookup::Found(found) = lookup
            && value.is_none()
        {
            lookup = self.invalidated(hash, found, &cx.step);
        }
        if !matches!(lookup, Lookup::Found(_)) {
            if self.names != Names::OFF && self.is_named(key) || self.shared.control(key).is_some() {
                return Flow::Object;
            }
            self.store.note_miss(hash);
            if self.names != Names::OFF {
                self.shared.note_stray(key, &mut cx.step);
            }
        }
        // Under a rule without leases an `mg` works as in memcached; but misses are recorded, and stubs have
        // the rule's tags.
        let mut unleased = None;
        if value.is_some() || self.herd.is_none() {
            // A rule changes nothing.
        } else if self.may_be_ruled(meta, lookup, cx) {
            let active = self.shared.rules();
            match active.as_ref().and_then(|active| active.find(key)) {
                Some(ruled) if ruled.state.policy().leases => {
                    return self.meta_get_ruled(meta, hash, lookup, &ruled, cx);
                }
                Some(_) => unleased = self.rule_of(key),
                None => {}
            }
        } else if self.is_won(lookup) {
            unleased = self.rule_of(key).filter(|ruled| !ruled.state.policy().leases);
        }
        let negative = unleased.is_some() && self.is_negative(lookup);
        let mut found = value.or_else(|| self.find(hash, key, &cx.step));
        if found.is_none() && flags.has(b'N') && !negative {
            let (cas, stamp) = self.numbers(flags.has(b'E').then_some(flags.explicit_cas));
            let tags = unleased.as_ref().map_or(&[][..], |ruled| ruled.tags.hashes());
            let stub = Attributes { accessed: cx.step.now.second, cas, stamp, tags, ..Attributes::default() };
            if self.store.put(hash, key, &stub, NewValue::Inline([&[], &[]])).is_err() {
                return self.no_room(key.len() + 64, Refusals::Line, cx);
            }
            created = true;
            found = self.find(hash, key, &cx.step);
        }
        cx.step.counters.cmd_meta.add(1);
        cx.step.counters.cmd_get.add(1);
        let Some(found) = found else {
            match &unleased {
                Some(ruled) => {
                    ruled.state.counters().count_get(1, false);
                    self.record_miss_of(hash, &ruled.state, &ruled.tags, cx);
                }
                None => self.note_unmatched(key),
            }
            self.observe_meta_miss(meta, hash, lookup, cx);
            // As memcached: what is not there is not touched.
            meta_get_miss(meta, lookup, false, cx);
            return Flow::Replied;
        };
        if touches {
            cx.step.counters.cmd_touch.add(1);
            cx.step.counters.get_touches.add(1);
            cx.step.counters.touch_hits.add(1);
        } else if created {
            cx.step.counters.get_misses.add(1);
        } else {
            cx.step.counters.get_hits.add(1);
        }
        match &unleased {
            Some(ruled) => ruled.state.counters().count_get(1, !created),
            None => self.count_hit(key, &cx.step),
        }
        let computes = self.meta_get_hit(meta, hash, found, created, cx);
        if computes {
            self.observe_meta_miss(meta, hash, lookup, cx);
        }
        if let Some(ruled) = unleased.filter(|_| computes) {
            self.record_miss_of(hash, &ruled.state, &ruled.tags, cx);
        }
        Flow::Replied
    }

    /// The item, if it is a value whatever a rule says, and no client was told or may be told to refresh it.
    fn meta_value(&self, meta: &Meta<'_>, hash: u64, lookup: Lookup, cx: &Context<'_>) -> Option<Found> {
        let Lookup::Found(found) = lookup else { return None };
        let passes =
            !meta.set.has(b'R') && self.passes_read_check(found, hash, &cx.step) && !self.is_won(lookup);
        passes.then_some(found)
    }

    /// Whether a client was told to recompute the item.
    fn is_won(&self, lookup: Lookup) -> bool {
        matches!(lookup, Lookup::Found(found) if self.store.item(found).marks().has(Marks::WON))
    }

    fn is_negative(&self, lookup: Lookup) -> bool {
        matches!(lookup, Lookup::Found(found) if self.store.item(found).marks().has(Marks::NEGATIVE))
    }

    /// Answers a hit. True: for the client it is a miss, since it may compute the value, whether it was told
    /// to (`W`) or not (`Z` without a value).
    fn meta_get_hit(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        found: Found,
        created: bool,
        cx: &mut Context<'_>,
    ) -> bool {
        let flags = &meta.set;
        let item = self.store.item(found);
        let (marks, size) = (item.marks(), item.value_len());
        // `C` on a get: the client has this version already, so the value is not sent.
        let with_value = flags.has(b'v') && !(flags.has(b'C') && flags.compare_cas == item.cas());
        let stale = marks.has(Marks::STALE);
        let served = if created { ShownItem::Stub } else { ShownItem::Value };
        let (expiry, recache) = self.meta_get_header(meta, found, served, with_value, None, cx);
        let won = created || (recache || stale) && !marks.has(Marks::WON);
        let out = &mut cx.out.bytes;
        if marks.has(Marks::WON) {
            reply::lost(out);
        }
        if stale {
            reply::stale(out);
        }
        if won {
            reply::won(out);
        }
        reply::end_line(out);
        if with_value {
            cx.out.value(self.store.item(found).value());
            reply::end_line(&mut cx.out.bytes);
        }
        if won {
            self.store.set_marks(found, marks.with(Marks::WON));
        }
        let found = match expiry {
            Some(expiry) => self.store.set_expiry(hash, found, expiry),
            None => found,
        };
        if !flags.has(b'u') {
            self.store.count_read(found);
        }
        let (status, size) = if created { ("not_found", 0) } else { ("found", size) };
        cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get {
            status,
            size,
            by: Looker::MetaGet,
        });
        if flags.has(b'T') && !created {
            self.cascade(meta.key.bytes(), hash, Change::Touch, cx.step.now);
        }
        won || marks.has(Marks::WON) && size == 0
    }

    pub(crate) fn meta_debug(&mut self, key: &MetaKey<'_>, hash: u64, cx: &mut Context<'_>) {
        cx.step.counters.cmd_meta.add(1);
        let Some(found) = self.find(hash, key.bytes(), &cx.step) else {
            cx.out.bytes.extend_from_slice(b"EN\r\n");
            return;
        };
        let item = self.store.item(found);
        let out = &mut cx.out.bytes;
        out.extend_from_slice(b"ME ");
        reply::key_text(out, key);
        describe(out, &item, self.shown_cas(item.cas()), cx.step.now);
        reply::end_line(out);
    }
}

/// ` exp= la= cas= fetch= cls= size=` of an item, as `me` shows it.
fn describe(out: &mut Vec<u8>, item: &Item<'_>, cas: u64, now: Now) {
    out.extend_from_slice(b" exp=");
    match now.left(item.expiry()) {
        Some(left) => reply::number(out, left),
        None => out.extend_from_slice(b"-1"),
    }
    out.extend_from_slice(b" la=");
    reply::number(out, u64::from(now.second.saturating_sub(item.accessed())));
    out.extend_from_slice(b" cas=");
    reply::number(out, cas);
    let fetched: &[u8] = if item.marks().has(Marks::FETCHED) { b" fetch=yes" } else { b" fetch=no" };
    out.extend_from_slice(fetched);
    // There is one class: there are no slabs.
    out.extend_from_slice(b" cls=1 size=");
    reply::number(out, item.size() as u64);
}
