//! Locks and atomics at which threads meet: std's, or shuttle's when `tests/shuttle.rs` tries the orders of
//! threads. Counters are always std's: nothing depends on when they rise.

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
