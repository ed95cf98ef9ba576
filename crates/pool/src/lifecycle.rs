//! A worker's life from READY on: retirement, death, and the end or return of its jobs. `start.rs` has its start.
//!
//! # Invariants
//! * A worker is settled once, when its end is known or was waited for too long: its slot is free then.
//! * At its end, jobs that it had begun end or are tried again ([`crate::Retry`]); all others go back to the queue.

use std::time::Duration;

use cattlegrid_worker::frame::{Kind, put_frame};
use cattlegrid_worker::sys::{self, Exit};
use rustix::process::Signal;

use crate::advice::Start;
use crate::driver::{Driver, Ending};
use crate::error::{Error, PoolError};
use crate::jsonl;
use crate::launch::Mode;
use crate::logs::drain_log;
use crate::proc::oom_kills;
use crate::time::{LOOK, later};
use crate::worker::{FrameRoom, Role, Sent, State, Worker, WorkerInfo};

impl Driver {
    /// The worker has said READY.
    pub(crate) fn on_worker_ready(&mut self, slot: usize) {
        if let Some(worker) = &mut self.workers[slot]
            && worker.role == Role::Spare
        {
            // By JSON lines: it has not had INIT, and is ready once it has.
            worker.ready_early = true;
            return;
        }
        if let Some(own_kib) = self.measure(slot) {
            return self.refuse_fresh(slot, own_kib);
        }
        let Some(worker) = &mut self.workers[slot] else { return };
        if worker.asked_to_leave {
            return self.kill(slot, LEFT_AT_ONCE);
        }
        worker.state = State::Ready;
        worker.was_ready = true;
        let (role, generation) = (worker.role, worker.generation);
        self.breaker.success();
        if role == Role::Probe {
            self.launched();
        } else if role == Role::Member {
            self.sizing.on_idle(slot, self.now);
        }
        self.deserted = None;
        if generation != self.program.generation && self.launching.is_none() {
            self.retire(slot);
        }
    }

    /// Asks a worker to finish its jobs and leave; another may take its place. Does nothing for a worker that is leaving
    /// or dying.
    pub(crate) fn retire(&mut self, slot: usize) {
        self.retire_as(slot, true);
    }

    /// As [`Driver::retire`]; `replace` says whether another worker may take its place without delay.
    pub(crate) fn retire_as(&mut self, slot: usize, replace: bool) {
        let Some(worker) = &mut self.workers[slot] else { return };
        match worker.state {
            State::Ready => {}
            State::Starting => {
                worker.told_to_leave = true;
                return self.kill(slot, "retired before it was ready");
            }
            State::Retiring | State::Ending | State::Killed => return,
        }
        worker.state = State::Retiring;
        worker.place.leave();
        worker.told_to_leave = true;
        if worker.json {
            jsonl::plain_line(worker.output.tail(), "retire");
        } else {
            put_frame(worker.output.tail(), Kind::Retire, 0, 0, |_| {});
        }
        if worker.in_flight.is_empty() {
            worker.kill_at = Some(later(self.now, self.options.kill_grace));
        }
        let kill_at = worker.kill_at;
        self.shared.counters.retired.add(1);
        self.sizing.on_leaving(slot, replace);
        self.dirty.push(slot);
        self.alarm_opt(kill_at);
    }

    /// Kills a worker's process group. Its jobs are settled when its end is known.
    pub(crate) fn kill(&mut self, slot: usize, reason: &str) {
        let Some(worker) = &mut self.workers[slot] else { return };
        if worker.state == State::Killed {
            return;
        }
        worker.reason.get_or_insert_with(|| reason.to_owned());
        worker.state = State::Killed;
        worker.place.leave();
        worker.kill_at = Some(self.now + GIVE_UP);
        worker.signal_group(Signal::KILL);
        self.shared.counters.killed.add(1);
        self.sizing.on_leaving(slot, false);
        self.alarm(self.now + GIVE_UP);
    }

    /// The worker has closed its socket. Most workers do so because they end; a worker that does not end is killed: without
    /// a socket it can do no job, and its jobs wait for its end.
    pub(crate) fn on_closed(&mut self, slot: usize) {
        let Some(worker) = &mut self.workers[slot] else { return };
        worker.socket = None;
        self.expect_end(slot, self.options.kill_grace);
    }

