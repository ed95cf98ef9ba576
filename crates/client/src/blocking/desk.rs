//! Functions of the program that a future needs, called by the thread that drives the future, but not while it does.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::sync::oneshot;

use super::Driver;
use crate::error::Error;

/// Passes arguments from a future to its thread, and results back.
pub(super) struct Desk<A, R>(Mutex<Content<A, R>>);

struct Content<A, R> {
    /// Calls that the thread has not begun.
    asked: VecDeque<(A, oneshot::Sender<R>)>,
    waker: Option<Waker>,
}

/// What the thread has to do next.
enum Next<O, A, R> {
    End(O),
    Call(A, oneshot::Sender<R>),
}

impl<A, R> Desk<A, R> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Content { asked: VecDeque::new(), waker: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Content<A, R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of the future: has the function called with this argument, after the calls before it.
    ///
    /// # Errors
    /// The thread has ended without an answer.
    pub(super) async fn call(&self, argument: A) -> Result<R, Error> {
        let (sender, receiver) = oneshot::channel();
        let waker = {
            let mut content = self.lock();
            content.asked.push_back((argument, sender));
            content.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        receiver.await.map_err(|_| Error::Usage("the thread of the call has ended".to_owned()))
    }

    /// Of the thread: runs the future to its end, and calls the function whenever the future asks for it. Other threads drive the runtime
    /// during that time.
    pub(super) fn serve<F: Future>(
        &self,
        driver: &Driver,
        future: F,
        mut call: impl FnMut(A) -> R,
    ) -> F::Output {
        let mut served = Served { driver, future: Some(Box::pin(future)) };
        loop {
            let next = driver.run(std::future::poll_fn(|cx| {
                if let Some(future) = &mut served.future
                    && let Poll::Ready(output) = future.as_mut().poll(cx)
                {
                    return Poll::Ready(Next::End(output));
                }
                let mut content = self.lock();
                if let Some((argument, sender)) = content.asked.pop_front() {
                    return Poll::Ready(Next::Call(argument, sender));
                }
                content.waker = Some(cx.waker().clone());
                Poll::Pending
            }));
            match next {
                Next::End(output) => {
                    served.future = None;
                    return output;
                }
                // The future may have been dropped.
                Next::Call(argument, sender) => drop(sender.send(call(argument))),
            }
        }
    }
}

/// A future that is dropped in its runtime, also when a function has panicked: what it had begun is given up there.
struct Served<'a, F> {
    driver: &'a Driver,
    future: Option<Pin<Box<F>>>,
}

impl<F> Drop for Served<'_, F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.driver.give_up(future);
        }
    }
}
