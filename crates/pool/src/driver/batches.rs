//! Batches: jobs that a worker gets together, to do them in one call.
//!
//! A worker that takes batches gets the jobs that wait at the moment of its dispatch, so a job that is alone
//! is sent at once. The frames of a batch leave in one piece. From then on each job is on its own: its reply,
//! timeout and caller are those of a single job. Only the credit (`load`) and the claim are the batch's.
//!
//! # Invariants
//! * Each frame of a batch but the last has the flag MORE, and no other frame comes between them.
//! * The jobs of a batch lie side by side in `in_flight`. A job that was sent alone is a batch of one, at any
//!   worker.

use cattlegrid_worker::frame::FLAG_MORE;
use cattlegrid_worker::message::JobBody;

use crate::driver::Driver;
use crate::error::Error;
use crate::worker::{SentJob, WorkerProcess};

impl Driver {
    /// Sends a job that was taken out of the queue to a worker with room for it, and further queued jobs in
    /// the same batch if the worker takes them: as many as are waiting, at most
    /// [`WorkerProcess::batch_room`], and their arguments within `inflight_bytes`.
    pub(super) fn send_batch(&mut self, slot: usize, first: u64, bytes: usize) {
        if self.end_if_too_large(slot, first) {
            return;
        }
        let Some(worker) = self.fleet.get(slot) else { return };
        let (room, start) = (worker.batch_room(), worker.sent);
        let counts = worker.takes_batches && self.base.options().batch > 1;
        let mut bytes = worker.in_flight_bytes + bytes;
        if room == 1 {
            self.send_job(slot, first, 0, start + 1);
        } else {
            let mut batch = std::mem::take(&mut self.batch);
            batch.push(first);
            while batch.len() < room
                && let Some((id, len)) = self.jobs.pop(&mut self.base)
            {
                if self.end_if_too_large(slot, id) {
                    continue;
                }
                bytes += len;
                if bytes > self.base.options().inflight_bytes {
                    self.jobs.unpop(id);
                    break;
                }
                batch.push(id);
            }
            let end = start + batch.len() as u64;
            let last = batch.pop();
            for id in batch.drain(..) {
                self.send_job(slot, id, FLAG_MORE, end);
            }
            if let Some(id) = last {
                self.send_job(slot, id, 0, end);
            }
            self.batch = batch;
        }
        if counts {
            let Some(worker) = self.fleet.get(slot) else { return };
            self.base.counters().batches.add(1);
            self.base.counters().batched.add(worker.sent - start);
        }
    }

    /// Ends a job whose arguments are longer than the worker accepts.
    #[inline]
    fn end_if_too_large(&mut self, slot: usize, id: u64) -> bool {
        let (Some(worker), Some(job)) = (self.fleet.get(slot), self.jobs.get(id)) else { return true };
        let len = JobBody::prefix(0, 0).len() + job.args.len();
        if len <= worker.max_frame as usize || worker.json {
            return false;
        }
        let (len, max) = (job.args.len(), worker.max_frame as usize);
        self.jobs.reject(id, Error::TooLarge { len, max }, &mut self.base);
        true
    }
}

impl WorkerProcess {
    /// Most jobs in the next batch.
    #[inline]
    pub(crate) fn batch_room(&self) -> usize {
        match self.job_limit {
            0 => self.batch,
            limit => (limit.saturating_sub(self.sent).min(self.batch as u64) as usize).max(1),
        }
    }

    /// Place of the last job of the batch of the job in place `at`.
    pub(crate) fn last_of_batch(&self, at: usize) -> usize {
        let end = self.in_flight[at].end;
        let behind = self.in_flight.iter().skip(at + 1).take_while(|sent| sent.end == end);
        at + behind.count()
    }

    /// Adds a job that was sent.
    #[inline]
    pub(crate) fn push(&mut self, sent: SentJob) {
        self.batches += usize::from(self.in_flight.back().is_none_or(|last| last.end != sent.end));
        self.in_flight_bytes += sent.bytes;
        self.in_flight.push_back(sent);
    }

    /// Removes the job in place `at`.
    #[inline]
    pub(crate) fn remove(&mut self, at: usize) -> Option<SentJob> {
        let sent = self.in_flight.remove(at)?;
        let is_of_batch = |other: Option<&SentJob>| other.is_some_and(|other| other.end == sent.end);
        let before = at.checked_sub(1).and_then(|before| self.in_flight.get(before));
        let others = is_of_batch(self.in_flight.get(at)) || is_of_batch(before);
        self.batches -= usize::from(!others);
        self.in_flight_bytes -= sent.bytes;
        self.taken -= usize::from(sent.taken);
        Some(sent)
    }
}
