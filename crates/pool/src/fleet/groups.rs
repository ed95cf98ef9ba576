//! The process groups of exec'ed workers, the guardian that watches them, and children that are still to be
//! reaped.
//!
//! # Invariants
//! * While there is a guardian, its list has the group of each exec'ed worker, from its start until just
//!   before its number can be used again.
//! * Without a guardian, that was reported once, and each start of an exec'ed worker tries to start one.

use cattlegrid_worker::sys::{self, Exit};
use rustix::process::{Pid, Signal};

use crate::base::{DriverBase, EventSource};
use crate::error::PoolError;
use crate::fleet::Fleet;
use crate::guardian::Guardian;
use crate::time::LOOK;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Groups {
    guardian: Option<Guardian>,
    /// The lack of a guardian was reported.
    unguarded: bool,
    /// Children of ours that did not end in time; reaped when they end.
    orphans: Vec<Pid>,
}

impl Fleet {
    /// Puts an exec'ed worker's group under the guardian's watch, starting or replacing the guardian.
    pub(crate) fn watch_group(&mut self, pid: Pid, base: &mut DriverBase) {
        if let Some(guardian) = &self.groups.guardian
            && guardian.watch(pid).is_ok()
        {
            return;
        }
        self.renew_guardian(None, base);
        if let Some(guardian) = &self.groups.guardian {
            guardian.watch(pid).ok();
        }
    }

    /// Takes a group off the guardian's list, before the system can use its number again.
    pub(crate) fn forget_group(&mut self, pid: Pid, base: &mut DriverBase) {
        if let Some(guardian) = &self.groups.guardian
            && guardian.forget(pid).is_err()
        {
            // The guardian must not keep a number that the system can use again.
            self.renew_guardian(Some(pid), base);
        }
    }

    /// Replaces the guardian. The new one watches all groups of exec'ed workers except that of `gone`.
    fn renew_guardian(&mut self, gone: Option<Pid>, base: &mut DriverBase) {
        self.end_guardian(base);
        let guardian = match Guardian::start() {
            Ok(guardian) => guardian,
            Err(error) => {
                if !std::mem::replace(&mut self.groups.unguarded, true) {
                    base.report(&PoolError::Unguarded(error));
                }
                return;
            }
        };
        self.groups.unguarded = false;
        let ours = self.iter().filter(|worker| worker.template.is_none());
        for known in ours.filter_map(|worker| worker.pid).filter(|pid| Some(*pid) != gone) {
            guardian.watch(known).ok();
        }
        if let Some(pidfd) = &guardian.pidfd {
            base.register(pidfd, EventSource::Guardian, key_of(guardian.pid)).ok();
        }
        self.groups.guardian = Some(guardian);
    }

    /// The guardian has ended: it is replaced.
    pub(crate) fn on_guardian_end(&mut self, key: u64, base: &mut DriverBase) {
        if self.groups.guardian.as_ref().is_some_and(|guardian| key_of(guardian.pid) == key) {
            self.renew_guardian(None, base);
        }
    }

    /// Kills the guardian before the end of its socket can tell it to kill the groups.
    pub(crate) fn end_guardian(&mut self, base: &mut DriverBase) {
        if let Some(guardian) = self.groups.guardian.take() {
            rustix::process::kill_process_group(guardian.pid, Signal::KILL).ok();
            self.reap(guardian.pid, base);
        }
    }

    /// Reaps a child of ours that has been killed, waiting up to 10 ms. If it has not ended by then, it goes
    /// to the orphans.
    pub(crate) fn reap(&mut self, pid: Pid, base: &mut DriverBase) -> Option<Exit> {
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
        self.add_orphan(pid, base);
        None
    }

    /// A killed child whose end is not waited for any more.
    pub(crate) fn add_orphan(&mut self, pid: Pid, base: &mut DriverBase) {
        self.groups.orphans.push(pid);
        base.alarm(base.now() + LOOK);
    }

    /// Reaps the orphans that have ended.
    pub(crate) fn scan_orphans(&mut self, base: &mut DriverBase) {
        self.groups.orphans.retain(|pid| matches!(sys::reap(*pid), Ok(None)));
        if !self.groups.orphans.is_empty() {
            base.alarm(base.now() + std::time::Duration::from_secs(1));
        }
    }

    /// Reaps children that were killed and had not ended in time: nothing reaps them later. Waits at most a
    /// second for each; a process that is blocked in the kernel may take longer.
    pub(crate) fn reap_orphans(&mut self, base: &mut DriverBase) {
        for pid in std::mem::take(&mut self.groups.orphans) {
            for _ in 0..100 {
                if self.reap(pid, base).is_some() {
                    break;
                }
            }
        }
        self.groups.orphans.clear();
    }
}

fn key_of(pid: Pid) -> u64 {
    pid.as_raw_pid().unsigned_abs().into()
}
