//! `cargo xtask test`: everything that is tested, in stages that run side by side where the machine allows
//! it.
//!
//! * `stages`: what the stages are, what each needs, and what it asks of the machine
//! * `schedule`: which stage may start now
//! * `run`: one stage, its processes and its time
//! * `memory`: what the machine has left
//! * `named`: the tests of a stage that failed, at once or for good
//!
//! Each stage runs on a thread of its own and writes to `target/test-logs/STAGE.log`. Its output is printed
//! when it ends, in one piece. A stage that was asked for alone is printed as it goes. A failure does not end
//! the run: every other stage runs, except for the stages that need a failed stage. The end is a table of all
//! stages, and a line that says how many passed and failed.
//!
//! # Invariants
//! * A stage's output is in its log file as soon as it is written, so that it outlives this program.
//! * No process of a stage is left when its time is over or this program was told to stop.

mod memory;
mod named;
mod run;
mod schedule;
mod stages;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use named::NamedTests;
use schedule::{Schedule, StageOutcome};
#[cfg(test)]
pub(crate) use stages::UNSAFE_CODE;
use stages::{STAGES, Stage};

use crate::processes::{Stop, now};

/// How often the runner looks for a signal, for memory that became free, and for output to follow.
const TICK: Duration = Duration::from_millis(200);

/// The time limit of a whole run, as text.
const BUDGET: &str = " (budget on two cores: 2400 s cold, 1500 s when everything is compiled)";

/// How often it says what is running.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(crate) struct TestOptions {
    /// Only this stage of those that `--list` names, and what it needs; may be given more than once
    #[arg(long = "stage", value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(names()), hide_possible_values = true)]
    stages: Vec<String>,
    /// Run nothing; name the stages
    #[arg(long)]
    list: bool,
}

fn names() -> impl Iterator<Item = &'static str> {
    STAGES.iter().map(|stage| stage.name)
}

/// Runs the stages that `options` name and those that they need, all without them. Whether all passed.
pub(crate) fn test(options: &TestOptions) -> Result<bool, String> {
    let stages = select(&options.stages);
    if options.list {
        let width = width(&stages);
        for stage in stages {
            say(format_args!("{:<width$}  budget {:>2} min  {}", stage.name, stage.minutes, stage.shows));
        }
        return Ok(true);
    }
    let followed = if let [stage] = &options.stages[..] { Some(stage.as_str()) } else { None };
    let stop = Stop::on_signals()?;
    let logs = PathBuf::from(format!("{}/target/test-logs", crate::root()));
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let schedule = Schedule::new(stages, memory::cores(), memory::available_mib());
    let out = &mut io::stdout();
    let run = TestRun::new(schedule, logs, stop, out, followed);
    Ok(run.all(memory::available_mib).is_empty())
}

/// The stages of these names with all that they need, in their order; all without a name.
fn select(named: &[String]) -> Vec<&'static Stage> {
    let mut wanted: BTreeSet<&str> = named.iter().map(String::as_str).collect();
    // What a stage needs comes before it.
    for stage in STAGES.iter().rev() {
        if wanted.contains(stage.name) {
            wanted.extend(stage.needs);
        }
    }
    STAGES.iter().filter(|stage| named.is_empty() || wanted.contains(stage.name)).collect()
}

/// The length of the longest name.
fn width(stages: &[&Stage]) -> usize {
    stages.iter().map(|stage| stage.name.len()).max().unwrap_or(0)
}

/// One run of some stages.
struct TestRun<'a, W> {
    schedule: Schedule<'static>,
    /// By the number of the stage.
    times: Vec<StageTimes>,
    logs: PathBuf,
    stop: Stop,
    out: &'a mut W,
    /// The stage whose output is printed as it comes.
    followed: Option<&'static str>,
    ended: Sender<(usize, StageOutcome, Duration)>,
    ends: Receiver<(usize, StageOutcome, Duration)>,
}

/// When a stage began, how long it took, what it found, and where its output is.
#[derive(Default)]
struct StageTimes {
    begin: Option<Instant>,
    took: Option<Duration>,
    /// Time of processors that its commands used, as far as they have waited for their children.
    cpu: Duration,
    named: NamedTests,
    /// Open for reading, after what is printed already.
    unprinted: Option<File>,
}

