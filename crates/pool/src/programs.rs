//! The programs of a pool: the one that its workers are made of, the one that is being launched, and their
//! template processes.
//!
//! It knows no worker and no job. The driver asks it for a template, and says which templates have workers.
//!
//! # Invariants
//! * At most one generation is being launched at a time.
//! * A template is closed when neither its generation nor any of its workers is left.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use cattlegrid_worker::control::{Packet, receive};
use cattlegrid_worker::sys::{self, Spawn, SpawnError};
use cattlegrid_worker::{ENV_FD, ENV_FDS, ENV_MODE, ENV_THREADS, Setup};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::base::{DriverBase, EventSource};
use crate::error::{Error, reason_of};
use crate::launch::{Launch, LaunchMode};
use crate::logs::{ProcessLog, log_pipe};
use crate::promise::Resolver;
use crate::time::{LOOK, later};

/// See the module.
#[derive(Debug)]
pub(crate) struct Programs {
    current: Program,
    launching: Option<PendingLaunch>,
    templates: Vec<TemplateProcess>,
    last_template: u64,
}

/// The program of new workers.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The generation, counted from 1; 0 before the first one is ready.
    pub(crate) generation: u32,
    pub(crate) launch: Launch,
}

/// A generation that is being launched: the first one, or a reload.
#[derive(Debug)]
pub(crate) struct PendingLaunch {
    pub(crate) program: Program,
    /// Whether the launch also starts a worker and waits until it is ready.
    pub(crate) probe: bool,
    pub(crate) answer: Resolver<Result<(), Error>>,
    /// Since when its first worker waits for room in the budget.
    pub(crate) no_room: Option<Instant>,
}

/// A template process.
#[derive(Debug)]
pub(crate) struct TemplateProcess {
    pub(crate) serial: u64,
    pub(crate) generation: u32,
    pub(crate) pid: Pid,
    pub(crate) pidfd: Option<OwnedFd>,
    /// The control socket; `None` once the pool has told the template to end.
    pub(crate) control: Option<OwnedFd>,
    pub(crate) log: ProcessLog,
    pub(crate) ready: bool,
    pub(crate) born: Instant,
    /// The text of its FATAL message.
    pub(crate) fatal: Option<String>,
    /// The time of SIGKILL.
    pub(crate) kill_at: Option<Instant>,
}

impl Programs {
    /// A pool without a ready generation. `launch` will be the first one.
    pub(crate) fn new(launch: Launch) -> Self {
        let current = Program { generation: 0, launch };
        Self { current, launching: None, templates: Vec::new(), last_template: 0 }
    }

    /// The generation of new workers.
    pub(crate) fn generation(&self) -> u32 {
        self.current.generation
    }

    pub(crate) fn is_launching(&self) -> bool {
        self.launching.is_some()
    }

    pub(crate) fn launching(&self) -> Option<&PendingLaunch> {
        self.launching.as_ref()
    }

    pub(crate) fn launching_mut(&mut self) -> Option<&mut PendingLaunch> {
        self.launching.as_mut()
    }

    /// The program of a generation: the one that is being launched, or the current one.
    pub(crate) fn launch_of(&self, generation: u32) -> &Launch {
        let launching = self.launching.as_ref().map(|launching| &launching.program);
        &launching.filter(|program| program.generation == generation).unwrap_or(&self.current).launch
    }

    /// Begins the launch of a generation.
    pub(crate) fn begin(
        &mut self,
        mut launch: Launch,
        probe: bool,
        answer: Resolver<Result<(), Error>>,
        base: &DriverBase,
    ) -> Program {
        for (key, value) in &base.options().env {
            launch.env.entry(key.clone()).or_insert_with(|| value.clone());
        }
        launch.env_clear |= base.options().env_clear;
        let program = Program { generation: self.current.generation + 1, launch };
        self.launching = Some(PendingLaunch { program: program.clone(), probe, answer, no_room: None });
        program
    }

    /// Ends the launch, whatever its result, and returns it.
    pub(crate) fn take_launching(&mut self) -> Option<PendingLaunch> {
        self.launching.take()
    }

    /// Puts a new generation in force. Returns the one before.
    pub(crate) fn replace(&mut self, program: Program) -> Program {
        std::mem::replace(&mut self.current, program)
    }

