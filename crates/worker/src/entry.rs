//! How a program becomes a worker: the variables and descriptors that a pool gives it, and [`Worker`].
//!
//! # Invariants
//! * A process becomes a worker at most once; each passed descriptor is taken at most once.
//! * Programs that a worker starts do not become workers of its pool.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock};

use crate::asynchronous::{self, AsyncJob};
use crate::batch;
use crate::job::{Context, Job, JobError, Reply};
use crate::link::{Link, ServeMode};
use crate::serve::{self, InitFn};
use crate::sys;
use crate::template;

/// How the parent talks to this process: `template`, `exec` or `stdio`.
pub const ENV_MODE: &str = "CATTLEGRID_MODE";
/// Number of the control socket (template) or job socket (exec): 3.
pub const ENV_FD: &str = "CATTLEGRID_FD";
/// Passed descriptors, `name=number` with commas between.
pub const ENV_FDS: &str = "CATTLEGRID_FDS";
/// `1` when a template may have threads.
pub const ENV_THREADS: &str = "CATTLEGRID_ALLOW_THREADS";

/// A program that was started by a pool and will become a worker.
///
/// In template mode everything the program does before [`Worker::serve`] is done once; `init` and the
/// jobs run in the forked workers.
///
/// ```no_run
/// // First thing in `main`:
/// if let Some(worker) = cattlegrid_worker::maybe_worker() {
///     worker.serve(|job| Ok(job.arg(0).to_ascii_uppercase()));
/// }
/// // ... the program's usual life; Launch::rust() starts it again as a template.
/// ```
pub struct Worker {
    start: EntryMode,
    init: Option<InitFn>,
    /// See [`Worker::holding_nothing`].
    holds_nothing: bool,
}

/// The mode that the environment gives.
#[derive(Debug)]
enum EntryMode {
    Template { control: OwnedFd, allow_threads: bool },
    Exec(OwnedFd),
    Stdio,
}

/// The worker this process was started to be; `None` in a process that no pool has started, and for
/// every call after the first.
///
/// Call it first in `main`, before any thread is started: it then removes the pool's variables from the
/// environment, so that programs that the worker starts, its own binary among them, do not become workers.
/// With threads the variables stay; a program that inherits them without the descriptors does not become a
/// worker either.
pub fn maybe_worker() -> Option<Worker> {
    let mode = std::env::var(ENV_MODE).ok()?;
    let worker = claim(&mode);
    sys::scrub_env(&[ENV_MODE, ENV_FD, ENV_FDS, ENV_THREADS]);
    worker
}

fn claim(mode: &str) -> Option<Worker> {
    PASSED.get_or_init(read_passed);
    let start = match mode {
        "stdio" => {
            if std::mem::replace(&mut *STDIO_TAKEN.lock().ok()?, true) {
                return None;
            }
            EntryMode::Stdio
        }
        "template" | "exec" => {
            let number: RawFd = std::env::var(ENV_FD).ok()?.parse().ok()?;
            let socket = sys::claim_socket(number).ok()?;
            if mode == "exec" {
                EntryMode::Exec(socket)
            } else {
                let allow_threads = std::env::var(ENV_THREADS).is_ok_and(|value| value == "1");
                EntryMode::Template { control: socket, allow_threads }
            }
        }
        _ => return None,
    };
    Some(Worker { start, init: None, holds_nothing: false })
}

/// The job socket of a worker in mode `exec` that speaks the protocol by itself, without [`Worker`]; `None`
/// in any other process, and for every call after the first.
pub fn job_socket() -> Option<OwnedFd> {
    match maybe_worker()?.start {
        EntryMode::Exec(socket) => Some(socket),
        EntryMode::Template { .. } | EntryMode::Stdio => None,
    }
}

/// The descriptor that the pool passed under `name` (`Builder::pass_fd`); `None` if there is none or it was
/// taken.
pub fn inherited_fd(name: &str) -> Option<OwnedFd> {
    let number = passed_fds().into_iter().find(|(known, _)| known == name)?.1;
    sys::claim_fd(number).ok()
}

/// Keeps descriptor `number` open in workers forked from this template. All others are closed, except
/// 0, 1, 2, the job socket and passed descriptors.
pub fn keep_fd(number: RawFd) {
    KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(number);
}

