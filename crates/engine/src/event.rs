//! What happened to keys, for those who watch or count it.

/// Which events somebody wants. Nothing is noted otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest(u8);

impl Interest {
    /// Reads: [`EventKind::Get`].
    pub const FETCHERS: Self = Self(1);
    /// Writes: [`EventKind::Store`].
    pub const MUTATIONS: Self = Self(2);
    /// [`EventKind::Evicted`].
    pub const EVICTIONS: Self = Self(4);
    /// [`EventKind::Deleted`].
    pub const DELETIONS: Self = Self(8);

    /// Nothing.
    pub const fn none() -> Self {
        Self(0)
    }

    /// From [`Interest::bits`].
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 15)
    }

    /// As a number.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any of the other's is wanted.
    pub const fn wants(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Something that happened to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Box<[u8]>,
    /// What.
    pub kind: EventKind,
}

/// The command that a look-up is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looker {
    /// `get gets gat gats`.
    Get,
    /// `delete`.
    Delete,
    /// Any other.
    Other,
}

/// What happened. Times are seconds; `ttl` is 0 for never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A look-up: of a get command, or the one with which any other command on a key begins.
    Get {
        /// `not_found found expired flushed`.
        status: &'static str,
        /// Bytes of the value; 0 without one.
        size: usize,
        /// Which command looked.
        by: Looker,
    },
    /// A storing command.
    Store {
        /// `stored not_stored exists not_found too_large no_memory`.
        status: &'static str,
        /// The command's name.
        command: &'static str,
        /// Seconds to live.
        ttl: u64,
        /// Bytes of the value; of one that was joined to another, of both.
        size: usize,
        /// By a classic command.
        classic: bool,
    },
    /// A delete.
    Deleted {
        /// The command's name.
        command: &'static str,
        /// Bytes of the value.
        size: usize,
    },
    /// An eviction.
    Evicted {
        /// Whether it was ever read.
        fetched: bool,
        /// Seconds it had to live.
        ttl: Option<u64>,
        /// Seconds since its last access.
        idle: u64,
        /// Bytes of the value.
        size: usize,
    },
}
