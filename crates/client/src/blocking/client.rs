//! The commands, each with the name of its method in [`crate::Client`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::Driver;
use crate::client::{Client as Async, ClientBuilder};
use crate::error::Error;
use crate::item::{Expiration, Item, Written};
use crate::key::Key;
use crate::metrics::Statistics;
use crate::value::{ToValue, Value};

/// A client of one or more servers, for programs without async: see [`crate::Client`] for what each method does.
///
/// Cloning is cheap, and clones share the connections.
#[derive(Clone)]
pub struct Client {
    // Dropped first: its connections end in the driver's runtime.
    client: Async,
    driver: Arc<Driver>,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(formatter)
    }
}

impl ClientBuilder {
    /// The client, for programs without async (feature `blocking`). Nothing is connected yet.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_blocking(self) -> Result<Client, Error> {
        Ok(Client { client: self.build()?, driver: Driver::new()? })
    }
}

impl Client {
    /// A client of one server, with all options as they are by default. Others: [`ClientBuilder::build_blocking`].
    ///
    /// # Errors
    /// [`Error::Usage`]: the address is none. Nothing is connected yet.
    pub fn new(server: &str) -> Result<Self, Error> {
        Async::builder().server(server).build_blocking()
    }

    /// All options; [`ClientBuilder::build_blocking`] is their end.
    pub fn builder() -> ClientBuilder {
        Async::builder()
    }

    pub(super) fn driver(&self) -> Arc<Driver> {
        self.driver.clone()
    }

    pub(super) fn parts(&self) -> (&Async, &Driver) {
        (&self.client, &self.driver)
    }

    /// What the client has counted since it was built.
    pub fn statistics(&self) -> Statistics {
        self.client.statistics()
    }

