//! When a value should be computed again: before its expiry, or when its limited life ends.

use super::NEVER;

/// The limited life of a value that may have to be computed again, apart from its expiry: it ends as if it
/// was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Milliseconds since the server's start.
    pub ends_ms: u64,
    /// The value was provisional when it was stored; otherwise it was doubted later.
    pub provisional: bool,
}

/// When an item should be refreshed, or the end of its limited life before its expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refresh(pub(super) u32);

impl Refresh {
    /// Seconds before its expiry from which on it should be refreshed, below 2^31; 0 is never.
    pub fn lead(seconds: u32) -> Self {
        Self(seconds & !HAS_LIFE)
    }

    /// The life that ends so long before this expiry, if it is one.
    #[inline]
    pub(super) fn life(self, expiry: u32) -> Option<Life> {
        if self.0 & HAS_LIFE == 0 {
            return None;
        }
        let ends_ms = (u64::from(expiry) * 1000).saturating_sub((self.0 & LIFE_MS).into());
        Some(Life { ends_ms, provisional: self.0 & IS_PROVISIONAL != 0 })
    }
}

/// In the field of the refresh lead: the item has a life.
pub(super) const HAS_LIFE: u32 = 1 << 31;
/// A bit of the refresh field: the value is provisional.
pub(super) const IS_PROVISIONAL: u32 = 1 << 30;
/// Bits of the refresh field: milliseconds from the end of the life to the expiry, below 1,000.
pub(super) const LIFE_MS: u32 = IS_PROVISIONAL - 1;

/// The second by whose beginning this millisecond has passed.
pub(super) fn second_of_end(ms: u64) -> u32 {
    u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

/// The earlier of two expiries.
pub(super) fn earlier(a: u32, b: u32) -> u32 {
    if a == NEVER || b == NEVER { a.max(b) } else { a.min(b) }
}
