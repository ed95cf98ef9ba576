//! Jobs that are begun again: after which errors, how often, and until when.

use std::time::Duration;

use crate::common::*;
use cattlegrid_pool::{Error, Launch, Outcome, Pool, Retry};

fn pool(launch: Launch, retry: Retry) -> Pool {
    quiet(launch).max(1).retries(retry).kill_grace(PATIENCE).spawn().wait().unwrap()
}

/// An idempotent job that fails in its first `good` attempts.
fn until(pool: &Pool, good: u32, kind: &str) -> Outcome {
    pool.job(["error-until", &good.to_string(), kind]).idempotent(true).call().wait()
}

/// The number of the attempt that gave the error.
fn failed(outcome: Outcome) -> String {
    match outcome.unwrap_err() {
        Error::Worker { message, .. } => message,
        error => panic!("{error:?}"),
    }
}

#[test]
fn a_retryable_error_is_tried_again_up_to_the_limit() {
    for launch in [template(), exec(), Launch::stdio::<&str>(fixture(), [])] {
        let pool = pool(launch, Retry::times(2).and_errors());
        assert_eq!(until(&pool, 0, "").unwrap().text(), "0");
        assert_eq!(until(&pool, 2, "").unwrap().text(), "2");
        assert_eq!(pool.stats().retried, 2);
        assert_eq!(failed(until(&pool, 3, "")), "attempt 2");
        let stats = pool.stats();
        assert_eq!((stats.retried, stats.worker_errors, stats.completed, stats.lost), (4, 1, 2, 0));
        pool.shutdown().wait();
    }
}

#[test]
fn other_errors_jobs_and_pools_are_not() {
    let both = pool(template(), Retry::times(5).and_errors());
    assert_eq!(failed(until(&both, 1, "final")), "attempt 0");
    assert_eq!(failed(both.call(["error-until", "1"]).wait()), "attempt 0", "not idempotent");
    assert_eq!(both.stats().retried, 0);
    both.shutdown().wait();
    for retry in [Retry::times(5), Retry::never(), Retry::never().and_errors()] {
        let pool = pool(template(), retry);
        assert_eq!(failed(until(&pool, 1, "")), "attempt 0", "{retry:?}");
        assert_eq!(pool.stats().retried, 0);
        pool.shutdown().wait();
    }
}

/// Lost workers and errors count together.
#[test]
fn attempts_of_both_kinds_share_the_limit() {
    for (times, good) in [(2, 2), (1, 2)] {
        let pool = pool(template(), Retry::times(times).and_errors());
        let outcome = pool.job(["error-until", &good.to_string(), "dies"]).idempotent(true).call().wait();
        if times == 2 {
            assert_eq!(outcome.unwrap().text(), "2");
        } else {
            assert_eq!(failed(outcome), "attempt 1");
        }
        assert_eq!(pool.stats().retried, u64::from(times));
        pool.shutdown().wait();
    }
}

/// The job ends when its time is up, and the worker is not at fault.
#[test]
fn a_job_is_not_tried_again_after_its_time() {
    let pool = pool(template(), Retry::times(u32::MAX).and_errors());
    let mut limit = ms(150);
    let retried = loop {
        // Twice as long until it is long enough for a second attempt.
        limit *= 2;
        let start = now();
        let outcome = pool.job(["error-until", "4000000000"]).idempotent(true).timeout(limit).call().wait();
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        assert!(start.elapsed() >= limit && start.elapsed() < limit + PATIENCE);
        match pool.stats().retried {
            0 => assert!(limit < PATIENCE, "not tried again in {limit:?}"),
            retried => break retried,
        }
    };
    eventually("it is in no job", || pool.stats().idle == 1);
    pause(Duration::from_millis(50));
    assert!(pool.stats().retried <= retried + 1, "it goes on");
    assert_eq!((pool.stats().killed, pool.stats().in_flight), (0, 0));
    pool.shutdown().wait();
}

/// The attempt is told to the worker, in JSON lines, too.
#[test]
fn json_lines_are_tried_again() {
    let script = r#"
        echo '{"ready": true}'
        while read -r line; do
            case $line in
                *'"type":"retire"'*) exit 0 ;;
                *'"attempt":2'*) echo '{"result": "third"}' ;;
                *'"type":"job"'*) echo '{"error": {"code": "c", "retryable": true}}' ;;
            esac
        done"#;
    let pool = pool(Launch::json_lines("sh", ["-c", script]), Retry::times(2).and_errors());
    assert_eq!(pool.job(["x"]).idempotent(true).call().wait().unwrap().text(), "third");
    assert!(matches!(pool.call(["x"]).wait(), Err(Error::Worker { retryable: true, .. })));
    pool.shutdown().wait();
}
