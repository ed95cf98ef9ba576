//! One client's connection: its unread input, its unsent output, and how a turn goes.
//!
//! A turn is receive, execute, send; the worker does each for a batch of connections at a time. Input is
//! received into a buffer that all connections of a worker share; a connection owns a buffer only while a
//! command has arrived in part. While replies wait for the client to read, nothing is received or executed.
//!
//! A request that is held keeps its place in `replies`. Later ones are executed meanwhile, up to a limit, and their
//! replies wait behind it; a command that takes the connection over waits until nothing is held. Once the client
//! sends no more, what is held is answered at once.
//!
//! # Invariants
//! * Replies leave in the order of their requests.
//! * `input` is empty unless a command has arrived in part, or commands are left over for the next turn.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use cattlegrid_engine::{
    Context, Counters, Event, Got, Interest, Now, Output, PREFETCH_MAX, ShardLock, Ticket, Wake,
};
use cattlegrid_herd::{Caller, Session};
use cattlegrid_protocol::{Parsed, Refused, Request, parse_from, reply};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use rustls::ServerConnection;

use crate::commands::{self, After};
use crate::dump::Dump;
use crate::outbox::{Outbox, send_now};
use crate::poller::Wish;
use crate::reply_queue::ReplyQueue;
use crate::state::{ConnectionInfo, Shared};
use crate::watch::{self, Topics, Watcher};

mod held;

/// A connection. See the module's text.
pub(crate) struct Connection {
    pub(crate) info: Arc<ConnectionInfo>,
    /// What the poller calls it.
    pub(crate) token: u64,
    input: Vec<u8>,
    /// Bytes of `input` in which no end of line was found.
    scanned: usize,
    /// Bytes that `input` must have before a whole command can be in it.
    need: usize,
    /// Bytes to come that belong to a refused command.
    swallow: u64,
    /// Keys of the command at the front of `input` that are answered already.
    answered: usize,
    requests: u64,
    outbox: Outbox,
    /// Bytes of `input` counted in the server's sum of partial commands.
    counted: usize,
    authenticated: bool,
    /// Commands that are executed behind one that waits.
    read_ahead: u64,
    /// There is more to do without receiving.
    has_more: bool,
    /// Close when everything is sent.
    closing: Option<Reason>,
    /// What the poller waits for.
    pub(crate) polled: Wish,
    /// Replies that wait, and what is behind them.
    replies: ReplyQueue,
    /// The client sends no more than what has arrived.
    hung_up: bool,
    /// Its entry in the worker's deadlines.
    pub(crate) deadline_ms: Option<u64>,
    tls: Option<Box<ServerConnection>>,
    pub(crate) watcher: Option<Arc<Watcher>>,
    pub(crate) dump: Option<Box<Dump>>,
    session: Session,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its client sends no more; what it sent is still answered.
    End,
    /// It said `quit`.
    Quit,
    /// It failed, or does not speak our language.
    Error,
    /// It was silent for too long.
    Idle,
    /// The server leaves.
    Shutdown,
}

impl Reason {
    /// As `watch connevents` says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::End | Self::Quit => "normal",
            Self::Error => "error",
            Self::Idle => "idle_timeout",
            Self::Shutdown => "shutdown",
        }
    }

    /// The client said that it goes.
    fn is_orderly(self) -> bool {
        matches!(self, Self::End | Self::Quit)
    }
}

/// What a turn works with.
pub(crate) struct Turn<'a> {
    pub(crate) shared: &'a Shared,
    /// Number of the worker.
    pub(crate) worker: usize,
    pub(crate) counters: &'a Counters,
    pub(crate) now: Now,
    pub(crate) interest: Interest,
    pub(crate) out: &'a mut Output,
    pub(crate) events: &'a mut Vec<(Ticket, Event)>,
    pub(crate) wakes: &'a mut Vec<Wake>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        worker: usize,
        now: Now,
        out: &'a mut Output,
        events: &'a mut Vec<(Ticket, Event)>,
        wakes: &'a mut Vec<Wake>,
    ) -> Self {
        let counters = &shared.workers[worker].counters;
        Self { shared, worker, counters, now, interest: shared.interest(), out, events, wakes }
    }
}

