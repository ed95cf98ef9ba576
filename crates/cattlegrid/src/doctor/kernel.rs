//! Settings of the kernel, as far as they make a difference to this server. What does not is left alone:
//! docs/operations.md says what and why.

use cattlegrid_config::Settings;

use super::finding::{Findings, size};
use super::machine::Machine;

/// Nanoseconds of a read of the clock from which on it is a system call, or a device.
const SLOW_CLOCK_NANOS: u64 = 200;
/// Swapped bytes of the server that are worth a word.
const SWAPPED: u64 = 1 << 20;

/// All of this file. `clock_nanos`: what a read of the clock takes; `running`: the process is the server
/// itself.
pub(crate) fn judge(
    settings: &Settings,
    machine: &Machine,
    clock_nanos: u64,
    running: bool,
    to: &mut Findings,
) {
    if !settings.tcp_addresses().is_empty() {
        backlog(settings, machine, to);
    }
    swap(settings, machine, running, to);
    huge_pages(settings, machine, to);
    clock(machine, clock_nanos, to);
    if settings.io_uring {
        match machine.io_uring_disabled {
            Some(0) => to.passed("io_uring", "allowed (kernel.io_uring_disabled=0)"),
            None => {
                let how =
                    "this kernel does not say whether it is allowed; `io_uring` of `stats cattlegrid` does";
                to.unseen("io_uring", how);
            }
            Some(mode) => to.advice(
                "io_uring",
                format!("kernel.io_uring_disabled={mode}"),
                "-o io_uring has no effect: each reply is sent by a system call of its own.",
                "sysctl -w kernel.io_uring_disabled=0, or leave -o io_uring out",
            ),
        }
    }
}

/// The queue of connections that wait to be accepted.
fn backlog(settings: &Settings, machine: &Machine, to: &mut Findings) {
    let wanted = u64::try_from(settings.backlog).unwrap_or(0);
    if !machine.process.same_network {
        to.unseen("somaxconn", "the server has a network of its own; run this inside it (nsenter -n -t PID)");
        return;
    }
    match machine.somaxconn {
        None => to.unseen("somaxconn", "/proc/sys/net/core/somaxconn cannot be read"),
        Some(most) if most < wanted => to.advice(
            "somaxconn",
            format!("{most} (/proc/sys/net/core/somaxconn), -b is {wanted}"),
            format!(
                "The queue has {most} places: when more clients connect at the same moment, after a restart for instance, the rest wait \
                 1 s or longer. Of 1,000 at once a third did with 128 places, none with 1024."
            ),
            format!("sysctl -w net.core.somaxconn={wanted}, and the same in a file of /etc/sysctl.d"),
        ),
        Some(most) => to.passed("somaxconn", format!("{most}, -b is {wanted}")),
    }
    // With cookies a full queue of half-open connections turns nobody away.
    if let (Some(0), Some(most)) = (machine.syncookies, machine.syn_backlog)
        && most < wanted
    {
        to.advice(
            "half-open connections",
            format!("net.ipv4.tcp_syncookies=0 and tcp_max_syn_backlog={most}, -b is {wanted}"),
            "Without cookies connections beyond it are dropped while they are being opened.",
            "sysctl -w net.ipv4.tcp_syncookies=1",
        );
    }
}

fn swap(settings: &Settings, machine: &Machine, running: bool, to: &mut Findings) {
    let swapped = machine.process.swapped.unwrap_or(0);
    if running && swapped >= SWAPPED {
        to.advice(
            "swap",
            format!("{} of the server are in swap (VmSwap)", size(swapped)),
            "A get of an item there waits for the disk, and all others of its thread with it.",
            "lower -m, or MemorySwapMax=0 in its unit file, or -k; sysctl -w vm.swappiness=1",
        );
        return;
    }
    let total = machine.memory.map_or(0, |memory| memory.swap_total);
    match machine.swappiness {
        _ if total == 0 => to.passed("swap", "none"),
        _ if settings.lock_memory => to.passed("swap", "kept out by -k"),
        Some(swappiness) if swappiness > 10 && !running => to.advice(
            "swap",
            format!("{} of swap, vm.swappiness={swappiness}", size(total)),
            "The system may page out items that are seldom read: a get of one waits for the disk, and its thread with it.",
            "sysctl -w vm.swappiness=1, or MemorySwapMax=0 in its unit file, or -k",
        ),
        _ => to.passed("swap", "not used by the server"),
    }
}

