//! Claims: whether a job that waits at a worker is begun there or was taken back by the parent.
//!
//! Jobs of a worker are numbered in the order in which they were sent, from 0; a number is never used again.
//! A job is *offered* when it is sent. From then on either the worker *begins* it or the parent *takes it
//! back*, to send it to another worker. Two words of the progress page decide which; each has one writer and
//! only grows:
//!
//! ```text
//!            worker                                parent
//!  begun := end of its claim             taken := end of the jobs it wants
//!  fence                                 fence
//!  reads taken                           reads begun
//!  numbers below taken: skips them       numbers from begun on: has taken them back
//!  the others: begins them               numbers below begun: the worker says which
//! ```
//! When two sides store, fence and load in this order, at least one of them sees the other's store (the core
//! of Dekker's algorithm). So the worker never begins a job that the parent has surely taken back. If each
//! sees the other's store, the worker skips the job and says so (SKIPPED), and the parent, which saw it
//! begun, waits for that or for the reply. A compare-and-swap of one word would decide at once, but Python
//! has none for shared memory; it has a fence (a lock that is released and acquired).
//!
//! # Invariants
//! * Only the worker stores `begun`, only the parent stores `taken`; neither ever falls.
//! * No job is both begun and surely taken back; none is neither. `tests/it/loom.rs` tries the interleavings.
//! * When the worker dies, every number below `begun` that was not taken back counts as begun, every other
//!   one does not.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering, fence};

/// The words of a progress page. See the module.
#[derive(Debug)]
#[repr(C)]
pub struct Claims {
    /// Offset 0. Reserved; not read by either side.
    reserved: AtomicU64,
    /// Offset 8.
    begun: AtomicU64,
    /// Offset 16.
    taken: AtomicU64,
}

impl Claims {
    /// Words of a fresh page, where no job is begun and none is taken back.
    pub fn new() -> Self {
        Self { reserved: AtomicU64::new(0), begun: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }

    /// The worker claims the jobs `numbers`, which follow those that it has claimed before. Returns those it
    /// has got, the end of `numbers`; the jobs before them were taken back and must be skipped.
    #[inline]
    pub fn claim(&self, numbers: Range<u64>) -> Range<u64> {
        self.begun.store(numbers.end, Ordering::Release);
        fence(Ordering::SeqCst);
        let taken = self.taken.load(Ordering::Relaxed);
        taken.clamp(numbers.start, numbers.end)..numbers.end
    }

    /// The parent takes back all jobs below `end` that are not begun; `end` is at most the number of jobs
    /// sent. Returns `begun`: jobs from there up to `end` are the parent's. Those below are begun, or are
    /// skipped by the worker, which says so.
    pub fn take_back(&self, end: u64) -> u64 {
        if end > self.taken() {
            self.taken.store(end, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::Acquire)
    }

    /// Jobs that the worker has claimed: all with a number below this.
    #[inline]
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// The parent has asked for all jobs with a number below this that were not begun.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Default for Claims {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_what_was_taken_back() {
        let claims = Claims::new();
        assert_eq!(claims.claim(0..1), 0..1);
        assert_eq!(claims.take_back(4), 1, "1, 2 and 3 are the parent's");
        assert_eq!(claims.take_back(3), 1, "it does not fall");
        assert_eq!((claims.begun(), claims.taken()), (1, 4));
        assert_eq!(claims.claim(1..3), 3..3);
        assert_eq!(claims.claim(3..6), 4..6);
        assert_eq!(claims.take_back(6), 6, "all are begun");
        assert_eq!(claims.claim(6..8), 6..8);
    }
}
