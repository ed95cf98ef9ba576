//! `bucket`: a token bucket. It holds up to `capacity` tokens and receives `rate` tokens each second; calls
//! take tokens.
//!
//! The state has 16 bytes, little-endian: the tokens in billionths, and the Unix time in ms at which that
//! number was valid. A rate in millionths per second adds whole billionths in each millisecond, so that
//! nothing is rounded. Each call states capacity and rate. If the clock has gone back, the bucket keeps its
//! tokens, and is filled from then on.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::{ObjectType, OnAbsent, method};
use crate::number;
use crate::object::{Object, StateView};

/// The units of a token in a state.
const TOKEN: u64 = 1_000_000_000;
const CAPACITY_MAX: u64 = 1_000_000_000;
const RATE_MAX_MILLIONTHS: u64 = 1_000_000_000 * 1_000_000;
const CAPACITY: &str = "a number from 1 to 1000000000";
const RATE: &str = "a number from 0.000001 to 1000000000 with at most 6 decimals";

/// The type `bucket`.
pub(crate) static BUCKET: ObjectType = ObjectType {
    name: "bucket",
    id: 8,
    doc: "A token bucket.",
    methods: &[
        method(
            "take",
            (2, 3),
            "capacity rate [n]",
            "OK and the tokens left; WAIT and seconds with up to 3 decimals until there are n (1), nothing is taken; -1: n is above \
                      the capacity. rate: tokens a second",
            OnAbsent::Runs,
            take,
        ),
        method("peek", (2, 2), "capacity rate", "the tokens left", OnAbsent::Runs, peek),
    ],
    dump: Some(dump),
};

/// The parameters of a call.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// The units in a full bucket.
    full: u64,
    /// The units that are added in a millisecond.
    rate: u64,
}

impl Bucket {
    #[inline]
    fn read(arguments: &Arguments<'_>) -> Result<Self, CallError> {
        let capacity =
            number::argument(arguments, 0, CAPACITY, |text| number::whole_within(text, 1, CAPACITY_MAX))?;
        let rate = number::argument(arguments, 1, RATE, |text| {
            number::millionths(text).filter(|rate| (1..=RATE_MAX_MILLIONTHS).contains(rate))
        })?;
        Ok(Self { full: capacity * TOKEN, rate })
    }

    /// The units in the bucket at this time.
    #[inline]
    fn level(self, found: Option<BucketState>, now_ms: u64) -> u64 {
        let Some(found) = found else { return self.full };
        let gained = self.rate.saturating_mul(now_ms.saturating_sub(found.at_ms));
        found.level.saturating_add(gained).min(self.full)
    }

    /// The milliseconds until this many more units are in the bucket.
    #[inline]
    fn wait_ms(self, missing: u64) -> u64 {
        missing.div_ceil(self.rate)
    }
}

/// The state of the object.
#[derive(Debug, Clone, Copy)]
struct BucketState {
    level: u64,
    at_ms: u64,
}

impl BucketState {
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        number::words(bytes).map(|[level, at_ms]| Self { level, at_ms })
    }
}

fn take(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let bucket = Bucket::read(arguments)?;
    let wanted = number::positive_or_1(arguments, 2)?.saturating_mul(TOKEN);
    let found = BucketState::read(object.bytes());
    let level = bucket.level(found, context.now_ms);
    let left = level.checked_sub(wanted);
    match left {
        Some(left) => {
            context.out.extend_from_slice(b"OK ");
            number::push_whole(context.out, left / TOKEN);
        }
        None if wanted > bucket.full => context.out.extend_from_slice(b"WAIT -1"),
        None => {
            context.out.extend_from_slice(b"WAIT ");
            number::push_seconds(context.out, bucket.wait_ms(wanted - level));
        }
    }
    let went_back = found.is_some_and(|found| found.at_ms > context.now_ms);
    if left.is_some() || went_back {
        let level = left.unwrap_or(level);
        number::set_words(object, [level, context.now_ms]);
        object.expire_at(Some(context.now_ms.saturating_add(bucket.wait_ms(bucket.full - level))));
    }
    Ok(MethodReply::Value)
}

fn peek(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let level = Bucket::read(arguments)?.level(BucketState::read(object.bytes()), context.now_ms);
    number::push_whole(context.out, level / TOKEN);
    Ok(MethodReply::Value)
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    let StateView::Bytes(bytes) = view else { return };
    let Some(state) = BucketState::read(bytes) else { return };
    number::push_fields(out, &[("billionths", state.level), ("at_ms", state.at_ms)]);
}
