//! Computing missing values, with ordinary functions.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::desk::Desk;
use super::{Client, Driver};
use crate::client::Client as Async;
use crate::error::Error;
use crate::herd::{self, Compute, ComputeError, Fetch, NotStored, Outcome, SavedToken};
use crate::item::Expiration;
use crate::key::Key;
use crate::metrics::{Observer, Statistics};
use crate::value::{ToValue, Value};

/// What computes values over a client: see [`crate::Herd`].
///
/// Cloning is cheap.
#[derive(Clone)]
pub struct Herd {
    // Dropped first: its connections end in the driver's runtime.
    herd: herd::Herd<Async>,
    driver: Arc<Driver>,
}

impl fmt::Debug for Herd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.herd.fmt(formatter)
    }
}

impl Herd {
    fn parts(&self) -> (&herd::Herd<Async>, &Driver) {
        (&self.herd, &self.driver)
    }

    fn driver(&self) -> Arc<Driver> {
        self.driver.clone()
    }

    /// Gets told what is computed from now on: see [`crate::Herd::observer`].
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.herd = self.herd.observer(observer);
        self
    }

    /// What was counted: see [`crate::Herd::statistics`].
    pub fn statistics(&self) -> Statistics {
        self.herd.statistics()
    }

    /// Values of more than this many bytes are stored compressed: see [`crate::Herd::compress_above`].
    #[must_use]
    pub fn compress_above(mut self, bytes: Option<usize>) -> Self {
        self.herd = self.herd.compress_above(bytes);
        self
    }

    /// Keys of which a request or a computation is under way in this process.
    pub fn under_way(&self) -> usize {
        self.herd.under_way()
    }

    /// The value of a key, which one client computes if it is missing: see [`Herd::get_or_compute`](crate::Herd::get_or_compute). `compute` runs in this
    /// thread, while other threads use the client.
    ///
    /// # Errors
    /// `compute` has failed, the server cannot be asked, or the value cannot be read as `T`.
    pub fn get_or_compute<K: Key, T: Value, E>(
        &self,
        key: K,
        options: &Compute,
        compute: impl FnOnce() -> Result<T, E>,
    ) -> Result<Outcome<T>, ComputeError<E>> {
        let (client, driver) = self.parts();
        let (desk, mut compute) = (Desk::<(), Option<Result<T, E>>>::new(), Some(compute));
        let future = client.get_or_compute(key, options, || async {
            match desk.call(()).await {
                Ok(Some(computed)) => computed.map_err(ComputeError::Compute),
                Ok(None) => Err(ComputeError::Cache(has_run())),
                Err(error) => Err(ComputeError::Cache(error)),
            }
        });
        let computed = desk.serve(driver, future, |()| compute.take().map(|compute| compute()));
        computed.map_err(flat)
    }

    /// The values of many keys: see [`Herd::get_or_compute_many`](crate::Herd::get_or_compute_many). `compute` gets the keys whose values
    /// it must compute, and runs in this thread, while other threads use the client.
    ///
    /// # Errors
    /// `compute` has failed. A key whose server cannot be asked, or whose value cannot be read, has the error in its place.
    pub fn get_or_compute_many<K, T, E, M>(
        &self,
        keys: impl IntoIterator<Item = (K, Expiration)>,
        options: &Compute,
        mut compute: impl FnMut(Vec<K>) -> Result<M, E>,
    ) -> Result<Vec<Result<Outcome<T>, Error>>, ComputeError<E>>
    where
        K: Key + Clone,
        T: Value,
        M: IntoIterator<Item = (K, T)>,
    {
        let (client, driver) = self.parts();
        let desk = Desk::<Vec<K>, Result<M, E>>::new();
        let future = client.get_or_compute_many(keys, options, |keys| async {
            match desk.call(keys).await {
                Ok(computed) => computed.map_err(ComputeError::Compute),
                Err(error) => Err(ComputeError::Cache(error)),
            }
        });
        desk.serve(driver, future, &mut compute)
    }

    /// [`get_or_compute`](Self::get_or_compute), but `busy` is called instead of waiting for another client's value: see
    /// [`Herd::get_or_compute_or`](crate::Herd::get_or_compute_or). Both functions run in this thread.
    ///
    /// # Errors
    /// As [`get_or_compute`](Self::get_or_compute).
    pub fn get_or_compute_or<K: Key, T: Value, E>(
        &self,
        key: K,
        options: &Compute,
        compute: impl FnOnce() -> Result<T, E>,
        busy: impl FnOnce() -> Option<T>,
    ) -> Result<Outcome<T>, ComputeError<E>> {
        let (client, driver) = self.parts();
        let desk = Desk::<Ask<(), ()>, Option<Reply<Result<T, E>, Option<T>>>>::new();
        let (mut compute, mut busy) = (Some(compute), Some(busy));
        let computing = || async {
            match desk.call(Ask::Compute(())).await {
                Ok(Some(Reply::Computed(computed))) => computed.map_err(ComputeError::Compute),
                Ok(_) => Err(ComputeError::Cache(has_run())),
                Err(error) => Err(ComputeError::Cache(error)),
            }
        };
        let instead = || async {
            match desk.call(Ask::Instead(())).await {
                Ok(Some(Reply::Instead(value))) => value,
                _ => None,
            }
        };
        let future = client.get_or_compute_or(key, options, computing, instead);
        let computed = desk.serve(driver, future, |ask| match ask {
            Ask::Compute(()) => compute.take().map(|compute| Reply::Computed(compute())),
            Ask::Instead(()) => busy.take().map(|busy| Reply::Instead(busy())),
        });
        computed.map_err(flat)
    }

    /// [`get_or_compute_many`](Self::get_or_compute_many), but `busy` is called with the keys that other clients compute: see
    /// [`Herd::get_or_compute_many_or`](crate::Herd::get_or_compute_many_or). Both functions run in this thread, one after the other.
    ///
    /// # Errors
    /// As [`get_or_compute_many`](Self::get_or_compute_many).
    pub fn get_or_compute_many_or<K, T, E, M, N>(
        &self,
        keys: impl IntoIterator<Item = (K, Expiration)>,
        options: &Compute,
        mut compute: impl FnMut(Vec<K>) -> Result<M, E>,
        busy: impl FnOnce(Vec<K>) -> N,
    ) -> Result<Vec<Result<Outcome<T>, Error>>, ComputeError<E>>
    where
        K: Key + Clone,
        T: Value,
        M: IntoIterator<Item = (K, T)>,
        N: IntoIterator<Item = (K, T)>,
    {
        let (client, driver) = self.parts();
        let desk = Desk::<Ask<Vec<K>, Vec<K>>, Option<Reply<Result<M, E>, N>>>::new();
        let mut busy = Some(busy);
        let computing = |keys| async {
            match desk.call(Ask::Compute(keys)).await {
                Ok(Some(Reply::Computed(computed))) => computed.map_err(ComputeError::Compute),
                Ok(_) => Err(ComputeError::Cache(has_run())),
                Err(error) => Err(ComputeError::Cache(error)),
            }
        };
        let instead = |keys| async {
            match desk.call(Ask::Instead(keys)).await {
                Ok(Some(Reply::Instead(values))) => values.into_iter().collect(),
                _ => Vec::new(),
            }
        };
        let future = client.get_or_compute_many_or(keys, options, computing, instead);
        desk.serve(driver, future, |ask| match ask {
            Ask::Compute(keys) => Some(Reply::Computed(compute(keys))),
            Ask::Instead(keys) => busy.take().map(|busy| Reply::Instead(busy(keys))),
        })
    }

    /// The value of a key, or a token to compute it: see [`Herd::fetch_or_compute`](crate::Herd::fetch_or_compute).
    ///
    /// # Errors
    /// The server cannot be asked, the hint is too long, or the value cannot be read as `T`.
    pub fn fetch_or_compute<K: Key, T: Value>(
        &self,
        key: K,
        options: impl Into<Fetch>,
        hint: &[u8],
    ) -> Result<Fetched<T>, Error> {
        let (client, driver) = self.parts();
        Ok(match driver.run(client.fetch_or_compute(key, options, hint))? {
            herd::Fetched::Hit(value) => Fetched::Hit(value),
            herd::Fetched::Compute { hint, token } => {
                Fetched::Compute { hint, token: Token { token: Some(token), driver: self.driver() } }
            }
            herd::Fetched::Value(value) => Fetched::Value(value),
            herd::Fetched::Error(text) => Fetched::Error(text),
            herd::Fetched::Busy => Fetched::Busy,
        })
    }

    /// Stores the value of a token. False: it came too late, or its key was invalidated, and it was not stored.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value; the value cannot be written.
    pub fn deliver<T: ToValue + ?Sized>(&self, mut token: Token, value: &T) -> Result<bool, Error> {
        let (client, driver) = self.parts();
        let Some(token) = token.token.take() else { return Ok(false) };
        driver.run(client.deliver(token, value))
    }

    /// [`deliver`](Self::deliver), which says why a value was not stored: see [`crate::Herd::deliver_or_why`].
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value for a reason of no [`NotStored`]; the value cannot be written.
    pub fn deliver_or_why<T: ToValue + ?Sized>(
        &self,
        mut token: Token,
        value: &T,
    ) -> Result<Result<(), NotStored>, Error> {
        let (client, driver) = self.parts();
        let Some(token) = token.token.take() else { return Ok(Err(NotStored::Fenced)) };
        driver.run(client.deliver_or_why(token, value))
    }

    /// A token that was [saved](Token::save), in this process or another: see [`crate::Herd::resume`].
    pub fn resume(&self, saved: &SavedToken) -> Token {
        let (client, driver) = self.parts();
        Token { token: Some(driver.run(async { client.resume(saved) })), driver: self.driver() }
    }

    /// Says that the computation of a token has failed: the waiting callers get the text.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub fn fail(&self, mut token: Token, text: &str) -> Result<(), Error> {
        let (client, driver) = self.parts();
        let Some(token) = token.token.take() else { return Ok(()) };
        driver.run(client.fail(token, text))
    }
}

