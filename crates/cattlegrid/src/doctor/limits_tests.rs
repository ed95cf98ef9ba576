use super::super::machine::{MemoryFigures, ProcessFacts};
use super::*;

const MIB: u64 = 1 << 20;

fn needs() -> Needs {
    Needs {
        open_files: 1104,
        connections: 1024,
        items: 64 * MIB,
        memory: 300 * MIB,
        workers: 0,
        threads: 4,
        locks: false,
        core: false,
    }
}

fn good() -> Machine {
    Machine {
        nr_open: Some(1 << 20),
        memory: Some(MemoryFigures { total: 8 << 30, available: 4 << 30, ..MemoryFigures::default() }),
        process: ProcessFacts {
            open_files: Some(ResourceLimit { soft: 2048, hard: 524_288 }),
            locked_memory: Some(ResourceLimit { soft: 8 * MIB, hard: 8 * MIB }),
            core: Some(ResourceLimit { soft: 0, hard: u64::MAX }),
            cpus: Some(4),
            ..ProcessFacts::default()
        },
        ..Machine::default()
    }
}

/// Whether there is no problem, and what was found: the check and the finding.
fn found(needs: &Needs, machine: &Machine, running: bool) -> (bool, Vec<String>) {
    let mut to = Findings::default();
    judge(needs, machine, running, &mut to);
    let each = to.list.iter().map(|finding| format!("{}: {} {}", finding.check, finding.found, finding.why));
    (to.is_good(), each.collect())
}

/// The only finding of [`found`].
fn one(needs: &Needs, machine: &Machine, running: bool) -> (bool, String) {
    let (is_good, mut list) = found(needs, machine, running);
    assert_eq!(list.len(), 1, "{list:?}");
    (is_good, list.remove(0))
}

#[test]
fn a_good_machine_has_nothing_to_change() {
    assert_eq!(found(&needs(), &good(), false), (true, vec![]));
}

#[test]
fn open_files_before_the_start_and_of_a_server_that_runs() {
    let with = |soft, hard, capabilities| {
        let mut machine = good();
        machine.process.open_files = Some(ResourceLimit { soft, hard });
        machine.process.capabilities = capabilities;
        machine
    };
    let (is_good, said) = one(&needs(), &with(256, 1103, 0), false);
    assert!(!is_good && said.contains("1103 are allowed") && said.contains("beyond some 1023"), "{said}");
    assert_eq!(found(&needs(), &with(256, 1104, 0), false).1.len(), 0, "the server raises the soft limit");
    let (_, said) = one(&needs(), &with(256, 1000, 0), false);
    assert!(said.contains("does not start"), "{said}");
    assert_eq!(found(&needs(), &with(256, 256, 1 << SYS_RESOURCE), false).1.len(), 0, "and the hard one");
    let mut machine = with(256, 256, 1 << SYS_RESOURCE);
    machine.nr_open = Some(512);
    assert!(one(&needs(), &machine, false).1.contains("fs.nr_open"));
    let (is_good, said) = one(&needs(), &with(1100, 524_288, 0), true);
    assert!(!is_good && said.contains("1100 are allowed (limit of the running server)"), "{said}");
    let mut machine = good();
    machine.process.open_files = None;
    assert_eq!(found(&needs(), &machine, false).1.len(), 0);
}

#[test]
fn memory_that_may_be_locked() {
    let needs = Needs { locks: true, ..needs() };
    let (is_good, said) = one(&needs, &good(), false);
    assert!(
        !is_good && said.contains("8 MiB are allowed") && said.contains("-k needs up to 300 MiB"),
        "{said}"
    );
    let mut machine = good();
    machine.process.locked_memory = Some(ResourceLimit { soft: 0, hard: u64::MAX });
    assert_eq!(found(&needs, &machine, false).1.len(), 0);
    machine = good();
    machine.process.capabilities = 1 << IPC_LOCK;
    assert_eq!(found(&needs, &machine, false).1.len(), 0);
    machine.process.resident = Some(50 * MIB);
    assert!(!one(&needs, &machine, true).0, "nothing of it is locked");
    machine.process.locked = Some(200 * MIB);
    assert_eq!(found(&needs, &machine, true).1.len(), 0);
}

