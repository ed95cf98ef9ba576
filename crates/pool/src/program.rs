//! Programs and their template processes: launch, READY, FORK, death and replacement. `template.rs` has their data.
//!
//! A generation is launched, and takes over when it is ready. Its template is replaced when it dies, with the delays of the
//! breaker, and closed when neither its generation nor any of its workers is left.
//!
//! # Invariants
//! * At most one generation is being launched at a time.
//! * A worker whose template has died is settled with the template; that is reported once, for the template.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use cattlegrid_worker::control::{Control, receive};
use cattlegrid_worker::frame::VERSION;
use cattlegrid_worker::sys::{self, Exit, Spawn, SpawnError};
use cattlegrid_worker::{ENV_FD, ENV_FDS, ENV_MODE, ENV_THREADS, Setup};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::advice::Start;
use crate::driver::{Driver, Ending, Source};
use crate::error::{Error, PoolError, is_shortage, reason_of};
use crate::launch::{Launch, Mode};
use crate::lifecycle::LATE;
use crate::logs::{CHUNK, Lines, Tail, UNFINISHED, drain_log, log_pipe};
use crate::promise::Resolver;
use crate::template::{Launching, Program, Template};
use crate::time::{LOOK, later};
use crate::worker::{Role, State};

impl Driver {
    /// Starts a generation; `answer` is resolved when it is ready, or cannot be.
    pub(crate) fn launch(&mut self, mut launch: Launch, probe: bool, answer: Resolver<Result<(), Error>>) {
        for (key, value) in &self.options.env {
            launch.env.entry(key.clone()).or_insert_with(|| value.clone());
        }
        launch.env_clear |= self.options.env_clear;
        let program = Program::new(self.program.generation + 1, launch);
        let mode = program.launch.mode;
        let generation = program.generation;
        let template = program.launch.clone();
        self.launching = Some(Launching { program, probe, answer, no_room: None });
        if mode == Mode::Template {
            if let Err(error) = self.start_template(&template, generation) {
                self.launch_failed(error);
            }
        } else if probe {
            self.start_probe(generation);
        } else {
            self.launched();
        }
    }

    /// The new generation is ready: it takes over.
    pub(crate) fn launched(&mut self) {
        let Some(launching) = self.launching.take() else { return };
        let old = std::mem::replace(&mut self.program, launching.program);
        let generation = self.program.generation;
        for slot in 0..self.workers.len() {
            if self.workers[slot].as_ref().is_some_and(|worker| worker.generation != generation) {
                self.retire(slot);
            }
        }
        if old.generation > 0 {
            self.shared.counters.reloads.add(1);
        }
        for slot in 0..self.workers.len() {
            if let Some(worker) = &mut self.workers[slot]
                && worker.role == Role::Probe
            {
                worker.role = Role::Member;
                self.sizing.on_starting(slot);
                if worker.state == State::Ready {
                    self.sizing.on_idle(slot, self.now);
                }
            }
        }
        self.sizing.kick(self.now);
        self.close_templates();
        launching.answer.resolve(Ok(()));
    }

    /// The new generation did not become ready. If it is the first one, the pool ends.
    pub(crate) fn launch_failed(&mut self, error: Error) {
        let Some(launching) = self.launching.take() else { return };
        let generation = launching.program.generation;
        for slot in 0..self.workers.len() {
            if self.workers[slot].as_ref().is_some_and(|worker| worker.generation == generation) {
                self.kill(slot, "its generation could not be started");
            }
        }
        for template in &mut self.templates {
            if template.generation == generation {
                template.control = None;
                template.kill_at = Some(self.now);
                self.scan_at = Some(self.now);
            }
        }
        if generation == 1 {
            for id in self.jobs.ids() {
                self.end_job(id, Err(error.clone()));
            }
            self.ending = Ending::Leaving(later(self.now, self.options.shutdown_grace));
        }
        launching.answer.resolve(Err(error));
    }

    /// Whether workers of the current generation can be started: exec'ed ones always, forked ones from a
    /// ready template. Starts a template if there is none.
    pub(crate) fn has_launcher(&self) -> bool {
        self.program.launch.mode != Mode::Template
            || self.current_template().is_some_and(|template| template.ready)
    }

    pub(crate) fn current_template(&self) -> Option<&Template> {
        let generation = self.program.generation;
        self.templates.iter().find(|template| template.generation == generation && template.control.is_some())
    }

