//! A value that is computed elsewhere than where it is asked for: the right to compute it is a token.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::acquire::Subject;
use super::flights::RequestGroup;
use super::found::SearchResult;
use super::grant::{ComputationResult, ComputedValue, Grant};
use super::kept::{NotStored, StoreResult, kept};
use super::one::{Search, subject, unreadable};
use super::plain::LockTerms;
use super::{Herd, Outcome, SavedToken};
use crate::cache::Cache;
use crate::calls::setters;
use crate::error::Error;
use crate::item::Expiration;
use crate::key::Key;
use crate::metrics::Computation;
use crate::net::wire::{cut, escaped_len};
use crate::value::{self, ToValue, Value};

/// `compute_timeout` if none is given.
const COMPUTE_TIMEOUT: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest hint, percent-encoded: servers take 512 bytes with what else is in the request.
const HINT_MAX: usize = 460;

/// How [`fetch_or_compute`](crate::Herd::fetch_or_compute) works. A [`Duration`] is the values' time to live,
/// the rest as by default.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Fetch {
    ttl: Duration,
    compute_timeout: Duration,
    wait: Option<Duration>,
    outlives: bool,
}

impl Fetch {
    /// Values that live this long: rounded up to whole seconds, at least one.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, compute_timeout: COMPUTE_TIMEOUT, wait: None, outlives: false }
    }

    /// The token stays valid for its whole `compute_timeout` when this process ends, since it is to leave it:
    /// [`Token::save`]. Over a server with leases the death of the client that computes is not noticed then.
    pub fn outlives_process(mut self) -> Self {
        self.outlives = true;
        self
    }

    fn terms(&self) -> LockTerms {
        let lock_ms = self.compute_timeout.as_millis() as u64;
        // Twice as long, so that a late result is stored if no other client computes.
        LockTerms { lock_ms, keep_s: 2 * lock_ms.div_ceil(1000) as u32 + 1, stale: false, awaited: None }
    }
}

setters! {
impl Fetch {
    /// How long a token is valid: 30 s by default. After it one of the waiting callers gets a token. At least
    /// 1 ms and at most a day; other times count as these.
    pub fn compute_timeout(timeout: Duration) => compute_timeout = timeout.clamp(SHORTEST, LONGEST);

    /// How long a call waits in all: twice `compute_timeout` by default. At most a day; longer times count as
    /// that.
    pub fn wait(wait: Duration) => wait = Some(wait.min(LONGEST));
}
}

impl From<Duration> for Fetch {
    fn from(ttl: Duration) -> Self {
        Self::new(ttl)
    }
}

/// The result of [`fetch_or_compute`](crate::Herd::fetch_or_compute).
#[must_use]
pub enum Fetched<T, C: Cache + 'static> {
    /// The value was there. Over a server with leases and a `grace` this can be the old value, while another
    /// client computes.
    Hit(T),
    /// This caller must compute the value, then [`deliver`](crate::Herd::deliver) it or
    /// [`fail`](crate::Herd::fail).
    Compute {
        /// The hint of the caller that asked first, as far as it is known: see
        /// [`fetch_or_compute`](crate::Herd::fetch_or_compute).
        hint: Bytes,
        /// The right to deliver.
        token: Token<C>,
    },
    /// Another caller has delivered the value while this one waited.
    Value(T),
    /// Another caller's computation has failed: its text.
    Error(String),
    /// Other callers compute, and no value was there when the wait had passed.
    Busy,
}

impl<T: fmt::Debug, C: Cache + 'static> fmt::Debug for Fetched<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hit(value) => f.debug_tuple("Hit").field(value).finish(),
            Self::Compute { hint, token } => {
                f.debug_struct("Compute").field("hint", hint).field("token", token).finish()
            }
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Error(text) => f.debug_tuple("Error").field(text).finish(),
            Self::Busy => f.write_str("Busy"),
        }
    }
}

/// The right to deliver a value, once. A token that is dropped is given up: another caller may compute at
/// once. It leaves its process by [`save`](Self::save). On any thread, as long as the tokio runtime in which
/// it was got is running; afterwards it lasts for its time.
pub struct Token<C: Cache + 'static> {
    grant: Grant<C>,
    subject: Subject,
    ttl: Duration,
    compress_above: Option<usize>,
    computation: Computation,
}

