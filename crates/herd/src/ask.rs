//! What the herd is asked, and what it answers at once. What it has to say to others is in its effects.

use std::sync::Arc;

use crate::grant::Grant;
use crate::how::How;
use crate::lease::Kind;
use crate::rule::RuleState;
use crate::session::Record;
use crate::waiters::WaiterId;

/// A key asked for that has no fresh value, or one that is to be refreshed.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its hash.
    pub hash: u64,
    /// Its rule.
    pub rule: &'a Arc<RuleState>,
    /// What there is of it.
    pub found: Kind,
    /// How it is asked for.
    pub how: How,
    /// The last event that concerns it from outside the shard, hard or soft: a flush, a bump of its tags. A lease below is revoked.
    pub last_event: u64,
    /// Hashes of the key's tags.
    pub tags: &'a [u64],
    /// What whoever computes is to be told.
    pub hint: Option<&'a [u8]>,
    /// How long it would wait, in milliseconds.
    pub hold_ms: u32,
}

/// The answer to a key that is asked for.
#[derive(Debug)]
#[must_use]
pub enum Role {
    /// A miss and the lease.
    Compute(Grant),
    /// A miss without lease.
    Miss(Record),
    /// The old value, or the fresh one.
    Old,
    /// Somebody computes: wait ([`crate::Herd::wait`]), or be told so.
    Leased,
    /// This connection computes. Wait a moment, and for longer if something else is sent meanwhile: then several share it.
    Trial,
    /// The rule's answer to those who cannot be helped.
    Busy,
}

/// The answer to one that wants to wait.
#[derive(Debug)]
#[must_use]
pub enum Waited {
    /// A place in the queue.
    Waits(WaiterId),
    /// A miss without lease.
    Miss(Record),
    /// `on_busy = "error"`.
    Busy,
}

/// How one wants to wait.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    /// The request.
    pub request: u64,
    /// Which of its keys.
    pub slot: u16,
    /// The exptime of a `gat`.
    pub touch: Option<i64>,
    /// There is room for another waiter in the server.
    pub room: bool,
}

/// Why a wait is ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawn {
    /// Connections would wait for each other.
    Circle,
    /// Its own connection writes the key.
    OwnWrite,
    /// Its get is answered at once, because of another of its keys.
    Answered,
}