    /// Whether workers of the current generation can be started: exec'ed ones always, forked ones from a
    /// ready template.
    pub(crate) fn has_launcher(&self) -> bool {
        self.current.launch.mode != LaunchMode::Template
            || self.current_template().is_some_and(|template| template.ready)
    }

    fn current_template(&self) -> Option<&TemplateProcess> {
        let generation = self.current.generation;
        self.templates.iter().find(|template| template.generation == generation && template.control.is_some())
    }

    /// The current program, if it needs a template and has none.
    pub(crate) fn without_template(&self) -> Option<&Program> {
        let Program { generation, launch } = &self.current;
        let wants = launch.mode == LaunchMode::Template && *generation > 0;
        (wants && self.current_template().is_none()).then_some(&self.current)
    }

    /// The template that forks workers of `generation`.
    pub(crate) fn forking(&self, generation: u32) -> Option<&TemplateProcess> {
        self.templates.iter().find(|template| {
            template.generation == generation && template.ready && template.control.is_some()
        })
    }

    pub(crate) fn template(&self, serial: u64) -> Option<&TemplateProcess> {
        self.templates.iter().find(|template| template.serial == serial)
    }

    pub(crate) fn template_mut(&mut self, serial: u64) -> Option<&mut TemplateProcess> {
        self.templates.iter_mut().find(|template| template.serial == serial)
    }

    /// Kills and removes a template that has ended or is broken.
    pub(crate) fn remove_template(&mut self, serial: u64) -> Option<TemplateProcess> {
        let at = self.templates.iter().position(|template| template.serial == serial)?;
        let template = self.templates.remove(at);
        kill_process_group(template.pid, Signal::KILL).ok();
        Some(template)
    }

    /// Kills all templates. Returns their process ids.
    pub(crate) fn kill_templates(&self) -> Vec<Pid> {
        let pids: Vec<Pid> = self.templates.iter().map(|template| template.pid).collect();
        for pid in &pids {
            kill_process_group(*pid, Signal::KILL).ok();
        }
        pids
    }

    pub(crate) fn has_templates(&self) -> bool {
        !self.templates.is_empty()
    }

    /// The next message of a template. `Err`: the reason why the template is lost.
    pub(crate) fn receive(&self, serial: u64) -> Result<Option<Packet>, &'static str> {
        let Some(control) = self.template(serial).and_then(|template| template.control.as_ref()) else {
            return Ok(None);
        };
        match receive(control.as_fd()) {
            Ok(received) if received.closed => Err("it closed its control socket"),
            Ok(received) => Ok(Some(received)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(_) => Err("its control socket broke"),
        }
    }

