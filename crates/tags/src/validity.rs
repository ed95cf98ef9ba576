//! The answer to whether an item may be served.

/// What invalidations say of an item. Its expiry is another matter. Ordered: of two answers the greater
/// holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Validity {
    /// Nothing has invalidated it.
    Valid,
    /// Softly invalidated: as after its expiry. Within its grace one client recomputes it and the others get
    /// the old value; without grace it is a miss.
    Stale,
    /// A miss. Nobody may see the value.
    Dead,
}
