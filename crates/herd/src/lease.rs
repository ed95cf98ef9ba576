//! The right to compute one key.

use std::sync::Arc;

use crate::holder::Holder;
use crate::rule::{Begun, RuleState};
use crate::waiters::Queue;

/// What there is of a key's value while it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: others wait.
    Absent,
    /// An old value, past its expiry or softly invalidated: others get it.
    Stale,
    /// A fresh value, soon to expire: others get it.
    Early,
}

impl Kind {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Stale => "stale",
            Self::Early => "early",
        }
    }
}

/// A lease. Not an item: it cannot be evicted, and no command but a `get` sees it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) key: Box<[u8]>,
    pub(crate) token: u64,
    pub(crate) kind: Kind,
    pub(crate) holder: Holder,
    pub(crate) rule: Arc<RuleState>,
    pub(crate) deadline_ms: u64,
    /// Until when its holder's miss counts in the ledger; 0 while it is queued.
    pub(crate) missed_until_ms: u64,
    /// What it noted when it began to compute; None while it is queued.
    pub(crate) begun: Option<Begun>,
    /// The holder's connection was closed in an orderly way: the deadline is that of its fill.
    pub(crate) closing: bool,
    /// Clients that compute the key.
    pub(crate) computers: u32,
    /// When the first of them came beside the holder, in milliseconds.
    pub(crate) joined_ms: Option<u64>,
    /// Misses its holder saw on it.
    pub(crate) reentries: u8,
    /// It was found out whether its holder's connection is shared.
    pub(crate) tried: bool,
    pub(crate) queue: Queue,
    /// Hashes of its tags: a bump of one of them revokes it.
    pub(crate) tags: Box<[u64]>,
    /// For whoever computes.
    pub(crate) hint: Option<Arc<[u8]>>,
}

impl Lease {
    /// One more computes.
    pub(crate) fn join(&mut self, now_ms: u64) {
        self.computers += 1;
        self.joined_ms.get_or_insert(now_ms);
    }
}

/// A lease, as `stats leases` shows it.
#[derive(Debug, Clone)]
pub struct LeaseView {
    /// The key.
    pub key: Box<[u8]>,
    /// Its token.
    pub token: u64,
    /// What there is of its value.
    pub kind: Kind,
    /// The holder's connection; None while it waits for a slot of its rule.
    pub holder: Option<u64>,
    /// The holder knows the token.
    pub explicit: bool,
    /// Milliseconds since it began to compute.
    pub age_ms: u64,
    /// Milliseconds until its time is up.
    pub left_ms: u64,
    /// Who waits.
    pub waiters: u32,
    /// Clients that compute the key.
    pub computers: u32,
}
