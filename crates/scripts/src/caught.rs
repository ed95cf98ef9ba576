//! Errors of memory that a script catches: the call ends all the same, as after the limit of time.
//!
//! `pcall`, `xpcall`, `coroutine.resume` and `coroutine.wrap` look at each error that they have caught. Without this a call
//! could try again and again to take more than it may.
//!
//! # Invariants
//! * A function runs the original in its own frame.

#![expect(unsafe_code, reason = "functions that Luau calls")]

use std::ffi::c_int;
use std::{ptr, slice};

use mlua::{Function, Lua, Table, Value, ffi};

use crate::bounds::{original, replace};
use crate::call::is_memory;
use crate::raw_call;

/// Luau's text of an error of memory.
const TEXT: &[u8] = b"not enough memory";

/// Puts the functions in the place of the others.
pub(crate) fn install(lua: &Lua) -> mlua::Result<()> {
    // Errors of functions in Rust are userdata.
    let judge = lua.create_function(|_, caught: Value| {
        if matches!(&caught, Value::Error(error) if is_memory(error)) {
            raw_call::stop_short();
        }
        Ok(())
    })?;
    let globals = lua.globals();
    let coroutine: Table = globals.raw_get("coroutine")?;
    let judge = Value::Function(judge);
    replace(lua, &globals, c"pcall", protected, judge.clone())?;
    replace(lua, &globals, c"xpcall", handled, judge.clone())?;
    replace(lua, &coroutine, c"resume", protected, judge)?;
    let resume: Function = coroutine.raw_get("resume")?;
    let create: Function = coroutine.raw_get("create")?;
    // SAFETY: the stack of this protected call has the two values that become upvalues; the name is static.
    let wrap: Function = unsafe {
        lua.exec_raw((create, resume), |state| ffi::lua_pushcclosured(state, wrap, c"wrap".as_ptr(), 2))
    }?;
    coroutine.raw_set("wrap", wrap)
}

/// `pcall`, `coroutine.resume`
unsafe extern "C-unwind" fn protected(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function; its frame holds nothing to drop.
    unsafe {
        let count = original(state);
        judge_results(state, count)
    }
}

/// `xpcall`: the handler sees the error first.
unsafe extern "C-unwind" fn handled(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above; the argument is there.
    unsafe {
        if ffi::lua_type(state, 2) == ffi::LUA_TFUNCTION {
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
            ffi::lua_pushvalue(state, 2);
            ffi::lua_pushcclosured(state, handler, c"handler".as_ptr(), 2);
            ffi::lua_replace(state, 2);
        }
        protected(state)
    }
}

/// The handler of an `xpcall`; its upvalues are `judge` and the script's handler.
unsafe extern "C-unwind" fn handler(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above.
    unsafe {
        judge(state, ffi::lua_upvalueindex(1));
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, ffi::LUA_MULTRET);
        ffi::lua_gettop(state)
    }
}

/// `coroutine.wrap`: its upvalues are `coroutine.create` and `coroutine.resume`.
unsafe extern "C-unwind" fn wrap(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above; the original returns the coroutine.
    unsafe {
        original(state);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
        ffi::lua_insert(state, -2);
        ffi::lua_pushcclosured(state, wrapped, ptr::null(), 2);
    }
    1
}

/// What `coroutine.wrap` returns; its upvalues are `coroutine.resume` and the coroutine.
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

/// Looks at the results of a function that catches errors, of which the first is false if there was one.
///
/// # Safety
/// `state` is that of a running function of this module whose second upvalue is `judge`, with the results at the top of its stack.
unsafe fn judge_results(state: *mut ffi::lua_State, count: c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        if count == 2 && ffi::lua_toboolean(state, -2) == 0 {
            judge(state, ffi::lua_upvalueindex(2));
        }
    }
    count
}

/// Ends the call if the value at the top of the stack is an error of memory.
///
/// # Safety
/// `state` is that of a running function; `judge` is the place of [`install`]'s function.
unsafe fn judge(state: *mut ffi::lua_State, judge: c_int) {
    // SAFETY: as above. The bytes are those of the string at the top, which stays there.
    unsafe {
        match ffi::lua_type(state, -1) {
            ffi::LUA_TSTRING => {
                let mut len = 0;
                let text = ffi::lua_tolstring(state, -1, &raw mut len);
                if slice::from_raw_parts(text.cast::<u8>(), len) == TEXT {
                    raw_call::stop_short();
                }
            }
            ffi::LUA_TUSERDATA => {
                ffi::lua_rawcheckstack(state, 2);
                ffi::lua_pushvalue(state, judge);
                ffi::lua_pushvalue(state, -2);
                ffi::lua_call(state, 1, 0);
            }
            _ => {}
        }
    }
}