impl Worker {
    /// Runs `init` once in every worker, before its first job. An error (or panic) makes the start fail
    /// with its text.
    #[must_use]
    pub fn init(mut self, init: impl FnOnce(&mut Context<'_>) -> Result<(), JobError> + 'static) -> Self {
        self.init = Some(Box::new(init));
        self
    }

    /// A finished reply leaves before the next job begins, however short the jobs are.
    #[must_use]
    pub(crate) fn holding_nothing(mut self) -> Self {
        self.holds_nothing = true;
        self
    }

    /// Serves one job at a time with `work` until the parent retires this worker or goes away; then the
    /// process ends with status 0.
    ///
    /// An error or panic of `work` goes to the caller of that job; the worker stays.
    pub fn serve<R, F>(self, work: F) -> !
    where
        R: Reply,
        F: FnMut(&mut Job<'_>) -> Result<R, JobError>,
    {
        let link = self.start(ServeMode::Jobs(1));
        serve::serve(link, work)
    }

    /// Serves as [`Worker::serve`] does, for a `work` that does several jobs in one call. `Builder::batch` of
    /// the pool and `limit` bound the number of jobs in a call; a job that comes alone is a batch of one.
    /// `limit` is 1 to 65535; other values count as the nearest of these.
    ///
    /// `work` returns an outcome for each job, in the order of the slice. All jobs of a batch end when it
    /// returns. If it panics, or returns another number of outcomes, each job of that batch ends with an
    /// error that says so; the worker stays. Jobs that were cancelled before their batch began are not in it.
    ///
    /// ```no_run
    /// # fn rows(_: &[&[u8]]) -> Vec<Option<String>> { Vec::new() }
    /// use cattlegrid_worker::JobError;
    /// if let Some(worker) = cattlegrid_worker::maybe_worker() {
    ///     worker.serve_batch(100, |jobs| {
    ///         let keys: Vec<&[u8]> = jobs.iter().map(|job| job.arg(0)).collect();
    ///         let found = rows(&keys).into_iter();
    ///         found.map(|row| row.ok_or_else(|| JobError::new("missing", "no such row"))).collect()
    ///     });
    /// }
    /// ```
    pub fn serve_batch<R, F>(self, limit: u32, work: F) -> !
    where
        R: Reply,
        F: FnMut(&mut [Job<'_>]) -> Vec<Result<R, JobError>>,
    {
        let link = self.start(ServeMode::Batches(limit.clamp(1, u16::MAX.into())));
        batch::serve_batch(link, work)
    }

    /// Serves up to `concurrency` jobs at a time as futures on this thread. Values from 1; 0 means 1.
    ///
    /// Jobs begin in order of arrival, replies go out as they finish.
    pub fn serve_async<R, F, Fut>(self, concurrency: u32, work: F) -> !
    where
        R: Reply + 'static,
        F: Fn(AsyncJob) -> Fut,
        Fut: Future<Output = Result<R, JobError>> + 'static,
    {
        let concurrency = concurrency.max(1);
        let link = self.start(ServeMode::Jobs(concurrency));
        asynchronous::serve_async(link, concurrency, work)
    }

    /// Everything up to READY. In template mode this returns in the forked workers only.
    fn start(self, serves: ServeMode) -> Link {
        let (rx, tx, is_socket) = match self.start {
            EntryMode::Template { control, allow_threads } => {
                let mut keep: Vec<RawFd> = passed_fds().into_iter().map(|(_, number)| number).collect();
                keep.extend(KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter());
                both_halves(template::run(control, &keep, allow_threads))
            }
            EntryMode::Exec(socket) => both_halves(socket),
            EntryMode::Stdio => {
                let (rx, tx) = take_stdio().unwrap_or_else(|_| std::process::exit(1));
                (rx, tx, false)
            }
        };
        let (mut link, config) = Link::open(rx, tx, serves, is_socket);
        if self.holds_nothing {
            link.outbox.hold_nothing();
        }
        serve::initialise(&mut link, &config, self.init);
        link
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("start", &self.start).finish_non_exhaustive()
    }
}

fn both_halves(socket: OwnedFd) -> (OwnedFd, OwnedFd, bool) {
    let copy = socket.try_clone().unwrap_or_else(|_| std::process::exit(1));
    (socket, copy, true)
}

/// Moves frames off the standard streams, so that a stray `println!` cannot break them.
fn take_stdio() -> std::io::Result<(OwnedFd, OwnedFd)> {
    use std::os::fd::AsFd;
    let rx = std::io::stdin().as_fd().try_clone_to_owned()?;
    let tx = std::io::stdout().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    sys::redirect(null.as_fd(), 0)?;
    sys::redirect(std::io::stderr().as_fd(), 1)?;
    Ok((rx, tx))
}

fn passed_fds() -> Vec<(String, RawFd)> {
    PASSED.get_or_init(read_passed).clone()
}

fn read_passed() -> Vec<(String, RawFd)> {
    let list = std::env::var(ENV_FDS).unwrap_or_default();
    list.split(',')
        .filter_map(|entry| entry.rsplit_once('='))
        .filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?)))
        .collect()
}

/// The value of [`ENV_FDS`], read before it was removed.
static PASSED: OnceLock<Vec<(String, RawFd)>> = OnceLock::new();
/// Numbers given to [`keep_fd`].
static KEPT: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
/// The standard streams were taken.
static STDIO_TAKEN: Mutex<bool> = Mutex::new(false);
