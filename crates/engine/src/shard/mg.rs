//! `mg` and `me`.
//!
//! An `mg` of a key under a rule with leases is answered by [`Shard::meta_get_ruled`]; any other as memcached
//! would.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_herd::{AskMode, LeaseKind};
use cattlegrid_protocol::{Meta, MetaFlags, MetaKey, reply};
use cattlegrid_store::{Attributes, Found, Item, Lookup, Marks, NEVER, NewValue, ReadCheck};

use crate::event::{EventKind, Looker};
use crate::query::{Advice, Decision, KeyAnswer, Query};
use crate::reply::meta::{Refusals, ReturnFlags, hit, is_explicit, lease_reply, return_flags, status_line};
use crate::rules::{Change, Match};
use crate::shard::get::{count_miss, count_ruled};
use crate::shard::{Flow, Shard};
use crate::shared::Names;
use crate::step::{Context, Interest};
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

impl Shard {
    /// Whether an `mg` has to look for the key's rule: not for a plain hit that needs no refresh.
    #[inline]
    pub(crate) fn may_be_ruled(&self, meta: &Meta<'_>, lookup: Lookup, cx: &Context<'_>) -> bool {
        let Lookup::Found(found) = lookup else { return true };
        let expiry = self.store.header(found).expiry();
        self.read_check(found) != ReadCheck::Nothing || recache_due(meta, expiry, cx)
    }

    /// `mg` of a key under a rule with leases that is absent, old, due for a refresh or a negative answer.
    #[cold]
    pub(crate) fn meta_get_ruled(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        lookup: Lookup,
        ruled: &Match<'_>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let touches = meta.set.has(b'T');
        cx.step.counters.cmd_meta.add(1);
        cx.step.counters.cmd_get.add(1);
        if touches {
            cx.step.counters.cmd_touch.add(1);
            cx.step.counters.get_touches.add(1);
        }
        count_ruled(ruled, false);
        self.meta_decide(meta, hash, lookup, ruled, cx)
    }

    /// Asks again for a key that was leased when an `mg` asked for it first.
    pub(crate) fn meta_ask_again(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) -> KeyAnswer {
        let active = self.shared.rules();
        let flow = match active.as_ref().and_then(|active| active.find(meta.key.bytes())) {
            Some(ruled) if ruled.state.policy().leases => self.meta_decide(meta, hash, lookup, &ruled, cx),
            // The rules have changed in between.
            _ => match self.find(hash, meta.key.bytes(), &cx.step) {
                Some(found) => self.meta_hit(meta, hash, found, LeaseMark::None, None, cx),
                None => return KeyAnswer::Object(None),
            },
        };
        match flow {
            Flow::Computes => KeyAnswer::Compute,
            Flow::Leased(holds) => KeyAnswer::Leased(holds),
            _ => KeyAnswer::Hit,
        }
    }

    fn meta_decide(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        lookup: Lookup,
        ruled: &Match<'_>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let (touches, explicit) = (meta.set.has(b'T'), is_explicit(meta));
        let query = meta_query(meta, hash, cx);
        let decision = self.decide(&query, ruled, lookup, cx);
        if decision.is_miss() {
            self.observe_meta_miss(meta, hash, lookup, cx);
        }
        if decision.is_hit() {
            // The get was counted when it came.
            ruled.state.counters().hits.fetch_add(1, Relaxed);
        }
        match decision {
            Decision::Fresh(found) => self.meta_hit(meta, hash, found, LeaseMark::None, None, cx),
            Decision::Old(found, kind) => {
                let mark = match (kind, explicit) {
                    (LeaseKind::Stale | LeaseKind::Past, _) => LeaseMark::Lost(true),
                    (_, true) => LeaseMark::Lost(false),
                    (_, false) => LeaseMark::None,
                };
                self.meta_hit(meta, hash, found, mark, None, cx)
            }
            Decision::Probed(found, kind) => {
                let mark = if kind == LeaseKind::Early { LeaseMark::None } else { LeaseMark::Stale };
                self.meta_hit(meta, hash, found, mark, None, cx)
            }
            Decision::Negative => {
                meta_get_miss(meta, Lookup::Absent, touches, cx);
                Flow::Replied
            }
            Decision::Compute { token, hint, old } if explicit => {
                let hint = hint.as_deref();
                if let Some((found, kind)) = old {
                    count_miss(touches, cx);
                    return self.meta_hit(
                        meta,
                        hash,
                        found,
                        LeaseMark::Won(token, kind == LeaseKind::Stale),
                        hint,
                        cx,
                    );
                }
                count_meta_miss(meta, cx);
                lease_reply(meta, Some(token), hint, cx.out);
                Flow::Replied
            }
            Decision::Compute { .. } => {
                let Flow::Replied = meta_miss(meta, cx) else { unreachable!() };
                Flow::Computes
            }
            Decision::Miss => meta_miss(meta, cx),
            Decision::Leased(holds) => Flow::Leased(holds),
            Decision::Busy => meta_busy(cx),
        }
    }