/// What a receive came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// So many bytes in the room given.
    Shared(usize),
    /// The connection's own buffer is to be worked on.
    Own,
    /// Nothing to do.
    Nothing,
}

/// A command about keys that waits for those parsed with it.
struct Ready<'i> {
    request: Request<'i>,
    /// Of its first key.
    hash: u64,
    /// Its length.
    used: usize,
}

/// What a run of commands came to.
struct Run {
    /// Bytes of finished commands.
    used: usize,
    commands: usize,
    /// The last command is not finished and goes on next turn.
    paused: bool,
}

/// Replies of one connection in one turn, in bytes; the rest has to wait for the next turn.
const OUT_MAX: usize = 64 << 10;
/// Commands above this size are counted as partial while they arrive.
const LARGE: usize = 64 << 10;
/// Receives of unread input before a connection is closed all the same.
const HANG_UP_READS: usize = 16;
/// Bytes that a line for watchers takes beside its key.
const LOG_LINE: usize = 100;
/// Most bytes of a line and of a data block before authentication.
const AUTH_MAX: usize = 4 << 10;

impl Connection {
    pub(crate) fn new(
        info: Arc<ConnectionInfo>,
        worker: usize,
        token: u64,
        shared: &Shared,
    ) -> Result<Self, rustls::Error> {
        let tls = match &shared.tls {
            Some(tls) if info.listener.tls => Some(Box::new(tls.new_connection()?)),
            _ => None,
        };
        let peer = shared.engine.shared().peers().join(info.peer_key);
        let session = Session::new(Arc::new(Caller::new(info.number, worker, token, peer)));
        Ok(Self {
            info,
            token,
            input: Vec::new(),
            scanned: 0,
            need: 0,
            swallow: 0,
            answered: 0,
            requests: 0,
            outbox: Outbox::default(),
            counted: 0,
            authenticated: shared.auth.is_none(),
            has_more: false,
            read_ahead: shared.settings.protection.read_ahead as u64,
            closing: None,
            polled: Wish::Read,
            replies: ReplyQueue::default(),
            hung_up: false,
            deadline_ms: None,
            tls,
            watcher: None,
            dump: None,
            session,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.info.fd.as_fd()
    }

    /// There is work left that needs no receiving, and room for its replies.
    pub(crate) fn has_more(&self) -> bool {
        self.outbox.is_empty() && (self.has_more || self.dump.is_some())
    }

    /// Replies wait for the client to read.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// A request waits.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        !self.replies.is_empty()
    }

    /// What to wait for.
    pub(crate) fn wish(&self) -> Wish {
        if self.is_stuck() {
            Wish::Write
        } else if self.is_held() && self.is_paused() && !self.has_more {
            // Only now: a turn that has work does not look at what the poller said, and this is said once.
            Wish::HangUp
        } else {
            Wish::Read
        }
    }

    /// Why it is to be closed now, if it is.
    pub(crate) fn closed(&self) -> Option<Reason> {
        if self.outbox.is_empty() && !self.has_more() && !self.is_held() { self.closing } else { None }
    }

    /// Closes as soon as everything is sent.
    pub(crate) fn close(&mut self, reason: Reason) {
        self.closing.get_or_insert(reason);
    }

    /// Receives once. `room` is the shared buffer's free part.
    pub(crate) fn receive(&mut self, room: &mut [u8], counters: &Counters) -> Received {
        if !self.outbox.is_empty() {
            return Received::Nothing;
        }
        if self.has_more() {
            return Received::Own;
        }
        if self.is_held() && self.is_paused() {
            self.look_for_hang_up();
            return Received::Nothing;
        }
        let received = if self.tls.is_some() {
            self.receive_tls(room, counters)
        } else if self.input.is_empty() {
            recv(self.info.fd.as_fd(), room, RecvFlags::empty()).map(|(_, n)| n)
        } else {
            let missing = self.need.saturating_sub(self.input.len());
            self.input.reserve(missing.clamp(4 << 10, self.input.len().max(LARGE)));
            recv(self.info.fd.as_fd(), spare_capacity(&mut self.input), RecvFlags::empty()).map(|(_, n)| n)
        };
        match received {
            Ok(0) => {
                self.close(Reason::End);
                Received::Nothing
            }
            Ok(n) => {
                counters.bytes_read.add(n as u64);
                if self.tls.is_some() || !self.input.is_empty() { Received::Own } else { Received::Shared(n) }
            }
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => {
                self.fail();
                Received::Nothing
            }
        }
    }

    /// Receives, decrypts into `input`; the bytes that came over the wire.
    fn receive_tls(&mut self, room: &mut [u8], counters: &Counters) -> rustix::io::Result<usize> {
        let (_, received) = recv(self.info.fd.as_fd(), &mut *room, RecvFlags::empty())?;
        let Some(tls) = &mut self.tls else { return Ok(received) };
        let mut raw = &room[..received];
        while !raw.is_empty() {
            // A full buffer of plain text is emptied below, so this always takes something.
            if !matches!(tls.read_tls(&mut raw), Ok(1..)) || tls.process_new_packets().is_err() {
                counters.ssl_proto_errors.add(1);
                self.closing.get_or_insert(Reason::Error);
                break;
            }
            let mut plain = [0; 16 << 10];
            while let Ok(n @ 1..) = tls.reader().read(&mut plain) {
                self.input.extend_from_slice(&plain[..n]);
            }
        }
        // Answers to a handshake, or an alert.
        let mut wire = Vec::new();
        while tls.wants_write() && matches!(tls.write_tls(&mut wire), Ok(1..)) {}
        self.outbox.push(&wire);
        Ok(received)
    }

    /// Executes what has arrived: `shared` if it was received there, or the connection's own buffer.
    pub(crate) fn execute(&mut self, shared: Option<&[u8]>, turn: &mut Turn<'_>) {
        if shared.is_none() && self.input.len() < self.need {
            return self.account(turn);
        }
        let own = std::mem::take(&mut self.input);
        let input = shared.unwrap_or(&own);
        self.has_more = false;
        self.replies.set_blocked(false);
        let used = self.execute_all(input, turn);
        if used < input.len() {
            self.input = if shared.is_some() || used > 0 { input[used..].to_vec() } else { own };
        }
        self.account(turn);
        self.publish(turn);
    }

    fn execute_all(&mut self, input: &[u8], turn: &mut Turn<'_>) -> usize {
        let mut used = 0;
        let mut commands = 0;
        let mut scanned = self.scanned;
        (self.scanned, self.need) = (0, 0);
        if input.is_empty() && self.dump.is_some() {
            self.go_on_dumping(turn);
        }
        while used < input.len() {
            if self.closing.is_some_and(|reason| reason != Reason::End) || self.watcher.is_some() {
                return input.len();
            }
            if self.swallow > 0 {
                let n = (input.len() - used).min(usize::try_from(self.swallow).unwrap_or(usize::MAX));
                used += n;
                self.swallow -= n as u64;
                continue;
            }
            if self.dump.is_some() && !self.go_on_dumping(turn) {
                break;
            }
            let held = self.is_held();
            if held && !self.may_read_ahead(turn) {
                self.replies.set_blocked(true);
                break;
            }
            if commands >= turn.shared.settings.requests_per_event || turn.out.len() >= OUT_MAX {
                turn.counters.conn_yields.add(1);
                self.has_more = true;
                break;
            }
            commands += 1;
            let rest = &input[used..];
            if !self.authenticated {
                match self.authenticate(rest, turn) {
                    0 => break,
                    bytes => used += bytes,
                }
                continue;
            }
            match parse_from(rest, scanned, &turn.shared.limits) {
                Parsed::Incomplete { need } => {
                    self.wait_for_rest(rest, need, turn);
                    if self.swallow == 0 {
                        break;
                    }
                }
                Parsed::Complete { request, used: bytes } => {
                    if held || commands == 1 && bytes < rest.len() {
                        self.session.set_pipelined();
                    }
                    if held && held::is_barrier(&request) {
                        self.replies.set_blocked(true);
                        break;
                    }
                    if let Some(hash) = turn.shared.engine.hash(&request) {
                        let left = turn.shared.settings.requests_per_event + 1 - commands;
                        // While it is held each command is weighed before it is executed.
                        let most = if held { 1 } else { left };
                        let run = if bytes == rest.len() || most == 1 {
                            self.execute_one(&request, hash, rest, bytes, turn)
                        } else {
                            self.execute_run(Ready { request, hash, used: bytes }, rest, most, turn)
                        };
                        used += run.used;
                        commands += run.commands - 1;
                        if run.paused {
                            break;
                        }
                    } else {
                        self.command_without_key(&request, &rest[..bytes], turn);
                        used += bytes;
                    }
                }
                Parsed::Refused(refused) => {
                    used += refused.used;
                    self.refused(&refused, turn);
                }
            }
            scanned = 0;
        }
        used
    }

    /// A command that has not arrived whole: wait, unless it would take too much memory meanwhile.
    fn wait_for_rest(&mut self, rest: &[u8], need: usize, turn: &mut Turn<'_>) {
        (self.scanned, self.need) = (rest.len(), need);
        let partial = turn.shared.gauges.partial_bytes.load(Relaxed);
        if rest.len() < LARGE
            || partial.saturating_sub(self.counted) + rest.len() <= turn.shared.partial_bytes_max()
        {
            return;
        }
        // The line is short, so it is whole: this is a data block.
        turn.counters.store_no_memory.add(1);
        reply::line(&mut turn.out.bytes, reply::error::OUT_OF_MEMORY);
        if let Some(key) = rest.split(|b| *b == b' ').nth(1) {
            let (shared, mut cx) = self.context(turn);
            shared.engine.invalidate(key, &mut cx);
        }
        self.swallow = need as u64;
        (self.scanned, self.need) = (0, 0);
    }

    /// Executes the command at the front of `input`, whose length is `used`.
    fn execute_one(
        &mut self,
        request: &Request<'_>,
        hash: u64,
        input: &[u8],
        used: usize,
        turn: &mut Turn<'_>,
    ) -> Run {
        let shared = turn.shared;
        if shared.watchers.wanted().has(Topics::RAW_COMMANDS) && self.answered == 0 {
            // They are told of each command before it is executed, and not under a shard's lock.
            self.publish_raw(&input[..used], turn);
        }
        let done = self.command(request, hash, used, &mut shared.engine.shard_lock(), turn);
        Run { used: if done { used } else { 0 }, commands: 1, paused: !done }
    }

    /// Executes the command at the front of `input` and those about keys that follow it, `most` at most. All
    /// are parsed first, so that what they will read can be fetched while the first ones are executed.
    fn execute_run<'i>(
        &mut self,
        first: Ready<'i>,
        input: &'i [u8],
        mut most: usize,
        turn: &mut Turn<'_>,
    ) -> Run {
        let shared = turn.shared;
        if shared.watchers.wanted().has(Topics::RAW_COMMANDS) {
            // They are told of each command before it is executed, and not under a shard's lock.
            if self.answered == 0 {
                self.publish_raw(&input[..first.used], turn);
            }
            most = 1;
        }
        let mut hashes = ArrayVec::<u64, PREFETCH_MAX>::new();
        let mut ready = ArrayVec::<Ready<'i>, PREFETCH_MAX>::new();
        let mut parsed = first.used;
        hashes.push(first.hash);
        ready.push(first);
        while ready.len() < most.min(PREFETCH_MAX)
            && parsed < input.len()
            && let Parsed::Complete { request, used } = parse_from(&input[parsed..], 0, &shared.limits)
            && let Some(hash) = shared.engine.hash(&request)
        {
            parsed += used;
            hashes.push(hash);
            ready.push(Ready { request, hash, used });
        }
        let mut lock = shared.engine.shard_lock();
        lock.prefetch(&hashes);
        let mut run = Run { used: 0, commands: 0, paused: false };
        for Ready { request, hash, used } in &ready {
            if run.commands > 0 && turn.out.len() >= OUT_MAX {
                break;
            }
            run.commands += 1;
            if !self.command(request, *hash, *used, &mut lock, turn) {
                run.paused = true;
                break;
            }
            run.used += used;
            if self.is_held() {
                break;
            }
        }
        run
    }

