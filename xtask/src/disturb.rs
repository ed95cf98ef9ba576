//! `cargo xtask disturb [OPTION]... COMMAND...`: runs a command on a machine that gives its processes time
//! when it likes.
//!
//! A test must not fail because it, a server or a worker was scheduled late. While the command runs, busy
//! loops take the processors, and processes that it has started are stopped at random for some milliseconds
//! (SIGSTOP, then SIGCONT) or get a lower priority, for good. cargo and compilers are left alone.
//!
//! What is stopped already is left alone, so that a test may stop processes itself. A stop of a test's that
//! comes within one from here ends with it: where that matters, give `--stopped 0`.
//!
//! A signal is passed on to the command. When the command has ended, or 20 s later, or at the second signal, what is
//! left of its processes is ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::setpriority_process;

use crate::processes::{CommandEnd, POLL, ProcessStat, RunningCommand, Stop, now, pause};

/// How long the command has for its end after a signal, in which `cargo xtask test` ends its stages and says so.
const GRACE: Duration = Duration::from_secs(20);

/// Programs that are neither tests nor tested.
const SPARED: [&str; 13] = [
    "cargo",
    "cargo-nextest",
    "cargo-clippy",
    "clippy-driver",
    "rustc",
    "rustdoc",
    "cc",
    "c++",
    "cc1plus",
    "as",
    "collect2",
    "xtask",
    "nice",
];

#[derive(Debug, Args)]
pub(crate) struct DisturbOptions {
    /// Busy loops for each processor, 0 to 16
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=16))]
    busy: u64,
    /// The part of the time, in percent, in which a process is stopped: 0, or 10 to 90
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = stopped)]
    stopped: u64,
    /// The longest stop in milliseconds, 1 to 2000
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u64).range(1..=2000))]
    longest: u64,
    /// The seed of victims and times, which is printed: the same one makes a similar run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The command, run in the current directory, without input
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

fn stopped(text: &str) -> Result<u64, String> {
    let percent = text.parse().ok().filter(|percent| *percent == 0 || (10..=90).contains(percent));
    percent.ok_or_else(|| "not 0, nor 10 to 90".to_owned())
}

pub(crate) fn disturb(options: &DisturbOptions) -> Result<(), String> {
    let stop = Stop::on_signals()?;
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("disturb: seed {seed}");
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..options.busy * cores {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let ended = run(options, seed, &stop);
        done.store(true, Ordering::Relaxed);
        ended
    })
}

/// Runs the command to its end, disturbing what it has started, and ends what it leaves behind.
fn run(options: &DisturbOptions, seed: u64, stop: &Stop) -> Result<(), String> {
    let line = options.command.join(" ");
    let failed = |error: std::io::Error| format!("{line}: {error}");
    let mut command = crate::command(&options.command[0]);
    command.args(&options.command[1..]).current_dir(std::env::current_dir().map_err(failed)?);
    let running = RunningCommand::start(&mut command).map_err(failed)?;
    let mut random = Random(seed.wrapping_mul(2).wrapping_add(1));
    let mut next = now();
    let (ended, signal) = loop {
        if let Some(ended) = running.wait(next.saturating_duration_since(now()).min(POLL)) {
            break (Some(ended), None);
        }
        if let Some(signal) = stop.take() {
            break (stopped_by(signal, &running, stop), Some(signal));
        }
        if now() >= next {
            next = disturb_one(options, &running, &mut random);
        }
    };
    let left = running.members();
    if !left.is_empty() {
        let names: Vec<String> = left.iter().map(|(pid, stat)| format!("{} ({pid})", stat.name)).collect();
        eprintln!("disturb: ending what the command has left behind: {}", names.join(", "));
        running.end_members();
    }
    match (ended.or_else(|| running.wait(GRACE)), signal) {
        (_, Some(signal)) => Err(format!("{line}: stopped by {signal}")),
        (Some((status, _)), None) => {
            let status = status.map_err(failed)?;
            if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
        }
        (None, None) => Err(format!("{line}: it was not seen to end")),
    }
}

/// Passes a signal on and waits for the command's end, until its time is over or another signal comes.
fn stopped_by(signal: Signal, running: &RunningCommand, stop: &Stop) -> Option<CommandEnd> {
    running.signal(signal);
    let begin = now();
    loop {
        let ended = running.wait(POLL);
        if ended.is_some() || begin.elapsed() >= GRACE || stop.take().is_some() {
            return ended;
        }
    }
}

/// Stops or slows one process. Returns when to do so again.
fn disturb_one(options: &DisturbOptions, running: &RunningCommand, random: &mut Random) -> Instant {
    let ms = 1 + random.below(options.longest);
    let victims: Vec<i32> =
        running.members().into_iter().filter(|(_, stat)| is_victim(stat)).map(|(pid, _)| pid).collect();
    if let Some(victim) = random.choose(&victims) {
        if random.below(4) == 0 {
            let low = i32::try_from(random.below(20)).expect("it is below 20");
            // Gone meanwhile.
            let _gone = setpriority_process(rustix::process::Pid::from_raw(*victim), low);
        }
        if options.stopped > 0 {
            let victim = Pid::from_raw(*victim);
            let _gone = kill(victim, Signal::SIGSTOP);
            pause(Duration::from_millis(ms));
            let _gone = kill(victim, Signal::SIGCONT);
        }
    }
    // With 0 there are only priorities.
    let pause = (ms * (100 - options.stopped)).checked_div(options.stopped);
    now() + Duration::from_millis(pause.unwrap_or(ms))
}

