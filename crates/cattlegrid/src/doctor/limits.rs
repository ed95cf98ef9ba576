//! Limits of the process, its control groups and the machine, compared with the needs of the settings.

use cattlegrid_config::Settings;

use super::finding::{Findings, size};
use super::machine::{ControlGroup, Machine, ResourceLimit};

/// The resources that the settings ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    /// Open files that are enough for all connections.
    pub(crate) open_files: u64,
    /// `-c`.
    pub(crate) connections: u64,
    /// `-m`, in bytes.
    pub(crate) items: u64,
    /// The most memory of the server as a whole, in bytes.
    pub(crate) memory: u64,
    /// The most memory of workers of loaders with `max_rss`, in bytes.
    pub(crate) workers: u64,
    /// `-t`.
    pub(crate) threads: u64,
    /// `-k`.
    pub(crate) locks: bool,
    /// `-r`.
    pub(crate) core: bool,
}

impl Needs {
    pub(crate) fn of(settings: &Settings) -> Self {
        let of_loaders = settings.loaders().iter().filter_map(|loader| {
            let workers = loader.max.saturating_add(loader.spare) as u64;
            loader.max_rss.map(|bytes| bytes.saturating_mul(workers))
        });
        Self {
            open_files: cattlegrid_server::descriptors_at_most(settings),
            connections: settings.connections_max as u64,
            items: settings.memory_bytes as u64,
            memory: cattlegrid_server::memory_at_most(settings) as u64,
            workers: of_loaders.fold(0, u64::saturating_add),
            threads: settings.threads as u64,
            locks: settings.lock_memory,
            core: settings.core_dumps,
        }
    }

    /// The needs of a server whose `-m` was changed to `items` bytes at run time.
    pub(crate) fn with_items(self, items: u64) -> Self {
        Self { items, memory: self.memory.saturating_sub(self.items).saturating_add(items), ..self }
    }

    /// The memory that the server uses as soon as it is full of items, without buffers for clients, in bytes.
    fn least(&self) -> u64 {
        self.items.saturating_add(OWN_BYTES)
    }
}

/// Memory of the program and its threads, in bytes.
const OWN_BYTES: u64 = 16 << 20;

/// `CAP_IPC_LOCK`.
const IPC_LOCK: u32 = 14;
/// `CAP_SYS_RESOURCE`.
const SYS_RESOURCE: u32 = 24;

/// Judges all limits. `running`: whether `machine` describes the server's own process.
pub(crate) fn judge(needs: &Needs, machine: &Machine, running: bool, to: &mut Findings) {
    open_files(needs, machine, running, to);
    if needs.locks {
        locked_memory(needs, machine, running, to);
    }
    if let (true, Some(core), false) = (needs.core, machine.process.core, running) {
        if core.hard == 0 && !machine.process.can(SYS_RESOURCE) {
            let why = "The server does not start with -r.";
            let mend = "`ulimit -Hc unlimited` as root, LimitCORE=infinity in its unit file, or leave -r out";
            to.problem("core files", "forbidden (hard limit 0)", why, mend);
        } else {
            to.passed("core files", "allowed");
        }
    }
    machine_memory(needs, machine, running, to);
    memory_groups(needs, &machine.process.groups, to);
    cpus(needs, machine, to);
}

fn open_files(needs: &Needs, machine: &Machine, running: bool, to: &mut Findings) {
    let wanted = needs.open_files;
    let name = "open files";
    let Some(ResourceLimit { soft, hard }) = machine.process.open_files else {
        to.unseen(name, "the limits of the process cannot be read; run this as root or as its user");
        return;
    };
    let mend = format!(
        "LimitNOFILE={wanted} in its unit file ([Service]; what `ulimit -n` says in a shell does not count there), or `ulimit -n \
         {wanted}` as root in the shell that starts it, or -c {}",
        hard.saturating_sub(wanted - needs.connections).max(1)
    );
    // The server raises its limit itself; with the capability it can also raise the hard limit.
    let unlimited = machine.process.can(SYS_RESOURCE);
    let reach = match (running, unlimited) {
        (true, _) => soft,
        (false, true) => machine.nr_open.unwrap_or(u64::MAX).max(hard),
        (false, false) => hard,
    };
    let from = if running {
        "limit of the running server"
    } else if unlimited && hard < reach {
        "sysctl fs.nr_open"
    } else {
        "hard limit, `ulimit -Hn`"
    };
    if reach >= wanted {
        to.passed(name, format!("{} of {reach} are needed for -c {} ({from})", wanted, needs.connections));
        return;
    }
    let found = format!("{reach} are allowed ({from}), -c {} needs {wanted}", needs.connections);
    let why = if !running && reach < needs.connections {
        "The server does not start.".to_owned()
    } else {
        format!("Connections beyond some {} are refused.", reach.saturating_sub(wanted - needs.connections))
    };
    let mend = if from.starts_with("sysctl") { format!("sysctl -w fs.nr_open={}", 1 << 20) } else { mend };
    to.problem(name, found, why, mend);
}

