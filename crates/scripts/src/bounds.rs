//! Bounds for functions of Luau's libraries that could run for long without a safepoint.
//!
//! | function | bound |
//! |---|---|
//! | `string.find gmatch gsub match split` | bytes of the string times bytes of the pattern: [`SEARCH_MAX`] |
//! | `table.move` | [`MOVE_MAX`] items |
//! | `table.clone`, `buffer.create` | none: they collect garbage, which Luau leaves to others |
//! | `table.sort` | none: above [`SORT_MAX`] items, a Luau function with safepoints compares |
//!
//! Other functions end within a few milliseconds: the memory limit bounds their input, and `string.find` and
//! similar functions have a safepoint at each step of a pattern.
//!
//! # Invariants
//! * A bounded function runs the original in its own frame, so that errors have the line of the script.

#![expect(unsafe_code, reason = "functions that Luau calls")]

use std::ffi::{CStr, c_int};
use std::ptr;

use mlua::{Function, Lua, Table, Value, ffi};

/// The largest product of the length of a string and the length of a pattern, in bytes.
pub(crate) const SEARCH_MAX: usize = 4 << 20;
/// The most items that `table.move` moves.
pub(crate) const MOVE_MAX: i64 = 1 << 17;
/// The most items that are compared without a safepoint.
const SORT_MAX: usize = 1000;

const SEARCHES: [&CStr; 5] = [c"find", c"gmatch", c"gsub", c"match", c"split"];

/// Replaces the functions by bounded ones.
///
/// # Errors
/// Memory is short.
pub(crate) fn install(lua: &Lua, memory_bytes: usize) -> mlua::Result<()> {
    let string: Table = lua.globals().raw_get("string")?;
    for name in SEARCHES {
        replace(lua, &string, name, search, Value::Nil)?;
    }
    let table: Table = lua.globals().raw_get("table")?;
    replace(lua, &table, c"move", move_items, Value::Nil)?;
    let less = lua.load("return function(a, b) return a < b end").set_name("=table.sort").eval()?;
    replace(lua, &table, c"sort", sort, Value::Function(less))?;
    let buffer: Table = lua.globals().raw_get("buffer")?;
    // The collector counts in KiB.
    let garbage = Value::Number((memory_bytes / 4 / 1024) as f64);
    replace(lua, &table, c"clone", collect, garbage.clone())?;
    replace(lua, &buffer, c"create", collect, garbage)
}

/// Replaces a function of a library; the original is the first upvalue of the new one.
///
/// # Errors
/// Memory is short.
pub(crate) fn replace(
    lua: &Lua,
    library: &Table,
    name: &'static CStr,
    bounded: ffi::lua_CFunction,
    upvalue: Value,
) -> mlua::Result<()> {
    let key = name.to_string_lossy();
    let original: Function = library.raw_get(&*key)?;
    // SAFETY: the stack of this protected call has the two values that become upvalues; the name is static.
    let function: Function = unsafe {
        lua.exec_raw((original, upvalue), |state| {
            ffi::lua_pushcclosured(state, bounded, name.as_ptr(), 2);
        })
    }?;
    library.raw_set(key, function)
}

/// Runs the original in the frame of the function that bounds it.
///
/// # Safety
/// `state` is that of a function that [`replace`] has made, which returns what this returns.
pub(crate) unsafe fn original(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the first upvalue is the original, a C function without upvalues of its own.
    unsafe {
        match ffi::lua_tocfunction(state, ffi::lua_upvalueindex(1)) {
            Some(original) => original(state),
            None => ffi::luaL_error(state, c"not a function".as_ptr()),
        }
    }
}

/// The length of a string argument; 0: it is not a string.
///
/// # Safety
/// `state` is that of a running function.
unsafe fn len(state: *mut ffi::lua_State, argument: c_int) -> usize {
    let mut len = 0;
    // SAFETY: the argument is looked at only if it is a string, which is not converted.
    unsafe {
        if ffi::lua_type(state, argument) == ffi::LUA_TSTRING {
            ffi::lua_tolstring(state, argument, ptr::from_mut(&mut len));
        }
    }
    len
}

unsafe extern "C-unwind" fn search(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function; its frame holds nothing to drop.
    unsafe {
        if len(state, 1).saturating_mul(len(state, 2)) > SEARCH_MAX {
            ffi::luaL_error(
                state,
                c"string too long for this pattern: the product of their lengths is at most 4194304".as_ptr(),
            );
        }
        original(state)
    }
}

unsafe extern "C-unwind" fn move_items(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above.
    unsafe {
        let [from, to] = [2, 3].map(|argument| ffi::lua_tonumberx(state, argument, ptr::null_mut()));
        if to - from >= MOVE_MAX as f64 {
            ffi::luaL_error(state, c"too many elements to move: at most 131072".as_ptr());
        }
        original(state)
    }
}

unsafe extern "C-unwind" fn sort(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above; a C function has room for more values than are pushed here.
    unsafe {
        let is_long = ffi::lua_istable(state, 1) != 0 && ffi::lua_objlen(state, 1) > SORT_MAX;
        if ffi::lua_iscfunction(state, 2) != 0 {
            ffi::luaL_error(state, c"sort: compare by a function of yours, not by one of a library".as_ptr());
        }
        if is_long && ffi::lua_isnoneornil(state, 2) != 0 {
            ffi::lua_settop(state, 1);
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
        }
        original(state)
    }
}

/// Up to a quarter of the memory limit may be garbage. Above that, each call collects some, in proportion to
/// the memory that it allocates.
unsafe extern "C-unwind" fn collect(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above; the collector may run in any function.
    unsafe {
        let garbage = ffi::lua_tonumberx(state, ffi::lua_upvalueindex(2), ptr::null_mut());
        if f64::from(ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0)) > garbage {
            let made = ffi::lua_tonumberx(state, 1, ptr::null_mut());
            // The unit is KiB; a table is small, or has the size of its items.
            let made =
                if made > 0.0 { made / 1024.0 } else { f64::from(ffi::lua_objlen(state, 1) as u32) / 64.0 };
            ffi::lua_gc(state, ffi::LUA_GCSTEP, 64 + 2 * made.min(1e6) as c_int);
        }
        original(state)
    }
}
