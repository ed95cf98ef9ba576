//! A connection to a server, as the driver uses it: bytes in, bytes out, plain or over TLS.
//!
//! # Invariants
//! * Over TLS a write takes bytes only when none that are encrypted wait, so that a slow server bounds what
//!   is kept.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::client::{ClientConnection, Resumption};
use rustls::{ClientConfig, HandshakeKind};
use socket2::Socket;

use crate::tls::Tls;

/// A socket that does not block; it may still be connecting.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

/// How a connection and those that replace it speak TLS; it has their session tickets, if it keeps any.
#[derive(Debug, Clone)]
pub(crate) struct TlsSlot {
    config: Arc<ClientConfig>,
    tls: Tls,
}

impl TlsSlot {
    pub(crate) fn new(tls: &Tls) -> Self {
        let mut config = tls.config.clone();
        config.resumption =
            if tls.resumes { Resumption::in_memory_sessions(SESSIONS) } else { Resumption::disabled() };
        Self { config: Arc::new(config), tls: tls.clone() }
    }
}

/// The number of TLS sessions kept for a server. With a smaller number rustls keeps none.
const SESSIONS: usize = 8;

impl Link {
    /// Over TLS the handshake is still to come: it takes place with reads and writes.
    ///
    /// # Errors
    /// The settings of TLS do not fit each other.
    pub(crate) fn new(socket: Socket, tls: Option<&TlsSlot>) -> io::Result<Self> {
        let open = |slot: &TlsSlot| {
            let connection = ClientConnection::new(Arc::clone(&slot.config), slot.tls.name.clone());
            connection.map(Box::new).map_err(io::Error::other)
        };
        Ok(Self { socket, tls: tls.map(open).transpose()? })
    }

    /// Receives what is there; 0 bytes: the server has closed the connection.
    ///
    /// # Errors
    /// The system's; `WouldBlock` while nothing is there; others for bytes that are not TLS.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            let processed = tls.process_new_packets().map_err(io::Error::other);
            // A handshake goes on, and a server should hear why it is refused.
            flush(tls, &mut self.socket)?;
            processed?;
        }
    }

    /// Sends as much of `bytes` as there is room for.
    ///
    /// # Errors
    /// The system's; `WouldBlock` while there is no room, no connection yet, or a handshake must come first.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        flush(tls, &mut self.socket)?;
        let taken = if tls.wants_write() { 0 } else { tls.writer().write(bytes)? };
        flush(tls, &mut self.socket)?;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends what is encrypted and waits.
    ///
    /// # Errors
    /// The system's, except for `WouldBlock`.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |tls| flush(tls, &mut self.socket))
    }

    /// Something waits until the socket has room, when `unsent` says that not all has been written.
    pub(crate) fn wants_room(&self, unsent: bool) -> bool {
        self.tls.as_ref().map_or(unsent, |tls| tls.wants_write())
    }

    /// Whether the handshake resumed a session, once that is known; never without TLS.
    pub(crate) fn has_resumed(&self) -> Option<bool> {
        let kind = self.tls.as_ref()?.handshake_kind()?;
        Some(kind == HandshakeKind::Resumed)
    }

    /// Says that nothing more comes, before the connection is dropped. What has arrived and was not read is
    /// lost.
    pub(crate) fn close(&mut self) {
        // A server that is gone already need not be told.
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            flush(tls, &mut self.socket).unwrap_or_default();
        }
        self.socket.shutdown(Shutdown::Both).unwrap_or_default();
    }
}

fn flush(tls: &mut ClientConnection, socket: &mut Socket) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