    /// The template that forks workers of `generation`.
    pub(crate) fn template_of(&self, generation: u32) -> Option<&Template> {
        self.templates.iter().find(|template| {
            template.generation == generation && template.ready && template.control.is_some()
        })
    }

    pub(crate) fn start_template(&mut self, launch: &Launch, generation: u32) -> Result<(), Error> {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| system_error("control socket", &error.into()))?;
        rustix::io::ioctl_fionbio(&control, true).ok();
        let (log, writer) = log_pipe().map_err(|error| system_error("log pipe", &error))?;
        let (setup, _) = self.options.of_template();
        let child = self.exec(launch, Some(&theirs), &writer, &setup);
        let child = child.map_err(|error| spawn_error(&error))?;
        self.last_template += 1;
        let serial = self.last_template;
        let template = Template {
            serial,
            generation,
            pid: child.pid,
            pidfd: child.pidfd,
            control: Some(control),
            log,
            ready: false,
            born: self.now,
            tail: Tail::default(),
            said: Lines::default(),
            fatal: None,
            kill_at: None,
        };
        if let Some(control) = &template.control {
            self.register(control, Source::Control, serial).ok();
        }
        self.register(&template.log, Source::TemplateLog, serial).ok();
        match &template.pidfd {
            Some(pidfd) => drop(self.register(pidfd, Source::TemplateEnd, serial)),
            None => self.alarm(self.now + LOOK),
        }
        self.alarm(later(self.now, self.options.start_timeout));
        self.templates.push(template);
        Ok(())
    }

    /// Execs a program. `socket` becomes descriptor 3 (template, exec) or 0 and 1 (stdio, JSON lines).
    pub(crate) fn exec(
        &mut self,
        launch: &Launch,
        socket: Option<&OwnedFd>,
        log: &OwnedFd,
        setup: &Setup,
    ) -> Result<sys::Child, SpawnError> {
        let null = std::fs::File::open("/dev/null").map_err(|source| SpawnError {
            program: "/dev/null".into(),
            step: sys::Step::Fork,
            source,
        })?;
        let on_stdio = matches!(launch.mode, Mode::Stdio | Mode::JsonLines);
        let mut fds: Vec<BorrowedFd<'_>> = vec![null.as_fd(), log.as_fd(), log.as_fd()];
        match socket {
            Some(socket) if on_stdio => (fds[0], fds[1]) = (socket.as_fd(), socket.as_fd()),
            Some(socket) => fds.push(socket.as_fd()),
            None => {}
        }
        let mut names = Vec::new();
        for (name, fd) in &self.options.fds {
            names.push(format!("{name}={}", fds.len()));
            fds.push(fd.as_fd());
        }
        let mode = match launch.mode {
            Mode::Template => "template",
            Mode::Exec => "exec",
            Mode::Stdio => "stdio",
            Mode::JsonLines => "jsonl",
        };
        let mut ours = vec![(ENV_MODE, mode.to_owned())];
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
        Spawn {
            program: &launch.program,
            args: &launch.args,
            env: &env,
            dir,
            fds: &fds,
            setup,
            outlive: false,
        }
        .spawn()
    }

    pub(crate) fn on_control(&mut self, serial: u64) {
        loop {
            let Some(template) = self.templates.iter().find(|template| template.serial == serial) else {
                return;
            };
            let Some(control) = &template.control else { return };
            let received = match receive(control.as_fd()) {
                Ok(received) => received,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => return self.template_lost(serial, "its control socket broke"),
            };
            if received.closed {
                return self.template_lost(serial, "it closed its control socket");
            }
            match received.message {
                Some(message) => self.on_control_message(serial, message, received.fds),
                None => return self.template_lost(serial, "it sent a malformed message"),
            }
        }
    }

    fn on_control_message(&mut self, serial: u64, message: Control, fds: Vec<OwnedFd>) {
        match message {
            Control::Ready { version, .. } if version != VERSION => {
                self.template_lost(serial, &format!("it speaks protocol version {version}, not {VERSION}"));
            }
            Control::Ready { .. } => self.template_ready(serial),
            Control::Forked { slot, pid } => self.on_forked(slot, pid, fds.into_iter().next()),
            Control::Failed { slot, errno } => self.on_fork_failed(slot, errno),
            Control::Exited { slot, pid, status, maxrss_kib } => {
                self.on_exited(slot, pid, Exit { status, maxrss_kib });
            }
            Control::Fatal(text) => {
                if let Some(template) = self.templates.iter_mut().find(|template| template.serial == serial) {
                    template.fatal = Some(text);
                }
            }
            Control::Event(body) => self.template_event(body),
            _ => self.template_lost(serial, "it sent a message of the parent"),
        }
    }

    fn template_ready(&mut self, serial: u64) {
        let Some(template) = self.templates.iter_mut().find(|template| template.serial == serial) else {
            return;
        };
        template.ready = true;
        let generation = template.generation;
        if let Some(launching) = &self.launching
            && launching.program.generation == generation
        {
            if launching.probe {
                self.start_probe(generation);
            } else {
                self.launched();
            }
        }
    }

    /// A template has ended, or is broken and killed here. Its workers die with it: they are settled here, without a
    /// report for each worker.
    fn template_lost(&mut self, serial: u64, reason: &str) {
        let Some(at) = self.templates.iter().position(|template| template.serial == serial) else { return };
        let template = self.templates.remove(at);
        kill_process_group(template.pid, Signal::KILL).ok();
        let exit = self.collect(template.pid);
        if template.control.is_none() {
            // The pool had told it to end.
            return;
        }
        for slot in 0..self.workers.len() {
            if self.workers[slot].as_ref().is_some_and(|worker| worker.template == Some(serial)) {
                self.lose_with_template(slot);
            }
        }
        let mut tail = template.tail;
        let mut said = template.said;
        for chunk in drain_log(&template.log, &mut tail) {
            let whole = self.limit_log(&chunk, &mut said);
            self.pass_on_log(0, 0, &whole);
        }
        let rest = self.limit_rest(&mut said);
        self.pass_on_log(0, 0, &rest);
        let how = match exit {
            Some(Exit { status, .. }) if status < 0 => format!("killed by signal {}", -status),
            Some(Exit { status, .. }) => format!("exited with status {status}"),
            None => "status unknown".into(),
        };
        let start = Start {
            mode: Mode::Template,
            output: &tail.text(),
            unread: b"",
            status: exit.map(|exit| exit.status),
            is_late: reason == LATE,
        };
        let cause =
            start.cause().filter(|_| !template.ready).map_or(String::new(), |cause| format!("; {cause}"));
        let reason = template.fatal.unwrap_or_else(|| format!("{reason} ({how}){cause}"));
        let launching = self.launching.as_ref().map(|launching| launching.program.generation);
        if launching == Some(template.generation) {
            let name =
                self.launching.as_ref().map(|launching| launching.program.launch.name()).unwrap_or_default();
            let reason = format!("template {name}: {reason}");
            return self.launch_failed(Error::StartFailed { reason, errno: None, stderr_tail: tail.text() });
        }
        if template.generation != self.program.generation || self.ending_without_jobs() {
            return;
        }
        self.shared.counters.templates_lost.add(1);
        if template.ready {
            self.report(&PoolError::TemplateLost { reason: reason.clone() });
        } else {
            self.shared.counters.start_failures.add(1);
            self.report(&PoolError::StartFailed { reason: reason.clone(), stderr_tail: tail.text() });
        }
        self.note_start_failure(Error::StartFailed {
            reason: format!("template: {reason}"),
            errno: None,
            stderr_tail: tail.text(),
        });
    }

    /// A template that does not answer FORK is killed, and then replaced like any template that dies.
    pub(crate) fn template_stuck(&mut self, serial: u64) {
        self.template_lost(serial, "it did not answer");
        // Waiting jobs have the whole `start_timeout` again, for the next template.
        self.deserted = None;
    }

    /// Reaps a child of ours that has been killed, waiting up to 10 ms. If it has not ended by then, it goes to the orphans.
    pub(crate) fn collect(&mut self, pid: Pid) -> Option<Exit> {
        // SIGKILL takes effect within microseconds; wait a moment rather than lose the status.
        for _ in 0..20 {
            match sys::reap(pid) {
                Ok(Some(exit)) => return Some(exit),
                Ok(None) => {
                    let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000 };
                    rustix::event::poll(&mut [], Some(&pause)).ok();
                }
                Err(_) => return None,
            }
        }
        self.orphans.push(pid);
        self.alarm(self.now + LOOK);
        None
    }

    pub(crate) fn on_template_end(&mut self, serial: u64) {
        // Its last messages (FATAL, EXITED) come first.
        self.on_control(serial);
        self.template_lost(serial, "it ended");
    }

    pub(crate) fn on_template_log(&mut self, serial: u64) {
        let mut chunk = [0; CHUNK];
        let Some(template) = self.templates.iter_mut().find(|template| template.serial == serial) else {
            return;
        };
        match rustix::io::read(&template.log, &mut chunk) {
            Ok(0) | Err(rustix::io::Errno::IO) => {
                rustix::event::epoll::delete(&self.epoll, &template.log).ok();
            }
            Ok(count) => {
                template.tail.push(&chunk[..count]);
                let mut said = std::mem::take(&mut template.said);
                let whole = self.limit_log(&chunk[..count], &mut said);
                if let Some(since) = said.since {
                    self.alarm(later(since, UNFINISHED));
                }
                if let Some(template) = self.templates.iter_mut().find(|template| template.serial == serial) {
                    template.said = said;
                }
                self.pass_on_log(0, 0, &whole);
            }
            Err(_) => {}
        }
    }

    /// Checks the time limits of all templates, and starts a new one when that of the current generation has died.
    pub(crate) fn scan_templates(&mut self) {
        let (mut late, mut unfinished) = (Vec::new(), Vec::new());
        for template in &mut self.templates {
            match template.said.since.map(|since| later(since, UNFINISHED)) {
                Some(due) if due <= self.now => unfinished.push(std::mem::take(&mut template.said)),
                Some(due) => self.scan_at = Some(self.scan_at.map_or(due, |before| before.min(due))),
                None => {}
            }
            let limit = later(template.born, self.options.start_timeout);
            let due = if template.ready { template.kill_at } else { Some(template.kill_at.unwrap_or(limit)) };
            match due {
                Some(due) if due <= self.now => late.push(template.serial),
                Some(due) => self.scan_at = Some(self.scan_at.map_or(due, |before| before.min(due))),
                None => {}
            }
            if template.pidfd.is_none() {
                let ended = !matches!(sys::reap(template.pid), Ok(None));
                if ended {
                    late.push(template.serial);
                }
                self.scan_at = Some(self.now + LOOK);
            }
        }
        for mut said in unfinished {
            let line = self.limit_rest(&mut said);
            self.pass_on_log(0, 0, &line);
        }
        for serial in late {
            self.template_lost(serial, LATE);
        }
        self.refresh_template();
    }

    /// Starts a template for the current generation if there is none, as the breaker allows.
    pub(crate) fn refresh_template(&mut self) {
        let wanted = self.program.launch.mode == Mode::Template
            && self.program.generation > 0
            && self.current_template().is_none()
            && !self.ending_without_jobs();
        if !wanted {
            return;
        }
        if !self.breaker.allows(self.now) {
            return self.alarm_opt(self.breaker.poll_timeout());
        }
        if let Some((at, _)) = self.starved.filter(|(at, _)| *at > self.now) {
            return self.alarm(at);
        }
        let launch = self.program.launch.clone();
        if let Err(error) = self.start_template(&launch, self.program.generation) {
            if let Error::StartFailed { errno: Some(errno), .. } = error {
                let short = std::io::Error::from_raw_os_error(errno);
                if is_shortage(&short) {
                    // The system's fault, not the program's.
                    self.last_start_error = Some(error);
                    return self.starve(short);
                }
            }
            self.report(&PoolError::StartFailed { reason: error.to_string(), stderr_tail: String::new() });
            self.note_start_failure(error);
        }
    }

    /// Ends templates that have nothing to fork and no workers.
    pub(crate) fn close_templates(&mut self) {
        let leaving = matches!(self.ending, Ending::Leaving(_));
        let launching = self.launching.as_ref().map(|launching| launching.program.generation);
        let (now, grace) = (self.now, Duration::from_secs(1));
        let mut alarm = None;
        for template in &mut self.templates {
            let in_use = self.workers.iter().flatten().any(|worker| worker.template == Some(template.serial));
            let wanted = !leaving
                && (template.generation == self.program.generation || Some(template.generation) == launching);
            if template.control.is_some() && !in_use && !wanted {
                // The end of the control socket is the end of the template.
                template.control = None;
                template.kill_at = Some(now + grace);
                template.ready = true;
                alarm = Some(now + grace);
            }
        }
        self.alarm_opt(alarm);
    }
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
