//! How the value of a key is ended: removed or marked as old, softly or for good.

use cattlegrid_store::{Attributes, Found, Lookup, Marks, NEVER, TAGS_MAX};

use crate::shard::Shard;
use crate::step::{Context, Step};

impl Shard {
    /// Removes a key whose new value was refused, so that the old one is not taken for it.
    pub fn invalidate(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        self.advance(&cx.step);
        if self.rule_of(key).is_some() {
            self.delete_ruled(key, hash, cx);
        } else if let Lookup::Found(found) = self.store.lookup(hash, key) {
            self.store.remove(hash, found);
        }
    }

    /// Marks an item stale: if it has a grace, it expires now. `numbers`: its new CAS, and its stamp if that
    /// is another number. False: no room.
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
            // It expires now, if it has not before; `T` bounds for how long it is served afterwards.
            let left = expiry.and_then(|end| cx.step.now.left(end));
            grace_s = left.map_or(grace_s, |left| grace_s.min(u32::try_from(left).unwrap_or(u32::MAX)));
            expiry = Some(if old.expiry == NEVER {
                cx.step.now.second
            } else {
                old.expiry.min(cx.step.now.second)
            });
        }
        if let (Some(end), Some(_)) = (expiry, old.life()) {
            // The end of its life does not move.
            expiry = Some(if end == NEVER { old.expiry } else { end.min(old.expiry) });
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

    /// Deletes a key under a rule. Returns the size in bytes of the value that readers could have seen.
    pub(crate) fn delete_ruled(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) -> Option<usize> {
        self.answer_all_own_waits(hash, cx);
        self.delete_unawaited(key, hash, &mut cx.step)
    }

    /// Deletes a key for a caller whose connection waits for no key.
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
            herd.note_soft(hash, number);
            herd.invalidated(hash, key, step);
        });
    }
}
