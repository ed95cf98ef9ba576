//! What the safe interfaces of the VM and of the allocator do not offer.
//!
//! # Invariants
//! * Functions that Luau may leave by an error hold nothing that would have to be dropped.

#![expect(unsafe_code, reason = "the interfaces of Luau and of the allocator")]

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Function, Lua, MultiValue, Value, ffi};

use crate::current;
use crate::limits::Breach;
use crate::watchdog::Slot;

/// The upvalues of a function; a function that is not of Luau has none.
pub(crate) fn upvalues(lua: &Lua, function: &Function) -> mlua::Result<Vec<Value>> {
    // SAFETY: the function is the only value on the stack of this protected call, which holds nothing that is dropped; the
    // stack is made large enough before each push, and the function is taken off at the end.
    let values: MultiValue = unsafe {
        lua.exec_raw(function, |state| {
            let mut number = 1;
            if ffi::lua_iscfunction(state, 1) == 0 {
                while ffi::lua_checkstack(state, 2) != 0 && !ffi::lua_getupvalue(state, 1, number).is_null() {
                    number += 1;
                }
            }
            ffi::lua_remove(state, 1);
        })
    }?;
    Ok(values.into_iter().collect())
}

/// `cg.now_ms()`: when the thread's call began, in milliseconds of the Unix time.
pub(crate) fn now_ms(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: the function takes no arguments, and returns what it pushes.
    unsafe { lua.create_c_function(push_now_ms) }
}

/// `cg.now()`: the same in seconds.
pub(crate) fn now(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: as above.
    unsafe { lua.create_c_function(push_now) }
}

unsafe extern "C-unwind" fn push_now_ms(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function.
    unsafe { push_time(state, 1.0, c"cg.now_ms: only within a call of a method") }
}

unsafe extern "C-unwind" fn push_now(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above.
    unsafe { push_time(state, 1000.0, c"cg.now: only within a call of a method") }
}

/// # Safety
/// `state` is that of a running function, which returns what this returns.
unsafe fn push_time(state: *mut ffi::lua_State, divisor: f64, outside: &CStr) -> c_int {
    let now_ms = current::with(|current| current.call.now_ms);
    // SAFETY: the function has room for a value; its frame holds nothing to drop.
    unsafe {
        match now_ms {
            Some(now_ms) => ffi::lua_pushnumber(state, now_ms as f64 / divisor),
            None => ffi::luaL_error(state, outside.as_ptr()),
        }
    }
    1
}

/// Most digits that are read here.
const DIGITS_MAX: usize = 15;

/// A reader of arguments that reads a few digits, or takes the default, by itself, and leaves the rest to `reader`.
pub(crate) fn read_digits(lua: &Lua, reader: Function) -> mlua::Result<Function> {
    // SAFETY: the reader is the only value on the stack of this protected call, and becomes the upvalue.
    unsafe {
        lua.exec_raw(reader, |state| {
            ffi::lua_pushcclosurek(state, push_digits, c"reader".as_ptr(), 1, None);
        })
    }
}

unsafe extern "C-unwind" fn push_digits(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function, which has room for a few values; its frame holds nothing to drop. The bytes
    // are those of a string that is an argument.
    unsafe {
        match ffi::lua_type(state, 1) {
            ffi::LUA_TSTRING => {
                let mut len = 0;
                let start = ffi::lua_tolstring(state, 1, &raw mut len);
                if let Some(number) = digits(std::slice::from_raw_parts(start.cast(), len)) {
                    ffi::lua_pushnumber(state, number);
                    return 1;
                }
            }
            ffi::LUA_TNIL if ffi::lua_isnoneornil(state, 3) == 0 => {
                ffi::lua_pushvalue(state, 3);
                return 1;
            }
            _ => {}
        }
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, 1);
    }
    1
}