    /// The worker will end by itself. If it has not after `grace`, it is killed.
    pub(crate) fn expect_end(&mut self, slot: usize, grace: Duration) {
        let Some(worker) = &mut self.workers[slot] else { return };
        if worker.state == State::Killed {
            return;
        }
        worker.state = State::Ending;
        worker.place.leave();
        let due = later(self.now, grace);
        worker.kill_at = Some(worker.kill_at.map_or(due, |before| before.min(due)));
        self.sizing.on_leaving(slot, false);
        self.alarm(due);
    }

    /// A template has reaped the worker.
    pub(crate) fn on_exited(&mut self, slot: u32, pid: u32, exit: Exit) {
        let at = self.workers.iter().position(|worker| {
            worker.as_ref().is_some_and(|worker| {
                worker.number as u32 == slot
                    && worker.pid.is_some_and(|known| known.as_raw_pid().unsigned_abs() == pid)
            })
        });
        if let Some(slot) = at {
            self.settle(slot, Some(exit));
        }
    }

    /// An exec'ed worker, our own child, has ended.
    pub(crate) fn on_worker_end(&mut self, slot: usize) {
        let Some(worker) = &self.workers[slot] else { return };
        let Some(pid) = worker.pid else { return };
        // Grandchildren first, while the zombie still holds the group's number.
        rustix::process::kill_process_group(pid, Signal::KILL).ok();
        if let Some(guardian) = &self.guardian
            && guardian.forget(pid).is_err()
        {
            // The guardian must not keep a number that the system can use again.
            self.renew_guardian(Some(pid));
        }
        match sys::reap(pid) {
            Ok(None) => {}
            Ok(exit) => self.settle(slot, exit),
            Err(_) => self.settle(slot, None),
        }
    }

    /// The template has died, and the worker with it.
    pub(crate) fn lose_with_template(&mut self, slot: usize) {
        if let Some(worker) = &mut self.workers[slot] {
            worker.signal_group(Signal::KILL);
            worker.with_template = true;
            // The others must not start a process before this one is gone.
            let (place, pidfd) = (std::mem::take(&mut worker.place), worker.pidfd.take());
            self.seat.fade(place, pidfd, self.now);
            worker.reason.get_or_insert_with(|| "its template died".to_owned());
        }
        self.settle(slot, None);
    }

    /// The worker has ended: reads its last output, ends the jobs it had begun, puts the others back at the
    /// head of the queue, and frees the slot.
    fn settle(&mut self, slot: usize, exit: Option<Exit>) {
        if let Some(worker) = &mut self.workers[slot] {
            worker.exit = exit;
            worker.paused = false;
            worker.is_settled = true;
            if worker.waits_for_room() {
                worker.room = FrameRoom::None;
            }
            if worker.doomed.iter().any(|doomed| doomed.termed) {
                worker.reason.get_or_insert_with(|| "it was stuck in a job whose time was up".into());
            }
        }
        self.drain_socket(slot);
        let Some(mut worker) = self.workers[slot].take() else { return };
        self.sizing.on_gone(slot);
        self.shared.counters.exited.add(1);
        let terminated = worker.exit.is_some_and(|exit| exit.status == -Signal::TERM.as_raw());
        if worker.state != State::Killed && terminated && worker.doomed.iter().any(|doomed| doomed.termed) {
            self.shared.counters.killed.add(1);
        }
        let number = worker.number;
        if let Some(log) = &worker.log {
            for chunk in drain_log(log, &mut worker.tail) {
                let whole = self.limit_log(&chunk, &mut worker.said);
                self.pass_on_log(number, 0, &whole);
            }
        }
        let rest = self.limit_rest(&mut worker.said);
        self.pass_on_log(number, 0, &rest);
        self.settle_jobs(&mut worker);
        if self.sizing.config().max == 0 && !self.queue.is_empty() {
            // Nothing else says that no worker is left.
            self.alarm(self.now);
        }
        self.explain(&worker);
        self.close_templates();
    }

