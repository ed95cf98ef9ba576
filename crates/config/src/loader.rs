//! The settings of a loader: the program of `[loader.NAME]`, and how it is run.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of one loader, checked and with all defaults. `docs/pool.md` describes what each means for
/// the processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoaderSettings {
    /// The loader's name, which rules use.
    pub name: String,
    /// The program and its arguments; at least the program.
    pub command: Vec<String>,
    /// How workers are started, and how the server communicates with them.
    pub mode: LoaderMode,
    /// The most worker processes, of all generations together; 1..=1024.
    pub max: usize,
    /// The least number of idle workers; 0..=`max`.
    pub idle: usize,
    /// The most jobs, or batches of jobs, at one worker at a time; 1..=65,535, and 1 with
    /// [`LoaderMode::Stdio`] and [`LoaderMode::JsonLines`].
    pub load: usize,
    /// The most jobs in one call of a worker that takes batches; 1..=10,000, and 1 with
    /// [`LoaderMode::JsonLines`].
    pub batch: usize,
    /// The number of processes started in advance; 0..=1024.
    pub spare: usize,
    /// How long workers must be lacking before one is started; 0 s to 1 h.
    pub start: Duration,
    /// The idle time after which a worker beyond `idle` ends; 0 s to 1 day.
    pub stop: Duration,
    /// The longest time from the submission of a job to its result; 10 ms to 30 min. Each lease of a rule
    /// with this loader is longer.
    pub timeout: Duration,
    /// The time in which a worker may abandon a job before it is killed; 1 ms to 1 min.
    pub kill_grace: Duration,
    /// The longest time until the program is ready; 10 ms to 1 h.
    pub start_timeout: Duration,
    /// The most jobs that wait for a worker; 1..=1,000,000.
    pub queue: usize,
    /// How often a job is repeated whose worker was lost, or whose error allows it; 0..=100.
    pub retries: u32,
    /// The number of jobs after which a worker is replaced; 0: never.
    pub max_jobs: u64,
    /// The private memory at which a worker is replaced, in bytes; from 1 MiB. None: no limit.
    pub max_rss: Option<u64>,
    /// The age at which a worker is replaced; from 1 s. None: no limit.
    pub max_age: Option<Duration>,
    /// The text for each worker's `init`; up to 64 KiB.
    pub init: String,
    /// Whether jobs have the old value, if there is one.
    pub stale: bool,
    /// The working directory: an absolute path of a directory that existed when the file was read. A relative
    /// program of `command` is found there.
    pub dir: PathBuf,
    /// The names of environment variables that are passed on.
    pub env: Vec<String>,
    /// The user as whom the processes run the program; None: the server's. The user existed when the file was
    /// read.
    pub user: Option<String>,
    /// Whether the template of a loader with a `user` keeps the server's user, and only its workers change to
    /// the other one.
    pub init_as_root: bool,
}

impl LoaderSettings {
    /// All defaults, without a command.
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

/// How workers are started, and how the server communicates with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoaderMode {
    /// Workers are forked from a program that was started once.
    #[default]
    Template,
    /// Each worker is started; frames on a separate descriptor.
    Exec,
    /// Each worker is started; frames on its standard streams.
    Stdio,
    /// Each worker is started; lines of JSON on its standard streams.
    JsonLines,
}

impl LoaderMode {
    /// The name in a rule file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Exec => "exec",
            Self::Stdio => "stdio",
            Self::JsonLines => "jsonl",
        }
    }

    /// Whether a worker has at most one job at a time.
    pub const fn takes_one(self) -> bool {
        matches!(self, Self::Stdio | Self::JsonLines)
    }
}
