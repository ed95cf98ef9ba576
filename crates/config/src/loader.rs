//! A loader: the program of `[loader.NAME]`, and how it is run.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of one loader, checked and with all defaults. What each means for the processes is in `docs/pool.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoaderSettings {
    /// Its name, which rules name.
    pub name: String,
    /// The program and its arguments; at least the program.
    pub command: Vec<String>,
    /// How its workers are started and spoken to.
    pub mode: LoaderMode,
    /// Most worker processes, of all generations together; 1..=1024.
    pub max: usize,
    /// Fewest idle workers; 0..=`max`.
    pub idle: usize,
    /// Jobs, or batches of jobs, at a worker at a time; 1..=65,535, and 1 with [`LoaderMode::Stdio`] and
    /// [`LoaderMode::JsonLines`].
    pub load: usize,
    /// Jobs that a worker which takes batches may be given in one call; 1..=10,000, and 1 with
    /// [`LoaderMode::JsonLines`].
    pub batch: usize,
    /// Processes started ahead; 0..=1024.
    pub spare: usize,
    /// How long workers must be missing before one is started; 0 s to 1 h.
    pub start: Duration,
    /// Idle time after which a worker beyond `idle` leaves; 0 s to 1 day.
    pub stop: Duration,
    /// Longest time of a job, from its submission to its outcome; 10 ms to 30 min. Every lease of a rule with this loader is longer.
    pub timeout: Duration,
    /// Time to let go of a job, before the worker is killed; 1 ms to 1 min.
    pub kill_grace: Duration,
    /// Longest time until the program is ready; 10 ms to 1 h.
    pub start_timeout: Duration,
    /// Most jobs that wait for a worker; 1..=1,000,000.
    pub queue: usize,
    /// How often a job is begun again whose worker was lost or whose error may be retried; 0..=100.
    pub retries: u32,
    /// Jobs after which a worker is replaced; 0: never.
    pub max_jobs: u64,
    /// Private memory at which a worker is replaced, in bytes; from 1 MiB.
    pub max_rss: Option<u64>,
    /// Age at which a worker is replaced; from 1 s.
    pub max_age: Option<Duration>,
    /// Given to each worker's `init`; up to 64 KiB.
    pub init: String,
    /// Jobs carry the old value, if there is one.
    pub stale: bool,
    /// Working directory; an absolute path that was a directory when the file was read. A relative program of
    /// `command` is in it.
    pub dir: PathBuf,
    /// Names of the variables that are passed on.
    pub env: Vec<String>,
    /// The user that its processes become before they begin the program; None: the server's. It existed when the file was read.
    pub user: Option<String>,
    /// The template of a loader with a `user` keeps the server's user; only its workers become the other one.
    pub init_as_root: bool,
}

impl LoaderSettings {
    /// With all defaults, and without a command.
    pub(crate) fn new(name: &str, dir: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            command: Vec::new(),
            mode: LoaderMode::default(),
            max: 4,
            idle: 0,
            load: 2,
            batch: 1,
            spare: 0,
            start: Duration::from_millis(100),
            stop: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            kill_grace: Duration::from_millis(500),
            start_timeout: Duration::from_secs(30),
            queue: 10_000,
            retries: 0,
            max_jobs: 0,
            max_rss: None,
            max_age: None,
            init: String::new(),
            stale: false,
            dir,
            env: ["PATH", "HOME", "LANG"].map(str::to_owned).to_vec(),
            user: None,
            init_as_root: false,
        }
    }
}

/// How a loader's workers are started and spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoaderMode {
    /// Forked from a program that was started once.
    #[default]
    Template,
    /// Each is started; frames on a descriptor of its own.
    Exec,
    /// Each is started; frames on its standard streams.
    Stdio,
    /// Each is started; lines of JSON on its standard streams.
    JsonLines,
}

impl LoaderMode {
    /// Its name in a rule file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Exec => "exec",
            Self::Stdio => "stdio",
            Self::JsonLines => "jsonl",
        }
    }

    /// Whether a worker has at most one job.
    pub const fn takes_one(self) -> bool {
        matches!(self, Self::Stdio | Self::JsonLines)
    }
}
