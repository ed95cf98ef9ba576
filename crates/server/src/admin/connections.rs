//! Connections to the admin address: how many, for how long, and what each may send.
//!
//! A connection has one request and [`TIME`] for all of it, handshake and reply included, so that a peer that is idle, or slow in either
//! direction, costs a slot for that long. When all slots are taken a new connection takes the place of the oldest one that has not sent a
//! whole request yet; if all have, of the oldest. Who comes faster than that waits in the kernel's backlog.
//!
//! A connection whose reply is the stream of a dashboard has no end of its own. It gives its slot back, and takes one of those of
//! [`super::events`], so that probes and scrapes always find one.
//!
//! When clients of the cache have all descriptors of the process, there are [`RESERVED`] more for this thread: a probe must not take a server for
//! dead that serves.

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

use super::events::Body;
use super::pages::Pages;
use super::{Site, pages};
use crate::log;
use crate::sys::reason;

/// Most connections at once.
pub(super) const CONNECTIONS: usize = 32;

/// From the accept to the last byte of the reply.
const TIME: Duration = Duration::from_secs(10);

/// For the line and the headers of a request.
const HEADER_TIME: Duration = Duration::from_secs(5);

/// Most bytes of them.
const HEADER_BYTES: usize = 16 << 10;

/// Most headers.
const HEADERS: usize = 64;

/// The pause before a connection takes the place of another, and after a failed accept.
const PAUSE: Duration = Duration::from_millis(10);

/// Descriptors that are kept for connections when there are no others.
const RESERVED: usize = 2;

/// Descriptors that are given up for a connection, and taken again when it is closed.
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

    /// Whether there was one.
    fn give_up(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }
}

/// Accepts connections and gives each a task.
pub(super) struct Gate {
    reserve: Arc<Reserve>,
    pages: Arc<Pages>,
    is_encrypted: bool,
    open: VecDeque<OpenConnection>,
}

/// A connection.
struct OpenConnection {
    task: JoinHandle<()>,
    line: Arc<Line>,
}

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Its request is there.
    asked: AtomicBool,
    /// Its reply is a stream.
    streams: AtomicBool,
    /// It is closed, whether its peer reads or not.
    cut: Notify,
}

impl Line {
    /// Its reply has no end of its own.
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

    /// Until it is told to stop.
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
                // Its sender has gone: as if told.
                _ = stopped.wait_for(|stops| *stops) => return,
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, peer).await,
                Err(error) if lacks_descriptors(&error) && self.reserve.give_up() => {}
                // Without a descriptor they wait.
                Err(_) => {
                    self.reserve.fill();
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Gives the places of those that have ended back; whether there is one.
    fn has_room(&mut self) -> bool {
        self.open.retain(|open| !open.task.is_finished());
        self.open.iter().filter(|open| !open.line.streams()).count() < CONNECTIONS
    }

    async fn serve(&mut self, stream: TcpStream, peer: SocketAddr) {
        if !self.has_room() {
            // Meanwhile those that came in the same moment are answered, as all dashboards after a restart.
            sleep(PAUSE).await;
        }
        if !self.has_room() {
            let own = || self.open.iter().enumerate().filter(|(_, open)| !open.line.streams());
            let oldest = own().find(|(_, open)| !open.line.asked.load(Relaxed));
            // All have asked: the oldest gives way, since it may be one that does not read.
            if let Some((at, _)) = oldest.or_else(|| own().next())
                && let Some(open) = self.open.remove(at)
            {
                open.task.abort();
            }
        }
        let line = Arc::new(Line::default());
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
                () = over(&own) => log::debug(format_args!("admin: {peer}: closed after {} s", TIME.as_secs())),
                () = own.cut.notified() => log::debug(format_args!("admin: {peer}: closed, since it does not read")),
            }
            // Before a client of the cache takes the connection's.
            reserve.fill();
        });
        self.open.push_back(OpenConnection { task, line });
    }
}

/// Until the time of a connection is over; never of a stream.
async fn over(line: &Line) {
    sleep(TIME).await;
    if line.streams() {
        std::future::pending::<()>().await;
    }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The next connection at any of the listeners.
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

/// One request and its reply.
async fn converse<S>(stream: S, peer: SocketAddr, pages: Arc<Pages>, line: &Arc<Line>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(move |request: Request<Incoming>| {
        line.asked.store(true, Relaxed);
        let (pages, line) = (Arc::clone(&pages), Arc::clone(line));
        async move {
            let (parts, body) = request.into_parts();
            // What comes behind the headers is not read: the connection ends with the reply.
            drop(body);
            Ok::<Response<Body>, Infallible>(pages::answer(&pages, &parts, peer, &line).await)
        }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
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
