//! Computing missing values, with ordinary functions.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::desk::Desk;
use super::{Client, Driver};
use crate::client::Client as Async;
use crate::error::Error;
use crate::herd::{self, Compute, ComputeError, Fetch, Outcome};
use crate::item::Expiration;
use crate::key::Key;
use crate::value::Value;

impl Client {
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
        let lost = || Error::Usage("the function has run already".to_owned());
        // The outer error is that of the desk, the inner one that of the function.
        let future = client.get_or_compute(key, options, || async {
            match desk.call(()).await {
                Ok(Some(computed)) => computed.map_err(ComputeError::Compute),
                Ok(None) => Err(ComputeError::Cache(lost())),
                Err(error) => Err(ComputeError::Cache(error)),
            }
        });
        let computed = desk.serve(driver, future, |()| compute.take().map(|compute| compute()));
        computed.map_err(|error| match error {
            ComputeError::Cache(error) | ComputeError::Compute(ComputeError::Cache(error)) => {
                ComputeError::Cache(error)
            }
            ComputeError::Compute(ComputeError::Compute(error)) => ComputeError::Compute(error),
        })
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
    pub fn deliver<T: Value>(&self, mut token: Token, value: &T) -> Result<bool, Error> {
        let (client, driver) = self.parts();
        let Some(token) = token.token.take() else { return Ok(false) };
        driver.run(client.deliver(token, value))
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
