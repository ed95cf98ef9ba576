//! A connection as the herd knows it: its [`Caller`], as leases and waiters of all threads refer to it; the
//! [`Peer`] that it comes from; and its [`Session`], with its open misses, the leases that it holds, and the
//! keys that it waits for.
//!
//! A peer is a client process or machine. While it holds a lease, one of its connections must stay free, so
//! that the value can be sent: [`Peer`] counts the free ones. A session is owned by the thread that serves
//! the connection; other threads reach the connection through its caller.
//!
//! # Invariants
//! * A leased record gives way to no other: the end of the connection must pass the lease on.
//! * What is withheld belongs to a request that waits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cycle::{CircleSearch, WaitGraph};
use crate::lease::WaiterId;
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
    /// For how long the server did not run since the first connection, in milliseconds.
    stopped_ms: AtomicU64,
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
            Arc::new(Peer { key, open, free, leases, fills, stopped_ms: AtomicU64::new(0) })
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

    /// The server did not run for this many milliseconds: the misses of all connections count as that much
    /// later.
    pub fn delay(&self, ms: u64) {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for peer in peers.values() {
            peer.stopped_ms.fetch_add(ms, Ordering::AcqRel);
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

/// A miss that this connection was answered and has not filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissRecord {
    /// The key's hash.
    pub hash: u64,
    /// The number noted at the miss.
    pub number: u64,
    /// Until when it counts, in milliseconds since the start.
    pub until_ms: u64,
    /// The miss came with the key's lease, whose token is the number.
    pub leased: bool,
}

/// A lease of which a request is not told at once, since it waits for other keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateLease {
    /// The key.
    pub key: Box<[u8]>,
    /// The key's hash.
    pub hash: u64,
    /// The lease's token.
    pub token: u64,
    /// The state of the request to which the lease was given.
    pub told: LateNotice,
}

/// See [`LateLease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateNotice {
    /// The request waits, until this time in milliseconds since the start at most.
    Waits(u64),
    /// The request is answered: its client computes from now on.
    Answered,
    /// The request is answered an error: its client is told of no lease.
    Never,
}

/// A key that a request of this connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionWait {
    /// The key's hash.
    pub hash: u64,
    /// The request.
    pub request: u64,
    /// Which of its keys.
    pub slot: u16,
    /// The request's place in the key's queue.
    pub waiter: WaiterId,
}

/// A key whose reply has not been sent to the client yet, because its request waits, for this key or for
/// another. If the client gives up before, it does not know what became of the key and may compute it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithheldKey {
    /// The key's hash.
    pub hash: u64,
    /// The clock's last number when the key was asked for.
    pub number: u64,
    /// For how long its miss would be remembered, in milliseconds.
    pub window_ms: u32,
}

/// The herd's state of one connection: open misses, leases, waits.
#[derive(Debug)]
pub struct Session {
    caller: Arc<Caller>,
    records: Vec<MissRecord>,
    /// Most records kept.
    most: usize,
    /// Until when a record that did not fit may be open, in milliseconds since the start.
    lost_until_ms: u64,
    /// [`Peers::delay`] so far, as it is in these times.
    delayed_ms: u64,
    pub(crate) waits: Vec<SessionWait>,
    /// Keys that requests have and have not sent yet, because they wait for others, each with its request.
    withheld: Vec<(u64, WithheldKey)>,
    /// Keys that requests had and did not send, because they were answered an error: to be recorded as
    /// misses.
    unseen: Vec<WithheldKey>,
    /// Leases of which a request is not told at once.
    late: Vec<LateLease>,
    /// One of the peer's free connections was taken for this one.
    counted: bool,
    /// The connection is in the graph of connections that both hold and wait.
    in_graph: bool,
    /// Keys of which it would have the lease under a rule that observes, the last ones; None: there was none.
    observed: Option<Box<ObservedKeys>>,
}

