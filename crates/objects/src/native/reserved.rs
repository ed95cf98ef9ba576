//! The methods of every object, whatever its type: `drop ttl exists dump size methods`.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::{RowSelection, RowShape, RowStart, show};
use crate::method::{Method, OnAbsent, method};
use crate::native::{queue, score};
use crate::number;
use crate::object::{Object, StateView};

/// The methods of every object. `new` is each type's own.
pub static RESERVED: &[Method] = &[
    method("drop", (0, 0), "", "DELETED, NOT_FOUND", OnAbsent::Runs, drop_it),
    method("ttl", (0, 1), "[seconds]", "seconds left, -1: for ever", OnAbsent::Miss, ttl),
    method("exists", (0, 0), "", "EXISTS, NOT_FOUND", OnAbsent::Runs, exists),
    method("dump", (0, 0), "", "JSON", OnAbsent::Miss, dump),
    method("size", (0, 0), "", "bytes of the state", OnAbsent::Miss, size),
    method("methods", (0, 0), "", "a method a line", OnAbsent::Runs, exists),
];

fn drop_it(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let text: &[u8] = if object.exists() { b"DELETED" } else { b"NOT_FOUND" };
    context.out.extend_from_slice(text);
    if object.exists() {
        object.discard();
    }
    Ok(MethodReply::Value)
}

fn ttl(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    if let Some(text) = arguments.get(0) {
        let seconds = number::whole(text).and_then(|seconds| u32::try_from(seconds).ok());
        let seconds = seconds.ok_or_else(|| CallError::argument(0, "a number of seconds, 0 for no end"))?;
        object.expire_at((seconds > 0).then(|| context.now_ms + u64::from(seconds) * 1000));
    }
    let text = match object.expires_ms() {
        Some(ms) => (ms.saturating_sub(context.now_ms) / 1000).max(1).to_string(),
        None => "-1".to_owned(),
    };
    context.out.extend_from_slice(text.as_bytes());
    Ok(MethodReply::Value)
}

fn exists(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    context.out.extend_from_slice(if object.exists() { b"EXISTS" } else { b"NOT_FOUND" });
    Ok(MethodReply::Value)
}

/// Lists a collection; other types have their own function for `dump`.
fn dump(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let (shape, space) = match &*context.own.name {
        "map" => (RowShape::JsonPairs, None),
        "board" => (RowShape::JsonScores, Some(score::SPACE)),
        "queue" => (RowShape::JsonValues, Some(queue::SPACE)),
        _ => (RowShape::JsonKeys, None),
    };
    show(object, RowSelection { shape, space, start: RowStart::First, most: u64::MAX }, context)
}

fn size(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let bytes = match object.view() {
        // A field has no size of its own.
        StateView::Absent | StateView::Layer(_) => 0,
        StateView::Bytes(bytes) => bytes.len(),
        StateView::Tree(tree) => tree.held_bytes(),
    };
    context.out.extend_from_slice(bytes.to_string().as_bytes());
    Ok(MethodReply::Value)
}
