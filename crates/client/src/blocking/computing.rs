//! Computing missing values, with ordinary functions.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::desk::Desk;
use super::{Client, Driver};
use crate::calls::calls;
use crate::client::Client as Async;
use crate::error::Error;
use crate::herd::{self, Compute, ComputeError, Fetch, NotStored, Outcome, SavedToken};
use crate::item::Expiration;
use crate::key::Key;
use crate::metrics::{Observer, Statistics};
use crate::value::{ToValue, Value};

/// Computes values over a client: see [`crate::Herd`].
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
    /// Gets told what is computed from now on: see [`crate::Herd::observer`].
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.herd = self.herd.observer(observer);
        self
    }

    /// Statistics: see [`crate::Herd::statistics`].
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

    /// The value of a key, which one client computes if it is missing: see
    /// [`Herd::get_or_compute`](crate::Herd::get_or_compute). `compute` runs in this thread, while other
    /// threads use the client.
    ///
    /// # Errors
    /// `compute` has failed, the server cannot be asked, or the value cannot be read as `T`.
    pub fn get_or_compute<K: Key, T: Value, E>(
        &self,
        key: K,
        options: &Compute,
        compute: impl FnOnce() -> Result<T, E>,
    ) -> Result<Outcome<T>, ComputeError<E>> {
        let desk = &Desk::new();
        let future = self.herd.get_or_compute(key, options, || computed(desk, compute));
        desk.serve(&self.driver, future).map_err(flat)
    }

    /// The values of many keys: see [`Herd::get_or_compute_many`](crate::Herd::get_or_compute_many).
    /// `compute` gets the keys whose values it must compute, and runs in this thread, while other threads use
    /// the client.
    ///
    /// # Errors
    /// `compute` has failed. A key whose server cannot be asked, or whose value cannot be read, has the error
    /// in its place.
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
        let compute = &RefCell::new(compute);
        let desk = &Desk::new();
        let computing = |keys| computed(desk, move || compute.borrow_mut()(keys));
        desk.serve(&self.driver, self.herd.get_or_compute_many(keys, options, computing))
    }

    /// [`get_or_compute`](Self::get_or_compute), but `busy` is called instead of waiting for another client's
    /// value: see [`Herd::get_or_compute_or`](crate::Herd::get_or_compute_or). Both functions run in this
    /// thread.
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
        let desk = &Desk::new();
        let instead = || async { desk.call(busy).await.ok().flatten() };
        let future = self.herd.get_or_compute_or(key, options, || computed(desk, compute), instead);
        desk.serve(&self.driver, future).map_err(flat)
    }

    /// [`get_or_compute_many`](Self::get_or_compute_many), but `busy` is called with the keys that other
    /// clients compute: see [`Herd::get_or_compute_many_or`](crate::Herd::get_or_compute_many_or). Both
    /// functions run in this thread, one after the other.
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
        let compute = &RefCell::new(compute);
        let desk = &Desk::new();
        let computing = |keys| computed(desk, move || compute.borrow_mut()(keys));
        let instead = |keys| async {
            let values = desk.call(|| busy(keys)).await;
            values.map_or_else(|_| Vec::new(), |values| values.into_iter().collect())
        };
        desk.serve(&self.driver, self.herd.get_or_compute_many_or(keys, options, computing, instead))
    }

    /// The value of a key, or a token to compute it: see
    /// [`Herd::fetch_or_compute`](crate::Herd::fetch_or_compute).
    ///
    /// # Errors
    /// The server cannot be asked, the hint is too long, or the value cannot be read as `T`.
    pub fn fetch_or_compute<K: Key, T: Value>(
        &self,
        key: K,
        options: impl Into<Fetch>,
        hint: &[u8],
    ) -> Result<Fetched<T>, Error> {
        Ok(match self.driver.run(self.herd.fetch_or_compute(key, options, hint))? {
            herd::Fetched::Hit(value) => Fetched::Hit(value),
            herd::Fetched::Compute { hint, token } => Fetched::Compute { hint, token: self.token(token) },
            herd::Fetched::Value(value) => Fetched::Value(value),
            herd::Fetched::Error(text) => Fetched::Error(text),
            herd::Fetched::Busy => Fetched::Busy,
        })
    }

    /// Stores the value of a token. False: it came too late, or its key was invalidated, and it was not
    /// stored.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value; the value cannot be written.
    pub fn deliver<T: ToValue + ?Sized>(&self, token: Token, value: &T) -> Result<bool, Error> {
        self.driver.run(self.herd.deliver(token.into_inner(), value))
    }

    /// [`deliver`](Self::deliver), which says why a value was not stored: see
    /// [`crate::Herd::deliver_or_why`].
    ///
    /// # Errors
    /// The server cannot be asked, or refuses the value for a reason of no [`NotStored`]; the value cannot be
    /// written.
    pub fn deliver_or_why<T: ToValue + ?Sized>(
        &self,
        token: Token,
        value: &T,
    ) -> Result<Result<(), NotStored>, Error> {
        self.driver.run(self.herd.deliver_or_why(token.into_inner(), value))
    }

    /// A token that was [saved](Token::save), in this process or another: see [`crate::Herd::resume`].
    pub fn resume(&self, saved: &SavedToken) -> Token {
        self.token(self.driver.run(async { self.herd.resume(saved) }))
    }

    /// Says that the computation of a token has failed: the waiting callers get the text.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub fn fail(&self, token: Token, text: &str) -> Result<(), Error> {
        self.driver.run(self.herd.fail(token.into_inner(), text))
    }

    fn token(&self, token: herd::Token<Async>) -> Token {
        Token { token: Some(token), driver: self.driver.clone() }
    }
}

