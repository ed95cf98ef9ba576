//! `sliding`: a limit on the count in the last N seconds, estimated from two counts.
//!
//! Time is divided into windows. The count in the last N seconds is estimated as the count of the current
//! window, and the part of the previous window's count that is still within N seconds, as if those events had
//! been evenly distributed; it is rounded up.
//!
//! The state has 32 bytes, little-endian: the window's length in ms, the Unix time in ms of the current
//! window's beginning, the previous count, and the current count. A call with another length begins with the
//! present estimate. If the clock has gone back, the counts are taken for those of the window of that time.
//!
//! Source: <https://blog.cloudflare.com/counting-things-a-lot-of-different-things/>, "Sliding windows to the
//! rescue".
//!
//! # Invariants
//! * A hit that is accepted leaves the estimate at or below the limit.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::{ObjectType, OnAbsent, method};
use crate::number;
use crate::object::{Object, StateView};

/// The type `sliding`.
pub(crate) static SLIDING: ObjectType = ObjectType {
    name: "sliding",
    id: 9,
    doc: "A limit of what is counted in the last N seconds, estimated from two counts.",
    methods: &[
        method(
            "hit",
            (2, 3),
            "limit window [n]",
            "OK and what is left; LIMITED and seconds with up to 3 decimals until n (1) more may be counted, nothing is counted; \
                      -1: n is above the limit. window: a length such as 60s",
            OnAbsent::Runs,
            hit,
        ),
        method("count", (0, 0), "", "the estimate", OnAbsent::Miss, count),
    ],
    dump: Some(dump),
};

/// The state of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlidingState {
    window_ms: u64,
    start_ms: u64,
    previous: u64,
    current: u64,
}

impl SlidingState {
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let [window_ms, start_ms, previous, current] = number::words(bytes)?;
        (window_ms > 0).then_some(Self { window_ms, start_ms, previous, current })
    }

    fn begin(window_ms: u64, now_ms: u64, current: u64) -> Self {
        Self { window_ms, start_ms: now_ms - now_ms % window_ms, previous: 0, current }
    }

    /// Begins the window of this time, if the stored one has ended.
    #[inline]
    fn enter_window(&mut self, now_ms: u64) {
        let begun_ms = now_ms - now_ms % self.window_ms;
        if begun_ms > self.start_ms {
            let is_next = begun_ms - self.start_ms == self.window_ms;
            self.previous = if is_next { self.current } else { 0 };
            self.current = 0;
        }
        self.start_ms = begun_ms;
    }

    /// The estimated count in the last window's length, rounded up.
    #[inline]
    fn estimate(&self, now_ms: u64) -> u64 {
        let covered_ms = self.window_ms - (now_ms - self.start_ms);
        self.current.saturating_add(share(self.previous, covered_ms, self.window_ms, true))
    }

    /// Milliseconds until `n` more are within the limit if nothing else is counted; None: never.
    fn retry_after_ms(&self, n: u64, limit: u64, now_ms: u64) -> Option<u64> {
        let room = limit.checked_sub(n)?;
        let elapsed_ms = now_ms - self.start_ms;
        if let Some(room) = room.checked_sub(self.current) {
            let covered_ms = share(self.window_ms, room, self.previous.max(1), false);
            return Some(self.window_ms.saturating_sub(covered_ms).saturating_sub(elapsed_ms));
        }
        // In the next window, the current window is the previous one.
        let covered_ms = share(self.window_ms, room, self.current, false);
        Some(2 * self.window_ms - elapsed_ms - covered_ms)
    }
}

/// `whole * part / of`, rounded up or down. `of` is not 0.
#[inline]
fn share(whole: u64, part: u64, of: u64, up: bool) -> u64 {
    if let Some(product) = whole.checked_mul(part) {
        return if up { product.div_ceil(of) } else { product / of };
    }
    let (product, of) = (u128::from(whole) * u128::from(part), u128::from(of));
    let share = if up { product.div_ceil(of) } else { product / of };
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn hit(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let limit = number::limit(arguments, 0)?;
    let window_ms = number::argument(arguments, 1, number::SPAN, number::span_ms)?;
    let n = number::positive_or_1(arguments, 2)?;
    let now_ms = context.now_ms;
    let found = SlidingState::read(object.bytes());
    let mut state = found.unwrap_or_else(|| SlidingState::begin(window_ms, now_ms, 0));
    state.enter_window(now_ms);
    if state.window_ms != window_ms {
        state = SlidingState::begin(window_ms, now_ms, state.estimate(now_ms));
    }
    let used = state.estimate(now_ms).checked_add(n).filter(|used| *used <= limit);
    if let Some(used) = used {
        state.current += n;
        context.out.extend_from_slice(b"OK ");
        number::push_whole(context.out, limit - used);
    } else {
        context.out.extend_from_slice(b"LIMITED ");
        match state.retry_after_ms(n, limit, now_ms) {
            Some(ms) => number::push_seconds(context.out, ms),
            None => context.out.extend_from_slice(b"-1"),
        }
    }
    if found != Some(state) && (found.is_some() || used.is_some()) {
        number::set_words(object, [state.window_ms, state.start_ms, state.previous, state.current]);
        if found.is_none_or(|found| (found.start_ms, found.window_ms) != (state.start_ms, window_ms)) {
            object.expire_at(Some(state.start_ms.saturating_add(2 * window_ms)));
        }
    }
    Ok(MethodReply::Value)
}

fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(mut state) = SlidingState::read(object.bytes()) else { return Ok(MethodReply::Miss) };
    state.enter_window(context.now_ms);
    number::push_whole(context.out, state.estimate(context.now_ms));
    Ok(MethodReply::Value)
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    let StateView::Bytes(bytes) = view else { return };
    let Some(state) = SlidingState::read(bytes) else { return };
    let fields = [
        ("window_ms", state.window_ms),
        ("start_ms", state.start_ms),
        ("previous", state.previous),
        ("current", state.current),
    ];
    number::push_fields(out, &fields);
}
