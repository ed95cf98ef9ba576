//! A command's processes: what it has started, directly or not, and their end.
//!
//! A command runs in a process group of its own, and with a variable in its environment that no other command has.
//! What it starts inherits both unless it wants otherwise: nextest gives each test a group of its own, servers become
//! daemons, few programs clear the environment. So a process belongs to the command if it has the variable, if its
//! parent belongs to it, or if one of both was so when it was looked for before.
//!
//! # Invariants
//! * After [`RunningCommand::end_members`] no process of the command is left, except one that the kernel does not let
//!   go, that this program may not signal, or that has cleared its environment and lost its parent before it was looked
//!   for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use signal_hook::flag;

/// How soon a signal is noticed.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// How long a command has for its end after a signal, what it has left behind after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Whether this program was told to stop, and by which signal. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Takes over the signals that would end this program: its children must go first. Children have no
    /// handler of their own and nothing blocked: they inherit the mask, and what is blocked in a test would
    /// be in all that it starts.
    ///
    /// There is one for the whole program: what comes between two commands is seen by the second.
    pub(crate) fn on_signals() -> Result<Self, String> {
        static STOP: LazyLock<Result<Stop, String>> = LazyLock::new(|| {
            let stop = Stop::default();
            for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
                flag::register_usize(signal as i32, Arc::clone(&stop.0), signal as usize)
                    .map_err(|error| format!("{signal} cannot be taken over: {error}"))?;
            }
            Ok(stop)
        });
        STOP.clone()
    }

    /// Stops as a signal does.
    #[cfg(test)]
    pub(crate) fn tell(&self, signal: Signal) {
        self.0.store(signal as usize, Ordering::Relaxed);
    }

    /// The last signal that came.
    pub(crate) fn signal(&self) -> Option<Signal> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().and_then(|number| Signal::try_from(number).ok())
    }

    /// That signal, which so is taken: another one is seen again.
    pub(crate) fn take(&self) -> Option<Signal> {
        let signal = self.signal();
        if signal.is_some() {
            self.0.store(0, Ordering::Relaxed);
        }
        signal
    }
}

/// How a command ended, and the time of processors that it used with all children that it waited for.
pub(crate) type CommandEnd = (std::io::Result<ExitStatus>, Duration);

/// A command that was started.
pub(crate) struct RunningCommand {
    /// The process id of the command, which is that of its group.
    group: Pid,
    variable: String,
    ended: Receiver<CommandEnd>,
    /// Processes that were found to belong to it, by their ids, and when each was started.
    known: RefCell<BTreeMap<i32, u64>>,
}

