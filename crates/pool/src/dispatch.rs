//! A job's life: submission, queue, worker, outcome.
//!
//! A job is queued, sent to the worker with the fewest batches, and ended by its worker's reply, its deadline, its caller or the
//! loss of its worker. A job that was sent to a worker keeps its entry in the table until the worker is done with it, so that
//! a late reply is recognised.
//!
//! A worker that takes batches gets the jobs that wait at that moment together, in the order in which single jobs would be sent.
//!
//! # Invariants
//! * [`Driver::end_job`] is the only place that delivers outcomes. It takes the sink out of the job, so there is exactly one.
//! * A job stays in the table until its worker has let go of it.
//! * `backlog` counts the jobs that were submitted and are neither at a worker nor ended.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cattlegrid_worker::List;
use cattlegrid_worker::frame::{Header, Kind, put_frame};
use cattlegrid_worker::message::JobBody;
use rustix::process::Signal;

use crate::advice;
use crate::driver::Driver;
use crate::error::Error;
use crate::job::{Job, NewJob, Outcome, Place, Sink};
use crate::jsonl;
use crate::options::QueuePolicy;
use crate::promise::Waiter;
use crate::time::later;
use crate::worker::{Doomed, Role, Sent, State, Worker};

impl Driver {
    pub(crate) fn submit(&mut self, new: NewJob) {
        let Some(id) = self.admit(new) else { return };
        if self.queue.len() >= self.options.queue_limit {
            self.dispatch();
        }
        if self.queue.len() >= self.options.queue_limit && !self.has_room_at_once(id) {
            match self.options.queue_policy {
                QueuePolicy::Reject => {
                    self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
                    return self.end_unqueued(id, Error::Rejected);
                }
                QueuePolicy::DropOldest => {
                    if let Some(oldest) = self.queue.pop_oldest(|id, class| self.jobs.waits_in(id, class)) {
                        self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
                        self.end_unqueued(oldest, Error::Rejected);
                    }
                }
                QueuePolicy::Wait => {
                    if let Some(job) = self.jobs.get_mut(id) {
                        job.place = Place::Held;
                    }
                    return self.held.push_back(id);
                }
            }
        }
        self.enqueue(id);
    }

