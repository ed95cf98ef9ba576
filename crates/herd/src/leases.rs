//! The leases of a shard by their keys' hashes, and their deadlines.
//!
//! The holder, the token and the deadline of a lease are changed only while it is out of the table
//! ([`RemovedLease`]), so that the table and the deadlines always agree.
//!
//! # Invariants
//! * Exactly the leases in the table that have a holder have a deadline.
//! * A lease that was taken out is put back or ended: debug builds panic when it is dropped.

use std::collections::{BTreeSet, HashMap};

use crate::duty::Duty;
use crate::hash::BuildIdentity;
use crate::lease::Lease;

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
