//! `sem`: a semaphore. Up to `max` owners at a time, each for a limited time.
//!
//! It is advisory, as locks are. The state, little-endian, has the Unix time in ms of the last change. Then
//! for each owner, in byte order, it has the time in ms that was left then, the length of its name in a byte,
//! and the name. At most [`OWNERS_MAX`] owners of 64 bytes make 73 KB, which a call that changes it copies.
//! If the clock has gone back, owners keep their times, which are counted from then on.
//!
//! # Invariants
//! * Owners are distinct, and each had time left at the last change.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::json;
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::lock;
use crate::number;
use crate::object::{Object, StateView};

/// The most owners at a time.
const OWNERS_MAX: u64 = 1000;
/// The longest owner, in bytes.
const OWNER_MAX: usize = 64;
const OWNER: &str = "an owner of 1 to 64 bytes";
const MAX: &str = "a number from 1 to 1000";

/// The type `sem`.
pub(crate) static SEM: ObjectType = ObjectType {
    name: "sem",
    id: 16,
    doc: "A semaphore: up to 1000 owners at a time, each with its own end.",
    methods: &[
        method(
            "take",
            (3, 3),
            "owner max time",
            "OK and how many more could take it; FULL and whole seconds until the first ends, rounded up. An owner that has it \
                      takes it anew for that time (30s)",
            OnAbsent::Runs,
            take,
        ),
        method("release", (1, 1), "owner", "OK; NOT_OWNER", OnAbsent::Runs, release),
        method("count", (0, 0), "", "number of owners", OnAbsent::Runs, count),
        method(
            "list",
            (0, 0),
            "",
            "an owner and its seconds left, rounded up, a line, in the order of their bytes",
            OnAbsent::Runs,
            list,
        ),
    ],
    dump: Some(dump),
};

/// The owners that have time left, and that time in ms.
fn owners(bytes: &[u8], now_ms: u64) -> impl Iterator<Item = (&[u8], u64)> {
    let (at, mut rest) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let passed_ms = now_ms.saturating_sub(u64::from_le_bytes(*at));
    let all = std::iter::from_fn(move || {
        let (left, after) = rest.split_first_chunk::<8>()?;
        let (len, after) = after.split_first()?;
        let (owner, after) = after.split_at_checked(usize::from(*len))?;
        rest = after;
        Some((owner, u64::from_le_bytes(*left).saturating_sub(passed_ms)))
    });
    all.filter(|(_, left_ms)| *left_ms > 0)
}

/// Writes the owners without `changed`, and with it if it has time left now. Drops the object if there is no
/// owner.
fn store(object: &mut Object<'_>, changed: &[u8], left_ms: Option<u64>, now_ms: u64) {
    let mut state = Vec::with_capacity(object.bytes().len() + 9 + changed.len());
    state.extend_from_slice(&now_ms.to_le_bytes());
    let mut longest_ms = 0;
    let mut push = |owner: &[u8], left_ms: u64| {
        state.extend_from_slice(&left_ms.to_le_bytes());
        debug_assert!(owner.len() <= OWNER_MAX, "checked where it came from");
        state.push(owner.len() as u8);
        state.extend_from_slice(owner);
        longest_ms = longest_ms.max(left_ms);
    };
    let mut new = left_ms;
    for (owner, left_ms) in owners(object.bytes(), now_ms) {
        if owner >= changed
            && let Some(new) = new.take()
        {
            push(changed, new);
        }
        if owner != changed {
            push(owner, left_ms);
        }
    }
    if let Some(new) = new {
        push(changed, new);
    }
    if longest_ms == 0 {
        return object.discard();
    }
    object.set(&state);
    object.expire_at(Some(now_ms.saturating_add(longest_ms)));
}

fn take(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let owner = lock::owner(arguments, OWNER_MAX, OWNER)?;
    let max = number::argument(arguments, 1, MAX, |text| number::whole_within(text, 1, OWNERS_MAX))?;
    let length_ms = number::argument(arguments, 2, number::SPAN, number::span_ms)?;
    let (mut others, mut first_ms, mut has_it) = (0, u64::MAX, false);
    for (other, left_ms) in owners(object.bytes(), context.now_ms) {
        if other == owner {
            has_it = true;
        } else {
            others += 1;
            first_ms = first_ms.min(left_ms);
        }
    }
    if others >= max && !has_it {
        context.out.extend_from_slice(b"FULL ");
        number::push_seconds_up(context.out, first_ms);
        if changed_ms(object.bytes()) > context.now_ms {
            store(object, b"", None, context.now_ms);
        }
        return Ok(MethodReply::Value);
    }
    store(object, owner, Some(length_ms), context.now_ms);
    context.out.extend_from_slice(b"OK ");
    number::push_whole(context.out, max.saturating_sub(others + 1));
    Ok(MethodReply::Value)
}

/// The time of the last change.
fn changed_ms(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |at| u64::from_le_bytes(*at))
}

fn release(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let owner = lock::owner(arguments, OWNER_MAX, OWNER)?;
    if !owners(object.bytes(), context.now_ms).any(|(other, _)| other == owner) {
        return Ok(context.text(b"NOT_OWNER"));
    }
    store(object, owner, None, context.now_ms);
    Ok(context.text(b"OK"))
}

fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    number::push_whole(context.out, owners(object.bytes(), context.now_ms).count() as u64);
    Ok(MethodReply::Value)
}

fn list(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    for (owner, left_ms) in owners(object.bytes(), context.now_ms) {
        context.out.extend_from_slice(owner);
        context.out.push(b' ');
        number::push_seconds_up(context.out, left_ms);
        context.out.extend_from_slice(b"\r\n");
    }
    Ok(MethodReply::Value)
}

fn dump(view: StateView<'_>, context: &CallContext<'_>, out: &mut Vec<u8>) {
    let StateView::Bytes(bytes) = view else { return };
    let mut before: &[u8] = b"{\"left_ms\":{";
    for (owner, left_ms) in owners(bytes, context.now_ms) {
        out.extend_from_slice(before);
        json::string(owner, out);
        out.push(b':');
        number::push_whole(out, left_ms);
        before = b",";
    }
    if before != b"," {
        out.extend_from_slice(before);
    }
    out.extend_from_slice(b"}}");
}
