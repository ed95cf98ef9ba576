//! Errors: [`Error`] for the caller of a job, [`PoolError`] for the owner of a pool.
//!
//! An error of a job reaches its caller only, a failure of a worker the owner only; a job that was lost with
//! its worker is both.

use std::io;

/// How a job ended without a reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queue was full; the job was never sent anywhere.
    #[error("the queue is full")]
    Rejected,
    /// The job's time was up.
    #[error("timed out{}", if *started { "" } else { " before it was started" })]
    Timeout {
        /// A worker had begun it; it may have had effects. If not, none will begin it (at a worker that
        /// claims its jobs, as those of both SDKs do).
        started: bool,
    },
    /// The caller dropped the call.
    #[error("cancelled")]
    Cancelled,
    /// The worker died (or was killed for breaking the protocol) while it was in this job.
    #[error("worker {worker} was lost: {reason}{}", tail(stderr_tail))]
    WorkerLost {
        /// Number of the worker.
        worker: u64,
        /// The cause as text for people.
        reason: String,
        /// Exit code, if it exited.
        status: Option<i32>,
        /// Signal, if one killed it.
        signal: Option<i32>,
        /// The kernel's out-of-memory killer was at work when it died.
        oom: bool,
        /// The end of what it wrote to stderr and stdout, at most 4 KiB.
        stderr_tail: String,
    },
    /// The worker's function returned an error or raised an exception.
    #[error("{code}: {message}")]
    Worker {
        /// A short word that programs compare: `exception`, `panic`, `error`, or the worker's own.
        code: String,
        /// One line for people.
        message: String,
        /// A traceback, or nothing.
        detail: String,
        /// The worker says that trying again may help.
        retryable: bool,
    },
    /// The arguments, or the reply, are longer than allowed.
    #[error("{len} bytes, the limit is {max}")]
    TooLarge {
        /// Their length in bytes, as far as known.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// An option cannot be what it was set to; nothing was started.
    #[error("{0}")]
    InvalidOption(String),
    /// No worker could be started.
    #[error("no worker could be started: {reason}{}", tail(stderr_tail))]
    StartFailed {
        /// The step that failed, and the message of the system or the program.
        reason: String,
        /// The system's error number, if it was one.
        errno: Option<i32>,
        /// The end of what the program wrote to stderr and stdout, at most 4 KiB.
        stderr_tail: String,
    },
    /// The pool's own thread has panicked, which is a fault of the pool, or of a destructor that a callback
    /// brought along. All its processes were killed.
    #[error("the pool's own thread has panicked")]
    PoolLost,
    /// The pool is shutting down.
    #[error("the pool is shutting down")]
    Shutdown,
    /// A value cannot be encoded, or a reply cannot be decoded (feature `serde`); or the argument of a job is
    /// not an object, for [`crate::Launch::objects`].
    #[error("{0}")]
    Codec(String),
}

/// A fault that a pool reports to `on_error`. Failures of single jobs go to their callers and are not here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A worker died that was not asked to.
    #[error("worker {worker} was lost: {reason}")]
    WorkerLost {
        /// Number of the worker.
        worker: u64,
        /// Signal, exit code, or the rule of the protocol it broke.
        reason: String,
    },
    /// A template process died that was not asked to; all its workers go with it.
    #[error("the template process was lost: {reason}")]
    TemplateLost {
        /// Signal or exit code.
        reason: String,
    },
    /// A worker or template could not be started: exec, import, init or a time limit.
    #[error("start failed: {reason}{}", tail(stderr_tail))]
    StartFailed {
        /// The step that failed, and the message of the system or the program.
        reason: String,
        /// The end of its output.
        stderr_tail: String,
    },
    /// The system had no process, memory or descriptor to spare. The pool goes on with what it has
    /// and tries again.
    #[error("no resources for a new worker: {}", reason_of(_0))]
    Resources(io::Error),
    /// The guardian could not be started, for lack of descriptors or memory, for instance. Until it is, which
    /// is tried at each start of an exec'ed worker, what such workers have started lives on if this process
    /// is killed; workers and templates end all the same. Reported once until it succeeds.
    #[error(
        "no guardian: what workers start outlives them if this process is killed; tried again with the next worker: {}",
        reason_of(_0)
    )]
    Unguarded(io::Error),
    /// The private memory of a worker cannot be read. For `max_rss` its resident set less that of its
    /// template counts from now on. Reported once.
    #[error(
        "private memory of workers cannot be read; for max_rss the resident set less the template's counts"
    )]
    MemoryEstimated,
    /// The program is started by [`crate::Launch::stdio`], which the next release does not have. Reported
    /// once for each program: at the start of the pool, and at a reload.
    #[error(
        "{program}: mode stdio goes with the next release; start it with Launch::exec: a program that uses an SDK needs no change"
    )]
    StdioMode {
        /// The program and its arguments.
        program: String,
    },
    /// The crash-loop breaker has opened; callers fail fast until a start succeeds.
    #[error("{failures} failed starts in a row, backing off: {reason}")]
    CrashLoop {
        /// The limit that was reached.
        failures: usize,
        /// The last failure.
        reason: String,
    },
    /// The pool's own thread has panicked: every job ends as [`Error::PoolLost`], every process is killed.
    #[error("the pool's own thread has panicked")]
    PoolLost,
    /// A callback of the program panicked; the pool went on.
    #[error("a callback panicked")]
    Callback,
}

/// The system's reason, for people. "Too many open files" gets an explanation: there is no descriptor left.
pub(crate) fn reason_of(error: &io::Error) -> String {
    let short = error.raw_os_error().and_then(|errno| match rustix::io::Errno::from_raw_os_error(errno) {
        rustix::io::Errno::MFILE => Some("no descriptors left in this process, see ulimit -n"),
        rustix::io::Errno::NFILE => Some("no descriptors left in this system"),
        _ => None,
    });
    short.map_or_else(|| error.to_string(), |short| format!("{error}; {short}"))
}

/// Whether the system was short of something: descriptors, memory, processes. Trying again later may help.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::NOBUFS, Errno::NOSPC];
    error.raw_os_error().is_some_and(|errno| short.contains(&Errno::from_raw_os_error(errno)))
}

/// Puts captured output behind a message.
fn tail(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; output ends: {}", text.trim_end()) }
}
