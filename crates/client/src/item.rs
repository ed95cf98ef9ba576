//! Items that are read from a cache and written to it: values with flags and times to live.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

/// Where the time of expiries comes from. Tests have their own.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The clock of this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of the clock; everything else is given the time"
)]
pub(crate) fn system_time() -> SystemTime {
    SystemTime::now()
}

/// A value as a server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub data: Bytes,
    /// Client flags: the writer's marks of the value's format.
    pub flags: u32,
    /// The item's CAS number; 0 if it was not asked for.
    pub cas: u64,
}

/// A value to be written.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The key, 1 to 250 bytes without blanks and control characters.
    pub key: &'a [u8],
    /// The value.
    pub data: &'a [u8],
    /// Client flags.
    pub flags: u32,
    /// When the server drops the item, in the server's form: see [`Expiration::exptime`].
    pub exptime: u32,
    /// Tags of the item, at most 8. Only Cattlegrid has tags: memcached refuses a write that has any.
    pub tags: &'a [String],
}

/// The effect of a write on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The server has stored the value.
    Stored {
        /// The item's new CAS number, if the connection knows it.
        cas: Option<u64>,
    },
    /// An `add` of a key that is present.
    NotStored,
    /// A `cas` of an item that has changed.
    Exists,
    /// A `cas` of a key that is absent.
    NotFound,
}

impl Written {
    /// Whether the value was stored.
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Stored { .. })
    }
}

/// When a value expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expiration {
    /// Never: the value stays until the server needs its memory.
    #[default]
    Never,
    /// This long after it is stored. Zero: it has expired when it is stored.
    After(Duration),
    /// At this time.
    At(SystemTime),
}

/// Above this number of seconds memcached reads an exptime as a Unix time.
const RELATIVE_MAX: u64 = 30 * 24 * 60 * 60;

impl Expiration {
    /// memcached's form: 0 is for ever, up to 30 days are seconds from now, a larger number is a Unix time in
    /// seconds. A time beyond any clock is for ever too.
    pub fn from_exptime(exptime: u64) -> Self {
        match exptime {
            0 => Self::Never,
            1..=RELATIVE_MAX => Self::After(Duration::from_secs(exptime)),
            _ => UNIX_EPOCH.checked_add(Duration::from_secs(exptime)).map_or(Self::Never, Self::At),
        }
    }

    /// The Unix time in milliseconds at which a value that is stored now expires; None: never. Times beyond
    /// the year 2106, which servers do not know, are never.
    pub fn unix_ms(self, now: SystemTime) -> Option<u64> {
        let at = match self {
            Self::Never => return None,
            Self::After(time) => now.checked_add(time)?,
            Self::At(time) => time,
        };
        let ms = at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        u64::try_from(ms).ok().filter(|ms| u32::try_from(ms.div_ceil(1000)).is_ok())
    }

    /// The server's form of an expiry `grace` after this one, rounded up to whole seconds. None: it has
    /// passed already.
    pub fn exptime(self, now: SystemTime, grace: Duration) -> Option<u32> {
        let Some(at_ms) = self.unix_ms(now) else { return Some(0) };
        let now_ms = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let dead_ms = u128::from(at_ms) + grace.as_millis();
        let left = dead_ms.checked_sub(now_ms).filter(|left| *left > 0)?;
        let seconds = left.div_ceil(1000);
        if seconds <= u128::from(RELATIVE_MAX) {
            return Some(seconds as u32);
        }
        Some(u32::try_from(dead_ms.div_ceil(1000)).unwrap_or(0))
    }
}

/// Seconds in memcached's form, see [`Expiration::from_exptime`].
impl From<u32> for Expiration {
    fn from(exptime: u32) -> Self {
        Self::from_exptime(u64::from(exptime))
    }
}

impl From<Duration> for Expiration {
    fn from(time: Duration) -> Self {
        Self::After(time)
    }
}

impl From<SystemTime> for Expiration {
    fn from(time: SystemTime) -> Self {
        Self::At(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_no_clock_holds_are_never() {
        for exptime in [1 << 63, u64::MAX - 1, u64::MAX] {
            assert_eq!(Expiration::from_exptime(exptime), Expiration::Never, "{exptime}");
        }
        assert_eq!(
            Expiration::from_exptime(RELATIVE_MAX),
            Expiration::After(Duration::from_secs(RELATIVE_MAX))
        );
        let at = UNIX_EPOCH + Duration::from_secs(RELATIVE_MAX + 1);
        assert_eq!(Expiration::from_exptime(RELATIVE_MAX + 1), Expiration::At(at));
    }
}