impl Client {
    /// What computes values over this client: see [`crate::Client::herd`].
    pub fn herd(&self) -> Herd {
        Herd { herd: self.parts().0.herd(), driver: self.driver() }
    }

    /// See [`Herd::get_or_compute`].
    ///
    /// # Errors
    /// `compute` has failed, the server cannot be asked, or the value cannot be read as `T`.
    pub fn get_or_compute<K: Key, T: Value, E>(
        &self,
        key: K,
        options: &Compute,
        compute: impl FnOnce() -> Result<T, E>,
    ) -> Result<Outcome<T>, ComputeError<E>> {
        self.herd().get_or_compute(key, options, compute)
    }

    /// See [`Herd::get_or_compute_many`].
    ///
    /// # Errors
    /// `compute` has failed. A key whose server cannot be asked, or whose value cannot be read, has the error in its place.
    pub fn get_or_compute_many<K, T, E, M>(
        &self,
        keys: impl IntoIterator<Item = (K, Expiration)>,
        options: &Compute,
        compute: impl FnMut(Vec<K>) -> Result<M, E>,
    ) -> Result<Vec<Result<Outcome<T>, Error>>, ComputeError<E>>
    where
        K: Key + Clone,
        T: Value,
        M: IntoIterator<Item = (K, T)>,
    {
        self.herd().get_or_compute_many(keys, options, compute)
    }

