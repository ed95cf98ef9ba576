//! How many workers there should be: `idle`, `max`, `load`, `start` and `stop` as a state machine.
//!
//! Sans-io: the caller reports what happened to workers, asks [`Sizing::poll`] what to do, and again at
//! [`Sizing::poll_timeout`].
//!
//! * *Growth.* Workers are wanted while fewer than `idle` are idle, or jobs queue. When that has lasted for
//!   `start`, the missing idle ones are started together, and for the queue 1, then 2, 4, 8 ... after each
//!   further `start` while jobs queue. The first worker of an empty pool starts at once; `start` 0 starts at
//!   once all that the queue can use.
//! * *Replacement.* A worker that was retired for another reason than too little work (its age, its jobs, its
//!   memory, its own wish) is replaced without that delay as soon as its process is gone.
//! * *Shrink.* A worker idle for `stop` is stopped while more than `idle` are idle, the longest idle first.
//!
//! # Invariants
//! * No worker is started while `max` processes exist. A worker counts from its start until its process is
//!   gone, so also while it is leaving: retired, killed, or with its socket closed.
//! * Idle plus starting are never below `idle` for longer than `start` while there is room under `max`.

use std::time::{Duration, Instant};

use crate::time::later;

/// The options that decide the number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizingConfig {
    /// Fewest idle workers, also the number at the start. Default 0.
    pub(crate) idle: usize,
    /// Most workers, at least 1; 0 only by [`Sizing::resize`]. Default 4.
    pub(crate) max: usize,
    /// Most jobs at one worker, at least 1. Default 2.
    pub(crate) load: usize,
    /// Delay before the pool grows. Default 100 ms; 0 grows at once.
    pub(crate) start: Duration,
    /// Idle time after which a worker is stopped. Default 10 s.
    pub(crate) stop: Duration,
}

impl Default for SizingConfig {
    fn default() -> Self {
        Self { idle: 0, max: 4, load: 2, start: Duration::from_millis(100), stop: Duration::from_secs(10) }
    }
}

/// The workers to start and to stop now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SizingDecision {
    /// The number of workers to start.
    pub(crate) start: usize,
    /// The slots of workers to retire.
    pub(crate) stop: Vec<usize>,
}

/// The number of workers as a state machine. See the text of the module.
#[derive(Debug)]
pub(crate) struct Sizing {
    config: SizingConfig,
    slots: Vec<SizingSlot>,
    starting: usize,
    idle: usize,
    busy: usize,
    leaving: usize,
    /// Workers that have left or are leaving and that may be replaced without delay.
    owed: usize,
    /// The number of ready workers that a caller waits for ([`Sizing::want`]), even if there is little work.
    wanted: usize,
    /// The time of the next growth, while more workers are wanted.
    grow_at: Option<Instant>,
    /// The most workers that the next growth may start for the queue.
    step: usize,
    /// The earliest time at which an idle worker may be stopped; `None`: no worker can become due.
    shrink_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizingSlot {
    Free,
    Starting,
    Idle(Instant),
    Busy,
    /// The worker takes no more jobs; its process is not gone yet.
    Leaving,
}

impl Sizing {
    /// An empty pool. `max` and `load` below 1 count as 1, `idle` above `max` as `max`.
    pub(crate) fn new(config: SizingConfig) -> Self {
        let mut sizing = Self {
            config,
            slots: Vec::new(),
            starting: 0,
            idle: 0,
            busy: 0,
            leaving: 0,
            owed: 0,
            wanted: 0,
            grow_at: None,
            step: 1,
            shrink_at: None,
        };
        sizing.resize(config.idle, config.max.max(1));
        sizing.config.load = config.load.max(1);
        sizing
    }

    /// Changes `idle` and `max`; [`Sizing::poll`] says what follows. With `max` 0 there will be no worker.
    pub(crate) fn resize(&mut self, idle: usize, max: usize) {
        self.config.max = max;
        self.config.idle = idle.min(self.config.max);
        // A worker that was among the `idle` ones may now be surplus.
        self.shrink_at = self.slots.iter().filter_map(|slot| slot.idle_since()).min();
    }

    /// Starts missing idle workers at the next [`Sizing::poll`] instead of after `start`.
    pub(crate) fn kick(&mut self, now: Instant) {
        self.grow_at = Some(now);
    }

