//! The examples run, against each kind of server, and say what they are meant to.

#![cfg(feature = "blocking")]
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::PathBuf;
use std::process::Command;

mod servers;
use servers::Kind;

/// What an example prints. `cargo test` builds the examples, unless it is told to build some of the tests only.
fn output(example: &str, addresses: &[&str]) -> String {
    let tests = std::env::current_exe().unwrap();
    let program: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples").join(example);
    assert!(
        program.exists(),
        "{example} is missing: cargo build -p cattlegrid-client --all-features --examples"
    );
    let output = Command::new(program).args(addresses).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn examples(kind: Kind) {
    let server = kind.start();
    let address = [server.address()];
    assert_eq!(output("get_or_compute", &address), "callers with the report: 40, computations: 1\n");
    let fetched = output("fetch_or_compute", &address);
    assert_eq!(fetched, "to compute: cat.jpg\nstored: true\nthe other caller has: a small cat\n");
    let names = output("namespaces", &address);
    assert!(names.ends_with("user 1234: None\nuser 1235: Some(\"profile of 1235\")\n"), "{names}");
    let blocking = output("blocking", &address);
    let primes = "primes: Some([2, 3, 5, 7])\n";
    assert_eq!(blocking, format!("visits: Some(800)\ncomputing\n{primes}{primes}"));
}
on_servers!(examples);

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn distinct_users_of_three_servers() {
    let all = [(); 3].map(|()| Kind::Plain.start_with(&["--objects", "."]));
    let printed = output("distinct_users", &[all[0].address(), all[1].address(), all[2].address()]);
    let count = printed.split("distinct users: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let count: u64 = count.parse().unwrap();
    assert!(count.abs_diff(10_000) < 400, "{printed}");
}
