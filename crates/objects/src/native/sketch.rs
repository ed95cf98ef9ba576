//! Code that `recent`, `topk`, `hll`, `bloom` and `consistent` share: the hash of items, keys of members in
//! spaces, and objects that their first call makes.
//!
//! A state with several kinds of members has each kind in its own space, which is the first byte of the keys.
//!
//! # Invariant The hash of an item is the same in every process and on every machine, so that states survive
//! and can be compared.

use arrayvec::ArrayVec;
use cattlegrid_store::Value;

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::MethodFn;
use crate::native::collection::member_within;
use crate::number::whole_within;
use crate::object::{Object, StateView};

/// The longest item in bytes, as long as a key.
pub(crate) const ITEM_MAX: usize = 250;
/// The longest key of a member in bytes: its space, a number and an item.
const KEY_MAX: usize = 1 + 8 + ITEM_MAX;

/// A key of a member.
pub(crate) type MemberKey = ArrayVec<u8, KEY_MAX>;

/// The key of the member with the parameters, which has a space of its own.
pub(crate) const HEADER: [u8; 1] = [0];

/// The key with these parts in a space; parts above [`KEY_MAX`] bytes in all are truncated.
pub(crate) fn key(space: u8, parts: [&[u8]; 2]) -> MemberKey {
    let parts = parts.into_iter().flatten().copied();
    std::iter::once(space).chain(parts).take(KEY_MAX).collect()
}

/// The item at this position of the arguments.
pub(crate) fn item<'a>(arguments: &Arguments<'a>, place: usize) -> Result<&'a [u8], CallError> {
    member_within(arguments, place, ITEM_MAX)
}

/// The hash of an item: rapidhash v3 with the seed 0 of its definition.
#[inline]
pub(crate) fn hash(item: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(item)
}

/// The bytes of a value that is stored next to its key; empty for any other value.
pub(crate) fn inline(value: Value<'_>) -> &[u8] {
    match value {
        Value::Inline(bytes) => bytes,
        Value::Huge(_) => &[],
    }
}

/// The whole number at this position of the arguments, or the default. `what`: a description of valid
/// numbers.
pub(crate) fn number(
    arguments: &Arguments<'_>,
    place: usize,
    (least, default, most): (u64, u64, u64),
    what: &str,
) -> Result<u64, CallError> {
    let Some(text) = arguments.get(place) else { return Ok(default) };
    whole_within(text, least, most).ok_or_else(|| CallError::argument(place, what))
}

/// The most items of a `recent` or `topk` object.
const LIMIT_MAX: u64 = 1000;
const LIMIT: &str = "a number from 1 to 1000";

/// `new` of an object with a limited number of items: the first argument, or the default.
pub(crate) fn new_limited(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
    default: u64,
) -> Result<MethodReply, CallError> {
    let limit = number(arguments, 0, (1, default, LIMIT_MAX), LIMIT)? as u16;
    object.set(&[]);
    object.members().put(&HEADER, &limit.to_be_bytes())?;
    Ok(context.created())
}

/// The limit of such an object.
pub(crate) fn limit(view: StateView<'_>) -> u64 {
    let header = view.member(&HEADER).map(inline).and_then(|bytes| bytes.try_into().ok());
    header.map_or(LIMIT_MAX, |bytes| u64::from(u16::from_be_bytes(bytes)))
}

/// The number of items in such an object: each has two members, besides the header.
pub(crate) fn items(view: StateView<'_>) -> u64 {
    view.members() / 2
}

/// The number of items that a `list` shows: the first argument, or all.
pub(crate) fn rows(arguments: &Arguments<'_>) -> Result<u64, CallError> {
    number(arguments, 0, (1, LIMIT_MAX, LIMIT_MAX), LIMIT)
}

/// Makes an absent object by the type's `new`, with the arguments of `create` in the rule file, or with none.
pub(crate) fn make_absent(
    object: &mut Object<'_>,
    context: &mut CallContext<'_>,
    new: MethodFn,
) -> Result<(), CallError> {
    if object.exists() {
        return Ok(());
    }
    let create = context.own.create.iter().flatten().map(Vec::as_slice);
    let from = context.out.len();
    new(object, &Arguments::of(create), context)?;
    context.out.truncate(from);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_for_ever() {
        assert_eq!(hash(b""), 0x0338_dc4b_e2ce_cdae);
        assert_eq!(hash(b"a"), hash(b"a"));
        assert_ne!(hash(b"a"), hash(b"b"));
    }

    #[test]
    fn keys_have_a_limit() {
        assert_eq!(&key(2, [b"ab", b"c"])[..], b"\x02abc");
        assert_eq!(key(1, [&[7; 8], &[b'x'; ITEM_MAX]]).len(), KEY_MAX);
        assert_eq!(key(1, [&[7; 9], &[b'x'; ITEM_MAX]]).len(), KEY_MAX, "cut");
    }
}
