//! A memcached in memory: items with CAS numbers and times to live in whole seconds, by tokio's clock.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::unused_self,
    reason = "helpers of tests"
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cattlegrid_client::{Answer, Ask, Cache, Error, Herd, Item, Scope, Write, Written};
use tokio::time::Instant;

/// The largest exptime that memcached takes as seconds from now.
const RELATIVE_MAX: u32 = 30 * 24 * 60 * 60;
/// The Unix time at which a test begins.
pub const BEGIN: u64 = 1_800_000_000;

#[derive(Debug)]
struct Kept {
    data: Bytes,
    flags: u32,
    cas: u64,
    expires: Option<Instant>,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    items: Mutex<HashMap<Vec<u8>, Kept>>,
    next_cas: AtomicU64,
    restarts: AtomicU64,
    /// Connections tell where CAS numbers are valid.
    pub tells_scope: AtomicBool,
    begin: Instant,
    /// How long a command takes.
    pub delay: Duration,
    /// Writes are answered with the new CAS number, as meta commands are.
    pub tells_cas: AtomicBool,
    pub is_down: AtomicBool,
    /// Values of more bytes are refused.
    pub largest: AtomicU64,
    /// Exchanges: a command, or a batch.
    pub trips: AtomicU64,
    pub reads: AtomicU64,
}

/// A connection to it.
#[derive(Debug, Clone)]
pub struct Fake(pub Arc<Server>);

impl Fake {
    pub fn new() -> Self {
        Self::with_delay(Duration::from_millis(2))
    }

    pub fn with_delay(delay: Duration) -> Self {
        Self(Arc::new(Server {
            items: Mutex::default(),
            next_cas: AtomicU64::new(1),
            restarts: AtomicU64::new(0),
            tells_scope: AtomicBool::new(true),
            begin: Instant::now(),
            delay,
            tells_cas: AtomicBool::new(true),
            is_down: AtomicBool::new(false),
            largest: AtomicU64::new(u64::MAX),
            trips: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }))
    }

    /// A process that uses it.
    pub fn herd(&self) -> Herd<Self> {
        let begin = self.0.begin;
        Herd::with_clock(self.clone(), move || now(begin))
    }

    pub fn trips(&self) -> u64 {
        self.0.trips.load(Ordering::Relaxed)
    }

    pub fn raw(&self, key: &str) -> Option<(Bytes, u32)> {
        let mut items = self.0.items.lock().unwrap();
        self.0.expire(&mut items);
        items.get(key.as_bytes()).map(|kept| (kept.data.clone(), kept.flags))
    }

    /// Seconds until the server drops it.
    pub fn ttl(&self, key: &str) -> Option<u64> {
        let items = self.0.items.lock().unwrap();
        let kept = items.get(key.as_bytes())?;
        Some((kept.expires? - Instant::now()).as_secs())
    }

    pub fn put(&self, key: &str, data: &[u8], flags: u32) {
        let write = Write { key: key.as_bytes(), data, flags, exptime: 0, tags: &[] };
        self.0.store(&mut self.0.items.lock().unwrap(), &write);
    }

    /// Removes an item, as an eviction or a writer's delete does.
    pub fn remove(&self, key: &str) -> bool {
        self.0.items.lock().unwrap().remove(key.as_bytes()).is_some()
    }

    /// Empty, and counting anew.
    pub fn restart(&self) {
        self.0.items.lock().unwrap().clear();
        self.0.next_cas.store(1, Ordering::Relaxed);
        self.0.restarts.fetch_add(1, Ordering::Relaxed);
    }

    async fn trip(&self) -> Result<(), Error> {
        self.0.trips.fetch_add(1, Ordering::Relaxed);
        // Half the time on the way there, half of it on the way back: the command is executed between.
        tokio::time::sleep(self.0.delay / 2).await;
        if self.0.is_down.load(Ordering::Relaxed) {
            return Err(Error::Timeout { server: "fake".to_owned(), limit: self.0.delay });
        }
        Ok(())
    }

    async fn back<T>(&self, reply: T) -> T {
        tokio::time::sleep(self.0.delay / 2).await;
        reply
    }
}

fn now(begin: Instant) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(BEGIN) + begin.elapsed()
}

impl Server {
    fn expire(&self, items: &mut HashMap<Vec<u8>, Kept>) {
        items.retain(|_, kept| kept.expires.is_none_or(|at| at > Instant::now()));
    }

