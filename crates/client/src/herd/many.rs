//! Many values, in as few round trips as possible.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};
use tracing::Instrument as _;

use super::Herd;
use super::envelope::Stored;
use super::grant::{Attempt, Busy, Ending, Found, Grant, Judged, Place, Subject, TRIES, ask, end_all};
use super::kept::{NotStored, kept};
use super::one::{Search, Verdict, decode, group, subject};
use super::options::{Compute, Outcome, terms};
use crate::cache::{Cache, Scope};
use crate::error::Error;
use crate::item::Expiration;
use crate::join::join;
use crate::key::{self, Key};
use crate::value::{self, Value};

/// Rights to compute that come within this time are used together.
const TOGETHER: Duration = Duration::from_millis(1);

/// A key, once.
struct Asked<K> {
    key: K,
    subject: Subject,
    expiration: Expiration,
}

/// What a key gets.
enum Got<T> {
    Hit { value: Option<T>, stored: Stored },
    Stale { value: Option<T>, stored: Stored },
    Computed { value: Option<T>, stored: Stored, kept: bool },
    Waited { value: Option<T>, stored: Stored },
    Busy,
    NotComputed,
    Error(Error),
}

/// What asking for some keys has brought, by their places.
struct Sorted<C: Cache + 'static> {
    got: Vec<(usize, Answered)>,
    granted: Vec<(usize, Grant<C>)>,
    busy: Vec<usize>,
}

enum Answered {
    Hit(Stored),
    Stale(Stored),
    Error(Error),
}

/// A key that is waited for.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    at: usize,
    takes_old: bool,
    /// How often its value could not be read.
    unreadable: usize,
}

impl Waiting {
    fn new(at: usize) -> Self {
        Self { at, takes_old: true, unreadable: 0 }
    }
}

/// Keys that this caller computes. Without a grant: their server cannot be asked.
type Granted<C> = Vec<(usize, Result<Grant<C>, Error>)>;
/// No function of the caller is called instead of waiting.
type Nobody<K, T> = fn(Vec<K>) -> std::future::Ready<Vec<(K, T)>>;

/// A call.
struct Call<'a, C: Cache + 'static, K, F> {
    herd: &'a Herd<C>,
    options: &'a Compute,
    all: &'a [Asked<K>],
    compute: F,
}

/// Of a call for many keys. What its functions trace is inside it.
fn span() -> tracing::Span {
    tracing::debug_span!("get_or_compute_many")
}