    /// Sets how many ready workers a caller waits for, at most `max`; 0 when none does. They are started
    /// at once, and none is stopped for idleness before all of them are ready.
    pub(crate) fn want(&mut self, workers: usize) {
        if workers < self.wanted {
            // Workers that were kept for a caller may be due now.
            self.shrink_at = self.slots.iter().filter_map(|slot| slot.idle_since()).min();
        }
        self.wanted = workers;
    }

    /// The current options.
    pub(crate) fn config(&self) -> SizingConfig {
        self.config
    }

    /// Processes that count against `max`: starting, idle, busy and leaving.
    pub(crate) fn total(&self) -> usize {
        self.active() + self.leaving
    }

    /// Workers that are leaving.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving
    }

    /// Workers that have jobs or may get some: starting, idle and busy.
    fn active(&self) -> usize {
        self.starting + self.idle + self.busy
    }

    /// Workers that are starting.
    pub(crate) fn starting(&self) -> usize {
        self.starting
    }

    /// Workers that have no job.
    pub(crate) fn idle(&self) -> usize {
        self.idle
    }

    /// Workers that have a job.
    pub(crate) fn busy(&self) -> usize {
        self.busy
    }

    /// Records that a start in `slot` has begun.
    pub(crate) fn on_starting(&mut self, slot: usize) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, SizingSlot::Free);
        }
        self.set(slot, SizingSlot::Starting);
    }

    /// Records that the worker in `slot` has no job, for the first time or again.
    #[inline]
    pub(crate) fn on_idle(&mut self, slot: usize, now: Instant) {
        self.set(slot, SizingSlot::Idle(now));
        if self.idle > self.config.idle && self.shrink_at.is_none() {
            let longest = self.slots.iter().filter_map(|slot| slot.idle_since()).min();
            self.shrink_at = longest.map(|since| later(since, self.config.stop));
        }
    }

    /// Records that the worker in `slot` was given a job.
    #[inline]
    pub(crate) fn on_busy(&mut self, slot: usize) {
        self.set(slot, SizingSlot::Busy);
    }

    /// Records that the worker in `slot` takes no more jobs: it was retired or killed, or has closed its
    /// socket. It counts until [`Sizing::on_gone`]. `replace`: another worker may take its place without
    /// delay, because it was not stopped for lack of work. A second report, or one for a worker that does not
    /// count, changes nothing.
    pub(crate) fn on_leaving(&mut self, slot: usize, replace: bool) {
        let counts =
            self.slots.get(slot).is_some_and(|slot| !matches!(slot, SizingSlot::Free | SizingSlot::Leaving));
        if counts {
            self.set(slot, SizingSlot::Leaving);
            self.owed = (self.owed + usize::from(replace)).min(self.config.max);
        }
    }

    /// Records that the process in `slot` is gone. A second report changes nothing.
    pub(crate) fn on_gone(&mut self, slot: usize) {
        if slot < self.slots.len() {
            self.set(slot, SizingSlot::Free);
        }
    }

    /// Decides at `now`, with `queued` jobs waiting, on workers to start and to stop. The caller reports each
    /// that it starts or stops.
    ///
    /// `may_start` false (no template, back-off) leaves growth for a later call.
    #[inline]
    pub(crate) fn poll(&mut self, now: Instant, queued: usize, may_start: bool) -> SizingDecision {
        let mut decision = SizingDecision::default();
        if self.shrink_at.is_some_and(|at| at <= now) {
            if queued == 0 {
                self.shrink(now, &mut decision);
            } else {
                // Jobs are queued, so an idle worker is about to get one.
                self.shrink_at = Some(later(now, self.config.stop));
            }
        }
        if self.active() > self.config.max {
            self.trim(&mut decision);
        }
        if queued > 0 || self.idle + self.starting < self.config.idle || self.active() < self.wanted {
            if may_start {
                decision.start = self.grow(now, queued);
            }
        } else {
            (self.grow_at, self.step, self.owed) = (None, 1, 0);
        }
        decision
    }

    /// When [`Sizing::poll`] must be called again if nothing happens before.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match (self.grow_at, self.shrink_at) {
            (Some(grow), Some(shrink)) => Some(grow.min(shrink)),
            (grow, shrink) => grow.or(shrink),
        }
    }

    /// Whether more workers are wanted, and `max` has room for one.
    pub(crate) fn is_short(&self, queued: usize) -> bool {
        let (for_wanted, for_idle, for_queue) = self.missing(queued);
        self.total() < self.config.max && for_wanted + for_idle + for_queue > 0
    }

    /// The numbers of missing workers: for callers, for `idle` (which includes those for callers), and for
    /// the queue.
    fn missing(&self, queued: usize) -> (usize, usize, usize) {
        let Self { config, idle, starting, .. } = *self;
        let for_wanted = self.wanted.saturating_sub(self.active());
        let for_idle = config.idle.saturating_sub(idle + starting).max(for_wanted);
        // An idle worker takes from the queue before anything else happens.
        (for_wanted, for_idle, queued.div_ceil(config.load).saturating_sub(starting + idle))
    }

    fn grow(&mut self, now: Instant, queued: usize) -> usize {
        let config = self.config;
        let (for_wanted, for_idle, for_queue) = self.missing(queued);
        let room = config.max.saturating_sub(self.total());
        if room == 0 || (for_idle == 0 && for_queue == 0) {
            self.grow_at = None;
            return 0;
        }
        let replacing = self.owed.min(for_idle.max(for_queue)).min(room);
        self.owed -= replacing;
        let replacing = replacing.max(for_wanted.min(room));
        let first = self.total() == 0;
        if !first && !config.start.is_zero() {
            let due = *self.grow_at.get_or_insert(later(now, config.start));
            if now < due {
                return replacing;
            }
        }
        let step = if config.start.is_zero() { for_queue } else { self.step.min(for_queue) };
        self.step = if first { 1 } else { (self.step * 2).min(STEP_MAX) };
        self.grow_at = (!config.start.is_zero()).then(|| later(now, config.start));
        for_idle.max(step).max(replacing).min(room)
    }

    fn shrink(&mut self, now: Instant, decision: &mut SizingDecision) {
        let stop = self.config.stop;
        let mut idle: Vec<(Instant, usize)> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, state)| Some((state.idle_since()?, slot)))
            .collect();
        idle.sort_unstable();
        let mut spare = self.idle.saturating_sub(self.config.idle);
        spare = spare.min(self.active().saturating_sub(self.wanted));
        self.shrink_at = None;
        for (since, slot) in idle {
            if spare == 0 {
                return;
            }
            let due = later(since, stop);
            if due > now {
                self.shrink_at = Some(due);
                return;
            }
            decision.stop.push(slot);
            spare -= 1;
        }
    }

    /// More than `max` after a resize: idle workers go first, then starting, then busy ones.
    fn trim(&mut self, decision: &mut SizingDecision) {
        let mut over = self.active() - self.config.max;
        let rank = |slot: &SizingSlot| match slot {
            SizingSlot::Idle(_) => 0,
            SizingSlot::Starting => 1,
            SizingSlot::Busy => 2,
            SizingSlot::Free | SizingSlot::Leaving => 3,
        };
        over = over.saturating_sub(decision.stop.len());
        let mut order: Vec<usize> =
            (0..self.slots.len()).filter(|slot| rank(&self.slots[*slot]) < 3).collect();
        order.sort_by_key(|slot| rank(&self.slots[*slot]));
        order.retain(|slot| !decision.stop.contains(slot));
        decision.stop.extend(order.into_iter().take(over));
    }

    #[inline]
    fn set(&mut self, slot: usize, to: SizingSlot) {
        let from = std::mem::replace(&mut self.slots[slot], to);
        match from {
            SizingSlot::Free => {}
            SizingSlot::Starting => self.starting -= 1,
            SizingSlot::Idle(_) => self.idle -= 1,
            SizingSlot::Busy => self.busy -= 1,
            SizingSlot::Leaving => self.leaving -= 1,
        }
        match to {
            SizingSlot::Free => {}
            SizingSlot::Starting => self.starting += 1,
            SizingSlot::Idle(_) => self.idle += 1,
            SizingSlot::Busy => self.busy += 1,
            SizingSlot::Leaving => self.leaving += 1,
        }
    }
}

impl SizingSlot {
    fn idle_since(self) -> Option<Instant> {
        if let Self::Idle(since) = self { Some(since) } else { None }
    }
}

/// Most workers that one growth starts for the queue.
const STEP_MAX: usize = 64;

#[cfg(test)]
mod tests;
