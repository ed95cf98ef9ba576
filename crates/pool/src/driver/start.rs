//! The start of a worker: its descriptors, its process, INIT.
//!
//! # Invariant
//! * A worker has a slot from the moment its process is started or asked for, and counts in the sizing from
//!   then on.

use std::os::fd::{AsFd, OwnedFd};

use cattlegrid_worker::control::Control;
use cattlegrid_worker::sys;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, Signal};

use crate::base::{DriverBase, EventSource};
use crate::budget::BudgetPlace;
use crate::driver::Driver;
use crate::error::{Error, PoolError, is_shortage, reason_of};
use crate::launch::{Launch, LaunchMode};
use crate::logs::{ProcessLog, log_pipe};
use crate::programs::{exec, spawn_error};
use crate::time::{FAR, LOOK, later};
use crate::worker::{Role, WorkerProcess, WorkerState};

/// Why a start did not happen.
enum WorkerStartError {
    /// The system is short of something; a later start may succeed.
    Resources(std::io::Error),
    /// The program is at fault.
    Program(Error),
}

impl From<std::io::Error> for WorkerStartError {
    fn from(error: std::io::Error) -> Self {
        Self::Resources(error)
    }
}

impl From<rustix::io::Errno> for WorkerStartError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Resources(errno.into())
    }
}

impl Driver {
    /// Starts a worker that counts in the sizing; uses a spare if there is one. False when none could be
    /// started.
    pub(super) fn start_member(&mut self) -> bool {
        let generation = self.programs.generation();
        let spare = self.fleet.find(|worker| {
            worker.role == Role::Spare
                && worker.generation == generation
                && worker.state == WorkerState::Starting
        });
        let Some(place) = self.fleet.take_place(false, &self.base) else { return false };
        let Some(slot) = spare else { return self.start_worker(generation, Role::Member, place).is_some() };
        let Some(worker) = self.fleet.get_mut(slot) else { return false };
        worker.role = Role::Member;
        worker.born = self.base.now();
        worker.place = place;
        let ready_early = worker.ready_early;
        self.fleet.on_starting(slot);
        self.fleet.send_init(slot, &self.base);
        if ready_early {
            self.on_worker_ready(slot);
        }
        true
    }

    /// Starts spares up to their number.
    pub(super) fn refill_spares(&mut self) {
        let wanted = self.base.options().spare;
        if wanted == 0 || !self.may_start() || self.ending.has_begun() {
            return;
        }
        if self.fleet.sizing().config().max == 0 {
            return self.fleet.drop_spares(&mut self.base);
        }
        let spares = self.fleet.iter().filter(|worker| worker.role == Role::Spare).count();
        for _ in spares..wanted {
            if self.start_worker(self.programs.generation(), Role::Spare, BudgetPlace::default()).is_none() {
                return;
            }
        }
    }

    /// Starts the first worker of a generation that is being launched. It waits for room in the budget.
    pub(super) fn start_probe(&mut self, generation: u32) {
        let place = self.fleet.take_place(true, &self.base);
        if let Some(launching) = self.programs.launching_mut() {
            let since = *launching.no_room.get_or_insert(self.base.now());
            if place.is_some() {
                launching.no_room = None;
            }
            self.base.alarm(later(since, self.base.options().start_timeout));
        }
        let Some(place) = place else { return };
        if self.start_worker(generation, Role::Probe, place).is_none() {
            let error = self.fleet.starts().last_error().cloned().unwrap_or(Error::Shutdown);
            self.launch_failed(error);
        }
    }

    fn start_worker(&mut self, generation: u32, role: Role, place: BudgetPlace) -> Option<usize> {
        match self.try_start(generation, role, place) {
            Ok(slot) => {
                if self.fleet.get(slot).is_some_and(|worker| worker.pid.is_some()) {
                    self.fleet.end_shortage();
                }
                self.base.counters().spawned.add(1);
                if role == Role::Member {
                    self.fleet.on_starting(slot);
                }
                if role != Role::Spare {
                    self.fleet.send_init(slot, &self.base);
                }
                self.base.alarm(self.base.after(self.base.options().start_timeout));
                Some(slot)
            }
            Err(WorkerStartError::Resources(error)) => {
                let text = format!("no resources for a worker: {}", reason_of(&error));
                let errno = error.raw_os_error();
                let failed = Error::StartFailed { reason: text, errno, stderr_tail: String::new() };
                self.fleet.note_shortage(error, failed, &mut self.base);
                None
            }
            Err(WorkerStartError::Program(error)) => {
                self.base.counters().start_failures.add(1);
                self.base.report(&PoolError::StartFailed {
                    reason: error.to_string(),
                    stderr_tail: String::new(),
                });
                self.fleet.note_start_failure(error, &mut self.base);
                None
            }
        }
    }