impl<C: Cache + 'static> Herd<C> {
    /// The values of `keys`, each with its expiration, in the order of the keys; a key may occur several times. Keys that
    /// are missing or have expired, and that no other client computes, are given to `compute`, together and each once;
    /// it returns the values with their keys. A key that it leaves out is [`Outcome::NotComputed`]; keys that it was not given
    /// are ignored. Keys that other clients compute are waited for, while this one computes.
    ///
    /// When all keys are present this is one round trip to each server; computing takes two more, for locks and values. `compute`
    /// is called again if the right to compute further keys is got while waiting. [`Compute::expiration`] is not used.
    ///
    /// # Errors
    /// That of `compute`: others may then compute its keys. A key whose server cannot be asked has the error in its place. A value that
    /// cannot be read as `T` is removed, and computed again.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn get_or_compute_many<K, T, E, F, Fut, M>(
        &self,
        keys: impl IntoIterator<Item = (K, Expiration)>,
        options: &Compute,
        compute: F,
    ) -> Result<Vec<Result<Outcome<T>, Error>>, E>
    where
        K: Key + Clone,
        T: Value,
        F: Fn(Vec<K>) -> Fut,
        Fut: Future<Output = Result<M, E>>,
        M: IntoIterator<Item = (K, T)>,
    {
        self.many(keys, options, compute, None::<Nobody<K, T>>).instrument(span()).await
    }

    /// The same, but instead of waiting `busy` is called, at once, with the keys that other clients compute; the values that it returns
    /// are the answers, as [`Outcome::Waited`]. Keys that it leaves out are [`Outcome::Busy`].
    ///
    /// # Errors
    /// See [`get_or_compute_many`](Self::get_or_compute_many).
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn get_or_compute_many_or<K, T, E, F, Fut, M, B, Busy, N>(
        &self,
        keys: impl IntoIterator<Item = (K, Expiration)>,
        options: &Compute,
        compute: F,
        busy: B,
    ) -> Result<Vec<Result<Outcome<T>, Error>>, E>
    where
        K: Key + Clone,
        T: Value,
        F: Fn(Vec<K>) -> Fut,
        Fut: Future<Output = Result<M, E>>,
        M: IntoIterator<Item = (K, T)>,
        B: FnOnce(Vec<K>) -> Busy,
        Busy: Future<Output = N>,
        N: IntoIterator<Item = (K, T)>,
    {
        self.many(keys, options, compute, Some(busy)).instrument(span()).await
    }

    async fn many<K, T, E, F, Fut, M, B, Busy, N>(
        &self,
        keys: impl IntoIterator<Item = (K, Expiration)>,
        options: &Compute,
        compute: F,
        busy: Option<B>,
    ) -> Result<Vec<Result<Outcome<T>, Error>>, E>
    where
        K: Key + Clone,
        T: Value,
        F: Fn(Vec<K>) -> Fut,
        Fut: Future<Output = Result<M, E>>,
        M: IntoIterator<Item = (K, T)>,
        B: FnOnce(Vec<K>) -> Busy,
        Busy: Future<Output = N>,
        N: IntoIterator<Item = (K, T)>,
    {
        let mut all = Vec::new();
        let mut places = HashMap::new();
        let mut order = Vec::new();
        for (key, expiration) in keys {
            let subject = subject(&key);
            let at = *places.entry(subject.key.clone()).or_insert(all.len());
            if at == all.len() {
                all.push(Asked { key, subject, expiration });
            }
            order.push(at);
        }
        let mut got: Vec<Got<T>> = all.iter().map(|_| Got::Busy).collect();
        let mut asked = Vec::new();
        for (at, of) in all.iter().enumerate() {
            match key::check(&of.subject.key) {
                Ok(()) => asked.push(at),
                Err(error) => got[at] = Got::Error(Error::Key(error)),
            }
        }
        let deadline = Instant::now() + options.wait_time();
        let call = Call { herd: self, options, all: &all, compute };
        let (found, granted, waiting) = call.ask::<T>(asked).await;
        let computing =
            async { if granted.is_empty() { Ok(Vec::new()) } else { call.compute(granted).await } };
        let waiting = call.wait::<T, _, _, _, _, _, _>(waiting, busy, deadline);
        let (computed, waited) = match tokio::try_join!(computing, waiting) {
            Ok(both) => both,
            Err(error) => {
                for at in order {
                    self.metrics.outcome(&all[at].subject.key, None);
                }
                return Err(error);
            }
        };
        for (at, now) in found.into_iter().chain(computed).chain(waited) {
            got[at] = now;
        }
        let outcomes = order.into_iter().map(|at| {
            let key = &all[at].subject.key;
            let outcome = got[at].outcome(key);
            self.metrics.outcome(key, outcome.as_ref().ok().map(Outcome::bare));
            outcome
        });
        Ok(outcomes.collect())
    }
}

impl<T: Value> Got<T> {
    fn hit(key: &[u8], stored: Stored) -> Result<Self, Error> {
        Ok(Self::Hit { value: Some(decode(key, stored.clone())?), stored })
    }

    fn stale(key: &[u8], stored: Stored) -> Result<Self, Error> {
        Ok(Self::Stale { value: Some(decode(key, stored.clone())?), stored })
    }

