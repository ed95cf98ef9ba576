//! One connection to a server: sign-in, queries, and the stream of its binary log.
//!
//! Source: MySQL's "Client/Server Protocol"; MariaDB's "Client/Server Protocol" and "Replication Protocol".

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::address::Address;
use crate::address::SslMode;
use crate::mysql::auth;
use crate::mysql::read::ByteReader;
use crate::wire::{
    BoxedStream, OUR_NAME, Peer, REPLY_BYTES_MAX, ResultRow, WireError, connect, encrypted, opened, replied,
};

/// Most bytes of one event that are kept. A row can have 1 GiB: of what is longer only the beginning is kept.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// Bytes that are kept of an event longer than [`EVENT_BYTES_MAX`].
const CUT_BYTES: usize = 64;

/// The longest payload of one packet; a longer one goes on in the next.
const PACKET_BYTES_MAX: usize = 0xff_ffff;

// Capabilities.
const LONG_PASSWORD: u32 = 1;
const LONG_FLAG: u32 = 4;
const PROTOCOL_41: u32 = 0x200;
const SSL: u32 = 0x800;
const TRANSACTIONS: u32 = 0x2000;
const SECURE_CONNECTION: u32 = 0x8000;
const PLUGIN_AUTH: u32 = 0x8_0000;
const CONNECT_ATTRS: u32 = 0x10_0000;
const WANTED: u32 = LONG_PASSWORD | LONG_FLAG | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | PLUGIN_AUTH;

/// `utf8mb4_general_ci`.
const UTF8MB4: u8 = 45;

/// The server's number of an error that ends a stream for good.
pub(crate) const ER_MASTER_FATAL: &str = "1236";

pub(crate) struct MysqlConnection {
    stream: BoxedStream,
    input: BytesMut,
    /// The sequence number of the next packet.
    sequence: u8,
    partial: PartialPayload,
    /// Whether the connection is encrypted, or a Unix socket.
    is_private: bool,
    /// The version as the server writes it: `5.5.5-10.11.6-MariaDB`.
    pub(crate) version: String,
}

/// A payload that is being read. It is kept here so that reading may be given up at any await.
#[derive(Debug, Default)]
struct PartialPayload {
    payload: Vec<u8>,
    /// Bytes that are left of this packet; `None`: its header comes.
    left: Option<usize>,
    goes_on: bool,
    length: usize,
}

/// A payload from the server, and whether only its beginning was kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_cut: bool,
}

impl MysqlConnection {
    /// Connects to an address of the server and signs in. `tls`: how certificates are verified.
    pub(crate) async fn open(
        address: &Address,
        password: Option<&str>,
        tls: &Arc<rustls::ClientConfig>,
        peer: Option<&Peer>,
    ) -> Result<(Self, Peer), WireError> {
        opened(async {
            let (host, socket) = ((address.host.as_str(), address.port), Path::new(&address.host));
            let (stream, peer) = connect(address, host, socket, peer).await?;
            let connection = Self {
                stream,
                input: BytesMut::new(),
                sequence: 0,
                partial: PartialPayload::default(),
                is_private: matches!(peer, Peer::Unix),
                version: String::new(),
            };
            let connection = connection.sign_in(address, password, tls).await?;
            Ok((connection, peer))
        })
        .await
    }

