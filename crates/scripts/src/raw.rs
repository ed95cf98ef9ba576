//! Conversion of tables to bytes and back through the VM's C interface: a few calls for each value, and one
//! protected call for each state.
//!
//! The protected calls are two functions of the VM ([`CodecFunctions`]), which get the address of their job
//! and run it. `raw/run.rs` has a third one, which is a whole call of a method.
//!
//! # Invariants
//! * Functions that call the VM run within a protected call, which catches errors of the VM. They own nothing
//!   that must be dropped, since an error of the VM ends them at any point.
//! * Writing changes nothing in the VM and allocates nothing in it, so that strings do not move meanwhile.

#![expect(unsafe_code, reason = "the VM's own interface")]

pub(crate) mod keys;
pub(crate) mod run;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::ffi::{c_int, c_void};
use std::ptr;

use mlua::{Function, LightUserData, Lua, Table, ffi};
use rapidhash::RapidHashSet;

use crate::json;
use crate::names::Names;
use crate::natives::FieldHandle;
use crate::raw::keys::KeyNumbers;
use crate::raw_call;
use crate::state::DEPTH_MAX;
use crate::state::format::{self, FormatError, StateHead, StateReader, StateToken, TableKey, WHOLE_MAX};

/// The slots of the stack for all tables of a state, and some for called functions.
const STACK: c_int = 4 * (DEPTH_MAX as c_int + 1);
/// The most tables in a set that is kept for the next call.
const TABLES_KEPT: usize = 1024;
/// The number of entries between two checks of the time limit, as a mask.
const LOOK_MASK: c_int = 1023;
/// The usual size of a state, in bytes.
const BYTES_USUAL: usize = 64;

/// The functions of a VM that run jobs.
#[derive(Debug)]
struct CodecFunctions {
    decode: Function,
    encode: Function,
}

/// Calls `run` with the functions of a VM, which are made for its first state.
fn with_functions<R>(lua: &Lua, run: impl FnOnce(&CodecFunctions) -> mlua::Result<R>) -> mlua::Result<R> {
    if let Some(functions) = lua.app_data_ref::<CodecFunctions>() {
        return run(&functions);
    }
    // SAFETY: both look at their arguments before they take them for jobs, and scripts do not get to see
    // them.
    let functions = unsafe {
        CodecFunctions {
            decode: lua.create_c_function(run_decode)?,
            encode: lua.create_c_function(run_encode)?,
        }
    };
    let result = run(&functions);
    lua.set_app_data(functions);
    result
}

/// Makes the table of a state, whose head was read.
///
/// # Errors
/// The bytes are not a state, or memory is short.
pub(crate) fn decode(
    lua: &Lua,
    reader: StateReader<'_>,
    head: StateHead<'_>,
    names: &Names,
    call_number: u64,
    object: u8,
) -> mlua::Result<Table> {
    let mut decoder = StateDecoder { state: ptr::null_mut(), reader, head, names, call_number, object };
    let job = LightUserData((&raw mut decoder).cast());
    match with_functions(lua, |functions| functions.decode.call(job))? {
        mlua::Value::Table(table) => Ok(table),
        _ => Err(FormatError.into()),
    }
}

/// Decodes with a [`StateDecoder`]; returns the table, or nothing.
unsafe extern "C-unwind" fn run_decode(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: `decode` has given a pointer to its own decoder, and waits.
    unsafe {
        let job = ffi::lua_tolightuserdata(state, 1).cast::<StateDecoder<'_>>();
        let Some(decoder) = job.as_mut() else { return 0 };
        decoder.state = state;
        let is_read = ffi::lua_checkstack(state, STACK) != 0 && decoder.state().is_ok();
        c_int::from(is_read)
    }
}

struct StateDecoder<'a> {
    state: *mut ffi::lua_State,
    reader: StateReader<'a>,
    head: StateHead<'a>,
    names: &'a Names,
    call_number: u64,
    object: u8,
}

