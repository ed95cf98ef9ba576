//! Sockets: connecting, and the two halves of a stream.

use std::future::Future;
use std::io;
#[cfg(feature = "tls")]
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
#[cfg(feature = "tls")]
use std::sync::PoisonError;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use crate::net::address::Endpoint;

/// A connected socket.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

#[cfg(feature = "tls")]
type TlsStream = tokio_rustls::client::TlsStream<Box<dyn PlainStream>>;

/// A stream over which TLS can be spoken.
#[cfg(feature = "tls")]
pub(crate) trait PlainStream: AsyncRead + AsyncWrite + Send + Unpin {}

#[cfg(feature = "tls")]
impl<T: AsyncRead + AsyncWrite + Send + Unpin> PlainStream for T {}

/// The reading half of a connection.
pub(crate) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
    #[cfg(feature = "tls")]
    Tls(tokio::io::ReadHalf<TlsStream>),
}

/// Where the driver and callers write.
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    #[cfg(feature = "tls")]
    Tls(std::sync::Mutex<tokio::io::WriteHalf<TlsStream>>),
}

impl Stream {
    /// Connects, without a limit of time.
    pub(crate) async fn connect(place: &Endpoint) -> io::Result<Self> {
        Ok(match place {
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
            Endpoint::Unix(path) => Self::Unix(UnixStream::connect(path).await?),
        })
    }

    /// Sends `request` and returns the line that comes back, without its end.
    pub(crate) async fn ask_line(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Tcp(stream) => ask_line(stream, request).await,
            Self::Unix(stream) => ask_line(stream, request).await,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => ask_line(stream, request).await,
        }
    }

    /// Encrypts what is sent from now on.
    #[cfg(feature = "tls")]
    pub(crate) async fn encrypt(
        self,
        connector: tokio_rustls::TlsConnector,
        name: tokio_rustls::rustls::pki_types::ServerName<'static>,
    ) -> io::Result<Self> {
        let plain: Box<dyn PlainStream> = match self {
            Self::Tcp(stream) => Box::new(stream),
            Self::Unix(stream) => Box::new(stream),
            Self::Tls(_) => return Ok(self),
        };
        Ok(Self::Tls(Box::new(connector.connect(name, plain).await?)))
    }

    pub(crate) fn split(self) -> (ReadHalf, Arc<WriteHalf>) {
        match self {
            Self::Tcp(stream) => {
                let (reading, writing) = stream.into_split();
                (ReadHalf::Tcp(reading), Arc::new(WriteHalf::Tcp(writing)))
            }
            Self::Unix(stream) => {
                let (reading, writing) = stream.into_split();
                (ReadHalf::Unix(reading), Arc::new(WriteHalf::Unix(writing)))
            }
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                let (reading, writing) = tokio::io::split(*stream);
                (ReadHalf::Tls(reading), Arc::new(WriteHalf::Tls(writing.into())))
            }
        }
    }
}

async fn ask_line(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> io::Result<Vec<u8>> {
    const LINE_MAX: usize = 2048;
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut line = Vec::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => break,
            _ if line.len() == LINE_MAX => return Err(io::ErrorKind::InvalidData.into()),
            byte => line.push(byte),
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

impl ReadHalf {
    /// Appends what is there. 0: the server has closed.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(half) => pin!(half.read_buf(buffer)).poll(cx),
            Self::Unix(half) => pin!(half.read_buf(buffer)).poll(cx),
            #[cfg(feature = "tls")]
            Self::Tls(half) => pin!(half.read_buf(buffer)).poll(cx),
        }
    }
}

impl WriteHalf {
    /// Writes as much as the socket takes now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            Self::Unix(half) => half.try_write(bytes),
            // Only the driver writes to it.
            #[cfg(feature = "tls")]
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes some of `bytes`.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self {
                Self::Tcp(half) => ready!(half.as_ref().poll_write_ready(cx))?,
                Self::Unix(half) => ready!(half.as_ref().poll_write_ready(cx))?,
                #[cfg(feature = "tls")]
                Self::Tls(half) => {
                    let mut half = half.lock().unwrap_or_else(PoisonError::into_inner);
                    return Pin::new(&mut *half).poll_write(cx, bytes);
                }
            }
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// Sends what has been written and is still in a buffer.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => {
                let _ = cx;
                Poll::Ready(Ok(()))
            }
            #[cfg(feature = "tls")]
            Self::Tls(half) => {
                let mut half = half.lock().unwrap_or_else(PoisonError::into_inner);
                Pin::new(&mut *half).poll_flush(cx)
            }
        }
    }
}