    async fn sign_in(
        mut self,
        address: &Address,
        password: Option<&str>,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, WireError> {
        let greeting = Greeting::parse(&self.payload().await?)?;
        self.version.clone_from(&greeting.version);
        if greeting.capabilities & PROTOCOL_41 == 0 || greeting.capabilities & PLUGIN_AUTH == 0 {
            return Err(WireError::Protocol("a greeting of a protocol that is too old"));
        }
        let mut wanted = WANTED | greeting.capabilities & CONNECT_ATTRS;
        let refuse = |reason: String| WireError::Tls { address: address.to_string(), reason };
        if !self.is_private && address.ssl != SslMode::Disable {
            if greeting.capabilities & SSL != 0 {
                wanted |= SSL;
                let request = head(wanted);
                self.send(&request).await?;
                let stream = encrypted(self.stream, &address.host, tls).await.map_err(refuse)?;
                self = Self { stream, is_private: true, ..self };
            } else if address.ssl != SslMode::Prefer {
                return Err(refuse(
                    "the server does not encrypt connections (`ssl_cert`, `ssl_key` there)".to_owned(),
                ));
            }
        }
        let mut login = Login { plugin: greeting.plugin, salt: greeting.salt, password };
        let response = login.response(self.is_private)?;
        let mut message = head(wanted);
        message.extend_from_slice(address.user.as_bytes());
        message.push(0);
        message.push(response.len() as u8);
        message.extend_from_slice(&response);
        message.extend_from_slice(login.plugin.as_bytes());
        message.push(0);
        if wanted & CONNECT_ATTRS != 0 {
            let attributes = ["program_name", OUR_NAME];
            let length: usize = attributes.iter().map(|text| 1 + text.len()).sum();
            message.push(length as u8);
            for attribute in attributes {
                message.push(attribute.len() as u8);
                message.extend_from_slice(attribute.as_bytes());
            }
        }
        self.send(&message).await?;
        loop {
            let reply = self.payload().await?;
            match reply.split_first() {
                Some((0x00, _)) => break,
                Some((0xff, rest)) => return Err(sign_in_error(rest, address)),
                Some((0xfe, rest)) => {
                    let mut reader = ByteReader::new(rest);
                    login.plugin = reader.text_to_zero().ok_or(WireError::Protocol("no name of a plugin"))?;
                    login.salt = salt_of(reader.rest());
                    let response = login.response(self.is_private)?;
                    self.send(&response).await?;
                }
                // caching_sha2_password: it knows the password, or wants it.
                Some((0x01, [0x03])) => {}
                Some((0x01, [0x04])) => self.send_whole_password(&login).await?,
                _ => return Err(WireError::Protocol("a reply to the sign-in that is not known")),
            }
        }
        Ok(self)
    }

    async fn send_whole_password(&mut self, login: &Login<'_>) -> Result<(), WireError> {
        let password = login.needed()?;
        if self.is_private {
            let message = [password.as_bytes(), &[0]].concat();
            return self.send(&message).await;
        }
        self.send(&[0x02]).await?;
        let reply = self.payload().await?;
        let key = reply.strip_prefix(&[0x01]).ok_or(WireError::Protocol("no public key"))?;
        let encrypted = auth::encrypted(password, &login.salt, key);
        let encrypted = encrypted.ok_or(WireError::Protocol("a public key that cannot be read"))?;
        self.send(&encrypted).await
    }

    /// Whether the server is MariaDB.
    pub(crate) fn is_mariadb(&self) -> bool {
        self.version.contains("MariaDB")
    }

    /// The rows of a query.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Vec<ResultRow>, WireError> {
        replied(self.query_that_waits(sql)).await
    }

    async fn query_that_waits(&mut self, sql: &str) -> Result<Vec<ResultRow>, WireError> {
        self.command(&[&[0x03], sql.as_bytes()].concat()).await?;
        let first = self.payload().await?;
        let columns = match first.first() {
            Some(0x00) => return Ok(Vec::new()),
            Some(0xff) => return Err(server_error(&first[1..])),
            _ => ByteReader::new(&first).length().ok_or(WireError::Protocol("no number of columns"))?,
        };
        for _ in 0..=columns {
            // The definitions, and their end.
            self.payload().await?;
        }
        let (mut rows, mut bytes) = (Vec::new(), 0);
        loop {
            let row = self.payload().await?;
            match row.first() {
                Some(0xfe) if row.len() < 9 => return Ok(rows),
                Some(0xff) => return Err(server_error(&row[1..])),
                _ => {}
            }
            bytes += row.len();
            if bytes > REPLY_BYTES_MAX {
                return Err(WireError::Protocol("a reply of more than 32 MiB"));
            }
            let mut reader = ByteReader::new(&row);
            let mut cells = Vec::new();
            for _ in 0..columns {
                cells.push(reader.cell().ok_or(WireError::Protocol("a row that is too short"))?);
            }
            rows.push(cells);
        }
    }

