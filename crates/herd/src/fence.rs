//! The last events of keys: a fixed array of numbers, in which a slot serves many keys.
//!
//! A collision makes a fill look older than an event that concerned another key: it costs a recomputation and never
//! lets an old value in.

/// The last hard and the last soft event of the keys that share a slot. 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// Number of the last write or delete; a fill below it is dropped.
    pub hard: u64,
    /// Number of the last soft invalidation; a fill below it is stored stale.
    pub soft: u64,
}

/// The array. See the module's text.
#[derive(Debug, Default)]
pub struct Fence {
    /// Hard and soft. The zeroed pages are the system's, so slots that are never used take no memory.
    slots: Box<[[u64; 2]]>,
    /// Expected number of collisions over all fills.
    collisions: f64,
}

impl Fence {
    /// `slots` is rounded down to a power of two; at least 1.
    pub fn new(slots: usize) -> Self {
        let slots = 1 << slots.max(1).ilog2();
        Self { slots: vec![[0; 2]; slots].into(), collisions: 0.0 }
    }

    /// Bytes of one slot.
    pub const SLOT_BYTES: usize = size_of::<[u64; 2]>();

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The last events of the keys that share this one's slot.
    pub fn events(&self, hash: u64) -> Events {
        let [hard, soft] = self.slots[slot(hash, self.slots.len())];
        Events { hard, soft }
    }

    /// Adds to the estimate of collisions: a fill was judged by its slot. `passed`: numbers given out since its miss,
    /// for all keys of a server with `shards` shards; each could have been an event of another key in this slot.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn note_fill(&mut self, passed: u64, shards: usize) {
        let slots = (self.slots.len() * shards) as f64;
        self.collisions += 1.0 - (-(passed as f64) / slots).exp();
    }

    /// Fills that met another key's event in their slot: an estimate, at most this number.
    pub fn collisions(&self) -> f64 {
        self.collisions
    }

    /// A write or a delete took this number.
    pub fn raise_hard(&mut self, hash: u64, number: u64) {
        let [hard, _] = &mut self.slots[slot(hash, self.slots.len())];
        *hard = (*hard).max(number);
    }

    /// A soft invalidation took this number.
    pub fn raise_soft(&mut self, hash: u64, number: u64) {
        let [_, soft] = &mut self.slots[slot(hash, self.slots.len())];
        *soft = (*soft).max(number);
    }
}

/// A key's slot in an array whose length is a power of two. Not from the bits that choose the shard or the index's
/// bucket: Fibonacci hashing spreads the remaining bits.
pub(crate) fn slot(hash: u64, slots: usize) -> usize {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize & (slots - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_only_rise_and_kinds_are_apart() {
        let mut fence = Fence::new(5);
        assert_eq!(fence.slots(), 4);
        fence.raise_hard(9, 7);
        fence.raise_hard(9, 3);
        assert_eq!(fence.events(9), Events { hard: 7, soft: 0 });
        fence.raise_soft(9, 11);
        assert_eq!(fence.events(9), Events { hard: 7, soft: 11 });
    }
}
