//! The jobs of a pool: the table of those that have not ended, their queue, and their deadlines.
//!
//! It knows no worker. The driver takes a job out of the queue, sends it, and puts it back or ends it.
//!
//! # Invariants
//! * [`Jobs::end`] is the only place that delivers outcomes. It takes the sink out of the job, so there is
//!   exactly one.
//! * A job that is at a worker stays in the table until the worker has let go of it, so that a late reply is
//!   recognised.
//! * The inbox's `backlog` counts the jobs that were submitted and are neither at a worker nor ended.

use std::collections::VecDeque;
use std::time::Instant;

use crate::base::DriverBase;
use crate::deadlines::Deadlines;
use crate::error::Error;
use crate::job::{JobEntry, JobStage, JobTable, NewJob, Outcome, OutcomeSink};
use crate::options::Options;
use crate::promise::Waiter;
use crate::queue::{Priority, Queue};

/// See the module.
pub(crate) struct Jobs {
    table: JobTable,
    queue: Queue,
    /// Jobs held because the queue is full (policy Wait).
    held: VecDeque<u64>,
    deadlines: Deadlines,
    /// Callers whose outcome has arrived. They are woken after the workers have got their next jobs.
    wakes: Vec<Waiter>,
    queue_limit: usize,
}

impl Jobs {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            table: JobTable::default(),
            queue: Queue::new(options.ageing),
            held: VecDeque::new(),
            deadlines: Deadlines::default(),
            wakes: Vec::new(),
            queue_limit: options.queue_limit,
        }
    }

    /// Enters a new job in the table; it is in no queue yet.
    pub(crate) fn insert(&mut self, new: NewJob, base: &DriverBase) -> u64 {
        base.counters().submitted.add(1);
        let deadline = new.timeout.map(|timeout| base.after(timeout));
        let id = self.table.insert(JobEntry {
            args: new.args,
            sink: Some(new.sink),
            priority: new.priority,
            deadline,
            submitted: base.now(),
            sent: base.now(),
            idempotent: new.idempotent,
            attempt: 0,
            tag: new.tag,
            stage: JobStage::Queued,
            progress: new.progress,
            chunks: None,
            room: None,
            fault: None,
            withdrawn: false,
            told: false,
        });
        if let Some(note) = new.note {
            note.set(id);
        }
        if let Some(JobEntry { sink: Some(OutcomeSink::Call(resolver)), .. }) = self.table.get(id) {
            resolver.set_note(id);
        }
        if let Some(at) = deadline {
            self.deadlines.push(at, id, |id| self.table.is_open(id));
        }
        id
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&JobEntry> {
        self.table.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut JobEntry> {
        self.table.get_mut(id)
    }

    /// Removes a job that has ended from the table.
    pub(crate) fn remove(&mut self, id: u64) {
        self.table.remove(id);
    }

    /// Whether a caller still waits for the job's outcome.
    #[inline]
    pub(crate) fn is_open(&self, id: u64) -> bool {
        self.table.is_open(id)
    }

    /// Jobs in the queue.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether a worker would have a job.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the queue has as many jobs as it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= self.queue_limit
    }

    /// Jobs that are neither at a worker nor ended.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() + self.held.len()
    }

    /// Appends a job to the queue.
    pub(crate) fn enqueue(&mut self, id: u64, now: Instant) {
        if let Some(job) = self.table.get(id) {
            self.queue.push(id, job.priority, now);
        }
    }

    /// Holds a job back because the queue is full.
    pub(crate) fn hold(&mut self, id: u64) {
        if let Some(job) = self.table.get_mut(id) {
            job.stage = JobStage::Held;
        }
        self.held.push_back(id);
    }

    /// Puts jobs that were held back into the queue while it has room.
    pub(crate) fn release_held(&mut self) {
        while !self.held.is_empty() && self.queue.len() < self.queue_limit.max(1) {
            let Some(id) = self.held.pop_front() else { break };
            if let Some(job) = self.table.get_mut(id)
                && job.stage == JobStage::Held
            {
                job.stage = JobStage::Queued;
                self.queue.push(id, job.priority, job.submitted);
            }
        }
    }

    /// Jobs that are held back, those that have ended included.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Puts a job back into the queue: it was sent and never begun, or will be begun again. A job that was
    /// withdrawn ends.
    pub(crate) fn requeue(&mut self, id: u64, base: &mut DriverBase) {
        let Some(job) = self.table.get_mut(id) else { return };
        if job.withdrawn {
            return self.end_unqueued(id, Error::Cancelled, base);
        }
        job.stage = JobStage::Queued;
        job.drop_chunks();
        job.fault = None;
        base.add_backlog();
        self.queue.push_front(id, job.priority, job.submitted);
    }

    /// Takes the next job out of the queue: its id, and the bytes of its arguments. Jobs whose time is up
    /// end.
    #[inline]
    pub(crate) fn pop(&mut self, base: &mut DriverBase) -> Option<(u64, usize)> {
        loop {
            let id = self.queue.pop(|id, class| self.table.waits_in(id, class))?;
            let job = self.table.get(id)?;
            if job.deadline.is_none_or(|at| at > base.now()) {
                return Some((id, job.args.len()));
            }
            base.counters().timeouts.add(1);
            self.reject(id, Error::Timeout { started: false }, base);
        }
    }

    /// Undoes [`Jobs::pop`].
    pub(crate) fn unpop(&mut self, id: u64) {
        if let Some(job) = self.table.get(id) {
            self.queue.push_front(id, job.priority, job.submitted);
        }
    }

    /// Ends the oldest job of the least urgent class. Returns whether there was one.
    pub(crate) fn drop_oldest(&mut self, base: &mut DriverBase) -> bool {
        let Some(oldest) = self.queue.pop_oldest(|id, class| self.table.waits_in(id, class)) else {
            return false;
        };
        self.reject(oldest, Error::Rejected, base);
        true
    }

    /// Ends all jobs in the queue.
    pub(crate) fn end_queued(&mut self, error: &Error, base: &mut DriverBase) {
        while let Some(id) = self.queue.pop(|id, class| self.table.waits_in(id, class)) {
            self.reject(id, error.clone(), base);
        }
    }

    /// Ends all jobs.
    pub(crate) fn end_all(&mut self, error: &Error, base: &mut DriverBase) {
        for id in self.table.ids() {
            self.end(id, Err(error.clone()), base);
        }
    }

    /// A job has become more urgent.
    pub(crate) fn raise(&mut self, id: u64, priority: Priority) {
        let Some(job) = self.table.get_mut(id).filter(|job| priority < job.priority) else { return };
        let before = std::mem::replace(&mut job.priority, priority);
        let (stage, since) = (job.stage, job.submitted);
        if stage == JobStage::Queued {
            self.queue.forget(before, |id, class| self.table.waits_in(id, class));
            self.queue.insert(id, priority, since);
        }
    }

    /// Takes a job whose time is up; the caller ends it.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u64> {
        self.deadlines.pop_due(now, |id| self.table.is_open(id))
    }

    /// No job's time is up before this.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Delivers the outcome of a job. A job that is at a worker stays in the table until the worker lets go
    /// of it.
    pub(crate) fn end(&mut self, id: u64, outcome: Outcome, base: &mut DriverBase) {
        let Some(job) = self.table.get_mut(id) else { return };
        let Some(sink) = job.sink.take() else { return };
        let (stage, priority) = (job.stage, job.priority);
        if job.deadline.is_some() {
            self.deadlines.forget();
        }
        if let JobStage::Sent(_) | JobStage::Released = stage {
            base.counters().run.note(base.now().saturating_duration_since(job.sent));
        }
        count_outcome(&outcome, base);
        match stage {
            JobStage::Sent(_) => {}
            JobStage::Released | JobStage::Leaving => self.remove(id),
            JobStage::Held => {
                self.remove(id);
                base.sub_backlog();
            }
            JobStage::Queued => {
                self.remove(id);
                self.queue.forget(priority, |id, class| self.table.waits_in(id, class));
                base.sub_backlog();
            }
        }
        let mut waiter = Waiter::Nobody;
        base.guard(|| waiter = sink.fill(outcome));
        if !matches!(waiter, Waiter::Nobody) {
            self.wakes.push(waiter);
        }
    }

    /// Ends a job as [`Jobs::end`] does, if it is neither in the queue nor at a worker.
    pub(crate) fn end_unqueued(&mut self, id: u64, error: Error, base: &mut DriverBase) {
        if let Some(job) = self.table.get_mut(id) {
            job.stage = JobStage::Leaving;
        }
        self.end(id, Err(error), base);
    }

    /// Ends a job of the backlog that was taken out of the queue, or was never put into it.
    pub(crate) fn reject(&mut self, id: u64, error: Error, base: &mut DriverBase) {
        base.sub_backlog();
        self.end_unqueued(id, error, base);
    }

    pub(crate) fn wake_callers(&mut self, base: &mut DriverBase) {
        for waiter in self.wakes.drain(..) {
            base.guard(|| waiter.wake());
        }
    }

    pub(crate) fn publish(&self, base: &DriverBase) {
        let (counters, [high, normal, low]) = (base.counters(), self.queue.lens());
        counters.queued_high.set(high as u64);
        counters.queued_normal.set(normal as u64);
        counters.queued_low.set(low as u64);
        counters.held.set(self.held.len() as u64);
    }
}

fn count_outcome(outcome: &Outcome, base: &DriverBase) {
    let counters = base.counters();
    match outcome {
        Ok(_) => counters.completed.add(1),
        Err(Error::Rejected) => counters.rejected.add(1),
        Err(Error::Cancelled) => counters.cancelled.add(1),
        Err(Error::WorkerLost { .. }) => counters.lost.add(1),
        Err(Error::Worker { .. }) => counters.worker_errors.add(1),
        Err(Error::TooLarge { .. }) => counters.too_large.add(1),
        Err(Error::StartFailed { .. }) => counters.start_failed.add(1),
        Err(Error::Shutdown | Error::PoolLost) => counters.shut_down.add(1),
        // Timeouts are counted where they are found.
        Err(_) => {}
    }
}
