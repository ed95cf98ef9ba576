//! Workers, templates and parents that end in the middle of jobs: each job has one outcome, and no process is
//! left.

use std::process::Command;
use std::sync::{Arc, Mutex};

use cattlegrid_pool::{Call, Error, Limits, Pool};
use rustix::process::Signal;

use crate::common::*;

/// One worker is killed in a job; the jobs behind it in the same worker, and those at the other worker, are
/// answered.
fn only_the_started_job_is_lost(how: &str, signal: Option<i32>, status: Option<i32>) {
    let pool = quiet(template()).max(2).idle(2).load(4).spawn().wait().unwrap();
    pool.ready(2).wait().unwrap();
    // Both workers are held in their first job, so that what comes next queues behind it in the worker; the
    // other one is held until the killer is dead, so that the jobs behind the killer are not taken back.
    let [first, other] = ["first", "other"].map(|name| Gate::new(&format!("{name}-{how}")));
    let held = [pool.call(["gate", first.path()]), pool.call(["gate", first.path()])];
    let last = pool.call(["gate", other.path()]);
    let killer = pool.call(["die", how]);
    let innocent: Vec<Call> = (0..4).map(|n| pool.call(["echo".to_owned(), n.to_string()])).collect();
    eventually("all lie at the workers", || pool.stats().in_flight == 8);
    first.open();
    for call in held {
        assert_eq!(call.wait().unwrap().text(), "open");
    }
    match killer.wait() {
        Err(Error::WorkerLost { signal: by, status: with, stderr_tail, .. }) => {
            assert_eq!((by, with), (signal, status));
            if how == "kill" {
                assert!(stderr_tail.contains("last words"), "{stderr_tail:?}");
            }
        }
        other => panic!("{other:?}"),
    }
    other.open();
    assert_eq!(last.wait().unwrap().text(), "open");
    for (n, call) in innocent.into_iter().enumerate() {
        assert_eq!(call.wait().unwrap().text(), n.to_string());
    }
    let stats = pool.stats();
    assert_eq!((stats.lost, stats.crashed, stats.redispatched), (1, 1, 2));
    pool.ready(2).wait().unwrap();
    pool.shutdown().wait();
}

#[test]
fn worker_killed_by_sigkill_mid_job() {
    only_the_started_job_is_lost("kill", Some(9), None);
}

#[test]
fn worker_killed_by_segv_mid_job() {
    only_the_started_job_is_lost("segv", Some(11), None);
}

#[test]
fn worker_aborts_mid_job() {
    only_the_started_job_is_lost("abort", Some(6), None);
}

#[test]
fn worker_exits_0_mid_job() {
    only_the_started_job_is_lost("exit", None, Some(0));
}

/// The pool hears of the worker's end before it has read the worker's last replies.
#[test]
fn replies_that_a_dead_worker_had_sent_are_read() {
    let pool = quiet(template()).max(1).load(1_000).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    let gate = scratch("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    pool.submit(["read", gate.to_str().unwrap()], move |_| {
        // On the pool's thread: it reads nothing more until the worker is reaped.
        eventually("the worker is gone", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    });
    // Each reply is a frame of 1 KiB, so that reads end where frames end.
    let calls: Vec<Call> = (0..700).map(|_| pool.call(["big", "1005"])).collect();
    // Long enough for replies to leave the worker.
    let pause = pool.call(["sleep", "100", ""]);
    let killer = pool.call(["die", "kill"]);
    eventually("the worker has them all", || pool.stats().in_flight == 703);
    std::fs::write(&gate, "go").unwrap();
    for call in calls {
        assert_eq!(call.wait().map(|reply| reply.into_bytes().len()), Ok(1005));
    }
    assert!(pause.wait().is_ok());
    assert!(matches!(killer.wait(), Err(Error::WorkerLost { signal: Some(9), .. })));
    std::fs::remove_file(&gate).unwrap();
    pool.shutdown().wait();
}

#[test]
fn worker_exception_goes_to_the_caller_and_the_worker_stays() {
    let pool = quiet(template()).max(1).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    let error = pool.call(["error"]).wait().unwrap_err();
    let expected = Error::Worker {
        code: "code".into(),
        message: "message".into(),
        detail: "detail".into(),
        retryable: true,
    };
    assert_eq!(error, expected);
    assert!(matches!(pool.call(["panic"]).wait(), Err(Error::Worker { code, .. }) if code == "panic"));
    assert_eq!(number(&pool.call(["pid"]).wait().unwrap()), pid);
    pool.shutdown().wait();
}

