//! Many jobs in one submission, each with a handle by which it can be withdrawn or raised later.
//!
//! A submission is one message to the pool's thread. All of its jobs are queued before the first one is sent to a worker, so the
//! order of priorities holds among them. A handle knows its job by the id that the pool's thread notes for it; messages
//! keep their order, so the id is there when a message about the job is handled.
//!
//! # Invariants
//! * A job of a submission ends in exactly one outcome, like any other, whatever is done with its handle and when.
//! * A withdrawn job is not begun after [`JobHandle::withdraw`] was handled, and a worker that has begun it is not disturbed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cattlegrid_panic::guarded;

use crate::error::Error;
use crate::inbox::Message;
use crate::job::{Callback, NewJob, Outcome, Sink};
use crate::options::QueuePolicy;
use crate::payload::Args;
use crate::pool::Pool;
use crate::queue::Priority;
use crate::shared::Shared;

/// A job of a submission: see [`Pool::submit_all`].
#[must_use = "a job is submitted by submit_all()"]
pub struct JobSpec {
    args: Args,
    done: Callback,
    priority: Priority,
    timeout: Option<Duration>,
    idempotent: bool,
    tag: u64,
}

impl std::fmt::Debug for JobSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobSpec").field("args", &self.args).field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl JobSpec {
    /// A job with these arguments. `done` is called with its outcome, exactly once; where and what it may do:
    /// [`Pool::submit_all`].
    pub fn new(args: impl Into<Args>, done: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self {
            args: args.into(),
            done: Callback::new(done),
            priority: Priority::Normal,
            timeout: None,
            idempotent: false,
            tag: 0,
        }
    }

    /// Time from the submission to the outcome. Default: the pool's `job_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Urgency. Default Normal.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Says that the job may be begun twice: [`crate::Retry`] applies to it. Default false.
    pub fn idempotent(mut self, idempotent: bool) -> Self {
        self.idempotent = idempotent;
        self
    }

    /// A number that events of this job carry. Default 0.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }
}

/// A submitted job. Dropping the handle does nothing to the job.
#[derive(Debug, Clone)]
pub struct JobHandle {
    shared: Arc<Shared>,
    note: Note,
}

/// Where the pool's thread notes the id of a job for its handle; 0 until then, and for a job that was refused at once.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    ids: Arc<[AtomicU64]>,
    at: usize,
}

impl Note {
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
    /// Says that the outcome is no longer needed. A job that no worker has begun ends as [`Error::Cancelled`]: it is in the
    /// queue, or it is taken back from a worker that claims its jobs, as the workers of both SDKs do. A job that was begun
    /// goes on to its end undisturbed, and its outcome is that end; it is not begun again ([`crate::Retry`]). Does nothing to a job that
    /// has ended. Costs a message to the pool's thread.
    pub fn withdraw(&self) {
        self.shared.inbox.send(Message::Withdraw(self.note.clone(), false));
    }

    /// As [`JobHandle::withdraw`]; a worker that has begun the job is told besides: its `cancelled()` is true from then on. It is not
    /// stopped, and the job's time goes on. If it ends the job with an error, as an asynchronous worker does whose task is cancelled so,
    /// the job ends as [`Error::Cancelled`].
    pub fn abandon(&self) {
        self.shared.inbox.send(Message::Withdraw(self.note.clone(), true));
    }

    /// Moves the job to a more urgent class of the queue, to the place that it would have there had it been submitted with
    /// this priority. Does nothing to a job that has that priority or a more urgent one, or that has ended. A job at
    /// a worker stays there, and has the priority if it comes back to the queue. Costs a message to the pool's thread.
    pub fn raise(&self, priority: Priority) {
        self.shared.inbox.send(Message::Raise(self.note.clone(), priority));
    }
}

impl Pool {
    /// Submits many jobs in one message, which wakes the pool's thread at most once. All of them are in the queue before any is sent
    /// to a worker. Returns a handle for each job, in their order.
    ///
    /// Callbacks are called on the pool's thread: they must be quick, may submit more jobs, and must not wait for the pool. A job
    /// that is refused at once has its callback called on this thread before the function returns: with
    /// [`Error::TooLarge`], [`Error::Shutdown`], or [`Error::Rejected`] if the queue has no room for it. Jobs beyond the
    /// queue's limit are treated one by one as the policy says, the last ones first; with [`QueuePolicy::Wait`] they wait for
    /// room together.
    pub fn submit_all(&self, jobs: Vec<JobSpec>) -> Vec<JobHandle> {
        let shared = self.shared();
        let ids: Arc<[AtomicU64]> = jobs.iter().map(|_| AtomicU64::new(0)).collect();
        let note = |at| Note { ids: Arc::clone(&ids), at };
        let max = shared.max_args();
        let mut room = shared.room();
        let (mut accepted, mut refused) = (Vec::with_capacity(jobs.len()), Vec::new());
        for (at, job) in jobs.into_iter().enumerate() {
            if shared.inbox.closed.load(Ordering::SeqCst) {
                refused.push((job, shared.inbox.refusal()));
            } else if job.args.len() > max {
                let len = job.args.len();
                refused.push((job, Error::TooLarge { len, max }));
            } else if shared.queue_policy == QueuePolicy::Reject && room == 0 {
                shared.inbox.refused.fetch_add(1, Ordering::Relaxed);
                refused.push((job, Error::Rejected));
            } else {
                room = room.saturating_sub(1);
                accepted.push(NewJob {
                    args: job.args.encoded,
                    sink: Sink::Callback(job.done),
                    priority: job.priority,
                    timeout: job.timeout.or(shared.job_timeout),
                    idempotent: job.idempotent,
                    tag: job.tag,
                    progress: None,
                    note: Some(note(at)),
                });
            }
        }
        shared.inbox.backlog.fetch_add(accepted.len(), Ordering::Relaxed);
        if !accepted.is_empty() {
            shared.inbox.send(Message::SubmitAll(accepted));
        }
        for (job, error) in refused {
            // A callback of the program, on the thread that has submitted the job.
            guarded(|| Sink::Callback(job.done).deliver(Err(error))).ok();
        }
        (0..ids.len()).map(|at| JobHandle { shared: self.share(), note: note(at) }).collect()
    }
}