impl StateDecoder<'_> {
    /// Pushes the table of the state.
    unsafe fn state(&mut self) -> Result<(), FormatError> {
        // SAFETY: as this function's: it runs within a protected call, with room on the stack for all tables.
        unsafe { self.value(0)? };
        if self.reader.is_over() { Ok(()) } else { Err(FormatError) }
    }

    /// Pushes the next value.
    unsafe fn value(&mut self, depth: usize) -> Result<(), FormatError> {
        let state = self.state;
        match self.reader.value(depth)? {
            // SAFETY: there is room on the stack; the bytes are copied.
            StateToken::Boolean(value) => unsafe { ffi::lua_pushboolean(state, c_int::from(value)) },
            // SAFETY: as above.
            StateToken::Number(number) => unsafe { ffi::lua_pushnumber(state, number) },
            // SAFETY: as above.
            StateToken::String(string) => unsafe { push_string(state, string) },
            StateToken::Field(field) => {
                let kind = self.head.kind(field).ok_or(FormatError)?;
                let handle = FieldHandle { object: self.object, field, kind };
                let LightUserData(pointer) = handle.to_light(self.call_number);
                // SAFETY: as above.
                unsafe { ffi::lua_pushlightuserdatatagged(state, pointer, 0) }
            }
            StateToken::Table { items, entries, array } => {
                let few = |count: usize| c_int::try_from(count).map_err(|_| FormatError);
                // SAFETY: as above. A table's counts are not more than the bytes of the state.
                unsafe { ffi::lua_createtable(state, few(items)?, few(entries)?) };
                for item in 1..=few(items)? {
                    // SAFETY: the table is below the value, and is its own.
                    unsafe {
                        self.value(depth + 1)?;
                        ffi::lua_rawseti_(state, -2, item);
                    }
                }
                if array {
                    // SAFETY: as above; the metatable, or nil if the VM has none, is taken off.
                    unsafe {
                        ffi::lua_getfield(state, ffi::LUA_REGISTRYINDEX, json::ARRAY.as_ptr());
                        ffi::lua_setmetatable(state, -2);
                    }
                }
                for _ in 0..entries {
                    // SAFETY: the table is below key and value; the key is a string or a number that is one.
                    unsafe {
                        self.key()?;
                        self.value(depth + 1)?;
                        ffi::lua_rawset(state, -3);
                    }
                }
            }
        }
        Ok(())
    }

    /// Pushes the next key.
    unsafe fn key(&mut self) -> Result<(), FormatError> {
        let string = match self.reader.key()? {
            TableKey::Number(number) if number.is_nan() => return Err(FormatError),
            TableKey::Number(number) => {
                // SAFETY: there is room on the stack.
                unsafe { ffi::lua_pushnumber(self.state, number) };
                return Ok(());
            }
            TableKey::Name(name) => self.names.get(name).ok_or(FormatError)?,
            TableKey::String(string) => string,
        };
        // SAFETY: as above.
        unsafe { push_string(self.state, string) };
        Ok(())
    }
}

unsafe fn push_string(state: *mut ffi::lua_State, string: &[u8]) {
    // SAFETY: the caller has room on the stack; the VM copies the bytes.
    unsafe { ffi::lua_pushlstring_(state, string.as_ptr().cast(), string.len()) }
}

/// The outcome of writing a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncodeResult {
    /// The table is written.
    Whole,
    /// The table has a value that states cannot hold.
    Refused,
    /// The state became too long.
    TooLong,
}

/// Appends a table in the form of states, and ends when `out` is longer than `most`, which it may exceed by
/// one value. `fields`: gets the fields that the table refers to, ascending.
///
/// # Errors
/// An error of the VM, for example when its stack is full.
pub(crate) fn encode(
    lua: &Lua,
    table: &Table,
    names: &Names,
    call_number: u64,
    fields: &mut Vec<(u8, u8)>,
    most: usize,
    out: &mut Vec<u8>,
) -> mlua::Result<EncodeResult> {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    out.reserve(BYTES_USUAL);
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        let (state, whole) = (ptr::null_mut(), ptr::null());
        let keys = None;
        let mut writer = StateWriter { state, whole, names, keys, call_number, fields, scratch, most, out };
        let job = LightUserData((&raw mut writer).cast());
        let is_written: bool = with_functions(lua, |functions| functions.encode.call((table, job)))?;
        Ok(match is_written {
            true => EncodeResult::Whole,
            false if writer.is_too_long() => EncodeResult::TooLong,
            false => EncodeResult::Refused,
        })
    })
}

/// Encodes a table with a [`StateWriter`]; returns whether it is written.
unsafe extern "C-unwind" fn run_encode(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: `encode` has given a table, and a pointer to its own writer, and waits.
    unsafe {
        let job = ffi::lua_tolightuserdata(state, 2).cast::<StateWriter<'_>>();
        let Some(writer) = job.as_mut() else { return 0 };
        writer.state = state;
        let is_written = ffi::lua_checkstack(state, STACK) != 0 && writer.table(1, 0);
        ffi::lua_settop(state, 0);
        ffi::lua_pushboolean(state, c_int::from(is_written));
    }
    1
}

