//! TLS of one connection: its state, and what is encrypted and not sent yet.
//!
//! Replies are encrypted a piece at a time, the next one when the socket has taken the last: a client that does not read
//! holds one encrypted piece. The rest stays in the connection's outbox, where a value in pages of its own is a reference.
//!
//! # Invariants
//! * Whatever is encrypted goes to `wire` at once, so that records leave in the order in which they were encrypted.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;

use rustls::ServerConnection;

use crate::outbox::{Outbox, send_now};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct TlsSession {
    session: ServerConnection,
    wire: Outbox,
}

impl TlsSession {
    pub(crate) fn new(mut session: ServerConnection) -> Self {
        // What it is given is bounded by who gives it.
        session.set_buffer_limit(None);
        Self { session, wire: Outbox::default() }
    }

    /// The handshake is not over.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Nothing that is encrypted waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.wire.is_empty()
    }

    /// Bytes that are kept encrypted.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.wire.kept_bytes()
    }

    /// The peer is gone: what is encrypted is not sent any more.
    pub(crate) fn forget(&mut self) {
        self.wire = Outbox::default();
    }

    /// Decrypts what was received and hands it to `take`. What this makes the server say (a handshake, an alert) waits to
    /// be sent.
    ///
    /// # Errors
    /// The peer does not speak TLS as it should.
    pub(crate) fn receive(&mut self, mut raw: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut read = || {
            while !raw.is_empty() {
                // A full buffer of plain text is emptied below, so this always takes something.
                if self.session.read_tls(&mut raw)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.session.process_new_packets().map_err(io::Error::other)?;
                let mut plain = [0; 16 << 10];
                while let Ok(n @ 1..) = self.session.reader().read(&mut plain) {
                    take(&plain[..n]);
                }
            }
            Ok(())
        };
        let read = read();
        self.collect()?;
        read
    }

    /// Encrypts and sends what `outbox` has, in pieces of at most `most` bytes, as far as the socket takes them; the bytes sent.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn send(&mut self, fd: impl AsFd, outbox: &mut Outbox, most: usize) -> io::Result<usize> {
        let mut sent = 0;
        loop {
            sent += self.wire.flush(&fd)?;
            if !self.wire.is_empty() || outbox.is_empty() {
                return Ok(sent);
            }
            let mut writer = self.session.writer();
            outbox.take(most, |bytes| writer.write_all(bytes))?;
            self.collect()?;
        }
    }

    /// Says that nothing more comes: without it a client cannot tell the end from a connection that was cut. In the
    /// middle of a piece it would be taken for a part of that.
    pub(crate) fn close(&mut self, fd: impl AsFd) {
        self.session.send_close_notify();
        let is_whole = self.wire.is_empty();
        let mut wire = Vec::new();
        while self.session.wants_write() && matches!(self.session.write_tls(&mut wire), Ok(1..)) {}
        if is_whole {
            // A client that does not take it is gone or does not read.
            let _sent = send_now(fd, &wire);
        }
    }

    fn collect(&mut self) -> io::Result<()> {
        if self.session.wants_write() {
            let mut wire = Vec::new();
            while self.session.wants_write() {
                self.session.write_tls(&mut wire)?;
            }
            self.wire.push_all(wire, 0);
        }
        Ok(())
    }
}
