//! One connection to a server: sign-in, simple queries, and the stream of a replication slot.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{COPY_DATA_TAG, ErrorFields, Header, Message};
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};

use crate::postgres::address::{Address, SslMode};
use crate::postgres::catalog::quoted;
use crate::postgres::standbys::OUR_NAME;

/// Bytes of the rows of a reply: the largest has a row for each column of each partition.
const REPLY_BYTES_MAX: usize = 32 << 20;

/// Most bytes of one message that is kept. A row can have 1 GiB: what is longer is skipped.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Longest time for a connection and its sign-in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for the reply to a query that waits for nothing.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection is given up when its peer has not acknowledged anything for about 25 s: after this time without data it is asked, then
/// every [`KEEP_ALIVE_INTERVAL`], [`KEEP_ALIVE_COUNT`] times.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_COUNT: u32 = 3;

/// SQLSTATE of a file that is not there: of the log, or of what its decoding needs.
const UNDEFINED_FILE: &str = "58P01";

/// SQLSTATE of an object that is not there: in a stream, of the publication at the time of a change.
const UNDEFINED_OBJECT: &str = "42704";

/// SQLSTATE of a connection that no line of `pg_hba.conf` allows.
const INVALID_AUTHORIZATION: &str = "28000";

/// SQLSTATE of a role that may not do what it asks for.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// A message's tag and length.
const HEADER_BYTES: usize = 5;

/// The tag of `CopyBothResponse`, with which a replication stream begins.
const COPY_BOTH_TAG: u8 = b'W';

/// What went wrong with a connection.
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
    #[error("{message} (SQLSTATE {code}){}", hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Server {
        /// As of SQL.
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
    SignIn(&'static str),
    /// The server said what it must not say here.
    #[error("the server sent a message that does not fit: {0}")]
    Protocol(&'static str),
    /// No reply within the time for it.
    #[error("no {what} within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout {
        /// What was waited for.
        what: &'static str,
    },
}

impl WireError {
    /// Whether the server does not have the log any more that a slot needs.
    pub(crate) fn is_of_lost_log(&self) -> bool {
        // A change that was written while there was no publication cannot be read for it, even when it is there again.
        matches!(self, Self::Server { code, .. } if code == UNDEFINED_FILE || code == UNDEFINED_OBJECT)
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

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Where a connection goes: a name that has several addresses is resolved once for both connections.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    Unix,
}

pub(crate) struct Connection {
    stream: Pin<Box<dyn Stream>>,
    input: BytesMut,
    output: BytesMut,
    /// Bytes that are left of a message that is skipped.
    skip: Option<usize>,
    /// The server's process.
    process: Option<i32>,
}

impl Connection {
    /// Connects to an address of the server and signs in. `tls`: how certificates are verified.
    pub(crate) async fn open(
        address: &Address,
        password: Option<&str>,
        tls: &Arc<rustls::ClientConfig>,
        peer: Option<&Peer>,
    ) -> Result<(Self, Peer), WireError> {
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, async {
            let encrypts = address.ssl != SslMode::Disable;
            match Self::begin(address, password, tls, peer, encrypts).await {
                // As libpq does: a server may allow a role only without encryption (`hostnossl`).
                Err(WireError::Server { code, .. })
                    if code == INVALID_AUTHORIZATION && address.ssl == SslMode::Prefer =>
                {
                    Self::begin(address, password, tls, peer, false).await
                }
                opened => opened,
            }
        });
        opened.await.map_err(|_| WireError::Timeout { what: "connection and sign-in" })?
    }

    async fn begin(
        address: &Address,
        password: Option<&str>,
        tls: &Arc<rustls::ClientConfig>,
        peer: Option<&Peer>,
        encrypts: bool,
    ) -> Result<(Self, Peer), WireError> {
        let (stream, peer) = connect(address, peer).await?;
        let (input, output) = (BytesMut::new(), BytesMut::new());
        let mut connection = Self { stream, input, output, skip: None, process: None };
        if matches!(peer, Peer::Tcp(_)) && encrypts {
            connection = connection.encrypt(address, tls).await?;
        }
        connection.sign_in(address, password).await?;
        Ok((connection, peer))
    }

