//! Memory and processors: what this machine has left for a stage.
//!
//! The memory that is free is the smallest of the kernel's `MemAvailable` and, in a control group with a
//! limit, of what that limit leaves. Pages of files that the kernel can drop at once count as free. Where
//! nothing can be read, the amount is unknown and limits nothing.

use std::fs;
use std::thread;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The files of a control group with its limit and its use, and the field of its statistics that counts
/// droppable pages: version 2, then version 1.
const GROUPS: [[&str; 4]; 2] = [
    [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
        "inactive_file",
    ],
    [
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file",
    ],
];

/// Memory that may be taken now, in MiB; [`u64::MAX`] if that is unknown.
pub(super) fn available_mib() -> u64 {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| system_bytes(&text));
    let groups = GROUPS.iter().filter_map(|[limit, used, statistics, field]| {
        let [limit, used] = [limit, used].map(fs::read_to_string);
        let droppable = fs::read_to_string(statistics).ok().and_then(|text| number_after(&text, field));
        group_bytes(&limit.ok()?, &used.ok()?, droppable.unwrap_or(0))
    });
    system.into_iter().chain(groups).min().map_or(u64::MAX, |bytes| bytes / MIB)
}

/// Processors that this process may use, at least 1.
pub(super) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// `MemAvailable` of /proc/meminfo.
fn system_bytes(meminfo: &str) -> Option<u64> {
    number_after(meminfo, "MemAvailable:").map(|kib| kib * KIB)
}

/// The memory that a control group's limit leaves; None without a limit.
fn group_bytes(limit: &str, used: &str, droppable: u64) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?; // "max" is no number
    let used: u64 = used.trim().parse().ok()?;
    Some(limit.saturating_sub(used.saturating_sub(droppable)))
}

/// The number in the line that begins with the word `name`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| if words.next() == Some(name) { words.next()?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_figure_is_read_in_kib() {
        let text = "MemTotal:       24684092 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(system_bytes(text), Some(2 * MIB));
        assert_eq!(system_bytes("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn a_group_without_a_limit_limits_nothing() {
        assert_eq!(group_bytes("max\n", "1000\n", 0), None);
        assert_eq!(group_bytes("1000\n", "?\n", 0), None);
    }

    #[test]
    fn pages_that_can_be_dropped_are_free() {
        assert_eq!(group_bytes("1000\n", "700\n", 0), Some(300));
        assert_eq!(group_bytes("1000\n", "700\n", 200), Some(500));
        assert_eq!(group_bytes("1000\n", "1500\n", 0), Some(0));
        assert_eq!(group_bytes("1000\n", "100\n", 200), Some(1000));
        assert_eq!(number_after("active_file 5\ninactive_file 7\n", "inactive_file"), Some(7));
    }

    #[test]
    fn this_machine_has_some() {
        assert!(available_mib() > 0);
        assert!(cores() > 0);
    }
}
