//! Pools in a program with few descriptors: the pool works, or the error says what is missing.

use std::process::Command;

use crate::common::*;

/// The replies of a template's worker and an exec'ed worker in a process with this `ulimit -n`.
fn said(limit: u32) -> Vec<String> {
    let script = "ulimit -n $0 && exec \"$1\"";
    let output = Command::new("sh")
        .args(["-c", script, &limit.to_string(), fixture()])
        .env("FIXTURE", "limited")
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_pool_needs_no_more_descriptors_than_it_uses() {
    for limit in [24, 32, 64, 67, 68, 69] {
        assert_eq!(said(limit), ["served", "served"], "ulimit -n {limit}");
    }
}

#[test]
fn a_limit_that_is_too_low_is_told() {
    for limit in 6..24 {
        let lines = said(limit);
        assert_eq!(lines.len(), 2, "ulimit -n {limit}");
        for line in lines {
            assert!(line == "served" || line.contains("descriptors"), "ulimit -n {limit}: {line}");
        }
    }
}