    /// Tells the owner of the pool why a worker has ended, if the pool had not asked it to.
    fn explain(&mut self, worker: &Worker) {
        let stuck = worker.condemned && worker.state == State::Killed;
        let is_young = self.now < later(worker.born, self.options.start_timeout);
        let left_at_once = worker.asked_to_leave && worker.was_ready && is_young && !worker.has_worked();
        let is_asked_for = worker.told_to_leave && !stuck && !left_at_once;
        if is_asked_for || worker.with_template || self.ending_without_jobs() {
            if worker.role == Role::Probe {
                let reason = self.start_ending(worker);
                self.launch_failed(Error::StartFailed {
                    reason,
                    errno: None,
                    stderr_tail: worker.tail.text(),
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
        self.shared.counters.crashed.add(u64::from(worker.reason.is_none()));
        self.report(&PoolError::WorkerLost { worker: worker.number, reason: ending });
    }

    /// How a worker ended that was never ready, with the likely cause.
    fn start_ending(&self, worker: &Worker) -> String {
        let start = Start {
            mode: self.mode_of(worker),
            output: &worker.tail.text(),
            unread: &worker.input,
            status: worker.exit.map(|exit| exit.status),
            is_late: worker.reason.as_deref() == Some(LATE),
        };
        // Of what it printed the reason tells already; a failed `init` has its own words.
        let cause = if worker.reason.is_none() || start.is_late { start.cause() } else { None };
        let ending = worker.ending();
        cause.map_or(ending.clone(), |cause| format!("{ending}; {cause}"))
    }

    /// How a worker was started.
    pub(crate) fn mode_of(&self, worker: &Worker) -> Mode {
        let launching = self.launching.as_ref().map(|launching| &launching.program);
        let program = launching.filter(|program| program.generation == worker.generation);
        program.unwrap_or(&self.program).launch.mode
    }

    fn settle_jobs(&mut self, worker: &mut Worker) {
        let in_flight: Vec<Sent> = worker.in_flight.drain(..).filter(|sent| !sent.taken).collect();
        let oom = self.oom_happened(worker.exit);
        for sent in in_flight.into_iter().rev() {
            let begun = worker.has_begun(&sent);
            let Some(job) = self.jobs.get_mut(sent.id) else { continue };
            if job.sink.is_none() {
                self.jobs.remove(sent.id);
            } else if !begun {
                self.requeue(sent.id);
                self.shared.counters.redispatched.add(1);
            } else if job.may_retry(self.options.retry) {
                job.attempt += 1;
                self.requeue(sent.id);
                self.shared.counters.retried.add(1);
            } else {
                let status = worker.exit.map(|exit| exit.status);
                let error = Error::WorkerLost {
                    worker: worker.number,
                    reason: worker.ending(),
                    status: status.filter(|status| *status >= 0),
                    signal: status.filter(|status| *status < 0).map(|status| -status),
                    oom,
                    stderr_tail: worker.tail.text(),
                };
                self.end_job(sent.id, Err(error));
            }
        }
    }

    /// Whether this worker died of SIGKILL and the kernel's out-of-memory killer has killed a process since the last call.
    fn oom_happened(&mut self, exit: Option<Exit>) -> bool {
        if exit.is_none_or(|exit| exit.status != -9) {
            return false;
        }
        let kills = oom_kills();
        std::mem::replace(&mut self.oom_kills, kills) < kills
    }

    fn start_failed(&mut self, worker: &Worker, ending: &str) {
        self.shared.counters.start_failures.add(1);
        let stderr_tail = worker.tail.text();
        let error =
            Error::StartFailed { reason: ending.to_owned(), errno: None, stderr_tail: stderr_tail.clone() };
        if worker.role == Role::Probe {
            return self.launch_failed(error);
        }
        self.report(&PoolError::StartFailed { reason: ending.to_owned(), stderr_tail });
        self.note_start_failure(error);
    }

    /// Counts a failed start; opens the breaker when there are too many.
    pub(crate) fn note_start_failure(&mut self, error: Error) {
        let reason = error.to_string();
        self.last_start_error = Some(error);
        if self.breaker.failure(self.now) {
            self.report(&PoolError::CrashLoop { failures: self.options.crash_loop.0, reason });
            for (_, answer) in std::mem::take(&mut self.waiting_ready) {
                answer.resolve(Err(self.start_error()));
            }
            self.sizing.want(0);
        }
        self.alarm_opt(self.breaker.poll_timeout());
        self.alarm(self.now);
    }

    /// The timers of one worker.
    pub(crate) fn scan_worker(&mut self, slot: usize) {
        let Some(worker) = &self.workers[slot] else { return };
        let (state, now) = (worker.state, self.now);
        if state == State::Starting && worker.role != Role::Spare {
            let due = later(worker.born, self.options.start_timeout);
            if due <= now {
                let stuck = worker.template.filter(|_| worker.pid.is_none());
                self.kill(slot, LATE);
                if let Some(serial) = stuck {
                    self.template_stuck(serial);
                }
            } else {
                self.alarm(due);
            }
        }
        let Some(worker) = &self.workers[slot] else { return };
        if let Some(due) = worker.kill_at {
            if due > now {
                self.alarm(due);
            } else if worker.state == State::Killed {
                // Killed, and its end is still not known: it is blocked in the kernel. Stop waiting for it.
                if worker.template.is_none()
                    && let Some(pid) = worker.pid
                {
                    self.orphans.push(pid);
                    self.alarm(now + LOOK);
                }
                return self.settle(slot, None);
            } else {
                let closed = worker.socket.is_none() && !worker.told_to_leave;
                self.kill(slot, if closed { "it closed its socket" } else { "it did not end in time" });
            }
        }
        let Some(worker) = &self.workers[slot] else { return };
        if worker.template.is_none() && worker.pidfd.is_none() {
            self.alarm(now + LOOK);
            self.on_worker_end(slot);
        }
        let Some(worker) = &self.workers[slot] else { return };
        if let Some(due) = worker.expires
            && worker.state == State::Ready
        {
            if due <= now {
                self.retire(slot);
            } else {
                self.alarm(due);
            }
        }
        self.scan_log(slot);
        self.scan_doomed(slot);
        self.scan_stalled(slot);
    }

    /// Kills a worker that has begun none of its jobs for `start_timeout`. They are sent again.
    fn scan_stalled(&mut self, slot: usize) {
        let Some(worker) = &mut self.workers[slot] else { return };
        let alive = matches!(worker.state, State::Ready | State::Retiring);
        if !alive || worker.in_flight.is_empty() || !worker.is_stalled(self.now) {
            return;
        }
        let due = later(worker.stalled.0, self.options.start_timeout);
        if due > self.now {
            self.alarm(due);
        } else {
            self.kill(slot, "it did not begin its jobs");
        }
    }

    /// Pings idle workers, and kills those that have not answered the last ping.
    pub(crate) fn scan_pings(&mut self) {
        let (Some(due), Some(every)) = (self.next_ping, self.options.ping) else { return };
        if due > self.now {
            return self.alarm(due);
        }
        for slot in 0..self.workers.len() {
            let Some(worker) = &mut self.workers[slot] else { continue };
            if worker.state != State::Ready || !worker.in_flight.is_empty() {
                worker.pinged = false;
            } else if std::mem::replace(&mut worker.pinged, true) {
                self.kill(slot, "it did not answer a ping");
            } else {
                if worker.json {
                    jsonl::plain_line(worker.output.tail(), "ping");
                } else {
                    put_frame(worker.output.tail(), Kind::Ping, 0, 0, |_| {});
                }
                self.dirty.push(slot);
            }
        }
        self.next_ping = Some(later(self.now, every));
        self.alarm(later(self.now, every));
    }

    pub(crate) fn infos(&self) -> Vec<WorkerInfo> {
        let ready = self.workers.iter().flatten().filter(|worker| worker.state == State::Ready);
        ready
            .map(|worker| WorkerInfo {
                number: worker.number,
                pid: worker.pid.map_or(worker.said_pid, |pid| pid.as_raw_pid().unsigned_abs()),
                generation: worker.generation,
                jobs: worker.own(),
            })
            .collect()
    }

    /// Whether the pool is past its last job.
    pub(crate) fn ending_without_jobs(&self) -> bool {
        matches!(self.ending, Ending::Leaving(_))
    }
}

/// Without this rule a program whose workers do so would be started again without a limit.
const LEFT_AT_ONCE: &str = "it asked to be retired before its first job";
/// Why a worker or template was killed that did not become ready.
pub(crate) const LATE: &str = "it was not ready in time";
/// How long the pool waits for the end of a killed worker.
const GIVE_UP: Duration = Duration::from_secs(1);
