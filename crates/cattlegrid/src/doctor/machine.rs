//! Facts of the system: the only reader of `/proc` and `/sys`. The rest of `doctor` judges what this module
//! reads.
//!
//! # Invariants
//! * Files are only read. An unreadable fact is `None`, and the check that needed it says so.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The directory that has `/proc` and `/sys`: `/`, or a directory of recorded files.
#[derive(Debug, Clone)]
pub(crate) struct SystemFiles(PathBuf);

impl SystemFiles {
    pub(crate) fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// The text of a file. The path has no `/` at its beginning.
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read(self.0.join(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.split_ascii_whitespace().next()?.parse().ok()
    }

    fn link(&self, path: &str) -> Option<String> {
        std::fs::read_link(self.0.join(path)).ok().map(|path| path.to_string_lossy().into_owned())
    }
}

/// A resource limit of a process; `u64::MAX`: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResourceLimit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// A control group that limits the process: its own, or an ancestor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ControlGroup {
    /// The group's directory as a user would write it.
    pub(crate) path: String,
    /// `memory.max`, or `memory.limit_in_bytes`.
    pub(crate) memory_max: Option<u64>,
    /// The name of the file with the limit.
    pub(crate) memory_file: &'static str,
    /// `memory.high`.
    pub(crate) memory_high: Option<u64>,
    /// Processes of the group that the system has killed for lack of memory.
    pub(crate) oom_kills: u64,
    /// CPUs of the group's quota, in hundredths.
    pub(crate) cpu_hundredths: Option<u64>,
    /// Periods in which the group's threads were stopped.
    pub(crate) throttled: u64,
    /// All periods of the quota.
    pub(crate) periods: u64,
}

/// Figures of the memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryFigures {
    pub(crate) total: u64,
    pub(crate) available: u64,
    pub(crate) swap_total: u64,
    pub(crate) commit_limit: u64,
    pub(crate) committed: u64,
}

/// Facts of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProcessFacts {
    pub(crate) open_files: Option<ResourceLimit>,
    pub(crate) locked_memory: Option<ResourceLimit>,
    pub(crate) core: Option<ResourceLimit>,
    /// The effective user.
    pub(crate) uid: Option<u32>,
    /// The effective capabilities.
    pub(crate) capabilities: u64,
    pub(crate) cpus: Option<usize>,
    pub(crate) resident: Option<u64>,
    pub(crate) swapped: Option<u64>,
    pub(crate) locked: Option<u64>,
    /// The number of open descriptors; None: it is not readable.
    pub(crate) descriptors: Option<usize>,
    pub(crate) groups: Vec<ControlGroup>,
    /// Connections that the kernel dropped because a socket's queue was full, of all sockets of its network
    /// namespace.
    pub(crate) overflows: Option<u64>,
    /// The process has this process's network namespace, or its namespace is not readable.
    pub(crate) same_network: bool,
}

/// All facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) nr_open: Option<u64>,
    pub(crate) somaxconn: Option<u64>,
    pub(crate) syncookies: Option<u64>,
    pub(crate) syn_backlog: Option<u64>,
    /// `always`, `madvise` or `never`.
    pub(crate) huge_pages: Option<String>,
    pub(crate) overcommit: Option<u64>,
    pub(crate) swappiness: Option<u64>,
    pub(crate) io_uring_disabled: Option<u64>,
    pub(crate) clock: Option<String>,
    pub(crate) memory: Option<MemoryFigures>,
    pub(crate) process: ProcessFacts,
}

impl ProcessFacts {
    /// Whether the process has a capability, by its number.
    pub(crate) fn can(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }
}

