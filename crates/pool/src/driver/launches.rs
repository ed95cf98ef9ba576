//! Programs and their template processes: launch, READY, FORK, death and replacement. `template.rs` has their
//! data.
//!
//! A generation is launched, and takes over when it is ready. Its template is replaced when it dies, with the
//! delays of the breaker, and closed when neither its generation nor any of its workers is left.
//!
//! # Invariants
//! * At most one generation is being launched at a time.
//! * A worker whose template has died is settled with the template; that is reported once, for the template.

use std::os::fd::OwnedFd;

use cattlegrid_worker::control::Control;
use cattlegrid_worker::frame::VERSION;
use cattlegrid_worker::sys::Exit;

use crate::advice::StartReport;
use crate::driver::Driver;
use crate::driver::lifecycle::LATE;
use crate::error::{Error, PoolError, is_shortage};
use crate::event::Event;
use crate::launch::{Launch, LaunchMode};
use crate::payload::Reply;
use crate::promise::Resolver;
use crate::worker::WorkerProcess;

impl Driver {
    /// Replaces the program, unless another start or the end of the pool is under way.
    pub(super) fn reload(&mut self, launch: Launch, answer: Resolver<Result<(), Error>>) {
        if self.programs.is_launching() || self.ending.has_begun() {
            let reason = "another start or the end of the pool is under way".into();
            return answer.resolve(Err(Error::StartFailed {
                reason,
                errno: None,
                stderr_tail: String::new(),
            }));
        }
        self.launch(launch, true, answer);
    }

    /// Starts a generation; `answer` is resolved when it is ready, or cannot be.
    pub(super) fn launch(&mut self, launch: Launch, probe: bool, answer: Resolver<Result<(), Error>>) {
        let program = self.programs.begin(launch, probe, answer, &self.base);
        if program.launch.mode == LaunchMode::Stdio {
            self.base.report(&PoolError::StdioMode { program: program.launch.name() });
        }
        if program.launch.mode == LaunchMode::Template {
            if let Err(error) = self.programs.start_template(&program, &mut self.base) {
                self.launch_failed(error);
            }
        } else if probe {
            self.start_probe(program.generation);
        } else {
            self.launched();
        }
    }

    /// The new generation is ready: it takes over.
    pub(super) fn launched(&mut self) {
        let Some(launching) = self.programs.take_launching() else { return };
        let old = self.programs.replace(launching.program);
        let generation = self.programs.generation();
        self.fleet.retire_all(|worker| worker.generation != generation, &mut self.base);
        if old.generation > 0 {
            self.base.counters().reloads.add(1);
        }
        self.fleet.enlist_probes(&self.base);
        self.close_templates();
        launching.answer.resolve(Ok(()));
    }

    /// The new generation did not become ready. If it is the first one, the pool ends.
    pub(super) fn launch_failed(&mut self, error: Error) {
        let Some(launching) = self.programs.take_launching() else { return };
        let generation = launching.program.generation;
        let is_its = |worker: &WorkerProcess| worker.generation == generation;
        self.fleet.kill_all(is_its, "its generation could not be started", &mut self.base);
        self.programs.drop_templates(generation, &mut self.base);
        if generation == 1 {
            self.jobs.end_all(&error, &mut self.base);
            self.ending.leave(self.base.after(self.base.options().shutdown_grace));
        }
        launching.answer.resolve(Err(error));
    }

