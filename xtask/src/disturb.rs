//! `cargo xtask disturb [OPTION]... COMMAND...`: runs a command on a machine that gives its processes time
//! when it likes.
//!
//! A test must not fail because it, a server or a worker was scheduled late. While the command runs, busy
//! loops take the processors, and processes that it has started are stopped at random for some milliseconds
//! (SIGSTOP, then SIGCONT) or get a lower priority, for good. cargo and compilers are left alone.
//!
//! `--busy N`: busy loops for each processor, 2 without it. `--stopped N`: the part of the time, in percent,
//! in which one process is stopped, 0 or 10 to 90, 30 without it. `--longest N`: the longest stop in
//! milliseconds, 80 without it. `--seed N`: another order of victims and times; printed, since the same one
//! makes a similar run.
//!
//! What is stopped already is left alone, so that a test may stop processes itself. A stop of a test's that
//! comes within one from here ends with it: where that matters, give `--stopped 0`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::process::setpriority_process;

use crate::test::Stop;

const USAGE: &str = "usage: cargo xtask disturb [--busy 0..=16] [--stopped 0|10..=90] [--longest 1..=2000] [--seed N] COMMAND...";

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

#[derive(Debug, PartialEq, Eq)]
struct DisturbOptions {
    busy: u64,
    stopped: u64,
    longest_ms: u64,
    seed: u64,
}

pub(crate) fn disturb(words: &[&str]) -> Result<(), String> {
    let (options, command) = parse(words)?;
    let stop = Stop::on_signals()?;
    eprintln!("disturb: seed {}", options.seed);
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
        let ended = run(&options, command, &stop);
        done.store(true, Ordering::Relaxed);
        ended
    })
}

/// The options and the command that `words` give.
fn parse<'a>(words: &'a [&'a str]) -> Result<(DisturbOptions, &'a [&'a str]), String> {
    let mut options =
        DisturbOptions { busy: 2, stopped: 30, longest_ms: 80, seed: u64::from(std::process::id()) };
    let mut rest = words;
    while let [name, value, after @ ..] = rest
        && name.starts_with("--")
    {
        let (place, range) = match *name {
            "--busy" => (&mut options.busy, 0..=16),
            "--stopped" => (&mut options.stopped, 0..=90),
            "--longest" => (&mut options.longest_ms, 1..=2000),
            "--seed" => (&mut options.seed, 0..=u64::MAX),
            _ => return Err(format!("{name}: {USAGE}")),
        };
        let is_valid =
            |number: &u64| range.contains(number) && (*name != "--stopped" || !(1..10).contains(number));
        *place = value.parse().ok().filter(is_valid).ok_or(format!("{name} {value}: {USAGE}"))?;
        rest = after;
    }
    if rest.first().is_none_or(|word| word.starts_with("--")) {
        Err(USAGE.to_owned())
    } else {
        Ok((options, rest))
    }
}

/// Runs the command to its end, disturbing what it has started.
fn run(options: &DisturbOptions, command: &[&str], stop: &Stop) -> Result<(), String> {
    let line = command.join(" ");
    let failed = |error: std::io::Error| format!("{line}: {error}");
    let mut child =
        crate::command(command[0]).args(&command[1..]).process_group(0).spawn().map_err(failed)?;
    let group = i32::try_from(child.id()).expect("process ids are positive i32s");
    let mut is_told = false;
    let mut random = Random(options.seed.wrapping_mul(2).wrapping_add(1));
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) };
        }
        if let Some(signal) = stop.signal() {
            if !is_told {
                // It fails only when the group is gone, as it should be.
                let _gone = killpg(Pid::from_raw(group), signal);
            }
            is_told = true;
            pause(10);
            continue;
        }
        let ms = 1 + random.below(options.longest_ms);
        let victims = victims(group);
        if let Some(victim) = random.choose(&victims) {
            if random.below(4) == 0 {
                let low = i32::try_from(random.below(20)).expect("it is below 20");
                // Gone meanwhile.
                let _gone = setpriority_process(rustix::process::Pid::from_raw(*victim), low);
            }
            if options.stopped > 0 {
                let victim = Pid::from_raw(*victim);
                let _gone = kill(victim, Signal::SIGSTOP);
                pause(ms);
                let _gone = kill(victim, Signal::SIGCONT);
            }
        }
        pause(ms * (100 - options.stopped) / options.stopped.max(10)); // 0: only priorities
    }
}

