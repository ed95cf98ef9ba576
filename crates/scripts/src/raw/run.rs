//! A whole call of a method as one protected call: the object's table, the arguments, the method, the reply,
//! and the new state.
//!
//! Two cases are left to the caller, who gets the object's table and the method's result: a reply that is not
//! a string, a number, a boolean or nil, and a state that cannot be kept or is too long.
//!
//! # Invariants
//! * The invariants of `raw.rs` hold; and nothing that must be dropped is made between the first call of the
//!   VM and the last.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use cattlegrid_objects::{Arguments, ScriptOutcome, push_float};
use mlua::{Function, LightUserData, Lua, Table, Value, ffi};

use super::keys::KeyNumbers;
use super::{BYTES_USUAL, STACK, Scratch, StateDecoder, StateWriter, push_string, string};
use crate::names::Names;
use crate::state::format::{FormatError, StateHead, StateReader};
use crate::state::{OpenState, StateFields, most};

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// A call of a method on an existing object.
pub(crate) struct Task<'a> {
    /// The head of the object's state.
    pub(crate) head: StateHead<'a>,
    /// The rest of the object's state.
    pub(crate) reader: StateReader<'a>,
    pub(crate) names: &'a Names,
    pub(crate) call_number: u64,
    pub(crate) arguments: &'a Arguments<'a>,
    /// The version of the new state.
    pub(crate) version: u16,
    pub(crate) state_max: usize,
    pub(crate) result_max: usize,
}

/// The outcome of the protected call.
pub(crate) enum RunResult {
    /// The reply and the state are appended.
    Whole { outcome: ScriptOutcome, fields: StateFields },
    /// The method has run; nothing is appended.
    Rest { table: Table, value: Value },
}

/// The function of the VM that [`run`] calls for this method.
///
/// # Errors
/// Memory is short.
pub(crate) fn bind(lua: &Lua, method: &Function, keys: &KeyNumbers) -> mlua::Result<Function> {
    // SAFETY: method and names are the only values on the stack of this protected call, and become the
    // upvalues.
    unsafe {
        lua.exec_raw((method, keys.strings()), |state| {
            ffi::lua_pushcclosurek(state, run_job, c"method".as_ptr(), 2, None);
        })
    }
}

/// Runs the method of `bound`: appends the reply to `out`, and the new state to `plain`, which must be empty.
/// `keys`: the names with which it was bound.
///
/// # Errors
/// An error of the script, or the state cannot be read.
pub(crate) fn run(
    bound: &Function,
    keys: &KeyNumbers,
    task: Task<'_>,
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> mlua::Result<RunResult> {
    plain.reserve(BYTES_USUAL);
    let Task { head, reader, names, call_number, arguments, version, state_max, result_max } = task;
    let from = out.len();
    let (mut scratch, mut fields) = (SCRATCH.take(), Vec::new());
    scratch.clear();
    let (state, whole) = (ptr::null_mut(), ptr::null());
    let mut job = TaskState {
        decoder: StateDecoder { state, reader, head, names, call_number, object: 0 },
        keys,
        arguments,
        result_max,
        outcome: ScriptOutcome::Miss,
        out: &mut *out,
        version,
        state_max,
        writer: StateWriter {
            state,
            whole,
            names,
            keys: Some(keys),
            call_number,
            fields: &mut fields,
            scratch: &mut scratch,
            most: most(state_max),
            out: &mut *plain,
        },
        whole: None,
    };
    let returned = bound.call::<(Option<Table>, Value)>(LightUserData((&raw mut job).cast()));
    let TaskState { outcome, whole, .. } = job;
    SCRATCH.set(scratch);
    let (table, value) = returned?;
    if let Some(fields) = whole {
        return Ok(RunResult::Whole { outcome, fields });
    }
    out.truncate(from);
    plain.clear();
    Ok(RunResult::Rest { table: table.ok_or(FormatError)?, value })
}

struct TaskState<'a> {
    decoder: StateDecoder<'a>,
    keys: &'a KeyNumbers,
    arguments: &'a Arguments<'a>,
    result_max: usize,
    outcome: ScriptOutcome,
    out: &'a mut Vec<u8>,
    version: u16,
    state_max: usize,
    writer: StateWriter<'a>,
    /// Set when the reply and the state are appended.
    whole: Option<StateFields>,
}

/// Runs a [`TaskState`]. Returns nothing if the call is complete or the state cannot be read, otherwise the
/// object's table and the method's value. The upvalues are the method and the names of its type.
unsafe extern "C-unwind" fn run_job(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: `run` has given a pointer to its own job, and waits. There is room on the stack for what is
    // pushed here.
    unsafe {
        let Some(job) = ffi::lua_tolightuserdata(state, 1).cast::<TaskState<'_>>().as_mut() else { return 0 };
        let count = job.arguments.len() as c_int;
        if ffi::lua_checkstack(state, STACK + count) == 0 {
            ffi::luaL_error(state, c"stack overflow".as_ptr());
        }
        ffi::lua_settop(state, 0);
        job.decoder.state = state;
        if job.decoder.root(job.keys).is_err() {
            return 0;
        }
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_pushvalue(state, 1);
        for argument in job.arguments.iter() {
            push_string(state, argument);
        }
        ffi::lua_call(state, count + 1, 1);
        if !job.reply(state) || !job.encode(state) {
            ffi::lua_settop(state, 2);
            return 2;
        }
    }
    0
}

impl TaskState<'_> {
    /// Appends the value at the top as a reply; false: it is not plain.
    unsafe fn reply(&mut self, state: *mut ffi::lua_State) -> bool {
        let from = self.out.len();
        // SAFETY: the value is there, of the type that the VM says.
        unsafe {
            match ffi::lua_type(state, -1) {
                ffi::LUA_TNIL => return true,
                ffi::LUA_TBOOLEAN => self.out.push(b'0' + u8::from(ffi::lua_toboolean(state, -1) != 0)),
                ffi::LUA_TNUMBER => match ffi::lua_tonumber(state, -1) {
                    number if number.is_finite() => push_float(self.out, number),
                    _ => return false,
                },
                ffi::LUA_TSTRING => {
                    let string = string(state, -1);
                    if string.len() > self.result_max {
                        return false;
                    }
                    self.out.extend_from_slice(string);
                }
                _ => return false,
            }
        }
        self.outcome = ScriptOutcome::Value { flags: 0 };
        self.out.len() - from <= self.result_max
    }

    /// Appends the object's table, the first value of the stack, as a state; false: it cannot be kept, or is
    /// too long.
    unsafe fn encode(&mut self, state: *mut ffi::lua_State) -> bool {
        let writer = &mut self.writer;
        let Some((start, _)) = OpenState::new(self.version, writer.out) else { return false };
        writer.state = state;
        // SAFETY: the table is there, with room above it for those within it.
        if !unsafe { writer.table(1, 0) } {
            return false;
        }
        self.whole = start.finish(std::mem::take(writer.fields), self.state_max, writer.out).ok();
        self.whole.is_some()
    }
}
