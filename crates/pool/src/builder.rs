//! The builder: every option of a pool with its default and range, and the check before the start.
//!
//! # Invariant
//! A value that the system would refuse later is refused by [`Builder::spawn`], before anything is started.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_worker::{Limits, Sandbox};

use crate::budget::Budget;
use crate::callbacks::{Callbacks, LogChunk};
use crate::driver::Driver;
use crate::error::{Error, PoolError, reason_of};
use crate::event::{Event, EventBuffer, Events};
use crate::launch::{Launch, LaunchMode, check_env};
use crate::options::{Options, QueuePolicy, Retry};
use crate::pool::{Pool, PoolStart};
use crate::promise::promise;
use crate::reply_room::ReplyRoom;

/// Builds a [`Pool`].
pub struct Builder {
    launch: Launch,
    options: Options,
    callbacks: Callbacks,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("launch", &self.launch)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts building a pool.
    pub fn builder(launch: Launch) -> Builder {
        Builder::new(launch)
    }
}

impl Builder {
    fn new(launch: Launch) -> Self {
        Self { launch, options: Options::default(), callbacks: Callbacks::default() }
    }

    /// Most worker processes, from 1. Default 4. A worker counts until its process is gone, so also while it
    /// is retiring. Spares come on top, and during a reload the first worker of the new program.
    #[must_use]
    pub fn max(mut self, workers: usize) -> Self {
        self.options.sizing.max = workers.max(1);
        self
    }

    /// Shares `budget` with the other pools that were built with it: together they have at most its number of
    /// worker processes, each counted until it is gone. Spares and templates do not count. A pool without
    /// room waits, and so does the first worker of a new program, up to `start_timeout`. A pool that waits
    /// gets the next place if it has the fewest workers; a pool with more than its share gives up workers for
    /// it, which finish their jobs. Default: none.
    #[must_use]
    pub fn within(mut self, budget: &Budget) -> Self {
        self.options.budget = Some(budget.clone());
        self
    }

    /// Fewest idle workers, and the number at the start; at most `max`. Default 0.
    #[must_use]
    pub fn idle(mut self, workers: usize) -> Self {
        self.options.sizing.idle = workers;
        self
    }

    /// Most jobs at one worker at a time, from 1; batches, at a worker that takes batches. Default 2. Set 1
    /// for low latency, 16 for throughput of small jobs, the worker's concurrency for asynchronous ones.
    #[must_use]
    pub fn load(mut self, jobs: usize) -> Self {
        self.options.sizing.load = jobs.max(1);
        self
    }

    /// Most jobs in one batch, 1 to 10 000; other values count as the nearest of these. Default 1: no
    /// batches. A worker that takes batches (`Worker::serve_batch`) gets up to this many waiting jobs
    /// together, and no more than its own limit. A job never waits for a batch to fill. At such a worker
    /// [`Builder::load`] counts batches. Other workers get single jobs.
    #[must_use]
    pub fn batch(mut self, jobs: usize) -> Self {
        self.options.batch = jobs.clamp(1, BATCH_MAX);
        self
    }

    /// How long workers must be missing before one is started. Default 100 ms; 0 starts at once.
    #[must_use]
    pub fn start(mut self, delay: Duration) -> Self {
        self.options.sizing.start = delay;
        self
    }

    /// How long a worker must be idle before it is stopped. Default 10 s.
    #[must_use]
    pub fn stop(mut self, delay: Duration) -> Self {
        self.options.sizing.stop = delay;
        self
    }

    /// Processes started in advance and held before INIT, so that a start costs no fork. They do not count
    /// against `max`. Default 0. For templates and for exec'ed programs.
    #[must_use]
    pub fn spare(mut self, processes: usize) -> Self {
        self.options.spare = processes;
        self
    }

    /// Bytes handed to every worker's `init`, at most 64 MiB less 21 bytes. Default none.
    #[must_use]
    pub fn init(mut self, config: impl Into<Vec<u8>>) -> Self {
        self.options.config = config.into();
        self
    }

    /// Arguments appended to those of the launch.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.options.extra_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Gives workers an empty environment, except for the variables set here. Default: the parent's
    /// environment.
    #[must_use]
    pub fn env_clear(mut self) -> Self {
        self.options.env_clear = true;
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.options.env.insert(key.into(), Some(value.into()));
        self
    }

    /// Removes a variable.
    #[must_use]
    pub fn env_remove(mut self, key: impl Into<OsString>) -> Self {
        self.options.env.insert(key.into(), None);
        self
    }

