//! What the herd is asked and what it answers: at once ([`Role`]), and later for other connections and shards
//! ([`Effects`]).
//!
//! A step may concern connections of other threads and leases of other shards, which cannot be reached while
//! a shard is locked. So it does nothing to them: it notes the work in the [`Effects`] of the turn, and its
//! caller does this work when no shard is locked.

use std::sync::Arc;

use crate::connection::{Caller, MissRecord};
use crate::lease::{Grant, LeaseKind, Waiter, WaiterId};
use crate::ledger::Events;
use crate::policy::{OnBusy, Policy};
use crate::rule::{Admission, RuleState};

/// A get of a key that has no fresh value, or whose value is due for a refresh.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The key's hash.
    pub hash: u64,
    /// The key's rule.
    pub rule: &'a Arc<RuleState>,
    /// The value that the key has.
    pub found: LeaseKind,
    /// How it is asked for.
    pub how: AskMode,
    /// Numbers of the last events from outside the shard that concern the key: a flush, a bump of its tags. A
    /// lease with a smaller token is revoked.
    pub outside: Events,
    /// Hashes of the key's tags.
    pub tags: &'a [u64],
    /// The hint for the client that computes.
    pub hint: Option<&'a [u8]>,
    /// How long the get would wait for a key without a value that is served, in milliseconds.
    pub hold_ms: u32,
    /// How long it would wait before it gets an old value, in milliseconds.
    pub wait_ms: u32,
}

impl Ask<'_> {
    /// Whether it waits for the new value though there is an old one that is served. A client that asks for
    /// the lease itself has said for how long it waits.
    pub(crate) fn waits_for_new(&self) -> bool {
        self.wait_ms > 0 && !self.how.is_explicit()
    }
}

/// The answer to an [`Ask`].
#[derive(Debug)]
#[must_use]
pub enum Role {
    /// A miss with the lease.
    Compute(Grant),
    /// A miss without a lease.
    Miss(MissRecord),
    /// The old value, or the fresh one.
    Old,
    /// Another client has the lease: wait ([`crate::Herd::wait`]), or answer a miss that says so. If there is
    /// an old value that is served, it is given when the wait is over.
    Leased,
    /// This connection has the lease. It waits for a short trial, and longer if something else is sent on it
    /// meanwhile: then several threads share it.
    Trial,
    /// `SERVER_ERROR busy`, as the rule's `on_busy` says: some clients take that for a miss.
    Busy(MissRecord),
}

/// The answer to a client that wants to wait.
#[derive(Debug)]
#[must_use]
pub enum WaitAnswer {
    /// A place in the queue.
    Waits(WaiterId),
    /// A miss without a lease.
    Miss(MissRecord),
    /// The old value: waiting for the new one does not help.
    Old,
    /// `SERVER_ERROR busy`: `on_busy = "error"`. Some clients take that for a miss.
    Busy(MissRecord),
}

/// The terms on which a request wants to wait for one of its keys.
#[derive(Debug, Clone, Copy)]
pub struct HoldTerms {
    /// The request.
    pub request: u64,
    /// Which of its keys.
    pub slot: u16,
    /// The exptime of a `gat`.
    pub touch: Option<i64>,
    /// Whether the server has room for another waiter.
    pub room: bool,
    /// Whether it is a get of several keys.
    pub many: bool,
}

/// A value that is older than a soft event of its key when it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleFill {
    /// The number as of which it counts.
    pub stamp: u64,
    /// The event may be of a tag that only the value names, of which waiters did not know.
    pub by_own_tag: bool,
}

impl StaleFill {
    /// Whether it is given to a client that began to wait at number `since`, after a soft event of number
    /// `softened`: not if that is newer than the value.
    pub(crate) fn is_for(self, since: u64, softened: u64) -> bool {
        if self.by_own_tag { since <= self.stamp } else { softened <= self.stamp }
    }
}

/// A key whose wait was ended before its time.
#[derive(Debug)]
#[must_use]
pub struct UnansweredKey {
    /// The miss that was recorded, unless the old value is given.
    pub record: Option<MissRecord>,
    /// The old value is given if it is there still.
    pub old: Option<OldValueReader>,
}

/// Why a wait is ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithdrawReason {
    /// Connections would wait for each other.
    Circle,
    /// The waiter's own connection writes the key.
    OwnWrite,
    /// The waiter's get is answered at once, because of another of its keys.
    Answered,
}

/// How a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskMode {
    /// With a command that does not mention leases.
    Plain,
    /// With a quiet command of the binary or the meta protocol. Its clients would take an error in place of
    /// the reply for the reply to another key, so a miss takes its place.
    Quiet,
    /// For the lease itself: `mg` with `N` or `R`.
    Explicit {
        /// The lease outlives the connection.
        detached: bool,
        /// The lease time asked for, in milliseconds.
        lease_ms: Option<u32>,
    },
}

impl AskMode {
    /// For the lease itself.
    pub fn is_explicit(self) -> bool {
        matches!(self, Self::Explicit { .. })
    }

    /// What the client is told where waiting does not help.
    pub fn on_busy(self, policy: &Policy) -> OnBusy {
        if self == Self::Quiet { OnBusy::Miss } else { policy.on_busy }
    }
}

