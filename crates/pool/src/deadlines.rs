//! When jobs run out of time: a heap with lazy removal.
//!
//! Sans-io. A job that ends in time leaves its entry behind; entries are dropped when they come up, or
//! when they outnumber the live ones. With equal timeouts, the common case, a push is O(1).
//!
//! # Invariant
//! A job with a deadline has an entry until it ends; `live` counts these.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// See the module. Ids are opaque here.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Number of entries whose job has not ended.
    live: usize,
}

impl Deadlines {
    /// Notes that `id` ends at `at`.
    #[inline]
    pub(crate) fn push(&mut self, at: Instant, id: u64, is_live: impl Fn(u64) -> bool) {
        if self.heap.len() > 2 * self.live + 1024 {
            self.heap.retain(|Reverse((_, id))| is_live(*id));
        }
        self.heap.push(Reverse((at, id)));
        self.live += 1;
    }

    /// Notes that a job with a deadline has ended.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.live -= 1;
    }

    /// Takes a job whose time is up; the caller calls [`Deadlines::forget`] when it ends it.
    pub(crate) fn pop_due(&mut self, now: Instant, is_live: impl Fn(u64) -> bool) -> Option<u64> {
        while let Some(Reverse((at, id))) = self.heap.peek().copied() {
            if at > now {
                return None;
            }
            self.heap.pop();
            if is_live(id) {
                return Some(id);
            }
        }
        None
    }

    /// No job's time is up before this.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to start from")]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn jobs_come_up_in_order_and_ended_ones_do_not() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut deadlines = Deadlines::default();
        for (id, ms) in [(1, 30), (2, 10), (3, 20)] {
            deadlines.push(at(ms), id, |_| true);
        }
        deadlines.forget();
        let live = HashSet::from([1, 2]);
        assert_eq!(deadlines.next(), Some(at(10)));
        assert_eq!(deadlines.pop_due(at(5), |id| live.contains(&id)), None);
        assert_eq!(deadlines.pop_due(at(40), |id| live.contains(&id)), Some(2));
        assert_eq!(deadlines.pop_due(at(40), |id| live.contains(&id)), Some(1));
        assert_eq!(deadlines.pop_due(at(40), |id| live.contains(&id)), None);
    }

    #[test]
    fn a_million_jobs_that_end_in_time_need_little_memory() {
        let now = Instant::now();
        let mut deadlines = Deadlines::default();
        for id in 0..1_000_000 {
            deadlines.push(now + Duration::from_secs(30), id, |other| other + 16 > id);
            if id >= 16 {
                deadlines.forget();
            }
        }
        assert!(deadlines.heap.len() < 3_000, "{}", deadlines.heap.len());
    }
}
