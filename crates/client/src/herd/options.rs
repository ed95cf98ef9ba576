//! How values are computed, and what comes back.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::kept::{NotStored, NotStoredHook};
use super::plain::LockTerms;
use crate::calls::setters;
use crate::error::Error;
use crate::item::Expiration;

/// `compute_time` if none is given.
const COMPUTE_TIME: Duration = Duration::from_secs(2);
/// `wait` if neither it nor `compute_time` is given.
const WAIT: Duration = Duration::from_millis(100);
/// Longest and shortest time that counts.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const SHORTEST: Duration = Duration::from_millis(1);

/// How a value is computed and stored.
///
/// ```
/// # use std::time::Duration;
/// # use cattlegrid_client::Compute;
/// let options = Compute::new().expiration(Duration::from_secs(60)).compute_time(Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Compute {
    time: Option<Duration>,
    batch_time: Option<Duration>,
    pub(super) expiration: Expiration,
    wait: Option<Duration>,
    unavailable: WhenUnavailable,
    pub(super) not_stored: NotStoredHook,
}

/// The behaviour when the server of a key cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenUnavailable {
    /// The call fails.
    #[default]
    Fail,
    /// The value is computed, by every caller, and not stored.
    Compute,
}

impl Compute {
    /// Values that never expire, and take up to 2 s to compute.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn lock_time(&self) -> Duration {
        self.time.unwrap_or(COMPUTE_TIME).clamp(SHORTEST, LONGEST)
    }

    pub(super) fn batch_time(&self, keys: usize) -> Duration {
        let sum = || self.lock_time().saturating_mul(u32::try_from(keys).unwrap_or(u32::MAX));
        self.batch_time.unwrap_or_else(sum).clamp(SHORTEST, LONGEST)
    }

    /// How long an expired value is kept: `compute_time` and a second.
    pub(super) fn grace(&self) -> Duration {
        self.lock_time() + Duration::from_secs(1)
    }

    pub(super) fn wait_time(&self) -> Duration {
        let given = self.time.map(|time| time.clamp(SHORTEST, LONGEST));
        self.wait.or(given).unwrap_or(WAIT).min(LONGEST)
    }

    /// Whether computing goes on after this error.
    pub(super) fn goes_on_after(&self, error: &Error) -> bool {
        self.unavailable == WhenUnavailable::Compute
            && !matches!(error, Error::Key(_) | Error::Usage(_) | Error::Value { .. } | Error::NoTags)
    }
}

