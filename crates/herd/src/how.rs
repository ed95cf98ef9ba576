//! How a connection asks for a key, and as whom it fills one.

/// How a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// With a command that does not mention leases.
    Plain,
    /// For the lease itself: `mg` with `N` or `R`.
    Explicit {
        /// The lease outlives the connection.
        detached: bool,
        /// The lease time asked for, in milliseconds.
        lease_ms: Option<u32>,
    },
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
