//! Numbers about connections, for all threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// Numbers about connections.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) current: AtomicUsize,
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) most: AtomicUsize,
    pub(crate) listen_disabled: AtomicU64,
    pub(crate) listen_disabled_micros: AtomicU64,
    pub(crate) accepting: AtomicBool,
    /// It takes no new connection any more.
    pub(crate) leaving: AtomicBool,
    pub(crate) idle_kicks: AtomicU64,
    /// Second in which the certificates were read.
    pub(crate) certificates_read: AtomicU32,
    /// Connections closed after too many wrong logins.
    pub(crate) auth_closed: AtomicU64,
    /// Logins that were not looked at, after too many wrong ones of their address.
    pub(crate) auth_unseen: AtomicU64,
    /// Requests that were refused since their users may not make them.
    pub(crate) not_allowed: AtomicU64,
    /// The second up to which the last `flush_all` has removed items, or will.
    pub(crate) oldest: AtomicU32,
    /// Calls of objects that lanes have yet to continue.
    pub(crate) calls: AtomicUsize,
    /// Times that no connection could be accepted for lack of descriptors or memory.
    pub(crate) accept_errors: AtomicU64,
    /// Lanes that send by `io_uring`.
    pub(crate) io_uring: AtomicUsize,
    /// A lane could not, and has said so.
    pub(crate) io_uring_refused: AtomicBool,
}
