//! Connections to the shadow, one for each client of the watched server, so that a held look-up delays no
//! other client.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::link::PATIENCE;
use super::replay::{ShadowCommand, ShadowCommandKind};
use crate::socket::Socket;

/// Most connections. Further clients share them.
const PIPES_MAX: u64 = 500;
/// Most commands without a reply. Further ones are left out.
const OPEN_MAX: usize = 500_000;
/// Most unsent bytes of all connections.
const UNSENT_MAX: usize = 64 << 20;
/// Time in nanoseconds after which a look-up without a reply counts as held.
const HELD: u64 = 5_000_000;
/// Longest line of a reply.
const LINE_MAX: usize = 4096;

/// A request whose reply has not come.
#[derive(Debug)]
enum PendingRequest {
    Get {
        id: u64,
        key: Box<[u8]>,
        is_hit: bool,
        sent: u64,
    },
    /// A store or a delete.
    Write {
        key: Box<[u8]>,
    },
    Other,
}

#[derive(Debug)]
struct Pipe {
    socket: Socket,
    unsent: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of a value that are still to come.
    skip: usize,
    asked: VecDeque<PendingRequest>,
    /// Commands of this client that wait for a held look-up, or for a value that another client writes.
    later: VecDeque<ShadowCommand>,
}

#[derive(Debug)]
pub(super) struct Pipes {
    address: String,
    all: HashMap<u64, Pipe>,
    buffer: Vec<u8>,
    open: usize,
    unsent: usize,
    /// Keys that are being written, with the number of writes: look-ups of such a key wait for them.
    writing: HashMap<Box<[u8]>, u32>,
    /// Commands that were left out because the shadow is too slow.
    pub(super) left_out: u64,
    /// The number of errors in replies.
    pub(super) errors: u64,
    /// The last of these errors.
    pub(super) last_error: String,
}

impl Pipes {
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            all: HashMap::new(),
            buffer: vec![0; 64 << 10],
            open: 0,
            unsent: 0,
            writing: HashMap::new(),
            left_out: 0,
            errors: 0,
            last_error: String::new(),
        }
    }

    /// Queues a command at this time, in nanoseconds. False: there is no room for it.
    ///
    /// # Errors
    /// The connection cannot be opened.
    pub(super) fn send(&mut self, send: ShadowCommand, now: u64) -> io::Result<bool> {
        if self.open >= OPEN_MAX || self.unsent >= UNSENT_MAX {
            self.left_out += 1;
            return Ok(false);
        }
        let slot = send.connection % PIPES_MAX;
        if !self.all.contains_key(&slot) {
            let socket = Socket::connect(&self.address, PATIENCE)?;
            socket.do_not_wait()?;
            self.all.insert(slot, Pipe::new(socket));
        }
        let Some(pipe) = self.all.get_mut(&slot) else { return Ok(false) };
        self.open += 1;
        if pipe.later.is_empty() && pipe.may_send(&send, now, &self.writing) {
            self.unsent += pipe.queue(send, now, &mut self.writing);
        } else {
            pipe.later.push_back(send);
        }
        Ok(true)
    }

    /// The number of commands without a reply.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Whether replies will come soon, that is, whether a command waits that is not held.
    pub(super) fn is_waiting(&self, now: u64) -> bool {
        self.all.values().any(|pipe| !pipe.asked.is_empty() && !pipe.is_held(now))
    }

    /// Sends and receives as much as sockets take. Each reply to a look-up is passed to `answered` with its
    /// key, its number and whether it is a hit.
    ///
    /// # Errors
    /// A connection has ended.
    pub(super) fn turn(&mut self, now: u64, mut answered: impl FnMut(&[u8], u64, bool)) -> io::Result<()> {
        for pipe in self.all.values_mut() {
            self.unsent -= pipe.write()?;
            if pipe.asked.is_empty() {
                continue;
            }
            loop {
                let count = match pipe.socket.read(&mut self.buffer) {
                    Ok(0) => return Err(io::Error::other("it has closed a connection")),
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                pipe.take(&self.buffer[..count], &mut |reply| match reply {
                    ReplyLine::Get(key, id, is_hit) => {
                        self.open -= 1;
                        answered(key, id, is_hit);
                    }
                    ReplyLine::Write(key) => {
                        self.open -= 1;
                        if let Some(count) = self.writing.get_mut(key) {
                            *count -= 1;
                            if *count == 0 {
                                self.writing.remove(key);
                            }
                        }
                    }
                    ReplyLine::Other => self.open -= 1,
                    ReplyLine::Error(error) => {
                        self.errors += 1;
                        error.clone_into(&mut self.last_error);
                    }
                })?;
            }
        }
        for pipe in self.all.values_mut().filter(|pipe| !pipe.later.is_empty()) {
            while let Some(next) = pipe.later.front()
                && pipe.may_send(next, now, &self.writing)
            {
                if let Some(next) = pipe.later.pop_front() {
                    self.unsent += pipe.queue(next, now, &mut self.writing);
                }
            }
            self.unsent -= pipe.write()?;
        }
        Ok(())
    }
}

