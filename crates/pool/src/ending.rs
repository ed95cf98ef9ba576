//! The end of a pool: its jobs first, then its processes, then the last callbacks and log lines.
//!
//! `No` -> `Draining` (no new jobs) -> `Leaving` (no jobs; processes end) -> [`Driver::finish`]. A thread that has panicked
//! goes straight to [`Driver::abandon`].
//!
//! # Invariants
//! * Every job has its outcome before `Leaving`, or at its start when all is killed.
//! * `on_destroy` is called once, when no process is left.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cattlegrid_panic::guarded;
use rustix::process::Signal;

use crate::driver::{Driver, Ending};
use crate::error::{Error, PoolError};
use crate::stderr;
use crate::time::later;

impl Driver {
    pub(crate) fn advance_ending(&mut self) {
        if matches!(self.ending, Ending::Draining(_)) && self.jobs_open() == 0 && self.launching.is_none() {
            let at = later(self.now, self.options.shutdown_grace);
            self.ending = Ending::Leaving(at);
            self.alarm(at);
            for slot in 0..self.workers.len() {
                self.retire(slot);
            }
        }
    }

    pub(crate) fn kill_everything(&mut self) {
        if let Some(launching) = self.launching.take() {
            launching.answer.resolve(Err(Error::Shutdown));
        }
        self.kill_all_workers("the pool was shut down");
        for id in self.jobs.ids() {
            self.end_job(id, Err(Error::Shutdown));
        }
        self.ending = Ending::Leaving(later(self.now, self.options.shutdown_grace));
        self.alarm(later(self.now, self.options.shutdown_grace));
    }

    pub(crate) fn kill_all_workers(&mut self, reason: &str) {
        for slot in 0..self.workers.len() {
            self.kill(slot, reason);
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        if !matches!(self.ending, Ending::Leaving(_)) || self.workers.iter().any(Option::is_some) {
            return false;
        }
        self.close_templates();
        self.templates.is_empty()
    }

    /// The thread has panicked somewhere: kills all processes and ends all jobs.
    pub(crate) fn abandon(&mut self) {
        for worker in self.workers.iter().flatten() {
            worker.signal_group(Signal::KILL);
        }
        for at in 0..self.templates.len() {
            let pid = self.templates[at].pid;
            rustix::process::kill_process_group(pid, Signal::KILL).ok();
            self.collect(pid);
        }
        let own = self.workers.iter().flatten().filter(|worker| worker.template.is_none());
        for pid in own.filter_map(|worker| worker.pid).collect::<Vec<_>>() {
            self.collect(pid);
        }
        self.report(&PoolError::PoolLost);
        if let Some(launching) = self.launching.take() {
            launching.answer.resolve(Err(Error::PoolLost));
        }
        for id in self.jobs.ids() {
            self.end_job(id, Err(Error::PoolLost));
        }
        self.workers.clear();
        self.finish();
    }

    /// Reaps children that were killed and had not ended in time: nothing reaps them later. Waits at most a second for each;
    /// a process that is blocked in the kernel may take longer.
    fn reap_orphans(&mut self) {
        for pid in std::mem::take(&mut self.orphans) {
            for _ in 0..100 {
                if self.collect(pid).is_some() {
                    break;
                }
            }
        }
        self.orphans.clear();
    }

    /// Answers all callers that are left, calls `on_destroy` and writes the last log lines, when no process is left.
    pub(crate) fn finish(&mut self) {
        self.wake_callers();
        self.end_guardian();
        self.reap_orphans();
        for (_, answer) in self.waiting_ready.drain(..) {
            answer.resolve(Err(self.shared.inbox.refusal()));
        }
        // Jobs that were submitted between the last look and now.
        self.shared.inbox.closed.store(true, Ordering::SeqCst);
        let mut messages = Vec::new();
        self.shared.inbox.end(&mut messages);
        for message in messages {
            let error = self.shared.inbox.refusal();
            self.guard(|| message.refuse(error));
        }
        if let Some(stream) = &self.callbacks.stream {
            stream.close();
        }
        self.publish();
        if let Some(callback) = self.callbacks.on_destroy.take() {
            guarded(callback).ok();
        }
        stderr::settle(LAST_LINES);
        self.on_end.drain(..).for_each(|answer| answer.resolve(()));
    }
}

/// How long the end of the pool waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_millis(200);
