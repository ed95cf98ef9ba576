//! One server: its connections, and when it is not asked after failures.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::{Cause, Error};
use crate::metrics::{Metrics, RequestOutcome};
use crate::net::address::Address;
#[cfg(feature = "tls")]
use crate::net::address::Endpoint;
use crate::net::connection::{CommandFailure, Connection, HealthWatch, SendStage, TimeLimit, broken};
use crate::net::stream::Stream;
#[cfg(feature = "tls")]
use crate::net::tls::Tls;
use crate::net::wire::{Command, Protocol, Reply};
use crate::route::{Event, Route};

/// Settings that all nodes of a client have in common.
#[derive(Debug, Clone)]
pub(crate) struct NodeSettings {
    pub(crate) protocol: Protocol,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) retry_reads: bool,
    pub(crate) connections: usize,
    pub(crate) waiting_connections: usize,
    /// The request that authenticates.
    pub(crate) login: Option<Vec<u8>>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Shortest back-off.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
/// Longest back-off.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// No waiting connection is tried for this long after one could not be made.
const WAITING_AGAIN: Duration = Duration::from_secs(1);
/// Waiting connections are closed after this long without a request.
const IDLE: Duration = Duration::from_secs(30);

/// One server.
pub(crate) struct Node {
    pub(crate) address: Address,
    settings: Arc<NodeSettings>,
    health: Arc<NodeHealth>,
    lanes: Box<[SharedPlace]>,
    waiting: Mutex<WaitingPool>,
    /// Until when a failure may be that of a server that leaves.
    leaves: Mutex<Option<Instant>>,
}

/// The place of one shared connection.
#[derive(Default)]
struct SharedPlace {
    current: Mutex<Option<Arc<Connection>>>,
    connecting: tokio::sync::Mutex<()>,
}

/// Connections for requests that the server may hold.
#[derive(Default)]
struct WaitingPool {
    idle: Vec<Arc<Connection>>,
    /// In use.
    used: usize,
    /// No new one is tried before, since the last could not be made.
    again: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// A server of no route yet.
    pub(crate) fn new(address: Address, settings: Arc<NodeSettings>) -> Self {
        let lanes = (0..settings.connections.max(1)).map(|_| SharedPlace::default()).collect();
        let (server, metrics) = (address.name.clone(), settings.metrics.clone());
        let health =
            Arc::new(NodeHealth { failures: Mutex::default(), place: Mutex::default(), server, metrics });
        Self { address, settings, health, lanes, waiting: Mutex::default(), leaves: Mutex::default() }
    }

    /// The server has this place in the route from now on, which is told of its failures.
    pub(crate) fn is_at(&self, route: Arc<Route>, place: usize) {
        *lock(&self.health.place) = Some((route, place));
    }

    pub(crate) fn name(&self) -> &str {
        &self.address.name
    }

    /// The server has failed, and may be leaving, which is found out within `lasts`: until when. None: that
    /// time is over, and has not begun again, which it does after `again`.
    pub(crate) fn may_leave_until(&self, lasts: Duration, again: Duration) -> Option<Instant> {
        let (mut leaves, now) = (lock(&self.leaves), Instant::now());
        let until = leaves.filter(|until| now < *until + again).unwrap_or(now + lasts);
        *leaves = Some(until);
        (now < until).then_some(until)
    }

    /// Whether its protocol can give tags to items.
    pub(crate) fn can_tag(&self) -> bool {
        self.settings.protocol == Protocol::Meta
    }

    /// Sends a command and returns its reply, error lines excepted. `repeat`: the command has no effect and
    /// is sent once more if the connection breaks before its reply.
    pub(crate) async fn one(
        &self,
        command: &Command<'_>,
        repeat: bool,
        limit: TimeLimit,
    ) -> Result<Reply, Error> {
        let began = self.settings.metrics.begin();
        let reply = self.ask(command, repeat, limit).await;
        self.settings.metrics.request(self.name(), command.name(), began, outcome(&reply));
        reply
    }

    /// Sends what ends a lease. A server that leaves takes no connection any more, and keeps only those on
    /// which leases were had: it is sent over one of them then.
    pub(crate) async fn end_lease(&self, command: &Command<'_>, limit: TimeLimit) -> Result<Reply, Error> {
        let reply = self.one(command, false, limit).await;
        if !matches!(reply, Err(Error::Connection { .. } | Error::Unavailable { .. })) {
            return reply;
        }
        while let Some(mut held) = self.idle() {
            if let Ok(reply) = held.one(command, limit).await {
                return reply.checked(self.name());
            }
        }
        reply
    }

