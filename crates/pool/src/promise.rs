//! A value that arrives later, for async and for blocking callers. No runtime is needed.
//!
//! # Invariants
//! * Each promise gets exactly one value: the resolver's, or [`LostValue::lost`] when the resolver is
//!   dropped.
//! * No wake-up is lost: the waiter is stored under the same lock as the value.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

use cattlegrid_panic::guarded;

use crate::error::Error;

/// The receiving half. Awaiting it twice panics.
#[derive(Debug)]
pub struct Promise<T> {
    shared: Arc<PromiseCell<T>>,
}

/// The sending half. Dropped without a value, it delivers [`LostValue::lost`], so no caller waits forever.
#[derive(Debug)]
pub(crate) struct Resolver<T: LostValue> {
    /// `None` when the value was delivered.
    shared: Option<Arc<PromiseCell<T>>>,
}

/// A value that says that the pool's thread has ended without an answer.
pub(crate) trait LostValue {
    /// The value that stands for a lost answer.
    fn lost() -> Self;
}

impl<T> LostValue for Result<T, Error> {
    fn lost() -> Self {
        Err(Error::PoolLost)
    }
}

impl LostValue for () {
    fn lost() -> Self {}
}

impl LostValue for bool {
    fn lost() -> Self {
        false
    }
}

impl<T> LostValue for Vec<T> {
    fn lost() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct PromiseCell<T> {
    state: Mutex<PromiseState<T>>,
    /// A number that both halves share: the id of the job.
    note: AtomicU64,
}

#[derive(Debug)]
enum PromiseState<T> {
    Empty(Waiter),
    Full(T),
    Taken,
}

/// The waiter that is woken when the value arrives. Only waking a thread takes a system call.
#[derive(Debug)]
pub(crate) enum Waiter {
    Nobody,
    Task(Waker),
    Thread(Thread),
}

impl Waiter {
    pub(crate) fn wake(self) {
        match self {
            Self::Task(waker) => waker.wake(),
            Self::Thread(thread) => thread.unpark(),
            Self::Nobody => {}
        }
    }
}

/// A connected pair.
pub(crate) fn promise<T: LostValue>() -> (Resolver<T>, Promise<T>) {
    let state = Mutex::new(PromiseState::Empty(Waiter::Nobody));
    let shared = Arc::new(PromiseCell { state, note: AtomicU64::new(0) });
    (Resolver { shared: Some(Arc::clone(&shared)) }, Promise { shared })
}

impl<T: LostValue> Resolver<T> {
    /// Delivers the value. A panic of the program's waker goes no further.
    pub(crate) fn resolve(self, value: T) {
        let waiter = self.fill(value);
        guarded(|| waiter.wake()).ok();
    }

    /// Delivers the value, and leaves it to the caller to wake the waiter.
    pub(crate) fn fill(mut self, value: T) -> Waiter {
        self.shared.take().map_or(Waiter::Nobody, |shared| Self::put(&shared, value))
    }

    fn put(shared: &PromiseCell<T>, value: T) -> Waiter {
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, PromiseState::Full(value)) {
            PromiseState::Empty(waiter) => waiter,
            PromiseState::Full(_) | PromiseState::Taken => Waiter::Nobody,
        }
    }

    /// Stores a number for [`Promise::note`].
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        if let Some(shared) = &self.shared {
            shared.note.store(note, Ordering::Release);
        }
    }
}

impl<T: LostValue> Drop for Resolver<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            let waiter = Self::put(&shared, T::lost());
            // A waker of the program may panic, and this may run while the thread already unwinds.
            guarded(|| waiter.wake()).ok();
        }
    }
}

impl<T> Promise<T> {
    /// Blocks this thread until the value is there. Never call it on the pool's own thread (in a callback).
    pub fn wait(self) -> T {
        loop {
            let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *state, PromiseState::Taken) {
                PromiseState::Full(value) => return value,
                PromiseState::Empty(_) => {
                    *state = PromiseState::Empty(Waiter::Thread(std::thread::current()));
                }
                PromiseState::Taken => unreachable!("the value was taken by poll before"),
            }
            drop(state);
            // A wake-up between the unlock and `park` is not lost, and one for another reason does no harm.
            std::thread::park();
        }
    }

    /// Whether the value has arrived, even if it was taken.
    pub(crate) fn is_done(&self) -> bool {
        !matches!(*self.shared.state.lock().unwrap_or_else(PoisonError::into_inner), PromiseState::Empty(_))
    }

    /// The number that the resolver noted, 0 if none yet.
    pub(crate) fn note(&self) -> u64 {
        self.shared.note.load(Ordering::Acquire)
    }
}

impl<T> Future for Promise<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, PromiseState::Taken) {
            PromiseState::Full(value) => Poll::Ready(value),
            PromiseState::Empty(old) => {
                let waker = match old {
                    Waiter::Task(waker) if waker.will_wake(context.waker()) => waker,
                    _ => context.waker().clone(),
                };
                *state = PromiseState::Empty(Waiter::Task(waker));
                Poll::Pending
            }
            PromiseState::Taken => panic!("a promise was polled after it had given its value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_thread_gets_the_value() {
        let (resolver, promise) = promise();
        let waiter = std::thread::spawn(move || promise.wait());
        resolver.resolve(vec![7]);
        assert_eq!(waiter.join().unwrap(), [7]);
    }

    #[test]
    fn a_resolver_that_is_dropped_wakes_its_waiter() {
        let (resolver, promise) = promise::<Result<(), Error>>();
        let waiter = std::thread::spawn(move || promise.wait());
        drop(resolver);
        assert_eq!(waiter.join().unwrap(), Err(Error::PoolLost));
    }
}
