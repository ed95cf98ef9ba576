//! Methods that exceeded a limit. After [`BREACHES_MAX`] breaches within [`WITHIN_MS`], a method is disabled
//! until sources are loaded again.
//!
//! The times are those of calls ([`cattlegrid_objects::ScriptCall::now_ms`]). All threads share these counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

/// The number of breaches that disables a method.
pub(crate) const BREACHES_MAX: usize = 5;
/// The time in which breaches count, in milliseconds.
pub(crate) const WITHIN_MS: u64 = 60_000;

/// The breaches of a method.
#[derive(Debug, Default)]
pub(crate) struct Breaches {
    is_disabled: AtomicBool,
    /// The times of the last breaches, in Unix milliseconds.
    times: Mutex<ArrayVec<u64, BREACHES_MAX>>,
}

impl Breaches {
    /// Whether the method is disabled.
    pub(crate) fn is_disabled(&self) -> bool {
        self.is_disabled.load(Ordering::Relaxed)
    }

    /// Notes a breach; true: the method is now disabled by it.
    pub(crate) fn record(&self, now_ms: u64) -> bool {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        // If the clock was set back, later times still count.
        times.retain(|time| now_ms.saturating_sub(*time) < WITHIN_MS);
        if times.try_push(now_ms).is_err() {
            return false;
        }
        times.is_full() && !self.is_disabled.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fifth_within_a_minute_disables_once() {
        let breaches = Breaches::default();
        for time in [0, 1, 2, 59_998] {
            assert!(!breaches.record(time) && !breaches.is_disabled());
        }
        assert!(breaches.record(59_999), "the first counts until 60,000");
        assert!(breaches.is_disabled());
        assert!(!breaches.record(59_999), "said once");
        assert!(breaches.is_disabled());
    }

    #[test]
    fn old_ones_do_not_count() {
        let breaches = Breaches::default();
        for time in (0..100).map(|number| number * 15_000) {
            assert!(!breaches.record(time), "there are never more than four within a minute");
        }
        assert!(!breaches.is_disabled());
    }

    #[test]
    fn a_clock_set_back_forgets_nothing() {
        let breaches = Breaches::default();
        assert_eq!([9, 8, 7, 6, 5].map(|time| breaches.record(time)), [false, false, false, false, true]);
    }
}
