//! Computing over a server without leases: what to do about an item that was read, and about the reply to
//! each command. Without I/O, time is an argument; `tests/it/interleavings.rs` tries all orders of several
//! clients.
//!
//! The lock of a computation is the item itself: a lock without a value where there was none (`add`), else
//! the old value marked as being computed again (`cas`). The result replaces this lock, and nothing else, by
//! `cas`: whatever happened to the key since the lock was taken (a delete, another client's lock, a plain
//! `set`) has removed the lock, and then the result is not stored. So a value that was computed before a
//! delete is not stored after it.
//!
//! Invariants:
//! * Only a client that has stored a lock computes.
//! * A value is served as fresh before its expiry only, and as stale before its `dead_ms` only.
//! * What a client removes or replaces is what it has read: every write is an `add` or a `cas`.
//! * What is replaced by the CAS number of a lock is the lock: a server that was restarted counts anew, and
//!   so the number is sent only where it is valid ([`Scope`](crate::Scope)). Elsewhere [`settle_read`]
//!   compares the lock's own number first.
//! * The exception: a lock without tags whose time in the server has passed. Then `add` stores the result,
//!   although a delete in the time since could not be noticed. It cannot be before the time of the lock has
//!   passed ([`LockTerms::is_late`]).

use std::time::Duration;

use bytes::Bytes;

use super::envelope::{ItemRecord, LockMark, StoredValue};
use super::found::{Holder, SearchResult};
use crate::item::{Expiration, Written};

/// An exptime that has passed: in 1970. The server drops the item at once.
pub(crate) const PASSED: u32 = 30 * 24 * 60 * 60 + 1;

/// The terms of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LockTerms {
    /// How long the lock is valid.
    pub(crate) lock_ms: u64,
    /// How long the server keeps the lock: a second longer, in which a delete is still noticed, and another
    /// second, since servers count whole seconds and may drop an item a second early.
    pub(crate) keep_s: u32,
    /// Whether an old value may be returned while a new one is computed.
    pub(crate) stale: bool,
    /// The number of the lock that this client waits for: it is told if that computation fails.
    pub(crate) awaited: Option<u64>,
}

impl LockTerms {
    /// Whether the server may have dropped a lock, taken this long ago, because its time has passed.
    pub(crate) fn is_late(&self, since: Duration) -> bool {
        since >= Duration::from_secs(u64::from(self.keep_s).saturating_sub(1))
    }
}

/// A lock before it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewLock {
    /// The CAS number of the item that it replaces; None: there is no item, and the command is `add`.
    pub(crate) cas: Option<u64>,
    /// The old value, if it may still be served.
    pub(crate) old: Option<StoredValue>,
    /// The hint of the lock that it replaces.
    pub(crate) hint: Option<Bytes>,
}

/// The decision of a client that has read an item, with its CAS number; None: the key is absent.
/// [`SearchResult::Compute`] holds if this lock can be written.
pub(crate) fn decide(
    now_ms: u64,
    seen: Option<(ItemRecord, u64)>,
    terms: &LockTerms,
) -> SearchResult<StoredValue, NewLock> {
    let Some((record, cas)) = seen else {
        return SearchResult::Compute(NewLock { cas: None, old: None, hint: None });
    };
    let usable = |stored: StoredValue| Some(stored).filter(|stored| terms.stale && stored.is_usable(now_ms));
    let lock = |old, hint| SearchResult::Compute(NewLock { cas: Some(cas), old, hint });
    let busy = |held: LockMark, hint| SearchResult::Busy(Holder::Lock { nonce: held.nonce, hint });
    match record {
        ItemRecord::Value(stored) if stored.is_fresh(now_ms) => SearchResult::Hit(stored),
        ItemRecord::Again(stored, held) if now_ms < held.until_ms => match usable(stored) {
            Some(old) => SearchResult::Stale(old),
            None => busy(held, Bytes::new()),
        },
        ItemRecord::Value(stored) | ItemRecord::Again(stored, _) => lock(usable(stored), None),
        ItemRecord::Locked(hint, held) if now_ms < held.until_ms => busy(held, hint),
        ItemRecord::Locked(hint, _) => lock(None, Some(hint)),
        ItemRecord::Failed(text, of) if terms.awaited == Some(of.nonce) => SearchResult::Failed(text),
        ItemRecord::Failed(..) | ItemRecord::Damaged => lock(None, None),
    }
}

