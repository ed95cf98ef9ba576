//! When the queue is full: it counts the jobs that no worker has taken, less those that workers can take at
//! once.

use crate::common::*;
use cattlegrid_pool::{Call, Error};

/// A job at a worker does not count, and a worker that was not started yet takes none. So four open jobs are
/// too many for `max` 2 and a queue of two while only one worker runs.
#[test]
fn a_worker_holds_jobs_from_when_it_is_ready() {
    let pool = quiet(template()).max(2).load(1).queue_limit(2).start(PATIENCE * 10).spawn().wait().unwrap();
    let gate = Gate::new("queue-ready");
    let job = || pool.call(["gate", gate.path()]);
    let first = job();
    eventually("it has its worker", || pool.stats().in_flight == 1);
    let mut calls = vec![first, job(), job()];
    eventually("two wait", || pool.stats().queued_normal == 2);
    assert_eq!(job().wait().unwrap_err(), Error::Rejected);
    pool.ready(2).wait().unwrap();
    eventually("one of them has the second worker", || pool.stats().in_flight == 2);
    calls.push(job());
    eventually("two wait again", || pool.stats().queued_normal == 2);
    assert_eq!(job().wait().unwrap_err(), Error::Rejected);
    gate.open();
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().text(), "open"));
    pool.shutdown().wait();
}

/// A worker that has room for more jobs but not for their arguments has no room.
#[test]
fn the_queue_is_bounded_when_workers_have_no_room_for_bytes() {
    let pool =
        quiet(template()).max(1).load(100).inflight_bytes(1_000).queue_limit(2).spawn().wait().unwrap();
    let gate = Gate::new("queue-bytes");
    let job = || pool.call([&b"gate"[..], gate.path().as_bytes(), &[7; 800]]);
    let mut calls: Vec<Call> = (0..6).map(|_| job()).collect();
    let refused = calls.split_off(3);
    eventually("one is there, two wait", || (pool.stats().in_flight, pool.stats().queued_normal) == (1, 2));
    gate.open();
    refused.into_iter().for_each(|call| assert_eq!(call.wait().unwrap_err(), Error::Rejected));
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().text(), "open"));
    pool.shutdown().wait();
}

/// Without a queue a job is taken when a worker can begin it at once.
#[test]
fn without_a_queue_workers_have_their_jobs() {
    let pool = quiet(template()).max(1).load(2).queue_limit(0).spawn().wait().unwrap();
    let gate = Gate::new("queue-none");
    let calls: Vec<Call> = (0..2).map(|_| pool.call(["gate", gate.path()])).collect();
    eventually("both are there", || pool.stats().in_flight == 2);
    assert_eq!(pool.call(["echo", "x"]).wait().unwrap_err(), Error::Rejected);
    gate.open();
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().text(), "open"));
    pool.shutdown().wait();
}
