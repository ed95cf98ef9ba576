//! A pool's dealings with the budget that it shares with others: the first worker of a new program that waits for room, places
//! that are passed on, and workers that leave for other pools.
//!
//! # Invariants
//! * A pool without room polls nothing: [`crate::inbox::Message::Budget`] says that there is some.
//! * A pool that needs no more workers does not wait, and keeps no place.

use crate::budget::Owes;
use crate::driver::{Driver, Ending};
use crate::error::Error;
use crate::time::later;
use crate::worker::{Role, State};

impl Driver {
    /// The budget has changed: there is room, or another pool waits.
    pub(crate) fn on_budget(&mut self) {
        if self.seat.is_granted() {
            self.sizing.kick(self.now);
        }
    }

    /// Once in each turn, when workers have been started.
    pub(crate) fn share_places(&mut self) {
        if !self.seat.is_shared() {
            return;
        }
        let again = self.seat.look(self.now);
        self.alarm_opt(again);
        self.retry_probe();
        let probe = self.launching.as_ref().is_some_and(|launching| launching.no_room.is_some());
        let open = self.ending == Ending::No || !self.queue.is_empty();
        let member = self.launching.is_none() && (self.sizing.is_short(self.waiting) || self.probe_wanted);
        self.seat.settle(open && (probe || member));
        match self.seat.owes(self.now) {
            Owes::Nothing => {}
            Owes::At(at) => self.alarm(at),
            Owes::Now => {
                if let Some(slot) = self.dispensable() {
                    self.retire_as(slot, false);
                }
            }
        }
    }

    /// Starts the first worker of a new program if there is room for it now; after `start_timeout` the program has failed.
    fn retry_probe(&mut self) {
        let Some(launching) = &self.launching else { return };
        let Some(since) = launching.no_room else { return };
        let generation = launching.program.generation;
        if self.seat.may_take() {
            return self.start_probe(generation);
        }
        let due = later(since, self.options.start_timeout);
        if due > self.now {
            self.alarm(due);
        } else {
            let limit = self.seat.limit();
            let reason = format!(
                "no room for its first worker: the pools that share a budget of {limit} have that many"
            );
            self.launch_failed(Error::StartFailed { reason, errno: None, stderr_tail: String::new() });
        }
    }

    /// The ready worker with the fewest jobs, of equals the one that was used least recently.
    fn dispensable(&self) -> Option<usize> {
        let ready = self.workers.iter().enumerate().filter_map(|(slot, worker)| {
            let worker = worker.as_ref()?;
            (worker.role == Role::Member && worker.state == State::Ready).then_some((
                worker.own(),
                worker.last_used,
                slot,
            ))
        });
        ready.min().map(|(_, _, slot)| slot)
    }
}
