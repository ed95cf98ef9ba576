//! Computing over a server without leases: what to do about an item that was read, and about the reply to each command.
//! Without I/O, time is an argument; `tests/it/interleavings.rs` tries all orders of several clients.
//!
//! The lock of a computation is the item itself: a lock without a value where there was none (`add`), else the old
//! value marked as being computed again (`cas`). The result replaces this lock, and nothing else, by `cas`: whatever happened to
//! the key since the lock was taken (a delete, another client's lock, a plain `set`) has removed the lock, and then the result is
//! not stored. So a value that was computed before a delete is not stored after it.
//!
//! Invariants:
//! * Only a client that has stored a lock computes.
//! * A value is served as fresh before its expiry only, and as stale before its `dead_ms` only.
//! * What a client removes or replaces is what it has read: every write is an `add` or a `cas`.
//! * What is replaced by the CAS number of a lock is the lock: a server that was restarted counts anew, and so the number is sent only
//!   where it is valid ([`Scope`](crate::Scope)). Elsewhere [`settle_read`] compares the lock's own number first.
//! * The exception: a lock without tags whose time in the server has passed. Then `add` stores the result, although a delete in the
//!   time since could not be noticed. It cannot be before the time of the lock has passed ([`Terms::is_late`]).

use std::time::Duration;

use bytes::Bytes;

use super::envelope::{Lock, Record, Stored};
use crate::item::{Expiration, Written};

/// An exptime that has passed: in 1970. The server drops the item at once.
pub(crate) const PASSED: u32 = 30 * 24 * 60 * 60 + 1;

/// How a client computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    /// How long its lock is valid.
    pub(crate) lock_ms: u64,
    /// How long the server keeps the lock: longer by a second, in which a delete is still noticed, and by another, since servers count
    /// whole seconds and drop an item up to a second early.
    pub(crate) keep_s: u32,
    /// Whether the old value is of use while a new one is computed.
    pub(crate) stale: bool,
    /// The number of a lock that this client waits for: if that computation fails, it is told.
    pub(crate) awaited: Option<u64>,
}

impl Terms {
    /// Whether the server may have dropped a lock that was taken this long ago only because its time has passed.
    pub(crate) fn is_late(&self, since: Duration) -> bool {
        since >= Duration::from_secs(u64::from(self.keep_s).saturating_sub(1))
    }
}

/// What to do about an item that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Serve this: it has not expired.
    Fresh(Stored),
    /// Serve this: it has expired, and another client computes.
    Stale(Stored),
    /// Another client computes, and there is no old value.
    Wait {
        /// Its lock's number.
        nonce: u64,
        /// Its hint.
        hint: Bytes,
    },
    /// The computation that was waited for has failed.
    Failed(Bytes),
    /// Write a lock; if that succeeds, compute.
    Lock(Locking),
}

/// A lock before it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locking {
    /// The CAS number of the item that it replaces; None: there is none, the command is `add`.
    pub(crate) cas: Option<u64>,
    /// The old value, if it may still be served.
    pub(crate) old: Option<Stored>,
    /// The hint of the lock that it replaces.
    pub(crate) hint: Option<Bytes>,
}

/// What to do about an item, with its CAS number; None: the key is absent.
pub(crate) fn decide(now_ms: u64, seen: Option<(Record, u64)>, terms: &Terms) -> Decision {
    let Some((record, cas)) = seen else {
        return Decision::Lock(Locking { cas: None, old: None, hint: None });
    };
    let usable = |stored: Stored| Some(stored).filter(|stored| terms.stale && stored.is_usable(now_ms));
    let lock = |old, hint| Decision::Lock(Locking { cas: Some(cas), old, hint });
    match record {
        Record::Value(stored) if stored.is_fresh(now_ms) => Decision::Fresh(stored),
        Record::Again(stored, held) if now_ms < held.until_ms => match usable(stored) {
            Some(old) => Decision::Stale(old),
            None => Decision::Wait { nonce: held.nonce, hint: Bytes::new() },
        },
        Record::Value(stored) | Record::Again(stored, _) => lock(usable(stored), None),
        Record::Locked(hint, held) if now_ms < held.until_ms => Decision::Wait { nonce: held.nonce, hint },
        Record::Locked(hint, _) => lock(None, Some(hint)),
        Record::Failed(text, of) if terms.awaited == Some(of.nonce) => Decision::Failed(text),
        Record::Failed(..) | Record::Damaged => lock(None, None),
    }
}

