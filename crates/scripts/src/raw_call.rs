//! Functions that the safe interfaces of the VM and of the allocator do not offer.
//!
//! # Invariants
//! * A function that Luau may leave by an error holds nothing that must be dropped.

#![expect(unsafe_code, reason = "the interfaces of Luau and of the allocator")]

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Function, Lua, MultiValue, Value, ffi};

use crate::caught::MEMORY;
use crate::current;
use crate::limits::Breach;
use crate::watchdog::VmSlot;

/// The upvalues of a function; a function of another language has none.
///
/// # Errors
/// Memory is short.
pub(crate) fn upvalues(lua: &Lua, function: &Function) -> mlua::Result<Vec<Value>> {
    // SAFETY: the function is the only value on the stack of this protected call, which holds nothing that is
    // dropped; the stack is made large enough before each push, and the function is taken off at the end.
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

/// `cg.now_ms()`: the time at which the thread's call began, in Unix milliseconds.
///
/// # Errors
/// Memory is short.
pub(crate) fn now_ms(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: the function takes no arguments, and returns what it pushes.
    unsafe { lua.create_c_function(push_now_ms) }
}

/// `cg.now()`: the same time in seconds.
///
/// # Errors
/// Memory is short.
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

/// The most digits that are parsed here.
const DIGITS_MAX: usize = 15;

/// A function that parses an argument of a few digits, or takes the default, and leaves other arguments to
/// `reader`.
///
/// # Errors
/// Memory is short.
pub(crate) fn read_digits(lua: &Lua, reader: Function) -> mlua::Result<Function> {
    // SAFETY: the reader is the only value on the stack of this protected call, and becomes the upvalue.
    unsafe {
        lua.exec_raw(reader, |state| {
            ffi::lua_pushcclosurek(state, push_digits, c"reader".as_ptr(), 1, None);
        })
    }
}

unsafe extern "C-unwind" fn push_digits(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function, which has room for a few values; its frame holds nothing to
    // drop. The bytes are those of a string that is an argument.
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

/// The number of a text of digits; None: it has more than [`DIGITS_MAX`], or leading zeros.
fn digits(text: &[u8]) -> Option<f64> {
    let is_plain = match text {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.len() < DIGITS_MAX && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let number = |text: &[u8]| text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    is_plain.then(|| number(text) as f64)
}

/// Returns free memory to the system with one call of the allocator, if it has such a call.
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

// SAFETY: the pointer is used by `set` only, which stores a field that Luau reads at safepoints and lets any
// thread set.
unsafe impl Send for Interrupt {}

impl Interrupt {
    /// The interrupt of this VM.
    ///
    /// # Errors
    /// The VM has no memory.
    ///
    /// # Safety
    /// The VM must exist whenever [`Interrupt::set`] is called.
    unsafe fn of(lua: &Lua) -> mlua::Result<Self> {
        let mut callbacks = ptr::null_mut();
        // SAFETY: the state is that of the VM; its callbacks are a part of it.
        unsafe { lua.exec_raw::<()>((), |state| callbacks = ffi::lua_callbacks(state)) }?;
        Ok(Self(callbacks))
    }

    /// Makes the VM call [`interrupted`] at each safepoint from now on.
    pub(crate) fn set(&self) {
        // SAFETY: the VM is there, which who called `of` has promised. The field is a word that is read and
        // written whole.
        unsafe { (*self.0).interrupt = Some(interrupted) };
    }
}

/// A VM that the watchdog watches while this exists.
#[derive(Debug)]
pub(crate) struct WatchedVm {
    slot: Arc<VmSlot>,
    /// Keeps the VM alive for the interrupt.
    _lua: Lua,
}

impl WatchedVm {
    /// Watches this thread's VM; `limit`: the processor time of a call.
    ///
    /// # Errors
    /// The VM has no memory.
    pub(crate) fn new(lua: &Lua, limit: Duration) -> mlua::Result<Self> {
        // SAFETY: the slot is closed, after which it sets nothing, before this clone of the VM is dropped.
        let interrupt = unsafe { Interrupt::of(lua) }?;
        Ok(Self { slot: VmSlot::new(interrupt, limit), _lua: lua.clone() })
    }

    /// The slot in which calls are noted.
    pub(crate) fn slot(&self) -> &Arc<VmSlot> {
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
    static SLOT: Cell<*const VmSlot> = const { Cell::new(ptr::null()) };
    /// Whether that call has caught an error of memory.
    static IS_SHORT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call. Returns the result of `run`, and the limit that was exceeded, unless `run` returns that error
/// itself.
pub(crate) fn timed<R>(slot: &VmSlot, number: u64, run: impl FnOnce() -> R) -> (R, Option<Breach>) {
    let _before = SetBack(SLOT.replace(slot), IS_SHORT.replace(false));
    slot.begin(number);
    let ran = run();
    let is_over = slot.end();
    let breach = if IS_SHORT.get() { Some(Breach::Memory) } else { is_over.then_some(Breach::Time) };
    (ran, breach)
}

/// Whether the thread's call has exceeded its limit. Loops of the library check this, since they have no
/// safepoints of Luau.
pub(crate) fn is_over() -> bool {
    // SAFETY: `timed` borrows the slot for as long as the pointer is there.
    unsafe { SLOT.get().as_ref() }.is_some_and(VmSlot::is_over)
}

/// Ends the thread's call at its next safepoint, even if it catches errors.
pub(crate) fn stop() {
    // SAFETY: `timed` borrows the slot for as long as the pointer is there.
    if let Some(slot) = unsafe { SLOT.get().as_ref() } {
        slot.stop();
    }
}

/// Ends the thread's call like [`stop`], after it has caught an error of memory.
pub(crate) fn stop_short() {
    IS_SHORT.set(true);
    stop();
}

struct SetBack(*const VmSlot, bool);

impl Drop for SetBack {
    fn drop(&mut self) {
        SLOT.set(self.0);
        IS_SHORT.set(self.1);
    }
}

/// Raises an error if the running call has exceeded its limit; otherwise the interrupt was for an earlier
/// call.
unsafe extern "C-unwind" fn interrupted(state: *mut ffi::lua_State, gc: c_int) {
    let slot = SLOT.get();
    // SAFETY: `timed` borrows the slot for as long as the pointer is there.
    if unsafe { slot.as_ref() }.is_some_and(VmSlot::is_over) {
        if gc < 0 {
            // SAFETY: a safepoint of Luau, at which errors may be raised, with a frame that holds nothing to
            // drop. The stack may be full: `lua_rawcheckstack` makes room for the text.
            unsafe {
                ffi::lua_rawcheckstack(state, 4);
                raise_over(state);
            }
        }
    } else {
        // SAFETY: the state is that of the VM that runs.
        unsafe { (*ffi::lua_callbacks(state)).interrupt = None };
    }
}

/// Raises the error of a call that has exceeded its limit, with the line that runs. A line of [`PRELUDE`] is
/// that of the test that has called it.
///
/// # Safety
/// `state` runs a function of Luau, and has room for the text; the caller holds nothing to drop.
unsafe fn raise_over(state: *mut ffi::lua_State) {
    // SAFETY: as above.
    unsafe { note_test_line(state) };
    let mut place = MaybeUninit::<ffi::lua_Debug>::zeroed();
    for level in 0.. {
        // SAFETY: what is asked for is written where there is such a level, and zeroes are valid otherwise. The
        // name is a text of Luau's, or in `place`.
        unsafe {
            if ffi::lua_getinfo(state, level, c"sl".as_ptr(), place.as_mut_ptr()) == 0 {
                break;
            }
            let found = place.assume_init_ref();
            if found.currentline > 0 && CStr::from_ptr(found.short_src) != PRELUDE {
                ffi::lua_pushfstring(
                    state,
                    c"%s:%d: took too long".as_ptr(),
                    found.short_src,
                    found.currentline,
                );
                ffi::lua_error(state);
            }
        }
    }
    // SAFETY: as above.
    unsafe { ffi::luaL_error(state, c"took too long".as_ptr()) };
}

thread_local! {
    /// The line of a test that went over a limit; 0: there is none.
    static TEST_LINE: Cell<c_int> = const { Cell::new(0) };
}

/// The line of a test that went over a limit, which is forgotten.
pub(crate) fn take_test_line() -> Option<usize> {
    usize::try_from(TEST_LINE.take()).ok().filter(|line| *line > 0)
}

/// Notes the line of the innermost function of a file of tests, without memory of the VM.
///
/// # Safety
/// `state` is that of a running function.
unsafe fn note_test_line(state: *mut ffi::lua_State) {
    let mut place = MaybeUninit::<ffi::lua_Debug>::zeroed();
    for level in 0.. {
        // SAFETY: as in `raise_over`.
        unsafe {
            if TEST_LINE.get() != 0 || ffi::lua_getinfo(state, level, c"sl".as_ptr(), place.as_mut_ptr()) == 0
            {
                return;
            }
            let found = place.assume_init_ref();
            let source = CStr::from_ptr(found.short_src).to_bytes();
            if found.currentline > 0 && (source.ends_with(b".test.luau") || source.ends_with(b".test.lua")) {
                TEST_LINE.set(found.currentline);
            }
        }
    }
}

/// A function that calls its argument, and notes the line of a test that has no memory. The texts of other
/// errors end with their own traceback.
///
/// # Errors
/// Memory is short.
pub(crate) fn noting(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: the stack of this protected call has room for the two functions, whose names are static.
    unsafe {
        lua.exec_raw((), |state| {
            ffi::lua_pushcclosurek(state, note_error, ptr::null(), 0, None);
            ffi::lua_pushcclosurek(state, call_noting, c"test".as_ptr(), 1, None);
        })
    }
}

unsafe extern "C-unwind" fn call_noting(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the state is that of this function, which has room for a few values; its frame holds nothing to
    // drop.
    unsafe {
        ffi::lua_settop(state, 1);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        if ffi::lua_pcall(state, 0, 1, 1) != ffi::LUA_OK {
            ffi::lua_error(state);
        }
    }
    1
}

/// The handler of [`call_noting`], which runs before the functions with the error are left.
unsafe extern "C-unwind" fn note_error(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above; the bytes are those of the error, which stays on the stack.
    unsafe {
        match ffi::lua_type(state, 1) {
            // Errors of the library have a traceback.
            ffi::LUA_TUSERDATA => return 1,
            ffi::LUA_TSTRING => {
                let mut len = 0;
                let text = ffi::lua_tolstring(state, 1, &raw mut len);
                // `coroutine.wrap` writes a place before it.
                if std::slice::from_raw_parts(text.cast::<u8>(), len).ends_with(MEMORY.as_bytes()) {
                    note_test_line(state);
                    return 1;
                }
            }
            _ => {}
        }
        if ffi::lua_checkstack(state, 2 + ffi::LUA_TRACEBACK_STACK) != 0 {
            let text = ffi::luaL_tolstring(state, 1, ptr::null_mut());
            ffi::luaL_traceback(state, state, text, 0);
        }
    }
    1
}

/// The source of what `cg.test` has in Luau.
const PRELUDE: &CStr = c"cg.test";
