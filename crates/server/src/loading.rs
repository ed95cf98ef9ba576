//! Between lanes and loaders: how a lane learns that a job has ended, and how it uses the result.
//!
//! ```text
//!   lane: turns leave orders ──▶ Loaders::submit ──▶ pool's thread ──▶ LaneHost::finished ──▶ inbox
//!   lane: reads its inbox ──▶ Engine::finish_load: stores under a lock ──▶ wakes, in the same round
//! ```
//!
//! # Invariants
//! * Only lanes store values. A pool's thread leaves a message, and wakes the lane for the first message of
//!   several.

use std::sync::Arc;
use std::time::Instant;

use cattlegrid_engine::{Effects, Step};
use cattlegrid_loader::{Finished, Host, Severity};

use crate::lane::handle::LaneHandle;
use crate::log;
use crate::shared::Shared;
use crate::time::Clock;

/// The server as loaders see it: a lane's inbox.
pub(crate) struct LaneHost {
    lanes: Arc<[LaneHandle]>,
    clock: Clock,
}

impl LaneHost {
    pub(crate) fn new(lanes: Arc<[LaneHandle]>, clock: Clock) -> Self {
        Self { lanes, clock }
    }
}

impl Host for LaneHost {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn log(&self, severity: Severity, text: &str) {
        log_loader(severity, text);
    }

    fn finished(&self, lane: usize, finished: Finished) {
        self.lanes[lane].tell_finished(finished);
    }
}

/// Writes a loader's message to the log.
pub fn log_loader(severity: Severity, text: &str) {
    let level = match severity {
        Severity::Error => log::Level::Error,
        Severity::Warning => log::Level::Warning,
        Severity::Notice => log::Level::Notice,
        Severity::Debug => log::Level::Debug,
    };
    log::lines(level, text);
}

/// Gives the ends of jobs to the engine, on the lane that ordered them.
pub(crate) fn finish_loads(all: Vec<Finished>, shared: &Shared, lane: usize, effects: &mut Effects) {
    let (counters, interest) = (&shared.lanes[lane].counters, shared.interest());
    let now = shared.now_at(shared.clock.now());
    let mut lock = shared.engine.shard_lock();
    for finished in all {
        let mut step = Step { now, counters, interest, effects: &mut *effects };
        let landed =
            finished.with_end(|end| shared.engine.finish_load(finished.load(), end, &mut lock, &mut step));
        finished.landed(landed);
    }
    drop(lock);
    // The descriptor 0 stands for no connection.
    shared.publish(0, lane, 0, effects);
}
