//! The start of a worker: its descriptors, its process, INIT; and the delay when the system is short of something.
//!
//! # Invariants
//! * A worker has a slot from the moment its process is started or asked for, and counts in the sizing from then on.
//! * A lack of descriptors, memory or processes only delays the start: no job fails, and the present workers serve.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use cattlegrid_worker::control::{Control, send_with_fds};
use cattlegrid_worker::message::Init;
use cattlegrid_worker::sys::{self, Page};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, Signal};

use crate::budget::Place;
use crate::driver::{Driver, Ending, Source};
use crate::error::{Error, PoolError, is_shortage, reason_of};
use crate::jsonl;
use crate::launch::{Launch, Mode};
use crate::logs::log_pipe;
use crate::program::spawn_error;
use crate::time::{FAR, LOOK, later};
use crate::worker::{Role, State, Worker};

/// Why a start did not happen.
enum StartError {
    /// The system is short of something; a later start may succeed.
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
    /// Starts a worker that counts in the sizing; uses a spare if there is one. False when none could be started.
    pub(crate) fn start_member(&mut self) -> bool {
        let generation = self.program.generation;
        let spare = self.workers.iter().position(|worker| {
            worker.as_ref().is_some_and(|worker| {
                worker.role == Role::Spare
                    && worker.generation == generation
                    && worker.state == State::Starting
            })
        });
        let Some(place) = self.take_place(false) else { return false };
        let Some(slot) = spare else { return self.start_worker(generation, Role::Member, place).is_some() };
        if let Some(worker) = &mut self.workers[slot] {
            worker.role = Role::Member;
            worker.born = self.now;
            worker.place = place;
        }
        self.sizing.on_starting(slot);
        self.send_init(slot);
        if self.workers[slot].as_ref().is_some_and(|worker| worker.ready_early) {
            self.on_worker_ready(slot);
        }
        true
    }

    /// Starts spares up to their number.
    pub(crate) fn refill_spares(&mut self) {
        if self.options.spare == 0 || !self.may_start() || self.ending != Ending::No {
            return;
        }
        if self.sizing.config().max == 0 {
            return self.drop_spares();
        }
        let spares = self.workers.iter().flatten().filter(|worker| worker.role == Role::Spare).count();
        for _ in spares..self.options.spare {
            if self.start_worker(self.program.generation, Role::Spare, Place::default()).is_none() {
                return;
            }
        }
    }

    /// Ends all spares: no worker will be started.
    fn drop_spares(&mut self) {
        for slot in 0..self.workers.len() {
            if self.workers[slot].as_ref().is_some_and(|worker| worker.role == Role::Spare) {
                self.retire_as(slot, false);
            }
        }
    }

    /// Starts the first worker of a generation that is being launched. It waits for room in the budget.
    pub(crate) fn start_probe(&mut self, generation: u32) {
        let place = self.take_place(true);
        if let Some(launching) = &mut self.launching {
            let since = *launching.no_room.get_or_insert(self.now);
            if place.is_some() {
                launching.no_room = None;
            }
            let due = later(since, self.options.start_timeout);
            self.alarm(due);
        }
        let Some(place) = place else { return };
        if self.start_worker(generation, Role::Probe, place).is_none() {
            let error = self.last_start_error.clone().unwrap_or(Error::Shutdown);
            self.launch_failed(error);
        }
    }

    /// A place in the budget. `None`: there is none, and the pool waits for one.
    fn take_place(&mut self, probe: bool) -> Option<Place> {
        let waits = !self.seat.may_take();
        let place = self.seat.take(self.now, probe);
        if place.is_none() && !waits {
            self.shared.counters.no_room.add(1);
        }
        place
    }

