//! The memory limit of workers (`max_rss`): when each is measured, and what happens to a worker that is over
//! the limit.
//!
//! Workers are measured in turn, each about once a second, one at a time: the kernel needs a millisecond for
//! each gigabyte, and many measurements in a row would delay the jobs.
//!
//! # Invariants
//! * Without the option nothing is measured.
//! * A worker that has worked is retired; a fresh one that is over the limit is a failed start, since the
//!   next would be, too.

use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::base::DriverBase;
use crate::error::PoolError;
use crate::fleet::Fleet;
use crate::proc::{ProcessMemory, proc_dir, rss_kib};
use crate::worker::{WorkerProcess, WorkerState};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MemoryCheck {
    /// When the worker in `slot`, or the next worker after it, is measured.
    next: Option<Instant>,
    slot: usize,
    /// The pool has reported that private memory cannot be read.
    told_estimate: bool,
}

impl Fleet {
    /// Begins to measure workers, if their memory is limited.
    pub(crate) fn begin_checks(&mut self, base: &mut DriverBase) {
        self.memory.next = base.options().max_rss.map(|_| base.now());
        self.next_ping = base.options().ping.map(|every| base.after(every));
        base.alarm_opt(self.memory.next);
        base.alarm_opt(self.next_ping);
    }

    /// Measures the workers' memory, each about once a second, if it is limited. `template_of`: the process
    /// of a template.
    pub(crate) fn scan_memory(&mut self, template_of: impl Fn(u64) -> Option<Pid>, base: &mut DriverBase) {
        let Some(due) = self.memory.next else { return };
        if due > base.now() {
            return base.alarm(due);
        }
        let known =
            |worker: &Option<Box<WorkerProcess>>| worker.as_ref().is_some_and(|worker| worker.pid.is_some());
        let count = self.workers.iter().filter(|worker| known(worker)).count().max(1);
        // One at a time, so that many measurements do not delay the jobs together.
        let first = self.memory.slot.min(self.workers.len());
        let (before, after) = self.workers.split_at(first);
        if let Some(step) = after.iter().chain(before).position(known) {
            let slot = (first + step) % self.workers.len();
            self.memory.slot = slot + 1;
            if let Some(own_kib) = self.measure(slot, template_of, base)
                && let Some(worker) = self.get_mut(slot)
                && worker.state == WorkerState::Ready
            {
                if worker.has_worked() || !worker.in_flight.is_empty() {
                    self.retire(slot, base);
                } else {
                    worker.was_ready = false;
                    self.refuse_fresh(slot, own_kib, base);
                }
            }
        }
        base.counters().rss_kib.set(self.iter().map(|worker| worker.rss_kib).sum());
        let next = base.now() + Duration::from_secs(1) / u32::try_from(count).unwrap_or(u32::MAX);
        self.memory.next = Some(next);
        base.alarm(next);
    }

    /// Measures a worker; its own memory in KiB if that is over the limit.
    pub(crate) fn measure(
        &mut self,
        slot: usize,
        template_of: impl Fn(u64) -> Option<Pid>,
        base: &mut DriverBase,
    ) -> Option<u64> {
        let limit = base.options().max_rss?;
        let worker = self.get_mut(slot)?;
        let template = worker.template.and_then(template_of);
        let template_kib = template.map_or(0, |pid| rss_kib(&proc_dir(pid)));
        let memory = ProcessMemory::measure(&proc_dir(worker.pid?), limit, template_kib);
        worker.rss_kib = memory.rss_kib;
        if memory.is_estimate && !std::mem::replace(&mut self.memory.told_estimate, true) {
            base.report(&PoolError::MemoryEstimated);
        }
        (memory.own_kib.saturating_mul(1024) > limit).then_some(memory.own_kib)
    }

    /// Kills a worker that is over the limit before it has done a job: its successor would be, too.
    pub(crate) fn refuse_fresh(&mut self, slot: usize, own_kib: u64, base: &mut DriverBase) {
        let (own, limit) = (own_kib >> 10, base.options().max_rss.unwrap_or(u64::MAX) >> 20);
        let reason = format!("it has {own} MiB of its own before its first job, max_rss is {limit} MiB");
        self.kill(slot, &reason, base);
    }
}
