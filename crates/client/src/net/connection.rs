//! One socket, shared by many callers.
//!
//! A caller appends its request and a slot for the reply. If nothing is pending it writes to the socket
//! itself; otherwise it wakes the connection's driver, a task that lets other callers add theirs and then
//! sends all of it at once. The driver reads, and completes the slots in their order.
//!
//! # Invariants
//! * Slots are in the order of the requests in the stream; a request is in the stream if and only if its slot
//!   is in the queue, and both are added under one lock. So a reply belongs to the first slot, whatever has
//!   become of its caller.
//! * A slot whose caller has gone or has timed out stays until its reply has been read.
//! * Bytes that are no reply to the first slot's request close the connection: nothing is read after them. A
//!   reply of the meta protocol is one only if it names the request's number, so that a reply that is lost or
//!   comes twice on its way gives nobody another's.
//! * The driver ends when the connection is closed, for any reason. Then all slots have been completed.
//! * A slot is completed by its deadline: the driver's timer is never later than the earliest one. The driver
//!   runs in the runtime of the caller who made the connection. A caller in another one keeps its deadline
//!   itself, and closes a connection whose driver does not.

use std::collections::VecDeque;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::error::{Cause, Error};
use crate::net::stream::{Stream, WriteHalf};
use crate::net::wire::{Command, ExpectedReply, Protocol, Reply};
use driver::ConnectionDriver;

mod driver;

/// Callers wait while this many bytes are unsent. A single request may be larger.
const UNSENT_MAX: usize = 64 << 20;
/// The size of buffers in which requests are gathered, about.
const CHUNK: usize = 64 << 10;
/// Longest wait for the reply to a lease that is given up.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(10);
/// A driver that is this late is considered stuck.
const DRIVER_LATE: Duration = Duration::from_millis(20);

/// A command without reply.
#[derive(Debug, Clone)]
pub(crate) struct CommandFailure {
    /// The error for the caller.
    pub(crate) error: Error,
    /// Whether the command can be sent again.
    pub(crate) sent: SendStage,
}

/// The progress of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendStage {
    /// No byte of it was sent.
    No,
    /// The command may have been executed; no byte of a reply has come.
    Perhaps,
    /// A part of the reply has come, or the time is over.
    Answered,
}

/// The replies that came, and the failure of the remaining commands.
pub(crate) type Replies = (Vec<Reply>, Option<CommandFailure>);

/// The number of connections that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The number of connections that this process has made.
pub(crate) fn made() -> u64 {
    MADE.load(Ordering::SeqCst)
}

/// A connection to a server.
pub(crate) struct Connection {
    shared: Arc<ConnectionLink>,
}

struct ConnectionLink {
    /// The value of [`made`] after it was made.
    number: u64,
    server: Arc<str>,
    protocol: Protocol,
    state: Mutex<LinkState>,
    /// The number of requests without a complete reply.
    pending: AtomicUsize,
    /// The number of reads that brought bytes.
    reads: AtomicU64,
    closed: AtomicBool,
    /// Notified when unsent bytes may have fallen below [`UNSENT_MAX`].
    room: Notify,
    health: Arc<dyn HealthWatch>,
    /// The runtime of the driver.
    runtime: tokio::runtime::Id,
}

/// Observes the health of a connection.
pub(crate) trait HealthWatch: Send + Sync {
    /// Called when the first reply has come.
    fn works(&self);
    /// Called when the connection was closed because of this error, without a reply or because the server is
    /// silent.
    fn fails(&self, error: &Error);
    /// Called when the connection has ended, with the reason.
    fn ends(&self, error: &Error);
}

