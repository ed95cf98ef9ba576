//! A connection, as other threads see it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

use cattlegrid_herd::PeerKey;

use crate::listen::{Address, ListenerInfo};

/// A connection, as `stats conns` shows it.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) fd: std::os::fd::OwnedFd,
    /// From 1 on, never reused.
    pub(crate) number: u64,
    /// The client's; none through a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// The client's machine or process.
    pub(crate) peer_key: PeerKey,
    pub(crate) listener: Arc<ListenerInfo>,
    /// Second of the last command.
    pub(crate) last_command: AtomicU32,
    /// The connection waits for its client to read.
    pub(crate) writing: AtomicBool,
    /// One of its requests waits for a value.
    pub(crate) held: AtomicBool,
    /// The connection's [`Activity`] otherwise.
    pub(crate) doing: AtomicU8,
}

/// What a connection does, for `stats conns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Activity {
    /// Waits for a command.
    Read,
    /// Executes a command.
    Execute,
    /// Waits for the rest of a data block.
    Block,
    /// Drops the rest of a refused command's data block.
    Swallow,
    /// Gets lines of `watch`.
    Watch,
}

impl Activity {
    const ALL: [Self; 5] = [Self::Read, Self::Execute, Self::Block, Self::Swallow, Self::Watch];

    /// memcached's name of the state.
    fn name(self) -> &'static str {
        match self {
            Self::Read => "conn_read",
            Self::Execute => "conn_parse_cmd",
            Self::Block => "conn_nread",
            Self::Swallow => "conn_swallow",
            Self::Watch => "conn_watch",
        }
    }
}

impl ConnectionInfo {
    /// The client, as it is named in the log.
    pub(crate) fn peer(&self) -> PeerName<'_> {
        PeerName { address: self.address, listener: &self.listener.address }
    }

    /// The connection's state, by memcached's name.
    pub(crate) fn state(&self) -> &'static str {
        if self.writing.load(Relaxed) {
            return "conn_mwrite";
        }
        if self.held.load(Relaxed) {
            return "conn_waiting";
        }
        let doing = self.doing.load(Relaxed);
        Activity::ALL.get(usize::from(doing)).map_or("conn_read", |doing| doing.name())
    }
}

/// A client's address, or where it came in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerName<'a> {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) listener: &'a Address,
}

impl std::fmt::Display for PeerName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.listener, self.address) {
            (Address::Unix(path), _) => write!(f, "unix:{}", path.display()),
            (Address::Tcp(_), Some(address)) => address.fmt(f),
            (Address::Tcp(_), None) => f.write_str("unknown"),
        }
    }
}
