//! The client: servers, and the commands that are sent to them.

mod builder;
mod cache;
mod calls;
mod nodes;
mod send;
mod servers;
mod typed;

use std::sync::Arc;

use cattlegrid_protocol::{MetaStatus, Status};
use tokio::time::Instant;

use crate::error::Error;
use crate::herd::Flights;
use crate::item::{Item, Write, Written};
use crate::key::{self, Key};
use crate::metrics::{Metrics, Statistics};
use crate::near::{self, Near, WriteGuard};
use crate::net::node::{Node, NodeSettings};
use crate::net::wire::{self, Command, Reply, StoreVerb};

pub use builder::ClientBuilder;
use servers::ServerSource;

/// A client of one or more servers.
///
/// Cloning is cheap, and all clones share the connections, which are closed when the last clone is dropped.
/// Connections are made when they are first needed. The commands of many tasks share a connection and are
/// sent together.
///
/// A command that is dropped before its reply may have been executed or not; this disturbs no other command.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

struct ClientInner {
    source: ServerSource,
    settings: Arc<NodeSettings>,
    compress_above: Option<usize>,
    flights: Arc<Flights<Client>>,
    near: Option<Near>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let servers = self.inner.source.current();
        let servers: Vec<_> = servers.nodes.iter().map(|node| node.name()).collect();
        f.debug_struct("Client").field("servers", &servers).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of one server, with all options as they are by default.
    ///
    /// # Errors
    /// [`Error::Usage`]: the address is none. Nothing is connected yet.
    pub fn new(server: &str) -> Result<Self, Error> {
        Self::builder().server(server).build()
    }

    /// All options.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Parts of the client that a herd needs: the shared requests, the metrics, and the length in bytes above
    /// which values are compressed.
    pub(crate) fn for_herd(&self) -> (&Arc<Flights<Self>>, &Arc<Metrics>, Option<usize>) {
        (&self.inner.flights, &self.inner.settings.metrics, self.inner.compress_above)
    }

    /// Statistics of the client since it was built.
    pub fn statistics(&self) -> Statistics {
        self.inner.settings.metrics.statistics()
    }

