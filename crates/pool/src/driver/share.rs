//! A pool's dealings with the budget that it shares with others: the first worker of a new program that waits
//! for room, places that are passed on, and workers that leave for other pools.
//!
//! # Invariants
//! * A pool without room polls nothing: [`crate::inbox::InboxMessage::Budget`] says that there is some.
//! * A pool that needs no more workers does not wait, and keeps no place.

use crate::budget::PlaceDebt;
use crate::driver::Driver;
use crate::error::Error;
use crate::time::later;

impl Driver {
    /// Once in each turn, when workers have been started. `waiting`: batches for which workers are wanted.
    pub(super) fn share_places(&mut self, waiting: usize) {
        if !self.fleet.seat().is_shared() {
            return;
        }
        let again = self.fleet.seat_mut().collect_faded(self.base.now());
        self.base.alarm_opt(again);
        self.retry_probe();
        let probe = self.programs.launching().is_some_and(|launching| launching.no_room.is_some());
        let open = !self.ending.has_begun() || self.jobs.has_queued();
        let short = self.fleet.sizing().is_short(waiting) || self.fleet.starts().is_probe_wanted();
        let member = !self.programs.is_launching() && short;
        self.fleet.seat_mut().update(open && (probe || member));
        match self.fleet.seat().debt(self.base.now()) {
            PlaceDebt::None => {}
            PlaceDebt::At(at) => self.base.alarm(at),
            PlaceDebt::Now => {
                if let Some(slot) = self.fleet.dispensable() {
                    self.fleet.retire_as(slot, false, &mut self.base);
                }
            }
        }
    }

    /// Starts the first worker of a new program if there is room for it now; after `start_timeout` the
    /// program has failed.
    fn retry_probe(&mut self) {
        let Some(launching) = self.programs.launching() else { return };
        let Some(since) = launching.no_room else { return };
        let generation = launching.program.generation;
        if self.fleet.seat().may_take() {
            return self.start_probe(generation);
        }
        let due = later(since, self.base.options().start_timeout);
        if due > self.base.now() {
            self.base.alarm(due);
        } else {
            let limit = self.fleet.seat().limit();
            let reason = format!(
                "no room for its first worker: the pools that share a budget of {limit} have that many"
            );
            self.launch_failed(Error::StartFailed { reason, errno: None, stderr_tail: String::new() });
        }
    }
}
