//! One connection to a server: sign-in, simple queries, and the stream of a replication slot.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{COPY_DATA_TAG, ErrorFields, Header, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::address::{Address, SslMode};
use crate::postgres::catalog::quoted;
use crate::wire::{
    BoxedStream, OUR_NAME, Peer, REPLY_BYTES_MAX, ResultRow, WireError, connect, encrypted, opened, replied,
};

/// Most bytes of one message that is kept. A row can have 1 GiB: what is longer is skipped.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

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

/// Whether the server does not have the log any more that a slot needs.
pub(crate) fn is_of_lost_log(error: &WireError) -> bool {
    // A change that was written while there was no publication cannot be read for it, even when it is there
    // again.
    matches!(error.code(), Some(UNDEFINED_FILE | UNDEFINED_OBJECT))
}

pub(crate) struct PostgresConnection {
    stream: BoxedStream,
    input: BytesMut,
    output: BytesMut,
    /// Bytes that are left of a message that is skipped.
    skip: Option<usize>,
    /// The server's process.
    process: Option<i32>,
}

impl PostgresConnection {
    /// Connects to an address of the server and signs in. `tls`: how certificates are verified.
    pub(crate) async fn open(
        address: &Address,
        password: Option<&str>,
        tls: &Arc<rustls::ClientConfig>,
        peer: Option<&Peer>,
    ) -> Result<(Self, Peer), WireError> {
        opened(async {
            let encrypts = address.ssl != SslMode::Disable;
            match Self::begin(address, password, tls, peer, encrypts).await {
                // As libpq does: a server may allow a role only without encryption (`hostnossl`).
                Err(error)
                    if error.code() == Some(INVALID_AUTHORIZATION) && address.ssl == SslMode::Prefer =>
                {
                    Self::begin(address, password, tls, peer, false).await
                }
                opened => opened,
            }
        })
        .await
    }

    async fn begin(
        address: &Address,
        password: Option<&str>,
        tls: &Arc<rustls::ClientConfig>,
        peer: Option<&Peer>,
        encrypts: bool,
    ) -> Result<(Self, Peer), WireError> {
        let socket = Path::new(&address.host).join(format!(".s.PGSQL.{}", address.port));
        let (stream, peer) = connect(address, (&address.host, address.port), &socket, peer).await?;
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
        let stream = encrypted(self.stream, &address.host, tls).await.map_err(refuse)?;
        Ok(Self { stream, ..self })
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
        let password = || {
            password.ok_or_else(|| {
                WireError::SignIn("the server asks for a password, and none is set".to_owned())
            })
        };
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
                        return Err(WireError::SignIn("the server does not offer SCRAM-SHA-256".to_owned()));
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
                        "the server asks for a way to sign in that is not known here".to_owned(),
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
        replied(self.query_that_waits(sql)).await
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

    /// The next message of a stream; `None`: it was too long, and was skipped. Nothing is lost if the future
    /// is dropped before it is ready.
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
    WireError::Server { kind: "SQLSTATE", code, message, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_data(bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len() + 4).unwrap();
        [&[COPY_DATA_TAG][..], &length.to_be_bytes(), bytes].concat()
    }

    /// The messages of a stream that sends these bytes in pieces of `step`, then ends.
    fn streamed(bytes: &[u8], step: usize) -> Vec<Option<Bytes>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let mut connection = PostgresConnection {
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
