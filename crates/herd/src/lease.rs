//! A lease: the right to compute one key; its holder, its way to the holder's session, the queue of its
//! waiters, the table of a shard's leases, and how many there may be.
//!
//! A lease lives in its shard's table ([`Leases`]) from the miss that began it until it is filled, ends
//! unfilled without waiters, is displaced, or loses its rule. While it is queued for a slot of its rule it
//! has waiters and no holder. What differs by kind of holder is in [`Holder`], and nowhere else.
//!
//! The holder, the token and the deadline of a lease are changed only while it is out of the table
//! ([`RemovedLease`]), so that the table and the deadlines always agree.
//!
//! The herd grants a lease while a shard is locked; the session of the holder is owned by the thread that
//! serves its connection, and takes the lease there ([`Grant`]).
//!
//! # How many leases there may be
//! A rule may have as many leases as are free: one rule alone takes half of them at most, two that want all
//! take a third each, and a third is left for the next (Choudhury and Hahne, *Dynamic queue length thresholds
//! for shared-memory packet switches*, 1998, with α = 1). So a rule whose computations hang does not take the
//! leases of the others. The count is one for all shards ([`LeaseLimit`]): which keys meet in a shard does
//! not matter.
//!
//! # Queues
//! The waiters of all keys of a shard are in queues in order of arrival ([`Waiters`]); a place is found and
//! left in constant time. Queues are doubly linked lists through one table of places. Index 0 means none.
//!
//! # Invariants
//! * Exactly the leases in the table that have a holder have a deadline.
//! * A lease that was taken out is put back or ended: debug builds panic when it is dropped.
//! * A grant is accepted by a session or becomes a verdict for a session: debug builds panic when it is
//!   dropped.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::ask::{AskMode, Filler};
use crate::connection::{Caller, HolderCount, MissRecord, Session};
use crate::duty::Duty;
use crate::hash::BuildIdentity;
use crate::rule::{ComputeStart, RuleState};

/// The value that the key has while it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseKind {
    /// No value: other clients wait.
    Absent,
    /// An old value whose grace is over: other clients wait as if there was none, unless computing fails.
    Past,
    /// An old value, past its expiry or softly invalidated: other clients get it.
    Stale,
    /// A fresh value that expires soon: other clients get it.
    Early,
}

impl LeaseKind {
    /// Whether other clients get the value while it is computed, whether computing fails or not.
    pub fn is_served(self) -> bool {
        matches!(self, Self::Stale | Self::Early)
    }

    /// The kind in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Past => "past",
            Self::Stale => "stale",
            Self::Early => "early",
        }
    }
}

/// A lease. Not an item: it cannot be evicted, and no command other than a `get` sees it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) key: Box<[u8]>,
    pub(crate) token: u64,
    pub(crate) kind: LeaseKind,
    pub(crate) holder: Holder,
    pub(crate) rule: Arc<RuleState>,
    pub(crate) deadline_ms: u64,
    /// Until when its holder's miss counts in the ledger; 0 while the lease is queued.
    pub(crate) missed_until_ms: u64,
    /// What was noted when the computation began; None while the lease is queued.
    pub(crate) begun: Option<ComputeStart>,
    /// The holder's connection was closed in an orderly way: the deadline is that of its fill.
    pub(crate) closing: bool,
    /// Clients that compute the key.
    pub(crate) computers: u32,
    /// When the first client began to compute it in parallel with the holder, in milliseconds.
    pub(crate) joined_ms: Option<u64>,
    /// Misses that its holder saw on it.
    pub(crate) reentries: u8,
    /// Whether a get of the holder has been held on trial, to find out whether its connection is shared.
    pub(crate) tried: bool,
    pub(crate) queue: WaiterQueue,
    /// Hashes of its tags: a bump of any of them revokes it.
    pub(crate) tags: Box<[u64]>,
    /// The hint for the client that computes.
    pub(crate) hint: Option<Arc<[u8]>>,
    /// The loader's job under this token has begun and has not ended.
    pub(crate) job_out: bool,
}

impl Lease {
    /// Whether the old value, if there is one, is served because computing fails: then one client computes
    /// for each back-off.
    pub(crate) fn falls_back(&self) -> bool {
        let policy = self.rule.policy();
        self.kind == LeaseKind::Past
            || self.kind == LeaseKind::Stale && policy.grace_on_error_s > policy.grace_s
    }

    /// Whether a wait of this connection may be one for itself: it is the holder, or the lease waits for a
    /// slot of its rule and the connection has one. If several threads share the connection, which it has not
    /// shown yet, it is not.
    pub(crate) fn may_wait_for_itself(&self, caller: &Caller) -> bool {
        let has_slot = || !self.holder.computes() && self.rule.has_slot(caller.number());
        !caller.sends_while_held() && (self.holder.is(caller.number()) || has_slot())
    }

