//! What a client counts, and tells an [`Observer`] and `tracing`.
//!
//! Names of events: `connected` and `disconnected` (debug), `ejected` and `returned` (warn), `computed` (debug). Their fields are
//! `server`, `message`, `duration`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Is told what a [`Client`](crate::Client) does, as it happens: for metrics of a program's own. All methods do nothing unless they are
/// defined.
///
/// They are called by the tasks that do the work, so they must be quick and must not block.
pub trait Observer: Send + Sync {
    /// A request has ended. `command` is that of memcached: `get` stands for all reads and for calls of objects. Of a call with many keys, each key's request ends by itself.
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

    /// A function of `get_or_compute` has run for this long. `stored`: its value is in the cache; false: it failed, or was too late.
    fn computed(&self, duration: Duration, stored: bool) {
        let _ = (duration, stored);
    }

    /// `get_or_compute` has ended for a key.
    fn outcome(&self, source: Source) {
        let _ = source;
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

/// Where `get_or_compute` has a value from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// From this process's own memory (feature `near-cache`).
    Near,
    /// From the server.
    Hit,
    /// From the server, after another client has computed it.
    Waited,
    /// The old value: another client computes.
    Stale,
    /// This call has computed it.
    Computed,
    /// There was none: another client still computes.
    Busy,
    /// There was none: an error.
    Failed,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a client has counted since it was built: a snapshot. The counters are read one after the other, while the client works.
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
    /// Functions of `get_or_compute` that have run.
    computations,
    /// Those of them whose value was not stored: they failed, or were too late.
    not_stored,
    /// Old values that `get_or_compute` has returned while another client computes.
    stale,
    /// Keys for which `get_or_compute` had no value because another client computes.
    busy,
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

    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
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

    pub(crate) fn computed(&self, duration: Duration, stored: bool) {
        add(&self.counters.computations);
        if !stored {
            add(&self.counters.not_stored);
        }
        tracing::debug!(?duration, stored, "computed");
        self.tell(|observer| observer.computed(duration, stored));
    }

    pub(crate) fn outcome(&self, source: Source) {
        match source {
            Source::Near => add(&self.counters.near_hits),
            Source::Stale => add(&self.counters.stale),
            Source::Busy => add(&self.counters.busy),
            _ => {}
        }
        self.tell(|observer| observer.outcome(source));
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

        fn outcome(&self, source: Source) {
            self.0.lock().unwrap().push(format!("{source:?}"));
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
        metrics.computed(Duration::from_secs(1), false);
        metrics.outcome(Source::Busy);
        let counted = metrics.statistics();
        assert_eq!((counted.requests, counted.hits, counted.misses), (5, 1, 1));
        assert_eq!((counted.errors, counted.timeouts), (2, 1));
        assert_eq!((counted.ejections, counted.connections), (1, 1));
        assert_eq!((counted.computations, counted.not_stored, counted.busy), (1, 1, 1));
        let told = notes.0.lock().unwrap().join(", ");
        assert_eq!(
            told,
            "s:1 get Hit, s:1 get Miss, s:1 get Done, s:1 get Timeout, s:1 ejected: refused, Busy"
        );
    }

    #[test]
    fn nothing_is_timed_for_nobody() {
        assert_eq!(Metrics::new(None).begin(), None);
    }
}
