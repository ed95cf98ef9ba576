//! JSON of tables, for `cg.json` and replies.
//!
//! A table of items 1 to n is an array. A table of named entries is an object, in ascending order of the
//! names. The empty table is `{}`, unless it was parsed from `[]`: such a table has [`array_metatable`], and
//! is `[]`. Strings of any bytes are written as by `dump` of the shipped types. `null` is left out of
//! objects, and is `cg.json.null` as an item.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use cattlegrid_objects::{push_float, push_json_string};
use mlua::{LightUserData, Lua, Table, Value};
use serde::Deserializer;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};

use crate::raw_call;
use crate::state::path::{Path, kind_of};

/// The most levels of arrays and objects.
const DEPTH_MAX: usize = 32;
/// The longest text, in bytes.
pub(crate) const TEXT_MAX: usize = 1 << 20;
/// The number of values after which the time limit is checked.
pub(crate) const OVER_EACH: usize = 256;
/// An error when the time of the call is over. The call's reply is that of the time limit, and not this text.
pub(crate) const OVER: &str = "took too long";

pub(crate) fn push_boolean(value: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// Appends a number: a whole number up to 2^53 without exponent and fraction, others in the shortest form
/// that reads as the same number.
pub(crate) fn push_number(number: f64, out: &mut Vec<u8>) {
    push_float(out, number);
}

pub(crate) fn push_string(bytes: &[u8], out: &mut Vec<u8>) {
    push_json_string(bytes, out);
}

/// Appends a value as JSON.
///
/// # Errors
/// A value that has no form in JSON, and its place.
pub(crate) fn encode(value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
    let from = out.len();
    let mut writer = JsonWriter { path: Path::default(), from, values: 0, out };
    let written = writer.value(value, 0);
    if written.is_err() {
        out.truncate(from);
    }
    written
}

/// The name of the arrays' metatable in the VM's registry.
pub(crate) const ARRAY: &CStr = c"cg.json array";

/// The metatable of tables that are JSON arrays even when they are empty. It has no other effect, and cannot
/// be changed.
///
/// # Errors
/// Memory is short.
pub(crate) fn array_metatable(lua: &Lua) -> mlua::Result<Table> {
    let name = ARRAY.to_str().unwrap_or_default();
    if let Value::Table(table) = lua.named_registry_value(name)? {
        return Ok(table);
    }
    let table = lua.create_table()?;
    table.raw_set(1, array_mark())?;
    table.set_readonly(true);
    lua.set_named_registry_value(name, &table)?;
    Ok(table)
}

/// The mark that this metatable has as its item 1, and no other table has.
pub(crate) fn array_mark() -> LightUserData {
    static MARK: u8 = 0;
    LightUserData((&raw const MARK).cast_mut().cast())
}

/// Whether a table is an array even when it is empty.
pub(crate) fn is_array(table: &Table) -> bool {
    let mark = table.metatable().and_then(|metatable| metatable.raw_get::<Value>(1).ok());
    matches!(mark, Some(Value::LightUserData(light)) if light == array_mark())
}

struct JsonWriter<'a> {
    path: Path,
    from: usize,
    /// The number of values and entries so far.
    values: usize,
    out: &'a mut Vec<u8>,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        self.look()?;
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            value if value.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(value) => push_boolean(*value, self.out),
            Value::Integer(number) => push_number(*number as f64, self.out),
            Value::Number(number) if number.is_finite() => push_number(*number, self.out),
            Value::Number(number) => return self.wrong(&format!("is {number}, which JSON has no form for")),
            Value::String(string) => {
                // The string is not written at all if it cannot fit.
                let bytes = string.as_bytes();
                push_string(&bytes[..bytes.len().min(TEXT_MAX)], self.out);
            }
            Value::Table(table) => self.table(table, depth)?,
            other => {
                return self.wrong(&format!("is a {}, which JSON has no form for", kind_of(other)));
            }
        }
        if self.out.len() - self.from > TEXT_MAX {
            return self.wrong(&format!("makes the text longer than {TEXT_MAX} bytes"));
        }
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        if depth == DEPTH_MAX {
            let which = depth + 1;
            return self.wrong(&format!("is table {which} within tables: {DEPTH_MAX} can be written"));
        }
        let mut items = 0;
        let mut entries = Vec::new();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|error| error.to_string())?;
            self.look()?;
            match &key {
                Value::Integer(number) if *number > 0 => items += 1,
                Value::String(name) => {
                    let name = name.as_bytes().to_vec();
                    entries.push((name, key, value));
                }
                _ => return self.wrong("has a key that is neither a name nor the number of an item"),
            }
        }
        if items > 0 && !entries.is_empty() {
            return self.wrong("has both items and named entries, which JSON has no form for");
        }
        let is_array = items > 0 || (entries.is_empty() && is_array(table));
        self.out.push(if is_array { b'[' } else { b'{' });
        for item in 1..=items {
            if item > 1 {
                self.out.push(b',');
            }
            let value: Value = table.raw_get(item).map_err(|error| error.to_string())?;
            if value.is_nil() {
                return self.wrong(&format!("has items, but no item {item}"));
            }
            self.within(&Value::Integer(item), &value, depth)?;
        }
        entries.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        for (place, (name, key, value)) in entries.iter().enumerate() {
            if place > 0 {
                self.out.push(b',');
            }
            push_string(name, self.out);
            self.out.push(b':');
            self.within(key, value, depth)?;
        }
        self.out.push(if is_array { b']' } else { b'}' });
        Ok(())
    }

    fn within(&mut self, key: &Value, value: &Value, depth: usize) -> Result<(), String> {
        self.path.enter(key);
        self.value(value, depth + 1)?;
        self.path.leave();
        Ok(())
    }

    /// Checks the time limit now and then.
    fn look(&mut self) -> Result<(), String> {
        self.values += 1;
        let is_over = self.values.is_multiple_of(OVER_EACH) && raw_call::is_over();
        if is_over { Err(OVER.to_owned()) } else { Ok(()) }
    }

    fn wrong(&self, what: &str) -> Result<(), String> {
        Err(format!("{} {what}", self.path.describe("the value")))
    }
}