    /// Whether the holder is this connection, which was answered a miss and now asks for the lease: it has
    /// not begun to compute. If several threads share the connection, which it has not shown yet, another of
    /// them may have.
    pub(crate) fn may_be_taken_over(&self, caller: &Caller) -> bool {
        matches!(self.holder, Holder::Client(_))
            && self.may_wait_for_itself(caller)
            && !self.rule.policy().loader
    }

    /// Another client computes the key. Under a loader none should.
    pub(crate) fn join(&mut self, now_ms: u64) {
        if self.rule.policy().loader {
            return;
        }
        self.computers += 1;
        self.joined_ms.get_or_insert(now_ms);
    }

    /// The lease as `stats leases` shows it.
    pub(crate) fn view(&self, now_ms: u64) -> LeaseView {
        LeaseView {
            key: self.key.clone(),
            token: self.token,
            kind: self.kind,
            holder: self.holder.connection(),
            explicit: self.holder.is_named(),
            loader: self.holder.is_loader(),
            job_out: self.job_out,
            age_ms: self.begun.map_or(0, |begun| now_ms.saturating_sub(begun.ms)),
            left_ms: self.deadline_ms.saturating_sub(now_ms),
            waiters: self.queue.len(),
            computers: self.computers,
        }
    }
}

/// A lease, as `stats leases` shows it.
#[derive(Debug, Clone)]
pub struct LeaseView {
    /// The key.
    pub key: Box<[u8]>,
    /// The lease's token.
    pub token: u64,
    /// The value that the key has meanwhile.
    pub kind: LeaseKind,
    /// The holder's connection; None while the lease waits for a slot of its rule.
    pub holder: Option<u64>,
    /// Whether the holder knows the token.
    pub explicit: bool,
    /// The holder is a loader.
    pub loader: bool,
    /// The loader's job has begun; otherwise it is put off, as two of the key run.
    pub job_out: bool,
    /// Milliseconds since the computation began.
    pub age_ms: u64,
    /// Milliseconds until the lease's deadline.
    pub left_ms: u64,
    /// Number of waiters.
    pub waiters: u32,
    /// Clients that compute the key.
    pub computers: u32,
}

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

/// A lease as it is handed to its new holder. The holder's session must take it ([`Grant::accept`]): when a
/// connection is closed, only the leases that its session knows are passed on.
#[derive(Debug)]
#[must_use = "a lease that no session takes is held until its time is up"]
pub struct Grant {
    record: MissRecord,
    hint: Option<Arc<[u8]>>,
    duty: Duty,
}

impl Grant {
    pub(crate) fn new(record: MissRecord, hint: Option<Arc<[u8]>>) -> Self {
        Self { record, hint, duty: Duty::new("a session accepts the lease") }
    }

    /// The miss that came with the lease; its number is the token.
    pub fn record(&self) -> &MissRecord {
        &self.record
    }

    /// Makes the session's connection the holder. Returns the token and the hint for the computation.
    /// `now_ms`: milliseconds since the start.
    pub fn accept(self, session: &mut Session, now_ms: u64) -> (u64, Option<Arc<[u8]>>) {
        let (record, hint) = self.into_parts();
        session.record(record, now_ms);
        (record.number, hint)
    }

    /// For a verdict, which takes the lease to the session.
    pub(crate) fn into_parts(self) -> (MissRecord, Option<Arc<[u8]>>) {
        self.duty.discharge();
        (self.record, self.hint)
    }
}

/// The leases of a shard by their keys' hashes, and their deadlines.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Boxed, so that the free places of the table are small.
    by_key: HashMap<u64, Box<Lease>, BuildIdentity>,
    /// (milliseconds since the start, key's hash, token)
    deadlines: BTreeSet<(u64, u64, u64)>,
}

/// A lease that was taken out of the table.
#[derive(Debug)]
#[must_use = "its waiters would wait for nothing"]
pub(crate) struct RemovedLease {
    pub(crate) lease: Box<Lease>,
    duty: Duty,
}

