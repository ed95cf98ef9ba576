//! Status and return flags of a hit of `mg`.

use cattlegrid_protocol::{Meta, MetaFlags};
use cattlegrid_store::{Found, Item, Marks, NEVER};

use crate::reply::meta::{ReturnFlags, hit, return_flags};
use crate::shard::Shard;
use crate::step::Context;
use crate::time::Now;

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

/// What a meta command shows of an item.
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
