//! The guardian: it ends the processes when the program with the pool is killed. And what happens when it is
//! killed, too.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::*;
use rustix::process::Signal;

/// A program with exec'ed workers, one of which has a grandchild.
struct Program {
    child: Child,
    said: BufReader<ChildStdout>,
    grandchild: u32,
    worker: u32,
}

impl Program {
    fn start() -> Self {
        let mut child = Command::new(fixture())
            .env("FIXTURE", "guarded")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let mut pids = line.split_whitespace().map(|pid| pid.parse().unwrap());
        let (grandchild, worker) = (pids.next().unwrap(), pids.next().unwrap());
        Self { child, said, grandchild, worker }
    }

    /// Number of the guardian.
    fn guardian(&self) -> Option<u32> {
        let is_shell = |pid: u32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"/bin/sh\0")
        };
        children(self.child.id()).into_iter().map(|(pid, _)| pid).find(|pid| is_alive(*pid) && is_shell(*pid))
    }

    fn replace_workers(&mut self, count: u32) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{count}").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_killed_guardian_is_replaced_and_its_successor_does_its_work() {
    let mut program = Program::start();
    let first = program.guardian().unwrap();
    kill(first, Signal::KILL);
    eventually("there is another", || program.guardian().is_some_and(|pid| pid != first));
    // When it has read about a worker that started after it, it also knows the workers that started before
    // it.
    program.replace_workers(1);
    assert!(is_alive(program.grandchild) && is_alive(program.worker));
    program.kill();
    eventually("no process is left", || !is_alive(program.grandchild) && !is_alive(program.worker));
}

#[test]
fn a_stopped_guardian_delays_no_job() {
    let mut program = Program::start();
    let first = program.guardian().unwrap();
    kill(first, Signal::STOP);
    // Far more lines than its socket can hold.
    program.replace_workers(400);
    eventually("it was replaced when its socket was full", || program.guardian() != Some(first));
    program.kill();
    eventually("no process is left", || !is_alive(program.grandchild) && !is_alive(program.worker));
    eventually("the stopped one is gone, too", || !is_alive(first));
}

/// The limit of the guarantee: if the guardian dies at the same moment, workers die and grandchildren live
/// on.
#[test]
fn guardian_and_program_killed_together_leave_no_worker() {
    let mut program = Program::start();
    kill(program.guardian().unwrap(), Signal::KILL);
    program.kill();
    eventually("no worker is left", || !is_alive(program.worker));
    if is_alive(program.grandchild) {
        kill(program.grandchild, Signal::KILL);
    }
}

/// The same for templates and the workers that they have forked.
#[test]
fn templates_and_program_killed_together_leave_no_worker() {
    let (mut program, pids) = parent();
    let (grandchildren, workers): (Vec<_>, Vec<_>) = pids.iter().enumerate().partition(|(at, _)| at % 3 == 0);
    let own: Vec<u32> = children(program.id()).iter().map(|(pid, _)| *pid).collect();
    for pid in &own {
        kill(*pid, Signal::KILL);
    }
    program.kill().unwrap();
    program.wait().unwrap();
    eventually("no worker is left", || !workers.iter().any(|(_, pid)| is_alive(**pid)));
    eventually("no template is left", || !own.iter().any(|pid| is_alive(*pid)));
    for (_, pid) in grandchildren {
        if is_alive(*pid) {
            kill(*pid, Signal::KILL);
        }
    }
}
