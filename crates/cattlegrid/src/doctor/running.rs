//! Statistics of a running server, as `stats` reports them.

use std::collections::BTreeMap;

use cattlegrid_config::Settings;

use super::finding::{Findings, size};
use super::machine::Machine;

/// Lines of `stats` and its sections, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunningStats {
    pub(crate) general: BTreeMap<String, String>,
    pub(crate) own: BTreeMap<String, String>,
    pub(crate) loaders: BTreeMap<String, String>,
    pub(crate) follow: BTreeMap<String, String>,
}

/// The lines `STAT NAME VALUE` of a reply.
pub(crate) fn parse(lines: &[String]) -> BTreeMap<String, String> {
    let each = lines.iter().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    each.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn number(of: &BTreeMap<String, String>, name: &str) -> u64 {
    of.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether it is Cattlegrid that has answered.
pub(crate) fn is_ours(stats: &RunningStats) -> bool {
    stats.own.contains_key("shards")
}

/// Bytes that it may have for items now (`-m`).
pub(crate) fn memory_limit(stats: &RunningStats) -> u64 {
    number(&stats.general, "limit_maxbytes")
}

/// All of this file. `now`: Unix time; `memory`: what the server takes at most by its settings, in bytes.
pub(crate) fn judge(
    stats: &RunningStats,
    settings: &Settings,
    machine: &Machine,
    now: u64,
    memory: u64,
    to: &mut Findings,
) {
    connections(stats, to);
    queue(settings, machine, to);
    let (limit, wanted) = (memory_limit(stats), settings.memory_bytes as u64);
    if limit > 0 && limit != wanted {
        to.advice(
            "options",
            format!("the server has -m {} now (limit_maxbytes), these options say {}", limit >> 20, wanted >> 20),
            "It was started with other options, or `cache_memlimit` has changed them: after a restart they are these.",
            format!("give doctor the options of the server (--pid takes them from it), or -m {} to the server", limit >> 20),
        );
    }
    let own = |name: &str| number(&stats.own, name);
    if own("memory_refused") > 0 {
        to.problem(
            "refused memory",
            format!(
                "{} connections were closed or refused for want of memory (memory_refused)",
                own("memory_refused")
            ),
            "The system refuses memory: a limit on address space (`ulimit -v`), or vm.overcommit_memory=2.",
            "`ulimit -v unlimited` where it is started, sysctl -w vm.overcommit_memory=0, or a lower -m",
        );
    } else {
        to.passed("refused memory", "none since the start");
    }
    if own("log_lines_dropped") > 0 {
        to.advice(
            "log",
            format!("{} lines were dropped (log_lines_dropped)", own("log_lines_dropped")),
            "Standard error is closed, full or not read: what went wrong is not told.",
            "let journald have it (StandardError=journal in its unit file), or look at the disk of its file",
        );
    }
    match stats.own.get("reload_error").map(String::as_str) {
        None | Some("none") => to.passed("reload", "the last one took effect, or there was none"),
        Some(error) => to.problem(
            "reload",
            format!("the last SIGHUP changed nothing: {error} (reload_error)"),
            "The server goes on with the rules, users and certificates that it had before.",
            "correct the file (`cattlegrid check FILE`), and send SIGHUP again",
        ),
    }
    resident(stats, machine, memory, to);
    loaders(stats, to);
    logs(stats, to);
    let theirs = number(&stats.general, "time");
    if theirs > 0 && theirs.abs_diff(now) > CLOCK_SECONDS {
        to.advice(
            "clock",
            format!("its clock differs from that of this machine by {} s (time)", theirs.abs_diff(now)),
            "Absolute expiry times mean another moment there; `debugtime` moves it, too.",
            "timedatectl set-ntp true on both machines",
        );
    }
}

/// Seconds of difference between clocks that are worth a word.
const CLOCK_SECONDS: u64 = 5;

fn connections(stats: &RunningStats, to: &mut Findings) {
    let general = |name: &str| number(&stats.general, name);
    let (refused, most) = (general("rejected_connections"), general("max_connections"));
    let (current, without) = (general("curr_connections"), number(&stats.own, "accept_errors"));
    if without > 0 {
        to.problem(
            "connections",
            format!("{without} times there was no descriptor or memory for one (accept_errors)"),
            "Clients got an error, or waited.",
            format!("LimitNOFILE={} or more in its unit file ([Service])", (most + 200).next_power_of_two()),
        );
    } else if refused > 0 {
        to.problem(
            "connections",
            format!(
                "{refused} were refused at the limit of -c {most} (rejected_connections); {current} are open"
            ),
            "Clients got an error in the place of a reply.",
            format!("-c {}, or fewer connections in the pools of clients", (most * 2).next_power_of_two()),
        );
    } else if most > 0 && current * 10 >= most * 9 {
        to.advice(
            "connections",
            format!("{current} of {most} (-c) are open"),
            "Beyond the limit clients get an error in the place of a reply.",
            format!("-c {}", (most * 2).next_power_of_two()),
        );
    } else {
        to.passed("connections", format!("{current} of {most} are open, none was refused"));
    }
    if general("listen_disabled_num") > 0 && without == 0 {
        to.advice(
            "accepting",
            format!(
                "new connections were left waiting {} times (listen_disabled_num)",
                general("listen_disabled_num")
            ),
            "Clients wait to connect while no connection is free.",
            format!("-c {}", (most * 2).next_power_of_two()),
        );
    }
}

/// Places of the queue of connections from which on more are no help.
const QUEUE_PLACES: u64 = 4096;

/// The queue of connections that wait to be accepted.
fn queue(settings: &Settings, machine: &Machine, to: &mut Findings) {
    let backlog = u64::try_from(settings.backlog).unwrap_or(0);
    let places = machine.somaxconn.filter(|_| machine.process.same_network);
    let wanted = backlog.max(QUEUE_PLACES);
    let mut mend = Vec::new();
    if backlog < QUEUE_PLACES {
        mend.push(format!("-b {QUEUE_PLACES}"));
    }
    match places {
        Some(places) if places >= wanted => {}
        Some(_) => mend.push(format!("sysctl -w net.core.somaxconn={wanted}")),
        None => mend.push(format!("net.core.somaxconn of {wanted} or more in its network")),
    }
    let enough = backlog >= QUEUE_PLACES && places.is_some_and(|places| places >= QUEUE_PLACES);
    match machine.process.overflows {
        Some(count) if count > 0 && enough => to.passed(
            "listen queue",
            format!(
                "-b {backlog} is enough; the kernel has dropped {count} connections of any program of this network since the \
                 machine's start (ListenOverflows)"
            ),
        ),
        Some(0) => to.passed("listen queue", "no connection was dropped (ListenOverflows)"),
        Some(count) => to.advice(
            "listen queue",
            format!(
                "the kernel has dropped {count} connections because a queue was full, of any program of this network (ListenOverflows, \
                 since the machine's start)"
            ),
            "Each of these clients waited 1 s or longer, or got no reply at all.",
            format!("{}, if it still grows while the server runs: `nstat -az TcpExtListenOverflows`", mend.join(" with ")),
        ),
        None => to.unseen("listen queue", "/proc/PID/net/netstat cannot be read; run this as root or as its user"),
    }
}

fn resident(stats: &RunningStats, machine: &Machine, memory: u64, to: &mut Findings) {
    let Some(resident) = machine.process.resident else { return };
    let limit = memory_limit(stats);
    if resident > memory.max(limit) {
        to.advice(
            "resident memory",
            format!("{} (VmRSS), -m is {}", size(resident), size(limit)),
            format!("By its settings the server takes {} at most: a limit that counts on them may end it.", size(memory)),
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, if it is always; else please report it",
        );
    } else {
        to.passed("resident memory", format!("{} (VmRSS), -m is {}", size(resident), size(limit)));
    }
}

/// The names before the colon, each once.
fn blocks(of: &BTreeMap<String, String>, line: &str) -> Vec<String> {
    of.keys().filter_map(|name| name.strip_suffix(line)).map(str::to_owned).collect()
}

fn loaders(stats: &RunningStats, to: &mut Findings) {
    for name in blocks(&stats.loaders, ":jobs") {
        let of = |line: &str| number(&stats.loaders, &format!("{name}:{line}"));
        let failed: Vec<String> = ["errors", "lost", "timeouts", "refused"]
            .iter()
            .filter(|line| of(line) > 0)
            .map(|line| format!("{} {line}", of(line)))
            .collect();
        let count = ["errors", "lost", "timeouts", "refused"].iter().map(|line| of(line)).sum::<u64>();
        // One in a hundred, and not the first ones: programs fail now and then.
        if count * 100 >= of("jobs").max(1) && count > 0 {
            to.problem(
                "loader",
                format!("{name}: of {} jobs {} (stats loaders)", of("jobs"), failed.join(", ")),
                "Clients that wait for these keys get a miss, or an old value within grace.",
                format!(
                    "cattlegrid check FILE --try KEY runs it once; the log has what workers of {name} say"
                ),
            );
        } else {
            to.passed("loader", format!("{name}: {} jobs", of("jobs")));
        }
    }
}

fn logs(stats: &RunningStats, to: &mut Findings) {
    for name in blocks(&stats.follow, ":behind") {
        let text = |line: &str| stats.follow.get(&format!("{name}:{line}")).cloned().unwrap_or_default();
        if text("behind") == "0" {
            to.passed("followed log", format!("{name}: {}, {} ms behind", text("state"), text("lag_ms")));
            continue;
        }
        to.problem(
            "followed log",
            format!("{name}: behind for {} s, {} (stats follow)", text("behind_s"), text("state")),
            "What changed in it has not been invalidated here: when_behind says what clients get.",
            "cattlegrid check FILE --connect, on this machine; the server's log has the reason",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::ProcessFacts;
    use super::*;

    fn stats(lines: &[&str]) -> BTreeMap<String, String> {
        parse(&lines.iter().map(|line| format!("STAT {line}")).collect::<Vec<_>>())
    }

    fn good() -> RunningStats {
        RunningStats {
            general: stats(&[
                "pid 7",
                "time 1000",
                "max_connections 1024",
                "curr_connections 3",
                "rejected_connections 0",
                "listen_disabled_num 0",
                "limit_maxbytes 67108864",
            ]),
            own: stats(&["shards 4", "reload_error none", "accept_errors 0", "memory_refused 0"]),
            ..RunningStats::default()
        }
    }

    fn machine() -> Machine {
        let process =
            ProcessFacts { overflows: Some(0), resident: Some(20 << 20), ..ProcessFacts::default() };
        Machine { process, ..Machine::default() }
    }

    fn found(stats: &RunningStats, machine: &Machine) -> (bool, Vec<&'static str>) {
        let mut to = Findings::default();
        judge(stats, &Settings::default(), machine, 1001, 200 << 20, &mut to);
        (to.is_good(), to.list.iter().map(|finding| finding.check).collect())
    }

    fn with(change: impl FnOnce(&mut RunningStats)) -> (bool, Vec<&'static str>) {
        let mut stats = good();
        change(&mut stats);
        found(&stats, &machine())
    }

    #[test]
    fn a_server_that_is_well() {
        assert!(is_ours(&good()) && !is_ours(&RunningStats::default()));
        assert_eq!(found(&good(), &machine()), (true, vec![]));
    }

    #[test]
    fn what_clients_have_met() {
        let set = |of: &mut BTreeMap<String, String>, name: &str, value: &str| {
            of.insert(name.to_owned(), value.to_owned());
        };
        assert_eq!(
            with(|all| set(&mut all.general, "rejected_connections", "5")),
            (false, vec!["connections"])
        );
        assert_eq!(
            with(|all| set(&mut all.general, "curr_connections", "1000")),
            (true, vec!["connections"])
        );
        assert_eq!(with(|all| set(&mut all.general, "listen_disabled_num", "2")), (true, vec!["accepting"]));
        assert_eq!(with(|all| set(&mut all.own, "accept_errors", "2")), (false, vec!["connections"]));
        assert_eq!(with(|all| set(&mut all.own, "memory_refused", "2")), (false, vec!["refused memory"]));
        assert_eq!(with(|all| set(&mut all.own, "reload_error", "x.toml:1: bad")), (false, vec!["reload"]));
        assert_eq!(with(|all| set(&mut all.own, "log_lines_dropped", "1")), (true, vec!["log"]));
        assert_eq!(with(|all| set(&mut all.general, "limit_maxbytes", "1048576")), (true, vec!["options"]));
        assert_eq!(with(|all| set(&mut all.general, "time", "2000")), (true, vec!["clock"]));
    }

    #[test]
    fn loaders_and_logs() {
        let lines =
            |errors| stats(&["pages:jobs 1000", &format!("pages:errors {errors}"), "pages:timeouts 0"]);
        assert_eq!(with(|all| all.loaders = lines(9)), (true, vec![]));
        assert_eq!(with(|all| all.loaders = lines(10)), (false, vec!["loader"]));
        let log = |behind| stats(&["shop:state lost", "shop:lag_ms 9000", &format!("shop:behind {behind}")]);
        assert_eq!(with(|all| all.follow = log(0)), (true, vec![]));
        assert_eq!(with(|all| all.follow = log(1)), (false, vec!["followed log"]));
    }

    #[test]
    fn a_queue_is_made_longer_and_never_shorter() {
        let judged = |backlog, somaxconn, same_network| {
            let process = ProcessFacts { overflows: Some(3), same_network, ..ProcessFacts::default() };
            let machine = Machine { process, somaxconn: Some(somaxconn), ..Machine::default() };
            let mut to = Findings::default();
            let mut settings = Settings::default();
            settings.backlog = backlog;
            queue(&settings, &machine, &mut to);
            to.list.pop().map(|finding| finding.mend.split(", if").next().unwrap_or_default().to_owned())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(judged(1024, 128, true), some("-b 4096 with sysctl -w net.core.somaxconn=4096"));
        assert_eq!(judged(1024, 65_535, true), some("-b 4096"));
        assert_eq!(judged(8192, 1024, true), some("sysctl -w net.core.somaxconn=8192"));
        assert_eq!(judged(8192, 1024, false), some("net.core.somaxconn of 8192 or more in its network"));
        assert_eq!(judged(4096, 4096, true), None);
        assert_eq!(judged(8192, 65_535, true), None);
    }

    #[test]
    fn what_the_kernel_has_dropped_and_memory_beyond_the_settings() {
        let mut machine = machine();
        machine.process.overflows = Some(3);
        assert_eq!(found(&good(), &machine), (true, vec!["listen queue"]));
        machine.process.overflows = None;
        machine.process.resident = Some(201 << 20);
        assert_eq!(found(&good(), &machine), (true, vec!["resident memory"]));
    }
}
