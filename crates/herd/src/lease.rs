//! A lease: the right to compute one key.
//!
//! A lease lives in its shard's table from the miss that began it until it is filled, ends unfilled without
//! waiters, is displaced, or loses its rule. While it is queued for a slot of its rule it has waiters and no
//! holder.

use std::sync::Arc;

use crate::caller::Caller;
use crate::holder::Holder;
use crate::rule::{ComputeStart, RuleState};
use crate::waiters::WaiterQueue;

/// The value that the key has while it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseKind {
    /// No value: other clients wait.
    Absent,
    /// An old value whose grace is over: other clients wait as if there was none, unless computing fails.
    Past,
    /// An old value, past its expiry or softly invalidated: other clients get it.
    Stale,
    /// A fresh value that expires soon: other clients get it.
    Early,
}

impl LeaseKind {
    /// Whether other clients get the value while it is computed, whether computing fails or not.
    pub fn is_served(self) -> bool {
        matches!(self, Self::Stale | Self::Early)
    }

    /// The kind in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Past => "past",
            Self::Stale => "stale",
            Self::Early => "early",
        }
    }
}

/// A lease. Not an item: it cannot be evicted, and no command other than a `get` sees it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) key: Box<[u8]>,
    pub(crate) token: u64,
    pub(crate) kind: LeaseKind,
    pub(crate) holder: Holder,
    pub(crate) rule: Arc<RuleState>,
    pub(crate) deadline_ms: u64,
    /// Until when its holder's miss counts in the ledger; 0 while the lease is queued.
    pub(crate) missed_until_ms: u64,
    /// What was noted when the computation began; None while the lease is queued.
    pub(crate) begun: Option<ComputeStart>,
    /// The holder's connection was closed in an orderly way: the deadline is that of its fill.
    pub(crate) closing: bool,
    /// Clients that compute the key.
    pub(crate) computers: u32,
    /// When the first client began to compute it in parallel with the holder, in milliseconds.
    pub(crate) joined_ms: Option<u64>,
    /// Misses that its holder saw on it.
    pub(crate) reentries: u8,
    /// Whether a get of the holder has been held on trial, to find out whether its connection is shared.
    pub(crate) tried: bool,
    pub(crate) queue: WaiterQueue,
    /// Hashes of its tags: a bump of any of them revokes it.
    pub(crate) tags: Box<[u64]>,
    /// The hint for the client that computes.
    pub(crate) hint: Option<Arc<[u8]>>,
    /// The loader's job under this token has begun and has not ended.
    pub(crate) job_out: bool,
}

impl Lease {
    /// Whether the old value, if there is one, is served because computing fails: then one client computes
    /// for each back-off.
    pub(crate) fn falls_back(&self) -> bool {
        let policy = self.rule.policy();
        self.kind == LeaseKind::Past
            || self.kind == LeaseKind::Stale && policy.grace_on_error_s > policy.grace_s
    }

    /// Whether a wait of this connection may be one for itself: it is the holder, or the lease waits for a
    /// slot of its rule and the connection has one. If several threads share the connection, which it has not
    /// shown yet, it is not.
    pub(crate) fn may_wait_for_itself(&self, caller: &Caller) -> bool {
        let has_slot = || !self.holder.computes() && self.rule.has_slot(caller.number());
        !caller.sends_while_held() && (self.holder.is(caller.number()) || has_slot())
    }

    /// Whether the holder is this connection, which was answered a miss and now asks for the lease: it has
    /// not begun to compute. If several threads share the connection, which it has not shown yet, another of
    /// them may have.
    pub(crate) fn may_be_taken_over(&self, caller: &Caller) -> bool {
        matches!(self.holder, Holder::Client(_))
            && self.may_wait_for_itself(caller)
            && !self.rule.policy().loader
    }

    /// Another client computes the key. Under a loader none should.
    pub(crate) fn join(&mut self, now_ms: u64) {
        if self.rule.policy().loader {
            return;
        }
        self.computers += 1;
        self.joined_ms.get_or_insert(now_ms);
    }

    /// The lease as `stats leases` shows it.
    pub(crate) fn view(&self, now_ms: u64) -> LeaseView {
        LeaseView {
            key: self.key.clone(),
            token: self.token,
            kind: self.kind,
            holder: self.holder.connection(),
            explicit: self.holder.is_named(),
            loader: self.holder.is_loader(),
            job_out: self.job_out,
            age_ms: self.begun.map_or(0, |begun| now_ms.saturating_sub(begun.ms)),
            left_ms: self.deadline_ms.saturating_sub(now_ms),
            waiters: self.queue.len(),
            computers: self.computers,
        }
    }
}

/// A lease, as `stats leases` shows it.
#[derive(Debug, Clone)]
pub struct LeaseView {
    /// The key.
    pub key: Box<[u8]>,
    /// The lease's token.
    pub token: u64,
    /// The value that the key has meanwhile.
    pub kind: LeaseKind,
    /// The holder's connection; None while the lease waits for a slot of its rule.
    pub holder: Option<u64>,
    /// Whether the holder knows the token.
    pub explicit: bool,
    /// The holder is a loader.
    pub loader: bool,
    /// The loader's job has begun; otherwise it is put off, as two of the key run.
    pub job_out: bool,
    /// Milliseconds since the computation began.
    pub age_ms: u64,
    /// Milliseconds until the lease's deadline.
    pub left_ms: u64,
    /// Number of waiters.
    pub waiters: u32,
    /// Clients that compute the key.
    pub computers: u32,
}
