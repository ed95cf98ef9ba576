//! The connections of one thread, and the loop that keeps them busy.
//!
//! # Invariants
//! * A connection has at most one batch under way; its replies come in the order of its requests.
//! * No two packets of a connection have the same number, until four billion have been sent.
//! * [`Session::run`] returns only when no connection has a batch under way, unless it fails.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cattlegrid_server::poller::{Poller, Wish};
use cattlegrid_server::time::Clock;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::link::{Link, TlsSlot};
use crate::tls::Tls;
use crate::verify::{Contents, Fault, Versions};
use crate::wire::{Element, Wire};
use crate::workload::{Op, Plan, Supply};
use crate::{BenchError, Tally};

/// A server under load, shared by the sessions that load it.
#[derive(Debug)]
pub struct Peer {
    /// The server's address as the user wrote it.
    name: String,
    address: SockAddr,
    contents: Contents,
    versions: Versions,
    tls: Option<Tls>,
    /// Connections made by [`Peer::dial`].
    dialled: AtomicU32,
}

impl Peer {
    /// Whether both are at the same address.
    pub(crate) fn is_at(&self, other: &Self) -> bool {
        self.address == other.address
    }

    /// A server at `address`: `HOST:PORT`, or the path of a unix socket, which has a `/`. It is not connected
    /// yet.
    pub fn new(address: &str, plan: &Plan) -> Result<Self, BenchError> {
        let failed = |error| BenchError::Connect { address: address.to_owned(), error };
        let found = if address.contains('/') {
            SockAddr::unix(address).map_err(failed)?
        } else {
            let first = address.to_socket_addrs().map_err(failed)?.next();
            first.map(SockAddr::from).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?
        };
        Ok(Self {
            name: address.to_owned(),
            address: found,
            contents: Contents::new(plan.seed),
            versions: Versions::new(plan.keys),
            tls: None,
            dialled: AtomicU32::new(0),
        })
    }

    /// Sets whether sessions speak TLS. [`Peer::connect`] leaves that to its caller.
    #[must_use]
    pub fn over_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// A connected socket over which nothing has been sent.
    pub fn connect(&self) -> Result<Socket, BenchError> {
        let failed = |error| BenchError::Connect { address: self.name.clone(), error };
        let socket = self.socket().map_err(failed)?;
        socket.connect(&self.address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(socket)
    }

    /// A connection that may still be in progress. Very many can be made, one after the other.
    ///
    /// A closed connection keeps its local port for a minute, and an address has 28,000 ports. So connections
    /// to 127.0.0.1 come from 250 addresses alternately.
    fn dial(&self) -> Result<Socket, BenchError> {
        let failed = |error: io::Error| {
            let error = match error.kind() {
                io::ErrorKind::AddrNotAvailable => io::Error::other(
                    "no local port is free: closed connections keep theirs for a minute; ask with fewer connections",
                ),
                _ => error,
            };
            BenchError::Connect { address: self.name.clone(), error }
        };
        let socket = self.socket().map_err(failed)?;
        if self.address.as_socket_ipv4().is_some_and(|address| *address.ip() == Ipv4Addr::LOCALHOST) {
            let [.., number] = (self.dialled.fetch_add(1, Ordering::Relaxed) % SOURCES + 1).to_be_bytes();
            let own = SocketAddr::from((Ipv4Addr::new(127, 0, 0, number), 0));
            socket.bind(&own.into()).map_err(failed)?;
        }
        // A unix socket connects at once or fails.
        let is_tcp = self.address.as_socket().is_some();
        socket.set_nonblocking(is_tcp).map_err(failed)?;
        match socket.connect(&self.address) {
            Err(error) if !is_connecting(&error) => return Err(failed(error)),
            _ => {}
        }
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(socket)
    }

    /// The socket as a link of this slot.
    fn link(&self, socket: Socket, slot: Option<&TlsSlot>) -> Result<Link, BenchError> {
        Link::new(socket, slot).map_err(|error| BenchError::Connect { address: self.name.clone(), error })
    }

    fn socket(&self) -> io::Result<Socket> {
        let tcp = self.address.as_socket().as_ref().map(SocketAddr::is_ipv4);
        let domain = match tcp {
            Some(true) => Domain::IPV4,
            Some(false) => Domain::IPV6,
            None => Domain::UNIX,
        };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        if tcp.is_some() {
            socket.set_tcp_nodelay(true)?;
        }
        Ok(socket)
    }
}

/// The number of local addresses from which connections to this machine come.
const SOURCES: u32 = 250;

fn is_connecting(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32)
}

