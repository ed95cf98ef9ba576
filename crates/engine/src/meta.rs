//! The meta commands: `mg ms md ma me`.

use std::sync::Arc;

use cattlegrid_protocol::{Meta, MetaFlags, MetaKey, reply};
use cattlegrid_store::{Attributes, Found, HugeValue, Item, Lookup, Marks, NEVER, NewValue, TAGS_MAX, Value};
use cattlegrid_tags::Kind;

use crate::event::{EventKind, Interest, Looker};
use crate::meta_reply::{Shown, hit, return_flags, status_line};
use crate::meta_ruled::Advice;
use crate::rules::Change;
use crate::shard::{Flow, Shard};
use crate::step::Context;
use crate::store_cmd::{Mode, Outcome, Sum, Write};
use crate::time::Now;

impl Shard {
    pub(crate) fn meta_get(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let (key, flags) = (meta.key.bytes(), &meta.set);
        let touches = flags.has(b'T');
        let mut created = false;
        let lookup = self.lookup(hash, key, &cx.step);
        // Under a rule without leases everything is as in memcached; but misses are recorded, and stubs have the rule's tags.
        let mut unleased = None;
        if self.herd.is_some() && self.may_be_ruled(meta, lookup, cx) {
            let active = self.shared.rules();
            match active.as_ref().and_then(|active| active.find(key)) {
                Some(ruled) if ruled.state.policy().leases => {
                    return self.meta_get_ruled(meta, hash, lookup, &ruled, cx);
                }
                Some(_) => unleased = self.rule_of(key),
                None => {}
            }
        } else if self.herd.is_some() && self.is_won(lookup) {
            unleased = self.rule_of(key).filter(|ruled| !ruled.state.policy().leases);
        }
        let negative = unleased.is_some() && self.is_negative(lookup);
        let mut found = self.find(hash, key, &cx.step);
        if found.is_none() && flags.has(b'N') && !negative {
            let (cas, stamp) = self.numbers(flags.has(b'E').then_some(flags.explicit_cas));
            let tags = unleased.as_ref().map_or(&[][..], |ruled| ruled.tags.hashes());
            let stub = Attributes { accessed: cx.step.now.second, cas, stamp, tags, ..Attributes::default() };
            if self.store.put(hash, key, &stub, NewValue::Inline([&[], &[]])).is_err() {
                return self.no_room(key.len() + 64, false, cx);
            }
            created = true;
            found = self.find(hash, key, &cx.step);
        }
        cx.step.counters.cmd_meta.add(1);
        cx.step.counters.cmd_get.add(1);
        if touches {
            cx.step.counters.cmd_touch.add(1);
        }
        let Some(found) = found else {
            if let Some(ruled) = &unleased {
                self.record_miss(hash, &ruled.state, cx);
            }
            meta_get_miss(meta, lookup, touches, cx);
            return Flow::Replied;
        };
        if touches {
            cx.step.counters.touch_hits.add(1);
        } else if created {
            cx.step.counters.get_misses.add(1);
        } else {
            cx.step.counters.get_hits.add(1);
        }
        let computes = self.meta_get_hit(meta, hash, found, created, cx);
        if let Some(ruled) = unleased.filter(|_| computes) {
            self.record_miss(hash, &ruled.state, cx);
        }
        Flow::Replied
    }

    /// Somebody was told to recompute the item.
    fn is_won(&self, lookup: Lookup) -> bool {
        matches!(lookup, Lookup::Found(found) if self.store.item(found).marks().has(Marks::WON))
    }

    fn is_negative(&self, lookup: Lookup) -> bool {
        matches!(lookup, Lookup::Found(found) if self.store.item(found).marks().has(Marks::NEGATIVE))
    }

