//! Texts of values and errors without memory addresses. In `tostring` and `string.format`, the text of a
//! table, function, thread, buffer or userdata without `__tostring` is the name of its type.
//!
//! Luau writes an address after the name. It would show clients the memory layout of the process, and would
//! differ between threads. Interpolated strings use `string.format`.
//!
//! # Invariants
//! * A function runs the original in its own frame, so that errors have the line of the script.

#![expect(unsafe_code, reason = "functions that Luau calls")]

use std::ffi::c_int;
use std::{ptr, slice};

use mlua::{Lua, Table, Value, ffi};

use crate::bounds::{original, replace};

/// Types whose texts end with an address in Luau.
const KINDS: [&str; 5] = ["table", "function", "thread", "buffer", "userdata"];

/// Replaces `tostring` and `string.format`.
///
/// # Errors
/// Memory is short.
pub(crate) fn install(lua: &Lua) -> mlua::Result<()> {
    let globals = lua.globals();
    replace(lua, &globals, c"tostring", text, Value::Nil)?;
    let string: Table = globals.raw_get("string")?;
    replace(lua, &string, c"format", format, Value::Nil)
}

/// The text of an error without an address: an error that is not a string becomes the name of its type.
pub(crate) fn without_address(text: &str) -> &str {
    let parts =
        text.split_once(": 0x").or_else(|| text.strip_prefix('<')?.strip_suffix('>')?.split_once(" 0x"));
    match parts {
        Some((kind, address)) if address.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            // For `cg.value`, it is the name of the Rust type.
            let kind = if matches!(kind, "FlaggedText" | "lightuserdata") { "userdata" } else { kind };
            KINDS.into_iter().find(|own| *own == kind).unwrap_or(text)
        }
        _ => text,
    }
}

/// The text of an error with the line of the script, which some functions of Luau's libraries leave out.
/// `stack`: the traceback from the error handler on: `[C]: in ?`, `[C]: in function 'rawset'`,
/// `quota.luau:14: in function 'add'`.
pub(crate) fn with_place(text: &str, stack: &str) -> String {
    let mut frames = stack.lines().map(str::trim_start);
    let library = frames.nth(1).and_then(|frame| frame.strip_prefix("[C]: in function '"));
    // The script chooses the place of `error` itself.
    let at = library.filter(|name| *name != "error'").and_then(|_| place(frames.next()?));
    match at {
        Some(at) if place(text).is_none() => format!("{at}: {text}"),
        _ => text.to_owned(),
    }
}

/// The `FILE:LINE` before the first colon of a text.
pub(crate) fn place(text: &str) -> Option<&str> {
    let (place, _) = text.split_once(": ").unwrap_or((text, ""));
    let (file, line) = place.rsplit_once(':')?;
    let is_place = !file.is_empty() && !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    is_place.then_some(place)
}

/// A text without leading places.
pub(crate) fn without_places(mut text: &str) -> &str {
    while let Some(at) = place(text) {
        text = text[at.len()..].strip_prefix(": ").unwrap_or_default();
    }
    text
}

/// Replaces an argument that Luau would write with an address by the name of its type.
///
/// # Safety
/// `state` is that of a running function, which has this argument, and a free slot.
unsafe fn name(state: *mut ffi::lua_State, argument: c_int) {
    // SAFETY: the state is as above; names of types are static.
    unsafe {
        let kind = ffi::lua_type(state, argument);
        let has_address = matches!(
            kind,
            ffi::LUA_TTABLE
                | ffi::LUA_TFUNCTION
                | ffi::LUA_TTHREAD
                | ffi::LUA_TBUFFER
                | ffi::LUA_TUSERDATA
                | ffi::LUA_TLIGHTUSERDATA
        );
        if !has_address {
            return;
        }
        if ffi::luaL_getmetafield_(state, argument, c"__tostring".as_ptr()) == 0 {
            ffi::lua_pushstring_(state, ffi::lua_typename(state, kind));
            ffi::lua_replace(state, argument);
        } else {
            ffi::lua_pop(state, 1);
        }
    }
}

unsafe extern "C-unwind" fn text(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function; its frame holds nothing to drop.
    unsafe {
        name(state, 1);
        original(state)
    }
}

unsafe extern "C-unwind" fn format(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above. The format is the first argument, which stays on the stack.
    unsafe {
        if ffi::lua_type(state, 1) == ffi::LUA_TSTRING {
            let mut len = 0;
            let format = ffi::lua_tolstring(state, 1, ptr::from_mut(&mut len));
            let mut rest = slice::from_raw_parts(format.cast::<u8>(), len);
            let (mut argument, most) = (1, ffi::lua_gettop(state));
            while let Some(place) = rest.iter().position(|byte| *byte == b'%') {
                rest = &rest[place + 1..];
                let form = rest.iter().take_while(|byte| b"-+ #.0123456789".contains(byte)).count();
                let Some(letter) = rest.get(form) else { break };
                rest = &rest[form + 1..];
                if *letter == b'%' {
                    continue;
                }
                argument += 1;
                // The other letters do not take values of these types.
                if argument <= most && *letter == b'*' {
                    name(state, argument);
                }
            }
        }
        original(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_errors() {
        let stack =
            |name: &str| format!("\t[C]: in ?\n\t[C]: in function '{name}'\n\tlib/a.luau:4: in function 'f'");
        assert_eq!(with_place("a fault", &stack("rawset")), "lib/a.luau:4: a fault");
        assert_eq!(with_place("a: fault", &stack("sort")), "lib/a.luau:4: a: fault");
        assert_eq!(
            with_place("a fault", "\t[C]: in ?\n\t[C]: in function 'sort'\n\ta.luau:4"),
            "a.luau:4: a fault"
        );
        for (text, stack) in [
            ("b.luau:2: a fault", stack("rawset")),
            ("a fault", stack("error")),
            ("a fault", String::new()),
            ("a fault", "\t[C]: in ?\n\tlib/a.luau:4".to_owned()),
            ("a fault", "\t[C]: in ?\n\t[C]: in function 'sort'\n\t[C]: in ?".to_owned()),
        ] {
            assert_eq!(with_place(text, &stack), text);
        }
    }

    #[test]
    fn texts_of_errors() {
        for kind in KINDS {
            assert_eq!(without_address(&format!("{kind}: 0x00007f2fd80873e0")), kind);
            assert_eq!(without_address(&format!("<{kind} 0x7f2fd80873e0>")), kind);
        }
        for text in ["<lightuserdata 0x1>", "lightuserdata: 0x1", "FlaggedText: 0x1"] {
            assert_eq!(without_address(text), "userdata");
        }
        for text in ["", "t: 0x1", "table: 0x1 is", "t.luau:1: table: 0x1", "<table 0x1", "table"] {
            assert_eq!(without_address(text), text);
        }
    }
}
