//! A job's way: queue, worker, and back. Its outcome: [`crate::jobs::Jobs::end`].
//!
//! A job is queued, sent to the worker with the fewest batches, and ended by its worker's reply, its
//! deadline, its caller or the loss of its worker. A job that was sent to a worker keeps its entry in the
//! table until the worker is done with it, so that a late reply is recognised.
//!
//! A worker that takes batches gets the jobs that wait at that moment together, in the order in which single
//! jobs would be sent.

use crate::advice;
use crate::driver::Driver;
use crate::error::Error;
use crate::job::{JobEntry, JobStage, NewJob};
use crate::options::QueuePolicy;
use crate::worker::DoomedJob;

impl Driver {
    pub(super) fn submit(&mut self, new: NewJob) {
        let Some(id) = self.admit(new) else { return };
        if self.jobs.is_full() {
            self.dispatch();
        }
        if self.jobs.is_full() && !self.has_room_at_once(id) {
            match self.base.options().queue_policy {
                QueuePolicy::Reject => return self.jobs.reject(id, Error::Rejected, &mut self.base),
                QueuePolicy::DropOldest => drop(self.jobs.drop_oldest(&mut self.base)),
                QueuePolicy::Wait => return self.jobs.hold(id),
            }
        }
        self.enqueue(id);
    }

    /// Enters a new job in the table. `None` if it has ended at once, because no worker can be started for it
    /// any more.
    pub(super) fn admit(&mut self, new: NewJob) -> Option<u64> {
        let id = self.jobs.insert(new, &self.base);
        let error = if self.ending.is_leaving() {
            Error::Shutdown
        } else if self.fleet.starts().is_failing() && self.fleet.ready() == 0 {
            self.fleet.starts_mut().want_probe();
            self.fleet.start_error()
        } else {
            return Some(id);
        };
        self.jobs.reject(id, error, &mut self.base);
        None
    }

    /// Appends a new job to the queue.
    pub(super) fn enqueue(&mut self, id: u64) {
        self.jobs.enqueue(id, self.base.now());
        self.fleet.on_queued(&mut self.base);
    }

    /// Sends waiting jobs to workers while workers have room.
    pub(super) fn dispatch(&mut self) {
        while self.jobs.has_queued() {
            let Some(slot) = self.fleet.best() else { break };
            let Some((id, bytes)) = self.jobs.pop(&mut self.base) else { break };
            let limit = self.base.options().inflight_bytes;
            let Some(slot) = self.fleet.with_room(slot, bytes, limit) else {
                self.jobs.unpop(id);
                break;
            };
            self.send_batch(slot, id, bytes);
        }
        self.jobs.release_held();
    }

    /// With the queue full, after [`Driver::dispatch`]: whether a worker takes this job at once. Never while
    /// other jobs wait: these go first.
    fn has_room_at_once(&self, id: u64) -> bool {
        let (bytes, limit) =
            (self.jobs.get(id).map_or(0, |job| job.args.len()), self.base.options().inflight_bytes);
        let best = self.fleet.best().filter(|_| !self.jobs.has_queued());
        best.is_some_and(|slot| self.fleet.with_room(slot, bytes, limit).is_some())
    }

    /// Sends one job of the batch that ends before the order `end`.
    pub(super) fn send_job(&mut self, slot: usize, id: u64, flags: u8, end: u64) {
        let (Some(worker), Some(job)) = (self.fleet.get_mut(slot), self.jobs.get_mut(id)) else { return };
        if let Err(reason) = worker.put_job(id, job, flags, self.base.now()) {
            return self.jobs.reject(id, Error::Codec(reason), &mut self.base);
        }
        job.stage = JobStage::Sent(slot);
        job.sent = self.base.now();
        self.base.counters().wait.note(job.sent.saturating_duration_since(job.submitted));
        self.base.sub_backlog();
        let bytes = job.args.len();
        self.fleet.on_sent(slot, id, end, bytes, &mut self.base);
    }

    /// The worker has let go of a job: its credit is free again.
    #[inline]
    pub(super) fn release(&mut self, slot: usize, id: u64) {
        let Some(at) = self.fleet.get(slot).and_then(|worker| worker.place_of(id)) else { return };
        self.fleet.on_released(slot, at, &mut self.base);
        if let Some(job) = self.jobs.get_mut(id) {
            job.stage = JobStage::Released;
        }
    }

    /// A job's time is up.
    pub(super) fn time_out(&mut self, id: u64) {
        self.note_silence(id);
        let started = self.give_up_on(id);
        self.base.counters().timeouts.add(1);
        self.jobs.end(id, Err(Error::Timeout { started }), &mut self.base);
    }

    /// Says in the log what may be wrong with a worker of JSON lines whose first job runs out of time.
    fn note_silence(&mut self, id: u64) {
        let Some(JobEntry { stage: JobStage::Sent(slot), .. }) = self.jobs.get(id) else { return };
        let Some(worker) = self.fleet.get(*slot) else { return };
        if worker.json && worker.answered == 0 && worker.has(id) {
            self.base.log(worker.number, 2, advice::of_silence(&worker.input).as_bytes());
        }
    }

    /// A job's caller has gone. `id` 0 would be a job that was not submitted yet, which cannot happen:
    /// messages keep their order.
    pub(super) fn cancel(&mut self, id: u64) {
        if self.jobs.is_open(id) {
            self.give_up_on(id);
            self.jobs.end(id, Err(Error::Cancelled), &mut self.base);
        }
    }

    /// Tells the worker, if the job is at one, that the job has no caller any more. Returns whether the
    /// worker had begun it. A job that was not begun, at a worker that claims its jobs, is taken back: it
    /// will not be begun.
    pub(super) fn give_up_on(&mut self, id: u64) -> bool {
        let Some(JobEntry { stage: JobStage::Sent(slot), deadline, .. }) = self.jobs.get(id) else {
            return false;
        };
        let (slot, deadline) = (*slot, *deadline);
        self.take_for_good(slot, id);
        let Some(worker) = self.fleet.get_mut(slot) else { return false };
        let begun = match worker.place_of(id).and_then(|at| worker.in_flight.get(at)) {
            Some(sent) => worker.has_begun(sent),
            // It was taken back. The worker must reach it in time all the same, or it is stopped.
            None if worker.in_flight.iter().any(|sent| sent.id == id) => false,
            None => return false,
        };
        if begun || worker.has(id) {
            worker.put_cancel(id);
        }
        let (now, grace) = (self.base.now(), self.base.options().kill_grace);
        let overdue = deadline.is_some_and(|at| at <= now);
        worker.doomed.push(DoomedJob { id, since: now, termed: false, overdue });
        self.fleet.set_dirty(slot);
        self.base.alarm(self.base.after(grace / 4));
        begun
    }

    /// Ends queued jobs when no worker has been ready for `start_timeout`, or at once while the breaker is
    /// open.
    pub(super) fn scan_desertion(&mut self) {
        let waits = self.jobs.has_queued() && !self.programs.is_launching();
        if self.fleet.is_deserted(waits, &mut self.base) {
            let error = self.fleet.start_error();
            self.jobs.end_queued(&error, &mut self.base);
        } else if self.jobs.has_queued() {
            self.base.alarm(self.base.after(self.base.options().start_timeout));
        }
    }
}
