//! The commands, each with the name of its method in [`crate::Client`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::Driver;
use crate::calls::calls;
use crate::client::{Client as Async, ClientBuilder};
use crate::error::Error;
use crate::item::{Expiration, Item, Written};
use crate::key::Key;
use crate::metrics::Statistics;
use crate::value::{ToValue, Value};

/// A client of one or more servers, for programs without async: see [`crate::Client`] for what each method
/// does, and for its errors.
///
/// Cloning is cheap, and clones share the connections.
#[derive(Clone)]
pub struct Client {
    // Dropped first: its connections end in the driver's runtime.
    pub(super) client: Async,
    pub(super) driver: Arc<Driver>,
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
    /// A client of one server, with all options as they are by default. Others:
    /// [`ClientBuilder::build_blocking`].
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

    /// Statistics of the client since it was built.
    pub fn statistics(&self) -> Statistics {
        self.client.statistics()
    }

    /// Invalidates all items with any of these tags, on every server.
    ///
    /// # Errors
    /// As the method of [`crate::Client`].
    pub fn invalidate<S: AsRef<str>>(&self, tags: &[S]) -> Result<(), Error> {
        self.driver.run(self.client.invalidate(tags))
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

calls! { run client;
impl Client {
    /// The value of a key, or None if it is absent.
    pub fn get<T: Value>(&self, key: impl Key) -> Result<Option<T>, Error>;

    /// The value of a key, and the CAS number for [`cas`](Self::cas).
    pub fn gets<T: Value>(&self, key: impl Key) -> Result<Option<(T, u64)>, Error>;

    /// The value as the server has it, with its flags and CAS number.
    pub fn get_item(&self, key: impl Key) -> Result<Option<Item>, Error>;

    /// The values of many keys, in their order.
    pub fn get_many<T: Value>(&self, keys: &[impl Key]) -> Vec<Result<Option<T>, Error>>;

    /// [`get_many`](Self::get_many) with CAS numbers.
    pub fn gets_many<T: Value>(&self, keys: &[impl Key]) -> Vec<Result<Option<(T, u64)>, Error>>;

    /// Stores a value.
    pub fn set<T: ToValue + ?Sized>(&self, key: impl Key, value: &T, expiration: impl Into<Expiration>) -> Result<Written, Error>;

    /// Stores a value if the key is absent.
    pub fn add<T: ToValue + ?Sized>(&self, key: impl Key, value: &T, expiration: impl Into<Expiration>) -> Result<Written, Error>;

    /// Stores a value if the key is present.
    pub fn replace<T: ToValue + ?Sized>(&self, key: impl Key, value: &T, expiration: impl Into<Expiration>) -> Result<Written, Error>;

    /// Stores a value if the item is still that with this CAS number.
    pub fn cas<T: ToValue + ?Sized>(&self, key: impl Key, value: &T, expiration: impl Into<Expiration>, cas: u64) -> Result<Written, Error>;

    /// Puts bytes behind a value.
    pub fn append(&self, key: impl Key, data: impl AsRef<[u8]>) -> Result<Written, Error>;

    /// Puts bytes before a value.
    pub fn prepend(&self, key: impl Key, data: impl AsRef<[u8]>) -> Result<Written, Error>;

    /// Adds to a number. None: the key is absent.
    pub fn incr(&self, key: impl Key, by: u64) -> Result<Option<u64>, Error>;

    /// Subtracts from a number, down to 0. None: the key is absent.
    pub fn decr(&self, key: impl Key, by: u64) -> Result<Option<u64>, Error>;

    /// Deletes a key. False: it was absent.
    pub fn delete(&self, key: impl Key) -> Result<bool, Error>;

    /// Gives a key a new expiry. False: it is absent.
    pub fn touch(&self, key: impl Key, expiration: impl Into<Expiration>) -> Result<bool, Error>;

    /// The value of a key, which gets a new expiry.
    pub fn get_and_touch<T: Value>(&self, key: impl Key, expiration: impl Into<Expiration>) -> Result<Option<T>, Error>;

    /// Stores many values.
    pub fn set_many<K: Key, T: ToValue + Sync>(&self, values: &[(K, T)], expiration: impl Into<Expiration>) -> Vec<Result<Written, Error>>;

    /// Stores the values whose keys are absent.
    pub fn add_many<K: Key, T: ToValue + Sync>(&self, values: &[(K, T)], expiration: impl Into<Expiration>) -> Vec<Result<Written, Error>>;

    /// Stores the values whose items still have these CAS numbers.
    pub fn cas_many<K: Key, T: ToValue + Sync>(&self, values: &[(K, T, u64)], expiration: impl Into<Expiration>) -> Vec<Result<Written, Error>>;

    /// Deletes many keys.
    pub fn delete_many(&self, keys: &[impl Key]) -> Vec<Result<bool, Error>>;

    /// Deletes all items of all servers. An outcome for each server.
    pub fn flush_all(&self) -> Vec<(String, Result<(), Error>)>;

    /// The version of each server.
    pub fn version(&self) -> Vec<(String, Result<String, Error>)>;

    /// The statistics of each server: of a group such as `items`, or the general ones if that is empty.
    #[expect(clippy::type_complexity, reason = "pairs of names and values, for each server")]
    pub fn stats(&self, group: &str) -> Vec<(String, Result<Vec<(String, String)>, Error>)>;

    /// Whether all servers have tags.
    pub fn has_tags(&self) -> Result<bool, Error>;

    /// Calls a method of an object, once.
    pub fn call(&self, name: impl Key) -> Result<Option<Bytes>, Error>;

    /// The value that is in the cache, if `get_or_compute` has stored it too; nothing is computed.
    pub fn peek<T: Value>(&self, key: impl Key) -> Result<Option<T>, Error>;
}
}
