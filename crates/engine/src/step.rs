//! The inputs of a step of the engine, its origin, and what it leaves for its caller: replies to be sent
//! ([`Output`]), and work ([`Effects`]).
//!
//! While a shard is locked nothing outside of it can be reached: other connections, other shards, other
//! threads. Work there is noted in the [`Effects`] of the turn, which the caller drains when no shard is
//! locked.

use std::sync::Arc;

use cattlegrid_herd::Session;
use cattlegrid_store::{HugeValue, Value};

use crate::counters::Counters;
use crate::delivered::{DeliveredValue, Delivery, Wake};
use crate::event::{Event, EventKind};
use crate::load::LoadOrder;
use crate::running::RunningCall;
use crate::time::Now;

/// Calls of objects that have taken this long, in nanoseconds, end a turn of their connection.
pub const TURN_CALLS_NS: u64 = 1_000_000;

/// Lines for the log that are kept until they are taken; others are dropped.
const LINES_MAX: usize = 64;

/// The work that a turn leaves for its caller.
#[derive(Debug)]
pub struct Effects {
    pub(crate) herd: cattlegrid_herd::Effects<Arc<Delivery>>,
    /// The earliest deadline of a lease, in milliseconds since the start; `u64::MAX`: none is new.
    pub(crate) deadline_ms: u64,
    /// Work for the loaders.
    loads: Vec<LoadOrder>,
    /// Calls of objects that go on.
    #[expect(clippy::vec_box, reason = "they are moved from list to list")]
    calls: Vec<Box<RunningCall>>,
    /// Nanoseconds of calls that were timed.
    calls_ns: u64,
    /// `calls_ns` when the round began.
    round_ns: u64,
    /// Methods of hosts are run later.
    postpones: bool,
    /// The last bump that was left for the log of the fleet, by its ticket; 0: none.
    pub(crate) bump_ticket: u64,
    /// The number of a bump by a cascade, and where the reply to its command begins.
    pub(crate) bumped: (u64, (usize, usize)),
    /// Lines for the server's log.
    lines: Vec<String>,
    /// Events for watchers and counters: see [`Step::interest`].
    pub events: Vec<(Ticket, Event)>,
}

impl Default for Effects {
    fn default() -> Self {
        Self {
            herd: cattlegrid_herd::Effects::default(),
            deadline_ms: u64::MAX,
            loads: Vec::new(),
            calls: Vec::new(),
            calls_ns: 0,
            round_ns: 0,
            postpones: false,
            bump_ticket: 0,
            bumped: (0, (0, 0)),
            lines: Vec::new(),
            events: Vec::new(),
        }
    }
}

impl Effects {
    /// Takes the ends of waits, of any connection, since the last call.
    #[must_use]
    pub fn take_wakes(&mut self) -> Vec<Wake> {
        debug_assert!(self.is_finished(), "the engine has done its part");
        std::mem::take(&mut self.herd.wakes)
    }

    /// Whether there are any.
    #[inline]
    pub fn has_wakes(&self) -> bool {
        !self.herd.wakes.is_empty()
    }

    /// Takes the orders for loaders since the last call.
    #[must_use]
    pub fn take_loads(&mut self) -> Vec<LoadOrder> {
        std::mem::take(&mut self.loads)
    }

    /// Whether there are any.
    #[inline]
    pub fn has_loads(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Nanoseconds that calls of objects have taken since this was made, as far as they were timed: all calls
    /// of a method whose calls take long, and a sample of others.
    #[inline]
    pub fn calls_ns(&self) -> u64 {
        self.calls_ns
    }

    /// Notes that a round of a lane begins, which serves many connections. `postpones`: methods of hosts,
    /// which may take long, leave the engine as calls that are run later; they do so anyway once the round's
    /// time for calls is used up.
    pub fn begin_round(&mut self, postpones: bool) {
        (self.round_ns, self.postpones) = (self.calls_ns, postpones);
    }

    /// Calls of objects have taken [`TURN_CALLS_NS`] since the round began: other connections wait for it.
    #[inline]
    pub fn is_past_call_time(&self) -> bool {
        self.calls_ns - self.round_ns >= TURN_CALLS_NS
    }

    /// Whether a method of a host that could be run now must be run later.
    pub(crate) fn postpones(&self) -> bool {
        self.postpones || self.is_past_call_time()
    }

    pub(crate) fn add_calls_ns(&mut self, ns: u64) {
        self.calls_ns = self.calls_ns.saturating_add(ns);
    }

    /// Takes the calls of objects that their home lanes must run, in order.
    #[must_use]
    pub fn take_calls(&mut self) -> Vec<Box<RunningCall>> {
        std::mem::take(&mut self.calls)
    }

    /// Whether there are any.
    #[inline]
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(crate) fn call(&mut self, call: Box<RunningCall>) {
        self.calls.push(call);
    }

    /// Takes the lines that methods of users' own types have left for the server's log, at most 64.
    #[must_use]
    pub fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// Whether there are any.
    #[inline]
    pub fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(crate) fn line(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        }
    }

