//! Numbers drawn from bytes, from which fuzz targets, and the seeded tests that share their code, make operations.
//!
//! A small number takes one byte, so that a byte that the fuzzer changes changes one decision. Without bytes every
//! number is 0 and [`Draw::is_done`] is true.

/// A source of numbers. See the module's text.
#[derive(Debug, Clone)]
pub(crate) struct Draw<'a>(&'a [u8]);

impl<'a> Draw<'a> {
    /// Draws from these bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes are used.
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// 0..`most`; 0 if that is 0. Takes one byte up to 256, otherwise four.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        match most {
            0 | 1 => 0,
            2..=256 => usize::from(self.byte()) % most,
            _ => self.number() as usize % most,
        }
    }

    /// True in one of `times` cases.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 1 % times
    }

    /// Any number, from four bytes.
    pub(crate) fn number(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Any number, from eight bytes.
    pub(crate) fn long(&mut self) -> u64 {
        u64::from(self.number()) << 32 | u64::from(self.number())
    }

    /// One of the list's elements.
    pub(crate) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The next bytes, at most `most` of them.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// A given number of pseudo-random bytes, always the same for a seed (splitmix64).
pub(crate) fn seeded(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    std::iter::repeat_with(|| next().to_le_bytes()).flatten().take(len).collect()
}
