//! Which panics end a process. Each test is a scene of `panic-fixture`, in a process of its own.
//!
//! `cargo xtask test --stage panics` runs them as the server ships: the fixture is no test, so it is
//! compiled with what the profile says about panics.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

/// What a scene has written to its standard output and standard error, and the signal that has ended it.
struct End {
    stdout: String,
    stderr: String,
    signal: Option<i32>,
    code: Option<i32>,
}

fn run(scene: &str) -> End {
    let output = Command::new(env!("CARGO_BIN_EXE_panic-fixture")).arg(scene).output().expect("it starts");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    End { stdout, stderr, signal: output.status.signal(), code: output.status.code() }
}

/// Runs a scene that must survive, and have printed these panics.
#[track_caller]
fn survives(scene: &str, panics: &[&str]) {
    let end = run(scene);
    assert_eq!((end.code, &*end.stdout), (Some(0), "survived\n"), "{:?} {}", end.signal, end.stderr);
    for panic in panics {
        assert!(end.stderr.contains(panic), "{panic}: {}", end.stderr);
    }
}

/// Runs a scene that must be aborted after it has said `stdout`, and have printed these panics.
#[track_caller]
fn aborts(scene: &str, stdout: &str, panics: &[&str]) {
    let end = run(scene);
    assert_eq!((end.signal, &*end.stdout), (Some(SIGABRT), stdout), "{:?} {}", end.code, end.stderr);
    for panic in panics {
        assert!(end.stderr.contains(panic), "{panic}: {}", end.stderr);
    }
}

const SIGABRT: i32 = 6;

#[test]
fn callbacks_that_panic_cost_themselves_only() {
    let kinds = ["a callback", "on_progress", "on_event", "on_log", "on_error", "on_destroy", "Serialize"];
    survives("callbacks", &kinds.map(|kind| format!("in {kind}, as meant")).each_ref().map(|text| &**text));
}

#[test]
fn a_job_that_panics_fails_alone() {
    survives("jobs", &[]);
}

#[test]
fn a_thread_of_a_job_that_panics_ends_its_worker() {
    survives("thread_of_a_job", &[]);
}

#[test]
fn a_payload_may_panic_when_it_is_dropped() {
    survives("payload", &["in the destructor of a payload, as meant"]);
}

#[test]
fn a_guarded_panic_with_a_shard_locked_aborts() {
    aborts("locked_in_callback", "", &["with a shard locked, as meant"]);
    aborts("locked_around_guarded", "", &["with a shard locked, as meant"]);
}

#[test]
fn the_lock_of_another_thread_does_not_count() {
    survives("locked_elsewhere", &["without a lock, as meant"]);
}

#[test]
fn an_unguarded_panic_aborts() {
    aborts("serving", "", &["in a serving thread, as meant"]);
    aborts("thread_of_guarded", "", &["in a thread, as meant"]);
}

#[test]
fn a_second_panic_while_the_first_unwinds_aborts() {
    aborts("destructor", "", &["the first panic, as meant", "in a destructor, as meant"]);
}

#[test]
fn a_poisoned_mutex_is_refused_and_aborts_where_nothing_guards() {
    aborts("poisoned", "caught\nrefused\n", &["with a mutex locked, as meant", "poisoned, as meant"]);
}

#[test]
fn without_the_hook_a_broken_shard_is_not_used_again() {
    survives("without_hook", &["with a shard locked, as meant"]);
}

#[test]
fn a_panic_below_a_method_in_luau_fails_the_call() {
    survives("scripts_panics", &["in the world of a script, as meant"]);
}

#[test]
fn errors_of_nested_calls_in_luau_fail_the_call() {
    survives("scripts_errors", &[]);
}

#[test]
fn a_panic_below_a_method_in_luau_with_a_shard_locked_aborts() {
    aborts("scripts_locked", "", &["with a shard locked, as meant"]);
}