    /// See [`Herd::get_or_compute_or`].
    ///
    /// # Errors
    /// As [`get_or_compute`](Self::get_or_compute).
    pub fn get_or_compute_or<K: Key, T: Value, E>(
        &self,
        key: K,
        options: &Compute,
        compute: impl FnOnce() -> Result<T, E>,
        busy: impl FnOnce() -> Option<T>,
    ) -> Result<Outcome<T>, ComputeError<E>> {
        self.herd().get_or_compute_or(key, options, compute, busy)
    }

    /// See [`Herd::get_or_compute_many_or`].
    ///
    /// # Errors
    /// As [`get_or_compute_many`](Self::get_or_compute_many).
    pub fn get_or_compute_many_or<K, T, E, M, N>(
        &self,
        keys: impl IntoIterator<Item = (K, Expiration)>,
        options: &Compute,
        compute: impl FnMut(Vec<K>) -> Result<M, E>,
        busy: impl FnOnce(Vec<K>) -> N,
    ) -> Result<Vec<Result<Outcome<T>, Error>>, ComputeError<E>>
    where
        K: Key + Clone,
        T: Value,
        M: IntoIterator<Item = (K, T)>,
        N: IntoIterator<Item = (K, T)>,
    {
        self.herd().get_or_compute_many_or(keys, options, compute, busy)
    }

