use super::*;

/// Files as a system has them, recorded.
fn recorded(files: &[(&str, &str)]) -> (tempfile::TempDir, SystemFiles) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let files = SystemFiles::at(dir.path());
    (dir, files)
}

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max core file size        0                    unlimited            bytes     
Max open files            1024                 524288               files     
Max locked memory         8388608              8388608              bytes     
";
const STATUS: &str = "\
Name:\tcattlegrid
Uid:\t1000\t999\t1000\t1000
VmLck:\t       0 kB
VmRSS:\t    5120 kB
VmSwap:\t     128 kB
CapEff:\t000001fffeffffff
Cpus_allowed_list:\t0-3,8
";
const NETSTAT: &str = "\
TcpExt: SyncookiesSent SyncookiesRecv ListenOverflows ListenDrops
TcpExt: 0 1 17 18
IpExt: InNoRoutes
IpExt: 0
";
const MEMINFO: &str = "\
MemTotal:        1000000 kB
MemFree:          100000 kB
MemAvailable:     500000 kB
SwapTotal:          1024 kB
CommitLimit:      500000 kB
Committed_AS:     250000 kB
";

#[test]
fn unix_sockets_that_listen() {
    let (_dir, files) = recorded(&[(
        "proc/self/net/unix",
        "Num       RefCount Protocol Flags    Type St Inode Path\n\
         0000000000000000: 00000002 00000000 00010000 0001 01 41 /run/a b\n\
         0000000000000000: 00000002 00000000 00010000 0001 01 42 @c\n\
         0000000000000000: 00000003 00000000 00000000 0001 03 43 /run/a b\n\
         0000000000000000: 00000002 00000000 00010000 0001 01 44\n",
    )]);
    let one = |path: &str, inode| UnixListenSocket { path: path.to_owned(), inode };
    assert_eq!(listening_unix(&files), [one("/run/a b", 41), one("@c", 42)]);
}

#[test]
fn programs_by_their_file_or_by_what_they_are_called() {
    let (_dir, files) = recorded(&[
        ("proc/2/comm", "kthreadd\n"),
        ("proc/2/cmdline", ""),
        ("proc/8/cmdline", "/opt/cattlegrid\0-m\x00100\0"),
    ]);
    assert!(is_program(&files, 8, &["cattlegrid"]) && !is_program(&files, 8, &["memcached"]));
    assert!(!is_program(&files, 2, &["cattlegrid", "memcached"]) && !is_program(&files, 9, &["cattlegrid"]));
}