/// Keys of a connection that rules observe, and where the next one goes.
#[derive(Debug, Default)]
struct ObservedKeys([u64; OBSERVED_MAX], usize);

/// Keys kept of one connection that it would have the lease of.
const OBSERVED_MAX: usize = 15;

/// Records kept of one connection.
pub const RECORDS_MAX: usize = 1024;
/// The bound on keys of long gets that a connection waits for, as a multiple of that of other gets.
const WAITS_FACTOR: usize = 4;

impl Session {
    /// A session without misses, leases and waits.
    pub fn new(caller: Arc<Caller>) -> Self {
        Self::with_room(caller, RECORDS_MAX)
    }

    /// A session with room for `most` records, at least 1: for tests.
    pub fn with_room(caller: Arc<Caller>, most: usize) -> Self {
        Self {
            delayed_ms: caller.peer.stopped_ms.load(Ordering::Acquire),
            caller,
            records: Vec::new(),
            most: most.max(1),
            lost_until_ms: 0,
            waits: Vec::new(),
            withheld: Vec::new(),
            unseen: Vec::new(),
            late: Vec::new(),
            counted: false,
            in_graph: false,
            observed: None,
        }
    }

    /// The connection.
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// An earlier reply of this connection still waits: a command that is executed now is read ahead.
    pub fn is_behind(&self) -> bool {
        self.caller.front() != 0
    }

    /// A new command has arrived while a get of this connection was held. A command that arrived in the same
    /// receive as the held get, or the rest of such a command, is no evidence: its client may have sent all
    /// of it before it began to wait.
    pub fn set_sends_while_held(&mut self) {
        if self.caller.sends_while_held() {
            return;
        }
        self.caller.set_sends_while_held();
        if std::mem::take(&mut self.counted) {
            self.caller.peer().give_free();
        }
    }

    /// Whether a request on trial may keep waiting: its connection is shared, and it is not the last free
    /// connection of a peer that holds a lease.
    pub fn shares(&mut self, request: u64) -> bool {
        self.caller.sends_while_held()
            || self.waits.iter().any(|wait| wait.request != request)
                && self.take_free(self.caller.peer().needs_free())
    }

    /// Notes that the connection would have the lease of this key, whose rule observes.
    pub fn note_observed(&mut self, hash: u64) {
        let ObservedKeys(all, at) = &mut **self.observed.get_or_insert_default();
        all[*at % OBSERVED_MAX] = hash;
        *at += 1;
    }

    /// The hashes of the last such keys. The leases of some may have ended.
    pub fn take_observed(&mut self) -> Vec<u64> {
        let taken = self.observed.take();
        taken.map_or_else(Vec::new, |taken| taken.0[..taken.1.min(OBSERVED_MAX)].to_vec())
    }

    /// Keys that it waits for.
    pub fn waits(&self) -> &[SessionWait] {
        &self.waits
    }

    /// Whether it waits for this key.
    pub(crate) fn waits_for(&self, hash: u64) -> bool {
        self.waits.iter().any(|wait| wait.hash == hash)
    }

    /// The connection's open misses.
    pub fn records(&self) -> &[MissRecord] {
        &self.records
    }

    /// The leases that it was given and has not filled, as (key's hash, token).
    pub fn leases(&self) -> impl Iterator<Item = (u64, u64)> {
        self.records.iter().filter(|record| record.leased).map(|record| (record.hash, record.number))
    }

    /// Whether the connection may be held: takes one of its peer's free connections. `last`: its peer must
    /// keep one.
    pub(crate) fn take_free(&mut self, last: bool) -> bool {
        if self.caller.sends_while_held() {
            return true;
        }
        if self.counted {
            return !last || self.caller.peer().free() > 0;
        }
        self.counted = self.caller.peer().take_free(u32::from(last));
        self.counted
    }

    /// By how much its misses are later than they say, in milliseconds.
    fn late_ms(&self) -> u64 {
        self.caller.peer.stopped_ms.load(Ordering::Acquire) - self.delayed_ms
    }

