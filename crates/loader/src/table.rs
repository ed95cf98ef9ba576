//! The jobs that run, by the token of their lease: so that a job can be withdrawn or raised, and shown.
//!
//! A job is entered before it is submitted, and its handle is noted after. In between the job may end, or
//! another thread may change it:
//!
//! * Thread A enters token 7 and submits its job. The job ends on the pool's thread, which removes token 7.
//!   Then A has the handle: it finds no entry, and drops the handle.
//! * A enters token 7. Thread B withdraws token 7: there is no handle yet, so the change is noted. Then A has
//!   the handle, finds the noted change and passes it on.
//!
//! # Invariants
//! * There is an entry for each job that was submitted and has not ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cattlegrid_pool::{JobHandle, Priority};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct JobTable {
    shards: [Mutex<HashMap<u64, LoadEntry>>; SHARDS],
}

/// A job that runs, or that waits for a worker.
#[derive(Debug)]
pub(crate) struct LoadEntry {
    pub(crate) loader: Arc<str>,
    pub(crate) is_refresh: bool,
    /// The job's priority when clients wait for it.
    pub(crate) urgent: Priority,
    handle: Option<JobHandle>,
    wish: Option<JobChange>,
}

/// What is left to do for a job whose load may have been withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobChange {
    Raise,
    /// A worker that has begun the job continues, and the result counts.
    Withdraw,
    /// The result does not count; a worker that has begun the job is told.
    Abandon,
}

/// The number of locks, so that threads seldom wait for each other.
const SHARDS: usize = 16;

impl LoadEntry {
    pub(crate) fn new(loader: Arc<str>, is_refresh: bool, urgent: Priority) -> Self {
        Self { loader, is_refresh, urgent, handle: None, wish: None }
    }

    fn grant(&mut self, wish: JobChange) {
        if wish == JobChange::Raise {
            self.is_refresh = false;
        }
        match (&self.handle, wish) {
            (Some(handle), JobChange::Raise) => handle.raise(self.urgent),
            (Some(handle), JobChange::Withdraw) => handle.withdraw(),
            (Some(handle), JobChange::Abandon) => handle.abandon(),
            // A withdrawn job need not be raised any more; an abandoned job counts as withdrawn.
            (None, JobChange::Raise)
                if matches!(self.wish, Some(JobChange::Withdraw | JobChange::Abandon)) => {}
            (None, JobChange::Withdraw) if self.wish == Some(JobChange::Abandon) => {}
            (None, _) => self.wish = Some(wish),
        }
    }
}

impl JobTable {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Adds a job that is about to be submitted.
    pub(crate) fn enter(&self, token: u64, entry: LoadEntry) {
        self.shard(token).insert(token, entry);
    }

    /// Records the handle of a job that was submitted.
    pub(crate) fn note(&self, token: u64, handle: JobHandle) {
        if let Some(entry) = self.shard(token).get_mut(&token) {
            entry.handle = Some(handle);
            if let Some(wish) = entry.wish.take() {
                entry.grant(wish);
            }
        }
    }

    /// Removes a job that has ended.
    pub(crate) fn remove(&self, token: u64) {
        self.shard(token).remove(&token);
    }

    /// Changes a job; does nothing if it has ended.
    pub(crate) fn wish(&self, token: u64, wish: JobChange) {
        if let Some(entry) = self.shard(token).get_mut(&token) {
            entry.grant(wish);
        }
    }

    /// Takes back all jobs of these loaders that no worker has begun, in the order in which they were
    /// ordered.
    pub(crate) fn withdraw_all(&self, is_of: impl Fn(&str) -> bool) {
        let mut tokens: Vec<u64> = Vec::new();
        for shard in &self.shards {
            let entries = lock(shard);
            tokens.extend(entries.iter().filter(|(_, entry)| is_of(&entry.loader)).map(|(token, _)| *token));
        }
        tokens.sort_unstable();
        for token in tokens {
            self.wish(token, JobChange::Withdraw);
        }
    }

    /// Shows a job, if it has not ended.
    pub(crate) fn show<R>(&self, token: u64, look: impl FnOnce(&LoadEntry) -> R) -> Option<R> {
        self.shard(token).get(&token).map(look)
    }

    /// Jobs that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    fn shard(&self, token: u64) -> MutexGuard<'_, HashMap<u64, LoadEntry>> {
        lock(&self.shards[token as usize % SHARDS])
    }
}

fn lock(shard: &Mutex<HashMap<u64, LoadEntry>>) -> MutexGuard<'_, HashMap<u64, LoadEntry>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