    /// See [`Herd::fetch_or_compute`].
    ///
    /// # Errors
    /// The server cannot be asked, the hint is too long, or the value cannot be read as `T`.
    pub fn fetch_or_compute<K: Key, T: Value>(
        &self,
        key: K,
        options: impl Into<Fetch>,
        hint: &[u8],
    ) -> Result<Fetched<T>, Error> {
        self.herd().fetch_or_compute(key, options, hint)
    }

    /// See [`Herd::deliver`].
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value; the value cannot be written.
    pub fn deliver<T: ToValue + ?Sized>(&self, token: Token, value: &T) -> Result<bool, Error> {
        self.herd().deliver(token, value)
    }

    /// See [`Herd::deliver_or_why`].
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value for a reason of no [`NotStored`]; the value cannot be written.
    pub fn deliver_or_why<T: ToValue + ?Sized>(
        &self,
        token: Token,
        value: &T,
    ) -> Result<Result<(), NotStored>, Error> {
        self.herd().deliver_or_why(token, value)
    }

    /// See [`Herd::resume`].
    pub fn resume(&self, saved: &SavedToken) -> Token {
        self.herd().resume(saved)
    }

    /// See [`Herd::fail`].
    ///
    /// # Errors
    /// The server cannot be asked.
    pub fn fail(&self, token: Token, text: &str) -> Result<(), Error> {
        self.herd().fail(token, text)
    }

    /// The value that is in the cache, if `get_or_compute` has stored it too; nothing is computed: see [`crate::Client::peek`].
    ///
    /// # Errors
    /// The server cannot be asked, or the value cannot be read as `T`.
    pub fn peek<T: Value>(&self, key: impl Key) -> Result<Option<T>, Error> {
        let (client, driver) = self.parts();
        driver.run(client.peek(key))
    }
}

/// Which function a future needs, with its argument.
enum Ask<A, B> {
    Compute(A),
    Instead(B),
}

/// What that function has returned.
enum Reply<A, B> {
    Computed(A),
    Instead(B),
}

fn has_run() -> Error {
    Error::Usage("the function has run already".to_owned())
}

/// The outer error is that of computing, whose inner one is that of the desk or of the function.
fn flat<E>(error: ComputeError<ComputeError<E>>) -> ComputeError<E> {
    match error {
        ComputeError::Cache(error) | ComputeError::Compute(ComputeError::Cache(error)) => {
            ComputeError::Cache(error)
        }
        ComputeError::Compute(ComputeError::Compute(error)) => ComputeError::Compute(error),
    }
}

/// What [`Client::fetch_or_compute`] has brought.
#[derive(Debug)]
#[must_use]
pub enum Fetched<T> {
    /// The value was there. Over a server with leases and a `grace` this can be the old value, while another client computes.
    Hit(T),
    /// This caller must compute the value, then [`deliver`](Client::deliver) it or [`fail`](Client::fail).
    Compute {
        /// The hint of the caller that asked first.
        hint: Bytes,
        /// The right to deliver.
        token: Token,
    },
    /// Another caller has delivered the value while this one waited.
    Value(T),
    /// Another caller's computation has failed: its text.
    Error(String),
    /// Other callers compute, and no value was there when the wait had passed.
    Busy,
}

/// The right to deliver a value, once. A token that is dropped is given up: another caller may compute at once.
pub struct Token {
    token: Option<herd::Token<Async>>,
    driver: Arc<Driver>,
}

impl Token {
    /// Of which key.
    pub fn key(&self) -> &[u8] {
        self.token.as_ref().map_or(&[], herd::Token::key)
    }

    /// The token as text, for another process: see [`crate::Token::save`].
    #[expect(clippy::missing_panics_doc, reason = "only a token that is used up has none inside")]
    pub fn save(mut self) -> SavedToken {
        let token = self.token.take().expect("it is used once, by value");
        self.driver.run(async { token.save() })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.token.fmt(formatter)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.driver.give_up(token);
        }
    }
}
