//! When names of objects' calls are recognised, and how far a walk over the shards has come.

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

/// When names of objects' calls are recognised: see [`Shared::names`](crate::shared::EngineShared::names).
#[derive(Debug)]
pub(crate) struct Names;

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

impl Names {
    /// There are no objects.
    pub(crate) const OFF: u8 = 0;

    /// After a look-up that has found nothing.
    pub(crate) const AFTER: u8 = 1;

    /// Before the look-up: there may be items under names of calls.
    pub(crate) const FIRST: u8 = 2;

    /// Of a value of [`Shared::names`](crate::shared::EngineShared::names).
    #[inline]
    pub(crate) fn state(names: u64) -> u8 {
        (names & 3) as u8
    }

    /// How many times the types had been changed.
    #[inline]
    pub(crate) fn changes(names: u64) -> u64 {
        names >> 2
    }

    pub(crate) fn of(state: u8, changes: u64) -> u64 {
        changes << 2 | u64::from(state)
    }
}