impl<C: Cache + 'static> Token<C> {
    /// The key that the token is for.
    pub fn key(&self) -> &[u8] {
        &self.subject.key
    }

    /// The token as text, for another process (or this one, later), which makes a token of it by
    /// [`Herd::resume`]. Nothing is given up: the key stays with the process that has the text, for
    /// `compute_timeout` since the token was got. Of two that use the same text the first stores its value.
    ///
    /// Over a server with leases the key is free when this process closes its connection, unless the token
    /// was asked for with [`Fetch::outlives_process`].
    #[must_use = "without its text the token is lost, and the key locked for its time"]
    pub fn save(self) -> SavedToken {
        let Self { grant, subject, ttl, computation, .. } = self;
        computation.leaves();
        SavedToken { subject, ttl, right: grant.into_right() }
    }
}

impl<C: Cache + 'static> fmt::Debug for Token<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("key", &self.key().escape_ascii().to_string()).finish_non_exhaustive()
    }
}

impl<C: Cache + 'static> Herd<C> {
    /// The value of `key`, or a token to compute it. While another caller has a token, this one waits for its
    /// value, its failure, or a token of its own. `hint` says what to compute, for example an address: at
    /// most 460 bytes when percent-encoded.
    ///
    /// Over a server without leases a failure is told to the callers that look before the next caller has got
    /// a token: they look up to ten times a second.
    ///
    /// A caller that gets the token after another caller's was dropped or came too late gets the hint of the
    /// caller that asked first.
    ///
    /// # Errors
    /// The server cannot be asked, or the hint is too long. A value that cannot be read as `T` is removed,
    /// and computed again.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn fetch_or_compute<K: Key, T: Value>(
        &self,
        key: K,
        options: impl Into<Fetch>,
        hint: &[u8],
    ) -> Result<Fetched<T, C>, Error> {
        let span = tracing::debug_span!("fetch_or_compute", key = %key.bytes().escape_ascii());
        let got = self.fetch(&key, options.into(), hint).instrument(span).await;
        match &got {
            Ok(Fetched::Hit(_) | Fetched::Value(_)) => {
                self.metrics.outcome(key.bytes(), Some(Outcome::Hit(())));
            }
            Ok(Fetched::Busy) => self.metrics.outcome(key.bytes(), Some(Outcome::Busy)),
            Ok(Fetched::Error(_)) | Err(_) => self.metrics.outcome(key.bytes(), None),
            // Its token tells it.
            Ok(Fetched::Compute { .. }) => {}
        }
        got
    }

    async fn fetch<K: Key, T: Value>(
        &self,
        key: &K,
        options: Fetch,
        hint: &[u8],
    ) -> Result<Fetched<T, C>, Error> {
        let length = escaped_len(hint);
        if length > HINT_MAX {
            let message =
                format!("a hint has {length} bytes when percent-encoded, at most {HINT_MAX} are possible");
            return Err(Error::Usage(message));
        }
        let wait = options.wait.unwrap_or(options.compute_timeout * 2);
        let search = Search {
            group: Arc::new(RequestGroup {
                subject: subject(key),
                terms: options.terms(),
                outlives: options.outlives,
            }),
            deadline: Instant::now() + wait,
            is_held: true,
            takes_old: true,
            is_told: true,
            hint: Bytes::copy_from_slice(hint),
        };
        let (verdict, waited) = self.obtain(search).await;
        Ok(match verdict? {
            SearchResult::Hit(value) if waited => Fetched::Value(value),
            SearchResult::Hit(value) | SearchResult::Stale(value) => Fetched::Hit(value),
            SearchResult::Compute(grant) => {
                let hint = grant.hint().cloned().unwrap_or_default();
                let token = self.token(grant, subject(key), options.ttl);
                Fetched::Compute { hint, token }
            }
            SearchResult::Failed(text) => Fetched::Error(String::from_utf8_lossy(&text).into_owned()),
            SearchResult::Busy(_) => Fetched::Busy,
        })
    }

    fn token(&self, grant: Grant<C>, subject: Subject, ttl: Duration) -> Token<C> {
        let computation = self.metrics.computing([subject.key.clone()]).of_token();
        Token { grant, subject, ttl, compress_above: self.compress_above, computation }
    }

    /// The token that was [saved](Token::save), in this process or another. The server is not asked: whether
    /// the token is still valid is seen when it is used. Dropped, it is given up.
    pub fn resume(&self, saved: &SavedToken) -> Token<C> {
        let SavedToken { subject, ttl, right } = saved.clone();
        let grant = Grant::of_right(&self.place, &subject, right);
        self.token(grant, subject, ttl)
    }

    /// Stores the value that was computed, and gives it to the waiting callers: whether it was stored. It was
    /// not if the token came too late, or if the key was deleted or its tag invalidated since:
    /// [`deliver_or_why`](Self::deliver_or_why) says which.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value; the value cannot be written.
    pub async fn deliver<T: ToValue + ?Sized>(&self, token: Token<C>, value: &T) -> Result<bool, Error> {
        Ok(self.send(token, value).await?.is_ok())
    }

    /// [`deliver`](Self::deliver), which says why a value was not stored. A value that is too large for the
    /// server is such a reason here.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value for another reason; the value cannot be written.
    pub async fn deliver_or_why<T: ToValue + ?Sized>(
        &self,
        token: Token<C>,
        value: &T,
    ) -> Result<Result<(), NotStored>, Error> {
        match self.send(token, value).await {
            Err(error) => match NotStored::of(error) {
                NotStored::Failed(error) => Err(error),
                why => Ok(Err(why)),
            },
            kept => kept,
        }
    }

    async fn send<T: ToValue + ?Sized>(&self, token: Token<C>, value: &T) -> Result<StoreResult, Error> {
        let Token { grant, subject, ttl, compress_above, mut computation } = token;
        computation.has_run();
        let (data, flags) =
            value::encode(value, compress_above).map_err(|message| unreadable(&subject.key, message))?;
        let expiration = Expiration::After(ttl.max(SHORTEST));
        let end =
            grant.end(ComputationResult::Value(ComputedValue { data, flags, expiration, grace: None })).await;
        computation.ends(0, kept(end.clone()));
        end
    }

    /// Says that the computation has failed: the waiting callers get the text, cut to 460 percent-encoded
    /// bytes, and the next caller a new token. Callers that wait in [`get_or_compute`](Self::get_or_compute)
    /// are no callers that get a text: one of them computes.
    ///
    /// Over a server with leases the next caller gets the token at once after the first failure. As long as
    /// computing goes on failing there is one for each second, then for two, up to 30; the others wait.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub async fn fail(&self, token: Token<C>, text: &str) -> Result<(), Error> {
        // Without a text it would be given up.
        let text = if text.is_empty() { "failed" } else { cut(text, HINT_MAX) };
        let Token { grant, mut computation, .. } = token;
        computation.has_run();
        grant.end(ComputationResult::Nothing(Some(text.to_owned()))).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_what_can_be_sent() {
        let cut = |text: &str| cut(text, HINT_MAX).to_owned();
        assert_eq!(cut(""), "");
        assert_eq!(cut("out of paper"), "out of paper");
        assert_eq!(cut(&"x".repeat(1000)).len(), HINT_MAX);
        assert_eq!(cut(&" ".repeat(1000)).len(), HINT_MAX / 3);
        let cut = cut(&"ä".repeat(1000));
        assert_eq!((cut.len(), escaped_len(cut.as_bytes())), (HINT_MAX / 6 * 2, HINT_MAX / 6 * 6));
    }

    #[test]
    fn extreme_times_count_as_the_nearest_that_is_possible() {
        let longest = Fetch::new(Duration::MAX).compute_timeout(Duration::MAX).wait(Duration::MAX);
        assert_eq!((longest.terms().keep_s, longest.wait), (172_801, Some(LONGEST)));
        let shortest = Fetch::new(Duration::ZERO).compute_timeout(Duration::ZERO);
        assert_eq!((shortest.terms().lock_ms, shortest.terms().keep_s), (1, 3));
    }
}