/// Memory that calls reuse.
#[derive(Debug, Default)]
struct Scratch {
    entries: Vec<TableEntry>,
    /// Values of a table before they are put in order.
    values: Vec<u8>,
    tables: RapidHashSet<*const c_void>,
}

impl Scratch {
    fn clear(&mut self) {
        self.entries.clear();
        self.values.clear();
        if self.tables.capacity() > TABLES_KEPT {
            self.tables = RapidHashSet::default();
        } else {
            self.tables.clear();
        }
    }
}

/// An entry of a table: its key, and the position of its value among the table's bytes.
#[derive(Debug, Clone, Copy)]
struct TableEntry {
    order: KeyOrder,
    start: u32,
    end: u32,
}

/// A key, with the order of keys.
#[derive(Debug, Clone, Copy)]
enum KeyOrder {
    Item(u64),
    Number(f64),
    Name(u8),
    /// A string of the VM, valid until the table has been written.
    String(&'static [u8]),
}

impl KeyOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        let class = |order: &Self| match order {
            Self::Item(_) => 0,
            Self::Number(_) => 1,
            Self::Name(_) => 2,
            Self::String(_) => 3,
        };
        match (self, other) {
            (Self::Item(one), Self::Item(other)) => one.cmp(other),
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other),
            (Self::Name(one), Self::Name(other)) => one.cmp(other),
            (Self::String(one), Self::String(other)) => one.cmp(other),
            _ => class(self).cmp(&class(other)),
        }
    }
}

struct StateWriter<'a> {
    state: *mut ffi::lua_State,
    /// The table of the state itself.
    whole: *const c_void,
    names: &'a Names,
    keys: Option<&'a KeyNumbers>,
    call_number: u64,
    fields: &'a mut Vec<(u8, u8)>,
    scratch: &'a mut Scratch,
    most: usize,
    out: &'a mut Vec<u8>,
}