    /// A waiting connection that is open and not in use.
    fn idle(&self) -> Option<WaitingConnection<'_>> {
        let mut waiting = lock(&self.waiting);
        waiting.idle.retain(|connection| !connection.is_closed());
        let connection = waiting.idle.pop()?;
        waiting.used += 1;
        Some(WaitingConnection { node: self, connection: Some(connection), whole: true })
    }

    async fn ask(&self, command: &Command<'_>, repeat: bool, limit: TimeLimit) -> Result<Reply, Error> {
        let mut first = None;
        loop {
            let connection = self.connection_again(&mut first, limit).await?;
            if !command.goes_over(connection.number()) {
                return Ok(Reply::NotSent);
            }
            match connection.one(command, limit).await {
                Ok(reply) => return reply.checked(self.name()),
                Err(failure) if first.is_none() && self.may_repeat(&failure, repeat, limit) => {
                    first = Some(failure.error);
                }
                Err(failure) => return Err(failure.error),
            }
        }
    }

    /// Sends commands of one kind, and returns their replies in order.
    pub(crate) async fn many(
        &self,
        commands: &[Command<'_>],
        repeat: bool,
        limit: TimeLimit,
    ) -> Vec<Result<Reply, Error>> {
        let began = self.settings.metrics.begin();
        let replies = self.ask_all(commands, repeat, limit).await;
        for (command, reply) in commands.iter().zip(&replies) {
            self.settings.metrics.request(self.name(), command.name(), began, outcome(reply));
        }
        replies
    }

    async fn ask_all(
        &self,
        commands: &[Command<'_>],
        repeat: bool,
        limit: TimeLimit,
    ) -> Vec<Result<Reply, Error>> {
        let mut all = Vec::with_capacity(commands.len());
        let mut first = None;
        let error = loop {
            let connection = match self.connection_again(&mut first, limit).await {
                Ok(connection) => connection,
                Err(error) => break error,
            };
            if !commands[all.len()..].iter().all(|command| command.goes_over(connection.number())) {
                all.resize(commands.len(), Ok(Reply::NotSent));
                return all;
            }
            let (replies, failure) = connection.many(&commands[all.len()..], limit).await;
            all.extend(replies.into_iter().map(|reply| reply.checked(self.name())));
            match failure {
                None => return all,
                Some(failure) if first.is_none() && self.may_repeat(&failure, repeat, limit) => {
                    first = Some(failure.error);
                }
                Some(failure) => break failure.error,
            }
        };
        all.resize(commands.len(), Err(error));
        all
    }

    /// Tries the server on a connection of its own, whatever its back-off, and flushes it or not. Whether it
    /// answers.
    pub(crate) async fn probe(&self, flush: bool) -> bool {
        let limit = TimeLimit::after(self.settings.timeout);
        let Ok(Ok(stream)) = timeout_at(limit.at, self.open()).await else { return false };
        let health: Arc<dyn HealthWatch> = self.health.clone();
        let (name, protocol) = (self.address.name.clone(), self.settings.protocol);
        let connection = Connection::start(stream, name, protocol, None, health);
        let command = if flush { Command::FlushAll } else { Command::Version };
        let reply = connection.one(&command, limit).await;
        connection.close();
        reply.is_ok_and(|reply| reply.checked(self.name()).is_ok())
    }

    /// Whether there is time to send a command again, and no harm in it. A command that was not sent may have
    /// met a connection that was closed because of the timeout of another.
    fn may_repeat(&self, failure: &CommandFailure, repeat: bool, limit: TimeLimit) -> bool {
        let harmless = match failure.sent {
            SendStage::No => true,
            SendStage::Perhaps => {
                repeat && self.settings.retry_reads && matches!(failure.error, Error::Connection { .. })
            }
            SendStage::Answered => false,
        };
        harmless && Instant::now() < limit.at
    }

    /// An open connection, for a command that has failed with `first` before. If the server is not asked
    /// again, that is the error.
    async fn connection_again(
        &self,
        first: &mut Option<Error>,
        limit: TimeLimit,
    ) -> Result<Arc<Connection>, Error> {
        let connection = self.connection(limit).await;
        match (connection, first) {
            (Ok(connection), first) => {
                if first.is_some() {
                    self.settings.metrics.retry();
                }
                Ok(connection)
            }
            (Err(Error::Unavailable { .. }), Some(first)) => Err(first.clone()),
            (Err(error), _) => Err(error),
        }
    }

    /// An open connection: that with the fewest requests, or a new one.
    async fn connection(&self, limit: TimeLimit) -> Result<Arc<Connection>, Error> {
        let mut best: Option<(usize, &SharedPlace, Option<Arc<Connection>>)> = None;
        for lane in &self.lanes {
            let open = lane.open();
            let pending = match &open {
                Some(connection) => connection.pending(),
                None => usize::from(lane.connecting.try_lock().is_err()),
            };
            if best.as_ref().is_none_or(|(least, ..)| pending < *least) {
                best = Some((pending, lane, open));
            }
            if pending == 0 {
                break;
            }
        }
        let Some((pending, lane, open)) = best else {
            return Err(Error::Usage("a client without connections".to_owned()));
        };
        if let Some(connection) = open {
            if !connection.is_proven() && pending > 0 {
                self.health.is_probed(self.name(), Instant::now())?;
            }
            return Ok(connection);
        }
        let Ok(_connecting) = timeout_at(limit.at, lane.connecting.lock()).await else {
            return Err(limit.error(self.name()));
        };
        if let Some(connection) = lane.open() {
            return Ok(connection);
        }
        let connection = Arc::new(self.connect(None, limit).await?);
        *lock(&lane.current) = Some(connection.clone());
        Ok(connection)
    }

    /// A new connection, unless the server has failed lately.
    async fn connect(&self, idle: Option<Duration>, limit: TimeLimit) -> Result<Connection, Error> {
        self.health.ask(self.name(), Instant::now(), self.settings.timeout)?;
        let connecting = TimeLimit::after(self.settings.connect_timeout);
        let connecting = if connecting.at < limit.at { connecting } else { limit };
        let stream = match timeout_at(connecting.at, self.open()).await {
            Ok(stream) => stream,
            Err(_) => Err(connecting.error(self.name())),
        };
        match stream {
            Ok(stream) => {
                let protocol = self.settings.protocol;
                self.settings.metrics.connected(self.name());
                let health: Arc<dyn HealthWatch> = self.health.clone();
                Ok(Connection::start(stream, self.address.name.clone(), protocol, idle, health))
            }
            Err(error) => {
                self.settings.metrics.disconnected(self.name(), &error.to_string());
                // That a waiting one cannot be made may be the fault of this process, which has no
                // descriptors left.
                if idle.is_none() {
                    self.health.fails(&error);
                }
                Err(error)
            }
        }
    }

    async fn open(&self) -> Result<Stream, Error> {
        let mut stream =
            Stream::connect(&self.address.place).await.map_err(|error| broken(self.name(), error))?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.settings.tls {
            let host = match &self.address.place {
                Endpoint::Tcp { host, .. } => Some(host.as_str()),
                Endpoint::Unix(_) => None,
            };
            let encrypted = stream.encrypt(tls.connector(), tls.name_of(host)?).await;
            stream = encrypted.map_err(|error| broken(self.name(), error))?;
        }
        if let Some(login) = &self.settings.login {
            let line = stream.ask_line(login).await.map_err(|error| broken(self.name(), error))?;
            if line != b"STORED" {
                let line = String::from_utf8_lossy(&line).into_owned();
                return Err(Error::Refused { server: self.name().to_owned(), line });
            }
        }
        Ok(stream)
    }

    /// A connection on which the server may hold a request, and has answered before. None: all are in use, or
    /// none can be made, of which other requests may notice nothing: the server has no connections left, or
    /// this process no descriptors.
    pub(crate) async fn waiting(&self, limit: TimeLimit) -> Option<WaitingConnection<'_>> {
        let idle = {
            let mut waiting = lock(&self.waiting);
            waiting.idle.retain(|connection| !connection.is_closed());
            let is_barred = waiting.idle.is_empty() && waiting.again.is_some_and(|at| Instant::now() < at);
            if is_barred || waiting.used >= self.settings.waiting_connections {
                return None;
            }
            waiting.used += 1;
            waiting.idle.pop()
        };
        let is_new = idle.is_none();
        let mut held = WaitingConnection { node: self, connection: idle, whole: !is_new };
        if is_new {
            let connection = self.connect(Some(IDLE), limit).await;
            let connection = connection.map(|connection| held.connection.insert(Arc::new(connection)));
            // A server that accepts it but does not serve it would seem to hold the request.
            let reply = match connection {
                Ok(connection) => {
                    connection.one(&Command::Version, limit).await.map_err(|failure| failure.error)
                }
                Err(error) => Err(error),
            };
            if reply.and_then(|reply| reply.checked(self.name())).is_err() {
                lock(&self.waiting).again = Instant::now().checked_add(WAITING_AGAIN);
                return None;
            }
            held.whole = true;
        }
        Some(held)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for lane in &self.lanes {
            if let Some(connection) = lock(&lane.current).take() {
                connection.close();
            }
        }
        for connection in lock(&self.waiting).idle.drain(..) {
            connection.close();
        }
    }
}