/// A run as other threads see it: they read its progress, and can end it.
#[derive(Debug, Default)]
pub struct Meter {
    /// Requests answered so far.
    pub answered: AtomicU64,
    /// Whether the run must fail with [`BenchError::Interrupted`].
    pub stop: AtomicBool,
}

/// The end of a run. A run also ends when its supply does.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// No batch starts after this time.
    Elapsed(Duration),
    /// The number of requests drawn from the supply. Sets that fill misses do not count.
    Requests(u64),
    /// The supply ends.
    Exhausted,
}

/// Connections of one thread to one server.
pub struct Session<W> {
    wire: W,
    plan: Arc<Plan>,
    peer: Arc<Peer>,
    depth: usize,
    /// Whether each connection is closed after a batch, so that the next batch gets a new one.
    reconnects: bool,
    clock: Clock,
    connections: Vec<LoadConnection>,
    /// The buffer of a receive.
    buffer: Box<[u8]>,
    /// The keys of one request.
    ids: Vec<u64>,
    names: Vec<u8>,
}

/// The state of one run.
struct SessionRun<'a> {
    poller: Poller,
    supply: &'a mut dyn Supply,
    meter: &'a Meter,
    /// The number of requests that may still be drawn.
    left: u64,
    /// Whether no new batch may start.
    closing: bool,
    under_way: usize,
    now: Instant,
    tally: Tally,
}

struct LoadConnection {
    link: Link,
    slot: Option<TlsSlot>,
    /// Whether a batch has been sent over the connection.
    used: bool,
    /// Whether the TLS handshake has been counted.
    greeted: bool,
    /// Whether the poller also reports room for writing.
    wants_write: bool,
    output: Vec<u8>,
    sent: usize,
    /// The beginning of an incomplete reply.
    input: InputBuffer,
    /// Requests whose replies are not complete.
    requests: VecDeque<SentRequest>,
    /// The number of the next packet.
    number: u32,
    /// The keys of all requests of the batch; `next`: the index of the next one to be answered.
    asked: Vec<AskedKey>,
    next: usize,
    /// The index of the first key of the request that is being answered.
    first: usize,
    /// Keys that a get has missed and the client will set.
    missed: VecDeque<u64>,
    departed: Instant,
}

#[derive(Debug, Clone, Copy)]
struct SentRequest {
    op: Op,
    /// The number of the request's first packet.
    number: u32,
    /// The end of the request's keys in [`LoadConnection::asked`].
    end: usize,
}

#[derive(Debug, Clone, Copy)]
struct AskedKey {
    id: u64,
    /// The lowest version that a get may find.
    floor: u32,
}

/// A buffer with the beginning of an incomplete reply, and room after it: the rest is received in place. Room
/// is kept, so that not each long reply takes new memory.
#[derive(Debug, Default)]
struct InputBuffer {
    /// Received bytes, followed by room for more.
    bytes: Vec<u8>,
    filled: usize,
}

const BUFFER_BYTES: usize = 256 << 10;
/// The least room for a receive in bytes.
const ROOM_BYTES: usize = 64 << 10;
/// A server that sends nothing for this long counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);
const ROUND: Duration = Duration::from_millis(50);

impl<W: Wire + Clone> Session<W> {
    /// Opens `connections` to the server. Each will have `depth` requests under way.
    pub fn open(
        wire: W,
        plan: Arc<Plan>,
        peer: Arc<Peer>,
        connections: usize,
        depth: usize,
    ) -> Result<Self, BenchError> {
        let clock = Clock::new();
        let mut opened = Vec::with_capacity(connections);
        for _ in 0..connections {
            let slot = peer.tls.as_ref().map(TlsSlot::new);
            let link = peer.link(peer.connect()?, slot.as_ref())?;
            opened.push(LoadConnection::new(link, slot, clock.now()));
        }
        Ok(Self {
            wire,
            plan,
            peer,
            depth,
            reconnects: false,
            clock,
            connections: opened,
            buffer: vec![0; BUFFER_BYTES].into(),
            ids: Vec::new(),
            names: Vec::new(),
        })
    }

    /// Makes each connection close after a batch, so that the next batch goes over a new one.
    pub fn reconnect(&mut self) {
        self.reconnects = true;
    }