    /// The server did not run for a time: misses count as that much later.
    fn catch_up(&mut self) {
        let late_ms = self.late_ms();
        if late_ms > 0 {
            self.records.iter_mut().for_each(|record| record.until_ms += late_ms);
            if self.lost_until_ms > 0 {
                self.lost_until_ms += late_ms;
            }
            self.delayed_ms += late_ms;
        }
    }

    /// Remembers a miss. A record that finds no room is only in the ledger ([`Session::has_lost`]); a leased
    /// record takes the place of a record without a lease, since the end of the connection must pass the
    /// lease on.
    pub fn record(&mut self, record: MissRecord, now_ms: u64) {
        self.catch_up();
        let len = self.records.len();
        if len == self.most || len >= 16 && len.is_power_of_two() {
            self.records.retain(|record| record.until_ms > now_ms);
        }
        if self.records.len() < self.most {
            return self.records.push(record);
        }
        let unleased = self.records.iter_mut().find(|old| !old.leased);
        let lost = match unleased.filter(|_| record.leased) {
            Some(unleased) => std::mem::replace(unleased, record),
            None => record,
        };
        self.lost_until_ms = self.lost_until_ms.max(lost.until_ms);
    }

    /// Whether misses of this connection may be open that are not among its records.
    pub fn has_lost(&self, now_ms: u64) -> bool {
        self.lost_until_ms > 0 && self.lost_until_ms + self.late_ms() > now_ms
    }

    /// The smallest number of this connection's misses of a key, among its records.
    pub fn oldest(&self, hash: u64, now_ms: u64) -> Option<u64> {
        let late_ms = self.late_ms();
        let is_open = |record: &&MissRecord| record.hash == hash && record.until_ms + late_ms > now_ms;
        self.records.iter().filter(is_open).map(|record| record.number).min()
    }

    /// Takes a record of a key out, the oldest: a fill came on this connection.
    pub fn take_oldest(&mut self, hash: u64, now_ms: u64) -> Option<MissRecord> {
        self.catch_up();
        let (at, _) = self
            .records
            .iter()
            .enumerate()
            .filter(|(_, record)| record.hash == hash && record.until_ms > now_ms)
            .min_by_key(|(_, record)| record.number)?;
        Some(self.records.swap_remove(at))
    }

    /// Takes all records of a key out: its client has stored the key, and has no other computation of it
    /// under way.
    pub fn take_all(&mut self, hash: u64) -> Vec<MissRecord> {
        self.records.extract_if(.., |record| record.hash == hash).collect()
    }

    /// Takes the record that came with this token out. (A miss without a token may have noted the same
    /// number.)
    pub fn take_number(&mut self, hash: u64, number: u64) -> Option<MissRecord> {
        let at = self.records.iter().position(|r| r.leased && r.hash == hash && r.number == number)?;
        Some(self.records.swap_remove(at))
    }

    /// Whether `values` more values may be withheld; the limit is that of the records.
    pub fn can_withhold(&self, values: usize) -> bool {
        self.withheld.len() + values <= self.most
    }

    /// Whether `keys` more keys may be waited for, or withheld, that a loader computes: the limit is four
    /// times that of the records.
    pub fn can_wait_for(&self, keys: usize) -> bool {
        self.waits.len() + self.withheld.len() + keys <= WAITS_FACTOR * self.most
    }

    /// Withholds the result of a key while a request waits.
    pub fn withhold(&mut self, request: u64, withheld: WithheldKey) {
        self.withheld.push((request, withheld));
    }

    /// A request no longer waits.
    pub(crate) fn end_withholding(&mut self, request: u64) {
        self.withheld.retain(|(of, _)| *of != request);
    }