fn locked_memory(needs: &Needs, machine: &Machine, running: bool, to: &mut Findings) {
    let name = "locked memory";
    let process = &machine.process;
    if running {
        let (locked, resident) = (process.locked.unwrap_or(0), process.resident.unwrap_or(0));
        if locked >= resident / 2 {
            to.passed(name, format!("{} are locked", size(locked)));
            return;
        }
    } else if process.can(IPC_LOCK) || process.can(SYS_RESOURCE) {
        to.passed(name, "this user may lock any amount");
        return;
    }
    let hard = process.locked_memory.map_or(0, |limit| limit.hard);
    if !running && hard >= needs.memory {
        to.passed(
            name,
            format!("{} are allowed", if hard == u64::MAX { "any amount".to_owned() } else { size(hard) }),
        );
        return;
    }
    to.problem(
        name,
        format!("{} are allowed (hard limit, `ulimit -Hl`), -k needs up to {}", size(hard), size(needs.memory)),
        "The server starts with a warning, and its memory can be paged out as without -k.",
        "LimitMEMLOCK=infinity in its unit file, or `ulimit -l unlimited` as root in the shell that starts it",
    );
}

/// Judges the memory of the machine, and the system's accounting of it.
fn machine_memory(needs: &Needs, machine: &Machine, running: bool, to: &mut Findings) {
    let Some(memory) = machine.memory else {
        to.unseen("memory", "/proc/meminfo cannot be read");
        return;
    };
    let (items, all) = (size(needs.items), needs.memory.saturating_add(needs.workers));
    let fits = size(memory.total / 10 * 8);
    if needs.least() > memory.total {
        to.problem(
            "memory",
            format!("-m is {items}, the machine has {}", size(memory.total)),
            "Before the cache is full, the system swaps or ends the server, and all items are lost.",
            format!("lower -m (below {fits})"),
        );
    } else if all > memory.total {
        to.advice(
            "memory",
            format!(
                "-m with what connections and workers may take is {}, the machine has {}",
                size(all),
                size(memory.total)
            ),
            "With every connection busy the system may end the server, and all items are lost.",
            format!("lower -m, -c or --unsent-memory until they fit into {fits}"),
        );
    } else if !running && needs.least() > memory.available {
        to.advice(
            "memory",
            format!("-m is {items}, {} are available now (/proc/meminfo)", size(memory.available)),
            "Other programs have the rest: as the cache fills, the system swaps or ends a process.",
            format!("lower -m below {}, or move one of the others", size(memory.available)),
        );
    } else {
        to.passed("memory", format!("-m is {items} of {}", size(memory.total)));
    }
    if machine.overcommit != Some(2) {
        to.passed("overcommit", "the system does not refuse memory (vm.overcommit_memory)");
        return;
    }
    let left = memory.commit_limit.saturating_sub(memory.committed);
    let mend = "sysctl -w vm.overcommit_memory=0, a larger vm.overcommit_ratio, or a lower -m";
    if running || needs.memory <= left {
        to.passed("overcommit", format!("vm.overcommit_memory=2, {} can be had", size(left)));
    } else if needs.least() > left {
        let why = "All of -m is counted at once: the server does not start.";
        to.problem(
            "overcommit",
            format!("vm.overcommit_memory=2 leaves {}, -m is {items}", size(left)),
            why,
            mend,
        );
    } else {
        let found =
            format!("vm.overcommit_memory=2 leaves {}, {} may be needed", size(left), size(needs.memory));
        to.advice("overcommit", found, "Connections that need memory are closed when there is none.", mend);
    }
}