    /// Answers a hit. True: it is none to who asked, who may compute the value, whether told to (`W`) or not (`Z` without
    /// a value).
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
        // `C` on a get: the client has this version already, spare it the value.
        let with_value = flags.has(b'v') && !(flags.has(b'C') && flags.compare_cas == item.cas());
        let stale = marks.has(Marks::STALE);
        let (expiry, recache) = self.meta_get_header(meta, found, created, with_value, None, cx);
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
        cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get { status, size, by: Looker::Other });
        if flags.has(b'T') && !created {
            self.cascade(meta.key.bytes(), hash, Change::Touch, cx.step.now);
        }
        won || marks.has(Marks::WON) && size == 0
    }

    /// Status and return flags of a hit. Flags act in the order of the line: `t` and `R` see the expiry that the
    /// ones before them have set. `shown`: what `c` shows instead of the CAS. Returns the new expiry, and whether `R` asks for the item to be computed again.
    pub(crate) fn meta_get_header(
        &self,
        meta: &Meta<'_>,
        found: Found,
        created: bool,
        with_value: bool,
        shown: Option<u64>,
        cx: &mut Context<'_>,
    ) -> (Option<u32>, bool) {
        let item = self.store.item(found);
        let (size, cas) = (item.value_len(), shown.unwrap_or_else(|| self.shown_cas(item.cas())));
        // A stub's time begins at its `N` in the line, as in memcached.
        let expiry = created.then_some(NEVER);
        let mut shown =
            OfItem { item, flags: &meta.set, now: cx.step.now, created, cas, expiry, recache: false };
        hit(size, with_value, &mut cx.out.bytes);
        return_flags(meta, &mut shown, &mut cx.out.bytes);
        (shown.expiry, shown.recache)
    }

    pub(crate) fn meta_set(
        &mut self,
        meta: &Meta<'_>,
        data: &[u8],
        hash: u64,
        huge: Option<Arc<HugeValue>>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let flags = &meta.set;
        let mode = Mode::of(flags.store_verb());
        let negative = flags.has(b'n');
        let expiry = if flags.has(b'T') { cx.step.now.expiry(flags.exptime) } else { NEVER };
        let ends = if negative { self.negative_expiry(meta.key.bytes(), expiry, cx) } else { Some(expiry) };
        let Some(expiry) = ends else {
            reply::line(&mut cx.out.bytes, NEGATIVE_NEEDS_TTL);
            return Flow::Replied;
        };
        let tags = match self.tags_named(meta) {
            Ok(tags) => tags,
            Err(error) => {
                reply::line(&mut cx.out.bytes, &format!("CLIENT_ERROR {error}"));
                return Flow::Replied;
            }
        };
        let write = Write {
            mode,
            huge,
            tags,
            flags: if flags.has(b'F') { flags.client_flags } else { 0 },
            expiry,
            compare: if flags.has(b'C') { flags.compare_cas } else { 0 },
            explicit_cas: flags.has(b'E').then_some(flags.explicit_cas),
            or_stale: flags.has(b'I'),
            vivify: flags.has(b'N').then(|| cx.step.now.expiry(flags.vivify)),
            takes_token: true,
            negative,
            ..Write::set(meta.key.bytes(), hash, data)
        };
        let (status, cas, size) = match self.write(&write, cx) {
            Outcome::Stored { cas, size } => (reply::HD, cas, size),
            Outcome::NotStored => (reply::NS, 0, data.len()),
            Outcome::Exists => (reply::EX, 0, data.len()),
            Outcome::NotFound => (reply::NF, 0, data.len()),
            Outcome::NoRoom(bytes) => return self.refuse(&write, bytes, false, cx),
        };
        cx.step.counters.cmd_meta.add(1);
        if flags.has(b'q') && status == reply::HD {
            return Flow::Replied;
        }
        let out = &mut cx.out.bytes;
        out.extend_from_slice(status);
        return_flags(meta, &mut OfStored { cas, size }, out);
        reply::end_line(out);
        Flow::Replied
    }

    pub(crate) fn meta_delete(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let flags = &meta.set;
        let key = meta.key.bytes();
        let quiet = flags.has(b'q');
        if self.rule_of(key).is_some() {
            return self.meta_delete_ruled(meta, hash, cx);
        }
        let kind = if flags.has(b'I') { Kind::Soft } else { Kind::Hard };
        let mut cascades = false;
        let status = match self.find(hash, key, &cx.step) {
            None => {
                // Under a condition there was nothing to delete.
                cascades = !flags.has(b'C');
                cx.step.counters.delete_misses.add(1);
                Some(reply::NF)
            }
            Some(found) if flags.has(b'C') && self.store.item(found).cas() != flags.compare_cas => {
                cx.step.counters.delete_misses.add(1);
                Some(reply::EX)
            }
            Some(found) => {
                let size = self.store.item(found).value_len();
                cascades = !self.gives_up_stub(meta, found);
                if !self.invalidate_item(meta, hash, found, cx) {
                    return self.no_room(key.len() + 64, false, cx);
                }
                cx.step.counters.delete_hits.add(1);
                if !flags.has(b'I') {
                    cx.note(Interest::DELETIONS, key, || EventKind::Deleted { command: "md", size });
                }
                (!quiet).then_some(reply::HD)
            }
        };
        if cascades {
            self.cascade_as(kind, key, hash, Change::Delete, cx.step.now);
        }
        cx.step.counters.cmd_meta.add(1);
        if let Some(status) = status {
            status_line(&mut cx.out.bytes, status, meta);
        }
        Flow::Replied
    }

    /// Whether an `md` takes a stub away because its computation failed (`C` with `Pe`): nothing is invalidated then.
    pub(crate) fn gives_up_stub(&self, meta: &Meta<'_>, found: Found) -> bool {
        let failed = meta.set.has(b'C') && Advice::of(meta).error.is_some();
        failed && is_stub(&self.store.item(found))
    }

    /// `md` on an item: `I` marks it stale, `x` takes its value, otherwise it goes. False: no room.
    pub(crate) fn invalidate_item(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        found: Found,
        cx: &mut Context<'_>,
    ) -> bool {
        let flags = &meta.set;
        if !flags.has(b'I') && !flags.has(b'x') {
            self.store.remove(hash, found);
            return true;
        }
        let (cas, stamp) = self.numbers(flags.has(b'E').then_some(flags.explicit_cas));
        let expiry = flags.has(b'T').then(|| cx.step.now.expiry(flags.exptime));
        let stale = if flags.has(b'I') { Marks::STALE } else { Marks::none() };
        if flags.has(b'x') {
            let bare = Attributes {
                expiry: expiry.unwrap_or(NEVER),
                accessed: cx.step.now.second,
                cas,
                stamp,
                marks: stale,
                ..Attributes::default()
            };
            return self.store.put(hash, meta.key.bytes(), &bare, NewValue::Inline([&[], &[]])).is_ok();
        }
        self.mark_stale(meta.key.bytes(), hash, found, (cas, stamp), expiry, cx)
    }

    /// Marks an item stale: it has expired in this moment, if it has a grace. `numbers`: its new CAS, and its stamp if that is
    /// another number. False: no room.
    pub(crate) fn mark_stale(
        &mut self,
        key: &[u8],
        hash: u64,
        found: Found,
        (cas, stamp): (u64, Option<u64>),
        mut expiry: Option<u32>,
        cx: &Context<'_>,
    ) -> bool {
        let mut room = [0; TAGS_MAX];
        let item = self.store.item(found);
        let old = item.attributes(&mut room);
        let marks = old.marks.without(Marks::WON).with(Marks::STALE);
        let mut grace_s = old.grace_s;
        if grace_s > 0 {
            // It expires in this moment, if it has not before; `T` bounds for how long it is served then.
            let left = expiry.and_then(|end| cx.step.now.left(end));
            grace_s = left.map_or(grace_s, |left| grace_s.min(u32::try_from(left).unwrap_or(u32::MAX)));
            expiry = Some(if old.expiry == NEVER {
                cx.step.now.second
            } else {
                old.expiry.min(cx.step.now.second)
            });
        }
        let kept = self.kept_stamp(&item);
        if stamp.is_none() && kept.is_none() && grace_s == old.grace_s {
            self.store.set_cas(found, cas);
            self.store.set_marks(found, marks);
            if let Some(expiry) = expiry {
                self.store.set_expiry(hash, found, expiry);
            }
            return true;
        }
        let expiry = expiry.unwrap_or(old.expiry);
        let marked = Attributes { expiry, grace_s, cas, stamp: kept.or(stamp), marks, ..old };
        self.rewrite(key, hash, found, &marked)
    }

    /// Stores an item's value again with other attributes. False: no room.
    pub(crate) fn rewrite(
        &mut self,
        key: &[u8],
        hash: u64,
        found: Found,
        attributes: &Attributes<'_>,
    ) -> bool {
        match self.store.item(found).value() {
            Value::Huge(huge) => {
                let huge = Arc::clone(huge);
                self.store.put(hash, key, attributes, NewValue::Huge(huge)).is_ok()
            }
            Value::Inline(value) => {
                let mut copy = std::mem::take(&mut self.scratch);
                copy.clear();
                copy.extend_from_slice(value);
                let stored = self.store.put(hash, key, attributes, NewValue::Inline([&copy, &[]]));
                self.keep_scratch(copy);
                stored.is_ok()
            }
        }
    }

    pub(crate) fn meta_arith(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let flags = &meta.set;
        let key = meta.key.bytes();
        let incr = !matches!(flags.mode, b'D' | b'-');
        let delta = if flags.has(b'D') { flags.delta } else { 1 };
        let compare = if flags.has(b'C') { flags.compare_cas } else { 0 };
        let explicit_cas = flags.has(b'E').then_some(flags.explicit_cas);
        let mut created = false;
        let (sum, found) = match self.add(key, hash, incr, delta, compare, explicit_cas, cx) {
            Sum::Is(sum, found) => (sum, found),
            Sum::NotFound if flags.has(b'N') => {
                created = true;
                let initial = if flags.has(b'J') { flags.initial } else { 0 };
                match self.vivify_number(key, hash, initial, explicit_cas, cx) {
                    Some(found) => (initial, found),
                    None => return self.no_room(key.len() + 64, false, cx),
                }
            }
            Sum::NotFound => return meta_arith_failed(reply::NF, meta, cx),
            Sum::Exists => return meta_arith_failed(reply::EX, meta, cx),
            Sum::NotNumeric => {
                cx.step.counters.cmd_meta.add(1);
                reply::line(&mut cx.out.bytes, reply::error::NOT_NUMERIC);
                return Flow::Replied;
            }
            Sum::NoRoom => return self.no_room(key.len() + 64, false, cx),
        };
        cx.step.counters.cmd_meta.add(1);
        let item = self.store.item(found);
        let (now, cas) = (cx.step.now, self.shown_cas(item.cas()));
        let mut shown = OfSum(OfItem { item, flags, now, created, cas, expiry: None, recache: false });
        let quiet = flags.has(b'q');
        let kept = cx.out.bytes.len();
        let mut digits = Vec::new();
        reply::number(&mut digits, sum);
        let out = &mut cx.out.bytes;
        hit(digits.len(), flags.has(b'v'), out);
        return_flags(meta, &mut shown, out);
        reply::end_line(out);
        if flags.has(b'v') {
            out.extend_from_slice(&digits);
            reply::end_line(out);
        }
        if quiet {
            out.truncate(kept);
        }
        if let Some(expiry) = shown.0.expiry {
            self.store.set_expiry(hash, found, expiry);
        }
        Flow::Replied
    }

    fn vivify_number(
        &mut self,
        key: &[u8],
        hash: u64,
        initial: u64,
        explicit_cas: Option<u64>,
        cx: &mut Context<'_>,
    ) -> Option<Found> {
        let (cas, stamp) = self.numbers(explicit_cas);
        let attributes = Attributes {
            accessed: cx.step.now.second,
            cas,
            stamp,
            marks: Marks::EDITED,
            ..Attributes::default()
        };
        let mut digits = Vec::new();
        reply::number(&mut digits, initial);
        self.store.put(hash, key, &attributes, NewValue::Inline([&digits, &[]])).ok()?;
        cx.note(Interest::MUTATIONS, key, || EventKind::Store {
            status: "stored",
            command: "add",
            ttl: 0,
            size: digits.len(),
            classic: false,
        });
        self.changed(key, hash, true, cx);
        self.cascade(key, hash, Change::Incr, cx.step.now);
        self.find(hash, key, &cx.step)
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

pub(crate) fn meta_get_miss(meta: &Meta<'_>, lookup: Lookup, touches: bool, cx: &mut Context<'_>) {
    let (counter, status) = match lookup {
        Lookup::Expired => (Some(&cx.step.counters.get_expired), "expired"),
        Lookup::Flushed => (Some(&cx.step.counters.get_flushed), "flushed"),
        _ => (None, "not_found"),
    };
    if let Some(counter) = counter {
        counter.add(1);
    }
    if touches {
        cx.step.counters.touch_misses.add(1);
    } else {
        cx.step.counters.get_misses.add(1);
    }
    cx.note(Interest::FETCHERS, meta.key.bytes(), || EventKind::Get { status, size: 0, by: Looker::Other });
    if !meta.set.has(b'q') {
        status_line(&mut cx.out.bytes, reply::EN, meta);
    }
}

fn meta_arith_failed(status: &[u8], meta: &Meta<'_>, cx: &mut Context<'_>) -> Flow {
    cx.step.counters.cmd_meta.add(1);
    status_line(&mut cx.out.bytes, status, meta);
    Flow::Replied
}

/// A negative answer without a time to live would hide the key for ever.
const NEGATIVE_NEEDS_TTL: &str = "CLIENT_ERROR negative answer needs a TTL";

/// What `N` makes on a miss, while who won it has not filled it yet.
pub(crate) fn is_stub(item: &Item<'_>) -> bool {
    item.value_len() == 0 && item.marks().has(Marks::WON) && !item.marks().has(Marks::STALE)
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
    // One class: there are no slabs.
    out.extend_from_slice(b" cls=1 size=");
    reply::number(out, item.size() as u64);
}

/// An item as an `mg` shows it.
struct OfItem<'a> {
    item: Item<'a>,
    flags: &'a MetaFlags,
    now: Now,
    /// It is a stub that this `mg` has made.
    created: bool,
    cas: u64,
    /// When it is to end, if that changes: flags see what those before them have set.
    expiry: Option<u32>,
    /// `R` asks for it to be computed again.
    recache: bool,
}

