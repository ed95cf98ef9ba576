//! The times at which the clock's numbers were given out: a coarse table.
//!
//! An entry holds the number that the clock showed at a time; larger numbers were given out then or later. At
//! most one entry per second is noted. When the table is full, the entry is removed whose gap is the shortest
//! for its age. So the time of an old number is known more coarsely, with an error that is a share of its age
//! and hardly grows: about the logarithm of the age in seconds divided by the number of entries, 0.4 % after
//! four months by that formula.
//!
//! # Invariants
//! * A time that is returned is never later than the true one. A number from before the first entry is as old
//!   as the server.

use crate::sync::{AtomicU64, Mutex, Ordering, PoisonError};

/// A coarse table of the times at which the clock's numbers were given out.
#[derive(Debug)]
pub(crate) struct Ages {
    /// The clock's number, and the time in milliseconds since the start; both rise.
    entries: Mutex<Vec<(u64, u64)>>,
    /// The second of the last entry.
    noted: AtomicU64,
    most: usize,
}

/// Entries kept.
const ENTRIES: usize = 4096;

impl Default for Ages {
    fn default() -> Self {
        Self::with_room(ENTRIES)
    }
}

impl Ages {
    fn with_room(most: usize) -> Self {
        Self { entries: Mutex::default(), noted: AtomicU64::new(u64::MAX), most }
    }

    /// Notes the clock's number now, if none was noted in this second.
    pub(crate) fn note(&self, clock: impl FnOnce() -> u64, now_ms: u64) {
        let second = now_ms / 1000;
        if self.noted.swap(second, Ordering::Relaxed) == second {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads read their times before they come here, and may come in another order.
        if entries.last().is_some_and(|(_, last_ms)| *last_ms >= now_ms) {
            return;
        }
        if entries.len() >= self.most {
            let least = least_missed(&entries, now_ms);
            entries.remove(least);
        }
        entries.push((clock(), now_ms));
    }

    /// When a number was given out, or earlier, in milliseconds since the start.
    pub(crate) fn time_of(&self, number: u64) -> u64 {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let after = entries.partition_point(|(clock, _)| *clock < number);
        after.checked_sub(1).map_or(0, |at| entries[at].1)
    }
}

/// The entry between two others whose gap is the smallest share of its age.
#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn least_missed(entries: &[(u64, u64)], now_ms: u64) -> usize {
    let mut least = (f64::INFINITY, 0);
    for (before, three) in entries.windows(3).enumerate() {
        let share = (three[2].1 - three[0].1) as f64 / (now_ms - three[1].1) as f64;
        if share < least.0 {
            least = (share, before + 1);
        }
    }
    least.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_appears_at_most_a_second_older_than_it_is() {
        let ages = Ages::default();
        for second in 1..100 {
            ages.note(|| second * 10, second * 1000 + second);
            ages.note(|| unreachable!("once a second"), second * 1000 + 999);
        }
        assert_eq!(ages.time_of(5), 0, "before the first look");
        assert_eq!(ages.time_of(11), 1001);
        assert_eq!((ages.time_of(510), ages.time_of(511)), (50_050, 51_051));
        assert_eq!(ages.time_of(u64::MAX), 99_099);
    }

    #[test]
    fn an_old_number_is_known_more_coarsely() {
        let ages = Ages::with_room(64);
        let last = 100_000;
        for second in 1..=last {
            ages.note(|| second, second * 1000);
            assert!(ages.entries.lock().unwrap().len() <= 64);
        }
        for number in 2..=last {
            let (told, age) = (ages.time_of(number) / 1000, last - number);
            assert!(told < number && number - told <= 1 + age / 2, "{number}: {told}");
        }
    }

    #[test]
    fn a_time_that_goes_back_notes_nothing() {
        let ages = Ages::default();
        ages.note(|| 10, 5_000);
        ages.note(|| 20, 4_900);
        ages.note(|| 30, 6_000);
        assert_eq!((ages.time_of(15), ages.time_of(31)), (5_000, 6_000));
    }
}
