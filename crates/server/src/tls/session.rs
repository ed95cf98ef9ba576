//! TLS of one connection: its state, partly received records, and encrypted bytes that are not sent yet.
//!
//! Records are decrypted in the buffer of the thread into which they were received. Replies are encrypted
//! into another buffer of the thread, and sent from there in one call. A connection has bytes of its own only
//! while a record has arrived in part, or the socket has not taken all bytes.
//!
//! Replies are encrypted in pieces, the next one when the socket has taken the last: for a client that does
//! not read, one encrypted piece is kept. The rest stays in the connection's outbox, where a value in pages
//! is a reference.
//!
//! # Invariants
//! * Encrypted bytes are sent or appended to `wire` at once, so that records leave in the order of their
//!   encryption.
//! * `raw` has the bytes that rustls has not discarded, and each call gets all of them, since rustls keeps
//!   positions in them.
//! * Nothing is encrypted while `is_blocked`.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;

use cattlegrid_engine::Output;
use rustix::net::{RecvFlags, recv};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, WriteTraffic,
};

use crate::outbox::{Outbox, send_now};

/// The TLS state of a connection.
pub(crate) struct TlsSession {
    session: UnbufferedServerConnection,
    /// The beginning of a record, or of a handshake message.
    raw: Vec<u8>,
    /// Encrypted bytes, in the order in which they must be sent.
    wire: Vec<u8>,
    /// The number of bytes of `wire` that are sent.
    sent: usize,
    /// Whether the socket has not taken all of `wire`.
    is_blocked: bool,
    /// Whether the peer has said that it sends no more.
    has_ended: bool,
    /// Whether the peer has broken the protocol: then only the alert is sent, and rustls is not called any
    /// more.
    has_failed: bool,
    /// Plain bytes encrypted since [`TlsSession::take_encrypted`].
    encrypted: u64,
}

/// The buffers that connections of a thread share.
struct Scratch {
    /// Received bytes, which are decrypted in place.
    raw: Vec<u8>,
    /// Encrypted bytes, of which the first `used` are valid.
    wire: Vec<u8>,
    used: usize,
    /// Pieces shorter than a record, put together.
    plain: Vec<u8>,
}

/// The most bytes of one receive, with the kept bytes of partial records, in all.
const RAW_BYTES: usize = 96 << 10;
/// The least room for a receive: rustls takes handshake messages of 64 KiB, and the record in which such a
/// message ends.
const RAW_ROOM: usize = 8 << 10;
/// The most plain bytes of a record.
const RECORD: usize = 16 << 10;
/// More than the bytes that a record adds to its plain bytes, in any version.
const RECORD_EXTRA: usize = 64;

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { raw: Vec::new(), wire: Vec::new(), used: 0, plain: Vec::new() }) };
}

impl TlsSession {
    pub(crate) fn new(session: UnbufferedServerConnection) -> Self {
        Self {
            session,
            raw: Vec::new(),
            wire: Vec::new(),
            sent: 0,
            is_blocked: false,
            has_ended: false,
            has_failed: false,
            encrypted: 0,
        }
    }

    /// Plain bytes that were encrypted since the last call. Statistics use these, since memcached does not
    /// count the bytes that TLS adds.
    pub(crate) fn take_encrypted(&mut self) -> u64 {
        std::mem::take(&mut self.encrypted)
    }