    /// Executes one command about keys, of `len` bytes. False: it is not finished and goes on next turn.
    fn command(
        &mut self,
        request: &Request<'_>,
        hash: u64,
        len: usize,
        lock: &mut ShardLock<'_>,
        turn: &mut Turn<'_>,
    ) -> bool {
        if self.answered == 0 {
            self.requests += 1;
            self.info.last_command.store(turn.now.second, Relaxed);
        }
        let skip = self.answered;
        let (shared, mut cx) = self.context(turn);
        let parked = if let Request::Get(get) = request {
            match shared.engine.get(get, hash, skip, OUT_MAX, lock, &mut cx) {
                Got::Done => None,
                Got::Parked(parked) => Some(parked),
                Got::More(answered) => {
                    self.answered = answered;
                    // Behind a request that waits its output would only pile up.
                    self.has_more = !self.is_held();
                    self.replies.set_blocked(!self.has_more);
                    return false;
                }
            }
        } else {
            shared.engine.execute(request, hash, lock, &mut cx)
        };
        self.answered = 0;
        if let Some(parked) = parked {
            self.park(parked, len, turn);
        }
        true
    }

    fn command_without_key(&mut self, request: &Request<'_>, line: &[u8], turn: &mut Turn<'_>) {
        self.requests += 1;
        self.info.last_command.store(turn.now.second, Relaxed);
        if turn.shared.watchers.wanted().has(Topics::RAW_COMMANDS) {
            self.publish_raw(line, turn);
        }
        let Request::Admin(admin) = request else {
            return turn.out.bytes.extend_from_slice(reply::MN);
        };
        match commands::admin(admin, turn) {
            After::GoOn => {}
            After::Close => self.close(Reason::Quit),
            After::Watch(topics) => self.watch(topics, turn),
            After::Dump(dump) => self.dump = Some(Box::new(dump)),
        }
    }

