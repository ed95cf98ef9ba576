//! A worker's life from READY on: retirement, death, and the end or return of its jobs. `start.rs` has its
//! start.
//!
//! # Invariants
//! * A worker is settled once, when its end is known or was waited for too long: its slot is free then.
//! * At its end, jobs that it had begun end or are tried again ([`crate::Retry`]); all others go back to the
//!   queue.

use cattlegrid_worker::sys::{self, Exit};
use rustix::process::Signal;

use crate::advice::StartReport;
use crate::driver::Driver;
use crate::error::{Error, PoolError};
use crate::job::JobStage;
use crate::time::{LOOK, later};
use crate::worker::{FrameRoom, Role, SentJob, WorkerProcess, WorkerState};

impl Driver {
    /// The worker has said READY.
    pub(super) fn on_worker_ready(&mut self, slot: usize) {
        let Some(worker) = self.fleet.get_mut(slot) else { return };
        if worker.role == Role::Spare {
            // By JSON lines: it has not had INIT, and is ready once it has.
            worker.ready_early = true;
            return;
        }
        let template_of = |serial| self.programs.template(serial).map(|template| template.pid);
        if let Some(own_kib) = self.fleet.measure(slot, template_of, &mut self.base) {
            return self.fleet.refuse_fresh(slot, own_kib, &mut self.base);
        }
        let Some(worker) = self.fleet.get(slot) else { return };
        let (role, generation) = (worker.role, worker.generation);
        if worker.asked_to_leave {
            return self.fleet.kill(slot, LEFT_AT_ONCE, &mut self.base);
        }
        self.fleet.on_ready(slot, &self.base);
        if role == Role::Probe {
            self.launched();
        }
        if generation != self.programs.generation() && !self.programs.is_launching() {
            self.fleet.retire(slot, &mut self.base);
        }
    }

    /// A template has reaped the worker.
    pub(super) fn on_exited(&mut self, slot: u32, pid: u32, exit: Exit) {
        let at = self.fleet.find(|worker| {
            worker.number as u32 == slot
                && worker.pid.is_some_and(|known| known.as_raw_pid().unsigned_abs() == pid)
        });
        if let Some(slot) = at {
            self.on_worker_gone(slot, Some(exit));
        }
    }

    /// An exec'ed worker, our own child, has ended.
    pub(super) fn on_worker_end(&mut self, slot: usize) {
        let Some(pid) = self.fleet.get(slot).and_then(|worker| worker.pid) else { return };
        // Grandchildren first, while the zombie still holds the group's number.
        rustix::process::kill_process_group(pid, Signal::KILL).ok();
        self.fleet.forget_group(pid, &mut self.base);
        match sys::reap(pid) {
            Ok(None) => {}
            Ok(exit) => self.on_worker_gone(slot, exit),
            Err(_) => self.on_worker_gone(slot, None),
        }
    }

    /// The template has died, and its workers with it.
    pub(super) fn lose_with_template(&mut self, serial: u64) {
        for slot in self.fleet.slots(|worker| worker.template == Some(serial)) {
            self.fleet.lose_with_template(slot, &self.base);
            self.on_worker_gone(slot, None);
        }
    }

    /// The worker has ended: reads its last output, ends the jobs it had begun, puts the others back at the
    /// head of the queue, and frees the slot.
    fn on_worker_gone(&mut self, slot: usize, exit: Option<Exit>) {
        if let Some(worker) = self.fleet.get_mut(slot) {
            worker.exit = exit;
            worker.paused = false;
            worker.has_ended = true;
            if worker.waits_for_room() {
                worker.room = FrameRoom::None;
            }
            if worker.doomed.iter().any(|doomed| doomed.termed) {
                worker.reason.get_or_insert_with(|| "it was stuck in a job whose time was up".into());
            }
        }
        self.drain_socket(slot);
        let Some(mut worker) = self.fleet.remove(slot, &self.base) else { return };
        let terminated = worker.exit.is_some_and(|exit| exit.status == -Signal::TERM.as_raw());
        if worker.state != WorkerState::Killed
            && terminated
            && worker.doomed.iter().any(|doomed| doomed.termed)
        {
            self.base.counters().killed.add(1);
        }
        worker.log.finish(&mut self.base);
        self.return_jobs(&mut worker);
        if self.fleet.sizing().config().max == 0 && self.jobs.has_queued() {
            // Nothing else says that no worker is left.
            self.base.alarm(self.base.now());
        }
        self.explain(&worker);
        self.close_templates();
    }

