//! Which hits are counted by rule.
//!
//! A miss finds its rule anyway, a hit does not: its rule is looked up for the count alone. So that this
//! never costs much, only the first [`EXACT`] hits of a shard in a second are counted one by one; of the
//! others each 64th stands for 64.

/// Hits of a shard in a second that are counted one by one.
const EXACT: u32 = 1024;

/// Of the other hits one in this many is counted, as this many.
const SAMPLE: u32 = 64;

/// The hits of a shard in a second.
#[derive(Debug, Default)]
pub(crate) struct RuledHits {
    second: u32,
    count: u32,
}

impl RuledHits {
    /// For how many hits the next one stands; 0: it is not counted.
    #[inline]
    pub(crate) fn weight(&mut self, second: u32) -> u32 {
        if self.second != second {
            *self = Self { second, count: 0 };
        }
        self.count = self.count.wrapping_add(1);
        match self.count {
            ..=EXACT => 1,
            count if count.is_multiple_of(SAMPLE) => SAMPLE,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_hits_count_one_by_one_and_many_in_samples() {
        let mut hits = RuledHits::default();
        let mut sum = |second, count| (0..count).map(|_| hits.weight(second)).sum::<u32>();
        assert_eq!(sum(7, EXACT), EXACT);
        assert_eq!(sum(7, SAMPLE * 1000), SAMPLE * 1000);
        assert_eq!(sum(8, 3), 3, "anew in each second");
    }
}
