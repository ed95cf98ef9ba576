//! The short form of the soak: each kind of values in 8 MiB, in a process of its own, whose resident memory
//! is checked.

use std::process::Command;

fn soak(values: &str, operations: u32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cattlegrid-store-bench"));
    command.args(["soak", "--memory", "8", "--mixes", values, "--operations", &operations.to_string()]);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8_lossy(&output.stdout);
    let row = table.lines().find(|line| line.starts_with(&format!("| {values} ")));
    let cell = row.and_then(|row| row.split('|').nth(4)).and_then(|cell| cell.trim().parse::<u32>().ok());
    assert!(cell.is_some_and(|verified| verified > 0), "nothing was verified: {table}");
}

#[test]
fn tiny_values() {
    soak("tiny", 100_000);
}

#[test]
fn values_of_one_size() {
    soak("fixed", 100_000);
}

#[test]
fn values_of_a_web_site() {
    soak("web", 50_000);
}

#[test]
fn small_and_large_values() {
    soak("bimodal", 20_000);
}

#[test]
fn huge_values() {
    soak("huge", 500);
}
