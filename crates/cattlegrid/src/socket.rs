//! A socket to a server: TCP or a Unix socket.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected socket of either kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects to `host:port` or `[address]:port`. Each address of the host is tried for at most `patience`,
/// which is also the limit of each read and write.
///
/// # Errors
/// The error of the last address that was tried.
pub(crate) fn connect_tcp(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("names no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Socket {
    /// Connects as [`connect_tcp`] does, or to a Unix socket if the address has a `/`: then it is a path.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn connect(address: &str, patience: Duration) -> io::Result<Self> {
        if !address.contains('/') {
            return connect_tcp(address, patience).map(Self::Tcp);
        }
        let stream = UnixStream::connect(address)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self::Unix(stream))
    }

    /// How long a read takes at most; not zero.
    pub(crate) fn set_read_timeout(&self, wait: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(wait)),
            Self::Unix(stream) => stream.set_read_timeout(Some(wait)),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Reads and writes do not wait from now on.
    pub(crate) fn do_not_wait(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
