//! `swcounter`: the last values added, up to a limit, and their sum, minimum, maximum, average and
//! percentiles; Cacheismo's sliding window counter.
//!
//! The state, little-endian:
//! ```text
//!   0      2      4
//!   | size | next | values, 8 bytes each, as 64-bit floats
//! ```
//! There are as many values as were added, up to the size. Then the value at `next` is the oldest, which the
//! next value replaces. Minimum, maximum and average are those of the values that were added: there are no
//! zeros before the first.

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::{ObjectType, OnAbsent, method};
use crate::number;
use crate::object::{Object, StateView};

/// The most values in a ring.
const SIZE_MAX: u64 = 1024;
/// The size without an argument of `new`, as in Cacheismo.
const SIZE: u64 = 16;
/// The largest value, so that no sum is infinite.
const VALUE_MAX: f64 = 1e300;
const VALUE: &str = "a number from -1e300 to 1e300";
const HEAD: usize = 4;

/// The type `swcounter`.
pub(crate) static SWCOUNTER: ObjectType = ObjectType {
    name: "swcounter",
    id: 2,
    doc: "The last values added, with their minimum, maximum, average, sum and percentiles.",
    methods: &[
        method("new", (0, 1), "[size]", "CREATED; a miss: size (16) is not 1 to 1024", OnAbsent::Runs, new),
        method("add", (1, 1), "n", "SUCCESS; n may have decimals", OnAbsent::Miss, add),
        method("getlast", (0, 0), "", "the value added last; a miss: there is none", OnAbsent::Miss, getlast),
        method("getmin", (0, 0), "", "the smallest value; a miss: there is none", OnAbsent::Miss, getmin),
        method("getmax", (0, 0), "", "the largest value; a miss: there is none", OnAbsent::Miss, getmax),
        method("getavg", (0, 0), "", "the average; a miss: there is no value", OnAbsent::Miss, getavg),
        method("getsum", (0, 0), "", "the sum; a miss: there is no value", OnAbsent::Miss, getsum),
        method(
            "getp",
            (1, 1),
            "percent",
            "the smallest value that at least this percentage (0 to 100) of the values do not exceed; a miss: \
                      there is none",
            OnAbsent::Miss,
            getp,
        ),
    ],
    dump: Some(dump),
};

/// The state of the object.
#[derive(Debug, Clone, Copy)]
struct Ring<'a> {
    size: usize,
    next: usize,
    values: &'a [[u8; 8]],
}

impl<'a> Ring<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (size, rest) = bytes.split_first_chunk()?;
        let (next, rest) = rest.split_first_chunk()?;
        let (values, _) = rest.as_chunks();
        let (size, next) = (u16::from_le_bytes(*size), u16::from_le_bytes(*next));
        Some(Self { size: usize::from(size), next: usize::from(next), values })
    }

    /// The values, the oldest first.
    fn values(self) -> impl DoubleEndedIterator<Item = f64> + ExactSizeIterator + Clone {
        let from = if self.values.len() < self.size { 0 } else { self.next };
        (0..self.values.len())
            .map(move |place| f64::from_le_bytes(self.values[(from + place) % self.values.len()]))
    }
}

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let size = if arguments.is_empty() {
        SIZE
    } else {
        number::argument(arguments, 0, "a number from 1 to 1024", number::whole)?
    };
    if !(1..=SIZE_MAX).contains(&size) {
        return Ok(context.refused());
    }
    let [low, high] = (size as u16).to_le_bytes();
    object.set(&[low, high, 0, 0]);
    object.expire_at(context.end_of_new());
    Ok(context.created())
}

fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let value = number::argument(arguments, 0, VALUE, |text| {
        number::float(text).filter(|value| value.abs() <= VALUE_MAX)
    })?;
    let Some(ring) = Ring::read(object.bytes()) else { return Ok(MethodReply::Miss) };
    let (size, next) = (ring.size, ring.next);
    let state = object.edit();
    let from = HEAD + next * 8;
    match state.get_mut(from..from + 8) {
        Some(oldest) => oldest.copy_from_slice(&value.to_le_bytes()),
        None => state.extend_from_slice(&value.to_le_bytes()),
    }
    let next = (next + 1) % size.max(1);
    state[2..HEAD].copy_from_slice(&(next as u16).to_le_bytes());
    Ok(context.text(b"SUCCESS"))
}

/// Answers with `of` the values, if there are any.
fn answer(
    object: &Object<'_>,
    context: &mut CallContext<'_>,
    of: impl FnOnce(Ring<'_>) -> Option<f64>,
) -> MethodReply {
    match Ring::read(object.bytes()).and_then(of) {
        Some(number) => {
            number::push_float(context.out, number);
            MethodReply::Value
        }
        None => MethodReply::Miss,
    }
}

fn getlast(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(answer(object, context, |ring| ring.values().next_back()))
}

fn getmin(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(answer(object, context, |ring| ring.values().reduce(f64::min)))
}

fn getmax(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(answer(object, context, |ring| ring.values().reduce(f64::max)))
}

fn getavg(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(answer(object, context, |ring| sum(ring).map(|sum| sum / f64::from(ring.values.len() as u16))))
}

fn getsum(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(answer(object, context, sum))
}

/// The sum by compensated summation, which adds up rounding errors separately: ten times 0.1 is 1.
///
/// Source: A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974.
fn sum(ring: Ring<'_>) -> Option<f64> {
    let mut lost = 0.0;
    let sum = ring.values().reduce(|sum, value| {
        let next = sum + value;
        let (large, small) = if sum.abs() >= value.abs() { (sum, value) } else { (value, sum) };
        lost += large - next + small;
        next
    });
    sum.map(|sum| sum + lost)
}

/// The percentile by the nearest rank: of n sorted values, the one at position `ceil(p / 100 * n)`, counted
/// from 1.
fn getp(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let millionths =
        number::argument(arguments, 0, "a number from 0 to 100 with at most 6 decimals", |text| {
            number::millionths(text).filter(|percent| *percent <= 100_000_000)
        })?;
    Ok(answer(object, context, |ring| {
        let mut values = [0.0; SIZE_MAX as usize];
        let values = values.get_mut(..ring.values.len()).filter(|values| !values.is_empty())?;
        values.iter_mut().zip(ring.values()).for_each(|(place, value)| *place = value);
        let rank = (millionths * values.len() as u64).div_ceil(100_000_000).max(1) as usize;
        let (_, value, _) = values.select_nth_unstable_by(rank - 1, f64::total_cmp);
        Some(*value)
    }))
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    let StateView::Bytes(bytes) = view else { return };
    let Some(ring) = Ring::read(bytes) else { return };
    number::push_fields(out, &[("size", ring.size as u64)]);
    out.pop();
    out.extend_from_slice(b",\"values\":[");
    for (place, value) in ring.values().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        number::push_float(out, value);
    }
    out.extend_from_slice(b"]}");
}
