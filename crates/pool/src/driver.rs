//! The pool's own thread: one epoll loop that owns everything.
//!
//! ```text
//!  callers ──Message──▶ inbox ─┐            ┌─▶ job sockets ──▶ workers
//!                              ▼            │
//!            epoll_wait ──▶ [ Driver ] ─────┼─▶ control sockets ──▶ templates
//!                              │            └─◀ log pipes, pidfds
//!                              └─▶ outcomes, events, errors (callbacks on this thread)
//! ```
//! One turn: messages, timers, sizing, dispatch, one write per worker, wait. This file has the loop, the
//! table of workers and the timers; `dispatch.rs` has the jobs' life (`claims.rs` the jobs that are taken
//! back), `start.rs` and `lifecycle.rs` the workers', `program.rs` the templates', `traffic.rs` the frames,
//! `ending.rs` the end.
//!
//! It is a thread of its own, and never ends before the processes, because `PR_SET_PDEATHSIG` fires when
//! the *thread* that started a process ends.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cattlegrid_panic::guarded;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::breaker::Breaker;
use crate::builder::{Callbacks, Options, Shared};
use crate::deadlines::Deadlines;
use crate::ending::Ending;
use crate::error::{Error, PoolError};
use crate::guardian::Guardian;
use crate::inbox::{Inbox, Message};
use crate::job::Jobs;
use crate::launch::Launch;
use crate::logs::RateLimit;
use crate::program::{Launching, Program, Template};
use crate::promise::{Resolver, Waiter};
use crate::queue::Queue;
use crate::sizing::Sizing;
use crate::stderr;
use crate::time::{FAR, later};
use crate::worker::{State, Worker};

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
    /// No process, memory or descriptors: when to try again, and the delay after that.
    pub(crate) starved: Option<(Instant, Duration)>,
    pub(crate) workers: Vec<Option<Box<Worker>>>,
    pub(crate) last_number: u64,
    /// Counts dispatches and replies.
    pub(crate) uses: u64,
    /// Slots with unsent output.
    pub(crate) dirty: Vec<usize>,
    /// Callers whose outcome is there. They are woken after the workers were given their next jobs.
    pub(crate) wakes: Vec<Waiter>,
    pub(crate) program: Program,
    pub(crate) launching: Option<Launching>,
    pub(crate) templates: Vec<Template>,
    pub(crate) last_template: u64,
    pub(crate) guardian: Option<Guardian>,
    /// It was reported that there is none.
    pub(crate) unguarded: bool,
    /// Children of ours that were given up on; reaped when they end.
    pub(crate) orphans: Vec<rustix::process::Pid>,
    /// The earliest of all timers but deadlines, sizing and breaker.
    pub(crate) scan_at: Option<Instant>,
    /// When the memory of the worker in `look_slot`, or the next one behind it, is measured.
    pub(crate) next_look: Option<Instant>,
    pub(crate) look_slot: usize,
    /// It was reported that private memory cannot be read.
    pub(crate) told_estimate: bool,
    pub(crate) next_ping: Option<Instant>,
    /// Since when no worker has been ready.
    pub(crate) deserted: Option<Instant>,
    pub(crate) last_start_error: Option<Error>,
    /// A job has failed fast since the last start: the open breaker tries another one when it is time.
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

impl Driver {
    /// Starts the thread.
    pub(crate) fn start(
        launch: Launch,
        options: Options,
        callbacks: Callbacks,
        started: Resolver<Result<(), Error>>,
    ) -> std::io::Result<Arc<Shared>> {
        let inbox = Arc::new(Inbox::new()?);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let sizing = Sizing::new(options.sizing);
        let slots = sizing.config().max.saturating_mul(sizing.config().load);
        let shared = Arc::new(Shared {
            inbox,
            counters: crate::stats::Counters::default(),
            max_frame: options.max_frame,
            job_timeout: options.job_timeout,
            queue_limit: options.queue_limit,
            queue_policy: options.queue_policy,
            slack: slots.into(),
        });
        let now = now();
        let mut driver = Self {
            shared: Arc::clone(&shared),
            epoll,
            now,
            jobs: Jobs::default(),
            queue: Queue::new(options.ageing),
            held: VecDeque::new(),
            deadlines: Deadlines::default(),
            sizing,
            breaker: Breaker::new(options.crash_loop.0, options.crash_loop.1),
            starved: None,
            workers: Vec::new(),
            last_number: 0,
            uses: 0,
            dirty: Vec::new(),
            wakes: Vec::new(),
            program: Program::new(0, launch.clone()),
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
            oom_kills: crate::lifecycle::oom_kills(),
            waiting_ready: Vec::new(),
            ending: Ending::No,
            on_end: Vec::new(),
            options,
            callbacks,
        };
        driver.register(&Arc::clone(&shared.inbox), Source::Inbox, 0)?;
        std::thread::Builder::new().name("pool".into()).spawn(move || {
            let inbox = Arc::clone(&driver.shared.inbox);
            let run = guarded(|| {
                driver.begin(launch, started);
                driver.run();
            });
            if run.is_err() {
                inbox.lost.store(true, Ordering::SeqCst);
                inbox.closed.store(true, Ordering::SeqCst);
                // If even that panics, all that is left ends below, by being dropped.
                guarded(|| driver.abandon()).ok();
                inbox.end(&mut Vec::new());
            }
        })?;
        Ok(shared)
    }

