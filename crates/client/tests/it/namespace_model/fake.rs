//! A cache in memory: the commands of memcached, tags if wanted, and what a test does to it.
//!
//! Each command is executed at once and as a whole. With [`Fake::stepwise`] it first gives way, so that an
//! executor such as [`run_interleaved`] can let the commands of several tasks follow each other in any order.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use cattlegrid_client::{Cache, Error, Item, Write, Written};

/// A cache that all its clones share.
#[derive(Clone, Default)]
pub struct Fake(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Milliseconds.
    now: AtomicU64,
}

#[derive(Default)]
struct State {
    items: HashMap<Vec<u8>, Stored>,
    cas: u64,
    tags: bool,
    stepwise: bool,
    before: Option<Before>,
    asked: Asked,
}

/// Called before each command with its name and its keys, one by one. What it returns is done first.
type Before = Box<dyn FnMut(&str, &[u8]) -> Vec<Deed> + Send>;

/// An action of a test on the cache.
pub enum Deed {
    /// Evicts a key.
    Evict(Vec<u8>),
    /// Stores a value, as another client would.
    Set(Vec<u8>, Vec<u8>),
}

struct Stored {
    item: Item,
    tags: Vec<String>,
    /// In milliseconds of the fake's time.
    expires: Option<u64>,
}

/// The requests of a test.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Calls of reading commands, of one or many keys: each is a round trip.
    pub reads: u64,
    /// Keys that these read.
    pub keys_read: u64,
    /// Calls of writing commands.
    pub writes: u64,
}

impl Fake {
    /// Without tags.
    pub fn new() -> Self {
        Self::default()
    }

    /// With tags.
    pub fn with_tags() -> Self {
        let fake = Self::default();
        fake.state().tags = true;
        fake
    }

    /// One or more servers are replaced by others, with tags or without: what these had is gone, as `goes`
    /// says of each key.
    pub fn replace_servers(&self, tags: bool, mut goes: impl FnMut(&[u8]) -> bool) {
        let mut state = self.state();
        state.tags = tags;
        state.items.retain(|key, _| !goes(key));
    }

    /// From now on each command gives way once before it is executed.
    pub fn stepwise(self) -> Self {
        self.state().stepwise = true;
        self
    }

    /// Sets what is called before each command.
    pub fn before(&self, before: impl FnMut(&str, &[u8]) -> Vec<Deed> + Send + 'static) {
        self.state().before = Some(Box::new(before));
    }

    /// Lets time pass.
    pub fn advance_ms(&self, ms: u64) {
        self.0.now.fetch_add(ms, Ordering::SeqCst);
    }

    /// The time, which begins at 0.
    pub fn now_ms(&self) -> u64 {
        self.0.now.load(Ordering::SeqCst)
    }

    /// Evicts a key; whether it was present.
    pub fn evict(&self, key: impl AsRef<[u8]>) -> bool {
        self.state().items.remove(key.as_ref()).is_some()
    }

    /// All keys that are present, sorted.
    pub fn keys(&self) -> Vec<String> {
        let now = self.now_ms();
        let state = self.state();
        let live = state.items.iter().filter(|(_, stored)| stored.is_live(now));
        let mut keys: Vec<_> = live.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
        keys.sort();
        keys
    }

    /// The value of a key.
    pub fn value(&self, key: impl AsRef<[u8]>) -> Option<Bytes> {
        let now = self.now_ms();
        self.state().live(key.as_ref(), now).map(|stored| stored.item.data.clone())
    }

    /// Stores a value without a command.
    pub fn put(&self, key: impl AsRef<[u8]>, data: impl AsRef<[u8]>) {
        let (key, data) = (key.as_ref(), data.as_ref());
        self.state().store(&Write { key, data, flags: 0, exptime: 0, tags: &[] }, 0);
    }

    /// The requests since the last call.
    pub fn take_asked(&self) -> Asked {
        std::mem::take(&mut self.state().asked)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// Executes a command.
    async fn command<T>(&self, name: &str, keys: &[&[u8]], execute: impl FnOnce(&mut State, u64) -> T) -> T {
        let stepwise = self.state().stepwise;
        if stepwise {
            give_way().await;
        }
        let now = self.now_ms();
        let mut state = self.state();
        if let Some(mut before) = state.before.take() {
            for key in keys {
                for deed in before(name, key) {
                    state.does(&deed, now);
                }
            }
            state.before = Some(before);
        }
        if matches!(name, "get" | "gets") {
            state.asked.reads += 1;
            state.asked.keys_read += keys.len() as u64;
        } else {
            state.asked.writes += 1;
        }
        execute(&mut state, now)
    }
}

impl State {
    fn live(&self, key: &[u8], now: u64) -> Option<&Stored> {
        self.items.get(key).filter(|stored| stored.is_live(now))
    }