    /// Whether the handshake is still going on.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Whether no encrypted bytes wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.wire.is_empty()
    }

    /// Whether the peer has said that it sends no more, or has sent unreadable bytes.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The number of encrypted bytes that wait to be sent.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.wire.capacity()
    }

    /// The number of received bytes that are not decrypted.
    pub(crate) fn raw_bytes(&self) -> usize {
        self.raw.capacity()
    }

    /// Drops encrypted bytes that are not sent: the peer is gone.
    pub(crate) fn forget(&mut self) {
        (self.raw, self.wire, self.sent, self.is_blocked) = (Vec::new(), Vec::new(), 0, false);
    }

    /// Receives once, at most `most` bytes, to be decrypted at once with [`TlsSession::decrypt`]; returns
    /// their number.
    ///
    /// # Errors
    /// The error of the socket.
    pub(crate) fn receive(&self, fd: impl AsFd, most: usize) -> rustix::io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.raw.resize(RAW_BYTES, 0);
            let before = self.raw.len();
            let end = RAW_BYTES.min(before + most);
            recv(fd, &mut scratch.raw[before..end], RecvFlags::empty()).map(|(_, received)| received)
        })
    }

    /// Decrypts all complete records, with the `received` bytes. `take` gets the plain bytes of each record;
    /// together they are at most these bytes and the earlier partial ones. The server's answer (a handshake,
    /// an alert) waits to be sent.
    ///
    /// # Errors
    /// The peer has broken the protocol.
    pub(crate) fn decrypt(&mut self, received: usize, take: impl FnMut(&[u8])) -> Result<(), rustls::Error> {
        if self.has_ended || self.has_failed {
            return Ok(());
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let before = self.raw.len();
            scratch.raw[..before].copy_from_slice(&self.raw);
            let decrypted = self.decrypt_all(&mut scratch.raw[..before + received], take);
            if decrypted.is_err() {
                self.has_failed = true;
                self.raw = Vec::new();
            }
            decrypted
        })
    }

    /// Decrypts `raw`, which has the kept and the received bytes.
    fn decrypt_all(&mut self, raw: &mut [u8], take: impl FnMut(&[u8])) -> Result<(), rustls::Error> {
        let used = self.process(raw, take)?;
        let rest = &raw[used..];
        if rest.len() > RAW_BYTES - RAW_ROOM {
            return Err(rustls::Error::General("a message without an end".to_owned()));
        }
        if self.has_ended || rest.is_empty() {
            self.raw = Vec::new();
        } else {
            self.raw.clear();
            self.raw.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Lets rustls work until it needs more bytes; returns the number of bytes of `raw` that are used up.
    fn process(&mut self, raw: &mut [u8], mut take: impl FnMut(&[u8])) -> Result<usize, rustls::Error> {
        let mut used = 0;
        loop {
            let status = self.session.process_tls_records(&mut raw[used..]);
            let mut discard = status.discard;
            let is_waiting = match status.state {
                Ok(ConnectionState::ReadTraffic(mut records)) => {
                    while let Some(record) = records.next_record() {
                        let record = record?;
                        discard += record.discard;
                        take(record.payload);
                    }
                    false
                }
                Ok(ConnectionState::EncodeTlsData(said)) => {
                    encode(said, &mut self.wire);
                    false
                }
                Ok(ConnectionState::TransmitTlsData(said)) => {
                    said.done();
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.has_ended = true;
                    false
                }
                // Early data is not offered.
                Ok(_) => true,
                Err(error) => {
                    self.collect();
                    return Err(error);
                }
            };
            used += discard;
            if is_waiting {
                return Ok(used);
            }
        }
    }

    /// Moves output of rustls to `wire`.
    fn collect(&mut self) {
        while self.session.wants_write() {
            match self.session.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(said)) => encode(said, &mut self.wire),
                _ => return,
            }
        }
    }

    /// Encrypts and sends the bytes of `outbox`, and then `out`, in pieces of at most `most` bytes, as far as
    /// the socket takes them; the rest goes to `outbox`. Returns the number of bytes sent.
    ///
    /// # Errors
    /// The error of the socket, or that the handshake is not finished.
    pub(crate) fn send(
        &mut self,
        fd: impl AsFd,
        outbox: &mut Outbox,
        out: &mut Output,
        most: usize,
    ) -> io::Result<usize> {
        if !self.wire.is_empty() || !outbox.is_empty() || !out.is_empty() {
            return SCRATCH.with_borrow_mut(|scratch| self.send_pieces(fd, scratch, outbox, out, most));
        }
        Ok(0)
    }

    fn send_pieces(
        &mut self,
        fd: impl AsFd,
        scratch: &mut Scratch,
        outbox: &mut Outbox,
        out: &mut Output,
        most: usize,
    ) -> io::Result<usize> {
        let mut sent = 0;
        if self.has_failed {
            *outbox = Outbox::default();
            out.clear();
        }
        // Replies without values in pages are encrypted without copying them first.
        let mut rest = 0..0;
        if outbox.is_empty() && out.huge.is_empty() {
            rest = 0..out.bytes.len();
        } else {
            outbox.push_output(out);
        }
        let result = loop {
            if self.is_blocked || !self.wire.is_empty() && rest.is_empty() && outbox.is_empty() {
                match self.flush(&fd) {
                    Ok(n) => sent += n,
                    Err(error) => break Err(error),
                }
            }
            if self.is_blocked || rest.is_empty() && outbox.is_empty() {
                break Ok(sent);
            }
            // Output of the handshake goes with the first replies.
            scratch.begin(&mut self.wire, most);
            let encrypted = if rest.is_empty() {
                self.encrypt_outbox(outbox, scratch, most)
            } else {
                let piece = &out.bytes[rest.start..rest.end.min(rest.start + most)];
                rest.start += piece.len();
                self.encrypt(piece, scratch)
            };
            match encrypted.and_then(|()| send_now(&fd, &scratch.wire[..scratch.used])) {
                Ok(n) => {
                    sent += n;
                    if n < scratch.used {
                        self.wire.extend_from_slice(&scratch.wire[n..scratch.used]);
                        self.is_blocked = true;
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if !rest.is_empty() {
            let bytes = std::mem::take(&mut out.bytes);
            outbox.push_all(bytes, rest.start);
        }
        result
    }

    /// Sends waiting bytes.
    fn flush(&mut self, fd: impl AsFd) -> io::Result<usize> {
        let sent = send_now(fd, &self.wire[self.sent..])?;
        self.sent += sent;
        self.is_blocked = self.sent < self.wire.len();
        if !self.is_blocked {
            (self.wire, self.sent) = (Vec::new(), 0);
        }
        Ok(sent)
    }

    /// Encrypts the first bytes of `outbox`, at most `most`. Long pieces are encrypted where they are, others
    /// are put together to records.
    fn encrypt_outbox(&mut self, outbox: &mut Outbox, scratch: &mut Scratch, most: usize) -> io::Result<()> {
        let mut left = most;
        let mut plain = std::mem::take(&mut scratch.plain);
        plain.clear();
        let mut result = Ok(());
        while left > 0 && result.is_ok() && !outbox.is_empty() {
            let first = outbox.first();
            let len = if plain.is_empty() && first.len().min(left) >= RECORD {
                let len = first.len().min(left) / RECORD * RECORD;
                result = self.encrypt(&first[..len], scratch);
                len
            } else {
                let len = first.len().min(left).min(RECORD - plain.len());
                plain.extend_from_slice(&first[..len]);
                len
            };
            left -= len;
            outbox.advance(len);
            if plain.len() == RECORD || !plain.is_empty() && (left == 0 || outbox.is_empty()) {
                result = result.and_then(|()| self.encrypt(&plain, scratch));
                plain.clear();
            }
        }
        scratch.plain = plain;
        result
    }

    /// Encrypts bytes after those in `scratch`.
    fn encrypt(&mut self, plain: &[u8], scratch: &mut Scratch) -> io::Result<()> {
        loop {
            let encrypted = self.write(scratch, |traffic, scratch| {
                traffic.encrypt(plain, &mut scratch.wire[scratch.used..])
            })?;
            match encrypted {
                Ok(len) => {
                    scratch.used += len;
                    self.encrypted += plain.len() as u64;
                    return Ok(());
                }
                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    // A key update may go with it.
                    scratch.wire.resize(scratch.used + required_size, 0);
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Calls `write` when the handshake is finished and rustls has no other output; such output goes to
    /// `scratch` first.
    fn write<T>(
        &mut self,
        scratch: &mut Scratch,
        write: impl FnOnce(&mut WriteTraffic<'_, ServerConnectionData>, &mut Scratch) -> T,
    ) -> io::Result<T> {
        if self.has_failed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        loop {
            let status = self.session.process_tls_records(&mut self.raw);
            debug_assert_eq!(status.discard, 0, "what is whole was decrypted when it was received");
            match status.state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => return Ok(write(&mut traffic, scratch)),
                Ok(ConnectionState::EncodeTlsData(said)) => {
                    scratch.wire.truncate(scratch.used);
                    encode(said, &mut scratch.wire);
                    scratch.used = scratch.wire.len();
                }
                Ok(ConnectionState::TransmitTlsData(said)) => said.done(),
                _ => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }

    /// Sends the close alert, without which a client cannot tell the end from a broken connection. In the
    /// middle of a piece, nothing is sent, since it would be taken for a part of the piece.
    pub(crate) fn close(&mut self, fd: impl AsFd) {
        if self.is_blocked {
            return;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.begin(&mut self.wire, 0);
            let said = self.write(scratch, |traffic, scratch| {
                traffic.queue_close_notify(&mut scratch.wire[scratch.used..])
            });
            // Before the end of the handshake no alert can be sent.
            if let Ok(Ok(len)) = said {
                scratch.used += len;
            }
            // A client that does not take it has gone, or does not read.
            let _sent = send_now(fd, &scratch.wire[..scratch.used]);
        });
    }
}

impl Scratch {
    /// Begins a piece of at most `most` plain bytes with the bytes of `wire`.
    fn begin(&mut self, wire: &mut Vec<u8>, most: usize) {
        let records = most.div_ceil(RECORD) + 2;
        let room = wire.len() + most + records * RECORD_EXTRA;
        if self.wire.len() < room {
            self.wire.resize(room, 0);
        }
        self.used = wire.len();
        self.wire[..self.used].copy_from_slice(wire);
        *wire = Vec::new();
    }
}

/// Appends output of rustls.
fn encode(mut said: EncodeTlsData<'_, ServerConnectionData>, to: &mut Vec<u8>) {
    let at = to.len();
    if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) = said.encode(&mut [])
    {
        to.resize(at + required_size, 0);
        let encoded = said.encode(&mut to[at..]);
        debug_assert!(matches!(encoded, Ok(len) if len == required_size), "the room is what it asks for");
    }
}

#[cfg(test)]
mod tests;