    /// Tells the owner of the pool why a worker has ended, if the pool had not asked it to.
    fn explain(&mut self, worker: &WorkerProcess) {
        let stuck = worker.condemned && worker.state == WorkerState::Killed;
        let is_young = self.base.now() < later(worker.born, self.base.options().start_timeout);
        let left_at_once = worker.asked_to_leave && worker.was_ready && is_young && !worker.has_worked();
        let is_asked_for = worker.told_to_leave && !stuck && !left_at_once;
        if is_asked_for || worker.with_template || self.ending.is_leaving() {
            if worker.role == Role::Probe {
                let reason = self.start_ending(worker);
                self.launch_failed(Error::StartFailed {
                    reason,
                    errno: None,
                    stderr_tail: worker.log.tail(),
                });
            }
            return;
        }
        if left_at_once {
            return self.start_failed(worker, LEFT_AT_ONCE);
        }
        let ending = worker.ending();
        // A worker that dies by itself or breaks the protocol before its first job counts as a failed start.
        let by_itself = (worker.reason.is_none() || worker.broke_protocol) && !worker.has_worked();
        if !worker.was_ready || by_itself {
            let ending = if worker.was_ready { ending } else { self.start_ending(worker) };
            return self.start_failed(worker, &ending);
        }
        self.base.counters().crashed.add(u64::from(worker.reason.is_none()));
        self.base.report(&PoolError::WorkerLost { worker: worker.number, reason: ending });
    }

    /// How a worker ended that was never ready, with the likely cause.
    fn start_ending(&self, worker: &WorkerProcess) -> String {
        let start = StartReport {
            mode: self.programs.launch_of(worker.generation).mode,
            output: &worker.log.tail(),
            unread: &worker.input,
            status: worker.exit.map(|exit| exit.status),
            is_late: worker.reason.as_deref() == Some(LATE),
        };
        // Of what it printed the reason tells already; a failed `init` has its own words.
        let cause = if worker.reason.is_none() || start.is_late { start.cause() } else { None };
        let ending = worker.ending();
        cause.map_or(ending.clone(), |cause| format!("{ending}; {cause}"))
    }

    fn return_jobs(&mut self, worker: &mut WorkerProcess) {
        let in_flight: Vec<SentJob> = worker.in_flight.drain(..).filter(|sent| !sent.taken).collect();
        let oom = self.fleet.oom_happened(worker.exit);
        let retry = self.base.options().retry;
        for sent in in_flight.into_iter().rev() {
            let begun = worker.has_begun(&sent);
            let Some(job) = self.jobs.get_mut(sent.id) else { continue };
            job.stage = JobStage::Released;
            if job.sink.is_none() {
                self.jobs.remove(sent.id);
            } else if !begun {
                self.jobs.requeue(sent.id, &mut self.base);
                self.base.counters().redispatched.add(1);
            } else if job.may_retry(retry) {
                job.attempt += 1;
                self.jobs.requeue(sent.id, &mut self.base);
                self.base.counters().retried.add(1);
            } else {
                let status = worker.exit.map(|exit| exit.status);
                let error = Error::WorkerLost {
                    worker: worker.number,
                    reason: worker.ending(),
                    status: status.filter(|status| *status >= 0),
                    signal: status.filter(|status| *status < 0).map(|status| -status),
                    oom,
                    stderr_tail: worker.log.tail(),
                };
                self.jobs.end(sent.id, Err(error), &mut self.base);
            }
        }
    }

    fn start_failed(&mut self, worker: &WorkerProcess, ending: &str) {
        self.base.counters().start_failures.add(1);
        let (reason, stderr_tail) = (ending.to_owned(), worker.log.tail());
        let error =
            Error::StartFailed { reason: reason.clone(), errno: None, stderr_tail: stderr_tail.clone() };
        if worker.role == Role::Probe {
            return self.launch_failed(error);
        }
        self.base.report(&PoolError::StartFailed { reason, stderr_tail });
        self.fleet.note_start_failure(error, &mut self.base);
    }

    /// The timers of one worker.
    pub(super) fn scan_worker(&mut self, slot: usize) {
        let Some(worker) = self.fleet.get(slot) else { return };
        if worker.state == WorkerState::Starting && worker.role != Role::Spare {
            let due = later(worker.born, self.base.options().start_timeout);
            if due <= self.base.now() {
                let stuck = worker.template.filter(|_| worker.pid.is_none());
                self.fleet.kill(slot, LATE, &mut self.base);
                if let Some(serial) = stuck {
                    self.template_stuck(serial);
                }
            } else {
                self.base.alarm(due);
            }
        }
        let Some(worker) = self.fleet.get(slot) else { return };
        if let Some(due) = worker.kill_at {
            if due > self.base.now() {
                self.base.alarm(due);
            } else if worker.state == WorkerState::Killed {
                // Killed, and its end is still not known: it is blocked in the kernel. Stop waiting for it.
                if let Some(pid) = worker.pid.filter(|_| worker.template.is_none()) {
                    self.fleet.add_orphan(pid, &mut self.base);
                }
                return self.on_worker_gone(slot, None);
            } else {
                let closed = worker.socket.is_none() && !worker.told_to_leave;
                let reason = if closed { "it closed its socket" } else { "it did not end in time" };
                self.fleet.kill(slot, reason, &mut self.base);
            }
        }
        let Some(worker) = self.fleet.get(slot) else { return };
        if worker.template.is_none() && worker.pidfd.is_none() {
            self.base.alarm(self.base.now() + LOOK);
            self.on_worker_end(slot);
        }
        self.fleet.scan_timers(slot, &mut self.base);
    }
}

/// Without this rule a program whose workers do so would be started again without a limit.
const LEFT_AT_ONCE: &str = "it asked to be retired before its first job";
/// Why a worker or template was killed that did not become ready.
pub(super) const LATE: &str = "it was not ready in time";
