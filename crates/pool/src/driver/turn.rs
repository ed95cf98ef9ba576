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
//! The loop has a thread of its own, which never ends before the processes, because `PR_SET_PDEATHSIG` fires
//! when the *thread* that started a process ends.
//!
//! # Invariants
//! * The thread waits in one place, `epoll_wait`, and at most until the earliest timer.
//! * Time is read once for each turn, after the wait.
//! * What came before a timer ran out is handled before the timer, however late this thread is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cattlegrid_panic::guarded;
use rustix::event::epoll::{self, EventFlags};

use crate::base::{EventSource, source_of};
use crate::callbacks::Callbacks;
use crate::driver::Driver;
use crate::ending::EndingPhase;
use crate::error::Error;
use crate::inbox::{Inbox, InboxMessage};
use crate::launch::Launch;
use crate::options::Options;
use crate::promise::Resolver;
use crate::shared::PoolShared;
use crate::stats::Counters;
use crate::time::FAR;
use crate::worker::WorkerState;

impl Driver {
    /// Starts the thread.
    pub(crate) fn start(
        launch: Launch,
        options: Options,
        callbacks: Callbacks,
        started: Resolver<Result<(), Error>>,
    ) -> std::io::Result<Arc<PoolShared>> {
        let slots = options.sizing.max.saturating_mul(options.sizing.load);
        let shared = Arc::new(PoolShared {
            inbox: Arc::new(Inbox::new()?),
            counters: Counters::default(),
            max_frame: options.max_frame,
            job_timeout: options.job_timeout,
            queue_limit: options.queue_limit,
            queue_policy: options.queue_policy,
            slack: slots.into(),
        });
        let mut driver = Self::new(launch.clone(), options, callbacks, Arc::clone(&shared))?;
        std::thread::Builder::new().name("pool".into()).spawn(move || {
            let inbox = Arc::clone(driver.base.inbox());
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
        self.fleet.begin_checks(&mut self.base);
        let options = self.base.options();
        let probe = options.probe || options.sizing.idle > 0;
        self.launch(launch, probe, started);
    }

    fn run(&mut self) {
        let mut messages = Vec::new();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let inbox = Arc::clone(self.base.inbox());
        loop {
            inbox.take(&mut messages);
            if !messages.is_empty() {
                // They may have come after the last look at the clock, however long ago that was: no job's
                // time begins before it.
                self.base.read_clock();
            }
            for message in messages.drain(..) {
                self.on_message(message);
            }
            if self.next_timer().is_some_and(|at| at <= self.base.now()) {
                // A stop of this process ends the wait without an event, and this thread may have had no
                // processor since: what came meanwhile is handled before the timers that ran out meanwhile.
                events.clear();
                self.base.wait(&mut events, Some(Duration::ZERO));
                self.on_events(&events);
            }
            self.turn();
            if self.has_ended() {
                break;
            }
            events.clear();
            if inbox.before_wait() {
                let timeout = self.next_timer().map(|at| at.saturating_duration_since(self.base.now()));
                self.base.wait(&mut events, timeout);
                inbox.after_wait();
            } else {
                self.base.wait(&mut events, Some(Duration::ZERO));
            }
            self.base.read_clock();
            self.on_events(&events);
        }
        self.finish();
    }

    /// Everything between two waits: timers, jobs, sizes, output.
    fn turn(&mut self) {
        while let Some(id) = self.jobs.pop_due(self.base.now()) {
            self.time_out(id);
        }
        self.fleet.starts_mut().handle_timeout(self.base.now());
        if self.base.take_alarm() {
            self.scan();
        }
        self.dispatch();
        if self.take_back() {
            self.dispatch();
        }
        let waiting = self.resize_by_load();
        self.share_places(waiting);
        self.advance_ending();
        self.fleet.flush_all(&self.base);
        self.publish();
        self.jobs.wake_callers(&mut self.base);
    }

    fn on_message(&mut self, message: InboxMessage) {
        match message {
            InboxMessage::Submit(job) => self.submit(job),
            InboxMessage::SubmitAll(jobs) => self.submit_all(jobs),
            InboxMessage::Withdraw(note, tell) => self.withdraw(note.id(), tell),
            InboxMessage::Raise(note, priority) => self.jobs.raise(note.id(), priority),
            InboxMessage::Cancel(outcome) => self.cancel(outcome.note()),
            InboxMessage::Retire(number, answer) => {
                let slot =
                    self.fleet.find(|worker| worker.number == number && worker.state == WorkerState::Ready);
                answer.resolve(slot.is_some());
                if let Some(slot) = slot {
                    self.fleet.retire(slot, &mut self.base);
                }
            }
            InboxMessage::Budget => self.fleet.on_budget(&self.base),
            InboxMessage::Resize(idle, max) => self.fleet.resize(idle, max, &mut self.base),
            InboxMessage::Reload(launch, answer) => self.reload(*launch, answer),
            InboxMessage::Ready(workers, answer) => self.fleet.wait_ready(workers, answer),
            InboxMessage::Workers(answer) => answer.resolve(self.fleet.infos()),
            InboxMessage::ResumeEvents => self.resume_events(),
            InboxMessage::ReplyRoom => self.resume_replies(),
            InboxMessage::Drain(limit, answer) => {
                let grace = limit.map(|_| self.base.after(self.base.options().shutdown_grace));
                self.ending.drain(grace);
                self.base.alarm_opt(grace);
                self.ending.wait(answer);
            }
            InboxMessage::Kill(answer) => {
                self.ending.wait(answer);
                self.kill_everything();
            }
        }
    }

    fn on_events(&mut self, events: &[epoll::Event]) {
        // Control sockets first: a template's end is then known before its workers' ends.
        for templates in [true, false] {
            for event in events {
                let (source, key) = source_of(event);
                if (source == EventSource::Control as u64) == templates {
                    self.on_ready(source, key, event.flags);
                }
            }
        }
    }

    fn on_ready(&mut self, source: u64, key: u64, flags: EventFlags) {
        match source {
            0 => self.base.inbox().drain_wake(),
            1 => self.on_control(key),
            2 => self.programs.on_template_log(key, &mut self.base),
            3 => self.on_template_end(key),
            7 => self.fleet.on_guardian_end(key, &mut self.base),
            _ => {
                let Some(slot) = self.fleet.slot_of(key) else { return };
                match source {
                    4 => {
                        if flags.contains(EventFlags::OUT) {
                            self.fleet.flush(slot, &self.base);
                            self.fleet.watch_again(slot, &self.base);
                        }
                        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                            self.on_readable(slot);
                        }
                    }
                    5 => self.fleet.on_worker_log(slot, &mut self.base),
                    _ => self.on_worker_end(slot),
                }
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let blocked = self.is_emptied() || !self.may_start() || !self.fleet.seat().may_take();
        let sizing = if blocked { None } else { self.fleet.sizing().poll_timeout() };
        let starts = self.fleet.starts().poll_timeout(self.base.now());
        [self.jobs.next_deadline(), sizing, starts, self.base.next_alarm()].into_iter().flatten().min()
    }

    /// Checks every timer that is not in a structure of its own. Runs rarely.
    fn scan(&mut self) {
        for slot in self.fleet.slots(|_| true) {
            self.scan_worker(slot);
        }
        self.scan_templates();
        let template_of = |serial| self.programs.template(serial).map(|template| template.pid);
        self.fleet.scan_memory(template_of, &mut self.base);
        self.fleet.scan_pings(&mut self.base);
        self.scan_desertion();
        self.fleet.scan_orphans(&mut self.base);
        let now = self.base.now();
        match self.ending.phase() {
            EndingPhase::Draining(Some(at)) if at <= now => self.kill_everything(),
            EndingPhase::Draining(at) => self.base.alarm_opt(at),
            EndingPhase::Leaving(at) if at <= now => {
                self.fleet.kill_all(|_| true, "the pool ends", &mut self.base);
                self.ending.leave(self.base.after(FAR));
            }
            EndingPhase::Leaving(at) => self.base.alarm(at),
            EndingPhase::No => {}
        }
    }

    /// Whether the pool ends and all jobs are at workers: their number is not changed any more.
    fn is_emptied(&self) -> bool {
        self.ending.has_begun() && !self.jobs.has_queued()
    }

    /// Starts and retires workers as the sizing decides. Returns the batches for which workers are wanted: in
    /// the queue, and those behind another one at a worker, of which each counts as `load`.
    fn resize_by_load(&mut self) -> usize {
        let queued = self.jobs.queued().div_ceil(self.fleet.batch());
        if self.is_emptied() {
            return queued;
        }
        // Each of those behind another job can use a worker of its own.
        let waiting = queued + self.count_behind() * self.fleet.sizing().config().load;
        let may_start = self.may_start() && self.fleet.seat().may_take();
        let decision = self.fleet.poll_sizing(waiting, may_start, &self.base);
        for slot in decision.stop {
            self.fleet.retire_as(slot, false, &mut self.base);
        }
        let none = self.fleet.sizing().total() == 0 && self.fleet.sizing().config().max > 0;
        if may_start && none && decision.start == 0 && self.fleet.starts_mut().take_probe() {
            self.start_member();
        }
        for _ in 0..decision.start {
            if !self.start_member() {
                break;
            }
        }
        self.refill_spares();
        waiting
    }

    pub(super) fn publish(&mut self) {
        self.jobs.publish(&self.base);
        self.programs.publish(&self.base);
        self.fleet.publish(&self.base);
    }
}

/// Events taken from one wait.
const EVENTS: usize = 256;