    /// For a key that occurs several times the value is read again.
    fn outcome(&mut self, key: &[u8]) -> Result<Outcome<T>, Error> {
        let again = |value: &mut Option<T>, stored: &Stored| match value.take() {
            Some(value) => Ok(value),
            None => decode(key, stored.clone()),
        };
        Ok(match self {
            Self::Hit { value, stored } => Outcome::Hit(again(value, stored)?),
            Self::Stale { value, stored } => Outcome::Stale(again(value, stored)?),
            Self::Computed { value, stored, kept } => {
                Outcome::Computed { value: again(value, stored)?, stored: *kept }
            }
            Self::Waited { value, stored } => Outcome::Waited(again(value, stored)?),
            Self::Busy => Outcome::Busy,
            Self::NotComputed => Outcome::NotComputed,
            Self::Error(error) => return Err(error.clone()),
        })
    }
}

impl<C: Cache + 'static, K: Key + Clone, F> Call<'_, C, K, F> {
    /// Asks for these keys, and for the right to compute those that are missing or whose value cannot be read. Last, those that others
    /// compute.
    async fn ask<T: Value>(&self, mut keys: Vec<usize>) -> (Vec<(usize, Got<T>)>, Granted<C>, Vec<Waiting>) {
        let (mut got, mut granted, mut waiting) = (Vec::new(), Granted::new(), Vec::new());
        let mut tries = 0;
        while !keys.is_empty() {
            let sorted = self.sort(&keys).await;
            for (at, mut grant) in sorted.granted {
                // Callers of this process can join from now on.
                self.herd.flights.begin(&self.all[at].subject, &mut grant);
                granted.push((at, Ok(grant)));
            }
            waiting.extend(sorted.busy.into_iter().map(Waiting::new));
            let mut unreadable = Vec::new();
            for (at, answer) in sorted.got {
                let key = &self.all[at].subject.key;
                match answer {
                    Answered::Hit(stored) => match Got::hit(key, stored.clone()) {
                        Ok(hit) => got.push((at, hit)),
                        Err(error) if tries == TRIES => got.push((at, Got::Error(error))),
                        Err(_) => unreadable.push((at, stored)),
                    },
                    Answered::Stale(stored) => match Got::stale(key, stored) {
                        Ok(stale) => got.push((at, stale)),
                        Err(_) => waiting.push(Waiting { takes_old: false, ..Waiting::new(at) }),
                    },
                    Answered::Error(error) if self.options.goes_on_after(&error) => {
                        granted.push((at, Err(error)));
                    }
                    Answered::Error(error) => got.push((at, Got::Error(error))),
                }
            }
            keys = unreadable.iter().map(|(at, _)| *at).collect();
            join(unreadable.iter().map(|(at, stored)| async move {
                let search = self.search(Waiting::new(*at), 1, Instant::now());
                self.herd.remove_unreadable(&search, stored, tries > 0).await;
            }))
            .await;
            tries += 1;
        }
        granted.sort_by_key(|(at, _)| *at);
        waiting.sort_by_key(|waiting| waiting.at);
        (got, granted, waiting)
    }

    /// In a task of its own: what is granted to a caller that has gone is given up.
    async fn sort(&self, keys: &[usize]) -> Sorted<C> {
        let subjects: Vec<_> = keys.iter().map(|at| (*at, self.all[*at].subject.clone())).collect();
        let (place, options) = (self.herd.place.clone(), self.options.clone());
        let sorted = tokio::spawn(async move { sort(&place, &options, subjects).await }).await;
        sorted.unwrap_or_else(|error| {
            let ended = Error::Usage(format!("the task that asks the servers has ended: {error}"));
            let got = keys.iter().map(|at| (*at, Answered::Error(ended.clone()))).collect();
            Sorted { got, granted: Vec::new(), busy: Vec::new() }
        })
    }

    fn search(&self, waiting: Waiting, keys: usize, deadline: Instant) -> Search {
        Search {
            group: group(
                self.all[waiting.at].subject.clone(),
                terms(self.options.batch_time(keys), waiting.takes_old),
            ),
            deadline,
            is_held: false,
            takes_old: waiting.takes_old,
            is_told: false,
            hint: Bytes::new(),
        }
    }

