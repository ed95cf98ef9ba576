//! Code that the collections `set`, `map`, `board` and `queue` share.

use std::str::FromStr;

use cattlegrid_store::Tree;

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::{RowSelection, RowShape, show};
use crate::object::Object;
use crate::registry::OBJECT_KEY_MAX;

/// The argument as a member's key of at most this many bytes.
pub(crate) fn member_within<'a>(
    arguments: &Arguments<'a>,
    place: usize,
    most: usize,
) -> Result<&'a [u8], CallError> {
    let member = arguments.get(place).unwrap_or_default();
    if member.is_empty() {
        return Err(CallError::Client(format!("arg {} must not be empty", place + 1)));
    }
    if member.len() > most {
        return Err(CallError::Client(format!("arg {} is longer than {most} bytes", place + 1)));
    }
    Ok(member)
}

/// The argument as a member's key.
pub(crate) fn member<'a>(arguments: &Arguments<'a>, place: usize) -> Result<&'a [u8], CallError> {
    member_within(arguments, place, Tree::KEY_MAX)
}

/// Checks that all arguments are keys of members.
pub(crate) fn check_members(arguments: &Arguments<'_>) -> Result<(), CallError> {
    (0..arguments.len()).try_for_each(|place| member(arguments, place).map(|_| ()))
}

/// Checks that all arguments are keys of objects.
pub(crate) fn check_keys(arguments: &Arguments<'_>) -> Result<(), CallError> {
    for (place, key) in arguments.iter().enumerate() {
        if !(1..=OBJECT_KEY_MAX).contains(&key.len()) {
            let what = format!("a key of 1 to {OBJECT_KEY_MAX} bytes");
            return Err(CallError::argument(place, &what));
        }
    }
    Ok(())
}

/// Types of whole numbers that are parsed from digits, with or without a sign.
pub(crate) trait WholeNumber {}
impl WholeNumber for i64 {}
impl WholeNumber for u32 {}
impl WholeNumber for u64 {}
impl WholeNumber for usize {}

/// The argument as a whole number; `what`: a description of valid numbers. None: it is not given.
pub(crate) fn number<T: FromStr + WholeNumber>(
    arguments: &Arguments<'_>,
    place: usize,
    what: &str,
) -> Result<Option<T>, CallError> {
    let Some(text) = arguments.get(place) else { return Ok(None) };
    let is_plain = text.first() != Some(&b'+');
    let number = std::str::from_utf8(text).ok().filter(|_| is_plain).and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| CallError::argument(place, what))
}

/// `new`: makes an object without members, which replaces any other.
pub(crate) fn new(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    object.set(&[]);
    Ok(context.text(b"CREATED"))
}

/// `exist`: whether a member is present.
pub(crate) fn exist(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let is_there = object.view().member(member(arguments, 0)?).is_some();
    Ok(context.text(if is_there { b"EXISTS" } else { b"NOT_FOUND" }))
}

/// `delete`: removes members, which may be absent.
pub(crate) fn delete(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    check_members(arguments)?;
    let mut members = object.members();
    for member in arguments.iter() {
        members.remove(member);
    }
    Ok(context.text(b"SUCCESS"))
}

/// `count`: the number of members.
pub(crate) fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(context.number(object.view().members()))
}

/// Lists a line for each key.
pub(crate) fn keys(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    show(object, RowSelection::all(RowShape::Keys), context)
}
