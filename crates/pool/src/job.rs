//! Jobs: the data that a caller hands over, and the table of all jobs that have not ended.
//!
//! # Invariants
//! * An id names one job for the life of the pool (until 2^32 uses of its slot), so a late reply never ends
//!   another job.
//! * A sink delivers exactly one outcome, also when it is dropped.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cattlegrid_panic::guarded;
use cattlegrid_worker::List;
use cattlegrid_worker::list::put_varint;

use crate::error::Error;
use crate::options::Retry;
use crate::payload::{Args, Reply};
use crate::promise::{Resolver, Waiter};
use crate::queue::Priority;
use crate::reply_room::RoomPermit;
use crate::submission::JobNote;

/// The outcome of a job.
pub type Outcome = Result<Reply, Error>;

/// Called on the pool's thread with each progress report of a job.
pub(crate) type ProgressFn = Box<dyn FnMut(&[u8]) + Send>;

/// The receiver of an outcome.
pub(crate) enum OutcomeSink {
    /// A future, or a blocked thread.
    Call(Resolver<Outcome>),
    /// A callback on the pool's thread.
    Callback(Callback),
}

/// A callback that is called exactly once. If it is dropped before, it is called with [`Error::PoolLost`].
pub(crate) struct Callback(Option<Box<dyn FnOnce(Outcome) + Send>>);

impl Callback {
    pub(crate) fn new(done: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }

    fn call(mut self, outcome: Outcome) {
        if let Some(done) = self.0.take() {
            done(outcome);
        }
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            // This may run while the thread unwinds already.
            guarded(|| done(Err(Error::PoolLost))).ok();
        }
    }
}

impl OutcomeSink {
    pub(crate) fn deliver(self, outcome: Outcome) {
        self.fill(outcome).wake();
    }

    /// Delivers as [`OutcomeSink::deliver`] does, but leaves it to the caller to wake the waiter.
    pub(crate) fn fill(self, outcome: Outcome) -> Waiter {
        match self {
            Self::Call(resolver) => return resolver.fill(outcome),
            Self::Callback(done) => done.call(outcome),
        }
        Waiter::Nobody
    }
}

/// The options that every job has, however it is submitted.
pub(crate) struct JobOptions {
    pub(crate) args: Args,
    pub(crate) priority: Priority,
    pub(crate) timeout: Option<Duration>,
    pub(crate) idempotent: bool,
    pub(crate) tag: u64,
}

impl JobOptions {
    pub(crate) fn new(args: Args) -> Self {
        Self { args, priority: Priority::Normal, timeout: None, idempotent: false, tag: 0 }
    }

    /// Makes the job. `timeout`: its time limit if it has none of its own.
    pub(crate) fn into_job(self, sink: OutcomeSink, timeout: Option<Duration>) -> NewJob {
        NewJob {
            args: self.args.encoded,
            sink,
            priority: self.priority,
            timeout: self.timeout.or(timeout),
            idempotent: self.idempotent,
            tag: self.tag,
            progress: None,
            note: None,
        }
    }
}

/// The methods that set [`JobOptions`] in the field `options`.
macro_rules! job_options {
    () => {
        /// Time from the submission to the outcome. Default: the pool's `job_timeout`.
        pub fn timeout(mut self, timeout: Duration) -> Self {
            self.options.timeout = Some(timeout);
            self
        }

        /// Urgency. Default Normal.
        pub fn priority(mut self, priority: Priority) -> Self {
            self.options.priority = priority;
            self
        }

        /// Whether the job may be begun twice, so that [`crate::Retry`] applies to it. Default false.
        pub fn idempotent(mut self, idempotent: bool) -> Self {
            self.options.idempotent = idempotent;
            self
        }

        /// A number that events of this job carry. Default 0.
        pub fn tag(mut self, tag: u64) -> Self {
            self.options.tag = tag;
            self
        }
    };
}
pub(crate) use job_options;

/// A job on its way into the pool.
pub(crate) struct NewJob {
    pub(crate) args: Bytes,
    pub(crate) sink: OutcomeSink,
    pub(crate) priority: Priority,
    pub(crate) timeout: Option<Duration>,
    pub(crate) idempotent: bool,
    pub(crate) tag: u64,
    pub(crate) progress: Option<ProgressFn>,
    /// The place from which its handle reads the id.
    pub(crate) note: Option<JobNote>,
}

