//! Functions of the program that a future needs, called by the thread that drives the future, but not while
//! it does.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::sync::oneshot;

use super::Driver;
use crate::error::Error;

/// Passes functions from a future to its thread, and their results back.
pub(super) struct Desk<'a>(Mutex<DeskState<'a>>);

/// A call that the thread makes.
type DeskCall<'a> = Box<dyn FnOnce() + 'a>;

struct DeskState<'a> {
    /// Calls that the thread has not begun.
    calls: VecDeque<DeskCall<'a>>,
    waker: Option<Waker>,
}

/// The next task of the thread.
enum DeskTask<'a, O> {
    End(O),
    Call(DeskCall<'a>),
}

impl<'a> Desk<'a> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(DeskState { calls: VecDeque::new(), waker: None }))
    }

    fn lock(&self) -> MutexGuard<'_, DeskState<'a>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by the future: has the thread call `function`, after the calls before it.
    ///
    /// # Errors
    /// The thread has ended without an answer.
    pub(super) async fn call<R: 'a>(&self, function: impl FnOnce() -> R + 'a) -> Result<R, Error> {
        let (sender, receiver) = oneshot::channel();
        let waker = {
            let mut content = self.lock();
            // The future may have been dropped when the function has run.
            content.calls.push_back(Box::new(move || drop(sender.send(function()))));
            content.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        receiver.await.map_err(|_| Error::Usage("the thread of the call has ended".to_owned()))
    }

    /// Called by the thread: runs the future to its end, and makes the calls that it asks for. Other threads
    /// drive the runtime during that time.
    pub(super) fn serve<F: Future>(&self, driver: &Driver, future: F) -> F::Output {
        let mut served = FutureGuard { driver, future: Some(Box::pin(future)) };
        loop {
            let next = driver.run(std::future::poll_fn(|cx| {
                if let Some(future) = &mut served.future
                    && let Poll::Ready(output) = future.as_mut().poll(cx)
                {
                    return Poll::Ready(DeskTask::End(output));
                }
                let mut content = self.lock();
                if let Some(call) = content.calls.pop_front() {
                    return Poll::Ready(DeskTask::Call(call));
                }
                content.waker = Some(cx.waker().clone());
                Poll::Pending
            }));
            match next {
                DeskTask::End(output) => {
                    served.future = None;
                    return output;
                }
                DeskTask::Call(call) => call(),
            }
        }
    }
}

/// A future that is dropped in its runtime, also when a function has panicked: what it had begun is given up
/// there.
struct FutureGuard<'a, F> {
    driver: &'a Driver,
    future: Option<Pin<Box<F>>>,
}

impl<F> Drop for FutureGuard<'_, F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.driver.give_up(future);
        }
    }
}