    pub(super) fn on_control(&mut self, serial: u64) {
        loop {
            let received = match self.programs.receive(serial) {
                Ok(Some(received)) => received,
                Ok(None) => return,
                Err(reason) => return self.template_lost(serial, reason),
            };
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
                if let Some(template) = self.programs.template_mut(serial) {
                    template.fatal = Some(text);
                }
            }
            Control::Event(body) => {
                if let Some(parts) = Reply::new(body.into()) {
                    self.base.deliver_event(Event { worker: 0, job: None, parts });
                }
            }
            _ => self.template_lost(serial, "it sent a message of the parent"),
        }
    }

    fn template_ready(&mut self, serial: u64) {
        let Some(template) = self.programs.template_mut(serial) else { return };
        template.ready = true;
        let generation = template.generation;
        if let Some(launching) = self.programs.launching()
            && launching.program.generation == generation
        {
            if launching.probe {
                self.start_probe(generation);
            } else {
                self.launched();
            }
        }
    }

    /// A template has ended, or is broken and killed here. Its workers die with it: they are settled here,
    /// without a report for each worker.
    fn template_lost(&mut self, serial: u64, reason: &str) {
        let Some(mut template) = self.programs.remove_template(serial) else { return };
        let exit = self.fleet.reap(template.pid, &mut self.base);
        if template.control.is_none() {
            // The pool had told it to end.
            return;
        }
        self.lose_with_template(serial);
        template.log.finish(&mut self.base);
        let stderr_tail = template.log.tail();
        let how = match exit {
            Some(Exit { status, .. }) if status < 0 => format!("killed by signal {}", -status),
            Some(Exit { status, .. }) => format!("exited with status {status}"),
            None => "status unknown".into(),
        };
        let start = StartReport {
            mode: LaunchMode::Template,
            output: &stderr_tail,
            unread: b"",
            status: exit.map(|exit| exit.status),
            is_late: reason == LATE,
        };
        let cause =
            start.cause().filter(|_| !template.ready).map_or(String::new(), |cause| format!("; {cause}"));
        let reason = template.fatal.unwrap_or_else(|| format!("{reason} ({how}){cause}"));
        if let Some(launching) = self.programs.launching()
            && launching.program.generation == template.generation
        {
            let reason = format!("template {}: {reason}", launching.program.launch.name());
            return self.launch_failed(Error::StartFailed { reason, errno: None, stderr_tail });
        }
        if template.generation != self.programs.generation() || self.ending.is_leaving() {
            return;
        }
        self.base.counters().templates_lost.add(1);
        if template.ready {
            self.base.report(&PoolError::TemplateLost { reason: reason.clone() });
        } else {
            self.base.counters().start_failures.add(1);
            self.base
                .report(&PoolError::StartFailed { reason: reason.clone(), stderr_tail: stderr_tail.clone() });
        }
        let reason = format!("template: {reason}");
        let error = Error::StartFailed { reason, errno: None, stderr_tail };
        self.fleet.note_start_failure(error, &mut self.base);
    }

    /// A template that does not answer FORK is killed, and then replaced like any template that dies.
    pub(super) fn template_stuck(&mut self, serial: u64) {
        self.template_lost(serial, "it did not answer");
        // Waiting jobs have the whole `start_timeout` again, for the next template.
        self.fleet.restart_patience();
    }

    pub(super) fn on_template_end(&mut self, serial: u64) {
        // Its last messages (FATAL, EXITED) come first.
        self.on_control(serial);
        self.template_lost(serial, "it ended");
    }

    /// Checks the time limits of all templates, and starts a new one when that of the current generation has
    /// died.
    pub(super) fn scan_templates(&mut self) {
        for serial in self.programs.scan_templates(&mut self.base) {
            self.template_lost(serial, LATE);
        }
        self.refresh_template();
    }

    /// Starts a template for the current generation if there is none, as the breaker allows.
    fn refresh_template(&mut self) {
        let Some(program) = self.programs.without_template().filter(|_| !self.ending.is_leaving()) else {
            return;
        };
        let program = program.clone();
        if let Some(at) = self.fleet.starts().next_try(self.base.now()) {
            return self.base.alarm(at);
        }
        let Err(error) = self.programs.start_template(&program, &mut self.base) else { return };
        if let Error::StartFailed { errno: Some(errno), .. } = error {
            let short = std::io::Error::from_raw_os_error(errno);
            if is_shortage(&short) {
                // The system's fault, not the program's.
                return self.fleet.note_shortage(short, error, &mut self.base);
            }
        }
        self.base.report(&PoolError::StartFailed { reason: error.to_string(), stderr_tail: String::new() });
        self.fleet.note_start_failure(error, &mut self.base);
    }

    /// Ends templates that have nothing to fork and no workers.
    pub(super) fn close_templates(&mut self) {
        let has_workers = |serial| self.fleet.iter().any(|worker| worker.template == Some(serial));
        self.programs.close_templates(!self.ending.is_leaving(), has_workers, &mut self.base);
    }
}