    pub(crate) fn start_template(&mut self, program: &Program, base: &mut DriverBase) -> Result<(), Error> {
        let Program { generation, launch } = program;
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| system_error("control socket", &error.into()))?;
        rustix::io::ioctl_fionbio(&control, true).ok();
        let (log, writer) = log_pipe().map_err(|error| system_error("log pipe", &error))?;
        let (setup, _) = base.options().of_template();
        let child = exec(launch, &theirs, &writer, &setup, base).map_err(|error| spawn_error(&error))?;
        self.last_template += 1;
        let serial = self.last_template;
        base.register(&control, EventSource::Control, serial).ok();
        base.register(&log, EventSource::TemplateLog, serial).ok();
        match &child.pidfd {
            Some(pidfd) => drop(base.register(pidfd, EventSource::TemplateEnd, serial)),
            None => base.alarm(base.now() + LOOK),
        }
        base.alarm(base.after(base.options().start_timeout));
        self.templates.push(TemplateProcess {
            serial,
            generation: *generation,
            pid: child.pid,
            pidfd: child.pidfd,
            control: Some(control),
            log: ProcessLog::new(0, log),
            ready: false,
            born: base.now(),
            fatal: None,
            kill_at: None,
        });
        Ok(())
    }

    pub(crate) fn on_template_log(&mut self, serial: u64, base: &mut DriverBase) {
        if let Some(template) = self.template_mut(serial) {
            template.log.read(base);
        }
    }

    /// Checks the time limits of all templates. Returns those that are late or have ended.
    pub(crate) fn scan_templates(&mut self, base: &mut DriverBase) -> Vec<u64> {
        let mut late = Vec::new();
        for template in &mut self.templates {
            template.log.handle_timeout(base);
            let limit = later(template.born, base.options().start_timeout);
            let due = if template.ready { template.kill_at } else { Some(template.kill_at.unwrap_or(limit)) };
            match due {
                Some(due) if due <= base.now() => late.push(template.serial),
                due => base.alarm_opt(due),
            }
            if template.pidfd.is_none() {
                if !matches!(sys::reap(template.pid), Ok(None)) {
                    late.push(template.serial);
                }
                base.alarm(base.now() + LOOK);
            }
        }
        late
    }

    /// Ends the templates of a generation at once, because it could not be started.
    pub(crate) fn drop_templates(&mut self, generation: u32, base: &mut DriverBase) {
        for template in self.templates.iter_mut().filter(|template| template.generation == generation) {
            template.control = None;
            template.kill_at = Some(base.now());
            base.alarm(base.now());
        }
    }

    /// Ends templates that have nothing to fork (`forks`: the pool may start workers) and no workers
    /// (`has_workers`).
    pub(crate) fn close_templates(
        &mut self,
        forks: bool,
        has_workers: impl Fn(u64) -> bool,
        base: &mut DriverBase,
    ) {
        let launching = self.launching.as_ref().map(|launching| launching.program.generation);
        for template in &mut self.templates {
            let is_wanted =
                template.generation == self.current.generation || Some(template.generation) == launching;
            if template.control.is_some() && !(forks && is_wanted) && !has_workers(template.serial) {
                // The end of the control socket is the end of the template.
                template.control = None;
                let due = base.now() + Duration::from_secs(1);
                template.kill_at = Some(due);
                template.ready = true;
                base.alarm(due);
            }
        }
    }

    pub(crate) fn publish(&self, base: &DriverBase) {
        base.counters().generation.set(self.current.generation.into());
        base.counters().template_missing.set((!self.has_launcher()).into());
    }
}

/// Execs a program. `socket` becomes descriptor 3 (template, exec) or 0 and 1 (stdio, JSON lines).
pub(crate) fn exec(
    launch: &Launch,
    socket: &OwnedFd,
    log: &OwnedFd,
    setup: &Setup,
    base: &DriverBase,
) -> Result<sys::Child, SpawnError> {
    let null = std::fs::File::open("/dev/null").map_err(|source| SpawnError {
        program: "/dev/null".into(),
        step: sys::SpawnStep::Fork,
        source,
    })?;
    let on_stdio = matches!(launch.mode, LaunchMode::Stdio | LaunchMode::JsonLines);
    let mut fds: Vec<BorrowedFd<'_>> = vec![null.as_fd(), log.as_fd(), log.as_fd()];
    if on_stdio {
        (fds[0], fds[1]) = (socket.as_fd(), socket.as_fd());
    } else {
        fds.push(socket.as_fd());
    }
    let mut names = Vec::new();
    for (name, fd) in &base.options().fds {
        names.push(format!("{name}={}", fds.len()));
        fds.push(fd.as_fd());
    }
    let mut ours = vec![(ENV_MODE, launch.mode.name().to_owned())];
    if !on_stdio {
        ours.push((ENV_FD, "3".into()));
    }
    if !names.is_empty() {
        ours.push((ENV_FDS, names.join(",")));
    }
    if launch.allow_threads {
        ours.push((ENV_THREADS, "1".into()));
    }
    let env: Vec<(OsString, OsString)> = launch.environment(&ours);
    let dir = launch.dir.as_deref();
    Spawn { program: &launch.program, args: &launch.args, env: &env, dir, fds: &fds, setup, outlive: false }
        .spawn()
}

pub(crate) fn spawn_error(error: &SpawnError) -> Error {
    Error::StartFailed {
        reason: format!("{error}: {}", reason_of(&error.source)),
        errno: error.source.raw_os_error(),
        stderr_tail: String::new(),
    }
}

fn system_error(what: &str, error: &std::io::Error) -> Error {
    Error::StartFailed {
        reason: format!("{what}: {}", reason_of(error)),
        errno: error.raw_os_error(),
        stderr_tail: String::new(),
    }
}