impl RunningCommand {
    pub(crate) fn start(command: &mut Command) -> std::io::Result<Self> {
        static NTH: AtomicU64 = AtomicU64::new(0);
        let variable =
            format!("XTASK_COMMAND_{}_{}", std::process::id(), NTH.fetch_add(1, Ordering::Relaxed));
        let mut child = command.process_group(0).env(&variable, "").spawn()?;
        let group = Pid::from_raw(i32::try_from(child.id()).expect("process ids are positive i32s"));
        let (told, ended) = mpsc::channel();
        thread::spawn(move || {
            // Read before the process is reaped: then it is gone.
            let _ended = waitid(Id::Pid(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let cpu = fs::read_to_string(format!("/proc/{group}/stat")).ok();
            let cpu = cpu.and_then(|stat| ProcessStat::parse(&stat)).map(|stat| stat.cpu);
            // The receiver has gone: this program is ending.
            let _unheard = told.send((child.wait(), cpu.unwrap_or_default()));
        });
        Ok(Self { group, variable, ended, known: RefCell::default() })
    }

    /// How it ended, if it does within this time.
    pub(crate) fn wait(&self, most: Duration) -> Option<CommandEnd> {
        match self.ended.recv_timeout(most) {
            Ok(ended) => Some(ended),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some((Err(std::io::Error::other("it was not seen to end")), Duration::ZERO))
            }
        }
    }

    /// Sends a signal to the command, and to those of its processes that have no group of their own.
    pub(crate) fn signal(&self, signal: Signal) {
        // Those whose parent ends by it are known then.
        let _members = self.members();
        // They fail only when the group is gone, as it should be. What is stopped heeds nothing else.
        let _gone = killpg(self.group, signal);
        let _gone = killpg(self.group, Signal::SIGCONT);
    }

    /// Ends all its processes: the command by `signal`, with some seconds for the end of what it has started, and then
    /// what is left. Returns how the command ended, if that was not yet seen.
    pub(crate) fn end(&self, signal: Signal) -> Option<CommandEnd> {
        self.signal(signal);
        let ended = self.wait(GRACE);
        self.end_members();
        ended.or_else(|| self.wait(GRACE))
    }

    /// Ends what is left of its processes, by SIGTERM and then by SIGKILL.
    pub(crate) fn end_members(&self) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let begin = now();
            let mut told = Vec::new();
            loop {
                let members = self.members();
                if members.is_empty() {
                    return;
                }
                for (pid, _) in members {
                    // Once each: a second SIGTERM means more than one to some programs. Gone meanwhile: well.
                    if signal == Signal::SIGKILL || !told.contains(&pid) {
                        let _gone = kill(Pid::from_raw(pid), signal);
                        // A stopped process heeds nothing else.
                        let _gone = kill(Pid::from_raw(pid), Signal::SIGCONT);
                        told.push(pid);
                    }
                }
                if begin.elapsed() >= GRACE {
                    break;
                }
                pause(POLL);
            }
        }
    }

    /// The processes that belong to it and have not ended, by their ids.
    pub(crate) fn members(&self) -> Vec<(i32, ProcessStat)> {
        let mut all = processes();
        let mut known = self.known.borrow_mut();
        known.retain(|pid, started| all.get(pid).is_some_and(|stat| stat.started == *started));
        for (pid, stat) in &all {
            if !known.contains_key(pid) && self.is_marked(*pid) {
                known.insert(*pid, stat.started);
            }
        }
        let belongs =
            |pid: &i32| known.contains_key(pid) || ancestors(&all, *pid).any(|pid| known.contains_key(&pid));
        let found: Vec<i32> = all.keys().copied().filter(belongs).collect();
        known.extend(found.iter().map(|pid| (*pid, all[pid].started)));
        let found = found.into_iter().filter_map(|pid| Some((pid, all.remove(&pid)?)));
        found.filter(|(_, stat)| !stat.has_ended()).collect()
    }

    /// Whether a process has the variable.
    fn is_marked(&self, pid: i32) -> bool {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_variable = |entry: &[u8]| entry.strip_suffix(b"=") == Some(self.variable.as_bytes());
        environ.split(|byte| *byte == 0).any(is_variable)
    }
}

/// Runs a command, which must succeed; `name` is what an error begins with. When it fails or this program is told to stop,
/// its processes are ended.
pub(crate) fn succeed(command: &mut Command, name: &str) -> Result<(), String> {
    let stop = Stop::on_signals()?;
    let running = RunningCommand::start(command).map_err(|error| format!("{name}: {error}"))?;
    loop {
        match running.wait(POLL) {
            Some((Ok(status), _)) if status.success() => return Ok(()),
            Some((status, _)) => {
                running.end_members();
                return Err(status
                    .map_or_else(|error| format!("{name}: {error}"), |status| format!("{name}: {status}")));
            }
            None => {}
        }
        if let Some(signal) = stop.signal() {
            running.end(signal);
            return Err(format!("{name}: stopped by {signal}"));
        }
    }
}

/// All processes, by their ids.
fn processes() -> BTreeMap<i32, ProcessStat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |pid: i32| ProcessStat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    pids.filter_map(|pid| Some((pid, stat(pid)?))).collect()
}