    /// Computes these keys and stores their values.
    async fn compute<T, E, Fut, M>(&self, granted: Granted<C>) -> Result<Vec<(usize, Got<T>)>, E>
    where
        T: Value,
        F: Fn(Vec<K>) -> Fut,
        Fut: Future<Output = Result<M, E>>,
        M: IntoIterator<Item = (K, T)>,
    {
        let keys = granted.iter().map(|(at, _)| self.all[*at].key.clone()).collect();
        let named = granted.iter().map(|(at, _)| self.all[*at].subject.key.clone());
        let mut computing = self.herd.metrics.computing(named);
        let values = (self.compute)(keys).await;
        computing.has_run();
        let values = match values {
            Ok(values) => values,
            Err(error) => {
                let grants = granted.into_iter().filter_map(|(_, grant)| grant.ok());
                // What has failed first is what the caller hears of.
                drop(end_all(grants.map(|grant| (grant, Ending::Nothing(None))).collect()).await);
                return Err(error);
            }
        };
        let mut values: HashMap<Bytes, T> =
            values.into_iter().map(|(key, value)| (Bytes::copy_from_slice(key.bytes()), value)).collect();
        let mut got = Vec::new();
        let (mut endings, mut ended, mut not_asked) = (Vec::new(), Vec::new(), Vec::new());
        for (at, grant) in granted {
            let of = &self.all[at];
            let fill = values.remove(&of.subject.key).map(|value| {
                let fill = self.herd.fill(&of.subject.key, &value, self.options, of.expiration);
                fill.map(|fill| (value, fill))
            });
            let ending = match fill {
                Some(Ok((value, fill))) => {
                    let stored = Stored::fresh(fill.data.clone(), fill.flags);
                    got.push((at, Got::Computed { value: Some(value), stored, kept: false }));
                    Ending::Value(fill)
                }
                Some(Err(error)) => {
                    got.push((at, Got::Error(error)));
                    Ending::Nothing(None)
                }
                None => {
                    got.push((at, Got::NotComputed));
                    Ending::Nothing(None)
                }
            };
            let at = got.len() - 1;
            match grant {
                Ok(grant) => {
                    endings.push((grant, ending));
                    ended.push(at);
                }
                Err(error) => not_asked.push((at, Err(NotStored::of(error)))),
            }
        }
        let ended = ended.into_iter().zip(end_all(endings).await.into_iter().map(kept));
        for (at, end) in ended.chain(not_asked) {
            if let (_, Got::Computed { kept, .. }) = &mut got[at] {
                self.options.not_stored.tell(computing.key(at), &end);
                *kept = end.is_ok();
                computing.ends(at, end);
            }
        }
        Ok(got)
    }

