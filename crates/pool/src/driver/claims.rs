//! Jobs that wait at a worker behind a long job are taken back: when another worker is idle, and when no
//! caller waits for them any more, because their time is up or their callers have gone. While they wait and
//! no worker is idle, the pool grows as for jobs in the queue.
//!
//! Two words of the progress page decide whether a job belongs to the worker or to the pool
//! (`cattlegrid_worker::claim`). A job that was taken back goes to the head of the queue and to the idle
//! worker in the same turn. Its frame is still at the first worker: the entry stays in `in_flight`, with
//! `taken` set, until the worker reaches it and says SKIPPED. So a worker in a long job gets no more frames
//! than `load`, however often its jobs are taken back.
//!
//! # Invariants
//! * Jobs for another worker are taken only from a worker that is in a job. A worker that has begun none may
//!   be stopped, and the pool finds that out by its jobs. A job without a caller stays among the doomed until
//!   it is skipped.
//! * At most as many batches are taken as workers are idle, each of them whole, and none while jobs are
//!   queued: queued jobs go first. A single job is a batch of one. The jobs before a taken job that are not
//!   begun are taken with it.
//! * A job that is surely taken has at most one live entry, at its next worker. A job that both sides claim
//!   at the same moment keeps its live entry until the worker says SKIPPED or replies.

use std::time::{Duration, Instant};

use cattlegrid_worker::sys::Page;

use crate::driver::Driver;
use crate::job::{JobEntry, JobStage};
use crate::time::later;
use crate::worker::{Role, WorkerProcess, WorkerState};

impl Driver {
    /// Takes back jobs that busy workers have not begun, for idle workers. Returns whether
    /// [`Driver::dispatch`] has any to send.
    pub(super) fn take_back(&mut self) -> bool {
        let sizing = self.fleet.sizing();
        if sizing.idle() == 0 || sizing.busy() + sizing.leaving() == 0 || self.jobs.has_queued() {
            return false;
        }
        let idle = self.fleet.iter().filter(|worker| worker.is_free()).count();
        let mut found = 0;
        while found < idle {
            let Some((due, slot, at)) = self.next_offered() else { break };
            if due > self.base.now() {
                self.base.alarm(due);
                break;
            }
            let queued = self.jobs.queued();
            let last = self.fleet.get(slot).map_or(at, |worker| worker.last_of_batch(at));
            self.take_up_to(slot, last, None);
            found += usize::from(self.jobs.queued() > queued);
        }
        self.jobs.has_queued()
    }

    /// Batches that wait at workers behind a job, as long as an idle worker lets them wait, if the pool could
    /// grow. A worker that does several jobs at a time begins them at once.
    pub(super) fn count_behind(&mut self) -> usize {
        let sizing = self.fleet.sizing();
        if sizing.busy() + sizing.leaving() == 0 || sizing.total() >= sizing.config().max {
            return 0;
        }
        let (mut count, mut next) = (0, None::<Instant>);
        for worker in self.fleet.iter().filter(|worker| worker.one_at_a_time) {
            let Some((due, at)) = self.first_offered(worker) else { continue };
            if due > self.base.now() {
                next = Some(next.map_or(due, |next| next.min(due)));
            } else {
                let waiting = worker.in_flight.iter().skip(at);
                count += waiting.filter(|sent| !sent.taken && sent.order + 1 == sent.end).count();
            }
        }
        self.base.alarm_opt(next);
        count
    }

    /// The earliest time at which a job may be taken back, among each worker's first job that is not begun:
    /// the time, the worker's slot, and the job's place there.
    fn next_offered(&self) -> Option<(Instant, usize, usize)> {
        let first = |(slot, worker): (usize, &WorkerProcess)| {
            let (due, at) = self.first_offered(worker)?;
            Some((due, slot, at))
        };
        self.fleet.numbered().filter_map(first).min()
    }

