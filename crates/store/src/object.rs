//! Objects in a store: items in a domain of their own, whose state is changed in place.
//!
//! An object is an item with the mark [`Marks::OBJECT`]. Its key is its type's number, two bytes,
//! little-endian, and its own key. Its state is bytes in the log, a huge value if it is too long for that, or
//! a [`Tree`]. Expiry, flushes, eviction and CAS are those of any item; with [`Marks::PINNED`] it is never
//! evicted.
//!
//! # Invariants
//! * No key of a plain item names an object: the mark is part of the hash and of the comparison.
//! * A tree changes only in [`Store::tree_mut`], which accounts for what its segment, its queue and its type
//!   hold.

use std::sync::Arc;

use crate::holdings::{ObjectHolding, ObjectUsage};
use crate::item::{self, Attributes, Marks, OUTSIDE_REF};
use crate::store::{Found, Lookup, Store, StoreFull};
use crate::tree::Tree;

/// Pinned objects would hold more than they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedFull;

impl Store {
    /// The live object of this key; plain items are not among objects. A dead one is removed.
    ///
    /// `hash`: of [`KeyHasher::hash_object`](crate::KeyHasher::hash_object).
    #[inline]
    pub fn lookup_object(&mut self, hash: u64, key: &[u8]) -> Lookup {
        self.lookup_among(hash, key, true)
    }

    /// The bytes of a value in the log, to change; `None`: it is a huge value or a tree.
    #[inline]
    pub fn value_mut(&mut self, found: Found) -> Option<&mut [u8]> {
        item::value_mut(self.log.bytes_mut(found.location))
    }

    /// Puts other bytes in the place of an object's value in the log and counts a use: what a call of a
    /// method does most often. `cas`: gives the number for the changed item, which has a stamp of its own; it
    /// is asked for only if the bytes differ. `None`: the value has another length, or lies outside the log,
    /// and nothing was done. Returns the item's CAS and expiry.
    #[inline]
    pub fn use_and_change(
        &mut self,
        found: Found,
        value: &[u8],
        cas: impl FnOnce() -> u64,
    ) -> Option<(u64, u32)> {
        let now = self.now;
        let bytes = self.log.bytes_mut(found.location);
        let old = item::value_mut(bytes)?;
        if old.len() != value.len() {
            return None;
        }
        if old != value {
            old.copy_from_slice(value);
            debug_assert!(item::has_stamp(bytes), "its CAS says nothing about when it dies");
            item::set_cas(bytes, cas());
        }
        item::set_used(bytes, now);
        let shown = (item::cas(bytes), item::expiry(bytes));
        self.index.count_use(found.slot);
        Some(shown)
    }

    /// The tree that an item has as its value.
    #[inline]
    pub fn tree(&self, found: Found) -> Option<&Tree> {
        self.item(found).tree()
    }

    /// Changes the tree of an item, and accounts for how much it has grown or shrunk. `None`: its value is no
    /// tree.
    pub fn tree_mut<R>(&mut self, found: Found, change: impl FnOnce(&mut Tree) -> R) -> Option<R> {
        let bytes = self.log.bytes(found.location);
        let tree = self.outside.tree_mut(item::outside_number(bytes)?)?;
        let before = tree.held_bytes();
        let result = change(tree);
        let after = tree.held_bytes();
        if before != after {
            self.account_tree(found.location, before);
        }
        Some(result)
    }

