//! The way into the pool's thread: a locked vector and one eventfd, written only when the thread sleeps.
//!
//! # Invariants
//! * A message is handed to the pool's thread or refused, never lost: after [`Inbox::end`] each sender gets
//!   the refusal.
//! * The thread never sleeps while a message is in the vector.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cattlegrid_panic::guarded;

use crate::error::Error;
use crate::job::{NewJob, Outcome};
use crate::launch::Launch;
use crate::promise::{Promise, Resolver};
use crate::queue::Priority;
use crate::submission::JobNote;
use crate::worker::WorkerInfo;

/// A request of another thread to the pool's thread.
#[derive(Debug)]
pub(crate) enum InboxMessage {
    /// A new job.
    Submit(NewJob),
    /// New jobs, which are queued together.
    SubmitAll(Vec<NewJob>),
    /// The outcome of this job is no longer needed; whether a worker that has begun it is told.
    Withdraw(JobNote, bool),
    /// This job has become more urgent.
    Raise(JobNote, Priority),
    /// The caller of this job has gone.
    Cancel(Promise<Outcome>),
    /// Retire the worker with this number; answers whether there is one.
    Retire(u64, Resolver<bool>),
    /// New `idle` and `max`.
    Resize(usize, usize),
    /// A new generation.
    Reload(Box<Launch>, Resolver<Result<(), Error>>),
    /// Answer when this many workers are ready.
    Ready(usize, Resolver<Result<(), Error>>),
    /// The budget has room for the pool, or another pool that shares it waits.
    Budget,
    /// Numbers and process ids of the ready workers.
    Workers(Resolver<Vec<WorkerInfo>>),
    /// The event stream has room again.
    ResumeEvents,
    /// Replies that wait were granted room.
    ReplyRoom,
    /// No more jobs; end when all are done, or after the time. `None`: no limit (the last handle was
    /// dropped).
    Drain(Option<Duration>, Option<Resolver<()>>),
    /// End at once.
    Kill(Option<Resolver<()>>),
}

impl InboxMessage {
    /// Answers the message for a pool that has ended; `error` says how it ended.
    pub(crate) fn refuse(self, error: Error) {
        match self {
            Self::Submit(job) => job.sink.deliver(Err(error)),
            Self::SubmitAll(jobs) => {
                for job in jobs {
                    // A callback that panics keeps no other job from its outcome.
                    guarded(|| job.sink.deliver(Err(error.clone()))).ok();
                }
            }
            Self::Retire(_, answer) => answer.resolve(false),
            Self::Reload(_, answer) | Self::Ready(_, answer) => answer.resolve(Err(error)),
            Self::Workers(answer) => answer.resolve(Vec::new()),
            Self::Drain(_, Some(answer)) | Self::Kill(Some(answer)) => answer.resolve(()),
            Self::Drain(..)
            | Self::Kill(_)
            | Self::Cancel(_)
            | Self::Withdraw(..)
            | Self::Raise(..)
            | Self::Resize(..)
            | Self::Budget
            | Self::ResumeEvents
            | Self::ReplyRoom => {}
        }
    }
}

/// Messages for the pool's thread, and the counts that callers check before they send.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Messages, and whether the pool's thread still takes them.
    messages: Mutex<(Vec<InboxMessage>, bool)>,
    /// The pool's thread is about to wait, or waits.
    sleeping: AtomicBool,
    wake: OwnedFd,
    /// Jobs submitted and not yet sent to a worker or ended.
    pub(crate) backlog: AtomicUsize,
    /// Jobs refused at the caller because the queue was full.
    pub(crate) refused: AtomicU64,
    /// No more jobs are accepted.
    pub(crate) closed: AtomicBool,
    /// The pool's thread has panicked.
    pub(crate) lost: AtomicBool,
}

impl Inbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self {
            messages: Mutex::new((Vec::new(), true)),
            sleeping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            backlog: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        })
    }

    /// Adds a message. One system call if the pool sleeps, otherwise none.
    pub(crate) fn send(&self, message: InboxMessage) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if !messages.1 {
            drop(messages);
            // Callbacks and wakers of the program, on the sender's thread.
            guarded(|| message.refuse(self.refusal())).ok();
            return;
        }
        messages.0.push(message);
        drop(messages);
        // 1. The pool finds no message. 2. This thread adds one. 3. The pool sets `sleeping` and looks again
        // (`before_wait`), so it finds the message.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).ok();
        }
    }

    /// Why nothing is accepted any more.
    pub(crate) fn refusal(&self) -> Error {
        if self.lost.load(Ordering::SeqCst) { Error::PoolLost } else { Error::Shutdown }
    }

    /// Moves all messages into `into`.
    pub(crate) fn take(&self, into: &mut Vec<InboxMessage>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut messages.0, into);
    }

    /// Takes the messages as [`Inbox::take`] does, and refuses all messages from now on.
    pub(crate) fn end(&self, into: &mut Vec<InboxMessage>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut messages.0, into);
        messages.1 = false;
    }

    /// Says that the pool is about to wait. False when a message came in between: do not wait.
    pub(crate) fn before_wait(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let empty = self.messages.lock().unwrap_or_else(PoisonError::into_inner).0.is_empty();
        if !empty {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        empty
    }

    /// The pool no longer waits.
    pub(crate) fn after_wait(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Empties the eventfd.
    pub(crate) fn drain_wake(&self) {
        rustix::io::read(&self.wake, &mut [0; 8]).ok();
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
