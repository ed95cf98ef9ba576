//! `get_or_compute` for one key.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{self, Instant};
use tracing::Instrument as _;

use super::Herd;
use super::acquire::{Subject, TRIES, ask, value_of};
use super::envelope::StoredValue;
use super::flights::{FlightStage, RequestGroup, SharedGrant, Timing};
use super::found::{Holder, SearchResult};
use super::grant::{ComputationEnd, ComputationResult, ComputedValue, Grant};
use super::kept::{NotStored, kept};
use super::options::{Compute, ComputeError, Outcome, terms};
use super::plain::LockTerms;
use crate::cache::{Answer, Cache};
use crate::error::Error;
use crate::key::{self, Key};
use crate::value::{self, Value};

/// Shortest and longest pause between two reads of a lock.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Pauses that grow by half each time.
struct Pauses(Duration);

impl Pauses {
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 3 / 2).min(LONGEST_PAUSE);
        pause
    }
}

/// A caller's search for a value.
pub(super) struct Search {
    /// The properties shared with other searches for the same value. The terms are those of the lock, if this
    /// caller computes.
    pub(super) group: Arc<RequestGroup>,
    /// The time until which the caller waits while others compute.
    pub(super) deadline: Instant,
    /// Whether the server may hold a request for the caller.
    pub(super) is_held: bool,
    /// Whether the caller takes an old value while others compute.
    pub(super) takes_old: bool,
    /// Whether the caller is told that another's computation has failed.
    pub(super) is_told: bool,
    /// The hint for the client that computes.
    pub(super) hint: Bytes,
}

impl Search {
    pub(super) fn key(&self) -> &Bytes {
        &self.group.subject.key
    }
}

/// The result of a call.
pub(super) type CallResult<V, C> = Result<SearchResult<V, Grant<C>>, Error>;

/// The span of a call for one key. Traces of its functions are inside it.
fn span(key: &[u8]) -> tracing::Span {
    tracing::debug_span!("get_or_compute", key = %key.escape_ascii())
}

