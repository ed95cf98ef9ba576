//! Commands that remove, mark as stale or prolong: `delete touch md`.

use cattlegrid_protocol::{Delete, Meta, PacketStatus, Touch, reply};
use cattlegrid_store::{Attributes, Found, Lookup, Marks, NEVER, NewValue, TAGS_MAX};
use cattlegrid_tags::BumpKind;

use crate::event::EventKind;
use crate::query::Advice;
use crate::reply::meta::{Refusals, count_meta, status_line};
use crate::rules::Change;
use crate::shard::standing::is_stub;
use crate::shard::{Flow, Shard};
use crate::step::{Context, Interest};

impl Shard {
    pub(crate) fn touch(&mut self, touch: &Touch<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        cx.step.counters.cmd_touch.add(1);
        let found = self.find(hash, touch.key, &cx.step);
        let shown = if let Some(found) = found {
            cx.step.counters.touch_hits.add(1);
            let found = self.store.set_expiry(hash, found, cx.step.now.expiry(touch.exptime));
            self.store.count_read(found);
            self.cascade(touch.key, hash, Change::Touch, cx.step.now);
            let item = self.store.item(found);
            Some((item.flags(), self.shown_cas(item.cas())))
        } else {
            cx.step.counters.touch_misses.add(1);
            None
        };
        let out = &mut cx.out.bytes;
        match (touch.packet, shown) {
            (Some(packet), Some((flags, cas))) => reply::packet::touched(out, packet, flags, cas),
            (Some(packet), None) => reply::packet::error(out, packet, PacketStatus::NotFound),
            (None, _) if touch.noreply => {}
            (None, Some(_)) => out.extend_from_slice(reply::TOUCHED),
            (None, None) => out.extend_from_slice(reply::NOT_FOUND),
        }
        Flow::Replied
    }

    pub(crate) fn classic_delete(&mut self, delete: &Delete<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let deleted = if self.rule_of(delete.key).is_some() {
            self.delete_ruled(delete.key, hash, cx)
        } else if let Some(found) = self.find(hash, delete.key, &cx.step) {
            let size = self.store.item(found).value_len();
            self.store.remove(hash, found);
            Some(size)
        } else {
            None
        };
        self.observe_change(delete.key, hash, false, &cx.step);
        self.cascade(delete.key, hash, Change::Delete, cx.step.now);
        let text = if let Some(size) = deleted {
            cx.step.counters.delete_hits.add(1);
            cx.note(Interest::DELETIONS, delete.key, || EventKind::Deleted { command: "delete", size });
            reply::DELETED
        } else {
            cx.step.counters.delete_misses.add(1);
            self.note_unmatched(delete.key);
            reply::NOT_FOUND
        };
        if !delete.noreply {
            cx.out.bytes.extend_from_slice(text);
        }
        Flow::Replied
    }