    /// Writes a hit of a key under a rule, with the flags of its lease.
    fn meta_hit(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        found: Found,
        mark: LeaseMark,
        hint: Option<&[u8]>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let flags = &meta.set;
        let (cas, size) = (self.store.item(found).cas(), self.store.item(found).value_len());
        let with_value = flags.has(b'v') && !(flags.has(b'C') && flags.compare_cas == cas);
        let token = if let LeaseMark::Won(token, _) = mark { Some(token) } else { None };
        // An old value is not prolonged by the clients that read it.
        let old = matches!(mark, LeaseMark::Stale | LeaseMark::Lost(true) | LeaseMark::Won(_, true));
        let served = if old { ShownItem::Old } else { ShownItem::Value };
        let (expiry, _) = self.meta_get_header(meta, found, served, with_value, token, cx);
        let out = &mut cx.out.bytes;
        if let LeaseMark::Lost(_) = mark {
            reply::lost(out);
        }
        if old {
            reply::stale(out);
        }
        if let LeaseMark::Won(..) = mark {
            reply::won(out);
        }
        if let Some(hint) = hint {
            out.extend_from_slice(b" Ph");
            out.extend_from_slice(hint);
        }
        reply::end_line(out);
        if with_value {
            cx.out.value(self.store.item(found).value());
            reply::end_line(&mut cx.out.bytes);
        }
        if token.is_none() {
            if flags.has(b'T') {
                cx.step.counters.touch_hits.add(1);
            } else {
                cx.step.counters.get_hits.add(1);
            }
        }
        let found = match expiry {
            Some(expiry) => self.store.set_expiry(hash, found, expiry),
            None => found,
        };
        if !flags.has(b'u') {
            self.store.count_read(found);
        }
        cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get {
            status: "found",
            size,
            by: Looker::MetaGet,
        });
        if flags.has(b'T') && !old {
            self.cascade(meta.key.bytes(), hash, Change::Touch, cx.step.now);
        }
        Flow::Replied
    }
}

/// The question of an `mg` to the herd.
pub(crate) fn meta_query<'a>(meta: &'a Meta<'_>, hash: u64, cx: &Context<'_>) -> Query<'a> {
    let (advice, explicit) = (Advice::of(meta), is_explicit(meta));
    Query {
        key: meta.key.bytes(),
        hash,
        how: match explicit {
            true => advice.how(meta),
            // An error in a run of quiet commands belongs to no key.
            false if meta.set.has(b'q') => AskMode::Quiet,
            false => AskMode::Plain,
        },
        probes: !explicit && !meta.set.has(b'v'),
        prolongs: meta.set.has(b'T') && !explicit,
        recache: meta.set.has(b'R').then(|| cx.step.now.expiry(meta.set.recache)),
        hint: advice.hint,
        hold_ms: if explicit { Some(advice.wait_ms.unwrap_or(0)) } else { advice.wait_ms },
    }
}

/// The lease flags of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseMark {
    /// Nothing.
    None,
    /// `W`: this client has the lease; the token. True: the value is old.
    Won(u64, bool),
    /// The value is old.
    Stale,
    /// `Z`: another client has the lease. True: the value is old.
    Lost(bool),
}

/// Whether `R` asks for a refresh of a value with this expiry.
fn recache_due(meta: &Meta<'_>, expiry: u32, cx: &Context<'_>) -> bool {
    meta.set.has(b'R') && expiry != NEVER && expiry < cx.step.now.expiry(meta.set.recache)
}

pub(crate) fn meta_get_miss(meta: &Meta<'_>, lookup: Lookup, touches: bool, cx: &mut Context<'_>) {
    let (counter, status) = match lookup {
        Lookup::Expired => (Some(&cx.step.counters.get_expired), "expired"),
        Lookup::Flushed => (Some(&cx.step.counters.get_flushed), "flushed"),
        _ => (None, "not_found"),
    };
    if let Some(counter) = counter {
        counter.add(1);
    }
    count_miss(touches, cx);
    cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get { status, size: 0, by: Looker::MetaGet });
    if !meta.set.has(b'q') {
        status_line(&mut cx.out.bytes, reply::EN, meta);
    }
}

