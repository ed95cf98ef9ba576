//! The class of a segment: the share of its items ([`crate::shares`]), their TTL, and their size.
//!
//! Items of one TTL expire at about the same time, so that their segment goes as a whole. *Short* and *long*
//! items are in segments apart, so that a few short ones that are read rarely do not go with long ones of the
//! same age: they take a fraction of the room. The reference of a value outside the log is with the long ones,
//! wherever these are: alone such references would fill segments that are never emptied.

use super::Log;
use crate::item::NEVER;

/// Where the value of an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the log, in an item of less than [`LONG`] bytes.
    Short = 0,
    /// In the log, in a longer one.
    Long = 1,
    /// Outside the log.
    Outside = 2,
}

impl Place {
    /// Number of places.
    pub(crate) const COUNT: usize = 3;
    /// Of these, in the log.
    pub(crate) const IN_LOG: usize = 2;

    /// Whether it is outside the log.
    pub(crate) fn is_outside(self) -> bool {
        self == Self::Outside
    }

    /// That of the items of a class, or of those whose values are outside the log.
    pub(crate) fn of(class: u8, is_outside: bool) -> Self {
        if is_outside {
            Self::Outside
        } else if class.is_multiple_of(Self::IN_LOG as u8) {
            Self::Short
        } else {
            Self::Long
        }
    }
}

/// Bytes from which items are long. With 1,024 values of 1,000 bytes are on both sides: a row of the table of
/// loads falls from 98 to 85 (`bench/README.md`).
const LONG: usize = 512;
/// Seconds' octave above which all TTLs share a class: 2^22 s is 48 days.
const OCTAVES: u32 = 22;

/// Classes of all shares, with this many TTL classes each.
pub(super) fn count(ttl_classes: u8, shares: u8) -> usize {
    usize::from(ttl_classes) * usize::from(shares) * Place::IN_LOG
}

impl Log {
    /// The class of an item of a share that is stored at `now` and takes `bytes`, in the log and outside it.
    /// Where nothing is evicted all items are with the long ones.
    #[inline]
    pub(crate) fn class(&self, share: u8, now: u32, dead_at: u32, bytes: usize) -> u8 {
        let ttl_class = share * self.classes + self.ttl_class(now, dead_at);
        ttl_class * Place::IN_LOG as u8 + u8::from(bytes >= LONG || self.keeps_all)
    }

    /// Whether items of a class die later than those of another of the same share.
    #[inline]
    pub(crate) fn dies_later(class: u8, than: u8) -> bool {
        class / Place::IN_LOG as u8 > than / Place::IN_LOG as u8
    }

    /// The share of the items of a class.
    pub(crate) fn share_of(&self, class: u8) -> u8 {
        class / (self.classes * Place::IN_LOG as u8)
    }

    /// The classes of a share.
    pub(super) fn classes_of(&self, share: u8) -> std::ops::Range<u8> {
        let count = self.classes * Place::IN_LOG as u8;
        share * count..(share + 1) * count
    }

    /// The TTL class of an item stored at `now`: octaves of its TTL, the last class for those without.
    fn ttl_class(&self, now: u32, dead_at: u32) -> u8 {
        if dead_at == NEVER || self.classes == 1 {
            return self.classes - 1;
        }
        let octave = dead_at.saturating_sub(now).max(1).ilog2();
        let class = octave * (u32::from(self.classes) - 1) / OCTAVES;
        (class as u8).min(self.classes - 2)
    }
}
