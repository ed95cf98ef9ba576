//! The examples run, against each kind of server, and say what they are meant to.

#![cfg(feature = "blocking")]
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::PathBuf;
use std::process::Command;

use crate::servers::{Kind, Server, on_servers};

/// The output of an example with new servers. All examples are built with the tests, unless only some of the
/// tests are.
fn output(example: &str, start: impl Fn() -> Vec<Server>) -> String {
    let tests = std::env::current_exe().unwrap();
    let program: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples").join(example);
    assert!(program.exists(), "{example} is missing: cargo build -p cattlegrid-client --examples");
    let mut errors = String::new();
    for _ in 0..3 {
        let servers = start();
        let output = Command::new(&program).args(servers.iter().map(Server::address)).output().unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        errors = String::from_utf8_lossy(&output.stderr).into_owned();
        // An example has the client's default timeout, which a busy machine may exceed: then it is run again,
        // with servers that have no commands left of this time.
        if !["Timeout", "Unavailable", "no reply within", "not asked"]
            .iter()
            .any(|text| errors.contains(text))
        {
            break;
        }
    }
    panic!("{example}: {errors}");
}

fn examples(kind: Kind) {
    let one = || vec![kind.start()];
    assert_eq!(output("get_or_compute", one), "callers with the report: 40, computations: 1\n");
    let fetched = output("fetch_or_compute", one);
    assert_eq!(fetched, "to compute: cat.jpg\nstored: true\nthe other caller has: a small cat\n");
    let names = output("namespaces", one);
    assert!(names.ends_with("user 1234: None\nuser 1235: Some(\"profile of 1235\")\n"), "{names}");
    let blocking = output("blocking", one);
    let primes = "primes: Some([2, 3, 5, 7])\n";
    assert_eq!(blocking, format!("visits: Some(800)\ncomputing\n{primes}{primes}"));
}
on_servers!(examples);

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn distinct_users_of_three_servers() {
    let three = || (0..3).map(|_| Kind::Plain.start_with(&["--objects", "."])).collect();
    let printed = output("distinct_users", three);
    let count = printed.split("distinct users: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let count: u64 = count.parse().unwrap();
    assert!(count.abs_diff(10_000) < 400, "{printed}");
}
