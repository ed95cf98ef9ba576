//! One client's connection: its unread input, its unsent output, and how a turn goes. `input` is what has
//! arrived and is not executed, `execute` the middle of a turn, `held` what happens while a request waits,
//! `runs` how a run of quiet gets is held, `login` what comes before a login, `packets` what only the binary
//! protocol has, `upload` what becomes of a large command that arrives in pieces, `arriving` of a data block
//! that arrives in pages.
//!
//! A turn is receive, execute, send; the lane does each for a batch of connections at a time. Input is
//! received into a buffer that all connections of a lane share; a connection owns a buffer only while a
//! command has arrived in part. While replies wait for the client to read, nothing is received or executed;
//! what they take is counted under a cap of all connections ([`crate::connection::unsent`]).
//!
//! A request that is held keeps its place in `replies`. Later ones are executed meanwhile, up to a limit, and
//! their replies wait behind it; a command that takes the connection over waits until nothing is held. Once
//! the client sends no more, what is held is answered at once.
//!
//! # Invariants
//! * Replies leave in the order of their requests.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use cattlegrid_engine::{Counters, Output, ReplyQueue};
use cattlegrid_herd::{Caller, Session};
use cattlegrid_protocol::reply;
use input::{Input, Speaks};
use login::Login;
use runs::Run;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use crate::auth::rights::LimitedUser;
use crate::caps::Caps;
use crate::connection::info::ConnectionInfo;
use crate::dump::Dump;
use crate::outbox::{Outbox, send_now};
use crate::poller::Wish;
use crate::shared::Shared;
use crate::shortage;
use crate::tls::TlsSession;
use crate::turns::Turn;
use crate::watch::Watcher;

mod arriving;
mod execute;
mod held;
pub(crate) mod info;
mod input;
mod login;
mod packets;
mod runs;
pub(crate) mod unsent;
mod upload;

/// A connection. See the module's text.
#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
pub(crate) struct Connection {
    pub(crate) info: Arc<ConnectionInfo>,
    /// The poller's token for this connection.
    pub(crate) token: u64,
    phase: Phase,
    login: Login,
    /// The limits of the connection's user; None: no limits.
    limited: Option<Arc<LimitedUser>>,
    input: Input,
    /// The run of quiet gets that is going on.
    run: Run,
    /// Hashes of the keys of the run that were answered.
    run_seen: Vec<u64>,
    /// Hashes of those of which it was given the lease, and its tokens.
    run_computes: Vec<(u64, u64)>,
    requests: u64,
    outbox: Outbox,
    /// Bytes of input that its next turn executes, as [`crate::uploads`] was told.
    passing_bytes: usize,
    /// What [`crate::connection::unsent`] was told that it keeps.
    unsent_bytes: usize,
    /// When its client last took something of `outbox`, or `outbox` was last empty, in milliseconds.
    taken_ms: u64,
    /// Unsent output is scarce, and its client has not taken what was sent: it is not read.
    waits_for_room: bool,
    /// Commands that are executed behind a request that waits.
    read_ahead: u64,
    /// Bytes of their replies.
    read_ahead_bytes: usize,
    /// There is more to do without receiving.
    has_more: bool,
    /// The connection waits for its turn; reports of the poller say nothing new.
    pub(crate) queued: bool,
    /// Close when everything is sent.
    closing: Option<Reason>,
    /// The event for which the poller waits.
    pub(crate) polled: Wish,
    /// Replies that wait, and what is behind them.
    replies: ReplyQueue,
    /// The client sends no more than what has arrived.
    hung_up: bool,
    /// All that the client has sent is received, up to its end.
    at_end: bool,
    /// The connection's entry in the lane's deadlines.
    pub(crate) deadline_ms: Option<u64>,
    tls: Option<Box<TlsSession>>,
    session: Session,
}

/// What a connection is there for.
#[derive(Debug)]
enum Phase {
    /// Only to log in.
    BeforeLogin,
    /// The connection's commands are executed.
    Serving,
    /// The connection gets lines of `watch`; its input is dropped.
    Watching(Arc<Watcher>),
    /// The connection gets a dump; its commands are executed afterwards.
    Dumping(Box<Dump>),
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The client sends no more; earlier commands are still answered.
    End,
    /// The client said `quit`.
    Quit,
    /// The connection failed, or its client does not speak the protocol.
    Error,
    /// The client was silent for too long.
    Idle,
    /// The client did not take its replies, and there was no memory to wait.
    Unread,
    /// The server leaves.
    Shutdown,
}