    /// Passes a descriptor to every worker under a name (without `,` and `=`, and only once); at most 32.
    #[must_use]
    pub fn pass_fd(mut self, name: impl Into<String>, fd: impl Into<OwnedFd>) -> Self {
        self.options.fds.push((name.into(), fd.into()));
        self
    }

    /// Most waiting jobs; [`Builder::queue_policy`] says what happens to more. Default 10 000. Jobs at
    /// workers do not count. A worker takes `load` jobs once it is ready; until then they wait.
    #[must_use]
    pub fn queue_limit(mut self, jobs: usize) -> Self {
        self.options.queue_limit = jobs;
        self
    }

    /// See [`QueuePolicy`].
    #[must_use]
    pub fn queue_policy(mut self, policy: QueuePolicy) -> Self {
        self.options.queue_policy = policy;
        self
    }

    /// Waiting time that lifts a job by one class of priority. Default 1 s.
    #[must_use]
    pub fn ageing(mut self, time: Duration) -> Self {
        self.options.ageing = time;
        self
    }

    /// Most bytes of arguments at one worker, unless a single job has more. Default 4 MiB.
    #[must_use]
    pub fn inflight_bytes(mut self, bytes: usize) -> Self {
        self.options.inflight_bytes = bytes;
        self
    }

    /// Longest frame either side sends, bytes; from 1 KiB. Default 64 MiB.
    #[must_use]
    pub fn max_frame(mut self, bytes: u32) -> Self {
        self.options.max_frame = bytes.max(1024);
        self
    }

    /// Longest reply put together from chunks, bytes. Default 64 MiB; longer ones end as [`Error::TooLarge`].
    #[must_use]
    pub fn max_reply(mut self, bytes: usize) -> Self {
        self.options.max_reply = bytes;
        self
    }

    /// Shares `room` with the other pools that were built with it: together their replies take at most its
    /// bytes, from the moment in which a reply's length is known until the [`Reply`] is dropped. A worker
    /// whose reply finds no room is not read until there is some; its job's time goes on. Default: no limit.
    ///
    /// Replies of at most 64 KiB count, but never wait. Other messages of more than 64 KiB count while they
    /// are read. A longer line of JSON takes room as it arrives; if lines without their ends have all of it,
    /// one of them goes over the limit. A reply in chunks takes `max_reply` until its last chunk has arrived,
    /// and its worker is read without waiting meanwhile.
    ///
    /// A caller must not keep long replies while it waits for others: a [`Call`] whose reply has come keeps
    /// it. Take many with [`Pool::submit`].
    ///
    /// [`Reply`]: crate::Reply
    /// [`Call`]: crate::Call
    #[must_use]
    pub fn reply_room(mut self, room: &ReplyRoom) -> Self {
        self.options.reply_room = Some(room.clone());
        self
    }

    /// Time a job has from submission to outcome. Default none.
    #[must_use]
    pub fn job_timeout(mut self, timeout: Duration) -> Self {
        self.options.job_timeout = Some(timeout);
        self
    }

    /// Time a worker has to let go of a job whose time is up: CANCEL at once, SIGTERM after half of it,
    /// SIGKILL of its process group at the end. Also the time a retired worker has to end after its last job.
    /// Default 500 ms.
    #[must_use]
    pub fn kill_grace(mut self, grace: Duration) -> Self {
        self.options.kill_grace = grace;
        self
    }

