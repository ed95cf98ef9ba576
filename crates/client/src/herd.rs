//! Computing missing values once: `get_or_compute`, for one key and for many, and `fetch_or_compute`.
//!
//! The same calls work over any server. A server with leases (Cattlegrid, for keys under a rule) names the client that
//! computes, holds the requests of the others until the value is there, and refuses values that were computed before a
//! delete. Over any other server clients do this themselves, with a header before each value (`herd/envelope.rs` has it byte
//! by byte) and with `add`, `gets` and `cas` (`herd/plain.rs`). Which of the two applies is seen from each reply: a ring may
//! mix servers, and a server may have leases for some keys.
//!
//! # What is guaranteed over a server without leases
//! One client computes a missing value, unless: the computation takes longer than `compute_time`; the lock is evicted, flushed,
//! deleted or invalidated; the server is restarted; the function fails, panics or is dropped; clocks of clients differ by
//! more than is left of `compute_time`. A client that dies while it computes keeps others from it for `compute_time`.
//!
//! A value computed before a delete is not stored after it, if the computation takes no longer than `compute_time` (rounded
//! up to whole seconds): later, servers may have dropped the lock because its time has passed, which looks like a delete, and
//! the value is stored.
//!
//! # Clocks
//! Expiries of values are compared with this machine's clock. Servers count seconds on their own and drop every item at its
//! expiry and grace, so that a wrong clock can cost computations, or serve an expired value within its grace as fresh, but no longer.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::cache::Cache;

mod client;
mod envelope;
mod fetch;
mod flights;
mod grant;
mod many;
mod one;
mod options;
mod plain;

pub use fetch::{Fetch, Fetched, Token};
pub(crate) use flights::Flights;
use grant::Place;
pub use options::{Compute, ComputeError, Outcome, WhenUnavailable};

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
    place: Place<C>,
    flights: Arc<Flights<C>>,
    compress_above: Option<usize>,
}

impl<C: Cache + 'static> Herd<C> {
    /// Over this connection.
    pub fn new(cache: C) -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the reader of the clock")]
        Self::with_clock(cache, SystemTime::now)
    }

    /// The same with another clock, for tests.
    pub fn with_clock(cache: C, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        let place = Place { cache: Arc::new(cache), clock: Arc::new(clock) };
        Self { place, flights: Arc::new(Flights::new()), compress_above: None }
    }

    /// Values of more than this many bytes are stored compressed if that makes them smaller (feature `compression`). By default
    /// none is.
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

impl<C: Cache + 'static> Clone for Herd<C> {
    fn clone(&self) -> Self {
        let compress_above = self.compress_above;
        Self { place: self.place.clone(), flights: Arc::clone(&self.flights), compress_above }
    }
}

impl<C: Cache + 'static> fmt::Debug for Herd<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Herd").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}
