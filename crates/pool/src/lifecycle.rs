//! A worker's life: start, READY, retirement, death, and what becomes of its jobs.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use cattlegrid_worker::control::{Control, send_with_fds};
use cattlegrid_worker::frame::{Kind, put_frame};
use cattlegrid_worker::message::Init;
use cattlegrid_worker::sys::{self, Exit, Page};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, Signal};

use crate::driver::{Driver, Ending, Source};
use crate::error::{Error, PoolError};
use crate::guardian::Guardian;
use crate::job::Place;
use crate::jsonl;
use crate::launch::{Launch, Mode};
use crate::logs::{Lines, Tail};
use crate::memory::{self, Memory};
use crate::output::Output;
use crate::pool::WorkerInfo;
use crate::program::{LOOK, drain_log, log_pipe, spawn_error};
use crate::time::{FAR, later};
use crate::worker::{Role, Sent, State, Worker};

/// Why a start did not happen.
enum StartError {
    /// The system is short of something; later it may work.
    Resources(std::io::Error),
    /// The program is at fault.
    Program(Error),
}

impl From<std::io::Error> for StartError {
    fn from(error: std::io::Error) -> Self {
        Self::Resources(error)
    }
}

impl From<rustix::io::Errno> for StartError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Resources(errno.into())
    }
}

impl Driver {
    /// Starts a worker that counts; a spare if there is one. False when none could be started.
    pub(crate) fn start_member(&mut self) -> bool {
        let generation = self.program.generation;
        let spare = self.workers.iter().position(|worker| {
            worker.as_ref().is_some_and(|worker| {
                worker.role == Role::Spare
                    && worker.generation == generation
                    && worker.state == State::Starting
            })
        });
        let Some(slot) = spare else { return self.start_worker(generation, Role::Member).is_some() };
        if let Some(worker) = &mut self.workers[slot] {
            worker.role = Role::Member;
            worker.born = self.now;
        }
        self.sizing.on_starting(slot);
        self.send_init(slot);
        true
    }

    /// Starts spares up to their number.
    pub(crate) fn refill_spares(&mut self) {
        if self.options.spare == 0 || !self.may_start() || self.ending != Ending::No {
            return;
        }
        let spares = self.workers.iter().flatten().filter(|worker| worker.role == Role::Spare).count();
        for _ in spares..self.options.spare {
            if self.start_worker(self.program.generation, Role::Spare).is_none() {
                return;
            }
        }
    }

    /// Starts the first worker of a generation that is being launched.
    pub(crate) fn start_probe(&mut self, generation: u32) {
        if self.start_worker(generation, Role::Probe).is_none() {
            let error = self.last_start_error.clone().unwrap_or(Error::Shutdown);
            self.launch_failed(error);
        }
    }

    fn start_worker(&mut self, generation: u32, role: Role) -> Option<usize> {
        let launch = match &self.launching {
            Some(launching) if launching.program.generation == generation => launching.program.launch.clone(),
            _ => self.program.launch.clone(),
        };
        match self.try_start(&launch, generation, role) {
            Ok(slot) => {
                self.starved = None;
                self.shared.counters.spawned.add(1);
                if role == Role::Member {
                    self.sizing.on_starting(slot);
                }
                if role != Role::Spare {
                    self.send_init(slot);
                }
                self.alarm(later(self.now, self.options.start_timeout));
                Some(slot)
            }
            Err(StartError::Resources(error)) => {
                let text = format!("no resources for a worker: {error}");
                let errno = error.raw_os_error();
                self.last_start_error =
                    Some(Error::StartFailed { reason: text, errno, stderr_tail: String::new() });
                self.starve(error);
                None
            }
            Err(StartError::Program(error)) => {
                self.shared.counters.start_failures.add(1);
                self.report(&PoolError::StartFailed {
                    reason: error.to_string(),
                    stderr_tail: String::new(),
                });
                self.note_start_failure(error);
                None
            }
        }
    }