    async fn encrypt(
        mut self,
        address: &Address,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, WireError> {
        let refuse = |reason: String| WireError::Tls { address: address.to_string(), reason };
        frontend::ssl_request(&mut self.output);
        self.flush().await?;
        let answer = self.stream.read_u8().await.map_err(WireError::Io)?;
        match (answer, address.ssl) {
            (b'S', _) => {}
            (b'N', SslMode::Prefer) => return Ok(self),
            (b'N', _) => {
                return Err(refuse("the server does not encrypt connections (`ssl = on` there)".to_owned()));
            }
            _ => return Err(WireError::Protocol("neither yes nor no to the request to encrypt")),
        }
        let name = ServerName::try_from(address.host.clone()).map_err(|error| refuse(error.to_string()))?;
        let stream = tokio_rustls::TlsConnector::from(Arc::clone(tls)).connect(name, self.stream).await;
        let stream = stream.map_err(|error| refuse(error.to_string()))?;
        Ok(Self { stream: Box::pin(stream), ..self })
    }

    async fn sign_in(&mut self, address: &Address, password: Option<&str>) -> Result<(), WireError> {
        let parameters = [
            ("user", address.user.as_str()),
            ("database", address.database.as_str()),
            ("replication", "database"),
            ("application_name", OUR_NAME),
            ("client_encoding", "UTF8"),
            (
                "options",
                "-c client_connection_check_interval=1000 -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 -c statement_timeout=0",
            ),
        ];
        frontend::startup_message(parameters, &mut self.output).map_err(WireError::Io)?;
        self.flush().await?;
        let password =
            || password.ok_or(WireError::SignIn("the server asks for a password, and none is set"));
        let mut scram = None;
        loop {
            match self.message().await? {
                Message::AuthenticationOk => break,
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(password()?.as_bytes(), &mut self.output)
                        .map_err(WireError::Io)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(address.user.as_bytes(), password()?.as_bytes(), body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.output).map_err(WireError::Io)?;
                }
                Message::AuthenticationSasl(body) => {
                    if !body.mechanisms().any(|name| Ok(name == SCRAM_SHA_256)).map_err(WireError::Io)? {
                        return Err(WireError::SignIn("the server does not offer SCRAM-SHA-256"));
                    }
                    let state = ScramSha256::new(password()?.as_bytes(), ChannelBinding::unsupported());
                    frontend::sasl_initial_response(SCRAM_SHA_256, state.message(), &mut self.output)
                        .map_err(WireError::Io)?;
                    scram = Some(state);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let state = scram.as_mut().ok_or(WireError::Protocol("SASL that was not begun"))?;
                    state.update(body.data()).map_err(WireError::Io)?;
                    frontend::sasl_response(state.message(), &mut self.output).map_err(WireError::Io)?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let state = scram.as_mut().ok_or(WireError::Protocol("SASL that was not begun"))?;
                    state.finish(body.data()).map_err(WireError::Io)?;
                }
                Message::ErrorResponse(body) => return Err(sign_in_error(body.fields(), address)),
                Message::NoticeResponse(_) => {}
                _ => {
                    return Err(WireError::SignIn(
                        "the server asks for a way to sign in that is not known here",
                    ));
                }
            }
            self.flush().await?;
        }
        loop {
            match self.message().await? {
                Message::ReadyForQuery(_) => return Ok(()),
                Message::BackendKeyData(body) => self.process = Some(body.process_id()),
                Message::ErrorResponse(body) => return Err(sign_in_error(body.fields(), address)),
                _ => {}
            }
        }
    }

    /// The server's process.
    pub(crate) fn process(&self) -> Option<i32> {
        self.process
    }

