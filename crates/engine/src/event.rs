//! Events of keys, for watchers and counters.

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
