//! `gcra`: a rate limit without windows, by the generic cell rate algorithm, with the replies of redis-cell.
//!
//! Each call may come an interval (period / count) after the one before; `burst` calls may come early. The
//! state is the debt: how far calls are ahead of that schedule. It decreases with time. A call that would
//! raise the debt above `burst + 1` intervals is limited. Times are in nanoseconds.
//!
//! The state has 16 bytes, little-endian: the debt in ns, and the Unix time in ms at which that debt was
//! valid. If the clock has gone back, the debt stays, and decreases from then on.
//!
//! Source: <https://github.com/brandur/redis-cell>, `RateLimiter::rate_limit`; `debt` is its `tat - now`.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::{ObjectType, OnAbsent, method};
use crate::number;
use crate::object::{Object, StateView};

const NS_PER_MS: u64 = 1_000_000;
/// The longest time in which a burst becomes available again, in ns.
const REFILL_MAX_NS: u64 = 100 * 366 * 86_400_000 * NS_PER_MS;
const MOST: u64 = 1_000_000_000;
const BURST: &str = "a number from 0 to 1000000000 that comes back within 100 years";
const COUNT: &str = "a number from 1 to 1000000000, at most one a nanosecond";
const QUANTITY: &str = "a number from 0 on";

/// The type `gcra`.
pub(crate) static GCRA: ObjectType = ObjectType {
    name: "gcra",
    id: 7,
    doc: "A limit of a rate that lets bursts pass, as redis-cell's CL.THROTTLE.",
    methods: &[
        method(
            "take",
            (3, 4),
            "burst count period [n]",
            "limited (0, 1), limit (burst + 1), left, retry_after, reset_after; whole seconds, rounded up; -1: never or not \
                      needed; n (1): 0 takes nothing",
            OnAbsent::Runs,
            take,
        ),
        method("peek", (3, 3), "burst count period", "as take of 0", OnAbsent::Runs, peek),
    ],
    dump: Some(dump),
};

/// The parameters of a call.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u64,
    interval_ns: u64,
    /// The largest debt of a call that is not limited.
    most_ns: u64,
}

impl Rate {
    #[inline]
    fn read(arguments: &Arguments<'_>) -> Result<Self, CallError> {
        let burst = number::argument(arguments, 0, BURST, |text| number::whole_within(text, 0, MOST))?;
        let count = number::argument(arguments, 1, COUNT, |text| number::whole_within(text, 1, MOST))?;
        let period_ms = number::argument(arguments, 2, number::SPAN, number::span_ms)?;
        let interval_ns = period_ms * NS_PER_MS / count;
        if interval_ns == 0 {
            return Err(CallError::argument(1, COUNT));
        }
        let most_ns = interval_ns.checked_mul(burst + 1).filter(|most| *most <= REFILL_MAX_NS);
        let most_ns = most_ns.ok_or_else(|| CallError::argument(0, BURST))?;
        Ok(Self { burst, interval_ns, most_ns })
    }
}

/// The state of the object.
#[derive(Debug, Clone, Copy)]
struct GcraState {
    debt_ns: u64,
    at_ms: u64,
}

impl GcraState {
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        number::words(bytes).map(|[debt_ns, at_ms]| Self { debt_ns, at_ms })
    }

    /// The debt at this time.
    #[inline]
    fn debt_ns(&self, now_ms: u64) -> u64 {
        self.debt_ns.saturating_sub(now_ms.saturating_sub(self.at_ms).saturating_mul(NS_PER_MS))
    }
}

fn take(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let rate = Rate::read(arguments)?;
    let n = if arguments.len() > 3 { number::argument(arguments, 3, QUANTITY, number::whole)? } else { 1 };
    let found = GcraState::read(object.bytes());
    let mut debt_ns = found.map_or(0, |found| found.debt_ns(context.now_ms));
    let taken = limit(rate, debt_ns, n, context.out);
    let went_back = found.is_some_and(|found| found.at_ms > context.now_ms);
    if taken.is_some_and(|ns| ns > 0) || went_back {
        debt_ns += taken.unwrap_or(0);
        number::set_words(object, [debt_ns, context.now_ms]);
        object.expire_at(Some(context.now_ms.saturating_add(debt_ns.div_ceil(NS_PER_MS))));
    }
    Ok(MethodReply::Value)
}

fn peek(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let rate = Rate::read(arguments)?;
    let debt_ns = GcraState::read(object.bytes()).map_or(0, |found| found.debt_ns(context.now_ms));
    limit(rate, debt_ns, 0, context.out);
    Ok(MethodReply::Value)
}

/// Appends the five numbers of a call that takes `n`. Returns the debt that it adds; None: it is limited.
#[inline]
fn limit(rate: Rate, debt_ns: u64, n: u64, out: &mut Vec<u8>) -> Option<u64> {
    let wanted_ns = rate.interval_ns.checked_mul(n).filter(|wanted_ns| *wanted_ns <= rate.most_ns);
    let over_ns = wanted_ns.map(|wanted_ns| (debt_ns + wanted_ns).saturating_sub(rate.most_ns));
    let taken_ns = wanted_ns.filter(|_| over_ns == Some(0));
    let reset_ns = debt_ns + taken_ns.unwrap_or(0);
    let left = rate.most_ns.saturating_sub(reset_ns) / rate.interval_ns;
    out.extend_from_slice(if taken_ns.is_some() { b"0 " } else { b"1 " });
    number::push_whole(out, rate.burst + 1);
    out.push(b' ');
    number::push_whole(out, left);
    out.push(b' ');
    match over_ns {
        Some(over_ns) if over_ns > 0 => number::push_whole(out, seconds(over_ns)),
        _ => out.extend_from_slice(b"-1"),
    }
    out.push(b' ');
    number::push_whole(out, seconds(reset_ns));
    taken_ns
}

/// Seconds, rounded up after the part below a millisecond is dropped, as in redis-cell.
#[inline]
fn seconds(ns: u64) -> u64 {
    (ns / NS_PER_MS).div_ceil(1000)
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    let StateView::Bytes(bytes) = view else { return };
    let Some(state) = GcraState::read(bytes) else { return };
    number::push_fields(out, &[("debt_ns", state.debt_ns), ("at_ms", state.at_ms)]);
}