    /// Changes the tree of an object for a method, within a bound: what pinned objects of the budget hold
    /// does not come to more than `most` bytes if it is pinned. A change that leaves it no larger than it was
    /// is made however much they hold. `has_failed`: the change has not been made, perhaps because of the
    /// bound.
    ///
    /// The change may be made twice: where its reserves do not fit, it is attempted, and taken back if it has
    /// grown too much.
    ///
    /// # Errors
    /// [`PinnedFull`]: nothing has changed.
    ///
    /// # Panics
    /// Its value is no tree.
    pub fn change_tree<R>(
        &mut self,
        found: Found,
        most: usize,
        mut change: impl FnMut(&mut Tree) -> R,
        has_failed: impl Fn(&R) -> bool,
    ) -> Result<R, PinnedFull> {
        if !self.item(found).marks().is_pinned() {
            return Ok(self.tree_mut(found, change).expect("it is a tree"));
        }
        let bounded = |tree: &mut Tree| {
            tree.bind(most);
            let result = change(tree);
            (result, tree.unbind())
        };
        let (result, (taken, has_refused)) = self.tree_mut(found, bounded).expect("it is a tree");
        self.memory.give_pinned(taken);
        if !(has_refused && has_failed(&result)) {
            return Ok(result);
        }
        let memory = Arc::clone(&self.memory);
        let attempt = |tree: &mut Tree| {
            let before = tree.held_bytes();
            tree.attempt();
            let result = change(tree);
            let grown = tree.kept_bytes().saturating_sub(before);
            if has_failed(&result) || !memory.take_pinned(grown, most) {
                tree.take_back();
                return (if has_failed(&result) { Ok(result) } else { Err(PinnedFull) }, 0);
            }
            tree.keep();
            (Ok(result), grown)
        };
        let (result, taken) = self.tree_mut(found, attempt).expect("it is a tree");
        self.memory.give_pinned(taken);
        result
    }

    /// Bytes by which pinned objects will hold more when [`Store::put`] has stored this. The value's bytes in
    /// the log and outside it are [`crate::NewValue::weighs`].
    pub fn pinned_growth(
        &mut self,
        hash: u64,
        key: &[u8],
        attributes: &Attributes<'_>,
        (stored, held): (usize, usize),
    ) -> usize {
        if !attributes.marks.is_pinned() {
            return 0;
        }
        let needed = item::needed(attributes, key.len(), stored);
        let Some(found) = self.find(hash, key, true) else { return needed + held };
        let share = self.log.segment_of(found.location).share;
        let class = self.log.class(share, self.now, attributes.dead_at(), needed + held);
        let allotted = item::allotted(self.log.bytes(found.location));
        let in_log = if self.fits_in_place(found, needed, class) { allotted } else { needed };
        let is_pinned = self.item(found).marks().is_pinned();
        let before = if is_pinned { self.object_bytes_of(found) } else { 0 };
        (in_log + held).saturating_sub(before)
    }

    /// The bytes by which [`Store::set_attributes`] would make the item grow.
    pub fn attributes_growth(&self, found: Found, attributes: &Attributes<'_>) -> usize {
        if !self.item(found).marks().is_pinned() {
            return 0;
        }
        let needed = item::needed(attributes, self.item(found).key().len(), OUTSIDE_REF);
        let share = self.log.segment_of(found.location).share;
        let class = self.log.class(share, self.now, attributes.dead_at(), needed);
        let allotted = item::allotted(self.log.bytes(found.location));
        if self.fits_in_place(found, needed, class) { 0 } else { needed.saturating_sub(allotted) }
    }

    /// The bytes that an object holds, in the log and outside it.
    pub fn object_bytes_of(&self, found: Found) -> usize {
        self.holding(found.location).map_or(0, |holding| holding.usage.held_bytes() as usize)
    }

