//! The ways in which the pool starts workers, and a plain fork to compare them with.

use std::fmt::{self, Display};
use std::io::BufRead as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cattlegrid_pool::{Launch, Pool};

/// How workers are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Forked from a template.
    Template,
    /// Exec'ed; frames on a descriptor of their own.
    Exec,
    /// Exec'ed; frames on standard input and output.
    Stdio,
    /// Exec'ed; lines of JSON.
    JsonLines,
    /// Copied from this process with `fork`, then exec'ed. Not by the pool.
    PlainFork,
}

impl Way {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Template, Self::Exec, Self::Stdio, Self::JsonLines, Self::PlainFork];

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Exec => "exec",
            Self::Stdio => "stdio",
            Self::JsonLines => "JSON lines",
            Self::PlainFork => "plain fork",
        }
    }

    /// All that is done before the first start.
    ///
    /// # Errors
    /// When the pool cannot start its program.
    pub(crate) fn prepare(self, workers: usize) -> Result<Starter> {
        let none: [&str; 0] = [];
        let launch = match self {
            Self::Template => Launch::rust(),
            Self::Exec => Launch::exec(SELF, none),
            Self::Stdio => Launch::stdio(SELF, none),
            Self::JsonLines => Launch::json_lines(SELF, [JSON]),
            Self::PlainFork => return Ok(Starter { pool: None, workers }),
        };
        let pool = Pool::builder(launch).max(workers).start(Duration::ZERO).stop(Duration::from_secs(600));
        Ok(Starter { pool: Some(pool.spawn().wait()?), workers })
    }
}

/// A pool without workers, or none for a plain fork.
pub(crate) struct Starter {
    pool: Option<Pool>,
    workers: usize,
}

impl Starter {
    /// Starts the workers; returns when all are ready, with the size of one of them.
    ///
    /// # Errors
    /// When one does not start.
    pub(crate) fn start(&self) -> Result<Option<Size>> {
        let Some(pool) = &self.pool else {
            let started: Vec<_> = (0..self.workers).map(|_| plain_fork()).collect::<Result<_>>()?;
            for mut child in started {
                drop(child.stdin.take());
                ensure!(child.wait()?.success(), "a forked worker has failed");
            }
            return Ok(None);
        };
        pool.ready(self.workers).wait()?;
        let workers = pool.workers().wait();
        ensure!(workers.len() == self.workers, "{} workers of {}", workers.len(), self.workers);
        Ok(Some(Size::of(workers[workers.len() / 2].pid)?))
    }

    /// Ends the workers.
    pub(crate) fn end(self) {
        if let Some(pool) = self.pool {
            pool.shutdown_now().wait();
        }
    }
}

/// With a user given, std's `Command` forks instead of sharing memory until the exec.
fn plain_fork() -> Result<Child> {
    let mut command = Command::new(SELF);
    command.arg(JSON).stdin(Stdio::piped()).stdout(Stdio::null());
    Ok(command.uid(rustix::process::getuid().as_raw()).spawn()?)
}

/// In a process that was started as a worker this does not return.
pub(crate) fn be_a_worker() {
    if let Some(worker) = cattlegrid_worker::maybe_worker() {
        worker.serve(|_| Ok(()));
    }
    if std::env::args().nth(1).as_deref() == Some(JSON) {
        write_ready();
        let lines = std::io::stdin().lock().lines();
        drop(lines.map_while(Result::ok).find(|line| line.contains("\"retire\"")));
        std::process::exit(0);
    }
}

#[expect(clippy::print_stdout, reason = "the first line of a worker")]
fn write_ready() {
    println!("{{\"ready\":true}}");
}

/// Memory of a worker, in KiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    rss: u64,
    /// Shared with no other process.
    own: u64,
    page_tables: u64,
}

impl Size {
    fn of(pid: u32) -> Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        Ok(Self {
            rss: kib(&status, "VmRSS:")?,
            own: kib(&rollup, "Private_Clean:")? + kib(&rollup, "Private_Dirty:")?,
            page_tables: kib(&status, "VmPTE:")?,
        })
    }
}

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.rss, self.own, self.page_tables)
    }
}

/// What this process has resident, in MiB; 0 where the system does not say.
pub(crate) fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    kib(&status, "VmRSS:").unwrap_or(0) >> 10
}

/// The number after `name` at the start of a line.
fn kib(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).with_context(|| format!("no {name} of a process"))
}

const SELF: &str = "/proc/self/exe";

/// Argument of a worker that speaks lines of JSON.
const JSON: &str = "json-lines-worker";
