//! Commands with keys, values and expirations of Rust types.

use std::time::Duration;

use crate::cache::Cache;
use crate::client::{Client, counted, deleted, item};
use crate::error::Error;
use crate::item::{Expiration, Item, Write, Written, system_time};
use crate::join::join;
use crate::key::Key;
use crate::net::wire::{self, Command, Reply, StoreVerb};
use crate::value::{self, ToValue, Value};

/// Longest group of statistics, in bytes.
const GROUP_MAX: usize = 250;

impl Client {
    /// The value of a key, or None if it is absent.
    ///
    /// A `get` whose connection breaks may be sent twice, see
    /// [`retry_reads`](crate::ClientBuilder::retry_reads). Names of Cattlegrid whose reading does something,
    /// which are calls of objects and control keys, need [`call`](Self::call), which is never repeated.
    pub async fn get<T: Value>(&self, key: impl Key) -> Result<Option<T>, Error> {
        let item = match self.near_for(&key) {
            Some(near) => self.read_near(near, key.bytes()).await?,
            None => self.read(key.bytes(), false).await?,
        };
        item.map(|item| decode(key.bytes(), item)).transpose()
    }

    /// The value of a key, and the CAS number for [`cas`](Self::cas).
    pub async fn gets<T: Value>(&self, key: impl Key) -> Result<Option<(T, u64)>, Error> {
        let key = key.bytes();
        let Some(item) = self.read(key, true).await? else { return Ok(None) };
        let cas = item.cas;
        Ok(Some((decode(key, item)?, cas)))
    }

    /// The value as the server has it, with its flags and CAS number.
    pub async fn get_item(&self, key: impl Key) -> Result<Option<Item>, Error> {
        self.read(key.bytes(), true).await
    }

    /// The values of many keys, in their order; a key may occur twice. One request to each server.
    pub async fn get_many<T: Value>(&self, keys: &[impl Key]) -> Vec<Result<Option<T>, Error>> {
        let items = if self.inner.near.is_some() {
            self.read_many_near(keys).await
        } else {
            let bytes: Vec<_> = keys.iter().map(Key::bytes).collect();
            self.read_many(&bytes, false).await
        };
        let decoded =
            keys.iter().zip(items).map(|(key, item)| item?.map(|item| decode(key.bytes(), item)).transpose());
        decoded.collect()
    }

    /// [`get_many`](Self::get_many) with CAS numbers.
    pub async fn gets_many<T: Value>(&self, keys: &[impl Key]) -> Vec<Result<Option<(T, u64)>, Error>> {
        let bytes: Vec<_> = keys.iter().map(Key::bytes).collect();
        let items = self.read_many(&bytes, true).await;
        let decoded = bytes.iter().zip(items).map(|(key, item)| {
            let Some(item) = item? else { return Ok(None) };
            let cas = item.cas;
            Ok(Some((decode(key, item)?, cas)))
        });
        decoded.collect()
    }

