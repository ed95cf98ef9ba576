//! Every row of the failure table, with real processes and real signals.
#![allow(
    clippy::needless_for_each,
    clippy::unwrap_used,
    clippy::similar_names,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    reason = "tests read better so"
)]

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cattlegrid_pool::{Call, Error, Launch, Limits, Pool};
use common::*;
use rustix::process::Signal;

/// One worker is killed in a job; the jobs behind it in the same worker, and those at the other worker, are
/// answered.
fn only_the_started_job_is_lost(how: &str, signal: Option<i32>, status: Option<i32>) {
    let pool = quiet(template()).max(2).idle(2).load(4).spawn().wait().unwrap();
    pool.ready(2).wait().unwrap();
    // Both workers are held in their first job, so that what comes next queues behind it in the worker; the
    // other one is held until the killer is dead, so that nobody takes back what is behind the killer.
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
fn replies_that_a_dead_worker_has_left_behind_are_read() {
    let pool = quiet(template()).max(1).load(1_000).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    let gate = scratch("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    pool.submit(["read", gate.to_str().unwrap()], move |_| {
        // On the pool's thread: it reads nothing more until the worker was reaped.
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
fn parent_killed_nobody_is_left_even_if_busy() {
    let (mut parent, mut pids) = parent();
    // Two grandchildren, four workers; and the template and the guardian.
    pids.extend(children(parent.id()).iter().map(|(pid, _)| *pid));
    pids.sort_unstable();
    pids.dedup();
    assert!(pids.len() >= 8, "{pids:?}");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    // It takes milliseconds, but how long on a loaded machine nobody knows.
    eventually("all are gone", || !pids.iter().any(|pid| is_alive(*pid)));
}

/// The job fails at its time, the worker is killed within the grace, the jobs behind it are done by another.
fn a_hung_worker_is_replaced(launch: Launch, how: &str) {
    let pool = quiet(launch).max(1).load(2).kill_grace(ms(300)).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    let start = now();
    let hung = pool.job(["hang", how]).timeout(ms(1_000)).call();
    let behind = pool.call(["pid"]);
    assert_eq!(hung.wait(), Err(Error::Timeout { started: true }));
    assert!(start.elapsed() >= ms(1_000));
    let other = number(&behind.wait().unwrap());
    assert_ne!(other, pid);
    eventually("it is gone", || !is_alive(pid));
    let stats = pool.stats();
    assert_eq!((stats.timeouts, stats.lost, stats.completed), (1, 0, 2));
    assert_eq!(stats.killed, 1, "by SIGTERM or by SIGKILL");
    pool.shutdown().wait();
}

#[test]
fn hung_worker_in_a_loop() {
    a_hung_worker_is_replaced(template(), "spin");
    a_hung_worker_is_replaced(exec(), "spin");
}

#[test]
fn hung_worker_that_ignores_sigterm() {
    a_hung_worker_is_replaced(python("app"), "deaf");
}

#[test]
fn hung_worker_that_is_stopped() {
    a_hung_worker_is_replaced(template(), "stopped");
    a_hung_worker_is_replaced(exec(), "stopped");
}

#[test]
fn stopped_idle_worker_is_found_by_a_ping() {
    let pool = quiet(template()).max(1).idle(1).ping(ms(100)).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    kill(pid, Signal::STOP);
    eventually("it is replaced", || pool.workers().wait().first().is_some_and(|worker| worker.pid != pid));
    eventually("it is gone", || !is_alive(pid));
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

/// It was idle when it was stopped, so it begins none of the jobs that it is given.
fn a_stopped_idle_worker_is_replaced(retire: bool) {
    let pool = quiet(template()).max(1).load(2).kill_grace(ms(300)).spawn().wait().unwrap();
    let worker = pool.workers().wait()[0];
    kill(worker.pid, Signal::STOP);
    let late = pool.job(["pid"]).timeout(ms(200)).call();
    let behind = pool.call(["pid"]);
    if retire {
        eventually("it has the jobs", || pool.stats().in_flight == 2);
        assert!(pool.retire(worker.number).wait());
    }
    assert_eq!(late.wait(), Err(Error::Timeout { started: false }));
    assert_ne!(number(&behind.wait().unwrap()), worker.pid);
    eventually("it is gone", || !is_alive(worker.pid));
    let stats = pool.stats();
    assert_eq!((stats.lost, stats.redispatched), (0, 1));
    pool.shutdown().wait();
}

#[test]
fn stopped_idle_worker_is_found_by_a_job_whose_time_is_up() {
    a_stopped_idle_worker_is_replaced(false);
}

#[test]
fn stopped_worker_that_retires_is_found_by_a_job_whose_time_is_up() {
    a_stopped_idle_worker_is_replaced(true);
}

#[test]
fn stopped_idle_worker_is_found_by_a_job_without_a_timeout() {
    let pool = quiet(template()).max(1).start_timeout(ms(3_000)).spawn().wait().unwrap();
    let pid = pool.workers().wait()[0].pid;
    kill(pid, Signal::STOP);
    assert_ne!(number(&pool.call(["pid"]).wait().unwrap()), pid);
    eventually("it is gone", || !is_alive(pid));
    assert_eq!(pool.stats().lost, 0);
    pool.shutdown().wait();
}

/// One job of many at an asynchronous worker does not let go: the others end, then the worker is killed.
#[test]
fn a_deaf_job_costs_none_of_the_others_at_its_worker() {
    let errors = Errors::default();
    let builder = Pool::builder(python("tasks:work")).on_log(|_| {}).max(1).load(11).kill_grace(ms(1_000));
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let worker = pool.workers().wait()[0];
    let deaf = pool.job(["deaf"]).timeout(ms(1_000)).call();
    // They end long after the deaf one's time and grace are up.
    let others: Vec<Call> =
        (0..10).map(|n| pool.call(["wait".to_owned(), "4000".into(), n.to_string()])).collect();
    assert_eq!(deaf.wait(), Err(Error::Timeout { started: true }));
    eventually("it gets no more jobs", || pool.stats().retiring == 1);
    let next = pool.call(["sleep", "next"]);
    for (n, call) in others.into_iter().enumerate() {
        assert_eq!(call.wait().unwrap().text(), n.to_string());
    }
    assert_eq!(next.wait().unwrap().text(), "next");
    assert!(!is_alive(worker.pid), "max is 1: the next one had to wait for its end");
    assert_eq!((pool.stats().lost, pool.stats().killed), (0, 1));
    assert_eq!(errors.count("stuck in a job"), 1, "{:?}", errors.all());
    pool.shutdown().wait();
}

/// One job blocks the loop of an asynchronous worker: none of the others can end, so they are not waited for.
#[test]
fn a_job_that_blocks_the_loop_is_found_although_others_have_begun() {
    let pool = quiet(python("tasks:work")).max(1).load(11).kill_grace(ms(300)).spawn().wait().unwrap();
    let others: Vec<Call> = (0..3).map(|_| pool.call(["wait", "1000000", ""])).collect();
    // Jobs begin in order: when this one has ended, they have begun.
    assert_eq!(pool.call(["wait", "0", "begun"]).wait().unwrap().text(), "begun");
    let blocking = pool.job(["block"]).timeout(ms(300)).call();
    assert!(matches!(blocking.wait(), Err(Error::Timeout { .. })));
    for call in others {
        assert!(matches!(call.wait(), Err(Error::WorkerLost { .. })));
    }
    assert_eq!(pool.call(["sleep", "next"]).wait().unwrap().text(), "next");
    pool.shutdown().wait();
}

/// Its reply to the job that was given up lies unread behind events that nobody takes, while it is in the next job.
#[test]
fn a_job_that_was_let_go_of_does_not_cost_the_next_one() {
    let pool = quiet(template())
        .max(1)
        .idle(1)
        .load(2)
        .event_stream(1)
        .kill_grace(ms(2_000))
        .spawn()
        .wait()
        .unwrap();
    let mut events = pool.take_events().unwrap();
    let given_up = pool.call(["event", "3", "x"]);
    let next = pool.call(["sleep", "2500", "next"]);
    eventually("the stream is full", || pool.stats().events == 1);
    drop(given_up);
    pause(ms(1_500));
    for n in 0..3 {
        assert_eq!(events.next_blocking().unwrap().parts.text(), n.to_string());
    }
    assert_eq!(next.wait().unwrap().text(), "next");
    assert_eq!((pool.stats().lost, pool.stats().redispatched), (0, 0));
    pool.shutdown().wait();
}

/// A worker that breaks the protocol in this way is killed and its job fails; the pool lives.
fn a_broken_worker_is_killed(how: &str, expected: &str) {
    let errors = Errors::default();
    let builder = Pool::builder(broken(how)).on_log(|_| {}).max(1).kill_grace(ms(200)).max_frame(1 << 20);
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let pid = pool.workers().wait()[0].pid;
    let job = pool.job(["echo", "x"]).timeout(ms(20_000));
    match job.call().wait() {
        Err(Error::WorkerLost { reason, status, signal, .. }) => {
            assert!(reason.contains(expected), "{how}: {reason}");
            assert_eq!((status, signal), (None, Some(9)), "{how}");
        }
        other => panic!("{how}: {other:?}"),
    }
    eventually("it is gone", || !is_alive(pid));
    eventually("it is reported", || errors.count(expected) == 1);
    pool.shutdown_now().wait();
}

#[test]
fn protocol_partial_frame_then_eof() {
    a_broken_worker_is_killed("partial-eof", "killed by signal 9");
}

#[test]
fn protocol_socket_closed_and_process_stays() {
    a_broken_worker_is_killed("closes", "killed by signal 9");
}

#[test]
fn protocol_partial_frame_then_silence() {
    let pool = quiet(broken("partial-silence")).max(1).kill_grace(ms(200)).spawn().wait().unwrap();
    let pid = pool.workers().wait()[0].pid;
    let outcome = pool.job(["echo"]).timeout(ms(300)).call().wait();
    assert_eq!(outcome, Err(Error::Timeout { started: true }));
    eventually("it is gone", || !is_alive(pid));
    pool.shutdown_now().wait();
}

#[test]
fn protocol_oversized_length_allocates_nothing() {
    let before = own_rss_kib();
    a_broken_worker_is_killed("oversized", "4294967295 bytes, the limit is 1048576");
    assert!(own_rss_kib() < before + 64 * 1024, "no 4 GiB were touched");
}

#[test]
fn protocol_garbage() {
    a_broken_worker_is_killed("garbage", "unknown frame kind 255");
}

#[test]
fn protocol_reply_to_unknown_id() {
    a_broken_worker_is_killed("unknown-id", "unknown job");
}

#[test]
fn protocol_reply_that_is_no_list() {
    a_broken_worker_is_killed("no-list", "no list");
}

#[test]
fn protocol_fields_that_a_kind_does_not_have() {
    a_broken_worker_is_killed("leave-body", "malformed body of Leave");
    a_broken_worker_is_killed("leave-id", "Leave with an id");
    a_broken_worker_is_killed("error-of-four", "malformed body of Error");
}

#[test]
fn start_with_two_hellos() {
    let error = quiet(broken("hello-twice")).spawn().wait().unwrap_err();
    assert!(error.to_string().contains("a second one"), "{error}");
}

#[test]
fn protocol_frame_of_the_wrong_side() {
    a_broken_worker_is_killed("parents-kind", "which only a parent sends");
}

#[test]
fn protocol_duplicate_reply_counts_once_and_kills() {
    let errors = Errors::default();
    let pool = errors.watch(Pool::builder(broken("duplicate")).on_log(|_| {}).max(1)).spawn().wait().unwrap();
    let pid = pool.workers().wait()[0].pid;
    assert!(pool.call(["echo"]).wait().is_ok());
    eventually("it is gone", || !is_alive(pid));
    eventually("it is reported", || errors.count("unknown job") == 1);
    assert_eq!(pool.stats().protocol_errors, 1);
    pool.shutdown_now().wait();
}

/// A worker in shell that says so when it cannot go on, and stays: `closes` or not, before it is ready or in its first job.
fn a_hopeless_worker_is_killed(in_a_job: bool, closes: bool) {
    let close = if closes { "exec 0<&- 1>&-" } else { ":" };
    let ready =
        r#"echo '{"ready":true}'; while read -r line; do case $line in *'"job"'*) break ;; esac; done"#;
    let script = format!(
        "trap '' TERM\n{}\necho '{{\"id\":\"0\",\"error\":\"broken in '$$'\"}}'\n{close}\nwhile :; do sleep 1; done",
        if in_a_job { ready } else { "" }
    );
    let errors = Errors::default();
    let builder = Pool::builder(Launch::json_lines("sh", ["-c", &script])).on_log(|_| {}).max(1);
    let builder = errors.watch(builder).kill_grace(ms(300)).start_timeout(PATIENCE * 10);
    let said = match builder.spawn().wait() {
        Err(error) => error.to_string(),
        Ok(pool) => {
            let lost = pool.call(["x"]).wait().unwrap_err();
            assert!(matches!(lost, Error::WorkerLost { signal: Some(9), .. }), "{lost:?}");
            assert_eq!((pool.stats().killed, pool.stats().lost), (1, 1));
            pool.shutdown_now().wait();
            lost.to_string()
        }
    };
    let (_, pid) = said.split_once("broken in ").expect("its own words");
    let pid = pid.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    eventually("it is gone", || !is_alive(pid));
}

#[test]
fn hopeless_worker_that_closes_its_socket() {
    a_hopeless_worker_is_killed(false, true);
    a_hopeless_worker_is_killed(true, true);
}

#[test]
fn hopeless_worker_that_keeps_its_socket() {
    a_hopeless_worker_is_killed(false, false);
    a_hopeless_worker_is_killed(true, false);
}

#[test]
fn start_wrong_version() {
    let error = quiet(broken("version")).spawn().wait().unwrap_err();
    assert!(error.to_string().contains("HELLO of version 2"), "{error}");
}

#[test]
fn start_program_missing() {
    for launch in [Launch::exec::<&str>("/no/such/file", []), Launch::template::<&str>("/no/such/file", [])] {
        match quiet(launch).spawn().wait() {
            Err(Error::StartFailed { errno, reason, .. }) => {
                assert_eq!(errno, Some(2));
                assert!(reason.contains("/no/such/file"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn start_program_that_is_not_in_path() {
    for launch in
        [Launch::exec::<&str>("no-such-program", []), Launch::template::<&str>("no-such-program", [])]
    {
        match quiet(launch).spawn().wait() {
            Err(Error::StartFailed { errno: Some(2), reason, .. }) => {
                let expected = "no-such-program (no such program in PATH): No such file or directory";
                assert!(reason.contains(expected), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn start_program_not_executable() {
    for launch in [Launch::exec::<&str>("/etc/passwd", []), Launch::template::<&str>("/etc/passwd", [])] {
        let error = quiet(launch).spawn().wait().unwrap_err();
        assert!(matches!(error, Error::StartFailed { errno: Some(13), .. }), "{error}");
    }
}

#[test]
fn start_dies_before_ready() {
    for launch in [template(), exec()] {
        let error = quiet(launch.env("FIXTURE", "dies")).spawn().wait().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no luck today") && text.contains("status 3"), "{text}");
    }
}

#[test]
fn start_init_error() {
    for launch in [template(), exec()] {
        let error = quiet(launch).init("say=preparing fail=out-of-cheese").spawn().wait().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("out-of-cheese") && text.contains("preparing"), "{text}");
    }
}

#[test]
fn start_timeout() {
    for (launch, config) in
        [(template().env("FIXTURE", "sleeps"), ""), (template(), "sleep=3600000"), (exec(), "sleep=3600000")]
    {
        let error = quiet(launch).init(config).start_timeout(ms(300)).spawn().wait().unwrap_err();
        assert!(error.to_string().contains("not ready in time"), "{error}");
    }
    assert_eq!(children(std::process::id()).iter().filter(|(pid, _)| runs_fixture_sleeping(*pid)).count(), 0);
}

#[test]
fn start_template_with_threads_is_refused_unless_allowed() {
    let error = quiet(template().env("FIXTURE", "threads")).spawn().wait().unwrap_err();
    assert!(error.to_string().contains("2 threads"), "{error}");
    let pool = quiet(template().env("FIXTURE", "threads").allow_threads()).spawn().wait().unwrap();
    assert_eq!(pool.call(["echo", "a"]).wait().unwrap().text(), "a");
    pool.shutdown().wait();
}

#[test]
fn later_start_failures_end_queued_jobs_after_start_timeout() {
    let flag = scratch("late");
    let config = format!("exit-if={}", flag.display());
    let pool = quiet(template())
        .init(config)
        .max(1)
        .stop(ms(1))
        .crash_loop(1_000_000, ms(1000))
        .start_timeout(ms(2_000))
        .spawn()
        .wait()
        .unwrap();
    eventually("the first worker has idled out", || pool.stats().exited >= 1 && pool.stats().workers == 0);
    std::fs::write(&flag, "").unwrap();
    let start = now();
    let error = pool.call(["echo"]).wait().unwrap_err();
    assert!(matches!(error, Error::StartFailed { .. }), "{error}");
    assert!(start.elapsed() >= ms(2_000));
    std::fs::remove_file(&flag).unwrap();
    eventually("a start succeeds", || pool.call(["echo", "b"]).wait().is_ok());
    pool.shutdown().wait();
}

#[test]
fn stdio_flood_is_drained_and_never_blocks_the_worker() {
    let passed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&passed);
    let pool = Pool::builder(template())
        .on_error(|_| {})
        .on_log(move |chunk| {
            count.fetch_add(chunk.bytes.len(), Ordering::SeqCst);
        })
        .log_rate(10_000)
        .max(2)
        .idle(2)
        .load(1)
        .spawn()
        .wait()
        .unwrap();
    pool.ready(2).wait().unwrap();
    let start = now();
    // Two times 32 MiB, far more than a pipe holds.
    let flood = pool.call(["flood", "33554432"]);
    let meanwhile = pool.call(["echo", "b"]).wait().unwrap();
    assert_eq!(meanwhile.text(), "b");
    assert_eq!(flood.wait().unwrap().text(), "flooded");
    let seconds = start.elapsed().as_secs() as usize + 2;
    eventually("all is counted", || pool.stats().log_bytes >= 2 * 33_554_432);
    let passed = || passed.load(Ordering::SeqCst);
    // A line end for each piece that was cut.
    assert!(passed() <= 10_100 * (seconds + 1), "{}", passed());
    eventually("each byte is passed on or dropped", || {
        let stats = pool.stats();
        passed() as u64 >= stats.log_bytes - stats.log_dropped
    });
    pool.shutdown().wait();
}

/// What is over the rate is dropped line by line: no piece of one is passed on, and each byte counts once.
#[test]
fn lines_over_the_rate_are_dropped_whole() {
    let script = r#"i=0
        while [ $i -lt 20000 ]; do echo "line $i of a flood"; i=$((i + 1)); done >&2
        echo '{"ready":true}'
        exec cat >&2"#;
    let passed = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&passed);
    let pool = Pool::builder(Launch::json_lines("sh", ["-c", script]))
        .on_error(|_| {})
        .on_log(move |chunk| said.lock().unwrap().extend_from_slice(chunk.bytes))
        .log_rate(5_000)
        .max(1)
        .spawn()
        .wait()
        .unwrap();
    pool.shutdown_now().wait();
    let text = String::from_utf8(passed.lock().unwrap().clone()).unwrap();
    for line in text.lines().filter(|line| !line.starts_with('{')) {
        let number = line.strip_prefix("line ").and_then(|line| line.strip_suffix(" of a flood"));
        assert!(number.is_some_and(|number| number.parse::<u32>().is_ok()), "{line:?}");
    }
    assert!(text.starts_with("line 0 of a flood\nline 1 of a flood\n"));
    let stats = pool.stats();
    assert!(stats.log_dropped > 0);
    assert_eq!(text.len() as u64, stats.log_bytes - stats.log_dropped);
}

#[test]
fn retire_twice_is_one_retirement() {
    for launch in [template(), template().env("FIXTURE", "async")] {
        let pool = quiet(launch).max(1).spawn().wait().unwrap();
        pool.call(["retire"]).wait().unwrap();
        eventually("it has left", || pool.stats().exited == 1);
        let stats = pool.stats();
        assert_eq!((stats.retired, stats.crashed, stats.killed), (1, 0, 0));
        assert_eq!((stats.workers, stats.starting, stats.idle, stats.busy), (0, 0, 0, 0));
        assert_eq!(pool.call(["echo", "again"]).wait().unwrap().text(), "again");
        assert_eq!(pool.stats().spawned, 2);
        pool.shutdown().wait();
    }
}

#[test]
fn retire_while_idle() {
    let pool = quiet(template()).max(1).spawn().wait().unwrap();
    let worker = pool.workers().wait()[0].number;
    assert!(pool.retire(worker).wait());
    assert!(!pool.retire(worker).wait());
    assert!(!pool.retire(99).wait());
    eventually("it has left", || pool.stats().exited == 1);
    assert_eq!((pool.stats().retired, pool.stats().crashed), (1, 0));
    pool.shutdown().wait();
}

/// Its program would be started for ever, and no job would be done.
#[test]
fn retire_before_the_first_job_is_a_failed_start() {
    for launch in [template(), exec(), python("app"), python_exec("app")] {
        match quiet(launch).init("retire").max(1).spawn().wait() {
            Err(Error::StartFailed { reason, .. }) => {
                assert!(reason.contains("asked to be retired"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
    }
    // Later, when the program is known to be good, as soon as it is ready.
    let flag = scratch("leaves");
    let errors = Errors::default();
    let builder =
        quiet(template()).init(format!("retire-if={}", flag.display())).max(1).crash_loop(3, PATIENCE);
    let pool = errors.watch(builder).spawn().wait().unwrap();
    pool.call(["retire"]).wait().unwrap();
    std::fs::write(&flag, "").unwrap();
    let outcome = pool.job(["echo"]).timeout(PATIENCE).call().wait();
    assert!(matches!(outcome, Err(Error::StartFailed { .. })), "{outcome:?}");
    assert!(errors.count("asked to be retired before its first job") >= 3);
    assert!(pool.stats().spawned <= 10, "{} starts", pool.stats().spawned);
    std::fs::remove_file(&flag).unwrap();
    assert!(eventually_echoes(&pool));
    pool.shutdown().wait();
}

fn eventually_echoes(pool: &Pool) -> bool {
    eventually("the breaker is closed", || pool.call(["echo", "x"]).wait().is_ok());
    true
}

#[test]
fn fds_of_a_child_are_the_streams_and_the_job_socket() {
    for launch in [template(), template().env("FIXTURE", "holds"), exec()] {
        let pool = quiet(launch.clone()).max(1).spawn().wait().unwrap();
        let text = pool.call(["fds"]).wait().unwrap().text();
        let fds: Vec<&str> = text.split(' ').collect();
        assert!(
            fds[0] == "0=/dev/null" && fds[1].starts_with("1=pipe:") && fds[2].starts_with("2=pipe:"),
            "{text}"
        );
        // The SDK has its job socket twice, for reading and for writing. Nothing else, but for what the
        // template chose to keep (`keep_fd`): not what it merely had open.
        let rest: Vec<&&str> = fds[3..].iter().filter(|fd| !fd.contains("=socket:")).collect();
        let kept = rest.iter().filter(|fd| fd.ends_with("=/dev/full")).count();
        let held = format!("{launch:?}").contains("holds");
        assert_eq!((rest.len(), kept), (usize::from(held), usize::from(held)), "{text}");
        pool.shutdown().wait();
    }
}

#[test]
fn fds_passed_by_name_arrive() {
    for launch in [template(), exec()] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let pool = quiet(launch).pass_fd("out", writer).spawn().wait().unwrap();
        pool.call(["write-passed", "out"]).wait().unwrap();
        let mut bytes = [0; 32];
        let count = rustix::io::read(&reader, &mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"from the worker");
        pool.shutdown().wait();
    }
}

#[test]
fn crash_loop_opens_the_breaker_and_closes_by_itself() {
    let flag = scratch("crash-loop");
    let errors = Errors::default();
    let builder = Pool::builder(template())
        .on_log(|_| {})
        .init(format!("exit-if={}", flag.display()))
        .max(2)
        .start(ms(0))
        .stop(ms(1))
        .crash_loop(5, ms(10_000));
    let pool = errors.watch(builder).spawn().wait().unwrap();
    eventually("the first worker has idled out", || pool.stats().exited >= 1 && pool.stats().workers == 0);
    std::fs::write(&flag, "").unwrap();
    let error = pool.call(["echo"]).wait().unwrap_err();
    assert!(matches!(error, Error::StartFailed { .. }), "{error}");
    assert_eq!(pool.stats().breaker_open, 1);
    assert_eq!(errors.count("in a row"), 1);
    // Callers fail at once, and hardly anything is started for them.
    let (before, start) = (pool.stats().start_failures, now());
    for _ in 0..1000 {
        assert!(pool.call(["echo"]).wait().is_err());
    }
    let seconds = start.elapsed().as_secs() + 1;
    let tried = pool.stats().start_failures - before;
    assert!(tried <= 2 * seconds + 2, "{tried} starts in {seconds} s");
    std::fs::remove_file(&flag).unwrap();
    eventually("it closes", || pool.call(["echo", "c"]).wait().is_ok());
    assert_eq!(pool.stats().breaker_open, 0);
    pool.shutdown().wait();
}

/// READY, and then nothing that can be understood: no job is ever sent, so no job would ever end.
#[test]
fn crash_loop_of_workers_that_break_the_protocol_before_their_first_job() {
    let errors = Errors::default();
    let builder = Pool::builder(broken("garbage-at-once")).on_log(|_| {}).max(1).probe(false);
    let pool = errors.watch(builder.crash_loop(3, PATIENCE)).spawn().wait().unwrap();
    let outcome = pool.job(["echo"]).timeout(PATIENCE).call().wait();
    assert!(
        matches!(&outcome, Err(Error::StartFailed { reason, .. }) if reason.contains("protocol")),
        "{outcome:?}"
    );
    assert_eq!(errors.count("failed starts in a row"), 1, "{:?}", errors.all());
    let stats = pool.stats();
    assert!(stats.start_failures >= 3 && stats.protocol_errors >= 3 && stats.lost == 0, "{stats:?}");
    pool.shutdown_now().wait();
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

fn own_rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

fn runs_fixture_sleeping(pid: u32) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.windows(14).any(|window| window == b"FIXTURE=sleeps")
}
