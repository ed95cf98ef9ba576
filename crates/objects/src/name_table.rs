//! A hash table of few names and their positions, for the look-up in each call. A name is found with one or
//! two comparisons.

/// The number of slots: a power of two, at least twice the number of names.
const SLOTS: usize = 256;
/// The most names.
pub(crate) const NAMES_MAX: usize = SLOTS / 2;
/// A slot without a name.
const EMPTY: u8 = u8::MAX;

/// Positions of names, by open addressing with linear probing.
#[derive(Debug)]
pub(crate) struct NameTable {
    slots: [u8; SLOTS],
}

impl NameTable {
    /// A table of names in the order of their positions: distinct, not empty, and at most [`NAMES_MAX`].
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        let mut slots = [EMPTY; SLOTS];
        for (place, name) in names.enumerate() {
            debug_assert!(place < NAMES_MAX, "a free slot ends each search");
            let mut slot = slot(name.as_bytes());
            while slots[slot] != EMPTY {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = place as u8;
        }
        Self { slots }
    }

    /// The position of a name. `name_at`: the name at a position.
    #[inline]
    pub(crate) fn find(&self, name: &[u8], name_at: impl Fn(usize) -> &'static str) -> Option<usize> {
        if name.is_empty() {
            return None;
        }
        let mut slot = slot(name);
        loop {
            let place = self.slots[slot];
            if place == EMPTY {
                return None;
            }
            if name_at(usize::from(place)).as_bytes() == name {
                return Some(usize::from(place));
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

/// The first and the last letter and the length distinguish the names of this crate well.
#[inline]
fn slot(name: &[u8]) -> usize {
    let (first, last) = (usize::from(name[0]), usize::from(name[name.len() - 1]));
    (first ^ last.wrapping_mul(5) ^ name.len().wrapping_mul(11)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native;
    use crate::registry::Registry;

    #[test]
    fn all_names_are_found_and_no_others() {
        let lists =
            native::TYPES.iter().map(|one| Registry::methods(one).map(|method| method.name).collect());
        let types: Vec<&str> = native::TYPES.iter().map(|one| one.name).collect();
        for names in lists.chain([types]) {
            let names: Vec<&'static str> = names;
            assert!(names.len() <= NAMES_MAX);
            let table = NameTable::new(names.iter().copied());
            for (place, name) in names.iter().enumerate() {
                assert_eq!(table.find(name.as_bytes(), |at| names[at]), Some(place), "{name}");
                assert_eq!(
                    table.find(&name.as_bytes()[1..], |at| names[at]),
                    names.iter().position(|n| *n == &name[1..])
                );
            }
            assert_eq!(table.find(b"", |at| names[at]), None);
            assert_eq!(table.find(b"\xff\x00", |at| names[at]), None);
        }
    }
}
