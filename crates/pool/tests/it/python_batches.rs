//! Batches in a Python worker: one call, an outcome for each job, and what a crash, a cancellation and a long
//! batch cost.
#![allow(clippy::unwrap_used, reason = "a failure is a panic in a test")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};

use crate::common::*;
use cattlegrid_pool::{Builder, Call, Error, Outcome, Pool};

/// Submits jobs on the pool's thread, so that they come in together.
fn all(pool: &Pool, jobs: &[&[&str]]) -> Vec<Call> {
    let jobs: Vec<Vec<String>> =
        jobs.iter().map(|args| args.iter().map(ToString::to_string).collect()).collect();
    let (sender, receiver) = mpsc::channel();
    let inner = pool.clone();
    // Its time is up before a worker has it.
    pool.job(["echo", ""]).timeout(ms(0)).submit(move |_| {
        let calls = jobs.into_iter().map(|args| inner.job(args).timeout(PATIENCE).call());
        sender.send(calls.collect()).ok();
    });
    receiver.recv_timeout(PATIENCE).unwrap()
}

/// One worker that is ready.
fn one(builder: Builder) -> Pool {
    let pool = builder.max(1).idle(1).spawn().wait().unwrap();
    pool.call(["echo", "first"]).wait().unwrap();
    pool
}

/// Own argument, jobs in the batch, number of the call.
fn parts(outcome: Outcome) -> (String, usize, usize) {
    let reply = outcome.unwrap();
    let number = |at| String::from_utf8_lossy(reply.part(at)).parse().unwrap();
    (reply.text(), number(1), number(2))
}

#[test]
fn fifty_jobs_are_one_call_and_more_than_the_limit_are_several() {
    for launch in [python("batch"), python_exec("batch")] {
        let pool = one(quiet(launch).batch(1_000));
        let names: Vec<String> = (0..200).map(|n| n.to_string()).collect();
        let jobs: Vec<[&str; 2]> = names.iter().map(|name| ["echo", name]).collect();
        let jobs: Vec<&[&str]> = jobs.iter().map(|job| &job[..]).collect();
        for (n, call) in all(&pool, &jobs[..50]).into_iter().enumerate() {
            assert_eq!(parts(call.wait()), (n.to_string(), 50, 2));
        }
        let calls = all(&pool, &jobs).into_iter().map(|call| parts(call.wait()));
        let sizes: BTreeSet<_> = calls.map(|(_, size, call)| (call, size)).collect();
        assert_eq!(sizes.into_iter().map(|(_, size)| size).collect::<Vec<_>>(), [64, 64, 64, 8]);
        assert_eq!((pool.stats().batches, pool.stats().batched), (6, 251));
        pool.shutdown().wait();
    }
}

#[test]
fn without_batches_in_the_pool_each_job_is_a_call() {
    let pool = one(quiet(python("batch")));
    let calls = all(&pool, &[&["echo", "x"][..]; 20]);
    assert!(calls.into_iter().all(|call| parts(call.wait()).1 == 1));
    pool.shutdown().wait();
}

#[test]
fn each_job_has_its_own_outcome_and_progress() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let pool = one(quiet(python("batch")).batch(64).load(1));
    let gate = Gate::new("python-outcomes");
    let first = pool.call(["gate", gate.path()]);
    eventually("it runs", || pool.stats().in_flight == 1);
    let says = Arc::clone(&heard);
    let job = pool.job(["progress", "it"]);
    let progress = job.on_progress(move |how| says.lock().unwrap().push(how.to_vec())).call();
    let calls: Vec<Call> = ["bad", "fail", "echo"].into_iter().map(|what| pool.call([what, "x"])).collect();
    gate.open();
    assert!(first.wait().is_ok());
    assert_eq!(parts(progress.wait()), ("it".into(), 4, 3));
    assert_eq!(*heard.lock().unwrap(), [b"half of it"]);
    let [bad, fail, echo] = calls.into_iter().map(Call::wait).collect::<Vec<_>>().try_into().unwrap();
    assert!(matches!(&bad, Err(Error::Worker { message, .. }) if message.contains("not int")), "{bad:?}");
    assert!(matches!(&fail, Err(Error::Worker { code, retryable: true, .. }) if code == "code"), "{fail:?}");
    assert_eq!(parts(echo).1, 4);
    for call in all(&pool, &[&["echo", "x"], &["all-fail"], &["echo", "y"]]) {
        let error = call.wait().unwrap_err();
        assert!(
            matches!(&error, Error::Worker { message, .. } if message == "ValueError: all of them"),
            "{error}"
        );
    }
    assert_eq!((pool.stats().exited, pool.stats().protocol_errors), (0, 0), "the worker has stayed");
    pool.shutdown().wait();
}

#[test]
fn a_crash_costs_the_batch_it_was_in_and_no_other() {
    let pool = one(quiet(python("batch")).batch(3).load(4));
    let mut calls = all(&pool, &[&["echo", "0"], &["die"], &["echo", "2"], &["echo", "3"], &["echo", "4"]]);
    let behind = calls.split_off(3);
    for outcome in calls.into_iter().map(Call::wait) {
        assert!(matches!(outcome, Err(Error::WorkerLost { signal: Some(9), .. })), "{outcome:?}");
    }
    assert!(behind.into_iter().all(|call| parts(call.wait()).1 == 2), "done by another worker, together");
    let stats = pool.stats();
    assert_eq!((stats.lost, stats.redispatched, stats.crashed), (3, 2, 1));
    pool.shutdown().wait();
}

#[test]
fn a_batch_behind_a_long_one_is_taken_back() {
    let pool = one(quiet(python("batch")).batch(8).load(2));
    let gate = Gate::new("python-taken");
    let long = pool.call(["gate", gate.path()]);
    eventually("it runs", || pool.stats().in_flight == 1);
    let behind = all(&pool, &[&["echo", "x"][..]; 4]);
    eventually("they are there", || pool.stats().in_flight == 5);
    pool.resize(2, 2);
    assert!(behind.into_iter().all(|call| parts(call.wait()).1 == 4));
    gate.open();
    assert_eq!(parts(long.wait()).1, 1);
    eventually("what was taken is skipped", || pool.stats().idle == 2);
    assert_eq!((pool.stats().taken_back, pool.stats().protocol_errors), (4, 0));
    pool.shutdown().wait();
}

#[test]
fn a_job_whose_time_is_up_sees_it_and_the_others_have_their_replies() {
    let pool = one(quiet(python("batch")).batch(8).load(1).kill_grace(PATIENCE));
    let gate = Gate::new("python-time");
    let long = pool.call(["gate", gate.path()]);
    eventually("it runs", || pool.stats().in_flight == 1);
    let (timed, other) = (pool.job(["until-cancelled"]).timeout(ms(1_500)).call(), pool.call(["echo", "x"]));
    gate.open();
    assert!(long.wait().is_ok());
    assert!(matches!(timed.wait(), Err(Error::Timeout { .. })));
    assert_eq!(other.wait().unwrap().text(), "x");
    assert_eq!((pool.stats().killed, pool.stats().lost), (0, 0));
    pool.shutdown().wait();
}
