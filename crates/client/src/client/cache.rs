//! The interface between a client and computing, namespaces.

use std::sync::Arc;
use std::time::Duration;

use cattlegrid_protocol::MetaStatus;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::cache::{Answer, Ask, Cache, Scope};
use crate::client::send::{check_tags, is_of_connection};
use crate::client::servers::CommandServers;
use crate::client::{Client, counted, deleted, exptime, item, odd, written};
use crate::error::{Cause, Error};
use crate::item::{Item, Write, Written};
use crate::join::join;
use crate::net::connection::{self, CommandFailure, SendStage, TimeLimit};
use crate::net::node::Node;
use crate::net::wire::{self, Command, Reply, StoreVerb};

/// First and longest interval between questions when all waiting connections are in use, or none can be made.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

impl Cache for Client {
    async fn get(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        self.read(key, false).await
    }

    async fn gets(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        self.read(key, true).await
    }

    async fn add(&self, write: Write<'_>) -> Result<Written, Error> {
        self.store(StoreVerb::Add, write, exptime(&write)).await
    }

    async fn set(&self, write: Write<'_>) -> Result<Written, Error> {
        self.store(StoreVerb::Set, write, exptime(&write)).await
    }

    async fn cas(&self, write: Write<'_>, cas: u64) -> Result<Written, Error> {
        self.store(StoreVerb::Cas(cas), write, exptime(&write)).await
    }

