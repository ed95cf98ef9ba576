//! A set of numbers below a bound, which finds the next member upwards or downwards in a few steps however
//! many there are.
//!
//! A tree of bits: a word of a level says which of 64 words of the level below have a bit set.
//!
//! # Invariant
//! * A bit of a level is set if and only if its word in the level below is not 0.

/// A set of numbers below a bound.
pub(crate) struct NumberSet {
    /// The members first, then each level that summarises the one before, down to one word.
    levels: Vec<Vec<u64>>,
}

impl NumberSet {
    /// An empty set of numbers below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = bound.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    /// The members as bits, 64 in a word.
    pub(crate) fn words(&self) -> &[u64] {
        &self.levels[0]
    }

    /// Makes a number a member, or not.
    #[inline]
    pub(crate) fn set(&mut self, number: usize, member: bool) {
        let (mut at, mut on) = (number, member);
        for level in &mut self.levels {
            let (word, bit) = (&mut level[at / 64], 1 << (at % 64));
            let before = *word;
            *word = if on { before | bit } else { before & !bit };
            if (before == 0) == (*word == 0) {
                return;
            }
            (at, on) = (at / 64, *word != 0);
        }
    }

    /// The lowest member from `from` on.
    pub(crate) fn first_from(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(at / 64)? & (u64::MAX << (at % 64));
            if word != 0 {
                let found = at / 64 * 64 + word.trailing_zeros() as usize;
                return Some(self.descend(found, height, u64::trailing_zeros));
            }
            at = at / 64 + 1;
        }
        None
    }

    /// The highest member below `below`.
    pub(crate) fn last_below(&self, below: usize) -> Option<usize> {
        let mut at = below.min(self.levels[0].len() * 64).checked_sub(1)?;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level[at / 64] & (u64::MAX >> (63 - at % 64));
            if word != 0 {
                let found = at / 64 * 64 + 63 - word.leading_zeros() as usize;
                return Some(self.descend(found, height, u64::ilog2));
            }
            at = (at / 64).checked_sub(1)?;
        }
        None
    }

    /// From a bit of the level at `height` to the member below it that `choose` leads to.
    fn descend(&self, found: usize, height: usize, choose: impl Fn(u64) -> u32) -> usize {
        let below = self.levels[..height].iter().rev();
        below.fold(found, |at, level| at * 64 + choose(level[at]) as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn finds_what_an_ordered_set_finds() {
        for bound in [1, 63, 64, 65, 4_096, 4_097, 300_000] {
            let (mut numbers, mut model) = (NumberSet::new(bound), BTreeSet::new());
            let mut seed = 1_u64;
            let mut random = move || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as usize
            };
            for step in 0..2_000 {
                let number = if step % 3 == 0 { random() % bound } else { random() % bound.min(70) };
                let member = random() % 3 != 0;
                numbers.set(number, member);
                if member {
                    model.insert(number)
                } else {
                    model.remove(&number)
                };
                for place in [0, number, number + 1, random() % bound, bound] {
                    assert_eq!(numbers.first_from(place), model.range(place..).next().copied());
                    assert_eq!(numbers.last_below(place), model.range(..place).next_back().copied());
                }
            }
            for number in model {
                numbers.set(number, false);
            }
            assert!(numbers.levels.iter().flatten().all(|word| *word == 0));
        }
    }
}