    /// Sends the requests that `supply` draws until the end, and waits for the last reply.
    pub fn run(&mut self, supply: &mut dyn Supply, until: Until, meter: &Meter) -> Result<Tally, BenchError> {
        let start = self.clock.now();
        let deadline = if let Until::Elapsed(time) = until { Some(start + time) } else { None };
        let mut run = SessionRun {
            poller: Poller::new().map_err(BenchError::io("no epoll"))?,
            supply,
            meter,
            left: if let Until::Requests(number) = until { number } else { u64::MAX },
            closing: false,
            under_way: 0,
            now: start,
            tally: Tally::new(),
        };
        for token in 0..self.connections.len() {
            let added = run.poller.add(&self.connections[token].link, token as u64, Wish::Read);
            added.map_err(BenchError::io("epoll"))?;
            self.launch(token, &mut run)?;
        }
        let mut heard = start;
        let mut ready = Vec::new();
        while run.under_way > 0 {
            let wait = run.poller.wait(Some(ROUND), |token| ready.push(token as usize));
            wait.map_err(BenchError::io("epoll"))?;
            run.now = self.clock.now();
            run.closing |= deadline.is_some_and(|deadline| run.now >= deadline);
            if meter.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            if !ready.is_empty() {
                heard = run.now;
            } else if run.now.duration_since(heard) > PATIENCE {
                return Err(self.silent("no answer for 10 seconds", &run.tally));
            }
            for token in ready.drain(..) {
                self.step(token, &mut run)?;
            }
        }
        run.tally.elapsed = self.clock.now().duration_since(start);
        Ok(run.tally)
    }

    fn lost(&self, how: &str) -> BenchError {
        BenchError::Lost(format!("{}: {how}", self.peer.name))
    }

    /// The error for a server that sends nothing any more. `tally`: the replies of this run so far.
    fn silent(&self, how: &str, tally: &Tally) -> BenchError {
        self.lost(&format!("{how}{}", if tally.requests == 0 { self.wire.doubt() } else { "" }))
    }

    /// Sends and receives as far as a connection is ready.
    fn step(&mut self, token: usize, run: &mut SessionRun<'_>) -> Result<(), BenchError> {
        if self.connections[token].wants_write {
            self.send(token, &run.poller)?;
        }
        loop {
            let connection = &mut self.connections[token];
            let is_fresh = connection.input.takes_fresh();
            let room = if is_fresh { &mut *self.buffer } else { connection.input.room() };
            let room_bytes = room.len();
            let received = match connection.link.read(room) {
                Ok(0) => {
                    return Err(self.silent("the server closed a connection", &run.tally));
                }
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The bytes read may have been the rest of a handshake.
                    return self.send(token, &run.poller);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.lost(&error.to_string())),
            };
            let used = if is_fresh {
                let fresh = &self.buffer[..received];
                let used = connection.digest(&self.wire, &self.plan, &self.peer, fresh, run)?;
                connection.input.keep(&fresh[used..]);
                used
            } else {
                let mut input = std::mem::take(&mut connection.input);
                input.filled += received;
                let used = connection.digest(&self.wire, &self.plan, &self.peer, input.filled(), run)?;
                input.consume(used);
                connection.input = input;
                used
            };
            if used > 0 && connection.requests.is_empty() {
                run.under_way -= 1;
                return self.launch(token, run);
            }
            if received < room_bytes && self.connections[token].slot.is_none() {
                return Ok(());
            }
        }
    }

    /// Starts the next batch of a connection, if there is one.
    fn launch(&mut self, token: usize, run: &mut SessionRun<'_>) -> Result<(), BenchError> {
        let connection = &mut self.connections[token];
        if !connection.input.is_empty() {
            return Err(BenchError::Wrong(Fault::Unexpected {
                asked: "nothing",
                answer: String::from_utf8_lossy(connection.input.filled()).into_owned(),
            }));
        }
        connection.reset();
        while connection.requests.len() < self.depth && !run.closing {
            self.ids.clear();
            let op = if let Some(id) = connection.missed.pop_front() {
                self.ids.push(id);
                Op::Set
            } else if run.left > 0
                && let Some(op) = run.supply.next(&mut self.ids)
            {
                run.left -= 1;
                op
            } else {
                break;
            };
            let number = connection.number(self.ids.len());
            let wire = self.wire.numbered(number);
            match op {
                Op::Set => {
                    connection.ask_set(&wire, &self.plan, &self.peer, self.ids[0], &mut self.names);
                }
                Op::Get => {
                    self.names.clear();
                    for id in &self.ids {
                        self.plan.write_key(*id, &mut self.names);
                        connection.asked.push(AskedKey { id: *id, floor: self.peer.versions.floor(*id) });
                    }
                    wire.get(self.names.chunks_exact(self.plan.key_bytes), &mut connection.output);
                }
            }
            connection.requests.push_back(SentRequest { op, number, end: connection.asked.len() });
        }
        if connection.requests.is_empty() {
            return Ok(());
        }
        run.under_way += 1;
        connection.departed = run.now;
        if self.reconnects && connection.used {
            connection.link.close();
            connection.link = self.peer.link(self.peer.dial()?, connection.slot.as_ref())?;
            connection.wants_write = false;
            connection.greeted = false;
            let added = run.poller.add(&connection.link, token as u64, Wish::Read);
            added.map_err(BenchError::io("epoll"))?;
        }
        connection.used = true;
        self.send(token, &run.poller)
    }

    fn send(&mut self, token: usize, poller: &Poller) -> Result<(), BenchError> {
        let connection = &mut self.connections[token];
        while connection.sent < connection.output.len() {
            match connection.link.write(&connection.output[connection.sent..]) {
                Ok(sent) => connection.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(&error.to_string())),
            }
        }
        if let Err(error) = connection.link.flush() {
            return Err(self.lost(&error.to_string()));
        }
        let wants_write = connection.link.wants_room(connection.sent < connection.output.len());
        if wants_write != connection.wants_write {
            connection.wants_write = wants_write;
            let wish = if wants_write { Wish::Both } else { Wish::Read };
            let modified = poller.modify(&connection.link, token as u64, wish);
            modified.map_err(BenchError::io("epoll"))?;
        }
        Ok(())
    }
}