#[test]
fn a_machine_with_control_groups_of_version_2() {
    let (_dir, files) = recorded(&[
        ("proc/sys/net/core/somaxconn", "4096\n"),
        ("proc/sys/net/ipv4/tcp_syncookies", "1\n"),
        ("proc/sys/fs/nr_open", "1048576\n"),
        ("proc/sys/vm/overcommit_memory", "0\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
        ("proc/meminfo", MEMINFO),
        ("proc/7/limits", LIMITS),
        ("proc/7/status", STATUS),
        ("proc/7/net/netstat", NETSTAT),
        ("proc/7/cgroup", "0::/system.slice/cattlegrid.service\n"),
        ("sys/fs/cgroup/system.slice/cattlegrid.service/memory.max", "104857600\n"),
        ("sys/fs/cgroup/system.slice/cattlegrid.service/memory.high", "max\n"),
        (
            "sys/fs/cgroup/system.slice/cattlegrid.service/memory.events",
            "low 0\noom 1\noom_kill 1\noom_group_kill 0\n",
        ),
        ("sys/fs/cgroup/system.slice/cattlegrid.service/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
        ("sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/system.slice/cpu.stat", "usage_usec 5\nnr_periods 90\nnr_throttled 30\n"),
    ]);
    let machine = Machine::read(&files, Some(7));
    assert_eq!((machine.somaxconn, machine.syncookies, machine.syn_backlog), (Some(4096), Some(1), None));
    assert_eq!(machine.huge_pages.as_deref(), Some("madvise"));
    assert_eq!(machine.clock.as_deref(), Some("tsc"));
    let memory = machine.memory.unwrap();
    assert_eq!((memory.total, memory.swap_total), (1_000_000 << 10, 1 << 20));
    assert_eq!((memory.commit_limit, memory.committed), (500_000 << 10, 250_000 << 10));
    let process = machine.process;
    assert_eq!(process.open_files, Some(ResourceLimit { soft: 1024, hard: 524_288 }));
    assert_eq!(process.core, Some(ResourceLimit { soft: 0, hard: u64::MAX }));
    assert_eq!((process.uid, process.cpus, process.overflows), (Some(999), Some(5), Some(17)));
    assert_eq!(
        (process.resident, process.swapped, process.locked),
        (Some(5 << 20), Some(128 << 10), Some(0))
    );
    assert!(process.can(14) && !process.can(24));
    let [own, slice] = &process.groups[..] else { panic!("{:?}", process.groups) };
    assert_eq!(own.path, "/sys/fs/cgroup/system.slice/cattlegrid.service");
    assert_eq!((own.memory_max, own.memory_high, own.oom_kills), (Some(100 << 20), None, 1));
    assert_eq!((own.cpu_hundredths, slice.cpu_hundredths), (None, Some(150)));
    assert_eq!((slice.memory_max, slice.throttled, slice.periods), (None, 30, 90));
}

#[test]
fn control_groups_of_version_1_in_a_container() {
    let (_dir, files) = recorded(&[
        ("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "52428800\n"),
        ("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
    ]);
    let groups = Machine::read(&files, None).process.groups;
    let [memory, cpu] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((memory.memory_max, memory.oom_kills), (Some(50 << 20), 3));
    assert_eq!(memory.path, "/sys/fs/cgroup/memory");
    assert_eq!(cpu.cpu_hundredths, Some(50));
    let (_dir, files) = recorded(&[
        ("proc/self/cgroup", "4:memory:/\n3:cpu:/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
    ]);
    assert!(Machine::read(&files, None).process.groups.is_empty());
}

#[test]
fn a_system_that_says_nothing() {
    let (_dir, files) = recorded(&[]);
    let machine = Machine::read(&files, Some(7));
    assert_eq!(
        machine,
        Machine {
            process: ProcessFacts { same_network: true, ..ProcessFacts::default() },
            ..Machine::default()
        }
    );
    assert!(listening(&files, None).is_empty());
}

const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2BCB 00000000:0000 0A 00000000:00000005 00:00000000 00000000   100        0 4711 1 0 100 0 0 10 0
   1: 0100007F:2BCB 0100007F:9C40 01 00000000:00000000 00:00000000 00000000   100        0 4712 1 0 20 4 30 10 -1
";
const TCP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4713 1
";

#[test]
fn sockets_that_listen_and_who_has_them() {
    let (dir, files) = recorded(&[
        ("proc/self/net/tcp", TCP),
        ("proc/self/net/tcp6", TCP6),
        ("proc/31/comm", "memcached\n"),
        ("proc/31/fd/.keep", ""),
        ("proc/32/fd/.keep", ""),
        ("proc/32/cmdline", "cattlegrid\0-m\x00100\0"),
    ]);
    let sockets = listening(&files, None);
    let addresses: Vec<String> = sockets.iter().map(|socket| socket.address.to_string()).collect();
    assert_eq!(addresses, ["127.0.0.1:11211", "[::1]:80"]);
    assert_eq!(owner(&files, sockets[0].inode), None);
    std::os::unix::fs::symlink("socket:[4711]", dir.path().join("proc/31/fd/12")).unwrap();
    std::os::unix::fs::symlink("socket:[4713]", dir.path().join("proc/32/fd/3")).unwrap();
    assert_eq!(owner(&files, sockets[0].inode), Some(SocketOwner { pid: 31, name: "memcached".to_owned() }));
    assert_eq!(holds(&files, 32, sockets[1].inode), Some(true));
    assert_eq!((holds(&files, 32, sockets[0].inode), holds(&files, 99, 1)), (Some(false), None));
    assert_eq!(program_of(&files, 32), None);
    std::os::unix::fs::symlink("/usr/bin/cattlegrid (deleted)", dir.path().join("proc/32/exe")).unwrap();
    assert_eq!(program_of(&files, 32).as_deref(), Some("cattlegrid"));
    assert_eq!(command_line(&files, 32), Some((vec!["-m".to_owned(), "100".to_owned()], None)));
    assert_eq!(command_line(&files, 33), None);
}
