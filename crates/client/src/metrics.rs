//! Statistics of a client, and the events that it reports to an [`Observer`] and to `tracing`.
//!
//! Names of events: `connected` and `disconnected` (debug), `ejected` and `returned` (warn) with `server` and
//! `message`; `servers` (info) with `servers`, and `no list` (debug) with `message`, of the list of nodes;
//! `computed` (debug) with `key`, `duration` and `stored`; `not stored` (debug) with `key` and `why`;
//! `get_or_compute` (debug) with `key` and `outcome`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::error::Error;
use crate::herd::{NotStored, Outcome, StoreResult};

/// Is told what a [`Client`](crate::Client) does, as it happens: for metrics of a program's own. All methods
/// do nothing unless they are defined.
///
/// They are called by the tasks that do the work, so they must be quick and must not block.
pub trait Observer: Send + Sync {
    /// A request has ended. `command` is that of memcached: `get` stands for all reads and for calls of
    /// objects. Of a call with many keys, each key's request ends by itself.
    fn request(&self, server: &str, command: &'static str, duration: Duration, outcome: RequestOutcome) {
        let _ = (server, command, duration, outcome);
    }

    /// A connection to this server was made.
    fn connected(&self, server: &str) {
        let _ = server;
    }

    /// A connection has ended, or could not be made: why.
    fn disconnected(&self, server: &str, message: &str) {
        let _ = (server, message);
    }

    /// A server has failed too often, and its keys go to the others: why.
    fn ejected(&self, server: &str, message: &str) {
        let _ = (server, message);
    }

    /// An ejected server has its keys again.
    fn returned(&self, server: &str) {
        let _ = server;
    }

    /// The servers are these from now on: the list of nodes has changed.
    fn servers(&self, servers: &[&str]) {
        let _ = servers;
    }

    /// The function of `get_or_compute` has run for this long. `stored`: its value is in the cache; false: it
    /// is not, or the function has failed or was dropped. After a call for many keys it is called for each
    /// key with the duration of the whole. For a token of `fetch_or_compute` the duration is that from the
    /// token to the value.
    fn computed(&self, key: &[u8], duration: Duration, stored: bool) {
        let _ = (key, duration, stored);
    }

    /// A value was computed and is not in the cache: why. It is called after [`computed`](Self::computed) of
    /// the same key.
    fn not_stored(&self, key: &[u8], why: &NotStored) {
        let _ = (key, why);
    }

    /// `get_or_compute` has ended for a key: with this outcome, or None if it has failed. A call that is
    /// dropped has no outcome.
    ///
    /// Of `fetch_or_compute` a hit and a delivered value are [`Outcome::Hit`], and the outcome of a token is
    /// [`Outcome::Computed`] when its value is delivered, or None if there will be none.
    fn outcome(&self, key: &[u8], outcome: Option<Outcome<()>>) {
        let _ = (key, outcome);
    }
}

