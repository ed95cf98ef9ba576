//! How far the end of a pool is, and the callers that wait for it.
//!
//! `No` -> `Draining` (no new jobs) -> `Leaving` (no jobs; processes end). It never goes back.

use std::time::Instant;

use crate::promise::Resolver;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ending {
    phase: EndingPhase,
    waiters: Vec<Resolver<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndingPhase {
    /// The pool is not ending.
    No,
    /// No new jobs; at the instant, if there is one, everything is killed.
    Draining(Option<Instant>),
    /// All jobs are answered; the pool waits for its processes, which are killed at the instant.
    Leaving(Instant),
}

impl Ending {
    pub(crate) fn new() -> Self {
        Self { phase: EndingPhase::No, waiters: Vec::new() }
    }

    pub(crate) fn phase(&self) -> EndingPhase {
        self.phase
    }

    /// Whether the pool has begun to end.
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != EndingPhase::No
    }

    /// Whether the pool is past its last job.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, EndingPhase::Leaving(_))
    }

    /// No new jobs; `kill_at`: when the rest is killed. A time that was set before stays.
    pub(crate) fn drain(&mut self, kill_at: Option<Instant>) {
        if self.phase == EndingPhase::No || (self.phase == EndingPhase::Draining(None) && kill_at.is_some()) {
            self.phase = EndingPhase::Draining(kill_at);
        }
    }

    /// No jobs any more; processes that are left at `kill_at` are killed.
    pub(crate) fn leave(&mut self, kill_at: Instant) {
        self.phase = EndingPhase::Leaving(kill_at);
    }

    /// A caller waits for the end.
    pub(crate) fn wait(&mut self, waiter: Option<Resolver<()>>) {
        self.waiters.extend(waiter);
    }

    /// The pool has ended.
    pub(crate) fn answer(&mut self) {
        self.waiters.drain(..).for_each(|waiter| waiter.resolve(()));
    }
}
