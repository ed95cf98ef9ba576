//! Connections to the admin address, with limits on their number, their time and their input.
//!
//! A connection has one request, and [`TIME`] for all of it, including handshake and reply. So an idle peer,
//! or a peer that is slow in either direction, occupies a slot for at most that time. When all slots are
//! taken, a new connection replaces the oldest connection without a complete request; if all have one, the
//! oldest. Connections that arrive faster than that wait in the kernel's backlog.
//!
//! A connection whose reply is a dashboard's stream has no time limit. It frees its slot and takes one of
//! [`super::events`], so that probes and scrapes always find a slot.
//!
//! When clients of the cache have all descriptors of the process, this thread has [`RESERVED`] more, so that
//! a probe does not take a working server for dead.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::events::ResponseBody;
use super::pages::Pages;
use super::{Site, pages};
use crate::log;
use crate::sys::reason;

/// The most connections at once.
pub(super) const CONNECTIONS: usize = 32;

/// The time from the accept to the last byte of the reply.
const TIME: Duration = Duration::from_secs(10);

/// The time for the line and the headers of a request.
const HEADER_TIME: Duration = Duration::from_secs(5);

/// The most bytes of the line and the headers.
const HEADER_BYTES: usize = 16 << 10;

/// The most headers.
const HEADERS: usize = 64;

/// The pause before a connection replaces another, and after a failed accept.
const PAUSE: Duration = Duration::from_millis(10);

/// Descriptors that are reserved for connections when no others are free.
const RESERVED: usize = 2;

/// The reserved descriptors. They are closed for a connection, and opened again when it is closed.
#[derive(Default)]
struct Reserve(Mutex<Vec<File>>);

impl Reserve {
    fn fill(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.len() < RESERVED
            && let Ok(file) = File::open("/dev/null")
        {
            kept.push(file);
        }
    }

    /// Closes a reserved descriptor; false: none is left.
    fn release(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }
}

/// Accepts connections, and starts a task for each.
pub(super) struct Gate {
    reserve: Arc<Reserve>,
    pages: Arc<Pages>,
    is_encrypted: bool,
    open: VecDeque<OpenConnection>,
}

/// A connection and its task.
struct OpenConnection {
    task: JoinHandle<()>,
    line: Arc<ConnectionSignals>,
}

/// Signals between a connection's task and the gate.
#[derive(Debug, Default)]
pub(super) struct ConnectionSignals {
    /// Whether the request has arrived completely.
    asked: AtomicBool,
    /// Whether the reply is a stream.
    streams: AtomicBool,
    /// Notifies that the connection must be closed, even if its peer does not read.
    cut: Notify,
}

impl ConnectionSignals {
    /// Marks the reply as a stream, which has no time limit.
    pub(super) fn stream(&self) {
        self.streams.store(true, Relaxed);
    }

    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    fn streams(&self) -> bool {
        self.streams.load(Relaxed)
    }
}

impl Gate {
    pub(super) fn new(site: Arc<Site>, is_encrypted: bool) -> Self {
        let reserve = Arc::new(Reserve::default());
        Self { reserve, pages: Arc::new(Pages::new(site)), is_encrypted, open: VecDeque::new() }
    }

    /// Accepts connections until it is told to stop.
    pub(super) async fn run(
        mut self,
        sockets: Vec<std::net::TcpListener>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut listeners = Vec::new();
        for socket in sockets {
            match TcpListener::from_std(socket) {
                Ok(listener) => listeners.push(listener),
                Err(error) => log::error(format_args!("--admin: {}", reason(&error))),
            }
        }
        self.reserve.fill();
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listeners) => accepted,
                // A dropped sender counts as a request to stop.
                _ = stopped.wait_for(|stops| *stops) => return,
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, peer).await,
                Err(error) if lacks_descriptors(&error) && self.reserve.release() => {}
                // Without a free descriptor, connections wait in the backlog.
                Err(_) => {
                    self.reserve.fill();
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Frees the slots of connections that have ended. True: there is a free slot.
    fn has_room(&mut self) -> bool {
        self.open.retain(|open| !open.task.is_finished());
        self.open.iter().filter(|open| !open.line.streams()).count() < CONNECTIONS
    }

    async fn serve(&mut self, stream: TcpStream, peer: SocketAddr) {
        if !self.has_room() {
            // In this pause, connections that arrived at the same moment are answered, such as all dashboards
            // after a restart.
            sleep(PAUSE).await;
        }
        if !self.has_room() {
            let own = || self.open.iter().enumerate().filter(|(_, open)| !open.line.streams());
            let oldest = own().find(|(_, open)| !open.line.asked.load(Relaxed));
            // All have sent a request: the oldest is closed, since its peer may not be reading.
            if let Some((at, _)) = oldest.or_else(|| own().next())
                && let Some(open) = self.open.remove(at)
            {
                open.task.abort();
            }
        }
        let line = Arc::new(ConnectionSignals::default());
        let (pages, own, reserve) = (Arc::clone(&self.pages), Arc::clone(&line), Arc::clone(&self.reserve));
        let tls = if self.is_encrypted { pages.tls() } else { None };
        let is_encrypted = self.is_encrypted;
        let task = tokio::spawn(async move {
            let conversation = async {
                match (is_encrypted, tls) {
                    (false, _) => converse(stream, peer, pages, &own).await,
                    // A handshake that fails concerns its peer only.
                    (true, Some(config)) => match TlsAcceptor::from(config).accept(stream).await {
                        Ok(stream) => converse(stream, peer, pages, &own).await,
                        Err(error) => log::debug(format_args!("admin: {peer}: TLS: {error}")),
                    },
                    (true, None) => {}
                }
            };
            tokio::select! {
                () = conversation => {}
                () = until_timeout(&own) => log::debug(format_args!("admin: {peer}: closed after {} s", TIME.as_secs())),
                () = own.cut.notified() => log::debug(format_args!("admin: {peer}: closed, since it does not read")),
            }
            // The descriptor is reserved again before a client of the cache can take the closed connection's.
            reserve.fill();
        });
        self.open.push_back(OpenConnection { task, line });
    }
}

/// Waits until the time of a connection is over, which never happens for a stream.
async fn until_timeout(line: &ConnectionSignals) {
    sleep(TIME).await;
    if line.streams() {
        std::future::pending::<()>().await;
    }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Accepts the next connection of any listener.
async fn accept(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    std::future::poll_fn(|cx| {
        for listener in listeners {
            let accepted = listener.poll_accept(cx);
            if accepted.is_ready() {
                return accepted;
            }
        }
        std::task::Poll::Pending
    })
    .await
}

/// Serves one request.
async fn converse<S>(stream: S, peer: SocketAddr, pages: Arc<Pages>, line: &Arc<ConnectionSignals>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(move |request: Request<Incoming>| {
        line.asked.store(true, Relaxed);
        let (pages, line) = (Arc::clone(&pages), Arc::clone(line));
        async move {
            let (parts, body) = request.into_parts();
            // Bytes after the headers are not read, since the connection ends with the reply.
            drop(body);
            Ok::<Response<ResponseBody>, Infallible>(pages::answer(&pages, &parts, peer, &line).await)
        }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        // A client that has sent its request may close that side, as `nc -N` does, and still wants the page.
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        log::debug(format_args!("admin: {peer}: {error}"));
    }
}