/// The number that a text of digits is, unless there are more than [`DIGITS_MAX`], or a zero before others.
fn digits(text: &[u8]) -> Option<f64> {
    let is_plain = match text {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.len() < DIGITS_MAX && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let number = |text: &[u8]| text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    is_plain.then(|| number(text) as f64)
}

/// Gives memory that is free to the system: one call of the allocator, where it has one.
pub(crate) fn give_back_memory() {
    // SAFETY: the function takes the allocator's own locks, and moves nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The interrupt of a VM, which another thread may set.
#[derive(Debug)]
pub(crate) struct Interrupt(*mut ffi::lua_Callbacks);

// SAFETY: the pointer is used by `set` only, which stores a field that Luau reads at safepoints and lets any thread set.
unsafe impl Send for Interrupt {}

impl Interrupt {
    /// Of this VM.
    ///
    /// # Errors
    /// The VM has no memory.
    ///
    /// # Safety
    /// The VM must be there as long as [`Interrupt::set`] is called.
    unsafe fn of(lua: &Lua) -> mlua::Result<Self> {
        let mut callbacks = ptr::null_mut();
        // SAFETY: the state is that of the VM; its callbacks are a part of it.
        unsafe { lua.exec_raw::<()>((), |state| callbacks = ffi::lua_callbacks(state)) }?;
        Ok(Self(callbacks))
    }

    /// From now on the VM calls [`interrupted`] at each safepoint.
    pub(crate) fn set(&self) {
        // SAFETY: the VM is there, which who called `of` has promised. The field is a word that is read and written whole.
        unsafe { (*self.0).interrupt = Some(interrupted) };
    }
}

/// A VM as the watchdog sees it, as long as this is there.
#[derive(Debug)]
pub(crate) struct WatchedVm {
    slot: Arc<Slot>,
    /// Keeps the VM for the interrupt.
    _lua: Lua,
}

impl WatchedVm {
    /// Of this VM, which is this thread's; `limit`: what a call may take of the processor's time.
    ///
    /// # Errors
    /// The VM has no memory.
    pub(crate) fn new(lua: &Lua, limit: Duration) -> mlua::Result<Self> {
        // SAFETY: the slot is closed, after which it sets nothing, before this clone of the VM is dropped.
        let interrupt = unsafe { Interrupt::of(lua) }?;
        Ok(Self { slot: Slot::new(interrupt, limit), _lua: lua.clone() })
    }

    /// Where calls are noted.
    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }
}

impl Drop for WatchedVm {
    fn drop(&mut self) {
        self.slot.close();
    }
}

thread_local! {
    /// The slot of the call that the thread runs.
    static SLOT: Cell<*const Slot> = const { Cell::new(ptr::null()) };
    /// That call has caught an error of memory.
    static IS_SHORT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call: what `run` returns, and the limit that it went over, unless that is the error that it returns.
pub(crate) fn timed<R>(slot: &Slot, number: u64, run: impl FnOnce() -> R) -> (R, Option<Breach>) {
    let _before = SetBack(SLOT.replace(slot), IS_SHORT.replace(false));
    slot.begin(number);
    let ran = run();
    let is_over = slot.end();
    let breach = if IS_SHORT.get() { Some(Breach::Memory) } else { is_over.then_some(Breach::Time) };
    (ran, breach)
}

/// Whether the thread's call is over its limit: loops of the library ask, since no safepoint of Luau is in them.
pub(crate) fn is_over() -> bool {
    // SAFETY: `timed` borrows the slot for as long as the pointer is there.
    unsafe { SLOT.get().as_ref() }.is_some_and(Slot::is_over)
}

/// Lets the thread's call end at its next safepoint, whatever it catches.
pub(crate) fn stop() {
    // SAFETY: `timed` borrows the slot for as long as the pointer is there.
    if let Some(slot) = unsafe { SLOT.get().as_ref() } {
        slot.stop();
    }
}

/// The same of a call that has caught an error of memory.
pub(crate) fn stop_short() {
    IS_SHORT.set(true);
    stop();
}

struct SetBack(*const Slot, bool);

impl Drop for SetBack {
    fn drop(&mut self) {
        SLOT.set(self.0);
        IS_SHORT.set(self.1);
    }
}

/// An error, if the running call is over its limit; otherwise an earlier one was.
unsafe extern "C-unwind" fn interrupted(state: *mut ffi::lua_State, gc: c_int) {
    let slot = SLOT.get();
    // SAFETY: `timed` borrows the slot for as long as the pointer is there.
    if unsafe { slot.as_ref() }.is_some_and(Slot::is_over) {
        if gc < 0 {
            // SAFETY: a safepoint of Luau, at which errors may be raised, with a frame that holds nothing to drop. The stack
            // may be full: `lua_rawcheckstack` makes room for the text.
            unsafe {
                ffi::lua_rawcheckstack(state, 4);
                ffi::luaL_error(state, c"took too long".as_ptr());
            }
        }
    } else {
        // SAFETY: the state is that of the VM that runs.
        unsafe { (*ffi::lua_callbacks(state)).interrupt = None };
    }
}