impl RemovedLease {
    /// Ends the lease.
    pub(crate) fn end(self) -> Box<Lease> {
        self.duty.discharge();
        self.lease
    }
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { by_key: HashMap::with_hasher(BuildIdentity), deadlines: BTreeSet::new() }
    }

    pub(crate) fn get(&self, hash: u64) -> Option<&Lease> {
        self.by_key.get(&hash).map(|lease| &**lease)
    }

    /// For changes of anything except the holder, the token and the deadline.
    pub(crate) fn get_mut(&mut self, hash: u64) -> Option<&mut Lease> {
        self.by_key.get_mut(&hash).map(|lease| &mut **lease)
    }

    /// See [`Leases::get_mut`].
    pub(crate) fn each_mut(&mut self, change: impl FnMut(&mut Lease)) {
        self.by_key.values_mut().map(|lease| &mut **lease).for_each(change);
    }

    /// The lease of this key, and not of another key of the same hash.
    pub(crate) fn of_key(&mut self, hash: u64, key: &[u8]) -> Option<&mut Lease> {
        self.get_mut(hash).filter(|lease| *lease.key == *key)
    }

    /// Adds a lease of a key that has none.
    pub(crate) fn insert(&mut self, hash: u64, lease: Lease) {
        self.put(hash, Box::new(lease));
    }

    /// Takes a lease out, with its deadline.
    pub(crate) fn remove(&mut self, hash: u64) -> Option<RemovedLease> {
        let lease = self.by_key.remove(&hash)?;
        self.deadlines.remove(&(lease.deadline_ms, hash, lease.token));
        Some(RemovedLease { lease, duty: Duty::new("put the lease back, or end it") })
    }

    /// Puts back a lease that was taken out.
    pub(crate) fn put_back(&mut self, hash: u64, removed: RemovedLease) {
        self.put(hash, removed.end());
    }

    fn put(&mut self, hash: u64, lease: Box<Lease>) {
        if lease.holder.computes() {
            self.deadlines.insert((lease.deadline_ms, hash, lease.token));
        }
        let before = self.by_key.insert(hash, lease);
        debug_assert!(before.is_none(), "a key has one lease");
    }

    /// The earliest deadline, as (milliseconds since the start, key's hash).
    pub(crate) fn first_deadline(&self) -> Option<(u64, u64)> {
        self.deadlines.first().map(|(ms, hash, _)| (*ms, *hash))
    }

    /// Leases that have a holder, with their keys' hashes, from the latest deadline to the earliest.
    pub(crate) fn latest(&self) -> impl Iterator<Item = (u64, &Lease)> {
        self.deadlines.iter().rev().map(|(_, hash, _)| (*hash, &*self.by_key[hash]))
    }

    /// All leases with their keys' hashes, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Lease)> {
        self.by_key.iter().map(|(hash, lease)| (*hash, &**lease))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Number of deadlines: that of leases with a holder.
    pub(crate) fn deadlines(&self) -> usize {
        self.deadlines.len()
    }

    /// Bytes of memory except for keys, tags and hints: an upper estimate.
    pub(crate) fn bytes(&self) -> usize {
        // A table has one byte more for each place; a node of a tree is at worst half full.
        self.by_key.capacity() * (size_of::<(u64, Box<Lease>)>() + 1) * 8 / 7
            + self.by_key.len() * size_of::<Lease>()
            + self.deadlines.len() * 2 * size_of::<(u64, u64, u64)>()
    }

    /// Whether the deadline of this lease is kept, for tests.
    pub(crate) fn has_deadline(&self, hash: u64, lease: &Lease) -> bool {
        self.deadlines.contains(&(lease.deadline_ms, hash, lease.token))
    }
}

/// The leases of all shards together.
#[derive(Debug)]
pub struct LeaseLimit {
    most: usize,
    /// A quarter is not for leases.
    lends: AtomicBool,
    taken: AtomicUsize,
}

impl LeaseLimit {
    /// At most `most` leases, at least 1.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), lends: AtomicBool::new(false), taken: AtomicUsize::new(0) })
    }

    /// Gives the room of a quarter of the leases to rules that observe, or takes it back. Returns how many
    /// leases that is.
    pub fn lend(&self, on: bool) -> usize {
        self.lends.store(on, Relaxed);
        self.most / 4
    }

    /// Leases that there are now.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Whether a rule that has `own` leases may have another one.
    pub(crate) fn has_room(&self, own: &AtomicUsize) -> bool {
        let lent = if self.lends.load(Relaxed) { self.most / 4 } else { 0 };
        own.load(Relaxed) < (self.most - lent).saturating_sub(self.taken())
    }

    /// A lease begins, of the rule that has `own`. Of threads that find the last place at once each may take
    /// one.
    pub(crate) fn take(&self, own: &AtomicUsize) {
        own.fetch_add(1, Relaxed);
        self.taken.fetch_add(1, Relaxed);
    }

    /// Gives back the place of a lease that has ended.
    pub(crate) fn give(&self, own: &AtomicUsize) {
        own.fetch_sub(1, Relaxed);
        self.taken.fetch_sub(1, Relaxed);
    }
}

/// A waiter's place in its queue. Never reused: an id of a place that was left is not found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaiterId {
    index: u32,
    generation: u32,
}