    /// Waits for what other clients compute.
    async fn wait<T, E, Fut, M, B, Busy, N>(
        &self,
        keys: Vec<Waiting>,
        busy: Option<B>,
        deadline: Instant,
    ) -> Result<Vec<(usize, Got<T>)>, E>
    where
        T: Value,
        F: Fn(Vec<K>) -> Fut,
        Fut: Future<Output = Result<M, E>>,
        M: IntoIterator<Item = (K, T)>,
        B: FnOnce(Vec<K>) -> Busy,
        Busy: Future<Output = N>,
        N: IntoIterator<Item = (K, T)>,
    {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(busy) = busy {
            let keys: Vec<_> = keys.iter().map(|waiting| waiting.at).collect();
            let values = busy(keys.iter().map(|at| self.all[*at].key.clone()).collect()).await;
            return Ok(self.waited(&keys, values));
        }
        if self.options.wait_time().is_zero() {
            return Ok(Vec::new());
        }
        let count = keys.len();
        // Each key by itself: callers of this process that wait for the same one share what is asked.
        let mut finding = JoinSet::new();
        let find = |finding: &mut JoinSet<_>, waiting: Waiting| {
            let (herd, search) = (self.herd.clone(), self.search(waiting, count, deadline));
            finding.spawn(async move {
                let (verdict, _) = herd.find(&search).await;
                (waiting, search, verdict)
            });
        };
        for waiting in keys {
            find(&mut finding, waiting);
        }
        let mut all = Vec::new();
        while let Some(found) = finding.join_next().await {
            let mut granted: Granted<C> = Vec::new();
            let mut next = Some(found);
            while let Some(found) = next.take() {
                // Its task has ended with the runtime.
                let Ok((waiting, search, verdict)) = found else { break };
                let at = waiting.at;
                let key = search.key();
                match verdict {
                    Verdict::Hit(stored) => match Got::hit(key, stored.clone()) {
                        Err(_) if waiting.unreadable < TRIES => {
                            self.herd.remove_unreadable(&search, &stored, waiting.unreadable > 0).await;
                            find(&mut finding, Waiting { unreadable: waiting.unreadable + 1, ..waiting });
                        }
                        got => all.push((at, got.unwrap_or_else(Got::Error))),
                    },
                    Verdict::Stale(stored) => match Got::stale(key, stored) {
                        Ok(stale) => all.push((at, stale)),
                        Err(_) => find(&mut finding, Waiting { takes_old: false, ..waiting }),
                    },
                    Verdict::Compute(grant) => granted.push((at, Ok(grant))),
                    Verdict::Busy | Verdict::Failed(_) => {}
                    Verdict::Error(error) if self.options.goes_on_after(&error) => {
                        granted.push((at, Err(error)));
                    }
                    Verdict::Error(error) => all.push((at, Got::Error(error))),
                }
                next = finding.try_join_next();
                if next.is_none() && !granted.is_empty() && !finding.is_empty() {
                    // What is granted together is computed together.
                    next = time::timeout(TOGETHER, finding.join_next()).await.ok().flatten();
                }
            }
            if !granted.is_empty() {
                granted.sort_by_key(|(at, _)| *at);
                all.extend(self.compute(granted).await?);
            }
        }
        Ok(all)
    }

    fn waited<T: Value>(
        &self,
        keys: &[usize],
        values: impl IntoIterator<Item = (K, T)>,
    ) -> Vec<(usize, Got<T>)> {
        let mut values: HashMap<Bytes, T> =
            values.into_iter().map(|(key, value)| (Bytes::copy_from_slice(key.bytes()), value)).collect();
        let mut got = Vec::new();
        for at in keys {
            let key = &self.all[*at].subject.key;
            let Some(value) = values.remove(key) else { continue };
            // Stored nowhere; a key that occurs twice needs it twice.
            let now = match value::encode(&value, None) {
                Ok((data, flags)) => Got::Waited { value: Some(value), stored: Stored::fresh(data, flags) },
                Err(message) => {
                    Got::Error(Error::Value { key: String::from_utf8_lossy(key).into_owned(), message })
                }
            };
            got.push((*at, now));
        }
        got
    }
}