impl Reason {
    /// The name of the reason in `watch connevents`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::End | Self::Quit => "normal",
            Self::Error | Self::Unread => "error",
            Self::Idle => "idle_timeout",
            Self::Shutdown => "shutdown",
        }
    }

    /// The client said that it goes.
    fn is_orderly(self) -> bool {
        matches!(self, Self::End | Self::Quit)
    }
}

/// The result of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiveResult {
    /// This many bytes in the room given.
    Shared(usize),
    /// The connection's own buffer has something to execute.
    Own,
    /// There is no memory for the command at the front of the connection's own buffer.
    NoMemory,
    /// Nothing to do.
    Nothing,
}

/// A buffer grows when it has less room than this, and lacks as much.
const GROWTH_MIN: usize = 4 << 10;
/// Before it grows by as much, it is looked whether that leaves room for what cannot be refused:
/// [`crate::shortage`] looks only once a millisecond.
const GROWTH_LARGE: usize = 1 << 20;
/// Receives of unread input before a connection is closed all the same.
const HANG_UP_READS: usize = 16;

impl Connection {
    pub(crate) fn new(
        info: Arc<ConnectionInfo>,
        lane: usize,
        token: u64,
        shared: &Shared,
    ) -> Result<Self, rustls::Error> {
        let tls = match &shared.tls {
            Some(tls) if info.listener.tls => Some(Box::new(TlsSession::new(tls.new_connection()?))),
            _ => None,
        };
        let peer = shared.engine.shared().peers().join(info.peer_key);
        let session = Session::new(Arc::new(Caller::new(info.number, lane, token, peer)));
        Ok(Self {
            info,
            token,
            phase: if shared.auth.is_none() { Phase::Serving } else { Phase::BeforeLogin },
            login: Login::default(),
            limited: None,
            input: Input::default(),
            run: Run::None,
            run_seen: Vec::new(),
            run_computes: Vec::new(),
            requests: 0,
            outbox: Outbox::default(),
            passing_bytes: 0,
            unsent_bytes: 0,
            taken_ms: 0,
            waits_for_room: false,
            has_more: false,
            queued: false,
            read_ahead: shared.settings.protection.read_ahead as u64,
            read_ahead_bytes: shared.caps.read_ahead_bytes,
            closing: None,
            polled: Wish::Read,
            replies: ReplyQueue::default(),
            hung_up: false,
            at_end: false,
            deadline_ms: None,
            tls,
            session,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.info.fd.as_fd()
    }

    /// There is work left that needs no receiving, and room for its replies.
    pub(crate) fn has_more(&self) -> bool {
        !self.is_stuck() && !self.waits_for_room && (self.has_more || self.is_dumping()) && !self.is_delayed()
    }

    /// Replies wait for the client to read.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        !self.outbox.is_empty() || self.tls.as_ref().is_some_and(|tls| !tls.is_empty())
    }

    /// Whether the connection is not read until its client has taken the replies that were sent.
    #[inline]
    pub(crate) fn waits_for_room(&self) -> bool {
        self.waits_for_room
    }

    /// Whether the connection gets a dump.
    pub(crate) fn is_dumping(&self) -> bool {
        matches!(self.phase, Phase::Dumping(_))
    }

    pub(crate) fn watcher(&self) -> Option<&Arc<Watcher>> {
        if let Phase::Watching(watcher) = &self.phase { Some(watcher) } else { None }
    }

    /// Bytes of the buffers that it keeps between turns.
    pub(crate) fn buffer_bytes(&self) -> usize {
        let raw = self.tls.as_ref().map_or(0, |tls| tls.raw_bytes());
        self.input.bytes.capacity() + raw + self.kept_bytes().0
    }

    /// Says why it is about to be closed, unless that would land amid a reply.
    pub(crate) fn tell_no_memory(&self) {
        if self.tls.is_none() && !self.is_stuck() && !self.is_held() && self.input.speaks != Speaks::Binary {
            let text = format!("{}\r\n", reply::error::OUT_OF_MEMORY_READING);
            // Who does not take it sees the end.
            let _sent = send_now(self.info.fd.as_fd(), text.as_bytes());
        }
    }

    /// Whether it keeps output, or has kept some when it was last counted.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.is_stuck() || self.unsent_bytes > 0 || self.is_held()
    }

