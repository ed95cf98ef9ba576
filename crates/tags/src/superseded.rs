//! Soft bumps that later ones have replaced, until the grace of the items that they made stale has passed.
//!
//! A slot holds only the last number. An item that an earlier soft bump made stale would look as if it had
//! become stale at the last one, and would be served for another grace: with a bump every few seconds,
//! without a limit. So the number that a soft bump replaces in a slot is kept here until the longest grace
//! has passed since that number was given out; then the slot of the same place in the *hard* array is raised
//! to it, and older items are dead.
//!
//! By place, not by tag: several tags share a slot, and each of them depends on what the slot held.
//!
//! The list is bounded. A number that finds no room is raised at once, which costs recomputations, but no
//! item is served for too long.
//!
//! # Invariant
//! Each number is in this list, or its hard slot is raised to it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::bumps::{BumpPlace, Bumps};

/// Numbers kept at most, about 100 bytes each.
pub(crate) const SUPERSEDED_MAX: usize = 4096;

/// Soft bumps that later ones have replaced, until the grace of their items has passed.
#[derive(Debug, Default)]
pub(crate) struct SupersededBumps {
    /// When it is due in milliseconds, where, which number.
    due: BinaryHeap<Reverse<(u64, BumpPlace, u64)>>,
    /// The bumps' numbers, by place.
    numbers: BTreeSet<(BumpPlace, u64)>,
}

impl SupersededBumps {
    /// A soft bump has replaced `number` at `place`; the items which that number made stale may be served
    /// until `due_ms`.
    pub(crate) fn add(&mut self, place: BumpPlace, number: u64, due_ms: u64, bumps: &Bumps) {
        self.due.push(Reverse((due_ms, place, number)));
        self.numbers.insert((place, number));
        if self.due.len() > SUPERSEDED_MAX {
            self.harden_first(bumps);
        }
    }

    /// Raises the hard slots of all numbers that are due.
    pub(crate) fn sweep(&mut self, now_ms: u64, bumps: &Bumps) {
        while self.due.peek().is_some_and(|Reverse((due_ms, ..))| *due_ms <= now_ms) {
            self.harden_first(bumps);
        }
    }

    /// The first number above `stamp` that this place held before its present one.
    pub(crate) fn first_above(&self, place: BumpPlace, stamp: u64) -> Option<u64> {
        let later = (place, stamp.saturating_add(1))..=(place, u64::MAX);
        self.numbers.range(later).next().map(|(_, number)| *number)
    }

    /// Nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    fn harden_first(&mut self, bumps: &Bumps) {
        if let Some(Reverse((_, place, number))) = self.due.pop() {
            // Raised before it is removed here: a check in between finds it in one of the two.
            bumps.harden(place, number);
            self.numbers.remove(&(place, number));
        }
    }
}
