//! The common part of connections to databases: the socket, and its errors.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};

/// Most bytes of a reply to a query: the largest has a row for each column of each partition.
pub(crate) const REPLY_BYTES_MAX: usize = 32 << 20;

/// Longest time for a connection and its sign-in, and for the reply to a query that waits for nothing.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// How the database's list of connections names ours.
pub(crate) const OUR_NAME: &str = "cattlegrid";

/// A connection is given up when its peer has not acknowledged anything for about 25 s: after this time
/// without data it is asked, then every [`KEEP_ALIVE_INTERVAL`], [`KEEP_ALIVE_COUNT`] times.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_COUNT: u32 = 3;

/// An error of a connection to a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// No connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// The server.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A connection ended or is broken.
    #[error("the connection to the database ended")]
    Io(#[source] io::Error),
    /// The server does not encrypt, or its certificate is refused.
    #[error("TLS with {address}: {reason}")]
    Tls {
        /// The server.
        address: String,
        /// Why.
        reason: String,
    },
    /// The server refused a request.
    #[error("{message} ({kind} {code}){}", hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Server {
        /// The kind of the code: `SQLSTATE`, or `error`, the server's own number.
        kind: &'static str,
        /// The code.
        code: String,
        /// The server's words.
        message: String,
        /// The server's advice.
        hint: Option<String>,
    },
    /// The server counts us among its synchronous standbys.
    #[error("synchronous_standby_names has this server among the standbys for which commits wait")]
    Standby,
    /// The server asks for what is not there.
    #[error("{0}")]
    SignIn(String),
    /// The server said what it must not say here.
    #[error("the server sent a message that does not fit: {0}")]
    Protocol(&'static str),
    /// No reply within the time for it.
    #[error("no {what} within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// The reply that did not come.
        what: &'static str,
    },
}

impl WireError {
    /// The server's code of its error.
    pub(crate) fn code(&self) -> Option<&str> {
        if let Self::Server { code, .. } = self { Some(code) } else { None }
    }

    /// The error and what it comes from, in one line.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        text
    }
}

/// One row of a result: text, or NULL.
pub(crate) type ResultRow = Vec<Option<String>>;

/// The text of a column; empty: NULL, or none.
pub(crate) fn text(row: &ResultRow, at: usize) -> &str {
    row.get(at).and_then(Option::as_deref).unwrap_or_default()
}

/// A stream of a connection's bytes: a socket, or TLS over one.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Such a stream of any kind.
pub(crate) type BoxedStream = Pin<Box<dyn ByteStream>>;

/// Where a connection goes: a name that has several addresses is resolved once for both connections.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    Unix,
}

/// Waits for a connection and its sign-in.
pub(crate) async fn opened<T>(opens: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let opened = tokio::time::timeout(TIMEOUT, opens).await;
    opened.map_err(|_| WireError::Timeout { what: "connection and sign-in" })?
}

/// Waits for the reply to a query that waits for nothing.
pub(crate) async fn replied<T>(asks: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let reply = tokio::time::timeout(TIMEOUT, asks).await;
    reply.map_err(|_| WireError::Timeout { what: "reply of the database" })?
}

/// Connects to a host, or, if it begins with `/`, to this Unix socket. `address`: as errors name it.
pub(crate) async fn connect(
    address: &dyn std::fmt::Display,
    (host, port): (&str, u16),
    socket: &Path,
    peer: Option<&Peer>,
) -> Result<(BoxedStream, Peer), WireError> {
    let failed = |source| WireError::Connect { address: address.to_string(), source };
    if host.starts_with('/') {
        let stream = UnixStream::connect(socket).await.map_err(failed)?;
        return Ok((Box::pin(stream), Peer::Unix));
    }
    let all: Vec<SocketAddr> = match peer {
        Some(Peer::Tcp(at)) => vec![*at],
        _ => lookup_host((host, port)).await.map_err(failed)?.collect(),
    };
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for at in all {
        match TcpStream::connect(at).await.and_then(kept_alive) {
            Ok(stream) => return Ok((Box::pin(stream), Peer::Tcp(at))),
            Err(refused) => error = refused,
        }
    }
    Err(failed(error))
}

/// Encrypts a connection, and verifies for which host its certificate is.
///
/// # Errors
/// Why it is refused.
pub(crate) async fn encrypted(
    stream: BoxedStream,
    host: &str,
    tls: &Arc<rustls::ClientConfig>,
) -> Result<BoxedStream, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let stream = tokio_rustls::TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
    Ok(Box::pin(stream.map_err(|error| error.to_string())?))
}

/// The system notices a peer that is gone without a word.
pub(crate) fn kept_alive(stream: TcpStream) -> io::Result<TcpStream> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&stream, KEEP_ALIVE_COUNT)?;
    Ok(stream)
}