setters! {
impl Compute {
    /// A high estimate of the time it takes to compute a value: 2 s by default. When it has passed, another
    /// client may compute the value as well. It is also how long an expired value is kept and served while a
    /// new one is computed, and a second longer: over servers without leases; a server with leases has its
    /// own `grace`. At least 1 ms and at most a day; other times count as these.
    pub fn compute_time(time: Duration) => time = Some(time);

    /// The time it takes to compute all missing values of a
    /// [`get_or_compute_many`](crate::Herd::get_or_compute_many): by default `compute_time` for each. The
    /// same limits.
    pub fn batch_compute_time(time: Duration) => batch_time = Some(time);

    /// When the computed value expires: by default never. A number of seconds is taken in memcached's form: 0
    /// is never, above 30 days it is a Unix time.
    pub fn expiration(expiration: impl Into<Expiration>) => expiration = expiration.into();

    /// How long to wait for a value that another client computes, if there is no old value. By default
    /// `compute_time` if that was given, else 100 ms. Zero: not at all. At most a day; longer times count as
    /// that.
    ///
    /// * Callers of one key and its tags in this process share what is asked. If a computation of this
    ///   process runs they get its value when it is stored; the server is asked all the same, whether the key
    ///   was deleted since and another computation is due: at once, and again every 100 ms, or by a request
    ///   that it holds.
    /// * Over a server without leases (memcached, or a key without a rule) the key is read again after 5 ms,
    ///   then after pauses that grow by half, up to 100 ms. The value is found up to one pause late.
    /// * A server with leases holds one request of this process until the value is there, for as long as the
    ///   rule's `hold` allows; it answers at once. When that has passed, or the server cannot hold it, the
    ///   key is read again after the same pauses.
    /// * [`get_or_compute_many`](crate::Herd::get_or_compute_many) reads each missing key again after the
    ///   same pauses, over any server.
    ///
    /// A caller that waits computes the value itself when the other client has failed, has given up, or has
    /// taken longer than its `compute_time` (over a server with leases: longer than the lease, which the rule
    /// may limit). When the wait has passed, the outcome is [`Outcome::Busy`].
    pub fn wait(wait: Duration) => wait = Some(wait);

    /// Sets the behaviour when the server of the key cannot be asked: by default the call fails.
    pub fn when_unavailable(what: WhenUnavailable) => unavailable = what;

    /// Calls a function for each value that was computed and is not in the cache, with its key: why. For a
    /// call, as [`Observer::not_stored`](crate::Observer::not_stored) is for a client. It must not block.
    ///
    /// ```
    /// # use cattlegrid_client::Compute;
    /// let options = Compute::new().on_not_stored(|key, why| eprintln!("{}: {why}", key.escape_ascii()));
    /// ```
    pub fn on_not_stored(tell: impl Fn(&[u8], &NotStored) + Send + Sync + 'static) => not_stored = NotStoredHook(Some(Arc::new(tell)));
}
}

/// The terms of a lock that is valid for this long.
pub(super) fn terms(time: Duration, stale: bool) -> LockTerms {
    let lock_ms = time.as_millis() as u64;
    LockTerms { lock_ms, keep_s: lock_ms.div_ceil(1000) as u32 + 2, stale, awaited: None }
}

/// The result of [`get_or_compute`](crate::Herd::get_or_compute).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome<T> {
    /// The value was in the cache, or another caller has just computed it.
    Hit(T),
    /// The old value: it has expired, and another client computes the new one.
    Stale(T),
    /// This caller has computed the value.
    Computed {
        /// The value.
        value: T,
        /// Whether it is in the cache now. It is not if the key was deleted or changed, or its tag
        /// invalidated, while it was computed, or if the computation took longer than `compute_time` and
        /// another client has begun one; nor if the value has expired already, or the server could not store
        /// it: over a server with leases also if more keys are computed at the same time than it has leases
        /// for, which are 1,024 for each MiB of its `ledger_memory`. Which of these it was is told to
        /// [`Compute::on_not_stored`] and [`Observer::not_stored`](crate::Observer::not_stored), and counted
        /// in [`Statistics`](crate::Statistics).
        stored: bool,
    },
    /// Another client computes the value: this is what the caller's own function has returned.
    Waited(T),
    /// Another client computes the value, and it was not there when the wait had passed.
    Busy,
    /// The function that computes many values has not returned one for this key.
    NotComputed,
}

impl<T> Outcome<T> {
    /// The value, however it came.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Hit(value) | Self::Stale(value) | Self::Computed { value, .. } | Self::Waited(value) => {
                Some(value)
            }
            Self::Busy | Self::NotComputed => None,
        }
    }

    /// The same without the value.
    pub(super) fn bare(&self) -> Outcome<()> {
        match self {
            Self::Hit(_) => Outcome::Hit(()),
            Self::Stale(_) => Outcome::Stale(()),
            Self::Computed { stored, .. } => Outcome::Computed { value: (), stored: *stored },
            Self::Waited(_) => Outcome::Waited(()),
            Self::Busy => Outcome::Busy,
            Self::NotComputed => Outcome::NotComputed,
        }
    }
}

impl Outcome<()> {
    /// The same with this value, if it has one.
    pub(super) fn with<T, E>(self, value: impl FnOnce() -> Result<T, E>) -> Result<Outcome<T>, E> {
        Ok(match self {
            Self::Hit(()) => Outcome::Hit(value()?),
            Self::Stale(()) => Outcome::Stale(value()?),
            Self::Computed { stored, .. } => Outcome::Computed { value: value()?, stored },
            Self::Waited(()) => Outcome::Waited(value()?),
            Self::Busy => Outcome::Busy,
            Self::NotComputed => Outcome::NotComputed,
        })
    }
}

