//! States of objects: conversion between a table of the VM and bytes.
//!
//! Bytes are decoded to a table when a call begins, and the table is encoded when it ends. `state/format.rs`
//! has the format, `names.rs` the dictionary of fields' names. A value that states cannot hold is an error
//! with its place: `field 'a.b[3]' is a function`.
//!
//! # Invariants
//! * Equal tables give equal bytes, in whatever order their entries were set: an object that a call leaves
//!   unchanged keeps its bytes.
//! * Encoded bytes are decoded to the same table.

mod explain;
pub(crate) mod format;
pub(crate) mod path;
#[cfg(any(test, fuzzing))]
pub(crate) mod properties;

use std::borrow::Cow;
use std::collections::BTreeSet;

use mlua::{Lua, Table};

use crate::current;
use crate::json;
use crate::names::Names;
use crate::natives::FieldHandle;
use crate::raw::{self, EncodeResult};
use format::{FormatError, StateHead, StateReader, StateToken, TableKey};

/// The most levels of tables, including the state's own.
pub(crate) const DEPTH_MAX: usize = 16;

/// A state that is too long by less than this many bytes is written completely, so that the error has its
/// length.
const TOLD_MAX: usize = 1 << 20;

/// The fields that a state refers to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StateFields {
    /// The number and the kind of each field, ascending.
    pub(crate) list: Vec<(u8, u8)>,
}

/// The fields that a plain state refers to, found without a VM; empty: none.
pub(crate) fn fields(plain: &[u8]) -> StateFields {
    let head = StateReader::new(plain).map_or_else(|FormatError| StateHead::default(), |(head, _)| head);
    StateFields {
        list: head.fields.as_chunks::<2>().0.iter().map(|[number, kind]| (*number, *kind)).collect(),
    }
}

/// The table of a plain state, and the version of the source that wrote it.
///
/// `call_number` and `object` become part of the handles of fields.
///
/// # Errors
/// The bytes are not a state, or memory is short.
pub(crate) fn decode(
    lua: &Lua,
    plain: &[u8],
    names: &Names,
    call_number: u64,
    object: u8,
) -> mlua::Result<(u16, Table)> {
    let (head, reader) = StateReader::new(plain)?;
    Ok((head.version, raw::decode(lua, reader, head, names, call_number, object)?))
}

/// Appends the state for a table, with the call's tokens of `cg.once`; returns the fields that it refers to.
/// The call must be the thread's.
///
/// # Errors
/// A value in the table that cannot be kept, and its place; or the state is longer than `state_max`.
pub(crate) fn encode(
    lua: &Lua,
    table: &Table,
    version: u16,
    names: &Names,
    state_max: usize,
    out: &mut Vec<u8>,
) -> Result<StateFields, String> {
    let from = out.len();
    let Some((start, call_number)) = OpenState::new(version, out) else {
        return Err("no call runs".to_owned());
    };
    let mut list = Vec::new();
    let most = from.saturating_add(most(state_max));
    let encoded = raw::encode(lua, table, names, call_number, &mut list, most, out);
    let encoded = encoded.map_err(|error| error.to_string())?;
    if encoded == EncodeResult::Refused {
        out.truncate(from);
        return Err(explain::explain(table, call_number));
    }
    start.finish(list, state_max, out).map_err(|TooLong { len }| {
        out.truncate(from);
        let bytes = if encoded == EncodeResult::TooLong { "more than ".to_owned() } else { String::new() };
        format!("state too large ({bytes}{len} bytes, state_max is {state_max}): use cg.set/cg.map")
    })
}

/// The length of a state at which writing is ended, in bytes.
pub(crate) fn most(state_max: usize) -> usize {
    state_max.saturating_add(TOLD_MAX)
}

/// A state whose head is written.
pub(crate) struct OpenState {
    from: usize,
    head_end: usize,
}

/// The state is too long.
pub(crate) struct TooLong {
    len: usize,
}

