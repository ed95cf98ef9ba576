//! The slots of a rule with `rule_computers`: which leases compute at once, and which wait for a slot.
//!
//! A connection that computes a key of the rule may need another key of the rule for it: if that computation
//! had to wait for a slot, it could wait for the connection's own. Such a nested computation begins although
//! no slot is free, at most [`NESTED_MAX`] for a connection. It takes a slot all the same: other leases wait
//! until the number of computations is below the limit again.
//!
//! A slot of a loader belongs to a job, and not to a lease: it is taken until the job ends, even if its lease
//! has ended before.
//!
//! A lease that gets a slot while it waits is usually in another shard. Until that shard is told, the lease
//! has no holder and the slot counts as taken.
//!
//! # Invariants
//! * No computation begins while the limit is reached, except nested ones. So at most `limit` connections
//!   compute.
//! * While a slot is free no lease waits, once [`Slots::admit`] was called after a change of the limit.

use std::collections::{BTreeMap, HashMap};

/// Most leases of a rule that wait for a slot. Further ones are answered as the rule's `on_busy` says.
pub const QUEUED_MAX: usize = 8192;
/// Computations that a connection may begin beyond the limit, while it computes under the rule.
pub const NESTED_MAX: u32 = 2;

/// The slots of a rule with `rule_computers`.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Number of slots; None: no limit.
    limit: Option<u32>,
    /// Leases that compute, and leases that are admitted and whose shard has not been told.
    taken: u32,
    /// Leases that compute, by connection.
    computing: HashMap<u64, u32>,
    /// Leases that wait, by token, which is their order; with the hash of their key.
    queue: BTreeMap<u64, u64>,
}

/// The answer to a lease that asks to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotAnswer {
    /// A slot.
    Granted,
    /// A slot beyond the limit.
    Nested,
    /// A place in the queue.
    Queued,
    /// No slot, and the lease cannot wait.
    Refused,
    /// No slot, and [`QUEUED_MAX`] leases wait already.
    QueueFull,
}

impl Slots {
    pub(crate) fn set_limit(&mut self, limit: Option<u32>) {
        self.limit = limit;
    }

