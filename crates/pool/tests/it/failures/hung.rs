//! Workers that hang: in a loop, stopped, ignoring signals or the cancellation of their jobs.

use std::sync::mpsc;

use cattlegrid_pool::{Call, Error, JobSpec, Launch, Pool};
use rustix::process::Signal;

use crate::common::*;

/// The job fails at its time, the worker is killed within the grace, the jobs behind it are done by another.
fn a_hung_worker_is_replaced(launch: Launch, how: &str) {
    let pool = quiet(launch).max(1).load(2).kill_grace(ms(300)).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    let start = now();
    // Long enough to begin it on any machine.
    let hung = pool.job(["hang", how]).timeout(ms(2_500)).call();
    let behind = pool.call(["pid"]);
    assert_eq!(hung.wait(), Err(Error::Timeout { started: true }));
    assert!(start.elapsed() >= ms(2_500));
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
    let pool = quiet(template()).max(1).idle(1).ping(ms(2_000)).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    kill(pid, Signal::STOP);
    eventually("it is replaced", || pool.workers().wait().first().is_some_and(|worker| worker.pid != pid));
    eventually("it is gone", || !is_alive(pid));
    pool.shutdown().wait();
}

/// A worker that was idle when it was stopped begins none of the jobs that it is given.
fn a_stopped_idle_worker_is_replaced(retire: bool) {
    let pool = quiet(template()).max(1).load(2).kill_grace(ms(300)).spawn().wait().unwrap();
    let worker = pool.workers().wait()[0];
    kill(worker.pid, Signal::STOP);
    let (sender, outcomes) = mpsc::channel();
    let job = |place| {
        let sender = sender.clone();
        JobSpec::new(["pid"], move |outcome| drop(sender.send((place, outcome))))
    };
    // If it is retired, that must be in this time.
    let late = job("late").timeout(ms(if retire { 3_000 } else { 200 }));
    // Together: both are at the worker before it is found.
    pool.submit_all(vec![late, job("behind")]);
    if retire {
        eventually("it has the jobs", || pool.stats().in_flight == 2);
        assert!(pool.retire(worker.number).wait());
    }
    let next = || outcomes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next(), ("late", Err(Error::Timeout { started: false })));
    let (place, behind) = next();
    assert_eq!(place, "behind");
    assert_ne!(number(&behind.unwrap()), worker.pid);
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

/// One job of many at an asynchronous worker ignores its cancellation: the others end, then the worker is
/// killed.
#[test]
fn a_deaf_job_costs_none_of_the_others_at_its_worker() {
    let errors = Errors::default();
    let builder = Pool::builder(python("tasks:work")).on_log(|_| {}).max(1).load(11).kill_grace(ms(2_500));
    let pool = errors.watch(builder).spawn().wait().unwrap();
    let worker = pool.workers().wait()[0];
    let deaf = pool.job(["deaf"]).timeout(ms(2_500)).call();
    // They end long after the deaf one's time and grace are up.
    let others: Vec<Call> =
        (0..10).map(|n| pool.call(["wait".to_owned(), "9000".into(), n.to_string()])).collect();
    assert_eq!(deaf.wait(), Err(Error::Timeout { started: true }));
    eventually("it gets no more jobs", || pool.stats().retiring == 1);
    let next = pool.call(["sleep", "next"]);
    for (n, call) in others.into_iter().enumerate() {
        assert_eq!(call.wait().unwrap().text(), n.to_string());
    }
    assert_eq!(next.wait().unwrap().text(), "next");
    assert!(!is_alive(worker.pid), "max is 1: the next worker had to wait for its end");
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
    // It must begin in this time.
    let blocking = pool.job(["block"]).timeout(ms(3_000)).call();
    assert!(matches!(blocking.wait(), Err(Error::Timeout { .. })));
    for call in others {
        assert!(matches!(call.wait(), Err(Error::WorkerLost { .. })));
    }
    assert_eq!(pool.call(["sleep", "next"]).wait().unwrap().text(), "next");
    pool.shutdown().wait();
}

/// The worker's reply to the job that was given up is unread, behind events that are not taken, while it is
/// in the next job.
#[test]
fn a_job_that_was_let_go_of_does_not_cost_the_next_one() {
    let pool = quiet(template())
        .max(1)
        .idle(1)
        .load(2)
        .event_stream(1)
        .kill_grace(ms(5_000))
        .spawn()
        .wait()
        .unwrap();
    let mut events = pool.take_events().unwrap();
    let given_up = pool.call(["event", "3", "x"]);
    let next = pool.call(["sleep", "4000", "next"]);
    eventually("the stream is full", || pool.stats().events == 1);
    drop(given_up);
    pause(ms(3_000));
    for n in 0..3 {
        assert_eq!(events.next().unwrap().parts.text(), n.to_string());
    }
    assert_eq!(next.wait().unwrap().text(), "next");
    assert_eq!((pool.stats().lost, pool.stats().redispatched), (0, 0));
    pool.shutdown().wait();
}
