//! Figures about connections, shared by all threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// Figures about connections, shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) current: AtomicUsize,
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) most: AtomicUsize,
    pub(crate) listen_disabled: AtomicU64,
    pub(crate) listen_disabled_micros: AtomicU64,
    pub(crate) accepting: AtomicBool,
    /// Whether the server takes no new connections any more.
    pub(crate) leaving: AtomicBool,
    pub(crate) idle_kicks: AtomicU64,
    /// The second in which the certificates were read.
    pub(crate) certificates_read: AtomicU32,
    /// Connections closed after too many wrong logins.
    pub(crate) auth_closed: AtomicU64,
    /// Logins that were not checked, after too many wrong logins of their address.
    pub(crate) auth_unseen: AtomicU64,
    /// Requests that were refused since the user has no right to them.
    pub(crate) not_allowed: AtomicU64,
    /// The second up to which the last `flush_all` has removed items, or will.
    pub(crate) oldest: AtomicU32,
    /// Calls of objects that have steps left.
    pub(crate) calls: AtomicUsize,
    /// Failures to accept for lack of descriptors or memory.
    pub(crate) accept_errors: AtomicU64,
    /// Lanes that send by `io_uring`.
    pub(crate) io_uring: AtomicUsize,
    /// Whether a lane could not use `io_uring`, and has logged it.
    pub(crate) io_uring_refused: AtomicBool,
}
