//! The loop of the pool's own thread: wait, handle what is ready, act on timers, write, wait again.
//!
//! ```text
//!  callers ──Message──▶ inbox ─┐            ┌─▶ job sockets ──▶ workers
//!                              ▼            │
//!            epoll_wait ──▶ [ Driver ] ─────┼─▶ control sockets ──▶ templates
//!                              │            └─◀ log pipes, pidfds
//!                              └─▶ outcomes, events, errors (callbacks on this thread)
//! ```
//! One turn: messages, timers, sizing, dispatch, one write per worker, wait.
//!
//! The loop has a thread of its own, which never ends before the processes, because `PR_SET_PDEATHSIG` fires when
//! the *thread* that started a process ends.
//!
//! # Invariants
//! * The thread waits in one place, `epoll_wait`, and at most until the earliest timer.
//! * Time is read once for each turn, after the wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cattlegrid_panic::guarded;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventFlags};

use crate::callbacks::Callbacks;
use crate::driver::{Driver, Ending, Source};
use crate::error::Error;
use crate::inbox::{Inbox, Message};
use crate::launch::Launch;
use crate::options::Options;
use crate::promise::Resolver;
use crate::shared::Shared;
use crate::stats::Counters;
use crate::time::{FAR, later, now};
use crate::worker::State;

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
        let slots = options.sizing.max.saturating_mul(options.sizing.load);
        let shared = Arc::new(Shared {
            inbox,
            counters: Counters::default(),
            max_frame: options.max_frame,
            job_timeout: options.job_timeout,
            queue_limit: options.queue_limit,
            queue_policy: options.queue_policy,
            slack: slots.into(),
        });
        let mut driver = Self::new(launch.clone(), options, callbacks, Arc::clone(&shared), epoll, now());
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
                // If that panics, too, the remaining callers get their error below, when the rest is dropped.
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
            if !messages.is_empty() {
                // They may have come after the last look at the clock, however long ago that was: no job's time begins before it.
                self.now = now();
            }
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

    /// Everything between two waits: timers, jobs, sizes, output.
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
        self.share_places();
        self.advance_ending();
        self.flush_all();
        self.publish();
        self.wake_callers();
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Submit(job) => self.submit(job),
            Message::SubmitAll(jobs) => self.submit_all(jobs),
            Message::Withdraw(note, tell) => self.withdraw(note.id(), tell),
            Message::Raise(note, priority) => self.raise(note.id(), priority),
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
            Message::Budget => self.on_budget(),
            Message::Resize(idle, max) => {
                self.sizing.resize(idle, max);
                self.want_ready();
                // Jobs in the queue may have no worker any more.
                self.alarm(self.now);
                self.set_slack();
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
            Message::ReplyRoom => self.resume_replies(),
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
                            self.watch_again(slot);
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

    fn next_timer(&self) -> Option<Instant> {
        let blocked = self.is_emptied() || !self.may_start() || !self.seat.may_take();
        let sizing = if blocked { None } else { self.sizing.poll_timeout() };
        let starved = self.starved.map(|(at, _)| at).filter(|at| *at > self.now);
        [self.deadlines.next(), sizing, self.breaker.poll_timeout(), self.scan_at, starved]
            .into_iter()
            .flatten()
            .min()
    }

    /// Checks every timer that is not in a structure of its own. Runs rarely.
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

    /// Whether the pool ends and all jobs are at workers: their number is not changed any more.
    fn is_emptied(&self) -> bool {
        self.ending != Ending::No && self.queue.is_empty()
    }

    /// Starts and retires workers as the sizing decides.
    fn resize_by_load(&mut self) {
        self.waiting = self.queue.len().div_ceil(self.batch);
        if self.is_emptied() {
            return;
        }
        // Each of those behind another job can use a worker of its own.
        self.waiting += self.count_behind() * self.sizing.config().load;
        let may_start = self.may_start() && self.seat.may_take();
        let decision = self.sizing.poll(self.now, self.waiting, may_start);
        for slot in decision.stop {
            self.retire_as(slot, false);
        }
        let none = self.sizing.total() == 0 && self.sizing.config().max > 0;
        if self.probe_wanted && may_start && none && decision.start == 0 {
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
        counters.waiting_for_room.set((!self.seat.may_take()).into());
        counters.generation.set(self.program.generation.into());
        counters.breaker_open.set(self.breaker.is_open().into());
        counters.template_missing.set((!self.has_launcher()).into());
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

    /// Tells the sizing how many ready workers callers wait for, and refuses callers that wait for more than `max`.
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
}

fn unpack(data: u64) -> (u64, u64) {
    (data >> 60, data & ((1 << 60) - 1))
}

/// Events taken from one wait.
const EVENTS: usize = 256;