    fn refused(&mut self, refused: &Refused<'_>, turn: &mut Turn<'_>) {
        self.info.last_command.store(turn.now.second, Relaxed);
        self.swallow = refused.swallow;
        if refused.reply == reply::error::TOO_LARGE {
            turn.counters.store_too_large.add(1);
        }
        if let Some(key) = refused.invalidated() {
            let (shared, mut cx) = self.context(turn);
            shared.engine.invalidate(key.bytes(), &mut cx);
        }
        if !refused.reply.is_empty() {
            reply::line(&mut turn.out.bytes, refused.reply);
        }
        if refused.close {
            crate::log::info(format_args!(
                "{}: closed, not a memcached text protocol client",
                self.info.peer
            ));
            self.close(Reason::Error);
        }
    }

    /// The only command under `-Y` until it succeeds: `set <key> <flags> <exptime> <n>` with `user password` as its
    /// data. As in memcached, nothing but the length is looked at. Returns the bytes used; 0: more are needed.
    fn authenticate(&mut self, rest: &[u8], turn: &mut Turn<'_>) -> usize {
        let Some(end) = rest.iter().take(AUTH_MAX).position(|b| *b == b'\n') else {
            if rest.len() >= AUTH_MAX {
                self.close(Reason::Error);
            }
            return 0;
        };
        let mut words = rest[..end].trim_ascii_end().split(|b| *b == b' ').filter(|w| !w.is_empty());
        let is_set = words.next() == Some(b"set");
        let len = words.nth(3).and_then(|w| std::str::from_utf8(w).ok()?.parse::<usize>().ok());
        let (true, Some(len @ ..=AUTH_MAX)) = (is_set, len) else {
            reply::line(&mut turn.out.bytes, reply::error::UNAUTHENTICATED);
            return end + 1;
        };
        let Some(data) = rest.get(end + 1..end + 1 + len + 2) else { return 0 };
        if data.ends_with(b"\r\n") && !data.contains(&b' ') {
            reply::line(&mut turn.out.bytes, "CLIENT_ERROR bad authentication token format");
        } else if let Some(payload) = data.strip_suffix(b"\r\n") {
            turn.counters.auth_cmds.add(1);
            if turn.shared.auth.as_ref().is_none_or(|auth| auth.check(payload)) {
                self.authenticated = true;
                turn.out.bytes.extend_from_slice(reply::STORED);
            } else {
                turn.counters.auth_errors.add(1);
                reply::line(&mut turn.out.bytes, reply::error::AUTHENTICATION_FAILURE);
            }
        } else {
            reply::line(&mut turn.out.bytes, "CLIENT_ERROR bad command line termination");
        }
        end + 1 + len + 2
    }