    fn start_worker(&mut self, generation: u32, role: Role, place: Place) -> Option<usize> {
        let launch = match &self.launching {
            Some(launching) if launching.program.generation == generation => launching.program.launch.clone(),
            _ => self.program.launch.clone(),
        };
        match self.try_start(&launch, generation, role) {
            Ok(slot) => {
                if let Some(worker) = &mut self.workers[slot] {
                    worker.place = place;
                    if worker.pid.is_some() {
                        self.starved = None;
                    }
                }
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
                let text = format!("no resources for a worker: {}", reason_of(&error));
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
        let (template, pid, pidfd) = match launch.mode {
            Mode::Template => (Some(self.ask_template(generation, number, &theirs, &writer)?), None, None),
            Mode::Exec | Mode::Stdio | Mode::JsonLines => {
                let child = self.exec_worker(launch, number, &theirs, &writer)?;
                (None, Some(child.pid), child.pidfd)
            }
        };
        self.last_number = number;
        let spread = 1.0 - self.options.jitter * self.random();
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a share of a count")]
        let job_limit = (self.options.max_jobs as f64 * spread).ceil() as u64;
        let expires = self.options.max_age.map(|age| later(self.now, age.min(FAR).mul_f64(spread)));
        let mut worker = Worker::new(number, generation, role, self.now);
        (worker.template, worker.pid, worker.pidfd) = (template, pid, pidfd);
        (worker.socket, worker.log) = (Some(socket), Some(log));
        worker.json = launch.mode == Mode::JsonLines;
        worker.objects = launch.objects;
        worker.max_frame = self.options.max_frame;
        (worker.job_limit, worker.expires) = (job_limit, expires);
        self.alarm_opt(expires);
        let slot = self.workers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.workers.push(None);
            self.workers.len() - 1
        });
        self.workers[slot] = Some(Box::new(worker));
        Ok(slot)
    }

    /// Asks the template of `generation` for a fork. Returns its serial number.
    fn ask_template(
        &self,
        generation: u32,
        number: u64,
        socket: &OwnedFd,
        log: &OwnedFd,
    ) -> Result<u64, StartError> {
        let unconnected = || StartError::Resources(std::io::ErrorKind::NotConnected.into());
        let template = self.template_of(generation).ok_or_else(unconnected)?;
        let control = template.control.as_ref().ok_or_else(unconnected)?;
        let (_, setup) = self.options.of_template();
        let fork = Control::Fork { slot: number as u32, setup };
        fork.send(control.as_fd(), &[socket.as_fd(), log.as_fd()])?;
        Ok(template.serial)
    }

    /// Starts the program itself, and watches its end and its process group.
    fn exec_worker(
        &mut self,
        launch: &Launch,
        number: u64,
        socket: &OwnedFd,
        log: &OwnedFd,
    ) -> Result<sys::Child, StartError> {
        let setup = self.options.setup.clone();
        let child = self.exec(launch, Some(socket), log, &setup).map_err(|error| {
            // A shortage in the child before its exec is the system's fault, too.
            if error.step == sys::Step::Fork || is_shortage(&error.source) {
                StartError::Resources(error.source)
            } else {
                StartError::Program(spawn_error(&error))
            }
        })?;
        self.watch_group(child.pid);
        match &child.pidfd {
            Some(pidfd) => self.register(pidfd, Source::WorkerEnd, number)?,
            None => self.alarm(self.now + LOOK),
        }
        Ok(child)
    }

    /// Sends INIT, together with the progress page where that is possible.
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
        // Reset here and not when the fork was asked for: a fork that fails must not reset the delays.
        self.starved = None;
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

    /// Delays all starts: 100 ms, doubled each time, at most 5 s.
    pub(crate) fn starve(&mut self, error: std::io::Error) {
        let delay = self.starved.map_or(STARVED, |(_, delay)| (delay * 2).min(STARVED_MAX));
        self.starved = Some((self.now + delay, delay));
        self.alarm(self.now + delay);
        self.shared.counters.resource_failures.add(1);
        self.report(&PoolError::Resources(error));
    }
}

/// First delay when the system is short of something.
const STARVED: Duration = Duration::from_millis(100);

/// Longest such delay.
const STARVED_MAX: Duration = Duration::from_secs(5);

/// Requested size of the sockets' send buffers, bytes.
const SOCKET_BUFFER: usize = 1 << 20;
