//! `counter`: a signed number of 64 bits that stops at its limits, and reports that.
//!
//! The state is the number: 8 bytes, little-endian.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::{ObjectType, OnAbsent, method};
use crate::number;
use crate::object::{Object, StateView};

const NUMBER: &str = "a number from -9223372036854775808 to 9223372036854775807";
const TTL: &str = "a time to live from 0 (for ever) to 366d, such as 60 or 5m";

/// The type `counter`.
pub(crate) static COUNTER: ObjectType = ObjectType {
    name: "counter",
    id: 6,
    doc: "A number that is changed in one step.",
    methods: &[
        method("new", (0, 1), "[n]", "CREATED; it is n (0)", OnAbsent::Runs, new),
        method(
            "add",
            (1, 2),
            "n [ttl]",
            "the new value, and ` saturated` after a largest or smallest one that cuts the sum off. An absent \
                      counter is 0, and lives for the ttl",
            OnAbsent::Runs,
            add,
        ),
        method("get", (0, 0), "", "the value", OnAbsent::Miss, get),
        method("set", (1, 2), "n [ttl]", "n; it lives for the ttl from now on", OnAbsent::Runs, set),
        method(
            "max",
            (1, 2),
            "n [ttl]",
            "the larger one of the value and n, which is the value now; ttl as for add",
            OnAbsent::Runs,
            max,
        ),
        method(
            "min",
            (1, 2),
            "n [ttl]",
            "the smaller one of the value and n, which is the value now; ttl as for add",
            OnAbsent::Runs,
            min,
        ),
    ],
    dump: Some(dump),
};

#[inline]
fn value(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_le_bytes)
}

#[inline]
fn number_of(arguments: &Arguments<'_>) -> Result<i64, CallError> {
    number::argument(arguments, 0, NUMBER, number::signed)
}

/// The expiry of a counter with the call's time to live; None: the call has none.
#[expect(clippy::option_option, reason = "no argument is not the same as no end")]
fn end_ms(arguments: &Arguments<'_>, context: &CallContext<'_>) -> Result<Option<Option<u64>>, CallError> {
    if arguments.len() < 2 {
        return Ok(None);
    }
    let ttl_ms = number::argument(arguments, 1, TTL, |text| {
        if number::whole(text) == Some(0) { Some(0) } else { number::span_ms(text) }
    })?;
    Ok(Some((ttl_ms > 0).then(|| context.now_ms.saturating_add(ttl_ms))))
}

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let n = if arguments.is_empty() { 0 } else { number_of(arguments)? };
    object.set(&n.to_le_bytes());
    object.expire_at(context.end_of_new());
    Ok(context.created())
}

/// Replaces the value by `change` of the old value and the argument.
#[inline]
fn change(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
    change: impl FnOnce(Option<i64>, i64) -> i64,
) -> Result<(), CallError> {
    let n = number_of(arguments)?;
    let end_ms = end_ms(arguments, context)?;
    let old = value(object.bytes());
    let new = change(old, n);
    if old != Some(new) {
        object.set(&new.to_le_bytes());
    }
    if let (None, Some(end_ms)) = (old, end_ms) {
        object.expire_at(end_ms);
    }
    number::push_signed(context.out, new);
    Ok(())
}

fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let mut is_cut = false;
    change(object, arguments, context, |old, n| {
        let old = old.unwrap_or(0);
        is_cut = old.checked_add(n).is_none();
        old.saturating_add(n)
    })?;
    if is_cut {
        context.out.extend_from_slice(b" saturated");
    }
    Ok(MethodReply::Value)
}

fn max(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    change(object, arguments, context, |old, n| old.map_or(n, |old| old.max(n)))?;
    Ok(MethodReply::Value)
}

fn min(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    change(object, arguments, context, |old, n| old.map_or(n, |old| old.min(n)))?;
    Ok(MethodReply::Value)
}

fn set(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let n = number_of(arguments)?;
    if let Some(end_ms) = end_ms(arguments, context)? {
        object.expire_at(end_ms);
    }
    object.set(&n.to_le_bytes());
    number::push_signed(context.out, n);
    Ok(MethodReply::Value)
}

fn get(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(value) = value(object.bytes()) else { return Ok(MethodReply::Miss) };
    number::push_signed(context.out, value);
    Ok(MethodReply::Value)
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    if let StateView::Bytes(bytes) = view
        && let Some(value) = value(bytes)
    {
        out.extend_from_slice(b"{\"value\":");
        number::push_signed(out, value);
        out.push(b'}');
    }
}