    /// The rows of a simple query that waits for nothing; of several statements, those of the last.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Vec<ResultRow>, WireError> {
        let rows = tokio::time::timeout(QUERY_TIMEOUT, self.query_that_waits(sql));
        rows.await.map_err(|_| WireError::Timeout { what: "reply of the database" })?
    }

    /// The same without a limit of time.
    pub(crate) async fn query_that_waits(&mut self, sql: &str) -> Result<Vec<ResultRow>, WireError> {
        frontend::query(sql, &mut self.output).map_err(WireError::Io)?;
        self.flush().await?;
        let (mut rows, mut error, mut bytes) = (Vec::new(), None, 0);
        loop {
            match self.message().await? {
                Message::RowDescription(_) => rows.clear(),
                Message::DataRow(body) => {
                    bytes += body.buffer().len();
                    if bytes > REPLY_BYTES_MAX {
                        return Err(WireError::Protocol("a reply of more than 32 MiB"));
                    }
                    let text = |range: Option<std::ops::Range<usize>>| {
                        range.map(|range| String::from_utf8_lossy(&body.buffer()[range]).into_owned())
                    };
                    rows.push(body.ranges().map(|range| Ok(text(range))).collect().map_err(WireError::Io)?);
                }
                Message::ErrorResponse(body) => error = Some(server_error(body.fields())),
                Message::ReadyForQuery(_) => return error.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    /// Begins the stream of a slot.
    pub(crate) async fn start_stream(&mut self, command: &str) -> Result<(), WireError> {
        frontend::query(command, &mut self.output).map_err(WireError::Io)?;
        self.flush().await?;
        loop {
            if let Some(header) = Header::parse(&self.input).map_err(WireError::Io)?
                && header.tag() == COPY_BOTH_TAG
            {
                let length = 1 + header.len().unsigned_abs() as usize;
                if self.input.len() >= length {
                    let _whole = self.input.split_to(length);
                    return Ok(());
                }
                self.fill().await?;
                continue;
            }
            match Message::parse(&mut self.input).map_err(WireError::Io)? {
                Some(Message::ErrorResponse(body)) => return Err(server_error(body.fields())),
                Some(_) => {}
                None => self.fill().await?,
            }
        }
    }

    /// The next message of a stream; `None`: it was too long, and was skipped. Nothing is lost if the future is dropped before it is
    /// ready.
    pub(crate) async fn streamed(&mut self) -> Result<Option<Bytes>, WireError> {
        loop {
            if self.skip.is_none()
                && let Some(header) = Header::parse(&self.input).map_err(WireError::Io)?
                && header.tag() == COPY_DATA_TAG
                && header.len().unsigned_abs() as usize > MESSAGE_BYTES_MAX
            {
                self.skip = Some(1 + header.len().unsigned_abs() as usize);
            }
            if let Some(left) = &mut self.skip {
                let some = self.input.len().min(*left);
                self.input.advance(some);
                *left -= some;
                if *left == 0 {
                    self.skip = None;
                    return Ok(None);
                }
                self.fill().await?;
                continue;
            }
            if self.input.len() < HEADER_BYTES {
                self.fill().await?;
                continue;
            }
            match self.message().await? {
                Message::CopyData(body) => return Ok(Some(body.into_bytes())),
                Message::ErrorResponse(body) => return Err(server_error(body.fields())),
                Message::CopyDone => return Err(WireError::Protocol("the stream ended")),
                _ => {}
            }
        }
    }

    /// Sends a message in a stream.
    pub(crate) async fn send(&mut self, data: &[u8]) -> Result<(), WireError> {
        frontend::CopyData::new(data).map_err(WireError::Io)?.write(&mut self.output);
        self.flush().await
    }

    async fn message(&mut self) -> Result<Message, WireError> {
        loop {
            if let Some(message) = Message::parse(&mut self.input).map_err(WireError::Io)? {
                return Ok(message);
            }
            if let Some(header) = Header::parse(&self.input).map_err(WireError::Io)?
                && header.len().unsigned_abs() as usize > MESSAGE_BYTES_MAX
            {
                return Err(WireError::Protocol("a message of more than 16 MiB"));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), WireError> {
        match self.stream.read_buf(&mut self.input).await {
            Ok(0) => Err(WireError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(WireError::Io(error)),
        }
    }

    async fn flush(&mut self) -> Result<(), WireError> {
        self.stream.write_all_buf(&mut self.output).await.map_err(WireError::Io)?;
        self.stream.flush().await.map_err(WireError::Io)
    }
}

async fn connect(address: &Address, peer: Option<&Peer>) -> Result<(Pin<Box<dyn Stream>>, Peer), WireError> {
    let failed = |source| WireError::Connect { address: address.to_string(), source };
    if address.host.starts_with('/') {
        let path = Path::new(&address.host).join(format!(".s.PGSQL.{}", address.port));
        let stream = UnixStream::connect(&path).await.map_err(failed)?;
        return Ok((Box::pin(stream), Peer::Unix));
    }
    if let Some(Peer::Tcp(at)) = peer {
        let stream = TcpStream::connect(at).await.and_then(kept_alive).map_err(failed)?;
        return Ok((Box::pin(stream), Peer::Tcp(*at)));
    }
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for at in lookup_host((address.host.as_str(), address.port)).await.map_err(failed)? {
        match TcpStream::connect(at).await.and_then(kept_alive) {
            Ok(stream) => return Ok((Box::pin(stream), Peer::Tcp(at))),
            Err(refused) => error = refused,
        }
    }
    Err(failed(error))
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

/// Why a server does not let a role in: if it may not connect or replicate, with the statement that mends it.
fn sign_in_error(fields: ErrorFields<'_>, address: &Address) -> WireError {
    let mut error = server_error(fields);
    if let WireError::Server { code, message, hint, .. } = &mut error
        && code == INSUFFICIENT_PRIVILEGE
    {
        // The name stands in quotes in any language.
        *hint = Some(if message.contains(&format!("\"{}\"", address.database)) {
            format!("GRANT CONNECT ON DATABASE {} TO {}", quoted(&address.database), quoted(&address.user))
        } else {
            format!("ALTER ROLE {} REPLICATION", quoted(&address.user))
        });
    }
    error
}

fn server_error(mut fields: ErrorFields<'_>) -> WireError {
    let (mut code, mut message, mut hint) = (String::new(), String::new(), None);
    while let Ok(Some(field)) = fields.next() {
        let value = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = value,
            b'M' => message = value,
            b'H' => hint = Some(value),
            _ => {}
        }
    }
    WireError::Server { code, message, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_data(bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len() + 4).unwrap();
        [&[COPY_DATA_TAG][..], &length.to_be_bytes(), bytes].concat()
    }

    /// What a stream says that sends these bytes in pieces of `step`, then ends.
    fn streamed(bytes: &[u8], step: usize) -> Vec<Option<Bytes>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let mut connection = Connection {
                stream: Box::pin(near),
                input: BytesMut::new(),
                output: BytesMut::new(),
                skip: None,
                process: None,
            };
            let send = async move {
                for piece in bytes.chunks(step) {
                    far.write_all(piece).await.unwrap();
                }
            };
            let receive = async move {
                let mut all = Vec::new();
                loop {
                    match connection.streamed().await {
                        Ok(message) => all.push(message),
                        Err(WireError::Io(_)) => return all,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            tokio::join!(send, receive).1
        })
    }

    #[test]
    fn a_message_that_is_too_long_is_skipped() {
        let long = copy_data(&vec![b'x'; MESSAGE_BYTES_MAX]);
        let sent = [copy_data(b"before"), long, copy_data(b"after")].concat();
        let expected = [Some(Bytes::from_static(b"before")), None, Some(Bytes::from_static(b"after"))];
        for step in [1 << 16, 65_521] {
            assert_eq!(streamed(&sent, step), expected, "{step}");
        }
        let longest = copy_data(&vec![b'x'; MESSAGE_BYTES_MAX - 4]);
        assert!(matches!(&streamed(&longest, 1 << 16)[..], [Some(_)]));
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let sent = [copy_data(b"one"), copy_data(b""), copy_data(b"three")].concat();
        for step in 1..sent.len() {
            let got = streamed(&sent, step);
            assert_eq!(
                got,
                [&b"one"[..], b"", b"three"].map(|text| Some(Bytes::copy_from_slice(text))),
                "{step}"
            );
        }
    }
}