impl<'a, W: Write> TestRun<'a, W> {
    fn new(
        schedule: Schedule<'static>,
        logs: PathBuf,
        stop: Stop,
        out: &'a mut W,
        followed: Option<&str>,
    ) -> Self {
        let times = schedule.outcomes().map(|_| StageTimes::default()).collect();
        let followed = schedule.outcomes().map(|(stage, _)| stage.name).find(|name| followed == Some(*name));
        let (ended, ends) = mpsc::channel();
        Self { schedule, times, logs, stop, out, followed, ended, ends }
    }

    /// Runs all stages and prints the summary; the names of those that did not pass. `free_mib` says what
    /// memory is free now.
    fn all(mut self, free_mib: impl Fn() -> u64) -> Vec<&'static str> {
        let begin = now();
        let mut last_sign = begin;
        loop {
            if let Some(signal) = self.stop.signal() {
                self.schedule.stop(&format!("stopped by {signal}"));
            }
            while let Some(number) = self.schedule.start(free_mib()) {
                self.start(number);
            }
            if self.schedule.running().next().is_none() {
                break;
            }
            match self.ends.recv_timeout(TICK) {
                Ok((number, outcome, cpu)) => {
                    self.times[number].cpu = cpu;
                    self.end(number, outcome);
                }
                Err(RecvTimeoutError::Timeout) => self.follow(),
                Err(RecvTimeoutError::Disconnected) => unreachable!("this run has a sender of its own"),
            }
            if last_sign.elapsed() >= SIGN_OF_LIFE {
                last_sign = now();
                self.sign_of_life();
            }
        }
        self.summary(begin.elapsed())
    }

    fn start(&mut self, number: usize) {
        let stage = self.stage(number);
        let count = self.times.len();
        let Stage { name, minutes, shows, .. } = stage;
        self.say(format_args!("== {name}: started ({}/{count}, budget {minutes} min): {shows}", number + 1));
        self.times[number].begin = Some(now());
        let path = self.log_path(stage);
        // Not truncated: a process of an earlier run may still have the old file.
        let _absent = fs::remove_file(&path);
        let log = match OpenOptions::new().create_new(true).append(true).open(&path) {
            Ok(log) => log,
            Err(error) => {
                let reason = format!("{}: {error}", path.display());
                return self.end(number, StageOutcome::Failed(reason));
            }
        };
        self.times[number].unprinted = File::open(&path).ok();
        let (ended, stop) = (self.ended.clone(), self.stop.clone());
        thread::spawn(move || {
            let (done, cpu) = run::run(stage, &log, &stop);
            let outcome = done.map_or_else(StageOutcome::Failed, |()| StageOutcome::Passed);
            // The receiver has gone: this program is ending.
            let _unheard = ended.send((number, outcome, cpu));
        });
    }

    /// Prints the output of a stage and how it ended.
    fn end(&mut self, number: usize, outcome: StageOutcome) {
        let name = self.stage(number).name;
        if self.followed != Some(name) {
            self.say(format_args!("\n== {name}: output"));
        }
        self.print_output(number);
        self.times[number].named = NamedTests::find(&self.log_path(self.stage(number)));
        if outcome == StageOutcome::Passed {
            self.times[number].named.failed.clear();
        }
        let took = self.times[number].begin.map_or(Duration::ZERO, |begin| begin.elapsed());
        self.times[number].took = Some(took);
        let seconds = took.as_secs();
        match &outcome {
            StageOutcome::Passed => self.say(format_args!("== {name}: passed in {seconds} s\n")),
            StageOutcome::Failed(reason) | StageOutcome::NotRun(reason) => {
                self.say(format_args!("== {name}: failed after {seconds} s: {reason}\n"));
            }
        }
        self.schedule.end(number, outcome);
    }

    /// Prints what the followed stage has written since.
    fn follow(&mut self) {
        let number = self.schedule.outcomes().position(|(stage, _)| self.followed == Some(stage.name));
        if let Some(number) = number {
            self.print_output(number);
        }
    }

    fn print_output(&mut self, number: usize) {
        if let Some(unprinted) = &mut self.times[number].unprinted {
            // A closed output is not a reason to stop.
            let _unread = io::copy(unprinted, self.out);
        }
    }

    fn sign_of_life(&mut self) {
        let running: Vec<&str> = self.schedule.running().collect();
        let since = |(number, (stage, _)): (usize, (&Stage, _))| {
            let begin = self.times[number].begin?;
            running.contains(&stage.name).then(|| format!("{} {} s", stage.name, begin.elapsed().as_secs()))
        };
        let running: Vec<String> = self.schedule.outcomes().enumerate().filter_map(since).collect();
        if self.followed.is_none() {
            self.say(format_args!("== running: {}", running.join(", ")));
        }
    }

    /// Prints the table of all stages, the tests that failed, and the last line.
    fn summary(self, took: Duration) -> Vec<&'static str> {
        let Self { schedule, times, out, .. } = self;
        let (mut failed, mut passed) = (Vec::new(), 0);
        let width = width(&schedule.outcomes().map(|(stage, _)| stage).collect::<Vec<_>>());
        say_to(
            out,
            format_args!(
                "\n{:<width$} {:<8} {:>7} {:>7} {:>7}",
                "stage", "result", "budget", "seconds", "CPU"
            ),
        );
        for ((stage, outcome), times) in schedule.outcomes().zip(&times) {
            let seconds = times.took.map_or_else(String::new, |took| format!("{:.1}", took.as_secs_f64()));
            let is_over = times.took.is_some_and(|took| took.as_secs() >= stage.minutes * 60);
            let (result, reason) = match outcome {
                Some(StageOutcome::Passed) if is_over => ("passed", "over its budget"),
                Some(StageOutcome::Passed) => ("passed", ""),
                Some(StageOutcome::Failed(reason)) => ("failed", reason.as_str()),
                Some(StageOutcome::NotRun(reason)) => ("not run", reason.as_str()),
                None => unreachable!("the run ends when every stage has ended"),
            };
            let (budget, cpu) = (stage.minutes * 60, times.cpu.as_secs_f64());
            let line =
                format!("{:<width$} {result:<8} {budget:>7} {seconds:>7} {cpu:>7.1}  {reason}", stage.name);
            say_to(out, line.trim_end());
            if result == "passed" {
                passed += 1;
            } else {
                failed.push(stage.name);
            }
        }
        let of_stages = || schedule.outcomes().map(|(stage, _)| stage.name).zip(&times);
        let of = |of: fn(&NamedTests) -> &BTreeSet<String>| {
            of_stages().flat_map(move |(stage, times)| {
                of(&times.named).iter().map(move |name| format!("{stage}: {name}"))
            })
        };
        say_all(out, "tests that failed:", of(|named| &named.failed));
        say_all(
            out,
            "tests that failed, and passed when run again, which is a fault all the same:",
            of(|named| &named.flaky),
        );
        if !failed.is_empty() {
            let again: Vec<_> = failed.iter().map(|name| format!("--stage {name}")).collect();
            say_to(out, format_args!("\nwhat failed, again: cargo xtask test {}", again.join(" ")));
        }
        let cpu: Duration = times.iter().map(|times| times.cpu).sum();
        let budget = if schedule.outcomes().count() == STAGES.len() { BUDGET } else { "" };
        say_to(
            out,
            format_args!(
                "\nall of it took {} s{budget} and {} s of processors",
                took.as_secs(),
                cpu.as_secs()
            ),
        );
        say_to(out, format_args!("{passed} passed, {} failed", failed.len()));
        failed
    }

    fn stage(&self, number: usize) -> &'static Stage {
        self.schedule.stage(number)
    }

    fn log_path(&self, stage: &Stage) -> PathBuf {
        Path::new(&self.logs).join(format!("{}.log", stage.name))
    }

    fn say(&mut self, line: impl Display) {
        say_to(self.out, line);
    }
}