    /// Stores a value: [`Written::Stored`].
    pub async fn set<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
    ) -> Result<Written, Error> {
        self.put(StoreVerb::Set, &key, value, expiration.into()).await
    }

    /// Stores a value if the key is absent; otherwise [`Written::NotStored`].
    pub async fn add<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
    ) -> Result<Written, Error> {
        self.put(StoreVerb::Add, &key, value, expiration.into()).await
    }

    /// Stores a value if the key is present; otherwise [`Written::NotStored`].
    pub async fn replace<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
    ) -> Result<Written, Error> {
        self.put(StoreVerb::Replace, &key, value, expiration.into()).await
    }

    /// Stores a value if the item still has this CAS number; otherwise [`Written::Exists`] or
    /// [`Written::NotFound`].
    pub async fn cas<T: ToValue + ?Sized>(
        &self,
        key: impl Key,
        value: &T,
        expiration: impl Into<Expiration>,
        cas: u64,
    ) -> Result<Written, Error> {
        self.put(StoreVerb::Cas(cas), &key, value, expiration.into()).await
    }

    /// Appends bytes to a value, if the key is present. Only for values that are plain bytes.
    pub async fn append(&self, key: impl Key, data: impl AsRef<[u8]>) -> Result<Written, Error> {
        self.extend(StoreVerb::Append, &key, data.as_ref()).await
    }

    /// Puts bytes before a value, if the key is present. Only for values that are plain bytes.
    pub async fn prepend(&self, key: impl Key, data: impl AsRef<[u8]>) -> Result<Written, Error> {
        self.extend(StoreVerb::Prepend, &key, data.as_ref()).await
    }

    /// Adds to a number. None: the key is absent. Numbers wrap at 2^64.
    pub async fn incr(&self, key: impl Key, by: u64) -> Result<Option<u64>, Error> {
        self.count(key.bytes(), by, false).await
    }

    /// Subtracts from a number, down to 0. None: the key is absent.
    pub async fn decr(&self, key: impl Key, by: u64) -> Result<Option<u64>, Error> {
        self.count(key.bytes(), by, true).await
    }

    /// Deletes a key. False: it was absent.
    pub async fn delete(&self, key: impl Key) -> Result<bool, Error> {
        Cache::delete(self, key.bytes()).await
    }

    /// Gives a key a new expiry. False: it is absent.
    pub async fn touch(&self, key: impl Key, expiration: impl Into<Expiration>) -> Result<bool, Error> {
        let key = key.bytes();
        let exptime = exptime(expiration.into());
        self.one(key, &Command::Touch { key, exptime }, false, deleted).await
    }

    /// The value of a key, which gets a new expiry.
    pub async fn get_and_touch<T: Value>(
        &self,
        key: impl Key,
        expiration: impl Into<Expiration>,
    ) -> Result<Option<T>, Error> {
        let key = key.bytes();
        let exptime = exptime(expiration.into());
        self.one(key, &Command::GetAndTouch { key, exptime }, false, item)
            .await?
            .map(|item| decode(key, item))
            .transpose()
    }

    /// Stores many values. One request to each server.
    pub async fn set_many<K: Key, T: ToValue + Sync>(
        &self,
        values: &[(K, T)],
        expiration: impl Into<Expiration>,
    ) -> Vec<Result<Written, Error>> {
        let all = values.iter().map(|(key, value)| (StoreVerb::Set, key, value));
        self.put_many(all, expiration.into()).await
    }

    /// Stores many values whose keys are absent. One request to each server.
    pub async fn add_many<K: Key, T: ToValue + Sync>(
        &self,
        values: &[(K, T)],
        expiration: impl Into<Expiration>,
    ) -> Vec<Result<Written, Error>> {
        let all = values.iter().map(|(key, value)| (StoreVerb::Add, key, value));
        self.put_many(all, expiration.into()).await
    }

    /// Stores many values, each if its item still has its CAS number. One request to each server.
    pub async fn cas_many<K: Key, T: ToValue + Sync>(
        &self,
        values: &[(K, T, u64)],
        expiration: impl Into<Expiration>,
    ) -> Vec<Result<Written, Error>> {
        let all = values.iter().map(|(key, value, cas)| (StoreVerb::Cas(*cas), key, value));
        self.put_many(all, expiration.into()).await
    }

    /// Deletes many keys. One request to each server.
    pub async fn delete_many(&self, keys: &[impl Key]) -> Vec<Result<bool, Error>> {
        let bytes: Vec<_> = keys.iter().map(Key::bytes).collect();
        Cache::delete_many(self, &bytes).await
    }

    /// Whether all servers have tags, so that keys can carry some and [`invalidate`](Self::invalidate) works.
    ///
    /// # Errors
    /// The servers cannot be asked.
    pub async fn has_tags(&self) -> Result<bool, Error> {
        Cache::has_tags(self).await
    }

    /// Invalidates all items with any of these tags, on every server, in one round trip.
    ///
    /// # Errors
    /// [`Error::Connection`] names the servers that were not reached; the others have done it.
    /// [`Error::NoTags`]: one has no tags, or the client was built with
    /// [`Protocol::Text`](crate::Protocol::Text). [`Error::Usage`]: a tag has no form of one.
    pub async fn invalidate<S: AsRef<str>>(&self, tags: &[S]) -> Result<(), Error> {
        let tags: Vec<_> = tags.iter().map(|tag| tag.as_ref().to_owned()).collect();
        Cache::invalidate(self, &tags).await
    }

    /// Deletes all items of all servers. An outcome for each server, in the order of the configuration.
    pub async fn flush_all(&self) -> Vec<(String, Result<(), Error>)> {
        self.clear_near();
        let replies = self.everywhere(Command::FlushAll).await;
        self.clear_near();
        replies.into_iter().map(|(server, reply)| (server, reply.map(drop))).collect()
    }

    /// The version of each server.
    pub async fn version(&self) -> Vec<(String, Result<String, Error>)> {
        let replies = self.everywhere(Command::Version).await;
        let text = |reply| match reply {
            Reply::Line(line) => {
                let line = String::from_utf8_lossy(&line).into_owned();
                line.strip_prefix("VERSION ").map(str::to_owned).unwrap_or(line)
            }
            _ => String::new(),
        };
        replies.into_iter().map(|(server, reply)| (server, reply.map(text))).collect()
    }

    /// The statistics of each server: of a group such as `items` or `detail dump`, or the general ones if
    /// that is empty.
    ///
    /// [`Error::Usage`] for each server: a word of the group is empty, has more than 250 bytes or control
    /// characters.
    pub async fn stats(&self, group: &str) -> Vec<(String, Result<Vec<(String, String)>, Error>)> {
        let checked =
            group.split(' ').map(|word| wire::check_word("the group of statistics", word, GROUP_MAX));
        if !group.is_empty()
            && let Err(error) = checked.collect::<Result<(), Error>>()
        {
            let now = self.now().await;
            let nodes = now.nodes.iter();
            return nodes.map(|node| (node.name().to_owned(), Err(error.clone()))).collect();
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let replies = self.everywhere(Command::Stats { group }).await;
        let lines = |reply| match reply {
            Reply::Stats(lines) => lines.iter().map(|(name, value)| (text(name), text(value))).collect(),
            _ => Vec::new(),
        };
        replies.into_iter().map(|(server, reply)| (server, reply.map(lines))).collect()
    }

    async fn everywhere(&self, command: Command<'_>) -> Vec<(String, Result<Reply, Error>)> {
        let now = self.now().await;
        let nodes = now.nodes.iter();
        join(nodes.map(|node| async { (node.name().to_owned(), node.one(&command, false, now.limit).await) }))
            .await
    }

    async fn count(&self, key: &[u8], by: u64, down: bool) -> Result<Option<u64>, Error> {
        self.one(key, &Command::Count { key, by, down }, false, counted).await
    }

    async fn put<T: ToValue + ?Sized>(
        &self,
        verb: StoreVerb,
        key: &impl Key,
        value: &T,
        expiration: Expiration,
    ) -> Result<Written, Error> {
        let encoded = value::encode(value, self.inner.compress_above);
        let (data, flags) = encoded.map_err(|message| unusable(key.bytes(), message))?;
        let write = Write { key: key.bytes(), data: &data, flags, exptime: 0, tags: key.tags() };
        self.store(verb, write, exptime(expiration)).await
    }

    async fn put_many<'a, K: Key + 'a, T: ToValue + 'a>(
        &self,
        all: impl Iterator<Item = (StoreVerb, &'a K, &'a T)>,
        expiration: Expiration,
    ) -> Vec<Result<Written, Error>> {
        let exptime = exptime(expiration);
        let encoded: Vec<_> = all
            .map(|(verb, key, value)| (verb, key, value::encode(value, self.inner.compress_above)))
            .collect();
        let writes = encoded.iter().filter_map(|(verb, key, value)| {
            let (data, flags) = value.as_ref().ok()?;
            let write = Write { key: key.bytes(), data, flags: *flags, exptime: 0, tags: key.tags() };
            Some((*verb, write, exptime))
        });
        let mut stored = self.store_many(writes.collect()).await.into_iter();
        let mut outcomes = Vec::with_capacity(encoded.len());
        for (_, key, value) in encoded {
            outcomes.push(match value {
                Ok(_) => stored.next().unwrap_or_else(|| Err(unusable(key.bytes(), "not sent".to_owned()))),
                Err(message) => Err(unusable(key.bytes(), message)),
            });
        }
        outcomes
    }

    async fn extend(&self, verb: StoreVerb, key: &impl Key, data: &[u8]) -> Result<Written, Error> {
        let write = Write { key: key.bytes(), data, flags: 0, exptime: 0, tags: &[] };
        self.store(verb, write, 0).await
    }
}

/// The server's form of an expiration. An expiration in the past is -1: the item has expired when it is
/// stored.
fn exptime(expiration: Expiration) -> i32 {
    let exptime = expiration.exptime(system_time(), Duration::ZERO);
    exptime.map_or(-1, |exptime| i32::try_from(exptime).unwrap_or(i32::MAX))
}

fn decode<T: Value>(key: &[u8], item: Item) -> Result<T, Error> {
    value::decode(item.data, item.flags).map_err(|message| unusable(key, message))
}

fn unusable(key: &[u8], message: String) -> Error {
    Error::Value { key: String::from_utf8_lossy(key).into_owned(), message }
}
