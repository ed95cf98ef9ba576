//! `get_or_compute_many`: many values in as few round trips as possible.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};
use tracing::Instrument as _;

use super::Herd;
use super::acquire::{StoredResult, Subject, TRIES};
use super::envelope::StoredValue;
use super::found::SearchResult;
use super::grant::{ComputationResult, Grant, end_all};
use super::kept::{NotStored, kept};
use super::one::{Search, decode, group, subject, unreadable};
use super::options::{Compute, Outcome, terms};
use crate::cache::Cache;
use crate::error::Error;
use crate::item::Expiration;
use crate::join::join;
use crate::key::{self, Key};
use crate::value::{self, Value};

/// Rights to compute that come within this time of each other are used together.
const TOGETHER: Duration = Duration::from_millis(1);

/// A key of a call, without its repetitions.
struct UniqueKey<K> {
    key: K,
    subject: Subject,
    expiration: Expiration,
}

/// The result for a key.
struct KeyAnswer<T> {
    outcome: Result<Outcome<()>, Error>,
    /// The value; None once it was taken. For a key that occurs several times it is decoded again.
    value: Option<T>,
    stored: StoredValue,
}

/// A key whose value another client computes.
#[derive(Debug, Clone, Copy)]
struct WaitingKey {
    at: usize,
    takes_old: bool,
    /// How often its value was unreadable.
    unreadable: usize,
}

impl WaitingKey {
    fn new(at: usize) -> Self {
        Self { at, takes_old: true, unreadable: 0 }
    }
}

/// Keys that this caller computes. An error instead of a grant: their server cannot be asked.
type KeyGrants<C> = Vec<(usize, Result<Grant<C>, Error>)>;
/// The type for `busy` of calls without such a function.
type NoCompute<K, T> = fn(Vec<K>) -> std::future::Ready<Vec<(K, T)>>;

/// A call for many keys.
struct ManyCall<'a, C: Cache + 'static, K, F> {
    herd: &'a Herd<C>,
    options: &'a Compute,
    all: &'a [UniqueKey<K>],
    compute: F,
}

/// The span of a call for many keys. Traces of its functions are inside it.
fn span() -> tracing::Span {
    tracing::debug_span!("get_or_compute_many")
}

impl<C: Cache + 'static> Herd<C> {
    /// The values of `keys`, each with its expiration, in the order of the keys; a key may occur several
    /// times. Keys that are missing or have expired, and that no other client computes, are given to
    /// `compute`, together and each once; it returns the values with their keys. A key that it leaves out is
    /// [`Outcome::NotComputed`]; keys that it was not given are ignored. Keys that other clients compute are
    /// waited for, while this one computes.
    ///
    /// When all keys are present this is one round trip to each server; computing takes two more, for locks
    /// and values. `compute` is called again if the right to compute further keys is got while waiting.
    /// [`Compute::expiration`] is not used.
    ///
    /// # Errors
    /// That of `compute`: others may then compute its keys. A key whose server cannot be asked has the error
    /// in its place. A value that cannot be read as `T` is removed, and computed again.
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
        self.many(keys, options, compute, None::<NoCompute<K, T>>).instrument(span()).await
    }

    /// The same, but instead of waiting `busy` is called, at once, with the keys that other clients compute;
    /// the values that it returns are the answers, as [`Outcome::Waited`]. Keys that it leaves out are
    /// [`Outcome::Busy`].
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
                all.push(UniqueKey { key, subject, expiration });
            }
            order.push(at);
        }
        let mut answers: Vec<KeyAnswer<T>> = all.iter().map(|_| KeyAnswer::none(Outcome::Busy)).collect();
        let mut asked = Vec::new();
        for (at, of) in all.iter().enumerate() {
            match key::check(&of.subject.key) {
                Ok(()) => asked.push(at),
                Err(error) => answers[at] = KeyAnswer::failed(Error::Key(error)),
            }
        }
        let deadline = Instant::now() + options.wait_time();
        let call = ManyCall { herd: self, options, all: &all, compute };
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
        for (at, answer) in found.into_iter().chain(computed).chain(waited) {
            answers[at] = answer;
        }
        let outcomes = order.into_iter().map(|at| {
            let key = &all[at].subject.key;
            let outcome = answers[at].outcome(key);
            self.metrics.outcome(key, outcome.as_ref().ok().map(Outcome::bare));
            outcome
        });
        Ok(outcomes.collect())
    }
}

impl<T: Value> KeyAnswer<T> {
    fn failed(error: Error) -> Self {
        Self { outcome: Err(error), value: None, stored: StoredValue::fresh(Bytes::new(), 0) }
    }

    /// The answer without a value.
    fn none(outcome: Outcome<()>) -> Self {
        Self { outcome: Ok(outcome), value: None, stored: StoredValue::fresh(Bytes::new(), 0) }
    }