impl LoadConnection {
    fn new(link: Link, slot: Option<TlsSlot>, now: Instant) -> Self {
        Self {
            link,
            slot,
            used: false,
            greeted: false,
            wants_write: false,
            output: Vec::new(),
            sent: 0,
            input: InputBuffer::default(),
            requests: VecDeque::new(),
            number: 0,
            asked: Vec::new(),
            next: 0,
            first: 0,
            missed: VecDeque::new(),
            departed: now,
        }
    }

    fn reset(&mut self) {
        self.output.clear();
        self.sent = 0;
        self.asked.clear();
        self.next = 0;
        self.first = 0;
    }

    /// The number of the first packet of a request for this many keys. It has a packet for each key, and one
    /// for the end.
    fn number(&mut self, keys: usize) -> u32 {
        let first = self.number;
        self.number = first.wrapping_add(keys as u32 + 1);
        first
    }

    fn ask_set(&mut self, wire: &impl Wire, plan: &Plan, peer: &Peer, id: u64, name: &mut Vec<u8>) {
        name.clear();
        plan.write_key(id, name);
        let bytes = plan.value_bytes(id);
        wire.set(name, plan.flags, plan.ttl_seconds(id), bytes, &mut self.output);
        let version = peer.versions.begin(id);
        peer.contents.write(id, version, bytes, &mut self.output);
        wire.end_set(&mut self.output);
        self.asked.push(AskedKey { id, floor: version });
    }