/// Asks for keys, and writes the locks of those that are missing.
async fn sort<C: Cache + 'static>(
    place: &Place<C>,
    options: &Compute,
    keys: Vec<(usize, Subject)>,
) -> Sorted<C> {
    let mut sorted = Sorted { got: Vec::new(), granted: Vec::new(), busy: Vec::new() };
    let none = Bytes::new();
    // With how often the key was absent and its lock refused.
    let mut keys: Vec<_> = keys.into_iter().map(|(at, subject)| (at, subject, 0)).collect();
    for _ in 0..TRIES {
        if keys.is_empty() {
            return sorted;
        }
        // Leases are for as many keys as there may be; locks for those that are missing.
        let most = terms(options.batch_time(keys.len()), true);
        let names: Vec<_> = keys.iter().map(|(_, subject, _)| &subject.key[..]).collect();
        let scope = place.cache.scope();
        let answers = place.cache.ask_many(&names, ask(&most, Duration::ZERO, &none)).await;
        let mut lockings = Vec::new();
        let leases = sorted.granted.len();
        for ((at, subject, refused), answer) in keys.into_iter().zip(answers) {
            match answer.map(|answer| place.judge(&subject, answer, &most)) {
                Ok(Judged::Found(found)) => sorted.put(at, found),
                Ok(Judged::Lock(locking)) => lockings.push((at, subject, refused, locking)),
                Err(error) => sorted.got.push((at, Answered::Error(error))),
            }
        }
        let missing = lockings.len() + sorted.granted.len() - leases;
        let terms = terms(options.batch_time(missing), true);
        let locks: Vec<_> = lockings
            .into_iter()
            .map(|(at, subject, refused, locking)| {
                (at, subject, refused, Attempt::new(place, locking, &terms, &none))
            })
            .collect();
        keys = Vec::new();
        let replies = write(place, &locks, scope).await;
        for ((at, subject, mut refused, attempt), reply) in locks.into_iter().zip(replies) {
            refused += usize::from(attempt.is_refused(&reply));
            match attempt.judge(place, &subject, &terms, &reply) {
                Ok(Some(found)) => sorted.put(at, found),
                Ok(None) if refused == TRIES => sorted.put(at, place.without_lock(&subject)),
                Ok(None) => keys.push((at, subject, refused)),
                Err(error) => sorted.got.push((at, Answered::Error(error))),
            }
        }
    }
    sorted.busy.extend(keys.into_iter().map(|(at, ..)| at));
    sorted.busy.sort_unstable();
    sorted
}

impl<C: Cache + 'static> Sorted<C> {
    fn put(&mut self, at: usize, found: Found<C>) {
        match found {
            Found::Hit(stored) => self.got.push((at, Answered::Hit(stored))),
            Found::Stale(stored) => self.got.push((at, Answered::Stale(stored))),
            Found::Granted(grant) => self.granted.push((at, grant)),
            Found::Busy(Busy::Server | Busy::Lock { .. } | Busy::Changing) | Found::Failed(_) => {
                self.busy.push(at);
            }
        }
    }
}

/// Writes locks, those that are new and those that replace something at the same time.
async fn write<C: Cache + 'static>(
    place: &Place<C>,
    locks: &[(usize, Subject, usize, Attempt)],
    scope: Option<Scope>,
) -> Vec<Result<crate::Written, Error>> {
    let (mut adds, mut swaps, mut claims) = (Vec::new(), Vec::new(), Vec::new());
    for (_, subject, refused, attempt) in locks {
        match attempt.replaces() {
            Some(cas) => swaps.push((attempt.write(subject), cas)),
            None if *refused > 0 => claims.push(attempt.write(subject)),
            None => adds.push(attempt.write(subject)),
        }
    }
    let added = async { if adds.is_empty() { Vec::new() } else { place.cache.add_many(&adds).await } };
    let swapped = async { if swaps.is_empty() { Vec::new() } else { place.swap(&swaps, scope).await } };
    let claimed = async { if claims.is_empty() { Vec::new() } else { place.claim(&claims, scope).await } };
    let (added, swapped, claimed) = tokio::join!(added, swapped, claimed);
    let (mut added, mut swapped, mut claimed) = (added.into_iter(), swapped.into_iter(), claimed.into_iter());
    let next = |(_, _, refused, attempt): &(usize, Subject, usize, Attempt)| {
        let reply = match attempt.replaces() {
            Some(_) => swapped.next(),
            None if *refused > 0 => claimed.next(),
            None => added.next(),
        };
        reply.unwrap_or_else(|| {
            Err(Error::Usage("a cache has answered fewer keys than it was asked for".to_owned()))
        })
    };
    locks.iter().map(next).collect()
}