/// A line of a reply.
enum ReplyLine<'a> {
    /// The key, the number, whether it is a hit.
    Get(&'a [u8], u64, bool),
    Write(&'a [u8]),
    Other,
    /// Beside one of the others.
    Error(&'a str),
}

impl Pipe {
    fn new(socket: Socket) -> Self {
        let (unsent, received) = (Vec::new(), Vec::new());
        Self { socket, unsent, received, skip: 0, asked: VecDeque::new(), later: VecDeque::new() }
    }

    fn is_held(&self, now: u64) -> bool {
        match self.asked.front() {
            Some(PendingRequest::Get { sent, .. }) => now.saturating_sub(*sent) > HELD,
            _ => false,
        }
    }

    /// Whether the client would send this command now: not before the reply to a held look-up, and a look-up
    /// not before earlier writes of its key.
    fn may_send(&self, send: &ShadowCommand, now: u64, writing: &HashMap<Box<[u8]>, u32>) -> bool {
        let is_early = matches!(send.what, ShadowCommandKind::Get(_)) && writing.contains_key(&send.key);
        !self.is_held(now) && !is_early
    }

    /// Queues the command's bytes.
    fn queue(&mut self, send: ShadowCommand, now: u64, writing: &mut HashMap<Box<[u8]>, u32>) -> usize {
        let before = self.unsent.len();
        if matches!(send.what, ShadowCommandKind::Store(_) | ShadowCommandKind::Delete) {
            *writing.entry(send.key.clone()).or_default() += 1;
        }
        self.put(send, now);
        self.unsent.len() - before
    }

    fn put(&mut self, ShadowCommand { key, what, .. }: ShadowCommand, now: u64) {
        // Keys that a text line cannot have are sent in Base64, with meta commands.
        let is_plain = key.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        let (name, flag) =
            if is_plain { (key.to_vec(), "") } else { (STANDARD.encode(&key).into_bytes(), " b") };
        let out = &mut self.unsent;
        let asked = match what {
            ShadowCommandKind::Get(id) => {
                out.extend_from_slice(if is_plain { b"get " } else { b"mg " });
                out.extend_from_slice(&name);
                out.extend_from_slice(if is_plain { b"\r\n" } else { b" b v\r\n" });
                PendingRequest::Get { id, key, is_hit: false, sent: now }
            }
            ShadowCommandKind::Store(value) => {
                out.extend_from_slice(b"ms ");
                out.extend_from_slice(&name);
                let mode = if value.is_add { " ME" } else { "" };
                let line = format!(" {}{flag} T{}{mode}\r\n", value.size, value.ttl);
                out.extend_from_slice(line.as_bytes());
                out.resize(out.len() + value.size as usize, b'x');
                out.extend_from_slice(b"\r\n");
                PendingRequest::Write { key }
            }
            ShadowCommandKind::Delete | ShadowCommandKind::Fetch => {
                out.extend_from_slice(if what == ShadowCommandKind::Delete { b"md " } else { b"mg " });
                out.extend_from_slice(&name);
                out.extend_from_slice(flag.as_bytes());
                out.extend_from_slice(b"\r\n");
                if what == ShadowCommandKind::Delete {
                    PendingRequest::Write { key }
                } else {
                    PendingRequest::Other
                }
            }
        };
        self.asked.push_back(asked);
    }

    /// Sends bytes; returns how many.
    fn write(&mut self) -> io::Result<usize> {
        let mut done = 0;
        while done < self.unsent.len() {
            match self.socket.write(&self.unsent[done..]) {
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent.drain(..done);
        Ok(done)
    }

    fn take(&mut self, mut bytes: &[u8], note: &mut impl FnMut(ReplyLine<'_>)) -> io::Result<()> {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { break };
            self.received.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.received);
            self.line(String::from_utf8_lossy(&line).trim_end(), note)?;
        }
        self.received.extend_from_slice(bytes);
        let is_line = self.received.len() <= LINE_MAX;
        is_line.then_some(()).ok_or_else(|| io::Error::other("it sends a line without an end"))
    }

    fn line(&mut self, line: &str, note: &mut impl FnMut(ReplyLine<'_>)) -> io::Result<()> {
        let mut words = line.split(' ');
        let first = words.next().unwrap_or_default();
        let is_error = matches!(first, "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR");
        if is_error {
            note(ReplyLine::Error(line));
        }
        if let Some(PendingRequest::Get { is_hit, .. }) = self.asked.front_mut() {
            match first {
                "VALUE" => {
                    *is_hit = true;
                    let size: usize = words.nth(2).and_then(|size| size.parse().ok()).unwrap_or(0);
                    self.skip = size + 2;
                    return Ok(());
                }
                "VA" => {
                    *is_hit = true;
                    self.skip = words.next().and_then(|size| size.parse().ok()).unwrap_or(0) + 2;
                }
                "END" | "EN" => {}
                _ if is_error => {}
                _ => return Err(io::Error::other(format!("it answers a get with {line:?}"))),
            }
        }
        match self.asked.pop_front() {
            Some(PendingRequest::Get { id, key, is_hit, .. }) => note(ReplyLine::Get(&key, id, is_hit)),
            Some(PendingRequest::Write { key }) => note(ReplyLine::Write(&key)),
            Some(PendingRequest::Other) => note(ReplyLine::Other),
            None => return Err(io::Error::other(format!("it says {line:?} unasked"))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_however_they_are_cut() {
        let replies = b"VALUE a 0 5\r\nEND\r\n\r\nEND\r\nHD\r\nEND\r\nVA 2 \r\nhi\r\nSERVER_ERROR busy\r\n";
        for piece in [1, 2, 3, 7, 100] {
            let (own, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let get = |id| PendingRequest::Get { id, key: Box::from(&b"k"[..]), is_hit: false, sent: 0 };
            let mut pipe = Pipe::new(Socket::Unix(own));
            pipe.asked = VecDeque::from([get(0), PendingRequest::Other, get(1), get(2), get(3)]);
            let (mut hits, mut errors) = (vec![], 0);
            for part in replies.chunks(piece) {
                let note = &mut |reply: ReplyLine<'_>| match reply {
                    ReplyLine::Get(_, id, is_hit) => hits.push((id, is_hit)),
                    ReplyLine::Error(_) => errors += 1,
                    _ => {}
                };
                pipe.take(part, note).unwrap();
            }
            assert_eq!((&hits[..], errors), (&[(0, true), (1, false), (2, true), (3, false)][..], 1));
            assert!(pipe.take(b"HD\r\n", &mut |_| {}).is_err(), "nothing was asked");
        }
    }

    #[test]
    fn a_client_that_is_held_sends_nothing_and_a_look_up_waits_for_the_store_before_it() {
        let (own, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut pipe = Pipe::new(Socket::Unix(own));
        let mut writing = HashMap::new();
        let send = |what| ShadowCommand { connection: 1, key: Box::from(&b"k"[..]), what };
        assert!(pipe.may_send(&send(ShadowCommandKind::Get(0)), 0, &writing));
        pipe.queue(send(ShadowCommandKind::Get(0)), 0, &mut writing);
        assert!(pipe.may_send(&send(ShadowCommandKind::Get(1)), HELD, &writing));
        assert!(!pipe.may_send(&send(ShadowCommandKind::Delete), HELD + 1, &writing));
        pipe.take(b"END\r\n", &mut |_| {}).unwrap();
        pipe.queue(send(ShadowCommandKind::Delete), 0, &mut writing);
        assert!(!pipe.may_send(&send(ShadowCommandKind::Get(1)), 0, &writing));
        assert!(pipe.may_send(&send(ShadowCommandKind::Delete), 0, &writing));
    }
}
