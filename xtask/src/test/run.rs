//! One stage: its commands, one after another, until the first that fails.
//!
//! A command runs in a process group of its own. The group is ended when the stage's time is used up or this
//! program is told to stop. What a stage writes goes straight into its log file, so that nothing is lost when
//! a run is cut off.
//!
//! # Invariants
//! * When [`run`] returns because time is up or a signal came, no process of the stage's group is left.
//! * A stage's log has each command in front of its output.

use std::cell::Cell;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use signal_hook::flag;

use super::stages::{OVER, Stage, Step, StepCondition};

/// How long a [`StepCondition::Fetched`] may take: where packets are dropped, a connection attempt takes
/// minutes.
const FETCH_MOST: Duration = Duration::from_secs(60);

/// How soon a running command notices a signal.
const POLL: Duration = Duration::from_millis(50);

/// How long a group has for its end after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Whether this program was told to stop, and by which signal. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Takes over the signals that would end this program: its children must go first. Children have no
    /// handler of their own and nothing blocked: they inherit the mask, and what is blocked in a test would
    /// be in all that it starts.
    pub(crate) fn on_signals() -> Result<Self, String> {
        let stop = Self::default();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            flag::register_usize(signal as i32, Arc::clone(&stop.0), signal as usize)
                .map_err(|error| format!("{signal} cannot be taken over: {error}"))?;
        }
        Ok(stop)
    }

    /// Tells every stage to stop, as a signal does.
    #[cfg(test)]
    pub(super) fn tell(&self, signal: Signal) {
        self.0.store(signal as usize, Ordering::Relaxed);
    }

    /// The last signal that came.
    pub(crate) fn signal(&self) -> Option<Signal> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().and_then(|number| Signal::try_from(number).ok())
    }
}

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

/// The prefix of the command of a stage that keeps processors busy. With it the stage has a third of the
/// share of time of another one, so that tests beside it that wait for timers and sockets are not late.
const YIELDING: &[&str] = &["nice", "-n", "5"];

/// Why a command did not succeed.
enum CommandFailure {
    /// The stage's exit status, or why there is none.
    Failed(String),
    /// This program was told to stop.
    Stopped(Signal),
    /// The stage's time was used up.
    Late,
}

/// How a command ended, and the time of processors that it used with all children that it waited for.
type CommandEnd = (std::io::Result<ExitStatus>, Duration);

/// That time, of the text of `/proc/PID/stat`: its own in user and kernel mode, and its children's.
fn cpu(stat: &str) -> Option<Duration> {
    // The fields behind the name, which may have any characters; the first of them has number 3.
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ticks = fields.skip(14 - 3).take(4).map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_A_SECOND))
}

/// The unit of these times, the same on all machines that Linux runs on today (`USER_HZ`).
const TICKS_A_SECOND: u64 = 100;

impl Runner<'_> {
    /// Whether a step must be run; an error if this program is told to stop meanwhile.
    fn is_wanted(&self, step: &Step, end: Instant) -> Result<bool, String> {
        match step.when {
            StepCondition::Always => Ok(true),
            StepCondition::Unless(probe) => Ok(!succeeds(probe)),
            StepCondition::Fetched { by, else_say } => {
                let mut fetch = command(by);
                fetch.stdout(Stdio::null()).stderr(Stdio::null());
                match self.group(fetch, end.min(now() + FETCH_MOST)) {
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
        let first = if self.yields { YIELDING } else { &[] };
        let mut command = command(&[first, step.command].concat());
        command.envs(step.env.iter().copied()).stdout(output()?).stderr(output()?);
        self.group(command, end).map_err(|failure| match failure {
            CommandFailure::Failed(reason) => format!("{line}: {reason}"),
            CommandFailure::Stopped(signal) => format!("{line}: stopped by {signal}"),
            CommandFailure::Late => format!("{line}: the stage's time is used up"),
        })
    }

    /// Runs a command in a process group of its own, which is ended if the command has not ended by itself.
    fn group(&self, mut command: Command, end: Instant) -> Result<(), CommandFailure> {
        let mut child =
            command.process_group(0).spawn().map_err(|error| CommandFailure::Failed(error.to_string()))?;
        let group = Pid::from_raw(i32::try_from(child.id()).expect("process ids are positive i32s"));
        let (told, ended) = mpsc::channel();
        thread::spawn(move || {
            // Read before the process is reaped: then it is gone.
            let _ended = waitid(Id::Pid(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let cpu = fs::read_to_string(format!("/proc/{group}/stat")).ok().and_then(|stat| cpu(&stat));
            // The receiver has gone: this program is ending.
            let _unheard = told.send((child.wait(), cpu.unwrap_or_default()));
        });
        let waited = self.wait(&ended, end).map(|(status, cpu)| {
            self.cpu.set(self.cpu.get() + cpu);
            status
        });
        let failure = match waited {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(status)) => return Err(CommandFailure::Failed(status.to_string())),
            Ok(Err(error)) => return Err(CommandFailure::Failed(error.to_string())),
            Err(failure) => failure,
        };
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            // It fails only when the group is gone, as it should be.
            let _gone = killpg(group, signal);
            if ended.recv_timeout(GRACE).is_ok() {
                break;
            }
        }
        // What its leader has left behind.
        let _gone = killpg(group, Signal::SIGKILL);
        Err(failure)
    }

    /// Waits for the end of a command, of its time, or for a signal.
    fn wait(&self, ended: &Receiver<CommandEnd>, end: Instant) -> Result<CommandEnd, CommandFailure> {
        loop {
            let left = end.saturating_duration_since(now());
            match ended.recv_timeout(left.min(POLL)) {
                Ok(ended) => return Ok(ended),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(CommandFailure::Failed("it was not seen to end".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(signal) = self.stop.signal() {
                return Err(CommandFailure::Stopped(signal));
            }
            if left.is_zero() {
                return Err(CommandFailure::Late);
            }
        }
    }

    /// A line of the stage's own in its log.
    fn note(&self, line: impl Display) {
        let mut log = self.log;
        // A disk that is full fails the command that comes next.
        let _unwritten = writeln!(log, "{line}");
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = crate::command(words[0]);
    command.args(&words[1..]);
    command
}

fn succeeds(probe: &[&str]) -> bool {
    let status = command(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[expect(clippy::disallowed_methods, reason = "a stage has a budget of real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::path::{Path, PathBuf};

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
        assert_eq!(cpu("7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 100 20 3 1 20 0"), Some(Duration::from_millis(1240)));
        assert_eq!(cpu("7 (a"), None);
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
