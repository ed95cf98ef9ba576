//! What a connection says of itself: how it asks for a key, and as whom it fills one.

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

/// Who fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filler {
    /// The connection; None: a token is all that it is known by.
    pub connection: Option<u64>,
    /// The token it showed.
    pub token: Option<u64>,
    /// It fills a miss that another connection was told of, as happens in pools.
    pub pooled: bool,
}