    fn try_start(&mut self, launch: &Launch, generation: u32, role: Role) -> Result<usize, StartError> {
        let number = self.last_number + 1;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        for end in [&socket, &theirs] {
            // The kernel caps this at its limit; it saves switches for large frames.
            sockopt::set_socket_send_buffer_size(end, SOCKET_BUFFER).ok();
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        let (log, writer) = log_pipe()?;
        self.register(&socket, Source::Worker, number)?;
        self.register(&log, Source::WorkerLog, number)?;
        let (mut template, mut pid, mut pidfd) = (None, None, None);
        if launch.mode == Mode::Template {
            let Some(zygote) = self.template_of(generation) else {
                return Err(StartError::Resources(std::io::ErrorKind::NotConnected.into()));
            };
            let Some(control) = &zygote.control else {
                return Err(StartError::Resources(std::io::ErrorKind::NotConnected.into()));
            };
            let fork = Control::Fork { slot: number as u32, setup: self.options.setup.clone() };
            fork.send(control.as_fd(), &[theirs.as_fd(), writer.as_fd()])?;
            template = Some(zygote.serial);
        } else {
            let setup = self.options.setup.clone();
            let child = self.exec(launch, Some(&theirs), &writer, &setup).map_err(|error| {
                match (error.step, error.source.raw_os_error()) {
                    (sys::Step::Fork, _) => StartError::Resources(error.source),
                    _ => StartError::Program(spawn_error(&error)),
                }
            })?;
            self.watch(child.pid);
            match &child.pidfd {
                Some(pidfd) => self.register(pidfd, Source::WorkerEnd, number)?,
                None => self.alarm(self.now + LOOK),
            }
            (pid, pidfd) = (Some(child.pid), child.pidfd);
        }
        self.last_number = number;
        let spread = 1.0 - self.options.jitter * self.random();
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a share of a count")]
        let job_limit = (self.options.max_jobs as f64 * spread).ceil() as u64;
        let expires = self.options.max_age.map(|age| later(self.now, age.min(FAR).mul_f64(spread)));
        let worker = Worker {
            number,
            generation,
            template,
            state: State::Starting,
            pid,
            pidfd,
            socket: Some(socket),
            log: Some(log),
            page: None,
            said_pid: 0,
            uses_page: false,
            uses_claims: false,
            one_at_a_time: false,
            json: launch.mode == Mode::JsonLines,
            window: 1,
            max_frame: self.options.max_frame,
            input: Vec::new(),
            lines: jsonl::LineEnds::default(),
            output: Output::default(),
            want_write: false,
            paused: false,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            taken: 0,
            sent: 0,
            answered: 0,
            job_limit,
            expires,
            born: self.now,
            last_used: 0,
            doomed: Vec::new(),
            stalled: (self.now, 0),
            kill_at: None,
            reason: None,
            exit: None,
            tail: Tail::default(),
            said: Lines::default(),
            rss_kib: 0,
            role,
            greeted: false,
            was_ready: false,
            asked_to_leave: false,
            told_to_leave: false,
            with_template: false,
            pinged: false,
            condemned: false,
            proof: None,
        };
        self.alarm_opt(expires);
        let slot = self.workers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.workers.push(None);
            self.workers.len() - 1
        });
        self.workers[slot] = Some(Box::new(worker));
        Ok(slot)
    }

    /// Sends INIT, with the progress page beside it where that is possible.
    fn send_init(&mut self, slot: usize) {
        let Some(worker) = &mut self.workers[slot] else { return };
        let Some(socket) = &worker.socket else { return };
        let (number, generation, config) = (worker.number, worker.generation, &self.options.config);
        if worker.json {
            jsonl::init_line(worker.output.tail(), number, generation, config);
        } else {
            let init = Init { max_frame: self.options.max_frame, generation, worker: number, config };
            let mut bytes = Vec::new();
            init.put(&mut bytes);
            let page = Page::create().ok();
            let fds: Vec<_> = page.iter().map(|(_, fd)| fd.as_fd()).collect();
            let sent = send_with_fds(socket.as_fd(), &bytes, &fds).unwrap_or(0);
            // Nothing sent means nothing passed: the page goes with the first byte.
            worker.page = page.filter(|_| sent > 0).map(|(page, _)| page);
            worker.output.tail().extend_from_slice(&bytes[sent..]);
        }
        self.dirty.push(slot);
    }

    pub(crate) fn on_forked(&mut self, slot: u32, pid: u32, pidfd: Option<OwnedFd>) {
        let pid = Pid::from_raw(pid.cast_signed());
        let found = self.workers.iter_mut().flatten().find(|worker| worker.number as u32 == slot);
        match (found, pid) {
            (Some(worker), Some(_)) => {
                (worker.pid, worker.pidfd) = (pid, pidfd);
                if worker.state == State::Killed {
                    worker.signal_group(Signal::KILL);
                }
            }
            (None, Some(pid)) => drop(rustix::process::kill_process_group(pid, Signal::KILL)),
            _ => {}
        }
    }

    pub(crate) fn on_fork_failed(&mut self, slot: u32, errno: i32) {
        let error = std::io::Error::from_raw_os_error(errno);
        let Some(at) =
            self.workers.iter().position(|worker| worker.as_ref().is_some_and(|w| w.number as u32 == slot))
        else {
            return;
        };
        let probe = self.workers[at].as_ref().is_some_and(|worker| worker.role == Role::Probe);
        self.sizing.on_gone(at);
        self.workers[at] = None;
        self.shared.counters.exited.add(1);
        let failed = Error::StartFailed {
            reason: format!("fork: {error}"),
            errno: Some(errno),
            stderr_tail: String::new(),
        };
        self.last_start_error = Some(failed.clone());
        self.starve(error);
        if probe {
            self.launch_failed(failed);
        }
    }

    /// Puts starts off: 100 ms, doubling to 5 s.
    fn starve(&mut self, error: std::io::Error) {
        let delay = self.starved.map_or(STARVED, |(_, delay)| (delay * 2).min(STARVED_MAX));
        self.starved = Some((self.now + delay, delay));
        self.shared.counters.resource_failures.add(1);
        self.report(&PoolError::Resources(error));
    }

    /// The worker has said READY.
    pub(crate) fn on_worker_ready(&mut self, slot: usize) {
        if let Some(own_kib) = self.measure(slot) {
            return self.refuse_fresh(slot, own_kib);
        }
        let Some(worker) = &mut self.workers[slot] else { return };
        worker.state = State::Ready;
        worker.was_ready = true;
        let leaves = worker.asked_to_leave;
        let (role, generation) = (worker.role, worker.generation);
        self.breaker.success();
        if role == Role::Probe {
            self.launched();
        } else if role == Role::Member {
            self.sizing.on_idle(slot, self.now);
        }
        self.deserted = None;
        if leaves || (generation != self.program.generation && self.launching.is_none()) {
            self.retire(slot);
        }
    }

    /// Asks a worker to finish and leave; another may take its place. Once: a worker that is leaving or dying is
    /// left alone.
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
        worker.kill_at = Some(self.now + GIVE_UP);
        worker.signal_group(Signal::KILL);
        self.shared.counters.killed.add(1);
        self.sizing.on_leaving(slot, false);
        self.alarm(self.now + GIVE_UP);
    }

    /// The worker has closed its socket. Most do so because they end; one that does not is killed: without a
    /// socket it is of no use, and its jobs wait for its end.
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
            // It must not keep a number that can be used again.
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
            worker.reason.get_or_insert_with(|| "its template died".to_owned());
        }
        self.settle(slot, None);
    }

    /// The worker has ended: reads what it has left, ends the jobs it had begun, puts the others back at the
    /// head of the queue, and frees the slot.
    fn settle(&mut self, slot: usize, exit: Option<Exit>) {
        if let Some(worker) = &mut self.workers[slot] {
            worker.exit = exit;
            worker.paused = false;
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
        let rest = worker.said.take();
        self.pass_on_log(number, 0, &rest);
        self.settle_jobs(&mut worker);
        self.explain(&worker);
        self.close_templates();
    }

    /// Tells the owner of the pool why a worker has ended, if that was not asked for.
    fn explain(&mut self, worker: &Worker) {
        let stuck = worker.condemned && worker.state == State::Killed;
        if (worker.told_to_leave && !stuck) || worker.with_template || self.ending_without_jobs() {
            if worker.role == Role::Probe {
                let reason = worker.ending();
                self.launch_failed(Error::StartFailed {
                    reason,
                    errno: None,
                    stderr_tail: worker.tail.text(),
                });
            }
            return;
        }
        let ending = worker.ending();
        // One that dies by itself before its first job is as bad as one that does not start.
        let by_itself = worker.reason.is_none() && !worker.has_worked();
        if !worker.was_ready || by_itself {
            return self.start_failed(worker, &ending);
        }
        self.shared.counters.crashed.add(u64::from(worker.reason.is_none()));
        self.report(&PoolError::WorkerLost { worker: worker.number, reason: ending });
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
                job.place = Place::Queued;
                job.chunks = None;
                let (priority, since) = (job.priority, job.submitted);
                self.requeue(sent.id, priority, since);
                self.shared.counters.redispatched.add(1);
            } else if job.idempotent && job.attempt < self.options.retry.times {
                job.attempt += 1;
                job.place = Place::Queued;
                job.chunks = None;
                let (priority, since) = (job.priority, job.submitted);
                self.requeue(sent.id, priority, since);
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

    /// Whether the kernel's out-of-memory killer has been at work since the last look and this worker died
    /// of SIGKILL.
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
                self.kill(slot, "it was not ready in time");
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
                // Killed, and its end is still not known: a process in the kernel's hands. Let go of it.
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

    /// Kills a worker that leaves its jobs lying for `start_timeout`. None of them was begun: they are sent again.
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

    /// Measures the workers' memory, each about once a second, if it is limited.
    pub(crate) fn scan_memory(&mut self) {
        let Some(due) = self.next_look else { return };
        if due > self.now {
            return self.alarm(due);
        }
        let known = |worker: &Option<Box<Worker>>| worker.as_ref().is_some_and(|worker| worker.pid.is_some());
        let count = self.workers.iter().filter(|worker| known(worker)).count().max(1);
        // One at a time, so that many walks over page tables do not hold up the jobs together.
        let (before, after) = self.workers.split_at(self.look_slot.min(self.workers.len()));
        let next = after.iter().chain(before).position(known);
        if let Some(step) = next {
            let slot = (self.look_slot.min(self.workers.len()) + step) % self.workers.len();
            self.look_slot = slot + 1;
            if let Some(own_kib) = self.measure(slot)
                && let Some(worker) = &mut self.workers[slot]
                && worker.state == State::Ready
            {
                if worker.has_worked() || !worker.in_flight.is_empty() {
                    self.retire(slot);
                } else {
                    worker.was_ready = false;
                    self.refuse_fresh(slot, own_kib);
                }
            }
        }
        self.shared.counters.rss_kib.set(self.workers.iter().flatten().map(|worker| worker.rss_kib).sum());
        let next = self.now + Duration::from_secs(1) / u32::try_from(count).unwrap_or(u32::MAX);
        self.next_look = Some(next);
        self.alarm(next);
    }

    /// Measures a worker; its own memory in KiB if that is over the limit.
    fn measure(&mut self, slot: usize) -> Option<u64> {
        let limit = self.options.max_rss?;
        let worker = self.workers[slot].as_ref()?;
        let (pid, serial) = (worker.pid?, worker.template);
        let template = self.templates.iter().find(|template| Some(template.serial) == serial);
        let template_kib = template.map_or(0, |template| memory::rss_kib(&proc_dir(template.pid)));
        let memory = Memory::measure(&proc_dir(pid), limit, template_kib);
        self.workers[slot].as_mut()?.rss_kib = memory.rss_kib;
        if memory.is_estimate && !std::mem::replace(&mut self.told_estimate, true) {
            self.report(&PoolError::MemoryEstimated);
        }
        (memory.own_kib.saturating_mul(1024) > limit).then_some(memory.own_kib)
    }

    /// A worker that is over the limit before it has done anything: another one would be, too.
    fn refuse_fresh(&mut self, slot: usize, own_kib: u64) {
        let limit = self.options.max_rss.unwrap_or(u64::MAX) >> 20;
        self.kill(
            slot,
            &format!("it has {} MiB of its own before its first job, max_rss is {limit} MiB", own_kib >> 10),
        );
    }

    /// Asks idle workers for a sign of life, and kills those that gave none.
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

    /// Puts an exec'ed worker's group under the guardian's watch, starting or replacing the guardian.
    fn watch(&mut self, pid: Pid) {
        if let Some(guardian) = &self.guardian
            && guardian.watch(pid).is_ok()
        {
            return;
        }
        self.renew_guardian(None);
        if let Some(guardian) = &self.guardian {
            guardian.watch(pid).ok();
        }
    }

    /// Replaces the guardian by one that watches all groups of exec'ed workers but that of `gone`.
    pub(crate) fn renew_guardian(&mut self, gone: Option<Pid>) {
        self.end_guardian();
        let Ok(guardian) = Guardian::start() else { return };
        let ours = self.workers.iter().flatten().filter(|worker| worker.template.is_none());
        for known in ours.filter_map(|worker| worker.pid).filter(|pid| Some(*pid) != gone) {
            guardian.watch(known).ok();
        }
        if let Some(pidfd) = &guardian.pidfd {
            self.register(pidfd, Source::Guardian, guardian.pid.as_raw_pid().unsigned_abs().into()).ok();
        }
        self.guardian = Some(guardian);
    }

    /// The guardian has ended: another one takes its place.
    pub(crate) fn on_guardian_end(&mut self, pid: u64) {
        if self
            .guardian
            .as_ref()
            .is_some_and(|guardian| u64::from(guardian.pid.as_raw_pid().unsigned_abs()) == pid)
        {
            self.renew_guardian(None);
        }
    }

    /// Kills the guardian before the end of its socket can tell it to kill the groups.
    pub(crate) fn end_guardian(&mut self) {
        if let Some(guardian) = self.guardian.take() {
            rustix::process::kill_process_group(guardian.pid, Signal::KILL).ok();
            let pid = guardian.pid;
            self.collect(pid);
            drop(guardian);
        }
    }

    /// Whether the pool is past its last job.
    pub(crate) fn ending_without_jobs(&self) -> bool {
        matches!(self.ending, Ending::Leaving(_))
    }
}

/// Kills of the out-of-memory killer since boot; 0 where the kernel does not say.
pub(crate) fn oom_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn proc_dir(pid: Pid) -> PathBuf {
    format!("/proc/{}", pid.as_raw_pid()).into()
}

/// After a kill: how long its end may stay unknown.
const GIVE_UP: Duration = Duration::from_secs(1);

/// First delay when the system is short of something.
const STARVED: Duration = Duration::from_millis(100);

/// Longest such delay.
const STARVED_MAX: Duration = Duration::from_secs(5);

/// Asked for as the sockets' send buffers, bytes.
const SOCKET_BUFFER: usize = 1 << 20;
