//! The process groups of exec'ed workers and the guardian that watches them.
//!
//! # Invariants
//! * While there is a guardian, its list has the group of each exec'ed worker, from its start until just before its number can
//!   be used again.
//! * Without a guardian, that was reported once, and each start of an exec'ed worker tries to start one.

use rustix::process::{Pid, Signal};

use crate::driver::{Driver, Source};
use crate::error::PoolError;
use crate::guardian::Guardian;

impl Driver {
    /// Puts an exec'ed worker's group under the guardian's watch, starting or replacing the guardian.
    pub(crate) fn watch_group(&mut self, pid: Pid) {
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

    /// Replaces the guardian. The new one watches all groups of exec'ed workers except that of `gone`.
    pub(crate) fn renew_guardian(&mut self, gone: Option<Pid>) {
        self.end_guardian();
        let guardian = match Guardian::start() {
            Ok(guardian) => guardian,
            Err(error) if self.unguarded => return drop(error),
            Err(error) => {
                self.unguarded = true;
                return self.report(&PoolError::Unguarded(error));
            }
        };
        self.unguarded = false;
        let ours = self.workers.iter().flatten().filter(|worker| worker.template.is_none());
        for known in ours.filter_map(|worker| worker.pid).filter(|pid| Some(*pid) != gone) {
            guardian.watch(known).ok();
        }
        if let Some(pidfd) = &guardian.pidfd {
            self.register(pidfd, Source::Guardian, guardian.pid.as_raw_pid().unsigned_abs().into()).ok();
        }
        self.guardian = Some(guardian);
    }

    /// The guardian has ended: it is replaced.
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
}
