//! The memory that the objects of a store hold, by type: sums that each change keeps.
//!
//! # Invariants
//! * The sums are those of the items in the index that are objects, dead ones not yet removed included.
//! * [`Memory::pinned_object_bytes`] is the sum of `pinned` over the stores of a memory.

use std::sync::Arc;

use crate::memory::Memory;

/// The memory that objects hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectUsage {
    /// Objects.
    pub items: u64,
    /// Bytes of the log, with header, key and slack.
    pub bytes: u64,
    /// Bytes of the budget that their trees hold.
    pub tree_bytes: u64,
    /// Bytes of the budget that those of their values hold that are too long for the log.
    pub huge_bytes: u64,
}

impl ObjectUsage {
    /// Adds another store's, or another type's.
    pub fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.tree_bytes += other.tree_bytes;
        self.huge_bytes += other.huge_bytes;
    }

    fn sub(&mut self, other: &Self) {
        self.items -= other.items;
        self.bytes -= other.bytes;
        self.tree_bytes -= other.tree_bytes;
        self.huge_bytes -= other.huge_bytes;
    }

    /// All bytes.
    pub fn held_bytes(&self) -> u64 {
        self.bytes + self.tree_bytes + self.huge_bytes
    }
}

/// The memory that one object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectHolding {
    /// The object's type.
    pub(crate) type_id: u16,
    /// The object counts as pinned.
    pub(crate) is_pinned: bool,
    /// The object's memory, as that of one item.
    pub(crate) usage: ObjectUsage,
}

/// The memory that the objects of a store hold, by type.
pub(crate) struct Holdings {
    memory: Arc<Memory>,
    /// By type, in order; types without objects are not among them.
    types: Vec<(u16, ObjectUsage)>,
    total: ObjectUsage,
    pinned: usize,
}

impl Holdings {
    /// Holdings without an object.
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, types: Vec::new(), total: ObjectUsage::default(), pinned: 0 }
    }

    /// Notes that an object is in the store now.
    pub(crate) fn enter(&mut self, holding: &ObjectHolding) {
        self.total.add(&holding.usage);
        match self.types.binary_search_by_key(&holding.type_id, |(id, _)| *id) {
            Ok(at) => self.types[at].1.add(&holding.usage),
            Err(at) => self.types.insert(at, (holding.type_id, holding.usage)),
        }
        if holding.is_pinned {
            let bytes = holding.usage.held_bytes() as usize;
            self.pinned += bytes;
            self.memory.add_pinned_objects(bytes);
        }
    }

    /// Notes that an object has left the store, or will [`enter`](Holdings::enter) again with other figures.
    pub(crate) fn leave(&mut self, holding: &ObjectHolding) {
        self.total.sub(&holding.usage);
        let at = self.types.binary_search_by_key(&holding.type_id, |(id, _)| *id);
        let at = at.expect("an object that leaves has entered");
        self.types[at].1.sub(&holding.usage);
        if self.types[at].1.items == 0 {
            self.types.remove(at);
        }
        if holding.is_pinned {
            let bytes = holding.usage.held_bytes() as usize;
            self.pinned -= bytes;
            self.memory.sub_pinned_objects(bytes);
        }
    }

    /// By type, in order of their numbers.
    pub(crate) fn types(&self) -> &[(u16, ObjectUsage)] {
        &self.types
    }

    /// The sum over all types.
    pub(crate) fn total(&self) -> ObjectUsage {
        self.total
    }

    /// Bytes of those that are pinned.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.pinned
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        self.memory.sub_pinned_objects(self.pinned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_type_and_of_the_pinned() {
        let memory = Memory::new(1 << 20).unwrap();
        let holding = |type_id, is_pinned, bytes, tree_bytes| ObjectHolding {
            type_id,
            is_pinned,
            usage: ObjectUsage { items: 1, bytes, tree_bytes, huge_bytes: 0 },
        };
        let mut holdings = Holdings::new(Arc::clone(&memory));
        let all = [holding(3, true, 64, 8192), holding(1, false, 40, 0), holding(3, false, 80, 0)];
        for holding in &all {
            holdings.enter(holding);
        }
        let of_3 = ObjectUsage { items: 2, bytes: 144, tree_bytes: 8192, huge_bytes: 0 };
        assert_eq!(holdings.types(), [(1, all[1].usage), (3, of_3)]);
        assert_eq!((holdings.total().items, holdings.total().held_bytes()), (3, 144 + 40 + 8192));
        assert_eq!((holdings.pinned_bytes(), memory.pinned_object_bytes()), (8256, 8256));
        let other = {
            let mut other = Holdings::new(Arc::clone(&memory));
            other.enter(&all[0]);
            assert_eq!(memory.pinned_object_bytes(), 2 * 8256);
            other
        };
        drop(other);
        assert_eq!(memory.pinned_object_bytes(), 8256, "a store that is dropped takes its part with it");
        for holding in &all {
            holdings.leave(holding);
        }
        assert_eq!((holdings.types().len(), holdings.total()), (0, ObjectUsage::default()));
        assert_eq!((holdings.pinned_bytes(), memory.pinned_object_bytes()), (0, 0));
    }
}