struct LinkState {
    /// The writing half; None once the connection is closed.
    writing: Option<Arc<WriteHalf>>,
    /// Requests that the driver has not taken yet. Empty if the driver is not needed.
    queue: VecDeque<Vec<u8>>,
    /// An empty buffer for the queue.
    spare: Vec<u8>,
    /// Slots that the driver has not taken yet.
    slots: VecDeque<ReplySlot>,
    /// The driver has requests that it has not sent.
    driver_writes: bool,
    /// Bytes of all requests until now.
    queued: u64,
    /// How many of them have been sent.
    written: u64,
    /// The number of the next request whose reply names it. The first is random: other connections to the
    /// same server have others.
    opaque: u32,
    waker: Option<Waker>,
    /// When the driver's timer fires.
    timer: Option<Instant>,
    /// A deadline before that.
    earliest: Option<Instant>,
    /// Why the connection must be closed.
    end: Option<Error>,
    /// Whether this client has closed the connection, and not because of a failure.
    dropped: bool,
    /// The time until which the connection stays open without requests.
    keep: Option<Instant>,
}

struct ReplySlot {
    expect: ExpectedReply,
    sink: ReplySink,
    /// Replies that have not come.
    left: usize,
    /// The keys that were asked for leases, in order: a lease that nobody receives is given up.
    asked: Arc<[Box<[u8]>]>,
    /// The number that the next reply must name, if replies name one.
    opaque: Option<u32>,
    /// The keys that values must have, in order. None, if replies do not name them.
    keys: Box<[Box<[u8]>]>,
    /// The first element of a reply that has several.
    part: Option<Reply>,
    /// Where its request begins in the stream of requests.
    start: u64,
    deadline: Instant,
    limit: Duration,
    /// [`ConnectionLink::reads`] when it was added.
    reads: u64,
}

enum ReplySink {
    One(oneshot::Sender<Result<Reply, CommandFailure>>),
    Many(oneshot::Sender<Replies>, Vec<Reply>),
    /// The caller has its answer already, or wants none.
    Nobody,
}

/// Until when a command must be answered, and what was allowed in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimit {
    pub(crate) at: Instant,
    pub(crate) in_all: Duration,
}

impl TimeLimit {
    /// From now on.
    pub(crate) fn after(in_all: Duration) -> Self {
        let now = Instant::now();
        // Durations that no clock can hold are for ever.
        let at = now.checked_add(in_all).unwrap_or_else(|| now + Duration::from_secs(1 << 30));
        Self { at, in_all }
    }

    pub(crate) fn error(self, server: &str) -> Error {
        Error::Timeout { server: server.to_owned(), limit: self.in_all }
    }
}

/// An error of a socket.
pub(crate) fn broken(server: &str, error: io::Error) -> Error {
    let (kind, message) = (error.kind(), error.to_string());
    Error::Connection { server: server.to_owned(), kind, message, source: Some(Cause::new(error)) }
}

