//! The output of workers that cannot start: a broken program writes the same at each try, and the log has it
//! once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time without a failed start after which the same output is written again.
const FORGET: Duration = Duration::from_secs(300);
/// Most lines of output that are remembered, and most characters of each.
const PASSED_MAX: usize = 200;
const LINE_MAX: usize = 1024;

/// Output of a failed start, and the start that it belongs to.
#[derive(Debug, Default)]
pub(crate) struct StartOutput {
    /// The last lines of output that are in the log.
    passed: VecDeque<String>,
    /// The last output of workers that could not start, and the time of the last failure.
    failed: Option<(String, Instant)>,
}

/// How much of a failed worker's output is written with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputNews {
    /// All of it.
    New,
    /// Nothing: the lines are in the log just before.
    Passed,
    /// Nothing: an earlier start wrote the same.
    Repeated,
}

impl StartOutput {
    /// Records lines of output that were written to the log.
    pub(crate) fn pass(&mut self, lines: &[&str]) {
        for line in &lines[lines.len().saturating_sub(PASSED_MAX)..] {
            if self.passed.len() == PASSED_MAX {
                self.passed.pop_front();
            }
            self.passed.push_back(line.chars().take(LINE_MAX).collect());
        }
    }

    /// Whether a worker that failed to start a short time ago wrote the same lines.
    pub(crate) fn is_known(&self, lines: &[&str], now: Instant) -> bool {
        let Some((text, _)) = self.failed.as_ref().filter(|(_, at)| is_recent(*at, now)) else {
            return false;
        };
        lines.iter().all(|line| text.lines().any(|known| known == *line))
    }

    /// Records a failed start. `tail`: the end of the worker's output.
    pub(crate) fn fail(&mut self, tail: &str, now: Instant) -> OutputNews {
        let before = self.failed.replace((tail.to_owned(), now));
        if before.is_some_and(|(text, at)| text == tail && is_recent(at, now)) {
            return OutputNews::Repeated;
        }
        let lines: Vec<&str> = tail.lines().collect();
        let from = self.passed.len().saturating_sub(lines.len());
        // The first line may be cut.
        let same = self.passed.range(from..).zip(&lines).all(|(passed, line)| passed.ends_with(line));
        let is_passed = !lines.is_empty() && self.passed.len() >= lines.len() && same;
        if is_passed { OutputNews::Passed } else { OutputNews::New }
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < FORGET
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = "Traceback\n  at line 4\nRuntimeError: cannot start\n";

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn the_same_output_is_new_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut starts = StartOutput::default();
        let lines: Vec<&str> = TAIL.lines().collect();
        assert!(!starts.is_known(&lines, at(0)));
        starts.pass(&["before"]);
        starts.pass(&lines);
        assert_eq!(starts.fail(TAIL, at(0)), OutputNews::Passed);
        assert!(starts.is_known(&lines, at(1)) && starts.is_known(&lines[..1], at(1)));
        assert!(!starts.is_known(&["something else"], at(1)));
        assert!(!starts.is_known(&["Traceback", "something else"], at(1)));
        assert_eq!(starts.fail(TAIL, at(200)), OutputNews::Repeated);
        assert_eq!(starts.fail(TAIL, at(400)), OutputNews::Repeated, "it goes on");
        assert!(!starts.is_known(&lines, at(701)));
        starts.pass(&["since then"]);
        assert_eq!(starts.fail(TAIL, at(701)), OutputNews::New, "it was not written this time");
        assert_eq!(starts.fail("other\n", at(702)), OutputNews::New);
        assert_eq!(StartOutput::default().fail("", at(0)), OutputNews::New);
    }
}