impl Machine {
    /// Reads all facts. Facts of a process are those of `pid`; None: of this process.
    pub(crate) fn read(files: &SystemFiles, pid: Option<u32>) -> Self {
        let sys = |name: &str| files.number(&format!("proc/sys/{name}"));
        let thp = files.text("sys/kernel/mm/transparent_hugepage/enabled");
        let clock = files.text("sys/devices/system/clocksource/clocksource0/current_clocksource");
        Self {
            nr_open: sys("fs/nr_open"),
            somaxconn: sys("net/core/somaxconn"),
            syncookies: sys("net/ipv4/tcp_syncookies"),
            syn_backlog: sys("net/ipv4/tcp_max_syn_backlog"),
            huge_pages: thp.as_deref().and_then(chosen).map(str::to_owned),
            overcommit: sys("vm/overcommit_memory"),
            swappiness: sys("vm/swappiness"),
            io_uring_disabled: sys("kernel/io_uring_disabled"),
            clock: clock.map(|text| text.trim().to_owned()),
            memory: files.text("proc/meminfo").as_deref().map(meminfo),
            process: process(files, pid),
        }
    }
}

fn process(files: &SystemFiles, pid: Option<u32>) -> ProcessFacts {
    let who = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let of = |name: &str| format!("proc/{who}/{name}");
    let limits = files.text(&of("limits")).unwrap_or_default();
    let status = files.text(&of("status")).unwrap_or_default();
    let kib =
        |name: &str| field(&status, name)?.strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|k| k << 10);
    let own = files.link("proc/self/ns/net");
    ProcessFacts {
        open_files: limit(&limits, "Max open files"),
        locked_memory: limit(&limits, "Max locked memory"),
        core: limit(&limits, "Max core file size"),
        uid: field(&status, "Uid:").and_then(|ids| ids.split_ascii_whitespace().nth(1)?.parse().ok()),
        capabilities: field(&status, "CapEff:")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .unwrap_or(0),
        cpus: field(&status, "Cpus_allowed_list:").map(count_of_list),
        resident: kib("VmRSS:"),
        swapped: kib("VmSwap:"),
        locked: kib("VmLck:"),
        descriptors: std::fs::read_dir(files.0.join(of("fd"))).ok().map(Iterator::count),
        groups: groups(files, &files.text(&of("cgroup")).unwrap_or_default()),
        overflows: files.text(&of("net/netstat")).as_deref().and_then(overflows),
        same_network: own.zip(files.link(&of("ns/net"))).is_none_or(|(own, other)| own == other),
    }
}

/// The choice in brackets, such as `madvise` in `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// The text after `name` on the line that begins with it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn meminfo(text: &str) -> MemoryFigures {
    let of = |name: &str| {
        let number = field(text, name).and_then(|rest| rest.strip_suffix(" kB")?.trim().parse::<u64>().ok());
        number.unwrap_or(0) << 10
    };
    MemoryFigures {
        total: of("MemTotal:"),
        available: of("MemAvailable:"),
        swap_total: of("SwapTotal:"),
        commit_limit: of("CommitLimit:"),
        committed: of("Committed_AS:"),
    }
}

/// A limit in `/proc/PID/limits`.
fn limit(text: &str, name: &str) -> Option<ResourceLimit> {
    let mut words = field(text, name)?.split_ascii_whitespace().map(|word| match word {
        "unlimited" => Some(u64::MAX),
        word => word.parse().ok(),
    });
    Some(ResourceLimit { soft: words.next()??, hard: words.next()?? })
}

/// The number of elements of a list such as `0-3,8`.
fn count_of_list(list: &str) -> usize {
    let each = list.trim().split(',').filter_map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(to.parse::<usize>().ok()?.saturating_sub(from.parse().ok()?) + 1)
    });
    each.sum()
}

/// `ListenOverflows` in `/proc/net/netstat`, which has a line of names and a line of values.
fn overflows(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_ascii_whitespace().position(|name| name == "ListenOverflows")?;
    values.split_ascii_whitespace().nth(place)?.parse().ok()
}

