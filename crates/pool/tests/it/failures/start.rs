//! Programs and workers that do not become ready: the error says why, and nothing is left running.

use cattlegrid_pool::{Error, Launch};

use crate::common::*;

#[test]
fn start_with_two_hellos() {
    let error = quiet(broken("hello-twice")).spawn().wait().unwrap_err();
    assert!(error.to_string().contains("a second one"), "{error}");
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
    eventually("none is left", || {
        !children(std::process::id()).iter().any(|(pid, _)| runs_fixture_sleeping(*pid))
    });
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

fn runs_fixture_sleeping(pid: u32) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.windows(14).any(|window| window == b"FIXTURE=sleeps")
}
