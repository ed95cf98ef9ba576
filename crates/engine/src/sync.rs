//! Locks and atomics that threads meet at: std's, or shuttle's when it tries their orders in `tests/shuttle.rs`.
//! Counters are std's always: nothing depends on when they rise.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