    /// Time a template or worker has until READY, and a worker that is in no job to begin one it was given;
    /// also how long jobs wait while no worker can be started. Default 30 s.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.options.start_timeout = timeout;
        self
    }

    /// Time [`Pool::shutdown`] waits for jobs. Default 30 s.
    #[must_use]
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.options.shutdown_grace = grace;
        self
    }

    /// Pings idle workers at this interval; a worker that has not answered by the next ping is
    /// killed. Default never.
    #[must_use]
    pub fn ping(mut self, every: Duration) -> Self {
        self.options.ping = Some(every.max(Duration::from_millis(10)));
        self
    }

    /// See [`Retry`]. Default never.
    #[must_use]
    pub fn retries(mut self, retry: Retry) -> Self {
        self.options.retry = retry;
        self
    }

    /// Retires a worker after this many jobs, 0 for never (default).
    #[must_use]
    pub fn max_jobs(mut self, jobs: u64) -> Self {
        self.options.max_jobs = jobs;
        self
    }

    /// Spreads `max_jobs` and `max_age` of each worker by up to this share downwards, 0.0..=1.0. Default 0.1.
    #[must_use]
    pub fn max_jobs_jitter(mut self, share: f64) -> Self {
        self.options.jitter = share.clamp(0.0, 1.0);
        self
    }

    /// Retires a worker of this age; zero for never (default).
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.options.max_age = (!age.is_zero()).then_some(age);
        self
    }

    /// Retires a worker with more private memory than this, bytes; measured once a second. What it shares
    /// with its template does not count. A worker that has more before its first job is a failed start.
    /// Default never.
    #[must_use]
    pub fn max_rss(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.options.max_rss = bytes.into();
        self
    }

    /// Resource limits of workers. See [`Limits`] for the defaults.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.setup.limits = limits;
        self
    }

    /// Privileges of workers. Default: `no_new_privs`. A template with a [`Sandbox::uid_gid`] takes this user
    /// and `no_new_privs` before it begins the program, so that imports and `init` functions do not run with
    /// the privileges of the parent; see [`Builder::privileged_template`].
    #[must_use]
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        self.options.setup.sandbox = sandbox;
        self
    }

    /// Whether a template keeps the user of the parent although there is a [`Sandbox::uid_gid`], which only
    /// its workers become then: for programs whose `init` needs it. Default false. Without effect in the
    /// other modes, and without `uid_gid`.
    #[must_use]
    pub fn privileged_template(mut self, keeps: bool) -> Self {
        self.options.privileged_template = keeps;
        self
    }

    /// `failures` failed starts within the time `within` open the breaker. Default 5 in 10 s.
    #[must_use]
    pub fn crash_loop(mut self, failures: usize, within: Duration) -> Self {
        self.options.crash_loop = (failures, within);
        self
    }

    /// Bytes of workers' output passed on per second; lines over the rate are read, counted and dropped
    /// whole. Default 64 KiB.
    #[must_use]
    pub fn log_rate(mut self, bytes_per_second: u64) -> Self {
        self.options.log_rate = bytes_per_second;
        self
    }

    /// Whether [`Builder::spawn`] starts one worker to see that it becomes ready, even with `idle` 0.
    /// Default true; it is stopped like any idle worker.
    #[must_use]
    pub fn probe(mut self, probe: bool) -> Self {
        self.options.probe = probe;
        self
    }

    /// Called for each event, on the pool's thread. Default: events are dropped.
    #[must_use]
    pub fn on_event(mut self, callback: impl FnMut(Event) + Send + 'static) -> Self {
        self.callbacks.on_event = Some(Box::new(callback));
        self
    }

    /// A bounded stream of events instead of a callback; when it is full, workers with more events wait.
    #[must_use]
    pub fn event_stream(mut self, capacity: usize) -> Self {
        self.callbacks.stream = Some(Arc::new(EventBuffer::new(capacity)));
        self
    }

    /// Called for what goes wrong with workers and templates, on the pool's thread. Default: one line on
    /// stderr.
    #[must_use]
    pub fn on_error(mut self, callback: impl FnMut(&PoolError) + Send + 'static) -> Self {
        self.callbacks.on_error = Some(Box::new(callback));
        self
    }

    /// Called for output of workers, on the pool's thread. Default: it goes to stderr, each line with the
    /// number of its worker in front.
    #[must_use]
    pub fn on_log(mut self, callback: impl FnMut(LogChunk<'_>) + Send + 'static) -> Self {
        self.callbacks.on_log = Some(Box::new(callback));
        self
    }

    /// Called once, when all jobs have ended and no process is left.
    #[must_use]
    pub fn on_destroy(mut self, callback: impl FnOnce() + Send + 'static) -> Self {
        self.callbacks.on_destroy = Some(Box::new(callback));
        self
    }

    /// An upper estimate of the descriptors that the pool has open in this process at its `max`, spares,
    /// passed descriptors and a reload included, and those that are open for a moment while a process is
    /// started. For a check of the limit of open files.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let max = self.options.sizing.max;
        // Killed processes whose places in a budget are kept until they are gone.
        let fading = if self.options.budget.is_some() { max } else { 0 };
        let workers = max.saturating_add(self.options.spare).saturating_add(1);
        let programs = if self.launch.mode == LaunchMode::Template { TEMPLATES * PROCESS } else { GUARDIAN };
        let fixed = OWN + programs + START + self.options.fds.len();
        workers.saturating_mul(PROCESS).saturating_add(fading).saturating_add(fixed)
    }

    /// Starts the pool's thread, and the program. Await the result, or call `wait` on it.
    ///
    /// # Errors
    /// Resolves to [`Error::StartFailed`] when the program cannot be exec'ed, dies or reports an error
    /// before READY, or takes longer than `start_timeout`; nothing is left running then. To
    /// [`Error::InvalidOption`] when an option cannot be what it was set to.
    pub fn spawn(mut self) -> PoolStart {
        let (resolver, started) = promise();
        if let Err(reason) = self.check() {
            return PoolStart::new(started, Err(Error::InvalidOption(reason)));
        }
        self.launch.args.append(&mut self.options.extra_args);
        let events = self.callbacks.stream.clone();
        match Driver::start(self.launch, self.options, self.callbacks, resolver) {
            Ok(shared) => {
                let events = events.map(|buffer| Events { buffer, inbox: Arc::clone(&shared.inbox) });
                PoolStart::new(started, Ok(Pool::new(shared, events)))
            }
            Err(error) => {
                let reason = format!("the pool's own thread, poller or pipes: {}", reason_of(&error));
                let errno = error.raw_os_error();
                PoolStart::new(started, Err(Error::StartFailed { reason, errno, stderr_tail: String::new() }))
            }
        }
    }
}

