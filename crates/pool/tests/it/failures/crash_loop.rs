//! Programs whose workers end before their first job: starts are limited, and callers fail at once.

use cattlegrid_pool::{Error, Pool};

use crate::common::*;

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
        .crash_loop(5, PATIENCE);
    let pool = errors.watch(builder).spawn().wait().unwrap();
    eventually("the first worker has idled out", || pool.stats().exited >= 1 && pool.stats().workers == 0);
    std::fs::write(&flag, "").unwrap();
    let error = pool.call(["echo"]).wait().unwrap_err();
    assert!(matches!(error, Error::StartFailed { .. }), "{error}");
    eventually("it says so", || pool.stats().breaker_open == 1);
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

/// READY, and then garbage: no job is ever sent to such workers, so without the breaker no job would end.
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

/// Otherwise the program would be started without a limit, and no job would be done.
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