    /// The answer with a value that was found.
    fn found(outcome: Outcome<()>, key: &[u8], stored: StoredValue) -> Result<Self, Error> {
        Ok(Self { outcome: Ok(outcome), value: Some(decode(key, stored.clone())?), stored })
    }

    fn outcome(&mut self, key: &[u8]) -> Result<Outcome<T>, Error> {
        let Self { outcome, value, stored } = self;
        outcome.clone()?.with(|| value.take().map_or_else(|| decode(key, stored.clone()), Ok))
    }
}

impl<C: Cache + 'static, K: Key + Clone, F> ManyCall<'_, C, K, F> {
    /// Asks for these keys, and for the right to compute missing or unreadable ones. The last result: keys
    /// that others compute.
    async fn ask<T: Value>(
        &self,
        mut keys: Vec<usize>,
    ) -> (Vec<(usize, KeyAnswer<T>)>, KeyGrants<C>, Vec<WaitingKey>) {
        let (mut answers, mut grants, mut waiting) = (Vec::new(), KeyGrants::new(), Vec::new());
        let mut tries = 0;
        while !keys.is_empty() {
            let mut unreadable = Vec::new();
            for (at, found) in self.acquire(&keys).await {
                let subject = &self.all[at].subject;
                match found {
                    Ok(SearchResult::Hit(stored)) => {
                        match KeyAnswer::found(Outcome::Hit(()), &subject.key, stored.clone()) {
                            Err(_) if tries < TRIES => unreadable.push((at, stored)),
                            hit => answers.push((at, hit.unwrap_or_else(KeyAnswer::failed))),
                        }
                    }
                    Ok(SearchResult::Stale(stored)) => {
                        match KeyAnswer::found(Outcome::Stale(()), &subject.key, stored) {
                            Ok(stale) => answers.push((at, stale)),
                            Err(_) => waiting.push(WaitingKey { takes_old: false, ..WaitingKey::new(at) }),
                        }
                    }
                    Ok(SearchResult::Compute(mut grant)) => {
                        // Callers of this process can join from now on.
                        self.herd.flights.begin(subject, &mut grant);
                        grants.push((at, Ok(grant)));
                    }
                    Ok(SearchResult::Busy(_) | SearchResult::Failed(_)) => waiting.push(WaitingKey::new(at)),
                    Err(error) if self.options.goes_on_after(&error) => grants.push((at, Err(error))),
                    Err(error) => answers.push((at, KeyAnswer::failed(error))),
                }
            }
            keys = unreadable.iter().map(|(at, _)| *at).collect();
            join(unreadable.iter().map(|(at, stored)| async move {
                let search = self.search(WaitingKey::new(*at), 1, Instant::now());
                self.herd.remove_unreadable(&search, stored, tries > 0).await;
            }))
            .await;
            tries += 1;
        }
        grants.sort_by_key(|(at, _)| *at);
        waiting.sort_by_key(|waiting| waiting.at);
        (answers, grants, waiting)
    }

    /// Runs as a task of its own, so that grants of a dropped caller are given up.
    async fn acquire(&self, keys: &[usize]) -> Vec<(usize, Result<StoredResult<C>, Error>)> {
        let subjects: Vec<_> = keys.iter().map(|at| self.all[*at].subject.clone()).collect();
        let (place, options) = (self.herd.place.clone(), self.options.clone());
        let found = tokio::spawn(async move {
            place.acquire_many(&subjects, |keys| terms(options.batch_time(keys), true)).await
        });
        let found = found.await.unwrap_or_else(|error| {
            let ended = Error::Usage(format!("the task that asks the servers has ended: {error}"));
            keys.iter().map(|_| Err(ended.clone())).collect()
        });
        keys.iter().copied().zip(found).collect()
    }