    fn try_start(
        &mut self,
        generation: u32,
        role: Role,
        place: BudgetPlace,
    ) -> Result<usize, WorkerStartError> {
        let launch = self.programs.launch_of(generation);
        let number = self.fleet.next_number();
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        for end in [&socket, &theirs] {
            // The kernel caps this at its limit; it saves switches for large frames.
            sockopt::set_socket_send_buffer_size(end, SOCKET_BUFFER).ok();
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        let (log, writer) = log_pipe()?;
        self.base.register(&socket, EventSource::Worker, number)?;
        self.base.register(&log, EventSource::WorkerLog, number)?;
        let (template, pid, pidfd) = match launch.mode {
            LaunchMode::Template => {
                (Some(self.ask_template(generation, number, &theirs, &writer)?), None, None)
            }
            LaunchMode::Exec | LaunchMode::Stdio | LaunchMode::JsonLines => {
                let child = exec_worker(launch, &theirs, &writer, &self.base)?;
                self.fleet.watch_group(child.pid, &mut self.base);
                match &child.pidfd {
                    Some(pidfd) => self.base.register(pidfd, EventSource::WorkerEnd, number)?,
                    None => self.base.alarm(self.base.now() + LOOK),
                }
                (None, Some(child.pid), child.pidfd)
            }
        };
        let spread = self.fleet.next_spread(self.base.options().jitter);
        let options = self.base.options();
        let mut worker =
            WorkerProcess::new(number, generation, role, ProcessLog::new(number, log), self.base.now());
        (worker.template, worker.pid, worker.pidfd) = (template, pid, pidfd);
        (worker.socket, worker.place) = (Some(socket), place);
        worker.json = launch.mode == LaunchMode::JsonLines;
        worker.objects = launch.objects;
        worker.max_frame = options.max_frame;
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a share of a count")]
        let job_limit = (options.max_jobs as f64 * spread).ceil() as u64;
        worker.job_limit = job_limit;
        worker.expires = options.max_age.map(|age| self.base.after(age.min(FAR).mul_f64(spread)));
        self.base.alarm_opt(worker.expires);
        Ok(self.fleet.add(worker))
    }

    /// Asks the template of `generation` for a fork. Returns its serial number.
    fn ask_template(
        &self,
        generation: u32,
        number: u64,
        socket: &OwnedFd,
        log: &OwnedFd,
    ) -> Result<u64, WorkerStartError> {
        let unconnected = || WorkerStartError::Resources(std::io::ErrorKind::NotConnected.into());
        let template = self.programs.forking(generation).ok_or_else(unconnected)?;
        let control = template.control.as_ref().ok_or_else(unconnected)?;
        let (_, setup) = self.base.options().of_template();
        let fork = Control::Fork { slot: number as u32, setup };
        fork.send(control.as_fd(), &[socket.as_fd(), log.as_fd()])?;
        Ok(template.serial)
    }

    pub(super) fn on_forked(&mut self, slot: u32, pid: u32, pidfd: Option<OwnedFd>) {
        let pid = Pid::from_raw(pid.cast_signed());
        // Reset here and not when the fork was asked for: a fork that fails must not reset the delays.
        self.fleet.end_shortage();
        let found = self.fleet.find(|worker| worker.number as u32 == slot);
        match (found.and_then(|slot| self.fleet.get_mut(slot)), pid) {
            (Some(worker), Some(_)) => {
                (worker.pid, worker.pidfd) = (pid, pidfd);
                if worker.state == WorkerState::Killed {
                    worker.signal_group(Signal::KILL);
                }
            }
            (None, Some(pid)) => drop(rustix::process::kill_process_group(pid, Signal::KILL)),
            _ => {}
        }
    }

    pub(super) fn on_fork_failed(&mut self, slot: u32, errno: i32) {
        let error = std::io::Error::from_raw_os_error(errno);
        let Some(at) = self.fleet.find(|worker| worker.number as u32 == slot) else { return };
        let Some(worker) = self.fleet.remove(at, &self.base) else { return };
        let failed = Error::StartFailed {
            reason: format!("fork: {error}"),
            errno: Some(errno),
            stderr_tail: String::new(),
        };
        let role = worker.role;
        drop(worker);
        self.fleet.note_shortage(error, failed.clone(), &mut self.base);
        if role == Role::Probe {
            self.launch_failed(failed);
        }
    }
}

/// Starts the program itself.
fn exec_worker(
    launch: &Launch,
    socket: &OwnedFd,
    log: &OwnedFd,
    base: &DriverBase,
) -> Result<sys::Child, WorkerStartError> {
    exec(launch, socket, log, &base.options().setup, base).map_err(|error| {
        // A shortage in the child before its exec is the system's fault, too.
        if error.step == sys::SpawnStep::Fork || is_shortage(&error.source) {
            WorkerStartError::Resources(error.source)
        } else {
            WorkerStartError::Program(spawn_error(&error))
        }
    })
}

/// Requested size of the sockets' send buffers, bytes.
const SOCKET_BUFFER: usize = 1 << 20;
