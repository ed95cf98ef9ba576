//! Connections as leases refer to them, and the peers they come from.
//!
//! A peer is a client process or machine. While it holds a lease, one of its connections must stay free, so
//! that the value can be sent: [`Peer`] counts the free ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, PoisonError};

/// Where a connection comes from: one client process or machine, as far as the server can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerKey {
    /// The address that the connections come from.
    Address(IpAddr),
    /// The process id, on a Unix socket.
    Process(i32),
}

/// Fills of a peer from which on it counts as a peer that keeps its connections.
pub const UNCROSSED: u64 = 1000;

/// A peer, and how many of its connections could carry the `set` of a value that other clients wait for.
#[derive(Debug)]
pub struct Peer {
    key: PeerKey,
    /// Open connections.
    open: AtomicU32,
    /// Open connections that are not held, or known to send while they are held.
    free: AtomicU32,
    /// Leases that they hold.
    leases: AtomicU32,
    /// Fills without a token that came on the connection of their miss, and others.
    fills: [AtomicU64; 2],
}

impl Peer {
    /// A fill without a token came; `own`: on the connection of a miss of its key.
    pub fn note_fill(&self, own: bool) {
        self.fills[usize::from(!own)].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the peer keeps its connections: it has several, and has sent many fills, each on the
    /// connection of a miss of its key.
    fn keeps_connections(&self) -> bool {
        let [own, crossed] = [0, 1].map(|at| self.fills[at].load(Ordering::Relaxed));
        own >= UNCROSSED && crossed == 0 && self.open.load(Ordering::Relaxed) > 1
    }

    /// Where it is.
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// Number of free connections.
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::SeqCst)
    }

    /// Whether one of its connections holds a lease.
    pub fn has_leases(&self) -> bool {
        self.leases.load(Ordering::SeqCst) > 0
    }

    /// Whether the peer must keep a free connection: one of its connections holds a lease, and another must
    /// stay free to carry the value. A peer with a single connection need not.
    pub(crate) fn needs_free(&self) -> bool {
        self.has_leases() && self.open.load(Ordering::SeqCst) > 1
    }

    /// Takes one free connection, if at least `least` are left then.
    pub(crate) fn take_free(&self, least: u32) -> bool {
        self.free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| {
                free.checked_sub(1).filter(|left| *left >= least)
            })
            .is_ok()
    }

    pub(crate) fn give_free(&self) {
        self.free.fetch_add(1, Ordering::SeqCst);
    }
}

/// All peers that have a connection.
#[derive(Debug, Default)]
pub struct Peers(Mutex<HashMap<PeerKey, Arc<Peer>>>);

impl Peers {
    /// A connection of this peer was opened. [`Peers::leave`] undoes it.
    pub fn join(&self, key: PeerKey) -> Arc<Peer> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.entry(key).or_insert_with(|| {
            let [open, free, leases] = [0; 3].map(AtomicU32::new);
            let fills = [0; 2].map(AtomicU64::new);
            Arc::new(Peer { key, open, free, leases, fills })
        });
        peer.open.fetch_add(1, Ordering::SeqCst);
        peer.give_free();
        Arc::clone(peer)
    }

    /// A connection of this peer was closed; it was free.
    pub fn leave(&self, peer: &Peer) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peer.take_free(0);
        // Under the lock: no connection joins in between.
        if peer.open.fetch_sub(1, Ordering::SeqCst) == 1 {
            peers.remove(&peer.key);
        }
    }

    /// Number of peers that have a connection.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Number of connected peers that have several connections and have sent [`UNCROSSED`] fills or more,
    /// each on the connection that was answered the miss. That says nothing for certain: a pool may cross
    /// once in many fills. Walks all peers.
    pub fn keep_connections(&self) -> usize {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.values().filter(|peer| peer.keeps_connections()).count()
    }

    /// No peer is connected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One connection, as leases and waiters refer to it from other threads.
#[derive(Debug)]
pub struct Caller {
    number: u64,
    lane: usize,
    token: u64,
    peer: Arc<Peer>,
    /// The connection's client has sent something while one of its gets was held.
    sends_while_held: AtomicBool,
    /// The request whose reply is the next to be sent and waits; 0: none.
    front: AtomicU64,
    /// Leases that it holds.
    leases: AtomicU32,
    /// The connection is closed: its replies have no reader.
    gone: AtomicBool,
}

impl Caller {
    /// Connection `number` (never reused, above 0), served by the thread `lane`, which knows it as `token`.
    pub fn new(number: u64, lane: usize, token: u64, peer: Arc<Peer>) -> Self {
        let (front, leases) = (AtomicU64::new(0), AtomicU32::new(0));
        let [sends_while_held, gone] = [false; 2].map(AtomicBool::new);
        Self { number, lane, token, peer, sends_while_held, front, leases, gone }
    }

    /// The connection's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of the thread that serves it, its lane.
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// The token by which its lane knows it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The peer that it belongs to.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Whether it is closed.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Notes that it is closed.
    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Whether its client has ever sent something while one of its gets was held: then it can also send a
    /// value that it computes while it is held.
    pub fn sends_while_held(&self) -> bool {
        self.sends_while_held.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sends_while_held(&self) {
        self.sends_while_held.store(true, Ordering::Relaxed);
    }

    /// The request whose reply is the next to be sent and waits; 0: none waits.
    pub fn front(&self) -> u64 {
        self.front.load(Ordering::Relaxed)
    }

    /// Leases that it holds now.
    pub fn leases(&self) -> u32 {
        self.leases.load(Ordering::SeqCst)
    }

    /// Sets the request whose reply is the next to be sent and waits; 0: none.
    pub fn set_front(&self, request: u64) {
        self.front.store(request, Ordering::Relaxed);
    }
}

/// A connection as the holder of a lease: it is counted as a holder while this value lives.
#[derive(Debug)]
pub(crate) struct HolderCount(Arc<Caller>);

impl HolderCount {
    pub(crate) fn new(caller: Arc<Caller>) -> Self {
        caller.leases.fetch_add(1, Ordering::SeqCst);
        caller.peer.leases.fetch_add(1, Ordering::SeqCst);
        Self(caller)
    }

    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.0
    }
}

impl Drop for HolderCount {
    fn drop(&mut self) {
        self.0.leases.fetch_sub(1, Ordering::SeqCst);
        self.0.peer.leases.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_keeps_its_connections_until_it_crosses() {
        let peers = Peers::default();
        let [peer, again] = [(); 2].map(|()| peers.join(PeerKey::Process(7)));
        (0..UNCROSSED - 1).for_each(|_| peer.note_fill(true));
        assert_eq!(peers.keep_connections(), 0);
        again.note_fill(true);
        assert_eq!(peers.keep_connections(), 1);
        peer.note_fill(false);
        assert_eq!(peers.keep_connections(), 0);
    }

    #[test]
    fn the_last_free_connection_stays() {
        let peers = Peers::default();
        let key = PeerKey::Process(7);
        let peer = peers.join(key);
        assert!(!peer.take_free(1), "the only one");
        let again = peers.join(key);
        assert!(Arc::ptr_eq(&peer, &again));
        assert!(peer.take_free(1));
        assert!(!peer.take_free(1));
        assert!(peer.take_free(0), "other peers' connections may all be held");
        peer.give_free();
        peer.give_free();
        peers.leave(&peer);
        peers.leave(&again);
        assert!(peers.is_empty());
    }
}
