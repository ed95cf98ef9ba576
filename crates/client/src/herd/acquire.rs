//! Requests for values, and for the right to compute them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::time::Instant;

use super::envelope::{ItemRecord, StoredValue};
use super::found::{Holder, SearchResult};
use super::grant::{Grant, Hold, Payload};
use super::plain::{self, LockTerms, NewLock};
use crate::cache::{Answer, Ask, Cache, Scope};
use crate::error::Error;
use crate::item::{Clock, Item, Write, Written};
use crate::value;

/// How often a lock that another client has just removed or taken is read again before the caller waits.
pub(super) const TRIES: usize = 3;
/// Lifetime, in seconds, of an item without a value whose client does not make it a lock at once.
const CLAIM: u32 = 2;

/// The result of asking for a value.
pub(super) type StoredResult<C> = SearchResult<StoredValue, Grant<C>>;

pub(super) fn unix_ms(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// The subject of a computation: its key and tags.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    pub(super) key: Bytes,
    /// Tags of everything that is written, locks included: invalidating a tag ends the computation.
    pub(super) tags: Vec<String>,
}

/// A connection with a clock.
pub(super) struct ClockedCache<C> {
    pub(super) cache: Arc<C>,
    pub(super) clock: Clock,
}

impl<C> Clone for ClockedCache<C> {
    fn clone(&self) -> Self {
        Self { cache: Arc::clone(&self.cache), clock: Arc::clone(&self.clock) }
    }
}

/// The options of a request for a value, besides the terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestOptions<'a> {
    /// See [`Ask::wait`].
    pub(super) wait: Duration,
    pub(super) hint: &'a Bytes,
    /// Whether the lease must outlive its connection.
    pub(super) outlives: bool,
}

