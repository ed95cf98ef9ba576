//! How a loader's jobs ended, and the values in transit: results to the threads that store them, old values
//! to workers.
//!
//! A result is counted from the moment in which the pool hands it over until it is stored or dropped: see
//! [`BytesInTransit`]. An old value is counted until its job has ended: see [`StaleBytes`].
//!
//! # Invariants
//! * Each job of a loader ends in one of [`EndKind`], exactly once: `jobs` is their sum and `running`, until
//!   counters are reset.
//! * The bytes on their way are 0 when no result is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use cattlegrid_pool::RoomPermit;

/// The end of a job, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndKind {
    Value,
    NotFound,
    /// The worker reported an error, or its answer is invalid.
    Error,
    /// The worker was lost.
    Lost,
    /// The job's time was up.
    Timeout,
    /// The job was not begun.
    Refused,
    /// The job was withdrawn before it began, or its worker stopped it when asked.
    Cancelled,
}

/// Counters of one loader, over all its generations.
#[derive(Debug, Default)]
pub struct Counts {
    /// Jobs submitted.
    pub jobs: AtomicU64,
    /// Refreshes among the jobs: no client waited for them when they were submitted.
    pub refreshes: AtomicU64,
    /// Jobs that ended with a value.
    pub values: AtomicU64,
    /// Jobs that ended with "not found".
    pub not_found: AtomicU64,
    /// Jobs that ended with an error of the worker, or with an invalid answer.
    pub errors: AtomicU64,
    /// Jobs that ended because their worker was lost.
    pub lost: AtomicU64,
    /// Jobs whose time was up.
    pub timeouts: AtomicU64,
    /// Jobs that were not begun: the queue was full, or no worker could be started.
    pub refused: AtomicU64,
    /// Jobs that were withdrawn before a worker had begun them, or whose worker has stopped when it was told.
    pub cancelled: AtomicU64,
    /// Results that were dropped because their lease had ended, or because the key was invalidated in the
    /// meantime.
    pub late: AtomicU64,
    /// Values that were not stored: there was no memory, they were too large, or had too many tags.
    pub not_stored: AtomicU64,
    /// Old values that were left out of jobs, because the old values of other jobs took too much memory.
    pub stale_left_out: AtomicU64,
    /// Bytes of results in transit.
    pub bytes: AtomicUsize,
    /// Bytes of old values in jobs that have not ended.
    pub stale_bytes: AtomicUsize,
    /// Reports and lines of workers' output that were left out of the log.
    pub log_left_out: AtomicU64,
    /// Jobs that have not ended.
    pub running: AtomicU64,
}

impl Counts {
    pub(crate) fn begin(&self, is_refresh: bool) {
        self.jobs.fetch_add(1, Relaxed);
        self.running.fetch_add(1, Relaxed);
        self.refreshes.fetch_add(u64::from(is_refresh), Relaxed);
    }

    pub(crate) fn end(&self, how: EndKind) {
        let counter = match how {
            EndKind::Value => &self.values,
            EndKind::NotFound => &self.not_found,
            EndKind::Error => &self.errors,
            EndKind::Lost => &self.lost,
            EndKind::Timeout => &self.timeouts,
            EndKind::Refused => &self.refused,
            EndKind::Cancelled => &self.cancelled,
        };
        counter.fetch_add(1, Relaxed);
        self.running.fetch_sub(1, Relaxed);
    }

    /// Sets the counters to 0; running jobs still count as running.
    pub(crate) fn reset(&self) {
        let own = [
            &self.jobs,
            &self.refreshes,
            &self.late,
            &self.not_stored,
            &self.log_left_out,
            &self.stale_left_out,
        ];
        self.ends().into_iter().chain(own).for_each(|counter| counter.store(0, Relaxed));
    }

    /// The number of jobs that have ended.
    pub fn ended(&self) -> u64 {
        self.ends().iter().map(|counter| counter.load(Relaxed)).sum()
    }

    fn ends(&self) -> [&AtomicU64; 7] {
        [
            &self.values,
            &self.not_found,
            &self.errors,
            &self.lost,
            &self.timeouts,
            &self.refused,
            &self.cancelled,
        ]
    }
}

/// A result in transit: it occupies room among the results of all loaders, and its loader counts its bytes.
#[derive(Debug)]
pub(crate) struct BytesInTransit {
    room: Arc<RoomPermit>,
    counts: Arc<Counts>,
}

impl BytesInTransit {
    pub(crate) fn new(room: Arc<RoomPermit>, counts: Arc<Counts>) -> Self {
        counts.bytes.fetch_add(room.bytes(), Relaxed);
        Self { room, counts }
    }
}

impl Drop for BytesInTransit {
    fn drop(&mut self) {
        self.counts.bytes.fetch_sub(self.room.bytes(), Relaxed);
    }
}

/// A limit on the bytes of old values in transit to workers of all loaders.
#[derive(Debug)]
pub(crate) struct StaleBytes {
    bytes: AtomicUsize,
    max: usize,
}

impl StaleBytes {
    /// A limit of `max` bytes.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), max })
    }

    /// Takes `bytes` for a value of this loader, which counts them, until the permit is dropped. None: there
    /// is no room.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize, counts: &Arc<Counts>) -> Option<StalePermit> {
        let fits = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.bytes.fetch_update(Relaxed, Relaxed, fits).ok()?;
        counts.stale_bytes.fetch_add(bytes, Relaxed);
        Some(StalePermit { stale: Arc::clone(self), counts: Arc::clone(counts), bytes })
    }
}

/// The right to bytes of an old value in transit.
#[derive(Debug)]
pub(crate) struct StalePermit {
    stale: Arc<StaleBytes>,
    counts: Arc<Counts>,
    bytes: usize,
}

impl Drop for StalePermit {
    fn drop(&mut self) {
        self.stale.bytes.fetch_sub(self.bytes, Relaxed);
        self.counts.stale_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_values_are_bounded_in_sum() {
        let stale = StaleBytes::new(100);
        let [a, b] = [(); 2].map(|()| Arc::new(Counts::default()));
        let first = stale.take(60, &a).unwrap();
        assert!(stale.take(41, &b).is_none(), "one byte too many");
        let second = stale.take(40, &b).unwrap();
        assert!(stale.take(1, &a).is_none());
        assert!(stale.take(0, &a).is_some());
        assert!(stale.take(usize::MAX, &a).is_none(), "no overflow");
        let held = |counts: &Counts| counts.stale_bytes.load(Relaxed);
        assert_eq!((stale.bytes.load(Relaxed), held(&a), held(&b)), (100, 60, 40));
        drop(first);
        assert!(stale.take(60, &b).is_some());
        drop(second);
        assert_eq!((stale.bytes.load(Relaxed), held(&a), held(&b)), (0, 0, 0));
    }
}