    fn store(&mut self, write: &Write<'_>, now: u64) -> Written {
        assert!(self.tags || write.tags.is_empty(), "memcached refuses tags");
        assert!(write.key.len() <= 250 && write.tags.len() <= 8);
        self.cas += 1;
        let item = Item { data: Bytes::copy_from_slice(write.data), flags: write.flags, cas: self.cas };
        let expires = (write.exptime > 0).then(|| now + u64::from(write.exptime) * 1_000);
        self.items.insert(write.key.to_vec(), Stored { item, tags: write.tags.to_vec(), expires });
        Written::Stored { cas: Some(self.cas) }
    }

    fn add(&mut self, write: &Write<'_>, now: u64) -> Written {
        if self.live(write.key, now).is_some() { Written::NotStored } else { self.store(write, now) }
    }

    fn change(&mut self, write: &Write<'_>, cas: u64, now: u64) -> Written {
        match self.live(write.key, now) {
            None => Written::NotFound,
            Some(stored) if stored.item.cas != cas => Written::Exists,
            Some(_) => self.store(write, now),
        }
    }

    fn does(&mut self, deed: &Deed, now: u64) {
        match deed {
            Deed::Evict(key) => drop(self.items.remove(key)),
            Deed::Set(key, data) => {
                self.store(&Write { key, data, flags: 0, exptime: 0, tags: &[] }, now);
            }
        }
    }
}

impl Stored {
    fn is_live(&self, now: u64) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

impl Cache for Fake {
    async fn get(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        self.get_many(&[key]).await.remove(0)
    }

    async fn gets(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        self.gets_many(&[key]).await.remove(0)
    }

    async fn add(&self, write: Write<'_>) -> Result<Written, Error> {
        Ok(self.command("add", &[write.key], |state, now| state.add(&write, now)).await)
    }

    async fn set(&self, write: Write<'_>) -> Result<Written, Error> {
        let execute = |state: &mut State, now| {
            if !state.tags && !write.tags.is_empty() {
                let line = "CLIENT_ERROR invalid flag".to_owned();
                return Err(Error::Refused { server: "fake".to_owned(), line });
            }
            Ok(state.store(&write, now))
        };
        self.command("set", &[write.key], execute).await
    }

    async fn cas(&self, write: Write<'_>, cas: u64) -> Result<Written, Error> {
        Ok(self.command("cas", &[write.key], |state, now| state.change(&write, cas, now)).await)
    }

    async fn incr(&self, key: &[u8], by: u64) -> Result<Option<u64>, Error> {
        let execute = |state: &mut State, now| {
            let stored = state.live(key, now)?;
            let old: u64 = std::str::from_utf8(&stored.item.data).unwrap().parse().unwrap();
            let new = old.wrapping_add(by);
            state.cas += 1;
            let cas = state.cas;
            let item = &mut state.items.get_mut(key)?.item;
            (item.data, item.cas) = (new.to_string().into(), cas);
            Some(new)
        };
        Ok(self.command("incr", &[key], execute).await)
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let execute = |state: &mut State, now| {
            let live = state.live(key, now).is_some();
            state.items.remove(key);
            live
        };
        Ok(self.command("delete", &[key], execute).await)
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Vec<Result<Option<Item>, Error>> {
        let mut items = self.gets_many(keys).await;
        for item in items.iter_mut().flatten().flatten() {
            item.cas = 0;
        }
        items
    }

    async fn gets_many(&self, keys: &[&[u8]]) -> Vec<Result<Option<Item>, Error>> {
        let execute = |state: &mut State, now| {
            keys.iter().map(|key| Ok(state.live(key, now).map(|stored| stored.item.clone()))).collect()
        };
        self.command("get", keys, execute).await
    }

    async fn has_tags(&self) -> Result<bool, Error> {
        Ok(self.state().tags)
    }

    async fn invalidate(&self, tags: &[String]) -> Result<(), Error> {
        let execute = |state: &mut State, _| {
            // Those that have tags are told all the same.
            state.items.retain(|_, stored| !stored.tags.iter().any(|tag| tags.contains(tag)));
            if state.tags { Ok(()) } else { Err(Error::NoTags) }
        };
        self.command("invalidate", &[], execute).await
    }
}

/// Is pending once.
pub async fn give_way() {
    let mut ready = false;
    poll_fn(|context| {
        if std::mem::replace(&mut ready, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A task of [`run_interleaved`].
pub type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs tasks to their end, one step of one task after another. `choose` is given the number of tasks that
/// are not done, and says which task makes the next step.
pub fn run_interleaved(mut tasks: Vec<Task<'_>>, mut choose: impl FnMut(usize) -> usize) {
    let mut context = Context::from_waker(Waker::noop());
    let mut steps = 0;
    while !tasks.is_empty() {
        let next = choose(tasks.len()) % tasks.len();
        if tasks[next].as_mut().poll(&mut context).is_ready() {
            drop(tasks.swap_remove(next));
        }
        steps += 1;
        assert!(steps < 1_000_000, "the tasks do not end");
    }
}
