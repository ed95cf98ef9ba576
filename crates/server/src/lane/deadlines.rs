//! Ends of waits and of leases, by their time.
//!
//! A stop of the process (SIGSTOP, a virtual machine that is suspended) ends no wait by itself: when it goes
//! on, all timers that ran out meanwhile are due at once, while values for them may have arrived: at sockets
//! of any lane, or at a pool, whose thread hands them over. So timers that are late run after a short time in
//! which all threads handle what has arrived. The pools do the same for their own timers.
//!
//! # Invariants
//! * A timer that is not late runs at once.

use cattlegrid_engine::{Now, Step};

use super::Lane;

/// Whether timers may run, of which the first ran out at `due_ms`; 0: at a moment that is not known.
/// `late_since_ms`: when late ones were first seen; None again when no timer is due any more.
fn may_run(late_since_ms: &mut Option<u64>, due_ms: u64, now_ms: u64) -> bool {
    let late_ms = if due_ms == 0 { 0 } else { now_ms.saturating_sub(due_ms) };
    if late_ms >= LATE_MS {
        let since = *late_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since) < since.saturating_sub(due_ms).min(SETTLE_MS) {
            return false;
        }
    }
    *late_since_ms = None;
    true
}

/// Timers that are later were kept from running: a round of a lane takes less.
const LATE_MS: u64 = 20;
/// The most time in which what has arrived is handled: threads of a machine that is busy wait for processors.
const SETTLE_MS: u64 = 1000;

impl Lane<'_> {
    /// Ends what has waited long enough, the first of it until `due_ms`: requests of this lane's connections,
    /// and leases.
    #[cold]
    pub(super) fn end_due(&mut self, due_ms: u64, now: Now) {
        if !may_run(&mut self.late_since_ms, due_ms, now.ms) {
            return;
        }
        let (counters, interest) = (&self.shared.lanes[self.number].counters, self.shared.interest());
        let mut step = Step { now, counters, interest, effects: &mut self.effects };
        self.shared.engine.handle_timeouts(&mut step);
        while let Some((_, token)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now.ms) {
            self.deadlines.pop_first();
            self.act(token, now, |connection, turn| {
                connection.deadline_ms = None;
                connection.answer_failure(turn);
                connection.expire(turn);
                connection.answer_held(turn);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_that_are_late_run_after_a_while() {
        let mut late = None;
        for (due, now, runs) in [
            (1000, 1000, true),
            (1000, 1019, true),
            // The process was stopped for a minute.
            (1000, 61_000, false),
            (1000, 61_999, false),
            (1000, 62_000, true),
            // Once more, shortly.
            (62_000, 62_030, false),
            (62_000, 62_059, false),
            (62_000, 62_060, true),
            // While what arrived is handled, another timer becomes due.
            (70_000, 80_000, false),
            (80_001, 80_001, true),
            (90_000, 99_000, false),
            (0, 99_001, true),
        ] {
            assert_eq!(may_run(&mut late, due, now), runs, "{due} {now}");
        }
    }
}