impl<C: Cache + 'static> Herd<C> {
    /// The value of `key`. If it is missing or has expired, one client computes it with `compute`; the others
    /// get the old value at once or, if there is none, wait ([`Compute::wait`]).
    ///
    /// If `compute` fails or panics, or the returned future is dropped, others may compute at once.
    ///
    /// # Errors
    /// [`ComputeError::Compute`] if `compute` has failed. [`ComputeError::Cache`] if the server cannot be
    /// asked, or the computed value cannot be written. If only storing the value fails, it is returned
    /// nevertheless. A value that cannot be read as `T` is removed and computed again; it is an error only if
    /// clients go on storing such values.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn get_or_compute<K, T, E, F, Fut>(
        &self,
        key: K,
        options: &Compute,
        compute: F,
    ) -> Result<Outcome<T>, ComputeError<E>>
    where
        K: Key,
        T: Value,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let wait = options.wait_time();
        self.one(&key, options, compute, wait, || async { None }).await
    }

    /// The same, but instead of waiting for another client's value `busy` is called, and what it returns is
    /// the answer: a value as [`Outcome::Waited`], None as [`Outcome::Busy`]. [`Compute::wait`] is not used.
    ///
    /// `busy` is called if another client, or another caller in this process, computes the value and there is
    /// no old one: over a server without leases if the key is locked, over a server with leases if it says
    /// that another client has the lease; it holds no request then. It is not called after an error. What it
    /// returns is not stored.
    ///
    /// # Errors
    /// See [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn get_or_compute_or<K, T, E, F, Fut, B, Busy>(
        &self,
        key: K,
        options: &Compute,
        compute: F,
        busy: B,
    ) -> Result<Outcome<T>, ComputeError<E>>
    where
        K: Key,
        T: Value,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        B: FnOnce() -> Busy,
        Busy: Future<Output = Option<T>>,
    {
        self.one(&key, options, compute, Duration::ZERO, busy).await
    }

    /// `busy` is called when `wait` has passed.
    async fn one<K, T, E, F, Fut, B, Busy>(
        &self,
        key: &K,
        options: &Compute,
        compute: F,
        wait: Duration,
        busy: B,
    ) -> Result<Outcome<T>, ComputeError<E>>
    where
        K: Key,
        T: Value,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        B: FnOnce() -> Busy,
        Busy: Future<Output = Option<T>>,
    {
        let outcome = async {
            match self.obtain(search(key, options, wait)).await.0 {
                Ok(SearchResult::Hit(value)) => Ok(Outcome::Hit(value)),
                Ok(SearchResult::Stale(value)) => Ok(Outcome::Stale(value)),
                Ok(SearchResult::Busy(_)) => Ok(busy().await.map_or(Outcome::Busy, Outcome::Waited)),
                Ok(SearchResult::Failed(_)) => Ok(Outcome::Busy),
                Ok(SearchResult::Compute(grant)) => self.compute(key, options, compute, Ok(grant)).await,
                Err(error) if options.goes_on_after(&error) => {
                    self.compute(key, options, compute, Err(error)).await
                }
                Err(error) => Err(error.into()),
            }
        };
        let outcome = outcome.instrument(span(key.bytes())).await;
        self.metrics.outcome(key.bytes(), outcome.as_ref().ok().map(Outcome::bare));
        outcome
    }

    /// Computes the value and stores it. Without a grant the value is not stored, because the server cannot
    /// be asked.
    async fn compute<K, T, E, F, Fut>(
        &self,
        key: &K,
        options: &Compute,
        compute: F,
        grant: Result<Grant<C>, Error>,
    ) -> Result<Outcome<T>, ComputeError<E>>
    where
        K: Key,
        T: Value,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let mut computation = self.metrics.computing([Bytes::copy_from_slice(key.bytes())]);
        // If the future is dropped here, or `compute` panics, the grant is given up.
        let computed = compute().await.map_err(ComputeError::Compute);
        computation.has_run();
        let (value, kept) = match grant {
            Err(error) => (computed?, Err(NotStored::of(error))),
            Ok(grant) => {
                let computed = computed.and_then(|value| {
                    let fill = self.fill(key.bytes(), &value, options, options.expiration)?;
                    Ok((value, fill))
                });
                match computed {
                    // A value that could not be stored is still returned.
                    Ok((value, fill)) => (value, kept(grant.end(ComputationResult::Value(fill)).await)),
                    Err(error) => {
                        // The caller gets the first error.
                        drop(grant.end(ComputationResult::Nothing(None)).await);
                        return Err(error);
                    }
                }
            }
        };
        options.not_stored.tell(key.bytes(), &kept);
        let stored = kept.is_ok();
        computation.ends(0, kept);
        Ok(Outcome::Computed { value, stored })
    }

    /// A value in the form in which it is stored.
    pub(super) fn fill<T: Value>(
        &self,
        key: &[u8],
        value: &T,
        options: &Compute,
        expiration: crate::Expiration,
    ) -> Result<ComputedValue, Error> {
        let (data, flags) =
            value::encode(value, self.compress_above).map_err(|message| unreadable(key, message))?;
        Ok(ComputedValue { data, flags, expiration, grace: Some(options.grace()) })
    }

    /// Gets the value or the right to compute it, and waits for it if necessary. The second result says
    /// whether it has waited.
    pub(super) async fn obtain<T: Value>(&self, mut search: Search) -> (CallResult<T, C>, bool) {
        let (mut waited, mut unreadable) = (false, 0);
        loop {
            let (verdict, has_waited) = match key::check(search.key()) {
                Ok(()) => self.find(&search).await,
                Err(error) => (Err(Error::Key(error)), false),
            };
            waited |= has_waited;
            let read = |stored: &StoredValue| decode(search.key(), stored.clone());
            let verdict = match verdict {
                Ok(SearchResult::Hit(stored)) => match read(&stored) {
                    Err(_) if unreadable < TRIES => {
                        self.remove_unreadable(&search, &stored, unreadable > 0).await;
                        unreadable += 1;
                        continue;
                    }
                    value => value.map(SearchResult::Hit),
                },
                Ok(SearchResult::Stale(stored)) => {
                    if let Ok(value) = read(&stored) {
                        return (Ok(SearchResult::Stale(value)), waited);
                    }
                    self.metrics.unreadable();
                    search.takes_old = false;
                    let RequestGroup { subject, terms, outlives } = &*search.group;
                    let (subject, terms) = (subject.clone(), LockTerms { stale: false, ..*terms });
                    search.group = Arc::new(RequestGroup { subject, terms, outlives: *outlives });
                    continue;
                }
                Ok(SearchResult::Compute(grant)) => Ok(SearchResult::Compute(grant)),
                Ok(SearchResult::Busy(holder)) => Ok(SearchResult::Busy(holder)),
                Ok(SearchResult::Failed(text)) => Ok(SearchResult::Failed(text)),
                Err(error) => Err(error),
            };
            return (verdict, waited);
        }
    }

    /// Removes an unreadable value, if it is still there. `any`: the item is removed whatever its number,
    /// because a connection may be unable to compare numbers.
    pub(super) async fn remove_unreadable(&self, search: &Search, unreadable: &StoredValue, any: bool) {
        self.metrics.unreadable();
        let (cache, key) = (&self.place.cache, search.key());
        let none = Bytes::new();
        // This fails for the caller as well, when it asks again.
        let token = match cache.ask(key, ask(&search.group.terms, Duration::ZERO, &none)).await {
            Ok(Answer::Hit(item)) if value_of(&item).is_some_and(|now| now.is_like(unreadable)) => item.cas,
            Ok(Answer::Lease { token, .. }) => token,
            _ => return,
        };
        if any {
            cache.delete(key).await.ok();
        } else {
            cache.give_up(key, token, None).await.ok();
        }
    }

    /// Gets the stored value, not decoded, or the right to compute it.
    pub(super) async fn find(&self, search: &Search) -> (CallResult<StoredValue, C>, bool) {
        let (deadline, subject) = (&search.deadline, &search.group.subject);
        let arrival = self.flights.number();
        let (mut group, mut hint) = (Arc::clone(&search.group), search.hint.clone());
        let mut pauses = Pauses(FIRST_PAUSE);
        let mut last = false;
        let (mut waited, mut failed, mut has_joined) = (false, false, false);
        let mut next = None;
        loop {
            let before = self.flights.running(subject);
            let (look, was_held) = match next.take() {
                Some(look) => look,
                None => (self.flights.look(&self.place, &group, Timing::Now, &hint).await, false),
            };
            let mut own = before.or_else(|| self.flights.running(subject));
            let by_server = match &*look {
                Ok(SearchResult::Hit(stored)) => return (Ok(SearchResult::Hit(stored.clone())), waited),
                Ok(SearchResult::Stale(stored)) if search.takes_old => {
                    return (Ok(SearchResult::Stale(stored.clone())), waited);
                }
                Ok(SearchResult::Stale(_) | SearchResult::Busy(Holder::Server)) => true,
                Ok(SearchResult::Compute(SharedGrant { grant, old, progress })) => {
                    if let Some(grant) = grant.lock().unwrap_or_else(PoisonError::into_inner).take() {
                        return (Ok(SearchResult::Compute(grant)), waited);
                    }
                    if let (Some(old), true) = (old, search.takes_old) {
                        return (Ok(SearchResult::Stale(old.clone())), waited);
                    }
                    own = Some(progress.clone());
                    false
                }
                Ok(SearchResult::Failed(text)) if search.is_told && !text.is_empty() => {
                    return (Ok(SearchResult::Failed(text.clone())), waited);
                }
                Ok(SearchResult::Failed(_)) if !failed => {
                    failed = true;
                    waited = true;
                    continue;
                }
                Ok(SearchResult::Failed(_) | SearchResult::Busy(Holder::Unknown)) => false,
                Ok(SearchResult::Busy(Holder::Lock { nonce, hint: first })) => {
                    if search.is_told && group.terms.awaited != Some(*nonce) {
                        if group.terms.awaited.is_none() && !first.is_empty() {
                            hint = first.clone();
                        }
                        let terms = LockTerms { awaited: Some(*nonce), ..group.terms };
                        let outlives = group.outlives;
                        group = Arc::new(RequestGroup { subject: subject.clone(), terms, outlives });
                    }
                    false
                }
                // The server lets no more clients wait, but a computation of this process has the lease.
                Err(Error::Server { .. }) if own.is_some() => false,
                Err(error) => return (Err(error.clone()), waited),
            };
            if last || Instant::now() >= *deadline {
                return (Ok(SearchResult::Busy(Holder::Unknown)), waited);
            }
            waited = true;
            let holds = by_server && search.is_held && !was_held && (own.is_none() || has_joined);
            let timing = if holds {
                // The server holds this request until the value is there.
                let left = deadline.saturating_duration_since(Instant::now());
                Timing::Held(left.max(Duration::from_millis(1)))
            } else {
                // The computation that the server means is most probably one of this process.
                Timing::After(if own.is_some() { LONGEST_PAUSE } else { pauses.next() })
            };
            let looking = self.flights.look(&self.place, &group, timing, &hint);
            let looking = time::timeout_at(*deadline, looking);
            let Some((began, mut seen)) = own else {
                next = looking.await.ok().map(|look| (look, holds));
                last = next.is_none();
                continue;
            };
            has_joined = true;
            let is_new = arrival < began;
            tokio::select! {
                end = end_of(&mut seen) => {
                    if let Some(found) = usable(end, is_new, search.is_told) {
                        return (Ok(found), true);
                    }
                }
                look = looking => {
                    next = look.ok().map(|look| (look, holds));
                    last = next.is_none();
                    // It has ended, or its value will be stored in a moment, or it cannot be stored.
                    if !matches!(*seen.borrow(), FlightStage::Computes)
                        && let Ok(end) = time::timeout_at(*deadline, end_of(&mut seen)).await
                        && let Some(found) = usable(end, is_new, search.is_told)
                    {
                        return (Ok(found), true);
                    }
                }
            }
        }
    }
}