    fn search(&self, waiting: WaitingKey, keys: usize, deadline: Instant) -> Search {
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
    async fn compute<T, E, Fut, M>(&self, granted: KeyGrants<C>) -> Result<Vec<(usize, KeyAnswer<T>)>, E>
    where
        T: Value,
        F: Fn(Vec<K>) -> Fut,
        Fut: Future<Output = Result<M, E>>,
        M: IntoIterator<Item = (K, T)>,
    {
        let keys = granted.iter().map(|(at, _)| self.all[*at].key.clone()).collect();
        let named = granted.iter().map(|(at, _)| self.all[*at].subject.key.clone());
        let mut computation = self.herd.metrics.computing(named);
        let values = (self.compute)(keys).await;
        computation.has_run();
        let values = match values {
            Ok(values) => values,
            Err(error) => {
                let grants = granted.into_iter().filter_map(|(_, grant)| grant.ok());
                // The caller gets the first error.
                drop(end_all(grants.map(|grant| (grant, ComputationResult::Nothing(None))).collect()).await);
                return Err(error);
            }
        };
        let mut values = by_key(values);
        let mut answers = Vec::new();
        let (mut endings, mut ended, mut not_asked) = (Vec::new(), Vec::new(), Vec::new());
        for (at, grant) in granted {
            let of = &self.all[at];
            let fill = values.remove(&of.subject.key).map(|value| {
                let fill = self.herd.fill(&of.subject.key, &value, self.options, of.expiration);
                fill.map(|fill| (value, fill))
            });
            let (answer, ending) = match fill {
                Some(Ok((value, fill))) => {
                    let stored = StoredValue::fresh(fill.data.clone(), fill.flags);
                    let outcome = Ok(Outcome::Computed { value: (), stored: false });
                    (KeyAnswer { outcome, value: Some(value), stored }, ComputationResult::Value(fill))
                }
                Some(Err(error)) => (KeyAnswer::failed(error), ComputationResult::Nothing(None)),
                None => (KeyAnswer::none(Outcome::NotComputed), ComputationResult::Nothing(None)),
            };
            match grant {
                Ok(grant) => {
                    endings.push((grant, ending));
                    ended.push(answers.len());
                }
                Err(error) => not_asked.push((answers.len(), Err(NotStored::of(error)))),
            }
            answers.push((at, answer));
        }
        let ended = ended.into_iter().zip(end_all(endings).await.into_iter().map(kept));
        for (at, end) in ended.chain(not_asked) {
            if let Ok(Outcome::Computed { stored, .. }) = &mut answers[at].1.outcome {
                self.options.not_stored.tell(computation.key(at), &end);
                *stored = end.is_ok();
                computation.ends(at, end);
            }
        }
        Ok(answers)
    }

    /// Waits for the values that other clients compute.
    async fn wait<T, E, Fut, M, B, Busy, N>(
        &self,
        keys: Vec<WaitingKey>,
        busy: Option<B>,
        deadline: Instant,
    ) -> Result<Vec<(usize, KeyAnswer<T>)>, E>
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
        // Each key waits separately, so that callers of this process that wait for the same key share
        // requests.
        let mut finding = JoinSet::new();
        let find = |finding: &mut JoinSet<_>, waiting: WaitingKey| {
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
            let mut granted: KeyGrants<C> = Vec::new();
            let mut next = Some(found);
            while let Some(found) = next.take() {
                // The task has ended with its runtime.
                let Ok((waiting, search, verdict)) = found else { break };
                let at = waiting.at;
                let key = search.key();
                match verdict {
                    Ok(SearchResult::Hit(stored)) => {
                        match KeyAnswer::found(Outcome::Hit(()), key, stored.clone()) {
                            Err(_) if waiting.unreadable < TRIES => {
                                self.herd.remove_unreadable(&search, &stored, waiting.unreadable > 0).await;
                                find(
                                    &mut finding,
                                    WaitingKey { unreadable: waiting.unreadable + 1, ..waiting },
                                );
                            }
                            hit => all.push((at, hit.unwrap_or_else(KeyAnswer::failed))),
                        }
                    }
                    Ok(SearchResult::Stale(stored)) => {
                        match KeyAnswer::found(Outcome::Stale(()), key, stored) {
                            Ok(stale) => all.push((at, stale)),
                            Err(_) => find(&mut finding, WaitingKey { takes_old: false, ..waiting }),
                        }
                    }
                    Ok(SearchResult::Compute(grant)) => granted.push((at, Ok(grant))),
                    Ok(SearchResult::Busy(_) | SearchResult::Failed(_)) => {}
                    Err(error) if self.options.goes_on_after(&error) => granted.push((at, Err(error))),
                    Err(error) => all.push((at, KeyAnswer::failed(error))),
                }
                next = finding.try_join_next();
                if next.is_none() && !granted.is_empty() && !finding.is_empty() {
                    // Keys that are granted together are computed together.
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
    ) -> Vec<(usize, KeyAnswer<T>)> {
        let mut values = by_key(values);
        let answer = |at: &usize| {
            let key = &self.all[*at].subject.key;
            let value = values.remove(key)?;
            // The value is stored nowhere, and a repeated key needs it twice.
            let answer = match value::encode(&value, None) {
                Ok((data, flags)) => {
                    let outcome = Ok(Outcome::Waited(()));
                    KeyAnswer { outcome, value: Some(value), stored: StoredValue::fresh(data, flags) }
                }
                Err(message) => KeyAnswer::failed(unreadable(key, message)),
            };
            Some((*at, answer))
        };
        keys.iter().filter_map(answer).collect()
    }
}

fn by_key<K: Key, T>(values: impl IntoIterator<Item = (K, T)>) -> HashMap<Bytes, T> {
    values.into_iter().map(|(key, value)| (Bytes::copy_from_slice(key.bytes()), value)).collect()
}
