//! Processes and what they have used: CPU, system calls.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cattlegrid_load::Process;
use cattlegrid_load::harness::comes_true;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// CPU of processes, with all their threads.
pub(crate) fn cpu(pids: &[u32]) -> Result<Duration> {
    let of_one = |pid: &u32| -> Result<Duration> { Ok(Process::new(*pid)?.cpu_time()?) };
    pids.iter().map(of_one).sum()
}

/// All processes that a process has started, and those that they have.
pub(crate) fn descendants(pid: u32) -> Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
        // The name may have blanks; the state and the parent follow its last bracket.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        if let (Some(child), Some(parent)) = (number(stat.split(' ').next()), number(parent)) {
            parents.push((child, parent));
        }
    }
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        at += 1;
    }
    found.remove(0);
    Ok(found)
}

/// `strace -c` of some processes.
pub(crate) struct Trace {
    child: Child,
    table: PathBuf,
}

impl Trace {
    /// Attaches to processes and all their threads. None: there is no strace, or it may not attach.
    pub(crate) fn attach(pids: &[u32], table: &Path) -> Result<Option<Self>> {
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-U", "name,calls", "-o"]).arg(table);
        command.args(pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]));
        let Ok(child) = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn() else { return Ok(None) };
        let mut trace = Self { child, table: table.to_owned() };
        let attached = comes_true(Duration::from_secs(10), || pids.iter().all(|pid| is_traced(*pid)));
        if !attached {
            trace.stop()?;
            return Ok(None);
        }
        Ok(Some(trace))
    }

    /// The calls counted: each name with its number, the most frequent first.
    pub(crate) fn end(mut self) -> Result<Vec<(String, u64)>> {
        self.stop()?;
        let text = fs::read_to_string(&self.table).context("the table of strace")?;
        let mut calls: Vec<(String, u64)> = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(Ok(count))) = (words.next(), words.next().map(str::parse))
                && name != "total"
            {
                calls.push((name.to_owned(), count));
            }
        }
        if calls.is_empty() {
            bail!("strace has counted nothing");
        }
        calls.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Ok(calls)
    }

    fn stop(&mut self) -> Result<()> {
        kill(Pid::from_raw(self.child.id().try_into()?), Signal::SIGINT).or_else(|error| match error {
            nix::Error::ESRCH => Ok(()),
            error => Err(error),
        })?;
        self.child.wait()?;
        Ok(())
    }
}

/// Whether all threads of a process are traced.
fn is_traced(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().all(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
    })
}