    /// Gives an object whose value is outside the log other attributes; the value stays. Returns its place,
    /// which may be a new one.
    ///
    /// # Errors
    /// There is no room for longer attributes; nothing has changed. No other item is evicted for them.
    pub fn set_attributes(&mut self, found: Found, attributes: &Attributes<'_>) -> Result<Found, StoreFull> {
        let item = self.item(found);
        let (key, value_len): (Box<[u8]>, _) = (item.key().into(), item.value_len());
        let bytes = self.log.bytes(found.location);
        let allotted = item::allotted(bytes);
        let number = item::outside_number(bytes).ok_or(StoreFull)?.to_le_bytes();
        let needed = item::needed(attributes, key.len(), number.len());
        let (dead_at, stamp) = (attributes.dead_at(), attributes.stamp.unwrap_or(attributes.cas));
        let (queue, share) = {
            let segment = self.log.segment_of(found.location);
            (segment.queue, segment.share)
        };
        let before = self.weigh(found.location);
        let class = self.log.class(share, self.now, dead_at, needed + before.outside);
        let fits = self.fits_in_place(found, needed, class);
        let (location, bytes) = if fits {
            (found.location, allotted)
        } else if self.log.has_room(queue, class, needed) {
            (self.log.append(queue, class, needed).ok_or(StoreFull)?, needed)
        } else {
            return Err(StoreFull);
        };
        self.forget_object(found.location);
        let into = &mut self.log.bytes_mut(location)[..bytes];
        item::write(into, &key, attributes, value_len, true, [&number, &[]]);
        let after = self.weigh(location);
        if fits {
            self.log.replace(location, before, after, dead_at, stamp);
        } else {
            self.log.remove(found.location, before);
            item::set_dead(self.log.bytes_mut(found.location));
            let stored = self.log.segment_of(found.location).stored();
            self.log.add(location, after, dead_at, stamp, stored);
            self.index.set_location(found.slot, location);
        }
        self.note_object(location);
        Ok(Found { location, ..found })
    }

    /// What the objects of each type hold, by the types' numbers in their order; types without objects are
    /// left out. Dead objects not yet removed are counted.
    pub fn object_usage(&self) -> &[(u16, ObjectUsage)] {
        self.holdings.types()
    }

    /// The tree of the object at `location` holds other pages than before.
    fn account_tree(&mut self, location: u64, before: usize) {
        let new = self.weigh(location);
        let old = crate::segment::Weight { outside: before, ..new };
        self.log.reweigh(location, old, new, item::dead_at(self.log.bytes(location)));
        // It is in use, so it counts as stored now where it has to enter another list.
        let number = item::outside_number(self.log.bytes(location));
        if number.is_some_and(|number| self.outside.is_misplaced(number)) || old.is_stub() != new.is_stub() {
            self.file(location, self.log.now());
        }
        if let Some(holding) = self.holding(location) {
            let usage = ObjectUsage { tree_bytes: before as u64, ..holding.usage };
            self.holdings.leave(&ObjectHolding { usage, ..holding });
            self.holdings.enter(&holding);
        }
    }

    /// Changes the marks of the object at `location`, which may pin it or end that.
    pub(crate) fn set_object_marks(&mut self, location: u64, marks: Marks) {
        let before = self.weigh(location);
        self.forget_object(location);
        item::set_marks(self.log.bytes_mut(location), marks);
        let after = self.weigh(location);
        if before != after {
            let bytes = self.log.bytes(location);
            let (dead_at, stamp) = (item::dead_at(bytes), item::stamp(bytes));
            self.log.reweigh(location, before, after, dead_at);
            self.log.cover(location, dead_at, stamp);
            self.file(location, self.log.now());
        }
        self.note_object(location);
    }

    /// Counts the object at `location`.
    pub(crate) fn note_object(&mut self, location: u64) {
        if let Some(holding) = self.holding(location) {
            self.holdings.enter(&holding);
        }
    }

    /// Ends the counting of the object at `location`.
    pub(crate) fn forget_object(&mut self, location: u64) {
        if let Some(holding) = self.holding(location) {
            self.holdings.leave(&holding);
        }
    }

    /// The holding of the object at `location`; `None` for a plain item.
    pub(crate) fn holding(&self, location: u64) -> Option<ObjectHolding> {
        let bytes = self.log.bytes(location);
        let item = self.item_of(bytes);
        if !item.is_object() {
            return None;
        }
        // Writers of objects put the type before the key; a key without one counts as type 0.
        let type_id = item.object().map_or(0, |(type_id, _)| type_id);
        let tree_bytes = item.tree().map_or(0, Tree::held_bytes) as u64;
        let huge_bytes = item.outside_bytes() as u64 - tree_bytes;
        let bytes = item::allotted(bytes) as u64;
        let usage = ObjectUsage { items: 1, bytes, tree_bytes, huge_bytes };
        Some(ObjectHolding { type_id, is_pinned: item.marks().is_pinned(), usage })
    }
}