/// How a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// A value was found.
    Hit,
    /// None was found.
    Miss,
    /// Any other reply except an error.
    Done,
    /// No reply within the timeout.
    Timeout,
    /// Any other error.
    Error,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Statistics of a client since it was built: a snapshot. The counters are read one after the other,
        /// while the client works.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn read(&self) -> Statistics {
                Statistics { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests that have ended, one for each key.
    requests,
    /// Requests that have found a value.
    hits,
    /// Requests that found none.
    misses,
    /// Requests that have ended with an error, timeouts included.
    errors,
    /// Requests without a reply within the timeout.
    timeouts,
    /// Requests that were sent once more after an error.
    retries,
    /// Connections that were made.
    connections,
    /// Connections that have ended, or could not be made.
    disconnections,
    /// Servers that were ejected.
    ejections,
    /// Servers that have come back.
    returns,
    /// Times that the servers have changed, because the list of nodes had.
    server_changes,
    /// Times that a node was asked for the list of nodes, and had none or did not answer.
    lists_failed,
    /// Keys whose values were computed here, or were not because the function failed: one for each key.
    computations,
    /// Keys whose value `get_or_compute` or `fetch_or_compute` has found. Each key that these have ended for
    /// counts here or as `stale`, `computed`, `waited`, `busy` or `failed`.
    found,
    /// Keys whose old value was returned, while another client computes.
    stale,
    /// Keys whose value was computed here.
    computed,
    /// Those of them whose value is not in the cache: it was refused, since the key or a tag of it was
    /// invalidated or the computation has taken too long, or it could not be stored.
    not_stored,
    /// Values that were not stored because the key was deleted or changed, or a tag of it invalidated.
    not_stored_fenced,
    /// Values that were not stored because computing took longer than `compute_time`.
    not_stored_late,
    /// Values that were not stored because they had expired already.
    not_stored_expired,
    /// Values that were not stored because they are too large for the server.
    not_stored_too_large,
    /// Values that were not stored because the server had no lease for the key.
    not_stored_no_lease,
    /// Values that were not stored because the server could not be asked or has refused them for another
    /// reason.
    not_stored_failed,
    /// Keys whose value is what the caller's own function has returned, while another client computes.
    waited,
    /// Keys without a value, because another client computes.
    busy,
    /// Keys without a value, because of an error or because the function has failed or has not returned one.
    failed,
    /// Values that could not be read as what the caller of `get_or_compute` or `fetch_or_compute` wants, and
    /// were computed again: an old version of a program has stored them, or another one under the same key.
    unreadable,
    /// Reads that were answered from this process's own memory.
    near_hits,
}

/// The counters of a client, and its observer.
#[derive(Default)]
pub(crate) struct Metrics {
    counters: Counters,
    observer: Option<Arc<dyn Observer>>,
}

