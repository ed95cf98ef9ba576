//! `quota`: an amount that can be used in a window of time, such as a limit of requests an hour.
//!
//! The state, 28 bytes, little-endian:
//! ```text
//!   0        8       16       24         28
//!   | limit  | used  | end    | window   |     end: Unix ms; 0: no window has begun
//! ```
//! The window's code has its highest bit set in a quota that `take` has made, which expires with its window.
//! With the next lower bit set, `used` is a float of 64 bits: Cacheismo's `addandcheck` takes any number, and
//! so does this type under `compat`.
//!
//! A call at the end of a window is in the next window. A window of a fixed length begins with the first call
//! that uses something. If the clock has gone back so that the window would be longer than its length, its
//! end is computed again, and the used amount stays.
//!
//! # Invariants
//! * The amount used in a window is at most the largest limit that it had.
//! * A refused call uses nothing.

use crate::arguments::Arguments;
use crate::calendar::Window;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::{ObjectType, OnAbsent, method};
use crate::number;
use crate::object::{Object, StateView};

/// The type `quota`.
pub(crate) static QUOTA: ObjectType = ObjectType {
    name: "quota",
    id: 1,
    doc: "A limit of what may be used in a minute, an hour, a day, or any other window.",
    methods: &[
        method(
            "new",
            (2, 2),
            "limit window",
            "CREATED; a miss: no such window. Windows: minute hour day week month, or 90s 5m 2h 1d",
            OnAbsent::Runs,
            new,
        ),
        method(
            "addandcheck",
            (0, 1),
            "[n]",
            "QUOTA_OK: n (1) more are used; QUOTA_EXCEEDED: nothing is used",
            OnAbsent::Miss,
            addandcheck,
        ),
        method(
            "take",
            (3, 3),
            "n limit window",
            "QUOTA_OK, QUOTA_EXCEEDED; without `new`. A changed limit holds at once, a changed window when \
                      either window ends",
            OnAbsent::Runs,
            take,
        ),
        method("reset", (0, 0), "", "QUOTA_OK: nothing is used", OnAbsent::Miss, reset),
        method(
            "peek",
            (0, 0),
            "",
            "JSON: limit used left resets_in, in seconds; 0: no window has begun",
            OnAbsent::Miss,
            peek,
        ),
    ],
    dump: Some(dump),
};

/// The state of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QuotaState {
    limit: u64,
    used: u64,
    end_ms: u64,
    window: Window,
    /// Whether `take` has made it.
    expires: bool,
    /// Whether `used` has the bits of a float, which is negative or has decimals.
    is_float: bool,
}

/// The size of the state, in bytes.
const STATE: usize = 28;
const EXPIRES: u32 = 1 << 31;
const FLOAT: u32 = 1 << 30;

impl QuotaState {
    fn begin(limit: u64, window: Window, expires: bool) -> Self {
        Self { limit, used: 0, end_ms: 0, window, expires, is_float: false }
    }

    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; STATE] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let code = bytes.last_chunk().map_or(0, |code| u32::from_le_bytes(*code));
        let (expires, is_float) = (code & EXPIRES != 0, code & FLOAT != 0);
        let window = Window::of_code(code & !(EXPIRES | FLOAT));
        Some(Self { limit: word(0), used: word(8), end_ms: word(16), window, expires, is_float })
    }

    #[inline]
    fn write(&self, object: &mut Object<'_>) {
        let mut bytes = [0; STATE];
        bytes[..8].copy_from_slice(&self.limit.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.used.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.end_ms.to_le_bytes());
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let code = self.window.code() | flag(self.expires, EXPIRES) | flag(self.is_float, FLOAT);
        bytes[24..].copy_from_slice(&code.to_le_bytes());
        object.set(&bytes);
    }

    /// Ends the stored window if it is over, and shortens it if the clock has gone back.
    #[inline]
    fn enter_window(&mut self, context: &CallContext<'_>) {
        if context.now_ms >= self.end_ms {
            (self.used, self.is_float) = (0, false);
            self.end_ms = 0;
        } else if self.end_ms - context.now_ms > self.window.usual_ms() {
            self.end_ms = self.window.end_after(context.now_ms, context.zone);
        }
    }

    /// Uses `n` more of this time's window; false: there is not enough left.
    #[inline]
    fn use_up(&mut self, n: u64, context: &CallContext<'_>) -> bool {
        if self.is_float {
            return self.use_up_float(float(n), context);
        }
        let is_granted = self.used.checked_add(n).is_some_and(|used| used <= self.limit);
        if is_granted {
            self.used += n;
            if self.end_ms == 0 {
                self.end_ms = self.window.end_after(context.now_ms, context.zone);
            }
        }
        is_granted
    }

    /// Uses any number `n`, in Cacheismo's way: a negative number is returned, even if it is more than was
    /// used.
    #[cold]
    fn use_up_float(&mut self, n: f64, context: &CallContext<'_>) -> bool {
        let used = (self.used() + n).max(f64::MIN);
        let is_granted = used <= float(self.limit);
        if is_granted {
            self.is_float = used < 0.0 || used.fract() != 0.0 || used > EXACT_MAX;
            #[expect(clippy::cast_sign_loss, reason = "what is negative is a float")]
            let whole = used as u64;
            self.used = if self.is_float { used.to_bits() } else { whole };
            if self.end_ms == 0 {
                self.end_ms = self.window.end_after(context.now_ms, context.zone);
            }
        }
        is_granted
    }

    fn used(&self) -> f64 {
        if self.is_float { f64::from_bits(self.used) } else { float(self.used) }
    }
}