impl<C: Cache + 'static> ClockedCache<C> {
    pub(super) fn now(&self) -> SystemTime {
        (self.clock)()
    }

    /// Asks for a value, and for the right to compute it if it is missing or has expired.
    pub(super) async fn acquire(
        &self,
        subject: &Subject,
        terms: &LockTerms,
        how: RequestOptions<'_>,
    ) -> Result<StoredResult<C>, Error> {
        let mut refused = 0;
        for _ in 0..TRIES {
            let scope = self.cache.scope();
            let ask = ask(terms, how.wait, how.hint);
            let answer = if how.outlives {
                self.cache.ask_to_outlive(&subject.key, ask).await?
            } else {
                self.cache.ask(&subject.key, ask).await?
            };
            let lock = match self.judge(subject, answer, terms) {
                Ok(found) => return Ok(found),
                Err(lock) => lock,
            };
            // A separate future, because callers whose value is there pay for the size of this one.
            let all = std::slice::from_ref(subject);
            let taken = Box::pin(self.lock(all, vec![(0, refused, lock)], terms, how.hint, scope)).await;
            for (_, again, found) in taken {
                match found {
                    Some(found) => return found,
                    None => refused = again,
                }
            }
        }
        Ok(SearchResult::Busy(Holder::Unknown))
    }

    /// Asks for many values, with as few round trips as possible and without waiting, in the order of
    /// `subjects`. `terms`: the terms of a client that computes this many keys.
    pub(super) async fn acquire_many(
        &self,
        subjects: &[Subject],
        terms: impl Fn(usize) -> LockTerms + Send + Sync,
    ) -> Vec<Result<StoredResult<C>, Error>> {
        let none = Bytes::new();
        let mut all: Vec<_> = subjects.iter().map(|_| None).collect();
        // Keys whose answer is not known yet, each with how often it was absent and its lock refused.
        let mut open: Vec<_> = (0..subjects.len()).map(|at| (at, 0)).collect();
        for _ in 0..TRIES {
            if open.is_empty() {
                break;
            }
            // A lease must last for as many keys as there may be, a lock for the missing ones.
            let most = terms(open.len());
            let keys: Vec<_> = open.iter().map(|(at, _)| &subjects[*at].key[..]).collect();
            let scope = self.cache.scope();
            let answers = self.cache.ask_many(&keys, ask(&most, Duration::ZERO, &none)).await;
            let (mut locks, mut leases) = (Vec::new(), 0);
            for ((at, refused), answer) in open.drain(..).zip(answers) {
                match answer.map(|answer| self.judge(&subjects[at], answer, &most)) {
                    Ok(Ok(found)) => {
                        leases += usize::from(matches!(found, SearchResult::Compute(_)));
                        all[at] = Some(Ok(found));
                    }
                    Ok(Err(lock)) => locks.push((at, refused, lock)),
                    Err(error) => all[at] = Some(Err(error)),
                }
            }
            let terms = terms(locks.len() + leases);
            for (at, refused, found) in self.lock(subjects, locks, &terms, &none, scope).await {
                match found {
                    Some(found) => all[at] = Some(found),
                    None => open.push((at, refused)),
                }
            }
        }
        all.into_iter().map(|found| found.unwrap_or(Ok(SearchResult::Busy(Holder::Unknown)))).collect()
    }

    /// Takes locks. The results, each with its subject's index and how often the lock was refused; None:
    /// another client was faster.
    async fn lock(
        &self,
        subjects: &[Subject],
        locks: Vec<(usize, usize, NewLock)>,
        terms: &LockTerms,
        hint: &Bytes,
        scope: Option<Scope>,
    ) -> Vec<(usize, usize, Option<Result<StoredResult<C>, Error>>)> {
        let attempt = |(at, refused, lock)| LockAttempt::new(self, at, refused, lock, terms, hint);
        let attempts: Vec<_> = locks.into_iter().map(attempt).collect();
        let replies = self.write(subjects, &attempts, scope).await;
        let found = |(attempt, reply): (LockAttempt, Result<Written, Error>)| {
            let (at, subject) = (attempt.at, &subjects[attempt.at]);
            let refused = attempt.refused + usize::from(attempt.is_refused(&reply));
            let found = match attempt.judge(self, subject, terms, &reply).transpose() {
                // No lock could be taken, and no other client has one: the server does not store values of
                // this key.
                None if refused == TRIES => {
                    Some(Ok(SearchResult::Compute(Grant::new(self, subject, Hold::Nothing, None, None))))
                }
                found => found,
            };
            (at, refused, found)
        };
        attempts.into_iter().zip(replies).map(found).collect()
    }

    /// Writes locks: new ones, and at the same time those that replace an item.
    async fn write(
        &self,
        subjects: &[Subject],
        attempts: &[LockAttempt],
        scope: Option<Scope>,
    ) -> Vec<Result<Written, Error>> {
        let (mut adds, mut swaps, mut claims) = (Vec::new(), Vec::new(), Vec::new());
        for attempt in attempts {
            let write = attempt.payload.write(&subjects[attempt.at]);
            match attempt.lock.cas {
                Some(cas) => swaps.push((write, cas)),
                None if attempt.refused > 0 => claims.push(write),
                None => adds.push(write),
            }
        }
        let added = async {
            match adds[..] {
                [] => Vec::new(),
                [write] => vec![self.cache.add(write).await],
                _ => self.cache.add_many(&adds).await,
            }
        };
        let swapped = async { if swaps.is_empty() { Vec::new() } else { self.swap(&swaps, scope).await } };
        let claimed = async { if claims.is_empty() { Vec::new() } else { self.claim(&claims, scope).await } };
        let (added, swapped, claimed) = tokio::join!(added, swapped, claimed);
        let (mut added, mut swapped, mut claimed) =
            (added.into_iter(), swapped.into_iter(), claimed.into_iter());
        let next = |attempt: &LockAttempt| {
            let reply = match attempt.lock.cas {
                Some(_) => swapped.next(),
                None if attempt.refused > 0 => claimed.next(),
                None => added.next(),
            };
            reply.unwrap_or_else(|| {
                Err(Error::Usage("a cache has answered fewer keys than it was asked for".to_owned()))
            })
        };
        attempts.iter().map(next).collect()
    }

    /// Replaces items by their CAS numbers, which are valid in this scope. An item that cannot be compared
    /// counts as gone and is read again.
    async fn swap(&self, writes: &[(Write<'_>, u64)], scope: Option<Scope>) -> Vec<Result<Written, Error>> {
        let Some(scope) = scope else { return self.cache.cas_many(writes).await };
        let writes: Vec<_> = writes.iter().map(|(write, cas)| (*write, *cas, scope)).collect();
        let written = self.cache.cas_many_within(&writes).await.into_iter();
        written.map(|written| Ok(written?.unwrap_or(Written::NotFound))).collect()
    }

    /// Writes locks of absent keys whose `add` was refused.
    async fn claim(&self, writes: &[Write<'_>], scope: Option<Scope>) -> Vec<Result<Written, Error>> {
        let keys: Vec<_> = writes.iter().map(|write| write.key).collect();
        let claims = self.cache.claim_many(&keys, CLAIM).await;
        let won: Vec<_> = writes
            .iter()
            .zip(&claims)
            .filter_map(|(write, claim)| Some((*write, claim.as_ref().ok().copied().flatten()?)))
            .collect();
        let written = if won.is_empty() { Vec::new() } else { self.swap(&won, scope).await };
        let mut written = written.into_iter();
        let next = |claim: Result<Option<u64>, Error>| match claim? {
            Some(_) => written.next().unwrap_or(Ok(Written::NotFound)),
            None => Ok(Written::NotStored),
        };
        claims.into_iter().map(next).collect()
    }

    /// The item's value, if it has not expired.
    pub(super) fn fresh(&self, item: &Item) -> Option<StoredValue> {
        match open(item).0 {
            ItemRecord::Value(stored) if stored.is_fresh(unix_ms(self.now())) => Some(stored),
            _ => None,
        }
    }

    /// The meaning of an answer. `Err`: this lock has to be written first.
    fn judge(
        &self,
        subject: &Subject,
        answer: Answer,
        terms: &LockTerms,
    ) -> Result<StoredResult<C>, NewLock> {
        let seen = match answer {
            Answer::Absent => None,
            Answer::Hit(item) => Some(open(&item)),
            Answer::Busy => return Ok(SearchResult::Busy(Holder::Server)),
            Answer::Failed(text) => return Ok(SearchResult::Failed(text)),
            Answer::Stale(item) => {
                return Ok(value_of(&item).map_or(SearchResult::Busy(Holder::Server), SearchResult::Stale));
            }
            Answer::Lease { token, hint, old } => {
                let old = old.as_ref().and_then(value_of);
                let hold = Hold::Lease { token, lock_ms: terms.lock_ms };
                return Ok(SearchResult::Compute(Grant::new(self, subject, hold, old, hint)));
            }
        };
        plain::decide(unix_ms(self.now()), seen, terms).with_right(Err)
    }
}

/// The request to a server for a value.
pub(super) fn ask<'a>(terms: &LockTerms, wait: Duration, hint: &'a Bytes) -> Ask<'a> {
    let hint = Some(&hint[..]).filter(|hint| !hint.is_empty());
    Ask { lease: Duration::from_millis(terms.lock_ms), wait, hint }
}

