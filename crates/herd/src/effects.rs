//! The inputs of a step of the herd, and the work that it leaves for its caller.
//!
//! A step may concern connections of other threads and leases of other shards, which cannot be reached while
//! a shard is locked. So it does nothing to them: it notes the work in the [`Effects`] of the turn, and its
//! caller does this work when no shard is locked.

use std::sync::Arc;

use crate::ask::AskMode;
use crate::caller::Caller;
use crate::lease::Grant;
use crate::rule::Admission;
use crate::session::MissRecord;
use crate::waiters::Waiter;

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