    /// Sends a command, which has a single packet.
    pub(crate) async fn command(&mut self, payload: &[u8]) -> Result<(), WireError> {
        self.sequence = 0;
        self.send(payload).await
    }

    /// Waits for the reply to a command that has no rows.
    pub(crate) async fn done(&mut self) -> Result<(), WireError> {
        let reply = replied(self.payload()).await?;
        if reply.first() == Some(&0xff) { Err(server_error(&reply[1..])) } else { Ok(()) }
    }

    /// The next event of the stream. It may be given up, and called again.
    pub(crate) async fn streamed(&mut self) -> Result<Payload, WireError> {
        let mut payload = self.next().await?;
        match payload.bytes.first() {
            Some(0x00) => {
                payload.bytes.remove(0);
                Ok(payload)
            }
            Some(0xff) => Err(server_error(&payload.bytes[1..])),
            _ => Err(WireError::Io(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    async fn send(&mut self, payload: &[u8]) -> Result<(), WireError> {
        let mut packet = Vec::with_capacity(payload.len() + 4);
        packet.extend_from_slice(&(payload.len() as u32).to_le_bytes()[..3]);
        packet.push(self.sequence);
        packet.extend_from_slice(payload);
        self.sequence = self.sequence.wrapping_add(1);
        self.stream.write_all(&packet).await.map_err(WireError::Io)?;
        self.stream.flush().await.map_err(WireError::Io)
    }

    async fn payload(&mut self) -> Result<Vec<u8>, WireError> {
        let payload = self.next().await?;
        if payload.is_cut { Err(WireError::Protocol("a reply that is too long")) } else { Ok(payload.bytes) }
    }

    async fn next(&mut self) -> Result<Payload, WireError> {
        loop {
            if let Some(payload) = self.partial.take(&mut self.input, &mut self.sequence) {
                return Ok(payload);
            }
            self.input.reserve(16 << 10);
            if self.stream.read_buf(&mut self.input).await.map_err(WireError::Io)? == 0 {
                return Err(WireError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl PartialPayload {
    /// Takes what has arrived; a payload when it is whole.
    fn take(&mut self, input: &mut BytesMut, sequence: &mut u8) -> Option<Payload> {
        loop {
            let left = match self.left {
                Some(left) => left,
                None if input.len() < 4 => return None,
                None => {
                    let left =
                        usize::from(input[0]) | usize::from(input[1]) << 8 | usize::from(input[2]) << 16;
                    *sequence = input[3].wrapping_add(1);
                    input.advance(4);
                    self.goes_on = left == PACKET_BYTES_MAX;
                    left
                }
            };
            let count = left.min(input.len());
            self.length += count;
            if self.length <= EVENT_BYTES_MAX {
                self.payload.extend_from_slice(&input[..count]);
            } else {
                self.payload.truncate(CUT_BYTES);
                self.payload.shrink_to(CUT_BYTES);
            }
            input.advance(count);
            if count < left {
                self.left = Some(left - count);
                return None;
            }
            self.left = None;
            if !self.goes_on {
                let is_cut = self.length > EVENT_BYTES_MAX;
                self.length = 0;
                return Some(Payload { bytes: std::mem::take(&mut self.payload), is_cut });
            }
        }
    }
}

/// The beginning of the reply to a greeting, and all of a request to encrypt.
fn head(capabilities: u32) -> Vec<u8> {
    let mut message = capabilities.to_le_bytes().to_vec();
    message.extend_from_slice(&(PACKET_BYTES_MAX as u32).to_le_bytes());
    message.push(UTF8MB4);
    message.extend_from_slice(&[0; 23]);
    message
}

struct Greeting {
    version: String,
    salt: Vec<u8>,
    capabilities: u32,
    plugin: String,
}

impl Greeting {
    fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if let Some((0xff, rest)) = bytes.split_first() {
            return Err(server_error(rest));
        }
        Self::read(&mut ByteReader::new(bytes)).ok_or(WireError::Protocol("a greeting that is not known"))
    }

    fn read(reader: &mut ByteReader<'_>) -> Option<Self> {
        if reader.u8()? != 10 {
            return None;
        }
        let version = reader.text_to_zero()?;
        reader.u32()?;
        let mut salt = reader.take(8)?.to_vec();
        reader.u8()?;
        let low = u32::from(reader.u16()?);
        reader.take(3)?;
        let capabilities = low | u32::from(reader.u16()?) << 16;
        let length = usize::from(reader.u8()?);
        reader.take(10)?;
        salt.extend_from_slice(reader.take(length.saturating_sub(8).max(13))?);
        let plugin = reader.text_to_zero()?;
        Some(Self { version, salt: salt_of(&salt), capabilities, plugin })
    }
}

/// A salt without the zero at its end.
fn salt_of(bytes: &[u8]) -> Vec<u8> {
    bytes.strip_suffix(&[0]).unwrap_or(bytes).to_vec()
}

struct Login<'a> {
    plugin: String,
    salt: Vec<u8>,
    password: Option<&'a str>,
}

impl Login<'_> {
    fn needed(&self) -> Result<&str, WireError> {
        let none = || WireError::SignIn("the server asks for a password, and none is set".to_owned());
        self.password.ok_or_else(none)
    }

    fn response(&self, is_private: bool) -> Result<Vec<u8>, WireError> {
        let Some(password) = self.password else { return Ok(Vec::new()) };
        match self.plugin.as_str() {
            "mysql_native_password" => Ok(auth::native(password, &self.salt)),
            "caching_sha2_password" => Ok(auth::sha2(password, &self.salt)),
            "mysql_clear_password" if is_private => Ok([password.as_bytes(), &[0]].concat()),
            "mysql_clear_password" => Err(WireError::SignIn(
                "the server asks for the password as it is, which goes over encrypted connections only: set sslmode".to_owned(),
            )),
            other => Err(WireError::SignIn(format!(
                "the server asks for a way to sign in that is not known here (`{other}`): give the user one of \
                 caching_sha2_password or mysql_native_password"
            ))),
        }
    }
}

fn server_error(bytes: &[u8]) -> WireError {
    let number = bytes.get(..2).map_or(0, |number| u16::from_le_bytes([number[0], number[1]]));
    let message = bytes.get(2..).unwrap_or_default();
    // `#` and the SQLSTATE, of five letters.
    let message = if message.first() == Some(&b'#') { message.get(6..).unwrap_or_default() } else { message };
    let message = String::from_utf8_lossy(message).into_owned();
    WireError::Server { kind: "error", code: number.to_string(), message, hint: None }
}

fn sign_in_error(bytes: &[u8], address: &Address) -> WireError {
    WireError::SignIn(format!("{address}: {}", server_error(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_several_packets_in_pieces() {
        let mut bytes = vec![0xff, 0xff, 0xff, 0];
        bytes.resize(4 + PACKET_BYTES_MAX, 1);
        bytes.extend_from_slice(&[2, 0, 0, 1, 7, 8, 1, 0, 0, 2, 9]);
        let (mut partial, mut input, mut sequence) = (PartialPayload::default(), BytesMut::new(), 0);
        let mut payloads = Vec::new();
        for piece in bytes.chunks(1_000_003) {
            input.extend_from_slice(piece);
            while let Some(payload) = partial.take(&mut input, &mut sequence) {
                payloads.push((payload.bytes.len(), payload.bytes.last().copied(), payload.is_cut));
            }
        }
        assert_eq!(payloads, [(PACKET_BYTES_MAX + 2, Some(8), false), (1, Some(9), false)]);
        assert_eq!(sequence, 3);
    }
}
