//! Processors that this process may use: its affinity, the topology, and the quotas of its cgroup and all
//! ancestors.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Processors of this machine, as far as this process may use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// Cores this process may run on.
    pub cores: usize,
    /// Hardware threads this process may run on; at least `cores`.
    pub threads: usize,
    /// CPU time in threads: the smaller of `threads` and the cgroup's quota, rounded up. Use this for `max`.
    pub available: usize,
}

/// Counts processors from affinity, topology and the cgroup (v2 and v1) quota; `default` (at least 1)
/// where the system does not say.
pub fn ncpu(default: usize) -> Cpus {
    let default = default.max(1);
    let Some(allowed) = affinity() else {
        return Cpus { cores: default, threads: default, available: default };
    };
    let threads = allowed.len().max(1);
    let cores = cores(&allowed, Path::new("/sys/devices/system/cpu")).unwrap_or(threads);
    let available = quota().map_or(threads, |quota| quota.min(threads));
    Cpus { cores, threads, available }
}

fn affinity() -> Option<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    Some((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Different (package, core) pairs among `allowed`.
fn cores(allowed: &[usize], root: &Path) -> Option<usize> {
    let read =
        |cpu: usize, name: &str| fs::read_to_string(root.join(format!("cpu{cpu}/topology/{name}"))).ok();
    let pairs: Option<HashSet<(String, String)>> = allowed
        .iter()
        .map(|cpu| Some((read(*cpu, "physical_package_id")?, read(*cpu, "core_id")?)))
        .collect();
    pairs.map(|pairs| pairs.len()).filter(|count| *count > 0)
}

fn quota() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let root = Path::new("/sys/fs/cgroup");
    let mut best = None;
    // A limit of any ancestor holds too.
    for dir in root.join(group.trim_start_matches('/')).ancestors().take_while(|dir| dir.starts_with(root)) {
        let limit = fs::read_to_string(dir.join("cpu.max")).ok().and_then(|text| parse_max(&text));
        best = [best, limit].into_iter().flatten().min();
    }
    best.or_else(|| {
        let number =
            |name: &str| fs::read_to_string(root.join("cpu").join(name)).ok()?.trim().parse::<u64>().ok();
        shares(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
    })
}

/// `cpu.max` is `quota period` or `max period`.
fn parse_max(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    shares(quota.parse().ok()?, period.parse().ok()?)
}

fn shares(quota: u64, period: u64) -> Option<usize> {
    (period > 0).then(|| quota.div_ceil(period).max(1) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_round_up_and_max_is_no_limit() {
        assert_eq!(parse_max("max 100000\n"), None);
        assert_eq!(parse_max("150000 100000\n"), Some(2));
        assert_eq!(parse_max("1000 100000\n"), Some(1));
        assert_eq!(parse_max("nonsense"), None);
    }

    #[test]
    fn affinity_is_obeyed() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let all = ncpu(1);
        assert!(all.cores >= 1 && all.cores <= all.threads && all.available <= all.threads);
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set(first);
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        assert_eq!(ncpu(8), Cpus { cores: 1, threads: 1, available: 1 });
        rustix::thread::sched_setaffinity(None, &before).unwrap();
    }
}