/// The lock's record as it is written, and how long the server keeps it. An old value is kept for as long as
/// it may be served, whatever the computation's result is.
pub(crate) fn lock(
    now_ms: u64,
    new: &NewLock,
    hint: &Bytes,
    nonce: u64,
    terms: &LockTerms,
) -> (ItemRecord, Expiration) {
    let lock = LockMark { until_ms: now_ms.saturating_add(terms.lock_ms), nonce };
    let keep = Duration::from_secs(terms.keep_s.into());
    let Some(old) = &new.old else {
        return (
            ItemRecord::Locked(new.hint.as_ref().unwrap_or(hint).clone(), lock),
            Expiration::After(keep),
        );
    };
    let served = Duration::from_millis(old.dead_ms.saturating_sub(now_ms));
    (ItemRecord::Again(old.clone(), lock), Expiration::After(keep.max(served)))
}

/// The decision after the reply to a lock: with its CAS number, if that is known, this client computes. None:
/// another client was faster, and there is no old value; read again.
pub(crate) fn locked(written: Written, lock: &NewLock) -> Option<SearchResult<StoredValue, Option<u64>>> {
    match (written, &lock.old) {
        (Written::Stored { cas }, _) => Some(SearchResult::Compute(cas)),
        (Written::Exists, Some(old)) => Some(SearchResult::Stale(old.clone())),
        _ => None,
    }
}

/// The next step of storing a result or ending a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleStep {
    /// Read the item, then call [`settle_read`].
    Read,
    /// Send `cas` with this number, then call [`settle_cas`].
    Cas(u64),
    /// Send `add`, then call [`settle_add`].
    Add,
    /// The value was stored.
    Stored {
        /// Whether nothing can have happened to the key since the lock was taken.
        fenced: bool,
    },
    /// The lock was gone: nothing was stored.
    Lost,
}

/// The first step.
pub(crate) fn settle(cas: Option<u64>) -> SettleStep {
    cas.map_or(SettleStep::Read, SettleStep::Cas)
}

/// The step after reading: this client's lock has its number. `late`: whether the lock's time on the server
/// has passed.
pub(crate) fn settle_read(seen: Option<(ItemRecord, u64)>, nonce: u64, late: bool) -> SettleStep {
    match seen {
        Some((record, cas)) if record.nonce() == Some(nonce) => SettleStep::Cas(cas),
        None if late => SettleStep::Add,
        _ => SettleStep::Lost,
    }
}

/// The step after `cas`.
pub(crate) fn settle_cas(written: Written, late: bool) -> SettleStep {
    match written {
        Written::Stored { .. } => SettleStep::Stored { fenced: true },
        Written::NotFound if late => SettleStep::Add,
        _ => SettleStep::Lost,
    }
}

/// The step after `add`.
pub(crate) fn settle_add(written: Written) -> SettleStep {
    if written.is_stored() { SettleStep::Stored { fenced: false } } else { SettleStep::Lost }
}

/// The record that replaces a lock whose computation has not succeeded: the old value, as long as it may be
/// served. None: nothing.
pub(crate) fn freed(now_ms: u64, old: Option<&StoredValue>) -> Option<(ItemRecord, Expiration)> {
    let old = old.filter(|old| old.is_usable(now_ms))?;
    let expiration = match old.dead_ms.saturating_sub(now_ms) {
        0 => Expiration::Never,
        left => Expiration::After(Duration::from_millis(left)),
    };
    Some((ItemRecord::Value(old.clone()), expiration))
}
