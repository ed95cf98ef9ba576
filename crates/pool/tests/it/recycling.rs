//! Workers that are replaced: by jobs, age, memory or at their own wish.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;
use cattlegrid_pool::{Error, Launch, Pool};

/// A fresh process for each of many slow jobs: there are never more than `max`.
#[test]
fn max_bounds_the_processes_when_each_job_has_its_own() {
    let pool = quiet(template())
        .max(2)
        .load(1)
        .start(ms(0))
        .max_jobs(1)
        .max_jobs_jitter(0.0)
        .kill_grace(PATIENCE)
        .spawn()
        .wait()
        .unwrap();
    let template = children(std::process::id())
        .into_iter()
        .map(|(pid, _)| pid)
        .find(|pid| children(*pid).iter().any(|(child, _)| pool.workers().wait()[0].pid == *child))
        .unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..40 {
        let done = Arc::clone(&done);
        pool.submit(["sleep", "40", ""], move |outcome| {
            outcome.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    let mut most = 0;
    eventually("all jobs are done", || {
        most = most.max(children(template).iter().filter(|(_, state)| *state != 'Z').count());
        done.load(Ordering::SeqCst) == 40
    });
    assert!((1..=2).contains(&most), "{most} processes at once");
    assert_eq!(pool.stats().lost, 0);
    pool.shutdown().wait();
}

/// A worker that was told to leave and has no job is killed after `kill_grace`, and its place is free only
/// then.
#[test]
fn a_retired_worker_that_does_not_leave_is_killed() {
    const STAYS: &str = r#"trap '' TERM
        echo '{"ready":true}'
        while read -r line; do
            case $line in *'"job"'*) echo "{\"result\":\"$$\"}" ;; esac
        done
        while :; do sleep 1; done"#;
    let pool = quiet(Launch::json_lines("sh", ["-c", STAYS]))
        .max(1)
        .max_jobs(1)
        .max_jobs_jitter(0.0)
        .kill_grace(ms(300))
        .shutdown_grace(PATIENCE * 10)
        .spawn()
        .wait()
        .unwrap();
    let first = number(&pool.call(["x"]).wait().unwrap());
    let second = number(&pool.call(["x"]).wait().unwrap());
    assert_ne!(first, second);
    assert!(!is_alive(first), "the second had to wait for its place");
    eventually("the second is gone, too", || !is_alive(second));
    eventually("both are counted", || pool.stats().exited == 2);
    let stats = pool.stats();
    assert_eq!((stats.retired, stats.killed, stats.crashed), (2, 2, 0));
    pool.shutdown().wait();
}

/// Memory that a worker shares with its template is not its own: no worker is retired for it.
#[test]
fn memory_of_the_template_does_not_count() {
    let errors = Errors::default();
    let builder = Pool::builder(template().env("FIXTURE", "ballast")).on_log(|_| {}).max(2).idle(2);
    let pool = errors.watch(builder).max_rss(100 << 20).kill_grace(PATIENCE).spawn().wait().unwrap();
    pool.ready(2).wait().unwrap();
    let workers = pool.workers().wait();
    pool.call(["echo"]).wait().unwrap();
    eventually("both were measured", || pool.stats().rss_kib > 2 * 100 * 1024);
    // And once more.
    pause(ms(2_500));
    let same: Vec<u32> = pool.workers().wait().iter().map(|worker| worker.pid).collect();
    assert_eq!(same, workers.iter().map(|worker| worker.pid).collect::<Vec<_>>());
    assert_eq!((pool.stats().retired, errors.all()), (0, Vec::<String>::new()));
    // Its own memory counts.
    let pid = pool.call(["hoard", "200000000"]).wait().unwrap().text();
    eventually("it is replaced", || pool.stats().retired == 1 && !is_alive(pid.parse().unwrap()));
    assert_eq!((pool.stats().killed, pool.stats().crashed), (0, 0));
    pool.shutdown().wait();
}

/// Replacing a worker that is over the limit when it is fresh would never end.
#[test]
fn a_fresh_worker_over_max_rss_is_a_failed_start() {
    for launch in [template(), exec()] {
        let error = quiet(launch).init("own=200000000").max_rss(100 << 20).spawn().wait().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::StartFailed { .. }), "{text}");
        assert!(text.contains("before its first job, max_rss is 100 MiB"), "{text}");
    }
}

#[test]
fn retire_twice_is_one_retirement() {
    for launch in [template(), template().env("FIXTURE", "async")] {
        let pool = quiet(launch).max(1).kill_grace(PATIENCE).spawn().wait().unwrap();
        pool.call(["retire"]).wait().unwrap();
        eventually("it has left", || pool.stats().exited == 1);
        // Answered after the turn in which it was counted.
        pool.workers().wait();
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
