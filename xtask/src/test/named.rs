//! The tests of a stage that failed, at once or for good, as its output names them.
//!
//! cargo-nextest prints a summary at its end, with `FLAKY 2/3 [   0.1s] (3/7) PACKAGE::PROGRAM TEST` for a test that passed when it
//! was run again, and `TRY 3 FAIL [   0.1s] (3/7) PACKAGE::PROGRAM TEST` for a test that did not, or with `ABRT`, `TMT` and others in
//! place of `FAIL`. pytest names in its short summary what failed, `FAILED FILE::TEST` or, where a fixture failed, `ERROR FILE::TEST`;
//! pytest-rerunfailures has a summary with `RERUN FILE::TEST` for each failure, or adds to that. `cargo test` prints
//! `test NAME ... FAILED`. A stage's own step that is tried again writes `FLAKY COMMAND`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

/// The names of tests, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NamedTests {
    /// Those that failed and passed when they were run again.
    pub(super) flaky: BTreeSet<String>,
    /// Those that failed each time.
    pub(super) failed: BTreeSet<String>,
}

impl NamedTests {
    /// The names in the log of a stage; none where it cannot be read.
    pub(super) fn find(log: &Path) -> Self {
        fs::read(log).map_or_else(|_| Self::default(), |bytes| Self::of(&String::from_utf8_lossy(&bytes)))
    }

    fn of(log: &str) -> Self {
        // Classes like \d need tables that not every program compiled with this crate has.
        static NEXTEST: LazyLock<Regex> = LazyLock::new(|| {
            let line = r"^ *(?:TRY [0-9]+ |FLAKY )?[A-Z0-9/+-]+ \[[^]]*\] \([^)]*\) (.+)$";
            Regex::new(line).expect("it is valid")
        });
        static PYTEST: LazyLock<Regex> = LazyLock::new(|| {
            let line = r"^(RERUN|FAILED|ERROR) ([^ :]+\.py(?:::[^ \[]+(?:\[.*?\])?)?)(?:$| - )";
            Regex::new(line).expect("it is valid")
        });
        // An expression that is not valid shows at once, not when the first test fails.
        let (nextest, pytest) = (LazyLock::force(&NEXTEST), LazyLock::force(&PYTEST));
        let mut found = Self::default();
        let mut section = Section::Output;
        for line in plain(log).lines() {
            if line.starts_with("$ ") {
                section = Section::Output;
            } else if line.trim_start().starts_with("Summary [") {
                section = Section::Nextest;
            } else if line.starts_with("===") {
                section = if line.contains(" summary info ==") { Section::Pytest } else { Section::Output };
            } else if let Section::Nextest = section
                && let Some(named) = nextest.captures(line)
            {
                let is_flaky = line.trim_start().starts_with("FLAKY ");
                let tests = if is_flaky { &mut found.flaky } else { &mut found.failed };
                tests.insert(named[1].trim().to_owned());
            } else if let Section::Pytest = section
                && let Some(named) = pytest.captures(line)
            {
                let tests = if &named[1] == "RERUN" { &mut found.flaky } else { &mut found.failed };
                tests.insert(named[2].to_owned());
            } else if let Some(name) =
                line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
            {
                found.failed.insert(name.to_owned());
            } else if let Some(step) = line.strip_prefix("FLAKY ") {
                found.flaky.insert(step.to_owned());
            }
        }
        found.flaky.retain(|name| !found.failed.contains(name));
        found
    }
}

/// The part of a log in which names stand.
#[derive(Debug, Clone, Copy)]
enum Section {
    Output,
    /// The summary of cargo-nextest.
    Nextest,
    /// A summary of pytest.
    Pytest,
}

/// Without colours, which the environment may ask for (`CARGO_TERM_COLOR`, `FORCE_COLOR`).
fn plain(log: &str) -> Cow<'_, str> {
    static COLOUR: LazyLock<Regex> = LazyLock::new(|| Regex::new("\x1b\\[[0-9;]*m").expect("it is valid"));
    COLOUR.replace_all(log, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn both_runners_are_read() {
        let log = "\
$ cargo nextest run
  TRY 1 FAIL [   0.003s] (─────) cattlegrid-pool::it basics::once
  TRY 1 FAIL [   0.003s] (─────) cattlegrid-pool::it basics::never
  TRY 2 PASS [   0.005s] (3/7) cattlegrid-pool::it basics::once
     Summary [   0.1s] 7 tests run: 4 passed (1 flaky), 3 failed, 0 skipped
   FLAKY 2/3 [   0.005s] (3/7) cattlegrid-pool::it basics::once
  TRY 3 FAIL [   0.003s] (4/7) cattlegrid-pool::it basics::never
  stdout ───
    test basics::never ... FAILED
  TRY 3 TMT [   2.006s] (6/7) cattlegrid late::late
     SIGABRT [   2.006s] (7/7) cattlegrid-fuzz::it store
  TRY 3 FL+LK [ 0.671s] ( 5/12) mini fails_and_leaks
error: test run failed
$ cargo test --doc
test crates/pool/src/lib.rs - Pool (line 3) ... FAILED
test crates/pool/src/lib.rs - Pool (line 7) ... ok
$ pytest
ERROR    asyncio:test_b.py:3 connection lost
FAILED printed by a server
FAILED tests/test_b.py::test_wrong
=========================== rerun test summary info ============================
RERUN conformance/test_a.py::test_late
RERUN conformance/test_a.py::test_late
RERUN conformance/test_b.py::test_wrong[a - b]
RERUN conformance/test_c.py::test_fixture
=========================== short test summary info ============================
FAILED conformance/test_b.py::test_wrong[a - b] - assert 1 == 2
ERROR conformance/test_c.py::test_fixture - no port
ERROR conformance/test_d.py - ImportError: no module
FLAKY target/fast/cattlegrid demo
";
        let expected = NamedTests {
            flaky: names([
                "cattlegrid-pool::it basics::once",
                "conformance/test_a.py::test_late",
                "target/fast/cattlegrid demo",
            ]),
            failed: names([
                "cattlegrid late::late",
                "cattlegrid-fuzz::it store",
                "cattlegrid-pool::it basics::never",
                "conformance/test_b.py::test_wrong[a - b]",
                "conformance/test_c.py::test_fixture",
                "conformance/test_d.py",
                "crates/pool/src/lib.rs - Pool (line 3)",
                "mini fails_and_leaks",
            ]),
        };
        assert_eq!(NamedTests::of(log), expected);
        assert_eq!(NamedTests::of("all is well\n"), NamedTests::default());
        let coloured = "     \x1b[1mSummary\x1b[0m [   0.1s] 1 test run\n\x1b[33;1m   FLAKY 2/3\x1b[0m [   0.005s] (3/7) \x1b[35;1mcattlegrid-pool::it\x1b[0m \
                        basics::once\n=== \x1b[33mrerun test summary info\x1b[0m ===\n\x1b[33mRERUN\x1b[0m a.py::\x1b[1mtest_b\x1b[0m\n";
        assert_eq!(
            NamedTests::of(coloured).flaky,
            names(["a.py::test_b", "cattlegrid-pool::it basics::once"])
        );
    }
}
