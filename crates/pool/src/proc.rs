//! Memory figures from `/proc`: the memory that a process has for itself, and how often the out-of-memory
//! killer was at work.
//!
//! Memory that a worker shares with its template, or with other users of the same files, is not its own.
//!
//! The kernel sums up private pages in `smaps_rollup`, which walks all page tables: a millisecond for a
//! gigabyte. The resident set is cheap to read and never smaller, so `smaps_rollup` is read only when the
//! resident set is over the limit. Where it cannot be read (a worker of another user), the resident set less
//! that of the template counts.

use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Memory of a process, KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Resident set; 0 when the process is gone.
    pub(crate) rss_kib: u64,
    /// The figure that counts against the limit: private memory if it was read, otherwise the resident set.
    pub(crate) own_kib: u64,
    /// `own_kib` is the resident set less that of the template.
    pub(crate) is_estimate: bool,
}

impl ProcessMemory {
    /// Measures the process whose directory in `/proc` is `dir`. Private memory is read when its resident
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
            // The process may have ended in the meantime.
            _ if field(&read(dir, "status"), "VmRSS:").is_none() => {
                Self { rss_kib: 0, own_kib: 0, is_estimate: false }
            }
            _ => Self { rss_kib, own_kib: rss_kib.saturating_sub(template_kib), is_estimate: true },
        }
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

pub(crate) fn proc_dir(pid: Pid) -> PathBuf {
    format!("/proc/{}", pid.as_raw_pid()).into()
}

/// Kills of the out-of-memory killer since boot; 0 where the kernel does not say.
pub(crate) fn oom_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
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
    fn shared_pages_do_not_count_and_are_read_only_when_needed() {
        let status = ("status", "Name:\tx\nVmRSS:\t  300000 kB\n");
        let rollup =
            "Rss: 300000 kB\nShared_Dirty: 290000 kB\nPrivate_Clean: 1000 kB\nPrivate_Dirty: 9000 kB\n";
        let dir = process("plain", &[status, ("smaps_rollup", rollup)]);
        let over = ProcessMemory::measure(&dir, 200_000 * 1024, 290_000);
        assert_eq!(over, ProcessMemory { rss_kib: 300_000, own_kib: 10_000, is_estimate: false });
        let within = ProcessMemory::measure(&dir, 300_000 * 1024, 290_000);
        assert_eq!(within.own_kib, 300_000, "not read");
        std::fs::remove_dir_all(dir).unwrap();

        let dir = process("unreadable", &[status]);
        let guess = ProcessMemory::measure(&dir, 200_000 * 1024, 290_000);
        assert_eq!(guess, ProcessMemory { rss_kib: 300_000, own_kib: 10_000, is_estimate: true });
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(ProcessMemory::measure(&dir, 0, 0).rss_kib, 0, "it is gone");
    }
}