impl std::fmt::Debug for NewJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewJob").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// A job in the pool.
pub(crate) struct JobEntry {
    pub(crate) args: Bytes,
    /// Taken when the outcome is delivered. A job whose worker has not yet let go of it stays in the
    /// table without a sink.
    pub(crate) sink: Option<OutcomeSink>,
    pub(crate) priority: Priority,
    pub(crate) deadline: Option<Instant>,
    pub(crate) submitted: Instant,
    pub(crate) sent: Instant,
    pub(crate) idempotent: bool,
    pub(crate) attempt: u32,
    pub(crate) tag: u64,
    pub(crate) stage: JobStage,
    pub(crate) progress: Option<ProgressFn>,
    /// The parts of a reply that came in chunks: their number and their encoding.
    pub(crate) chunks: Option<(u32, Vec<u8>)>,
    /// The room for these parts.
    pub(crate) room: Option<RoomPermit>,
    /// The error of a message of the job that the pool could not pass on. It becomes the job's outcome when
    /// it ends.
    pub(crate) fault: Option<Error>,
    /// The caller has withdrawn the job: it is not begun, and not begun again.
    pub(crate) withdrawn: bool,
    /// The worker was told that the job is withdrawn, and may end it early.
    pub(crate) told: bool,
}

impl JobEntry {
    /// Whether the job may be begun once more.
    pub(crate) fn may_retry(&self, retry: Retry) -> bool {
        self.idempotent && !self.withdrawn && self.attempt < retry.times
    }

    /// Adds a part of the reply. Returns the bytes of all parts so far; `None` if the part is malformed.
    pub(crate) fn add_chunk(&mut self, body: &[u8]) -> Option<usize> {
        let list = List::parse(body)?;
        let (count, parts) = self.chunks.get_or_insert_default();
        *count += list.len() as u32;
        parts.extend_from_slice(list.encoded_parts());
        Some(parts.len())
    }

    /// The reply, made of the collected parts and the last one.
    pub(crate) fn take_reply(&mut self, body: &[u8]) -> Option<Bytes> {
        self.add_chunk(body)?;
        let (count, parts) = self.chunks.take()?;
        let mut all = Vec::with_capacity(parts.len() + 5);
        put_varint(&mut all, count);
        all.extend_from_slice(&parts);
        debug_assert!(List::parse(&all).is_some(), "lists joined are a list");
        Some(all.into())
    }

    /// Drops the collected parts.
    pub(crate) fn drop_chunks(&mut self) {
        (self.chunks, self.room) = (None, None);
    }

    /// Records an error as the outcome of the job when its worker is done with it. The first error counts.
    pub(crate) fn note_fault(&mut self, error: Error) {
        self.drop_chunks();
        self.fault.get_or_insert(error);
    }
}

/// The stage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobStage {
    /// Held back because the queue is full.
    Held,
    /// In the queue.
    Queued,
    /// The job is neither queued nor at a worker, and is about to end.
    Leaving,
    /// At the worker in this slot.
    Sent(usize),
    /// The worker has answered the job, or has ended.
    Released,
}

/// The table of jobs. Each id is used once: its low half is a slot, its high half counts the slot's uses from
/// 1.
#[derive(Default)]
pub(crate) struct JobTable {
    entries: Vec<(u32, Option<JobEntry>)>,
    free: Vec<u32>,
}

impl JobTable {
    #[inline]
    pub(crate) fn insert(&mut self, job: JobEntry) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[slot as usize];
        // After 2^32 uses of one slot its numbers repeat; 0 is left out, it means "no job".
        entry.0 = entry.0.wrapping_add(1).max(1);
        entry.1 = Some(job);
        u64::from(entry.0) << 32 | u64::from(slot)
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&JobEntry> {
        let (uses, job) = self.entries.get(id as u32 as usize)?;
        if *uses == (id >> 32) as u32 { job.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut JobEntry> {
        let (uses, job) = self.entries.get_mut(id as u32 as usize)?;
        if *uses == (id >> 32) as u32 { job.as_mut() } else { None }
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u64) -> Option<JobEntry> {
        self.get(id)?;
        let slot = id as u32;
        self.free.push(slot);
        self.entries[slot as usize].1.take()
    }

    /// Whether the job waits in this class of the queue.
    #[inline]
    pub(crate) fn waits_in(&self, id: u64, class: Priority) -> bool {
        self.get(id).is_some_and(|job| job.stage == JobStage::Queued && job.priority == class)
    }

    /// Whether a caller still waits for the job's outcome.
    #[inline]
    pub(crate) fn is_open(&self, id: u64) -> bool {
        self.get(id).is_some_and(|job| job.sink.is_some())
    }

    /// Ids of all jobs in the table.
    pub(crate) fn ids(&self) -> Vec<u64> {
        let used = self.entries.iter().enumerate().filter(|(_, entry)| entry.1.is_some());
        used.map(|(slot, entry)| u64::from(entry.0) << 32 | slot as u64).collect()
    }
}
