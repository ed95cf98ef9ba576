//! Workers that break the protocol, or say that they cannot go on: they are killed, their job fails, the pool
//! lives.

use cattlegrid_pool::{Error, Launch, Pool};

use crate::common::*;

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
    a_broken_worker_is_killed("no-list", "not a list");
}

#[test]
fn protocol_fields_that_a_kind_does_not_have() {
    a_broken_worker_is_killed("leave-body", "malformed body of Leave");
    a_broken_worker_is_killed("leave-id", "Leave with an id");
    a_broken_worker_is_killed("error-of-four", "malformed body of Error");
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

/// A worker in shell that says that it cannot go on, and does not exit: it `closes` its socket or not, before
/// it is ready or in its first job.
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

fn own_rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}
