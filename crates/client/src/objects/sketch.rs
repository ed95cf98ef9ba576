//! Sketches of `hll` objects: the registers, merged and counted in this process.
//!
//! The text and the estimate are those of the server (`hll` in `docs/objects.md`): a merged sketch of one object counts what
//! `hll:count` answers.

use std::fmt;

use cattlegrid_hll::{RANK_MAX, REGISTERS};

/// The registers of an `hll` object: what its items were, as far as their number is concerned.
///
/// ```
/// use cattlegrid_client::objects::Sketch;
///
/// // What two servers answer to `hll:sketch`.
/// let mut all = Sketch::parse(b"1sBZnB")?;
/// all.merge(&Sketch::parse(b"1sAEoBAYbC")?);
/// assert_eq!(all.count(), 3);
/// # Ok::<(), cattlegrid_client::objects::SketchError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Sketch {
    /// Each at most [`RANK_MAX`].
    registers: Box<[u8]>,
}

/// Bytes that are no sketch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a reply of hll:sketch: {0}")]
pub struct SketchError(&'static str);

impl Sketch {
    /// A sketch of no items.
    pub fn new() -> Self {
        Self { registers: vec![0; REGISTERS].into() }
    }

    /// The sketch that a server has answered to `hll:sketch`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, SketchError> {
        let mut sketch = Self::new();
        match text {
            [b'1', b's', entries @ ..] => {
                let (entries, rest) = entries.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(SketchError("it is cut off"));
                }
                let mut next = 0;
                for [high, middle, low, rank] in entries {
                    let place = digit(*high)? << 12 | digit(*middle)? << 6 | digit(*low)?;
                    if place >= REGISTERS {
                        return Err(SketchError("a register is beyond the last"));
                    }
                    if place < next {
                        return Err(SketchError("registers are not in order"));
                    }
                    next = place + 1;
                    sketch.registers[place] = rank_of(*rank)?;
                }
            }
            [b'1', b'd', ranks @ ..] => {
                if ranks.len() != REGISTERS {
                    return Err(SketchError("it has not 16384 registers"));
                }
                for (register, rank) in sketch.registers.iter_mut().zip(ranks) {
                    *register = rank_of(*rank)?;
                }
            }
            _ => return Err(SketchError("an unknown version or form")),
        }
        Ok(sketch)
    }

    /// Adds the items of another sketch.
    pub fn merge(&mut self, other: &Self) {
        for (register, rank) in self.registers.iter_mut().zip(&other.registers) {
            *register = (*register).max(*rank);
        }
    }

    /// The number of distinct items, estimated with a standard error of 0.81 %.
    pub fn count(&self) -> u64 {
        cattlegrid_hll::estimate(&cattlegrid_hll::counts(&self.registers))
    }
}

impl Default for Sketch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Sketch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sketch").field("count", &self.count()).finish_non_exhaustive()
    }
}

fn digit(byte: u8) -> Result<usize, SketchError> {
    let value = cattlegrid_hll::value(byte);
    value.map(usize::from).ok_or(SketchError("a character that is not a digit of base64"))
}

fn rank_of(byte: u8) -> Result<u8, SketchError> {
    match digit(byte)? {
        rank @ 0..=RANK_MAX => Ok(rank as u8),
        _ => Err(SketchError("a rank above 51")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dense(registers: &[u8]) -> Vec<u8> {
        let ranks = registers.iter().map(|rank| cattlegrid_hll::digit(usize::from(*rank)));
        b"1d".iter().copied().chain(ranks).collect()
    }

    fn sparse(registers: &[u8]) -> Vec<u8> {
        let mut text = b"1s".to_vec();
        for (place, rank) in registers.iter().enumerate().filter(|(_, rank)| **rank > 0) {
            let digits = [place >> 12, place >> 6, place, usize::from(*rank)];
            text.extend(digits.map(cattlegrid_hll::digit));
        }
        text
    }

    #[test]
    fn what_is_no_sketch_is_refused() {
        for (text, what) in [
            ("", "version"),
            ("1", "version"),
            ("2sBZnB", "version"),
            ("1xBZnB", "version"),
            ("1sBZn", "cut off"),
            ("1sBZn-", "digit"),
            ("1sBZn0", "rank"),
            ("1sBZnBBZnB", "order"),
            ("1sEAAB", "beyond"),
            ("1dAAA", "16384"),
        ] {
            let error = Sketch::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(what), "{text:?}: {error}");
        }
        let mut full = dense(&[51; REGISTERS]);
        assert_eq!(Sketch::parse(&full).unwrap().count(), u64::MAX, "without a limit");
        full[9] = b'0';
        assert!(Sketch::parse(&full).unwrap_err().to_string().contains("rank"));
        assert_eq!(Sketch::parse(b"1s").unwrap(), Sketch::new());
        assert_eq!(Sketch::new().count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn both_forms_are_read(filled in prop::collection::btree_map(0..REGISTERS, 1u8..=51, 0..3000)) {
            let mut registers = vec![0; REGISTERS];
            for (place, rank) in &filled {
                registers[*place] = *rank;
            }
            let sketch = Sketch::parse(&sparse(&registers)).unwrap();
            prop_assert_eq!(&sketch.registers[..], &registers[..]);
            prop_assert_eq!(&sketch, &Sketch::parse(&dense(&registers)).unwrap());
            let mut merged = Sketch::new();
            merged.merge(&sketch);
            merged.merge(&sketch);
            prop_assert_eq!(merged, sketch);
        }

        #[test]
        fn any_bytes(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let form = [b"1s".as_slice(), &text].concat();
            drop(Sketch::parse(&text));
            drop(Sketch::parse(&form));
        }
    }
}
