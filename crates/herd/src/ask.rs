//! What the herd is asked, and what it answers at once. What it has to say to others is in its effects.

use std::sync::Arc;

use crate::lease::Kind;
use crate::rule::RuleState;
use crate::session::Record;
use crate::waiters::WaiterId;

/// A lease as its new holder is told of it.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The miss that came with it; its number is the token.
    pub record: Record,
    /// What the one who computes is told.
    pub hint: Option<Arc<[u8]>>,
}

/// How a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As any client does.
    Plain,
    /// For the lease itself: `mg` with `N` or `R`.
    Explicit {
        /// The lease outlives the connection.
        detached: bool,
        /// The lease time asked for, in milliseconds.
        lease_ms: Option<u32>,
    },
}

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

/// What one who asks gets.
#[derive(Debug)]
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

/// What one who wants to wait gets.
#[derive(Debug)]
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

/// Who fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filler {
    /// The connection.
    pub connection: u64,
    /// The token it showed.
    pub token: Option<u64>,
    /// It fills a miss that another connection was told of, as happens in pools.
    pub pooled: bool,
}
