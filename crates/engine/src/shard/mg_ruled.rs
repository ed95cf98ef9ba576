//! `mg` of keys under a rule with leases: how a decision is written.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_herd::{AskMode, LeaseKind};
use cattlegrid_protocol::{Meta, reply};
use cattlegrid_store::{Found, Lookup, NEVER, ReadCheck};

use crate::event::{EventKind, Interest, Looker};
use crate::query::{Advice, Decision, Query};
use crate::reply::meta::{is_explicit, lease_reply};
use crate::rules::Change;
use crate::rules::active::Match;
use crate::shard::Shard;
use crate::shard::counted::count_ruled;
use crate::shard::flow::{Flow, KeyAnswer};
use crate::shard::mg_header::ShownItem;
use crate::shard::miss::{count_meta_miss, count_miss, meta_busy, meta_get_miss, meta_miss};
use crate::step::Context;

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

/// What an `mg` asks of the herd.
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
