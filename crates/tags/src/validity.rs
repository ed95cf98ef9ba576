//! The answer to the question whether an item may be served: valid, stale or dead.
//!
//! Checks of tags and of floors each give one; the greater one holds.

/// Whether an item was invalidated. Its expiry is not considered. Ordered: of two answers the greater
/// holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Validity {
    /// Nothing has invalidated it.
    Valid,
    /// Softly invalidated: as after its expiry. Within its grace one client recomputes it and the others get
    /// the old value; without grace it is a miss.
    Stale,
    /// A miss. No client may get the value.
    Dead,
}
