//! Errors that scripts catch: those of the library are strings with their place, as Luau's own are.
//!
//! The VM has an error of the library as a userdata, so that a call knows what it was. `pcall`, `xpcall` with its handler,
//! `coroutine.resume` and `coroutine.close` are all that give errors to scripts, and put its text there instead. What scripts raise stays what
//! it is.
//!
//! # Invariants
//! * A function runs the original in its own frame, so that errors name the line of the script.
//! * A panic of the library is never caught: it goes on where a script would get it.

#![expect(unsafe_code, reason = "functions that Luau calls")]

use std::ffi::c_int;

use mlua::{Function, Lua, Table, Value, ffi};

use crate::bounds::{original, replace};
use crate::call::{is_memory, text_of};
use crate::current;
use crate::library::Fail;
use crate::library::arguments::fault;
use crate::texts;

/// As Luau says it.
const MEMORY: &str = "not enough memory";

/// Puts the functions in the place of the others.
pub(crate) fn install(lua: &Lua) -> mlua::Result<()> {
    let text = lua.create_function(text)?;
    let upvalue = || Value::Function(Function::clone(&text));
    let globals = lua.globals();
    replace(lua, &globals, c"pcall", catch, upvalue())?;
    replace(lua, &globals, c"xpcall", catch_with_handler, upvalue())?;
    let coroutine: Table = globals.raw_get("coroutine")?;
    replace(lua, &coroutine, c"resume", catch, upvalue())?;
    replace(lua, &coroutine, c"close", catch, upvalue())
}

/// An error of the library as a string; other values stay. A panic does not get here: to convert it for this function raises
/// it again.
fn text(lua: &Lua, error: Value) -> mlua::Result<Value> {
    let Value::Error(error) = error else { return Ok(error) };
    let text = if is_memory(&error) {
        MEMORY.to_owned()
    } else if let Some(Fail(text)) = error.downcast_ref::<Fail>() {
        current::with(|current| current.written.caught = Some(text.clone()));
        text.clone()
    } else {
        let text = text_of(&error);
        if texts::place(&text).is_some() { text } else { text_of(&fault(lua, &text)) }
    };
    lua.create_string(text).map(Value::String)
}

/// Puts the text in the place of the userdata at the top. The converter is the second upvalue.
///
/// # Safety
/// `state` is that of a running function that [`replace`] has made, with a value at the top.
unsafe fn convert(state: *mut ffi::lua_State) {
    // SAFETY: the state is as above, with room for two values; its frame holds nothing to drop.
    unsafe {
        if ffi::lua_type(state, -1) == ffi::LUA_TUSERDATA {
            ffi::lua_rawcheckstack(state, 2);
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
            ffi::lua_insert(state, -2);
            ffi::lua_call(state, 1, 1);
        }
    }
}

unsafe extern "C-unwind" fn catch(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function; its frame holds nothing to drop. The original leaves its results at the top.
    unsafe {
        let results = original(state);
        let has_failed = results == 2
            && ffi::lua_type(state, -2) == ffi::LUA_TBOOLEAN
            && ffi::lua_toboolean(state, -2) == 0;
        if has_failed {
            convert(state);
        }
        results
    }
}

unsafe extern "C-unwind" fn catch_with_handler(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above; a C function has room for more values than are pushed here.
    unsafe {
        if ffi::lua_gettop(state) >= 2 {
            ffi::lua_pushvalue(state, 2);
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
            ffi::lua_pushcclosurek(state, handle, c"xpcall".as_ptr(), 2, None);
            ffi::lua_replace(state, 2);
        }
        catch(state)
    }
}

/// A handler of errors: its upvalues are the script's handler and the converter.
unsafe extern "C-unwind" fn handle(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function, with the error as its argument; its frame holds nothing to drop.
    unsafe {
        convert(state);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, 1);
    }
    1
}
