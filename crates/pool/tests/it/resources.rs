//! Rows of the failure table about processes and descriptors. They run alone in their process, since they
//! change its limits or count its descriptors.

use std::fs::File;

use crate::common::*;
use cattlegrid_pool::{Error, Pool};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

/// One test, in order, because limits and counts are those of the whole process.
#[test]
fn shortages_and_leaks() {
    emfile_in_the_parent_is_waited_out();
    emfile_of_an_exec_is_waited_out();
    a_guardian_that_cannot_be_started_is_reported();
    emfile_of_a_new_template_is_waited_out();
    emfile_in_the_template_is_waited_out();
    eagain_of_fork_is_waited_out();
    enomem_of_fork_is_waited_out();
    ten_thousand_workers_leave_nothing_behind();
}

/// The soft limit of descriptors is set to the number that is open, and then raised again.
fn emfile_in_the_parent_is_waited_out() {
    let errors = Errors::default();
    let builder = Pool::builder(template()).on_log(|_| {}).max(3).load(1).start(ms(10));
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let before = getrlimit(Resource::Nofile);
    // Numbers up to the limit are taken, so that not one is free.
    let top = cattlegrid_worker::sys::open_fds().unwrap().into_iter().max().unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(u64::from(top.unsigned_abs()) + 1), ..before })
        .unwrap();
    let mut fill = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        fill.push(file);
    }
    let slow: Vec<_> = (0..6).map(|_| pool.call(["sleep", "50", "slow"])).collect();
    eventually("it is reported", || errors.count("no resources") >= 2);
    // The pool serves with what it has.
    for call in slow {
        assert_eq!(call.wait().unwrap().text(), "slow");
    }
    assert_eq!(pool.stats().workers, 1);
    drop(fill);
    setrlimit(Resource::Nofile, before).unwrap();
    pool.resize(3, 3);
    pool.ready(3).wait().unwrap();
    assert_eq!((pool.stats().lost, pool.stats().start_failures), (0, 0));
    pool.shutdown().wait();
}

/// For any number of free descriptors: the parent runs short, or the child before its exec.
fn emfile_of_an_exec_is_waited_out() {
    for free in 0..16 {
        let errors = Errors::default();
        let builder = Pool::builder(exec()).on_log(|_| {}).max(3).load(1).start(ms(10));
        let pool = errors.watch(builder).spawn().wait().unwrap();
        let before = getrlimit(Resource::Nofile);
        let top = cattlegrid_worker::sys::open_fds().unwrap().into_iter().max().unwrap();
        let limit = u64::from(top.unsigned_abs()) + 1 + free;
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..before }).unwrap();
        let mut fill = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            fill.push(file);
        }
        fill.truncate(fill.len() - free as usize);
        let slow: Vec<_> = (0..6).map(|_| pool.call(["sleep", "50", "slow"])).collect();
        for call in slow {
            assert_eq!(call.wait().unwrap().text(), "slow");
        }
        assert!(free > 4 || errors.count("no resources") > 0, "{free} free: {:?}", errors.all());
        drop(fill);
        setrlimit(Resource::Nofile, before).unwrap();
        pool.resize(3, 3);
        pool.ready(3).wait().unwrap();
        let stats = pool.stats();
        assert_eq!((stats.lost, stats.start_failures), (0, 0), "{free} free: {:?}", errors.all());
        pool.shutdown().wait();
    }
}

/// Takes all free descriptors except `free`; gives them back when it is dropped.
struct Shortage {
    before: Rlimit,
    fill: Vec<File>,
}

impl Shortage {
    fn new(free: usize) -> Self {
        let before = getrlimit(Resource::Nofile);
        let top = cattlegrid_worker::sys::open_fds().unwrap().into_iter().max().unwrap();
        let limit = u64::from(top.unsigned_abs()) + 1 + free as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..before }).unwrap();
        let mut fill = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            fill.push(file);
        }
        fill.truncate(fill.len() - free);
        Self { before, fill }
    }
}