/// The groups in `/proc/PID/cgroup` that limit something, and their ancestors that do.
fn groups(files: &SystemFiles, text: &str) -> Vec<ControlGroup> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let has = |name: &str| controllers.split(',').any(|own| own == name);
        let tops: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            _ if has("memory") => &["sys/fs/cgroup/memory"],
            _ if has("cpu") => &["sys/fs/cgroup/cpu"],
            _ => continue,
        };
        for top in tops.iter().map(Path::new) {
            // In a container the path may be the host's: the ancestors' names are then there.
            let own = top.join(path.trim_start_matches('/'));
            for dir in own.ancestors().take_while(|dir| dir.starts_with(top)) {
                let group = if controllers.is_empty() { group_v2(files, dir) } else { group_v1(files, dir) };
                found.extend(group);
            }
        }
    }
    found
}

fn group_v2(files: &SystemFiles, dir: &Path) -> Option<ControlGroup> {
    let text = |name: &str| files.text(dir.join(name).to_str()?);
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let counter = |file: &str, name: &str| {
        text(file).and_then(|text| field(&text, name)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let quota = text("cpu.max").and_then(|text| {
        let (quota, period) = text.trim().split_once(' ')?;
        hundredths(quota.parse().ok()?, period.parse().ok()?)
    });
    let group = ControlGroup {
        path: format!("/{}", dir.display()),
        memory_max: number("memory.max"),
        memory_file: "memory.max",
        memory_high: number("memory.high"),
        oom_kills: counter("memory.events", "oom_kill "),
        cpu_hundredths: quota,
        throttled: counter("cpu.stat", "nr_throttled "),
        periods: counter("cpu.stat", "nr_periods "),
    };
    limits_something(group)
}

fn group_v1(files: &SystemFiles, dir: &Path) -> Option<ControlGroup> {
    let text = |name: &str| files.text(dir.join(name).to_str()?);
    let number = |name: &str| text(name)?.trim().parse::<i64>().ok().and_then(|n| u64::try_from(n).ok());
    let counter = |file: &str, name: &str| {
        text(file).and_then(|text| field(&text, name)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let quota = number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us"));
    let group = ControlGroup {
        path: format!("/{}", dir.display()),
        memory_max: number("memory.limit_in_bytes").filter(|bytes| *bytes < NO_LIMIT_V1),
        memory_file: "memory.limit_in_bytes",
        memory_high: None,
        oom_kills: counter("memory.oom_control", "oom_kill "),
        cpu_hundredths: quota.and_then(|(quota, period)| hundredths(quota, period)),
        throttled: counter("cpu.stat", "nr_throttled "),
        periods: counter("cpu.stat", "nr_periods "),
    };
    limits_something(group)
}

/// A group of version 1 without a limit has one of nearly 2^63 bytes.
const NO_LIMIT_V1: u64 = 1 << 60;

fn hundredths(quota: u64, period: u64) -> Option<u64> {
    quota.saturating_mul(100).checked_div(period)
}

fn limits_something(group: ControlGroup) -> Option<ControlGroup> {
    let limits = group.memory_max.or(group.memory_high).or(group.cpu_hundredths).is_some();
    (limits || group.oom_kills > 0).then_some(group)
}

/// A TCP socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpListenSocket {
    pub(crate) address: SocketAddr,
    pub(crate) inode: u64,
}

/// A Unix socket that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnixListenSocket {
    /// The path given by the process; an abstract name begins with `@`.
    pub(crate) path: String,
    pub(crate) inode: u64,
}

/// The Unix sockets that listen in this network namespace.
pub(crate) fn listening_unix(files: &SystemFiles) -> Vec<UnixListenSocket> {
    let text = files.text("proc/self/net/unix").unwrap_or_default();
    text.lines().filter_map(unix_line).collect()
}

/// A line of `/proc/net/unix`, if its socket listens and has a name: `Num: RefCount Protocol Flags Type St
/// Inode Path`.
fn unix_line(line: &str) -> Option<UnixListenSocket> {
    const ACCEPTS: u32 = 0x1_0000;
    let mut words = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode = words.nth(2)?;
    let path = line.split_once(&format!(" {inode} "))?.1;
    (flags & ACCEPTS != 0).then_some(UnixListenSocket { path: path.to_owned(), inode: inode.parse().ok()? })
}

/// Whether a process has a socket; None: its descriptors are not readable.
pub(crate) fn holds(files: &SystemFiles, pid: u32, inode: u64) -> Option<bool> {
    let dir = files.0.join(format!("proc/{pid}/fd"));
    let mut links = std::fs::read_dir(&dir).ok()?.flatten().map(|one| std::fs::read_link(one.path()));
    // The descriptors may be listed while their targets are hidden. A descriptor may be closed meanwhile.
    let is_hidden = |link: &std::io::Result<PathBuf>| {
        link.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    if links.any(|link| is_hidden(&link)) { None } else { Some(has_socket(&dir, inode)) }
}

/// Whether the name of its file, or the name that it gives itself, begins with one of these.
pub(crate) fn is_program(files: &SystemFiles, pid: u32, names: &[&str]) -> bool {
    let called = files.text(&format!("proc/{pid}/cmdline")).and_then(|text| {
        let first = text.split('\0').next()?;
        first.rsplit('/').next().map(str::to_owned)
    });
    let is_one = |own: String| names.iter().any(|name| own.starts_with(name));
    program_of(files, pid).is_some_and(is_one) || called.is_some_and(is_one)
}

/// The sockets that listen in the network namespace of a process (None: this one).
pub(crate) fn listening(files: &SystemFiles, pid: Option<u32>) -> Vec<TcpListenSocket> {
    let who = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let text = |name: &str| files.text(&format!("proc/{who}/net/{name}")).unwrap_or_default();
    [text("tcp"), text("tcp6")].iter().flat_map(|text| text.lines().filter_map(listening_line)).collect()
}

/// A line of `/proc/net/tcp` or `/proc/net/tcp6`, if its socket listens.
fn listening_line(line: &str) -> Option<TcpListenSocket> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    if *words.get(3)? != "0A" {
        return None;
    }
    let (host, port) = words.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words of 32 bits, each in the machine's byte order.
    let mut bytes = Vec::new();
    for at in (0..host.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(host.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(TcpListenSocket { address: SocketAddr::new(ip, port), inode: words.get(9)?.parse().ok()? })
}

/// Whether a directory of descriptors has the socket. An unreadable directory has none.
fn has_socket(dir: &Path, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let Ok(open) = std::fs::read_dir(dir) else { return false };
    open.flatten()
        .any(|one| std::fs::read_link(one.path()).is_ok_and(|to| to.as_os_str().to_str() == Some(&wanted)))
}

/// A process that has a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketOwner {
    pub(crate) pid: u32,
    /// The name of its program.
    pub(crate) name: String,
}

/// The process that has the socket open; None: no process whose descriptors are readable.
pub(crate) fn owner(files: &SystemFiles, inode: u64) -> Option<SocketOwner> {
    for entry in std::fs::read_dir(files.0.join("proc")).ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if has_socket(&entry.path().join("fd"), inode) {
            return Some(SocketOwner { pid, name: program_of(files, pid).unwrap_or_default() });
        }
    }
    None
}

/// The name of a process's program: of its file, or the name that it gives itself if the file is hidden.
pub(crate) fn program_of(files: &SystemFiles, pid: u32) -> Option<String> {
    let by_file = files.link(&format!("proc/{pid}/exe")).and_then(|path| {
        // An upgrade has replaced the program's file.
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        path.rsplit('/').next().map(str::to_owned)
    });
    by_file.or_else(|| files.text(&format!("proc/{pid}/comm")).map(|name| name.trim().to_owned()))
}

/// The arguments of a process's command line, and its working directory if that is readable.
pub(crate) fn command_line(files: &SystemFiles, pid: u32) -> Option<(Vec<String>, Option<PathBuf>)> {
    let text = files.text(&format!("proc/{pid}/cmdline"))?;
    let words: Vec<String> = text.trim_end_matches('\0').split('\0').skip(1).map(str::to_owned).collect();
    Some((words, files.link(&format!("proc/{pid}/cwd")).map(PathBuf::from)))
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