    /// Slots that are taken.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Connections that compute.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn connections(&self) -> usize {
        self.computing.len()
    }

    /// Whether this connection computes.
    pub(crate) fn has(&self, connection: u64) -> bool {
        self.computing.contains_key(&connection)
    }

    /// Leases that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// A lease of this connection (None: of a loader) asks to compute. `queue`: the hash of its key and its
    /// token, if it can wait for a slot.
    pub(crate) fn start(&mut self, connection: Option<u64>, queue: Option<(u64, u64)>) -> SlotAnswer {
        let start = self.grant(connection);
        match (start, queue) {
            (Some(start), _) => start,
            (None, None) => SlotAnswer::Refused,
            (None, Some(_)) if self.queue.len() >= QUEUED_MAX => SlotAnswer::QueueFull,
            (None, Some((hash, token))) => {
                self.queue.insert(token, hash);
                SlotAnswer::Queued
            }
        }
    }

    /// A lease of this connection (None: of a loader) has ended. Returns the leases that have a slot now.
    pub(crate) fn finish(&mut self, connection: Option<u64>) -> Vec<(u64, u64)> {
        self.release(connection);
        self.admit()
    }

    /// A lease passes from one connection to another. It keeps its slot if the limit allows it; otherwise it
    /// is queued.
    pub(crate) fn pass(&mut self, from: u64, to: u64, queue: (u64, u64)) -> SlotAnswer {
        self.release(Some(from));
        self.claim(Some(to), queue)
    }

    /// A lease that goes on takes a slot, or is queued, whatever the length of the queue.
    pub(crate) fn claim(&mut self, connection: Option<u64>, (hash, token): (u64, u64)) -> SlotAnswer {
        self.grant(connection).unwrap_or_else(|| {
            self.queue.insert(token, hash);
            SlotAnswer::Queued
        })
    }

    /// An admitted lease computes, on this connection (None: by a loader).
    pub(crate) fn take_admitted(&mut self, connection: Option<u64>) {
        if let Some(connection) = connection {
            *self.computing.entry(connection).or_default() += 1;
        }
    }

    /// An admitted lease has ended before it began. Returns the leases that have a slot now.
    pub(crate) fn give_back_admitted(&mut self) -> Vec<(u64, u64)> {
        self.taken -= 1;
        self.admit()
    }

    /// A lease no longer waits.
    pub(crate) fn leave(&mut self, token: u64) {
        self.queue.remove(&token);
    }

    /// Gives free slots to the leases that wait, as (key's hash, token).
    pub(crate) fn admit(&mut self) -> Vec<(u64, u64)> {
        let mut admitted = Vec::new();
        while self.has_room()
            && let Some((token, hash)) = self.queue.pop_first()
        {
            self.taken += 1;
            admitted.push((hash, token));
        }
        admitted
    }

    fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.taken < limit)
    }

    fn grant(&mut self, connection: Option<u64>) -> Option<SlotAnswer> {
        // A loader's jobs are not nested: each has a slot of its own.
        let own = connection.and_then(|connection| self.computing.get(&connection)).copied().unwrap_or(0);
        let start = if self.has_room() {
            SlotAnswer::Granted
        } else if (1..=NESTED_MAX).contains(&own) {
            SlotAnswer::Nested
        } else {
            return None;
        };
        self.taken += 1;
        if let Some(connection) = connection {
            self.computing.insert(connection, own + 1);
        }
        Some(start)
    }

    fn release(&mut self, connection: Option<u64>) {
        if let Some(connection) = connection {
            let Some(own) = self.computing.get_mut(&connection) else { return };
            *own -= 1;
            if *own == 0 {
                self.computing.remove(&connection);
            }
        }
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(limit: u32) -> Slots {
        Slots { limit: Some(limit), ..Slots::default() }
    }

    #[test]
    fn slots_pass_to_the_leases_that_wait() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        assert_eq!(slots.start(Some(2), Some((7, 70))), SlotAnswer::Queued);
        assert_eq!(slots.start(Some(3), None), SlotAnswer::Refused);
        assert_eq!(slots.finish(Some(1)), [(7, 70)]);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Refused, "it is taken before its lease is told");
        slots.take_admitted(Some(2));
        assert_eq!(slots.finish(Some(2)), []);
        assert_eq!((slots.taken(), slots.connections()), (0, 0));
    }

    #[test]
    fn a_nested_computation_counts_and_the_queue_drains_once_it_is_over() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        for _ in 0..NESTED_MAX {
            assert_eq!(slots.start(Some(1), None), SlotAnswer::Nested);
        }
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Refused, "deep enough");
        assert_eq!(slots.start(Some(2), Some((7, 70))), SlotAnswer::Queued);
        for _ in 0..NESTED_MAX {
            assert_eq!(slots.finish(Some(1)), [], "the limit is reached still");
        }
        assert_eq!(slots.finish(Some(1)), [(7, 70)]);
    }

    #[test]
    fn a_lease_that_passes_on_keeps_its_slot_unless_it_was_nested() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        assert_eq!(slots.pass(1, 2, (7, 70)), SlotAnswer::Granted);
        assert_eq!(slots.start(Some(2), None), SlotAnswer::Nested);
        assert_eq!(slots.pass(2, 3, (8, 80)), SlotAnswer::Queued);
        assert_eq!(slots.finish(Some(2)), [(8, 80)]);
    }

    #[test]
    fn jobs_of_a_loader_have_a_slot_each() {
        let mut slots = slots(2);
        assert_eq!([0; 2].map(|_| slots.start(None, None)), [SlotAnswer::Granted; 2]);
        assert_eq!(slots.start(None, Some((7, 70))), SlotAnswer::Queued, "not nested");
        assert_eq!(slots.claim(None, (8, 80)), SlotAnswer::Queued);
        assert_eq!(slots.finish(None), [(7, 70)]);
        slots.take_admitted(None);
        assert_eq!(slots.finish(None), [(8, 80)]);
        slots.take_admitted(None);
        assert_eq!([slots.finish(None), slots.finish(None)], [[], []]);
        assert_eq!((slots.taken(), slots.connections()), (0, 0));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        for n in 0..QUEUED_MAX as u64 {
            assert_eq!(slots.start(Some(2), Some((n, n))), SlotAnswer::Queued);
        }
        assert_eq!(slots.start(Some(2), Some((1, 99_999))), SlotAnswer::QueueFull);
        slots.leave(5);
        assert_eq!(slots.start(Some(2), Some((1, 99_999))), SlotAnswer::Queued);
        assert_eq!(slots.finish(Some(1)), [(0, 0)]);
    }

    #[test]
    fn a_new_limit_counts_at_once() {
        let mut slots = slots(2);
        assert_eq!([1, 2].map(|n| slots.start(Some(n), None)), [SlotAnswer::Granted; 2]);
        assert_eq!([3, 4, 5].map(|n| slots.start(Some(n), Some((n, n)))), [SlotAnswer::Queued; 3]);
        slots.set_limit(Some(1));
        assert_eq!(slots.finish(Some(1)), []);
        slots.set_limit(Some(3));
        assert_eq!(slots.admit(), [(3, 3), (4, 4)]);
        slots.set_limit(None);
        assert_eq!(slots.admit(), [(5, 5)]);
    }
}
