//! gRPC over one connection: messages of one request, and of one response or many.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::wire::{ByteStream, kept_alive};

/// Longest message that is taken, in bytes.
const MESSAGE_MAX: usize = 64 << 20;

/// The flow-control window of the watch in bytes: more may not arrive before it is read.
const WINDOW: u32 = 4 << 20;

/// A code of gRPC: the user has no right.
pub(crate) const PERMISSION_DENIED: u32 = 7;
/// A code of gRPC: a revision that was compacted, or has not come yet.
pub(crate) const OUT_OF_RANGE: u32 = 11;
/// A code of gRPC: there is no space.
pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;

/// An error of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrpcError {
    /// No connection.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// The server.
        server: String,
        /// Why.
        reason: String,
    },
    /// The connection ended or is broken.
    #[error("the connection to etcd ended: {0}")]
    Connection(String),
    /// There was no response in time.
    #[error("no response within {} ms to {what}", .after.as_millis())]
    Timeout {
        /// The request.
        what: &'static str,
        /// The time.
        after: Duration,
    },
    /// etcd refuses, or cannot.
    #[error("{message}")]
    Status {
        /// gRPC's.
        code: u32,
        /// etcd's.
        message: String,
    },
    /// The server is no etcd, or its answer breaks the protocol.
    #[error("the answer is not etcd's: {0}")]
    Protocol(&'static str),
}

/// One connection.
#[derive(Clone)]
pub(crate) struct Channel {
    send: SendRequest<Bytes>,
    scheme: &'static str,
    authority: String,
    token: Option<HeaderValue>,
    _driver: Arc<ChannelDriver>,
}

/// Moves the bytes of a connection, while there is a channel.
struct ChannelDriver(JoinHandle<()>);

impl Drop for ChannelDriver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Responses of one request, which is open as long as this is.
pub(crate) struct Responses {
    _request: SendStream<Bytes>,
    body: RecvStream,
    buffer: BytesMut,
}

impl Channel {
    /// Connects to a server, encrypted or not.
    pub(crate) async fn open(
        (host, port): &(String, u16),
        tls: Option<&Arc<rustls::ClientConfig>>,
    ) -> Result<Self, GrpcError> {
        let server = format!("{host}:{port}");
        let failed = |reason: String| GrpcError::Connect { server: server.clone(), reason };
        let socket = TcpStream::connect((host.as_str(), *port)).await.and_then(kept_alive);
        let socket = socket.map_err(|error| failed(error.to_string()))?;
        let stream: Box<dyn ByteStream> = match tls {
            None => Box::new(socket),
            Some(tls) => {
                let name = ServerName::try_from(host.clone()).map_err(|error| failed(error.to_string()))?;
                let mut config = rustls::ClientConfig::clone(tls);
                config.alpn_protocols = vec![b"h2".to_vec()];
                let connected =
                    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await;
                Box::new(connected.map_err(|error| failed(error.to_string()))?)
            }
        };
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(2 * WINDOW).enable_push(false);
        let handshake = builder.handshake::<_, Bytes>(stream).await;
        let (send, connection) = handshake.map_err(|error| failed(error.to_string()))?;
        let driver = tokio::spawn(async move {
            // Its end is seen by the requests.
            let _ended = connection.await;
        });
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { server };
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Self { send, scheme, authority, token: None, _driver: Arc::new(ChannelDriver(driver)) })
    }

    /// The user's token, of all requests from now on.
    pub(crate) fn set_token(&mut self, token: &str) -> Result<(), GrpcError> {
        let token = HeaderValue::from_str(token);
        self.token = Some(token.map_err(|_| GrpcError::Protocol("a token with control characters"))?);
        Ok(())
    }

    /// Sends a request, and waits for its one response.
    pub(crate) async fn unary<A: Message, B: Message + Default>(
        &self,
        method: &'static str,
        request: &A,
        after: Duration,
    ) -> Result<B, GrpcError> {
        let asked = async {
            let mut responses = self.request(method, request, true).await?;
            let first = responses.next::<B>().await?;
            first.ok_or(GrpcError::Protocol("no message in a response"))
        };
        tokio::time::timeout(after, asked).await.map_err(|_| GrpcError::Timeout { what: method, after })?
    }

    /// Sends a request that stays open, and waits for the beginning of its responses.
    pub(crate) async fn streaming<A: Message>(
        &self,
        method: &'static str,
        request: &A,
        after: Duration,
    ) -> Result<Responses, GrpcError> {
        let asked = self.request(method, request, false);
        tokio::time::timeout(after, asked).await.map_err(|_| GrpcError::Timeout { what: method, after })?
    }

    async fn request<A: Message>(
        &self,
        method: &'static str,
        message: &A,
        ends: bool,
    ) -> Result<Responses, GrpcError> {
        let ended = |error: h2::Error| GrpcError::Connection(error.to_string());
        let uri = Uri::builder().scheme(self.scheme).authority(self.authority.as_str());
        let uri = uri.path_and_query(format!("/etcdserverpb.{method}")).build();
        let uri = uri.map_err(|_| GrpcError::Protocol("an address that cannot be an authority"))?;
        let mut request = Request::new(());
        (*request.method_mut(), *request.uri_mut(), *request.version_mut()) =
            (Method::POST, uri, Version::HTTP_2);
        let headers = request.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        headers.insert("user-agent", HeaderValue::from_static("cattlegrid"));
        if let Some(token) = &self.token {
            headers.insert("token", token.clone());
        }
        let mut send = self.send.clone().ready().await.map_err(ended)?;
        let (response, mut body) = send.send_request(request, false).map_err(ended)?;
        let mut framed = BytesMut::with_capacity(message.encoded_len() + 5);
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
        message.encode(&mut framed).map_err(|_| GrpcError::Protocol("a message without room"))?;
        // What the server has no window for waits in the connection: requests are small.
        body.send_data(framed.freeze(), ends).map_err(ended)?;
        let response = response.await.map_err(ended)?;
        if response.status() != http::StatusCode::OK {
            return Err(GrpcError::Protocol("a status of HTTP other than 200"));
        }
        // A response that has no message has its status here.
        status(response.headers())?;
        Ok(Responses { _request: body, body: response.into_body(), buffer: BytesMut::new() })
    }
}