/// Prints a line; a closed output is not a reason to stop.
fn say(line: impl Display) {
    say_to(&mut io::stdout(), line);
}

/// Prints a title and these lines, if there are any.
fn say_all(out: &mut impl Write, title: &str, lines: impl Iterator<Item = String>) {
    for (nth, line) in lines.enumerate() {
        if nth == 0 {
            say_to(out, format_args!("\n{title}"));
        }
        say_to(out, format_args!("  {line}"));
    }
}

fn say_to(out: &mut impl Write, line: impl Display) {
    let _unread = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use nix::sys::signal::Signal;

    use super::stages::{Step, step};
    use super::*;

    const PLAIN: Stage = Stage {
        name: "plain",
        shows: "nothing",
        minutes: 1,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 0,
        steps: &[],
    };

    /// Runs stages on a machine with 2 cores; what is printed, and which did not pass.
    fn perform(name: &str, stages: &'static [Stage], stop: &Stop) -> (String, Vec<&'static str>) {
        let logs = std::env::temp_dir().join(format!("xtask-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        let mut out = Vec::new();
        let schedule = Schedule::new(stages.iter().collect(), 2, 1000);
        let failed = TestRun::new(schedule, logs.clone(), stop.clone(), &mut out, None).all(|| 1000);
        for stage in stages.iter().filter(|stage| !failed.contains(&stage.name)) {
            let log = fs::read_to_string(logs.join(format!("{}.log", stage.name))).unwrap();
            let printed = String::from_utf8_lossy(&out).into_owned();
            assert!(printed.contains(&log), "{log:?} is not in one piece in {printed}");
        }
        fs::remove_dir_all(&logs).unwrap();
        (String::from_utf8(out).unwrap(), failed)
    }

    /// Where in `text` each of `parts` begins.
    fn places<const N: usize>(text: &str, parts: [&str; N]) -> [usize; N] {
        parts.map(|part| text.find(part).unwrap_or_else(|| panic!("no {part:?} in\n{text}")))
    }

    #[test]
    fn stages_are_selected_by_name_with_what_they_need_and_keep_their_order() {
        #[derive(Debug, clap::Parser)]
        struct Test {
            #[command(flatten)]
            options: TestOptions,
        }
        let names = |options: &[&str]| {
            let options = Test::try_parse_from(["test"].iter().chain(options)).map(|test| test.options);
            options.map(|options| select(&options.stages).iter().map(|stage| stage.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), STAGES.len());
        assert_eq!(names(&["--stage", "models", "--stage", "words"]).unwrap(), ["tools", "words", "models"]);
        assert_eq!(names(&["--stage=conformance-a-l"]).unwrap(), ["packages", "build", "conformance-a-l"]);
        for (wrong, reason) in [
            (&["--stage", "units"][..], "unit, orders, lints, docs"),
            (&["--stage"], "a value is required"),
            (&["unit"], "unexpected argument 'unit'"),
        ] {
            let error = names(wrong).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn two_stages_that_wait_for_each_other_run_side_by_side() {
        // Each makes a pipe and waits until the other opens it: one after the other, they would never end.
        const MEET: &[Step] = &[step(&[
            "sh",
            "-c",
            "p=${TMPDIR:-/tmp}/xtask-meet-$PPID; mkfifo $p 2>/dev/null; echo met >$p; echo done",
        ])];
        const READ: &[Step] = &[step(&[
            "sh",
            "-c",
            "p=${TMPDIR:-/tmp}/xtask-meet-$PPID; mkfifo $p 2>/dev/null; cat $p; rm $p",
        ])];
        const STAGES: &[Stage] = &[
            Stage { name: "writer", cores: 1, steps: MEET, ..PLAIN },
            Stage { name: "reader", cores: 1, steps: READ, ..PLAIN },
        ];
        let (printed, failed) = perform("meet", STAGES, &Stop::default());
        assert!(failed.is_empty(), "{printed}");
        assert!(printed.contains("\nmet\n") && printed.contains("\ndone\n"), "{printed}");
        assert!(printed.ends_with("\n2 passed, 0 failed\n"), "{printed}");
    }

    #[test]
    fn all_that_can_run_after_a_failure_does_and_the_summary_says_so() {
        const FALSE: &[Step] = &[step(&["sh", "-c", "echo why; exit 3"])];
        const TRUE: &[Step] = &[step(&["echo", "fine"])];
        const STAGES: &[Stage] = &[
            Stage { name: "first", cores: 2, steps: TRUE, ..PLAIN },
            Stage { name: "broken", cores: 2, steps: FALSE, ..PLAIN },
            Stage { name: "after", needs: &["broken"], steps: TRUE, ..PLAIN },
            Stage { name: "apart", needs: &["first"], cores: 2, steps: TRUE, ..PLAIN },
        ];
        let (printed, failed) = perform("failure", STAGES, &Stop::default());
        assert_eq!(failed, ["broken", "after"]);
        let [why, failure, passed] =
            places(&printed, ["\nwhy\n", "== broken: failed after", "== apart: passed in"]);
        assert!(why < failure && failure < passed, "{printed}");
        let summary = &printed[printed.find("\nstage ").unwrap()..];
        let lines: Vec<Vec<&str>> = summary.trim().lines().map(|l| l.split_whitespace().collect()).collect();
        let results: Vec<_> = lines[1..5].iter().map(|words| (words[0], words[1])).collect();
        assert_eq!(
            results,
            [("first", "passed"), ("broken", "failed"), ("after", "not"), ("apart", "passed")]
        );
        assert!(summary.contains("exit status: 3") && summary.contains("needs broken"), "{summary}");
        assert!(printed.ends_with("\n2 passed, 2 failed\n"), "{printed}");
    }

    #[test]
    fn a_signal_ends_what_runs_and_what_waits() {
        const SLEEP: &[Step] = &[step(&["sh", "-c", "echo before; sleep 60 & wait"])];
        const STAGES: &[Stage] = &[
            Stage { name: "asleep", cores: 2, steps: SLEEP, ..PLAIN },
            Stage { name: "next", cores: 2, steps: SLEEP, ..PLAIN },
        ];
        let stop = Stop::default();
        let told = stop.clone();
        let begin = now();
        let teller = thread::spawn(move || {
            let log = format!("xtask-test-{}-signal/asleep.log", std::process::id());
            let log = std::env::temp_dir().join(log);
            while !fs::read_to_string(&log).is_ok_and(|text| text.contains("\nbefore\n")) {
                assert!(begin.elapsed() < Duration::from_secs(30), "never began");
                thread::yield_now();
            }
            told.tell(Signal::SIGINT);
        });
        let (printed, failed) = perform("signal", STAGES, &stop);
        teller.join().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(50));
        assert_eq!(failed, ["asleep", "next"]);
        assert!(printed.contains("\nbefore\n"), "its output is printed all the same: {printed}");
        assert!(printed.contains("stopped by SIGINT"), "{printed}");
        assert!(printed.ends_with("\n0 passed, 2 failed\n"), "{printed}");
    }

    #[test]
    fn the_followed_stage_is_printed_as_it_goes_and_only_once() {
        const TWO: &[Step] = &[step(&["echo", "one"]), step(&["sh", "-c", "sleep 0.5; echo two"])];
        const STAGES: &[Stage] = &[Stage { name: "alone", steps: TWO, ..PLAIN }];
        let logs = std::env::temp_dir().join(format!("xtask-test-{}-follow", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        let mut out = Vec::new();
        let schedule = Schedule::new(STAGES.iter().collect(), 2, 1000);
        let failed =
            TestRun::new(schedule, logs.clone(), Stop::default(), &mut out, Some("alone")).all(|| 1000);
        fs::remove_dir_all(&logs).unwrap();
        let printed = String::from_utf8(out).unwrap();
        assert!(failed.is_empty());
        assert_eq!(printed.matches("\none\n").count(), 1, "{printed}");
        assert_eq!(printed.matches("\ntwo\n").count(), 1, "{printed}");
        assert!(!printed.contains("== alone: output"), "{printed}");
    }

    #[cfg(feature = "documents")]
    #[test]
    fn generated_documents_are_current() {
        assert_eq!(crate::docs::check(), Ok(()));
    }
}