    fn begin(&mut self, launch: Launch, started: Resolver<Result<(), Error>>) {
        if self.options.max_rss.is_some() {
            self.next_look = Some(self.now);
        }
        self.next_ping = self.options.ping.map(|every| later(self.now, every));
        self.alarm_opt(self.next_look);
        self.alarm_opt(self.next_ping);
        let probe = self.options.probe || self.options.sizing.idle > 0;
        self.launch(launch, probe, started);
    }

    fn run(&mut self) {
        let mut messages = Vec::new();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let inbox = Arc::clone(&self.shared.inbox);
        loop {
            inbox.take(&mut messages);
            for message in messages.drain(..) {
                self.on_message(message);
            }
            self.turn();
            if self.has_ended() {
                break;
            }
            events.clear();
            if inbox.before_wait() {
                let timeout = self.next_timer().map(|at| at.saturating_duration_since(self.now));
                let timeout = timeout.map(|left| rustix::event::Timespec {
                    tv_sec: left.as_secs().min(3600).cast_signed(),
                    tv_nsec: left.subsec_nanos().into(),
                });
                epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()).ok();
                inbox.after_wait();
            } else {
                let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&zero)).ok();
            }
            self.now = now();
            // Control sockets first: a template's end is then known before its workers' ends.
            for templates in [true, false] {
                for event in &events {
                    let (source, key) = unpack(event.data.u64());
                    if (source == Source::Control as u64) == templates {
                        self.on_ready(source, key, event.flags);
                    }
                }
            }
        }
        self.finish();
    }

    /// Everything between two waits.
    fn turn(&mut self) {
        while let Some(id) = self.deadlines.pop_due(self.now, |id| self.jobs.is_open(id)) {
            self.time_out(id);
        }
        self.breaker.handle_timeout(self.now);
        if self.scan_at.is_some_and(|at| at <= self.now) {
            self.scan();
        }
        self.dispatch();
        if self.take_back() {
            self.dispatch();
        }
        self.resize_by_load();
        self.advance_ending();
        self.flush_all();
        self.publish();
        self.wake_callers();
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Submit(job) => self.submit(job),
            Message::Cancel(outcome) => self.cancel(outcome.note()),
            Message::Retire(number, answer) => {
                let slot = self.slot_of(number).filter(|slot| {
                    self.workers[*slot].as_ref().is_some_and(|worker| worker.state == State::Ready)
                });
                answer.resolve(slot.is_some());
                if let Some(slot) = slot {
                    self.retire(slot);
                }
            }
            Message::Resize(idle, max) => {
                self.sizing.resize(idle, max);
                self.want_ready();
                let config = self.sizing.config();
                self.shared.slack.store(config.max.saturating_mul(config.load), Ordering::Relaxed);
            }
            Message::Reload(launch, answer) => {
                if self.launching.is_some() || self.ending != Ending::No {
                    let reason = "another start or the end of the pool is under way".into();
                    return answer.resolve(Err(Error::StartFailed {
                        reason,
                        errno: None,
                        stderr_tail: String::new(),
                    }));
                }
                self.launch(*launch, true, answer);
            }
            Message::Ready(workers, answer) => {
                self.waiting_ready.push((workers, answer));
                self.want_ready();
            }
            Message::Workers(answer) => answer.resolve(self.infos()),
            Message::ResumeEvents => self.resume_events(),
            Message::Drain(limit, answer) => {
                let grace = limit.map(|_| later(self.now, self.options.shutdown_grace));
                if self.ending == Ending::No || (self.ending == Ending::Draining(None) && grace.is_some()) {
                    self.ending = Ending::Draining(grace);
                }
                self.alarm_opt(grace);
                self.on_end.extend(answer);
            }
            Message::Kill(answer) => {
                self.on_end.extend(answer);
                self.kill_everything();
            }
        }
    }

    fn on_ready(&mut self, source: u64, key: u64, flags: EventFlags) {
        match source {
            0 => self.shared.inbox.drain_wake(),
            1 => self.on_control(key),
            2 => self.on_template_log(key),
            3 => self.on_template_end(key),
            7 => self.on_guardian_end(key),
            _ => {
                let Some(slot) = self.slot_of(key) else { return };
                match source {
                    4 => {
                        if flags.contains(EventFlags::OUT) {
                            self.flush(slot);
                        }
                        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                            self.on_readable(slot);
                        }
                    }
                    5 => self.on_worker_log(slot),
                    _ => self.on_worker_end(slot),
                }
            }
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

    fn next_timer(&self) -> Option<Instant> {
        let blocked = !self.may_start();
        let sizing = if blocked { None } else { self.sizing.poll_timeout() };
        let starved = self.starved.map(|(at, _)| at).filter(|at| *at > self.now);
        [self.deadlines.next(), sizing, self.breaker.poll_timeout(), self.scan_at, starved]
            .into_iter()
            .flatten()
            .min()
    }

    /// Looks at every timer that is not in a structure of its own. Rare.
    fn scan(&mut self) {
        self.scan_at = None;
        for slot in 0..self.workers.len() {
            self.scan_worker(slot);
        }
        self.scan_templates();
        self.scan_memory();
        self.scan_pings();
        self.scan_desertion();
        self.orphans.retain(|pid| matches!(cattlegrid_worker::sys::reap(*pid), Ok(None)));
        if !self.orphans.is_empty() {
            self.alarm(self.now + Duration::from_secs(1));
        }
        match self.ending {
            Ending::Draining(Some(at)) if at <= self.now => self.kill_everything(),
            Ending::Draining(at) => self.alarm_opt(at),
            Ending::Leaving(at) if at <= self.now => {
                self.kill_all_workers("the pool ends");
                self.ending = Ending::Leaving(later(self.now, FAR));
            }
            Ending::Leaving(at) => self.alarm(at),
            Ending::No => {}
        }
    }

    /// Growth and shrink, as the sizing wants them.
    fn resize_by_load(&mut self) {
        if self.ending != Ending::No && self.queue.is_empty() {
            return;
        }
        let may_start = self.may_start();
        let decision = self.sizing.poll(self.now, self.queue.len(), may_start);
        for slot in decision.stop {
            self.retire_as(slot, false);
        }
        if self.probe_wanted && may_start && self.sizing.total() == 0 && decision.start == 0 {
            self.probe_wanted = false;
            self.start_member();
        }
        for _ in 0..decision.start {
            if !self.start_member() {
                break;
            }
        }
        self.refill_spares();
    }

    /// Whether a worker could be started now.
    pub(crate) fn may_start(&self) -> bool {
        self.launching.is_none()
            && self.breaker.allows(self.now)
            && self.starved.is_none_or(|(at, _)| at <= self.now)
            && self.has_launcher()
    }

    pub(crate) fn publish(&mut self) {
        let counters = &self.shared.counters;
        counters.workers.set((self.sizing.idle() + self.sizing.busy()) as u64);
        counters.starting.set(self.sizing.starting() as u64);
        counters.idle.set(self.sizing.idle() as u64);
        counters.busy.set(self.sizing.busy() as u64);
        let [high, normal, low] = self.queue.lens();
        counters.queued_high.set(high as u64);
        counters.queued_normal.set(normal as u64);
        counters.queued_low.set(low as u64);
        let (mut in_flight, mut retiring) = (0, 0);
        for worker in self.workers.iter().flatten() {
            in_flight += worker.own();
            retiring += u64::from(worker.state == State::Retiring);
        }
        counters.in_flight.set(in_flight as u64);
        counters.retiring.set(retiring);
        counters.held.set(self.held.len() as u64);
        counters.generation.set(self.program.generation.into());
        counters.breaker_open.set(self.breaker.is_open().into());
        if !self.waiting_ready.is_empty() {
            let ready = self.sizing.idle() + self.sizing.busy();
            for (count, answer) in std::mem::take(&mut self.waiting_ready) {
                if count <= ready {
                    answer.resolve(Ok(()));
                } else {
                    self.waiting_ready.push((count, answer));
                }
            }
            self.want_ready();
        }
    }

    /// Tells the sizing how many workers somebody waits for, and those who wait for more than there can be.
    fn want_ready(&mut self) {
        let max = self.sizing.config().max;
        let (possible, beyond): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting_ready).into_iter().partition(|(count, _)| *count <= max);
        for (count, answer) in beyond {
            answer.resolve(Err(Error::InvalidOption(format!("ready({count}): max is {max}"))));
        }
        self.sizing.want(possible.iter().map(|(count, _)| *count).max().unwrap_or(0));
        self.waiting_ready = possible;
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

fn unpack(data: u64) -> (u64, u64) {
    (data >> 60, data & ((1 << 60) - 1))
}

#[expect(clippy::disallowed_methods, reason = "the pool's one reader of time; everything else is told")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Events taken from one wait.
const EVENTS: usize = 256;