    fn watch(&mut self, topics: Topics, turn: &mut Turn<'_>) {
        turn.out.bytes.extend_from_slice(reply::OK);
        let limit = turn.shared.settings.watcher_buffer_bytes;
        let watcher = Arc::new(Watcher::new(topics, turn.worker, self.token, limit));
        turn.shared.watchers.add(Arc::clone(&watcher));
        self.watcher = Some(watcher);
    }

    /// True when the dump is finished.
    fn go_on_dumping(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(dump) = &mut self.dump else { return true };
        let done = dump.go_on(&turn.shared.engine, turn.now, OUT_MAX, &mut turn.out.bytes);
        if done {
            self.dump = None;
        }
        done
    }

    fn context<'t>(&'t mut self, turn: &'t mut Turn<'_>) -> (&'t Shared, Context<'t>) {
        let context = Context {
            now: turn.now,
            ticket: Ticket { connection: self.info.number, request: self.requests },
            out: turn.out,
            counters: turn.counters,
            interest: turn.interest,
            events: turn.events,
            session: &mut self.session,
            wakes: turn.wakes,
        };
        (turn.shared, context)
    }

    /// Keeps the server's sum of partial commands right.
    fn account(&mut self, turn: &Turn<'_>) {
        let bytes = if self.input.capacity() >= LARGE { self.input.capacity() } else { 0 };
        if bytes != self.counted {
            turn.shared.gauges.partial_bytes.fetch_add(bytes.wrapping_sub(self.counted), Relaxed);
            self.counted = bytes;
        }
    }

    /// Tells watchers and counts prefixes.
    fn publish(&self, turn: &mut Turn<'_>) {
        if turn.events.is_empty() {
            return;
        }
        let fd = self.info.fd.as_raw_fd();
        let time = crate::time::unix_now();
        let mut room = turn.shared.settings.worker_log_buffer_bytes;
        for (_, event) in turn.events.drain(..) {
            if turn.shared.detail.is_on() {
                turn.shared.detail.count(&event);
            }
            let topic = watch::topic(&event.kind);
            if turn.shared.watchers.wanted().has(topic) {
                let Some(rest) = room.checked_sub(event.key.len() + LOG_LINE) else {
                    turn.counters.log_worker_dropped.add(1);
                    continue;
                };
                room = rest;
                turn.counters.log_worker_written.add(1);
                turn.shared.publish(topic, time, |line| watch::describe(line, &event, fd));
            }
        }
    }

    fn publish_raw(&self, line: &[u8], turn: &Turn<'_>) {
        let end = line.iter().position(|b| *b == b'\n').unwrap_or(line.len());
        let text = watch::Escaped(line[..end].trim_ascii_end());
        let fd = self.info.fd.as_raw_fd();
        turn.shared.publish(Topics::RAW_COMMANDS, crate::time::unix_now(), |out| {
            let _ok = write!(out, "type=rawcmd cfd={fd} cmd={text}");
        });
    }

    /// Sends the turn's replies, and what waited before them. What the socket does not take waits.
    pub(crate) fn send(&mut self, out: &mut Output, counters: &Counters) {
        let sent = self.try_send(out);
        out.clear();
        match sent {
            Ok(sent) => counters.bytes_written.add(sent as u64),
            Err(_) => self.fail(),
        }
    }

    fn try_send(&mut self, out: &mut Output) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            if !out.is_empty() {
                let mut plain = Outbox::default();
                plain.push_output(out);
                tls.set_buffer_limit(None);
                plain.each(|bytes| tls.writer().write_all(bytes))?;
                let mut wire = Vec::new();
                while tls.wants_write() {
                    tls.write_tls(&mut wire)?;
                }
                self.outbox.push(&wire);
            }
            return self.outbox.flush(self.info.fd.as_fd());
        }
        if self.outbox.is_empty() && out.huge.is_empty() {
            if out.bytes.is_empty() {
                return Ok(0);
            }
            let sent = send_now(self.info.fd.as_fd(), &out.bytes)?;
            self.outbox.push(&out.bytes[sent..]);
            return Ok(sent);
        }
        self.outbox.push_output(out);
        self.outbox.flush(self.info.fd.as_fd())
    }

    /// The peer is gone: forget what it asked for and what it should get.
    fn fail(&mut self) {
        self.outbox = Outbox::default();
        self.input = Vec::new();
        self.has_more = false;
        self.dump = None;
        self.replies = ReplyQueue::default();
        self.closing = Some(Reason::Error);
    }

    /// Says that nothing more will be sent, and reads away what has come: a socket closed with unread input resets
    /// the connection, and replies that are still under way would be lost.
    pub(crate) fn hang_up(&mut self, sink: &mut [u8]) {
        let fd = self.info.fd.as_fd();
        if let Some(tls) = &mut self.tls {
            // Without this a client cannot tell the end from a connection that somebody cut.
            tls.send_close_notify();
            let mut wire = Vec::new();
            while tls.wants_write() && matches!(tls.write_tls(&mut wire), Ok(1..)) {}
            // One that does not take it is gone or does not read.
            let _sent = send_now(fd, &wire);
        }
        if shutdown(fd, Shutdown::Write).is_err() {
            return;
        }
        for _ in 0..HANG_UP_READS {
            if !matches!(recv(fd, &mut *sink, RecvFlags::empty()), Ok((_, 1..))) {
                return;
            }
        }
    }

    /// It never came to be served.
    pub(crate) fn discard(&self, shared: &Shared) {
        shared.engine.shared().peers().leave(self.session.caller().peer());
    }

    /// Takes it out of all that knows of it and of the server's sums; it is about to be dropped, and its worker does
    /// not find it any more.
    pub(crate) fn leave(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        let (shared, mut cx) = self.context(turn);
        shared.engine.leave(reason.is_orderly(), &mut cx);
        self.publish(turn);
        // After the engine has ended its waits: from then on it counts as free.
        let shared = turn.shared;
        self.discard(shared);
        shared.gauges.partial_bytes.fetch_sub(self.counted, Relaxed);
        self.counted = 0;
        if let Some(watcher) = self.watcher.take() {
            shared.watchers.remove(watcher.worker, watcher.token);
        }
    }
}
