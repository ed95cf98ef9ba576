//! The end of a pool: its jobs first, then its processes, then the last callbacks and log lines.
//!
//! `No` -> `Draining` (no new jobs) -> `Leaving` (no jobs; processes end) -> [`Driver::finish`]. A thread
//! that has panicked goes straight to [`Driver::abandon`].
//!
//! # Invariants
//! * Every job has its outcome before `Leaving`, or at its start when all is killed.
//! * `on_destroy` is called once, when no process is left.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;

use crate::driver::Driver;
use crate::ending::EndingPhase;
use crate::error::{Error, PoolError};
use crate::stderr;

impl Driver {
    pub(super) fn advance_ending(&mut self) {
        let is_draining = matches!(self.ending.phase(), EndingPhase::Draining(_));
        let open = self.jobs.waiting() + self.fleet.jobs();
        if is_draining && open == 0 && !self.programs.is_launching() {
            self.leave();
            self.fleet.retire_all(|_| true, &mut self.base);
        }
    }

    pub(super) fn kill_everything(&mut self) {
        if let Some(launching) = self.programs.take_launching() {
            launching.answer.resolve(Err(Error::Shutdown));
        }
        self.fleet.kill_all(|_| true, "the pool was shut down", &mut self.base);
        self.jobs.end_all(&Error::Shutdown, &mut self.base);
        self.leave();
    }

    fn leave(&mut self) {
        let at = self.base.after(self.base.options().shutdown_grace);
        self.ending.leave(at);
        self.base.alarm(at);
    }

    pub(super) fn has_ended(&mut self) -> bool {
        if !self.ending.is_leaving() || !self.fleet.is_empty() {
            return false;
        }
        self.close_templates();
        !self.programs.has_templates()
    }

    /// The thread has panicked somewhere: kills all processes and ends all jobs.
    pub(super) fn abandon(&mut self) {
        for worker in self.fleet.iter() {
            worker.signal_group(Signal::KILL);
        }
        let mut children = self.programs.kill_templates();
        let own = self.fleet.iter().filter(|worker| worker.template.is_none());
        children.extend(own.filter_map(|worker| worker.pid));
        for pid in children {
            self.fleet.reap(pid, &mut self.base);
        }
        self.base.report(&PoolError::PoolLost);
        if let Some(launching) = self.programs.take_launching() {
            launching.answer.resolve(Err(Error::PoolLost));
        }
        self.jobs.end_all(&Error::PoolLost, &mut self.base);
        self.fleet.clear();
        self.finish();
    }

    /// Answers all callers that are left, calls `on_destroy` and writes the last log lines, when no process
    /// is left.
    pub(super) fn finish(&mut self) {
        self.jobs.wake_callers(&mut self.base);
        self.fleet.end_guardian(&mut self.base);
        self.fleet.reap_orphans(&mut self.base);
        self.fleet.refuse_ready(&self.base.inbox().refusal());
        // Jobs that were submitted between the last look and now.
        self.base.inbox().closed.store(true, Ordering::SeqCst);
        let mut messages = Vec::new();
        self.base.inbox().end(&mut messages);
        for message in messages {
            let error = self.base.inbox().refusal();
            self.base.guard(|| message.refuse(error));
        }
        self.base.close_events();
        self.publish();
        self.base.destroyed();
        stderr::flush(LAST_LINES);
        self.ending.answer();
    }
}

/// How long the end of the pool waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_millis(200);