    pub(crate) fn meta_delete(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let flags = &meta.set;
        let key = meta.key.bytes();
        let quiet = flags.has(b'q');
        if self.rule_of(key).is_some() {
            return self.meta_delete_ruled(meta, hash, cx);
        }
        let kind = if flags.has(b'I') { BumpKind::Soft } else { BumpKind::Hard };
        let mut cascades = false;
        let status = match self.find(hash, key, &cx.step) {
            None => {
                // Under a condition there was no item to delete.
                cascades = !flags.has(b'C');
                cx.step.counters.delete_misses.add(1);
                self.note_unmatched(key);
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
                    return self.no_room(key.len() + 64, Refusals::of(meta.packet), cx);
                }
                cx.step.counters.delete_hits.add(1);
                if !flags.has(b'I') {
                    cx.note(Interest::DELETIONS, key, || EventKind::Deleted { command: "md", size });
                }
                (!quiet).then_some(reply::HD)
            }
        };
        if cascades {
            self.observe_change(key, hash, false, &cx.step);
            self.cascade_as(kind, key, hash, Change::Delete, cx.step.now);
        }
        count_meta(meta, cx);
        if let Some(status) = status {
            status_line(&mut cx.out.bytes, status, meta);
        }
        Flow::Replied
    }

    /// `md` of a key under a rule.
    pub(crate) fn meta_delete_ruled(&mut self, meta: &Meta<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        let (key, flags) = (meta.key.bytes(), &meta.set);
        let found = match self.lookup(hash, key, &cx.step) {
            Lookup::Found(found) => Some(found),
            _ => None,
        };
        // `x` removes the value of an item that is there, and an old value is none.
        let empties = flags.has(b'x');
        let seen = found.filter(|found| {
            let is_negative = self.store.item(*found).marks().has(Marks::NEGATIVE);
            !is_negative && (!empties || self.find(hash, key, &cx.step).is_some())
        });
        let compare = flags.has(b'C').then_some(flags.compare_cas);
        let is_items =
            compare.is_none_or(|cas| seen.is_some_and(|found| self.store.item(found).cas() == cas));
        let gives_up = compare.filter(|token| {
            !is_items && self.herd.as_ref().is_some_and(|herd| herd.is_current(hash, *token))
        });
        let kind = if flags.has(b'I') { BumpKind::Soft } else { BumpKind::Hard };
        let mut cascades = false;
        let status = if let Some(token) = gives_up {
            let text = Advice::of(meta).error;
            self.use_token(hash, token, key, cx);
            let failed = self.with_herd(&mut cx.step, |herd, step| herd.failed(hash, token, text, step));
            cx.session.take_number(hash, token);
            if failed == Some(true) { reply::HD } else { reply::NF }
        } else {
            match seen {
                // Under a condition there was no item to delete.
                None if compare.is_some() => reply::NF,
                None => {
                    // Known to be absent, or not there: a delete all the same, because of values that are
                    // being computed.
                    if flags.has(b'I') {
                        if let Some(negative) = found {
                            self.store.remove(hash, negative);
                        }
                        self.soften(key, hash, cx);
                    } else {
                        self.delete_ruled(key, hash, cx);
                    }
                    cascades = true;
                    reply::NF
                }
                Some(_) if !is_items => reply::EX,
                Some(stub) if self.gives_up_stub(meta, stub) => {
                    self.store.remove(hash, stub);
                    reply::HD
                }
                Some(found) => {
                    let size = self.store.item(found).value_len();
                    if flags.has(b'I') || flags.has(b'x') {
                        self.answer_all_own_waits(hash, cx);
                        if !self.invalidate_item(meta, hash, found, cx) {
                            return self.no_room(key.len() + 64, Refusals::of(meta.packet), cx);
                        }
                        if flags.has(b'I') {
                            self.soften(key, hash, cx);
                        } else {
                            self.changed(key, hash, false, cx);
                        }
                    } else {
                        self.delete_ruled(key, hash, cx);
                    }
                    if !flags.has(b'I') {
                        cx.note(Interest::DELETIONS, key, || EventKind::Deleted { command: "md", size });
                    }
                    cascades = true;
                    reply::HD
                }
            }
        };
        if cascades {
            self.observe_change(key, hash, false, &cx.step);
            self.cascade_as(kind, key, hash, Change::Delete, cx.step.now);
        }
        count_meta(meta, cx);
        if status == reply::HD {
            cx.step.counters.delete_hits.add(1);
        } else {
            cx.step.counters.delete_misses.add(1);
        }
        if !(flags.has(b'q') && status == reply::HD) {
            status_line(&mut cx.out.bytes, status, meta);
        }
        Flow::Replied
    }

    fn soften(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        let number = self.shared.tick();
        self.invalidate_softly(key, hash, number, cx);
    }

    /// Whether an `md` removes a stub because its computation failed (`C` with `Pe`): nothing is invalidated
    /// then.
    pub(crate) fn gives_up_stub(&self, meta: &Meta<'_>, found: Found) -> bool {
        let failed = meta.set.has(b'C') && Advice::of(meta).error.is_some();
        failed && is_stub(&self.store.item(found))
    }

    /// `md` on an item: `I` marks it stale, `x` removes its value, otherwise the item is removed. False: no
    /// room.
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
            let mut room = [0; TAGS_MAX];
            let Attributes { tags, cas: old_cas, .. } = self.store.item(found).attributes(&mut room);
            let life = self.store.item(found).life();
            // As in memcached the emptied item keeps its CAS, unless it is marked stale or given another one.
            let cas = if flags.has(b'I') || flags.has(b'E') { cas } else { old_cas };
            let bare = Attributes {
                tags,
                expiry: expiry.unwrap_or(NEVER),
                accessed: cx.step.now.second,
                cas,
                stamp,
                marks: stale,
                ..Attributes::default()
            };
            let bare = bare.with_life(life);
            return self.store.put(hash, meta.key.bytes(), &bare, NewValue::Inline([&[], &[]])).is_ok();
        }
        self.mark_stale(meta.key.bytes(), hash, found, (cas, stamp), expiry, cx)
    }
}