/// A number in Cacheismo's form.
#[expect(clippy::cast_precision_loss, reason = "above 2^53 it is rounded, as there")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Whole numbers up to this one are converted to floats and back without loss.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
const NUMBER: &str = "a number";

fn answer(is_granted: bool, context: &mut CallContext<'_>) -> MethodReply {
    context.text(if is_granted { b"QUOTA_OK" } else { b"QUOTA_EXCEEDED" })
}

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let limit = number::limit(arguments, 0)?;
    let Some(window) = arguments.get(1).and_then(Window::read) else { return Ok(context.refused()) };
    QuotaState::begin(limit, window, false).write(object);
    object.expire_at(context.end_of_new());
    Ok(context.created())
}

fn addandcheck(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let n = match number::positive_or_1(arguments, 0) {
        Err(_) if context.settings.compat => {
            let n = number::argument(arguments, 0, NUMBER, number::float)?;
            let Some(found) = QuotaState::read(object.bytes()) else { return Ok(MethodReply::Miss) };
            return Ok(add(object, found, found, context, |state, context| state.use_up_float(n, context)));
        }
        n => n?,
    };
    let Some(found) = QuotaState::read(object.bytes()) else { return Ok(MethodReply::Miss) };
    Ok(add(object, found, found, context, |state, context| state.use_up(n, context)))
}

fn take(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let (n, limit) = (number::positive_or_1(arguments, 0)?, number::limit(arguments, 1)?);
    let window = number::argument(arguments, 2, Window::USAGE, Window::read)?;
    let Some(found) = QuotaState::read(object.bytes()) else {
        let mut state = QuotaState::begin(limit, window, true);
        let is_granted = state.use_up(n, context);
        if is_granted {
            state.write(object);
            object.expire_at(Some(state.end_ms));
        }
        return Ok(answer(is_granted, context));
    };
    let mut asked = QuotaState { limit, ..found };
    if window != found.window {
        asked.window = window;
        // Clients that disagree about the window would never see its end if each began it again.
        asked.end_ms = found.end_ms.min(window.end_after(context.now_ms, context.zone));
    }
    Ok(add(object, found, asked, context, |state, context| state.use_up(n, context)))
}

/// Uses more of `state`, the object's state with the call's limit and window, and stores changes.
#[inline]
fn add(
    object: &mut Object<'_>,
    found: QuotaState,
    mut state: QuotaState,
    context: &mut CallContext<'_>,
    use_up: impl FnOnce(&mut QuotaState, &CallContext<'_>) -> bool,
) -> MethodReply {
    state.enter_window(context);
    let is_granted = use_up(&mut state, context);
    if state == found {
        return answer(is_granted, context);
    }
    state.write(object);
    if state.expires && state.end_ms != found.end_ms && state.end_ms != 0 {
        object.expire_at(Some(state.end_ms));
    }
    answer(is_granted, context)
}

fn reset(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(found) = QuotaState::read(object.bytes()) else { return Ok(MethodReply::Miss) };
    let state = QuotaState { used: 0, end_ms: 0, is_float: false, ..found };
    if state != found {
        state.write(object);
    }
    Ok(answer(true, context))
}

fn peek(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(mut state) = QuotaState::read(object.bytes()) else { return Ok(MethodReply::Miss) };
    state.enter_window(context);
    if state.end_ms == 0 && !state.window.begins_at_call() {
        state.end_ms = state.window.end_after(context.now_ms, context.zone);
    }
    let resets_in = state.end_ms.saturating_sub(context.now_ms).div_ceil(1000);
    if state.is_float {
        context.out.extend_from_slice(b"{\"limit\":");
        number::push_whole(context.out, state.limit);
        context.out.extend_from_slice(b",\"used\":");
        number::push_float(context.out, state.used());
        context.out.extend_from_slice(b",\"left\":");
        number::push_float(context.out, (float(state.limit) - state.used()).max(0.0));
        context.out.extend_from_slice(b",\"resets_in\":");
        number::push_whole(context.out, resets_in);
        context.out.push(b'}');
        return Ok(MethodReply::Json);
    }
    let left = state.limit.saturating_sub(state.used);
    let fields = [("limit", state.limit), ("used", state.used), ("left", left), ("resets_in", resets_in)];
    number::push_fields(context.out, &fields);
    Ok(MethodReply::Json)
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    let StateView::Bytes(bytes) = view else { return };
    let Some(state) = QuotaState::read(bytes) else { return };
    if state.is_float {
        number::push_fields(out, &[("limit", state.limit), ("end_ms", state.end_ms)]);
        out.pop();
        out.extend_from_slice(b",\"used\":");
        number::push_float(out, state.used());
    } else {
        number::push_fields(out, &[("limit", state.limit), ("used", state.used), ("end_ms", state.end_ms)]);
        out.pop();
    }
    out.extend_from_slice(b",\"window\":\"");
    state.window.push(out);
    out.extend_from_slice(b"\"}");
}