/// Parses a text in JSON.
///
/// # Errors
/// The inner error: the text is not JSON. The outer error is one of the VM, for example when memory is short.
pub(crate) fn decode(lua: &Lua, text: &[u8]) -> mlua::Result<Result<Value, String>> {
    if text.len() > TEXT_MAX {
        return Ok(Err(format!("the text has {} bytes: up to {TEXT_MAX} are read", text.len())));
    }
    let mut reader = JsonReader { lua, depth: 0, values: 0, failed: None };
    let mut source = serde_json::Deserializer::from_slice(text);
    let read = reader.deserialize(&mut source).and_then(|value| source.end().map(|()| value));
    match reader.failed {
        Some(error) => Err(error),
        None => Ok(read.map_err(|error| format!("no JSON: {error}"))),
    }
}

/// Makes values of the VM while a text is parsed.
struct JsonReader<'l> {
    lua: &'l Lua,
    /// The number of arrays and objects around the next value.
    depth: usize,
    /// The number of values so far.
    values: usize,
    /// The error that the VM raised.
    failed: Option<mlua::Error>,
}

impl JsonReader<'_> {
    /// Returns the value that the VM made, or keeps its error and ends the parsing.
    fn made<T, E: de::Error>(&mut self, made: mlua::Result<T>) -> Result<T, E> {
        made.map_err(|error| {
            self.failed = Some(error);
            E::custom("the VM has failed")
        })
    }

    /// Parses within an array or object.
    fn within<T, E: de::Error>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        if self.depth == DEPTH_MAX {
            return Err(E::custom(format!("more than {DEPTH_MAX} arrays and objects are within each other")));
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }
}

impl<'de> DeserializeSeed<'de> for &mut JsonReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        self.values += 1;
        if self.values.is_multiple_of(OVER_EACH) && raw_call::is_over() {
            return Err(de::Error::custom(OVER));
        }
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut JsonReader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E: de::Error>(self, string: &str) -> Result<Value, E> {
        let string = self.lua.create_string(string);
        self.made(string).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table();
        let table = self.made(table)?;
        self.within(|reader| {
            let mut place = 0;
            while let Some(item) = items.next_element_seed(&mut *reader)? {
                place += 1;
                reader.made(table.raw_set(place, item))?;
            }
            if place == 0 {
                let marked = array_metatable(reader.lua).and_then(|array| table.set_metatable(Some(array)));
                reader.made(marked)?;
            }
            Ok(())
        })?;
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table();
        let table = self.made(table)?;
        self.within(|reader| {
            while let Some(name) = entries.next_key::<Cow<'de, str>>()? {
                let value = entries.next_value_seed(&mut *reader)?;
                // For a name that occurs twice the last value counts.
                let value = if value.is_null() { Value::Nil } else { value };
                reader.made(table.raw_set(&*name, value))?;
            }
            Ok(())
        })?;
        Ok(Value::Table(table))
    }
}
