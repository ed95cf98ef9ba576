//! The holder of a lease. What differs by kind of holder stands here, and nowhere else.

use std::sync::Arc;

use crate::caller::{Caller, HolderCount};
use crate::how::{AskMode, Filler};
use crate::rule::RuleState;

/// The holder of a lease.
#[derive(Debug)]
pub(crate) enum Holder {
    /// A client that was answered a miss: it is known only by its connection.
    Client(HolderCount),
    /// A client that asked for the lease and knows its token. `detached`: the lease outlives the connection.
    Named {
        /// The connection.
        holding: HolderCount,
        /// The lease outlives the connection.
        detached: bool,
    },
    /// A loader of the server: a job computes the value, and its result shows the lease's token.
    Loader,
    /// No holder yet: the rule's `rule_computers` slots are taken.
    Queued,
}

/// What happens to a lease when its holder's connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Nothing: the lease is not this connection's, or outlives it.
    Stays,
    /// The lease passes on after the rule's `close_grace_ms`: a pool may send the value on another
    /// connection.
    AfterGrace,
    /// The lease passes on.
    AtOnce,
}

impl Holder {
    /// The holder for a connection that has asked for the key in this way.
    pub(crate) fn new(caller: &Arc<Caller>, how: AskMode) -> Self {
        let holding = HolderCount::new(Arc::clone(caller));
        match how {
            AskMode::Plain | AskMode::Quiet => Self::Client(holding),
            AskMode::Explicit { detached, .. } => Self::Named { holding, detached },
        }
    }

    /// The holder's connection.
    pub(crate) fn caller(&self) -> Option<&Arc<Caller>> {
        match self {
            Self::Client(holding) | Self::Named { holding, .. } => Some(holding.caller()),
            Self::Loader | Self::Queued => None,
        }
    }

    /// Number of the holder's connection.
    pub(crate) fn connection(&self) -> Option<u64> {
        self.caller().map(|caller| caller.number())
    }

    /// Whether the holder is this connection.
    pub(crate) fn is(&self, connection: u64) -> bool {
        self.connection() == Some(connection)
    }

    /// Whether there is a holder: it computes the value.
    pub(crate) fn computes(&self) -> bool {
        !matches!(self, Self::Queued)
    }

    /// Whether the holder is a loader.
    pub(crate) fn is_loader(&self) -> bool {
        matches!(self, Self::Loader)
    }

    /// Whether the holder knows the lease's token.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self, Self::Named { .. })
    }

    /// Whether `by` is certainly the holder of the lease, whose token is `token`.
    pub(crate) fn is_filler(&self, token: u64, by: Filler) -> bool {
        match by.token {
            Some(shown) => self.computes() && shown == token,
            None => !self.is_named() && by.connection.is_some_and(|connection| self.is(connection)),
        }
    }

    /// Whether a fill may be the holder's. A pool sends it on any free connection: if the holder is the only
    /// one of `computers` clients that computes the key, such a fill counts as its own.
    pub(crate) fn may_be_filler(&self, token: u64, by: Filler, computers: u32) -> bool {
        match (by.token, self) {
            (_, Self::Queued) => false,
            (Some(shown), _) => shown == token,
            (None, Self::Client(_)) if by.pooled && computers == 1 => true,
            (None, _) => by.connection.is_some_and(|connection| self.is(connection)),
        }
    }

    /// What happens when this connection is closed; `orderly`: its client said so (`quit`, or an end of its
    /// input).
    pub(crate) fn closed(&self, connection: u64, orderly: bool) -> Closed {
        match self {
            _ if !self.is(connection) => Closed::Stays,
            Self::Client(_) if orderly => Closed::AfterGrace,
            Self::Client(_) | Self::Named { detached: false, .. } => Closed::AtOnce,
            Self::Named { detached: true, .. } | Self::Loader | Self::Queued => Closed::Stays,
        }
    }
}

/// The lease time of a holder that asked in this way, in milliseconds.
pub(crate) fn lease_ms(how: AskMode, rule: &RuleState) -> u32 {
    match how {
        AskMode::Explicit { lease_ms: Some(ms), .. } => ms,
        _ => rule.lease_ms(),
    }
}