impl Metrics {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self { counters: Counters::default(), observer }
    }

    /// The same observer, and nothing counted yet.
    pub(crate) fn anew(&self) -> Self {
        Self::new(self.observer.clone())
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.counters.read()
    }

    /// The time at which a request begins, if anyone wants to know its duration.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.observer.as_ref().map(|_| Instant::now())
    }

    /// A request has ended that began at [`begin`](Self::begin).
    pub(crate) fn request(
        &self,
        server: &str,
        command: &'static str,
        began: Option<Instant>,
        outcome: RequestOutcome,
    ) {
        let counters = &self.counters;
        add(&counters.requests);
        match outcome {
            RequestOutcome::Hit => add(&counters.hits),
            RequestOutcome::Miss => add(&counters.misses),
            RequestOutcome::Done => {}
            RequestOutcome::Timeout => {
                add(&counters.timeouts);
                add(&counters.errors);
            }
            RequestOutcome::Error => add(&counters.errors),
        }
        if let (Some(observer), Some(began)) = (&self.observer, began) {
            observer.request(server, command, began.elapsed(), outcome);
        }
    }

    pub(crate) fn retry(&self) {
        add(&self.counters.retries);
    }

    pub(crate) fn connected(&self, server: &str) {
        add(&self.counters.connections);
        tracing::debug!(server, "connected");
        self.tell(|observer| observer.connected(server));
    }

    pub(crate) fn disconnected(&self, server: &str, message: &str) {
        add(&self.counters.disconnections);
        tracing::debug!(server, message, "disconnected");
        self.tell(|observer| observer.disconnected(server, message));
    }

    pub(crate) fn ejected(&self, server: &str, message: &str) {
        add(&self.counters.ejections);
        tracing::warn!(server, message, "ejected");
        self.tell(|observer| observer.ejected(server, message));
    }

    pub(crate) fn returned(&self, server: &str) {
        add(&self.counters.returns);
        tracing::warn!(server, "returned");
        self.tell(|observer| observer.returned(server));
    }

    /// The list of nodes has changed.
    pub(crate) fn servers(&self, servers: &[&str]) {
        add(&self.counters.server_changes);
        tracing::info!(?servers, "servers");
        self.tell(|observer| observer.servers(servers));
    }

    /// A node has no list of nodes.
    pub(crate) fn no_list(&self, error: &Error) {
        add(&self.counters.lists_failed);
        tracing::debug!(message = %error, "no list");
    }

    /// A computation begins, of these keys.
    pub(crate) fn computing(self: &Arc<Self>, keys: impl IntoIterator<Item = Bytes>) -> Computation {
        let keys = keys.into_iter().map(|key| (key, None)).collect();
        Computation {
            metrics: Arc::clone(self),
            keys,
            began: Instant::now(),
            duration: None,
            is_token: false,
        }
    }

    fn computed(&self, key: &[u8], duration: Duration, stored: bool) {
        add(&self.counters.computations);
        tracing::debug!(key = %key.escape_ascii(), ?duration, stored, "computed");
        self.tell(|observer| observer.computed(key, duration, stored));
    }

    fn not_stored(&self, key: &[u8], why: &NotStored) {
        let counters = &self.counters;
        add(match why {
            NotStored::Fenced => &counters.not_stored_fenced,
            NotStored::Late => &counters.not_stored_late,
            NotStored::Expired => &counters.not_stored_expired,
            NotStored::TooLarge => &counters.not_stored_too_large,
            NotStored::NoLease => &counters.not_stored_no_lease,
            NotStored::Failed(_) => &counters.not_stored_failed,
        });
        tracing::debug!(key = %key.escape_ascii(), why = why.name(), "not stored");
        self.tell(|observer| observer.not_stored(key, why));
    }

    /// Computing has ended for a key; None: it has failed.
    pub(crate) fn outcome(&self, key: &[u8], outcome: Option<Outcome<()>>) {
        let counters = &self.counters;
        let (counter, name) = match outcome {
            Some(Outcome::Hit(())) => (&counters.found, "hit"),
            Some(Outcome::Stale(())) => (&counters.stale, "stale"),
            Some(Outcome::Computed { .. }) => (&counters.computed, "computed"),
            Some(Outcome::Waited(())) => (&counters.waited, "waited"),
            Some(Outcome::Busy) => (&counters.busy, "busy"),
            Some(Outcome::NotComputed) => (&counters.failed, "not computed"),
            None => (&counters.failed, "failed"),
        };
        add(counter);
        if let Some(Outcome::Computed { stored: false, .. }) = outcome {
            add(&counters.not_stored);
        }
        tracing::debug!(key = %key.escape_ascii(), outcome = name, "get_or_compute");
        self.tell(|observer| observer.outcome(key, outcome));
    }

    /// A value cannot be read as what is wanted.
    pub(crate) fn unreadable(&self) {
        add(&self.counters.unreadable);
    }

    /// A plain read was answered from this process's own memory.
    pub(crate) fn near_hit(&self) {
        add(&self.counters.near_hits);
    }

    fn tell(&self, call: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = &self.observer {
            call(&**observer);
        }
    }
}

/// A computation that is under way. What is told of it when it is dropped: keys that have no end by then have
/// failed.
pub(crate) struct Computation {
    metrics: Arc<Metrics>,
    /// With their ends: whether the value is in the cache.
    keys: Vec<(Bytes, Option<StoreResult>)>,
    began: Instant,
    duration: Option<Duration>,
    is_token: bool,
}

impl Computation {
    /// With its end the call ends that has got the right to compute.
    pub(crate) fn of_token(mut self) -> Self {
        self.is_token = true;
        self
    }

    /// The function has returned; what comes now is storing.
    pub(crate) fn has_run(&mut self) {
        self.duration = Some(self.began.elapsed());
    }

    /// The key at this place has a value, and this is whether it is in the cache.
    pub(crate) fn ends(&mut self, at: usize, kept: StoreResult) {
        self.keys[at].1 = Some(kept);
    }

    /// The key at this place.
    pub(crate) fn key(&self, at: usize) -> &[u8] {
        &self.keys[at].0
    }

    /// Ends the observation here: the call's result is reported elsewhere.
    pub(crate) fn leaves(mut self) {
        self.keys.clear();
    }
}

