//! Classes of items, each of which has floors of all tags of its own.

/// Number of classes.
pub const CLASSES: usize = 4;

/// Which floors of all tags concern an item: those of its class. What a class means is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct FloorClass(u8);

impl FloorClass {
    /// All of them.
    pub const ALL: [Self; CLASSES] = [Self(0), Self(1), Self(2), Self(3)];

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}
