//! Events of keys, for watchers and counters.

/// The kinds of events that are wanted. No others are noted.
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

    /// [`EventKind::Script`].
    pub const SCRIPTS: Self = Self(128);

    /// No event.
    pub const fn none() -> Self {
        Self(0)
    }

    /// The set with this number, see [`Interest::bits`].
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & (15 | 128))
    }

    /// The set as a number; the bits 16, 32 and 64 are never set.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any kind of `other` is wanted.
    pub const fn wants(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// An event of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Box<[u8]>,
    /// The kind, with its figures.
    pub kind: EventKind,
}

/// The command that a look-up is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looker {
    /// `get gets gat gats`.
    Get,
    /// `mg`.
    MetaGet,
    /// `delete`.
    Delete,
    /// A storing command, which has an event of its own.
    Store,
    /// Any other command.
    Other,
}

/// The kinds of events. Times are in seconds; a `ttl` of 0 means never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A look-up: by a get command, or the look-up with which any other command on a key begins.
    Get {
        /// `not_found found expired flushed`.
        status: &'static str,
        /// Bytes of the value; 0 without one.
        size: usize,
        /// The command that looked.
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
        /// Bytes of the value; after an append or prepend, of the joined value.
        size: usize,
        /// By a classic command.
        classic: bool,
    },
    /// An event that a method of an object has named; the key is the object's name.
    Script {
        /// Letters, digits and `_`.
        name: Box<str>,
        /// In JSON.
        json: Box<str>,
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
        /// Whether the item was ever read.
        fetched: bool,
        /// Remaining seconds to live; None: forever.
        ttl: Option<u64>,
        /// Seconds since its last access.
        idle: u64,
        /// Bytes of the value.
        size: usize,
    },
}
