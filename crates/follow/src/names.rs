//! The tags of an entry: names without repetition, in bounded memory.

use std::collections::HashSet;

/// Most memory in bytes for the names of one entry, and for those of all entries that wait: what is above it
/// is bumped as everything, by one flush. About 700,000 tags of 8 bytes.
pub const NAMES_BYTES_MAX: usize = 32 << 20;

/// Memory of a name besides its bytes: its place in the set, and the allocator's share.
const NAME_BYTES: usize = 40;

/// One tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// Behind which prefixes it is bumped: a number of the caller's, that of the table.
    pub scope: u8,
    /// The tag's name.
    pub tag: Box<[u8]>,
}

/// The names that an entry bumps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// These tags.
    Some {
        /// The names.
        names: HashSet<Name>,
        /// Their memory, in bytes.
        bytes: usize,
    },
    /// All tags there are.
    All {
        /// Why, for the log: `public.users was truncated`.
        reason: Box<str>,
    },
}

impl Default for Names {
    fn default() -> Self {
        Self::Some { names: HashSet::new(), bytes: 0 }
    }
}

impl Names {
    /// Adds a tag. When it does not fit into [`NAMES_BYTES_MAX`], the entry bumps everything from then on,
    /// and its memory is free.
    pub fn add(&mut self, scope: u8, tag: &[u8]) {
        let Self::Some { names, bytes } = self else { return };
        let name = Name { scope, tag: tag.into() };
        if names.contains(&name) {
            return;
        }
        let more = tag.len() + NAME_BYTES;
        if *bytes + more > NAMES_BYTES_MAX {
            self.all("more tags than there is memory for");
        } else {
            *bytes += more;
            names.insert(name);
        }
    }

    /// Adds those of another entry.
    pub fn extend(&mut self, other: &Self) {
        match other {
            Self::Some { names, .. } => names.iter().for_each(|name| self.add(name.scope, &name.tag)),
            Self::All { reason } => self.all(reason),
        }
    }

    /// Everything is bumped. The first reason is kept.
    pub fn all(&mut self, reason: &str) {
        if !matches!(self, Self::All { .. }) {
            *self = Self::All { reason: reason.into() };
        }
    }

    /// The memory of the names, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Some { bytes, .. } => *bytes,
            Self::All { .. } => 0,
        }
    }

    /// Whether nothing is bumped.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Some { names, .. } if names.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_once() {
        let mut names = Names::default();
        assert!(names.is_empty());
        for _ in 0..3 {
            names.add(0, b"user:1");
        }
        assert_eq!(names.bytes(), b"user:1".len() + NAME_BYTES);
        assert!(!names.is_empty());
    }

    #[test]
    fn too_many_are_everything_and_free_their_memory() {
        let mut names = Names::default();
        let mut added = 0u32;
        while let Names::Some { bytes, .. } = &names {
            assert!(*bytes <= NAMES_BYTES_MAX);
            names.add(0, &added.to_be_bytes());
            added += 1;
        }
        assert_eq!(added as usize, NAMES_BYTES_MAX / (4 + NAME_BYTES) + 1);
        names.add(0, b"user:1");
        names.all("public.users was truncated");
        assert_eq!(names, Names::All { reason: "more tags than there is memory for".into() });
        assert_eq!(names.bytes(), 0);
    }
}