impl Drop for Computation {
    fn drop(&mut self) {
        let duration = self.duration.unwrap_or_else(|| self.began.elapsed());
        for (key, end) in &self.keys {
            self.metrics.computed(key, duration, matches!(end, Some(Ok(()))));
            if let Some(Err(why)) = end {
                self.metrics.not_stored(key, why);
            }
            if self.is_token {
                let computed = |kept: &StoreResult| Outcome::Computed { value: (), stored: kept.is_ok() };
                self.metrics.outcome(key, end.as_ref().map(computed));
            }
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counters.fmt(formatter)
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl Observer for Notes {
        fn request(&self, server: &str, command: &'static str, _: Duration, outcome: RequestOutcome) {
            self.0.lock().unwrap().push(format!("{server} {command} {outcome:?}"));
        }

        fn ejected(&self, server: &str, message: &str) {
            self.0.lock().unwrap().push(format!("{server} ejected: {message}"));
        }

        fn computed(&self, key: &[u8], _: Duration, stored: bool) {
            self.0.lock().unwrap().push(format!("{} computed {stored}", key.escape_ascii()));
        }

        fn outcome(&self, key: &[u8], outcome: Option<Outcome<()>>) {
            self.0.lock().unwrap().push(format!("{} {outcome:?}", key.escape_ascii()));
        }
    }

    #[test]
    fn events_are_counted_and_told() {
        let notes = Arc::new(Notes::default());
        let metrics = Metrics::new(Some(notes.clone()));
        for outcome in
            [RequestOutcome::Hit, RequestOutcome::Miss, RequestOutcome::Done, RequestOutcome::Timeout]
        {
            metrics.request("s:1", "get", metrics.begin(), outcome);
        }
        metrics.request("s:1", "get", None, RequestOutcome::Error);
        metrics.ejected("s:1", "refused");
        metrics.connected("s:1");
        let counted = metrics.statistics();
        assert_eq!((counted.requests, counted.hits, counted.misses), (5, 1, 1));
        assert_eq!((counted.errors, counted.timeouts), (2, 1));
        assert_eq!((counted.ejections, counted.connections), (1, 1));
        let told = notes.0.lock().unwrap().join(", ");
        assert_eq!(told, "s:1 get Hit, s:1 get Miss, s:1 get Done, s:1 get Timeout, s:1 ejected: refused");
    }

    #[test]
    fn each_outcome_has_its_counter() {
        let metrics = Metrics::default();
        let (value, times) = ((), [1, 2, 3, 4, 5, 6, 7, 8]);
        let outcomes = [
            Some(Outcome::Hit(())),
            Some(Outcome::Stale(())),
            Some(Outcome::Computed { value, stored: true }),
            Some(Outcome::Computed { value, stored: false }),
            Some(Outcome::Waited(())),
            Some(Outcome::Busy),
            Some(Outcome::NotComputed),
            None,
        ];
        for (outcome, times) in outcomes.into_iter().zip(times) {
            (0..times).for_each(|_| metrics.outcome(b"k", outcome.clone()));
        }
        let expected = Statistics {
            found: 1,
            stale: 2,
            computed: 3 + 4,
            not_stored: 4,
            waited: 5,
            busy: 6,
            failed: 7 + 8,
            ..Statistics::default()
        };
        assert_eq!(metrics.statistics(), expected);
    }

    #[test]
    fn a_computation_is_told_when_it_ends() {
        let notes = Arc::new(Notes::default());
        let metrics = Arc::new(Metrics::new(Some(notes.clone())));
        let key = |key: &'static str| Bytes::from_static(key.as_bytes());
        let mut computing = metrics.computing([key("a"), key("b"), key("c")]);
        computing.has_run();
        computing.ends(0, Ok(()));
        computing.ends(2, Err(NotStored::Fenced));
        drop(computing);
        let mut token = metrics.computing([key("d")]).of_token();
        token.ends(0, Ok(()));
        drop(token);
        drop(metrics.computing([key("e")]).of_token());
        assert_eq!(metrics.statistics().computations, 5);
        let told = notes.0.lock().unwrap().join(", ");
        let expected = "a computed true, b computed false, c computed false, d computed true, \
            d Some(Computed { value: (), stored: true }), e computed false, e None";
        assert_eq!(told, expected);
    }

    #[test]
    fn nothing_is_timed_for_nobody() {
        assert_eq!(Metrics::new(None).begin(), None);
    }
}
