//! The methods that every object has, whatever its type: `drop ttl exists dump size methods`.

use crate::arguments::Arguments;
use crate::call::{CallError, Frame, Reply};
use crate::listing::{Rows, Shape, Start, show};
use crate::method::{Absent, Method, method};
use crate::native::{queue, score};
use crate::number;
use crate::object::{Object, View};

/// See the module's text. `new` is each type's own.
pub static RESERVED: &[Method] = &[
    method("drop", (0, 0), "", "DELETED, NOT_FOUND", Absent::Runs, drop_it),
    method("ttl", (0, 1), "[seconds]", "seconds left, -1: for ever", Absent::Miss, ttl),
    method("exists", (0, 0), "", "EXISTS, NOT_FOUND", Absent::Runs, exists),
    method("dump", (0, 0), "", "JSON", Absent::Miss, dump),
    method("size", (0, 0), "", "bytes of the state", Absent::Miss, size),
    method("methods", (0, 0), "", "a method a line", Absent::Runs, exists),
];

fn drop_it(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    let text: &[u8] = if object.exists() { b"DELETED" } else { b"NOT_FOUND" };
    frame.out.extend_from_slice(text);
    if object.exists() {
        object.drop_it();
    }
    Ok(Reply::Value)
}

fn ttl(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    if let Some(text) = arguments.get(0) {
        let seconds = number::whole(text).and_then(|seconds| u32::try_from(seconds).ok());
        let seconds = seconds.ok_or_else(|| CallError::argument(0, "a number of seconds, 0 for no end"))?;
        object.expire_at((seconds > 0).then(|| frame.now_ms + u64::from(seconds) * 1000));
    }
    let text = match object.expires_ms() {
        Some(ms) => (ms.saturating_sub(frame.now_ms) / 1000).max(1).to_string(),
        None => "-1".to_owned(),
    };
    frame.out.extend_from_slice(text.as_bytes());
    Ok(Reply::Value)
}

fn exists(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    frame.out.extend_from_slice(if object.exists() { b"EXISTS" } else { b"NOT_FOUND" });
    Ok(Reply::Value)
}

/// Of a collection: other types write their own.
fn dump(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    let (shape, space) = match &*frame.own.name {
        "map" => (Shape::JsonPairs, None),
        "board" => (Shape::JsonScores, Some(score::SPACE)),
        "queue" => (Shape::JsonValues, Some(queue::SPACE)),
        _ => (Shape::JsonKeys, None),
    };
    show(object, Rows { shape, space, start: Start::First, most: u64::MAX }, frame)
}

fn size(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    let bytes = match object.view() {
        // A field has no size of its own.
        View::Absent | View::Layer(_) => 0,
        View::Bytes(bytes) => bytes.len(),
        View::Tree(tree) => tree.held_bytes(),
    };
    frame.out.extend_from_slice(bytes.to_string().as_bytes());
    Ok(Reply::Value)
}
