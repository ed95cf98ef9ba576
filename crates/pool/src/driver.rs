//! The state of the pool's own thread, and the functions that every part of it needs: registration, alarms, reports, guarded
//! callbacks.
//!
//! One thread owns all of it, so nothing here is locked. The other files add to [`Driver`] by subject: `turn.rs` has the loop
//! that calls them, `dispatch.rs` the life of jobs (`claims.rs` the jobs that are taken back), `start.rs` and `lifecycle.rs`
//! the life of workers, `program.rs` that of templates, `groups.rs` the guardian, `memory.rs` the memory limit, `traffic.rs`
//! the frames, `ending.rs` the end.
//!
//! # Invariants
//! * A worker keeps its slot in `workers` from its start until its end is known; its number is never used again.
//! * A callback of the program runs only inside [`Driver::guard`] or another `guarded`.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cattlegrid_panic::guarded;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::breaker::Breaker;
use crate::budget::Seat;
use crate::callbacks::Callbacks;
use crate::deadlines::Deadlines;
use crate::error::{Error, PoolError};
use crate::guardian::Guardian;
use crate::job::Jobs;
use crate::launch::Launch;
use crate::logs::RateLimit;
use crate::options::Options;
use crate::proc::oom_kills;
use crate::promise::{Resolver, Waiter};
use crate::queue::Queue;
use crate::reply_room::Door;
use crate::shared::Shared;
use crate::sizing::Sizing;
use crate::stderr;
use crate::template::{Launching, Program, Template};
use crate::worker::Worker;

/// See the module.
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: Options,
    pub(crate) callbacks: Callbacks,
    pub(crate) epoll: OwnedFd,
    pub(crate) now: Instant,
    pub(crate) jobs: Jobs,
    pub(crate) queue: Queue,
    /// Jobs held because the queue is full (policy Wait).
    pub(crate) held: VecDeque<u64>,
    pub(crate) deadlines: Deadlines,
    pub(crate) sizing: Sizing,
    pub(crate) breaker: Breaker,
    /// Its part in the budget that it shares with other pools, if it does.
    pub(crate) seat: Seat,
    /// Its way into the room for replies that it shares with other pools, if it does.
    pub(crate) door: Door,
    /// The system was short of processes, memory or descriptors: when to try again, and the delay after that.
    pub(crate) starved: Option<(Instant, Duration)>,
    pub(crate) workers: Vec<Option<Box<Worker>>>,
    pub(crate) last_number: u64,
    /// Counts dispatches and replies.
    pub(crate) uses: u64,
    /// Slots with unsent output.
    pub(crate) dirty: Vec<usize>,
    /// Most jobs in a batch at the workers of this program, as far as one has said it.
    pub(crate) batch: usize,
    /// Batches for which workers are wanted: in the queue, and those behind another one at a worker, of which each counts as `load`.
    pub(crate) waiting: usize,
    /// The batch that is being made; empty otherwise.
    pub(crate) making: Vec<u64>,
    /// Callers whose outcome has arrived. They are woken after the workers have got their next jobs.
    pub(crate) wakes: Vec<Waiter>,
    pub(crate) program: Program,
    pub(crate) launching: Option<Launching>,
    pub(crate) templates: Vec<Template>,
    pub(crate) last_template: u64,
    pub(crate) guardian: Option<Guardian>,
    /// The lack of a guardian was reported.
    pub(crate) unguarded: bool,
    /// Children of ours that did not end in time; reaped when they end.
    pub(crate) orphans: Vec<rustix::process::Pid>,
    /// The earliest of all timers except those of deadlines, sizing and breaker.
    pub(crate) scan_at: Option<Instant>,
    /// When the memory of the worker in `look_slot`, or of the next worker after it, is measured.
    pub(crate) next_look: Option<Instant>,
    pub(crate) look_slot: usize,
    /// The pool has reported that private memory cannot be read.
    pub(crate) told_estimate: bool,
    pub(crate) next_ping: Option<Instant>,
    /// Since when no worker has been ready.
    pub(crate) deserted: Option<Instant>,
    pub(crate) last_start_error: Option<Error>,
    /// A job has failed fast since the last start: when the open breaker allows it, one start is tried.
    pub(crate) probe_wanted: bool,
    pub(crate) log_limit: RateLimit,
    pub(crate) random: u64,
    pub(crate) oom_kills: u64,
    pub(crate) waiting_ready: Vec<(usize, Resolver<Result<(), Error>>)>,
    pub(crate) ending: Ending,
    pub(crate) on_end: Vec<Resolver<()>>,
}