impl Client {
    /// A herd that computes values over this client: see [`crate::Client::herd`].
    pub fn herd(&self) -> Herd {
        Herd { herd: self.client.herd(), driver: self.driver.clone() }
    }
}

calls! { of herd;
impl Client {
    /// See [`Herd::get_or_compute`], also for its errors.
    pub fn get_or_compute<K: Key, T: Value, E>(
        &self, key: K, options: &Compute, compute: impl FnOnce() -> Result<T, E>
    ) -> Result<Outcome<T>, ComputeError<E>>;

    /// See [`Herd::get_or_compute_many`], also for its errors.
    pub fn get_or_compute_many<K, T, E, M>(
        &self, keys: impl IntoIterator<Item = (K, Expiration)>, options: &Compute, compute: impl FnMut(Vec<K>) -> Result<M, E>
    ) -> Result<Vec<Result<Outcome<T>, Error>>, ComputeError<E>>
    where [K: Key + Clone, T: Value, M: IntoIterator<Item = (K, T)>];

    /// See [`Herd::get_or_compute_or`], also for its errors.
    pub fn get_or_compute_or<K: Key, T: Value, E>(
        &self, key: K, options: &Compute, compute: impl FnOnce() -> Result<T, E>, busy: impl FnOnce() -> Option<T>
    ) -> Result<Outcome<T>, ComputeError<E>>;

    /// See [`Herd::get_or_compute_many_or`], also for its errors.
    pub fn get_or_compute_many_or<K, T, E, M, N>(
        &self, keys: impl IntoIterator<Item = (K, Expiration)>, options: &Compute, compute: impl FnMut(Vec<K>) -> Result<M, E>,
        busy: impl FnOnce(Vec<K>) -> N
    ) -> Result<Vec<Result<Outcome<T>, Error>>, ComputeError<E>>
    where [K: Key + Clone, T: Value, M: IntoIterator<Item = (K, T)>, N: IntoIterator<Item = (K, T)>];

    /// See [`Herd::fetch_or_compute`], also for its errors.
    pub fn fetch_or_compute<K: Key, T: Value>(&self, key: K, options: impl Into<Fetch>, hint: &[u8]) -> Result<Fetched<T>, Error>;

    /// See [`Herd::deliver`], also for its errors.
    pub fn deliver<T: ToValue + ?Sized>(&self, token: Token, value: &T) -> Result<bool, Error>;

    /// See [`Herd::deliver_or_why`], also for its errors.
    pub fn deliver_or_why<T: ToValue + ?Sized>(&self, token: Token, value: &T) -> Result<Result<(), NotStored>, Error>;

    /// See [`Herd::resume`].
    pub fn resume(&self, saved: &SavedToken) -> Token;

    /// See [`Herd::fail`], also for its errors.
    pub fn fail(&self, token: Token, text: &str) -> Result<(), Error>;
}
}

/// Calls a function of the program at the desk and returns the value that it computes.
async fn computed<'a, T: 'a, E: 'a>(
    desk: &Desk<'a>,
    function: impl FnOnce() -> Result<T, E> + 'a,
) -> Result<T, ComputeError<E>> {
    desk.call(function).await?.map_err(ComputeError::Compute)
}

/// The outer error is that of computing, whose inner one is that of the desk or of the function.
fn flat<E>(error: ComputeError<ComputeError<E>>) -> ComputeError<E> {
    match error {
        ComputeError::Cache(error) => ComputeError::Cache(error),
        ComputeError::Compute(error) => error,
    }
}

/// The result of [`Client::fetch_or_compute`].
#[derive(Debug)]
#[must_use]
pub enum Fetched<T> {
    /// The value was there. Over a server with leases and a `grace` this can be the old value, while another
    /// client computes.
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

/// The right to deliver a value, once. A token that is dropped is given up: another caller may compute at
/// once.
pub struct Token {
    token: Option<herd::Token<Async>>,
    driver: Arc<Driver>,
}

impl Token {
    /// The key that the token is for.
    pub fn key(&self) -> &[u8] {
        self.token.as_ref().map_or(&[], herd::Token::key)
    }

    /// The token as text, for another process: see [`crate::Token::save`].
    pub fn save(self) -> SavedToken {
        let driver = self.driver.clone();
        driver.run(async { self.into_inner().save() })
    }

    fn into_inner(mut self) -> herd::Token<Async> {
        self.token.take().expect("it is used once, by value")
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
