//! When the soft floor of all tags rose, so that the grace of an item counts from the moment at which it
//! became stale.
//!
//! A *rise* is one flush of all tagged items, or a time in which the floor follows the clock at a distance.
//! An item falls below it when the rise begins, or later, when it has reached that age.
//!
//! # Invariant
//! Numbers and times rise from one rise to the next.

use std::collections::VecDeque;

/// Rises that are remembered. When there is one more, the items of the oldest have no grace any more.
pub(crate) const RISES_MAX: usize = 64;

/// Longest pause within one rise, in milliseconds: the caller raises the floor more often than that.
const PAUSE_MS: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rise {
    /// The first number and the last one; items below the first became stale when it began.
    first: u64,
    last: u64,
    began_ms: u64,
    risen_ms: u64,
    /// The distance to the clock; 0: a flush.
    age_ms: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Rises(VecDeque<Rise>);

impl Rises {
    /// The floor has risen to a number. Returns the last number of a rise that is forgotten.
    pub(crate) fn add(&mut self, number: u64, now_ms: u64, age_ms: u64) -> Option<u64> {
        if let Some(last) = self.0.back_mut()
            && age_ms > 0
            && last.age_ms == age_ms
            && now_ms <= last.risen_ms + PAUSE_MS
        {
            (last.last, last.risen_ms) = (number, now_ms);
            return None;
        }
        self.0.push_back(Rise { first: number, last: number, began_ms: now_ms, risen_ms: now_ms, age_ms });
        if self.0.len() > RISES_MAX { self.0.pop_front().map(|rise| rise.last) } else { None }
    }

    /// When an item with this stamp became stale, in milliseconds, or earlier; `None`: it is not below the
    /// floor. `time_of`: when a number was given out, or earlier.
    pub(crate) fn since_ms(&self, stamp: u64, time_of: impl Fn(u64) -> u64) -> Option<u64> {
        let rise = self.0.iter().find(|rise| stamp < rise.last)?;
        if stamp < rise.first {
            return Some(rise.began_ms);
        }
        Some((time_of(stamp) + rise.age_ms).clamp(rise.began_ms, rise.risen_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One number a millisecond.
    fn time_of(number: u64) -> u64 {
        number
    }

    #[test]
    fn an_item_falls_when_the_rise_begins_or_at_its_age() {
        let mut rises = Rises::default();
        assert_eq!(rises.since_ms(5, time_of), None);
        for now_ms in (5000..=8000).step_by(100) {
            assert_eq!(rises.add(now_ms - 3000, now_ms, 3000), None);
        }
        assert_eq!(rises.since_ms(1, time_of), Some(5000));
        assert_eq!(rises.since_ms(1999, time_of), Some(5000));
        assert_eq!(rises.since_ms(2000, time_of), Some(5000));
        assert_eq!(rises.since_ms(4500, time_of), Some(7500));
        assert_eq!(rises.since_ms(5000, time_of), None);
        // Later again: the first fall counts.
        rises.add(20_000, 30_000, 0);
        assert_eq!(rises.since_ms(4500, time_of), Some(7500));
        assert_eq!(rises.since_ms(19_000, time_of), Some(30_000));
        assert_eq!(rises.since_ms(20_000, time_of), None);
    }

    #[test]
    fn a_pause_begins_another_rise() {
        let mut rises = Rises::default();
        rises.add(2000, 5000, 3000);
        rises.add(3100, 6100, 3000);
        assert_eq!(rises.since_ms(2500, time_of), Some(6100));
    }

    #[test]
    fn the_oldest_is_forgotten_and_named() {
        let mut rises = Rises::default();
        for number in 1..=RISES_MAX as u64 {
            assert_eq!(rises.add(number * 10, number * 10_000, 0), None);
        }
        assert_eq!(rises.add(1000, 1_000_000, 0), Some(10));
        assert_eq!(rises.since_ms(5, time_of), Some(20_000));
    }
}