#[test]
fn core_files_that_are_forbidden() {
    let needs = Needs { core: true, ..needs() };
    assert_eq!(found(&needs, &good(), false).1.len(), 0);
    let mut machine = good();
    machine.process.core = Some(ResourceLimit { soft: 0, hard: 0 });
    assert!(!one(&needs, &machine, false).0);
}

#[test]
fn the_memory_of_the_machine() {
    let with = |total: u64, available: u64| {
        let memory = Some(MemoryFigures {
            total: total * MIB,
            available: available * MIB,
            ..MemoryFigures::default()
        });
        Machine { memory, ..good() }
    };
    assert!(!one(&needs(), &with(79, 79), false).0);
    assert!(one(&needs(), &with(299, 200), false).0);
    assert!(one(&needs(), &with(900, 50), false).1.contains("50 MiB are available"));
    assert_eq!(found(&needs(), &with(900, 50), true).1.len(), 0, "what runs has its memory already");
    let workers = Needs { workers: 700 * MIB, ..needs() };
    assert!(one(&workers, &with(900, 800), false).1.contains("1000 MiB"));
}

#[test]
fn strict_accounting() {
    let with = |limit: u64, committed: u64| {
        let memory =
            MemoryFigures { commit_limit: limit * MIB, committed: committed * MIB, ..good().memory.unwrap() };
        Machine { memory: Some(memory), overcommit: Some(2), ..good() }
    };
    assert!(!one(&needs(), &with(500, 450), false).0);
    assert!(one(&needs(), &with(500, 300), false).0);
    assert_eq!(found(&needs(), &with(900, 300), false).1.len(), 0);
    let lax = Machine { overcommit: Some(1), ..with(500, 450) };
    assert_eq!(found(&needs(), &lax, false).1.len(), 0);
}

#[test]
fn control_groups_the_narrowest_counts() {
    let group = |path: &str, max: Option<u64>| ControlGroup {
        path: path.to_owned(),
        memory_max: max.map(|mib| mib * MIB),
        memory_file: "memory.max",
        ..ControlGroup::default()
    };
    let with = |groups: &[ControlGroup]| {
        let mut machine = good();
        machine.process.groups = groups.to_vec();
        machine
    };
    assert_eq!(found(&needs(), &with(&[group("/a/b", Some(400)), group("/a", None)]), false).1.len(), 0);
    let (is_good, said) = one(&needs(), &with(&[group("/a/b", Some(400)), group("/a", Some(70))]), false);
    assert!(
        !is_good && said.contains("70 MiB of memory (/a/memory.max)") && said.contains("300 MiB"),
        "{said}"
    );
    let (is_good, _) = one(&needs(), &with(&[group("/a", Some(200))]), false);
    assert!(is_good, "only with many busy connections");
    let workers = Needs { workers: 200 * MIB, ..needs() };
    assert!(one(&workers, &with(&[group("/a", Some(400))]), false).1.contains("workers of loaders"));
    let high = ControlGroup { memory_high: Some(60 * MIB), ..group("/a", None) };
    assert!(one(&needs(), &with(&[high]), false).1.contains("memory.high"));
    let killed = ControlGroup { oom_kills: 2, ..group("/a", Some(400)) };
    assert!(one(&needs(), &with(&[killed]), false).1.contains("has killed 2"));
}

#[test]
fn threads_against_cpus_and_quotas() {
    let mut machine = good();
    machine.process.cpus = Some(2);
    assert!(one(&needs(), &machine, false).0);
    assert_eq!(found(&Needs { threads: 2, ..needs() }, &machine, false).1.len(), 0);
    machine.process.cpus = Some(8);
    machine.process.groups = vec![ControlGroup {
        cpu_hundredths: Some(150),
        periods: 90,
        throttled: 30,
        ..ControlGroup::default()
    }];
    let (_, said) = one(&needs(), &machine, false);
    assert!(said.contains("1.50 CPUs") && said.contains("30 of 90 periods"), "{said}");
    assert_eq!(found(&Needs { threads: 1, ..needs() }, &machine, false).1.len(), 0);
}
