//! How a connection asks for a key, and as whom it fills one.

use crate::policy::{OnBusy, Policy};

/// How a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// With a command that does not mention leases.
    Plain,
    /// The same, with a quiet command of the binary or the meta protocol, whose clients lose step with an error in its place: what
    /// would be one is a miss.
    Quiet,
    /// For the lease itself: `mg` with `N` or `R`.
    Explicit {
        /// The lease outlives the connection.
        detached: bool,
        /// The lease time asked for, in milliseconds.
        lease_ms: Option<u32>,
    },
}

impl How {
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
    /// Its connection; None: it is known only by a token.
    pub connection: Option<u64>,
    /// The token that it showed.
    pub token: Option<u64>,
    /// It fills a miss that another connection was answered, as happens in pools.
    pub pooled: bool,
}
