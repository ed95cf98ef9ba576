//! How a lane leaves: what waits is waited for, then everything is answered and closed.
//!
//! ```text
//!   SIGTERM ──▶ gets keep waiting, connections that nothing needs are closed ──▶ what still waits is answered ──▶ end
//!                                                  until `--drain` less 0.5 s, or nothing waits    until `--drain`
//! ```
//! While gets wait for values, connections of clients that compute some stay too: with one of them a value may come.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Lane;
use crate::connection::Reason;
use crate::turns::BATCH;

/// What is left of the drain time for the last replies to be taken.
const LAST: Duration = Duration::from_millis(500);
/// How often connections that nothing needs are looked for.
const LOOK: Duration = Duration::from_millis(20);

/// A lane that leaves and has yet to answer requests that wait.
#[derive(Debug)]
pub(super) struct Draining {
    /// When calls of objects are not waited for any more.
    calls_until: Instant,
    /// When values are not waited for any more.
    until: Instant,
    /// When to look for connections that nothing needs.
    look_at: Instant,
}

impl Lane<'_> {
    /// Drains as soon as no request waits: for a call of an object half of the drain time at most, for a
    /// value until 0.5 s before its end.
    pub(super) fn begin_to_leave(&mut self) {
        let (now, drain) = (self.shared.clock.now(), self.shared.settings.drain);
        self.leaving = Some(now + drain);
        let until = now + drain.saturating_sub(LAST);
        self.draining = Some(Draining { calls_until: now + drain / 2, until, look_at: now });
        self.drain_if_due();
    }

    pub(super) fn drain_if_due(&mut self) {
        let Some(draining) = &mut self.draining else { return };
        let now = self.shared.clock.now();
        if self.shared.gauges.calls.load(Relaxed) > 0 && now < draining.calls_until {
            return;
        }
        // Those of other lanes count, too: a client that computes for them may be here.
        if self.shared.engine.held() == 0 || now >= draining.until {
            self.draining = None;
            return self.drain();
        }
        if now >= draining.look_at {
            draining.look_at = now + LOOK;
            self.close_unneeded();
        }
    }

    /// Serves what clients have sent so far, then closes each connection as soon as it has its replies.
    fn drain(&mut self) {
        let now = self.now();
        let tokens: Vec<u64> = self.connections.iter().flatten().map(|c| c.token).collect();
        // First what is held: commands may wait behind it.
        for token in &tokens {
            self.act(*token, now, |connection, turn| {
                if connection.is_held() {
                    connection.release(turn);
                    connection.answer_held(turn);
                }
            });
        }
        for batch in tokens.chunks(BATCH) {
            self.serve(batch);
        }
        for token in tokens {
            self.act(token, now, |connection, turn| {
                connection.close(Reason::Shutdown);
                if connection.is_held() {
                    connection.answer_held(turn);
                }
            });
        }
    }

    /// The same for connections that do not wait, and whose clients compute no value.
    fn close_unneeded(&mut self) {
        let unneeded = self.connections.iter().flatten().filter(|c| !c.is_held() && !c.may_bring_value());
        let tokens: Vec<u64> = unneeded.map(|c| c.token).collect();
        for batch in tokens.chunks(BATCH) {
            self.serve(batch);
        }
        let now = self.now();
        for token in tokens {
            self.act(token, now, |connection, _| {
                // Its last request may be a get that waits now.
                if !connection.is_held() {
                    connection.close(Reason::Shutdown);
                }
            });
        }
    }

    pub(super) fn has_left(&mut self) -> bool {
        let Some(deadline) = self.leaving else { return false };
        let empty = self.connections.iter().all(Option::is_none) && self.draining.is_none();
        if (!empty || self.is_home()) && self.shared.clock.now() < deadline {
            return false;
        }
        self.close_all();
        true
    }

    /// Connections of other lanes may wait for calls that have their home here, or begin some.
    fn is_home(&self) -> bool {
        let gauges = &self.shared.gauges;
        gauges.calls.load(Relaxed) > 0
            || self.shared.engine.objects().is_some() && gauges.current.load(Relaxed) > 0
    }
}
