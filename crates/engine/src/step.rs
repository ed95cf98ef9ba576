//! What a step of the engine needs, who asked for it, and what it leaves to be done.
//!
//! While a shard is locked nothing outside of it can be reached: other connections, other shards, other threads. What is to be
//! done there is noted in the [`Effects`] of the turn, which whoever took the turn drains once no shard is locked.

use std::sync::Arc;

use cattlegrid_herd::Session;

use crate::counters::Counters;
use crate::event::{Event, EventKind, Interest};
use crate::output::Output;
use crate::time::Now;
use crate::wait::delivered::Delivered;

/// One key of one request need not be waited for any more.
pub type Wake = cattlegrid_herd::Wake<Arc<Delivered>>;
/// What became of a key that a request waited for.
pub type Verdict = cattlegrid_herd::Verdict<Arc<Delivered>>;

/// What a turn leaves to be done. See the module's text.
#[derive(Debug)]
pub struct Effects {
    pub(crate) herd: cattlegrid_herd::Effects<Arc<Delivered>>,
    /// When a lease's time is up, in milliseconds; `u64::MAX`: nothing new.
    pub(crate) deadline_ms: u64,
    /// What happened, for those who watch: see [`Step::interest`].
    pub events: Vec<(Ticket, Event)>,
}

impl Default for Effects {
    fn default() -> Self {
        Self { herd: cattlegrid_herd::Effects::default(), deadline_ms: u64::MAX, events: Vec::new() }
    }
}

impl Effects {
    /// What became of requests that waited, of any connection, since the last call.
    #[must_use]
    pub fn take_wakes(&mut self) -> Vec<Wake> {
        debug_assert!(self.is_settled(), "the engine has done its part");
        std::mem::take(&mut self.herd.wakes)
    }

    /// Whether there are any.
    #[inline]
    pub fn has_wakes(&self) -> bool {
        !self.herd.wakes.is_empty()
    }

    /// Nothing is left for the engine itself: see `Engine::settle`.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.herd.admitted.is_empty() && self.deadline_ms == u64::MAX
    }

    /// Adds those that another worker has handed on.
    pub fn add_wakes(&mut self, wakes: Vec<Wake>) {
        self.herd.wakes.extend(wakes);
    }

    pub(crate) fn wake(&mut self, wake: Wake) {
        self.herd.wakes.push(wake);
    }
}

/// What every step needs, whoever asked for it.
#[derive(Debug)]
pub struct Step<'a> {
    /// When.
    pub now: Now,
    /// The worker's counters.
    pub counters: &'a Counters,
    /// Which events are wanted.
    pub interest: Interest,
    /// Takes what is to be done.
    pub effects: &'a mut Effects,
}

/// Who asked: a connection (never reused) and its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The connection's number.
    pub connection: u64,
    /// The request's number on it.
    pub request: u64,
}

impl Ticket {
    /// What no connection has asked for.
    pub const NONE: Self = Self { connection: 0, request: 0 };
}

/// A step that a client has asked for.
#[derive(Debug)]
pub struct Context<'a> {
    /// What every step needs.
    pub step: Step<'a>,
    /// Who.
    pub ticket: Ticket,
    /// The connection's part in the herd.
    pub session: &'a mut Session,
    /// Takes the reply.
    pub out: &'a mut Output,
}

impl Context<'_> {
    /// Notes an event if it is wanted.
    pub(crate) fn note(&mut self, interest: Interest, key: &[u8], kind: impl FnOnce() -> EventKind) {
        if self.step.interest.wants(interest) {
            self.step.effects.events.push((self.ticket, Event { key: key.into(), kind: kind() }));
        }
    }
}
