//! How far walks over the items of all shards have come: a list of items for a client, the search for items
//! under names of calls, and the notes of the tags of all items
//! ([`Engine::renew_notes`](crate::Engine::renew_notes)).

/// A position in a list of all items ([`Engine::list`](crate::Engine::list)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    pub(crate) shard: usize,
    pub(crate) position: u64,
}

/// A position in a walk over the buckets of all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WalkPosition {
    shard: usize,
    bucket: usize,
}

/// A walk under way.
#[derive(Debug, Default)]
pub(crate) struct NameWalk {
    pub(crate) at: WalkPosition,
    /// Times that the present shard's index had shrunk when its walk began.
    pub(crate) shrinks: u64,
}

impl WalkPosition {
    pub(crate) fn new(shard: usize, bucket: usize) -> Self {
        Self { shard, bucket }
    }

    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    pub(crate) fn bucket(&self) -> usize {
        self.bucket
    }
}

/// Shortest time between the end of a generation of notes and the begin of the next, in milliseconds.
pub(crate) const REST_MS: u64 = 60_000;

/// The next generation is due when this many times the bits are set that were set when the last one ended.
pub(crate) const GROWTH: f64 = 2.0;

/// A share of bits so low that no generation is due.
pub(crate) const LOW_SHARE: f64 = 1.0 / 64.0;

/// A generation of notes of tags.
#[derive(Debug, Default)]
pub(crate) enum Renewal {
    /// The next one begins as soon as possible.
    #[default]
    Due,
    /// The walk over all items, and the time until when misses may be open that are older, in milliseconds;
    /// `None`: it is not known yet.
    Walks { at: WalkPosition, shrinks: u64, until_ms: Option<u64> },
    /// None is needed before that time, and before more than this share of bits is set.
    Rests { until_ms: u64, share: f64 },
}
