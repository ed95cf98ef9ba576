//! The VMs of a [`crate::Scripts`] and their memory, for statistics: a number for each VM, which its thread
//! writes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The bytes of each VM that exists.
#[derive(Debug, Default)]
pub(crate) struct Usage(Mutex<Vec<Weak<AtomicU64>>>);

impl Usage {
    /// The bytes of a new VM, which counts until the result is dropped.
    pub(crate) fn begin(&self, bytes: usize) -> Arc<AtomicU64> {
        let own = Arc::new(AtomicU64::new(bytes as u64));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&own));
        own
    }

    /// The number of VMs, and their bytes.
    pub(crate) fn sum(&self) -> (u64, u64) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = all.iter().filter_map(Weak::upgrade);
        each.fold((0, 0), |(vms, bytes), one| (vms + 1, bytes + one.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_counts_while_it_is_there() {
        let usage = Usage::default();
        assert_eq!(usage.sum(), (0, 0));
        let (one, two) = (usage.begin(10), usage.begin(5));
        one.store(20, Relaxed);
        assert_eq!(usage.sum(), (2, 25));
        drop(one);
        assert_eq!(usage.sum(), (1, 5));
        drop(two);
        let three = usage.begin(1);
        assert_eq!((usage.sum(), usage.0.lock().unwrap().len()), ((1, 1), 1));
        drop(three);
    }
}