/// Why [`get_or_compute`](crate::Herd::get_or_compute) has failed.
///
/// It is an error whatever `E` is, also for a text. Its source is the error of the function, or that behind
/// the cache's. Behind a `dyn Error` the source is known only of an `E` that is a boxed error,
/// [`std::io::Error`] or [`Error`]; [`boxed`](Self::boxed) keeps the chain of any other:
/// `.map_err(ComputeError::boxed)?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComputeError<E> {
    /// The cache has.
    Cache(Error),
    /// The caller's function has.
    Compute(E),
}

impl<E> From<Error> for ComputeError<E> {
    fn from(error: Error) -> Self {
        Self::Cache(error)
    }
}

impl<E: fmt::Display> fmt::Display for ComputeError<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(error) => error.fmt(formatter),
            Self::Compute(error) => error.fmt(formatter),
        }
    }
}

impl<E: fmt::Debug + fmt::Display + 'static> StdError for ComputeError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Cache(error) => error.source(),
            Self::Compute(error) => known(error),
        }
    }
}

impl<E: StdError + 'static> ComputeError<E> {
    /// The error of the function, or that behind the cache's.
    pub fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Cache(error) => error.source(),
            Self::Compute(error) => Some(error),
        }
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> ComputeError<E> {
    /// The error itself, whichever it is, with the chain of its sources.
    pub fn boxed(self) -> Box<dyn StdError + Send + Sync> {
        match self {
            Self::Cache(error) => error.into(),
            Self::Compute(error) => error.into(),
        }
    }
}

/// A value of any type as an error, if it is of one of these types: of a type that need not be an error it
/// cannot be asked whether it is.
fn known(error: &dyn Any) -> Option<&(dyn StdError + 'static)> {
    type SendSyncError = Box<dyn StdError + Send + Sync>;
    type SendError = Box<dyn StdError + Send>;
    if let Some(error) = error.downcast_ref::<SendSyncError>() {
        return Some(&**error);
    }
    if let Some(error) = error.downcast_ref::<SendError>() {
        return Some(&**error);
    }
    if let Some(error) = error.downcast_ref::<Box<dyn StdError>>() {
        return Some(&**error);
    }
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return Some(error);
    }
    error.downcast_ref::<Error>().map(|error| -> &(dyn StdError + 'static) { error })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Duration = Duration::ZERO;
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_wait_is_as_turnstile_documents_it() {
        assert_eq!(Compute::new().wait_time(), Duration::from_millis(100));
        assert_eq!(Compute::new().compute_time(MS * 700).wait_time(), MS * 700);
        assert_eq!(Compute::new().compute_time(MS * 700).wait(MS).wait_time(), MS);
        assert_eq!(Compute::new().wait(ZERO).wait_time(), ZERO);
        assert_eq!(Compute::new().lock_time(), Duration::from_secs(2));
    }

    #[test]
    fn extreme_times_count_as_the_nearest_that_is_possible() {
        let extreme = |time| Compute::new().compute_time(time).wait(time).batch_compute_time(time);
        let longest = extreme(Duration::MAX);
        assert_eq!([longest.lock_time(), longest.wait_time(), longest.batch_time(3)], [LONGEST; 3]);
        assert_eq!(Compute::new().batch_time(usize::MAX), LONGEST);
        assert_eq!(terms(LONGEST, true).keep_s, 86_402);
        let none = extreme(ZERO);
        assert_eq!([none.lock_time(), none.wait_time(), none.batch_time(0)], [SHORTEST, ZERO, SHORTEST]);
        assert_eq!((terms(SHORTEST, true).lock_ms, terms(SHORTEST, true).keep_s), (1, 3));
        assert_eq!(Compute::new().compute_time(ZERO).wait_time(), SHORTEST);
    }

    #[test]
    fn a_batch_locks_for_the_sum_or_for_what_is_given() {
        let options = Compute::new().compute_time(MS * 300);
        assert_eq!(options.batch_time(4), MS * 1200);
        assert_eq!(options.batch_compute_time(MS * 500).batch_time(4), MS * 500);
    }
}