impl SharedPlace {
    fn open(&self) -> Option<Arc<Connection>> {
        lock(&self.current).as_ref().filter(|connection| !connection.is_closed()).cloned()
    }
}

/// A waiting connection in use. It is closed unless its request got its reply.
pub(crate) struct WaitingConnection<'a> {
    node: &'a Node,
    connection: Option<Arc<Connection>>,
    whole: bool,
}

impl WaitingConnection<'_> {
    /// Sends a command that the server may hold.
    pub(crate) async fn one(
        &mut self,
        command: &Command<'_>,
        limit: TimeLimit,
    ) -> Result<Reply, CommandFailure> {
        let Some(connection) = &self.connection else {
            return Err(CommandFailure { error: limit.error(self.node.name()), sent: SendStage::No });
        };
        self.whole = false;
        let reply = connection.one(command, limit).await;
        self.whole = reply.is_ok();
        reply
    }

    /// The lease that came lasts until then, and its connection must.
    pub(crate) fn keep_for(&self, lease: Duration) {
        if let (Some(connection), Some(at)) = (&self.connection, Instant::now().checked_add(lease)) {
            connection.keep_until(at);
        }
    }
}

impl Drop for WaitingConnection<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.node.waiting);
        waiting.used -= 1;
        if let Some(connection) = self.connection.take() {
            if self.whole && !connection.is_closed() {
                waiting.idle.push(connection);
            } else {
                connection.close();
            }
        }
    }
}

