//! Why a table cannot be kept as a state, in words. This is slow, and runs after [`crate::raw::encode`] has
//! refused the table.

use std::collections::HashMap;
use std::ffi::c_void;

use mlua::{Table, Value};

use super::DEPTH_MAX;
use super::path::{Path, kind_of};
use crate::natives::FieldHandle;
use crate::{json, raw_call};

/// The value that cannot be kept, and its place.
pub(super) fn explain(table: &Table, call_number: u64) -> String {
    let mut search = Search { call_number, path: Path::default(), entries: 0, seen: HashMap::new() };
    match search.table(table, 0) {
        Err(text) => text,
        Ok(()) => "the object holds a number of 64 bits: keep it as a string".to_owned(),
    }
}

struct Search {
    call_number: u64,
    path: Path,
    entries: usize,
    /// The places of tables and collections.
    seen: HashMap<*const c_void, Path>,
}

impl Search {
    fn table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        if depth >= DEPTH_MAX {
            let which = depth + 1;
            return self.wrong(&format!("is table {which} within tables: {DEPTH_MAX} can be kept"));
        }
        self.once(table.to_pointer())?;
        if table.has_metatable() && !json::is_array(table) {
            return self.wrong("has a metatable, which is not kept: write f(object) instead of object:f()");
        }
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|error| error.to_string())?;
            if !matches!(key, Value::String(_) | Value::Integer(_) | Value::Number(_)) {
                let kind = kind_of(&key);
                return self.wrong(&format!("has a key that is a {kind}: keys are strings and numbers"));
            }
            self.entries += 1;
            if self.entries.is_multiple_of(json::OVER_EACH) && raw_call::is_over() {
                return Err(json::OVER.to_owned());
            }
            self.path.enter(&key);
            self.value(&value, depth)?;
            self.path.leave();
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        match value {
            Value::Boolean(_) | Value::Integer(_) | Value::Number(_) | Value::String(_) => Ok(()),
            Value::Table(table) => self.table(table, depth + 1),
            Value::LightUserData(light) if light.0.is_null() => {
                self.wrong("is cg.json.null: a state has none")
            }
            Value::LightUserData(light) => match FieldHandle::from_light(*light, self.call_number) {
                None => self.wrong("is a collection of another call"),
                Some(FieldHandle { object: 0, .. }) => self.once(light.0.cast_const()),
                Some(_) => self.wrong("is a collection of another object: copy its members"),
            },
            Value::Buffer(_) => self.wrong("is a buffer: keep buffer.tostring(it)"),
            other => self.wrong(&format!("is a {}", kind_of(other))),
        }
    }

    fn once(&mut self, address: *const c_void) -> Result<(), String> {
        match self.seen.insert(address, self.path.clone()) {
            None => Ok(()),
            Some(first) => {
                let first = first.describe("the object");
                self.wrong(&format!(
                    "is the same as {first}: an object holds each table and each collection once"
                ))
            }
        }
    }

    fn wrong(&self, what: &str) -> Result<(), String> {
        Err(format!("{} {what}", self.path.describe("the object")))
    }
}
