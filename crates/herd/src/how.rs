//! How a connection asks for a key, and as whom it fills one.

use crate::policy::{OnBusy, Policy};

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
