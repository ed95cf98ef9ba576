//! Who computes a key. What differs by kind of holder stands here, and nowhere else.

use std::sync::Arc;

use crate::caller::{Caller, Holding};
use crate::how::{Filler, How};
use crate::rule::RuleState;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum Holder {
    /// A client that was answered a miss: its connection is all that it is known by.
    Client(Holding),
    /// A client that asked for the lease, and knows its token. `detached`: the lease outlives its connection.
    Named {
        /// The connection.
        holding: Holding,
        /// The lease outlives it.
        detached: bool,
    },
    /// Nobody yet: the rule lets only so many compute at once.
    Queued,
}

/// What becomes of a lease whose holder's connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Nothing: it is not this connection's, or outlives it.
    Stays,
    /// It passes on after the rule's grace: a pool may send the value on another connection.
    AfterGrace,
    /// It passes on.
    AtOnce,
}

impl Holder {
    /// A connection that has asked for the key so.
    pub(crate) fn new(caller: &Arc<Caller>, how: How) -> Self {
        let holding = Holding::new(Arc::clone(caller));
        match how {
            How::Plain => Self::Client(holding),
            How::Explicit { detached, .. } => Self::Named { holding, detached },
        }
    }

    /// Its connection.
    pub(crate) fn caller(&self) -> Option<&Arc<Caller>> {
        match self {
            Self::Client(holding) | Self::Named { holding, .. } => Some(holding.caller()),
            Self::Queued => None,
        }
    }

    /// Number of its connection.
    pub(crate) fn connection(&self) -> Option<u64> {
        self.caller().map(|caller| caller.number())
    }

    /// Whether it is this connection.
    pub(crate) fn is(&self, connection: u64) -> bool {
        self.connection() == Some(connection)
    }

    /// It is at work.
    pub(crate) fn computes(&self) -> bool {
        !matches!(self, Self::Queued)
    }

    /// It knows the lease's token.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self, Self::Named { .. })
    }

    /// Whether the lease, of this `token`, is that of one who fills as the holder and no other.
    pub(crate) fn is_filler(&self, token: u64, by: Filler) -> bool {
        match by.token {
            Some(shown) => self.computes() && shown == token,
            None => !self.is_named() && by.connection.is_some_and(|connection| self.is(connection)),
        }
    }

    /// Whether a fill is the holder's. In a pool it is sent on whichever connection is free: if it is the only one of
    /// `computers` who computes the key, it is taken for its own.
    pub(crate) fn may_be_filler(&self, token: u64, by: Filler, computers: u32) -> bool {
        match (by.token, self) {
            (_, Self::Queued) => false,
            (Some(shown), _) => shown == token,
            (None, Self::Client(_)) if by.pooled && computers == 1 => true,
            (None, _) => by.connection.is_some_and(|connection| self.is(connection)),
        }
    }

    /// What follows when this connection is closed; `orderly`: its client said so.
    pub(crate) fn closed(&self, connection: u64, orderly: bool) -> Closed {
        match self {
            _ if !self.is(connection) => Closed::Stays,
            Self::Client(_) if orderly => Closed::AfterGrace,
            Self::Client(_) | Self::Named { detached: false, .. } => Closed::AtOnce,
            Self::Named { detached: true, .. } | Self::Queued => Closed::Stays,
        }
    }
}

/// How long one who asked so may compute, in milliseconds.
pub(crate) fn lease_ms(how: How, rule: &RuleState) -> u32 {
    match how {
        How::Explicit { lease_ms: Some(ms), .. } => ms,
        _ => rule.lease_ms(),
    }
}
