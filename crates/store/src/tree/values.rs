//! The values of a tree that have pages of their own, by number.
//!
//! # Invariants
//! * A number names the value until it is removed; numbers of removed values are given out again.
//! * `count` is the number of values, `held` the sum of their pages.

use std::sync::Arc;

use crate::huge::HugeValue;

/// A tree's values that have pages of their own, by number.
#[derive(Debug, Default)]
pub(super) struct ValueTable {
    slots: Vec<Option<Arc<HugeValue>>>,
    vacant: Vec<u32>,
    count: usize,
    held: usize,
}

/// Values of a tree at some time, by number, and the numbers between them.
#[derive(Debug)]
pub(super) struct SharedValues {
    slots: Vec<Option<Arc<HugeValue>>>,
    vacant: Vec<u32>,
}

impl ValueTable {
    /// Bytes of the budget that the values hold.
    pub(super) fn held_bytes(&self) -> usize {
        self.held
    }

    /// Bytes outside the budget that hold the table.
    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Arc<HugeValue>>>()
            + self.vacant.capacity() * size_of::<u32>()
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Takes a value in. Returns its number.
    pub(super) fn add(&mut self, value: Arc<HugeValue>) -> u32 {
        value.enter();
        self.count += 1;
        self.held += value.held_bytes();
        if let Some(number) = self.vacant.pop() {
            self.slots[number as usize] = Some(value);
            return number;
        }
        self.slots.push(Some(value));
        // A value has a page, of which there are fewer.
        (self.slots.len() - 1) as u32
    }

    /// The value with this number.
    ///
    /// # Panics
    /// There is none: an entry of the tree is wrong.
    pub(super) fn get(&self, number: u32) -> &Arc<HugeValue> {
        self.slots[number as usize].as_ref().expect("an entry names a value that is there")
    }

    /// Lets a value go.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(value) = self.slots[number as usize].take() {
            self.count -= 1;
            self.held -= value.held_bytes();
            value.leave();
            self.vacant.push(number);
        }
        if self.count == 0 {
            (self.slots, self.vacant) = (Vec::new(), Vec::new());
        }
    }

    /// The values that there are, for [`ValueTable::become_again`].
    pub(super) fn share(&self) -> SharedValues {
        SharedValues { slots: self.slots.clone(), vacant: self.vacant.clone() }
    }

    /// Has the values again that it had when they were shared.
    pub(super) fn become_again(&mut self, before: SharedValues) {
        // Those that stay are there twice for a moment, so that none of them leaves.
        before.slots.iter().flatten().for_each(|value| value.enter());
        while self.pop().is_some() {}
        self.count = before.slots.iter().flatten().count();
        self.held = before.slots.iter().flatten().map(|value| value.held_bytes()).sum();
        (self.slots, self.vacant) = (before.slots, before.vacant);
    }

    /// Lets the value with the highest number go, whatever names it. Returns the bytes that it held; None:
    /// none is left.
    pub(super) fn pop(&mut self) -> Option<usize> {
        // Some of these numbers are not in the table any more after this.
        self.vacant = Vec::new();
        while let Some(slot) = self.slots.pop() {
            if let Some(value) = slot {
                let held = value.held_bytes();
                self.count -= 1;
                self.held -= held;
                value.leave();
                return Some(held);
            }
        }
        self.slots = Vec::new();
        None
    }
}

impl Drop for ValueTable {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
