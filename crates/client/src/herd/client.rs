//! The same calls on a client.

use std::sync::Arc;

use super::one::decode;
use super::{Compute, ComputeError, Fetch, Fetched, Herd, NotStored, Outcome, SavedToken, Token};
use crate::calls::calls;
use crate::client::Client;
use crate::error::Error;
use crate::item::Expiration;
use crate::key::Key;
use crate::value::{ToValue, Value};

impl Client {
    /// A herd that computes values over this client. Herds of all its clones share requests and computations.
    pub fn herd(&self) -> Herd<Self> {
        let (flights, metrics, compress_above) = self.for_herd();
        let (flights, metrics) = (Arc::clone(flights), Arc::clone(metrics));
        Herd { place: super::place(self.clone()), flights, metrics, compress_above }
    }

    /// The value that is in the cache, if `get_or_compute` has stored it too, which a `get` does not read.
    /// None: it is missing, has expired or is being computed. Nothing is computed and nothing waited for, and
    /// no lease is taken (with [`Protocol::Text`](crate::Protocol::Text) it is a `get`, which a rule can
    /// hold). Two round trips for a key that has a value.
    ///
    /// # Errors
    /// The server cannot be asked, or the value cannot be read as `T`.
    pub async fn peek<T: Value>(&self, key: impl Key) -> Result<Option<T>, Error> {
        let key = key.bytes();
        let Some(item) = self.look(key).await? else { return Ok(None) };
        super::place(self.clone()).fresh(&item).map(|stored| decode(key, stored)).transpose()
    }

    /// See [`Herd::resume`].
    pub fn resume(&self, saved: &SavedToken) -> Token<Self> {
        self.herd().resume(saved)
    }
}

calls! { of_async herd;
impl Client {
    /// See [`Herd::get_or_compute`], also for its errors and panics.
    pub async fn get_or_compute<K, T, E, F, Fut>(&self, key: K, options: &Compute, compute: F) -> Result<Outcome<T>, ComputeError<E>>
    where [K: Key, T: Value, F: FnOnce() -> Fut, Fut: Future<Output = Result<T, E>>];

    /// See [`Herd::get_or_compute_or`], also for its errors and panics.
    pub async fn get_or_compute_or<K, T, E, F, Fut, B, Busy>(&self, key: K, options: &Compute, compute: F, busy: B) -> Result<Outcome<T>, ComputeError<E>>
    where [
        K: Key, T: Value, F: FnOnce() -> Fut, Fut: Future<Output = Result<T, E>>,
        B: FnOnce() -> Busy, Busy: Future<Output = Option<T>>,
    ];

    /// See [`Herd::get_or_compute_many`], also for its errors and panics.
    pub async fn get_or_compute_many<K, T, E, F, Fut, M>(
        &self, keys: impl IntoIterator<Item = (K, Expiration)>, options: &Compute, compute: F
    ) -> Result<Vec<Result<Outcome<T>, Error>>, E>
    where [K: Key + Clone, T: Value, F: Fn(Vec<K>) -> Fut, Fut: Future<Output = Result<M, E>>, M: IntoIterator<Item = (K, T)>];

    /// See [`Herd::get_or_compute_many_or`], also for its errors and panics.
    pub async fn get_or_compute_many_or<K, T, E, F, Fut, M, B, Busy, N>(
        &self, keys: impl IntoIterator<Item = (K, Expiration)>, options: &Compute, compute: F, busy: B
    ) -> Result<Vec<Result<Outcome<T>, Error>>, E>
    where [
        K: Key + Clone, T: Value, F: Fn(Vec<K>) -> Fut, Fut: Future<Output = Result<M, E>>, M: IntoIterator<Item = (K, T)>,
        B: FnOnce(Vec<K>) -> Busy, Busy: Future<Output = N>, N: IntoIterator<Item = (K, T)>,
    ];

    /// See [`Herd::fetch_or_compute`], also for its errors and panics.
    pub async fn fetch_or_compute<K: Key, T: Value>(&self, key: K, options: impl Into<Fetch>, hint: &[u8]) -> Result<Fetched<T, Self>, Error>;

    /// See [`Herd::deliver`], also for its errors.
    pub async fn deliver<T: ToValue + ?Sized>(&self, token: Token<Self>, value: &T) -> Result<bool, Error>;

    /// See [`Herd::deliver_or_why`], also for its errors.
    pub async fn deliver_or_why<T: ToValue + ?Sized>(&self, token: Token<Self>, value: &T) -> Result<Result<(), NotStored>, Error>;

    /// See [`Herd::fail`], also for its errors.
    pub async fn fail(&self, token: Token<Self>, text: &str) -> Result<(), Error>;
}
}
