//! Returns free memory to the system when connections have released it.
//!
//! The allocator keeps freed memory: after a burst of connections or of partial commands the process would
//! stay as large as at its peak. Therefore the control thread checks once in [`LOOK_SECONDS`] how much is
//! free, and has the allocator return it. That takes some milliseconds, in which lanes may wait for the
//! allocator. So it is done when there is little traffic, or after [`BUSY_SECONDS`].
//!
//! The end of a thread's heap is returned only by the thread itself, and only beyond a threshold. So the
//! threshold is lowered for a second, and the lanes are told to free something ([`sys::return_own_heap`]).
//!
//! # Invariants
//! * Memory is returned at most twice for the same burst: after that only memory that was in use since
//!   counts.

use crate::sys;

/// Seconds between two checks.
const LOOK_SECONDS: u32 = 5;
/// The least number of free bytes for which memory is returned.
const LEAST_BYTES: usize = 4 << 20;
/// Requests a second up to which traffic counts as little.
const IDLE_REQUESTS: u64 = 1_000;
/// Seconds after which memory is returned even under traffic.
const BUSY_SECONDS: u32 = 300;

/// The state of these checks.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    looked: u32,
    requests: u64,
    returned: u32,
    /// Whether the threshold is lowered.
    lowered: bool,
    /// Whether memory is returned once more, for what was freed meanwhile: ends of heaps that were returned
    /// hide it in the sum.
    again: bool,
    /// The least number of free bytes since memory was last returned; free memory beyond it still belongs to
    /// the process.
    least_free: usize,
}

impl Heap {
    /// Runs a check if one is due; called once a second. `requests`: executed since the start. True: the
    /// lanes must be told.
    pub(crate) fn tick(&mut self, second: u32, requests: u64) -> bool {
        if std::mem::take(&mut self.lowered) {
            sys::keep_heap_ends(true);
        }
        if second.saturating_sub(self.looked) >= LOOK_SECONDS
            && self.is_due(second, requests, sys::free_heap_bytes())
        {
            sys::keep_heap_ends(false);
            sys::return_free_heap();
            self.lowered = true;
        }
        self.lowered
    }

    fn is_due(&mut self, second: u32, requests: u64, free: usize) -> bool {
        let passed = u64::from(second.saturating_sub(self.looked).max(1));
        let is_idle = requests.saturating_sub(self.requests) / passed <= IDLE_REQUESTS;
        (self.looked, self.requests) = (second, requests);
        self.least_free = self.least_free.min(free);
        let has_more = free - self.least_free >= LEAST_BYTES;
        let is_due = is_idle && (has_more || self.again)
            || has_more && second.saturating_sub(self.returned) >= BUSY_SECONDS;
        if is_due {
            (self.returned, self.least_free, self.again) = (second, free, has_more);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn when_memory_is_returned() {
        let mut heap = Heap::default();
        assert!(!heap.is_due(5, 0, MIB), "too little");
        assert!(heap.is_due(10, 0, 60 * MIB));
        assert!(heap.is_due(15, 0, 60 * MIB), "once more");
        assert!(!heap.is_due(20, 0, 60 * MIB), "it was returned");
        assert!(!heap.is_due(25, 0, 10 * MIB), "it is in use again");
        assert!(!heap.is_due(30, 50_000, 50 * MIB), "busy");
        assert!(heap.is_due(35, 50_100, 50 * MIB));
        assert!(heap.is_due(40, 50_100, 20 * MIB), "once more");
        let mut requests = 50_100;
        let mut due = Vec::new();
        for second in (45..600).step_by(5) {
            requests += 100_000;
            if heap.is_due(second, requests, 40 * MIB) {
                due.push(second);
            }
        }
        assert_eq!(due, [340], "once, since it stays free");
    }
}
