//! Evidence: bits that show which namespaces were not updated since their window began.
//!
//! An update sets two bits, at places that a hash of the namespace gives. A namespace of which one bit is not
//! set was not updated; one with both bits set may have been. The bits are numbered from the lowest of the
//! first byte.
//!
//! # Hashes
//! Any client can compute them: `mix(n)` is the n-th number, from 1, of the generator `SplitMix64` that
//! begins with the 64-bit FNV-1a hash of the text. With `bits` = 8 x size of the evidence, the places of a
//! namespace are `first = mix(1) % bits` and `second = (first + 1 + mix(2) % (bits - 1)) % bits`, which
//! differ. The phase of a key in a rolling flush is `mix(3) x period / 2^64`, rounded down, of the whole key
//! without its numbers.

use crate::route::{SPLIT_STEP, fnv, mix};

/// Largest evidence in bytes.
pub(super) const EVIDENCE_MAX: usize = 8192;

/// 64-bit FNV-1a of a text, from which all other hashes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextHash(u64);

impl TextHash {
    /// The hash of a text.
    pub(super) fn new(text: &str) -> Self {
        Self(fnv(text.as_bytes()))
    }

    /// The `n`-th number of `SplitMix64`, from 1, beginning with this hash.
    fn mix(self, n: u64) -> u64 {
        // The generator's own step comes with the last.
        mix(self.0.wrapping_add(SPLIT_STEP.wrapping_mul(n - 1)))
    }

    /// Two different places in `size` bytes of evidence, at least one byte.
    fn places(self, size: usize) -> [usize; 2] {
        let bits = size as u64 * 8;
        let first = self.mix(1) % bits;
        let second = (first + 1 + self.mix(2) % (bits - 1)) % bits;
        [first as usize, second as usize]
    }

    /// How long after the beginning of a rolling flush of this period the key changes: less than the period.
    pub(super) fn phase_ms(self, period_ms: u64) -> u64 {
        ((u128::from(self.mix(3)) * u128::from(period_ms)) >> 64) as u64
    }
}

/// The bits of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Evidence(Vec<u8>);

impl Evidence {
    /// This many bytes without a bit set.
    pub(super) fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    /// The evidence as a record has it.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// For the record.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Notes an update. True if a bit was not set before.
    pub(super) fn mark(&mut self, namespace: TextHash) -> bool {
        let news = !self.marked(namespace);
        for place in namespace.places(self.0.len()) {
            self.0[place / 8] |= 1 << (place % 8);
        }
        news
    }

    /// Whether the namespace may have been updated.
    pub(super) fn marked(&self, namespace: TextHash) -> bool {
        namespace.places(self.0.len()).iter().all(|place| self.0[place / 8] & (1 << (place % 8)) != 0)
    }

    /// Whether at least half of all namespaces count as updated: the share of bits that are set, squared, is
    /// 0.5 or more.
    pub(super) fn muddled(&self) -> bool {
        let set: u64 = self.0.iter().map(|byte| u64::from(byte.count_ones())).sum();
        let bits = self.0.len() as u64 * 8;
        2 * set * set >= bits * bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_published_ones() {
        assert_eq!(TextHash::new("").0, 0xcbf2_9ce4_8422_2325);
        assert_eq!(TextHash::new("a").0, 0xaf63_dc4c_8601_ec8c);
        assert_eq!(TextHash::new("foobar").0, 0x8594_4171_f739_67e8);
        let from = TextHash(1_234_567);
        assert_eq!([from.mix(1), from.mix(2)], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn places_differ_and_are_inside_for_every_size() {
        for size in [1, 2, 3, 80, EVIDENCE_MAX] {
            for id in 0..2_000 {
                let [first, second] = TextHash::new(&format!("userId:{id}")).places(size);
                assert!(first != second && first < size * 8 && second < size * 8);
            }
        }
    }

    #[test]
    fn every_bit_is_used_equally() {
        let mut counts = [0_u32; 640];
        for id in 0..64_000 {
            for place in TextHash::new(&format!("userId:{id}")).places(80) {
                counts[place] += 1;
            }
        }
        // 200 on average with a standard deviation of 14.
        assert!(counts.iter().all(|count| (110..=290).contains(count)), "{counts:?}");
    }

    #[test]
    fn muddled_from_half_of_the_namespaces_on() {
        let mut evidence = Evidence::new(80);
        let mut updates = 0;
        while !evidence.muddled() {
            evidence.mark(TextHash::new(&format!("userId:{updates}")));
            updates += 1;
        }
        assert!((363..=423).contains(&updates), "{updates}, 393 is the mean");
        let all = 100_000;
        let marked = (0..all).filter(|id| evidence.marked(TextHash::new(&format!("prodId:{id}")))).count();
        assert!((47_000..=53_000).contains(&marked), "{marked}");
    }

    #[test]
    fn phases_are_spread_over_the_period() {
        let phase = |id: u32| TextHash::new(&format!("___userId:{id}")).phase_ms(180_000);
        let past = |share: u64| (0..100_000).filter(|id| phase(*id) < 1_800 * share).count();
        assert_eq!(past(100), 100_000);
        for share in [1, 10, 25, 50, 75, 90] {
            let expected = share as usize * 1_000;
            assert!(past(share).abs_diff(expected) < 700, "{share}: {}", past(share));
        }
    }
}
