//! Keys that clients use as locks, with `add`: `_lock*`, `lock:*`, `*:lock` and `*_lock`.
//!
//! A lock that is not held must be absent, so a rule applies to a lock key only if its pattern spells the
//! lock out.

use crate::rules::pattern::Pattern;

/// Which of the four forms a key has, or a pattern spells out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockForms(u8);

impl LockForms {
    /// None of them.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn of_key(key: &[u8]) -> Self {
        Self::of_ends(key, key)
    }

    pub(crate) fn of_pattern(pattern: &Pattern) -> Self {
        Self::of_ends(&pattern.prefix, pattern.suffix())
    }

    #[inline]
    fn of_ends(start: &[u8], end: &[u8]) -> Self {
        let mut forms = 0;
        // The first or the last byte rules out nearly all keys.
        if let Some(b'_' | b'l') = start.first() {
            forms |= u8::from(start.starts_with(b"_lock")) | u8::from(start.starts_with(b"lock:")) << 1;
        }
        if end.last() == Some(&b'k') {
            forms |= u8::from(end.ends_with(b":lock")) << 2 | u8::from(end.ends_with(b"_lock")) << 3;
        }
        Self(forms)
    }

    /// Whether a pattern that spells these forms out applies to a key with the forms `key`.
    #[inline]
    pub(crate) fn allow(self, key: Self) -> bool {
        key.0 == 0 || key.0 & self.0 != 0
    }

    /// Whether these include all forms of `other`.
    pub(crate) fn include(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}
