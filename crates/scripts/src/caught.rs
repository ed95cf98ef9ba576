//! Errors that scripts catch. An error of the library becomes a string with its place, like Luau's own
//! errors. An error of memory, like the time limit, ends the call even if it is caught.
//!
//! In the VM, an error of the library is a userdata, so that a call can recognise it. Only `pcall`, `xpcall`
//! with its handler, `coroutine.resume` and `coroutine.close` pass errors to scripts, and they replace it by
//! its text. Values that scripts raise stay unchanged. `coroutine.wrap` checks an error of memory before it
//! adds a place to Luau's text.
//!
//! # Invariants
//! * A function runs the original in its own frame, so that errors have the line of the script.
//! * A panic of the library is never caught: it continues where a script would get it.

#![expect(unsafe_code, reason = "functions that Luau calls")]

use std::ffi::c_int;
use std::{ptr, slice};

use mlua::{Function, Lua, Table, Value, ffi};

use crate::bounds::{original, replace};
use crate::call::{is_memory, text_of};
use crate::library::Fail;
use crate::library::arguments::fault;
use crate::{current, raw_call, texts};

/// Luau's text of an error of memory.
pub(crate) const MEMORY: &str = "not enough memory";

/// Replaces the functions that catch errors.
///
/// # Errors
/// Memory is short.
pub(crate) fn install(lua: &Lua) -> mlua::Result<()> {
    let text = lua.create_function(text)?;
    let text = || Value::Function(Function::clone(&text));
    let globals = lua.globals();
    replace(lua, &globals, c"pcall", catch, text())?;
    replace(lua, &globals, c"xpcall", catch_with_handler, text())?;
    let coroutine: Table = globals.raw_get("coroutine")?;
    replace(lua, &coroutine, c"close", catch, text())?;
    let resume: Function = coroutine.raw_get("resume")?;
    let judge = lua.create_function(|_, error| Ok(judge(error)))?;
    replace(lua, &coroutine, c"resume", catch, Value::Function(judge))?;
    let judged: Function = coroutine.raw_get("resume")?;
    let create: Function = coroutine.raw_get("create")?;
    // SAFETY: the stack of this protected call has the two values that become upvalues; the name is static.
    let wrap: Function = unsafe {
        lua.exec_raw((create, judged), |state| {
            ffi::lua_pushcclosurek(state, wrap, c"wrap".as_ptr(), 2, None);
        })
    }?;
    coroutine.raw_set("wrap", wrap)?;
    coroutine.raw_set("resume", resume)?;
    replace(lua, &coroutine, c"resume", catch, text())
}

/// Returns the error unchanged; an error of memory ends the call.
fn judge(error: Value) -> Value {
    if matches!(&error, Value::Error(error) if is_memory(error)) {
        raw_call::stop_short();
    }
    error
}

/// Converts an error of the library to a string; other values stay unchanged, and an error of memory ends the
/// call. A panic does not arrive here, since its conversion for this function raises it again.
fn text(lua: &Lua, error: Value) -> mlua::Result<Value> {
    let Value::Error(error) = error else { return Ok(error) };
    let text = if is_memory(&error) {
        raw_call::stop_short();
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

/// Replaces the error at the top by the result of the second upvalue, [`text`] or [`judge`].
///
/// # Safety `state` is that of a running function that [`replace`] has made, or of [`handle`], with a value
/// at the top.
unsafe fn convert(state: *mut ffi::lua_State) {
    // SAFETY: the state is as above, with room for two values; its frame holds nothing to drop. The bytes are
    // those of the string at the top, which stays there.
    unsafe {
        match ffi::lua_type(state, -1) {
            ffi::LUA_TSTRING => {
                let mut len = 0;
                let text = ffi::lua_tolstring(state, -1, &raw mut len);
                if slice::from_raw_parts(text.cast::<u8>(), len) == MEMORY.as_bytes() {
                    raw_call::stop_short();
                }
            }
            ffi::LUA_TUSERDATA => {
                ffi::lua_rawcheckstack(state, 2);
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
                ffi::lua_insert(state, -2);
                ffi::lua_call(state, 1, 1);
            }
            _ => {}
        }
    }
}

unsafe extern "C-unwind" fn catch(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function; its frame holds nothing to drop. The original leaves its
    // results at the top.
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
        if ffi::lua_type(state, 2) == ffi::LUA_TFUNCTION {
            ffi::lua_pushvalue(state, 2);
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
            ffi::lua_pushcclosurek(state, handle, c"xpcall".as_ptr(), 2, None);
            ffi::lua_replace(state, 2);
        }
        catch(state)
    }
}

/// The handler of `xpcall`; its upvalues are the script's handler and [`text`].
unsafe extern "C-unwind" fn handle(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function, with the error as its argument; its frame holds nothing to
    // drop.
    unsafe {
        convert(state);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        // The original replaces any error of the handler by another one.
        if ffi::lua_pcall(state, ffi::lua_gettop(state) - 1, 1, 0) != ffi::LUA_OK {
            convert(state);
            ffi::lua_error(state);
        }
    }
    1
}

/// `coroutine.wrap`; its upvalues are `coroutine.create` and a `coroutine.resume` that judges errors.
unsafe extern "C-unwind" fn wrap(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above; the original returns the coroutine.
    unsafe {
        original(state);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
        ffi::lua_insert(state, -2);
        ffi::lua_pushcclosurek(state, wrapped, ptr::null(), 2, None);
    }
    1
}

/// The result of `coroutine.wrap`; its upvalues are the `coroutine.resume` and the coroutine.
unsafe extern "C-unwind" fn wrapped(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above.
    unsafe {
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
        ffi::lua_insert(state, 2);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, ffi::LUA_MULTRET);
        if ffi::lua_toboolean(state, 1) == 0 {
            if ffi::lua_type(state, -1) == ffi::LUA_TSTRING {
                ffi::luaL_where(state, 1);
                ffi::lua_insert(state, -2);
                ffi::lua_concat(state, 2);
            }
            ffi::lua_error(state);
        }
        ffi::lua_gettop(state) - 1
    }
}