    /// The own write that a command is, for the near cache.
    fn writing(&self, command: &Command<'_>) -> Option<WriteGuard<'_>> {
        Some(self.inner.near.as_ref()?.writing(command.written()?))
    }

    /// Ends all entries of the near cache.
    fn clear_near(&self) {
        if let Some(near) = &self.inner.near {
            near.clear();
        }
    }

    /// The near cache, if it is used for this key.
    fn near_for(&self, key: &impl Key) -> Option<&Near> {
        // What is invalidated by its tags keeps its key.
        let near = self.inner.near.as_ref()?;
        (key.tags().is_empty() && !key.bytes().starts_with(b"@")).then_some(near)
    }

    /// A value from the near cache or the server.
    async fn read_near(&self, near: &Near, key: &[u8]) -> Result<Option<Item>, Error> {
        key::check(key).map_err(Error::Key)?;
        let now = Instant::now();
        if let Some(item) = near.get(key, now) {
            self.inner.settings.metrics.near_hit();
            return Ok(Some(item));
        }
        let reading = near.reading(key, now);
        let read = |node: &Arc<Node>, reply| {
            if let Reply::Value { item, marks } = &reply
                && let Some(left) = marks.left
            {
                near.insert(key, reading, item, near::left_of(left));
            }
            item(node, reply)
        };
        self.one(key, &Command::GetWithTime { key }, true, read).await
    }

    async fn read(&self, key: &[u8], cas: bool) -> Result<Option<Item>, Error> {
        self.one(key, &Command::Get { key, cas }, true, item).await
    }

    /// Values from the near cache, the others from the servers.
    async fn read_many_near(&self, keys: &[impl Key]) -> Vec<Result<Option<Item>, Error>> {
        let now = Instant::now();
        let mut outcomes = Vec::with_capacity(keys.len());
        let (mut asked, mut commands) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter().enumerate() {
            let (bytes, near) = (key.bytes(), self.near_for(key));
            if let Some(item) = near.and_then(|near| near.get(bytes, now)) {
                self.inner.settings.metrics.near_hit();
                outcomes.push(Ok(Some(item)));
                continue;
            }
            let command = match near {
                Some(_) => Command::GetWithTime { key: bytes },
                None => Command::Get { key: bytes, cas: false },
            };
            asked.push((at, near.map(|near| (near, near.reading(bytes, now)))));
            commands.push((bytes, command));
            outcomes.push(Ok(None));
        }
        if commands.is_empty() {
            return outcomes;
        }
        let with_left = |node: &Arc<Node>, reply: Reply| {
            let left = match &reply {
                Reply::Value { marks, .. } => marks.left,
                _ => None,
            };
            Ok((item(node, reply)?, left))
        };
        for ((at, reading), read) in asked.into_iter().zip(self.many(commands, true, with_left).await) {
            if let (Some((near, reading)), Ok((Some(item), Some(left)))) = (reading, &read) {
                near.insert(keys[at].bytes(), reading, item, near::left_of(*left));
            }
            outcomes[at] = read.map(|(item, _)| item);
        }
        outcomes
    }

    async fn read_many(&self, keys: &[&[u8]], cas: bool) -> Vec<Result<Option<Item>, Error>> {
        let all = keys.iter().map(|key| (*key, Command::Get { key, cas })).collect();
        self.many(all, true, item).await
    }

    async fn store(&self, verb: StoreVerb, write: Write<'_>, exptime: i32) -> Result<Written, Error> {
        self.one(write.key, &Command::Store { verb, write, exptime }, false, written).await
    }

    async fn store_many(&self, all: Vec<(StoreVerb, Write<'_>, i32)>) -> Vec<Result<Written, Error>> {
        let all = all.into_iter();
        let all = all.map(|(verb, write, exptime)| (write.key, Command::Store { verb, write, exptime }));
        self.many(all.collect(), false, written).await
    }
}

/// The server's form of an expiry: above 2^31, which servers do not read as a time to come, the largest.
fn exptime(write: &Write<'_>) -> i32 {
    i32::try_from(write.exptime).unwrap_or(i32::MAX)
}

/// A reply that no server gives to this command.
fn odd(server: &str, reply: &Reply) -> Error {
    Error::Protocol { server: server.to_owned(), message: format!("unexpected reply: {}", reply.text()) }
}

fn item(node: &Arc<Node>, reply: Reply) -> Result<Option<Item>, Error> {
    match reply {
        // An item that was made for the client that computes its value.
        Reply::Value { item, marks } if marks.busy && !marks.stale && item.data.is_empty() => Ok(None),
        Reply::Value { item, .. } => Ok(Some(item)),
        Reply::End | Reply::Meta { status: MetaStatus::Miss, .. } => Ok(None),
        reply => Err(odd(node.name(), &reply)),
    }
}

fn written(node: &Arc<Node>, reply: Reply) -> Result<Written, Error> {
    match reply {
        Reply::Meta { status: MetaStatus::Done, marks } => Ok(Written::Stored { cas: marks.cas }),
        Reply::Meta { status: MetaStatus::NotStored, .. } | Reply::Status(Status::NotStored) => {
            Ok(Written::NotStored)
        }
        Reply::Meta { status: MetaStatus::Exists, .. } | Reply::Status(Status::Exists) => Ok(Written::Exists),
        Reply::Meta { status: MetaStatus::NotFound, .. } | Reply::Status(Status::NotFound) => {
            Ok(Written::NotFound)
        }
        Reply::Status(Status::Stored) => Ok(Written::Stored { cas: None }),
        reply => Err(odd(node.name(), &reply)),
    }
}

fn counted(node: &Arc<Node>, reply: Reply) -> Result<Option<u64>, Error> {
    match reply {
        Reply::Number(number) => Ok(Some(number)),
        Reply::Status(Status::NotFound) | Reply::Meta { status: MetaStatus::NotFound, .. } => Ok(None),
        Reply::Value { item, marks } => match wire::decimal(&item.data) {
            Some(number) => Ok(Some(number)),
            None => Err(odd(node.name(), &Reply::Value { item, marks })),
        },
        reply => Err(odd(node.name(), &reply)),
    }
}

fn deleted(node: &Arc<Node>, reply: Reply) -> Result<bool, Error> {
    match reply {
        Reply::Meta { status: MetaStatus::Done, .. } | Reply::Status(Status::Deleted | Status::Touched) => {
            Ok(true)
        }
        Reply::Meta { status: MetaStatus::NotFound | MetaStatus::Exists, .. }
        | Reply::Status(Status::NotFound) => Ok(false),
        reply => Err(odd(node.name(), &reply)),
    }
}