/// The lock as it is written: the record, and how long the server keeps it. An old value is kept for as long as it may be served,
/// whatever becomes of the computation.
pub(crate) fn lock(
    now_ms: u64,
    locking: &Locking,
    hint: &Bytes,
    nonce: u64,
    terms: &Terms,
) -> (Record, Expiration) {
    let lock = Lock { until_ms: now_ms.saturating_add(terms.lock_ms), nonce };
    let keep = Duration::from_secs(terms.keep_s.into());
    let Some(old) = &locking.old else {
        return (
            Record::Locked(locking.hint.as_ref().unwrap_or(hint).clone(), lock),
            Expiration::After(keep),
        );
    };
    let served = Duration::from_millis(old.dead_ms.saturating_sub(now_ms));
    (Record::Again(old.clone(), lock), Expiration::After(keep.max(served)))
}

/// What to do about the reply to a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Locked {
    /// This client computes. With the CAS number of the lock, if it is known.
    Won(Option<u64>),
    /// Another client was faster; this value may be served.
    Stale(Stored),
    /// Another client was faster: read again.
    Lost,
}

/// What to do about the reply to a lock.
pub(crate) fn locked(written: Written, locking: &Locking) -> Locked {
    match (written, &locking.old) {
        (Written::Stored { cas }, _) => Locked::Won(cas),
        (Written::Exists, Some(old)) => Locked::Stale(old.clone()),
        _ => Locked::Lost,
    }
}

/// How a result, or the end of a lock, is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settle {
    /// Read the item: [`settle_read`] goes on.
    Read,
    /// `cas` with this number: [`settle_cas`] goes on.
    Cas(u64),
    /// `add`: [`settle_add`] goes on.
    Add,
    /// It was stored.
    Stored {
        /// Nothing can have happened to the key since the lock was taken.
        fenced: bool,
    },
    /// The lock was gone: nothing was stored.
    Lost,
}

/// The first step.
pub(crate) fn settle(cas: Option<u64>) -> Settle {
    cas.map_or(Settle::Read, Settle::Cas)
}

/// After reading: this client's lock has its number. `late` says whether the lock's time in the server has passed.
pub(crate) fn settle_read(seen: Option<(Record, u64)>, nonce: u64, late: bool) -> Settle {
    match seen {
        Some((record, cas)) if record.nonce() == Some(nonce) => Settle::Cas(cas),
        None if late => Settle::Add,
        _ => Settle::Lost,
    }
}

/// After `cas`.
pub(crate) fn settle_cas(written: Written, late: bool) -> Settle {
    match written {
        Written::Stored { .. } => Settle::Stored { fenced: true },
        Written::NotFound if late => Settle::Add,
        _ => Settle::Lost,
    }
}

/// After `add`.
pub(crate) fn settle_add(written: Written) -> Settle {
    if written.is_stored() { Settle::Stored { fenced: false } } else { Settle::Lost }
}

/// What replaces a lock whose computation has not succeeded: the old value, as long as it may be served. None: nothing.
pub(crate) fn freed(now_ms: u64, old: Option<&Stored>) -> Option<(Record, Expiration)> {
    let old = old.filter(|old| old.is_usable(now_ms))?;
    let expiration = match old.dead_ms.saturating_sub(now_ms) {
        0 => Expiration::Never,
        left => Expiration::After(Duration::from_millis(left)),
    };
    Some((Record::Value(old.clone()), expiration))
}