    /// Enters a new job in the table. `None` if it has ended at once, because no worker can be started for it any more.
    pub(crate) fn admit(&mut self, new: NewJob) -> Option<u64> {
        self.shared.counters.submitted.add(1);
        let deadline = new.timeout.map(|timeout| later(self.now, timeout));
        let id = self.jobs.insert(Job {
            args: new.args,
            sink: Some(new.sink),
            priority: new.priority,
            deadline,
            submitted: self.now,
            sent: self.now,
            idempotent: new.idempotent,
            attempt: 0,
            tag: new.tag,
            place: Place::Queued,
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
        if let Some(Job { sink: Some(Sink::Call(resolver)), .. }) = self.jobs.get(id) {
            resolver.set_note(id);
        }
        if let Some(at) = deadline {
            self.deadlines.push(at, id, |id| self.jobs.is_open(id));
        }
        if self.ending_without_jobs() {
            self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
            self.end_unqueued(id, Error::Shutdown);
            return None;
        }
        if self.breaker.is_open() && self.sizing.idle() + self.sizing.busy() == 0 {
            self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
            let error = self.start_error();
            self.probe_wanted = true;
            self.end_unqueued(id, error);
            return None;
        }
        Some(id)
    }

    /// Appends a new job to the queue.
    pub(crate) fn enqueue(&mut self, id: u64) {
        let Some(job) = self.jobs.get(id) else { return };
        self.queue.push(id, job.priority, self.now);
        if self.deserted.is_none() && self.sizing.idle() + self.sizing.busy() == 0 {
            self.alarm(self.now);
        }
    }

    /// Puts a job back into the queue: it was sent and never begun, or will be begun again. A job that was withdrawn ends.
    pub(crate) fn requeue(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.withdrawn {
            return self.end_unqueued(id, Error::Cancelled);
        }
        job.place = Place::Queued;
        (job.chunks, job.room, job.fault) = (None, None, None);
        let (priority, since) = (job.priority, job.submitted);
        self.shared.inbox.backlog.fetch_add(1, Ordering::Relaxed);
        self.queue.push_front(id, priority, since);
    }

    /// Sends waiting jobs to workers while workers have room.
    pub(crate) fn dispatch(&mut self) {
        while !self.queue.is_empty() {
            let Some(slot) = self.best_worker() else { break };
            let Some((id, bytes)) = self.next_job() else { break };
            let Some(slot) = self.with_room(slot, bytes) else {
                self.unpop(id);
                break;
            };
            self.send_batch(slot, id, bytes);
        }
        while !self.held.is_empty() && self.queue.len() < self.options.queue_limit.max(1) {
            let Some(id) = self.held.pop_front() else { break };
            if let Some(job) = self.jobs.get_mut(id)
                && job.place == Place::Held
            {
                job.place = Place::Queued;
                let (priority, since) = (job.priority, job.submitted);
                self.queue.push(id, priority, since);
            }
        }
    }

    /// Takes the next job out of the queue: its id, and the bytes of its arguments. Jobs whose time is up end.
    #[inline]
    pub(crate) fn next_job(&mut self) -> Option<(u64, usize)> {
        loop {
            let id = self.queue.pop(|id, class| self.jobs.waits_in(id, class))?;
            let job = self.jobs.get(id)?;
            if job.deadline.is_none_or(|at| at > self.now) {
                return Some((id, job.args.len()));
            }
            self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
            self.shared.counters.timeouts.add(1);
            self.end_unqueued(id, Error::Timeout { started: false });
        }
    }

    /// Undoes [`Driver::next_job`].
    pub(crate) fn unpop(&mut self, id: u64) {
        if let Some(job) = self.jobs.get(id) {
            self.queue.push_front(id, job.priority, job.submitted);
        }
    }

    /// With the queue full, after [`Driver::dispatch`]: whether a worker takes this job at once. Never while other jobs
    /// wait: these go first.
    fn has_room_at_once(&self, id: u64) -> bool {
        let bytes = self.jobs.get(id).map_or(0, |job| job.args.len());
        self.queue.is_empty() && self.best_worker().is_some_and(|slot| self.with_room(slot, bytes).is_some())
    }

    /// The worker with the fewest batches; among equals the most recently used one, so that the others become idle and stop.
    #[inline]
    fn best_worker(&self) -> Option<usize> {
        let mut best: Option<(usize, u64, usize)> = None;
        for (slot, worker) in self.workers.iter().enumerate() {
            let Some(worker) = worker else { continue };
            if !worker.has_credit() || worker.role != Role::Member {
                continue;
            }
            let key = (worker.batches, u64::MAX - worker.last_used, slot);
            if best.is_none_or(|other| key < other) {
                best = Some(key);
            }
        }
        best.map(|(_, _, slot)| slot)
    }

    /// `slot`, or another worker if that one has too many bytes already.
    fn with_room(&self, slot: usize, bytes: usize) -> Option<usize> {
        let limit = self.options.inflight_bytes;
        let fits = |slot: &usize| {
            self.workers[*slot].as_ref().is_some_and(|worker| {
                worker.has_credit()
                    && worker.role == Role::Member
                    && (worker.in_flight.is_empty() || worker.in_flight_bytes + bytes <= limit)
            })
        };
        if fits(&slot) { Some(slot) } else { (0..self.workers.len()).find(fits) }
    }

    /// Sends one job of the batch that ends before the order `end`.
    pub(crate) fn send_job(&mut self, slot: usize, id: u64, flags: u8, end: u64) {
        let (Some(worker), Some(job)) = (&mut self.workers[slot], self.jobs.get_mut(id)) else { return };
        let len = JobBody::prefix(0, 0).len() + job.args.len();
        let left = job.deadline.map_or(0, |at| at.saturating_duration_since(self.now).as_millis().max(1));
        let deadline_ms = u32::try_from(left).unwrap_or(u32::MAX);
        if worker.objects {
            let args = List::parse(&job.args).unwrap_or(List::EMPTY);
            let line = jsonl::object_line(worker.output.tail(), id, deadline_ms, job.attempt, args);
            if let Err(reason) = line {
                self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
                return self.end_unqueued(id, Error::Codec(reason));
            }
        } else if worker.json {
            let args = List::parse(&job.args).unwrap_or(List::EMPTY);
            jsonl::job_line(worker.output.tail(), id, deadline_ms, job.attempt, args);
        } else {
            let out = worker.output.tail();
            let header = Header { len: len as u32, kind: Kind::Job, flags, id };
            out.extend_from_slice(&header.encode());
            out.extend_from_slice(&JobBody::prefix(deadline_ms, job.attempt));
            worker.output.push(&job.args);
        }
        job.place = Place::Sent(slot);
        job.sent = self.now;
        self.shared.counters.wait.note(self.now.saturating_duration_since(job.submitted));
        self.uses += 1;
        worker.last_used = self.uses;
        worker.push(Sent { id, order: worker.sent, end, bytes: job.args.len(), taken: false });
        worker.sent += 1;
        let spent = worker.job_limit > 0 && worker.sent >= worker.job_limit;
        self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
        if worker.in_flight.len() == 1 {
            worker.stalled = (self.now, worker.sent - 1);
            self.sizing.on_busy(slot);
            self.alarm(later(self.now, self.options.start_timeout));
        }
        self.dirty.push(slot);
        if spent {
            self.retire(slot);
        }
    }

    /// The worker has let go of a job: its credit is free again. Returns whether it was there.
    #[inline]
    pub(crate) fn release(&mut self, slot: usize, id: u64) -> bool {
        let Some(at) = self.workers[slot].as_ref().and_then(|worker| worker.place_of(id)) else {
            return false;
        };
        self.let_go(slot, at);
        if let Some(job) = self.jobs.get_mut(id) {
            job.place = Place::Answered;
        }
        true
    }

    /// The worker is done with the job at place `at` of those in flight.
    #[inline]
    pub(crate) fn let_go(&mut self, slot: usize, at: usize) {
        let Some(worker) = &mut self.workers[slot] else { return };
        let Some(sent) = worker.remove(at) else { return };
        worker.answered += 1;
        worker.pinged = false;
        self.uses += 1;
        worker.last_used = self.uses;
        if !worker.doomed.is_empty() {
            // Only a job that was taken back may have two frames here.
            let may_be_left = worker.taken > 0 || sent.taken;
            if !(may_be_left && worker.in_flight.iter().any(|other| other.id == sent.id)) {
                worker.doomed.retain(|doomed| doomed.id != sent.id);
            }
        }
        if worker.in_flight.is_empty() {
            match worker.state {
                State::Ready if worker.role == Role::Member => self.sizing.on_idle(slot, self.now),
                State::Retiring => {
                    let due = later(self.now, self.options.kill_grace);
                    worker.kill_at = Some(due);
                    // The input of a worker of JSON lines ends now.
                    self.dirty.push(slot);
                    self.alarm(due);
                }
                _ => {}
            }
        }
    }

    /// Delivers the outcome of a job. A job that is at a worker stays in the table until the worker lets go of it.
    pub(crate) fn end_job(&mut self, id: u64, outcome: Outcome) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(sink) = job.sink.take() else { return };
        let (place, priority) = (job.place, job.priority);
        if job.deadline.is_some() {
            self.deadlines.forget();
        }
        if let Place::Sent(_) | Place::Answered = place {
            self.shared.counters.run.note(self.now.saturating_duration_since(job.sent));
        }
        let counters = &self.shared.counters;
        match &outcome {
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
        match place {
            Place::Sent(slot) if self.holds(slot, id) => {}
            Place::Sent(_) | Place::Answered | Place::Nowhere => drop(self.jobs.remove(id)),
            Place::Held => {
                self.jobs.remove(id);
                self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
            }
            Place::Queued => {
                self.jobs.remove(id);
                self.queue.forget(priority, |id, class| self.jobs.waits_in(id, class));
                self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let mut waiter = Waiter::Nobody;
        self.guard(|| waiter = sink.fill(outcome));
        if !matches!(waiter, Waiter::Nobody) {
            self.wakes.push(waiter);
        }
    }

    /// As [`Driver::end_job`], for a job that is neither in the queue nor at a worker.
    pub(crate) fn end_unqueued(&mut self, id: u64, error: Error) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.place = Place::Nowhere;
        }
        self.end_job(id, Err(error));
    }

    fn holds(&self, slot: usize, id: u64) -> bool {
        let worker = self.workers.get(slot).and_then(Option::as_ref);
        worker.is_some_and(|worker| worker.has(id))
    }

    /// Jobs whose callers still wait.
    pub(crate) fn jobs_open(&self) -> usize {
        let at_workers: usize = self.workers.iter().flatten().map(|worker| worker.own()).sum();
        self.queue.len() + self.held.len() + at_workers
    }

    /// A job's time is up.
    pub(crate) fn time_out(&mut self, id: u64) {
        self.note_silence(id);
        let started = self.give_up_on(id);
        self.shared.counters.timeouts.add(1);
        self.end_job(id, Err(Error::Timeout { started }));
    }

    /// Says in the log what may be wrong with a worker of JSON lines whose first job runs out of time.
    fn note_silence(&mut self, id: u64) {
        let Some(Job { place: Place::Sent(slot), .. }) = self.jobs.get(id) else { return };
        let Some(worker) = &self.workers[*slot] else { return };
        if worker.json && worker.answered == 0 && worker.has(id) {
            let (number, text) = (worker.number, advice::of_silence(&worker.input));
            self.on_log(number, 2, text.as_bytes());
        }
    }

    /// A job's caller has gone. `id` 0 would be a job that was not submitted yet, which cannot happen: messages keep
    /// their order.
    pub(crate) fn cancel(&mut self, id: u64) {
        if self.jobs.is_open(id) {
            self.give_up_on(id);
            self.end_job(id, Err(Error::Cancelled));
        }
    }

    /// Tells the worker, if the job is at one, that the job has no caller any more. Returns whether the worker had begun it. A
    /// job that was not begun, at a worker that claims its jobs, is taken back: it will not be begun.
    pub(crate) fn give_up_on(&mut self, id: u64) -> bool {
        let Some(Job { place: Place::Sent(slot), deadline, .. }) = self.jobs.get(id) else { return false };
        let (slot, deadline) = (*slot, *deadline);
        self.take_for_good(slot, id);
        let Some(worker) = self.workers.get_mut(slot).and_then(Option::as_mut) else { return false };
        let begun = match worker.place_of(id).and_then(|at| worker.in_flight.get(at)) {
            Some(sent) => worker.has_begun(sent),
            // It was taken back. The worker must reach it in time all the same, or it is stopped.
            None if worker.in_flight.iter().any(|sent| sent.id == id) => false,
            None => return false,
        };
        if begun || worker.has(id) {
            put_cancel(worker, id);
        }
        let overdue = deadline.is_some_and(|at| at <= self.now);
        worker.doomed.push(Doomed { id, since: self.now, termed: false, overdue });
        self.dirty.push(slot);
        self.alarm(later(self.now, self.options.kill_grace / 4));
        begun
    }

    /// Tells the worker that the outcome of a job at it is no longer needed, and leaves it alone.
    pub(crate) fn tell_cancelled(&mut self, slot: usize, id: u64) {
        let Some(worker) =
            self.workers.get_mut(slot).and_then(Option::as_mut).filter(|worker| worker.has(id))
        else {
            return;
        };
        put_cancel(worker, id);
        self.dirty.push(slot);
        if let Some(job) = self.jobs.get_mut(id) {
            job.told = true;
        }
    }

    /// Checks a worker that was told to let go of jobs: SIGTERM after half the grace, SIGKILL after all of it. The
    /// grace does not run while the worker is in another job whose caller waits: it will skip the doomed job, or has
    /// let go of it. A worker that is in no job and does not take the next one is stuck, too.
    ///
    /// A job in a batch whose caller has gone, and whose time is not up, leaves its worker alone while others of the batch have
    /// callers.
    ///
    /// A worker that does several jobs at a time may be at work on others: while it is, neither signal is sent. It gets
    /// no more jobs, and must answer a ping within each grace; otherwise it is stuck in all of its jobs.
    pub(crate) fn scan_doomed(&mut self, slot: usize) {
        let (now, grace) = (self.now, self.options.kill_grace);
        let Some(worker) = &mut self.workers[slot] else { return };
        if worker.doomed.is_empty() || worker.state.is_over() {
            return;
        }
        let mut doomed = std::mem::take(&mut worker.doomed);
        // Sorted: a batch may have thousands.
        let mut ids: Vec<u64> = doomed.iter().map(|one| one.id).collect();
        let mut within: Vec<u64> =
            worker.in_flight.iter().filter(|sent| worker.may_be_in(sent)).map(|sent| sent.id).collect();
        ids.sort_unstable();
        within.sort_unstable();
        let at_work = within.iter().any(|id| ids.binary_search(id).is_err());
        let others = at_work && !worker.one_at_a_time;
        let (mut term, mut kill) = (false, false);
        for one in &mut doomed {
            let is_within = within.binary_search(&one.id).is_ok();
            // What has no room may be the answer to this very job.
            let unread = worker.waits_for_room();
            if unread || (at_work && (!is_within || (worker.one_at_a_time && !one.overdue))) {
                one.since = now;
            }
            let waited = now.saturating_duration_since(one.since);
            kill |= waited >= grace;
            if waited >= grace / 2 && !others && !std::mem::replace(&mut one.termed, true) {
                term = true;
            }
        }
        worker.doomed = doomed;
        if kill && others {
            if worker.is_unread() {
                // Its answer may have arrived: the worker is not read while the event stream is full.
                worker.proof = None;
            }
            match worker.proof {
                Some(asked) if now.saturating_duration_since(asked) >= grace => {
                    self.kill(slot, "it was stuck in a job whose time was up, and answered no ping");
                }
                Some(_) => {}
                None => {
                    worker.proof = Some(now);
                    put_frame(worker.output.tail(), Kind::Ping, 0, 0, |_| {});
                    self.dirty.push(slot);
                    if !std::mem::replace(&mut worker.condemned, true) {
                        self.retire(slot);
                    }
                }
            }
            self.alarm(later(now, (grace / 8).max(std::time::Duration::from_millis(1))));
        } else if kill {
            self.kill(slot, "it was stuck in a job whose time was up");
        } else {
            if term {
                worker.signal_group(Signal::TERM);
            }
            self.alarm(later(now, (grace / 8).max(std::time::Duration::from_millis(1))));
        }
    }

    /// Ends queued jobs when no worker has been ready for `start_timeout`, or at once while the breaker is open.
    pub(crate) fn scan_desertion(&mut self) {
        let ready = self.sizing.idle() + self.sizing.busy() > 0 || self.has_retiring_jobs();
        // A template that does not fork is found after the same time; the jobs wait for the next template.
        let asked = !self.breaker.is_open() && self.has_asked_template();
        // Jobs wait for the workers of other pools as they wait for those of this one.
        let no_room = !self.seat.may_take();
        if ready || asked || no_room || self.queue.is_empty() || self.launching.is_some() {
            self.deserted = None;
            if !self.queue.is_empty() {
                self.alarm(later(self.now, self.options.start_timeout));
            }
            return;
        }
        let since = *self.deserted.get_or_insert(self.now);
        let due = later(since, self.options.start_timeout);
        if due > self.now && !self.breaker.is_open() {
            return self.alarm(due);
        }
        let error = self.start_error();
        while let Some(id) = self.queue.pop(|id, class| self.jobs.waits_in(id, class)) {
            self.shared.inbox.backlog.fetch_sub(1, Ordering::Relaxed);
            self.end_unqueued(id, error.clone());
        }
        self.deserted = None;
    }

    /// Whether a template was told to fork a worker and has not answered yet.
    fn has_asked_template(&self) -> bool {
        let mut workers = self.workers.iter().flatten();
        workers.any(|worker| {
            let starting = worker.state == State::Starting && worker.role != Role::Spare;
            starting && worker.template.is_some() && worker.pid.is_none()
        })
    }

    fn has_retiring_jobs(&self) -> bool {
        self.workers
            .iter()
            .flatten()
            .any(|worker| worker.state == State::Retiring && !worker.in_flight.is_empty())
    }

    pub(crate) fn start_error(&self) -> Error {
        let none = self.sizing.config().max == 0;
        self.last_start_error.clone().filter(|_| !none).unwrap_or_else(|| Error::StartFailed {
            reason: if none { "max is 0" } else { "no worker became ready in time" }.into(),
            errno: None,
            stderr_tail: String::new(),
        })
    }

    /// Collects a part of a reply. `None` when it grew too long, or is malformed.
    pub(crate) fn add_chunk(&mut self, id: u64, body: &[u8]) -> Option<usize> {
        let job = self.jobs.get_mut(id)?;
        let list = List::parse(body)?;
        let (count, parts) = job.chunks.get_or_insert_default();
        *count += list.len() as u32;
        parts.extend_from_slice(list.encoded_parts());
        Some(parts.len())
    }

    /// The reply made of the collected parts and the last one.
    pub(crate) fn whole_reply(&mut self, id: u64, body: &[u8]) -> Option<Bytes> {
        self.add_chunk(id, body)?;
        let (count, parts) = self.jobs.get_mut(id)?.chunks.take()?;
        let mut all = Vec::with_capacity(parts.len() + 5);
        cattlegrid_worker::list::put_varint(&mut all, count);
        all.extend_from_slice(&parts);
        debug_assert!(List::parse(&all).is_some(), "lists joined are a list");
        Some(all.into())
    }
}

/// Says that the outcome of a job is no longer needed.
fn put_cancel(worker: &mut Worker, id: u64) {
    if worker.json {
        jsonl::cancel_line(worker.output.tail(), id);
    } else {
        put_frame(worker.output.tail(), Kind::Cancel, 0, id, |_| {});
    }
}
