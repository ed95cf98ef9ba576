//! The time of a request, and how exptimes become the seconds of items.

use cattlegrid_store::NEVER;

/// Longest relative exptime in seconds; above it an exptime is a Unix time.
pub(crate) const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// A second that has always passed.
pub(crate) const PAST: u32 = 1;

/// The time of a request. The server reads the clock once per round; nothing in the engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Seconds since the server's start, which is second 2 (0 is never, 1 has always passed).
    pub second: u32,
    /// Milliseconds since the same moment, for leases and waits.
    pub ms: u64,
    /// Unix time of second 0.
    pub unix_of_zero: i64,
}

impl Now {
    /// The second at which an item with this exptime expires: 0 never, negative already, up to 30 days
    /// from now, above that a Unix time.
    pub fn expiry(&self, exptime: i64) -> u32 {
        match exptime {
            0 => NEVER,
            ..0 => PAST,
            1..=RELATIVE_MAX => self.second.saturating_add(exptime.unsigned_abs() as u32),
            _ if exptime <= self.unix_of_zero => PAST,
            _ => u32::try_from(exptime - self.unix_of_zero).unwrap_or(u32::MAX),
        }
    }

    /// Seconds left until `expiry`; `None` is never.
    pub fn left(&self, expiry: u32) -> Option<u64> {
        (expiry != NEVER).then(|| u64::from(expiry.saturating_sub(self.second)))
    }

    /// The Unix time in milliseconds; 0 before 1970.
    pub fn unix_ms(&self) -> u64 {
        (self.unix_of_zero * 1000).saturating_add_unsigned(self.ms).max(0).unsigned_abs()
    }

    /// The Unix time of a second since the start.
    pub fn unix(&self, second: u32) -> i64 {
        self.unix_of_zero + i64::from(second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exptimes() {
        let now = Now { second: 100, ms: 100_000, unix_of_zero: 1_700_000_000 };
        assert_eq!(now.expiry(0), NEVER);
        assert_eq!(now.expiry(-1), PAST);
        assert_eq!(now.expiry(i64::MIN), PAST);
        assert_eq!(now.expiry(1), 101);
        assert_eq!(now.expiry(RELATIVE_MAX), 100 + RELATIVE_MAX as u32);
        assert_eq!(now.expiry(RELATIVE_MAX + 1), PAST, "a Unix time of 1970");
        assert_eq!(now.expiry(1_700_000_150), 150);
        assert_eq!(now.expiry(1_700_000_000), PAST);
        assert_eq!(now.expiry(i64::MAX), u32::MAX);
        assert_eq!(now.left(NEVER), None);
        assert_eq!(now.left(150), Some(50));
        assert_eq!(now.unix(50), 1_700_000_050);
    }
}
