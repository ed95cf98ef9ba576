//! `topk`: the most frequent items of a stream, in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data
//! streams", ICDT 2005): k items have counts. A new item replaces the item with the lowest count, and
//! continues that count, which is its error.
//!
//! The state is a collection of members:
//! ```text
//!   0                        k, 2 bytes
//!   1 item                   count, error: 8 bytes each
//!   2 !count item            nothing             highest count first
//! ```
//! (`!`: bits inverted; numbers are big-endian.)
//!
//! # Invariants
//! * There are at most k items; each has one entry of each kind.
//! * The sum of all counts is the sum of all hits, unless a count is at its limit, 2^64 - 1.
//! * An item was hit `count - error` to `count` times. An absent item was hit at most as often as the lowest
//!   count, which is at most the sum of hits divided by k.

use std::ops::Bound;

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::json;
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::sketch::{
    MemberKey, inline, item, items, key, limit, make_absent, new_limited, number, rows,
};
use crate::number::push_whole;
use crate::object::{Object, StateView};

/// The number of items of an object that is made without one.
const ITEMS: u64 = 10;
/// The most hits in a call.
const HITS_MAX: u64 = i64::MAX as u64;

const ITEM: u8 = 1;
/// The space of the members in the order of their counts.
pub(crate) const ORDER: u8 = 2;

/// The type `topk`.
pub(crate) static TOPK: ObjectType = ObjectType {
    name: "topk",
    id: 12,
    doc: "The most frequent items, in bounded memory.",
    methods: &[
        method("new", (0, 1), "[k]", "CREATED: for k (10) items, at most 1000", OnAbsent::Runs, new),
        method("hit", (1, 2), "item [n]", "the item's count, n (1) more than before", OnAbsent::Runs, hit),
        method(
            "list",
            (0, 1),
            "[n]",
            "the n most frequent, or all: lines `item count`",
            OnAbsent::Miss,
            list,
        ),
        method(
            "count",
            (1, 1),
            "item",
            "`count error`: it was hit count - error to count times; a miss: it is not among the k",
            OnAbsent::Miss,
            count,
        ),
    ],
    dump: Some(dump),
};

/// The entry of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ItemCount {
    count: u64,
    error: u64,
}

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    new_limited(object, arguments, context, ITEMS)
}

fn hit(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let item = item(arguments, 0)?;
    let n = number(arguments, 1, (1, 1, HITS_MAX), "a positive number")?;
    make_absent(object, context, new)?;
    let view = object.view();
    let own = counted(view, item);
    let is_full = items(view) >= limit(view);
    // The entry whose place and count are taken over: the item's own, or the lowest.
    let mut old: Option<(MemberKey, MemberKey)> = None;
    let mut before = ItemCount { count: 0, error: 0 };
    if let Some(own) = own {
        before = own;
        old = Some((order_key(own.count, item), key(ITEM, [item, &[]])));
    } else if is_full && let Some((count, lowest)) = view.last().and_then(|(order, _)| order_parts(order)) {
        before = ItemCount { count, error: count };
        old = Some((order_key(count, lowest), key(ITEM, [lowest, &[]])));
    }
    let count = before.count.saturating_add(n);
    let mut members = object.members();
    members.reserve(2)?;
    if let Some((order, item)) = old {
        members.remove(&order);
        if own.is_none() {
            members.remove(&item);
        }
    }
    let mut value = [0; 16];
    value[..8].copy_from_slice(&count.to_be_bytes());
    value[8..].copy_from_slice(&before.error.to_be_bytes());
    members.put(&key(ITEM, [item, &[]]), &value)?;
    members.put(&order_key(count, item), &[])?;
    push_whole(context.out, count);
    Ok(MethodReply::Value)
}

fn list(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let n = rows(arguments)?;
    highest(object.view(), n, |item, count| {
        context.out.extend_from_slice(item);
        context.out.push(b' ');
        push_whole(context.out, count);
        context.out.extend_from_slice(b"\r\n");
    });
    Ok(MethodReply::Value)
}

fn count(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(counted) = counted(object.view(), item(arguments, 0)?) else { return Ok(MethodReply::Miss) };
    push_whole(context.out, counted.count);
    context.out.push(b' ');
    push_whole(context.out, counted.error);
    Ok(MethodReply::Value)
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"k\":");
    push_whole(out, limit(view));
    out.extend_from_slice(b",\"items\":[");
    let mut is_first = true;
    highest(view, u64::MAX, |item, count| {
        out.extend_from_slice(if is_first { b"{\"item\":" } else { b",{\"item\":" });
        is_first = false;
        json::string(item, out);
        out.extend_from_slice(b",\"count\":");
        push_whole(out, count);
        out.extend_from_slice(b",\"error\":");
        push_whole(out, counted(view, item).map_or(0, |counted| counted.error));
        out.push(b'}');
    });
    out.extend_from_slice(b"]}");
}

/// Calls `each` with up to `n` items and their counts, the highest first.
fn highest(view: StateView<'_>, n: u64, mut each: impl FnMut(&[u8], u64)) {
    let mut left = n;
    view.scan(Bound::Included(&[ORDER]), |order, _| {
        if let Some((count, item)) = order_parts(order) {
            each(item, count);
        }
        left -= 1;
        left > 0
    });
}

/// The entry of an item, if it is present.
fn counted(view: StateView<'_>, item: &[u8]) -> Option<ItemCount> {
    let value = inline(view.member(&key(ITEM, [item, &[]]))?);
    let count = u64::from_be_bytes(*value.first_chunk()?);
    let error = u64::from_be_bytes(*value.last_chunk()?);
    Some(ItemCount { count, error })
}

fn order_key(count: u64, item: &[u8]) -> MemberKey {
    key(ORDER, [&(!count).to_be_bytes(), item])
}

/// The count and the item in the key of such a member.
pub(crate) fn order_parts(order: &[u8]) -> Option<(u64, &[u8])> {
    let (count, item) = order.get(1..)?.split_first_chunk::<8>()?;
    Some((!u64::from_be_bytes(*count), item))
}