/// Whether a process is a test or is tested, and not stopped.
fn is_victim(process: &ProcessStat) -> bool {
    let is_spared = SPARED.contains(&process.name.as_str())
        || ["ld", "rust-lld", "build-script"].iter().any(|start| process.name.starts_with(start));
    !process.is_stopped() && !is_spared
}

/// Numbers that only have to differ (xorshift64, Marsaglia 2003).
struct Random(u64);

impl Random {
    /// A number below `end`, which is above 0.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn choose<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(usize::try_from(self.below(all.len().max(1) as u64)).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Disturb {
        #[command(flatten)]
        options: DisturbOptions,
    }

    fn parse(words: &[&str]) -> Result<DisturbOptions, String> {
        let words = ["disturb"].iter().chain(words);
        Disturb::try_parse_from(words).map(|disturb| disturb.options).map_err(|error| error.to_string())
    }

    #[test]
    fn options_come_before_the_command() {
        for command in [&["sh", "-c", "true"][..], &["--", "sh", "-c", "true"]] {
            let options = parse(&[&["--stopped=50", "--seed", "7"], command].concat()).unwrap();
            let DisturbOptions { busy, stopped, longest, seed, command } = options;
            assert_eq!((busy, stopped, longest, seed), (2, 50, 80, Some(7)));
            assert_eq!(command, ["sh", "-c", "true"]);
        }
        for (wrong, reason) in [
            (&["--stopped", "91", "true"][..], "not 0, nor 10 to 90"),
            (&["--stopped", "9", "true"], "not 0, nor 10 to 90"),
            (&["--seed"], "a value is required"),
            (&[], "required arguments were not provided"),
            (&["--busy", "x", "true"], "invalid digit"),
            (&["--bus", "1", "true"], "unexpected argument '--bus'"),
        ] {
            assert!(parse(wrong).is_err_and(|error| error.contains(reason)), "{wrong:?}: {:?}", parse(wrong));
        }
    }

    #[test]
    fn tests_and_their_servers_are_stopped_and_compilers_are_not() {
        let stat = |name: &str, state| ProcessStat::of(name, state);
        assert!(is_victim(&stat("cattlegrid", 'S')) && is_victim(&stat("it-0123456789abc", 'R')));
        assert!(!is_victim(&stat("cattlegrid", 'T')), "stopped already");
        for spared in ["rustc", "cargo", "ld.lld", "rust-lld", "build-script-bu", "xtask"] {
            assert!(!is_victim(&stat(spared, 'R')), "{spared}");
        }
    }

    #[test]
    fn a_disturbed_command_ends_as_it_would() {
        let run = |script: &str| {
            let options = parse(&["--busy=0", "--stopped=90", "--longest=5", "sh", "-c", script]).unwrap();
            run(&options, 1, &Stop::default())
        };
        assert_eq!(run("for n in 1 2 3 4 5 6 7 8 9; do sleep 0.01; done"), Ok(()));
        assert!(
            run("sh -c 'sleep 0.1; exit 3'; exit $?").is_err_and(|error| error.ends_with("exit status: 3"))
        );
    }

    /// What it has started in other sessions, too, and what heeds no SIGTERM.
    #[test]
    fn a_signal_ends_the_command_and_what_it_leaves_behind() {
        let script = "setsid sh -c 'trap \"\" TERM INT; echo $$ > $0; while :; do sleep 0.1; done' $0 & wait";
        let told = std::env::temp_dir().join(format!("xtask-disturb-{}", std::process::id()));
        let path = told.display().to_string();
        let options = parse(&["--busy=0", "--stopped=0", "sh", "-c", script, &path]).unwrap();
        let stop = Stop::default();
        let begin = now();
        let pid = || std::fs::read_to_string(&told).ok().and_then(|text| text.trim().parse::<i32>().ok());
        thread::scope(|scope| {
            let running = scope.spawn(|| run(&options, 1, &stop));
            while pid().is_none() {
                assert!(begin.elapsed() < Duration::from_secs(30), "never began");
                thread::yield_now();
            }
            stop.tell(Signal::SIGINT);
            let ended = running.join().unwrap();
            assert!(ended.is_err_and(|error| error.ends_with("stopped by SIGINT")));
        });
        let left = pid().unwrap();
        std::fs::remove_file(&told).unwrap();
        // A process that is not waited for stays as an entry of the table.
        let goes_on = || std::fs::read(format!("/proc/{left}/cmdline")).is_ok_and(|line| !line.is_empty());
        while goes_on() {
            assert!(begin.elapsed() < Duration::from_secs(60), "process {left} goes on");
            thread::yield_now();
        }
    }
}