    fn store(&self, items: &mut HashMap<Vec<u8>, Kept>, write: &Write<'_>) -> Written {
        let cas = self.next_cas.fetch_add(1, Ordering::Relaxed);
        let expires = match write.exptime {
            0 => None,
            seconds if seconds <= RELATIVE_MAX => Some(Instant::now() + Duration::from_secs(seconds.into())),
            at => {
                let since = u64::from(at).saturating_sub(BEGIN);
                Some(self.begin + Duration::from_secs(since))
            }
        };
        let data = Bytes::copy_from_slice(write.data);
        items.insert(write.key.to_vec(), Kept { data, flags: write.flags, cas, expires });
        self.expire(items);
        Written::Stored { cas: self.tells_cas.load(Ordering::Relaxed).then_some(cas) }
    }

    fn read(&self, key: &[u8]) -> Option<Item> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut items = self.items.lock().unwrap();
        self.expire(&mut items);
        items.get(key).map(|kept| Item { data: kept.data.clone(), flags: kept.flags, cas: kept.cas })
    }

    fn write(&self, write: &Write<'_>, how: How) -> Result<Written, Error> {
        if write.data.len() as u64 > self.largest.load(Ordering::Relaxed) {
            let line = "SERVER_ERROR object too large for cache".to_owned();
            return Err(Error::Server { server: "fake".to_owned(), line });
        }
        let mut items = self.items.lock().unwrap();
        self.expire(&mut items);
        let present = items.get(write.key).map(|kept| kept.cas);
        Ok(match (how, present) {
            (How::Add, Some(_)) => Written::NotStored,
            (How::Cas(_), None) => Written::NotFound,
            (How::Cas(cas), Some(present)) if cas != present => Written::Exists,
            _ => self.store(&mut items, write),
        })
    }
}

#[derive(Clone, Copy)]
enum How {
    Set,
    Add,
    Cas(u64),
}

impl Cache for Fake {
    async fn get(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        self.gets(key).await
    }

    async fn gets(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        self.trip().await?;
        let item = self.0.read(key);
        self.back(Ok(item)).await
    }

    async fn add(&self, write: Write<'_>) -> Result<Written, Error> {
        self.trip().await?;
        let reply = self.0.write(&write, How::Add);
        self.back(reply).await
    }

    async fn set(&self, write: Write<'_>) -> Result<Written, Error> {
        self.trip().await?;
        let reply = self.0.write(&write, How::Set);
        self.back(reply).await
    }

    async fn cas(&self, write: Write<'_>, cas: u64) -> Result<Written, Error> {
        self.trip().await?;
        let reply = self.0.write(&write, How::Cas(cas));
        self.back(reply).await
    }

    async fn incr(&self, _: &[u8], _: u64) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.trip().await?;
        let removed = self.0.items.lock().unwrap().remove(key).is_some();
        self.back(Ok(removed)).await
    }

    async fn gets_many(&self, keys: &[&[u8]]) -> Vec<Result<Option<Item>, Error>> {
        if let Err(error) = self.trip().await {
            return vec![Err(error); keys.len()];
        }
        let items = keys.iter().map(|key| Ok(self.0.read(key))).collect();
        self.back(items).await
    }

    async fn add_many(&self, writes: &[Write<'_>]) -> Vec<Result<Written, Error>> {
        if let Err(error) = self.trip().await {
            return vec![Err(error); writes.len()];
        }
        let replies = writes.iter().map(|write| self.0.write(write, How::Add)).collect();
        self.back(replies).await
    }

    async fn cas_many(&self, writes: &[(Write<'_>, u64)]) -> Vec<Result<Written, Error>> {
        if let Err(error) = self.trip().await {
            return vec![Err(error); writes.len()];
        }
        let replies = writes.iter().map(|(write, cas)| self.0.write(write, How::Cas(*cas))).collect();
        self.back(replies).await
    }

    fn scope(&self) -> Option<Scope> {
        let connections = self.0.restarts.load(Ordering::Relaxed);
        self.0.tells_scope.load(Ordering::Relaxed).then_some(Scope { connections, route: 0 })
    }

    async fn cas_many_within(
        &self,
        writes: &[(Write<'_>, u64, Scope)],
    ) -> Vec<Result<Option<Written>, Error>> {
        if let Err(error) = self.trip().await {
            return vec![Err(error); writes.len()];
        }
        let write = |(write, cas, scope): &(Write<'_>, u64, Scope)| {
            if scope.connections != self.0.restarts.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.0.write(write, How::Cas(*cas)).map(Some)
        };
        let replies = writes.iter().map(write).collect();
        self.back(replies).await
    }

    async fn ask(&self, key: &[u8], _: Ask<'_>) -> Result<Answer, Error> {
        Ok(self.gets(key).await?.map_or(Answer::Absent, Answer::Hit))
    }
}