#[expect(clippy::disallowed_methods, reason = "real processes are stopped for real time")]
fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// The processes that descend from this one and are tests or are tested.
fn victims(ancestor: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |pid: i32| ProcessStat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    let all: BTreeMap<i32, ProcessStat> = pids.filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let descends = |pid: &i32| {
        let mut at = *pid;
        // As deep as the table is large: processes may have changed while they were read.
        (0..all.len()).any(|_| {
            at = all.get(&at).map_or(0, |stat| stat.parent);
            at == ancestor
        })
    };
    let is_spared = |name: &str| {
        SPARED.contains(&name)
            || ["ld", "rust-lld", "build-script"].iter().any(|start| name.starts_with(start))
    };
    let is_victim =
        |pid: &i32, stat: &ProcessStat| !stat.is_stopped && !is_spared(&stat.name) && descends(pid);
    all.iter().filter(|(pid, stat)| is_victim(pid, stat)).map(|(pid, _)| *pid).collect()
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    /// The parent's process id.
    parent: i32,
    /// The program's name, which may have any characters.
    name: String,
    is_stopped: bool,
}

impl ProcessStat {
    fn parse(stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let mut words = after.split_whitespace();
        let is_stopped = words.next()? == "T";
        Some(Self { parent: words.next()?.parse().ok()?, name, is_stopped })
    }
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
    use super::*;

    #[test]
    fn options_come_before_the_command() {
        let (options, command) = parse(&["--stopped", "50", "--seed", "7", "sh", "-c", "true"]).unwrap();
        assert_eq!(options, DisturbOptions { busy: 2, stopped: 50, longest_ms: 80, seed: 7 });
        assert_eq!(command, ["sh", "-c", "true"]);
        for wrong in [
            &["--stopped", "91", "true"][..],
            &["--stopped", "9", "true"],
            &["--seed"],
            &[],
            &["--busy", "x", "true"],
            &["--late", "1", "true"],
        ] {
            assert!(parse(wrong).is_err_and(|error| error.contains(USAGE)), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_programs_may_have_brackets_and_blanks() {
        let stat = |is_stopped| Some(ProcessStat { parent: 7, name: "a) b".to_owned(), is_stopped });
        assert_eq!(ProcessStat::parse("12 (a) b) S 7 12 12 0"), stat(false));
        assert_eq!(ProcessStat::parse("12 (a) b) T 7 12 12 0"), stat(true));
        assert_eq!(ProcessStat::parse("12"), None);
    }

    #[test]
    fn what_descends_is_found_and_a_disturbed_command_ends_as_it_would() {
        let mut child = crate::command("sh")
            .args(["-c", "sleep 60 & read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let shell = i32::try_from(child.id()).unwrap();
        while victims(shell).is_empty() {
            thread::yield_now();
        }
        assert!(victims(own).contains(&shell));
        let sleeper = victims(shell);
        assert_eq!(sleeper.len(), 1);
        kill(Pid::from_raw(shell), Signal::SIGSTOP).unwrap();
        while victims(own).contains(&shell) {
            thread::yield_now();
        }
        kill(Pid::from_raw(shell), Signal::SIGCONT).unwrap();
        kill(Pid::from_raw(sleeper[0]), Signal::SIGKILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();

        let options = DisturbOptions { busy: 0, stopped: 90, longest_ms: 5, seed: 1 };
        assert_eq!(
            run(&options, &["sh", "-c", "for n in 1 2 3 4 5 6 7 8 9; do sleep 0.01; done"], &Stop::default()),
            Ok(())
        );
        let failed = run(&options, &["sh", "-c", "sh -c 'sleep 0.1; exit 3'; exit $?"], &Stop::default());
        assert!(failed.is_err_and(|error| error.ends_with("exit status: 3")));
    }
}