impl OfItem<'_> {
    fn ends(&self) -> u32 {
        self.expiry.unwrap_or(self.item.expiry())
    }
}

impl Shown for OfItem<'_> {
    #[inline]
    fn act(&mut self, letter: u8) {
        match letter {
            b'N' if self.created => self.expiry = Some(self.now.expiry(self.flags.vivify)),
            b'T' => self.expiry = Some(self.now.expiry(self.flags.exptime)),
            b'R' => {
                let ends = self.ends();
                self.recache = !self.created && ends != NEVER && ends < self.now.expiry(self.flags.recache);
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

/// What an `ms` has stored.
struct OfStored {
    cas: u64,
    size: usize,
}

impl Shown for OfStored {
    fn size(&self) -> Option<usize> {
        Some(self.size)
    }

    fn cas(&self) -> Option<u64> {
        Some(self.cas)
    }
}

/// The sum of an `ma`: an item of which only CAS and end are shown.
struct OfSum<'a>(OfItem<'a>);

impl Shown for OfSum<'_> {
    fn act(&mut self, letter: u8) {
        if letter != b'R' {
            self.0.act(letter);
        }
    }

    fn ttl(&self) -> Option<Option<u64>> {
        self.0.ttl()
    }

    fn cas(&self) -> Option<u64> {
        self.0.cas()
    }
}
