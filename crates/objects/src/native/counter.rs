//! `counter`: a number, 64 bits with a sign, that stops at its limits and says so.

use crate::arguments::Arguments;
use crate::call::{CallError, Frame, Reply};
use crate::method::{Absent, Method, ObjectType, Reads};
use crate::object::{Object, View};

/// See the module's text. The state: the number, 8 bytes, little-endian.
pub(crate) static COUNTER: ObjectType = ObjectType {
    name: "counter",
    id: 6,
    doc: "A number that is changed in one step.",
    methods: &[Method {
        name: "add",
        arguments: (1, 2),
        usage: "n [ttl]",
        replies: "the new value",
        absent: Absent::Runs,
        reads: Reads::Own,
        run: add,
    }],
    dump: Some(dump),
};

fn value(bytes: &[u8]) -> i64 {
    bytes.try_into().map_or(0, i64::from_le_bytes)
}

fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    let text = arguments.get(0).and_then(|text| std::str::from_utf8(text).ok());
    let n: i64 = text.and_then(|text| text.parse().ok()).ok_or_else(|| CallError::argument(0, "a number"))?;
    let sum = value(object.bytes()).saturating_add(n);
    object.set(&sum.to_le_bytes());
    frame.out.extend_from_slice(sum.to_string().as_bytes());
    Ok(Reply::Value)
}

fn dump(view: View<'_>, _: &Frame<'_>, out: &mut Vec<u8>) {
    if let View::Bytes(bytes) = view {
        out.extend_from_slice(format!("{{\"value\":{}}}", value(bytes)).as_bytes());
    }
}
