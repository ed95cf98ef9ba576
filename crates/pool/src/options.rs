//! The options of a pool as values, with their defaults.
//!
//! [`crate::Builder`] sets and checks them; the pool's thread keeps them for its whole life and changes none.
//! `idle` and `max` are the exception: a resize changes them in the sizing's own copy.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use cattlegrid_worker::{Limits, Sandbox, Setup};

use crate::budget::Budget;
use crate::reply_room::ReplyRoom;
use crate::sizing::SizingConfig;

/// Every option but the callbacks. [`crate::Builder`] has a method of the same name for each, with its
/// meaning and range.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) sizing: SizingConfig,
    pub(crate) batch: usize,
    pub(crate) budget: Option<Budget>,
    pub(crate) reply_room: Option<ReplyRoom>,
    pub(crate) spare: usize,
    pub(crate) config: Vec<u8>,
    pub(crate) env: BTreeMap<OsString, Option<OsString>>,
    pub(crate) env_clear: bool,
    pub(crate) extra_args: Vec<OsString>,
    pub(crate) fds: Vec<(String, OwnedFd)>,
    pub(crate) queue_limit: usize,
    pub(crate) queue_policy: QueuePolicy,
    pub(crate) ageing: Duration,
    pub(crate) inflight_bytes: usize,
    pub(crate) max_frame: u32,
    pub(crate) max_reply: usize,
    pub(crate) job_timeout: Option<Duration>,
    pub(crate) kill_grace: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) ping: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) max_jobs: u64,
    pub(crate) jitter: f64,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_rss: Option<u64>,
    pub(crate) setup: Setup,
    pub(crate) privileged_template: bool,
    pub(crate) crash_loop: (usize, Duration),
    pub(crate) log_rate: u64,
    pub(crate) probe: bool,
}

impl Options {
    /// Limits and privileges of a template, and those that each of its workers takes after the fork. Limits
    /// are those of workers: a template has none.
    pub(crate) fn of_template(&self) -> (Setup, Setup) {
        let mut of_worker = self.setup.clone();
        let mut of_template = Setup {
            limits: Limits { core: None, oom_score_adj: None, ..Limits::default() },
            sandbox: Sandbox { no_new_privs: false, uid_gid: None },
        };
        if self.setup.sandbox.uid_gid.is_some() && !self.privileged_template {
            of_template.sandbox = self.setup.sandbox.clone();
            // The worker has it already, and could not take it again: only a privileged process can drop
            // groups.
            of_worker.sandbox.uid_gid = None;
        }
        (of_template, of_worker)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sizing: SizingConfig::default(),
            batch: 1,
            budget: None,
            reply_room: None,
            spare: 0,
            config: Vec::new(),
            env: BTreeMap::new(),
            env_clear: false,
            extra_args: Vec::new(),
            fds: Vec::new(),
            queue_limit: 10_000,
            queue_policy: QueuePolicy::Reject,
            ageing: Duration::from_secs(1),
            inflight_bytes: 4 << 20,
            max_frame: cattlegrid_worker::frame::MAX_FRAME_DEFAULT,
            max_reply: cattlegrid_worker::frame::MAX_FRAME_DEFAULT as usize,
            job_timeout: None,
            kill_grace: Duration::from_millis(500),
            start_timeout: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(30),
            ping: None,
            retry: Retry::never(),
            max_jobs: 0,
            jitter: 0.1,
            max_age: None,
            max_rss: None,
            setup: Setup::default(),
            privileged_template: false,
            crash_loop: (5, Duration::from_secs(10)),
            log_rate: 64 << 10,
            probe: true,
        }
    }
}

/// The treatment of a job when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueuePolicy {
    /// The job ends as [`crate::Error::Rejected`].
    #[default]
    Reject,
    /// The oldest job of the least urgent class ends as [`crate::Error::Rejected`] instead.
    DropOldest,
    /// The caller waits for room.
    Wait,
}

/// Whether idempotent jobs are begun again when their worker is lost, or says that trying again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retry {
    pub(crate) times: u32,
    /// Whether errors of the worker's function are retried as well.
    pub(crate) errors: bool,
}

impl Retry {
    /// No job is retried: the default.
    pub fn never() -> Self {
        Self { times: 0, errors: false }
    }

    /// Idempotent jobs are begun up to `count` more times after [`crate::Error::WorkerLost`].
    pub fn times(count: u32) -> Self {
        Self { times: count, errors: false }
    }

    /// Also retries after an error of the worker's function that is marked as retryable
    /// ([`crate::Error::Worker`] with `retryable`). Attempts of both kinds count together, and the job's
    /// timeout covers all attempts. The job goes to the head of its class in the queue, without delay.
    #[must_use]
    pub fn and_errors(mut self) -> Self {
        self.errors = true;
        self
    }
}