fn lock(state: &Mutex<LinkState>) -> MutexGuard<'_, LinkState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Takes a socket over and starts its driver. `idle`: closed after this long without a request.
    pub(crate) fn start(
        stream: Stream,
        server: Arc<str>,
        protocol: Protocol,
        idle: Option<Duration>,
        health: Arc<dyn HealthWatch>,
    ) -> Self {
        let (reading, writing) = stream.split();
        let shared = Arc::new(ConnectionLink {
            number: MADE.fetch_add(1, Ordering::SeqCst) + 1,
            server,
            protocol,
            state: Mutex::new(LinkState {
                writing: Some(writing.clone()),
                queue: VecDeque::new(),
                spare: Vec::new(),
                slots: VecDeque::new(),
                driver_writes: false,
                queued: 0,
                written: 0,
                opaque: random_u16().into(),
                waker: None,
                timer: None,
                earliest: None,
                end: None,
                dropped: false,
                keep: None,
            }),
            pending: AtomicUsize::new(0),
            reads: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            room: Notify::new(),
            health,
            runtime: Handle::current().id(),
        });
        tokio::spawn(ConnectionDriver::new(shared.clone(), reading, writing, idle));
        Self { shared }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Requests without a whole reply.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// Closes it. Requests under way fail.
    pub(crate) fn close(&self) {
        let text = "closed by this client";
        let error = broken(&self.shared.server, io::Error::new(io::ErrorKind::ConnectionAborted, text));
        let waker = {
            let mut state = lock(&self.shared.state);
            state.end.get_or_insert(error);
            state.dropped = true;
            self.shared.closed.store(true, Ordering::Release);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The number of the connection among those that this process has made, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.shared.number
    }

    /// Whether anything has ever been read from it.
    pub(crate) fn is_proven(&self) -> bool {
        self.shared.reads.load(Ordering::Relaxed) > 0
    }

    /// Keeps it open until then, if it is not used.
    pub(crate) fn keep_until(&self, at: Instant) {
        let mut state = lock(&self.shared.state);
        state.keep = state.keep.max(Some(at));
    }

    /// Sends a command and waits for its reply.
    pub(crate) async fn one(&self, command: &Command<'_>, limit: TimeLimit) -> Result<Reply, CommandFailure> {
        let (sender, receiver) = oneshot::channel();
        let commands = std::slice::from_ref(command);
        self.add(commands, ReplySink::One(sender), limit).await?;
        if !matches!(command, Command::Ask { .. }) {
            return self.within(limit, receiver).await?.unwrap_or_else(|_| Err(self.gone()));
        }
        let mut receiving = ReplyGuard { connection: self, commands, receiver };
        self.within(limit, &mut receiving.receiver).await?.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Sends commands of one kind, and waits for their replies.
    pub(crate) async fn many(&self, commands: &[Command<'_>], limit: TimeLimit) -> Replies {
        if commands.is_empty() {
            return (Vec::new(), None);
        }
        let (sender, receiver) = oneshot::channel();
        let sink = ReplySink::Many(sender, Vec::with_capacity(commands.len()));
        if let Err(failure) = self.add(commands, sink, limit).await {
            return (Vec::new(), Some(failure));
        }
        let mut receiving = ReplyGuard { connection: self, commands, receiver };
        match self.within(limit, &mut receiving.receiver).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| (Vec::new(), Some(self.gone()))),
            Err(failure) => (Vec::new(), Some(failure)),
        }
    }

    /// Waits for what the driver sends. In another runtime than the driver's, which need not run, not longer
    /// than the limit; the connection is closed then, since the driver has not told the caller that its time
    /// is over.
    async fn within<F: Future>(&self, limit: TimeLimit, answer: F) -> Result<F::Output, CommandFailure> {
        if Handle::try_current().map_or(true, |handle| handle.id() == self.shared.runtime) {
            return Ok(answer.await);
        }
        let at = limit.at.checked_add(DRIVER_LATE).unwrap_or(limit.at);
        timeout_at(at, answer).await.map_err(|_| {
            self.close();
            CommandFailure { error: limit.error(&self.shared.server), sent: SendStage::Answered }
        })
    }

    /// The driver has ended without a word: its runtime was shut down.
    fn gone(&self) -> CommandFailure {
        CommandFailure { error: self.shared.runtime_ended(), sent: SendStage::Perhaps }
    }

    /// Appends commands, when there is room for them.
    async fn add(
        &self,
        commands: &[Command<'_>],
        sink: ReplySink,
        limit: TimeLimit,
    ) -> Result<(), CommandFailure> {
        let mut sink = Some(sink);
        let size = commands.iter().map(Command::size).sum();
        loop {
            match self.shared.push(commands, &mut sink, limit) {
                Ok(()) => return Ok(()),
                Err(AddError::Closed(error)) => return Err(CommandFailure { error, sent: SendStage::No }),
                Err(AddError::Full) => {}
            }
            let mut room = std::pin::pin!(self.shared.room.notified());
            room.as_mut().enable();
            // Room that came before `enable` is seen here.
            if lock(&self.shared.state).has_room(size) {
                continue;
            }
            if timeout_at(limit.at, room).await.is_err() {
                return Err(CommandFailure { error: limit.error(&self.shared.server), sent: SendStage::No });
            }
        }
    }
}

/// Waits for replies. If it is dropped with leases that have come already, they are given up.
struct ReplyGuard<'a, T: HasReplies> {
    connection: &'a Connection,
    commands: &'a [Command<'a>],
    receiver: oneshot::Receiver<T>,
}

