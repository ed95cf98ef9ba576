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
    /// Most worker processes, of all generations together; from 1.
    pub max: usize,
    /// Fewest idle workers; up to `max`.
    pub idle: usize,
    /// Jobs, or batches of jobs, at a worker at a time; from 1.
    pub load: usize,
    /// Jobs that a worker which takes batches may be given in one call; from 1.
    pub batch: usize,
    /// Processes started ahead.
    pub spare: usize,
    /// How long workers must be missing before one is started.
    pub start: Duration,
    /// Idle time after which a worker leaves.
    pub stop: Duration,
    /// Longest time of a job, from its submission to its outcome.
    pub timeout: Duration,
    /// Time to let go of a job, before the worker is killed.
    pub kill_grace: Duration,
    /// Longest time until the program is ready.
    pub start_timeout: Duration,
    /// Most jobs that wait for a worker.
    pub queue: usize,
    /// How often a job is begun again whose worker was lost or whose error may be retried.
    pub retries: u32,
    /// Jobs after which a worker is replaced; 0: never.
    pub max_jobs: u64,
    /// Private memory at which a worker is replaced, in bytes.
    pub max_rss: Option<u64>,
    /// Age at which a worker is replaced.
    pub max_age: Option<Duration>,
    /// Given to each worker's `init`.
    pub init: String,
    /// Jobs carry the old value, if there is one.
    pub stale: bool,
    /// Working directory; an absolute path.
    pub dir: PathBuf,
    /// Names of the variables that are passed on.
    pub env: Vec<String>,
    /// The user that the workers become; None: the server's.
    pub user: Option<String>,
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
