//! The memory limit of workers (`max_rss`): when each is measured, and what happens to a worker that is over the limit.
//!
//! Workers are measured in turn, each about once a second, one at a time: the kernel needs a millisecond for each gigabyte,
//! and many measurements in a row would delay the jobs.
//!
//! # Invariants
//! * Without the option nothing is measured.
//! * A worker that has worked is retired; a fresh one that is over the limit is a failed start, since the next would be, too.

use std::time::Duration;

use crate::driver::Driver;
use crate::error::PoolError;
use crate::proc::{Memory, proc_dir, rss_kib};
use crate::worker::{State, Worker};

impl Driver {
    /// Measures the workers' memory, each about once a second, if it is limited.
    pub(crate) fn scan_memory(&mut self) {
        let Some(due) = self.next_look else { return };
        if due > self.now {
            return self.alarm(due);
        }
        let known = |worker: &Option<Box<Worker>>| worker.as_ref().is_some_and(|worker| worker.pid.is_some());
        let count = self.workers.iter().filter(|worker| known(worker)).count().max(1);
        // One at a time, so that many measurements do not delay the jobs together.
        let (before, after) = self.workers.split_at(self.look_slot.min(self.workers.len()));
        let next = after.iter().chain(before).position(known);
        if let Some(step) = next {
            let slot = (self.look_slot.min(self.workers.len()) + step) % self.workers.len();
            self.look_slot = slot + 1;
            if let Some(own_kib) = self.measure(slot)
                && let Some(worker) = &mut self.workers[slot]
                && worker.state == State::Ready
            {
                if worker.has_worked() || !worker.in_flight.is_empty() {
                    self.retire(slot);
                } else {
                    worker.was_ready = false;
                    self.refuse_fresh(slot, own_kib);
                }
            }
        }
        self.shared.counters.rss_kib.set(self.workers.iter().flatten().map(|worker| worker.rss_kib).sum());
        let next = self.now + Duration::from_secs(1) / u32::try_from(count).unwrap_or(u32::MAX);
        self.next_look = Some(next);
        self.alarm(next);
    }

    /// Measures a worker; its own memory in KiB if that is over the limit.
    pub(crate) fn measure(&mut self, slot: usize) -> Option<u64> {
        let limit = self.options.max_rss?;
        let worker = self.workers[slot].as_ref()?;
        let (pid, serial) = (worker.pid?, worker.template);
        let template = self.templates.iter().find(|template| Some(template.serial) == serial);
        let template_kib = template.map_or(0, |template| rss_kib(&proc_dir(template.pid)));
        let memory = Memory::measure(&proc_dir(pid), limit, template_kib);
        self.workers[slot].as_mut()?.rss_kib = memory.rss_kib;
        if memory.is_estimate && !std::mem::replace(&mut self.told_estimate, true) {
            self.report(&PoolError::MemoryEstimated);
        }
        (memory.own_kib.saturating_mul(1024) > limit).then_some(memory.own_kib)
    }

    /// Kills a worker that is over the limit before it has done a job: its successor would be, too.
    pub(crate) fn refuse_fresh(&mut self, slot: usize, own_kib: u64) {
        let limit = self.options.max_rss.unwrap_or(u64::MAX) >> 20;
        self.kill(
            slot,
            &format!("it has {} MiB of its own before its first job, max_rss is {limit} MiB", own_kib >> 10),
        );
    }
}
