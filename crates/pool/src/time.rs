//! The pool's clock, and the sum of an instant and a duration of an option, which may be of any length.
//!
//! # Invariants
//! * Only [`now`] reads the clock; everything else is told the time.
//! * [`later`] never overflows.

use std::time::{Duration, Instant};

/// `wait` after `from`, or [`FAR`] after it if that is sooner.
#[inline]
pub(crate) fn later(from: Instant, wait: Duration) -> Instant {
    from + wait.min(FAR)
}

/// The time now.
#[expect(clippy::disallowed_methods, reason = "the pool's one reader of time; everything else is told")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// "Never": a hundred years, which an `Instant` of any uptime can still count.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How often processes without a pidfd are looked for.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_an_instant_like_any_other() {
        let now = now();
        assert_eq!(later(now, Duration::from_secs(5)), now + Duration::from_secs(5));
        assert_eq!(later(now, Duration::MAX), now + FAR);
        assert!(later(later(now, Duration::MAX), Duration::MAX) > later(now, Duration::MAX));
    }
}