/// What an epoll event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Source {
    Inbox = 0,
    Control = 1,
    TemplateLog = 2,
    TemplateEnd = 3,
    Worker = 4,
    WorkerLog = 5,
    WorkerEnd = 6,
    Guardian = 7,
}

/// How far the end of the pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The pool is not ending.
    No,
    /// No new jobs; at the instant, if there is one, everything is killed.
    Draining(Option<Instant>),
    /// All jobs are answered; the pool waits for its processes, which are killed at the instant.
    Leaving(Instant),
}

impl Driver {
    /// The state of a pool that has no process yet.
    pub(crate) fn new(
        launch: Launch,
        options: Options,
        callbacks: Callbacks,
        shared: Arc<Shared>,
        epoll: OwnedFd,
        now: Instant,
    ) -> Self {
        let seat = Seat::new(options.budget.as_ref(), &shared.inbox);
        let door = Door::new(options.reply_room.as_ref(), &shared.inbox);
        Self {
            shared,
            seat,
            door,
            epoll,
            now,
            jobs: Jobs::default(),
            queue: Queue::new(options.ageing),
            held: VecDeque::new(),
            deadlines: Deadlines::default(),
            sizing: Sizing::new(options.sizing),
            breaker: Breaker::new(options.crash_loop.0, options.crash_loop.1),
            starved: None,
            workers: Vec::new(),
            last_number: 0,
            uses: 0,
            dirty: Vec::new(),
            batch: 1,
            waiting: 0,
            making: Vec::new(),
            wakes: Vec::new(),
            program: Program::new(0, launch),
            launching: None,
            templates: Vec::new(),
            last_template: 0,
            guardian: None,
            unguarded: false,
            orphans: Vec::new(),
            scan_at: None,
            next_look: None,
            look_slot: 0,
            told_estimate: false,
            next_ping: None,
            deserted: None,
            last_start_error: None,
            probe_wanted: false,
            log_limit: RateLimit::new(options.log_rate, now),
            random: std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0) | 1,
            oom_kills: oom_kills(),
            waiting_ready: Vec::new(),
            ending: Ending::No,
            on_end: Vec::new(),
            options,
            callbacks,
        }
    }

    /// Registers a descriptor; `key` is a worker's number or a template's serial.
    pub(crate) fn register(
        &self,
        fd: &impl std::os::fd::AsFd,
        source: Source,
        key: u64,
    ) -> std::io::Result<()> {
        let data = EventData::new_u64((source as u64) << 60 | key);
        Ok(epoll::add(&self.epoll, fd, data, EventFlags::IN)?)
    }

    /// Slot of the worker with this number.
    pub(crate) fn slot_of(&self, number: u64) -> Option<usize> {
        self.workers.iter().position(|worker| worker.as_ref().is_some_and(|worker| worker.number == number))
    }

    /// Makes sure [`Driver::scan`] runs at `at` or before.
    pub(crate) fn alarm(&mut self, at: Instant) {
        self.scan_at = Some(self.scan_at.map_or(at, |before| before.min(at)));
    }

    pub(crate) fn alarm_opt(&mut self, at: Option<Instant>) {
        if let Some(at) = at {
            self.alarm(at);
        }
    }

    /// Whether a worker could be started now.
    pub(crate) fn may_start(&self) -> bool {
        self.launching.is_none()
            && self.breaker.allows(self.now)
            && self.starved.is_none_or(|(at, _)| at <= self.now)
            && self.has_launcher()
    }

    pub(crate) fn wake_callers(&mut self) {
        let mut wakes = std::mem::take(&mut self.wakes);
        for waiter in wakes.drain(..) {
            self.guard(|| waiter.wake());
        }
        self.wakes = wakes;
    }

    /// Hands an error to `on_error`, or to stderr.
    pub(crate) fn report(&mut self, error: &PoolError) {
        match &mut self.callbacks.on_error {
            // A panic in the error callback has nowhere to go.
            Some(callback) => drop(guarded(|| callback(error))),
            None => drop(stderr::say(format!("cattlegrid-pool: {error}\n").as_bytes())),
        }
    }

    /// Runs a callback of the program; a panic is reported and the pool goes on.
    pub(crate) fn guard(&mut self, callback: impl FnOnce()) {
        if guarded(callback).is_err() {
            self.report(&PoolError::Callback);
        }
    }

    /// A pseudo-random number in 0.0..1.0 (xorshift64), for jitter.
    pub(crate) fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        share
    }
}