    async fn incr(&self, key: &[u8], by: u64) -> Result<Option<u64>, Error> {
        self.one(key, &Command::Count { key, by, down: false }, false, counted).await
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.one(key, &Command::Delete { key, token: None, failure: None }, false, deleted).await
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Vec<Result<Option<Item>, Error>> {
        self.read_many(keys, false).await
    }

    async fn gets_many(&self, keys: &[&[u8]]) -> Vec<Result<Option<Item>, Error>> {
        self.read_many(keys, true).await
    }

    async fn add_many(&self, writes: &[Write<'_>]) -> Vec<Result<Written, Error>> {
        self.store_many(writes.iter().map(|write| (StoreVerb::Add, *write, exptime(write))).collect()).await
    }

    async fn set_many(&self, writes: &[Write<'_>]) -> Vec<Result<Written, Error>> {
        self.store_many(writes.iter().map(|write| (StoreVerb::Set, *write, exptime(write))).collect()).await
    }

    async fn cas_many(&self, writes: &[(Write<'_>, u64)]) -> Vec<Result<Written, Error>> {
        self.store_many(
            writes.iter().map(|(write, cas)| (StoreVerb::Cas(*cas), *write, exptime(write))).collect(),
        )
        .await
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope { connections: connection::made(), route: self.inner.source.current().route.changes() })
    }

    async fn cas_many_within(
        &self,
        writes: &[(Write<'_>, u64, Scope)],
    ) -> Vec<Result<Option<Written>, Error>> {
        let now = self.now().await;
        let changes = now.route.changes();
        let all = writes.iter().map(|(write, cas, scope)| {
            // For a key with another server no connection will do.
            let same = changes == scope.route;
            let connections = if same { scope.connections } else { 0 };
            let verb = StoreVerb::CasWithin { cas: *cas, connections };
            (write.key, Command::Store { verb, write: *write, exptime: exptime(write) })
        });
        let outcome = |node: &Arc<Node>, reply| match reply {
            Reply::NotSent => Ok(None),
            reply => written(node, reply).map(Some),
        };
        self.many_to(now, all.collect(), false, outcome).await
    }

    async fn delete_many(&self, keys: &[&[u8]]) -> Vec<Result<bool, Error>> {
        let all = keys.iter().map(|key| (*key, Command::Delete { key, token: None, failure: None }));
        self.many(all.collect(), false, deleted).await
    }

    async fn ask(&self, key: &[u8], ask: Ask<'_>) -> Result<Answer, Error> {
        self.question(key, ask, false).await
    }

    async fn ask_to_outlive(&self, key: &[u8], ask: Ask<'_>) -> Result<Answer, Error> {
        self.question(key, ask, true).await
    }

    async fn ask_many(&self, keys: &[&[u8]], ask: Ask<'_>) -> Vec<Result<Answer, Error>> {
        let hint = match ask.hint.map(wire::hint).transpose() {
            Ok(hint) => hint,
            Err(error) => return vec![Err(error); keys.len()],
        };
        let hint = hint.as_deref();
        let all = keys.iter().map(|key| {
            (*key, Command::Ask { key, wait: Duration::ZERO, lease: ask.lease, hint, outlives: false })
        });
        let answer = |node: &Arc<Node>, reply| Ok((answer(node, reply)?, node.clone()));
        let answers = self.many(all.collect(), false, answer).await.into_iter().zip(keys);
        answers
            .map(|(answer, key)| answer.map(|(answer, node)| self.noted(key, &node, ask, answer)))
            .collect()
    }

    async fn claim_many(&self, keys: &[&[u8]], exptime: u32) -> Vec<Result<Option<u64>, Error>> {
        if self.inner.settings.protocol == crate::Protocol::Text {
            return keys.iter().map(|_| Ok(None)).collect();
        }
        let all = keys.iter().map(|key| (*key, Command::Claim { key, exptime }));
        let replies = self.many(all.collect(), false, claimed).await.into_iter();
        // A server that does not know how says so.
        replies
            .map(|reply| if matches!(reply, Err(Error::Refused { .. })) { Ok(None) } else { reply })
            .collect()
    }

    async fn fill(&self, write: Write<'_>, token: u64) -> Result<bool, Error> {
        let command = Command::Store { verb: StoreVerb::Cas(token), write, exptime: exptime(&write) };
        Ok(self.end_lease(write.key, token, &command, written).await?.is_stored())
    }

    async fn fill_many(&self, writes: &[(Write<'_>, u64)]) -> Vec<Result<bool, Error>> {
        let commands = writes.iter().map(|(write, token)| {
            (
                write.key,
                Command::Store { verb: StoreVerb::Cas(*token), write: *write, exptime: exptime(write) },
            )
        });
        // All at once to the servers of their keys; apart those leases that were had of another server, or of
        // a server that leaves.
        let now = self.now().await;
        let is_apart: Vec<_> = writes
            .iter()
            .map(|(write, token)| {
                let own = self.inner.server_of_lease(write.key, *token);
                own.is_some_and(|own| !self.node(&now, write.key).is_ok_and(|node| Arc::ptr_eq(node, &own)))
            })
            .collect();
        let here = commands.zip(&is_apart).filter(|(_, is_apart)| !**is_apart).map(|(command, _)| command);
        let mut here = self.many_to(now, here.collect(), false, written).await.into_iter();
        let stored = is_apart.iter().map(|is_apart| if *is_apart { None } else { here.next() });
        let stored: Vec<_> = stored.collect();
        join(writes.iter().zip(stored).map(|((write, token), stored)| async move {
            match stored {
                Some(Err(error))
                    if !is_of_connection(&error)
                        || self.inner.server_of_lease(write.key, *token).is_none() =>
                {
                    Err(error)
                }
                Some(Ok(written)) => {
                    self.inner.end_lease(write.key, *token);
                    Ok(written.is_stored())
                }
                Some(Err(_)) | None => self.fill(*write, *token).await,
            }
        }))
        .await
    }

    async fn give_up(&self, key: &[u8], token: u64, failure: Option<&str>) -> Result<(), Error> {
        let command = Command::Delete { key, token: Some(token), failure };
        self.end_lease(key, token, &command, deleted).await.map(drop)
    }

    async fn has_tags(&self) -> Result<bool, Error> {
        let now = self.now().await;
        if !now.nodes.iter().all(|node| node.can_tag()) {
            return Ok(false);
        }
        // Any name will do: the question creates nothing.
        let nodes = now.nodes.iter();
        let command = Command::TagNumber { tag: "cattlegrid" };
        let replies = join(nodes.map(|node| node.one(&command, true, now.limit))).await;
        // One server without tags decides, though another cannot be reached.
        if replies.iter().any(|reply| matches!(reply, Err(Error::Refused { .. }))) {
            return Ok(false);
        }
        // A server that may be ejected need not be there: the others have its keys then, and it has no vote.
        if now.route.ejects() && replies.iter().any(Result::is_ok) {
            return Ok(true);
        }
        replies.into_iter().find_map(Result::err).map_or(Ok(true), Err)
    }

    async fn invalidate(&self, tags: &[String]) -> Result<(), Error> {
        let commands: Vec<_> = tags.iter().map(|tag| Command::Invalidate { tag }).collect();
        for tag in tags {
            wire::check_tag(tag)?;
        }
        let now = self.now().await;
        if !now.nodes.iter().all(|node| node.can_tag()) {
            return Err(Error::NoTags);
        }
        self.clear_near();
        let all = join(now.nodes.iter().map(|node| node.many(&commands, false, now.limit))).await;
        self.clear_near();
        let (mut failed, mut reached) = (Vec::new(), 0);
        for (place, (node, replies)) in now.nodes.iter().zip(all).enumerate() {
            for reply in replies {
                let error = match reply {
                    Ok(Reply::Meta { status: MetaStatus::Done, .. }) => continue,
                    Ok(reply) => odd(node.name(), &reply),
                    Err(Error::Refused { .. }) => return Err(Error::NoTags),
                    Err(error) => error,
                };
                failed.push((place, node.name(), error));
                break;
            }
            reached += usize::from(failed.last().is_none_or(|(at, ..)| *at != place));
        }
        // A server that is flushed when it returns has nothing that could be invalidated.
        let route = &now.route;
        failed.retain(|(place, ..)| reached == 0 || route.is_available(*place) || !route.flushes_on_return());
        not_reached(failed.into_iter().map(|(_, server, error)| (server, error)).collect())
    }
}

/// A question for a value or its lease.
#[derive(Clone, Copy)]
struct ValueRequest<'a> {
    key: &'a [u8],
    ask: Ask<'a>,
    /// The hint as it is sent.
    hint: Option<&'a str>,
    outlives: bool,
}

impl Client {
    async fn question(&self, key: &[u8], ask: Ask<'_>, outlives: bool) -> Result<Answer, Error> {
        let hint = ask.hint.map(wire::hint).transpose()?;
        let asked = ValueRequest { key, ask, hint: hint.as_deref(), outlives };
        let start = Instant::now();
        let mut now = self.now().await;
        loop {
            let node = self.node(&now, key)?.clone();
            let error = match self.question_to(&node, asked, start, now.limit).await {
                Ok(answer) => return Ok(self.noted(key, &node, ask, answer)),
                Err(error) => error,
            };
            let Some(next) = self.elsewhere(&now, key, &node, &error).await else { return Err(error) };
            now = CommandServers { limit: TimeLimit::after(self.inner.settings.timeout), ..next };
        }
    }

    /// Sends what ends a lease, to the server of which it was had.
    async fn end_lease<T>(
        &self,
        key: &[u8],
        token: u64,
        command: &Command<'_>,
        outcome: impl Fn(&Arc<Node>, Reply) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(node) = self.inner.server_of_lease(key, token) else {
            return self.one(key, command, false, outcome).await;
        };
        check_tags(&node, command)?;
        let _writing = self.writing(command);
        let reply = node.end_lease(command, TimeLimit::after(self.inner.settings.timeout)).await?;
        self.inner.end_lease(key, token);
        outcome(&node, reply)
    }

    /// Notes a lease that was had, which ends at its server.
    fn noted(&self, key: &[u8], node: &Arc<Node>, ask: Ask<'_>, answer: Answer) -> Answer {
        if let Answer::Lease { token, .. } = &answer {
            self.inner.note_lease(key, *token, node, ask.lease);
        }
        answer
    }

    async fn question_to(
        &self,
        node: &Arc<Node>,
        asked: ValueRequest<'_>,
        start: Instant,
        limit: TimeLimit,
    ) -> Result<Answer, Error> {
        let ValueRequest { key, ask, hint, outlives } = asked;
        let whole = TimeLimit::after(self.inner.settings.timeout.saturating_add(ask.wait));
        let question = |wait| Command::Ask { key, wait, lease: ask.lease, hint, outlives };
        if ask.wait.is_zero() {
            return answer(node, node.one(&question(Duration::ZERO), false, limit).await?);
        }
        // On a connection of its own from the first question on: a caller that waits knows that another
        // client computes. Until one is there, and if there is none, it asks again and again.
        let mut pause = ASK_AGAIN.0;
        let mut waiting = Box::pin(node.waiting(whole));
        loop {
            let left = ask.wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Answer::Busy);
            }
            let until = Instant::now() + pause.min(left);
            match timeout_at(until, &mut waiting).await {
                Ok(Some(mut held)) => match held.one(&question(left), whole).await {
                    Ok(reply) => {
                        let answer = answer(node, reply.checked(node.name())?)?;
                        if matches!(answer, Answer::Lease { .. }) {
                            held.keep_for(ask.lease);
                        }
                        return Ok(answer);
                    }
                    // An idle connection had been closed by the server. A new one is next.
                    Err(CommandFailure { sent: SendStage::No, error })
                        if !matches!(error, Error::Timeout { .. }) =>
                    {
                        waiting = Box::pin(node.waiting(whole));
                        continue;
                    }
                    Err(CommandFailure { error: error @ Error::Timeout { .. }, .. }) => return Err(error),
                    Err(_) => waiting = Box::pin(node.waiting(whole)),
                },
                Ok(None) => waiting = Box::pin(node.waiting(whole)),
                Err(_) => {}
            }
            sleep_until(until).await;
            pause = ASK_AGAIN.1.min(pause * 2);
            let limit = TimeLimit::after(self.inner.settings.timeout);
            let limit = if whole.at < limit.at { whole } else { limit };
            let again = node.one(&question(Duration::ZERO), false, limit).await?;
            match answer(node, again)? {
                Answer::Busy => {}
                other => return Ok(other),
            }
        }
    }

    /// The item of a key that has a fresh value: no lease is taken for a missing or old value.
    pub(crate) async fn look(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        if self.inner.settings.protocol == crate::Protocol::Text {
            return self.read(key, false).await;
        }
        let is_there = |node: &Arc<Node>, reply| match reply {
            Reply::Meta { status: MetaStatus::Done, marks } => Ok(!marks.stale),
            Reply::Meta { .. } => Ok(false),
            reply => Err(odd(node.name(), &reply)),
        };
        if !self.one(key, &Command::Look { key }, true, is_there).await? {
            return Ok(None);
        }
        let none = Ask { lease: Duration::from_secs(1), wait: Duration::ZERO, hint: None };
        match self.question(key, none, false).await? {
            Answer::Hit(item) => Ok(Some(item)),
            // It has gone or is due for a refresh: that is for a client that computes.
            Answer::Lease { token, old, .. } => {
                Cache::give_up(self, key, token, None).await?;
                Ok(old.filter(|old| !old.data.is_empty()))
            }
            Answer::Stale(_) | Answer::Busy | Answer::Failed(_) | Answer::Absent => Ok(None),
        }
    }
}

/// The error that names all servers that failed.
fn not_reached(mut failed: Vec<(&str, Error)>) -> Result<(), Error> {
    if failed.len() <= 1 {
        return failed.pop().map_or(Ok(()), |(_, error)| Err(error));
    }
    let servers: Vec<_> = failed.iter().map(|(server, _)| *server).collect();
    let texts: Vec<_> = failed.iter().map(|(_, error)| error.to_string()).collect();
    let source = failed.first().map(|(_, error)| Cause::new(error.clone()));
    Err(Error::Connection {
        server: servers.join(", "),
        kind: std::io::ErrorKind::Other,
        message: texts.join("; "),
        source,
    })
}

/// The meaning of a server's reply to a claim.
fn claimed(node: &Arc<Node>, reply: Reply) -> Result<Option<u64>, Error> {
    match reply {
        Reply::Meta { status: MetaStatus::Done, marks } => {
            Ok(marks.cas.filter(|cas| marks.won && !marks.stale && *cas != 0))
        }
        Reply::Meta { status: MetaStatus::Miss, .. } => Ok(None),
        reply => Err(odd(node.name(), &reply)),
    }
}

/// The meaning of a server's reply to an [`Ask`].
fn answer(node: &Arc<Node>, reply: Reply) -> Result<Answer, Error> {
    Ok(match reply {
        Reply::Value { item, marks } if marks.won => {
            let old = (marks.stale || !item.data.is_empty()).then(|| item.clone());
            Answer::Lease { token: item.cas, hint: marks.text, old }
        }
        Reply::Value { item, marks } if marks.stale => Answer::Stale(item),
        Reply::Value { item, marks } if marks.busy && item.data.is_empty() => Answer::Busy,
        Reply::Value { item, .. } => Answer::Hit(item),
        Reply::Meta { status: MetaStatus::Miss, marks } => marks.text.map_or(Answer::Absent, Answer::Failed),
        reply => return item(node, reply).map(|item| item.map_or(Answer::Absent, Answer::Hit)),
    })
}
