//! The common base of the driver's parts: the time, the next alarm, the options, the counters, epoll and the
//! callbacks.
//!
//! # Invariants
//! * The base knows no job, worker or program: its methods may be called from any part.
//! * A callback of the program runs only inside [`DriverBase::guard`] or another `guarded`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cattlegrid_panic::guarded;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::callbacks::Callbacks;
use crate::error::PoolError;
use crate::inbox::Inbox;
use crate::logs::RateLimit;
use crate::options::Options;
use crate::shared::PoolShared;
use crate::stats::Counters;
use crate::stderr;
use crate::time::{later, now};

mod output;

/// See the module.
pub(crate) struct DriverBase {
    shared: Arc<PoolShared>,
    options: Options,
    callbacks: Callbacks,
    epoll: OwnedFd,
    now: Instant,
    /// The earliest of all timers except those of deadlines, sizing and breaker.
    next_alarm: Option<Instant>,
    log_limit: RateLimit,
}

/// The source of an epoll event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum EventSource {
    Inbox = 0,
    Control = 1,
    TemplateLog = 2,
    TemplateEnd = 3,
    Worker = 4,
    WorkerLog = 5,
    WorkerEnd = 6,
    Guardian = 7,
}

impl DriverBase {
    pub(crate) fn new(
        options: Options,
        callbacks: Callbacks,
        shared: Arc<PoolShared>,
    ) -> std::io::Result<Self> {
        let (epoll, now) = (epoll::create(CreateFlags::CLOEXEC)?, now());
        let log_limit = RateLimit::new(options.log_rate, now);
        let base = Self { shared, options, callbacks, epoll, now, next_alarm: None, log_limit };
        base.register(&*base.shared.inbox, EventSource::Inbox, 0)?;
        Ok(base)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.shared.inbox
    }

    /// Publishes how many jobs the workers hold together.
    pub(crate) fn set_slack(&self, jobs: usize) {
        self.shared.slack.store(jobs, Ordering::Relaxed);
    }

    /// A job went back into the queue.
    #[inline]
    pub(crate) fn add_backlog(&self) {
        self.inbox().backlog.fetch_add(1, Ordering::Relaxed);
    }

    /// A job has ended, or is at a worker.
    #[inline]
    pub(crate) fn sub_backlog(&self) {
        self.inbox().backlog.fetch_sub(1, Ordering::Relaxed);
    }

    /// The time of this turn.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// This long from now, or [`crate::time::FAR`] from now if that is sooner.
    #[inline]
    pub(crate) fn after(&self, wait: Duration) -> Instant {
        later(self.now, wait)
    }

    /// Reads the clock.
    pub(crate) fn read_clock(&mut self) {
        self.now = now();
    }

    /// Makes sure the timers are checked at `at` or before.
    pub(crate) fn alarm(&mut self, at: Instant) {
        self.next_alarm = Some(self.next_alarm.map_or(at, |before| before.min(at)));
    }

    pub(crate) fn alarm_opt(&mut self, at: Option<Instant>) {
        if let Some(at) = at {
            self.alarm(at);
        }
    }

    /// The earliest alarm.
    pub(crate) fn next_alarm(&self) -> Option<Instant> {
        self.next_alarm
    }

    /// Whether an alarm is due, which is taken.
    pub(crate) fn take_alarm(&mut self) -> bool {
        self.next_alarm.take_if(|at| *at <= self.now).is_some()
    }

    /// Registers a descriptor; `key` is a worker's number or a template's serial.
    pub(crate) fn register(&self, fd: &impl AsFd, source: EventSource, key: u64) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, event_data(source, key), EventFlags::IN)?)
    }

    /// Changes what is told of a registered descriptor.
    pub(crate) fn watch(&self, fd: &impl AsFd, source: EventSource, key: u64, flags: EventFlags) {
        epoll::modify(&self.epoll, fd, event_data(source, key), flags).ok();
    }

    /// Waits for events: until `timeout`, for an hour at most.
    pub(crate) fn wait(&self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) {
        let timeout = timeout.map(|left| rustix::event::Timespec {
            tv_sec: left.as_secs().min(3600).cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()).ok();
    }

    /// Hands an error to `on_error`, or to stderr.
    pub(crate) fn report(&mut self, error: &PoolError) {
        match &mut self.callbacks.on_error {
            // A panic in the error callback has nowhere to go.
            Some(callback) => drop(guarded(|| callback(error))),
            None => drop(stderr::write(format!("cattlegrid-pool: {error}\n").as_bytes())),
        }
    }

    /// Runs a callback of the program; a panic is reported and the pool goes on.
    pub(crate) fn guard(&mut self, callback: impl FnOnce()) {
        if guarded(callback).is_err() {
            self.report(&PoolError::Callback);
        }
    }

    /// Ends the stream of events.
    pub(crate) fn close_events(&self) {
        if let Some(stream) = &self.callbacks.stream {
            stream.close();
        }
    }

    /// Calls `on_destroy`.
    pub(crate) fn destroyed(&mut self) {
        if let Some(callback) = self.callbacks.on_destroy.take() {
            guarded(callback).ok();
        }
    }
}

fn event_data(source: EventSource, key: u64) -> EventData {
    EventData::new_u64((source as u64) << 60 | key)
}

/// Source and key of an event.
pub(crate) fn source_of(event: &epoll::Event) -> (u64, u64) {
    let data = event.data.u64();
    (data >> 60, data & ((1 << 60) - 1))
}
