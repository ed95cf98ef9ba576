//! What a step of the herd needs, and what it leaves to be done.
//!
//! A step may concern connections of other threads and leases of other shards, which cannot be reached while a shard is locked.
//! So it does nothing to them: it notes what is to be done in the [`Effects`] of the turn, and whoever took the step sees to
//! that once no shard is locked.

use std::sync::Arc;

use crate::caller::Caller;
use crate::grant::Grant;
use crate::rule::Admitted;
use crate::session::Record;
use crate::waiters::Waiter;

/// Gives out the numbers that order everything.
pub trait Clock {
    /// The next number; never given out before.
    fn tick(&self) -> u64;
    /// The last number given out.
    fn last(&self) -> u64;
}

/// What every step needs.
pub struct Step<'a, V> {
    /// Milliseconds since the start.
    pub now_ms: u64,
    /// The numbers.
    pub clock: &'a dyn Clock,
    /// Takes what is to be done.
    pub effects: &'a mut Effects<V>,
}

/// What is to be done when no shard is locked any more. `V`: a value on its way to those who wait for it; the herd never has one.
#[derive(Debug)]
pub struct Effects<V> {
    /// Keys that requests need not wait for any more.
    pub wakes: Vec<Wake<V>>,
    /// Leases of any shard that have a slot of their rule now, for [`crate::Herd::admit`].
    pub admitted: Vec<Admitted>,
}

impl<V> Default for Effects<V> {
    fn default() -> Self {
        Self { wakes: Vec::new(), admitted: Vec::new() }
    }
}

impl<V> Effects<V> {
    /// Nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.admitted.is_empty()
    }

    /// A waiter need not wait any more.
    pub fn wake(&mut self, waiter: Waiter, verdict: Verdict<V>) {
        let Waiter { caller, request, slot, .. } = waiter;
        self.wakes.push(Wake { caller, request, slot, verdict });
    }
}

/// One key of one request need not be waited for any more.
#[derive(Debug)]
pub struct Wake<V> {
    /// The connection.
    pub caller: Arc<Caller>,
    /// Its request.
    pub request: u64,
    /// Which of the request's keys.
    pub slot: u16,
    /// What became of it.
    pub verdict: Verdict<V>,
}

/// What became of a key that a request waited for.
#[derive(Debug, Clone)]
pub enum Verdict<V> {
    /// It was stored.
    Value(V),
    /// A miss, with the record of it; one whose record is `leased` makes its connection the holder.
    Miss {
        /// What the connection is to remember; None: it does already.
        record: Option<Record>,
        /// What the one who computes is told.
        hint: Option<Arc<[u8]>>,
    },
    /// It is known to be absent.
    Negative {
        /// What the connection is to remember.
        record: Option<Record>,
    },
    /// Somebody else computes, and the time is up: a miss of one who asked for the lease, and does not get it.
    Lost(Record),
    /// The rule's answer to those who cannot be helped.
    Busy,
    /// The computation failed, with this text: a miss all the same.
    Failed {
        /// What is known of it.
        text: Arc<[u8]>,
        /// What the connection is to remember.
        record: Record,
    },
}

impl<V> Verdict<V> {
    /// A miss without lease.
    pub fn miss(record: Record) -> Self {
        Self::Miss { record: Some(record), hint: None }
    }

    /// The lease.
    pub fn lease(grant: Grant) -> Self {
        let (record, hint) = grant.into_parts();
        Self::Miss { record: Some(record), hint }
    }

    /// What the connection is to remember.
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Miss { record, .. } | Self::Negative { record } => record.as_ref(),
            Self::Lost(record) | Self::Failed { record, .. } => Some(record),
            Self::Value(_) | Self::Busy => None,
        }
    }
}
