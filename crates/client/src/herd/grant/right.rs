//! A right to compute that leaves its process.

use std::time::{Duration, UNIX_EPOCH};

use tokio::time::Instant;

use super::{ClockedCache, Grant, Hold, Subject, unix_ms};
use crate::cache::Cache;
use crate::herd::plain::LockTerms;

/// A [`Grant`] for another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::herd) enum SavedRight {
    /// A server's lease.
    Lease { token: u64, lock_ms: u64 },
    /// A lock, which was taken at this Unix time in milliseconds.
    Lock { nonce: u64, began_ms: u64, lock_ms: u64, keep_s: u32 },
    /// None: the value is not stored.
    Nothing,
}

impl<C: Cache + 'static> Grant<C> {
    /// The right for another process. The callers of this one that wait for the end look again.
    pub(in crate::herd) fn into_right(mut self) -> SavedRight {
        let Some(work) = self.work.take() else { return SavedRight::Nothing };
        match work.hold {
            Hold::Lease { token, lock_ms } => SavedRight::Lease { token, lock_ms },
            Hold::Lock { nonce, taken, terms, .. } => {
                let began = work.place.now().checked_sub(taken.elapsed()).unwrap_or(UNIX_EPOCH);
                let LockTerms { lock_ms, keep_s, .. } = terms;
                SavedRight::Lock { nonce, began_ms: unix_ms(began), lock_ms, keep_s }
            }
            Hold::Nothing => SavedRight::Nothing,
        }
    }

    /// The right that another process had.
    pub(in crate::herd) fn of_right(place: &ClockedCache<C>, subject: &Subject, right: SavedRight) -> Self {
        let hold = match right {
            SavedRight::Lease { token, lock_ms } => Hold::Lease { token, lock_ms },
            SavedRight::Lock { nonce, began_ms, lock_ms, keep_s } => {
                let since = Duration::from_millis(unix_ms(place.now()).saturating_sub(began_ms));
                let now = Instant::now();
                let taken = now.checked_sub(since).unwrap_or(now);
                let terms = LockTerms { lock_ms, keep_s, stale: false, awaited: None };
                // Its CAS number is not known here: it is found by its own number.
                Hold::Lock { nonce, cas: None, taken, terms }
            }
            SavedRight::Nothing => Hold::Nothing,
        };
        Self::new(place, subject, hold, None, None)
    }
}