    pub(crate) fn order(&mut self, order: LoadOrder) {
        self.loads.push(order);
    }

    /// Whether no work is left for the engine itself: see `Engine::finish_step`.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.herd.admitted.is_empty() && self.deadline_ms == u64::MAX
    }

    /// Adds wakes that another lane has handed on.
    pub fn add_wakes(&mut self, wakes: Vec<Wake>) {
        self.herd.wakes.extend(wakes);
    }

    pub(crate) fn wake(&mut self, wake: Wake) {
        self.herd.wakes.push(wake);
    }
}

/// Replies, in order. Small values are copied in; a huge one is noted with its position.
#[derive(Debug, Default)]
pub struct Output {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Huge values in order, each with the number of bytes before it.
    pub huge: Vec<(usize, Arc<HugeValue>)>,
}

impl Output {
    /// Appends a value.
    #[inline]
    pub fn value(&mut self, value: Value<'_>) {
        match value {
            Value::Inline(bytes) => self.bytes.extend_from_slice(bytes),
            Value::Huge(huge) => self.huge.push((self.bytes.len(), Arc::clone(huge))),
        }
    }

    /// Appends a value that was copied for a request which has waited for it.
    pub(crate) fn delivered(&mut self, value: &DeliveredValue) {
        match value {
            DeliveredValue::Inline(bytes) => self.bytes.extend_from_slice(bytes),
            DeliveredValue::Huge(huge) => self.huge.push((self.bytes.len(), Arc::clone(huge))),
            DeliveredValue::Line(_) => {}
        }
    }

    /// Appends other replies.
    pub fn append(&mut self, mut other: Self) {
        let at = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        self.huge.extend(other.huge.into_iter().map(|(place, huge)| (at + place, huge)));
    }

    /// The current end.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.bytes.len(), self.huge.len())
    }

    /// Cuts off what was written after [`Output::place`] returned this.
    pub(crate) fn split_off(&mut self, (bytes, huge): (usize, usize)) -> Self {
        let huge = self.huge.split_off(huge).into_iter().map(|(at, value)| (at - bytes, value)).collect();
        Self { bytes: self.bytes.split_off(bytes), huge }
    }

    /// Bytes to send, huge values included.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.huge.iter().map(|(_, h)| h.len()).sum::<usize>()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.huge.is_empty()
    }

    /// Removes everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.huge.clear();
    }
}

/// The kinds of events that are wanted. No others are noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest(u8);

impl Interest {
    /// Reads: [`EventKind::Get`].
    pub const FETCHERS: Self = Self(1);

    /// Writes: [`EventKind::Store`].
    pub const MUTATIONS: Self = Self(2);

    /// [`EventKind::Evicted`].
    pub const EVICTIONS: Self = Self(4);

    /// [`EventKind::Deleted`].
    pub const DELETIONS: Self = Self(8);

    /// [`EventKind::Script`].
    pub const SCRIPTS: Self = Self(128);

    /// No event.
    pub const fn none() -> Self {
        Self(0)
    }

    /// The set with this number, see [`Interest::bits`].
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & (15 | 128))
    }

    /// The set as a number; the bits 16, 32 and 64 are never set.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any kind of `other` is wanted.
    pub const fn wants(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The inputs of a step, with a client or without.
#[derive(Debug)]
pub struct Step<'a> {
    /// The time of the step.
    pub now: Now,
    /// The lane's counters.
    pub counters: &'a Counters,
    /// Which events are wanted.
    pub interest: Interest,
    /// Takes the work that is left for the caller.
    pub effects: &'a mut Effects,
}

/// The origin of a step: a connection (its number is never reused) and its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The connection's number.
    pub connection: u64,
    /// The request's number on it.
    pub request: u64,
}

impl Ticket {
    /// For steps that no connection has asked for.
    pub const NONE: Self = Self { connection: 0, request: 0 };
}

/// A step that a client has asked for.
#[derive(Debug)]
pub struct Context<'a> {
    /// The inputs of every step.
    pub step: Step<'a>,
    /// The connection and its request.
    pub ticket: Ticket,
    /// The connection's state in the herd.
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