/// A miss of a key under a rule: `Z` for a client that asked for the lease.
pub(crate) fn meta_miss(meta: &Meta<'_>, cx: &mut Context<'_>) -> Flow {
    count_meta_miss(meta, cx);
    if is_explicit(meta) {
        lease_reply(meta, None, None, cx.out);
    } else if !meta.set.has(b'q') {
        status_line(&mut cx.out.bytes, reply::EN, meta);
    }
    Flow::Replied
}

/// Counts and notes a miss of a key under a rule, whatever is answered.
pub(crate) fn count_meta_miss(meta: &Meta<'_>, cx: &mut Context<'_>) {
    count_miss(meta.set.has(b'T'), cx);
    cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get {
        status: "not_found",
        size: 0,
        by: Looker::MetaGet,
    });
}

pub(crate) fn meta_busy(cx: &mut Context<'_>) -> Flow {
    reply::line(&mut cx.out.bytes, reply::error::BUSY);
    Flow::Replied
}

impl Shard {
    /// Status and return flags of a hit. Flags act in the order of the line: `t` and `R` see the expiry that
    /// earlier ones have set. `shown`: the number that `c` shows instead of the CAS. Returns the new expiry,
    /// and whether `R` asks for a refresh.
    pub(crate) fn meta_get_header(
        &self,
        meta: &Meta<'_>,
        found: Found,
        served: ShownItem,
        with_value: bool,
        shown: Option<u64>,
        cx: &mut Context<'_>,
    ) -> (Option<u32>, bool) {
        let item = self.store.item(found);
        let (size, cas) = (item.value_len(), shown.unwrap_or_else(|| self.shown_cas(item.cas())));
        // The time of a stub begins at its `N` in the line, as in memcached.
        let expiry = (served == ShownItem::Stub).then_some(NEVER);
        let mut shown =
            ItemFlags { item, flags: &meta.set, now: cx.step.now, served, cas, expiry, recache: false };
        hit(size, with_value, &mut cx.out.bytes);
        return_flags(meta, &mut shown, &mut cx.out.bytes);
        (shown.expiry, shown.recache)
    }
}

/// The part of an item that a meta command shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownItem {
    /// The item's value.
    Value,
    /// A stub that this command has created.
    Stub,
    /// An old value, which is not prolonged, whatever `T` says.
    Old,
}

/// An item as an `mg` shows it.
pub(crate) struct ItemFlags<'a> {
    pub(crate) item: Item<'a>,
    pub(crate) flags: &'a MetaFlags,
    pub(crate) now: Now,
    pub(crate) served: ShownItem,
    pub(crate) cas: u64,
    /// The new expiry, if it changes: flags see what earlier ones have set.
    pub(crate) expiry: Option<u32>,
    /// `R` asks for a refresh.
    pub(crate) recache: bool,
}

impl ItemFlags<'_> {
    fn ends(&self) -> u32 {
        self.expiry.unwrap_or(self.item.expiry())
    }
}

impl ReturnFlags for ItemFlags<'_> {
    #[inline]
    fn act(&mut self, letter: u8) {
        match letter {
            b'N' if self.served == ShownItem::Stub => self.expiry = Some(self.now.expiry(self.flags.vivify)),
            b'T' if self.served == ShownItem::Old => {}
            b'T' => {
                let (to, has_life) = (self.now.expiry(self.flags.exptime), self.item.life().is_some());
                // The end of a limited life does not move.
                let bound = has_life && (to == NEVER || to > self.item.expiry());
                self.expiry = Some(if bound { self.item.expiry() } else { to });
            }
            b'R' => {
                let ends = self.ends();
                self.recache = self.served != ShownItem::Stub
                    && ends != NEVER
                    && ends < self.now.expiry(self.flags.recache);
            }
            _ => {}
        }
    }

    #[inline]
    fn size(&self) -> Option<usize> {
        Some(self.item.value_len())
    }

    #[inline]
    fn ttl(&self) -> Option<Option<u64>> {
        Some(self.now.left(self.ends()))
    }

    #[inline]
    fn cas(&self) -> Option<u64> {
        Some(self.cas)
    }

    #[inline]
    fn client_flags(&self) -> Option<u32> {
        Some(self.item.flags())
    }

    #[inline]
    fn last_access(&self) -> Option<u64> {
        Some(u64::from(self.now.second.saturating_sub(self.item.accessed())))
    }

    #[inline]
    fn hit_before(&self) -> Option<bool> {
        Some(self.item.marks().has(Marks::FETCHED))
    }
}