/// A limit on its address space makes an allocation fail: Rust aborts, Python raises `MemoryError`.
#[test]
fn worker_out_of_memory() {
    let limits = || Limits { address_space: Some(512 << 20), ..Limits::default() };
    let pool = quiet(template()).max(1).limits(limits()).spawn().wait().unwrap();
    match pool.call(["big", "2000000000"]).wait() {
        Err(Error::WorkerLost { signal: Some(6), oom: false, stderr_tail, .. }) => {
            assert!(stderr_tail.contains("memory allocation of 2000000000 bytes failed"), "{stderr_tail}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(pool.call(["echo", "next"]).wait().unwrap().text(), "next");
    pool.shutdown().wait();
    let pool = quiet(python("app")).max(1).limits(limits()).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    match pool.call(["big", "2000000000"]).wait() {
        Err(Error::Worker { message, .. }) => assert!(message.starts_with("MemoryError"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(number(&pool.call(["pid"]).wait().unwrap()), pid);
    pool.shutdown().wait();
}

#[test]
fn template_killed_in_flight_jobs_fail_and_the_queue_is_kept() {
    let errors = Errors::default();
    let builder = Pool::builder(template()).on_log(|_| {}).max(2).idle(2).load(1);
    let pool = errors.watch(builder).spawn().wait().unwrap();
    pool.ready(2).wait().unwrap();
    let template = parent_of(pool.workers().wait()[0].pid);
    let files = [scratch("first"), scratch("second")];
    let in_flight = files.each_ref().map(|file| pool.call(["until-cancelled", file.to_str().unwrap()]));
    let queued: Vec<Call> = (0..5).map(|n| pool.call(["echo".to_owned(), n.to_string()])).collect();
    eventually("both have begun", || files.iter().all(|file| file.exists()));
    kill(template, Signal::KILL);
    for call in in_flight {
        let outcome = call.wait();
        assert!(matches!(outcome, Err(Error::WorkerLost { .. })), "{outcome:?}");
    }
    for (n, call) in queued.into_iter().enumerate() {
        assert_eq!(call.wait().unwrap().text(), n.to_string());
    }
    pool.ready(2).wait().unwrap();
    assert_eq!(errors.all().len(), 1, "{:?}", errors.all());
    assert_eq!(errors.count("template process was lost"), 1);
    pool.shutdown().wait();
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
}

/// A stopped template is found when it does not fork. Jobs that no worker could take until then are kept.
#[test]
fn template_stopped_is_replaced() {
    let errors = Errors::default();
    let builder = Pool::builder(template()).on_log(|_| {}).max(1).start_timeout(ms(3_000));
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let worker = pool.workers().wait()[0];
    let template = parent_of(worker.pid);
    assert!(pool.retire(worker.number).wait());
    eventually("the worker has left", || pool.stats().exited == 1);
    kill(template, Signal::STOP);
    let waiting: Vec<_> = (0..5).map(|_| pool.call(["echo", "kept"])).collect();
    for call in waiting {
        assert_eq!(call.wait().unwrap().text(), "kept");
    }
    eventually("it is killed", || !is_alive(template));
    assert_eq!(errors.count("template process was lost"), 1, "{:?}", errors.all());
    pool.shutdown().wait();
}

#[test]
fn parent_killed_leaves_no_process_even_if_busy() {
    let (mut parent, mut pids) = parent();
    // Two grandchildren, four workers; and the template and the guardian.
    pids.extend(children(parent.id()).iter().map(|(pid, _)| *pid));
    pids.sort_unstable();
    pids.dedup();
    assert!(pids.len() >= 8, "{pids:?}");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    // It takes milliseconds; on a loaded machine it may take much longer.
    eventually("all are gone", || !pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn orphaned_grandchild_does_not_hide_the_death_of_a_worker() {
    // The grandchild inherits stdout and stderr (the log pipe) and lives on in the worker's group.
    for launch in [template(), exec()] {
        let said = Arc::new(Mutex::new(String::new()));
        let pool = quiet(launch).max(1).load(2).spawn().wait().unwrap();
        let first = pool.call(["grandchild", ""]).wait().unwrap();
        let grandchild = number(&first);
        said.lock().unwrap().push_str(&first.text());
        assert!(is_alive(grandchild));
        let lost = pool.call(["die", "kill"]);
        let behind = pool.call(["echo", "behind"]);
        assert!(matches!(lost.wait(), Err(Error::WorkerLost { signal: Some(9), .. })));
        assert_eq!(behind.wait().unwrap().text(), "behind");
        eventually("the grandchild is gone", || !is_alive(grandchild));
        pool.shutdown().wait();
    }
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}
