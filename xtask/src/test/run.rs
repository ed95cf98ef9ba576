//! One stage: its commands, one after another, until the first that fails.
//!
//! A command's processes are ended when it fails, when the stage's time is used up or this program is told to stop. What
//! a stage writes goes straight into its log file, so that nothing is lost when
//! a run is cut off.
//!
//! # Invariants
//! * When [`run`] returns an error, no process of the stage is left.
//! * A stage's log has each command in front of its output.

use std::cell::Cell;
use std::fmt::Display;
use std::fs::File;
use std::io::Write as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::stages::{OVER, Stage, Step, StepCondition, XTASK};
use crate::processes::{CommandEnd, POLL, RunningCommand, Stop, now};

/// How long a [`StepCondition::Fetched`] may take: where packets are dropped, a connection attempt takes
/// minutes.
const FETCH_MOST: Duration = Duration::from_secs(60);

/// Runs a stage; an error says which command failed and how. `log` is open for appending. Returns the time of
/// processors that its commands used, too.
pub(super) fn run(stage: &Stage, log: &File, stop: &Stop) -> (Result<(), String>, Duration) {
    let end = now() + Duration::from_secs(stage.minutes * 60 * OVER);
    let runner = Runner { log, stop, yields: stage.cores > 0, cpu: Cell::default() };
    let each = |step: &Step| if runner.is_wanted(step, end)? { runner.tries(step, end) } else { Ok(()) };
    (stage.steps.iter().try_for_each(each), runner.cpu.get())
}

struct Runner<'a> {
    log: &'a File,
    stop: &'a Stop,
    /// Whether its steps let other stages go first.
    yields: bool,
    /// Used by the commands that have ended.
    cpu: Cell<Duration>,
}

/// Why a command did not succeed.
enum CommandFailure {
    /// The stage's exit status, or why there is none.
    Failed(String),
    /// This program was told to stop.
    Stopped(Signal),
    /// The stage's time was used up.
    Late,
}

impl Runner<'_> {
    /// Whether a step must be run; an error if this program is told to stop meanwhile.
    fn is_wanted(&self, step: &Step, end: Instant) -> Result<bool, String> {
        match step.when {
            StepCondition::Always => Ok(true),
            StepCondition::Unless(probe) => Ok(!succeeds(probe)),
            StepCondition::Fetched { by, else_say } => {
                let mut fetch = command(by);
                fetch.stdout(Stdio::null()).stderr(Stdio::null());
                match self.command(fetch, end.min(now() + FETCH_MOST)) {
                    Ok(()) => Ok(true),
                    Err(CommandFailure::Stopped(signal)) => {
                        Err(format!("{}: stopped by {signal}", by.join(" ")))
                    }
                    Err(CommandFailure::Failed(_) | CommandFailure::Late) => {
                        self.note(else_say);
                        Ok(false)
                    }
                }
            }
        }
    }

    /// Runs a step until it succeeds, as often as it may be tried.
    fn tries(&self, step: &Step, end: Instant) -> Result<(), String> {
        for nth in 1.. {
            match self.step(step, end) {
                Ok(()) if nth > 1 => self.note(format_args!("FLAKY {}", step.command.join(" "))),
                Ok(()) => {}
                Err(reason) if nth < step.tries && self.stop.signal().is_none() && now() < end => {
                    self.note(format_args!("try {nth} of {}: {reason}", step.tries));
                    continue;
                }
                Err(reason) => return Err(reason),
            }
            break;
        }
        Ok(())
    }

    fn step(&self, step: &Step, end: Instant) -> Result<(), String> {
        let line = step.command.join(" ");
        let env: Vec<String> = step.env.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        let env = env.concat();
        self.note(format_args!("$ {env}{line}"));
        let output = || self.log.try_clone().map_err(|error| format!("{line}: its log: {error}"));
        let mut command = command(step.command);
        if self.yields {
            command = yielding(&command);
        }
        command.envs(step.env.iter().copied()).stdout(output()?).stderr(output()?);
        self.command(command, end).map_err(|failure| match failure {
            CommandFailure::Failed(reason) => format!("{line}: {reason}"),
            CommandFailure::Stopped(signal) => format!("{line}: stopped by {signal}"),
            CommandFailure::Late => format!("{line}: the stage's time is used up"),
        })
    }

    /// Runs a command, whose processes are ended if it has not ended by itself.
    fn command(&self, mut command: Command, end: Instant) -> Result<(), CommandFailure> {
        let failed = |error: std::io::Error| CommandFailure::Failed(error.to_string());
        let running = RunningCommand::start(&mut command).map_err(failed)?;
        loop {
            let left = end.saturating_duration_since(now());
            if let Some(ended) = running.wait(left.min(POLL)) {
                let status = self.counted(ended).map_err(failed)?;
                if status.success() {
                    return Ok(());
                }
                running.end_members();
                return Err(CommandFailure::Failed(status.to_string()));
            }
            let (signal, failure) = match self.stop.signal() {
                Some(signal) => (signal, CommandFailure::Stopped(signal)),
                None if left.is_zero() => (Signal::SIGTERM, CommandFailure::Late),
                None => continue,
            };
            if let Some(ended) = running.end(signal) {
                let _failed_anyway = self.counted(ended);
            }
            return Err(failure);
        }
    }

    /// How a command ended; its time of processors is added up.
    fn counted(&self, (status, cpu): CommandEnd) -> std::io::Result<ExitStatus> {
        self.cpu.set(self.cpu.get() + cpu);
        status
    }

    /// A line of the stage's own in its log.
    fn note(&self, line: impl Display) {
        let mut log = self.log;
        // A disk that is full fails the command that comes next.
        let _unwritten = writeln!(log, "{line}");
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = match words[0] {
        XTASK => crate::command(&own_path()),
        program => crate::command(program),
    };
    command.args(&words[1..]);
    command
}