impl Responses {
    /// The next message; `None`: there are no more. May be dropped while it waits.
    pub(crate) async fn next<B: Message + Default>(&mut self) -> Result<Option<B>, GrpcError> {
        let ended = |error: h2::Error| GrpcError::Connection(error.to_string());
        loop {
            if let Some(message) = self.take()? {
                let decoded = B::decode(message);
                return decoded.map(Some).map_err(|_| GrpcError::Protocol("a message that cannot be read"));
            }
            let Some(data) = self.body.data().await else {
                let trailers = self.body.trailers().await.map_err(ended)?;
                status(&trailers.unwrap_or_default())?;
                return Ok(None);
            };
            let data = data.map_err(ended)?;
            self.body.flow_control().release_capacity(data.len()).map_err(ended)?;
            self.buffer.extend_from_slice(&data);
        }
    }

    /// The first message of the buffer, if it has arrived.
    fn take(&mut self) -> Result<Option<Bytes>, GrpcError> {
        let Some(head) = self.buffer.get(..5) else { return Ok(None) };
        if head[0] != 0 {
            return Err(GrpcError::Protocol("a compressed message"));
        }
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if len > MESSAGE_MAX {
            return Err(GrpcError::Protocol("a message of more than 64 MiB"));
        }
        if self.buffer.len() < 5 + len {
            return Ok(None);
        }
        self.buffer.advance(5);
        Ok(Some(self.buffer.split_to(len).freeze()))
    }
}

/// The status that headers or trailers have, if they have one.
fn status(headers: &HeaderMap) -> Result<(), GrpcError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status").map(str::parse::<u32>) {
        None | Some(Ok(0)) => Ok(()),
        Some(Ok(code)) => {
            let message = text("grpc-message").unwrap_or("no reason is given");
            Err(GrpcError::Status { code, message: unescape(message) })
        }
        Some(Err(_)) => Err(GrpcError::Protocol("a status without a number")),
    }
}

/// `%20` is a blank.
fn unescape(text: &str) -> String {
    crate::address::decode(text).unwrap_or_else(|_| text.to_owned())
}

impl GrpcError {
    /// etcd takes no more entries until it is compacted and defragmented.
    pub(crate) fn is_out_of_space(&self) -> bool {
        matches!(self, Self::Status { code: RESOURCE_EXHAUSTED, message } if message.contains("space exceeded"))
    }

    /// A request that failed on its own: the connection is well, and its outcome is known to be nothing.
    pub(crate) fn is_refusal(&self) -> bool {
        self.is_out_of_space() || matches!(self, Self::Status { code: PERMISSION_DENIED, .. })
    }
}