impl Drop for Shortage {
    fn drop(&mut self) {
        self.fill.clear();
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

/// With few descriptors a worker can be started and its guardian cannot; with more, or a worker later, there
/// is one.
fn a_guardian_that_cannot_be_started_is_reported() {
    let has_guardian = || {
        let is_shell =
            |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"/bin/sh\0");
        children(std::process::id()).into_iter().any(|(pid, state)| state != 'Z' && is_shell(pid))
    };
    let mut without = 0;
    for free in 0..24 {
        let errors = Errors::default();
        let builder = Pool::builder(exec()).on_log(|_| {}).max(2).load(1).start(ms(10)).probe(false);
        let pool = errors.watch(builder).spawn().wait().unwrap();
        let shortage = Shortage::new(free);
        let first = pool.call(["pid"]);
        eventually("it is tried", || pool.stats().completed == 1 || pool.stats().resource_failures > 0);
        if pool.stats().completed == 1 {
            let told = errors.count("no guardian") == 1;
            assert_eq!(told, !has_guardian(), "{free} free: {:?}", errors.all());
            assert!(!told || errors.count("no descriptors left in this process") == 1, "{:?}", errors.all());
            without += usize::from(told);
        }
        drop(shortage);
        first.wait().unwrap();
        pool.resize(2, 2);
        pool.ready(2).wait().unwrap();
        assert!(has_guardian(), "{free} free: {:?}", errors.all());
        assert!(errors.count("no guardian") <= 1, "{free} free: {:?}", errors.all());
        pool.shutdown().wait();
        assert!(!has_guardian());
    }
    assert!(without > 0);
}

/// A template that dies while there are no descriptors is not a failure of the program.
fn emfile_of_a_new_template_is_waited_out() {
    let errors = Errors::default();
    let builder = Pool::builder(template()).on_log(|_| {}).max(1).probe(false);
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let template = children(std::process::id())[0].0;
    let shortage = Shortage::new(0);
    kill(template, Signal::KILL);
    // The descriptors that the old one has freed are not enough for a new one.
    eventually("it is tried again", || errors.count("no descriptors left in this process") >= 4);
    let waiting = pool.call(["echo", "at last"]);
    assert!(pool.stats().resource_failures >= 4, "{:?}", errors.all());
    drop(shortage);
    assert_eq!(waiting.wait().unwrap().text(), "at last");
    assert_eq!((errors.count("start failed"), errors.count("failed starts in a row")), (0, 0));
    assert_eq!((pool.stats().start_failures, pool.stats().templates_lost), (0, 1));
    pool.shutdown().wait();
}

/// A template that has no free number cannot take the descriptors of a FORK.
fn emfile_in_the_template_is_waited_out() {
    let errors = Errors::default();
    let builder = Pool::builder(python("starved")).on_log(|_| {}).max(1).load(1).start(ms(10)).probe(false);
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let error = pool.job(["echo"]).timeout(ms(2_000)).call().wait().unwrap_err();
    assert_eq!(error, Error::Timeout { started: false });
    // On a loaded machine the template may not have answered twice by then.
    let _waiting = pool.call(["echo"]);
    eventually("it is tried again", || errors.count("no resources") >= 2);
    let stats = pool.stats();
    assert!(
        stats.resource_failures >= 2 && stats.resource_failures <= 8,
        "in 2 s, after 100 ms and twice the delay each time: {}",
        stats.resource_failures
    );
    pool.shutdown_now().wait();
}

/// The template gives itself `RLIMIT_NPROC` for one child: the second fork fails with EAGAIN.
fn eagain_of_fork_is_waited_out() {
    let errors = Errors::default();
    let builder =
        Pool::builder(python("app").env("APP", "few-processes")).on_log(|_| {}).max(3).load(1).start(ms(10));
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let slow: Vec<_> = (0..8).map(|_| pool.call(["sleep", "50", "slow"])).collect();
    for call in slow {
        assert_eq!(call.wait().unwrap().text(), "slow");
    }
    eventually("it is reported", || errors.count("no resources") >= 1);
    let stats = pool.stats();
    assert_eq!((stats.workers, stats.lost, stats.start_failures), (1, 0, 0));
    // When the one worker has left, there is room for another.
    let worker = pool.workers().wait()[0].number;
    assert!(pool.retire(worker).wait());
    assert_eq!(pool.call(["sleep", "1", "next"]).wait().unwrap().text(), "next");
    pool.shutdown().wait();
}

/// The template has mapped more memory than the system has, so the kernel refuses to fork it; then it unmaps
/// it.
fn enomem_of_fork_is_waited_out() {
    let overcommit = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    if overcommit.trim() != "0" {
        eprintln!("vm.overcommit_memory is {}: fork does not fail with ENOMEM", overcommit.trim());
        return;
    }
    let errors = Errors::default();
    let launch = python("app").env("APP", "huge-memory");
    let builder = Pool::builder(launch).on_log(|_| {}).max(1).load(1).start(ms(10)).probe(false);
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let waiting = pool.call(["echo", "at last"]);
    eventually("it is reported twice", || errors.count("Cannot allocate memory") >= 2);
    let template = children(std::process::id())[0].0;
    kill(template, Signal::USR1);
    assert_eq!(waiting.wait().unwrap().text(), "at last");
    let stats = pool.stats();
    assert_eq!((stats.workers, stats.lost, stats.start_failures), (1, 0, 0));
    assert!(stats.resource_failures >= 2 && stats.exited == stats.spawned - 1, "{stats:?}");
    pool.shutdown().wait();
}

/// Each job retires its worker, so each job is a fork, a retirement and a reaping.
fn ten_thousand_workers_leave_nothing_behind() {
    let pool = quiet(template())
        .max(4)
        .load(1)
        .start(ms(0))
        .max_jobs(1)
        .max_jobs_jitter(0.0)
        .kill_grace(PATIENCE)
        .spawn()
        .wait()
        .unwrap();
    let cycle = |count: usize| {
        let mut calls = std::collections::VecDeque::new();
        for _ in 0..count {
            calls.push_back(pool.call(["echo", "x"]));
            if calls.len() > 16 {
                calls.pop_front().unwrap().wait().unwrap();
            }
        }
        calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
        eventually("all have left", || pool.stats().exited == pool.stats().spawned);
        // Answered when what the last one had is closed.
        pool.workers().wait();
    };
    cycle(500);
    let (fds, rss) = (cattlegrid_worker::sys::open_fds().unwrap().len(), rss_kib());
    cycle(9_500);
    assert_eq!(pool.stats().spawned, 10_000);
    assert_eq!(cattlegrid_worker::sys::open_fds().unwrap().len(), fds);
    let all = children(std::process::id());
    assert!(all.iter().all(|(_, state)| *state != 'Z'), "{all:?}");
    let template = all[0].0;
    assert!(children(template).is_empty(), "{:?}", children(template));
    assert!(rss_kib() < rss + 4096, "{rss} KiB before, {} after", rss_kib());
    assert_eq!((pool.stats().crashed, pool.stats().killed, pool.stats().lost), (0, 0, 0));
    pool.shutdown().wait();
    assert!(children(std::process::id()).is_empty());
}

fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}
