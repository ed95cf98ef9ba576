//! The account of a segment in its log, and the weight of an item in it.

use super::Place;
use crate::item::NEVER;
use crate::memory::Run;

/// Which of the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentQueue {
    /// Where keys begin that were missed before they were stored.
    Small = 0,
    /// For items that were used while in another queue, or came back soon after leaving the small one.
    Main = 1,
    /// Where keys begin that were stored without a miss: sessions, preloads.
    Blind = 2,
}

impl SegmentQueue {
    /// Number of queues.
    pub(crate) const COUNT: usize = 3;
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Small, Self::Main, Self::Blind];

    /// The other queues.
    pub(crate) fn others(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |queue| *queue != self)
    }
}

/// One segment's account.
pub(crate) struct Segment {
    pub(super) run: Run,
    pub(crate) queue: SegmentQueue,
    /// The class of its items.
    pub(crate) class: u8,
    /// The share of its items.
    pub(crate) share: u8,
    /// The place of the values of its items that are not outside the log.
    pub(crate) place: Place,
    pub(crate) state: SegmentState,
    /// Where the next item goes.
    pub(crate) filled: usize,
    pub(crate) live_bytes: usize,
    pub(crate) live_items: usize,
    /// Pages of the huge values and trees that its items name.
    pub(crate) outside_bytes: usize,
    /// The segment's stubs, the items whose values are outside the log and which are not pinned, and their
    /// bytes.
    pub(crate) stubs: (usize, usize),
    /// Bytes of its pinned items in the log.
    pub(crate) pinned_bytes: usize,
    /// Bytes of `outside_bytes` that belong to pinned items.
    pub(crate) pinned_outside: usize,
    /// Bytes at its end that only pinned items of the segment that is collected may take.
    pub(super) kept: usize,
    /// No pinned item in it is known to die before this second.
    pub(crate) reap_at: u32,
    /// No pinned item in it is known to have been ended by an event up to this number: see
    /// [`crate::PinnedEnds`].
    pub(crate) looked: u64,
    /// The second in which its pinned items were last looked at.
    pub(crate) looked_at: u32,
    /// Order of sealing: the lowest is the oldest.
    pub(crate) sequence: u64,
    /// The segment was made one of the main queue as it was: its items have had this many uses then, which do
    /// not count any more.
    pub(crate) spent: u8,
    /// When it was opened, in ticks.
    pub(super) opened: u64,
    /// Sum over its items of their bytes times the ticks from then to the time they count as stored at.
    pub(super) byte_ticks: i128,
    /// Latest second at which one of its items dies; [`NEVER`] when one never does.
    pub(super) dead_at: u32,
    /// Highest stamp of its items.
    pub(super) stamp: u64,
}

/// What a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QueueAccount {
    /// Bytes of its sealed and open segments, and of what their items have outside the log.
    pub(crate) bytes: usize,
    /// Bytes of pinned items among them.
    pub(crate) pinned: usize,
    /// Bytes that stubs have outside the log.
    pub(crate) outside: usize,
    /// Live items.
    pub(crate) items: usize,
}

impl QueueAccount {
    /// Adds another queue's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.pinned += other.pinned;
        self.outside += other.outside;
        self.items += other.items;
    }
}

/// The bytes that an item takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Weight {
    /// Bytes of the log.
    pub(crate) bytes: usize,
    /// Bytes of the budget outside the log.
    pub(crate) outside: usize,
    /// The item is never evicted.
    pub(crate) pinned: bool,
}

impl Weight {
    /// The weight of a plain item whose value is in the log.
    pub(crate) fn plain(bytes: usize) -> Self {
        Self { bytes, outside: 0, pinned: false }
    }

    /// What it has outside the log, if it may be evicted.
    pub(super) fn evictable_outside(self) -> usize {
        if self.pinned { 0 } else { self.outside }
    }

    /// The item's part in the number of stubs and their bytes.
    pub(super) fn stub(self) -> (usize, usize) {
        if self.is_stub() { (1, self.bytes) } else { (0, 0) }
    }

    /// Whether the item has its value outside the log and may be evicted: the walk of its segment moves it,
    /// and evicts it for no other reason than that there is no room.
    pub(crate) fn is_stub(self) -> bool {
        self.outside > 0 && !self.pinned
    }

    /// The item's part in the sums of pinned items, in the log and outside it.
    pub(super) fn pinned(self) -> (usize, usize) {
        if self.pinned { (self.bytes, self.outside) } else { (0, 0) }
    }
}

/// The state of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Takes appends.
    Open,
    /// Full: may be collected.
    Sealed,
    /// Being emptied.
    Collected,
}

impl Segment {
    pub(super) fn cover(&mut self, dead_at: u32, stamp: u64) {
        if self.dead_at != NEVER {
            self.dead_at = if dead_at == NEVER { NEVER } else { self.dead_at.max(dead_at) };
        }
        self.stamp = self.stamp.max(stamp);
        self.looked = self.looked.min(stamp);
    }

    /// Notes when a pinned item dies.
    pub(crate) fn reap_from(&mut self, dead_at: u32) {
        if dead_at != NEVER {
            self.reap_at = self.reap_at.min(dead_at);
        }
    }

    /// When its items were stored, in ticks: the mean by their bytes. An item that was moved counts as stored
    /// at a time between its segment's and the move.
    pub(crate) fn stored(&self) -> u64 {
        let mean = self.byte_ticks / (self.filled as i128).max(1);
        self.opened.saturating_add_signed(mean as i64)
    }

    /// The segment's items that are neither pinned nor stubs: their bytes, and how many there are.
    pub(crate) fn plain(&self) -> (usize, usize) {
        let bytes = self.live_bytes.saturating_sub(self.pinned_bytes + self.stubs.1);
        (bytes, self.live_items.saturating_sub(self.stubs.0))
    }

    /// The mean size in bytes of these.
    pub(crate) fn mean_bytes(&self) -> usize {
        let (bytes, items) = self.plain();
        bytes / items.max(1)
    }

    /// Bytes in it that its walk would free if nothing stayed that may go.
    pub(crate) fn evictable_bytes(&self, segment_bytes: usize) -> usize {
        segment_bytes - self.pinned_bytes - self.stubs.1
    }

    /// Whether nothing in it can be served any more.
    pub(crate) fn is_dead(&self, now: u32, floor: u64) -> bool {
        self.live_items == 0 || self.dead_at != NEVER && self.dead_at <= now || self.stamp < floor
    }
}
