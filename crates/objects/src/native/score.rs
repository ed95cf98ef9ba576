//! Scores of a board, and keys that sort by them.
//!
//! ```text
//!   | 0 | score, 8 bytes | member |        the highest score first, members of one score ascending
//! ```
//! The score's bits are changed so that their order as big-endian bytes is the descending order of the
//! numbers.

use crate::number;

/// The first byte of keys that sort by score.
pub(crate) const SPACE: u8 = 0;

/// The size of a score, in bytes.
pub(crate) const SCORE_BYTES: usize = 8;

/// The number of bytes before the member.
pub(crate) const PLACE_HEAD: usize = 9;

/// A score: a finite number; a zero is positive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Score(f64);

/// A key that sorts by score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ScoreKey<'k> {
    pub(crate) score: Score,
    pub(crate) member: &'k [u8],
}

impl Score {
    /// The score; None: the number is not finite.
    pub(crate) fn new(number: f64) -> Option<Self> {
        // The sum with a positive zero makes a negative zero positive.
        number.is_finite().then_some(Self(number + 0.0))
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        number::float(text).and_then(Self::new)
    }

    pub(crate) fn number(self) -> f64 {
        self.0
    }

    /// Appends the shortest text that reads as the same number; below 10^17 it has no exponent.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let size = self.0.abs();
        let text = if size == 0.0 || (1e-7..1e17).contains(&size) {
            self.0.to_string()
        } else {
            format!("{:e}", self.0)
        };
        out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let bits = self.0.to_bits();
        let ascending = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
        (!ascending).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        let ascending = !u64::from_be_bytes(bytes);
        let bits = if ascending >> 63 == 1 { ascending & !(1 << 63) } else { !ascending };
        Self::new(f64::from_bits(bits))
    }
}

impl<'k> ScoreKey<'k> {
    /// Reads a key.
    pub(crate) fn of(key: &'k [u8]) -> Option<Self> {
        let (score, member) = key.strip_prefix(&[SPACE])?.split_first_chunk::<8>()?;
        Some(Self { score: Score::from_bytes(*score)?, member })
    }

    /// Appends the key.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.push(SPACE);
        out.extend_from_slice(&self.score.to_bytes());
        out.extend_from_slice(self.member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(number: f64) -> String {
        let mut out = Vec::new();
        Score::new(number).unwrap().write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn texts() {
        assert_eq!(text(3.0), "3");
        assert_eq!(text(-0.0), "0");
        assert_eq!(text(0.1), "0.1");
        assert_eq!(text(9_007_199_254_740_993.0), "9007199254740992");
        assert_eq!(text(1e300), "1e300");
        assert_eq!(text(-2.5e-12), "-2.5e-12");
        for wrong in ["", "nan", "inf", "-infinity", "1e999", "1 ", "x"] {
            assert_eq!(Score::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_sort_as_scores_descending(a in any::<f64>(), b in any::<f64>()) {
            let (Some(a), Some(b)) = (Score::new(a), Score::new(b)) else { return Ok(()) };
            prop_assert_eq!(a.to_bytes().cmp(&b.to_bytes()), b.number().total_cmp(&a.number()));
            prop_assert_eq!(Score::from_bytes(a.to_bytes()), Some(a));
            prop_assert_eq!(Score::parse(text(a.number()).as_bytes()), Some(a));
        }
    }
}
