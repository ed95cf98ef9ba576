//! Locks and atomics: those of std, or those of a model checker: loom in `tests/it/loom.rs`, shuttle in the
//! engine's `tests/shuttle.rs`.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

/// `count` zeros. Their pages are the system's until they are written to, so that untouched ones cost
/// nothing.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn zeros(count: usize) -> Box<[AtomicU64]> {
    bytemuck::zeroed_slice_box(count)
}

#[cfg(any(loom, shuttle))]
pub(crate) fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// The lock's contents.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread that panics takes the process with it")
}