/// The command of a stage that keeps processors busy: with a third of the share of time of another one, so that
/// tests beside it that wait for timers and sockets are not late.
fn yielding(command: &Command) -> Command {
    let mut nice = crate::command("nice");
    nice.args(["-n", "5"]).arg(command.get_program()).args(command.get_args());
    nice
}

/// The path of this program. Compiled anew meanwhile, another one has it.
fn own_path() -> String {
    let path = std::env::current_exe()
        .map_or_else(|_| "target/debug/xtask".into(), |path| path.display().to_string());
    path.strip_suffix(" (deleted)").map_or(path.clone(), str::to_owned)
}

fn succeeds(probe: &[&str]) -> bool {
    let status = command(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::path::{Path, PathBuf};
    use std::thread;

    use super::super::stages::step;
    use super::*;

    const PLAIN: Stage = Stage {
        name: "plain",
        shows: "",
        minutes: 1,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 0,
        steps: &[],
    };

    /// A log file that is removed when its test ends.
    struct Log(PathBuf);

    impl Log {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("xtask-run-{}-{name}", std::process::id())))
        }

        fn open(&self) -> File {
            OpenOptions::new().create(true).append(true).open(&self.0).unwrap()
        }

        fn text(&self) -> String {
            fs::read_to_string(&self.0).unwrap()
        }
    }

    impl Drop for Log {
        fn drop(&mut self) {
            let _absent = fs::remove_file(&self.0);
        }
    }

    fn far() -> Instant {
        now() + Duration::from_secs(60)
    }

    #[test]
    fn a_failing_command_and_one_over_its_budget_are_told_apart() {
        let log = Log::new("late");
        let (file, stop) = (log.open(), Stop::default());
        let runner = Runner { log: &file, stop: &stop, yields: false, cpu: Cell::default() };
        assert_eq!(runner.step(&step(&["true"]), far()), Ok(()));
        assert!(runner.step(&step(&["false"]), far()).is_err_and(|reason| reason.contains("exit status: 1")));
        let begin = now();
        let late = runner.step(&step(&["sh", "-c", "sleep 60 & wait"]), begin + POLL);
        assert!(late.is_err_and(|reason| reason.contains("time is used up")));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_stage_that_keeps_processors_busy_yields() {
        let log = Log::new("yields");
        let (file, stop) = (log.open(), Stop::default());
        let own = Command::new("nice").output().unwrap();
        let own: i32 = String::from_utf8(own.stdout).unwrap().trim().parse().unwrap();
        for (yields, more) in [(false, 0), (true, 5)] {
            let runner = Runner { log: &file, stop: &stop, yields, cpu: Cell::default() };
            assert_eq!(runner.step(&step(&["sh", "-c", "echo niceness $(nice)"]), far()), Ok(()));
            let text = log.text();
            let niceness = text.rsplit("\nniceness ").next().unwrap().trim();
            assert_eq!(niceness.parse(), Ok((own + more).min(19)), "{yields}");
        }
    }

    #[test]
    fn a_signal_ends_the_whole_group() {
        let log = Log::new("stopped");
        let (file, stop) = (log.open(), Stop::default());
        let told = stop.clone();
        let path = log.0.clone();
        let teller = thread::spawn(move || {
            let begin = now();
            while !fs::read_to_string(&path).is_ok_and(|text| text.contains("\nchild ")) {
                assert!(begin.elapsed() < Duration::from_secs(30), "never began");
                thread::yield_now();
            }
            told.tell(Signal::SIGTERM);
        });
        let runner = Runner { log: &file, stop: &stop, yields: false, cpu: Cell::default() };
        let stopped = runner.step(&step(&["sh", "-c", "sleep 60 & echo child $!; wait"]), far());
        teller.join().unwrap();
        assert!(stopped.is_err_and(|reason| reason.contains("stopped by SIGTERM")));
        let text = log.text();
        let child = text.rsplit("\nchild ").next().unwrap().trim();
        // Until it is reaped, an ended process is a zombie.
        let goes_on = || {
            let stat = fs::read_to_string(Path::new("/proc").join(child).join("stat"));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let begin = now();
        while goes_on() {
            assert!(begin.elapsed() < Duration::from_secs(30), "process {child} goes on");
            thread::yield_now();
        }
    }

    #[test]
    fn signals_are_taken_over_here_and_by_no_command() {
        let log = Log::new("taken");
        let (file, stop) = (log.open(), Stop::on_signals().unwrap());
        let runner = Runner { log: &file, stop: &stop, yields: false, cpu: Cell::default() };
        assert_eq!(runner.step(&step(&["grep", "^SigBlk", "/proc/self/status"]), far()), Ok(()));
        assert!(log.text().ends_with("\nSigBlk:\t0000000000000000\n"), "{}", log.text());
        let ended = runner.step(&step(&["sh", "-c", "kill $$"]), far());
        assert!(ended.is_err_and(|reason| reason.contains("SIGTERM")));
        assert_eq!(stop.signal(), None);
        nix::sys::signal::raise(Signal::SIGHUP).unwrap();
        assert_eq!(stop.signal(), Some(Signal::SIGHUP));
    }

    #[test]
    fn a_step_that_fails_is_tried_again_and_named() {
        let log = Log::new("tries");
        let (file, stop) = (log.open(), Stop::default());
        let runner = Runner { log: &file, stop: &stop, yields: false, cpu: Cell::default() };
        // The log grows by a line with each try.
        let path = Box::leak(log.0.display().to_string().into_boxed_str());
        let count: &[&str] =
            Box::leak(Box::new(["sh", "-c", "echo once; test $(grep -c ^once$ $0) = 4", path]));
        let third = |tries| Step { tries, ..step(count) };
        assert!(runner.tries(&third(2), far()).is_err_and(|reason| reason.contains("exit status: 1")));
        assert_eq!(runner.tries(&third(3), far()), Ok(()));
        let text = log.text();
        assert!(text.contains("\ntry 1 of 2: ") && text.contains("\ntry 1 of 3: "), "{text}");
        assert_eq!(
            (text.matches("\nonce\n").count(), text.matches("\nFLAKY sh -c ").count()),
            (4, 1),
            "{text}"
        );
    }

    #[test]
    fn times_of_processors_are_those_of_the_command_and_its_children() {
        const BUSY: &[Step] =
            &[step(&["sh", "-c", "sh -c 'n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done'; true"])];
        let log = Log::new("cpu");
        let (done, cpu) = run(&Stage { steps: BUSY, ..PLAIN }, &log.open(), &Stop::default());
        assert_eq!(done, Ok(()));
        assert!(cpu > Duration::ZERO);
    }

    #[test]
    fn all_output_is_in_the_log_with_its_command() {
        const STEPS: &[Step] =
            &[step(&["sh", "-c", "echo out; echo err >&2"]), step(&["false"]), step(&["echo", "never"])];
        let log = Log::new("output");
        let (failed, _) = run(&Stage { steps: STEPS, ..PLAIN }, &log.open(), &Stop::default());
        assert!(failed.is_err_and(|reason| reason.starts_with("false: ")));
        assert_eq!(log.text(), "$ sh -c echo out; echo err >&2\nout\nerr\n$ false\n");
    }

    #[test]
    fn what_cannot_be_fetched_is_left_out_and_what_can_must_be_right() {
        const ABSENT: &[Step] = &[Step {
            when: StepCondition::Fetched { by: &["false"], else_say: "left out, as a test wants it" },
            ..step(&["false"])
        }];
        const LISTED: &[Step] =
            &[Step { when: StepCondition::Fetched { by: &["true"], else_say: "" }, ..step(&["false"]) }];
        let log = Log::new("fetched");
        let (file, stop) = (log.open(), Stop::default());
        let runner = Runner { log: &file, stop: &stop, yields: false, cpu: Cell::default() };
        let fetched = |by| Step {
            when: StepCondition::Fetched { by, else_say: "left out, as a test wants it" },
            ..step(&["false"])
        };
        assert_eq!(runner.is_wanted(&fetched(&["true"]), far()), Ok(true));
        assert_eq!(runner.is_wanted(&fetched(&["false"]), far()), Ok(false));
        assert_eq!(runner.is_wanted(&fetched(&["no-such-program"]), far()), Ok(false));
        let begin = now();
        let hangs = fetched(&["sh", "-c", "sleep 60 & wait"]);
        assert_eq!(runner.is_wanted(&hangs, begin + POLL), Ok(false));
        assert!(begin.elapsed() < Duration::from_secs(30));

        assert_eq!(run(&Stage { steps: ABSENT, ..PLAIN }, &file, &stop).0, Ok(()));
        assert!(log.text().ends_with("left out, as a test wants it\n"));
        let (listed, _) = run(&Stage { steps: LISTED, ..PLAIN }, &file, &stop);
        assert!(listed.is_err_and(|reason| reason.contains("exit status: 1")));
    }

    #[test]
    fn probes_decide_what_is_run() {
        const STEPS: &[Step] = &[
            Step { when: StepCondition::Unless(&["true"]), ..step(&["false"]) },
            Step { when: StepCondition::Unless(&["no-such-program"]), ..step(&["true"]) },
        ];
        let log = Log::new("probes");
        assert_eq!(run(&Stage { steps: STEPS, ..PLAIN }, &log.open(), &Stop::default()).0, Ok(()));
    }
}