/// The decoded item and its CAS number.
pub(super) fn open(item: &Item) -> (ItemRecord, u64) {
    let record = match value::without_envelope(item.flags) {
        Some(flags) => ItemRecord::open(&item.data, flags),
        None => ItemRecord::Value(StoredValue::fresh(item.data.clone(), item.flags)),
    };
    (record, item.cas)
}

/// The value of an item whose freshness its server has judged.
pub(super) fn value_of(item: &Item) -> Option<StoredValue> {
    match open(item).0 {
        ItemRecord::Value(stored) | ItemRecord::Again(stored, _) => Some(stored),
        ItemRecord::Locked(..) | ItemRecord::Failed(..) | ItemRecord::Damaged => None,
    }
}

/// A number that no other computation has: random, and different in forked processes.
fn nonce() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

/// A lock that is being written.
struct LockAttempt {
    /// The index of its subject.
    at: usize,
    /// How often the key was absent and its lock was refused.
    refused: usize,
    lock: NewLock,
    nonce: u64,
    taken: Instant,
    payload: Payload,
    /// The scope in which the lock's CAS number will be valid.
    scope: Option<Scope>,
}

impl LockAttempt {
    fn new<C: Cache + 'static>(
        place: &ClockedCache<C>,
        at: usize,
        refused: usize,
        lock: NewLock,
        terms: &LockTerms,
        hint: &Bytes,
    ) -> Self {
        let (now, nonce) = (place.now(), nonce());
        let (record, keep) = plain::lock(unix_ms(now), &lock, hint, nonce, terms);
        let (payload, scope) = (Payload::new(&record, keep, now), place.cache.scope());
        // The lock's time begins later on the server than here, because it is sent after this.
        Self { at, refused, lock, nonce, taken: Instant::now(), payload, scope }
    }

    /// Whether the server refused the lock although the key is absent.
    fn is_refused(&self, written: &Result<Written, Error>) -> bool {
        self.lock.cas.is_none() && matches!(written, Ok(Written::NotStored))
    }

    /// The meaning of the reply to a lock. None: another client was faster.
    fn judge<C: Cache + 'static>(
        self,
        place: &ClockedCache<C>,
        subject: &Subject,
        terms: &LockTerms,
        written: &Result<Written, Error>,
    ) -> Result<Option<StoredResult<C>>, Error> {
        let Self { lock, nonce, taken, scope, .. } = self;
        let found = written.as_ref().map(|written| plain::locked(*written, &lock));
        let grant = |cas: Option<u64>| {
            let hold = Hold::Lock { nonce, cas: cas.zip(scope), taken, terms: *terms };
            Grant::new(place, subject, hold, lock.old, lock.hint)
        };
        match found {
            Ok(found) => found.map(|found| found.with_right(|cas| Ok(grant(cas)))).transpose(),
            Err(error) => {
                // The server may have stored the lock all the same: then it is removed by its number.
                drop(grant(None));
                Err(error.clone())
            }
        }
    }
}
