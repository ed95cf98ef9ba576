//! `lock`: one owner at a time, for a limited time, with fencing numbers.
//!
//! The lock is advisory: a client that goes on after its lock has ended is stopped only by resources that
//! compare the fencing number. An eviction or a restart removes the lock.
//!
//! The state, little-endian:
//! ```text
//!   0       8         16        24
//!   | fence | length  | since   | owner, 1 to 250 bytes; empty: free
//! ```
//! The lock ends `length` ms after the Unix time `since` in ms. If the clock has gone back, the length is
//! counted again from then on.
//!
//! # Invariants
//! * Fencing numbers grow from owner to owner. The first is the time in ms; later ones are larger than all
//!   before. A released lock is kept until the clock has passed its number, so that numbers also grow after
//!   an expiry or an eviction. (This requires that the owner changes less than 1000 times a second over the
//!   life of a lock. Otherwise the number is ahead of the clock, and after an eviction it can be smaller.)

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::json;
use crate::method::{ObjectType, OnAbsent, method};
use crate::number;
use crate::object::{Object, StateView};

/// The longest owner, in bytes.
const OWNER_MAX: usize = 250;
const OWNER: &str = "an owner of 1 to 250 bytes";
/// The number of bytes before the owner.
const HEAD: usize = 24;

/// The type `lock`.
pub(crate) static LOCK: ObjectType = ObjectType {
    name: "lock",
    id: 10,
    doc: "A lock with an owner, an end and fence numbers.",
    methods: &[
        method(
            "take",
            (2, 2),
            "owner time",
            "OK and the fence number: it is the owner's for that time (30s), also when it was before, with the \
                      same fence; HELD and whole seconds left, rounded up: another has it",
            OnAbsent::Runs,
            take,
        ),
        method(
            "renew",
            (2, 2),
            "owner time",
            "OK and the fence number; NOT_OWNER: it has ended or is another's",
            OnAbsent::Runs,
            renew,
        ),
        method("release", (1, 1), "owner", "OK; NOT_OWNER", OnAbsent::Runs, release),
        method("holder", (0, 0), "", "the owner; a miss: it is free", OnAbsent::Miss, holder),
    ],
    dump: Some(dump),
};

/// The state of the object.
#[derive(Debug, Clone, Copy)]
struct LockState<'a> {
    fence: u64,
    length_ms: u64,
    since_ms: u64,
    owner: &'a [u8],
}

impl<'a> LockState<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, owner) = bytes.split_at_checked(HEAD)?;
        let [fence, length_ms, since_ms] = number::words(head)?;
        Some(Self { fence, length_ms, since_ms, owner })
    }

    /// The milliseconds for which the lock is held; 0: it is free.
    fn left_ms(&self, now_ms: u64) -> u64 {
        if self.owner.is_empty() {
            return 0;
        }
        self.length_ms.saturating_sub(now_ms.saturating_sub(self.since_ms))
    }

    /// Whether the clock is before the time from which the length is counted.
    fn went_back(&self, now_ms: u64) -> bool {
        now_ms < self.since_ms && !self.owner.is_empty()
    }
}

/// Stores the lock until it has ended and the clock has passed its fencing number.
fn store(object: &mut Object<'_>, fence: u64, length_ms: u64, now_ms: u64, owner: &[u8]) {
    let state = object.edit();
    state.clear();
    for word in [fence, length_ms, now_ms] {
        state.extend_from_slice(&word.to_le_bytes());
    }
    state.extend_from_slice(owner);
    object.expire_at(Some(now_ms.saturating_add(length_ms).max(fence.saturating_add(1))));
}

/// The first argument as an owner of at most this many bytes. `what`: a description of valid owners.
///
/// # Errors
/// The owner is empty or too long.
pub(super) fn owner<'a>(arguments: &Arguments<'a>, most: usize, what: &str) -> Result<&'a [u8], CallError> {
    let owner = arguments.get(0).filter(|owner| (1..=most).contains(&owner.len()));
    owner.ok_or_else(|| CallError::argument(0, what))
}

fn granted(fence: u64, context: &mut CallContext<'_>) -> MethodReply {
    context.out.extend_from_slice(b"OK ");
    number::push_whole(context.out, fence);
    MethodReply::Value
}

fn take(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let now_ms = context.now_ms;
    let owner = owner(arguments, OWNER_MAX, OWNER)?;
    let length_ms = number::argument(arguments, 1, number::SPAN, number::span_ms)?;
    let fence = match LockState::read(object.bytes()) {
        None => now_ms,
        Some(state) => {
            let left_ms = state.left_ms(now_ms);
            if left_ms > 0 && state.owner != owner {
                context.out.extend_from_slice(b"HELD ");
                number::push_seconds_up(context.out, left_ms);
                if state.went_back(now_ms) {
                    let holder = state.owner.to_vec();
                    store(object, state.fence, state.length_ms, now_ms, &holder);
                }
                return Ok(MethodReply::Value);
            }
            if left_ms > 0 { state.fence } else { now_ms.max(state.fence.saturating_add(1)) }
        }
    };
    store(object, fence, length_ms, now_ms, owner);
    Ok(granted(fence, context))
}

fn renew(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let owner = owner(arguments, OWNER_MAX, OWNER)?;
    let length_ms = number::argument(arguments, 1, number::SPAN, number::span_ms)?;
    let Some(fence) = own(object, owner, context) else { return Ok(context.text(b"NOT_OWNER")) };
    store(object, fence, length_ms, context.now_ms, owner);
    Ok(granted(fence, context))
}

fn release(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let owner = owner(arguments, OWNER_MAX, OWNER)?;
    let Some(fence) = own(object, owner, context) else { return Ok(context.text(b"NOT_OWNER")) };
    store(object, fence, 0, context.now_ms, b"");
    Ok(context.text(b"OK"))
}

/// The fencing number, if this owner has the lock now.
fn own(object: &Object<'_>, owner: &[u8], context: &CallContext<'_>) -> Option<u64> {
    let state = LockState::read(object.bytes())?;
    (state.owner == owner && state.left_ms(context.now_ms) > 0).then_some(state.fence)
}

fn holder(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let state = LockState::read(object.bytes());
    let Some(state) = state.filter(|state| state.left_ms(context.now_ms) > 0) else {
        return Ok(MethodReply::Miss);
    };
    Ok(context.text(state.owner))
}

fn dump(view: StateView<'_>, context: &CallContext<'_>, out: &mut Vec<u8>) {
    let StateView::Bytes(bytes) = view else { return };
    let Some(state) = LockState::read(bytes) else { return };
    number::push_fields(out, &[("fence", state.fence), ("left_ms", state.left_ms(context.now_ms))]);
    out.pop();
    out.extend_from_slice(b",\"owner\":");
    json::string(state.owner, out);
    out.push(b'}');
}
