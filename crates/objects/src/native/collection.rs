//! What the collections have in common: `set`, `map`, `board` and `queue`.

use std::str::FromStr;

use cattlegrid_store::Tree;

use crate::arguments::Arguments;
use crate::call::{CallError, Frame, Reply};
use crate::listing::{Rows, Shape, show};
use crate::object::Object;
use crate::registry::OBJECT_KEY_MAX;

/// The argument as a member's key, which may have this many bytes.
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

/// All arguments are keys of members.
pub(crate) fn check_members(arguments: &Arguments<'_>) -> Result<(), CallError> {
    (0..arguments.len()).try_for_each(|place| member(arguments, place).map(|_| ()))
}

/// All arguments are keys of objects.
pub(crate) fn check_keys(arguments: &Arguments<'_>) -> Result<(), CallError> {
    for (place, key) in arguments.iter().enumerate() {
        if !(1..=OBJECT_KEY_MAX).contains(&key.len()) {
            let what = format!("a key of 1 to {OBJECT_KEY_MAX} bytes");
            return Err(CallError::argument(place, &what));
        }
    }
    Ok(())
}

/// Types of whole numbers, which read digits, perhaps after a sign.
pub(crate) trait Whole {}
impl Whole for i64 {}
impl Whole for u32 {}
impl Whole for u64 {}
impl Whole for usize {}

/// The argument as a whole number; `what` says which are allowed. None: it is not given.
pub(crate) fn number<T: FromStr + Whole>(
    arguments: &Arguments<'_>,
    place: usize,
    what: &str,
) -> Result<Option<T>, CallError> {
    let Some(text) = arguments.get(place) else { return Ok(None) };
    let is_plain = text.first() != Some(&b'+');
    let number = std::str::from_utf8(text).ok().filter(|_| is_plain).and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| CallError::argument(place, what))
}

/// `new`: an object without members, in place of any other.
pub(crate) fn new(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    object.set(&[]);
    Ok(frame.text(b"CREATED"))
}

/// `exist`: of a member.
pub(crate) fn exist(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    let is_there = object.view().member(member(arguments, 0)?).is_some();
    Ok(frame.text(if is_there { b"EXISTS" } else { b"NOT_FOUND" }))
}

/// `delete`: of members, there or not.
pub(crate) fn delete(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    check_members(arguments)?;
    let mut members = object.members();
    for member in arguments.iter() {
        members.remove(member);
    }
    Ok(frame.text(b"SUCCESS"))
}

/// `count`: of members.
pub(crate) fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    Ok(frame.number(object.view().members()))
}

/// A line for each key.
pub(crate) fn keys(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    show(object, Rows::all(Shape::Keys), frame)
}