impl Builder {
    /// Checks every option. Durations may have any length.
    ///
    /// # Errors
    /// Which option is wrong, and its range.
    fn check(&self) -> Result<(), String> {
        let fds = &self.options.fds;
        if fds.len() > MAX_PASSED {
            return Err(format!("pass_fd: {} descriptors, at most {MAX_PASSED} can be passed", fds.len()));
        }
        for (at, (name, _)) in fds.iter().enumerate() {
            if name.is_empty() || name.contains([',', '=', '\0']) {
                return Err(format!(
                    "pass_fd {name:?}: a name is not empty and has no `,`, `=` or NUL in it"
                ));
            }
            if fds[..at].iter().any(|(other, _)| other == name) {
                return Err(format!("pass_fd {name:?}: the name is used twice"));
            }
        }
        if self.options.jitter.is_nan() {
            return Err("max_jobs_jitter: it is not a number".into());
        }
        let config = self.options.config.len();
        if config > INIT_MAX {
            return Err(format!("init: {config} bytes, at most {INIT_MAX} can be handed over"));
        }
        check_setup(&self.options.setup)?;
        self.launch.check()?;
        if let Some(arg) = self.options.extra_args.iter().find(|arg| arg.as_bytes().contains(&0)) {
            return Err(format!("argument {}: it has a NUL byte in it", arg.display()));
        }
        check_env(&self.options.env)
    }
}

/// Checks limits and privileges of workers.
fn check_setup(setup: &cattlegrid_worker::Setup) -> Result<(), String> {
    if setup.sandbox.uid_gid.is_some_and(|(uid, gid)| uid == u32::MAX || gid == u32::MAX) {
        return Err(format!("sandbox uid_gid: {} is no user or group, it means \"unchanged\"", u32::MAX));
    }
    if !(-20..=19).contains(&setup.limits.nice) {
        return Err(format!("limits nice: {}, the range is -20 to 19", setup.limits.nice));
    }
    match setup.limits.oom_score_adj {
        Some(adj) if !(-1000..=1000).contains(&adj) => {
            Err(format!("limits oom_score_adj: {adj}, the range is -1000 to 1000"))
        }
        _ => Ok(()),
    }
}

/// Most bytes for `init`: what a worker accepts as INIT, less 16 bytes of other fields, a count of one and a
/// length of four.
const INIT_MAX: usize = cattlegrid_worker::frame::MAX_FRAME_DEFAULT as usize - 21;

/// Most jobs in a batch.
const BATCH_MAX: usize = 10_000;

/// Descriptors of a worker or template: socket, log pipe, pidfd.
const PROCESS: usize = 3;

/// Templates during a reload.
const TEMPLATES: usize = 2;

/// Descriptors of the guardian: socket and pidfd.
const GUARDIAN: usize = 2;

/// The pool's poller and the eventfd that wakes it.
const OWN: usize = 2;

/// Open for a moment while a process is started: the child's socket, log pipe and progress page, `/dev/null`,
/// the pipe for an error of the exec, and two to spare.
const START: usize = 8;

/// Most descriptors that can be passed.
const MAX_PASSED: usize = 32;
