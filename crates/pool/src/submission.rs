//! Many jobs in one submission, each with a handle by which it can be withdrawn or raised later.
//!
//! A submission is one message to the pool's thread. All of its jobs are queued before the first one is sent
//! to a worker, so the order of priorities holds among them. A handle knows its job by the id that the pool's
//! thread notes for it; messages keep their order, so the id is there when a message about the job is
//! handled.
//!
//! # Invariants
//! * A job of a submission ends in exactly one outcome, like any other, whatever is done with its handle and
//!   when.
//! * A withdrawn job is not begun after [`JobHandle::withdraw`] was handled, and a worker that has begun it
//!   is not disturbed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cattlegrid_panic::guarded;

use crate::inbox::InboxMessage;
use crate::job::{Callback, JobOptions, NewJob, Outcome, OutcomeSink, job_options};
use crate::payload::Args;
use crate::pool::Pool;
use crate::queue::Priority;
use crate::shared::PoolShared;

/// A job of a submission: see [`Pool::submit_all`].
#[must_use = "a job is submitted by submit_all()"]
pub struct JobSpec {
    options: JobOptions,
    done: Callback,
}

impl std::fmt::Debug for JobSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let JobOptions { args, tag, .. } = &self.options;
        f.debug_struct("JobSpec").field("args", args).field("tag", tag).finish_non_exhaustive()
    }
}

impl JobSpec {
    /// A job with these arguments. `done` is called exactly once with its outcome; see [`Pool::submit_all`]
    /// for the thread and the rules.
    pub fn new(args: impl Into<Args>, done: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self { options: JobOptions::new(args.into()), done: Callback::new(done) }
    }

    job_options!();
}

/// A submitted job. Dropping the handle does nothing to the job.
#[derive(Debug, Clone)]
pub struct JobHandle {
    shared: Arc<PoolShared>,
    note: JobNote,
}

/// The place where the pool's thread stores the id of a job for its handle; 0 before that, and for a job that
/// was refused at once.
#[derive(Debug, Clone)]
pub(crate) struct JobNote {
    ids: Arc<[AtomicU64]>,
    at: usize,
}

impl JobNote {
    #[inline]
    pub(crate) fn set(&self, id: u64) {
        self.ids[self.at].store(id, Ordering::Release);
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.ids[self.at].load(Ordering::Acquire)
    }
}

impl JobHandle {
    /// Says that the outcome is no longer needed. A job that no worker has begun ends as
    /// [`crate::Error::Cancelled`]: it is in the queue, or it is taken back from a worker that claims its
    /// jobs, as the workers of both SDKs do. A job that was begun goes on to its end undisturbed, and its
    /// outcome is that end; it is not begun again ([`crate::Retry`]). Does nothing to a job that has ended.
    /// Costs a message to the pool's thread.
    pub fn withdraw(&self) {
        self.shared.inbox.send(InboxMessage::Withdraw(self.note.clone(), false));
    }

    /// Withdraws the job as [`JobHandle::withdraw`] does, and tells a worker that has begun it: its
    /// `cancelled()` is true from then on. The worker is not stopped, and the time limit of the job still
    /// runs. If the worker ends the job with an error, as an asynchronous worker does whose task is
    /// cancelled, the job ends as [`crate::Error::Cancelled`].
    pub fn abandon(&self) {
        self.shared.inbox.send(InboxMessage::Withdraw(self.note.clone(), true));
    }

    /// Moves the job to a more urgent class of the queue, to the place that it would have there had it been
    /// submitted with this priority. Does nothing to a job that has that priority or a more urgent one, or
    /// that has ended. A job at a worker stays there, and has the priority if it comes back to the queue.
    /// Costs a message to the pool's thread.
    pub fn raise(&self, priority: Priority) {
        self.shared.inbox.send(InboxMessage::Raise(self.note.clone(), priority));
    }
}

impl Pool {
    /// Submits many jobs in one message, which wakes the pool's thread at most once. All of them are in the
    /// queue before any is sent to a worker. Returns a handle for each job, in their order.
    ///
    /// Callbacks are called on the pool's thread: they must be quick, may submit more jobs, and must not wait
    /// for the pool. A job that is refused at once has its callback called on this thread before the function
    /// returns: with [`crate::Error::TooLarge`], [`crate::Error::Shutdown`], or [`crate::Error::Rejected`] if
    /// the queue has no room for it. Jobs beyond the queue's limit are treated one by one as the policy says,
    /// the last ones first; with [`crate::QueuePolicy::Wait`] they wait for room together.
    pub fn submit_all(&self, jobs: Vec<JobSpec>) -> Vec<JobHandle> {
        let shared = self.shared();
        let ids: Arc<[AtomicU64]> = jobs.iter().map(|_| AtomicU64::new(0)).collect();
        let note = |at| JobNote { ids: Arc::clone(&ids), at };
        let mut room = shared.room();
        let (mut accepted, mut refused) = (Vec::with_capacity(jobs.len()), Vec::new());
        for (at, job) in jobs.into_iter().enumerate() {
            if let Some(error) = shared.refusal(job.options.args.len(), room) {
                refused.push((job.done, error));
                continue;
            }
            room = room.saturating_sub(1);
            let job = job.options.into_job(OutcomeSink::Callback(job.done), shared.job_timeout);
            accepted.push(NewJob { note: Some(note(at)), ..job });
        }
        shared.inbox.backlog.fetch_add(accepted.len(), Ordering::Relaxed);
        if !accepted.is_empty() {
            shared.inbox.send(InboxMessage::SubmitAll(accepted));
        }
        for (done, error) in refused {
            // A callback of the program, on the thread that has submitted the job.
            guarded(|| OutcomeSink::Callback(done).deliver(Err(error))).ok();
        }
        (0..ids.len()).map(|at| JobHandle { shared: self.share(), note: note(at) }).collect()
    }
}
