//! How commands reach the servers of their keys, and what happens when those change.
//!
//! A command whose connection fails is sent once more if its key has another server by then, which is so only
//! where the servers are those of a list. It may have been executed by the first server, whose keys are not
//! read any more; by each server it is executed once at most. What has a CAS number or a token is never sent
//! to another server, and a key that begins with `@` neither.

use std::sync::Arc;

use tokio::time::Instant;

use super::servers::{CommandServers, ServerSource, Servers, ServersRef};
use super::{Client, ClientInner};
use crate::error::Error;
use crate::join::join;
use crate::key;
use crate::net::connection::TimeLimit;
use crate::net::node::Node;
use crate::net::wire::{self, Command, Reply, StoreVerb};
use crate::route::Event;

/// A command is sent to this many servers at most.
const SERVERS_MAX: usize = 3;

/// The commands of one server: the place of each, and the key by which it was found.
type ServerBatch<'a> = (Vec<(usize, &'a [u8])>, Vec<Command<'a>>);

/// A command that has failed, and may have another server by now.
struct FailedCommand<'a> {
    at: usize,
    key: &'a [u8],
    command: Command<'a>,
    node: Arc<Node>,
    error: Error,
}

impl Client {
    /// The servers as of now, and the time of a command that begins now. The list of the servers may have to
    /// be asked for first.
    pub(super) async fn now(&self) -> CommandServers<'_> {
        let limit = TimeLimit::after(self.inner.settings.timeout);
        let servers = match &self.inner.source {
            ServerSource::Fixed(servers) => ServersRef::Fixed(servers),
            ServerSource::Listed(nodes) => ServersRef::Listed(nodes.servers(limit).await),
        };
        CommandServers { servers, limit }
    }

    /// The server of a key.
    pub(super) fn node<'n>(&self, now: &'n CommandServers<'_>, key: &[u8]) -> Result<&'n Arc<Node>, Error> {
        Ok(&now.nodes[self.place(&now.servers, key)?])
    }

    fn place(&self, servers: &Arc<Servers>, key: &[u8]) -> Result<usize, Error> {
        key::check(key).map_err(Error::Key)?;
        let route = &servers.route;
        if route.has_ejected() {
            self.probe(servers);
        }
        route.place(key).ok_or_else(|| Error::Unavailable {
            server: servers.nodes[route.own_place(key)].name().to_owned(),
            left: route.next_probe(Instant::now().into_std()).unwrap_or_default(),
            message: "all servers are ejected".to_owned(),
            source: None,
        })
    }

    /// Tries the ejected servers whose time has come, in the background; each takes the timeout at most.
    #[cold]
    fn probe(&self, servers: &Arc<Servers>) {
        for probe in servers.route.due(Instant::now().into_std()) {
            let (inner, node) = (self.inner.clone(), servers.nodes[probe.place].clone());
            tokio::spawn(async move {
                let succeeded = node.probe(probe.flush).await;
                // The servers may be others by now: an ejection keeps its number.
                let servers = inner.source.current();
                if servers.route.probed(probe, succeeded, Instant::now().into_std()) == Event::Returned {
                    inner.settings.metrics.returned(node.name());
                }
            });
        }
    }

    /// Sends a command to the server of `key`, and makes something of its reply.
    pub(super) async fn one<T>(
        &self,
        key: &[u8],
        command: &Command<'_>,
        reads: bool,
        outcome: impl Fn(&Arc<Node>, Reply) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut now = self.now().await;
        let mut writings = Vec::new();
        let mut tries = 1;
        loop {
            let node = self.node(&now, key)?;
            check_tags(node, command)?;
            writings.extend(self.writing(command));
            let error = match node.one(command, reads && !is_control(key), now.limit).await {
                Ok(reply) => return outcome(node, reply),
                Err(error) => error,
            };
            if tries == SERVERS_MAX || !may_move(key, command) {
                return Err(error);
            }
            let Some(next) = self.elsewhere(&now, key, node, &error).await else { return Err(error) };
            now = next;
            tries += 1;
        }
    }

    /// The servers in which `key` has another one than this, which has failed. None: its server is the same,
    /// or this is another failure.
    pub(super) async fn elsewhere<'s>(
        &'s self,
        now: &CommandServers<'_>,
        key: &[u8],
        failed: &Arc<Node>,
        error: &Error,
    ) -> Option<CommandServers<'s>> {
        let ServerSource::Listed(nodes) = &self.inner.source else { return None };
        if !is_of_connection(error) {
            return None;
        }
        let mut seen = Arc::clone(&now.servers);
        loop {
            let servers = nodes.after_failure(&seen, failed, now.limit).await?;
            let place = self.place(&servers, key).ok()?;
            if !Arc::ptr_eq(&servers.nodes[place], failed) {
                return Some(CommandServers { servers: ServersRef::Listed(servers), limit: now.limit });
            }
            seen = servers;
        }
    }

    /// Sends commands to the servers of their keys, all at once, and makes something of each reply.
    pub(super) async fn many<'a, T>(
        &self,
        all: Vec<(&'a [u8], Command<'a>)>,
        reads: bool,
        outcome: impl Fn(&Arc<Node>, Reply) -> Result<T, Error>,
    ) -> Vec<Result<T, Error>> {
        self.many_to(self.now().await, all, reads, outcome).await
    }

    /// [`many`](Self::many), to these servers.
    pub(super) async fn many_to<'a, T>(
        &self,
        mut now: CommandServers<'_>,
        all: Vec<(&'a [u8], Command<'a>)>,
        reads: bool,
        outcome: impl Fn(&Arc<Node>, Reply) -> Result<T, Error>,
    ) -> Vec<Result<T, Error>> {
        let mut outcomes = Vec::new();
        let all = all.into_iter().enumerate().map(|(at, (key, command))| (at, key, command)).collect();
        let mut failed = self.round(&now, all, reads, &outcome, &mut outcomes).await;
        let mut rounds = 1;
        while let Some(FailedCommand { key, node, error, .. }) = failed.first()
            && rounds < SERVERS_MAX
        {
            let Some(next) = self.elsewhere(&now, key, node, error).await else {
                // Another server's commands may have one.
                let same = failed[0].node.clone();
                failed.retain(|failed| !Arc::ptr_eq(&failed.node, &same));
                continue;
            };
            let (stay, move_on): (Vec<_>, Vec<_>) = failed.into_iter().partition(|failed| {
                self.node(&next, failed.key).is_ok_and(|node| Arc::ptr_eq(node, &failed.node))
            });
            let again = move_on.into_iter().map(|FailedCommand { at, key, command, .. }| (at, key, command));
            failed = self.round(&next, again.collect(), reads, &outcome, &mut outcomes).await;
            failed.extend(stay);
            (now, rounds) = (next, rounds + 1);
        }
        outcomes.into_iter().flatten().collect()
    }

    /// Sends commands, each of which has its place in `outcomes`. Those that have failed and may have another
    /// server by now are returned.
    async fn round<'a, T>(
        &self,
        now: &CommandServers<'_>,
        all: Vec<(usize, &'a [u8], Command<'a>)>,
        reads: bool,
        outcome: &impl Fn(&Arc<Node>, Reply) -> Result<T, Error>,
        outcomes: &mut Vec<Option<Result<T, Error>>>,
    ) -> Vec<FailedCommand<'a>> {
        let mut batches: Vec<(ServerBatch<'a>, bool)> = Vec::new();
        batches.resize_with(now.nodes.len(), || (ServerBatch::default(), reads));
        let mut writings = Vec::new();
        for (at, key, command) in all {
            if outcomes.len() <= at {
                outcomes.resize_with(at + 1, || None);
            }
            let place = self.place(&now.servers, key);
            match place.and_then(|place| check_tags(&now.nodes[place], &command).map(|()| place)) {
                Ok(place) => {
                    let ((places, commands), repeat) = &mut batches[place];
                    places.push((at, key));
                    writings.extend(self.writing(&command));
                    commands.push(command);
                    *repeat &= !is_control(key);
                }
                Err(error) => outcomes[at] = Some(Err(error)),
            }
        }
        let used = batches.into_iter().zip(&now.nodes).filter(|(((places, _), _), _)| !places.is_empty());
        let replies = join(used.map(|(((places, commands), repeat), node)| async move {
            let replies = node.many(&commands, repeat, now.limit).await;
            (node, places, commands, replies)
        }));
        let (moves, mut failed) = (matches!(self.inner.source, ServerSource::Listed(_)), Vec::new());
        for (node, places, commands, replies) in replies.await {
            for (((at, key), command), reply) in places.into_iter().zip(commands).zip(replies) {
                if let Err(error) = &reply
                    && moves
                    && is_of_connection(error)
                    && may_move(key, &command)
                {
                    failed.push(FailedCommand { at, key, command, node: node.clone(), error: error.clone() });
                }
                outcomes[at] = Some(reply.and_then(|reply| outcome(node, reply)));
            }
        }
        failed
    }
}