impl OpenState {
    /// Appends the head of a state, with the tokens of `cg.once` of the thread's call. Also returns the
    /// number of that call. None: no call runs.
    pub(crate) fn new(version: u16, out: &mut Vec<u8>) -> Option<(Self, u64)> {
        let from = out.len();
        current::with(|current| {
            let once = current.written.once.as_deref();
            let tokens = once.unwrap_or_else(|| current.call.own.map_or(&[], tokens));
            StateHead { version, tokens, fields: &[] }.push(out);
            (Self { from, head_end: out.len() }, current.number)
        })
    }

    /// Inserts the state's fields into its head, after the table was appended.
    pub(crate) fn finish(
        &self,
        mut list: Vec<(u8, u8)>,
        state_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<StateFields, TooLong> {
        if !list.is_empty() {
            list.sort_unstable();
            let bytes: Vec<u8> = list.iter().flat_map(|(number, kind)| [*number, *kind]).collect();
            let mut part = Vec::new();
            StateHead::push_fields(&bytes, &mut part);
            out.splice(self.head_end..self.head_end, part);
        }
        let len = out.len() - self.from;
        if len > state_max { Err(TooLong { len }) } else { Ok(StateFields { list }) }
    }
}

/// The hashes of the tokens of `cg.once` in a plain state, 8 bytes each, the oldest first.
pub(crate) fn tokens(plain: &[u8]) -> &[u8] {
    StateReader::new(plain).map_or(&[], |(head, _)| head.tokens)
}

/// Appends a plain state as JSON, without a VM. Tables that have only items are arrays, all others are
/// objects. In an object, keys that are numbers come first, as texts, then names in ascending order; a name
/// that equals such a text is put in quotes. Numbers that JSON cannot express are null. `field` appends a
/// field.
///
/// Bytes that are not a state are written as far as they can be read, and the output is not valid JSON
/// then.
pub(crate) fn to_json(
    plain: &[u8],
    names: &Names,
    out: &mut Vec<u8>,
    field: &mut dyn FnMut(FieldHandle, &mut Vec<u8>),
) {
    if let Ok((head, mut reader)) = StateReader::new(plain) {
        let written = json_value(&mut reader, &head, names, 0, out, field);
        debug_assert_eq!(written, Ok(()), "an object has a state");
    }
}

fn json_value(
    reader: &mut StateReader<'_>,
    head: &StateHead<'_>,
    names: &Names,
    depth: usize,
    out: &mut Vec<u8>,
    field: &mut dyn FnMut(FieldHandle, &mut Vec<u8>),
) -> Result<(), FormatError> {
    let (items, entries) = match reader.value(depth)? {
        StateToken::Boolean(value) => {
            json::push_boolean(value, out);
            return Ok(());
        }
        StateToken::Number(number) => {
            if number.is_finite() {
                json::push_number(number, out);
            } else {
                out.extend_from_slice(b"null");
            }
            return Ok(());
        }
        StateToken::String(string) => {
            json::push_string(string, out);
            return Ok(());
        }
        StateToken::Field(number) => {
            let kind = head.kind(number).ok_or(FormatError)?;
            field(FieldHandle { object: 0, field: number, kind }, out);
            return Ok(());
        }
        StateToken::Table { array: true, .. } => {
            out.extend_from_slice(b"[]");
            return Ok(());
        }
        StateToken::Table { items, entries, .. } => (items, entries),
    };
    if entries == 0 && items > 0 {
        out.push(b'[');
        for item in 0..items {
            if item > 0 {
                out.push(b',');
            }
            json_value(reader, head, names, depth + 1, out, field)?;
        }
        out.push(b']');
        return Ok(());
    }
    // Names are in the order of the dictionary, which may differ in another process. Here they are put in the
    // order of their texts.
    let (from, mut pieces, mut numbers) = (out.len(), Vec::new(), BTreeSet::new());
    out.push(b'{');
    for item in 1..=items + entries {
        let start = out.len();
        out.push(b',');
        let key = if item <= items { TableKey::Number(item as f64) } else { reader.key()? };
        let is_number = matches!(key, TableKey::Number(_));
        let text = match key {
            TableKey::Number(number) => {
                let mut text = Vec::new();
                json::push_number(number, &mut text);
                Cow::Owned(text)
            }
            TableKey::Name(name) => Cow::Borrowed(names.get(name).ok_or(FormatError)?),
            TableKey::String(string) => Cow::Borrowed(string),
        };
        if is_number {
            json::push_string(&text, out);
            numbers.insert(text.to_vec());
        } else if numbers.contains(&*text) {
            json::push_string(&[b"\"", &*text, b"\""].concat(), out);
        } else {
            json::push_string(&text, out);
        }
        out.push(b':');
        json_value(reader, head, names, depth + 1, out, field)?;
        if !is_number {
            pieces.push((text, start..out.len()));
        }
    }
    if !pieces.is_sorted_by_key(|(text, _)| &**text) {
        let first = pieces[0].1.start;
        let written = out.split_off(first);
        pieces.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (_, range) in pieces {
            out.extend_from_slice(&written[range.start - first..range.end - first]);
        }
    }
    if items + entries > 0 {
        out.remove(from + 1);
    }
    out.push(b'}');
    Ok(())
}

impl From<FormatError> for mlua::Error {
    fn from(FormatError: FormatError) -> Self {
        Self::runtime("the object's state cannot be read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, TestSetting};

    /// The state that a source returns, or why it is none.
    fn written(lua: &Lua, names: &Names, source: &str) -> Result<(Vec<u8>, StateFields), String> {
        let table: Table = lua.load(source).eval().unwrap();
        let mut out = Vec::new();
        let encode = || encode(lua, &table, 1, names, 65_536, &mut out);
        let fields = TestSetting::default().run(&mut testing::FakeWorld::default(), encode).0?;
        Ok((out, fields))
    }

    fn json(plain: &[u8], names: &Names) -> String {
        let mut out = Vec::new();
        to_json(plain, names, &mut out, &mut |handle, out| out.push(b'0' + handle.field));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_quota_takes_18_bytes() {
        let (lua, names) = (Lua::new(), Names::new());
        let (bytes, fields) =
            written(&lua, &names, "return {limit = 10, count = 3, type = 'hour', expiresAt = 1700003601}")
                .unwrap();
        assert_eq!(bytes.len(), 18, "{bytes:?}");
        assert_eq!(fields, StateFields::default());
        let (version, table) = decode(&lua, &bytes, &names, 1, 0).unwrap();
        assert_eq!(version, 1);
        assert_eq!(table.get::<u64>("expiresAt").unwrap(), 1_700_003_601);
        assert_eq!(table.get::<String>("type").unwrap(), "hour");
        assert_eq!(json(&bytes, &names), r#"{"count":3,"expiresAt":1700003601,"limit":10,"type":"hour"}"#);
    }

    #[test]
    fn the_order_of_writing_does_not_matter() {
        let (lua, names) = (Lua::new(), Names::new());
        let one = written(
            &lua,
            &names,
            "return {a = 1, b = {x = 1, y = 2}, [3] = 3, [1] = 1, [2] = 2, [-1] = 0, [1.5] = 1}",
        )
        .unwrap();
        let other = "local t = {b = {}}; t[1.5] = 1; t[2] = 2; t.b.y = 2; t.b.x = 1; t[-1] = 0; t[1] = 1; t[3] = 3; t.z = 1; t.z = nil; t.a = 1; return t";
        let other = written(&lua, &names, other).unwrap();
        assert_eq!(one, other);
        assert_eq!(json(&one.0, &names), r#"{"1":1,"2":2,"3":3,"-1":0,"1.5":1,"a":1,"b":{"x":1,"y":2}}"#);
    }

    #[test]
    fn numbers_and_names_of_the_same_text_differ_in_json() {
        let (lua, names) = (Lua::new(), Names::new());
        for (source, text) in [
            ("{'a', ['1'] = 'b'}", r#"{"1":"a","\"1\"":"b"}"#),
            ("{[-1.5] = 1, ['-1.5'] = 2, ['1'] = 3}", r#"{"-1.5":1,"\"-1.5\"":2,"1":3}"#),
            ("{['1'] = 3}", r#"{"1":3}"#),
        ] {
            let (bytes, _) = written(&lua, &names, &format!("return {source}")).unwrap();
            assert_eq!(json(&bytes, &names), text, "{source}");
        }
    }

    #[test]
    fn arrays_without_items_stay_arrays() {
        let lua = testing::vm();
        let names = Names::new();
        for (source, text) in [
            ("{a = cg.json.decode('[]'), b = {}, c = {cg.json.decode('[]')}}", r#"{"a":[],"b":{},"c":[[]]}"#),
            ("cg.json.decode('{\"a\": [], \"b\": {\"c\": []}}')", r#"{"a":[],"b":{"c":[]}}"#),
            ("cg.json.decode('[]')", "[]"),
        ] {
            let (bytes, _) = written(&lua, &names, &format!("return {source}")).unwrap();
            assert_eq!(json(&bytes, &names), text, "{source}");
            let (_, table) = decode(&lua, &bytes, &names, 1, 0).unwrap();
            let mut again = Vec::new();
            json::encode(&mlua::Value::Table(table.clone()), &mut again).unwrap();
            assert_eq!(String::from_utf8(again).unwrap(), text, "{source}");
            lua.globals().set_readonly(false);
            lua.globals().raw_set("kept", table).unwrap();
            assert_eq!(written(&lua, &names, "return kept").unwrap().0, bytes, "{source}");
        }
        let changed = "local t = cg.json.decode('[]'); t.x = 1; return {t, cg.json.decode('[1]')}";
        let (bytes, _) = written(&lua, &names, changed).unwrap();
        assert_eq!(json(&bytes, &names), r#"[{"x":1},[1]]"#);
    }

    #[test]
    fn numbers_that_json_has_no_form_for_are_null() {
        let (lua, names) = (Lua::new(), Names::new());
        let source =
            "return {a = 0 / 0, b = 1 / 0, c = {-1 / 0, {d = 0 / 0}}, [1 / 0] = 1, [-1 / 0] = 0 / 0}";
        let (bytes, _) = written(&lua, &names, source).unwrap();
        let text = json(&bytes, &names);
        assert_eq!(text, r#"{"-inf":null,"inf":1,"a":null,"b":null,"c":[null,{"d":null}]}"#);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }

    #[test]
    fn what_cannot_be_kept_is_named() {
        let (lua, names) = (Lua::new(), Names::new());
        for (source, text) in [
            ("return {cb = print}", "field 'cb' is a function"),
            ("return {a = {b = {1, 2, print}}}", "field 'a.b[3]' is a function"),
            ("return {['x y'] = print}", "field '[\"x y\"]' is a function"),
            ("return {a = coroutine.create(print)}", "field 'a' is a thread"),
            ("return {a = vector.create(1, 2, 3)}", "field 'a' is a vector"),
            ("return {a = buffer.create(1)}", "field 'a' is a buffer: keep buffer.tostring(it)"),
            ("return {[{}] = 1}", "the object has a key that is a table: keys are strings and numbers"),
            (
                "return {a = {[true] = 1}}",
                "field 'a' has a key that is a boolean: keys are strings and numbers",
            ),
            (
                "return setmetatable({}, {})",
                "the object has a metatable, which is not kept: write f(object) instead of object:f()",
            ),
            (
                "local t = {}; t.t = t; return t",
                "field 't' is the same as the object: an object holds each table and each collection once",
            ),
        ] {
            assert_eq!(written(&lua, &names, source).unwrap_err(), text, "{source}");
        }
        let shared = "local t = {}; return {1, {t}, t}";
        assert_eq!(
            written(&lua, &names, shared).unwrap_err(),
            "field '[3]' is the same as field '[2][1]': an object holds each table and each collection once"
        );
    }
}