/// The client or task that fills a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filler {
    /// The client's connection; None: it is known only by a token.
    pub connection: Option<u64>,
    /// The token that it showed.
    pub token: Option<u64>,
    /// The client fills a miss that another connection was answered, as happens in pools.
    pub pooled: bool,
}

/// Gives out the numbers that order all events.
pub trait Clock {
    /// The next number; each is given out once.
    fn tick(&self) -> u64;
    /// The last number given out.
    fn last(&self) -> u64;
}

/// The inputs of a step.
pub struct HerdStep<'a, V> {
    /// Milliseconds since the start.
    pub now_ms: u64,
    /// The source of numbers.
    pub clock: &'a dyn Clock,
    /// Takes the work that is left for the caller.
    pub effects: &'a mut Effects<V>,
}

/// The work that remains when no shard is locked. `V`: a value on its way to the waiters; the herd itself
/// never has one.
#[derive(Debug)]
pub struct Effects<V> {
    /// Keys that requests need not wait for any more.
    pub wakes: Vec<Wake<V>>,
    /// Leases of any shard that have got a slot of their rule, for [`crate::Herd::admit`].
    pub admitted: Vec<Admission>,
    /// Work for the loaders.
    pub jobs: Vec<JobOrder>,
}

/// What the loader of a rule is told.
#[derive(Debug)]
pub enum JobOrder {
    /// Begin a job. Its end is told with [`crate::Herd::finish_job`], once.
    Start {
        /// The key.
        key: Box<[u8]>,
        /// The key's hash.
        hash: u64,
        /// The lease's token.
        token: u64,
        /// The hint of the client that asked last.
        hint: Option<Arc<[u8]>>,
        /// No client waits for it.
        is_refresh: bool,
    },
    /// Clients wait for this refresh now.
    Raise {
        /// The lease's token.
        token: u64,
    },
    /// The value is not needed any more.
    Cancel {
        /// The lease's token.
        token: u64,
    },
}

impl<V> Default for Effects<V> {
    fn default() -> Self {
        Self { wakes: Vec::new(), admitted: Vec::new(), jobs: Vec::new() }
    }
}

impl<V> Effects<V> {
    /// No work is left.
    pub fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.admitted.is_empty() && self.jobs.is_empty()
    }

    /// Notes that a waiter need not wait any more.
    pub fn wake(&mut self, waiter: Waiter, verdict: Verdict<V>) {
        let Waiter { caller, request, slot, .. } = waiter;
        self.wakes.push(Wake { caller, request, slot, verdict });
    }
}

/// The end of one key's wait in one request.
#[derive(Debug)]
pub struct Wake<V> {
    /// The connection.
    pub caller: Arc<Caller>,
    /// The connection's request.
    pub request: u64,
    /// Which of the request's keys.
    pub slot: u16,
    /// The outcome of the wait.
    pub verdict: Verdict<V>,
}

/// The outcome of a request's wait for a key.
#[derive(Debug, Clone)]
pub enum Verdict<V> {
    /// The value was stored.
    Value(V),
    /// The old value, if it is there still, and otherwise a miss: to be looked up by the caller before the
    /// shard is left.
    Old(OldValueReader),
    /// A miss, with its record; if the record is `leased`, the connection is the holder.
    Miss {
        /// For the connection's records; None: it has the record already.
        record: Option<MissRecord>,
        /// For the computation of the value.
        hint: Option<Arc<[u8]>>,
    },
    /// The key is known to be absent.
    Negative {
        /// For the connection's records.
        record: Option<MissRecord>,
    },
    /// Another client has the lease, and the time of the wait is up: a miss for a client that asked for the
    /// lease.
    Lost(MissRecord),
    /// `SERVER_ERROR busy`, as the rule's `on_busy` says: some clients take that for a miss.
    Busy {
        /// For the connection's records.
        record: Option<MissRecord>,
    },
    /// The computation failed, with this text: a miss all the same.
    Failed {
        /// The text of the failed holder; may be empty.
        text: Arc<[u8]>,
        /// For the connection's records.
        record: MissRecord,
    },
}

/// A waiter that gets the old value of a key.
#[derive(Debug, Clone)]
pub struct OldValueReader {
    /// The key.
    pub key: Arc<[u8]>,
    /// The key's hash.
    pub hash: u64,
    /// How it was asked for.
    pub how: AskMode,
}

impl<V> Verdict<V> {
    /// A miss without a lease.
    pub fn miss(record: MissRecord) -> Self {
        Self::Miss { record: Some(record), hint: None }
    }

    /// A miss with the lease.
    pub fn lease(grant: Grant) -> Self {
        let (record, hint) = grant.into_parts();
        Self::Miss { record: Some(record), hint }
    }

    /// The record for the connection, if the verdict has one.
    pub fn record(&self) -> Option<&MissRecord> {
        match self {
            Self::Miss { record, .. } | Self::Negative { record } | Self::Busy { record } => record.as_ref(),
            Self::Lost(record) | Self::Failed { record, .. } => Some(record),
            Self::Value(_) | Self::Old(_) => None,
        }
    }
}
