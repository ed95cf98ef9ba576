//! The last events of keys: a fixed array of numbers, in which a slot serves many keys.
//!
//! A collision makes a fill look older than an event that concerned another key: it costs a recomputation and
//! never lets an old value in.

/// The last hard and the last soft event of the keys that share a slot. 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// Number of the last delete or, where those count, write; a fill below it is dropped.
    pub hard: u64,
    /// Number of the last soft invalidation; a fill below it is stored stale.
    pub soft: u64,
}

/// The numbers of the last events of keys, in an array of fixed size.
#[derive(Debug, Default)]
pub struct Fence {
    /// Deletes, soft invalidations, writes. The zeroed pages are the system's, so slots that are never used
    /// take no memory.
    slots: Box<[[u64; 3]]>,
    /// Expected number of collisions over all fills.
    collisions: f64,
}

impl Events {
    /// The later ones of both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { hard: self.hard.max(other.hard), soft: self.soft.max(other.soft) }
    }

    /// The later of the two.
    pub fn last(self) -> u64 {
        self.hard.max(self.soft)
    }
}

impl Fence {
    /// `slots`: at least 1.
    pub fn new(slots: usize) -> Self {
        Self { slots: vec![[0; 3]; slots.max(1)].into(), collisions: 0.0 }
    }

    /// Bytes of one slot.
    pub const SLOT_BYTES: usize = size_of::<[u64; 3]>();

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The last events of the keys that share this one's slot, without their writes.
    pub fn events(&self, hash: u64) -> Events {
        let [hard, soft, _] = self.slots[slot(hash, self.slots.len())];
        Events { hard, soft }
    }

    /// The last events of the keys with this hash, with writes as hard events.
    pub fn events_and_writes(&self, hash: u64) -> Events {
        let [hard, soft, written] = self.slots[slot(hash, self.slots.len())];
        Events { hard: hard.max(written), soft }
    }

    /// Adds to the estimate of collisions: a fill was judged by its slot. `passed`: numbers given out since
    /// its miss, for all keys of a server with `shards` shards; each could have been an event of another key
    /// in this slot.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn note_fill(&mut self, passed: u64, shards: usize) {
        let slots = (self.slots.len() * shards) as f64;
        self.collisions += 1.0 - (-(passed as f64) / slots).exp();
    }

    /// Fills that met another key's event in their slot: an estimate, at most this number.
    pub fn collisions(&self) -> f64 {
        self.collisions
    }

    /// A delete took this number.
    pub fn raise_hard(&mut self, hash: u64, number: u64) {
        let [hard, ..] = &mut self.slots[slot(hash, self.slots.len())];
        *hard = (*hard).max(number);
    }

    /// A write took this number. A fill of an earlier miss, if that is known, is dropped for it; but a write
    /// that comes after it is no less a write.
    pub fn raise_written(&mut self, hash: u64, number: u64) {
        let [.., written] = &mut self.slots[slot(hash, self.slots.len())];
        *written = (*written).max(number);
    }

    /// A soft invalidation took this number.
    pub fn raise_soft(&mut self, hash: u64, number: u64) {
        let [_, soft, _] = &mut self.slots[slot(hash, self.slots.len())];
        *soft = (*soft).max(number);
    }
}

/// A key's slot in an array of this length, below 2^32. Not from the bits that choose the shard or the
/// index's bucket: Fibonacci hashing spreads the remaining bits.
pub(crate) fn slot(hash: u64, slots: usize) -> usize {
    (((hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * slots as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_only_rise_and_kinds_are_apart() {
        let mut fence = Fence::new(5);
        assert_eq!(fence.slots(), 5);
        fence.raise_hard(9, 7);
        fence.raise_hard(9, 3);
        assert_eq!(fence.events(9), Events { hard: 7, soft: 0 });
        fence.raise_soft(9, 11);
        fence.raise_written(9, 13);
        assert_eq!(fence.events(9), Events { hard: 7, soft: 11 });
        assert_eq!(fence.events_and_writes(9), Events { hard: 13, soft: 11 });
    }
}
