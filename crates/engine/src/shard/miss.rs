//! Misses: how they are counted, recorded and written.

use cattlegrid_protocol::{Meta, reply};
use cattlegrid_store::Lookup;

use crate::event::{EventKind, Interest, Looker};
use crate::reply::get::{AskedKey, GetForm};
use crate::reply::meta::{is_explicit, lease_reply, status_line};
use crate::shard::flow::{Flow, KeyAnswer};
use crate::step::Context;

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

#[inline]
pub(crate) fn count_miss(touches: bool, cx: &Context<'_>) {
    if touches {
        cx.step.counters.touch_misses.add(1);
    } else {
        cx.step.counters.get_misses.add(1);
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