/// Results that may have leases in their replies.
trait HasReplies {
    fn replies(&self) -> &[Reply];
}

impl HasReplies for Result<Reply, CommandFailure> {
    fn replies(&self) -> &[Reply] {
        self.as_ref().map_or(&[], std::slice::from_ref)
    }
}

impl HasReplies for Replies {
    fn replies(&self) -> &[Reply] {
        &self.0
    }
}

impl<T: HasReplies> Drop for ReplyGuard<'_, T> {
    fn drop(&mut self) {
        self.receiver.close();
        if let (Ok(outcome), true) =
            (self.receiver.try_recv(), matches!(self.commands, [Command::Ask { .. }, ..]))
        {
            self.connection.shared.give_up(&asked_keys(self.commands), outcome.replies());
        }
    }
}

/// Why a command was not added.
enum AddError {
    Closed(Error),
    Full,
}

/// Appends requests, numbered from `opaque` on.
fn encode(commands: &[Command<'_>], protocol: Protocol, opaque: u32, out: &mut Vec<u8>) {
    for (command, at) in commands.iter().zip(0..) {
        command.encode(protocol, opaque.wrapping_add(at), out);
    }
}

fn random_u16() -> u16 {
    // The standard library's keys of hash maps are the randomness that is at hand.
    RandomState::new().build_hasher().finish() as u16
}

impl LinkState {
    /// Numbers for as many requests: the first of them.
    fn numbers(&mut self, count: usize) -> u32 {
        let first = self.opaque;
        self.opaque = first.wrapping_add(count as u32);
        first
    }

    fn has_room(&self, size: usize) -> bool {
        let unsent = (self.queued - self.written) as usize;
        self.end.is_some() || unsent == 0 || unsent.saturating_add(size) <= UNSENT_MAX
    }

    /// Appends requests to the queue, numbered from `opaque` on.
    fn encode(&mut self, commands: &[Command<'_>], size: usize, protocol: Protocol, opaque: u32) {
        if self.queue.back().is_none_or(|chunk| chunk.len() + size > CHUNK) {
            let mut chunk = std::mem::take(&mut self.spare);
            chunk.reserve(size);
            self.queue.push_back(chunk);
        }
        let Some(chunk) = self.queue.back_mut() else { return };
        let before = chunk.len();
        encode(commands, protocol, opaque, chunk);
        self.queued += (chunk.len() - before) as u64;
    }

    /// Sends the queue from the caller's thread as far as the socket takes it. True: all was sent.
    fn send_now(&mut self) -> bool {
        let (Some(writing), Some(chunk)) = (&self.writing, self.queue.front_mut()) else { return false };
        // An error is found by the driver, which fails all requests.
        let sent = writing.try_write(chunk).unwrap_or(0);
        self.written += sent as u64;
        if sent < chunk.len() {
            chunk.drain(..sent);
            return false;
        }
        if let Some(mut chunk) = self.queue.pop_front()
            && chunk.capacity() <= 2 * CHUNK
        {
            chunk.clear();
            self.spare = chunk;
        }
        true
    }
}

impl ConnectionLink {
    fn runtime_ended(&self) -> Error {
        Error::Connection {
            server: self.server.to_string(),
            kind: io::ErrorKind::ConnectionAborted,
            message: "the runtime of this connection has ended".to_owned(),
            source: None,
        }
    }

    fn push(
        &self,
        commands: &[Command<'_>],
        sink: &mut Option<ReplySink>,
        limit: TimeLimit,
    ) -> Result<(), AddError> {
        let size = commands.iter().map(Command::size).sum();
        let Some(first) = commands.first() else { return Ok(()) };
        let asked = asked_keys(commands);
        let large = size > CHUNK;
        if large && !lock(&self.state).has_room(size) {
            return Err(AddError::Full);
        }
        let numbered = first.is_numbered(self.protocol);
        let mut opaque = 0;
        // Without the lock: the value is copied.
        let mut encoded = Vec::new();
        if large {
            if numbered {
                opaque = lock(&self.state).numbers(commands.len());
            }
            encoded.reserve_exact(size);
            encode(commands, self.protocol, opaque, &mut encoded);
        }
        let mut state = lock(&self.state);
        if let Some(error) = &state.end {
            return Err(AddError::Closed(error.clone()));
        }
        if !state.has_room(size) {
            return Err(AddError::Full);
        }
        let Some(sink) = sink.take() else { return Ok(()) };
        if numbered && !large {
            opaque = state.numbers(commands.len());
        }
        let alone = self.pending.fetch_add(1, Ordering::Relaxed) == 0;
        let direct = alone && !large && !state.driver_writes && state.queue.is_empty();
        let slot = ReplySlot {
            expect: first.expect(self.protocol),
            sink,
            left: commands.len(),
            asked,
            opaque: numbered.then_some(opaque),
            keys: read_keys(commands, self.protocol),
            part: None,
            start: state.queued,
            deadline: limit.at,
            limit: limit.in_all,
            reads: self.reads.load(Ordering::Relaxed),
        };
        state.slots.push_back(slot);
        if large {
            state.queued += encoded.len() as u64;
            state.queue.push_back(encoded);
        } else {
            state.encode(commands, size, self.protocol, opaque);
        }
        let sent = direct && state.send_now();
        let early = state.timer.is_none_or(|timer| limit.at < timer);
        if early {
            state.timer = Some(limit.at);
            state.earliest = Some(limit.at);
        }
        let waker = if sent && !early { None } else { state.waker.take() };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Gives up the leases among replies that nobody receives. `asked`: the keys of the first of them and of
    /// those after it.
    fn give_up(&self, asked: &[Box<[u8]>], replies: &[Reply]) {
        for (key, reply) in asked.iter().zip(replies) {
            if let Reply::Value { item, marks } = reply
                && marks.won
            {
                let command = Command::Delete { key, token: Some(item.cas), failure: None };
                let limit = TimeLimit::after(GIVE_UP_WITHIN);
                // A connection that is closed has given it up already.
                self.push(std::slice::from_ref(&command), &mut Some(ReplySink::Nobody), limit).ok();
            }
        }
    }
}

/// The keys of reads whose replies name them.
fn read_keys(commands: &[Command<'_>], protocol: Protocol) -> Box<[Box<[u8]>]> {
    if protocol == Protocol::Meta {
        return Box::default();
    }
    commands.iter().filter_map(Command::read).map(Box::from).collect()
}

/// The keys of questions for leases.
fn asked_keys(commands: &[Command<'_>]) -> Arc<[Box<[u8]>]> {
    if !matches!(commands.first(), Some(Command::Ask { .. })) {
        return Arc::default();
    }
    let key = |command: &Command<'_>| match command {
        Command::Ask { key, .. } => (*key).into(),
        _ => Box::default(),
    };
    commands.iter().map(key).collect()
}

impl ReplySlot {
    fn is_wanted(&self) -> bool {
        match &self.sink {
            _ if !self.asked.is_empty() => true,
            ReplySink::One(sender) => !sender.is_closed(),
            ReplySink::Many(sender, _) => !sender.is_closed(),
            ReplySink::Nobody => false,
        }
    }

    fn has_replies(&self) -> bool {
        matches!(&self.sink, ReplySink::Many(_, all) if !all.is_empty())
    }

    /// Tells the caller. The slot stays until its replies have come.
    fn fail(&mut self, failure: CommandFailure) {
        match std::mem::replace(&mut self.sink, ReplySink::Nobody) {
            ReplySink::One(sender) => drop(sender.send(Err(failure))),
            ReplySink::Many(sender, all) => drop(sender.send((all, Some(failure)))),
            ReplySink::Nobody => {}
        }
    }
}
