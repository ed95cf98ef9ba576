//! How much memory a worker costs: what it shares with its template, or with other users of the same files, is
//! not its own.
//!
//! The kernel sums up private pages in `smaps_rollup`, which takes a walk over all page tables: a millisecond
//! for a gigabyte. The resident set is cheap and never smaller, so the walk is only made when that is over the
//! limit. Where `smaps_rollup` cannot be read (a worker of another user), the resident set less the template's
//! is what counts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use crate::driver::Driver;
use crate::error::PoolError;
use crate::worker::{State, Worker};

/// What is known of a process's memory, KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident set; 0 when the process is gone.
    pub(crate) rss_kib: u64,
    /// What counts against the limit: private memory if it had to be looked at, else the resident set.
    pub(crate) own_kib: u64,
    /// `own_kib` is the resident set less that of the template.
    pub(crate) is_estimate: bool,
}

impl Memory {
    /// Measures the process whose directory in `/proc` is `dir`. Private memory is looked at when its resident
    /// set is over `limit` bytes; `template_kib` is the resident set of its template, 0 without one.
    pub(crate) fn measure(dir: &Path, limit: u64, template_kib: u64) -> Self {
        let rss_kib = rss_kib(dir);
        if rss_kib.saturating_mul(1024) <= limit {
            return Self { rss_kib, own_kib: rss_kib, is_estimate: false };
        }
        let rollup = read(dir, "smaps_rollup");
        let parts = ["Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"].map(|name| field(&rollup, name));
        match parts {
            [Some(clean), Some(dirty), huge] => {
                Self { rss_kib, own_kib: clean + dirty + huge.unwrap_or(0), is_estimate: false }
            }
            // It may have ended meanwhile.
            _ if field(&read(dir, "status"), "VmRSS:").is_none() => {
                Self { rss_kib: 0, own_kib: 0, is_estimate: false }
            }
            _ => Self { rss_kib, own_kib: rss_kib.saturating_sub(template_kib), is_estimate: true },
        }
    }
}

impl Driver {
    /// Measures the workers' memory, each about once a second, if it is limited.
    pub(crate) fn scan_memory(&mut self) {
        let Some(due) = self.next_look else { return };
        if due > self.now {
            return self.alarm(due);
        }
        let known = |worker: &Option<Box<Worker>>| worker.as_ref().is_some_and(|worker| worker.pid.is_some());
        let count = self.workers.iter().filter(|worker| known(worker)).count().max(1);
        // One at a time, so that many walks over page tables do not hold up the jobs together.
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

    /// A worker that is over the limit before it has done anything: another one would be, too.
    pub(crate) fn refuse_fresh(&mut self, slot: usize, own_kib: u64) {
        let limit = self.options.max_rss.unwrap_or(u64::MAX) >> 20;
        self.kill(
            slot,
            &format!("it has {} MiB of its own before its first job, max_rss is {limit} MiB", own_kib >> 10),
        );
    }
}

/// Resident set of a process, KiB; 0 when it is gone.
pub(crate) fn rss_kib(dir: &Path) -> u64 {
    field(&read(dir, "status"), "VmRSS:").unwrap_or(0)
}

fn read(dir: &Path, file: &str) -> String {
    std::fs::read_to_string(dir.join(file)).unwrap_or_default()
}

/// The number of KiB behind `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

fn proc_dir(pid: Pid) -> PathBuf {
    format!("/proc/{}", pid.as_raw_pid()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("cattlegrid-memory-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            std::fs::write(dir.join(file), text).unwrap();
        }
        dir
    }

    #[test]
    fn shared_pages_do_not_count_and_are_not_looked_for_without_need() {
        let status = ("status", "Name:\tx\nVmRSS:\t  300000 kB\n");
        let rollup =
            "Rss: 300000 kB\nShared_Dirty: 290000 kB\nPrivate_Clean: 1000 kB\nPrivate_Dirty: 9000 kB\n";
        let dir = process("plain", &[status, ("smaps_rollup", rollup)]);
        let over = Memory::measure(&dir, 200_000 * 1024, 290_000);
        assert_eq!(over, Memory { rss_kib: 300_000, own_kib: 10_000, is_estimate: false });
        let within = Memory::measure(&dir, 300_000 * 1024, 290_000);
        assert_eq!(within.own_kib, 300_000, "not looked at");
        std::fs::remove_dir_all(dir).unwrap();

        let dir = process("unreadable", &[status]);
        let guess = Memory::measure(&dir, 200_000 * 1024, 290_000);
        assert_eq!(guess, Memory { rss_kib: 300_000, own_kib: 10_000, is_estimate: true });
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(Memory::measure(&dir, 0, 0).rss_kib, 0, "it is gone");
    }
}