    /// The rest of a run is waited for.
    #[inline]
    pub(crate) fn waits_for_run(&self) -> bool {
        self.input.has_run()
    }

    /// Input that it keeps counts among the uploads.
    #[inline]
    pub(crate) fn has_upload(&self) -> bool {
        self.input.upload.is_some()
    }

    /// A request waits.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        !self.replies.is_empty()
    }

    /// The event for which the poller must wait next.
    pub(crate) fn wish(&self) -> Wish {
        if self.is_stuck() || self.waits_for_room {
            Wish::Write
        } else if self.is_delayed() || self.is_held() && self.is_paused() && !self.has_more {
            // Only now: a turn that has work does not look at what the poller said, and this is said once.
            Wish::HangUp
        } else if self.polled == Wish::Nothing && self.has_more() {
            // Until it has no work left.
            Wish::Nothing
        } else {
            Wish::Read
        }
    }

    /// Why it must be closed now, if it must.
    pub(crate) fn closed(&self) -> Option<Reason> {
        let has_work = self.is_stuck()
            || self.waits_for_room
            || self.has_more()
            || self.is_held()
            || self.is_delayed()
            || self.waits_for_run();
        if has_work { None } else { self.closing }
    }

    /// Closes as soon as everything is sent.
    pub(crate) fn close(&mut self, reason: Reason) {
        self.closing.get_or_insert(reason);
    }

    /// Receives once. `room` is the shared buffer's free part.
    pub(crate) fn receive(&mut self, room: &mut [u8], shared: &Shared, counters: &Counters) -> ReceiveResult {
        if self.is_stuck() || self.is_delayed() {
            return ReceiveResult::Nothing;
        }
        if self.has_more() {
            return ReceiveResult::Own;
        }
        if self.is_held() && self.is_paused() {
            self.look_for_hang_up();
            return ReceiveResult::Nothing;
        }
        let reads_ahead = self.is_held() && self.input.is_at_a_command();
        if self.tls.is_none() && self.input.arrives() && self.make_page_room(shared).is_err() {
            return ReceiveResult::NoMemory;
        }
        // All bytes, and those of them in `room`.
        let received = if self.tls.is_some() {
            self.receive_tls(room, shared, counters)
        } else if self.input.arrives() {
            self.receive_pages(room, shared)
        } else if self.input.bytes.is_empty() {
            if self.input.expects_pages && room.len() > shared.caps.begin_bytes && self.may_begin() {
                self.receive_begin(room, shared)
            } else {
                recv(self.info.fd.as_fd(), room, RecvFlags::empty()).map(|(_, n)| (n, n))
            }
        } else {
            self.input.drop_used();
            let missing = self.input.need().saturating_sub(self.input.bytes.len());
            if !self.make_room(missing.clamp(1, GROWTH_MIN), &shared.caps) {
                return ReceiveResult::NoMemory;
            }
            let room = spare_capacity(&mut self.input.bytes);
            recv(self.info.fd.as_fd(), room, RecvFlags::empty()).map(|(_, n)| (n, 0))
        };
        match received {
            Ok((0, _)) => {
                if let Some(tls) =
                    self.tls.as_ref().filter(|tls| tls.is_handshaking() && self.closing.is_none())
                {
                    count_tls_error(tls, counters);
                }
                self.give_up_arriving(shared);
                self.at_end = true;
                self.close(Reason::End);
                ReceiveResult::Nothing
            }
            Ok((n, in_room)) => {
                if self.tls.is_none() {
                    counters.bytes_read.add(n as u64);
                }
                // Over TLS a record may have arrived in part.
                if reads_ahead && (self.tls.is_none() || in_room > 0 || !self.input.bytes.is_empty()) {
                    self.session.set_sends_while_held();
                }
                if in_room > 0 { ReceiveResult::Shared(in_room) } else { ReceiveResult::Own }
            }
            Err(Errno::AGAIN | Errno::INTR) => ReceiveResult::Nothing,
            Err(_) => {
                self.fail();
                ReceiveResult::Nothing
            }
        }
    }

    /// Grows `input` when it has room for fewer than `least` bytes: to what its command needs, at most to
    /// twice its size. False: the system refuses the memory.
    fn make_room(&mut self, least: usize, caps: &Caps) -> bool {
        let len = self.input.bytes.len();
        if self.input.bytes.capacity() - len < least {
            let more = match self.input.need().saturating_sub(len) {
                // A line that has not ended: how much will come is not known.
                0 | 1 => len.max(GROWTH_MIN),
                missing => missing.min(len.max(caps.growth_bytes)),
            };
            let more = more.max(least);
            let fits = more < GROWTH_LARGE || shortage::leaves_room(len + more);
            return fits && self.input.bytes.try_reserve_exact(more).is_ok();
        }
        true
    }

    /// Receives and decrypts: into `input` or the pages of a value where these have a command already or the
    /// first record begins a large value, else into `room`. Returns the bytes that came over the wire, and
    /// those in `room`.
    fn receive_tls(
        &mut self,
        room: &mut [u8],
        shared: &Shared,
        counters: &Counters,
    ) -> rustix::io::Result<(usize, usize)> {
        let Some(mut tls) = self.tls.take() else { return Ok((0, 0)) };
        self.input.drop_used();
        let received = match tls.receive(self.info.fd.as_fd(), room.len()) {
            Ok(received) if received > 0 => received,
            other => {
                self.tls = Some(tls);
                return other.map(|received| (received, 0));
            }
        };
        // Room for all that may be decrypted now.
        let fits = room.len() >= tls.raw_bytes() + received;
        let mut is_own = !fits || !self.input.bytes.is_empty() || self.input.arriving().is_some();
        let (mut in_room, mut no_memory) = (0, false);
        let decrypted = tls.decrypt(received, |mut plain| {
            // As memcached, without what TLS adds.
            counters.bytes_read.add(plain.len() as u64);
            if !is_own && in_room == 0 {
                let taken = self.begin_with(plain, shared);
                (is_own, plain) = (taken > 0, &plain[taken..]);
            }
            if is_own {
                no_memory = no_memory || self.take_plain(plain, shared).is_err();
            } else {
                room[in_room..in_room + plain.len()].copy_from_slice(plain);
                in_room += plain.len();
            }
        });
        if no_memory {
            // What is decrypted is nowhere else.
            self.closing = Some(Reason::Error);
        } else if decrypted.is_err() {
            count_tls_error(&tls, counters);
            self.closing.get_or_insert(Reason::Error);
        } else if tls.has_ended() {
            self.close(Reason::End);
        }
        if tls.raw_bytes() > 0 {
            self.input.is_counted = true;
        }
        self.tls = Some(tls);
        Ok((received, in_room))
    }

    /// Sends the turn's replies, and what waited before them. What the socket does not take waits.
    pub(crate) fn send(&mut self, out: &mut Output, shared: &Shared, now_ms: u64, counters: &Counters) {
        if shared.is_watched() && crate::log::enabled(crate::log::Level::Debug) && !out.is_empty() {
            crate::wire_log::replies(self.info.fd.as_raw_fd(), out);
        }
        self.send_unlogged(out, &shared.caps, now_ms, counters);
    }

    /// Sends as [`Connection::send`] does, for lines that are no replies.
    pub(crate) fn send_unlogged(&mut self, out: &mut Output, caps: &Caps, now_ms: u64, counters: &Counters) {
        let sent = self.try_send(out, caps);
        self.note_sent(sent.ok(), out, now_ms, counters);
    }

    /// The socket, if the bytes of `out` can be sent to it as they are, and nothing else waits.
    #[inline]
    pub(crate) fn plain_socket(&self, out: &Output) -> Option<BorrowedFd<'_>> {
        let is_plain =
            self.tls.is_none() && self.outbox.is_empty() && out.huge.is_empty() && !out.bytes.is_empty();
        is_plain.then(|| self.info.fd.as_fd())
    }

    /// Notes replies of which the [socket](Self::plain_socket) has taken `taken` bytes; the rest waits, as
    /// after [`Connection::send`].
    pub(crate) fn sent(
        &mut self,
        taken: usize,
        out: &mut Output,
        shared: &Shared,
        now_ms: u64,
        counters: &Counters,
    ) {
        if shared.is_watched() && crate::log::enabled(crate::log::Level::Debug) {
            crate::wire_log::replies(self.info.fd.as_raw_fd(), out);
        }
        self.keep_rest(taken, out);
        self.note_sent(Some(taken), out, now_ms, counters);
    }

    /// Of replies the socket has taken `taken` bytes: the rest waits.
    #[inline]
    fn keep_rest(&mut self, taken: usize, out: &mut Output) {
        if taken < out.bytes.len() {
            self.outbox.push_all(std::mem::take(&mut out.bytes), taken);
        }
    }

    /// `sent`: bytes that were sent; None if that failed.
    fn note_sent(&mut self, sent: Option<usize>, out: &mut Output, now_ms: u64, counters: &Counters) {
        out.clear();
        let payload = match &mut self.tls {
            Some(tls) => tls.take_encrypted(),
            None => sent.unwrap_or_default() as u64,
        };
        counters.bytes_written.add(payload);
        match sent {
            Some(sent) => {
                if let Phase::Dumping(dump) = &self.phase {
                    dump.note_sent(sent);
                }
                if sent > 0 || self.unsent_bytes == 0 {
                    self.taken_ms = now_ms;
                }
            }
            None => self.fail(),
        }
    }

    fn try_send(&mut self, out: &mut Output, caps: &Caps) -> io::Result<usize> {
        if let Some(socket) = self.plain_socket(out) {
            let taken = send_now(socket, &out.bytes)?;
            self.keep_rest(taken, out);
            return Ok(taken);
        }
        if let Some(tls) = &mut self.tls {
            return tls.send(self.info.fd.as_fd(), &mut self.outbox, out, caps.encrypted_bytes);
        }
        self.outbox.send(self.info.fd.as_fd(), out)
    }

    /// The peer is gone: forget what it asked for and what it should get.
    fn fail(&mut self) {
        self.outbox = Outbox::default();
        if let Some(tls) = &mut self.tls {
            tls.forget();
        }
        self.waits_for_room = false;
        self.input.clear();
        self.leave_run();
        self.has_more = false;
        if self.is_dumping() {
            self.phase = Phase::Serving;
        }
        self.replies = ReplyQueue::default();
        self.login = Login::default();
        self.closing = Some(Reason::Error);
    }

    /// Says that nothing more will be sent, and reads away what has come: a socket closed with unread input
    /// resets the connection, and replies that are still under way would be lost. After the client's own end
    /// there is none, and closing says the rest.
    pub(crate) fn hang_up(&mut self, sink: &mut [u8]) {
        let fd = self.info.fd.as_fd();
        if let Some(tls) = &mut self.tls {
            tls.close(fd);
        }
        if self.at_end || shutdown(fd, Shutdown::Write).is_err() {
            return;
        }
        for _ in 0..HANG_UP_READS {
            if !matches!(recv(fd, &mut *sink, RecvFlags::empty()), Ok((_, 1..))) {
                return;
            }
        }
    }

    /// Forgets a connection that was never served.
    pub(crate) fn discard(&self, shared: &Shared) {
        shared.engine.shared().peers().leave(self.session.caller().peer());
    }

    /// Takes it out of all that knows of it and of the server's sums; it is about to be dropped, and its lane
    /// does not find it any more.
    pub(crate) fn leave(&mut self, reason: Reason, turn: &mut Turn<'_>) {
        let (shared, mut cx) = self.context(turn);
        shared.engine.leave(reason.is_orderly(), &mut cx);
        self.publish(turn);
        // After the engine has ended its waits: from then on it counts as free.
        let shared = turn.shared;
        self.discard(shared);
        self.end_input(shared);
        shared.unsent.change(std::mem::take(&mut self.unsent_bytes), 0);
        if let Some(watcher) = self.watcher() {
            shared.watchers.remove(watcher.lane, watcher.token);
            shared.note_watched();
        }
    }
}

#[cold]
fn count_tls_error(tls: &TlsSession, counters: &Counters) {
    let count =
        if tls.is_handshaking() { &counters.ssl_handshake_errors } else { &counters.ssl_proto_errors };
    count.add(1);
}
