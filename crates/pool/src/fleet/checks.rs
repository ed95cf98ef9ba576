//! The timers of workers: age, doomed jobs, jobs that are not begun, pings.

use std::time::Duration;

use rustix::process::Signal;

use crate::base::DriverBase;
use crate::fleet::Fleet;
use crate::time::later;
use crate::worker::WorkerState;

impl Fleet {
    /// Checks all timers of a worker but those of its start and end.
    pub(crate) fn scan_timers(&mut self, slot: usize, base: &mut DriverBase) {
        self.scan_age(slot, base);
        if let Some(worker) = self.get_mut(slot) {
            worker.log.handle_timeout(base);
        }
        self.scan_doomed(slot, base);
        self.scan_stalled(slot, base);
    }

    /// Retires a worker that has reached its age.
    fn scan_age(&mut self, slot: usize, base: &mut DriverBase) {
        let Some(worker) = self.get(slot) else { return };
        let Some(due) = worker.expires.filter(|_| worker.state == WorkerState::Ready) else { return };
        if due <= base.now() {
            self.retire(slot, base);
        } else {
            base.alarm(due);
        }
    }

    /// Checks a worker that was told to let go of jobs: SIGTERM after half the grace, SIGKILL after all of
    /// it. The grace does not run while the worker is in another job whose caller waits: it will skip the
    /// doomed job, or has let go of it. A worker that is in no job and does not take the next one is stuck,
    /// too.
    ///
    /// A job in a batch whose caller has gone, and whose time is not up, leaves its worker alone while others
    /// of the batch have callers.
    ///
    /// A worker that does several jobs at a time may be at work on others: while it is, neither signal is
    /// sent. It gets no more jobs, and must answer a ping within each grace; otherwise it is stuck in all of
    /// its jobs.
    fn scan_doomed(&mut self, slot: usize, base: &mut DriverBase) {
        let (now, grace) = (base.now(), base.options().kill_grace);
        let Some(worker) = self.get_mut(slot) else { return };
        if worker.doomed.is_empty() || worker.state.is_over() {
            return;
        }
        let mut doomed = std::mem::take(&mut worker.doomed);
        // Sorted: a batch may have thousands.
        let mut ids: Vec<u64> = doomed.iter().map(|one| one.id).collect();
        let mut within: Vec<u64> =
            worker.in_flight.iter().filter(|sent| worker.may_be_in(sent)).map(|sent| sent.id).collect();
        ids.sort_unstable();
        within.sort_unstable();
        let at_work = within.iter().any(|id| ids.binary_search(id).is_err());
        let others = at_work && !worker.one_at_a_time;
        let (mut term, mut kill) = (false, false);
        for one in &mut doomed {
            let is_within = within.binary_search(&one.id).is_ok();
            // What has no room may be the answer to this very job.
            let unread = worker.waits_for_room();
            if unread || (at_work && (!is_within || (worker.one_at_a_time && !one.overdue))) {
                one.since = now;
            }
            let waited = now.saturating_duration_since(one.since);
            kill |= waited >= grace;
            if waited >= grace / 2 && !others && !std::mem::replace(&mut one.termed, true) {
                term = true;
            }
        }
        worker.doomed = doomed;
        if kill && others {
            if worker.is_unread() {
                // Its answer may have arrived: the worker is not read while the event stream is full.
                worker.proof = None;
            }
            match worker.proof {
                Some(asked) if now.saturating_duration_since(asked) >= grace => {
                    self.kill(slot, "it was stuck in a job whose time was up, and answered no ping", base);
                }
                Some(_) => {}
                None => {
                    worker.proof = Some(now);
                    worker.put_ping();
                    let condemned_before = std::mem::replace(&mut worker.condemned, true);
                    self.set_dirty(slot);
                    if !condemned_before {
                        self.retire(slot, base);
                    }
                }
            }
        } else if kill {
            return self.kill(slot, "it was stuck in a job whose time was up", base);
        } else if term {
            worker.signal_group(Signal::TERM);
        }
        base.alarm(later(now, (grace / 8).max(Duration::from_millis(1))));
    }

    /// Kills a worker that has begun none of its jobs for `start_timeout`. They are sent again.
    fn scan_stalled(&mut self, slot: usize, base: &mut DriverBase) {
        let Some(worker) = self.get_mut(slot) else { return };
        let alive = matches!(worker.state, WorkerState::Ready | WorkerState::Retiring);
        if !alive || worker.in_flight.is_empty() || !worker.is_stalled(base.now()) {
            return;
        }
        let due = later(worker.stalled.0, base.options().start_timeout);
        if due > base.now() {
            base.alarm(due);
        } else {
            self.kill(slot, "it did not begin its jobs", base);
        }
    }

    /// Pings idle workers, and kills those that have not answered the last ping.
    pub(crate) fn scan_pings(&mut self, base: &mut DriverBase) {
        let (Some(due), Some(every)) = (self.next_ping, base.options().ping) else { return };
        if due > base.now() {
            return base.alarm(due);
        }
        for slot in 0..self.workers.len() {
            let Some(worker) = self.get_mut(slot) else { continue };
            if worker.state != WorkerState::Ready || !worker.in_flight.is_empty() {
                worker.pinged = false;
            } else if std::mem::replace(&mut worker.pinged, true) {
                self.kill(slot, "it did not answer a ping", base);
            } else {
                worker.put_ping();
                self.set_dirty(slot);
            }
        }
        let next = base.after(every);
        self.next_ping = Some(next);
        base.alarm(next);
    }
}