    /// Takes out what is withheld from a request, or from all: the connection closes, or its client sends no
    /// more.
    pub fn take_withheld(&mut self, request: Option<u64>) -> Vec<WithheldKey> {
        let of_request = |of: u64| request.is_none_or(|request| of == request);
        self.withheld.extract_if(.., |(of, _)| of_request(*of)).map(|(_, withheld)| withheld).collect()
    }

    /// A request is answered an error: what is withheld from it was not seen by its client, which may compute
    /// it.
    pub fn note_unseen(&mut self, request: u64) {
        let withheld = self.take_withheld(Some(request));
        self.unseen.extend(withheld);
    }

    /// A request was given a lease and is not told of it yet, or is told now.
    pub fn note_late(&mut self, late: LateLease) {
        self.late.push(late);
    }

    /// The token of the lease of a key that it was given last and has not filled.
    pub fn last_lease(&self, hash: u64) -> Option<u64> {
        self.leases().filter(|(own, _)| *own == hash).map(|(_, token)| token).max()
    }

    /// Takes the record of the lease of this token out.
    pub fn take_lease(&mut self, hash: u64, token: u64) -> Option<MissRecord> {
        let is_it = |record: &MissRecord| record.leased && (record.hash, record.number) == (hash, token);
        let at = self.records.iter().position(is_it)?;
        Some(self.records.swap_remove(at))
    }

    /// Takes out what [`Session::note_late`] has noted.
    pub fn take_late(&mut self) -> Vec<LateLease> {
        std::mem::take(&mut self.late)
    }

    /// Takes out what [`Session::note_unseen`] has noted.
    pub fn take_unseen(&mut self) -> Vec<WithheldKey> {
        std::mem::take(&mut self.unseen)
    }

    /// Whether there is something to look at after a request was told what became of a key: keys that were
    /// not seen, leases whose time begins, or a circle that it may be part of.
    pub fn needs_a_look(&self) -> bool {
        !self.waits.is_empty()
            || !self.unseen.is_empty()
            || !self.late.is_empty()
            || self.is_published_in_vain()
    }

    /// Takes all records out: the connection closes.
    pub fn take_records(&mut self) -> Vec<MissRecord> {
        std::mem::take(&mut self.records)
    }

    /// Ends the wait for a key. Returns it, if it was there.
    pub fn end_wait(&mut self, request: u64, slot: u16) -> Option<SessionWait> {
        let at = self.waits.iter().position(|wait| wait.request == request && wait.slot == slot)?;
        let wait = self.waits.swap_remove(at);
        if !self.waits.iter().any(|wait| wait.request == request) {
            self.end_withholding(request);
        }
        if self.waits.is_empty() && std::mem::take(&mut self.counted) {
            self.caller.peer().give_free();
        }
        Some(wait)
    }

    /// Notes a wait for a key.
    pub(crate) fn begin_wait(&mut self, wait: SessionWait) {
        self.waits.push(wait);
    }

    /// Publishes what it holds and waits for if it does both, and looks for a circle through it.
    pub fn publish(&mut self, graph: &WaitGraph) -> CircleSearch {
        // A lease of the records may have passed on; a lease that it has may be on its way here.
        let holds: Vec<u64> = match self.caller.leases() {
            0 => Vec::new(),
            _ => self.leases().map(|(hash, _)| hash).collect(),
        };
        if holds.is_empty() || self.waits.is_empty() {
            self.unpublish(graph);
            return CircleSearch::Clear;
        }
        self.in_graph = true;
        graph.publish(self.caller.number(), self.waits.iter().map(|wait| wait.hash).collect(), holds)
    }

    /// Withdraws what it has published.
    pub fn unpublish(&mut self, graph: &WaitGraph) {
        if std::mem::take(&mut self.in_graph) {
            graph.withdraw(self.caller.number());
        }
    }

    /// What it has published is out of date: it no longer waits.
    pub fn is_published_in_vain(&self) -> bool {
        self.in_graph && self.waits.is_empty()
    }
}

#[cfg(test)]
mod tests;