/// The parent of a process, its parent, and so on.
fn ancestors(all: &BTreeMap<i32, ProcessStat>, pid: i32) -> impl Iterator<Item = i32> {
    let parent = |pid: &i32| all.get(pid).map(|stat| stat.parent);
    // As deep as the table is large: processes may have changed while they were read.
    std::iter::successors(parent(&pid), parent).take(all.len())
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    /// The parent's process id.
    parent: i32,
    /// The program's name, which may have any characters.
    pub(crate) name: String,
    /// `T`: stopped; `Z`: ended, and not waited for.
    state: char,
    /// When it was started, in ticks after the boot.
    started: u64,
    /// Time of processors in user and kernel mode, its own and that of children that it waited for.
    cpu: Duration,
}

impl ProcessStat {
    fn parse(stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        // The first of these fields has number 3.
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks =
            fields.get(14 - 3..18 - 3)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some(Self {
            parent: fields[1].parse().ok()?,
            name,
            state: fields[0].chars().next()?,
            started: fields.get(22 - 3)?.parse().ok()?,
            cpu: Duration::from_millis(ticks * 1000 / TICKS_A_SECOND),
        })
    }

    #[cfg(test)]
    pub(crate) fn of(name: &str, state: char) -> Self {
        Self { parent: 1, name: name.to_owned(), state, started: 1, cpu: Duration::ZERO }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The unit of these times, the same on all machines that Linux runs on today (`USER_HZ`).
const TICKS_A_SECOND: u64 = 100;

#[expect(clippy::disallowed_methods, reason = "real processes take real time")]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "a command has a budget of real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_may_have_brackets_and_blanks() {
        let stat = |state| {
            let cpu = Duration::from_millis(1240);
            Some(ProcessStat { parent: 7, name: "a) b".to_owned(), state, started: 99, cpu })
        };
        assert_eq!(
            ProcessStat::parse("12 (a) b) S 7 12 12 0 -1 0 0 0 0 0 100 20 3 1 20 0 1 0 99 0"),
            stat('S')
        );
        assert_eq!(
            ProcessStat::parse("12 (a) b) T 7 12 12 0 -1 0 0 0 0 0 100 20 3 1 20 0 1 0 99 0"),
            stat('T')
        );
        assert_eq!(ProcessStat::parse("12 (a) b) T 7"), None);
        assert_eq!(ProcessStat::parse("12"), None);
    }

    /// A command with a child in its group, a daemon in another session, and a shell that ignores SIGTERM there and has no
    /// environment.
    #[test]
    fn all_processes_of_a_command_are_ended() {
        let script = "sleep 61 & setsid sleep 62 & \
            env -i setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & \
            (setsid sleep 63 &) ; kill -STOP $$";
        let running = RunningCommand::start(crate::command("sh").args(["-c", script])).unwrap();
        let begin = now();
        // The shell, three sleepers, the one without an environment.
        let is_complete = || {
            let members = running.members();
            let shell = members.iter().find(|(pid, _)| *pid == running.group.as_raw());
            shell.is_some_and(|(_, stat)| stat.is_stopped())
                && members.iter().filter(|(_, stat)| stat.name == "sleep").count() >= 3
                && members.len() >= 5
        };
        while !is_complete() {
            assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", running.members());
            thread::yield_now();
        }
        let (status, _) = running.end(Signal::SIGINT).unwrap();
        assert!(!status.unwrap().success());
        assert_eq!(running.members(), []);
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_command_that_succeeds_and_one_that_does_not() {
        assert_eq!(succeed(&mut crate::command("true"), "it"), Ok(()));
        assert_eq!(succeed(&mut crate::command("false"), "it"), Err("it: exit status: 1".to_owned()));
        assert!(
            succeed(&mut crate::command("no-such-program"), "it")
                .is_err_and(|error| error.starts_with("it: "))
        );
    }

    #[test]
    fn a_signal_between_two_commands_stops_the_second() {
        assert_eq!(succeed(&mut crate::command("true"), "first"), Ok(()));
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        let second = succeed(crate::command("sleep").arg("60"), "second");
        assert_eq!(second, Err("second: stopped by SIGTERM".to_owned()));
    }
}