impl StateWriter<'_> {
    fn is_too_long(&self) -> bool {
        self.out.len() > self.most
    }

    /// Writes the table at this position of the stack, above which there is room for inner tables.
    unsafe fn table(&mut self, table: c_int, depth: usize) -> bool {
        let state = self.state;
        // SAFETY: there is a table at this place; nothing is pushed unless there is a metatable, which is
        // taken off.
        let (address, has_metatable) =
            unsafe { (ffi::lua_topointer(state, table), ffi::lua_getmetatable(state, table) != 0) };
        if has_metatable {
            // SAFETY: the metatable is at the top.
            let is_array = unsafe { is_array_metatable(state) };
            // SAFETY: as above.
            unsafe { ffi::lua_pop(state, 1) };
            if !is_array {
                return false;
            }
        }
        // Most states are one table, and need no set.
        if depth == 0 {
            self.whole = address;
        } else if depth >= DEPTH_MAX || address == self.whole || !self.scratch.tables.insert(address) {
            return false;
        }
        let from = self.out.len();
        let first = self.scratch.entries.len();
        // Items that arrive in their order stay where they are written.
        let (mut items, mut items_end) = (0, from);
        let mut iter = 0;
        loop {
            // SAFETY: the VM pushes a key and its value, for which there is room, or nothing at the end.
            iter = unsafe { ffi::lua_rawiter(state, table, iter) };
            if iter < 0 {
                break;
            }
            if iter & LOOK_MASK == 0 && raw_call::is_over() {
                return false;
            }
            // SAFETY: the key is at -2.
            let Some(order) = (unsafe { self.key(depth) }) else { return false };
            let start = self.out.len();
            // SAFETY: the value is at the top.
            if !unsafe { self.value(depth) } || self.is_too_long() {
                return false;
            }
            // SAFETY: key and value are there.
            unsafe { ffi::lua_pop(state, 2) };
            match order {
                KeyOrder::Item(number) if number == items + 1 && self.scratch.entries.len() == first => {
                    items += 1;
                    items_end = self.out.len();
                }
                order => {
                    let [start, end] = [start, self.out.len()].map(|at| (at - from) as u32);
                    self.scratch.entries.push(TableEntry { order, start, end });
                }
            }
        }
        self.put_in_order(from, items_end, items, first);
        if has_metatable && self.out.len() == from + 1 {
            self.out.truncate(from);
            format::push_array(self.out);
        }
        true
    }

    /// Orders a table whose values are written: `items` of them in order up to `items_end`, then those of the
    /// entries from `first` on.
    fn put_in_order(&mut self, from: usize, items_end: usize, mut items: u64, first: usize) {
        let Scratch { entries: all, values, .. } = &mut *self.scratch;
        let entries = &mut all[first..];
        if !entries.is_sorted_by(|one, other| one.order.cmp(&other.order).is_lt()) {
            entries.sort_unstable_by(|one, other| one.order.cmp(&other.order));
        }
        values.clear();
        values.extend_from_slice(&self.out[from..]);
        self.out.truncate(from);
        let more = entries.iter().zip(items + 1..);
        let more = more
            .take_while(|(entry, item)| matches!(entry.order, KeyOrder::Item(own) if own == *item))
            .count();
        items += more as u64;
        format::push_table(self.out, items as usize, entries.len() - more);
        self.out.extend_from_slice(&values[..items_end - from]);
        for (place, entry) in entries.iter().enumerate() {
            if place >= more {
                match entry.order {
                    KeyOrder::Item(number) => format::push_number_key(self.out, number as f64),
                    KeyOrder::Number(number) => format::push_number_key(self.out, number),
                    KeyOrder::Name(name) => format::push_name(self.out, name),
                    KeyOrder::String(string) => format::push_string(self.out, string),
                }
            }
            self.out.extend_from_slice(&values[entry.start as usize..entry.end as usize]);
        }
        all.truncate(first);
    }

    /// The key below the top; None: states cannot hold it.
    unsafe fn key(&mut self, depth: usize) -> Option<KeyOrder> {
        let state = self.state;
        // SAFETY: the key is there.
        match unsafe { ffi::lua_type(state, -2) } {
            ffi::LUA_TSTRING => {
                // SAFETY: as above.
                let known = self.keys.and_then(|keys| keys.number(unsafe { ffi::lua_topointer(state, -2) }));
                if let Some(name) = known.filter(|_| depth == 0) {
                    return Some(KeyOrder::Name(name));
                }
                // SAFETY: as above.
                let string = unsafe { string(state, -2) };
                // Keys of inner tables are often values of clients.
                let name = if depth == 0 { self.names.number(string) } else { None };
                Some(name.map_or(KeyOrder::String(string), KeyOrder::Name))
            }
            ffi::LUA_TNUMBER => {
                // SAFETY: as above.
                let number = unsafe { ffi::lua_tonumber(state, -2) };
                let is_item = (1.0..=WHOLE_MAX).contains(&number) && number.fract() == 0.0;
                // The key -0 is the key 0.
                Some(if is_item { KeyOrder::Item(number as u64) } else { KeyOrder::Number(number + 0.0) })
            }
            _ => None,
        }
    }

    /// Writes the value at the top; false: states cannot hold it.
    unsafe fn value(&mut self, depth: usize) -> bool {
        let state = self.state;
        // SAFETY: the value is there, of the type that the VM says.
        unsafe {
            match ffi::lua_type(state, -1) {
                ffi::LUA_TBOOLEAN => format::push_boolean(self.out, ffi::lua_toboolean(state, -1) != 0),
                ffi::LUA_TNUMBER => format::push_number(self.out, ffi::lua_tonumber(state, -1)),
                ffi::LUA_TSTRING => format::push_string(self.out, string(state, -1)),
                ffi::LUA_TTABLE => return self.table(ffi::lua_gettop(state), depth + 1),
                ffi::LUA_TLIGHTUSERDATA => {
                    return self.field(LightUserData(ffi::lua_tolightuserdata(state, -1)));
                }
                _ => return false,
            }
        }
        true
    }

    fn field(&mut self, light: LightUserData) -> bool {
        match FieldHandle::from_light(light, self.call_number) {
            Some(FieldHandle { object: 0, field, kind })
                if self.fields.iter().all(|(own, _)| *own != field) =>
            {
                self.fields.push((field, kind));
                format::push_field(self.out, field);
                true
            }
            _ => false,
        }
    }
}

/// Whether the table at the top is the metatable of JSON arrays.
unsafe fn is_array_metatable(state: *mut ffi::lua_State) -> bool {
    // SAFETY: the caller has room on the stack; what is pushed is taken off.
    unsafe {
        ffi::lua_rawgeti_(state, -1, 1);
        let is_marked = ffi::lua_type(state, -1) == ffi::LUA_TLIGHTUSERDATA
            && ffi::lua_tolightuserdata(state, -1) == json::array_mark().0;
        ffi::lua_pop(state, 1);
        is_marked
    }
}

/// The string at this position, which the VM keeps while it is there or in a table.
unsafe fn string(state: *mut ffi::lua_State, place: c_int) -> &'static [u8] {
    let mut len = 0;
    // SAFETY: a string is there, so nothing is converted; the VM says how long it is.
    unsafe {
        let start = ffi::lua_tolstring(state, place, &raw mut len);
        std::slice::from_raw_parts(start.cast(), len)
    }
}
