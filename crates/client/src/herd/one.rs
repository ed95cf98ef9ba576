//! One value.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{self, Instant};
use tracing::Instrument as _;

use super::Herd;
use super::envelope::Stored;
use super::flights::{Ended, Group, Look};
use super::grant::{Busy, End, Ending, Fill, Grant, Subject};
use super::options::{Compute, ComputeError, Outcome, terms};
use crate::cache::Cache;
use crate::error::Error;
use crate::key::{self, Key};
use crate::value::{self, Value};

/// Shortest and longest time between two looks at a lock.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Pauses that grow by half.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    /// Waits for the next pause, or until `deadline` if that is sooner.
    pub(super) async fn wait(&mut self, deadline: Instant) {
        time::sleep_until(deadline.min(Instant::now() + self.0)).await;
        self.0 = (self.0 * 3 / 2).min(LONGEST_PAUSE);
    }
}

/// What a caller gets.
enum Verdict<C: Cache + 'static> {
    Hit(Stored),
    Stale(Stored),
    Compute(Grant<C>),
    Busy,
    Error(Error),
}

/// Of a call for one key. What its functions trace is inside it.
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
    /// [`ComputeError::Compute`] if `compute` has failed. [`ComputeError::Cache`] if the server cannot be asked or
    /// the value cannot be read as `T`. If only storing the value fails, it is returned nevertheless.
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
        let got = async {
            let verdict = self.obtain(&key, options, options.wait_time()).await;
            self.conclude(&key, options, compute, verdict).await
        };
        let got = got.instrument(span(key.bytes())).await;
        self.metrics.outcome(key.bytes(), got.as_ref().ok().map(Outcome::bare));
        got
    }

    /// The same, but instead of waiting for another client's value `busy` is called, and what it returns is the answer: a value
    /// as [`Outcome::Waited`], None as [`Outcome::Busy`]. [`Compute::wait`] is not used.
    ///
    /// `busy` is called if another client, or another caller in this process, computes the value and there is no old one: over a
    /// server without leases if the key is locked, over a server with leases if it says that another client has the lease; it
    /// holds no request then. It is not called after an error. What it returns is not stored.
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
        let got = async {
            match self.obtain(&key, options, Duration::ZERO).await {
                Verdict::Busy => Ok(busy().await.map_or(Outcome::Busy, Outcome::Waited)),
                verdict => self.conclude(&key, options, compute, verdict).await,
            }
        };
        let got = got.instrument(span(key.bytes())).await;
        self.metrics.outcome(key.bytes(), got.as_ref().ok().map(Outcome::bare));
        got
    }

    async fn conclude<K, T, E, F, Fut>(
        &self,
        key: &K,
        options: &Compute,
        compute: F,
        verdict: Verdict<C>,
    ) -> Result<Outcome<T>, ComputeError<E>>
    where
        K: Key,
        T: Value,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let grant = match verdict {
            Verdict::Hit(stored) => return Ok(Outcome::Hit(decode(key.bytes(), stored)?)),
            Verdict::Stale(stored) => return Ok(Outcome::Stale(decode(key.bytes(), stored)?)),
            Verdict::Busy => return Ok(Outcome::Busy),
            Verdict::Error(error) if options.goes_on_after(&error) => {
                let mut computing = self.metrics.computing([Bytes::copy_from_slice(key.bytes())]);
                let value = compute().await.map_err(ComputeError::Compute)?;
                computing.ends(0, false);
                return Ok(Outcome::Computed { value, stored: false });
            }
            Verdict::Error(error) => return Err(error.into()),
            Verdict::Compute(grant) => grant,
        };
        let mut computing = self.metrics.computing([Bytes::copy_from_slice(key.bytes())]);
        // Dropped here, with the future or by a panic, the grant is given up.
        let computed = compute().await;
        computing.has_run();
        let computed = computed.map_err(ComputeError::Compute).and_then(|value| {
            let fill = self.fill(key.bytes(), &value, options, options.expiration)?;
            Ok((value, fill))
        });
        match computed {
            Ok((value, fill)) => {
                // A value that could not be stored is a value.
                let stored = grant.end(Ending::Value(fill)).await.unwrap_or(false);
                computing.ends(0, stored);
                Ok(Outcome::Computed { value, stored })
            }
            Err(error) => {
                // What has failed first is what the caller hears of.
                drop(grant.end(Ending::Nothing(None)).await);
                Err(error)
            }
        }
    }

    /// A value in the form in which it is stored.
    pub(super) fn fill<T: Value>(
        &self,
        key: &[u8],
        value: &T,
        options: &Compute,
        expiration: crate::Expiration,
    ) -> Result<Fill, Error> {
        let (data, flags) =
            value::encode(value, self.compress_above).map_err(|message| unreadable(key, message))?;
        Ok(Fill { data, flags, expiration, grace: Some(options.grace()) })
    }

    /// Gets the value or the right to compute it, and waits for it if it must.
    async fn obtain<K: Key>(&self, key: &K, options: &Compute, wait: Duration) -> Verdict<C> {
        if let Err(error) = key::check(key.bytes()) {
            return Verdict::Error(Error::Key(error));
        }
        let group = Arc::new(Group { subject: subject(key), lock_time: options.lock_time() });
        let terms = terms(options.lock_time(), true);
        let arrival = self.flights.number();
        let deadline = Instant::now() + wait;
        let mut pauses = Pauses::new();
        let (mut last, mut failed) = (wait.is_zero(), false);
        loop {
            if !last && let Some((began, ended)) = self.flights.running(&group) {
                match end_of(ended, deadline).await {
                    Some(End::Stored(stored)) => return Verdict::Hit(stored),
                    // What began after this caller had arrived is new enough, although nobody will find it.
                    Some(End::Unstorable(stored)) if arrival < began => return Verdict::Hit(stored),
                    Some(End::Unstorable(_) | End::Again) => {}
                    None => last = true,
                }
            }
            let mut look = self.flights.look(&self.place, &group, &terms, Duration::ZERO).await;
            if let Look::Busy(Busy::Server) = *look
                && !last
            {
                // The server holds this request until the value is there.
                let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                let held = self.flights.look(&self.place, &group, &terms, left);
                let Ok(held) = time::timeout_at(deadline, held).await else {
                    last = true;
                    continue;
                };
                look = held;
            }
            match &*look {
                Look::Hit(stored) => return Verdict::Hit(stored.clone()),
                Look::Stale(stored) => return Verdict::Stale(stored.clone()),
                Look::Error(error) => return Verdict::Error(error.clone()),
                Look::Granted { grant, old, end } => {
                    if let Some(grant) = grant.lock().unwrap_or_else(PoisonError::into_inner).take() {
                        return Verdict::Compute(grant);
                    }
                    if let Some(old) = old {
                        return Verdict::Stale(old.clone());
                    }
                    if last {
                        return Verdict::Busy;
                    }
                    match end_of(end.clone(), deadline).await {
                        // It began after this caller had arrived.
                        Some(End::Stored(stored) | End::Unstorable(stored)) => return Verdict::Hit(stored),
                        Some(End::Again) => {}
                        None => last = true,
                    }
                }
                Look::Failed if !failed => failed = true,
                Look::Failed | Look::Busy(_) if last => return Verdict::Busy,
                Look::Failed | Look::Busy(_) => {
                    pauses.wait(deadline).await;
                    last = Instant::now() >= deadline;
                }
            }
        }
    }
}

/// How a computation of this process ends; None: not before the deadline.
async fn end_of(mut ended: Ended, deadline: Instant) -> Option<End> {
    let end = time::timeout_at(deadline, ended.wait_for(Option::is_some)).await.ok()?;
    Some(end.ok().and_then(|end| end.clone()).unwrap_or(End::Again))
}

pub(super) fn subject<K: Key + ?Sized>(key: &K) -> Subject {
    Subject { key: Bytes::copy_from_slice(key.bytes()), tags: key.tags().to_vec() }
}

pub(super) fn decode<T: Value>(key: &[u8], stored: Stored) -> Result<T, Error> {
    value::decode(stored.data, stored.flags).map_err(|message| unreadable(key, message))
}

fn unreadable(key: &[u8], message: String) -> Error {
    Error::Value { key: String::from_utf8_lossy(key).into_owned(), message }
}