fn memory_groups(needs: &Needs, groups: &[ControlGroup], to: &mut Findings) {
    let name = "control group";
    let all = needs.memory.saturating_add(needs.workers);
    let of_workers = if needs.workers > 0 { ", workers of loaders up to max_rss included" } else { "" };
    // Every group of a process limits it: the narrowest one counts.
    let narrowest =
        groups.iter().filter(|group| group.memory_max.is_some()).min_by_key(|group| group.memory_max);
    match narrowest.and_then(|group| Some((group, group.memory_max?))) {
        Some((group, most)) if all > most => {
            let is_certain = needs.least() > most;
            let found = format!(
                "{} of memory ({}/{}); -m is {}, and {} with all that connections may take{of_workers}",
                size(most),
                group.path,
                group.memory_file,
                size(needs.items),
                size(all)
            );
            // Three quarters go to items, or the rest if that is less.
            let fits = most.saturating_sub(all - needs.items).max(most / 4 * 3).min(most) >> 20;
            let mend = format!(
                "MemoryMax={}M in its unit file (or the limit of the container), or -m {fits}",
                all.div_ceil(1 << 20)
            );
            if is_certain {
                let why =
                    "Before the cache is full the system kills the server (OOM), and all items are lost.";
                to.problem(name, found, why, mend);
            } else {
                let why =
                    "A full cache with many busy connections can be killed (OOM); all items are lost then.";
                to.advice(name, found, why, mend);
            }
        }
        Some((group, most)) => {
            to.passed(name, format!("{} ({}/{})", size(most), group.path, group.memory_file));
        }
        None => to.passed(name, "no limit on memory"),
    }
    let slowed =
        groups.iter().filter_map(|group| Some((group, group.memory_high?))).min_by_key(|(_, high)| *high);
    if let Some((group, high)) = slowed.filter(|(_, high)| needs.least() > *high) {
        to.advice(
            name,
            format!(
                "{} until it is slowed down ({}/memory.high), -m is {}",
                size(high),
                group.path,
                size(needs.items)
            ),
            "Above it the system stops each thread that takes memory, for up to 2 s at a time.",
            format!("MemoryHigh={}M in its unit file, or a lower -m", all.div_ceil(1 << 20)),
        );
    }
    if let Some(group) = groups.iter().find(|group| group.oom_kills > 0 && group.memory_max.is_some()) {
        to.advice(
            name,
            format!(
                "the system has killed {} processes in {} for want of memory",
                group.oom_kills, group.path
            ),
            "If the server or a worker of a loader was one, what it had is lost.",
            format!(
                "raise its limit ({}), or lower -m; `dmesg | grep -i oom` names the processes",
                group.memory_file
            ),
        );
    }
}

fn cpus(needs: &Needs, machine: &Machine, to: &mut Findings) {
    let groups = &machine.process.groups;
    let quota = groups
        .iter()
        .filter_map(|group| Some((group, group.cpu_hundredths?)))
        .min_by_key(|(_, quota)| *quota);
    if let Some((group, hundredths)) = quota.filter(|(_, hundredths)| *hundredths < needs.threads * 100) {
        let cpus = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        let times = match group.periods {
            0 => String::new(),
            periods => format!("; it was stopped in {} of {periods} periods", group.throttled),
        };
        to.advice(
            "CPU quota",
            format!("{cpus} CPUs ({}){times}, -t is {}", group.path, needs.threads),
            "Threads that use up the quota together are all stopped for the rest of its period, 100 ms as a rule: gets wait that long.",
            format!("-t {}, or CPUQuota={}% in its unit file", (hundredths / 100).max(1), needs.threads * 100),
        );
    } else if quota.is_some() {
        to.passed("CPU quota", format!("enough for -t {}", needs.threads));
    }
    match machine.process.cpus {
        Some(cpus) if (cpus as u64) < needs.threads => to.advice(
            "CPUs",
            format!("{cpus} may be used, -t is {}", needs.threads),
            "Threads that share a CPU wait for each other: on 2 CPUs -t 4 took a fifth more CPU time for each get than -t 2, -t 16 \
             more than twice as much.",
            format!("-t {cpus}"),
        ),
        Some(cpus) => to.passed("CPUs", format!("{cpus} for -t {}", needs.threads)),
        None => to.unseen("CPUs", "the status of the process cannot be read"),
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
