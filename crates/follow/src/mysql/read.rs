//! Reads numbers and texts of the protocol: lowest byte first, lengths before texts.

/// The bytes that are left to be read.
#[derive(Debug, Clone)]
pub(crate) struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of up to 8 bytes.
    pub(crate) fn number(&mut self, bytes: usize) -> Option<u64> {
        debug_assert!(bytes <= 8, "no longer ones are read");
        Some(self.take(bytes)?.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|number| number as u16)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|number| number as u32)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.number(8)
    }

    /// A number whose first byte says how long it is.
    pub(crate) fn length(&mut self) -> Option<usize> {
        let number = match self.u8()? {
            0xfc => self.number(2)?,
            0xfd => self.number(3)?,
            0xfe => self.number(8)?,
            short => u64::from(short),
        };
        usize::try_from(number).ok()
    }

    /// A text behind its length.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    /// A column of a result.
    #[expect(clippy::option_option, reason = "NULL, and no column")]
    pub(crate) fn cell(&mut self) -> Option<Option<String>> {
        if self.0.first() == Some(&0xfb) {
            self.u8()?;
            return Some(None);
        }
        Some(Some(String::from_utf8_lossy(self.counted()?).into_owned()))
    }

    /// A text that a zero ends.
    pub(crate) fn text_to_zero(&mut self) -> Option<String> {
        let at = self.0.iter().position(|byte| *byte == 0)?;
        let text = String::from_utf8_lossy(self.take(at)?).into_owned();
        self.u8()?;
        Some(text)
    }
}

/// Whether a bit is set, the lowest of the first byte first.
pub(crate) fn bit(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts() {
        let mut reader = ByteReader::new(&[1, 2, 0, 0xfc, 3, 0, b'a', b'b', b'c', 0xfb, b'x', 0, 9]);
        assert_eq!((reader.u8(), reader.u16()), (Some(1), Some(2)));
        assert_eq!(reader.counted(), Some(&b"abc"[..]));
        assert_eq!(reader.cell(), Some(None));
        assert_eq!(reader.text_to_zero().as_deref(), Some("x"));
        assert_eq!((reader.u16(), reader.u8(), reader.u8()), (None, Some(9), None));
        assert!(bit(&[0, 2], 9) && !bit(&[0, 2], 8) && !bit(&[1], 8));
    }
}
