//! A connection's turn: what it works with, and its share of output and keys.

use cattlegrid_engine::{Counters, Effects, Interest, Now, Output, TURN_CALLS_NS};

use crate::latency::Family;
use crate::shared::Shared;

/// What a turn works with.
pub(crate) struct Turn<'a> {
    pub(crate) shared: &'a Shared,
    /// Number of the lane.
    pub(crate) lane: usize,
    pub(crate) counters: &'a Counters,
    pub(crate) now: Now,
    pub(crate) interest: Interest,
    /// Replies that the connection may have in this turn, in bytes.
    pub(crate) output_bytes: usize,
    /// The lane's count of gets when the turn began.
    pub(crate) gets: u64,
    /// Commands of the turn.
    pub(crate) commands: usize,
    pub(crate) out: &'a mut Output,
    pub(crate) effects: &'a mut Effects,
    /// [`Effects::calls_ns`] when it began.
    pub(crate) calls_ns: u64,
    /// The family of its last command.
    pub(crate) family: Family,
    /// For how many turns it stands among hot keys; 0: it is not sampled.
    pub(crate) stands_for: u32,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        lane: usize,
        now: Now,
        out: &'a mut Output,
        effects: &'a mut Effects,
    ) -> Self {
        let counters = &shared.lanes[lane].counters;
        let (interest, output_bytes) = (shared.interest(), output_bytes(shared));
        let gets = counters.cmd_get.get();
        let calls_ns = effects.calls_ns();
        Self {
            shared,
            lane,
            counters,
            now,
            interest,
            output_bytes,
            gets,
            commands: 0,
            out,
            effects,
            calls_ns,
            family: Family::Other,
            stands_for: 0,
        }
    }

    /// The connection has used up its share of output, of keys, or of time for calls of objects.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() >= self.output_bytes
            || self.keys() >= self.shared.caps.turn_keys
            || self.effects.calls_ns().wrapping_sub(self.calls_ns) >= TURN_CALLS_NS
    }

    /// Commands of the turn, or keys of gets if those are more.
    pub(crate) fn work(&self) -> usize {
        self.commands.max(self.keys())
    }

    fn keys(&self) -> usize {
        self.counters.cmd_get.get().wrapping_sub(self.gets) as usize
    }
}

/// Replies that a connection may have in one turn, in bytes.
pub(crate) fn output_bytes(shared: &Shared) -> usize {
    if shared.is_output_scarce() { shared.caps.scarce_output_bytes } else { shared.caps.output_bytes }
}