fn huge_pages(settings: &Settings, machine: &Machine, to: &mut Findings) {
    match machine.huge_pages.as_deref() {
        Some("never") | None if settings.large_pages => to.advice(
            "large pages",
            "/sys/kernel/mm/transparent_hugepage/enabled is never",
            "-L has no effect: gets take some 5 % more CPU time than with large pages.",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or leave -L out",
        ),
        Some(mode) if settings.large_pages => to.passed("large pages", format!("enabled is {mode}")),
        _ => {}
    }
}

fn clock(machine: &Machine, nanos: u64, to: &mut Findings) {
    let source = machine.clock.as_deref().unwrap_or("unknown");
    if nanos <= SLOW_CLOCK_NANOS {
        to.passed("clock", format!("{source}: {nanos} ns for a read"));
        return;
    }
    to.advice(
        "clock",
        format!("a read takes {nanos} ns; the source is {source} (clocksource0/current_clocksource), tsc takes some 20 ns"),
        "The server reads the clock in each round of a thread and for each sampled request.",
        "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, if available_clocksource has it",
    );
}

#[cfg(test)]
mod tests {
    use super::super::machine::{MemoryFigures, ProcessFacts};
    use super::*;
    use cattlegrid_config::{Command, parse_args};

    fn settings(words: &[&str]) -> Settings {
        match parse_args(words.iter().copied()).unwrap() {
            Command::Serve(settings) => *settings,
            other => panic!("{other:?}"),
        }
    }

    fn good() -> Machine {
        Machine {
            somaxconn: Some(4096),
            syncookies: Some(1),
            syn_backlog: Some(128),
            huge_pages: Some("madvise".to_owned()),
            swappiness: Some(60),
            memory: Some(MemoryFigures { total: 8 << 30, available: 4 << 30, ..MemoryFigures::default() }),
            process: ProcessFacts { same_network: true, ..ProcessFacts::default() },
            ..Machine::default()
        }
    }

    fn found(words: &[&str], machine: &Machine, clock_nanos: u64, running: bool) -> Vec<&'static str> {
        let mut findings = Findings::default();
        judge(&settings(words), machine, clock_nanos, running, &mut findings);
        assert!(findings.is_good());
        findings.list.iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn a_good_machine_has_nothing_to_change() {
        assert!(found(&[], &good(), 25, false).is_empty());
        assert!(found(&["-L"], &good(), 25, false).is_empty());
    }

    #[test]
    fn the_backlog_is_cut_by_the_system() {
        let mut machine = Machine { somaxconn: Some(128), ..good() };
        assert_eq!(found(&[], &machine, 25, false), ["somaxconn"]);
        assert!(found(&["-b", "128"], &machine, 25, false).is_empty());
        assert!(
            found(&["-s", "/x"], &machine, 25, false).is_empty(),
            "a unix socket has no such limit of TCP"
        );
        machine.process.same_network = false;
        assert!(found(&[], &machine, 25, true).is_empty());
        let machine = Machine { syncookies: Some(0), ..good() };
        assert_eq!(found(&[], &machine, 25, false), ["half-open connections"]);
    }

    #[test]
    fn swap_with_and_without_locks() {
        let mut machine = good();
        machine.memory = Some(MemoryFigures { swap_total: 1 << 30, ..MemoryFigures::default() });
        assert_eq!(found(&[], &machine, 25, false), ["swap"]);
        assert!(found(&["-k"], &machine, 25, false).is_empty());
        assert!(found(&[], &Machine { swappiness: Some(1), ..machine.clone() }, 25, false).is_empty());
        assert!(found(&[], &machine, 25, true).is_empty(), "what runs is judged by what it has in swap");
        machine.process.swapped = Some(5 << 20);
        assert_eq!(found(&[], &machine, 25, true), ["swap"]);
    }

    #[test]
    fn options_that_the_kernel_does_not_allow_and_slow_clocks() {
        let machine = Machine { huge_pages: Some("never".to_owned()), io_uring_disabled: Some(2), ..good() };
        assert_eq!(found(&["-L", "-o", "io_uring"], &machine, 25, false), ["large pages", "io_uring"]);
        assert!(found(&[], &machine, 25, false).is_empty());
        assert_eq!(found(&[], &good(), 1200, false), ["clock"]);
    }
}