    /// The value of a key, or None if it is absent.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn get<T: Value>(&self, key: impl Key) -> Result<Option<T>, Error> {
        self.driver.run(self.client.get(key))
    }

    /// The value of a key, and the CAS number for [`cas`](Self::cas).
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn gets<T: Value>(&self, key: impl Key) -> Result<Option<(T, u64)>, Error> {
        self.driver.run(self.client.gets(key))
    }

    /// The value as the server has it, with its flags and CAS number.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn get_item(&self, key: impl Key) -> Result<Option<Item>, Error> {
        self.driver.run(self.client.get_item(key))
    }

    /// The values of many keys, in their order.
    pub fn get_many<T: Value>(&self, keys: &[impl Key]) -> Vec<Result<Option<T>, Error>> {
        self.driver.run(self.client.get_many(keys))
    }

    /// [`get_many`](Self::get_many) with CAS numbers.
    pub fn gets_many<T: Value>(&self, keys: &[impl Key]) -> Vec<Result<Option<(T, u64)>, Error>> {
        self.driver.run(self.client.gets_many(keys))
    }

    /// Stores a value.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn set<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
    ) -> Result<Written, Error> {
        self.driver.run(self.client.set(key, value, expiration))
    }

    /// Stores a value if the key is absent.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn add<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
    ) -> Result<Written, Error> {
        self.driver.run(self.client.add(key, value, expiration))
    }

    /// Stores a value if the key is present.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn replace<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
    ) -> Result<Written, Error> {
        self.driver.run(self.client.replace(key, value, expiration))
    }

    /// Stores a value if the item is still that with this CAS number.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn cas<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
        cas: u64,
    ) -> Result<Written, Error> {
        self.driver.run(self.client.cas(key, value, expiration, cas))
    }

    /// Puts bytes behind a value.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn append(&self, key: impl Key, data: impl AsRef<[u8]>) -> Result<Written, Error> {
        self.driver.run(self.client.append(key, data))
    }

    /// Puts bytes before a value.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn prepend(&self, key: impl Key, data: impl AsRef<[u8]>) -> Result<Written, Error> {
        self.driver.run(self.client.prepend(key, data))
    }

    /// Adds to a number. None: the key is absent.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn incr(&self, key: impl Key, by: u64) -> Result<Option<u64>, Error> {
        self.driver.run(self.client.incr(key, by))
    }

    /// Subtracts from a number, down to 0. None: the key is absent.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn decr(&self, key: impl Key, by: u64) -> Result<Option<u64>, Error> {
        self.driver.run(self.client.decr(key, by))
    }

    /// Deletes a key. False: it was absent.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn delete(&self, key: impl Key) -> Result<bool, Error> {
        self.driver.run(self.client.delete(key))
    }

    /// Gives a key a new expiry. False: it is absent.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn touch(&self, key: impl Key, expiration: impl Into<Expiration>) -> Result<bool, Error> {
        self.driver.run(self.client.touch(key, expiration))
    }

    /// The value of a key, which gets a new expiry.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn get_and_touch<T: Value>(
        &self,
        key: impl Key,
        expiration: impl Into<Expiration>,
    ) -> Result<Option<T>, Error> {
        self.driver.run(self.client.get_and_touch(key, expiration))
    }

    /// Stores many values.
    pub fn set_many<K: Key, T: ToValue + Sync>(
        &self,
        values: &[(K, T)],
        expiration: impl Into<Expiration>,
    ) -> Vec<Result<Written, Error>> {
        self.driver.run(self.client.set_many(values, expiration))
    }

    /// Stores the values whose keys are absent.
    pub fn add_many<K: Key, T: ToValue + Sync>(
        &self,
        values: &[(K, T)],
        expiration: impl Into<Expiration>,
    ) -> Vec<Result<Written, Error>> {
        self.driver.run(self.client.add_many(values, expiration))
    }

    /// Stores the values whose items still have these CAS numbers.
    pub fn cas_many<K: Key, T: ToValue + Sync>(
        &self,
        values: &[(K, T, u64)],
        expiration: impl Into<Expiration>,
    ) -> Vec<Result<Written, Error>> {
        self.driver.run(self.client.cas_many(values, expiration))
    }

    /// Deletes many keys.
    pub fn delete_many(&self, keys: &[impl Key]) -> Vec<Result<bool, Error>> {
        self.driver.run(self.client.delete_many(keys))
    }

    /// Deletes all items of all servers. An outcome for each server.
    pub fn flush_all(&self) -> Vec<(String, Result<(), Error>)> {
        self.driver.run(self.client.flush_all())
    }

    /// The version of each server.
    pub fn version(&self) -> Vec<(String, Result<String, Error>)> {
        self.driver.run(self.client.version())
    }

    /// The statistics of each server: of a group such as `items`, or the general ones if that is empty.
    #[expect(clippy::type_complexity, reason = "pairs of names and values, for each server")]
    pub fn stats(&self, group: &str) -> Vec<(String, Result<Vec<(String, String)>, Error>)> {
        self.driver.run(self.client.stats(group))
    }

    /// Whether all servers have tags.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn has_tags(&self) -> Result<bool, Error> {
        self.driver.run(self.client.has_tags())
    }

    /// Invalidates all items with any of these tags, on every server.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn invalidate<S: AsRef<str>>(&self, tags: &[S]) -> Result<(), Error> {
        self.driver.run(self.client.invalidate(tags))
    }

    /// Calls a method of an object, once.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn call(&self, name: impl Key) -> Result<Option<Bytes>, Error> {
        self.driver.run(self.client.call(name))
    }

    /// Calls the same method of many objects of a type. Replies have the order of the keys.
    pub fn multi_call<'k, K: AsRef<str>>(
        &self,
        object_type: &str,
        method: &str,
        keys: &'k [K],
        arguments: &[&str],
    ) -> Vec<(&'k K, Result<Option<Bytes>, Error>)> {
        self.driver.run(self.client.multi_call(object_type, method, keys, arguments))
    }

    /// [`multi_call`](Self::multi_call), whose outcomes are combined. `fold` runs in this thread.
    pub fn multi_call_fold<K: AsRef<str>, A>(
        &self,
        object_type: &str,
        method: &str,
        keys: &[K],
        arguments: &[&str],
        init: A,
        mut fold: impl FnMut(A, &K, Result<Option<Bytes>, Error>) -> A,
    ) -> A {
        let outcomes = self.multi_call(object_type, method, keys, arguments);
        outcomes.into_iter().fold(init, |all, (key, outcome)| fold(all, key, outcome))
    }
}
