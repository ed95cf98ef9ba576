//! Workers that are replaced: by jobs, age, memory or at their own wish.
#![allow(
    clippy::needless_for_each,
    clippy::unwrap_used,
    clippy::similar_names,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    reason = "tests read better so"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cattlegrid_pool::Launch;
use common::*;

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

/// A worker that was told to leave and has no job is killed after `kill_grace`, and its place is free only then.
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