/// When a server is asked again after failures.
#[derive(Debug)]
struct NodeHealth {
    failures: Mutex<FailureCount>,
    /// The route that is told of failures, and the server's place in it.
    place: Mutex<Option<(Arc<Route>, usize)>>,
    server: Arc<str>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct FailureCount {
    /// Since the last reply.
    count: u32,
    /// Not asked before.
    until: Option<Instant>,
    last: Option<Error>,
}

impl FailureCount {
    fn unavailable(&self, server: &str, left: Duration) -> Error {
        let message = self.last.as_ref().map(Error::to_string).unwrap_or_default();
        let source = self.last.clone().map(Cause::new);
        Error::Unavailable { server: server.to_owned(), left, message, source }
    }
}

impl NodeHealth {
    /// Whether a connection may be made. The first caller after a back-off probes: until `probe` is over or
    /// the server has answered, others are refused.
    fn ask(&self, server: &str, now: Instant, probe: Duration) -> Result<(), Error> {
        let mut failures = lock(&self.failures);
        let Some(until) = failures.until else { return Ok(()) };
        if now < until {
            return Err(failures.unavailable(server, until - now));
        }
        failures.until = now.checked_add(probe);
        Ok(())
    }

    /// Refuses a request while another one shows whether the server works again.
    fn is_probed(&self, server: &str, now: Instant) -> Result<(), Error> {
        let failures = lock(&self.failures);
        let Some(until) = failures.until else { return Ok(()) };
        Err(failures.unavailable(server, until.saturating_duration_since(now)))
    }

    fn count(&self, error: &Error, now: Instant, jitter: f64) {
        let mut failures = lock(&self.failures);
        let longest = BACK_OFF_MIN.saturating_mul(1 << failures.count.min(16)).min(BACK_OFF_MAX);
        failures.count = failures.count.saturating_add(1);
        failures.until = Some(now + longest.mul_f64(1.0 - jitter / 2.0));
        failures.last = Some(error.clone());
    }
}

impl HealthWatch for NodeHealth {
    fn works(&self) {
        *lock(&self.failures) = FailureCount::default();
        if let Some((route, place)) = &*lock(&self.place) {
            route.succeeded(*place);
        }
    }

    fn fails(&self, error: &Error) {
        let now = Instant::now();
        self.count(error, now, random());
        let place = lock(&self.place).clone();
        if place.is_some_and(|(route, place)| route.failed(place, now.into_std()) == Event::Ejected) {
            self.metrics.ejected(&self.server, &error.to_string());
        }
    }

    fn ends(&self, error: &Error) {
        self.metrics.disconnected(&self.server, &error.to_string());
    }
}

/// The outcome of a request for a caller.
fn outcome(reply: &Result<Reply, Error>) -> RequestOutcome {
    match reply {
        Ok(reply) => reply.outcome(),
        Err(Error::Timeout { .. }) => RequestOutcome::Timeout,
        Err(_) => RequestOutcome::Error,
    }
}

/// From 0 up to 1.
pub(crate) fn random() -> f64 {
    // The standard library's keys of hash maps are the randomness that is at hand.
    let bits = std::hash::RandomState::new().build_hasher().finish() as u32;
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}