    /// The worker's first job that is not begun: when it may be taken, and its place.
    fn first_offered(&self, worker: &WorkerProcess) -> Option<(Instant, usize)> {
        if !worker.may_be_taken_from() {
            return None;
        }
        let begun = worker.page.as_ref()?.claims().begun();
        let is_in_one = worker.in_flight.iter().any(|sent| !sent.taken && sent.order < begun);
        let at = worker
            .in_flight
            .iter()
            .position(|sent| !sent.taken && sent.order >= begun && self.jobs.is_open(sent.id))?;
        let sent = self.jobs.get(worker.in_flight[at].id)?.sent;
        // No event says when the worker begins a job: it is looked at again, at growing intervals.
        let again = TAKE_AFTER.max(self.base.now().saturating_duration_since(sent) / 4);
        Some((if is_in_one { later(sent, TAKE_AFTER) } else { self.base.after(again) }, at))
    }

    /// Takes back a job without a caller, if the worker has not begun it: the job ends.
    pub(super) fn take_for_good(&mut self, slot: usize, id: u64) {
        let Some(worker) = self.fleet.get(slot) else { return };
        let at =
            worker.place_of(id).filter(|at| worker.uses_claims && !worker.has_begun(&worker.in_flight[*at]));
        if let Some(at) = at {
            self.take_up_to(slot, at, Some(id));
        }
    }

    /// Takes back the job in place `at` and the jobs before it that are not begun. The job `ended` is not
    /// sent to another worker.
    fn take_up_to(&mut self, slot: usize, at: usize, ended: Option<u64>) {
        let Some(worker) = self.fleet.get_mut(slot) else { return };
        let Some(claims) = worker.page.as_ref().map(Page::claims) else { return };
        let begun = claims.take_back(worker.in_flight[at].order + 1);
        let mut ids = Vec::new();
        for sent in worker.in_flight.iter_mut().take(at + 1).filter(|sent| !sent.taken && sent.order >= begun)
        {
            sent.taken = true;
            ids.push(sent.id);
        }
        worker.taken += ids.len();
        // They have no callers, and the worker will not begin them.
        worker.doomed.retain(|doomed| !ids.contains(&doomed.id));
        for id in ids.into_iter().rev() {
            match self.jobs.get_mut(id) {
                Some(job) if Some(id) == ended => job.stage = JobStage::Leaving,
                _ => self.put_back(id),
            }
        }
    }

    /// Puts a job that no worker has at the head of the queue, or removes it from the table if it has no
    /// caller.
    fn put_back(&mut self, id: u64) {
        match self.jobs.get_mut(id) {
            Some(JobEntry { sink: Some(_), .. }) => {
                self.jobs.requeue(id, &mut self.base);
                self.base.counters().taken_back.add(1);
            }
            _ => self.jobs.remove(id),
        }
    }

    /// The worker has reached a job that was taken back.
    ///
    /// # Errors
    /// The rule of the protocol that it broke: the job was not taken back.
    pub(super) fn on_skipped(&mut self, slot: usize, id: u64) -> Result<(), String> {
        let found = self.fleet.get(slot).and_then(|worker| {
            let taken = worker.page.as_ref().filter(|_| worker.uses_claims)?.claims().taken();
            let at = worker.in_flight.iter().position(|sent| sent.id == id && sent.order < taken)?;
            Some((at, worker.in_flight[at].taken))
        });
        let Some((at, surely)) = found else {
            return Err(format!("it skipped job {id:#x}, which was not taken back"));
        };
        self.fleet.on_released(slot, at, &mut self.base);
        if !surely {
            self.put_back(id);
        }
        Ok(())
    }
}

impl WorkerProcess {
    /// Whether it has nothing to do and may be given something.
    fn is_free(&self) -> bool {
        self.role == Role::Member && self.in_flight.is_empty() && self.has_credit()
    }

    /// Whether there can be a job to take back: behind another one, at a worker that claims its jobs.
    fn may_be_taken_from(&self) -> bool {
        self.uses_claims
            && self.in_flight.len() > self.taken + 1
            && self.batches > 1
            && matches!(self.state, WorkerState::Ready | WorkerState::Retiring)
    }
}

/// How long a job waits at its worker before it may be taken back. Most jobs are begun by then; taking a job
/// back costs two frames, and its arguments are sent twice.
const TAKE_AFTER: Duration = Duration::from_millis(1);
