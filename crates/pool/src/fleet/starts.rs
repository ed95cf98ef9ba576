//! Whether a worker may be started now: back-off after failed starts, the breaker, and shortages of the
//! system.
//!
//! # Invariant
//! * A lack of descriptors, memory or processes only delays the start: no job fails, and the present workers
//!   serve.

use std::time::{Duration, Instant};

use crate::base::DriverBase;
use crate::breaker::Breaker;
use crate::error::{Error, PoolError};
use crate::fleet::Fleet;
use crate::options::Options;
use crate::worker::{Role, WorkerState};

/// See the module.
#[derive(Debug)]
pub(crate) struct StartPolicy {
    breaker: Breaker,
    /// The system was short of processes, memory or descriptors: when to try again, and the delay after that.
    shortage: Option<(Instant, Duration)>,
    last_error: Option<Error>,
    /// A job has failed fast since the last start: when the open breaker allows it, one start is tried.
    probe_wanted: bool,
    /// Since when jobs have waited and no worker has been ready.
    empty_since: Option<Instant>,
    random: u64,
}

impl StartPolicy {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            breaker: Breaker::new(options.crash_loop.0, options.crash_loop.1),
            shortage: None,
            last_error: None,
            probe_wanted: false,
            empty_since: None,
            random: std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0) | 1,
        }
    }

    /// Whether a process could be started now, as far as it is known.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.breaker.allows(now) && self.shortage.is_none_or(|(at, _)| at <= now)
    }

    /// When [`StartPolicy::allows`] may change.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let shortage = self.shortage.map(|(at, _)| at).filter(|at| *at > now);
        [self.breaker.poll_timeout(), shortage].into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.breaker.handle_timeout(now);
    }

    /// Whether the breaker is open: callers fail fast.
    pub(crate) fn is_failing(&self) -> bool {
        self.breaker.is_open()
    }

    /// The breaker's delay first, then that of a shortage; `None` if a start may be tried now.
    pub(crate) fn next_try(&self, now: Instant) -> Option<Instant> {
        if !self.breaker.allows(now) {
            return self.breaker.poll_timeout();
        }
        self.shortage.map(|(at, _)| at).filter(|at| *at > now)
    }

    /// A job has failed fast: one start is tried when the breaker allows it.
    pub(crate) fn want_probe(&mut self) {
        self.probe_wanted = true;
    }

    pub(crate) fn is_probe_wanted(&self) -> bool {
        self.probe_wanted
    }

    pub(crate) fn take_probe(&mut self) -> bool {
        std::mem::take(&mut self.probe_wanted)
    }

    pub(crate) fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }

    pub(super) fn succeeded(&mut self) {
        self.breaker.success();
        self.empty_since = None;
    }

    /// A pseudo-random number in 0.0..1.0 (xorshift64), for jitter.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        share
    }
}

impl Fleet {
    /// The share of `max_jobs` and `max_age` that the next worker gets.
    pub(crate) fn next_spread(&mut self, jitter: f64) -> f64 {
        1.0 - jitter * self.starts.random()
    }

    /// A process was started: the system is short of nothing.
    pub(crate) fn end_shortage(&mut self) {
        self.starts.shortage = None;
    }

    /// Delays all starts: 100 ms, doubled each time, at most 5 s.
    pub(crate) fn note_shortage(&mut self, error: std::io::Error, failed: Error, base: &mut DriverBase) {
        self.starts.last_error = Some(failed);
        let delay = self.starts.shortage.map_or(SHORTAGE, |(_, delay)| (delay * 2).min(SHORTAGE_MAX));
        self.starts.shortage = Some((base.now() + delay, delay));
        base.alarm(base.now() + delay);
        base.counters().resource_failures.add(1);
        base.report(&PoolError::Resources(error));
    }

    /// Counts a failed start; opens the breaker when there are too many.
    pub(crate) fn note_start_failure(&mut self, error: Error, base: &mut DriverBase) {
        let reason = error.to_string();
        self.starts.last_error = Some(error);
        if self.starts.breaker.failure(base.now()) {
            let failures = base.options().crash_loop.0;
            base.report(&PoolError::CrashLoop { failures, reason });
            self.refuse_ready(&self.start_error());
        }
        base.alarm_opt(self.starts.breaker.poll_timeout());
        base.alarm(base.now());
    }

    /// Why there is no worker.
    pub(crate) fn start_error(&self) -> Error {
        let none = self.sizing.config().max == 0;
        self.starts.last_error.clone().filter(|_| !none).unwrap_or_else(|| Error::StartFailed {
            reason: if none { "max is 0" } else { "no worker became ready in time" }.into(),
            errno: None,
            stderr_tail: String::new(),
        })
    }

    /// A job came: without a ready worker, its time begins now.
    pub(crate) fn on_queued(&self, base: &mut DriverBase) {
        if self.starts.empty_since.is_none() && self.ready() == 0 {
            base.alarm(base.now());
        }
    }

    /// Waiting jobs have the whole `start_timeout` again.
    pub(crate) fn restart_patience(&mut self) {
        self.starts.empty_since = None;
    }

    /// Whether the jobs in the queue must end: no worker has been ready for `start_timeout`, or the breaker
    /// is open. `waits`: jobs are in the queue, and only a start can help them.
    pub(crate) fn is_deserted(&mut self, waits: bool, base: &mut DriverBase) -> bool {
        let ready = self.ready() > 0 || self.has_retiring_jobs();
        // A template that does not fork is found after the same time; the jobs wait for the next template.
        let asked = !self.starts.is_failing() && self.has_asked_template();
        // Jobs wait for the workers of other pools as they wait for those of this one.
        if ready || asked || !self.seat.may_take() || !waits {
            self.starts.empty_since = None;
            return false;
        }
        let since = *self.starts.empty_since.get_or_insert(base.now());
        let due = crate::time::later(since, base.options().start_timeout);
        if due > base.now() && !self.starts.is_failing() {
            base.alarm(due);
            return false;
        }
        self.starts.empty_since = None;
        true
    }

    /// Whether a template was told to fork a worker and has not answered yet.
    fn has_asked_template(&self) -> bool {
        self.iter().any(|worker| {
            let starting = worker.state == WorkerState::Starting && worker.role != Role::Spare;
            starting && worker.template.is_some() && worker.pid.is_none()
        })
    }

    fn has_retiring_jobs(&self) -> bool {
        self.iter().any(|worker| worker.state == WorkerState::Retiring && !worker.in_flight.is_empty())
    }
}

/// First delay when the system is short of something.
const SHORTAGE: Duration = Duration::from_millis(100);

/// Longest such delay.
const SHORTAGE_MAX: Duration = Duration::from_secs(5);
