//! Counters of calls, by method: like [`crate::Counters`] one writer each, and read by every thread that answers `stats`.

use std::sync::OnceLock;

use cattlegrid_objects::Registry;

use crate::counters::Counter;

/// One call of this many is timed.
pub const TIMED_EVERY: u64 = 64;

/// Mean time of a call, in nanoseconds, above which a method's calls take long.
const SLOW_NS: u64 = 20_000;

/// Counters of all methods of a lane; without objects there are none.
#[derive(Debug, Default)]
pub struct MethodCounters {
    shipped: OnceLock<Box<[MethodCounter]>>,
    /// Of users' own types.
    own: OnceLock<Box<[MethodCounter]>>,
}

/// Counters of a method of a lane.
#[derive(Debug, Default)]
pub struct MethodCounter {
    /// Calls, failed ones and misses included.
    pub calls: Counter,
    /// Calls answered with an error.
    pub errors: Counter,
    /// Calls answered as a miss.
    pub misses: Counter,
    /// Calls that waited for an object that was busy, or took several steps.
    pub waited: Counter,
    /// Bytes of values answered.
    pub bytes: Counter,
    /// Calls that were timed: one of [`TIMED_EVERY`], all that took several steps, and all of a method whose calls take long.
    pub timed: Counter,
    /// Nanoseconds that these took.
    pub timed_ns: Counter,
    /// Nanoseconds that the longest of these took.
    pub longest_ns: Counter,
}

impl MethodCounter {
    /// Whether calls of the method take long, as far as they were timed: then each is timed, so that a turn with many of them
    /// ends. A single long one, which the system may have interrupted, is soon outweighed.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        self.timed_ns.get() > self.timed.get().wrapping_mul(SLOW_NS)
    }

    /// Counts the time of a call.
    pub(crate) fn time(&self, ns: u64) {
        self.timed.add(1);
        self.timed_ns.add(ns);
        self.longest_ns.add(ns.saturating_sub(self.longest_ns.get()));
    }
}

impl MethodCounters {
    /// The counters of the method with this number, see [`Registry::number`].
    pub fn of(&self, number: usize) -> &MethodCounter {
        let some = |count: usize| (0..count).map(|_| MethodCounter::default()).collect();
        let shipped = self.shipped.get_or_init(|| some(Registry::methods_max()));
        shipped.get(number).unwrap_or_else(|| {
            let own = self.own.get_or_init(|| some(Registry::numbers_max() - shipped.len()));
            &own[number - shipped.len()]
        })
    }

    /// All that were counted, by the methods' numbers; none if no method was called.
    pub fn all(&self) -> impl Iterator<Item = &MethodCounter> {
        let own = self.own.get().map_or(&[][..], |own| own);
        self.shipped.get().map_or(&[][..], |shipped| shipped).iter().chain(own)
    }

    /// Sets all to zero.
    pub fn reset(&self) {
        for one in self.all() {
            let MethodCounter { calls, errors, misses, waited, bytes, timed, timed_ns, longest_ns } = one;
            for counter in [calls, errors, misses, waited, bytes, timed, timed_ns, longest_ns] {
                counter.reset();
            }
        }
    }
}