    /// Parses the bytes that have arrived. Returns the number of bytes that are done with.
    fn digest(
        &mut self,
        wire: &(impl Wire + Clone),
        plan: &Plan,
        peer: &Peer,
        input: &[u8],
        run: &mut SessionRun<'_>,
    ) -> Result<usize, BenchError> {
        let mut used = 0;
        while let Some(request) = self.requests.front().copied() {
            let keys = if request.op == Op::Get { request.end - self.first } else { 0 };
            let wire = wire.numbered(request.number);
            let Some((element, bytes)) = wire.read(keys, self.next - self.first, &input[used..])? else {
                break;
            };
            used += bytes;
            let done = match element {
                Element::Skip => false,
                Element::Named { key, flags, data } => {
                    self.named(request, key, plan, run)?;
                    self.flagged_hit(flags, data, plan, peer, run)?;
                    false
                }
                Element::Placed { place, key, flags, data } => {
                    self.placed(place, key, plan, run)?;
                    self.flagged_hit(flags, data, plan, peer, run)?;
                    false
                }
                Element::Found { flags, data } => {
                    self.flagged_hit(flags, data, plan, peer, run)?;
                    self.next == request.end
                }
                Element::Next(Some(data)) => {
                    self.hit(data, plan, peer, run)?;
                    self.next == request.end
                }
                Element::Next(None) => {
                    self.miss(plan, run);
                    self.next == request.end
                }
                Element::End => {
                    while self.next < request.end {
                        self.miss(plan, run);
                    }
                    true
                }
                Element::Stored | Element::Refused => {
                    let stored = element == Element::Stored;
                    peer.versions.end(self.asked[self.next].id, stored);
                    self.next += 1;
                    *if stored { &mut run.tally.sets } else { &mut run.tally.refused } += 1;
                    true
                }
            };
            if done {
                if !self.greeted
                    && let Some(resumed) = self.link.has_resumed()
                {
                    self.greeted = true;
                    run.tally.handshakes += 1;
                    run.tally.resumed += u64::from(resumed);
                }
                self.requests.pop_front();
                self.first = request.end;
                run.tally.answered(run.now.duration_since(self.departed));
                run.meter.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(used)
    }

    /// Moves on to the key of this name. The keys before it were missed.
    fn named(
        &mut self,
        request: SentRequest,
        key: &[u8],
        plan: &Plan,
        run: &mut SessionRun<'_>,
    ) -> Result<(), Fault> {
        let id = plan.id(key);
        while self.next < request.end {
            if id == Some(self.asked[self.next].id) {
                return Ok(());
            }
            self.miss(plan, run);
        }
        Err(Fault::Key { key: String::from_utf8_lossy(key).into_owned() })
    }

    /// Moves on to the key at this place in the request, which must have this name. The keys before it were
    /// missed.
    fn placed(
        &mut self,
        place: usize,
        key: &[u8],
        plan: &Plan,
        run: &mut SessionRun<'_>,
    ) -> Result<(), Fault> {
        let place = self.first + place;
        // A key that was answered already is out of order.
        if place < self.next || plan.id(key) != Some(self.asked[place].id) {
            return Err(Fault::Key { key: String::from_utf8_lossy(key).into_owned() });
        }
        while self.next < place {
            self.miss(plan, run);
        }
        Ok(())
    }

    fn flagged_hit(
        &mut self,
        flags: u32,
        data: &[u8],
        plan: &Plan,
        peer: &Peer,
        run: &mut SessionRun<'_>,
    ) -> Result<(), Fault> {
        let id = self.asked[self.next].id;
        if flags != plan.flags {
            return Err(Fault::Flags { id, flags, stored: plan.flags });
        }
        self.hit(data, plan, peer, run)
    }

    fn hit(&mut self, data: &[u8], plan: &Plan, peer: &Peer, run: &mut SessionRun<'_>) -> Result<(), Fault> {
        let AskedKey { id, floor } = self.asked[self.next];
        self.next += 1;
        run.tally.keys_got += 1;
        run.tally.hits += 1;
        let stored = plan.value_bytes(id);
        if data.len() != stored {
            return Err(Fault::Length { id, bytes: data.len(), stored });
        }
        match peer.contents.check(id, data)? {
            Some(version) => peer.versions.check(id, version, floor),
            None => Ok(()),
        }
    }

    fn miss(&mut self, plan: &Plan, run: &mut SessionRun<'_>) {
        if plan.fill_on_miss {
            self.missed.push_back(self.asked[self.next].id);
        }
        self.next += 1;
        run.tally.keys_got += 1;
    }
}

impl InputBuffer {
    fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Whether nothing is kept and no extra room was made, so that the next bytes may go elsewhere.
    fn takes_fresh(&self) -> bool {
        self.is_empty() && self.bytes.len() < BUFFER_BYTES
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// The room for the next bytes.
    fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.filled < ROOM_BYTES {
            self.bytes.resize(2 * self.filled + ROOM_BYTES, 0);
        }
        &mut self.bytes[self.filled..]
    }

    /// Keeps these bytes. Nothing may be kept before.
    fn keep(&mut self, start: &[u8]) {
        debug_assert!(self.is_empty(), "what was received earlier comes first");
        if self.bytes.len() < start.len() {
            self.bytes.resize(start.len(), 0);
        }
        self.bytes[..start.len()].copy_from_slice(start);
        self.filled = start.len();
    }

    /// Drops the first `used` bytes.
    fn consume(&mut self, used: usize) {
        self.bytes.copy_within(used..self.filled, 0);
        self.filled -= used;
    }
}

#[cfg(test)]
mod tests;
