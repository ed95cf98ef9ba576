//! Panics of a server's threads: a line of the log each, and the end of the process unless they are guarded. The server
//! has no command that panics, so this test starts itself again as a process that has the server's hook and log.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use cattlegrid_server::log;

/// Runs the test of this name in a process of its own, in which [`is_child`].
fn in_a_process(test: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", test, "--nocapture"]).env("CHILD", "1").output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os("CHILD").is_some()
}

#[test]
fn an_unguarded_panic_is_logged_and_aborts() {
    if is_child() {
        cattlegrid_panic::install();
        log::start().unwrap();
        let serving = std::thread::Builder::new().name("serving".to_owned());
        serving.spawn(|| panic!("as meant")).unwrap().join().unwrap_err();
        log::error("the process has survived");
        log::flush(std::time::Duration::from_secs(10));
        return;
    }
    let output = in_a_process("an_unguarded_panic_is_logged_and_aborts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(6), "SIGABRT: {stderr}");
    assert!(stderr.contains("cattlegrid: thread serving panicked at "), "{stderr}");
    assert!(stderr.contains(": as meant\n") && !stderr.contains("survived"), "{stderr}");
}

#[test]
fn a_guarded_panic_is_logged_and_caught() {
    if is_child() {
        cattlegrid_panic::install();
        log::start().unwrap();
        let caught = cattlegrid_panic::guarded(|| panic!("as meant"));
        log::error(format_args!("caught: {:?}", caught.unwrap_err().text()));
        assert!(log::flush(std::time::Duration::from_secs(10)));
        return;
    }
    let output = in_a_process("a_guarded_panic_is_logged_and_caught");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let [panic, caught] =
        ["panicked at ", "cattlegrid: caught: Some(\"as meant\")"].map(|text| stderr.find(text));
    assert!(panic.is_some() && panic < caught, "{stderr}");
}
