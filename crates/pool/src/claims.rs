//! Jobs that wait at a worker behind a long one are taken back when another worker is idle, and when nobody waits for them any
//! more: their time is up, or their callers have gone.
//!
//! Whose a job is, the worker's or ours, two words of the progress page decide (`cattlegrid_worker::claim`). A job that was
//! taken back goes to the head of the queue and to the idle worker in the same turn. Its frame is still at the first worker:
//! there it stays in `in_flight`, with `taken` set, until the worker has come to it and says SKIPPED. So a worker in a
//! long job gets no more frames than `load`, however often its jobs are taken away.
//!
//! # Invariants
//! * A job is taken for another worker from one that is in a job, not from one that has begun none: that one may be
//!   stopped, and its jobs are what it is found by. One that nobody waits for stays among the doomed until it is skipped.
//! * For other workers no more jobs are taken than are idle, and none while jobs are queued: these go first. With a job go
//!   those before it that are not begun.
//! * What is surely taken has one live entry at most, at its next worker. What is not (both sides at the same moment)
//!   keeps its live entry until the worker has said SKIPPED, or has replied.

use std::time::{Duration, Instant};

use cattlegrid_worker::sys::Page;

use crate::driver::Driver;
use crate::job::{Job, Place};
use crate::time::later;
use crate::worker::{Role, State, Worker};

impl Driver {
    /// Gives idle workers jobs that others have not begun. Returns whether there is any for [`Driver::dispatch`].
    pub(crate) fn take_back(&mut self) -> bool {
        if self.sizing.idle() == 0
            || self.sizing.busy() + self.sizing.leaving() == 0
            || !self.queue.is_empty()
        {
            return false;
        }
        let idle = self.workers.iter().flatten().filter(|worker| worker.is_free()).count();
        while self.queue.len() < idle {
            let Some((due, slot, at)) = self.next_offered() else { break };
            if due > self.now {
                self.alarm(due);
                break;
            }
            self.take_up_to(slot, at, None);
        }
        !self.queue.is_empty()
    }

    /// Of the first jobs at each worker that are not begun, the one that may be taken first: when, the worker's slot,
    /// and its place there.
    fn next_offered(&self) -> Option<(Instant, usize, usize)> {
        let first = |(slot, worker): (usize, &Option<Box<Worker>>)| {
            let worker = worker.as_ref().filter(|worker| worker.may_be_taken_from())?;
            let begun = worker.page.as_ref()?.claims().begun();
            let is_in_one = worker.in_flight.iter().any(|sent| !sent.taken && sent.order < begun);
            let at = worker
                .in_flight
                .iter()
                .position(|sent| !sent.taken && sent.order >= begun && self.jobs.is_open(sent.id))?;
            let sent = self.jobs.get(worker.in_flight[at].id)?.sent;
            // Nothing tells when it begins one: it is looked at again, less and less often.
            let again = TAKE_AFTER.max(self.now.saturating_duration_since(sent) / 4);
            Some((if is_in_one { later(sent, TAKE_AFTER) } else { later(self.now, again) }, slot, at))
        };
        self.workers.iter().enumerate().filter_map(first).min()
    }

    /// Takes back a job that nobody waits for any more, if it has not begun: it ends.
    pub(crate) fn take_for_good(&mut self, slot: usize, id: u64) {
        let Some(worker) = self.workers.get(slot).and_then(Option::as_ref) else { return };
        let at =
            worker.place_of(id).filter(|at| worker.uses_claims && !worker.has_begun(&worker.in_flight[*at]));
        if let Some(at) = at {
            self.take_up_to(slot, at, Some(id));
        }
    }

    /// Takes back the job in place `at` and those before it that are not begun; for `ended` there is no other worker to find.
    fn take_up_to(&mut self, slot: usize, at: usize, ended: Option<u64>) {
        let Some(worker) = &mut self.workers[slot] else { return };
        let Some(claims) = worker.page.as_ref().map(Page::claims) else { return };
        let begun = claims.take_back(worker.in_flight[at].order + 1);
        let mut ids = Vec::new();
        for sent in worker.in_flight.iter_mut().take(at + 1).filter(|sent| !sent.taken && sent.order >= begun)
        {
            sent.taken = true;
            ids.push(sent.id);
        }
        worker.taken += ids.len();
        // Nobody waits for these, and the worker will not begin them.
        worker.doomed.retain(|doomed| !ids.contains(&doomed.id));
        for id in ids.into_iter().rev() {
            match self.jobs.get_mut(id) {
                Some(job) if Some(id) == ended => job.place = Place::Nowhere,
                _ => self.put_back(id),
            }
        }
    }

    /// A job that no worker has: to the head of the queue, or out of the table when nobody waits for it.
    fn put_back(&mut self, id: u64) {
        match self.jobs.get_mut(id) {
            Some(job @ Job { sink: Some(_), .. }) => {
                job.place = Place::Queued;
                let (priority, since) = (job.priority, job.submitted);
                self.requeue(id, priority, since);
                self.shared.counters.taken_back.add(1);
            }
            _ => drop(self.jobs.remove(id)),
        }
    }

    /// The worker has come to a job that was taken back.
    pub(crate) fn on_skipped(&mut self, slot: usize, id: u64) -> Result<(), String> {
        let found = self.workers[slot].as_ref().and_then(|worker| {
            let taken = worker.page.as_ref().filter(|_| worker.uses_claims)?.claims().taken();
            let at = worker.in_flight.iter().position(|sent| sent.id == id && sent.order < taken)?;
            Some((at, worker.in_flight[at].taken))
        });
        let Some((at, surely)) = found else {
            return Err(format!("it skipped job {id:#x}, which was not taken back"));
        };
        self.let_go(slot, at);
        if !surely {
            self.put_back(id);
        }
        Ok(())
    }
}

impl Worker {
    /// Whether it has nothing to do and may be given something.
    fn is_free(&self) -> bool {
        self.role == Role::Member && self.in_flight.is_empty() && self.has_credit()
    }

    /// Whether there can be a job to take back: behind another one, at a worker that claims its jobs.
    fn may_be_taken_from(&self) -> bool {
        self.uses_claims
            && self.in_flight.len() > self.taken + 1
            && matches!(self.state, State::Ready | State::Retiring)
    }
}

/// How long a job lies at its worker before it is taken back. Most jobs are begun by then; to take one back costs two
/// frames, and its arguments travel twice.
const TAKE_AFTER: Duration = Duration::from_millis(1);
