//! The state of a loader that all its generations share, by its name: counters, the bound on its processes,
//! and its lines in the log.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cattlegrid_engine::Load;
use cattlegrid_pool::{Budget, Error, LogChunk, PoolError};

use crate::counts::Counts;
use crate::host::{Host, Severity};
use crate::limiter::Limiter;
use crate::starts::{OutputNews, StartOutput};

/// See the module's text.
pub(crate) struct LoaderProgram {
    name: Arc<str>,
    counts: Arc<Counts>,
    budget: Budget,
    host: Arc<dyn Host>,
    limits: Mutex<LogLimits>,
}

impl std::fmt::Debug for LoaderProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoaderProgram").field("name", &self.name).finish_non_exhaustive()
    }
}

struct LogLimits {
    /// Limits reports of failures, each with the worker's last words.
    reports: Limiter,
    /// Limits lines of workers' output.
    output: Limiter,
    starts: StartOutput,
}

impl LoaderProgram {
    pub(crate) fn new(name: &str, max: usize, host: Arc<dyn Host>) -> Arc<Self> {
        let limits = LogLimits {
            reports: Limiter::new(REPORTS),
            output: Limiter::new(OUTPUT_LINES),
            starts: StartOutput::default(),
        };
        Arc::new(Self {
            name: name.into(),
            counts: Arc::default(),
            budget: Budget::new(max),
            host,
            limits: Mutex::new(limits),
        })
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// The bound on processes that the pools of all generations share.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Passes lines of a worker's output, or of its log, to the host's log.
    pub(crate) fn pass_on(&self, chunk: &LogChunk<'_>) {
        let severity = match chunk.level {
            1 => Severity::Error,
            2 => Severity::Warning,
            4.. => Severity::Debug,
            _ => Severity::Notice,
        };
        let text = String::from_utf8_lossy(chunk.bytes);
        let lines: Vec<&str> = text.lines().collect();
        if self.is_known(&lines) {
            return;
        }
        let (admitted, before) = self.admit(lines.len(), |limits| &mut limits.output);
        if admitted == 0 {
            return;
        }
        let from = match chunk.worker {
            0 => format!("loader {}", self.name),
            number => format!("loader {}: worker {number}", self.name),
        };
        let mut said = String::new();
        if before > 0 {
            said = format!("{from}: {before} lines of output left out\n");
        }
        for line in &lines[..admitted] {
            said.extend([&*from, ": ", line, "\n"]);
        }
        self.limits().starts.pass(&lines[..admitted]);
        self.host.log(severity, said.trim_end());
    }

    /// Whether these are lines of a worker that could not start, and are in the log. Then they are counted as
    /// left out.
    fn is_known(&self, lines: &[&str]) -> bool {
        let is_known = self.limits().starts.is_known(lines, self.host.now());
        if is_known {
            self.counts.log_left_out.fetch_add(lines.len() as u64, Relaxed);
        }
        is_known
    }

    /// Reports a fault of a worker, or of all.
    pub(crate) fn report(&self, error: &PoolError) {
        let severity = match error {
            PoolError::CrashLoop { .. } | PoolError::PoolLost | PoolError::Callback => Severity::Error,
            _ => Severity::Warning,
        };
        match error {
            // The rule file was refused already, with a message about its settings.
            PoolError::StdioMode { .. } => {}
            // Reported once for each series of failures: failures of jobs do not keep it out of the log.
            PoolError::CrashLoop { reason, .. } => {
                // The reason has the last output of the last start, whose report came before.
                let (text, more) = (error.to_string(), reason.split_once(OUTPUT_ENDS));
                let words = more.map_or(0, |(_, words)| OUTPUT_ENDS.len() + words.len());
                let is_known =
                    more.is_some_and(|(_, words)| self.is_known(&words.lines().collect::<Vec<_>>()));
                self.write(severity, if is_known { &text[..text.len() - words] } else { &text }, 0);
            }
            PoolError::PoolLost => self.write(severity, &error.to_string(), 0),
            PoolError::StartFailed { reason, stderr_tail } => {
                let output = self.limits().starts.fail(stderr_tail, self.host.now());
                let text = match output {
                    OutputNews::New => error.to_string(),
                    OutputNews::Passed => format!("start failed: {reason}"),
                    OutputNews::Repeated if stderr_tail.is_empty() => format!("start failed again: {reason}"),
                    OutputNews::Repeated => format!("start failed again: {reason}; its output was as before"),
                };
                _ = self.say(severity, &text);
            }
            _ => _ = self.say(severity, &error.to_string()),
        }
    }

    /// Why no worker could be started, for the start of the server or a reload. It leaves out the program's
    /// output if the log has that already.
    pub(crate) fn why(&self, error: &Error) -> String {
        match error {
            Error::StartFailed { reason, stderr_tail, .. }
                if self.limits().starts.fail(stderr_tail, self.host.now()) == OutputNews::Passed =>
            {
                let last = stderr_tail.trim_end().lines().last().unwrap_or_default();
                format!("no worker could be started: {reason}; its output is above and ends: {last}")
            }
            _ => error.to_string(),
        }
    }

    /// Reports why a job has failed. `more`: lines about it, such as a traceback. The log shows the pattern
    /// of the key's rule; the key itself is in the log of internal steps only.
    pub(crate) fn report_job(&self, load: &Load, why: &str, more: &str) {
        let mut text = format!("{}: {why}", load.rule.pattern.text());
        for line in more.lines() {
            text.push('\n');
            text.push_str(line);
        }
        if self.say(Severity::Warning, &text) {
            let key = load.key.escape_ascii();
            self.host.log(Severity::Debug, &format!("loader {}: the key was {key}", self.name));
        }
    }

    /// Writes a line to the log. False: there were too many lines.
    fn say(&self, severity: Severity, text: &str) -> bool {
        let (admitted, before) = self.admit(1, |limits| &mut limits.reports);
        if admitted > 0 {
            self.write(severity, text, before);
        }
        admitted > 0
    }

    fn write(&self, severity: Severity, text: &str, before: u64) {
        let mut said = String::new();
        for line in text.lines() {
            said.extend(["loader ", &*self.name, ": ", line, "\n"]);
        }
        if before > 0 {
            let count = before.to_string();
            said.extend(["loader ", &*self.name, ": and ", &*count, " reports before this one, left out"]);
        }
        self.host.log(severity, said.trim_end());
    }

    fn admit(&self, lines: usize, of: impl FnOnce(&mut LogLimits) -> &mut Limiter) -> (usize, u64) {
        let now = self.host.now();
        let (admitted, before) = of(&mut self.limits()).admit(lines, now);
        let left_out = (lines - admitted) as u64;
        self.counts.log_left_out.fetch_add(left_out, Relaxed);
        (admitted, before)
    }

    fn limits(&self) -> MutexGuard<'_, LogLimits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The words that the pool puts between a reason and a program's last words.
const OUTPUT_ENDS: &str = "; output ends: ";

/// Most reports of failures per second.
const REPORTS: usize = 1;
/// Most lines of output per second.
const OUTPUT_LINES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::load;

    struct FrozenHost {
        now: std::time::Instant,
        log: Mutex<Vec<(Severity, String)>>,
    }

    impl Host for FrozenHost {
        fn now(&self) -> std::time::Instant {
            self.now
        }

        fn log(&self, severity: Severity, text: &str) {
            self.log.lock().unwrap().push((severity, text.to_owned()));
        }

        fn finished(&self, _: usize, _: crate::Finished) {}
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn failures_of_jobs_do_not_keep_a_crash_loop_out_of_the_log() {
        let host = Arc::new(FrozenHost { now: std::time::Instant::now(), log: Mutex::default() });
        let program = LoaderProgram::new("pages", 1, Arc::clone(&host) as Arc<dyn Host>);
        program.report_job(&load("page:{id}", b"page:1"), "no table", "");
        program.report_job(&load("page:{id}", b"page:2"), "no table", "");
        program.report(&PoolError::CrashLoop { failures: 5, reason: "exit status 3\nlast words".to_owned() });
        program.report(&PoolError::PoolLost);
        program.report_job(&load("page:{id}", b"page:3"), "no table", "");
        let log = host.log.lock().unwrap();
        let [(_, first), (Severity::Debug, key), (severity, second), (_, third)] = &log[..] else {
            panic!("{log:?}")
        };
        assert_eq!(first, "loader pages: page:{id}: no table");
        assert_eq!(key, "loader pages: the key was page:1");
        assert_eq!(*severity, Severity::Error);
        assert!(second.contains("loader pages: last words"), "{second}");
        assert!(third.starts_with("loader pages: "), "{third}");
        assert_eq!(program.counts().log_left_out.load(Relaxed), 2);
    }
    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn a_program_that_cannot_start_is_heard_once() {
        let host = Arc::new(FrozenHost { now: std::time::Instant::now(), log: Mutex::default() });
        let program = LoaderProgram::new("pages", 1, Arc::clone(&host) as Arc<dyn Host>);
        let failed = || PoolError::StartFailed {
            reason: "exited with status 1".to_owned(),
            stderr_tail: "Traceback\nRuntimeError\n".to_owned(),
        };
        program.report(&failed());
        program.report(&failed());
        assert!(program.is_known(&["Traceback", "RuntimeError"]), "what the next one writes");
        let reason = "no worker could be started: exited with status 1; output ends: Traceback\nRuntimeError";
        program.report(&PoolError::CrashLoop { failures: 5, reason: reason.to_owned() });
        let log = host.log.lock().unwrap();
        let all = log.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n");
        assert_eq!(all.matches("Traceback").count(), 1, "{all}");
        assert!(all.ends_with("backing off: no worker could be started: exited with status 1"), "{all}");
    }
}
