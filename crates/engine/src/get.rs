//! The classic reads, and what removes or prolongs: `get gets gat gats touch delete`.

use cattlegrid_protocol::{Delete, Touch, reply};
use cattlegrid_store::Lookup;

use crate::ask::{Answer, missed};
use crate::event::{EventKind, Interest};
use crate::rules::Change;
use crate::shard::{Flow, Shard};
use crate::step::Context;

impl Shard {
    /// One key of a `get`: its `VALUE` block, if it is there. `touch`: the exptime of a `gat`.
    #[inline]
    pub(crate) fn get(
        &mut self,
        key: &[u8],
        hash: u64,
        cas: bool,
        touch: Option<i64>,
        cx: &mut Context<'_>,
    ) -> Answer {
        self.advance(&cx.step);
        cx.step.counters.cmd_get.add(1);
        if touch.is_some() {
            cx.step.counters.cmd_touch.add(1);
        }
        let lookup = self.store.lookup(hash, key);
        match lookup {
            Lookup::Found(found) if self.is_just_a_value(found) => {
                self.write_hit(key, hash, found, cas, touch, cx)
            }
            // A miss of a key that may have a rule, or an item that is more than a value.
            Lookup::Found(_) => self.get_ruled(key, hash, cas, touch, lookup, cx),
            _ if self.herd.is_some() => self.get_ruled(key, hash, cas, touch, lookup, cx),
            _ => missed(key, touch.is_some(), lookup, cx),
        }
    }

    pub(crate) fn touch(&mut self, touch: &Touch<'_>, hash: u64, cx: &mut Context<'_>) -> Flow {
        cx.step.counters.cmd_touch.add(1);
        let text = if let Some(found) = self.find(hash, touch.key, &cx.step) {
            cx.step.counters.touch_hits.add(1);
            let found = self.store.set_expiry(hash, found, cx.step.now.expiry(touch.exptime));
            self.store.count_read(found);
            self.cascade(touch.key, hash, Change::Touch, cx.step.now);
            reply::TOUCHED
        } else {
            cx.step.counters.touch_misses.add(1);
            reply::NOT_FOUND
        };
        if !touch.noreply {
            cx.out.bytes.extend_from_slice(text);
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
        self.cascade(delete.key, hash, Change::Delete, cx.step.now);
        let text = if let Some(size) = deleted {
            cx.step.counters.delete_hits.add(1);
            cx.note(Interest::DELETIONS, delete.key, || EventKind::Deleted { command: "delete", size });
            reply::DELETED
        } else {
            cx.step.counters.delete_misses.add(1);
            reply::NOT_FOUND
        };
        if !delete.noreply {
            cx.out.bytes.extend_from_slice(text);
        }
        Flow::Replied
    }
}
