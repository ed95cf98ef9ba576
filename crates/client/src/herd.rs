//! Computing missing values once: `get_or_compute`, for one key and for many, and `fetch_or_compute`.
//!
//! The same calls work over any server. A server with leases (Cattlegrid, for keys under a rule) names the
//! client that computes, holds the requests of the others until the value is there, and refuses values that
//! were computed before a delete. Over any other server clients do this themselves, with a header before each
//! value (`herd/envelope.rs` has it byte by byte) and with `add`, `gets` and `cas` (`herd/plain.rs`). Which
//! of the two applies is seen from each reply: a ring may mix servers, and a server may have leases for some
//! keys.
//!
//! # What is guaranteed over a server without leases
//! One client computes a missing value, unless: the computation takes longer than `compute_time`; the lock is
//! evicted, flushed, deleted or invalidated; the server is restarted; the function fails, panics or is
//! dropped; clocks of clients differ by more than is left of `compute_time`. A client that dies while it
//! computes keeps others from it for `compute_time`.
//!
//! A value computed before a delete is not stored after it, if the computation takes no longer than
//! `compute_time` (rounded up to whole seconds): later, servers may have dropped the lock because its time
//! has passed, which looks like a delete, and the value is stored.
//!
//! A result replaces its lock by the lock's CAS number, as the server has told it, without reading the lock
//! again, on a connection that was there before the lock: a server that was restarted counts anew, and the
//! server that has the keys of an ejected server counts by itself. If no such connection is left the lock is
//! read first, and compared by the random number in its header. Behind a proxy that hides restarts of servers
//! the number can be that of another item by chance: about one in the number of writes that the server has
//! counted since.
//!
//! # Clocks
//! Expiries of values are compared with this machine's clock. Servers count seconds on their own and drop
//! every item at its expiry and grace, so that a wrong clock can cost computations, or serve an expired value
//! within its grace as fresh, but no longer.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::cache::Cache;
use crate::item::system_time;
use crate::metrics::{Metrics, Observer, Statistics};

mod acquire;
mod client;
mod envelope;
mod fetch;
mod flights;
mod found;
mod grant;
mod kept;
mod many;
mod one;
mod options;
mod plain;
mod saved;

use acquire::ClockedCache;
pub use fetch::{Fetch, Fetched, Token};
pub(crate) use flights::Flights;
pub use kept::NotStored;
pub(crate) use kept::StoreResult;
pub use options::{Compute, ComputeError, Outcome, WhenUnavailable};
pub use saved::SavedToken;

/// Computes missing values once, over any [`Cache`]. Clones share requests and computations.
///
/// ```
/// # use cattlegrid_client::{Cache, Compute, ComputeError, Herd, Outcome};
/// # use std::time::Duration;
/// # async fn page<C: Cache + 'static>(herd: Herd<C>) -> Result<Option<String>, ComputeError<std::io::Error>> {
/// let options = Compute::new().expiration(Duration::from_secs(60));
/// let page = herd.get_or_compute("page:1", &options, || async { Ok("<h1>Hello</h1>".to_owned()) }).await?;
/// # Ok(page.value()) }
/// ```
pub struct Herd<C: Cache + 'static> {
    place: ClockedCache<C>,
    flights: Arc<Flights<C>>,
    metrics: Arc<Metrics>,
    compress_above: Option<usize>,
}

impl<C: Cache + 'static> Herd<C> {
    /// Over this connection.
    pub fn new(cache: C) -> Self {
        Self::over(place(cache))
    }

    /// The same with another clock, for tests.
    pub fn with_clock(cache: C, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self::over(ClockedCache { cache: Arc::new(cache), clock: Arc::new(clock) })
    }

    fn over(place: ClockedCache<C>) -> Self {
        Self { place, flights: Arc::new(Flights::new()), metrics: Arc::default(), compress_above: None }
    }

    /// Gets told what is computed from now on, and what is counted begins at 0: instead of the client's
    /// observer and counters, if the connection is a [`Client`](crate::Client).
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.metrics = Arc::new(Metrics::new(Some(observer)));
        self
    }

    /// Statistics: over a [`Client`](crate::Client) all that the client counts, over another connection only
    /// counters of computing.
    pub fn statistics(&self) -> Statistics {
        self.metrics.statistics()
    }

    /// Values of more than this many bytes are stored compressed if that makes them smaller (feature
    /// `compression`). By default none is.
    #[must_use]
    pub fn compress_above(mut self, bytes: Option<usize>) -> Self {
        self.compress_above = bytes;
        self
    }

    /// The connection.
    pub fn cache(&self) -> &C {
        &self.place.cache
    }

    /// Keys of which a request or a computation is under way in this process.
    pub fn under_way(&self) -> usize {
        self.flights.len()
    }
}

/// A connection with this machine's clock.
fn place<C>(cache: C) -> ClockedCache<C> {
    ClockedCache { cache: Arc::new(cache), clock: Arc::new(system_time) }
}

impl<C: Cache + 'static> Clone for Herd<C> {
    fn clone(&self) -> Self {
        let (flights, metrics) = (Arc::clone(&self.flights), Arc::clone(&self.metrics));
        Self { place: self.place.clone(), flights, metrics, compress_above: self.compress_above }
    }
}

impl<C: Cache + 'static> fmt::Debug for Herd<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Herd").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}
