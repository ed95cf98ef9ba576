//! `recent`: the last N distinct items, newest first.
//!
//! The state is a collection of members:
//! ```text
//!   0                        N, 2 bytes
//!   1 item                   its number, 8 bytes
//!   2 !number                the item            newest first, since numbers grow
//! ```
//! (`!`: bits inverted; numbers are big-endian.)
//!
//! # Invariants
//! * There are at most N items; each has one number, and each number one item.
//! * An item that is added again moves to the front.

use std::ops::Bound;

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::json;
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::sketch::{
    ITEM_MAX, MemberKey, inline, item, items, key, limit, make_absent, new_limited, rows,
};
use crate::number::push_whole;
use crate::object::{Object, StateView};

/// The number of items of an object that is made without one.
const ITEMS: u64 = 100;

const ITEM: u8 = 1;
const ORDER: u8 = 2;

/// The type `recent`.
pub(crate) static RECENT: ObjectType = ObjectType {
    name: "recent",
    id: 15,
    doc: "The last distinct items, newest first.",
    methods: &[
        method("new", (0, 1), "[n]", "CREATED: for n (100) items, at most 1000", OnAbsent::Runs, new),
        method("add", (1, 1), "item", "NEW, SEEN: it was there, and is the newest now", OnAbsent::Runs, add),
        method("list", (0, 1), "[n]", "the n newest, or all, one a line", OnAbsent::Miss, list),
        method("count", (0, 0), "", "number of items", OnAbsent::Miss, count),
        method("remove", (1, 1), "item", "DELETED, NOT_FOUND", OnAbsent::Miss, remove),
    ],
    dump: Some(dump),
};

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    new_limited(object, arguments, context, ITEMS)
}

fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let item = item(arguments, 0)?;
    make_absent(object, context, new)?;
    let view = object.view();
    let own = number_of(view, item);
    let mut newest = None;
    view.scan(Bound::Included(&[ORDER]), |order, _| {
        newest = order_number(order);
        false
    });
    if own.is_some() && own == newest {
        return Ok(context.text(b"SEEN"));
    }
    // The item that is removed to make room.
    let mut oldest = None;
    if own.is_none() && items(view) >= limit(view) {
        oldest = view.last().map(|(order, value)| {
            let order: MemberKey = order.iter().copied().collect();
            (order, key(ITEM, [inline(value), &[]]))
        });
    }
    let mut members = object.members();
    members.reserve(2)?;
    if let Some((order, item)) = oldest {
        members.remove(&order);
        members.remove(&item);
    }
    if let Some(own) = own {
        members.remove(&order_key(own));
    }
    let next = newest.map_or(0, |newest| newest + 1);
    members.put(&order_key(next), item)?;
    members.put(&key(ITEM, [item, &[]]), &next.to_be_bytes())?;
    Ok(context.text(if own.is_some() { b"SEEN" } else { b"NEW" }))
}

fn list(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let n = rows(arguments)?;
    newest(object.view(), n, |item| {
        context.out.extend_from_slice(item);
        context.out.extend_from_slice(b"\r\n");
    });
    Ok(MethodReply::Value)
}

fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    push_whole(context.out, items(object.view()));
    Ok(MethodReply::Value)
}

fn remove(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let item = item(arguments, 0)?;
    let Some(own) = number_of(object.view(), item) else { return Ok(context.text(b"NOT_FOUND")) };
    let mut members = object.members();
    members.remove(&order_key(own));
    members.remove(&key(ITEM, [item, &[]]));
    Ok(context.text(b"DELETED"))
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"max\":");
    push_whole(out, limit(view));
    out.extend_from_slice(b",\"items\":[");
    let mut is_first = true;
    newest(view, u64::MAX, |item| {
        if !is_first {
            out.push(b',');
        }
        is_first = false;
        json::string(item, out);
    });
    out.extend_from_slice(b"]}");
}

/// Calls `each` with up to `n` items, newest first.
fn newest(view: StateView<'_>, n: u64, mut each: impl FnMut(&[u8])) {
    let mut left = n;
    view.scan(Bound::Included(&[ORDER]), |_, value| {
        each(inline(value));
        left -= 1;
        left > 0
    });
}

/// The number of an item, if it is present.
fn number_of(view: StateView<'_>, item: &[u8]) -> Option<u64> {
    let value = view.member(&key(ITEM, [item, &[]]))?;
    inline(value).try_into().ok().map(u64::from_be_bytes)
}

fn order_key(number: u64) -> MemberKey {
    key(ORDER, [&(!number).to_be_bytes(), &[]])
}

fn order_number(order: &[u8]) -> Option<u64> {
    let (_, number) = order.split_first()?;
    number.try_into().ok().map(|bytes| !u64::from_be_bytes(bytes))
}

const _: () = assert!(ITEM_MAX <= cattlegrid_store::Tree::VALUE_INLINE_MAX, "items are values too");