/// A request's wait for one key.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The connection.
    pub caller: Arc<Caller>,
    /// The connection's request.
    pub request: u64,
    /// Which of the request's keys.
    pub slot: u16,
    /// How the client asked: a client that asked for the lease (`mg` with `Pw`) is told tokens and errors.
    pub how: AskMode,
    /// The clock's number when the wait began.
    pub since: u64,
    /// When the wait began, in milliseconds since the start.
    pub since_ms: u64,
    /// The last soft event of the key before that: a value that is older is not given to this client.
    pub softened: u64,
    /// The value that the key had then: if it is served, it is the answer when the wait is over.
    pub found: LeaseKind,
    /// The exptime of a `gat`: the value of the reply is touched.
    pub touch: Option<i64>,
    /// The request is a get of several keys.
    pub many: bool,
}

impl Waiter {
    /// Whether the client asked for the lease.
    pub fn is_explicit(&self) -> bool {
        self.how.is_explicit()
    }
}

/// The first and the last place of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaiterQueue {
    head: u32,
    tail: u32,
    len: u32,
}

impl WaiterQueue {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
}

/// All waiters of a shard, in queues.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Place 0 is never used.
    places: Vec<WaiterPlace>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct WaiterPlace {
    generation: u32,
    prev: u32,
    next: u32,
    waiter: Option<Waiter>,
}

impl Waiters {
    pub(crate) fn push(&mut self, queue: &mut WaiterQueue, waiter: Waiter) -> WaiterId {
        if self.places.is_empty() {
            self.places.push(WaiterPlace { generation: 0, prev: 0, next: 0, waiter: None });
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(WaiterPlace { generation: 0, prev: 0, next: 0, waiter: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        (place.prev, place.next, place.waiter) = (queue.tail, 0, Some(waiter));
        let generation = place.generation;
        if queue.tail == 0 {
            queue.head = index;
        } else {
            self.places[queue.tail as usize].next = index;
        }
        queue.tail = index;
        queue.len += 1;
        WaiterId { index, generation }
    }

    pub(crate) fn get(&self, id: WaiterId) -> Option<&Waiter> {
        let place = self.places.get(id.index as usize)?;
        place.waiter.as_ref().filter(|_| place.generation == id.generation)
    }

    /// Takes a waiter out of its queue.
    pub(crate) fn unlink(&mut self, queue: &mut WaiterQueue, id: WaiterId) -> Option<Waiter> {
        self.get(id)?;
        Some(self.take(queue, id.index))
    }

    /// Takes the waiter at a place that was found.
    pub(crate) fn take(&mut self, queue: &mut WaiterQueue, index: u32) -> Waiter {
        let place = &mut self.places[index as usize];
        let (prev, next) = (place.prev, place.next);
        let waiter = place.waiter.take().expect("a linked place has a waiter");
        place.generation = place.generation.wrapping_add(1);
        if prev == 0 {
            queue.head = next;
        } else {
            self.places[prev as usize].next = next;
        }
        if next == 0 {
            queue.tail = prev;
        } else {
            self.places[next as usize].prev = prev;
        }
        queue.len -= 1;
        self.free.push(index);
        waiter
    }

    /// Takes the first waiter that `fits`, looking at `most` of them.
    pub(crate) fn pop_if(
        &mut self,
        queue: &mut WaiterQueue,
        most: usize,
        fits: impl Fn(&Waiter) -> bool,
    ) -> Option<Waiter> {
        let at = self.find(queue, most, fits)?.0;
        Some(self.take(queue, at))
    }

    /// The place of the first waiter that `fits`, looking at `most` of them, and the waiter.
    pub(crate) fn find(
        &self,
        queue: &WaiterQueue,
        most: usize,
        fits: impl Fn(&Waiter) -> bool,
    ) -> Option<(u32, &Waiter)> {
        let mut at = queue.head;
        for _ in 0..most {
            let place = self.places.get(at as usize).filter(|_| at != 0)?;
            if let Some(waiter) = place.waiter.as_ref().filter(|waiter| fits(waiter)) {
                return Some((at, waiter));
            }
            at = place.next;
        }
        None
    }

    /// Takes the head.
    pub(crate) fn pop(&mut self, queue: &mut WaiterQueue) -> Option<Waiter> {
        self.pop_if(queue, 1, |_| true)
    }

    /// The waiters of a queue, in order.
    pub(crate) fn iter(&self, queue: &WaiterQueue) -> impl Iterator<Item = &Waiter> {
        let mut at = queue.head;
        std::iter::from_fn(move || {
            let place = self.places.get(at as usize).filter(|_| at != 0)?;
            at = place.next;
            place.waiter.as_ref()
        })
    }

    /// Waiters in all queues.
    pub(crate) fn len(&self) -> usize {
        (self.places.len().saturating_sub(1)) - self.free.len()
    }
}

#[cfg(test)]
mod tests;
