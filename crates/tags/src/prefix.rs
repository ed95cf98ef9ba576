//! What clients put before every key, and how a key is told from it.
//!
//! Frameworks and clients put a text of their own before every key: `:1:` is Django's, `shop:production:` may
//! be that of a Rails application. Behind each such text are the same names: a key is matched by rules,
//! tagged and called as what follows its prefix. A prefix is a namespace of its own: the tag `user:7` behind
//! one is another than the tag `user:7` behind another one.
//!
//! # Invariants
//! * A [`PrefixId`] of one [`Prefixes`] means the same text as long as the process runs: prefixes are fixed
//!   at the start.
//! * The longest prefix with which a key begins is its prefix.

use std::fmt::{self, Display};
use std::sync::Arc;

/// Most prefixes of a server.
pub const PREFIXES_MAX: usize = 32;
/// Longest prefix in bytes.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Which of its server's prefixes a key has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PrefixId(u8);

impl PrefixId {
    /// The key has none.
    pub const NONE: Self = Self(0);

    /// The prefix's number, at most [`PREFIXES_MAX`]; 0: none.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// That of a number which [`PrefixId::number`] has returned.
    pub const fn of_number(number: u8) -> Self {
        Self(number)
    }
}

/// All prefixes of a server. Copies share them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prefixes(Option<Arc<PrefixList>>);

#[derive(Debug, PartialEq, Eq)]
struct PrefixList {
    /// By their numbers, from 1 on.
    texts: Box<[Box<[u8]>]>,
    /// Their numbers, the longest first.
    longest_first: Box<[u8]>,
    /// Bytes with which they begin, as bits.
    first: [u64; 4],
}

/// Why prefixes are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixError {
    /// There are more than [`PREFIXES_MAX`].
    TooMany(usize),
    /// This one, counted from 0, is empty or has more than [`PREFIX_BYTES_MAX`] bytes.
    Length(usize),
    /// This one, counted from 0, is there twice.
    Twice(usize),
}

impl Prefixes {
    /// No prefixes.
    pub const fn none() -> Self {
        Self(None)
    }

    /// The prefixes in the order of a rule file.
    ///
    /// # Errors
    /// There are too many, or one is empty, too long, or there twice.
    pub fn new<T: AsRef<[u8]>>(texts: &[T]) -> Result<Self, PrefixError> {
        if texts.len() > PREFIXES_MAX {
            return Err(PrefixError::TooMany(texts.len()));
        }
        let mut first = [0; 4];
        for (place, text) in texts.iter().enumerate() {
            let text = text.as_ref();
            let Some(byte) = text.first().map(|byte| usize::from(*byte)) else {
                return Err(PrefixError::Length(place));
            };
            if text.len() > PREFIX_BYTES_MAX {
                return Err(PrefixError::Length(place));
            }
            if texts[..place].iter().any(|earlier| earlier.as_ref() == text) {
                return Err(PrefixError::Twice(place));
            }
            first[byte / 64] |= 1_u64 << (byte % 64);
        }
        let texts: Box<[Box<[u8]>]> = texts.iter().map(|text| text.as_ref().into()).collect();
        let mut longest_first: Box<[u8]> = (1..).take(texts.len()).collect();
        longest_first.sort_by_key(|number| std::cmp::Reverse(texts[usize::from(*number) - 1].len()));
        Ok(Self((!texts.is_empty()).then(|| Arc::new(PrefixList { texts, longest_first, first }))))
    }

    /// Which prefix a key has, and what follows it.
    #[inline]
    pub fn split<'k>(&self, key: &'k [u8]) -> (PrefixId, &'k [u8]) {
        match &self.0 {
            None => (PrefixId::NONE, key),
            Some(list) => list.split(key),
        }
    }

    /// The text of a prefix; empty for none.
    pub fn text(&self, prefix: PrefixId) -> &[u8] {
        let place = usize::from(prefix.0).wrapping_sub(1);
        self.0.as_ref().and_then(|list| list.texts.get(place)).map_or(&[], |text| text)
    }

    /// The prefix with this text.
    pub fn find(&self, text: &[u8]) -> Option<PrefixId> {
        self.all().find(|(_, own)| *own == text).map(|(prefix, _)| prefix)
    }

    /// All prefixes, in the order in which they were given.
    pub fn all(&self) -> impl Iterator<Item = (PrefixId, &[u8])> {
        let texts = self.0.as_ref().map_or(&[][..], |list| &list.texts);
        (1..).map(PrefixId).zip(texts.iter().map(|text| &**text))
    }

    /// There are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl PrefixList {
    fn split<'k>(&self, key: &'k [u8]) -> (PrefixId, &'k [u8]) {
        let first = usize::from(*key.first().unwrap_or(&0));
        if self.first[first / 64] >> (first % 64) & 1 != 0 {
            for number in &self.longest_first {
                if let Some(rest) = key.strip_prefix(&*self.texts[usize::from(*number) - 1]) {
                    return (PrefixId(*number), rest);
                }
            }
        }
        (PrefixId::NONE, key)
    }
}

impl Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(count) => write!(f, "{count} prefixes; at most {PREFIXES_MAX}"),
            Self::Length(_) => write!(f, "a prefix has 1 to {PREFIX_BYTES_MAX} bytes"),
            Self::Twice(_) => f.write_str("a prefix is there twice"),
        }
    }
}

impl std::error::Error for PrefixError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_is_taken() {
        let all = Prefixes::new(&[":1:", "shop:", "shop:production:1:"]).unwrap();
        let split = |key: &'static str| {
            let (prefix, rest) = all.split(key.as_bytes());
            (prefix.number(), std::str::from_utf8(rest).unwrap())
        };
        assert_eq!(split(":1:page:7"), (1, "page:7"));
        assert_eq!(split("shop:page:7"), (2, "page:7"));
        assert_eq!(split("shop:production:1:page:7"), (3, "page:7"));
        assert_eq!(split("shop:production:2:page:7"), (2, "production:2:page:7"));
        for key in ["page:7", ":2:page:7", "sho", ":1", ""] {
            assert_eq!(split(key), (0, key));
        }
        assert_eq!(split(":1:"), (1, ""));
        assert_eq!(all.text(PrefixId::of_number(3)), b"shop:production:1:");
        assert_eq!(all.text(PrefixId::NONE), b"");
        assert_eq!(all.find(b"shop:"), Some(PrefixId::of_number(2)));
        assert_eq!(all.find(b"shop"), None);
        assert_eq!(all.all().count(), 3);
    }

    #[test]
    fn none_takes_nothing() {
        let none = Prefixes::default();
        assert_eq!(none, Prefixes::new::<&str>(&[]).unwrap());
        assert!(none.is_empty());
        assert_eq!(none.split(b":1:x"), (PrefixId::NONE, &b":1:x"[..]));
        assert_eq!(none.all().count(), 0);
    }

    #[test]
    fn wrong_ones_are_refused() {
        let long = "x".repeat(PREFIX_BYTES_MAX + 1);
        assert_eq!(Prefixes::new(&["a", ""]), Err(PrefixError::Length(1)));
        assert_eq!(Prefixes::new(&[&*long]), Err(PrefixError::Length(0)));
        assert!(Prefixes::new(&[&long[1..]]).is_ok());
        assert_eq!(Prefixes::new(&["a", "b", "a"]), Err(PrefixError::Twice(2)));
        let many: Vec<String> = (0..=PREFIXES_MAX).map(|number| format!("{number}:")).collect();
        assert_eq!(Prefixes::new(&many), Err(PrefixError::TooMany(33)));
        assert!(Prefixes::new(&many[1..]).is_ok());
    }
}
