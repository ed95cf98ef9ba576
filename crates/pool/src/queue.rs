//! Jobs waiting for a worker: three classes of priority, with ageing.
//!
//! A job of a lower class counts as a job of the next higher class that came `ageing` later. So High goes
//! first, but a Normal job that has waited `ageing` longer, or a Low job that has waited twice that, is
//! not overtaken any more: no job starves.
//!
//! Removal is lazy: ids of jobs that have ended, or were raised to another class, are skipped when they reach
//! the front.
//!
//! # Invariants
//! * Within a class jobs keep their order, except that returned jobs go to the front, and raised ones to
//!   their age.
//! * A job has one entry in the class of its priority. It is only ever raised, so an entry that was left
//!   behind in another class never counts again.
//! * `live` counts the entries whose jobs still wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::time::later;

/// How urgent a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// A client is waiting.
    High = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Background work.
    Low = 2,
}

/// See the module. Ids are opaque here.
#[derive(Debug)]
pub(crate) struct Queue {
    classes: [VecDeque<QueueEntry>; 3],
    /// Waiting jobs per class, without the ones that were removed.
    live: [usize; 3],
    ageing: Duration,
}

#[derive(Debug, Clone, Copy)]
struct QueueEntry {
    id: u64,
    since: Instant,
}

impl Queue {
    /// An empty queue.
    pub(crate) fn new(ageing: Duration) -> Self {
        Self { classes: Default::default(), live: [0; 3], ageing }
    }

    /// Waiting jobs.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.live.iter().sum()
    }

    /// Whether no job waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live == [0; 3]
    }

    /// Waiting jobs: High, Normal, Low.
    pub(crate) fn lens(&self) -> [usize; 3] {
        self.live
    }

    /// Appends a job that has waited since `since`.
    #[inline]
    pub(crate) fn push(&mut self, id: u64, priority: Priority, since: Instant) {
        self.classes[priority as usize].push_back(QueueEntry { id, since });
        self.live[priority as usize] += 1;
    }

    /// Puts a job back to the head of its class, where it came from.
    pub(crate) fn push_front(&mut self, id: u64, priority: Priority, since: Instant) {
        self.classes[priority as usize].push_front(QueueEntry { id, since });
        self.live[priority as usize] += 1;
    }

    /// Adds a job that was raised to this class: behind the jobs that have waited longer. Takes O(jobs behind
    /// it).
    pub(crate) fn insert(&mut self, id: u64, priority: Priority, since: Instant) {
        let class = &mut self.classes[priority as usize];
        let at = class.iter().rposition(|entry| entry.since <= since).map_or(0, |at| at + 1);
        class.insert(at, QueueEntry { id, since });
        self.live[priority as usize] += 1;
    }

    /// Notes that a waiting job of this class has ended or was raised. Its entry is dropped when it comes up,
    /// or when such entries outnumber the others.
    pub(crate) fn forget(&mut self, priority: Priority, is_waiting: impl Fn(u64, Priority) -> bool) {
        let class = priority as usize;
        self.live[class] -= 1;
        if self.classes[class].len() > 2 * self.live[class] + 64 {
            self.classes[class].retain(|entry| is_waiting(entry.id, priority));
        }
    }

    /// Takes the job whose turn it is.
    #[inline]
    pub(crate) fn pop(&mut self, is_waiting: impl Fn(u64, Priority) -> bool) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let mut best: Option<(Instant, usize)> = None;
        for (class, priority) in CLASSES.into_iter().enumerate() {
            while let Some(head) = self.classes[class].front() {
                if is_waiting(head.id, priority) {
                    let key = later(head.since, self.ageing.saturating_mul(class as u32));
                    if best.is_none_or(|(other, _)| key < other) {
                        best = Some((key, class));
                    }
                    break;
                }
                self.classes[class].pop_front();
            }
        }
        let (_, class) = best?;
        self.live[class] -= 1;
        self.classes[class].pop_front().map(|entry| entry.id)
    }

    /// Takes the oldest job of the least urgent class that has one: for `QueuePolicy::DropOldest`.
    pub(crate) fn pop_oldest(&mut self, is_waiting: impl Fn(u64, Priority) -> bool) -> Option<u64> {
        for class in (0..3).rev() {
            while let Some(head) = self.classes[class].pop_front() {
                if is_waiting(head.id, CLASSES[class]) {
                    self.live[class] -= 1;
                    return Some(head.id);
                }
            }
        }
        None
    }
}

const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to start from")]
mod tests {
    use super::*;

    const AGEING: Duration = Duration::from_secs(1);

    fn all(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop(|_, _| true)).collect()
    }

    #[test]
    fn urgent_jobs_go_first_until_others_have_aged() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut queue = Queue::new(AGEING);
        queue.push(1, Priority::Low, at(0));
        queue.push(2, Priority::Normal, at(0));
        queue.push(3, Priority::High, at(999));
        queue.push(4, Priority::High, at(1_001));
        queue.push(5, Priority::High, at(2_001));
        assert_eq!(all(&mut queue), [3, 2, 4, 1, 5]);
    }

    #[test]
    fn within_a_class_order_is_kept_and_the_removed_are_skipped() {
        let now = Instant::now();
        let mut queue = Queue::new(AGEING);
        for id in 1..=6 {
            queue.push(id, Priority::Normal, now);
        }
        queue.forget(Priority::Normal, |_, _| true);
        queue.push_front(9, Priority::Normal, now);
        assert_eq!(queue.len(), 6);
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop(|id, _| id != 3)).collect();
        assert_eq!(order, [9, 1, 2, 4, 5, 6]);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_oldest_of_the_least_urgent_is_dropped_first() {
        let now = Instant::now();
        let mut queue = Queue::new(AGEING);
        queue.push(1, Priority::High, now);
        queue.push(2, Priority::Low, now);
        queue.push(3, Priority::Low, now);
        assert_eq!(queue.pop_oldest(|_, _| true), Some(2));
        assert_eq!(queue.lens(), [1, 0, 1]);
    }

    #[test]
    fn a_raised_job_takes_the_place_of_its_age() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut queue = Queue::new(AGEING);
        queue.push(1, Priority::Low, at(0));
        queue.push(2, Priority::High, at(1));
        queue.push(3, Priority::Low, at(2));
        queue.push(4, Priority::High, at(3));
        queue.push(5, Priority::Low, at(4));
        let raised = |id: u64, class| (class == Priority::High) == [2, 3, 4, 5].contains(&id);
        for (id, ms) in [(3, 2), (5, 4)] {
            queue.forget(Priority::Low, raised);
            queue.insert(id, Priority::High, at(ms));
        }
        assert_eq!(queue.lens(), [4, 0, 1]);
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop(raised)).collect();
        assert_eq!(order, [2, 3, 4, 5, 1]);
        assert!(queue.classes.iter().all(|class| class.len() <= 2), "what was left behind is dropped");
        queue.push(6, Priority::Normal, at(5));
        queue.insert(7, Priority::Normal, at(0));
        assert_eq!((queue.pop(|_, _| true), queue.pop(|_, _| true)), (Some(7), Some(6)), "older than all");
    }

    #[test]
    fn removed_entries_do_not_pile_up() {
        let now = Instant::now();
        let mut queue = Queue::new(AGEING);
        for id in 0..10_000 {
            queue.push(id, Priority::Normal, now);
            queue.forget(Priority::Normal, |_, _| false);
        }
        assert!(queue.classes[1].len() <= 65);
    }
}
