//! The tests of a stage that failed and passed when they were run again, as its output names them.
//!
//! cargo-nextest prints `FLAKY 2/3 [   0.1s] PACKAGE::PROGRAM TEST` at its end; pytest with pytest-rerunfailures prints
//! `RERUN FILE::TEST` for each failure and `FAILED FILE::TEST` or, where a fixture failed, `ERROR FILE::TEST` if the last run
//! failed, too; a stage's own step that is tried again writes `FLAKY COMMAND`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

/// The names in the log of a stage, sorted; none where it cannot be read.
pub(super) fn find(log: &Path) -> Vec<String> {
    fs::read(log).map_or_else(|_| Vec::new(), |bytes| names(&String::from_utf8_lossy(&bytes)))
}

fn names(log: &str) -> Vec<String> {
    let (mut flaky, mut failed) = (BTreeSet::new(), BTreeSet::new());
    let log = plain(log);
    for line in log.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("FLAKY ") {
            // Behind the duration and the number, where there are any.
            let name = rest.split_once("] ").map_or(rest, |(_, name)| name).trim();
            flaky.insert(
                name.strip_prefix('(').and_then(|rest| rest.split_once(") ")).map_or(name, |(_, name)| name),
            );
        } else if let Some(name) = line.strip_prefix("RERUN ") {
            flaky.insert(name.split(" - ").next().unwrap_or(name));
        } else if let Some(name) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
            failed.insert(name.split(" - ").next().unwrap_or(name));
        }
    }
    flaky.difference(&failed).map(|name| (*name).to_owned()).collect()
}

/// Without colours, which the environment may ask for (`CARGO_TERM_COLOR`, `FORCE_COLOR`).
fn plain(log: &str) -> Cow<'_, str> {
    static COLOUR: LazyLock<Regex> = LazyLock::new(|| Regex::new("\x1b\\[[0-9;]*m").expect("it is valid"));
    COLOUR.replace_all(log, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_runners_are_read() {
        let log = "\
  TRY 1 FAIL [   0.003s] (  ─────) cattlegrid-pool::it basics::once
  FLAKY 2/3 [   0.005s] (3/7) cattlegrid-pool::it basics::once
     Summary [   0.1s] 7 tests run: 7 passed (1 flaky), 0 skipped
  FLAKY 2/3 [   0.005s] (3/7) cattlegrid-pool::it basics::once
RERUN conformance/test_a.py::test_late
RERUN conformance/test_a.py::test_late
RERUN conformance/test_b.py::test_wrong
FAILED conformance/test_b.py::test_wrong - assert 1 == 2
RERUN conformance/test_c.py::test_fixture
ERROR conformance/test_c.py::test_fixture - no port
FLAKY target/fast/cattlegrid demo
";
        let expected = [
            "cattlegrid-pool::it basics::once",
            "conformance/test_a.py::test_late",
            "target/fast/cattlegrid demo",
        ];
        assert_eq!(names(log), expected);
        assert!(names("all is well\n").is_empty());
        let coloured = "\x1b[33;1m   FLAKY 2/3\x1b[0m [   0.005s] (3/7) \x1b[35;1mcattlegrid-pool::it\x1b[0m basics::once\n\x1b[33mRERUN\x1b[0m \
                        a.py::\x1b[1mtest_b\x1b[0m\n";
        assert_eq!(names(coloured), ["a.py::test_b", "cattlegrid-pool::it basics::once"]);
    }
}