/// Waits for the end of a computation of this process.
async fn end_of(seen: &mut watch::Receiver<FlightStage>) -> ComputationEnd {
    match seen.wait_for(|stage| matches!(stage, FlightStage::Ended(_))).await.as_deref() {
        Ok(FlightStage::Ended(end)) => end.clone(),
        _ => ComputationEnd::Again,
    }
}

/// The result for a caller when a computation of this process has ended. None: it looks again.
fn usable<R>(
    end: ComputationEnd,
    is_after_arrival: bool,
    is_told: bool,
) -> Option<SearchResult<StoredValue, R>> {
    match end {
        ComputationEnd::Stored(stored) => Some(SearchResult::Hit(stored)),
        // A computation that began after this caller had arrived is new enough, even if its value cannot be
        // stored.
        ComputationEnd::Unstorable(stored) if is_after_arrival => Some(SearchResult::Hit(stored)),
        ComputationEnd::Failed(text) if is_told => Some(SearchResult::Failed(text)),
        ComputationEnd::Unstorable(_) | ComputationEnd::Failed(_) | ComputationEnd::Again => None,
    }
}

/// The search of a call of `get_or_compute`.
fn search<K: Key>(key: &K, options: &Compute, wait: Duration) -> Search {
    Search {
        group: group(subject(key), terms(options.lock_time(), true)),
        deadline: Instant::now() + wait,
        is_held: true,
        takes_old: true,
        is_told: false,
        hint: Bytes::new(),
    }
}

pub(super) fn group(subject: Subject, terms: LockTerms) -> Arc<RequestGroup> {
    Arc::new(RequestGroup { subject, terms, outlives: false })
}

pub(super) fn subject<K: Key + ?Sized>(key: &K) -> Subject {
    Subject { key: Bytes::copy_from_slice(key.bytes()), tags: key.tags().to_vec() }
}

pub(super) fn decode<T: Value>(key: &[u8], stored: StoredValue) -> Result<T, Error> {
    value::decode(stored.data, stored.flags).map_err(|message| unreadable(key, message))
}

pub(super) fn unreadable(key: &[u8], message: String) -> Error {
    Error::Value { key: String::from_utf8_lossy(key).into_owned(), message }
}
