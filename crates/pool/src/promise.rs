//! A value that arrives later, for async and for blocking callers. No runtime is needed.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

/// The receiving half. Awaiting it twice panics.
#[derive(Debug)]
pub struct Promise<T> {
    shared: Arc<Shared<T>>,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Resolver<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    /// For whoever made the pair: the pool notes a job's id here.
    note: AtomicU64,
}

#[derive(Debug)]
enum State<T> {
    Empty(Waiter),
    Full(T),
    Taken,
}

/// Who is to be told. A system call is made only for a thread that waits.
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
pub(crate) fn promise<T>() -> (Resolver<T>, Promise<T>) {
    let state = Mutex::new(State::Empty(Waiter::Nobody));
    let shared = Arc::new(Shared { state, note: AtomicU64::new(0) });
    (Resolver { shared: Arc::clone(&shared) }, Promise { shared })
}

impl<T> Resolver<T> {
    /// Delivers the value.
    pub(crate) fn resolve(self, value: T) {
        self.fill(value).wake();
    }

    /// Delivers the value, and leaves it to the caller to wake who waits for it.
    pub(crate) fn fill(self, value: T) -> Waiter {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Full(value)) {
            State::Empty(waiter) => waiter,
            State::Full(_) | State::Taken => Waiter::Nobody,
        }
    }

    /// Leaves a number for [`Promise::note`].
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        self.shared.note.store(note, Ordering::Release);
    }
}

impl<T> Promise<T> {
    /// Blocks this thread until the value is there. Never call it on the pool's own thread (in a callback).
    pub fn wait(self) -> T {
        loop {
            let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *state, State::Taken) {
                State::Full(value) => return value,
                State::Empty(_) => *state = State::Empty(Waiter::Thread(std::thread::current())),
                State::Taken => unreachable!("the value was taken by poll before"),
            }
            drop(state);
            // A wake-up between here and there is not lost, and one meant for something else does no harm.
            std::thread::park();
        }
    }

    /// Whether the value is there, or was taken.
    pub(crate) fn is_done(&self) -> bool {
        !matches!(*self.shared.state.lock().unwrap_or_else(PoisonError::into_inner), State::Empty(_))
    }

    /// What the resolver noted, 0 if nothing yet.
    pub(crate) fn note(&self) -> u64 {
        self.shared.note.load(Ordering::Acquire)
    }
}

impl<T> Future for Promise<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Full(value) => Poll::Ready(value),
            State::Empty(old) => {
                let waker = match old {
                    Waiter::Task(waker) if waker.will_wake(context.waker()) => waker,
                    _ => context.waker().clone(),
                };
                *state = State::Empty(Waiter::Task(waker));
                Poll::Pending
            }
            State::Taken => panic!("a promise was polled after it had given its value"),
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
        resolver.resolve(7);
        assert_eq!(waiter.join().unwrap(), 7);
    }
}
