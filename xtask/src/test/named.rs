//! The tests of a stage that failed, at once or for good, as its output names them.
//!
//! cargo-nextest prints a summary at its end, with `FLAKY 2/3 [   0.1s] (3/7) PACKAGE::PROGRAM TEST` for a test that passed when it
//! was run again, and `TRY 3 FAIL [   0.1s] (3/7) PACKAGE::PROGRAM TEST` for a test that did not, or with `ABRT`, `TMT` and others in
//! place of `FAIL`. pytest with pytest-rerunfailures prints `RERUN FILE::TEST` for each failure and `FAILED FILE::TEST` or, where a
//! fixture failed, `ERROR FILE::TEST` if the last run failed, too. A stage's own step that is tried again writes `FLAKY COMMAND`.

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
        static SUMMARY: LazyLock<Regex> = LazyLock::new(|| {
            let line = r"^\s*(?:TRY \d+ |FLAKY )?[A-Z0-9/-]+ \[[^]]*\] \([^)]*\) (.+)$";
            Regex::new(line).expect("it is valid")
        });
        let mut found = Self::default();
        let mut is_in_summary = false;
        for line in plain(log).lines() {
            let before_reason = |rest: &str| rest.split(" - ").next().unwrap_or(rest).trim().to_owned();
            if line.starts_with("$ ") {
                is_in_summary = false;
            } else if line.trim_start().starts_with("Summary [") {
                is_in_summary = true;
            } else if is_in_summary && let Some(named) = SUMMARY.captures(line) {
                let tests = if line.trim_start().starts_with("FLAKY ") {
                    &mut found.flaky
                } else {
                    &mut found.failed
                };
                tests.insert(named[1].trim().to_owned());
            } else if let Some(rest) = line.strip_prefix("RERUN ").or_else(|| line.strip_prefix("FLAKY ")) {
                found.flaky.insert(before_reason(rest));
            } else if let Some(rest) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
                found.failed.insert(before_reason(rest));
            }
        }
        found.flaky.retain(|name| !found.failed.contains(name));
        found
    }
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
error: test run failed
$ pytest
RERUN conformance/test_a.py::test_late
RERUN conformance/test_a.py::test_late
RERUN conformance/test_b.py::test_wrong
FAILED conformance/test_b.py::test_wrong - assert 1 == 2
RERUN conformance/test_c.py::test_fixture
ERROR conformance/test_c.py::test_fixture - no port
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
                "conformance/test_b.py::test_wrong",
                "conformance/test_c.py::test_fixture",
            ]),
        };
        assert_eq!(NamedTests::of(log), expected);
        assert_eq!(NamedTests::of("all is well\n"), NamedTests::default());
        let coloured = "     \x1b[1mSummary\x1b[0m [   0.1s] 1 test run\n\x1b[33;1m   FLAKY 2/3\x1b[0m [   0.005s] (3/7) \x1b[35;1mcattlegrid-pool::it\x1b[0m \
                        basics::once\n\x1b[33mRERUN\x1b[0m a.py::\x1b[1mtest_b\x1b[0m\n";
        assert_eq!(
            NamedTests::of(coloured).flaky,
            names(["a.py::test_b", "cattlegrid-pool::it basics::once"])
        );
    }
}