impl ClientInner {
    /// A lease was had of this server.
    pub(super) fn note_lease(&self, key: &[u8], token: u64, node: &Arc<Node>, lasts: std::time::Duration) {
        if let ServerSource::Listed(nodes) = &self.source {
            nodes.leases.note(key, token, node, lasts);
        }
    }

    /// The server of which a lease was had, if that is known: where the servers cannot change it need not be.
    pub(super) fn server_of_lease(&self, key: &[u8], token: u64) -> Option<Arc<Node>> {
        match &self.source {
            ServerSource::Listed(nodes) => nodes.leases.server(key, token),
            ServerSource::Fixed(_) => None,
        }
    }

    /// A lease has ended.
    pub(super) fn end_lease(&self, key: &[u8], token: u64) {
        if let ServerSource::Listed(nodes) = &self.source {
            nodes.leases.end(key, token);
        }
    }
}

/// A control key, whose reading may do something.
fn is_control(key: &[u8]) -> bool {
    key.starts_with(b"@")
}

/// Whether this is what the commands get whose server leaves.
pub(super) fn is_of_connection(error: &Error) -> bool {
    matches!(error, Error::Connection { .. } | Error::Unavailable { .. })
}

/// Whether a command that has failed may be sent to another server.
fn may_move(key: &[u8], command: &Command<'_>) -> bool {
    let is_of_server = match command {
        Command::Store { verb, .. } => matches!(verb, StoreVerb::Cas(_) | StoreVerb::CasWithin { .. }),
        Command::Delete { token, .. } => token.is_some(),
        _ => false,
    };
    !is_of_server && !is_control(key)
}

/// Checks the tags of a write. One whose tags this server could not be sent would keep its value when they
/// are invalidated.
pub(super) fn check_tags(node: &Node, command: &Command<'_>) -> Result<(), Error> {
    match command {
        Command::Store { write, .. } if !write.tags.is_empty() => {
            wire::check_tags(write.tags)?;
            if node.can_tag() { Ok(()) } else { Err(Error::NoTags) }
        }
        _ => Ok(()),
    }
}
